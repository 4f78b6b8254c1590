"""Validations in the middle of training: under a declared memory, and so that nobody notices later."""

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
from fixtures.toy_training import SPLIT, TAUGHT, bit_equal, small_experiment

pytestmark = pytest.mark.long

PROTOCOLS = ("cold", "two-pass", "episodic", "masked", "oracle")


@pytest.fixture
def course(training_data: Path, tmp_path: Path) -> TrainingRun:
    """After two iterations, so that training remembers something."""
    course = prepare(small_experiment(), training_data, tmp_path, callback=TrainingCallback())
    for iteration in range(2):
        course.trainer.training_step(iteration)
    return course


def judge(course: TrainingRun, memory: str) -> dict[str, float]:
    """The scores of all episodes."""
    training = course.trainer.memory
    assert training is not None
    return validate(
        course.trainer.navigator,
        course.atlas,
        course.validation_sets[SPLIT],
        memory,
        task="r2r",
        encode=course.encode,
        max_steps=5,
        leaking=training.bank if memory == "leaking" else None,
    )


def remembered(course: TrainingRun) -> set[str]:
    """The scenes that training remembers something of."""
    assert course.trainer.memory is not None
    return set(course.trainer.memory.bank.scenes)


@pytest.mark.parametrize("memory", PROTOCOLS)
def test_validating_twice_gives_the_same_scores_and_leaves_the_memory_of_training_alone(
    course: TrainingRun, memory: str
) -> None:
    before = deepcopy(course.trainer.state_dict())
    assert remembered(course) == set(TAUGHT)
    assert judge(course, memory) == judge(course, memory)
    assert bit_equal(course.trainer.state_dict(), before)
    assert course.trainer.navigator.training


def test_protocols_show_an_agent_different_memories(course: TrainingRun) -> None:
    scores = {memory: judge(course, memory) for memory in PROTOCOLS}
    assert len({tuple(each.values()) for each in scores.values()}) >= 3


def test_what_leaks_stays_in_the_memory_of_training_and_is_there_the_next_time(course: TrainingRun) -> None:
    first = judge(course, "leaking")
    assert remembered(course) > set(TAUGHT)
    lives = visited(course)
    second = judge(course, "leaking")
    assert visited(course) >= lives
    assert first == judge(course, "cold")  # training has not been in these houses
    assert second != first
    course.trainer.training_step(2)  # what was remembered without gradients can be learned with


def visited(course: TrainingRun) -> set[int]:
    assert course.trainer.memory is not None
    return set(course.trainer.memory.bank.visited.nonzero().flatten().tolist())


def test_training_goes_on_the_same_whether_it_was_validated_or_not(
    training_data: Path, tmp_path: Path
) -> None:
    often = train(small_experiment(every=1), training_data, tmp_path / "often")
    never = train(small_experiment(splits=()), training_data, tmp_path / "never")
    assert (often / "weights.safetensors").read_bytes() == (never / "weights.safetensors").read_bytes()
    leaking = train(small_experiment(every=1, memory="leaking"), training_data, tmp_path / "leaking")
    assert read_log(leaking / "log.jsonl") != read_log(often / "log.jsonl")


def test_an_agent_without_memory_is_validated_without(training_data: Path, tmp_path: Path) -> None:
    plan = small_experiment(iterations=1, reader="none", memory="two-pass")
    folder = train(plan, training_data, tmp_path)
    assert [line["kind"] for line in read_log(folder / "log.jsonl")] == ["train", "validation"]


# -- which weights are best --------------------------------------------------------------------------------


class Judged(TrainingCallback):
    """Keeps what validations said."""

    def __init__(self) -> None:
        self.told: list[tuple[int, float, bool]] = []

    def on_validation_end(
        self, iteration: int, scores: Mapping[str, Mapping[str, float]], *, is_best: bool
    ) -> None:
        said = scores[SPLIT]
        self.told.append((iteration, said["sr"] + said["spl"], is_best))


def test_the_best_weights_are_those_of_the_latest_of_the_best_validations(
    training_data: Path, tmp_path: Path
) -> None:
    callback = Judged()
    train(
        small_experiment(every=1, iterations=8, learning_rate=0.01),
        training_data,
        tmp_path / "whole",
        callback=callback,
    )
    reached = 0.0
    for _, score, best in callback.told:
        assert best == (score >= reached)
        reached = max(reached, score)
    scores = [score for _, score, _ in callback.told]
    assert len(set(scores)) > 1, "nothing to choose from"
    last = max(done for done, _, best in callback.told if best)
    assert scores[last - 1] == max(scores)
    until = train(
        small_experiment(every=1, iterations=last, learning_rate=0.01),
        training_data,
        tmp_path / "until",
        callback=TrainingCallback(),
    )
    best = tmp_path / "whole" / "best" / "weights.safetensors"
    assert best.read_bytes() == (until / "weights.safetensors").read_bytes()


