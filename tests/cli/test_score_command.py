"""`esceme score`: the figures it prints, in each form, and how it refuses."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from esceme.cli import main
from esceme.metrics import score as score_pairs
from esceme.tasks.catalogue import TASKS
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.submission import match_predictions, read_predictions
from esceme.world import Atlas, SceneGraph, read_scenes

MEASURES = ["tl", "ne", "osr", "sr", "spl", "spl_shortest", "cls", "ndtw", "sdtw", "gp", "steps"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def graphs(toy_root: Path) -> dict[str, SceneGraph]:
    return read_scenes(toy_root / "connectivity")


def read(toy_root: Path, task: str, split: str = "val_unseen") -> Sequence[Episode]:
    return TASKS[task].read(file_of(toy_root, task, split))


def file_of(toy_root: Path, task: str, split: str = "val_unseen") -> Path:
    file = DataFolder(toy_root).annotations(task, split)
    assert file is not None
    return file


def write(records: object, name: str = "p.json") -> str:
    Path(name).write_text(json.dumps(records))
    return name


def follow(episodes: Sequence[Episode], key: str = "instr_id", *, short: int = 0) -> list[dict[str, Any]]:
    """Predictions that follow every reference path, all but its last `short` viewpoints."""
    return [
        {key: each.episode_id, "trajectory": each.reference_path[: len(each.reference_path) - short]}
        for each in episodes
    ]


def words(toy_root: Path, task: str, predictions: str, *more: str, split: str = "val_unseen") -> list[str]:
    command = ["score", "--task", task, "--predictions", predictions]
    command += ["--annotations", str(file_of(toy_root, task, split))]
    return [*command, "--connectivity", str(toy_root / "connectivity"), *more]


def result(capsys: Capture, command: Sequence[str]) -> dict[str, Any]:
    """The json object of a command that ends well, alone on standard output."""
    assert main(command) == 0
    out = capsys.readouterr().out
    assert out.endswith("}\n") and out.count("\n") == 1
    found: dict[str, Any] = json.loads(out)
    return found


def refusal(capsys: Capture, command: Sequence[str]) -> str:
    """The message of a command that is refused, alone on standard error."""
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and "Traceback" not in err
    return err.removeprefix("error: ").rstrip("\n")


# -- what is printed -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "more", "added"),
    [
        ("r2r", [], []),
        ("r4r", [], []),
        ("rxr", [], []),
        ("cvdn", [], ["sr_end"]),
        ("cvdn", ["--success", "end-panos"], ["sr_end"]),
        ("reverie", ["--objects", "objects/reverie_objects.json.gz"], []),
    ],
)
def test_json_holds_every_measure_and_nothing_else(
    toy_root: Path, capsys: Capture, task: str, more: list[str], added: list[str]
) -> None:
    more = [str(toy_root / word) if word.startswith("objects") else word for word in more]
    file = write(follow(read(toy_root, task)))
    found = result(capsys, words(toy_root, task, file, "--json", *more))
    assert sorted(found) == sorted([*MEASURES, "n", *added])
    assert found["n"] == len(read(toy_root, task)) and isinstance(found["n"], int)
    assert found["ndtw"] == 1.0 and found["cls"] == pytest.approx(1.0)
    if "end-panos" not in more:
        assert (found["sr"], found["osr"], found["ne"]) == (1.0, 1.0, 0.0)
        assert found["sdtw"] == 1.0


def test_figures_are_those_of_the_python_interface(
    toy_root: Path, graphs: dict[str, SceneGraph], capsys: Capture
) -> None:
    episodes = read(toy_root, "r2r")
    file = write(follow(episodes, short=2))
    found = result(capsys, words(toy_root, "r2r", file, "--json"))
    pairs = match_predictions(episodes, read_predictions(file), TASKS["r2r"], file=file)
    assert found == score_pairs(pairs, Atlas(graphs.values())).means()
    assert 0 < found["ndtw"] < 1


def test_nothing_but_the_json_is_printed(toy_root: Path, capsys: Capture) -> None:
    assert main(words(toy_root, "r2r", write(follow(read(toy_root, "r2r"))), "--json")) == 0
    assert capsys.readouterr().err == ""


def test_table_shows_per_cent_and_metres(toy_root: Path, capsys: Capture) -> None:
    assert main(words(toy_root, "r2r", write(follow(read(toy_root, "r2r"))))) == 0
    out, err = capsys.readouterr()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    assert "r2r: p.json" in out and err == ""
    assert [row[0].split()[0] for row in rows] == [*MEASURES, "n"]
    shown = {row[0]: row[1] for row in rows}
    assert (shown["sr (%)"], shown["ne (m)"], shown["n"]) == ("100.00", "0.00", "42")


def test_table_shows_the_name_of_the_file_as_it_is(toy_root: Path, capsys: Capture) -> None:
    file = write(follow(read(toy_root, "r2r")), "p[red].json")
    assert main(words(toy_root, "r2r", file)) == 0
    assert "r2r: p[red].json" in capsys.readouterr().out


def test_rxr_predictions_may_go_by_their_instruction(toy_root: Path, capsys: Capture) -> None:
    episodes = read(toy_root, "rxr")
    lines = [
        json.dumps({"instruction_id": int(each.episode_id.split("_")[1]), "path": each.reference_path})
        for each in episodes
    ]
    Path("p.jsonl").write_text("\n".join(lines))
    assert result(capsys, words(toy_root, "rxr", "p.jsonl", "--json"))["ndtw"] == 1.0


def test_steps_over_several_viewpoints_score_as_the_same_path(toy_root: Path, capsys: Capture) -> None:
    episodes = read(toy_root, "r2r")
    plain = result(capsys, words(toy_root, "r2r", write(follow(episodes)), "--json"))
    hops = [
        {"instr_id": each.episode_id, "trajectory": [[each.start], list(each.reference_path[1:])]}
        for each in episodes
    ]
    turns = [
        {
            "instr_id": each.episode_id,
            "trajectory": [[place, angle, 0.0] for place in each.reference_path for angle in (0.0, 0.5)],
        }
        for each in episodes
    ]
    for records in (hops, turns):
        assert result(capsys, words(toy_root, "r2r", write(records), "--json")) == plain


def test_dialogs_succeed_by_either_rule(toy_root: Path, capsys: Capture) -> None:
    file = write(follow(read(toy_root, "cvdn"), "inst_idx"))
    trusted = result(capsys, words(toy_root, "cvdn", file, "--json"))
    strict = result(capsys, words(toy_root, "cvdn", file, "--json", "--success", "end-panos"))
    assert trusted["sr"] == 1.0 and trusted["sr_end"] == strict["sr_end"] == strict["sr"] < 1.0
    assert trusted["gp"] == strict["gp"]


# -- options ---------------------------------------------------------------------------------------------


def test_partial_scores_existing_predictions_with_a_note(toy_root: Path, capsys: Capture) -> None:
    file = write(follow(read(toy_root, "r2r"))[:5])
    assert main(words(toy_root, "r2r", file, "--partial", "--json")) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["n"] == 5
    assert err == "note: 5 of 42 episodes have a prediction; the rest is left out\n"


def test_jumps_are_refused_or_counted_as_the_shortest_way(toy_root: Path, capsys: Capture) -> None:
    episodes = read(toy_root, "r2r")
    jumping = [{"instr_id": each.episode_id, "trajectory": [each.start, each.goal]} for each in episodes]
    file = write(jumping)
    assert "p.json: 42 faulty predictions" in refusal(capsys, words(toy_root, "r2r", file, "--json"))
    found = result(capsys, words(toy_root, "r2r", file, "--jumps", "shortest", "--json"))
    walked = result(capsys, words(toy_root, "r2r", write(follow(episodes)), "--json"))
    assert found["steps"] == 1.0 and found["tl"] == pytest.approx(walked["tl"]) and found["spl"] == 1.0


@pytest.mark.parametrize("more", [[], ["--split", "val_unseen"]])
def test_tours_add_their_score(toy_root: Path, capsys: Capture, more: list[str]) -> None:
    tours = ["--tours", str(toy_root / "tours" / "tours_iVLN.json"), *more]
    followed = write(follow(read(toy_root, "r2r")))
    found = result(capsys, words(toy_root, "r2r", followed, "--json", *tours))
    assert sorted(found) == sorted([*MEASURES, "n", "t_ndtw", "t_sr", "t_spl"])
    assert [found[name] for name in ("t_ndtw", "t_sr", "t_spl")] == [1.0, 1.0, 1.0]
    cut = write(follow(read(toy_root, "r2r"), short=1))
    assert 0 < result(capsys, words(toy_root, "r2r", cut, "--json", *tours))["t_ndtw"] < 1
    assert main(words(toy_root, "r2r", followed, *tours)) == 0
    printed = capsys.readouterr()
    assert all(f"{name} (%)" in printed.out for name in ("t_ndtw", "t_sr", "t_spl"))
    assert "are on tours" not in printed.err


def test_tours_that_leave_episodes_out_are_noted(toy_root: Path, capsys: Capture) -> None:
    episodes = read(toy_root, "r2r")
    first = [each.episode_id for each in episodes if each.scene_id == episodes[0].scene_id][:2]
    Path("t.json").write_text(json.dumps({"val_unseen": {episodes[0].scene_id: [first]}}))
    walks = follow(episodes, short=2)
    for record, episode in zip(walks, episodes, strict=True):
        if episode.episode_id in first:
            record.update(follow([episode])[0])
    assert main(words(toy_root, "r2r", write(walks), "--json", "--tours", "t.json")) == 0
    out, err = capsys.readouterr()
    means = json.loads(out)
    assert means["n"] == len(episodes) and means["sr"] < 1.0 and means["t_sr"] == 1.0
    assert f"2 of {len(episodes)} episodes are on tours" in err


def test_bootstrap_adds_intervals(toy_root: Path, capsys: Capture) -> None:
    file = write(follow(read(toy_root, "r2r"), short=2))
    command = words(toy_root, "r2r", file, "--json", "--bootstrap", "200")
    found = result(capsys, [*command, "--seed", "7"])
    assert sorted(found) == sorted([*MEASURES, "n", "ci95", "draws", "seed"])
    assert (found["draws"], found["seed"]) == (200, 7)
    assert list(found["ci95"]) == MEASURES
    assert all(low <= found[name] <= high for name, (low, high) in found["ci95"].items())
    assert found == result(capsys, [*command, "--seed", "7"])
    assert found["ci95"] != result(capsys, command)["ci95"]
    assert main(words(toy_root, "r2r", file, "--bootstrap", "200")) == 0
    assert "95 % interval" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["values.csv", "values.jsonl", "values.json", "new/folder/values"])
def test_values_of_every_episode_are_written(toy_root: Path, capsys: Capture, name: str) -> None:
    file = write(follow(read(toy_root, "r2r"), short=1))
    means = result(capsys, words(toy_root, "r2r", file, "--json", "--per-episode", name))
    text = Path(name).read_text()
    rows: list[dict[str, Any]]
    if name.endswith(".csv"):
        rows = list(csv.DictReader(text.splitlines()))
    elif name.endswith(".jsonl"):
        rows = [json.loads(line) for line in text.splitlines()]
    else:
        rows = json.loads(text)
    assert [row["id"] for row in rows] == [each.episode_id for each in read(toy_root, "r2r")]
    for measure in MEASURES:
        assert list(rows[0]) == ["id", *MEASURES]
        assert sum(float(row[measure]) for row in rows) / len(rows) == pytest.approx(means[measure])


# -- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "more", "message"),
    [
        ("reverie", [], "REVERIE counts success by the objects in sight: give --objects FILE"),
        ("r2r", ["--objects", "o.json"], "--objects belongs to reverie, not to r2r"),
        ("r2r", ["--success", "end-panos"], "--success end-panos belongs to cvdn, not to r2r"),
        ("r2r", ["--split", "val_seen"], "--split val_seen chooses among tours: give --tours FILE"),
        ("r2r", ["--bootstrap", "-5"], "-5 draws with seed 0: expected at least 1 draw"),
        ("r2r", ["--bootstrap", "5", "--seed", "-1"], "5 draws with seed -1: .* no negative seed"),
        ("r2r", ["--tours", "none.json"], "none.json: no such file"),
        ("r2r", ["--tours", "p.json"], "p.json: expected object, got array"),
        ("r2r", ["--per-episode", "."], "cannot be written"),
        ("r2r", ["--per-episode", "p.json/values.csv"], "p.json/values.csv: cannot be written"),
        ("r2r", ["--predictions", "none.json"], "none.json: no such file"),
        ("r2r", ["--predictions", "."], r"cannot be read \(Is a directory\)"),
        ("r2r", ["--annotations", "."], r"cannot be read \(Is a directory\)"),
        ("r2r", ["--annotations", "p.json"], "p.json: record 0: object missing required field"),
        ("cvdn", ["--annotations", "p.json"], "p.json: record 0: object missing required field"),
        ("r2r", ["--connectivity", "p.json"], "p.json: cannot be read as a connectivity folder"),
        ("r2r", ["--connectivity", "."], "no file ends in _connectivity.json"),
    ],
)
def test_invalid_options_are_refused(
    toy_root: Path, capsys: Capture, task: str, more: list[str], message: str
) -> None:
    file = write(follow(read(toy_root, task)))
    assert re.search(message, refusal(capsys, [*words(toy_root, task, file, "--json"), *more]))


@pytest.mark.parametrize("mode", [[], ["--json"]])
@pytest.mark.parametrize(
    ("records", "message"),
    [
        ({"1_0": ["a"]}, "p.json: expected array, got object"),
        ([], "p.json: holds no records"),
        ("text", "p.json: expected array, got str"),
        (
            [{"instr_id": "9999_0", "trajectory": ["a"]}],
            "p.json: episode 9999_0 is not among the 42 annotated",
        ),
        ([{"instr_id": "0", "trajectory": ["a"]}], "p.json: episode 0 is not among the 42 annotated"),
        ([{"instr_id": "9999_0", "trajectory": [[]]}], "p.json: episode 9999_0: trajectory entry 0"),
        ([{"position": [1, 2, 3]}], "p.json: record 0: 0 ids"),
    ],
)
def test_predictions_of_another_form_are_refused(
    toy_root: Path, capsys: Capture, records: object, message: str, mode: list[str]
) -> None:
    assert refusal(capsys, words(toy_root, "r2r", write(records), *mode)).startswith(message)


def test_missing_predictions_are_refused(toy_root: Path, capsys: Capture) -> None:
    episodes = read(toy_root, "r2r")
    told = refusal(capsys, words(toy_root, "r2r", write(follow(episodes)[1:]), "--json"))
    assert told.startswith(f"p.json: no prediction for episode {episodes[0].episode_id} of 42")
    assert "--partial" in told


def test_predictions_of_another_split_are_refused(toy_root: Path, capsys: Capture) -> None:
    file = write(follow(read(toy_root, "r2r", "val_seen")))
    assert "is this the right split?" in refusal(capsys, words(toy_root, "r2r", file, "--partial", "--json"))


def test_test_split_is_refused(toy_root: Path, capsys: Capture) -> None:
    file = write(follow(read(toy_root, "r2r", "test")))
    told = refusal(capsys, words(toy_root, "r2r", file, "--json", split="test"))
    assert "is a test episode: only the leaderboard knows its goal" in told


@pytest.mark.parametrize("jumps", ["refuse", "shortest"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: [*path, "nowhere"], "viewpoint 'nowhere' is not in scene 'toy-house'"),
        (lambda path: ["nowhere", *path], "'nowhere'"),
        (lambda path: path[1:], "starts at '{1}'"),
    ],
)
def test_faulty_path_names_its_episode(
    toy_root: Path, capsys: Capture, jumps: str, change: Any, message: str
) -> None:
    episodes = read(toy_root, "r2r")
    records = follow(episodes)
    path = list(episodes[3].reference_path)
    records[3]["trajectory"] = change(path)
    told = refusal(capsys, words(toy_root, "r2r", write(records), "--json", "--jumps", jumps))
    assert told.startswith(f"p.json: episode {episodes[3].episode_id}: ")
    assert message.format(*path) in told


def test_excluded_viewpoint_is_named_as_such(
    toy_root: Path, graphs: dict[str, SceneGraph], capsys: Capture
) -> None:
    records = follow(read(toy_root, "r2r"))
    excluded = next(name for name, why in graphs["toy-house"].left_out.items() if why == "excluded")
    records[0]["trajectory"] = [records[0]["trajectory"][0], excluded]
    told = refusal(capsys, words(toy_root, "r2r", write(records)))
    assert f"viewpoint '{excluded}' is excluded from scene 'toy-house'" in told


@pytest.mark.parametrize(
    ("tours", "more", "message"),
    [
        ({"val_seen": {"toy-villa": [["1_0"]]}}, [], "0 of its splits (val_seen) fit the annotations"),
        ({"x": {"toy-house": [["{0}"]]}, "y": {"toy-house": [["{0}"]]}}, [], "2 of its splits (x, y) fit"),
        ({"x": {"toy-house": [["{0}"]]}}, ["--split", "val_unseen"], "no split 'val_unseen'"),
        ({"x": {"toy-house": [["{0}", "9999_0"]]}}, [], "episode '9999_0' is unknown"),
        ({"x": {"toy-villa": [["{0}"]]}}, [], "is in scene 'toy-house'"),
        ({"x": {"toy-house": [["{0}", "{0}"]]}}, [], "is in two tours"),
        ({"x": {"toy-house": [["{0}"], []]}}, [], "scene 'toy-house', tour 1: is empty"),
    ],
)
def test_tours_that_do_not_fit_are_refused(
    toy_root: Path, capsys: Capture, tours: object, more: list[str], message: str
) -> None:
    episodes = read(toy_root, "r2r")
    Path("t.json").write_text(json.dumps(tours).replace("{0}", episodes[0].episode_id))
    file = write(follow(episodes))
    told = refusal(capsys, words(toy_root, "r2r", file, "--json", "--tours", "t.json", *more))
    assert told.startswith("t.json: ") and message in told


def test_tour_of_episodes_that_are_left_out_is_refused(toy_root: Path, capsys: Capture) -> None:
    tours = str(toy_root / "tours" / "tours_iVLN.json")
    file = write(follow(read(toy_root, "r2r"))[:5])
    told = refusal(capsys, words(toy_root, "r2r", file, "--partial", "--json", "--tours", tours))
    assert "which was not scored" in told


def test_values_of_an_earlier_run_survive_a_refusal(toy_root: Path, capsys: Capture) -> None:
    Path("values.csv").write_text("of an earlier run")
    file = write(follow(read(toy_root, "r2r")))
    for more in (["--bootstrap", "-1"], ["--tours", "p.json"], ["--predictions", "none.json"]):
        refusal(capsys, [*words(toy_root, "r2r", file, "--json", "--per-episode", "values.csv"), *more])
    assert Path("values.csv").read_text() == "of an earlier run"


def test_damaged_gzip_is_refused(toy_root: Path, capsys: Capture) -> None:
    whole = gzip.compress(json.dumps(follow(read(toy_root, "r2r"))).encode())
    Path("p.json.gz").write_bytes(whole)
    assert result(capsys, words(toy_root, "r2r", "p.json.gz", "--json"))["sr"] == 1.0
    Path("p.json.gz").write_bytes(whole[:-20])
    assert "damaged gzip" in refusal(capsys, words(toy_root, "r2r", "p.json.gz", "--json"))


@pytest.mark.parametrize("command", [["score"], ["score", "--task", "chess"], ["score", "--no-such-option"]])
def test_command_that_cannot_be_parsed_ends_with_two(command: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    assert capsys.readouterr().out == ""


def test_help_explains_every_option(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["score", "--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0 and out.startswith("usage: esceme score")
    for option in ("--jumps", "--per-episode", "--bootstrap", "--partial", "--tours", "--objects"):
        assert option in out
    assert "Examples:" in out and "Args:" not in out


# -- real predictions ------------------------------------------------------------------------------------


def real(data_root: Path, task: str, predictions: str, annotations: str) -> list[str]:
    command = [
        "score",
        "--task",
        task,
        "--predictions",
        str(data_root / "predictions" / f"{predictions}.json"),
    ]
    command += [
        "--annotations",
        str(data_root / annotations),
        "--connectivity",
        str(data_root / "connectivity"),
    ]
    return [*command, "--json"]


def rounded(found: dict[str, float], published: dict[str, str]) -> dict[str, str]:
    """Values with as many digits as were published."""
    return {name: f"{found[name]:.{len(text.split('.')[1])}f}" for name, text in published.items()}


@pytest.mark.real
@pytest.mark.parametrize(
    ("task", "predictions", "annotations", "count", "published"),
    [
        (
            "r2r",
            "PREVALENT_R2R_seq2seq_teacher_val_unseen_iter36000",
            "R2R/R2R_val_unseen.json",
            2349,
            {
                "tl": "9.986",
                "ne": "4.136",
                "osr": "0.6488",
                "sr": "0.6015",
                "spl": "0.5605",
                "spl_shortest": "0.5601",
            },
        ),
        (
            "r2r",
            "R2R_val_unseen_shortest_agent",
            "R2R/R2R_val_unseen.json",
            2349,
            {"sr": "1.000", "tl": "9.480", "steps": "4.96"},
        ),
        (
            "cvdn",
            "PREVALENT_NDH_all_trusted40_val_seen_iter100",
            "CVDN/val_seen.json",
            382,
            {"tl": "8.949167", "ne": "10.459741", "sr": "0.159686", "spl": "0.144817", "gp": "0.663645"},
        ),
    ],
)
def test_published_figures_are_reproduced_to_every_digit(
    data_root: Path,
    capsys: Capture,
    task: str,
    predictions: str,
    annotations: str,
    count: int,
    published: dict[str, str],
) -> None:
    found = result(capsys, real(data_root, task, predictions, annotations))
    assert found["n"] == count
    assert rounded(found, published) == published


@pytest.mark.real
def test_rule_of_success_changes_neither_progress_nor_length(data_root: Path, capsys: Capture) -> None:
    command = real(data_root, "cvdn", "PREVALENT_NDH_all_trusted40_val_seen_iter100", "CVDN/val_seen.json")
    trusted, strict = result(capsys, command), result(capsys, [*command, "--success", "end-panos"])
    assert {name for name in trusted if trusted[name] != strict[name]} <= {
        *("ne", "osr", "sr", "spl", "spl_shortest", "sdtw")
    }
    assert trusted["sr_end"] == strict["sr"] == 13 / 382


@pytest.mark.real
def test_reverie_paths_end_where_the_object_is_seen(data_root: Path, capsys: Capture) -> None:
    annotations = "REVERIE/v2_REVERIE_val_unseen.json"
    write(follow(TASKS["reverie"].read(data_root / annotations)))
    command = real(data_root, "reverie", "", annotations)
    command[command.index("--predictions") + 1] = "p.json"
    found = result(capsys, [*command, "--objects", str(data_root / "objects" / "reverie_objects.json.gz")])
    assert (found["n"], found["sr"], found["osr"]) == (3433, 1.0, 1.0)


def test_faults_of_the_annotations_name_their_file_and_episode(
    toy_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = json.loads((toy_root / "R2R" / "R2R_val_unseen.json").read_text())
    predictions = [
        {"instr_id": f"{each['path_id']}_{k}", "trajectory": [[each["path"][0]]]}
        for each in records
        for k in range(len(each["instructions"]))
    ]
    (tmp_path / "p.json").write_text(json.dumps(predictions))
    changes = {
        "scene 'Atlantis' has no Atlantis_connectivity.json": {"scan": "Atlantis"},
        "viewpoint 'nope' is not in scene": {"path": [records[1]["path"][0], "nope"]},
        "no edge leads from": {"path": [records[1]["path"][0], records[1]["path"][-1]]},
        "is a test episode": {"path": records[1]["path"][:1]},
    }
    for message, change in changes.items():
        changed = [*records[:1], records[1] | change, *records[2:]]
        annotations = tmp_path / "a.json"
        annotations.write_text(json.dumps(changed))
        command = ["score", "--task", "r2r", "--predictions", str(tmp_path / "p.json")]
        command += ["--annotations", str(annotations), "--connectivity", str(toy_root / "connectivity")]
        assert main(command) == 2
        told = capsys.readouterr().err
        assert str(annotations) in told and f"episode {records[1]['path_id']}_0" in told and message in told
