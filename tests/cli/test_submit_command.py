"""`esceme submit`: files for the leaderboards, and refused input."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from esceme.cli import main
from esceme.tasks.catalogue import TASKS
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.submission import read_predictions

pytestmark = pytest.mark.usefixtures("empty_folder")
Capture = pytest.CaptureFixture[str]
ErrorOf = Callable[[Sequence[str]], str]
OUT = Path("sub/out.json")
SPLITS = {"r2r": "test", "cvdn": "val_unseen", "rxr": "test_standard_public", "reverie": "test"}


def read(toy_root: Path, task: str) -> Sequence[Episode]:
    return TASKS[task].read(DataFolder(toy_root).require(task, SPLITS[task]))


def stop_at_start(episodes: Sequence[Episode], **more: object) -> list[dict[str, Any]]:
    """Predictions that end at the start of their episodes."""
    return [{"instr_id": episode.episode_id, "trajectory": [[episode.start]], **more} for episode in episodes]


def write(records: object, name: str | Path = "p.json") -> None:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(json.dumps(records))


def command(root: Path, task: str, *more: str) -> list[str]:
    files = {
        "--predictions": "p.json",
        "--annotations": DataFolder(root).require(task, SPLITS[task]),
        "--connectivity": root / "connectivity",
        "--out": OUT,
    }
    options = [str(word) for option in files.items() for word in option]
    return ["submit", "--task", task, *options, *more]


@pytest.mark.parametrize("task", ["r2r", "cvdn", "rxr", "reverie"])
def test_submission_replaces_an_earlier_file(toy_root: Path, capsys: Capture, task: str) -> None:
    episodes = read(toy_root, task)
    write(stop_at_start(episodes))
    write("of an earlier run", OUT)
    assert main(command(toy_root, task)) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{OUT}: {len(episodes)} episodes, ready for the ")
    assert ("no prediction names an object" in err) == (task == "reverie")
    assert list(OUT.parent.iterdir()) == [OUT]
    submitted = OUT.rename(OUT.with_suffix(".jsonl")) if task == "rxr" else OUT
    paths = [prediction.path for prediction in read_predictions(submitted).values()]
    assert sorted(paths) == sorted((episode.start,) for episode in episodes)


@pytest.mark.parametrize(
    ("task", "more", "with_object"),
    [("reverie", {}, False), ("reverie", {"predObjId": "17"}, True), ("r2r", {"predObjId": "sofa"}, False)],
)
def test_objects_are_submitted_for_reverie_only(
    toy_root: Path, capsys: Capture, task: str, more: dict[str, str], with_object: bool
) -> None:
    episodes = read(toy_root, task)
    write(stop_at_start(episodes, **more))
    assert main(command(toy_root, task, "--json")) == 0
    out, err = capsys.readouterr()
    count = len(episodes)
    assert json.loads(out) == {"out": str(OUT), "n": count, "with_object": count if with_object else 0}
    assert out.count("\n") == 1 and err == ""
    assert {record.get("predObjId") for record in json.loads(OUT.read_text())} == {
        17 if with_object else None
    }


# -- refused input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda records, record: [other for other in records if other != record],
            "no prediction for episode {id} of {n}",
        ),
        (
            lambda records, record: record["trajectory"].append(["nowhere"]),
            "episode {id}: viewpoint 'nowhere' is not in scene 'toy-house'",
        ),
        (
            lambda records, record: record["trajectory"].append([0.5]),
            "episode {id}: trajectory entry 1 is [0.5]",
        ),
    ],
)
def test_invalid_predictions_write_no_file(
    toy_root: Path, error_of: ErrorOf, change: Callable[..., Any], message: str
) -> None:
    episodes = read(toy_root, "r2r")
    records = stop_at_start(episodes)
    write(change(records, records[3]) or records)
    error = error_of(command(toy_root, "r2r"))
    assert error.startswith("p.json: " + message.format(id=episodes[3].episode_id, n=len(episodes)))
    assert not OUT.parent.exists()
    write("of an earlier run", OUT)
    assert error_of(command(toy_root, "r2r", "--json")) == error


def test_objects_of_some_predictions_only_are_refused(toy_root: Path, error_of: ErrorOf) -> None:
    episodes = read(toy_root, "reverie")
    write([*stop_at_start(episodes[:1], predObjId=17), *stop_at_start(episodes[1:])])
    message = f"p.json: 1 of {len(episodes)} predictions have predObjId; give all or none"
    assert error_of(command(toy_root, "reverie")) == message


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--out", "sub/out.json.gz"], "--out sub/out.json.gz: servers take the plain file"),
        (["--out", "."], ".: cannot be written"),
        (["--out", "p.json/out.json"], "p.json/out.json: cannot be written"),
        (["--predictions", "none.json"], "none.json: no such file"),
    ],
)
def test_invalid_options_are_refused(
    toy_root: Path, error_of: ErrorOf, more: list[str], message: str
) -> None:
    write(stop_at_start(read(toy_root, "r2r")))
    assert error_of(command(toy_root, "r2r", *more)).startswith(message)


@pytest.mark.parametrize("task", ["r4r", "chess"])
def test_other_tasks_have_no_server(task: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["submit", "--task", task])
    assert ended.value.code == 2 and capsys.readouterr().out == ""


@pytest.mark.real
def test_real_multi_hop_steps_make_a_submission(data_root: Path, capsys: Capture) -> None:
    """Agents with global actions write all viewpoints of a step in one entry."""
    file = data_root / "predictions" / "PREVALENT_R2R_seq2seq_teacher_val_unseen_iter36000.json"
    paths = {name: prediction.path for name, prediction in read_predictions(file).items()}
    hops = {name: [path[:1], path[1:]] if path[1:] else path for name, path in paths.items()}
    write([{"instr_id": name, "trajectory": trajectory} for name, trajectory in hops.items()])
    words = ["submit", "--task", "r2r", "--predictions", "p.json", "--out", str(OUT), "--json"]
    words += ["--annotations", str(data_root / "R2R" / "R2R_val_unseen.json")]
    assert main([*words, "--connectivity", str(data_root / "connectivity")]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 2349
    assert {name: prediction.path for name, prediction in read_predictions(OUT).items()} == paths
