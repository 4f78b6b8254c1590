"""Training: forward passes over demonstrations, a whole iteration, and two processes.

All use the small recipe with memory on the small embedded world. Both sides are asserted to compute the same
without dropout; times are measured with the recipe's dropout.
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

from benchmarks.baseline_trainer import BaselineTrainer
from benchmarks.measure import Measurement, Ratio, Result, both_sides
from benchmarks.multi_process import best_times, explain_loss, measure_training
from esceme.agents import HAMT, HamtConfig
from esceme.config import Experiment
from esceme.learning import MemoryDropout, Trainer, TrainingCallback, TrainingMemory, TrainingRun
from esceme.learning.rollouts import (
    Demonstrations,
    forward_demonstrations,
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
from esceme.trajectory import reference_path_teacher_by_step
from esceme.world import ArrayFeatures, Atlas, read_scenes
from esceme.world.geometry import VIEWS

RECIPE = "r2r-small-esceme"
NO_DROPOUT = {"dropout": 0.0, "head_dropout": 0.0, "critic_dropout": 0.0}
FIXED_WEIGHTS: dict[str, Any] = {"method": "imitation+a2c", "learning_rate": 1e-12}
"""Weights hardly change: differences do not grow, and rollouts have the same length in every round."""
TOLERANCE = 1e-4
NUM_ROUNDS, NUM_WARMUP, NUM_MEASURED = 3, 2, 4
"""Rounds, and iterations per round that are not measured and that are."""
SMALLER_BATCHES = (8, 4)
"""Batch size of the paper, and of its script for CVDN."""
PAPER_WIDTH, PAPER_BATCH, PAPER_TOKENS = 768, 2, 50
"""Width of features, batch size and length of instructions with the paper's network."""
LARGER_BATCH = 64
"""Batch size of the small recipe for real scenes."""
WIDE_AGENT = {
    "hidden": PAPER_WIDTH,
    "heads": 12,
    "feed_forward": 3072,
    "text_layers": 9,
    "cross_layers": 4,
}


def run(data: Path | None) -> Iterator[Result]:
    """Run all benchmarks of training."""
    torch.set_num_threads(1)
    world = embedded_world(WorldConfig("small"))
    yield from demonstrations(world)
    yield paper_network(world)
    yield whole_iteration(world)
    yield from two_processes(world)


def small_experiment(agent: Mapping[str, Any] | None = None, **training: Any) -> Experiment:
    """Return the small recipe with memory and without validation, with some settings changed."""
    recipe = RECIPES[RECIPE]
    return replace(
        recipe,
        navigator=replace(recipe.navigator, agent=replace(recipe.navigator.agent, **(agent or {}))),
        training=replace(recipe.training, **training),
        validation=replace(recipe.validation, splits=()),
    )


def prepare_run(experiment: Experiment, world: Path) -> TrainingRun:
    """Prepare a training run with all features loaded."""
    run = prepare(experiment, world, Path("unused"), callback=TrainingCallback())
    run.atlas.panorama_features(np.arange(len(run.atlas)))
    last_layer = run.trainer.navigator.reader.second.weight  # initialised with zeros
    nn.init.normal_(last_layer, std=0.02, generator=torch.Generator().manual_seed(0))
    return run


def batches(trainer: Trainer, iteration: int) -> tuple[list[Episode], list[Episode]]:
    """Return the batches of imitation and of sampled rollouts of an iteration."""
    streams, size = trainer._streams, trainer.config.batch
    round_index, stream = divmod(iteration, len(streams))
    return streams[stream].batch(2 * round_index, size), streams[stream].batch(2 * round_index + 1, size)


# -- demonstrations: all steps at once against step by step ------------------------------------------------


class Comparison(NamedTuple):
    """Seconds of the same work on both sides, and the largest difference of their results."""

    baseline: float
    ours: float
    difference: float


