"""Validation during training: its memory protocol, and no effect on training."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import msgspec
import pytest

from esceme.errors import ConfigError
from esceme.evaluation import EvaluationConfig, evaluate
from esceme.files import read_json
from esceme.learning import ProcessGroup, TrainingCallback, TrainingRun, ValidationConfig
from esceme.learning.training_log import read_log
from esceme.learning.validation import selection_score, subsample_episodes, subsample_tours, validate
from esceme.tasks.tours import Tour, read_tours
from esceme.training import prepare, train
from fixtures.toy_dataset import SPLIT, TRAIN_SCENES, bit_equal, small_experiment

pytestmark = pytest.mark.long

PROTOCOLS = ("cold", "two-pass", "episodic", "masked", "oracle")


@pytest.fixture
def run(training_data: Path, tmp_path: Path) -> TrainingRun:
    """A run after two iterations, whose memory is not empty."""
    run = prepare(small_experiment(), training_data, tmp_path, callback=TrainingCallback())
    for iteration in range(2):
        run.trainer.training_step(iteration)
    return run


def validation_metrics(run: TrainingRun, memory: str) -> dict[str, float]:
    """Validate on all episodes."""
    training = run.trainer.memory
    assert training is not None
    return validate(
        run.trainer.navigator,
        run.atlas,
        run.validation_sets[SPLIT],
        memory,
        task="r2r",
        encode=run.encode,
        max_steps=5,
        leaking=training.bank if memory == "leaking" else None,
    )


def remembered_scenes(run: TrainingRun) -> set[str]:
    """Scenes in the memory of training."""
    assert run.trainer.memory is not None
    return set(run.trainer.memory.bank.scenes)


@pytest.mark.parametrize("memory", PROTOCOLS)
def test_validation_is_repeatable_and_does_not_change_training(run: TrainingRun, memory: str) -> None:
    before = deepcopy(run.trainer.state_dict())
    assert remembered_scenes(run) == set(TRAIN_SCENES)
    assert validation_metrics(run, memory) == validation_metrics(run, memory)
    assert bit_equal(run.trainer.state_dict(), before)
    assert run.trainer.navigator.training


def test_protocols_give_different_metrics(run: TrainingRun) -> None:
    scores = {memory: validation_metrics(run, memory) for memory in PROTOCOLS}
    assert len({tuple(metrics.values()) for metrics in scores.values()}) >= 3


def test_leaking_memory_stays_in_the_memory_of_training(run: TrainingRun) -> None:
    first = validation_metrics(run, "leaking")
    assert remembered_scenes(run) > set(TRAIN_SCENES)
    before = remembered_viewpoints(run)
    second = validation_metrics(run, "leaking")
    assert remembered_viewpoints(run) >= before
    assert first == validation_metrics(run, "cold")  # training has no episodes in these scenes
    assert second != first
    run.trainer.training_step(2)  # features remembered in inference mode are usable in training


def remembered_viewpoints(run: TrainingRun) -> set[int]:
    assert run.trainer.memory is not None
    return set(run.trainer.memory.bank.visited.nonzero().flatten().tolist())


def test_validation_does_not_change_the_trained_weights(training_data: Path, tmp_path: Path) -> None:
    checked = train(small_experiment(every=1), training_data, tmp_path / "with-validation")
    unchecked = train(small_experiment(splits=()), training_data, tmp_path / "without-validation")
    weights = [(folder / "weights.safetensors").read_bytes() for folder in (checked, unchecked)]
    assert weights[0] == weights[1]
    leaking = train(small_experiment(every=1, memory="leaking"), training_data, tmp_path / "leaking")
    assert read_log(leaking / "log.jsonl") != read_log(checked / "log.jsonl")


def test_agent_without_memory_is_validated_without_memory(training_data: Path, tmp_path: Path) -> None:
    experiment = small_experiment(iterations=1, reader="none", memory="two-pass")
    folder = train(experiment, training_data, tmp_path)
    assert [line["kind"] for line in read_log(folder / "log.jsonl")] == ["train", "validation"]


# -- best weights --------------------------------------------------------------------------------


class RecordingCallback(TrainingCallback):
    """Records iteration, score and flag of every validation."""

    def __init__(self) -> None:
        self.validations: list[tuple[int, float, bool]] = []

    def on_validation_end(
        self, iteration: int, scores: Mapping[str, Mapping[str, float]], *, is_best: bool
    ) -> None:
        metrics = scores[SPLIT]
        self.validations.append((iteration, metrics["sr"] + metrics["spl"], is_best))


def test_best_weights_are_those_of_the_latest_best_validation(training_data: Path, tmp_path: Path) -> None:
    callback = RecordingCallback()
    train(
        small_experiment(every=1, iterations=8, learning_rate=0.01),
        training_data,
        tmp_path / "run",
        callback=callback,
    )
    best_score = 0.0
    for _, score, is_best in callback.validations:
        assert is_best == (score >= best_score)
        best_score = max(best_score, score)
    scores = [score for _, score, _ in callback.validations]
    assert len(set(scores)) > 1, "all scores are equal"
    best_iteration = max(iteration for iteration, _, is_best in callback.validations if is_best)
    assert scores[best_iteration - 1] == max(scores)
    shorter = small_experiment(every=1, iterations=best_iteration, learning_rate=0.01)
    expected = train(shorter, training_data, tmp_path / "shorter") / "weights.safetensors"
    assert (tmp_path / "run/best/weights.safetensors").read_bytes() == expected.read_bytes()


def test_latest_of_equal_scores_is_best(training_data: Path, tmp_path: Path) -> None:
    callback = RecordingCallback()
    folder = train(small_experiment(every=1, learning_rate=1e-9), training_data, tmp_path, callback=callback)
    assert len({score for _, score, _ in callback.validations}) == 1
    assert all(is_best for _, _, is_best in callback.validations)
    best, last = folder / "best" / "weights.safetensors", folder / "weights.safetensors"
    assert best.read_bytes() == last.read_bytes()


@pytest.mark.parametrize(
    ("best", "expected"), [("sr+spl", 0.75), ("spl", 0.25), ("gp", 4.0), ("t_sr+t_spl", 0.375)]
)
def test_score_for_the_best_weights_is_the_named_sum(best: Any, expected: float) -> None:
    scores = {"sr": 0.5, "spl": 0.25, "gp": 4.0, "t_sr": 0.25, "t_spl": 0.125}
    assert selection_score(scores, ValidationConfig(best=best, memory="tour")) == expected


def test_limit_selects_evenly_spaced_episodes(run: TrainingRun) -> None:
    episodes = run.validation_sets[SPLIT]
    assert subsample_episodes(episodes, 0) == subsample_episodes(episodes, 100) == episodes
    selected = subsample_episodes(episodes, 3)
    assert [episodes.index(episode) for episode in selected] == [
        0,
        len(episodes) // 3,
        2 * len(episodes) // 3,
    ]


@pytest.mark.parametrize(
    "settings",
    [
        *({"oracle_phases": True}, {"best": "t_sr+t_spl"}, {"memory": "two-pass", "best": "t_sr+t_spl"}),
        {"best_split": "test"},
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ValidationConfig(**settings)


def test_validation_scores_reverie_by_objects_as_evaluation_does(toy_root: Path, tmp_path: Path) -> None:
    data = copytree(toy_root, tmp_path / "data")
    file = data / "objects" / "reverie_objects.json.gz"
    visible = read_json(file, dict[str, list[Any]])
    all_objects = [record for records in visible.values() for record in records]
    encoded = msgspec.json.encode(dict.fromkeys(visible, all_objects))  # every target is visible everywhere
    file.write_bytes(gzip.compress(encoded))
    experiment = small_experiment(iterations=1)
    experiment = replace(experiment, navigator=replace(experiment.navigator, task="reverie"))
    folder = train(experiment, data, tmp_path / "run")
    (line,) = (line for line in read_log(folder / "log.jsonl") if line["kind"] == "validation")
    config = EvaluationConfig(run=str(folder), data=str(data), split=SPLIT, memory="cold")
    means = evaluate(config, tmp_path / "evaluated").means
    assert means["sr"] == 1
    assert line[SPLIT] == pytest.approx(means, abs=1e-9)


# -- tours -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reader", "memory", "oracle_phases"),
    [
        ("candidate-enhancing", "tour", False),
        ("candidate-enhancing", "tour", True),
        ("candidate-enhancing", "cold", False),
        ("none", "tour", False),
    ],
)
def test_validation_on_tours_equals_evaluation_on_tours(
    training_data: Path, tmp_path: Path, reader: str, memory: Any, oracle_phases: bool
) -> None:
    tours = str(training_data / "tours" / "tours_iVLN.json")
    validation = ValidationConfig(
        splits=(SPLIT,),
        best="t_sr+t_spl",
        memory=memory,
        tours="" if memory == "tour" else tours,  # the protocol `tour` finds the data folder's file
        oracle_phases=oracle_phases,
    )
    experiment = replace(small_experiment(iterations=1, reader=reader), validation=validation)
    folder = train(experiment, training_data, tmp_path / "run")
    (log_line,) = (line for line in read_log(folder / "log.jsonl") if line["kind"] == "validation")
    config = EvaluationConfig(
        run=str(folder),
        data=str(training_data),
        split=SPLIT,
        tours=tours,
        memory="none" if reader == "none" else memory,
        oracle_phases=oracle_phases,
    )
    means = evaluate(config, tmp_path / "evaluated").means
    assert {"t_ndtw", "t_sr", "t_spl"} < means.keys()
    assert log_line[SPLIT] == pytest.approx(means, abs=1e-9)


def test_limit_shortens_tours(training_data: Path, tmp_path: Path) -> None:
    tours = [Tour("a", ("1", "2", "3", "4")), Tour("b", ("5", "6"))]
    assert subsample_tours(tours, 0) == subsample_tours(tours, 6) == tours
    assert [tour.episode_ids for tour in subsample_tours(tours, 3)] == [("1", "2"), ("5",)]
    one_each = [tour.episode_ids for tour in subsample_tours(tours, 1)]
    assert one_each == [("1",), ("5",)]  # at least one episode of every tour
    experiment = small_experiment(iterations=1)
    limited = ValidationConfig(splits=(SPLIT,), memory="tour", limit=3)
    experiment = replace(experiment, validation=limited)
    run = prepare(experiment, training_data, tmp_path, callback=TrainingCallback())
    run.run()
    (log_line,) = (line for line in read_log(tmp_path / "log.jsonl") if line["kind"] == "validation")
    assert log_line[SPLIT]["n"] == sum(len(tour) for tour in subsample_tours(run.tours[SPLIT], 3)) < 10


def test_every_process_scores_all_tours(run: TrainingRun, training_data: Path) -> None:
    tours = read_tours(training_data / "tours" / "tours_iVLN.json", SPLIT)

    gathered: list[Any] = []

    class SequentialGroup(ProcessGroup):
        """Ranks that run one after the other and gather the values of earlier ranks."""

        def all_gather(self, value: Any) -> list[Any]:
            gathered.append(value)
            return gathered

    def scores(process_group: ProcessGroup | None) -> dict[str, float]:
        return validate(
            run.trainer.navigator,
            run.atlas,
            run.validation_sets[SPLIT],
            "tour",
            task="r2r",
            encode=run.encode,
            max_steps=run.navigator_config.max_steps,
            process_group=process_group,
            tours=tours,
            oracle_phases=True,
        )

    with pytest.raises(KeyError):  # the trajectories of rank 1 are missing
        scores(SequentialGroup(0, 2))
    assert scores(SequentialGroup(1, 2)) == scores(None)
