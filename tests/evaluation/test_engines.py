"""Evaluations with other engines and precisions: equal walks, calibration, recorded facts, errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from esceme.agents.base import Decision
from esceme.errors import ConfigError
from esceme.evaluation import Result, evaluate, read_result, tracing
from esceme.evaluation.calibration import NUM_EPISODES, SAFETY
from esceme.evaluation.context import EvaluationContext
from esceme.evaluation.guarded import GUARD, GuardCalibration, GuardedNavigator, best_margin
from esceme.evaluation.inference import evaluation_steps
from esceme.evaluation.schedule import Lanes
from esceme.evaluation.trace import read_trace
from esceme.files import read_json, write_json
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.rollout import RolloutStep
from esceme.runs import NavigatorConfig, part_config_type, save_run
from esceme.tasks.folder import DataFolder
from esceme.tasks.text import WordPiece
from esceme.trajectory import Trajectory, greedy
from fixtures.toy_dataset import SMALL, SPLIT, WIDTH, ToyDataset, write_toy_dataset, write_training_data

AGENTS = ("hamt", "tdstp", "duet")
READERS = {"hamt": "candidate-enhancing", "tdstp": "graph-encoding", "duet": "map"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training_data(tmp_path_factory.mktemp("engines"))


@pytest.fixture(scope="module", params=AGENTS)
def toy(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> ToyDataset:
    """A run of each agent, with random weights whose scores differ clearly from each other."""
    return toy_run(data, tmp_path_factory.mktemp(request.param) / "run", request.param)


def toy_run(data: Path, folder: Path, agent: str, seed: int = 5) -> ToyDataset:
    words = WordPiece.read(DataFolder(data).tokenizers[0]).size
    sizes = {**SMALL, "cross_layers": 2, "vocabulary": words, "feature_width": WIDTH, "initial_std": 0.5}
    if agent == "duet":
        sizes.pop("critic_inner")
    reader = part_config_type("reader", READERS[agent])
    width = {} if agent == "duet" else {"width": WIDTH}
    config = NavigatorConfig(
        agent=part_config_type("agent", agent)(**sizes),
        reader=reader(**width),
        feature_source="street.hdf5",
        max_steps=8,
    )
    return ToyDataset(data, save_run(folder, config.build(seed=seed), config))


def walks(result: Result) -> list[Any]:
    return [(episode.id, episode.trajectory) for episode in result.episodes]


def recomputed(result: Result) -> int:
    return sum(episode.recomputed or 0 for episode in result.episodes)


def decisions(result: Result) -> int:
    return sum(episode.decisions for episode in result.episodes)


def test_walks_are_equal_over_engines_guard_batches_and_processes(toy: ToyDataset, tmp_path: Path) -> None:
    plain = evaluate(toy.config(), tmp_path / "plain")
    notes: list[str] = []
    for number, (changes, processes) in enumerate(
        [
            ({"engine": "packed"}, 1),
            ({"engine": "packed", "precision": "guarded"}, 1),
            ({"engine": "packed", "precision": "guarded", "batch": 1}, 1),
            ({"precision": "guarded"}, 2),
        ]
    ):
        folder = tmp_path / f"{number}"
        result = evaluate(toy.config(**changes), folder, processes=processes, note=notes.append)
        assert walks(result) == walks(plain)
        expected = {"engine": "eager", "precision": "fp32"} | changes
        expected.pop("batch", None)
        assert {name: result.facts[name] for name in expected} == expected
        if "precision" in changes:
            assert result.facts["margin"] == read_json(toy.run / GUARD, GuardCalibration).margin
            assert 0 < recomputed(read_result(folder)) <= decisions(result)
        else:
            assert "margin" not in result.facts
            assert all(episode.recomputed is None for episode in result.episodes)
    assert [note for note in notes if "calibrating" in note] == [
        f"calibrating --precision guarded on {NUM_EPISODES} episodes of train; the run keeps the result"
    ]


def test_close_decisions_are_exact_after_steps_in_low_precision(toy: ToyDataset) -> None:
    """Half of the decisions are repeated; all of them follow the actions of single precision."""
    context = toy.context(precision="guarded", batch=2)
    exact = logged_steps(context, context.navigator(context.lifetime(), exact=True))
    actions = {key: int(step.actions[row]) for key, (step, row) in exact.items()}
    gaps = torch.stack([best_margin(step.decision.logits)[row] for step, row in exact.values()])
    margin = float(gaps.median())
    guarded = logged_steps(
        context, GuardedNavigator(context.run.navigator, context.switch, margin).eval(), actions
    )
    assert guarded.keys() == exact.keys()
    errors: dict[bool, list[float]] = {True: [], False: []}
    for key, (step, row) in guarded.items():
        plain, plain_row = exact[key]
        assert step.decision.recomputed is not None
        difference = step.decision.logits[row] - plain.decision.logits[plain_row]
        errors[bool(step.decision.recomputed[row])].append(float(difference.nan_to_num(0.0).abs().max()))
        assert step.decision.recomputed[row] or best_margin(step.decision.logits)[row] >= margin
    assert max(errors[True]) < 2e-5
    assert len(errors[True]) > 5 and len(errors[False]) > 5
    assert max(errors[False]) > 1e-3


def logged_steps(
    context: EvaluationContext, navigator: Navigator, actions: dict[tuple[str, int], int] | None = None
) -> dict[tuple[str, int], tuple[RolloutStep, int]]:
    """Return the steps of a rollout and the row in their batch, by episode and number of the decision."""
    lifetime = context.lifetime()

    def select(decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]) -> Tensor:
        if actions is None:
            return greedy(decision, observation, trajectories)
        return torch.tensor([actions[t.episode.episode_id, t.num_decisions + 1] for t in trajectories])

    steps = evaluation_steps(
        navigator,
        context.atlas,
        Lanes(context.atlas, context.episodes, lifetime, num_slots=context.config.batch),
        lifetime.memory,
        encode=context.encode,
        max_steps=context.limits.max_steps,
        select=select,
    )
    return {
        (trajectory.episode.episode_id, trajectory.num_decisions): (step, row)
        for step in steps
        for row, trajectory in enumerate(step.trajectories)
    }


def test_wide_margins_repeat_every_decision(toy: ToyDataset, tmp_path: Path) -> None:
    plain = evaluate(toy.config(), tmp_path / "plain")
    evaluate(toy.config(precision="guarded"), tmp_path / "guarded")
    guard = read_json(toy.run / GUARD, GuardCalibration)
    assert guard.margin == pytest.approx(SAFETY * guard.largest_error)
    try:
        write_json(
            toy.run / GUARD,
            GuardCalibration(weights=guard.weights, margin=1e9, largest_error=1.0, decisions=1),
        )
        result = evaluate(toy.config(precision="guarded"), tmp_path / "wide")
    finally:
        write_json(toy.run / GUARD, guard)
    assert walks(result) == walks(plain)
    choices = decisions(result)
    assert recomputed(result) >= choices - len(result.episodes)  # a single possible action is never close


def test_without_a_margin_int8_changes_walks(data: Path, tmp_path: Path) -> None:
    changed = again = 0
    for seed in range(4):
        toy = toy_run(data, tmp_path / f"run{seed}", "hamt", seed)
        plain = evaluate(toy.config(), tmp_path / f"plain{seed}")
        low = evaluate(toy.config(precision="int8", engine="packed"), tmp_path / f"low{seed}")
        assert low.facts["batch"] == 3
        guarded = evaluate(toy.config(precision="guarded"), tmp_path / f"guarded{seed}")
        changed += walks(low) != walks(plain)
        again += recomputed(guarded)
        assert walks(guarded) == walks(plain)
    assert changed and again


def test_calibration_of_other_weights_is_not_used(data: Path, tmp_path: Path) -> None:
    toy = toy_run(data, tmp_path / "run", "hamt")
    write_json(toy.run / GUARD, GuardCalibration(weights="other", margin=1e9, largest_error=1.0, decisions=1))
    evaluate(toy.config(precision="guarded"), tmp_path / "out")
    assert read_json(toy.run / GUARD, GuardCalibration).margin < 1e3


def test_traces_of_guarded_evaluations_are_exact(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decisions are described in single precision, whose last bits depend on what is computed together."""
    monkeypatch.setattr(tracing, "_rounded", Tensor.tolist)
    toy = toy_run(data, tmp_path / "run", "duet")
    evaluate(toy.config(precision="guarded"), tmp_path / "guarded", trace=True)
    evaluate(toy.config(), tmp_path / "plain", trace=True)
    guarded, plain = (read_trace(tmp_path / name / "trace.jsonl").episodes for name in ("guarded", "plain"))
    assert len(guarded) > 1
    for one, other in zip(guarded, plain, strict=True):
        for step, expected in zip(one.steps, other.steps, strict=True):
            for name in ("probabilities", "masked"):
                assert getattr(step, name) == pytest.approx(getattr(expected, name), abs=1e-6)
                step, expected = (msgspec.structs.replace(found, **{name: []}) for found in (step, expected))
            assert step == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"precision": "int8", "planner": "routes"},
            "a planner needs the schedule 'lanes' and precision fp32",
        ),
        ({"precision": "guarded", "planner": "routes"}, "a planner needs .* precision fp32"),
        ({"engine": "quick"}, "engine: expected one of eager, packed"),
        ({"run": "random", "memory": "none", "engine": "packed"}, "RandomAgent has no transformer layers"),
        ({"run": "stop", "memory": "none", "precision": "guarded"}, "has no transformer layers"),
    ],
)
def test_unsuitable_settings_are_refused(data: Path, changes: dict[str, Any], message: str) -> None:
    toy = ToyDataset(data, data.parent / "run")
    with pytest.raises(ConfigError, match=message):
        toy.context(**changes)


def test_int8_needs_one_process(data: Path, tmp_path: Path) -> None:
    toy = ToyDataset(data, data.parent / "run")
    with pytest.raises(
        ConfigError, match="int8 depend on the rest of the batch; use one process, fp32 or gu"
    ):
        evaluate(toy.config(precision="int8"), tmp_path / "two", processes=2)


def test_guarded_needs_episodes_of_train(tmp_path: Path) -> None:
    toy = write_toy_dataset(tmp_path)
    with pytest.raises(ConfigError, match=f"calibrated on episodes of train: .*no split 'train'.*{SPLIT}"):
        evaluate(toy.config(precision="guarded"), tmp_path / "out")
    assert not (toy.run / GUARD).exists()
