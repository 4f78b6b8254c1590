"""Bank files: round trips, size on disk, refused files."""

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
from fixtures.process_utils import CONTEXT, save_viewpoints

WIDTH = 2
VISITS = st.lists(
    st.tuples(st.sampled_from(["house", "barn"]), st.sampled_from("abcd"), st.integers(0, 9)), max_size=8
)
HEADER: dict[str, Any] = {
    "format": "esceme-memory-2",
    "width": WIDTH,
    "pooling": "max",
    "source": "seen",
    "sha256": "",
    "scenes": [{"scene_id": "house", "names": ["a", "b"], "neighbours": [[1]]}],
}


def bank_of(visits: list[tuple[str, str, int]]) -> MemoryBank:
    bank = MemoryBank(WIDTH, source="seen")
    for scene, name, number in visits:
        bank.remember(scene, name, torch.full((1, WIDTH), float(number)), sorted({"a", "b", "z"} - {name}))
    return bank


def write(path: Path, header: object, rows: Tensor | None = None) -> Path:
    text = header if isinstance(header, str) else msgspec.json.encode(header).decode()
    save_file({"rows": torch.ones(1, WIDTH) if rows is None else rows}, path, {"memory": text})
    return path


@given(VISITS)
def test_save_and_load_are_inverse(
    tmp_path_factory: pytest.TempPathFactory, visits: list[tuple[str, str, int]]
) -> None:
    bank, path = bank_of(visits), tmp_path_factory.mktemp("banks") / "bank.safetensors"
    save_bank(bank, path)
    loaded = load_bank(path, width=WIDTH, source="seen")
    assert (loaded.width, loaded.pooling, loaded.source, len(loaded)) == (WIDTH, "max", "seen", len(bank))
    assert loaded.scenes == bank.scenes
    for scene in bank.scenes:
        before, after = bank[scene], loaded[scene]
        assert sorted(before.viewpoints) == list(after.viewpoints)
        assert torch.equal(before.recall([*"abcdz"]), after.recall([*"abcdz"]))
        assert before.edges == after.edges
        assert all(before.neighbours_of(name) == after.neighbours_of(name) for name in before.viewpoints)
    again = path.with_name("again")
    save_bank(loaded, again)
    assert again.read_bytes() == path.read_bytes()


@given(VISITS, st.randoms(use_true_random=False))
def test_file_bytes_do_not_depend_on_the_order_of_visits(
    tmp_path_factory: pytest.TempPathFactory, visits: list[tuple[str, str, int]], rng: Random
) -> None:
    first = list({visit[:2]: visit for visit in visits}.values())  # a second visit would change nothing
    paths = [tmp_path_factory.mktemp("banks") / "bank" for _ in range(2)]
    save_bank(bank_of(first), paths[0])
    rng.shuffle(first)
    save_bank(bank_of(first), paths[1])
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_loaded_bank_can_be_extended(tmp_path: Path) -> None:
    bank = MemoryBank(WIDTH, pooling="mean")
    bank.remember("house", "a", torch.tensor([[1.0, 0.0], [2.0, 0.0]]), ["b", "c"])
    save_bank(bank, tmp_path / "bank")
    loaded = load_bank(tmp_path / "bank")
    assert not loaded.remember("house", "a", torch.ones(1, WIDTH), ["b"])
    assert loaded.remember("house", "b", torch.ones(1, WIDTH), ["a"])
    assert loaded.recall("house", ["a", "b"]).tolist() == [[1.5, 0.0], [1.0, 1.0]]
    assert loaded["house"].edges == {("a", "b")}


