"""Tokenization of instructions: BERT's WordPiece, a vocabulary of whole words, truncation and padding."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from esceme.errors import ConfigError, DataError, prefix_errors
from esceme.files import read_text, write_text

if TYPE_CHECKING:
    import tokenizers

PAD_ID = 0
"""Id of padding in all vocabularies."""


class Tokenizer(Protocol):
    """Interface of tokenizers, which encode text as token ids from 0 to `size` - 1. Id 0 is padding."""

    @property
    def size(self) -> int:
        """Number of token ids."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, not truncated."""

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the token of each id, special tokens included."""


class WordPiece:
    """BERT's uncased WordPiece tokenizer. A text is encoded as [CLS], its pieces, [SEP]."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        """Wrap a tokenizer of the package `tokenizers`; raise `DataError` if it does not act like BERT's."""
        self._tokenizer = tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()
        kind = type(tokenizer.model).__name__
        if kind != "WordPiece":
            raise DataError(f"holds a {kind} tokenizer, not WordPiece; take that of bert-base-uncased")
        if tokenizer.token_to_id("[PAD]") != PAD_ID:
            raise DataError(f"[PAD] has id {tokenizer.token_to_id('[PAD]')}, expected {PAD_ID}")
        if self.encode("") != [tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")]:
            raise DataError("does not put [CLS] before and [SEP] after a text; take bert-base-uncased")
        if self.encode("A") != self.encode("a"):
            raise DataError("distinguishes upper and lower case; take that of bert-base-uncased")

    @classmethod
    def read(cls, path: str | Path) -> WordPiece:
        """Read a file `vocab.txt` (one piece per line) or `tokenizer.json`."""
        path = Path(path)
        text = read_text(path)
        with prefix_errors(file=path):
            return cls(_tokenizer_from_json(text) if path.suffix == ".json" else _tokenizer_from_pieces(text))

    @property
    def size(self) -> int:
        """Number of word pieces."""
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Return the ids of [CLS], the pieces of the text, and [SEP]."""
        return list(self._tokenizer.encode(text).ids)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the piece of each id; inside a word, pieces begin with `##`."""
        return [self._tokenizer.id_to_token(token) or "" for token in ids]


def _tokenizer_from_json(text: str) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Pretrained

    try:
        return Pretrained.from_str(text)
    except Exception as error:  # the package raises nothing more precise
        raise DataError(f"not a tokenizer ({error}); is the file complete?") from None


def _tokenizer_from_pieces(text: str) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Pretrained
    from tokenizers import models, normalizers, pre_tokenizers, processors

    pieces = _split_lines(text)
    index = _index_entries(pieces)
    for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]"):
        if piece not in index:
            raise DataError(f"{len(pieces)} lines but none is {piece}; is this BERT's vocab.txt?")
    tokenizer = Pretrained(models.WordPiece(index, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", index["[SEP]"]), ("[CLS]", index["[CLS]"]))
    tokenizer.add_special_tokens(
        [piece for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if piece in index]
    )
    return tokenizer


SPECIAL = ("<PAD>", "<UNK>", "<BOS>", "<EOS>")
"""Special entries of a vocabulary of whole words: padding, unknown word, begin of text, end of text."""

_WORD = re.compile(r"\w+|\.+|[^\w\s]")


def build_wordpiece(texts: Iterable[str]) -> list[str]:
    """Return the entries of a new WordPiece vocabulary: special pieces, characters, and whole words.

    Every single character occurs twice, as `x` at the start of a word and as `##x` inside a word.
    """
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer

    normalizer, splitter = BertNormalizer(lowercase=True), BertPreTokenizer()
    found = {word for text in texts for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))}
    characters = sorted({letter for word in found for letter in word} | set("abcdefghijklmnopqrstuvwxyz"))
    pieces = [*characters, *(f"##{letter}" for letter in characters)]
    longer = sorted(word for word in found if len(word) > 1)
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces, *longer]


def split_words(text: str) -> list[str]:
    """Return the lower-case words and punctuation marks of a text; consecutive dots are one mark.

    >>> split_words("Don't stop... Turn left, then wait.")
    ['don', "'", 't', 'stop', '...', 'turn', 'left', ',', 'then', 'wait', '.']
    """
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class Vocabulary:
    """Vocabulary of whole words. The id of an entry is its index in `entries`.

    >>> vocabulary = Vocabulary.build(["turn left", "turn right"])
    >>> vocabulary.entries
    ('<PAD>', '<UNK>', '<BOS>', '<EOS>', 'turn', 'left', 'right')
    >>> vocabulary.encode("Turn around")
    [2, 4, 1, 3]
    >>> vocabulary.decode([2, 4, 1, 3, 0, 0])
    'turn <UNK>'
    """

    entries: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.entries[:1] != SPECIAL[:1]:
            raise DataError(f"the first entry is {self.entries[:1]}, expected <PAD>: padding has id {PAD_ID}")
        for entry in ("<UNK>", "<EOS>"):
            if entry not in self._id_of:
                raise DataError(f"none of the {len(self.entries)} entries is {entry}")

    @classmethod
    def build(cls, texts: Iterable[str], *, min_count: int = 1) -> Vocabulary:
        """Return a vocabulary of all words that occur at least `min_count` times, the most frequent first.

        The published R2R vocabulary has a `min_count` of 5.
        """
        counts = Counter(chain.from_iterable(split_words(text) for text in texts))
        frequent = sorted((-count, word) for word, count in counts.items() if count >= min_count)
        return cls((*SPECIAL, *(word for _, word in frequent)))

    @classmethod
    def read(cls, path: str | Path) -> Vocabulary:
        """Read a file with one entry per line, `<PAD>` first; `<BOS>` may be absent."""
        path = Path(path)
        with prefix_errors(file=path):
            return cls(tuple(_split_lines(read_text(path))))

    def write(self, path: str | Path) -> None:
        """Write a file with one entry per line."""
        write_text(Path(path), "".join(f"{entry}\n" for entry in self.entries))

    @cached_property
    def _id_of(self) -> dict[str, int]:
        return _index_entries(self.entries)

    @property
    def size(self) -> int:
        """Number of entries, including the special entries."""
        return len(self.entries)

    def encode(self, text: str) -> list[int]:
        """Return the ids of <BOS> (if the vocabulary has this entry), the words of the text, and <EOS>."""
        unknown = self._id_of["<UNK>"]
        begin = [self._id_of["<BOS>"]] if "<BOS>" in self._id_of else []
        return [*begin, *(self._id_of.get(word, unknown) for word in split_words(text)), self._id_of["<EOS>"]]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the entry of each id."""
        found = []
        for token in ids:
            if not 0 <= token < self.size:
                raise DataError(f"id {token} is outside a vocabulary of {self.size} entries")
            found.append(self.entries[token])
        return found

    def decode(self, ids: Iterable[int]) -> str:
        """Return the words of ids, joined by spaces, without the entries for padding, begin and end."""
        return " ".join(word for word in self.tokens(ids) if word not in ("<PAD>", "<BOS>", "<EOS>"))


