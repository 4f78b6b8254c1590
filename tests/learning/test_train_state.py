"""States on disk: the latest good one counts, whatever happened to the others."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from esceme.errors import CheckpointError, DataError
from esceme.learning.train_state import alone_in, load_state, save_state
from fixtures.toy_training import alike

STATE = {"weights": {"a": torch.arange(300.0).reshape(20, 15)}, "best": None, "window": [{"loss": 0.5}]}


def state_of(iteration: int) -> dict[str, Any]:
    return {**STATE, "best": float(iteration)}


def saved(folder: Path, *iterations: int) -> list[Path]:
    """The files of states, the latest first."""
    for iteration in iterations:
        save_state(folder, iteration, state_of(iteration))
    return sorted((folder / "state").iterdir(), reverse=True)


def test_the_latest_state_comes_back_as_it_was(tmp_path: Path) -> None:
    notes: list[str] = []
    assert load_state(tmp_path, note=notes.append) is None
    saved(tmp_path, 5, 10)
    state = load_state(tmp_path, note=notes.append)
    assert alike(state, {"format": "esceme-state-1", "iteration": 10, **state_of(10)})
    assert not notes


def test_the_latest_state_and_the_one_before_are_kept(tmp_path: Path) -> None:
    assert [path.name for path in saved(tmp_path, 5)] == ["00000005.pt"]
    assert [path.name for path in saved(tmp_path, 10, 15)] == ["00000015.pt", "00000010.pt"]


def torn(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    """One bit of a tensor is wrong, which torch itself does not notice."""
    at = data.index(STATE["weights"]["a"].numpy().tobytes()[:64]) + 40  # type: ignore[call-overload,index]
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def of_the_future(data: bytes) -> bytes:
    return data.replace(b"esceme-state-1", b"esceme-state-9")


@pytest.mark.parametrize(
    "damage", [torn, flipped, lambda data: b"", lambda data: b"not a state", of_the_future]
)
def test_a_damaged_state_is_noted_and_the_one_before_counts(tmp_path: Path, damage: Any) -> None:
    latest, _ = saved(tmp_path, 5, 10)
    latest.write_bytes(damage(latest.read_bytes()))
    notes: list[str] = []
    state = load_state(tmp_path, note=notes.append)
    assert state is not None and state["iteration"] == 5
    (note,) = notes
    assert note.startswith(f"{latest}: damaged (") and note.endswith("; trying the one before")
    assert [path.name for path in saved(tmp_path, 10)] == ["00000010.pt", "00000005.pt"]
    assert load_state(tmp_path, note=notes.append)["iteration"] == 10  # type: ignore[index]


def test_a_state_under_the_name_of_another_does_not_count(tmp_path: Path) -> None:
    latest, before = saved(tmp_path, 5, 10)
    latest.write_bytes(before.read_bytes())
    notes: list[str] = []
    assert load_state(tmp_path, note=notes.append)["iteration"] == 5  # type: ignore[index]
    assert len(notes) == 1


def test_where_all_states_are_damaged_nothing_begins_anew(tmp_path: Path) -> None:
    for path in saved(tmp_path, 5, 10):
        path.write_bytes(torn(path.read_bytes()))
    notes: list[str] = []
    with pytest.raises(CheckpointError, match="none of its 2 states can be read"):
        load_state(tmp_path, note=notes.append)
    assert len(notes) == 2


def test_states_of_a_time_that_is_lived_again_do_not_crowd_out_those_of_now(tmp_path: Path) -> None:
    saved(tmp_path, 20, 30)
    assert [path.name for path in saved(tmp_path, 10)] == ["00000010.pt"]


def test_a_full_disk_is_a_clear_error_and_the_states_before_stay(tmp_path: Path) -> None:
    before = [(path.name, path.read_bytes()) for path in saved(tmp_path, 5, 10)]
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        with pytest.raises(DataError, match=r"00000015.pt: cannot be written \(File too large\)"):
            save_state(tmp_path, 15, state_of(15))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    after = [(path.name, path.read_bytes()) for path in sorted((tmp_path / "state").iterdir(), reverse=True)]
    assert after == before


def test_what_a_killed_process_had_not_written_to_its_end_is_cleared_away(tmp_path: Path) -> None:
    (latest,) = saved(tmp_path, 5)
    mine = [tmp_path / "notes.part", tmp_path / "state" / "00000005.pt.part"]
    lost = [
        tmp_path / ".experiment.json.x1.part",
        tmp_path / "state" / ".00000006.pt.y2.part",
        tmp_path / "best" / ".weights.safetensors.z3.part",
    ]
    for path in (*mine, *lost):
        path.parent.mkdir(exist_ok=True)
        path.write_text("half")
    (world := tmp_path / ".world.x4.part").mkdir()  # as one that is being made lies beside its place
    with alone_in(tmp_path):
        assert not any(path.exists() for path in lost)
    assert latest.exists() and world.exists() and all(path.exists() for path in mine)


def test_a_folder_is_lent_to_one_training_at_a_time(tmp_path: Path) -> None:
    with (
        alone_in(tmp_path / "new"),
        pytest.raises(DataError, match="another training is at work"),
        alone_in(tmp_path / "new"),
    ):
        pass
    with alone_in(tmp_path / "new"):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/run: cannot be written"), alone_in(tmp_path / "file" / "run"):
        pass
