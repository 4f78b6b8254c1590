from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esceme.errors import ConfigError, DataError
from esceme.tasks.r2r import read_r2r
from esceme.tasks.text import Tokenizer, Vocabulary, WordPiece, pad_tokens, split_words, truncate
from fixtures.files import save_json

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "turn", "left", "##over", "a", ".", "<", "nav", ">"]

token_lists = st.lists(st.integers(0, 30521), max_size=20)


def write_pieces(path: Path, pieces: list[str] = PIECES, newline: str = "\n") -> Path:
    path.write_bytes("".join(f"{piece}{newline}" for piece in pieces).encode())
    return path


# -- truncation and padding --------------------------------------------------------------------------------


@given(tokens=token_lists, longest=st.integers(1, 25), keep=st.sampled_from(["first", "last"]))
def test_truncation_keeps_one_end(tokens: list[int], longest: int, keep: Literal["first", "last"]) -> None:
    truncated = truncate(tokens, longest, keep=keep)
    count = min(len(tokens), longest)
    assert truncated == (tokens[:count] if keep == "first" else tokens[len(tokens) - count :])
    with pytest.raises(ConfigError):
        truncate(tokens, 0, keep=keep)


@given(batch=st.lists(token_lists, max_size=6))
def test_padding_is_as_long_as_the_longest_instruction(batch: list[list[int]]) -> None:
    ids, valid = pad_tokens(batch)
    assert ids.shape == valid.shape == (len(batch), max(map(len, batch), default=0))
    assert (ids.dtype, valid.dtype) == (np.int64, np.bool_)
    assert [row[mask].tolist() for row, mask in zip(ids, valid, strict=True)] == batch
    assert (ids[~valid] == 0).all()
    assert not (valid[:, 1:] & ~valid[:, :-1]).any()


# -- WordPiece ---------------------------------------------------------------------------------------------


def test_wordpiece_lowers_splits_and_adds_special_tokens(tmp_path: Path) -> None:
    tokenizer: Tokenizer = WordPiece.read(write_pieces(tmp_path / "vocab.txt"))
    assert tokenizer.encode("Turn LEFTOVER.") == [2, 5, 6, 7, 9, 3]
    assert tokenizer.encode("<NAV> zebra") == [2, 10, 11, 12, 1, 3]
    assert tokenizer.encode("") == [2, 3]
    assert tokenizer.size == len(PIECES)


def test_line_ends_do_not_matter(tmp_path: Path) -> None:
    windows = WordPiece.read(write_pieces(tmp_path / "windows.txt", newline="\r\n"))
    assert windows.encode("turn left.") == [2, 5, 6, 9, 3]


def write_json_tokenizer(path: Path, **changes: Any) -> Path:
    """A BERT tokenizer in the format of Hugging Face with `changes`."""
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer({piece: k for k, piece in enumerate(PIECES)}, lowercase=True)
    return save_json(path, json.loads(tokenizer.to_str()) | changes)


TRUNCATION = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
PADDING = {
    "strategy": {"Fixed": 9},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "[PAD]",
}


