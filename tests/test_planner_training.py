"""Planners from training to evaluation: equal files, protocols, resuming, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from esceme.cli import main
from esceme.errors import ConfigError, DataError
from esceme.evaluation import EvaluationConfig, Result, evaluate
from esceme.evaluation.evaluate import JOURNAL, MAPS
from esceme.evaluation.trace import read_trace
from esceme.files import folder_lock, read_json, write_json
from esceme.learning.matcher_fitting import MatcherConfig
from esceme.learning.planner_fitting import PlannerFitConfig
from esceme.learning.speaker_fitting import SpeakerConfig
from esceme.memory.map_file import load_maps
from esceme.planner_training import PlannerTrainingConfig, train_planner
from esceme.planning.planner_file import load_planner
from esceme.training import train
from fixtures.files import file_contents
from fixtures.toy_dataset import SPLIT, small_experiment

pytestmark = pytest.mark.long
CONFIG = PlannerTrainingConfig(
    speaker=SpeakerConfig(codes=8, iterations=2),
    matcher=MatcherConfig(epochs=1, hidden=8),
    fit=PlannerFitConfig(
        partial_maps=6, rounds=1, episodes_per_scene=4, late=(1.0, 4.0), early=(4.0,), cleared=(2.0,)
    ),
)


@pytest.fixture(scope="module")
def run(training_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one held-out scene, and its planner."""
    folder = tmp_path_factory.mktemp("run") / "run"
    experiment = replace(small_experiment(iterations=2, reader="none", splits=()), hold_out=1)
    train(experiment, training_data, folder)
    train_planner(folder, training_data, CONFIG)
    return folder


def evaluated(run: Path, data: Path, out: Path, *, processes: int = 1, **changes: Any) -> Result:
    settings = {"run": str(run), "data": str(data), "split": SPLIT, "memory": "cold", "planner": "routes"}
    return evaluate(EvaluationConfig(**{**settings, "batch": 3, **changes}), out, processes=processes)


def paths_of(result: Result) -> list[list[str]]:
    return [[name for name, _, _ in episode.trajectory] for episode in result.episodes]


def test_equal_inputs_give_equal_planners(run: Path, training_data: Path, tmp_path: Path) -> None:
    again = copytree(run, tmp_path / "run", ignore=lambda folder, names: ["planner"])
    train_planner(again, training_data, CONFIG)
    assert file_contents(again / "planner") == file_contents(run / "planner")
    stored, (speaker, matcher) = load_planner(run)
    tried = [row for row in stored.fit["exploration"] if not row["cleared"]]
    assert stored.exploration.persistent.late == max(tried, key=lambda row: row["spl"])["late"]
    weights = [row["late"] for row in tried]
    assert weights[:2] == [1.0, 4.0] and len(weights) <= 4, "larger ones only if the largest is best"
    assert (len(weights) > 2) == (tried[1]["spl"] > tried[0]["spl"])
    scorers = {"speaker", "follower", "matcher"}
    controls = {"blind", "no-lengths", *scorers, *(f"no-{scorer}" for scorer in scorers)}
    assert {"full", *controls} == set(stored.beliefs)
    assert matcher is not None and matcher.query.in_features == CONFIG.matcher.hidden
    assert stored.fit["held_out"]
    assert stored.digests.keys() == {"speaker", "matcher", "weights", "annotations", "code"}
    assert len(speaker.codebook) == 8