def test_of_equal_scores_the_latest_wins(training_data: Path, tmp_path: Path) -> None:
    callback = Judged()
    folder = train(small_experiment(every=1, learning_rate=1e-9), training_data, tmp_path, callback=callback)
    assert len({score for _, score, _ in callback.told}) == 1
    assert all(best for _, _, best in callback.told)
    assert (folder / "best" / "weights.safetensors").read_bytes() == (
        folder / "weights.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(
    ("best", "expected"), [("sr+spl", 0.75), ("spl", 0.25), ("gp", 4.0), ("t_sr+t_spl", 0.375)]
)
def test_marks_are_what_their_names_say(best: Any, expected: float) -> None:
    scores = {"sr": 0.5, "spl": 0.25, "gp": 4.0, "t_sr": 0.25, "t_spl": 0.125}
    assert selection_score(scores, ValidationConfig(best=best, memory="tour")) == expected


def test_a_limit_spreads_over_the_split(course: TrainingRun) -> None:
    episodes = course.validation_sets[SPLIT]
    assert subsample_episodes(episodes, 0) == subsample_episodes(episodes, 100) == episodes
    some = subsample_episodes(episodes, 3)
    assert [episodes.index(each) for each in some] == [0, len(episodes) // 3, 2 * len(episodes) // 3]


def test_impossible_validations_are_refused() -> None:
    for wrong in (
        {"memory": "none"},
        {"memory": "warm"},
        {"oracle_phases": True},
        {"best": "t_sr+t_spl"},
        {"memory": "two-pass", "best": "t_sr+t_spl"},
        {"every": 0},
        {"limit": -1},
        {"best": "ne"},
        {"best_split": "test"},
    ):
        with pytest.raises(ConfigError):
            ValidationConfig(**wrong)  # type: ignore[arg-type]


def test_validation_scores_reverie_by_objects_as_evaluation_does(toy_root: Path, tmp_path: Path) -> None:
    data = copytree(toy_root, tmp_path / "data")
    file = data / "objects" / "reverie_objects.json.gz"
    visible = read_json(file, dict[str, list[Any]])
    everything = [record for records in visible.values() for record in records]
    encoded = msgspec.json.encode(dict.fromkeys(visible, everything))  # every target is visible everywhere
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
    ("reader", "asked", "lived"),
    [
        ("candidate-enhancing", {"memory": "tour"}, {"memory": "tour"}),
        (
            "candidate-enhancing",
            {"memory": "tour", "oracle_phases": True},
            {"memory": "tour", "oracle_phases": True},
        ),
        ("candidate-enhancing", {"memory": "cold", "tours": "{}"}, {"memory": "cold"}),
        ("none", {"memory": "tour"}, {"memory": "none"}),
    ],
    ids=["tour", "phases", "kept", "without"],
)
def test_a_validation_on_tours_says_what_an_evaluation_on_them_does(
    training_data: Path, tmp_path: Path, reader: str, asked: dict[str, Any], lived: dict[str, Any]
) -> None:
    tours = str(training_data / "tours" / "tours_iVLN.json")
    said = {name: tours if value == "{}" else value for name, value in asked.items()}
    plan = small_experiment(iterations=1, reader=reader)
    plan = replace(plan, validation=ValidationConfig(splits=(SPLIT,), best="t_sr+t_spl", **said))
    folder = train(plan, training_data, tmp_path / "run")
    (validated,) = (each for each in read_log(folder / "log.jsonl") if each["kind"] == "validation")
    wanted = EvaluationConfig(run=str(folder), data=str(training_data), split=SPLIT, tours=tours, **lived)
    means = evaluate(wanted, tmp_path / "evaluated").means
    assert {"t_ndtw", "t_sr", "t_spl"} < means.keys()
    assert validated[SPLIT] == pytest.approx(means, abs=1e-9)


def test_a_limit_takes_the_beginnings_of_tours(training_data: Path, tmp_path: Path) -> None:
    tours = [Tour("a", ("1", "2", "3", "4")), Tour("b", ("5", "6"))]
    assert subsample_tours(tours, 0) == subsample_tours(tours, 6) == tours
    assert [tour.episode_ids for tour in subsample_tours(tours, 3)] == [("1", "2"), ("5",)]
    assert [tour.episode_ids for tour in subsample_tours(tours, 1)] == [
        ("1",),
        ("5",),
    ]  # at least one of each
    plan = small_experiment(iterations=1)
    limited = ValidationConfig(splits=(SPLIT,), memory="tour", limit=3)
    course = prepare(replace(plan, validation=limited), training_data, tmp_path, callback=TrainingCallback())
    course.run()
    (validated,) = (each for each in read_log(tmp_path / "log.jsonl") if each["kind"] == "validation")
    assert validated[SPLIT]["n"] == sum(len(tour) for tour in subsample_tours(course.tours[SPLIT], 3)) < 10


def test_every_process_scores_all_tours(course: TrainingRun, training_data: Path) -> None:
    tours = read_tours(training_data / "tours" / "tours_iVLN.json", SPLIT)

    walked: list[Any] = []

    class Turns(ProcessGroup):
        """Processes that walk one after the other: the later ones know of those before."""

        def all_gather(self, value: Any) -> list[Any]:
            walked.append(value)
            return walked

    def scores(process_group: ProcessGroup | None) -> dict[str, float]:
        return validate(
            course.trainer.navigator,
            course.atlas,
            course.validation_sets[SPLIT],
            "tour",
            task="r2r",
            encode=course.encode,
            max_steps=course.navigator_config.max_steps,
            process_group=process_group,
            tours=tours,
            oracle_phases=True,
        )

    with pytest.raises(KeyError):  # what the other will have walked
        scores(Turns(0, 2))
    assert scores(Turns(1, 2)) == scores(None)
