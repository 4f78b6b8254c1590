"""Learning: the steps of known walks at once, a whole iteration, and two processes, against what is obvious.

The small recipe with memory on the small embedded world. That both sides compute the same is asserted with
nothing dropped out; times are those of the recipe as it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.company import best, in_company, lost
from benchmarks.measure import Found, Ratio, Result, both_sides
from benchmarks.obvious import Obvious
from esceme.agents import HAMT, HamtConfig
from esceme.checkpoints import SWITCHES
from esceme.config import Experiment
from esceme.learning import MemoryDropout, Trainer, TrainingCallback, TrainingMemory, TrainingRun
from esceme.learning.rollouts import (
    Demonstrations,
    ForwardFunction,
    forward_all,
    forward_stepwise,
    teacher_rollout,
)
from esceme.learning.trainer import EpisodeStream
from esceme.memory import CandidateEnhancing
from esceme.navigator import Navigator
from esceme.recipes import RECIPES
from esceme.synth import WorldConfig, embedded_world
from esceme.tasks.catalogue import TASKS
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.split import InstructionEncoder
from esceme.training import prepare
from esceme.trajectory import teacher_by_step
from esceme.world import ArrayFeatures, Atlas, read_scenes
from esceme.world.geometry import VIEWS

RECIPE = "r2r-small-esceme"
CERTAIN = {"dropout": 0.0, "head_dropout": 0.0, "critic_dropout": 0.0}
AT_REST: dict[str, Any] = {"method": "imitation+a2c", "learning_rate": 1e-12}
"""Weights stay as they are: no difference between two sides grows, and walks are as long in every round."""
ALIKE = 1e-4
ROUNDS, WARM_UP, MEASURED = 3, 2, 4
"""How often a time is taken, after how many iterations, and of how many."""
FEWER = (8, 4)
"""Smaller batches: the paper's, and that of its script for CVDN."""
WIDTH, WALKS, IDS = 768, 2, 50
"""At the paper's size: of features, of a batch, of an instruction."""
TWICE = 64
"""The batch of the small recipe for real scenes."""
WIDE = {
    "hidden": WIDTH,
    "heads": 12,
    "feed_forward": 3072,
    "text_layers": 9,
    "cross_layers": 4,
}


def run(data: Path | None) -> Iterator[Result]:
    """Teacher-forced rollouts, a whole iteration, two processes."""
    torch.set_num_threads(1)
    world = embedded_world(WorldConfig("small"))
    yield from teacher_forced(world)
    yield at_paper_size(world)
    yield whole_iteration(world)
    yield from two_processes(world)


def small(agent: Mapping[str, Any] | None = None, **training: Any) -> Experiment:
    """The small recipe with memory and without validation; with other values of its agent and training."""
    recipe = RECIPES[RECIPE]
    return replace(
        recipe,
        navigator=replace(recipe.navigator, agent=replace(recipe.navigator.agent, **(agent or {}))),
        training=replace(recipe.training, **training),
        validation=replace(recipe.validation, splits=()),
    )


def enrol(experiment: Experiment, world: Path) -> TrainingRun:
    """A course ready to run, with nothing to be read or looked up for the first time but memories."""
    course = prepare(experiment, world, Path("nowhere"), callback=TrainingCallback())
    course.atlas.panorama_features(np.arange(len(course.atlas)))
    last = course.trainer.navigator.reader.second.weight  # which begins as zeros
    nn.init.normal_(last, std=0.02, generator=torch.Generator().manual_seed(0))
    return course


def batches(trainer: Trainer, iteration: int) -> tuple[list[Episode], list[Episode]]:
    """Whom an iteration imitates, and whose walks it samples."""
    streams, size = trainer._streams, trainer.config.batch
    turn, number = divmod(iteration, len(streams))
    return streams[number].batch(2 * turn, size), streams[number].batch(2 * turn + 1, size)


# -- known walks: all steps at once against step by step ---------------------------------------------------


class Sides(NamedTuple):
    """Seconds of the same work on both sides, and by how much their outcomes differ."""

    obvious: float
    ours: float
    difference: float


