"""The story of the demo: make the world, train both agents, let them walk, score, draw and tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from esceme.config import Experiment
from esceme.demo.crew import Hear, Job, News, Voice, side_by_side
from esceme.demo.report import write_report
from esceme.demo.scoring import Scoring, verdict, written
from esceme.demo.wish import AGENTS, SPLITS, Evaluation, Wish, share_out
from esceme.evaluation import Result, evaluate, read_result
from esceme.learning import Watch
from esceme.synth.dataset import Order, embedded_world
from esceme.synth.dataset import Watch as Houses
from esceme.training import require_same, train

PROCESSES = 2


@contextmanager
def unheard() -> Iterator[Hear]:
    """Nobody who listens to jobs."""
    yield lambda news: None


Watching = Callable[[], AbstractContextManager[Hear]]
"""Someone who listens to jobs, from the first to the last."""


@dataclass(frozen=True)
class Outcome:
    """What was seen, and where it lies."""

    wish: Wish
    world: Path
    iterations: int
    begun_after: Mapping[str, int]
    """Agent -> how many of its iterations were done by an earlier demo that was interrupted."""
    seconds: Mapping[str, float]
    scorings: Mapping[str, Scoring]
    """By split."""
    said: str
    """What was just seen, in a sentence."""
    advice: list[str]
    """Commands to try next."""
    report: Path
    figures: Mapping[str, Path]


def show(
    wish: Wish, *, houses: Houses = lambda numbers, label: numbers, watching: Watching = unheard
) -> Outcome:
    """Do all of it, or what an interrupted demo in the same folder has not done; the end is the same.

    Raises `ConfigError` where the folder holds a demo of other settings, before anything is made.
    """
    experiments, clock = wish.experiments(), _Clock()
    for agent, experiment in experiments.items():
        require_same(experiment, wish.run(agent))
    with clock.timing("world"):
        world = embedded_world(Order(wish.size), houses=...) if False else _world(wish, houses)
    with clock.timing("training"):
        begun = _train(wish, experiments, world, watching)
    with clock.timing("evaluation"):
        results = _evaluate(wish, world, watching)
    scorings = {split: Scoring.of(split, results[split]) for split in SPLITS}
    ...
