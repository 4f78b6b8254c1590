"""`esceme compare`: its output for results of evaluations, and its errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import msgspec
import pytest
import torch

from esceme.cli import main
from esceme.evaluation import EvaluationConfig, evaluate, read_result
from esceme.evaluation.compare import MEASURES, compare
from esceme.files import write_json
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
    """Folders of evaluations; all but the last are of the same split."""
    root = tmp_path_factory.mktemp("results")
    run = random_run(root / "run", toy_root)
    evaluations = {
        "masked": (str(run), "masked", "val_seen"),
        "cold": (str(run), "cold", "val_seen"),
        "shortest": ("shortest", "none", "val_seen"),
        "elsewhere": ("stop", "none", "val_unseen"),
    }
    for name, (agent, memory, split) in evaluations.items():
        config = EvaluationConfig(run=agent, data=str(toy_root), split=split, memory=memory, max_steps=5)
        evaluate(config, root / name)
    return {name: str(root / name) for name in evaluations}


def test_table_shows_differing_facts_and_intervals(results: dict[str, str], capsys: Capture) -> None:
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


def test_agents_with_different_features_can_be_compared(results: dict[str, str], capsys: Capture) -> None:
    """The data hash, which must be equal, does not cover features."""
    names = ["cold", "masked", "shortest"]
    assert main(["compare", *(results[name] for name in names), "--draws", "100", "--json"]) == 0
    out = capsys.readouterr().out
    printed = json.loads(out)
    assert out.count("\n") == 1 and list(printed["measures"]) == list(MEASURES)
    assert printed["names"] == [results[name] for name in names]
    assert printed["differing"]["agent"] == ["hamt", "hamt", "shortest"]
    assert (
        len(set(printed["differing"]["hashes.features"])) == 2 and "hashes.data" not in printed["differing"]
    )
    found = compare([read_result(results[name]) for name in names], draws=100)
    for row in found.measures:
        values = printed["measures"][row.measure]
        assert values["means"] == list(row.means) and len(values["differences"]) == 2
        for value, difference in zip(values["differences"], row.differences, strict=True):
            assert difference.over_paths is not None
            assert value["mean"] == difference.mean
            assert value["over_paths"] == asdict(difference.over_paths)
    success = printed["measures"]["sr"]["differences"][1]
    assert success["mean"] > 0 and success["over_paths"]["low"] > 0


def test_result_file_and_its_folder_are_equivalent(results: dict[str, str], capsys: Capture) -> None:
    files = [results["cold"], f"{results['cold']}/result.json"]
    assert main(["compare", *files, "--draws", "10"]) == 0
    assert "the facts of all results are the same" in capsys.readouterr().err


def test_results_of_different_splits_are_refused(results: dict[str, str], capsys: Capture) -> None:
    first, second = results["cold"], results["elsewhere"]
    assert main(["compare", first, second, "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {second}: split 'val_unseen', and 'val_seen' in {first}")


def test_path_that_is_no_result_is_refused(
    results: dict[str, str], tmp_path: Path, toy_root: Path, capsys: Capture
) -> None:
    predictions = f"{results['cold']}/predictions.json"
    for path in (f"{tmp_path}", f"{tmp_path}/gone.json", predictions, str(toy_root)):
        assert main(["compare", results["cold"], path]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith(f"error: {path}")


# -- groups ----------------------------------------------------------------------------------------------


def test_results_of_different_seeds_form_groups(toy_root: Path, tmp_path: Path, capsys: Capture) -> None:
    for seed, agent in ((0, "random"), (1, "random"), (0, "stop"), (1, "stop")):
        config = EvaluationConfig(
            run=agent, data=str(toy_root), split="val_seen", memory="none", max_steps=5, seed=seed
        )
        evaluate(config, tmp_path / f"{agent}{seed}")
    paths = [str(tmp_path / name) for name in ("random0", "stop0", "random1", "stop1")]
    command = ["compare", *paths, "--group-seeds", "--measures", "tl", "--draws", "50"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"1: {paths[0]}, {paths[2]}\n2: {paths[1]}, {paths[3]}\n")
    lengths = [read_result(path).means["tl"] for path in paths]
    assert f"{(lengths[0] + lengths[2]) / 2:.2f} ± {abs(lengths[0] - lengths[2]) / 2**0.5:.2f}" in out
    assert "0.00 ± 0.00" in out
    assert main([*command, "--first-told", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["runs"] == [2, 2] and printed["episodes"] == 12 and printed["first_told"] is True


def test_planners_of_different_seeds_form_a_group(
    results: dict[str, str], tmp_path: Path, capsys: Capture
) -> None:
    """What a fit determines does not separate results; its settings and the choice do."""
    paths = []
    for seed, epochs, belief in ((0, 8, "full"), (1, 8, "full"), (0, 8, "blind"), (0, 4, "full")):
        result = read_result(results["cold"])
        planner = {
            "routes": "shortest",
            "beliefs": {"full": {"weights": {"walk": 0.1 * seed}, "loss": 1.0 + seed}},
            "exploration": {"persistent": {"early": 10.0 * (1 + seed)}},
            "digests": {"weights": f"{seed}"},
            "fit": {"samples": 9 + seed, "settings": {"matcher": {"epochs": epochs, "seed": seed}}},
        }
        facts = {**result.facts, "planner": planner, "belief": belief, "seed": seed}
        paths.append(tmp_path / f"{seed}-{epochs}-{belief}.json")
        write_json(paths[-1], msgspec.structs.replace(result, facts=facts))
    command = ["compare", *map(str, paths), "--group-seeds", "--measures", "tl", "--draws", "50"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"1: {paths[0]}, {paths[1]}\n2: {paths[2]}\n3: {paths[3]}\n")
    assert "planner.fit.settings.matcher.epochs: 1: 8, 2: 8, 3: 4" in out and "beliefs" not in out