def test_forgotten_viewpoints_are_not_in_the_file(tmp_path: Path) -> None:
    bank = bank_of([("house", "a", 1), ("barn", "b", 2)])
    bank.forget("house")
    save_bank(bank, tmp_path / "one")
    save_bank(bank_of([("barn", "b", 2)]), tmp_path / "other")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_the_file_of_a_scene_with_92_viewpoints_is_small(tmp_path: Path) -> None:
    bank = MemoryBank(768, source="pth_vit_base_patch16_224_imagenet_r2r.e2e.ft.22k.hdf5")
    for index in range(92):
        neighbours = [f"{index * 7 + step:032x}" for step in range(4)]
        bank.remember("QUCTc6BB5sX", f"{index:032x}", torch.rand(4, 768), neighbours)
    save_bank(bank, tmp_path / "bank")
    assert bank.nbytes <= (tmp_path / "bank").stat().st_size <= 0.3e6


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"width": 768}, "width 768, found 2"),
        ({"source": "other"}, "source 'other', found 'seen'"),
    ],
)
def test_a_bank_of_other_features_is_refused(tmp_path: Path, expected: dict[str, Any], message: str) -> None:
    save_bank(bank_of([("house", "a", 1)]), tmp_path / "bank")
    with pytest.raises(MemoryMismatch, match=f"bank: .*{message}"):
        load_bank(tmp_path / "bank", **expected)


def test_a_folder_is_no_bank_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a complete bank file .it is a folder.; expected the bank"):
        read_header(tmp_path)


@pytest.mark.parametrize("length", [0, 4, 60, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "bank"
    save_bank(bank_of([("house", "a", 1)]), path)
    path.write_bytes(path.read_bytes()[:length])
    for read in (load_bank, read_header):
        with pytest.raises(DataError, match="bank: not a complete bank file"):
            read(path)


def test_files_without_a_bank_are_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(1)}, tmp_path / "weights")
    header = {"memory": msgspec.json.encode(HEADER).decode()}
    save_file({"weight": torch.ones(1)}, tmp_path / "rowless", header)
    for name, message in {
        "missing": "no such file",
        "": "not a complete bank file",
        "weights": "without a memory header",
        "rowless": "rowless: ",
    }.items():
        with pytest.raises(DataError, match=message):
            load_bank(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "esceme-memory-3", "scenes": 7}, "format 'esceme-memory-3'.*a newer esceme wrote it"),
        ({"format": "esceme-memory-1", "scenes": 7}, "expected 'esceme-memory-2'; an older esceme wrote it"),
        ({"format": "recipes-1"}, "format 'recipes-1', expected 'esceme-memory-2'$"),
        ({}, "bank: damaged: the content does not have the stored checksum; remove it and build it again"),
        ({"source": "\x1b[31mred"}, "the header is malformed .*regex.*source"),
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
def test_an_inconsistent_header_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_bank(write(tmp_path / "bank", HEADER | change))


@pytest.mark.parametrize("rows", [torch.ones(1, WIDTH).half(), torch.full((1, WIDTH), torch.nan)])
def test_rows_that_are_not_finite_float32_are_refused(tmp_path: Path, rows: Tensor) -> None:
    with pytest.raises(DataError, match="expected finite float32"):
        load_bank(write(tmp_path / "bank", HEADER, rows))


def test_every_changed_byte_of_header_and_vectors_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "bank"
    save_bank(bank_of([("house", "a", 1), ("house", "b", 2), ("barn", "c", 3)]), path)
    data, loaded = path.read_bytes(), read_header(path)
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        for read in (load_bank, read_header):
            try:
                read(path)
            except DataError as error:
                assert "bank: " in str(error) and "\n" not in str(error)
            else:  # white space between values means nothing
                assert data[position] == ord(" ")
                assert read_header(path) == loaded


# -- several writers -------------------------------------------------------------------------------------


def places(path: Path) -> set[str]:
    bank = load_bank(path)
    return {f"{scene} {viewpoint}" for scene in bank.scenes for viewpoint in bank[scene].viewpoints}


def extend(bank: MemoryBank, name: str) -> MemoryBank:
    bank.remember("house", name, torch.ones(1, WIDTH), ["z"])
    return bank