class Lesson(NamedTuple):
    """Walks that are known, and who learns from them."""

    navigator: Navigator
    atlas: Atlas
    memory: TrainingMemory
    told: Demonstrations
    encode: InstructionEncoder

    @property
    def size(self) -> str:
        """In words."""
        return f"{len(self.told.trajectories)} walks, {len(self.told.labels)} decisions"

    def learn(self, decide: ForwardFunction) -> Tensor:
        """Forward and backward; the logits."""
        self.memory.begin_rollout([walk.episode for walk in self.told.trajectories], np.random.default_rng(0))
        self.navigator.zero_grad()
        logits = decide(self.navigator, self.atlas, self.told, self.memory, encode=self.encode).logits
        functional.cross_entropy(logits, self.told.labels, reduction="sum").backward()
        return logits.detach()

    def compare(self) -> Sides:
        """Both ways once, beginning with an empty memory; logits are asserted to be alike."""
        times, found = [], []
        for decide in (forward_all, forward_stepwise):
            self.memory.bank.forget()
            begin = time.process_time()
            found.append(self.learn(decide))
            times.append(time.process_time() - begin)
        at_once, in_turn = found
        finite = in_turn.isfinite()
        assert torch.equal(finite, at_once.isfinite()), "the two ways have other choices"
        furthest = float((in_turn[finite] - at_once[finite]).abs().max())
        assert furthest < ALIKE, f"logits differ by {furthest}"
        return Sides(obvious=times[1], ours=times[0], difference=furthest)

    def measure(self) -> tuple[float, float]:
        """Seconds step by step, and at once."""
        return both_sides(lambda: self.learn(forward_stepwise), lambda: self.learn(forward_all), ROUNDS)


def teacher_forced(world: Path) -> Iterator[Result]:
    """Reference paths, forward and backward, with the small recipe: its batch, and smaller ones."""
    furthest = known_walks(enrol(small(CERTAIN), world)).compare().difference
    course = enrol(small(), world)
    lesson = known_walks(course)
    said = f"matrix products and attention, the same on both sides; logits alike within {furthest:.0e}"
    name = f"teacher-forced rollout, all steps at once against step by step ({lesson.size})"
    yield Ratio(name, *lesson.measure(), 2, said)
    for batch in FEWER:
        fewer = known_walks(course, batch)
        slow, fast = fewer.measure()
        times = f"{slow / fast:.2f}x ({fast:.3f} s against {slow:.3f} s)"
        yield Found(f"the same with {fewer.size}", times, "the smaller a batch, the more a call costs")


def known_walks(course: TrainingRun, batch: int | None = None) -> Lesson:
    """The reference paths of a course's first batch, or of one of another size."""
    memory, atlas = course.trainer.memory, course.atlas
    assert memory is not None
    episodes = course.trainer._streams[0].batch(0, batch or course.trainer.config.batch)
    told = teacher_rollout(
        atlas, episodes, teacher_by_step(atlas), max_steps=course.navigator_config.max_steps
    )
    return Lesson(course.trainer.navigator.train(), atlas, memory, told, course.encode)


def at_paper_size(world: Path) -> Found:
    """The same with the paper's R2R network, where text attends to vision at each step."""
    lesson = paper_lesson("r2r", world)
    slow, fast, furthest = lesson.compare()
    said = f"matrix products at full speed on both sides; logits alike within {furthest:.0e}"
    times = f"{slow / fast:.2f}x ({fast:.2f} s against {slow:.2f} s)"
    return Found(f"the same with the paper's network ({lesson.size})", times, said)


def paper_lesson(task: str, world: Path) -> Lesson:
    """A few walks of a task; network, features and instructions are drawn."""
    folder, rng = DataFolder(world), np.random.default_rng(0)
    episodes = EpisodeStream(list(TASKS[task].read(folder.require(task, "train"))), seed=0).batch(0, WALKS)
    graphs = read_scenes(folder.connectivity, {episode.scene_id for episode in episodes})
    keys = [f"{scene}_{name}" for scene, graph in graphs.items() for name in graph.viewpoints]
    features = rng.standard_normal((len(keys), VIEWS, WIDTH), np.float32)
    atlas = Atlas(graphs.values(), ArrayFeatures(keys, features, source="drawn"))
    certain = {"dropout": 0.0, "head_dropout": 0.0, "critic_dropout": 0.0, "initial_std": 0.04}
    torch.manual_seed(0)
    config = HamtConfig(**{**SWITCHES.get(task, {}), **certain})
    navigator = Navigator(HAMT(config), CandidateEnhancing(), feature_dropout=0.0).train()
    memory = TrainingMemory(atlas, navigator.reader, MemoryDropout())
    ids = {each.episode_id: rng.integers(1, config.vocabulary, IDS).tolist() for each in episodes}
    told = teacher_rollout(atlas, episodes, teacher_by_step(atlas), max_steps=TASKS[task].max_steps)
    return Lesson(navigator, atlas, memory, told, lambda episode: ids[episode.episode_id])


