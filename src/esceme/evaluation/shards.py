"""Evaluating in several processes: scenes are shared out, never the episodes of one scene.

Each process lives its scenes with a memory of its own; since memories of different scenes never meet, the
walks are those of one process.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch

from esceme.errors import ConfigError, EscemeError
from esceme.evaluation.context import EvaluationContext, load_context
from esceme.evaluation.evaluate import (
    BANK,
    PART,
    ProgressCallback,
    evaluate,
    keep_bank,
    no_progress,
    remove_parts,
    run_episodes,
    write_result,
)
from esceme.evaluation.journal import Head, alone_in, read_journals
from esceme.evaluation.options import EvaluationConfig
from esceme.evaluation.result import Result
from esceme.memory import load_bank, save_bank
from esceme.tasks.episode import Episode

SECONDS_BETWEEN_LOOKS = 0.5


def evaluate_in_processes(
    plan: EvaluationConfig, out: str | Path, *, processes: int, report: ProgressCallback = no_progress
) -> Result:
    """What `evaluate` does, by several processes; an interrupted evaluation may go on with another number."""
    if processes < 1:
        raise ConfigError(f"processes: expected at least 1, found {processes}")
    if processes == 1:
        return evaluate(plan, out, report=report)
    if plan.schedule != "lanes":
        raise ConfigError("'interleaved' episodes share one memory across scenes' batches; use one process")
    if plan.precision != "fp32":
        raise ConfigError(f"in {plan.precision} walks depend on who walks beside; use one process or fp32")
    stage, folder = load_context(plan), Path(out)
    keep_bank(plan, folder)
    if plan.bank is not None:
        stage.lifetime()  # a bank that does not fit is refused here, once
    with alone_in(folder):
        read_journals(folder, Head(stage.fingerprint))  # an evaluation of something else is refused here
        count = _live_apart(stage, folder, processes, report)
        _join_banks(folder, count)
        return write_result(stage, folder)


def _live_apart(stage: EvaluationContext, folder: Path, processes: int, report: ProgressCallback) -> int:
    """Let processes live their scenes, and say how many there were."""
    plan, total = stage.plan, len(stage.episodes) * stage.plan.passes
    shares = share_out(stage.episodes, processes)
    context = multiprocessing.get_context("spawn")
    threads = max(1, torch.get_num_threads() // len(shares))
    workers = [
        context.Process(target=_work, args=(plan, scenes, dict(stage.hashes), folder, number, threads))
        for number, scenes in enumerate(shares)
    ]
    try:
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            lines = read_journals(folder, Head(stage.fingerprint))
            report(len({(line.pass_, line.id) for line in lines}), total)
            for worker in workers:
                worker.join(SECONDS_BETWEEN_LOOKS / len(workers))
            if any(worker.exitcode for worker in workers):
                break
    finally:
        for worker in workers:
            if worker.is_alive():  # another one failed, or we were interrupted
                worker.terminate()
            worker.join()
    if failed := [worker for worker in workers if worker.exitcode]:
        raise EscemeError(
            f"{len(failed)} of {len(workers)} processes ended early (code {failed[0].exitcode}); "
            f"what was lived is kept in {folder}: start the same evaluation again to go on"
        )
    report(total, total)
    return len(workers)


def share_out(episodes: Sequence[Episode], shares: int) -> list[set[str]]:
    """Scenes in at most `shares` groups with about equally many episodes, none of them empty."""
    counts = Counter(episode.scene_id for episode in episodes)
    groups: list[set[str]] = [set() for _ in range(min(shares, len(counts)))]
    for scene, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        min(groups, key=lambda group: sum(counts[each] for each in group)).add(scene)
    return groups


def _work(
    plan: EvaluationConfig,
    scenes: Collection[str],
    hashes: Mapping[str, str],
    folder: Path,
    number: int,
    threads: int,
) -> None:
    """One process: live the episodes of some scenes, as long as whoever started it lives."""
    torch.set_num_threads(threads)
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        stage = load_context(plan, scenes=scenes, hashes=hashes)
        lifetime = stage.lifetime()
        run_episodes(stage, lifetime, folder, f"journal-{number}.jsonl")
        if lifetime.bank is not None:
            save_bank(lifetime.bank, folder / PART.format(number))
    except EscemeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def end_with_parent() -> None:
    """In a thread of a process that was started to help: end it when whoever started it ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _join_banks(folder: Path, processes: int) -> None:
    """One bank of what all processes remember."""
    parts = [folder / PART.format(number) for number in range(processes)]
    if not all(part.is_file() for part in parts):
        return
    bank, *others = (load_bank(part) for part in parts)
    for other in others:
        bank.merge(other)
    save_bank(bank, folder / BANK)
    remove_parts(folder)