def test_a_bank_that_was_loaded_elsewhere_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "bank"
    save_bank(bank_of([("house", "a", 1)]), path)
    other, before = bank_of([("house", "b", 1)]), path.read_bytes()
    with pytest.raises(DataError, match="bank: holds another bank; load and extend it, remove it, or take"):
        save_bank(other, path)
    assert path.read_bytes() == before
    save_bank(bank_of([("house", "a", 1)]), path)  # equal content
    save_bank(other, path, overwrite=True)
    assert places(path) == {"house b"}
    assert list(tmp_path.iterdir()) == [path]


def test_a_bank_replaces_its_own_file(tmp_path: Path) -> None:
    path, link = tmp_path / "bank", tmp_path / "link"
    link.symlink_to("bank")
    bank = bank_of([("house", "a", 1), ("barn", "b", 1)])
    save_bank(bank, path)
    bank.forget("barn")
    save_bank(bank, link)
    assert places(path) == {"house a"}
    loaded = load_bank(link)
    loaded.forget()
    save_bank(extend(loaded, "c"), path)
    assert places(path) == {"house c"} and link.is_symlink()
    path.unlink()
    save_bank(loaded, path)
    assert places(path) == {"house c"}


def test_a_file_that_another_process_has_extended_is_merged(tmp_path: Path) -> None:
    path = tmp_path / "bank"
    save_bank(bank_of([("house", "a", 1)]), path)
    first, second = load_bank(path), load_bank(path)
    save_bank(extend(first, "b"), path)
    save_bank(extend(second, "c"), path)
    assert places(path) == {"house a", "house b", "house c"}
    assert set(second["house"].viewpoints) == {"a", "c"}  # an agent's memory does not change by saving
    save_bank(extend(second, "d"), path)
    save_bank(extend(first, "e"), path)
    assert places(path) == {f"house {name}" for name in "abcde"}


def test_a_file_of_other_features_is_not_merged(tmp_path: Path) -> None:
    path = tmp_path / "bank"
    save_bank(bank_of([("house", "a", 1)]), path)
    loaded = load_bank(path)
    save_bank(MemoryBank(WIDTH, source="other"), path, overwrite=True)
    with pytest.raises(DataError, match="bank: the bank holds features of width 2 from 'other'"):
        save_bank(loaded, path)


def test_two_processes_lose_no_viewpoint_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "bank"
    save_bank(MemoryBank(WIDTH, source="seen"), path)
    processes = [CONTEXT.Process(target=save_viewpoints, args=(path, name, 50)) for name in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert places(path) == {f"house {name}{number}" for name in "ab" for number in range(50)}
    assert list(tmp_path.iterdir()) == [path]


def test_saving_over_a_folder_leaves_it_alone(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be written"):
        save_bank(MemoryBank(WIDTH), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_bank_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    bank = MemoryBank(2)
    bank.remember("house\x1b[2J", "hall", torch.ones(1, 2), ["door"])
    with pytest.raises(DataError, match="bank: not written .*rename the scene or viewpoint"):
        save_bank(bank, tmp_path / "bank")
    assert not (tmp_path / "bank").exists()


def test_bank_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = MemoryBank(2), MemoryBank(2)
    first.remember("house", "hall", torch.ones(1, 2), [])
    second.remember("house", "hall", torch.zeros(1, 2), [])
    save_bank(first, tmp_path / "bank")
    save_bank(second, tmp_path / "other")
    map_file = torch.UntypedStorage.from_file

    def replace_and_map(path: str, *rest: Any, **options: Any) -> torch.UntypedStorage:
        if (tmp_path / "other").exists():
            (tmp_path / "other").replace(path)
        return map_file(path, *rest, **options)

    monkeypatch.setattr(torch.UntypedStorage, "from_file", replace_and_map)
    assert load_bank(tmp_path / "bank").recall("house", ["hall"]).tolist() == [[0, 0]]