# -- a whole iteration against an obvious one --------------------------------------------------------------


def whole_iteration(world: Path) -> Ratio:
    """Imitation and A2C, the memory on, weights moved."""
    experiment = small(CERTAIN, **AT_REST)
    course = enrol(experiment, world)
    obvious, furthest = obvious_side(course, experiment), 0.0
    for iteration in range(WARM_UP):
        furthest = max(furthest, both_iterate(course.trainer, obvious, iteration).difference)
    assert furthest < ALIKE, f"losses differ by {furthest}"
    slow, fast = seconds_of_iteration(small(**AT_REST), world)
    said = f"propagating back, half of the time; losses alike within {furthest:.0e}"
    size = experiment.training.batch
    return Ratio(f"a whole iteration, imitation + A2C ({size} walks each)", slow, fast, 2, said)


def seconds_of_iteration(experiment: Experiment, world: Path) -> tuple[float, float]:
    """What an iteration takes on both sides: the mean of several, each in its quickest round."""
    course = enrol(experiment, world)
    obvious, times = obvious_side(course, experiment), []
    for iteration in range(WARM_UP + MEASURED):
        sides = [both_iterate(course.trainer, obvious, iteration) for _ in range(ROUNDS)]
        times.append((min(each.obvious for each in sides), min(each.ours for each in sides)))
    slow, fast = np.mean(times[WARM_UP:], axis=0).tolist()
    return slow, fast


def obvious_side(course: TrainingRun, experiment: Experiment) -> Obvious:
    """Who learns in the obvious way, beginning with the same weights."""
    return Obvious(
        deepcopy(course.trainer.navigator),
        course.atlas,
        experiment.training,
        encode=course.encode,
        max_steps=experiment.navigator.max_steps,
        seed=experiment.seed,
    )


def both_iterate(trainer: Trainer, obvious: Obvious, iteration: int) -> Sides:
    """The same iteration on both sides, compared by losses and the gradient's norm."""
    begin = time.process_time()
    told = obvious.iterate(iteration, *batches(trainer, iteration))
    middle = time.process_time()
    said = trainer.training_step(iteration)
    end = time.process_time()
    apart = (abs(value - said[name]) / max(1.0, abs(value)) for name, value in told.items())
    return Sides(middle - begin, end - middle, max(apart))


# -- two processes against one -----------------------------------------------------------------------------


def two_processes(world: Path) -> Iterator[Result]:
    """The same batches by one process and by two, each of one thread."""
    experiments = [
        small(method="imitation"),
        small(method="imitation", batch=TWICE),
        small(method="imitation+a2c"),
        small(WIDE, method="imitation", batch=8),
    ]
    length = {"warm_up": WARM_UP, "measured": MEASURED}
    rounds = [[in_company(size, experiments, world, **length) for size in (1, 2)] for _ in range(ROUNDS)]
    for number, experiment in enumerate(experiments):
        alone, both = (best([each[side][number] for each in rounds]) for side in range(2))
        method, batch = experiment.training.method, experiment.training.batch
        wide = ", a network as large as the paper's" if experiment.navigator.agent.hidden == WIDTH else ""
        name = f"an iteration of {method} (batch {batch}{wide}) by two processes against one, by the clock"
        if method == "imitation":
            yield Ratio(name, alone.whole, both.whole, 1.6, lost(alone, both))
        else:
            times = f"{alone.whole / both.whole:.2f}x ({both.whole:.3f} s against {alone.whole:.3f} s)"
            yield Found(name, times, lost(alone, both))
