"""`esceme evaluate --tours` as a person runs it: both rows of a table, and tours that do not fit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from esceme.cli import main
from esceme.evaluation import read_result
from esceme.metrics import TOUR_METRICS
from esceme.tasks.r2r import read_r2r
from esceme.tasks.tours import read_tours
from fixtures.random_runs import random_run

Capture = pytest.CaptureFixture[str]
SPLIT = "val_seen"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy_root: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ESCEME_DATA", str(toy_root))


@pytest.fixture(scope="module")
def runs(toy_root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A small agent with a reader and one without, by the protocol that they live by on tours."""
    folder = tmp_path_factory.mktemp("runs")
    with_memory = random_run(folder / "reader", toy_root)
    return {"tour": str(with_memory), "none": str(random_run(folder / "none", toy_root, has_memory=False))}


@pytest.fixture
def tours(toy_root: Path) -> str:
    return str(toy_root / "tours" / "tours_iVLN.json")


def words(run: str, memory: str, tours: object, *more: str, split: str = SPLIT) -> list[str]:
    command = ["evaluate", run, "--split", split, "--memory", memory, "--tours", str(tours)]
    return [*command, "--max-steps", "3", "--out", memory, *more]


def refusal(capsys: Capture, command: Sequence[str]) -> str:
    """The message of a command that is refused before anything is written."""
    before = sorted(Path().rglob("*"))
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert sorted(Path().rglob("*")) == before
    return err.removeprefix("error: ")


