"""Learning: the steps of known walks at once, a whole iteration, and two processes, against what is obvious.

The small recipe with memory on the small embedded world. Where two ways are compared nothing is dropped, so
that both are seen to compute the same.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.measure import Found, Ratio, Result, both_sides, seconds
from benchmarks.obvious import Obvious
from esceme.agents import HAMT, HamtConfig
from esceme.checkpoints import SWITCHES
from esceme.config import Experiment, with_settings
from esceme.learning import Completeness, Course, Together, Trainer, TrainingMemory, Watch
from esceme.learning.lessons import Decide, Told, follow, relive, walk_again
from esceme.learning.losses import imitation
from esceme.learning.trainer import Stream
from esceme.memory import CandidateEnhancing
from esceme.navigator import Navigator
from esceme.recipes import RECIPES
from esceme.synth import Order, embedded_world
from esceme.tasks.catalogue import TASKS
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.training import prepare
from esceme.walking import Encode, by_time
from esceme.world import ArrayFeatures, Atlas, read_scenes
from esceme.world.geometry import VIEWS

RECIPE = "r2r-small-esceme"
CERTAIN = {"agent.dropout": "0", "agent.head_dropout": "0", "agent.critic_dropout": "0"}
AT_REST = {**CERTAIN, "learning_rate": "1e-12"}
"""Weights stay as they are: of tiny differences between two sides none grows."""
ALIKE = 1e-4
ROUNDS, WARM_UP, MEASURED = 2, 2, 6
"""How often a time is taken, after how many iterations, and of how many."""
WIDTH, WALKS, IDS = 768, 2, 50
"""At the paper's size: of features, of a batch, of an instruction."""
T = TypeVar("T")


def run(data: Path | None) -> Iterator[Result]:
    """Teacher-forced rollouts, a whole iteration, two processes."""
    torch.set_num_threads(1)
    world = embedded_world(Order("small"))
    yield teacher_forced(world)
    yield at_paper_size(world)
    yield whole_iteration(world)
    yield from two_processes(world)


def small(**settings: str) -> Experiment:
    """The small recipe with memory, not validated."""
    return with_settings(RECIPES[RECIPE], {"splits": "", **settings})


def enrol(experiment: Experiment, world: Path, together: Together | None = None) -> Course:
    """A course ready to run, with nothing to be read or looked up for the first time but memories."""
    course = prepare(experiment, world, Path("nowhere"), watch=Watch(), together=together)
    course.atlas.panorama_features(np.arange(len(course.atlas)))
    nn.init.normal_(course.trainer.navigator.reader.second.weight, std=0.02)  # which begins as zeros
    return course


def batches(trainer: Trainer, iteration: int) -> tuple[list[Episode], list[Episode]]:
    """Whom an iteration imitates, and whose walks it samples."""
    streams, size = trainer._streams, trainer.training.batch
    turn, number = divmod(iteration, len(streams))
    return streams[number].batch(2 * turn, size), streams[number].batch(2 * turn + 1, size)


# -- known walks: all steps at once against step by step ---------------------------------------------------


class Lesson(NamedTuple):
    """Walks that are known, and who learns from them."""

    navigator: Navigator
    atlas: Atlas
    memory: TrainingMemory
    told: Told
    encode: Encode

    @property
    def size(self) -> str:
        """In words."""
        return f"{len(self.told.walks)} walks, {len(self.told.labels)} decisions"

    def learn(self, decide: Decide) -> Tensor:
        """Forward and backward; the logits."""
        self.memory.begin([walk.episode for walk in self.told.walks], np.random.default_rng(0))
        self.navigator.zero_grad()
        logits = decide(self.navigator, self.atlas, self.told, self.memory, encode=self.encode).logits
        imitation(logits, self.told.labels).backward()
        return logits.detach()

    def difference(self) -> float:
        """By how much logits differ between the two ways, asserted to be little; memory is empty before."""
        found = []
        for decide in (relive, walk_again):
            self.memory.bank.forget()
            found.append(self.learn(decide))
        at_once, in_turn = found
        finite = at_once.isfinite()
        assert torch.equal(finite, in_turn.isfinite()), "the two ways have other choices"
        furthest = float((at_once[finite] - in_turn[finite]).abs().max())
        assert furthest < ALIKE, f"logits differ by {furthest}"
        return furthest


