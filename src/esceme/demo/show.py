"""The story of the demo: make the world, train both agents, let them walk, score, draw and tell."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean

from esceme.config import Experiment
from esceme.demo.crew import Hear, Job, News, Voice, side_by_side
from esceme.demo.outcome import Outcome
from esceme.demo.report import CALLED, UNSEEN, write_report
from esceme.demo.scoring import Scoring, written
from esceme.demo.walks import telling
from esceme.demo.wish import SPLITS, Evaluation, Wish, share_out
from esceme.errors import DataError
from esceme.evaluation import Result, evaluate, read_result
from esceme.learning import TrainingCallback
from esceme.synth.dataset import Watch as Houses
from esceme.synth.dataset import WorldConfig, embedded_world
from esceme.training import require_same, train

PROCESSES = 2
RECENT = 20
"""Iterations whose mean loss is told."""
Watching = Callable[[], AbstractContextManager[Hear]]
"""Someone who listens to jobs, from the first to the last."""


@contextmanager
def unheard() -> Iterator[Hear]:
    """Nobody listens."""
    yield lambda news: None


def show(
    wish: Wish, *, houses: Houses = lambda numbers, label: numbers, watching: Watching = unheard
) -> Outcome:
    """Do all of it, or what an interrupted demo in the same folder has not done; the end is the same.

    Raises `ConfigError` where the folder holds a demo with other settings, before anything is made.
    """
    experiments, seconds = wish.experiments(), dict[str, float]()
    _prepare(wish, experiments)
    with _timing("world", seconds):
        world = embedded_world(WorldConfig(wish.size), watch=houses)
    with _timing("training", seconds), watching() as hear:
        begun = _train(wish, experiments, world, hear)
    with _timing("evaluation", seconds), watching() as hear:
        results = _evaluate(wish, world, hear)
    outcome = Outcome(
        wish=wish,
        world=world,
        begun_after=begun,
        seconds=seconds,
        scorings={split: Scoring.of(split, results[split]) for split in SPLITS},
        walks=tuple(telling(results[UNSEEN])),
    )
    write_report(outcome, results[UNSEEN])
    return outcome


def _prepare(wish: Wish, experiments: Mapping[str, Experiment]) -> None:
    """Raise what would otherwise come to light when the world is made."""
    for agent, experiment in experiments.items():
        require_same(experiment, wish.run(agent))
    try:
        wish.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{wish.out}: cannot be written ({error.strerror or error})") from None


@contextmanager
def _timing(part: str, seconds: dict[str, float]) -> Iterator[None]:
    begun = time.monotonic()
    yield
    seconds[part] = time.monotonic() - begun


# -- training --------------------------------------------------------------------------------------------


def _train(wish: Wish, experiments: Mapping[str, Experiment], world: Path, hear: Hear) -> dict[str, int]:
    """Train the agents side by side; how many iterations of each were done before."""
    agents = {CALLED[agent]: agent for agent in experiments}
    begun: dict[str, int] = {}

    def heed(news: News) -> None:
        if not news.note:
            begun.setdefault(agents[news.job], news.done)
        hear(news)

    jobs = [
        Job(name, partial(_learn, experiments[agent], world, wish.run(agent)))
        for name, agent in agents.items()
    ]
    side_by_side([[job] for job in jobs], heed)
    return begun


def _learn(experiment: Experiment, world: Path, out: Path, voice: Voice) -> None:
    train(experiment, world, out, watch=_Telling(voice))


class _Telling(TrainingCallback):
    """Tells how training goes with a voice."""

    def __init__(self, voice: Voice) -> None:
        self._voice, self._total = voice, 0
        self._recent: deque[float] = deque(maxlen=RECENT)

    def begin(self, done: int, total: int) -> None:
        self._total = total
        self._voice.count(done, total)

    def iterated(self, done: int, said: Mapping[str, float]) -> None:
        self._recent.append(said["imitation"])
        self._voice.count(done, self._total, {"loss": fmean(self._recent)})

    def validated(self, done: int, scores: Mapping[str, Mapping[str, float]], *, best: bool) -> None:
        told = ", ".join(f"{split} {written('spl', means['spl'])}" for split, means in scores.items())
        self._voice.note(f"iteration {done}: SPL {told}")

    def note(self, message: str) -> None:
        self._voice.note(message)


# -- evaluating ------------------------------------------------------------------------------------------


def _evaluate(wish: Wish, world: Path, hear: Hear) -> dict[str, dict[str, Result]]:
    """Evaluate by every protocol; the results by split and protocol."""
    evaluations = wish.evaluations(world)
    shares = share_out(evaluations, PROCESSES)
    side_by_side([[Job(each.name, partial(_live, each)) for each in share] for share in shares], hear)
    return {
        split: {str(each.memory): read_result(each.folder) for each in evaluations if each.split == split}
        for split in SPLITS
    }


def _live(evaluation: Evaluation, voice: Voice) -> None:
    evaluate(evaluation.plan, evaluation.folder, report=voice.count)
