"""Banks as files: what comes back, how big they are, and what is refused."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from esceme.errors import DataError, MemoryMismatch
from esceme.memory import MemoryBank, load_bank, save_bank
from esceme.memory.bank_file import read_header

WIDTH = 2
LIFE = st.lists(
    st.tuples(st.sampled_from(["house", "barn"]), st.sampled_from("abcd"), st.integers(0, 9)), max_size=8
)
HEADER: dict[str, Any] = {
    "format": "esceme-memory-1",
    "width": WIDTH,
    "pooling": "max",
    "source": "seen",
    "scenes": [{"scene_id": "house", "names": ["a", "b"], "neighbours": [[1]]}],
}


def lived(life: list[tuple[str, str, int]]) -> MemoryBank:
    bank = MemoryBank(WIDTH, source="seen")
    for scene, place, number in life:
        bank.remember(scene, place, torch.full((1, WIDTH), float(number)), sorted({"a", "b", "z"} - {place}))
    return bank


def write(path: Path, header: object, rows: Tensor | None = None) -> Path:
    text = header if isinstance(header, str) else msgspec.json.encode(header).decode()
    save_file({"rows": torch.ones(1, WIDTH) if rows is None else rows}, path, {"memory": text})
    return path


@given(LIFE)
def test_a_bank_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, life: list[tuple[str, str, int]]
) -> None:
    bank, path = lived(life), tmp_path_factory.mktemp("banks") / "bank.safetensors"
    save_bank(bank, path)
    back = load_bank(path, width=WIDTH, source="seen")
    assert (back.width, back.pooling, back.source, len(back)) == (WIDTH, "max", "seen", len(bank))
    assert back.scenes == bank.scenes
    for scene in bank.scenes:
        mine, theirs = bank[scene], back[scene]
        assert sorted(mine.viewpoints) == list(theirs.viewpoints)
        assert torch.equal(mine.recall("abcdz"), theirs.recall("abcdz"))
        assert mine.edges == theirs.edges
        assert all(mine.neighbours_of(place) == theirs.neighbours_of(place) for place in mine.viewpoints)
    again = path.with_name("again")
    save_bank(back, again)
    assert again.read_bytes() == path.read_bytes()


@given(LIFE, st.randoms(use_true_random=False))
def test_the_bytes_do_not_tell_in_what_order_things_were_seen(
    tmp_path_factory: pytest.TempPathFactory, life: list[tuple[str, str, int]], chance: Random
) -> None:
    """Each place once: a revisit in another order would be a first visit with other numbers."""
    once = list({(scene, place): (scene, place, number) for scene, place, number in life}.values())
    paths = [tmp_path_factory.mktemp("banks") / "bank" for _ in range(2)]
    save_bank(lived(once), paths[0])
    chance.shuffle(once)
    save_bank(lived(once), paths[1])
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_loaded_bank_goes_on_living(tmp_path: Path) -> None:
    bank = MemoryBank(WIDTH, pooling="mean")
    bank.remember("house", "a", torch.tensor([[1.0, 0.0], [2.0, 0.0]]), ["b", "c"])
    save_bank(bank, tmp_path / "bank")
    back = load_bank(tmp_path / "bank")
    assert not back.remember("house", "a", torch.ones(1, WIDTH), ["b"])
    assert back.remember("house", "b", torch.ones(1, WIDTH), ["a"])
    assert back.recall("house", ["a", "b"]).tolist() == [[1.5, 0.0], [1.0, 1.0]]
    assert back["house"].edges == {("a", "b")}


def test_forgotten_places_leave_no_trace_in_the_file(tmp_path: Path) -> None:
    bank = lived([("house", "a", 1), ("barn", "b", 2)])
    bank.forget("house")
    save_bank(bank, tmp_path / "one")
    save_bank(lived([("barn", "b", 2)]), tmp_path / "other")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_the_file_of_a_scene_with_92_viewpoints_is_small(tmp_path: Path) -> None:
    bank = MemoryBank(768, source="pth_vit_base_patch16_224_imagenet_r2r.e2e.ft.22k.hdf5")
    for place in range(92):
        neighbours = [f"{place * 7 + step:032x}" for step in range(4)]
        bank.remember("QUCTc6BB5sX", f"{place:032x}", torch.rand(4, 768), neighbours)
    save_bank(bank, tmp_path / "bank")
    assert bank.nbytes <= (tmp_path / "bank").stat().st_size <= 0.3e6


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"width": 768}, "width 768, found 2"),
        ({"source": "other"}, "source 'other', found 'seen'"),
    ],
)
def test_a_bank_of_other_features_is_refused(tmp_path: Path, asked: dict[str, Any], message: str) -> None:
    save_bank(lived([("house", "a", 1)]), tmp_path / "bank")
    with pytest.raises(MemoryMismatch, match=f"bank: .*{message}"):
        load_bank(tmp_path / "bank", **asked)


@pytest.mark.parametrize("length", [0, 4, 60, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "bank"
    save_bank(lived([("house", "a", 1)]), path)
    path.write_bytes(path.read_bytes()[:length])
    for read in (load_bank, read_header):
        with pytest.raises(DataError, match="bank: not a complete bank file"):
            read(path)


def test_what_is_no_bank_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load_bank(tmp_path / "missing")
    with pytest.raises(DataError, match="not a complete bank file"):
        load_bank(tmp_path)
    save_file({"weight": torch.ones(1)}, tmp_path / "weights")
    with pytest.raises(DataError, match="without a memory header"):
        load_bank(tmp_path / "weights")
    save_file(
        {"weight": torch.ones(1)}, tmp_path / "rowless", {"memory": msgspec.json.encode(HEADER).decode()}
    )
    with pytest.raises(DataError, match="rowless: "):
        load_bank(tmp_path / "rowless")


def test_a_hand_written_file_is_a_bank(tmp_path: Path) -> None:
    bank = load_bank(write(tmp_path / "bank", HEADER))
    assert bank.recall("house", ["a", "b"]).tolist() == [[1.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "esceme-memory-2", "scenes": 7}, "format 'esceme-memory-2'.*a newer esceme wrote it"),
        ({"format": "recipes-1"}, "format 'recipes-1', expected 'esceme-memory-1'$"),
        ({"pooling": "sum"}, "the header is malformed"),
        ({"width": 3}, r"shape \(1, 3\), found \(1, 2\)"),
        ({"scenes": []}, r"shape \(0, 2\)"),
        (
            {"scenes": [{"scene_id": "h", "names": ["a"], "neighbours": [[1]]}]},
            "'h': a neighbour has no name",
        ),
        ({"scenes": [{"scene_id": "h", "names": ["a"], "neighbours": [[-1]]}]}, "a neighbour has no name"),
        ({"scenes": [{"scene_id": "h", "names": [], "neighbours": [[]]}]}, "viewpoints are inconsistent"),
        (
            {"scenes": [{"scene_id": "h", "names": ["a", "a"], "neighbours": [[]]}]},
            "viewpoints are inconsistent",
        ),
        (
            {"scenes": [*HEADER["scenes"], {"scene_id": "house", "names": [], "neighbours": []}]},
            "occurs twice",
        ),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load_bank(write(tmp_path / "bank", HEADER | change))


@pytest.mark.parametrize("rows", [torch.ones(1, WIDTH).half(), torch.full((1, WIDTH), torch.nan)])
def test_numbers_of_another_kind_are_refused(tmp_path: Path, rows: Tensor) -> None:
    with pytest.raises(DataError, match="expected finite float32"):
        load_bank(write(tmp_path / "bank", HEADER, rows))


def test_saving_over_a_folder_leaves_it_alone(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be written"):
        save_bank(MemoryBank(WIDTH), tmp_path)
    assert list(tmp_path.iterdir()) == []