class Imitation(NamedTuple):
    """Imitation of fixed demonstrations by a navigator."""

    navigator: Navigator
    atlas: Atlas
    memory: TrainingMemory
    demonstrations: Demonstrations
    encode: InstructionEncoder

    @property
    def size(self) -> str:
        """Number of trajectories and steps, for a table."""
        return (
            f"{len(self.demonstrations.trajectories)} trajectories, {len(self.demonstrations.labels)} steps"
        )

    def forward_backward(self, *, stepwise: bool) -> Tensor:
        """Run a forward and a backward pass, step by step or at once; return the logits."""
        episodes = [trajectory.episode for trajectory in self.demonstrations.trajectories]
        self.memory.begin_rollout(episodes, np.random.default_rng(0))
        self.navigator.zero_grad()
        logits = forward_demonstrations(
            self.navigator,
            self.atlas,
            self.demonstrations,
            self.memory,
            encode=self.encode,
            stepwise=stepwise,
        ).logits
        functional.cross_entropy(logits, self.demonstrations.labels, reduction="sum").backward()
        return logits.detach()

    def compare(self) -> Comparison:
        """Run both sides once with an empty memory; assert that their logits agree."""
        times, results = [], []
        for stepwise in (False, True):
            self.memory.bank.forget()
            begin = time.process_time()
            results.append(self.forward_backward(stepwise=stepwise))
            times.append(time.process_time() - begin)
        at_once, by_step = results
        finite = by_step.isfinite()
        assert torch.equal(finite, at_once.isfinite()), "the two sides have different choices"
        difference = float((by_step[finite] - at_once[finite]).abs().max())
        assert difference < TOLERANCE, f"logits differ by {difference}"
        return Comparison(baseline=times[1], ours=times[0], difference=difference)

    def measure(self) -> tuple[float, float]:
        """Return seconds step by step, and at once."""
        return both_sides(
            lambda: self.forward_backward(stepwise=True),
            lambda: self.forward_backward(stepwise=False),
            NUM_ROUNDS,
        )


def demonstrations(world: Path) -> Iterator[Result]:
    """Measure reference paths, forward and backward, with the recipe's batch and smaller ones."""
    difference = imitation_of(prepare_run(small_experiment(NO_DROPOUT), world)).compare().difference
    run = prepare_run(small_experiment(), world)
    imitation = imitation_of(run)
    bound = f"matrix products and attention, the same on both sides; logits equal within {difference:.0e}"
    name = f"teacher-forced rollout, all steps at once against step by step ({imitation.size})"
    yield Ratio(name, *imitation.measure(), 2, bound)
    for batch in SMALLER_BATCHES:
        smaller = imitation_of(run, batch)
        slow, fast = smaller.measure()
        times = f"{slow / fast:.2f}x ({fast:.3f} s against {slow:.3f} s)"
        yield Measurement(
            f"the same with {smaller.size}", times, "the smaller a batch, the more a call costs"
        )


def imitation_of(run: TrainingRun, batch: int | None = None) -> Imitation:
    """Return the imitation of a run's first batch, or of a first batch of another size."""
    memory, atlas = run.trainer.memory, run.atlas
    assert memory is not None
    episodes = run.trainer._streams[0].batch(0, batch or run.trainer.config.batch)
    rollout = teacher_rollout(
        atlas, episodes, reference_path_teacher_by_step(atlas), max_steps=run.navigator_config.max_steps
    )
    return Imitation(run.trainer.navigator.train(), atlas, memory, rollout, run.encode)


def paper_network(world: Path) -> Measurement:
    """Measure the same with the paper's R2R network, where text attends to vision at every step."""
    imitation = paper_imitation("r2r", world)
    slow, fast, difference = imitation.compare()
    bound = f"matrix products at full speed on both sides; logits equal within {difference:.0e}"
    times = f"{slow / fast:.2f}x ({fast:.2f} s against {slow:.2f} s)"
    return Measurement(f"the same with the paper's network ({imitation.size})", times, bound)


def paper_imitation(task: str, world: Path) -> Imitation:
    """Return the imitation of a few episodes; weights, features and instructions are random."""
    folder, rng = DataFolder(world), np.random.default_rng(0)
    stream = EpisodeStream(list(TASKS[task].read(folder.require(task, "train"))), seed=0)
    episodes = stream.batch(0, PAPER_BATCH)
    graphs = read_scenes(folder.connectivity, {episode.scene_id for episode in episodes})
    keys = [f"{scene}_{name}" for scene, graph in graphs.items() for name in graph.viewpoints]
    features = rng.standard_normal((len(keys), VIEWS, PAPER_WIDTH), np.float32)
    atlas = Atlas(graphs.values(), ArrayFeatures(keys, features, source="random"))
    torch.manual_seed(0)
    config = HamtConfig(**{**TASKS[task].agent_settings, **NO_DROPOUT, "initial_std": 0.04})
    navigator = Navigator(HAMT(config), CandidateEnhancing(), feature_dropout=0.0).train()
    memory = TrainingMemory(atlas, navigator.reader, MemoryDropout())
    ids = {
        episode.episode_id: rng.integers(1, config.vocabulary, PAPER_TOKENS).tolist() for episode in episodes
    }
    rollout = teacher_rollout(
        atlas, episodes, reference_path_teacher_by_step(atlas), max_steps=TASKS[task].max_steps
    )
    return Imitation(navigator, atlas, memory, rollout, lambda episode: ids[episode.episode_id])