def test_both_rows_of_a_table_come_from_the_same_command(
    runs: dict[str, str], tours: str, capsys: Capture
) -> None:
    for memory, run in runs.items():
        assert main(words(run, memory, tours)) == 0
        out, err = capsys.readouterr()
        means = read_result(memory).means
        assert all(f"{name} (%)" in out and f"{100 * means[name]:.2f}" in out for name in TOUR_METRICS)
        assert "order tours" in out and "on no tour" not in err
    assert [e.id for e in read_result("none").episodes] == [e.id for e in read_result("tour").episodes]
    assert main(["compare", "none", "tour", "--draws", "20", "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)["measures"]
    assert {*TOUR_METRICS} < {*compared} and compared["t_sr"]["differences"][0]["over_paths"] is None


def test_oracle_phases_are_a_switch_that_the_result_tells(
    runs: dict[str, str], tours: str, capsys: Capture
) -> None:
    assert main(words(runs["tour"], "tour", tours, "--oracle-phases")) == 0
    assert "with oracle phases" in capsys.readouterr().out
    assert read_result("tour").facts["oracle_phases"] is True
    told = refusal(capsys, words(runs["none"], "none", tours, "--oracle-phases"))
    assert told.startswith("oracle phases only fill the memory, which has no effect with 'none'")


def test_the_predictions_score_the_same(
    toy_root: Path, runs: dict[str, str], tours: str, capsys: Capture
) -> None:
    assert main(words(runs["tour"], "tour", tours, "--json")) == 0
    told = json.loads(capsys.readouterr().out)["means"]
    command = ["score", "--task", "r2r", "--predictions", "tour/predictions.json", "--tours", tours, "--json"]
    command += ["--annotations", str(toy_root / f"R2R/R2R_{SPLIT}.json")]
    assert main([*command, "--connectivity", str(toy_root / "connectivity")]) == 0
    scored = json.loads(capsys.readouterr().out)
    assert {name: told[name] for name in TOUR_METRICS} == pytest.approx(
        {name: scored[name] for name in TOUR_METRICS}
    )


def test_tours_are_made_by_one_command_and_lived(
    toy_root: Path, runs: dict[str, str], capsys: Capture
) -> None:
    annotations = toy_root / f"R2R/R2R_{SPLIT}.json"
    assert main(["data", "tours", str(annotations), "--out", "own.json", "--longest", "5"]) == 0
    assert main(words(runs["tour"], "tour", "own.json")) == 0
    result = read_result("tour")
    assert max(each.visit for each in result.episodes) <= 5
    assert len(result.episodes) == len(read_r2r(annotations))


def test_episodes_on_no_tour_are_not_lived_and_that_is_said(
    runs: dict[str, str], tours: str, capsys: Capture
) -> None:
    tour, *_ = read_tours(tours, SPLIT)
    Path("some.json").write_text(json.dumps({SPLIT: {tour.scene_id: [tour.episode_ids]}}))
    assert main(words(runs["none"], "none", "some.json", "--json")) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    left_out = 36 - len(tour)
    assert told["means"]["n"] == len(tour) and told["facts"]["left_out"] == left_out
    assert f"note: {left_out} episodes of {SPLIT} are on no tour and were not run" in err


@pytest.mark.parametrize("memory", ["tour", "none"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda a, b, _: {a: [["9999_0"]]}, "scene '{a}', tour 0: episode '9999_0' is unknown"),
        (
            lambda a, b, ids: {a: [[ids[a][0]], [ids[a][0]]]},
            "tour 1: episode '{first}' is in two tours",
        ),
        (lambda a, b, ids: {a: [[ids[a][0], ids[b][0]]]}, "tour 0: episode '{other}' is in scene '{b}'"),
        (lambda a, b, ids: {a: [[ids[a][0]], []]}, "scene '{a}', tour 1: is empty"),
        (lambda a, b, ids: {}, "split 'val_seen' holds no tours"),
    ],
    ids=["unknown", "twice", "mixed", "empty", "none"],
)
def test_tours_that_contradict_the_episodes_are_refused(
    runs: dict[str, str], tours: str, capsys: Capture, memory: str, damage: Any, message: str
) -> None:
    ids = {tour.scene_id: tour.episode_ids for tour in read_tours(tours, SPLIT)}
    a, b, *_ = ids
    Path("t.json").write_text(json.dumps({SPLIT: damage(a, b, ids)}))
    told = refusal(capsys, words(runs[memory], memory, "t.json"))
    assert told.startswith("t.json: ")
    assert message.format(a=a, b=b, first=ids[a][0], other=ids[b][0]) in told


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "t.json: no such file"),
        ("[]", "t.json: expected object, got array"),
        ('{"train": {"x": [["1_0"]]}}', "t.json: no split 'val_seen'; the file holds train"),
        ('{"val_seen": {"x": ["1_0"]}}', "t.json: entry 'val_seen': entry 'x': "),
    ],
)
def test_a_file_that_holds_no_such_tours_is_refused(
    runs: dict[str, str], capsys: Capture, content: str | None, message: str
) -> None:
    if content is not None:
        Path("t.json").write_text(content)
    assert refusal(capsys, words(runs["none"], "none", "t.json")).startswith(message)


@pytest.mark.parametrize("option", [["--schedule", "interleaved"], ["--order", "shuffled"]])
def test_tours_have_an_order_of_their_own(
    runs: dict[str, str], tours: str, capsys: Capture, option: list[str]
) -> None:
    told = refusal(capsys, words(runs["none"], "none", tours, *option))
    assert told.startswith("tours need one episode at a time" if "interleaved" in option else "tours")


# -- real data -------------------------------------------------------------------------------------------


@pytest.mark.real
def test_tours_of_r2r_are_made_and_lived(data_root: Path, capsys: Capture) -> None:
    annotations = data_root / "R2R" / "R2R_val_seen.json"
    assert main(["data", "tours", str(annotations), "--out", "tours.json"]) == 0
    assert "val_seen 56 tours" in capsys.readouterr().out
    command = ["evaluate", "shortest", "--split", "val_seen", "--memory", "none", "--tours", "tours.json"]
    assert main([*command, "--data", str(data_root), "--out", "out", "--bootstrap", "0", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["means"]["n"] == 1021 and told["facts"]["left_out"] == 0
    assert told["means"]["t_sr"] == pytest.approx(1.0) and told["means"]["t_ndtw"] > 0.99
