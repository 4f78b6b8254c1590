"""Instructions as ids: BERT's WordPiece, a word-level vocabulary, truncation and padding."""

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
"""What fills short instructions, in every vocabulary of the field."""


class Tokenizer(Protocol):
    """Turns an instruction into ids below `size`."""

    @property
    def size(self) -> int:
        """How many different ids there are."""

    @property
    def pad_id(self) -> int:
        """The id that stands for no word at all."""

    def encode(self, text: str) -> list[int]:
        """The ids of an instruction, untruncated."""


class WordPiece:
    """BERT's uncased tokenizer from a local file: lower-case, split into known pieces, [CLS] … [SEP]."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        """Wrap a tokenizer of the `tokenizers` package; raises `DataError` unless it behaves like BERT's."""
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
            raise DataError("tells upper from lower case; take that of bert-base-uncased")

    @classmethod
    def read(cls, path: str | Path) -> WordPiece:
        """The tokenizer of a `vocab.txt` (one piece per line) or a `tokenizer.json`."""
        path = Path(path)
        text = read_text(path)
        with prefix_errors(file=path):
            return cls(_from_json(text) if path.suffix == ".json" else _from_pieces(text))

    @property
    def size(self) -> int:
        """How many pieces there are."""
        return self._tokenizer.get_vocab_size()

    @property
    def pad_id(self) -> int:
        """The id of [PAD]."""
        return PAD_ID

    def encode(self, text: str) -> list[int]:
        """The ids of [CLS], the pieces of the text, [SEP]."""
        return list(self._tokenizer.encode(text).ids)


def _from_json(text: str) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Pretrained

    try:
        return Pretrained.from_str(text)
    except Exception as error:  # the package raises nothing more precise
        raise DataError(f"not a tokenizer ({error}); is the file complete?") from None


def _from_pieces(text: str) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Pretrained
    from tokenizers import models, normalizers, pre_tokenizers, processors

    pieces = _lines(text)
    index = _numbered(pieces)
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
"""Entries of a word-level vocabulary that are not words: padding, an unknown word, begin, end."""

_WORD = re.compile(r"\w+|\.+|[^\w\s]")


def build_wordpiece(texts: Iterable[str]) -> list[str]:
    """A WordPiece vocabulary of a corpus: special pieces, characters alone and inside a word, words."""
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer

    normalizer, splitter = BertNormalizer(lowercase=True), BertPreTokenizer()
    found = {word for text in texts for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))}
    characters = sorted({letter for word in found for letter in word} | set("abcdefghijklmnopqrstuvwxyz"))
    pieces = [*characters, *(f"##{letter}" for letter in characters)]
    longer = sorted(word for word in found if len(word) > 1)
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces, *longer]


def words(text: str) -> list[str]:
    """The lower-case words of a text; punctuation marks are words too, a run of dots is one.

    >>> words("Don't stop... Turn left, then wait.")
    ['don', "'", 't', 'stop', '...', 'turn', 'left', ',', 'then', 'wait', '.']
    """
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class Vocabulary:
    """A word-level vocabulary; a word's id is its place.

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
            if entry not in self._index:
                raise DataError(f"none of the {len(self.entries)} entries is {entry}")

    @classmethod
    def build(cls, texts: Iterable[str], *, min_count: int = 1) -> Vocabulary:
        """The words that occur at least `min_count` times (R2R's own vocabulary: 5), the frequent first."""
        counts = Counter(chain.from_iterable(words(text) for text in texts))
        kept = sorted((-count, word) for word, count in counts.items() if count >= min_count)
        return cls((*SPECIAL, *(word for _, word in kept)))

    @classmethod
    def read(cls, path: str | Path) -> Vocabulary:
        """The vocabulary of a file with one entry per line, `<PAD>` first; `<BOS>` may be absent."""
        path = Path(path)
        with prefix_errors(file=path):
            return cls(tuple(_lines(read_text(path))))

    def write(self, path: str | Path) -> None:
        """Write one entry per line, so that line numbers are ids."""
        write_text(Path(path), "".join(f"{entry}\n" for entry in self.entries))

    @cached_property
    def _index(self) -> dict[str, int]:
        return _numbered(self.entries)

    @property
    def size(self) -> int:
        """How many entries there are, the special ones included."""
        return len(self.entries)

    @property
    def pad_id(self) -> int:
        """The id of <PAD>."""
        return PAD_ID

    def encode(self, text: str) -> list[int]:
        """The ids of <BOS> (where the vocabulary has it), the words of the text, <EOS>."""
        unknown = self._index["<UNK>"]
        begin = [self._index["<BOS>"]] if "<BOS>" in self._index else []
        return [*begin, *(self._index.get(word, unknown) for word in words(text)), self._index["<EOS>"]]

    def decode(self, ids: Iterable[int]) -> str:
        """The words of ids, joined by spaces; padding, begin and end are left out."""
        found = []
        for each in ids:
            if not 0 <= each < self.size:
                raise DataError(f"id {each} is outside a vocabulary of {self.size} entries")
            found.append(self.entries[each])
        return " ".join(word for word in found if word not in ("<PAD>", "<BOS>", "<EOS>"))


def _lines(text: str) -> list[str]:
    """The lines of a vocabulary file; raises `DataError` for an empty file or line."""
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    for number, line in enumerate(lines, 1):
        if not line:
            raise DataError(f"line {number} is empty; expected one entry per line")
    return lines


def _numbered(entries: Sequence[str]) -> dict[str, int]:
    """Entries to their places; raises `DataError` where one occurs twice."""
    index: dict[str, int] = {}
    for number, entry in enumerate(entries):
        if index.setdefault(entry, number) != number:
            raise DataError(f"entry '{entry}' occurs twice (ids {index[entry]} and {number})")
    return index


def truncate(tokens: Sequence[int], longest: int, keep: Literal["first", "last"]) -> list[int]:
    """At most `longest` ids: the first (R2R, R4R, RxR) or the last (CVDN), as the original loaders do (A.9).

    Nothing is put back: a long R2R instruction loses its [SEP], a long dialog its [CLS].

    >>> truncate([101, 7, 8, 102], 3, keep="first"), truncate([101, 7, 8, 102], 3, keep="last")
    ([101, 7, 8], [7, 8, 102])
    """
    if longest < 1:
        raise ConfigError(f"instructions cut to {longest} ids say nothing; give at least 1")
    return list(tokens[:longest] if keep == "first" else tokens[-longest:])


class Padded(NamedTuple):
    """A batch of instructions of different lengths."""

    ids: NDArray[np.int64]
    """(B, L)"""
    valid: NDArray[np.bool_]
    """(B, L): True but for padding."""


def pad(batch: Sequence[Sequence[int]]) -> Padded:
    """The ids of a batch, filled up with `PAD_ID` to the longest instruction.

    >>> pad([[101, 7, 102], [101, 102]]).ids.tolist()
    [[101, 7, 102], [101, 102, 0]]
    """
    lengths = np.array([len(tokens) for tokens in batch], dtype=np.int64)
    valid = np.arange(lengths.max(initial=0)) < lengths[:, None]  # (B, L)
    ids = np.full(valid.shape, PAD_ID, dtype=np.int64)
    ids[valid] = np.fromiter(chain.from_iterable(batch), dtype=np.int64)
    return Padded(ids, valid)