def teacher_forced(world: Path) -> Ratio:
    """Reference paths, forward and backward, of a batch of the small recipe."""
    course = enrol(small(**CERTAIN), world)
    navigator, memory = course.trainer.navigator.train(), course.trainer.memory
    assert memory is not None
    imitated, _ = batches(course.trainer, 0)
    told = follow(course.atlas, imitated, by_time(course.atlas), max_steps=course.setup.max_steps)
    lesson = Lesson(navigator, course.atlas, memory, told, course.encode)
    furthest = lesson.difference()
    slow, fast = both_sides(lambda: lesson.learn(walk_again), lambda: lesson.learn(relive), ROUNDS)
    said = f"what each step has of its own: products and normalisations; logits alike within {furthest:.0e}"
    return Ratio(f"teacher-forced rollout, forward and backward ({lesson.size})", slow, fast, 2, said)


def at_paper_size(world: Path) -> Found:
    """The same with the paper's R2R network, where text attends to vision at each step."""
    lesson = paper_lesson("r2r", world)
    furthest = lesson.difference()
    slow, fast = (seconds(lambda decide=decide: lesson.learn(decide)) for decide in (walk_again, relive))
    said = f"the same products, at full speed on both sides; logits alike within {furthest:.0e}"
    times = f"{slow / fast:.2f}x ({fast:.2f} s against {slow:.2f} s)"
    return Found(f"the same with the paper's network ({lesson.size})", times, said)


def paper_lesson(task: str, world: Path) -> Lesson:
    """A few walks of a task; network, features and instructions are drawn."""
    folder, rng = DataFolder(world), np.random.default_rng(0)
    episodes = Stream(list(TASKS[task].read(folder.require(task, "train"))), seed=0).batch(0, WALKS)
    graphs = read_scenes(folder.connectivity, {episode.scene_id for episode in episodes})
    keys = [f"{scene}_{name}" for scene, graph in graphs.items() for name in graph.viewpoints]
    features = rng.standard_normal((len(keys), VIEWS, WIDTH), np.float32)
    atlas = Atlas(graphs.values(), ArrayFeatures(keys, features, source="drawn"))
    certain = {"dropout": 0.0, "head_dropout": 0.0, "critic_dropout": 0.0, "initial_std": 0.04}
    torch.manual_seed(0)
    config = HamtConfig(**{**SWITCHES[task], **certain})
    navigator = Navigator(HAMT(config), CandidateEnhancing(), feature_dropout=0.0).train()
    memory = TrainingMemory(atlas, navigator.reader, Completeness())
    ids = {each.episode_id: rng.integers(1, config.vocabulary, IDS).tolist() for each in episodes}
    told = follow(atlas, episodes, by_time(atlas), max_steps=TASKS[task].max_steps)
    return Lesson(navigator, atlas, memory, told, lambda episode: ids[episode.episode_id])


# -- a whole iteration against an obvious one --------------------------------------------------------------


def whole_iteration(world: Path) -> Ratio:
    """Imitation and A2C, the memory on, weights moved."""
    experiment = small(method="imitation+a2c", **AT_REST)
    course = enrol(experiment, world)
    trainer, obvious = course.trainer, obvious_of(course, experiment)
    times, furthest = list[tuple[float, float]](), 0.0
    for iteration in range(WARM_UP + MEASURED):
        sides = [both_iterate(trainer, obvious, iteration) for _ in range(ROUNDS)]
        furthest = max(furthest, *(each.difference for each in sides))
        if iteration >= WARM_UP:
            times.append((min(each.obvious for each in sides), min(each.ours for each in sides)))
    slow, fast = (sum(each) / len(times) for each in zip(*times, strict=True))
    size = trainer.training.batch
    said = f"propagating back; losses alike within {furthest:.0e}"
    return Ratio(f"a whole iteration, imitation + A2C (2 x {size} walks)", slow, fast, 2, said)


def obvious_of(course: Course, experiment: Experiment) -> Obvious:
    """The obvious side, with the same weights and settings as a course."""
    return Obvious(
        deepcopy(course.trainer.navigator),
        course.atlas,
        experiment.training,
        encode=course.encode,
        max_steps=experiment.max_steps,
        seed=experiment.seed,
    )


class Sides(NamedTuple):
    """Seconds of the same iteration on both sides, and by how much their losses differ."""

    obvious: float
    ours: float
    difference: float


def both_iterate(trainer: Trainer, obvious: Obvious, iteration: int) -> Sides:
    """The same iteration on both sides; losses and the gradient's norm are asserted to be alike."""
    begin = time.process_time()
    told = obvious.iterate(iteration, *batches(trainer, iteration))
    middle = time.process_time()
    said = trainer.iterate(iteration)
    end = time.process_time()
    apart = {name: abs(value - said[name]) / max(1.0, abs(said[name])) for name, value in told.items()}
    name = max(apart, key=apart.__getitem__)
    assert apart[name] < ALIKE, f"iteration {iteration}: '{name}' is {told[name]} and {said[name]}"
    return Sides(middle - begin, end - middle, apart[name])


