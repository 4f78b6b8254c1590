"""`esceme compare`: what it prints of results that were really made, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from esceme.cli import main
from esceme.evaluation import EvaluationConfig, evaluate, read_result
from esceme.evaluation.compare import MEASURES, compare
from fixtures.random_runs import random_run

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def results(toy_root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of evaluations by what walked; all but the last two of the same split."""
    root = tmp_path_factory.mktemp("results")
    run = random_run(root / "run", toy_root)
    walked = {
        "masked": (str(run), "masked", "val_seen"),
        "cold": (str(run), "cold", "val_seen"),
        "shortest": ("shortest", "none", "val_seen"),
        "elsewhere": ("stop", "none", "val_unseen"),
        "test": ("random", "none", "test"),
    }
    for name, (who, memory, split) in walked.items():
        plan = EvaluationConfig(run=who, data=str(toy_root), split=split, memory=memory, max_steps=5)
        evaluate(plan, root / name)
    return {name: str(root / name) for name in walked}


def test_the_table_names_what_differs(results: dict[str, str], capsys: Capture) -> None:
    command = ["compare", results["masked"], results["cold"], "--measures", "spl", "tl", "--draws", "200"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"1: {results['masked']}\n2: {results['cold']}\n   memory: 1: masked, 2: cold\n")
    rows = [line.replace("│", " ").split() for line in out.splitlines() if line.startswith("│")]
    assert [row[:2] for row in rows if row[0] in ("spl", "tl")] == [["spl", "(%)"], ["tl", "(m)"]]
    means = [read_result(results[name]).means["tl"] for name in ("masked", "cold")]
    assert [row[-1] for row in rows if row[0] == "tl"] == [f"{means[0]:.2f}"]
    assert rows[-1][:2] == ["2", f"{means[1]:.2f}"] and rows[-1].count("..") == 2
    assert float(rows[-1][2]) == pytest.approx(means[1] - means[0], abs=0.006)
    assert "36 episodes of 12 paths in 2 scenes; 200 draws" in out
    assert "as few as 2 scenes" in err


def test_agents_that_see_differently_can_be_compared(results: dict[str, str], capsys: Capture) -> None:
    """Features are no part of the data that has to be the same."""
    names = ["cold", "masked", "shortest"]
    assert main(["compare", *(results[name] for name in names), "--draws", "100", "--json"]) == 0
    out = capsys.readouterr().out
    told = json.loads(out)
    assert out.count("\n") == 1 and list(told["measures"]) == list(MEASURES)
    assert told["names"] == [results[name] for name in names]
    assert told["differing"]["agent"] == ["hamt", "hamt", "shortest"]
    assert len(set(told["differing"]["hashes.features"])) == 2 and "hashes.data" not in told["differing"]
    found = compare([read_result(results[name]) for name in names], draws=100)
    for row in found.measures:
        stated = told["measures"][row.measure]
        assert stated["means"] == list(row.means) and len(stated["differences"]) == 2
        for each, gain in zip(stated["differences"], row.differences, strict=True):
            assert gain.over_paths is not None
            assert each["mean"] == gain.mean and each["over_paths"] == gain.over_paths._asdict()
    success = told["measures"]["sr"]["differences"][1]
    assert success["mean"] > 0 and success["over_paths"]["low"] > 0


def test_a_result_file_does_as_well_as_its_folder(results: dict[str, str], capsys: Capture) -> None:
    files = [results["cold"], f"{results['cold']}/result.json"]
    assert main(["compare", *files, "--draws", "10"]) == 0
    assert "the facts of all results are the same" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "more", "message"),
    [
        (["cold"], [], "expected at least two results to compare, found 1"),
        (["cold", "elsewhere"], [], "{elsewhere}: split 'val_unseen', and 'val_seen' in {cold}"),
        (["test", "test"], [], "{test}: its episodes have no scores; of split 'test' only the leaderboard"),
        (["cold", "masked"], ["--measures", "love"], "{cold}: no measure 'love' of every episode; there are"),
        (["cold", "masked"], ["--draws", "0"], "0 draws with seed 0: expected at least 1 draw"),
    ],
)
@pytest.mark.parametrize("mode", [[], ["--json"]])
def test_what_cannot_be_compared_is_refused(
    results: dict[str, str], capsys: Capture, names: list[str], more: list[str], message: str, mode: list[str]
) -> None:
    assert main(["compare", *(results[name] for name in names), *more, *mode]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {message.format(**results)}")


def test_what_is_no_result_is_refused(
    results: dict[str, str], tmp_path: Path, toy_root: Path, capsys: Capture
) -> None:
    predictions = f"{results['cold']}/predictions.json"
    for path in (f"{tmp_path}", f"{tmp_path}/gone.json", predictions, str(toy_root)):
        assert main(["compare", results["cold"], path]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith(f"error: {path}")


def test_help_shows_examples(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--help"])
    printed = capsys.readouterr().out
    assert ended.value.code == 0 and "--measures spl sr" in printed and "Args:" not in printed
