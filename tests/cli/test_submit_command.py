"""`esceme submit`: the file it writes for each leaderboard, and that it writes none otherwise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from esceme.cli import main
from esceme.tasks.catalogue import TASKS
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.submission import read_predictions

Capture = pytest.CaptureFixture[str]
SPLITS = {"r2r": "test", "cvdn": "val_unseen", "rxr": "test_standard_public", "reverie": "test"}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def file_of(toy_root: Path, task: str) -> Path:
    file = DataFolder(toy_root).annotations(task, SPLITS[task])
    assert file is not None
    return file


def read(toy_root: Path, task: str) -> Sequence[Episode]:
    return TASKS[task].read(file_of(toy_root, task))


def stay(episodes: Sequence[Episode], **more: object) -> list[dict[str, Any]]:
    return [{"instr_id": each.episode_id, "trajectory": [[each.start]], **more} for each in episodes]


def write(records: object, name: str = "p.json") -> str:
    Path(name).write_text(json.dumps(records))
    return name


def words(toy_root: Path, task: str, predictions: str, *more: str) -> list[str]:
    command = ["submit", "--task", task, "--predictions", predictions]
    command += ["--annotations", str(file_of(toy_root, task)), "--out", "sub/out.json"]
    return [*command, "--connectivity", str(toy_root / "connectivity"), *more]


def refusal(capsys: Capture, command: Sequence[str]) -> str:
    """The message of a command that is refused; nothing but what was there is there afterwards."""
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and "Traceback" not in err
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    return err.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize("task", ["r2r", "cvdn", "rxr", "reverie"])
def test_submission_has_the_keys_and_types_of_its_server(toy_root: Path, capsys: Capture, task: str) -> None:
    episodes = read(toy_root, task)
    assert main(words(toy_root, task, write(stay(episodes)))) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"sub/out.json: {len(episodes)} episodes, ready for the ")
    assert ("no prediction names an object" in err) == (task == "reverie")
    text = Path("sub/out.json").read_text()
    records = [json.loads(line) for line in text.splitlines()] if task == "rxr" else json.loads(text)
    key, kind, where = {
        "r2r": ("instr_id", str, "trajectory"),
        "cvdn": ("inst_idx", int, "trajectory"),
        "rxr": ("instruction_id", int, "path"),
        "reverie": ("instr_id", str, "trajectory"),
    }[task]
    assert len(records) == len(episodes)
    for record in records:
        assert list(record) == [key, where] and type(record[key]) is kind
        for entry in record[where]:
            assert [type(each) for each in entry] == [str, float, float] or type(entry) is str
    starts = {record[key]: record[where][0] for record in records}
    for episode in episodes:
        first = starts[episode.episode_id if kind is str else int(episode.episode_id)]
        assert episode.start in (first, first[0])
    assert task != "rxr" or list(starts) == sorted(starts)


def test_json_output_describes_the_submission(toy_root: Path, capsys: Capture) -> None:
    episodes = read(toy_root, "reverie")
    for more, named in (({}, 0), ({"predObjId": "17"}, len(episodes))):
        assert main(words(toy_root, "reverie", write(stay(episodes, **more)), "--json")) == 0
        out, err = capsys.readouterr()
        assert json.loads(out) == {"out": "sub/out.json", "n": len(episodes), "with_object": named}
        assert out.count("\n") == 1 and err == ""
    assert all(record["predObjId"] == 17 for record in json.loads(Path("sub/out.json").read_text()))


def test_objects_are_for_reverie_alone(toy_root: Path, capsys: Capture) -> None:
    file = write(stay(read(toy_root, "r2r"), predObjId="sofa"))
    assert main(words(toy_root, "r2r", file, "--json")) == 0
    assert json.loads(capsys.readouterr().out)["with_object"] == 0
    assert all("predObjId" not in record for record in json.loads(Path("sub/out.json").read_text()))


def test_steps_over_several_viewpoints_are_flattened(toy_root: Path) -> None:
    episodes = read(toy_root, "cvdn")
    hops = [
        {"instr_id": each.episode_id, "trajectory": [[each.start], list(each.reference_path[1:])]}
        if len(each.reference_path) > 1
        else {"instr_id": each.episode_id, "trajectory": [[each.start]]}
        for each in episodes
    ]
    assert main(words(toy_root, "cvdn", write(hops))) == 0
    found = read_predictions("sub/out.json")
    for episode in episodes:
        stands = found[episode.episode_id].trajectory
        assert tuple(stand.viewpoint for stand in stands) == episode.reference_path
        assert all(stand.heading is not None and stand.elevation is not None for stand in stands)


def test_rxr_may_be_submitted_from_either_kind_of_id(toy_root: Path) -> None:
    episodes = read(toy_root, "rxr")
    assert main(words(toy_root, "rxr", write(stay(episodes)))) == 0
    first = Path("sub/out.json").read_bytes()
    Path("again.jsonl").write_bytes(first)
    assert main(words(toy_root, "rxr", "again.jsonl")) == 0
    assert Path("sub/out.json").read_bytes() == first


def test_older_submission_is_replaced(toy_root: Path) -> None:
    Path("sub").mkdir()
    write("of an earlier run", "sub/out.json")
    assert main(words(toy_root, "r2r", write(stay(read(toy_root, "r2r"))))) == 0
    assert len(json.loads(Path("sub/out.json").read_text())) == len(read(toy_root, "r2r"))
    assert [path.name for path in Path("sub").iterdir()] == ["out.json"]


# -- refusals --------------------------------------------------------------------------------------------


def spoil(records: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    """The predictions with one fault in the fourth."""
    walk = records[3]["trajectory"]
    match what:
        case "missing":
            return records[:3] + records[4:]
        case "extra":
            return [*records, {"instr_id": "9999_0", "trajectory": walk}]
        case "twice":
            return [*records, records[3]]
        case "empty":
            walk = []
        case "unknown":
            walk = [*walk, ["nowhere"]]
        case "start":
            walk = records[-1]["trajectory"]
        case "entry":
            walk = [*walk, [0.5]]
    return [*records[:3], {**records[3], "trajectory": walk}, *records[4:]]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("missing", "p.json: no prediction for episode {id} of {n}"),
        ("extra", "p.json: episode 9999_0 is not among the {n} annotated ones"),
        ("twice", "p.json: record {n}: id '{id}' occurs twice"),
        ("empty", "p.json: episode {id}: no trajectory; expected at least the start"),
        ("unknown", "p.json: episode {id}: viewpoint 'nowhere' is not in scene 'toy-house'"),
        ("start", "p.json: episode {id}: starts at "),
        ("entry", "p.json: episode {id}: trajectory entry 1 is [0.5]"),
    ],
)
@pytest.mark.parametrize("mode", [[], ["--json"]])
def test_nothing_is_written_unless_everything_holds(
    toy_root: Path, capsys: Capture, what: str, message: str, mode: list[str]
) -> None:
    episodes = read(toy_root, "r2r")
    command = words(toy_root, "r2r", write(spoil(stay(episodes), what)), *mode)
    expected = message.format(id=episodes[3].episode_id, n=len(episodes))
    assert refusal(capsys, command).startswith(expected)
    assert not Path("sub").exists()
    Path("sub").mkdir()
    write("of an earlier run", "sub/out.json")
    refusal(capsys, command)


def test_jump_is_refused(toy_root: Path, capsys: Capture) -> None:
    episodes = read(toy_root, "cvdn")
    records = stay(episodes)
    far = next(row for row, each in enumerate(episodes) if len(each.reference_path) > 3)
    a, b = episodes[far].start, episodes[far].reference_path[3]
    records[far]["trajectory"] = [[a], [b]]
    told = refusal(capsys, words(toy_root, "cvdn", write(records)))
    name = episodes[far].episode_id
    assert told == f"p.json: episode {name}: no edge leads from '{a}' to '{b}' in scene 'toy-house'"


def test_objects_are_given_everywhere_or_nowhere(toy_root: Path, capsys: Capture) -> None:
    records = stay(read(toy_root, "reverie"))
    records[0]["predObjId"] = 17
    told = refusal(capsys, words(toy_root, "reverie", write(records)))
    assert told == f"p.json: 1 of {len(records)} predictions have predObjId; give all or none"


def test_object_that_is_no_number_is_refused(toy_root: Path, capsys: Capture) -> None:
    episodes = read(toy_root, "reverie")
    told = refusal(capsys, words(toy_root, "reverie", write(stay(episodes, predObjId="sofa"))))
    assert f"episode {episodes[0].episode_id}: 'sofa' cannot be written as predObjId" in told


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
def test_invalid_options_are_refused(toy_root: Path, capsys: Capture, more: list[str], message: str) -> None:
    file = write(stay(read(toy_root, "r2r")))
    assert refusal(capsys, [*words(toy_root, "r2r", file), *more]).startswith(message)


@pytest.mark.parametrize("task", ["r4r", "chess"])
def test_there_is_no_server_for_other_tasks(task: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["submit", "--task", task])
    assert ended.value.code == 2 and capsys.readouterr().out == ""


@pytest.mark.real
def test_real_multi_hop_steps_make_a_submission(data_root: Path, capsys: Capture) -> None:
    """What global-action agents write: all viewpoints of a step in one entry."""
    source = data_root / "predictions" / "PREVALENT_R2R_seq2seq_teacher_val_unseen_iter36000.json"
    stated = read_predictions(source)
    hops = [
        {
            "instr_id": name,
            "trajectory": [[each.path[0]], list(each.path[1:])] if each.path[1:] else each.path,
        }
        for name, each in stated.items()
    ]
    command = ["submit", "--task", "r2r", "--predictions", write(hops), "--out", "out.json", "--json"]
    command += ["--annotations", str(data_root / "R2R" / "R2R_val_unseen.json")]
    assert main([*command, "--connectivity", str(data_root / "connectivity")]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 2349
    found = read_predictions("out.json")
    assert {name: each.path for name, each in found.items()} == {
        name: each.path for name, each in stated.items()
    }