# -- two processes against one -----------------------------------------------------------------------------


class Spent(NamedTuple):
    """Seconds of an iteration by the clock on the wall."""

    whole: float
    waiting: float
    """Of these: for the other process to come as far."""
    exchanging: float
    """Of these: with the other process."""


@dataclass(frozen=True)
class Clocked(Together):
    """Processes that take the time they spend on each other, waiting before they exchange anything."""

    waited: list[float] = field(default_factory=list)
    exchanged: list[float] = field(default_factory=list)

    def sums(self, values: Sequence[float], device: torch.device | str = "cpu") -> list[float]:
        """Each of the values, summed over processes."""
        with self._clock():
            return super().sums(values, device)

    def gather(self, thing: T) -> list[T]:
        """What each process brings."""
        with self._clock():
            return super().gather(thing)

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum gradients over processes."""
        with self._clock():
            super().add_gradients(parameters)

    def spent(self, whole: float) -> Spent:
        """What an iteration took that has just ended; the next one begins."""
        told = Spent(whole, sum(self.waited), sum(self.exchanged))
        self.waited.clear()
        self.exchanged.clear()
        return told

    @contextmanager
    def _clock(self) -> Iterator[None]:
        begin = time.perf_counter()
        if self.size > 1:
            dist.barrier()
        middle = time.perf_counter()
        yield
        self.waited.append(middle - begin)
        self.exchanged.append(time.perf_counter() - middle)


def two_processes(world: Path) -> Iterator[Result]:
    """Imitation, and imitation with A2C: the same batch by one process and by two, each of one thread."""
    experiments = [small(method=method) for method in ("imitation", "imitation+a2c")]
    rounds = [(in_company(1, experiments, world), in_company(2, experiments, world)) for _ in range(ROUNDS)]
    for number, experiment in enumerate(experiments):
        alone, both = (best([each[side][number] for each in rounds]) for side in range(2))
        method, batch = experiment.training.method, experiment.training.batch
        name = f"an iteration of {method} (batch {batch}) by two processes against one, by the clock"
        if method == "imitation":
            yield Ratio(name, alone.whole, both.whole, 1.6, lost(alone, both))
        else:
            times = f"{alone.whole / both.whole:.2f}x ({both.whole:.3f} s against {alone.whole:.3f} s)"
            yield Found(name, times, lost(alone, both))


def lost(alone: Spent, both: Spent) -> str:
    """Why it is not twice as fast, in words."""
    waiting, exchanging = (100 * each / both.whole for each in (both.waiting, both.exchanging))
    own = (both.whole - both.waiting - both.exchanging) / alone.whole
    return (
        f"half a batch takes {own:.2f} of the time of a whole one; {waiting:.0f} % waiting for the one with "
        f"longer walks, {exchanging:.0f} % exchanging"
    )


def best(rounds: Sequence[Sequence[Spent]]) -> Spent:
    """The mean over iterations, each as it was in its quickest round."""
    quickest = [min(each, key=lambda spent: spent.whole) for each in zip(*rounds, strict=True)]
    return Spent(*(sum(each) / len(quickest) for each in zip(*quickest, strict=True)))


def in_company(size: int, experiments: Sequence[Experiment], world: Path) -> list[list[Spent]]:
    """What the iterations of each experiment took in so many processes: the mean over processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ProcessPoolExecutor(size, get_context("spawn")) as pool:
        started = [pool.submit(learn, rank, size, port, experiments, world) for rank in range(size)]
        told = [each.result() for each in started]
    return [
        [Spent(*np.mean(ranks, axis=0).tolist()) for ranks in zip(*of_experiment, strict=True)]
        for of_experiment in zip(*told, strict=True)
    ]


def learn(
    rank: int, size: int, port: int, experiments: Sequence[Experiment], world: Path
) -> list[list[Spent]]:
    """What the iterations of each experiment take; for a process of its own."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    together = Clocked.join()
    assert isinstance(together, Clocked)
    found = []
    for experiment in experiments:
        trainer = enrol(experiment, world, together).trainer
        lived = [iterate(trainer, together, iteration) for iteration in range(WARM_UP + MEASURED)]
        found.append(lived[WARM_UP:])
    together.leave()
    return found


def iterate(trainer: Trainer, together: Clocked, iteration: int) -> Spent:
    """What one iteration takes, begun by all together."""
    together.gather(None)
    together.spent(0.0)
    begin = time.perf_counter()
    trainer.iterate(iteration)
    return together.spent(time.perf_counter() - begin)
