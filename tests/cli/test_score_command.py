"""`esceme score`: printed metrics, options and refused input."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from esceme.cli import main
from esceme.metrics import METRICS
from esceme.metrics import score as score_pairs
from esceme.tasks.catalogue import TASKS
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.submission import match_predictions, read_predictions
from esceme.world import Atlas, SceneGraph, read_scenes

pytestmark = pytest.mark.usefixtures("empty_folder")
Capture = pytest.CaptureFixture[str]
JsonOf = Callable[[Sequence[str]], dict[str, Any]]
ErrorOf = Callable[[Sequence[str]], str]


@pytest.fixture(scope="module")
def graphs(toy_root: Path) -> dict[str, SceneGraph]:
    return read_scenes(toy_root / "connectivity")


def read(toy_root: Path, task: str, split: str = "val_unseen") -> Sequence[Episode]:
    return TASKS[task].read(DataFolder(toy_root).require(task, split))


@pytest.fixture
def episodes(toy_root: Path) -> Sequence[Episode]:
    return read(toy_root, "r2r")


def write(records: object, name: str = "p.json") -> str:
    Path(name).write_text(json.dumps(records))
    return name


def follow(episodes: Sequence[Episode], *, skip: int = 0) -> list[dict[str, Any]]:
    """Predictions that follow every reference path without its last `skip` viewpoints."""
    paths = {episode.episode_id: episode.reference_path for episode in episodes}
    return [{"instr_id": name, "trajectory": path[: len(path) - skip]} for name, path in paths.items()]


def command(
    root: Path, *more: str, task: str = "r2r", split: str = "val_unseen", file: str = "p.json"
) -> list[str]:
    files = {
        "--predictions": file,
        "--annotations": DataFolder(root).require(task, split),
        "--connectivity": root / "connectivity",
    }
    options = [str(word) for option in files.items() for word in option]
    return ["score", "--task", task, *options, *more]


# -- output ----------------------------------------------------------------------------------------------


def test_first_told_scores_follow_the_order_of_the_predictions(
    toy_root: Path, episodes: Sequence[Episode], json_of: JsonOf, capsys: Capture
) -> None:
    """Only the last instruction of each path is followed to the end."""
    last = {episode.path_id: episode.episode_id for episode in episodes}
    records = [
        record if record["instr_id"] in last.values() else {**record, "trajectory": record["trajectory"][:1]}
        for record in follow(episodes)
    ]
    for order, success in ((records, 0.0), (records[::-1], 1.0)):
        write(order)
        printed = json_of(command(toy_root, "--first-told"))
        assert printed["first_told"]["n"] == len(last) < printed["n"]
        assert printed["first_told"]["sr"] == success and 0 < printed["sr"] < 1
    assert main(command(toy_root, "--first-told")) == 0
    assert "first told" in capsys.readouterr().out
    assert "first_told" not in json_of(command(toy_root))


@pytest.mark.parametrize(
    ("task", "more", "added"),
    [
        ("r2r", [], []),
        ("r4r", [], []),
        ("rxr", [], []),
        ("cvdn", [], ["sr_end"]),
        ("reverie", ["--objects", "objects/reverie_objects.json.gz"], []),
    ],
)
def test_json_holds_all_metrics_of_the_task(
    toy_root: Path, json_of: JsonOf, task: str, more: list[str], added: list[str]
) -> None:
    more = [str(toy_root / word) if word.startswith("objects") else word for word in more]
    write(follow(read(toy_root, task)))
    found = json_of(command(toy_root, *more, task=task))
    assert sorted(found) == sorted([*METRICS, "n", *added])
    assert found["n"] == len(read(toy_root, task)) and isinstance(found["n"], int)
    assert found["cls"] == pytest.approx(1.0)
    assert [found[name] for name in ("sr", "osr", "ne", "ndtw", "sdtw")] == [1, 1, 0, 1, 1]


def test_metrics_equal_those_of_the_python_interface(
    toy_root: Path, graphs: dict[str, SceneGraph], episodes: Sequence[Episode], json_of: JsonOf
) -> None:
    file = write(follow(episodes, skip=2))
    pairs = match_predictions(episodes, read_predictions(file), TASKS["r2r"], file=file)
    found = json_of(command(toy_root))
    assert found == score_pairs(pairs, Atlas(graphs.values())).means()
    assert 0 < found["ndtw"] < 1


def test_table_shows_per_cent_and_metres(
    toy_root: Path, episodes: Sequence[Episode], capsys: Capture
) -> None:
    assert main(command(toy_root, file=write(follow(episodes), "p[red].json"))) == 0
    out, err = capsys.readouterr()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    assert "r2r: p[red].json" in out and err == ""
    assert [row[0].split()[0] for row in rows] == [*METRICS, "n"]
    shown = {row[0]: row[1] for row in rows}
    assert (shown["sr (%)"], shown["ne (m)"], shown["n"]) == ("100.00", "0.00", "42")


def test_success_rule_of_dialogs(toy_root: Path, json_of: JsonOf) -> None:
    records = follow(read(toy_root, "cvdn"))
    write([{"inst_idx": record["instr_id"], "trajectory": record["trajectory"]} for record in records])
    trusted = json_of(command(toy_root, task="cvdn"))
    strict = json_of(command(toy_root, "--success", "end-panos", task="cvdn"))
    assert trusted["sr"] == 1.0 and trusted["sr_end"] == strict["sr_end"] == strict["sr"] < 1.0
    assert trusted["gp"] == strict["gp"] and list(trusted) == list(strict)


# -- options ---------------------------------------------------------------------------------------------


def test_partial_scores_existing_predictions_with_a_note(
    toy_root: Path, episodes: Sequence[Episode], capsys: Capture
) -> None:
    write(follow(episodes)[:5])
    assert main(command(toy_root, "--partial", "--json")) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["n"] == 5
    assert err == "note: 5 of 42 episodes have a prediction; the rest is left out\n"


def test_jumps_are_refused_or_counted_as_the_shortest_path(
    toy_root: Path, episodes: Sequence[Episode], json_of: JsonOf, error_of: ErrorOf
) -> None:
    write(follow(episodes))
    expected = json_of(command(toy_root))
    write(
        [
            {"instr_id": episode.episode_id, "trajectory": [episode.start, episode.goal]}
            for episode in episodes
        ]
    )
    assert "p.json: 42 faulty predictions" in error_of(command(toy_root))
    found = json_of(command(toy_root, "--jumps", "shortest"))
    assert found["steps"] == 1.0 and found["tl"] == pytest.approx(expected["tl"]) and found["spl"] == 1.0


@pytest.mark.parametrize("more", [[], ["--split", "val_unseen"]])
def test_tours_add_their_metrics(
    toy_root: Path, episodes: Sequence[Episode], json_of: JsonOf, capsys: Capture, more: list[str]
) -> None:
    words = command(toy_root, "--tours", str(toy_root / "tours" / "tours_iVLN.json"), *more)
    names = ("t_ndtw", "t_sr", "t_spl")
    write(follow(episodes, skip=1))
    assert 0 < json_of(words)["t_ndtw"] < 1
    write(follow(episodes))
    found = json_of(words)
    assert sorted(found) == sorted([*METRICS, "n", *names])
    assert [found[name] for name in names] == [1.0, 1.0, 1.0]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert all(f"{name} (%)" in out for name in names) and "are on tours" not in err


def test_tours_that_omit_episodes_are_noted(
    toy_root: Path, episodes: Sequence[Episode], capsys: Capture
) -> None:
    scene = episodes[0].scene_id
    toured = [episode for episode in episodes if episode.scene_id == scene][:2]
    write({"val_unseen": {scene: [[episode.episode_id for episode in toured]]}}, "t.json")
    write(follow(toured) + follow([episode for episode in episodes if episode not in toured], skip=2))
    assert main(command(toy_root, "--json", "--tours", "t.json")) == 0
    out, err = capsys.readouterr()
    means = json.loads(out)
    assert means["n"] == len(episodes) and means["sr"] < 1.0 and means["t_sr"] == 1.0
    assert f"2 of {len(episodes)} episodes are on tours" in err


def test_bootstrap_adds_intervals(
    toy_root: Path, episodes: Sequence[Episode], json_of: JsonOf, capsys: Capture
) -> None:
    write(follow(episodes, skip=2))
    words = command(toy_root, "--bootstrap", "200")
    found = json_of([*words, "--seed", "7"])
    assert sorted(found) == sorted([*METRICS, "n", "ci95", "draws", "seed"])
    assert (found["draws"], found["seed"]) == (200, 7)
    assert list(found["ci95"]) == list(METRICS)
    assert all(low <= found[name] <= high for name, (low, high) in found["ci95"].items())
    assert found == json_of([*words, "--seed", "7"])
    assert found["ci95"] != json_of(words)["ci95"]
    assert main(words) == 0
    assert "95 % interval" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["values.csv", "values.jsonl", "values.json", "new/folder/values"])
def test_values_of_every_episode_are_written(
    toy_root: Path, episodes: Sequence[Episode], json_of: JsonOf, name: str
) -> None:
    write(follow(episodes, skip=1))
    means = json_of(command(toy_root, "--per-episode", name))
    text = Path(name).read_text()
    rows: list[dict[str, Any]]
    if name.endswith(".csv"):
        rows = list(csv.DictReader(text.splitlines()))
    elif name.endswith(".jsonl"):
        rows = [json.loads(line) for line in text.splitlines()]
    else:
        rows = json.loads(text)
    assert [row["id"] for row in rows] == [episode.episode_id for episode in episodes]
    assert list(rows[0]) == ["id", *METRICS]
    for metric in METRICS:
        assert sum(float(row[metric]) for row in rows) / len(rows) == pytest.approx(means[metric])


# -- refused input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "more", "message"),
    [
        ("reverie", [], "REVERIE scores need the objects visible from each viewpoint: give --objects FILE"),
        ("r2r", ["--objects", "o.json"], "--objects belongs to reverie, not to r2r"),
        ("r2r", ["--success", "end-panos"], "--success end-panos belongs to cvdn, not to r2r"),
        ("r2r", ["--split", "val_seen"], "--split val_seen chooses among tours: give --tours FILE"),
        ("r2r", ["--bootstrap", "-5"], "-5 draws with seed 0: expected at least 1 draw"),
        ("r2r", ["--bootstrap", "5", "--seed", "-1"], "5 draws with seed -1: .* no negative seed"),
        ("r2r", ["--per-episode", "."], "cannot be written"),
        ("r2r", ["--per-episode", "p.json/values.csv"], "p.json/values.csv: cannot be written"),
        ("r2r", ["--predictions", "none.json"], "none.json: no such file"),
        ("r2r", ["--connectivity", "."], "no file ends in _connectivity.json"),
    ],
)
def test_invalid_options_are_refused(
    toy_root: Path, error_of: ErrorOf, task: str, more: list[str], message: str
) -> None:
    """An existing file of values stays as it was."""
    write(follow(read(toy_root, task)))
    Path("values.csv").write_text("of an earlier run")
    assert re.search(message, error_of(command(toy_root, "--per-episode", "values.csv", *more, task=task)))


def test_predictions_of_other_episodes_are_refused(
    toy_root: Path, episodes: Sequence[Episode], error_of: ErrorOf
) -> None:
    write([{"instr_id": "9999_0", "trajectory": ["a"]}])
    assert error_of(command(toy_root)).startswith("p.json: episode 9999_0 is not among the 42 annotated")
    write(follow(episodes)[1:])
    message = error_of(command(toy_root))
    assert message.startswith(f"p.json: no prediction for episode {episodes[0].episode_id} of 42")
    assert "--partial" in message
    tours = ("--tours", str(toy_root / "tours" / "tours_iVLN.json"))
    assert "which was not scored" in error_of(command(toy_root, "--partial", *tours))
    write(follow(read(toy_root, "r2r", "val_seen")))
    assert "is this the right split?" in error_of(command(toy_root, "--partial"))
    write(follow(read(toy_root, "r2r", "test")))
    message = "is a test episode: only the leaderboard knows its goal"
    assert message in error_of(command(toy_root, split="test"))


@pytest.mark.parametrize(
    ("tours", "more", "message"),
    [
        ({"val_seen": {"toy-villa": [["1_0"]]}}, [], "0 of its splits (val_seen) fit the annotations"),
        ({"x": {"toy-house": [["{0}"]]}, "y": {"toy-house": [["{0}"]]}}, [], "2 of its splits (x, y) fit"),
        ({"x": {"toy-house": [["{0}"]]}}, ["--split", "val_unseen"], "no split 'val_unseen'"),
        ({"x": {"toy-house": [["{0}", "9999_0"]]}}, [], "episode '9999_0' is unknown"),
    ],
)
def test_tours_that_do_not_fit_are_refused(
    toy_root: Path,
    episodes: Sequence[Episode],
    error_of: ErrorOf,
    tours: object,
    more: list[str],
    message: str,
) -> None:
    Path("t.json").write_text(json.dumps(tours).replace("{0}", episodes[0].episode_id))
    write(follow(episodes))
    error = error_of(command(toy_root, "--tours", "t.json", *more))
    assert error.startswith("t.json: ") and message in error


def test_scene_without_a_graph_is_named(
    toy_root: Path, episodes: Sequence[Episode], error_of: ErrorOf
) -> None:
    records = json.loads((toy_root / "R2R" / "R2R_val_unseen.json").read_text())
    records[1]["scan"] = "Atlantis"
    write(follow(episodes))
    error = error_of(command(toy_root, "--annotations", write(records, "a.json")))
    assert "scene 'Atlantis' has no Atlantis_connectivity.json" in error


# -- real predictions ------------------------------------------------------------------------------------


CVDN_AGENT = "PREVALENT_NDH_all_trusted40_val_seen_iter100"


def real_command(root: Path, task: str, predictions: str | Path, annotations: str) -> list[str]:
    words = ["score", "--task", task, "--predictions", str(root / "predictions" / predictions)]
    return [*words, "--annotations", str(root / annotations), "--connectivity", str(root / "connectivity")]


@pytest.mark.real
@pytest.mark.parametrize(
    ("task", "predictions", "annotations", "count", "published"),
    [
        (
            "r2r",
            "PREVALENT_R2R_seq2seq_teacher_val_unseen_iter36000",
            "R2R/R2R_val_unseen.json",
            2349,
            "tl 9.986 ne 4.136 osr 0.6488 sr 0.6015 spl 0.5605 spl_shortest 0.5601",
        ),
        (
            "r2r",
            "R2R_val_unseen_shortest_agent",
            "R2R/R2R_val_unseen.json",
            2349,
            "tl 9.480 sr 1.000 steps 4.96",
        ),
        (
            "cvdn",
            CVDN_AGENT,
            "CVDN/val_seen.json",
            382,
            "tl 8.949167 ne 10.459741 sr 0.159686 sr_end 0.034031 spl 0.144817 gp 0.663645",
        ),
    ],
)
def test_published_values_are_reproduced_to_every_digit(
    data_root: Path,
    json_of: JsonOf,
    task: str,
    predictions: str,
    annotations: str,
    count: int,
    published: str,
) -> None:
    found = json_of(real_command(data_root, task, f"{predictions}.json", annotations))
    assert found["n"] == count
    words = published.split()
    for name, text in zip(words[::2], words[1::2], strict=True):
        assert f"{found[name]:.{len(text.split('.')[1])}f}" == text, name


@pytest.mark.real
def test_object_is_visible_at_the_end_of_reverie_paths(data_root: Path, json_of: JsonOf) -> None:
    annotations = "REVERIE/v2_REVERIE_val_unseen.json"
    file = Path(write(follow(TASKS["reverie"].read(data_root / annotations)))).absolute()
    objects = ["--objects", str(data_root / "objects" / "reverie_objects.json.gz")]
    found = json_of([*real_command(data_root, "reverie", file, annotations), *objects])
    assert (found["n"], found["sr"], found["osr"]) == (3433, 1.0, 1.0)