@pytest.mark.parametrize("changes", [{}, {"truncation": TRUNCATION}, {"padding": PADDING}])
def test_json_tokenizer_equals_that_of_the_piece_file(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Truncation and padding of the JSON file are ignored."""
    text = "Turn left. a [SEP] <nav> leftover!"
    tokenizer = WordPiece.read(write_json_tokenizer(tmp_path / "t.json", **changes))
    assert tokenizer.encode(text) == WordPiece.read(write_pieces(tmp_path / "vocab.txt")).encode(text)
    assert tokenizer.encode("") == [2, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalizer": None}, "t.json: distinguishes upper and lower case"),
        ({"model": {"type": "WordLevel", "vocab": {"[PAD]": 0}, "unk_token": "[PAD]"}}, "not WordPiece"),
        ({"post_processor": None}, r"\[CLS\] before and \[SEP\] after"),
    ],
)
def test_tokenizer_unlike_that_of_bert_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        WordPiece.read(write_json_tokenizer(tmp_path / "t.json", **changes))


@pytest.mark.parametrize(
    ("kind", "entries", "message"),
    [
        (WordPiece, [], "line 1 is empty"),
        (WordPiece, ["[PAD]", "", "[UNK]"], "line 2 is empty"),
        (WordPiece, [*PIECES, "turn"], "'turn' occurs twice .ids 5 and 13."),
        (WordPiece, ["hello", "world"], r"none is \[PAD\]"),
        (WordPiece, [PIECES[1], PIECES[0], *PIECES[2:]], r"\[PAD\] has id 1, expected 0"),
        (Vocabulary, [], "line 1 is empty"),
        (Vocabulary, ["<UNK>", "<PAD>", "<EOS>"], "expected <PAD>"),
        (Vocabulary, ["<PAD>", "<EOS>", "go"], "none of the 3 entries is <UNK>"),
        (Vocabulary, ["<PAD>", "<UNK>", "go"], "none of the 3 entries is <EOS>"),
        (Vocabulary, ["<PAD>", "<UNK>", "<EOS>", "go", "go"], "'go' occurs twice"),
        (Vocabulary, ["<PAD>", "<UNK>", "", "<EOS>"], "line 3 is empty"),
    ],
)
def test_malformed_vocabulary_is_refused(tmp_path: Path, kind: Any, entries: list[str], message: str) -> None:
    with pytest.raises(DataError, match=f"vocab.txt: .*{message}"):
        kind.read(write_pieces(tmp_path / "vocab.txt", entries))


@pytest.mark.parametrize("content", [b"", b'{"version": "1.0", "model', b"\xff\xfe"])
def test_damaged_json_tokenizer_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(DataError, match="t.json: not"):
        WordPiece.read(tmp_path / "t.json")


# -- word-level vocabulary ---------------------------------------------------------------------------------


@given(texts=st.lists(st.text(max_size=40), max_size=5))
def test_known_words_are_decoded_and_the_file_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    vocabulary = Vocabulary.build(texts)
    for text in texts:
        ids = vocabulary.encode(text)
        assert ids[0] == 2 and ids[-1] == 3 and len(ids) == len(split_words(text)) + 2
        assert vocabulary.decode([*ids, 0, 0]) == " ".join(split_words(text))
    file = tmp_path_factory.getbasetemp() / "words.txt"
    vocabulary.write(file)
    assert Vocabulary.read(file) == vocabulary


def test_rare_words_become_unknown() -> None:
    vocabulary = Vocabulary.build(["go left", "go right", "go left"], min_count=2)
    assert vocabulary.entries[4:] == ("go", "left")
    assert vocabulary.decode(vocabulary.encode("go right")) == "go <UNK>"


def test_equally_frequent_words_are_in_alphabetical_order() -> None:
    assert Vocabulary.build(["b a"]) == Vocabulary.build(["a", "b"])


def test_vocabulary_without_bos_adds_none(tmp_path: Path) -> None:
    vocabulary = Vocabulary.read(write_pieces(tmp_path / "v.txt", ["<PAD>", "<UNK>", "<EOS>", "go", ". ."]))
    assert vocabulary.encode("Go home") == [3, 1, 2]
    assert vocabulary.size == 5


@pytest.mark.parametrize("token", [-1, 4])
def test_id_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(DataError, match=f"id {token} is outside a vocabulary of 4"):
        Vocabulary.build([]).decode([token])


# -- the public files --------------------------------------------------------------------------------------


@pytest.mark.real
def test_both_bert_files_agree_on_every_unseen_instruction(data_root: Path) -> None:
    folder = data_root / "tokenizer"
    pieces, whole = WordPiece.read(folder / "vocab.txt"), WordPiece.read(folder / "tokenizer.json")
    assert pieces.size == whole.size == 30522
    texts = [episode.instruction for episode in read_r2r(data_root / "R2R" / "R2R_val_unseen.json")]
    assert len(texts) == 2349
    assert [pieces.encode(text) for text in texts] == [whole.encode(text) for text in texts]
    assert pieces.encode("Walk to the kitchen.") == [101, 3328, 2000, 1996, 3829, 1012, 102]


@pytest.mark.real
@pytest.mark.parametrize("name", ["R2R_trainval", "REVERIE_train"])
def test_glove_vocabularies_have_an_entry_per_row(data_root: Path, name: str) -> None:
    vocabulary = Vocabulary.read(data_root / "glove" / f"{name}_vocab.txt")
    rows = np.load(data_root / "glove" / f"{name}_glove.npy", mmap_mode="r", allow_pickle=False)
    assert vocabulary.size == len(rows)


@pytest.mark.real
def test_built_vocabulary_equals_the_published_one_of_r2r(data_root: Path) -> None:
    published = Vocabulary.read(data_root / "glove" / "R2R_trainval_vocab.txt")
    texts = [
        episode.instruction
        for split in ("train", "val_seen", "val_unseen")
        for episode in read_r2r(data_root / "R2R" / f"R2R_{split}.json")
    ]
    ours = Vocabulary.build(texts, min_count=5)
    assert set(published.entries) ^ set(ours.entries) == {". .", "...", "<BOS>"}