# -- a whole iteration against a baseline --------------------------------------------------------------


def whole_iteration(world: Path) -> Ratio:
    """Measure imitation and A2C with memory, including the optimizer step."""
    experiment = small_experiment(NO_DROPOUT, **FIXED_WEIGHTS)
    run = prepare_run(experiment, world)
    baseline, difference = build_baseline(run, experiment), 0.0
    for iteration in range(NUM_WARMUP):
        difference = max(difference, compare_iteration(run.trainer, baseline, iteration).difference)
    assert difference < TOLERANCE, f"losses differ by {difference}"
    slow, fast = seconds_of_iteration(small_experiment(**FIXED_WEIGHTS), world)
    bound = f"backpropagation, half of the time; losses equal within {difference:.0e}"
    size = experiment.training.batch
    return Ratio(f"a whole iteration, imitation + A2C ({size} episodes each)", slow, fast, 2, bound)


def seconds_of_iteration(experiment: Experiment, world: Path) -> tuple[float, float]:
    """Return the seconds of an iteration on both sides: the mean over iterations of the best round."""
    run = prepare_run(experiment, world)
    baseline, times = build_baseline(run, experiment), []
    for iteration in range(NUM_WARMUP + NUM_MEASURED):
        rounds = [compare_iteration(run.trainer, baseline, iteration) for _ in range(NUM_ROUNDS)]
        times.append((min(side.baseline for side in rounds), min(side.ours for side in rounds)))
    slow, fast = np.mean(times[NUM_WARMUP:], axis=0).tolist()
    return slow, fast


def build_baseline(run: TrainingRun, experiment: Experiment) -> BaselineTrainer:
    """Return the baseline implementation with a copy of the weights."""
    return BaselineTrainer(
        deepcopy(run.trainer.navigator),
        run.atlas,
        experiment.training,
        encode=run.encode,
        max_steps=experiment.navigator.max_steps,
        seed=experiment.seed,
    )


def compare_iteration(trainer: Trainer, baseline: BaselineTrainer, iteration: int) -> Comparison:
    """Run one iteration on both sides; compare losses and gradient norm."""
    begin = time.process_time()
    expected = baseline.iterate(iteration, *batches(trainer, iteration))
    middle = time.process_time()
    metrics = trainer.training_step(iteration)
    end = time.process_time()
    differences = (abs(value - metrics[name]) / max(1.0, abs(value)) for name, value in expected.items())
    return Comparison(middle - begin, end - middle, max(differences))


# -- two processes against one -----------------------------------------------------------------------------


def two_processes(world: Path) -> Iterator[Result]:
    """Measure the same batches with one process and with two, each of one thread."""
    experiments = [
        small_experiment(method="imitation"),
        small_experiment(method="imitation", batch=LARGER_BATCH),
        small_experiment(method="imitation+a2c"),
        small_experiment(WIDE_AGENT, method="imitation", batch=8),
    ]
    length = {"num_warmup": NUM_WARMUP, "num_measured": NUM_MEASURED}
    rounds = [
        [measure_training(size, experiments, world, **length) for size in (1, 2)] for _ in range(NUM_ROUNDS)
    ]
    for index, experiment in enumerate(experiments):
        single, double = (best_times([sizes[side][index] for sizes in rounds]) for side in range(2))
        method, batch = experiment.training.method, experiment.training.batch
        is_wide = experiment.navigator.agent.hidden == PAPER_WIDTH
        wide = ", a network as large as the paper's" if is_wide else ""
        name = f"an iteration of {method} (batch {batch}{wide}) by two processes against one, wall clock"
        if method == "imitation":
            yield Ratio(name, single.total, double.total, 1.6, explain_loss(single, double))
        else:
            times = f"{single.total / double.total:.2f}x ({double.total:.3f} s against {single.total:.3f} s)"
            yield Measurement(name, times, explain_loss(single, double))