def test_interrupted_training_does_not_train_the_matcher_again(
    run: Path, training_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = copytree(run, tmp_path / "run")
    (again / "planner" / "planner.json").unlink()
    with monkeypatch.context() as patched:
        patched.setattr("esceme.planner_training.train_matcher", None)
        train_planner(again, training_data, CONFIG)
    assert file_contents(again / "planner") == file_contents(run / "planner")
    without = replace(CONFIG, matcher=MatcherConfig(epochs=0))
    assert train_planner(again, training_data, without).scorers == ["follower", "speaker"]
    assert load_planner(again)[1].matcher is None


def test_two_trainings_of_one_planner_are_refused(run: Path, training_data: Path) -> None:
    before = file_contents(run / "planner")
    with (
        folder_lock(run / "planner", "training of a planner"),
        pytest.raises(DataError, match="another training of a planner is running there"),
    ):
        train_planner(run, training_data, CONFIG)
    assert file_contents(run / "planner") == before


def test_trajectories_do_not_depend_on_batch_size_and_processes(
    run: Path, training_data: Path, tmp_path: Path
) -> None:
    found = [
        evaluated(run, training_data, tmp_path / str(number), batch=batch, processes=processes)
        for number, (batch, processes) in enumerate([(1, 1), (3, 1), (8, 2)])
    ]
    assert paths_of(found[0]) == paths_of(found[1]) == paths_of(found[2])
    files = [(tmp_path / str(number) / MAPS).read_bytes() for number in range(3)]
    assert files[0] == files[1] == files[2]


def test_interrupted_evaluation_resumes_equal(run: Path, training_data: Path, tmp_path: Path) -> None:
    whole = evaluated(run, training_data, tmp_path / "whole")
    lines = (tmp_path / "whole" / JOURNAL).read_bytes().splitlines(keepends=True)
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / JOURNAL).write_bytes(b"".join(lines[: len(lines) // 2]))
    resumed = evaluated(run, training_data, tmp_path / "part")
    assert resumed == whole
    assert (tmp_path / "part" / MAPS).read_bytes() == (tmp_path / "whole" / MAPS).read_bytes()


def test_every_protocol_means_the_same_for_maps(run: Path, training_data: Path, tmp_path: Path) -> None:
    speaker = load_planner(run)[1].speaker
    sizes = {}
    for protocol in ("cold", "two-pass", "episodic", "oracle", "masked"):
        evaluated(run, training_data, tmp_path / protocol, memory=protocol)
        if protocol != "masked":
            maps = load_maps(tmp_path / protocol / MAPS, codebook=speaker.codebook)
            sizes[protocol] = len(maps)
    assert sizes["episodic"] <= sizes["cold"] <= sizes["two-pass"] <= sizes["oracle"]
    assert not (tmp_path / "masked" / MAPS).exists()
    warm = evaluated(
        run, training_data, tmp_path / "warm", memory="warm", bank=str(tmp_path / "oracle" / MAPS)
    )
    oracle = evaluated(run, training_data, tmp_path / "again", memory="oracle")
    assert paths_of(warm) == paths_of(oracle)
    tours = evaluated(
        run,
        training_data,
        tmp_path / "tour",
        memory="tour",
        tours=str(training_data / "tours" / "tours_iVLN.json"),
    )
    assert tours.means["t_ndtw"] > 0


def test_results_record_the_planner_and_controls_differ(
    run: Path, training_data: Path, tmp_path: Path
) -> None:
    full = evaluated(run, training_data, tmp_path / "full")
    assert full.facts["planner"]["beliefs"]["full"]["weights"] and full.facts["belief"] == "full"
    assert full.facts["planner"]["exploration"]["persistent"]["early"] == 4.0
    blind = evaluated(run, training_data, tmp_path / "blind", belief="blind")
    assert blind.facts["belief"] == "blind" and blind.facts != full.facts
    evaluated(run, training_data, tmp_path / "argmax", choice="argmax")


def test_trace_keeps_the_best_routes_of_every_plan(run: Path, training_data: Path, tmp_path: Path) -> None:
    settings = EvaluationConfig(
        run=str(run), data=str(training_data), split=SPLIT, memory="cold", planner="routes"
    )
    evaluate(settings, tmp_path / "out", trace=True)
    for episode in read_trace(tmp_path / "out").episodes:
        details = episode.steps[0].details
        best = details["routes"][0]
        assert best["path"][0] == episode.steps[0].viewpoint and best["scores"].keys() >= {"walk", "speaker"}
        assert len(details["routes"]) <= min(5, details["compared"])
        utilities = [route["utility"] for route in details["routes"]]
        assert utilities == sorted(utilities, reverse=True)
    drawing = tmp_path / "plan.svg"
    arguments = ["--connectivity", str(training_data / "connectivity"), "--out", str(drawing)]
    plans = ["--episode", episode.id, "--plans", str(tmp_path / "out")]
    assert main(["scene", episode.scene, *arguments, *plans]) == 0
    assert f"route {len(details['routes'])}: " in drawing.read_text()


def test_exchanged_instructions_come_from_other_paths_of_the_scene() -> None:
    from esceme.evaluation.context import exchange_instructions
    from fixtures.toy_atlas import toy_episode

    episodes = [
        toy_episode(f"{path}_{number}", "house", instruction=f"{path} {number}")
        for path in range(4)
        for number in range(2)
    ]
    found = exchange_instructions(episodes)
    assert [episode.episode_id for episode in found] == [episode.episode_id for episode in episodes]
    for before, after in zip(episodes, found, strict=True):
        assert after.instruction.split()[0] != before.instruction.split()[0]
        assert after.reference_path == before.reference_path
    with pytest.raises(ConfigError, match="has only one path"):
        exchange_instructions(episodes[:2])


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory": "none"}, "a planner plans in memory"),
        ({"planner": "none", "memory": "cold"}, "reads no memory"),
        ({"planner": "none", "memory": "none", "belief": "blind"}, "are settings of a planner"),
        ({"schedule": "interleaved"}, "a planner needs the schedule 'lanes'"),
        ({"precision": "bf16"}, "precision fp32"),
        ({"belief": "psychic"}, "belief 'psychic': this planner has full, blind"),
    ],
)
def test_unsuitable_settings_are_refused(
    run: Path, training_data: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluated(run, training_data, tmp_path / "out", **changes)


def test_scripted_agents_have_no_planner(training_data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is scripted; a planner needs a trained run"):
        evaluated(Path("shortest"), training_data, tmp_path / "out")


def test_missing_and_damaged_planners_are_refused(run: Path, training_data: Path, tmp_path: Path) -> None:
    bare = copytree(run, tmp_path / "bare", ignore=lambda folder, names: ["planner"])
    with pytest.raises(ConfigError, match="has no fitted planner; run `esceme train-planner"):
        evaluated(bare, training_data, tmp_path / "out")
    for damage, message in ((None, "no matcher here"), (b"{}", "not a complete matcher")):
        blunt = copytree(run, tmp_path / "blunt", dirs_exist_ok=True)
        (blunt / "planner" / "matcher.safetensors").unlink()
        if damage:
            (blunt / "planner" / "matcher.safetensors").write_bytes(damage)
        with pytest.raises(DataError, match=message):
            evaluated(blunt, training_data, tmp_path / "out")
    mute = copytree(run, tmp_path / "mute")
    (mute / "planner" / "speaker.safetensors").unlink()
    with pytest.raises(DataError, match="no speaker here"):
        evaluated(mute, training_data, tmp_path / "out")
    other = copytree(run, tmp_path / "other")
    stored = read_json(other / "planner" / "planner.json", dict[str, Any])
    stored["digests"]["weights"] = "0" * 64
    write_json(other / "planner" / "planner.json", stored)
    with pytest.raises(ConfigError, match="its planner was fitted to other weights"):
        evaluated(other, training_data, tmp_path / "out")
    stored["digests"]["speaker"] = "0" * 64
    write_json(other / "planner" / "planner.json", stored)
    with pytest.raises(DataError, match="not the speaker of planner.json"):
        evaluated(other, training_data, tmp_path / "out")
    write_json(other / "planner" / "planner.json", {**stored, "format": "esceme-planner-0"})
    with pytest.raises(DataError, match="format 'esceme-planner-0'"):
        evaluated(other, training_data, tmp_path / "out")
    for name, value, message in (
        ("routes", "flight", "routes: expected one of shortest, two-leg, k-best, found 'flight'"),
        ("routes", "k-best", "prior: expected one for routes 'k-best' and only for these"),
        ("prior", {"steps": [0.0] * 7}, "prior: expected one for routes 'k-best' and only for these"),
        ("prior", {"steps": [0.0] * 6}, "steps"),
        ("prior", {"steps": [0.0] * 7, "revisit": 1.0}, "revisit"),
        ("utility", "fun", "utility: expected one of spl, sdtw, gp, found 'fun'"),
        ("scorers", ["oracle"], "scorers: expected one of follower, speaker, matcher, found 'oracle'"),
        ("beliefs", {}, "found 'full'"),
        ("max_moves", 0, "max_moves"),
        ("limits", {"min_moves": 0, "max_moves": 10**9}, "max_moves"),
        ("exploration", {"persistent": {"early": -1.0}, "cleared": {}}, "early"),
    ):
        write_json(other / "planner" / "planner.json", {**stored, name: value})
        with pytest.raises(DataError, match=message):
            evaluated(other, training_data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_planner_fitted_on_another_task(run: Path, training_data: Path, tmp_path: Path) -> None:
    """A run of R2R gets a planner by goal progress, fitted on dialogs in training scenes."""
    data = copytree(training_data, tmp_path / "data")
    for split in ("train", SPLIT):
        records = read_json(data / f"R2R/R2R_{split}.json", list[dict[str, Any]])
        dialogs = [
            {
                "inst_idx": number,
                "scan": record["scan"],
                "target": "lamp",
                "start_pano": {"pano": record["path"][0], "heading": record["heading"]},
                "dialog_history": [{"role": "oracle", "message": record["instructions"][0]}],
                "end_panos": record["path"][-1:],
                "player_path": record["path"],
                "planner_path": record["path"],
            }
            for number, record in enumerate(records)
        ]
        write_json(data / f"CVDN/{'val_seen' if split == 'train' else split}.json", dialogs)
    again = copytree(run, tmp_path / "run", ignore=lambda folder, names: ["planner"])
    options = [
        "--data",
        str(data),
        "--speaker.codes",
        "8",
        "--speaker.iterations",
        "1",
        "--matcher.epochs",
        "1",
    ]
    options += ["--fit.partial-maps", "4", "--fit.rounds", "0", "--fit.late", "4", "--fit.early", "4"]
    options += ["--fit.cleared", "2"]
    assert main(["train-planner", str(again), "--task", "cvdn", "--split", "val_seen", *options]) == 0
    stored, _ = load_planner(again)
    assert (stored.utility, stored.routes) == ("gp", "shortest")
    assert (stored.fit["task"], stored.fit["split"]) == ("cvdn", "val_seen")
    assert {"annotations", "fit"} <= stored.digests.keys()
    result = evaluated(again, data, tmp_path / "out", task="cvdn", max_tokens=60)
    assert "gp" in result.episodes[0].scores and result.facts["planner"]["utility"] == "gp"
    for wrong, message in (
        ({"task": "cvdn", "split": SPLIT}, "is no training scene of the run"),
        ({"task": "cvdn"}, "--task and --split: give both"),
    ):
        with pytest.raises(ConfigError, match=message):
            train_planner(again, data, CONFIG, **wrong)


def test_run_without_held_out_scenes_gets_no_planner(training_data: Path, tmp_path: Path) -> None:
    train(small_experiment(iterations=1, reader="none", splits=()), training_data, tmp_path / "run")
    with pytest.raises(ConfigError, match="train the run with --hold-out"):
        train_planner(tmp_path / "run", training_data, CONFIG)
    assert not (tmp_path / "run" / "planner").exists()


def test_follower_with_a_reader_can_plan(training_data: Path, tmp_path: Path) -> None:
    experiment = replace(small_experiment(iterations=1, splits=()), hold_out=1)
    train(experiment, training_data, tmp_path / "run")
    train_planner(tmp_path / "run", training_data, CONFIG)
    result = evaluated(tmp_path / "run", training_data, tmp_path / "out")
    assert np.isfinite(result.means["spl"])
    assert (tmp_path / "out" / "bank.safetensors").is_file() and (tmp_path / "out" / MAPS).is_file()
