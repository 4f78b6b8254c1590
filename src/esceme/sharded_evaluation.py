"""Evaluation by the processes of `torchrun`, on one or several machines that share a file system.

The scenes are divided among the processes. Each writes its finished trajectories to a journal of its own in
the output folder. The main process moves them to the journal of the evaluation, from which `evaluate`
computes the result as after an interruption.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist

from esceme.errors import ConfigError, EvaluationError, TrainingError
from esceme.evaluation.calibration import with_margin
from esceme.evaluation.context import EvaluationConfig, EvaluationContext, load_context
from esceme.evaluation.evaluate import (
    JOURNAL,
    ProgressCallback,
    check_bank,
    check_processes,
    group_scenes,
    run_episodes,
    run_in_workers,
    run_scenes,
)
from esceme.evaluation.journal import Journal, JournalEntry, read_journal
from esceme.files import folder_lock
from esceme.learning import ProcessGroup
from esceme.runs import flatten

T = TypeVar("T")
PART = "rank"
"""Beginning of the names of folders with the journal of one process, in the folder of an evaluation."""
WAIT = timedelta(days=7)
"""How long a process waits for others, which may have larger scenes or longer episodes."""


def run_trajectories(
    config: EvaluationConfig,
    out: str | Path,
    group: ProcessGroup,
    *,
    processes: int = 1,
    on_progress: ProgressCallback = lambda finished, total: None,
    note: Callable[[str], None] = lambda message: None,
) -> None:
    """Run all episodes in the processes of `group`; afterwards `out` has the journal of all trajectories.

    Every process of the group calls this function; then the main process calls `evaluate`, which runs nothing
    again. All of them must see the same folder `out`. Each runs its scenes in `processes` worker processes.
    Finished trajectories are kept if a process ends. The same call resumes, also with another group.
    `on_progress` counts trajectories of other processes only when all have finished.
    """
    check_processes(config, processes * group.size)
    if config.store is not None:
        raise ConfigError("torchrun: an evaluation with a memory store runs on one machine; use --processes")
    folder = Path(out)
    context = _load_same_context(config, group, note)
    with context.lifetime() as lifetime:
        check_bank(context, lifetime, folder)
    entries = _merge_journals(folder, context, note) if group.is_main else []
    entries = _exchange(group, entries)[0]
    total = len(context.episodes) * config.num_passes
    finished = len({(entry.pass_, entry.id) for entry in entries})
    on_progress(finished, total)
    if finished == total:
        return
    own = folder / f"{PART}{group.rank}"
    with (
        folder_lock(own, "evaluation"),
        Journal(own / JOURNAL, context.fingerprint, JournalEntry, note=note) as journal,
    ):
        _check_shared(folder, group)

        def on_finished(new: list[JournalEntry]) -> None:
            nonlocal finished
            journal.write(new)
            finished += len(new)
            on_progress(finished, total)

        _run_share(context, group, processes, entries, on_finished)
    _exchange(group, None)
    if group.is_main:
        missing = total - len(_merge_journals(folder, context, note))
        if missing:
            raise EvaluationError(f"{folder}: {missing} of {total} trajectories are not in the journals")


def _load_same_context(
    config: EvaluationConfig, group: ProcessGroup, note: Callable[[str], None]
) -> EvaluationContext:
    """Load everything that `config` names. Raise `ConfigError` if it differs between processes."""
    context = load_context(config)
    if group.is_main:
        context = with_margin(context, note)
    context = replace(context, margin=_exchange(group, context.margin)[0])
    facts = [flatten(facts) for facts in _exchange(group, context.facts)]
    for rank, other in enumerate(facts):
        if differing := [name for name in {**facts[0], **other} if facts[0].get(name) != other.get(name)]:
            raise ConfigError(
                f"process {rank} has other data, weights, settings or code than process 0: "
                f"{', '.join(differing)} differ; give all machines the same files"
            )
    return context


def _run_share(
    context: EvaluationContext,
    group: ProcessGroup,
    processes: int,
    entries: Sequence[JournalEntry],
    on_finished: Callable[[list[JournalEntry]], None],
) -> None:
    """Run the episodes of this process's scenes that have no journal entry."""
    shares = group_scenes(context.episodes, group.size)
    scenes = shares[group.rank] if group.rank < len(shares) else ()
    episodes = [episode for episode in context.episodes if episode.scene_id in scenes]
    if not episodes:
        return
    share = replace(context, episodes=episodes)
    if processes > 1:
        run_in_workers(share, processes, partial(run_scenes, list(entries)), on_finished)
        return
    with share.lifetime() as lifetime:
        run_episodes(share, lifetime, entries, on_finished)


def _merge_journals(
    folder: Path, context: EvaluationContext, note: Callable[[str], None]
) -> list[JournalEntry]:
    """Move the entries of all processes to the journal in `folder`; return its entries."""
    key = context.fingerprint
    with (
        folder_lock(folder, "evaluation"),
        Journal(folder / JOURNAL, key, JournalEntry, note=note) as journal,
    ):
        entries = {(entry.pass_, entry.id): entry for entry in journal.entries}
        for part in sorted(folder.glob(f"{PART}*/")):
            with folder_lock(part, "evaluation"):  # a process of an interrupted evaluation may still run
                found, _ = read_journal(part / JOURNAL, key, JournalEntry)
            if new := [entry for entry in found if (entry.pass_, entry.id) not in entries]:
                journal.write(new)
            entries |= {(entry.pass_, entry.id): entry for entry in new}
            shutil.rmtree(part)
    return list(entries.values())


def _check_shared(folder: Path, group: ProcessGroup) -> None:
    """Raise `ConfigError` if the folder of a process is not visible to this process."""
    _exchange(group, None)  # all have created their folders
    for rank in range(group.size):
        if not (folder / f"{PART}{rank}").is_dir():
            raise ConfigError(
                f"{folder}: process {group.rank} does not see the folder of process {rank}; give an --out on "
                "a file system that all machines share"
            )


def _exchange(group: ProcessGroup, value: T) -> list[T]:
    """Wait for all processes; return their values, ordered by rank."""
    try:
        if group.size > 1:
            dist.monitored_barrier(timeout=WAIT)
        return group.all_gather(value)
    except (RuntimeError, TrainingError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise EvaluationError(
            f"process {group.rank} of {group.size} lost the connection ({reason}): another process ended, "
            "and its output has the reason; finished trajectories are kept, and the same command continues"
        ) from None
