"""Evaluating: live a split under a memory protocol, score it, and be able to go on after a kill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch

from esceme.errors import ConfigError
from esceme.evaluation.context import EvaluationContext, load_context
from esceme.evaluation.journal import (
    Head,
    Journal,
    Line,
    alone_in,
    done_batches,
    done_in_lanes,
    read_journals,
)
from esceme.evaluation.options import EvaluationConfig
from esceme.evaluation.protocol import MemoryLifetime
from esceme.evaluation.result import Result, make_result, save_result
from esceme.evaluation.schedule import Interleaved, Lanes, ReleasedOrder
from esceme.memory import save_bank
from esceme.rollout import RolloutStep, roll_out
from esceme.trajectory import EpisodeSource, Trajectory, greedy

BANK = "bank.safetensors"
PART = ".bank-{}.safetensors"
"""The bank of one process among several."""
ProgressCallback = Callable[[int, int], None]
"""Told how many walks have ended, and of how many."""


def no_progress(done: int, total: int) -> None:
    """Tell nobody."""


def evaluate(plan: EvaluationConfig, out: str | Path, *, report: ProgressCallback = no_progress) -> Result:
    """Live and score a split in this process.

    What has been lived is kept in `out`; where an evaluation with the same facts was interrupted there, it
    goes on. In the end the folder holds the result, the predictions and what was remembered.
    """
    stage, folder = load_context(plan), Path(out)
    keep_bank(plan, folder)
    lifetime = stage.lifetime()  # which refuses a bank that does not fit, before anything is written
    with alone_in(folder):
        run_episodes(stage, lifetime, folder, "journal.jsonl", report=report)
        if lifetime.bank is not None:
            save_bank(lifetime.bank, folder / BANK)
        remove_parts(folder)  # of an earlier start with several processes
        return write_result(stage, folder)


def keep_bank(plan: EvaluationConfig, folder: Path) -> None:
    """Raise `ConfigError` where what is remembered in the end would overwrite the bank of the beginning."""
    if plan.bank is not None and Path(plan.bank).resolve() == (folder / BANK).resolve():
        raise ConfigError(f"{plan.bank}: would be overwritten by what is remembered now; give another --out")


def remove_parts(folder: Path) -> None:
    """Remove the banks of single processes."""
    for part in folder.glob(PART.format("*")):
        part.unlink()


def write_result(stage: EvaluationContext, folder: Path) -> Result:
    """The result of an evaluation whose episodes have all been lived."""
    lines = read_journals(folder, Head(stage.fingerprint))
    walks: dict[str, Trajectory] = {}
    for line in sorted(lines, key=lambda line: line.batch):  # the first result of an episode counts
        if line.pass_ == stage.plan.passes:
            walks.setdefault(line.id, line.walk(stage.atlas, stage.by_id[line.id]))
    result = make_result(stage, [walks[episode.episode_id] for episode in stage.episodes])
    save_result(result, folder)
    return result


def run_episodes(
    stage: EvaluationContext,
    lifetime: MemoryLifetime,
    folder: Path,
    journal_name: str,
    *,
    report: ProgressCallback = no_progress,
) -> None:
    """Live the episodes of a stage as far as the journals in `folder` have not."""
    head = Head(stage.fingerprint)
    lines = read_journals(folder, head)
    journal = Journal(folder / journal_name, head)
    total = len(stage.episodes) * stage.plan.passes
    done = len({(line.pass_, line.id) for line in lines if line.id in stage.by_id})
    report(done, total)
    order = ReleasedOrder(stage.episodes, stage.plan.batch, seed=stage.plan.seed)
    visits = Counter[str]()
    try:
        for number in range(1, stage.plan.passes + 1):
            for ended in _pass(stage, lifetime, lines, number, order, visits):
                journal.add(ended)
                done = min(done + len(ended), total)
                report(done, total)
    finally:
        journal.close()


def _pass(
    stage: EvaluationContext,
    lifetime: MemoryLifetime,
    lines: Sequence[Line],
    number: int,
    order: ReleasedOrder,
    visits: Counter[str],
) -> Iterator[list[Line]]:
    """Live one pass; what has ended is told at once in lanes, and batch by batch otherwise."""
    atlas = stage.atlas
    if stage.plan.schedule == "lanes":
        done = done_in_lanes(lines, number, atlas, stage.by_id)
        lanes = Lanes(
            atlas,
            stage.episodes,
            lifetime,
            slots=stage.plan.batch,
            done=done,
            visits=stage.visits,
            lived=number - 1,
        )
        for step in _steps(stage, lanes, lifetime):
            if step.finished:
                yield [Line.of(walk, atlas, number=number) for walk in step.finished]
        return
    planned = list(order.batches())
    lived = done_batches(lines, number, atlas, planned)
    batch, ended = len(lived), list[Trajectory]()
    source = Interleaved(atlas, planned, lifetime, done=lived, visits=visits)
    for step in _steps(stage, source, lifetime):
        ended += step.finished
        if len(step.finished) == len(step.trajectories):
            yield [Line.of(walk, atlas, number=number, batch=batch) for walk in ended]
            batch, ended = batch + 1, []


def _steps(
    stage: EvaluationContext, source: EpisodeSource, lifetime: MemoryLifetime
) -> Iterator[RolloutStep]:
    """Walk greedily, in the precision that the plan wants."""
    navigator = stage.run.navigator.eval()
    steps = roll_out(
        navigator,
        stage.atlas,
        source,
        lifetime.memory,
        greedy,
        encode=stage.encode,
        max_steps=stage.limits.max_steps,
    )
    while True:  # step by step, so that neither mode reaches whoever is told of a step, nor gets lost there
        halved = torch.autocast(navigator.device.type, torch.bfloat16)
        with torch.inference_mode(), halved if stage.plan.precision == "bf16" else nullcontext():
            step = next(steps, None)
        if step is None:
            return
        yield step