def _split_lines(text: str) -> list[str]:
    """Return the lines of a vocabulary file; raise `DataError` if the file or a line is empty."""
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    for number, line in enumerate(lines, 1):
        if not line:
            raise DataError(f"line {number} is empty; expected one entry per line")
    return lines


def _index_entries(entries: Sequence[str]) -> dict[str, int]:
    """Return a dict from entry to index; raise `DataError` if an entry occurs twice."""
    index: dict[str, int] = {}
    for number, entry in enumerate(entries):
        if index.setdefault(entry, number) != number:
            raise DataError(f"entry '{entry}' occurs twice (ids {index[entry]} and {number})")
    return index


def truncate(tokens: Sequence[int], max_tokens: int, keep: Literal["first", "last"]) -> list[int]:
    """Return the first (R2R, R4R, RxR) or the last (CVDN) `max_tokens` token ids (docs/spec.md A.9).

    A long R2R instruction loses its [SEP], and a long dialog its [CLS].

    >>> truncate([101, 7, 8, 102], 3, keep="first"), truncate([101, 7, 8, 102], 3, keep="last")
    ([101, 7, 8], [7, 8, 102])
    """
    if max_tokens < 1:
        raise ConfigError(f"max_tokens: expected at least 1, found {max_tokens}")
    return list(tokens[:max_tokens] if keep == "first" else tokens[-max_tokens:])


class PaddedTokens(NamedTuple):
    """Token ids of a batch of instructions, padded to equal length."""

    ids: NDArray[np.int64]
    """(B, L): token ids."""
    valid: NDArray[np.bool_]
    """(B, L): False for padding."""


def pad_tokens(batch: Sequence[Sequence[int]]) -> PaddedTokens:
    """Return the token ids of a batch, padded with `PAD_ID` to the longest instruction.

    >>> pad_tokens([[101, 7, 102], [101, 102]]).ids.tolist()
    [[101, 7, 102], [101, 102, 0]]
    """
    lengths = np.array([len(tokens) for tokens in batch], dtype=np.int64)
    valid = np.arange(lengths.max(initial=0)) < lengths[:, None]  # (B, L)
    ids = np.full(valid.shape, PAD_ID, dtype=np.int64)
    ids[valid] = np.fromiter(chain.from_iterable(batch), dtype=np.int64)
    return PaddedTokens(ids, valid)
