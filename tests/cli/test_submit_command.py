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
def test_submission_has_the_keys_and_types_of_its_server(toy_root: Path, capsys: Capture, task: str) -> None:
    episodes = read(toy_root, task)
    write(stop_at_start(episodes))
    write("of an earlier run", OUT)
    assert main(command(toy_root, task)) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{OUT}: {len(episodes)} episodes, ready for the ")
    assert ("no prediction names an object" in err) == (task == "reverie")
    assert list(OUT.parent.iterdir()) == [OUT]
    text = OUT.read_text()
    records = [json.loads(line) for line in text.splitlines()] if task == "rxr" else json.loads(text)
    key, kind, path = {
        "r2r": ("instr_id", str, "trajectory"),
        "cvdn": ("inst_idx", int, "trajectory"),
        "rxr": ("instruction_id", int, "path"),
        "reverie": ("instr_id", str, "trajectory"),
    }[task]
    assert len(records) == len(episodes)
    for record in records:
        assert list(record) == [key, path] and type(record[key]) is kind
        for entry in record[path]:
            assert type(entry) is str or [type(value) for value in entry] == [str, float, float]
    starts = {record[key]: record[path][0] for record in records}
    for episode in episodes:
        first = starts[episode.episode_id if kind is str else int(episode.episode_id)]
        assert episode.start in (first, first[0])
    assert task != "rxr" or list(starts) == sorted(starts)


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


def test_steps_over_several_viewpoints_are_flattened(toy_root: Path) -> None:
    paths = {episode.episode_id: list(episode.reference_path) for episode in read(toy_root, "cvdn")}
    hops = {name: [path[:1], path[1:]] if path[1:] else [path] for name, path in paths.items()}
    write([{"instr_id": name, "trajectory": trajectory} for name, trajectory in hops.items()])
    assert main(command(toy_root, "cvdn")) == 0
    found = read_predictions(OUT)
    for name, path in paths.items():
        points = found[name].trajectory
        assert [point.viewpoint for point in points] == path
        assert all(point.heading is not None and point.elevation is not None for point in points)


def test_rxr_may_be_submitted_from_either_kind_of_id(toy_root: Path) -> None:
    write(stop_at_start(read(toy_root, "rxr")))
    assert main(command(toy_root, "rxr")) == 0
    first = OUT.read_bytes()
    Path("again.jsonl").write_bytes(first)
    assert main(command(toy_root, "rxr", "--predictions", "again.jsonl")) == 0
    assert OUT.read_bytes() == first


# -- refused input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda records, record: [other for other in records if other != record],
            "no prediction for episode {id} of {n}",
        ),
        (lambda records, record: [*records, record], "record {n}: id '{id}' occurs twice"),
        (
            lambda records, record: record.update(trajectory=[]),
            "episode {id}: no trajectory; expected at least the start",
        ),
        (
            lambda records, record: record["trajectory"].append(["nowhere"]),
            "episode {id}: viewpoint 'nowhere' is not in scene 'toy-house'",
        ),
        (
            lambda records, record: record.update(trajectory=records[-1]["trajectory"]),
            "episode {id}: starts at ",
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


def test_jump_is_refused(toy_root: Path, error_of: ErrorOf) -> None:
    episodes = read(toy_root, "cvdn")
    records = stop_at_start(episodes)
    row = next(row for row, episode in enumerate(episodes) if len(episode.reference_path) > 3)
    a, b = episodes[row].start, episodes[row].reference_path[3]
    records[row]["trajectory"] = [[a], [b]]
    write(records)
    message = f"no edge leads from '{a}' to '{b}' in scene 'toy-house'"
    assert error_of(command(toy_root, "cvdn")) == f"p.json: episode {episodes[row].episode_id}: {message}"


def test_invalid_objects_are_refused(toy_root: Path, error_of: ErrorOf) -> None:
    episodes = read(toy_root, "reverie")
    write([*stop_at_start(episodes[:1], predObjId=17), *stop_at_start(episodes[1:])])
    message = f"p.json: 1 of {len(episodes)} predictions have predObjId; give all or none"
    assert error_of(command(toy_root, "reverie")) == message
    write(stop_at_start(episodes, predObjId="sofa"))
    message = f"episode {episodes[0].episode_id}: 'sofa' cannot be written as predObjId"
    assert message in error_of(command(toy_root, "reverie"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--out", "sub/out.json.gz"], "--out sub/out.json.gz: servers take the plain file"),
        (["--out", "."], ".: cannot be written"),
        (["--out", "p.json/out.json"], "p.json/out.json: cannot be written"),
        (["--predictions", "none.json"], "none.json: no such file"),
        (["--annotations", "none.json"], "none.json: no such file"),
        (["--connectivity", "none"], "none: cannot be read as a connectivity folder"),
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
