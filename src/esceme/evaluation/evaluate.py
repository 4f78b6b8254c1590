"""Evaluation: run a split under a memory protocol, score it, and resume after an interruption.

Several processes divide the scenes among them; all episodes of a scene run in one process. Memories of
different scenes are independent. The trajectories are therefore the same as with one process.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import torch

from esceme.errors import ConfigError, EscemeError
from esceme.evaluation.calibration import with_margin
from esceme.evaluation.context import (
    EvaluationConfig,
    EvaluationContext,
    check_bank_scenes,
    load_context,
)
from esceme.evaluation.inference import evaluation_steps
from esceme.evaluation.journal import (
    Journal,
    JournalEntry,
    OtherJournalError,
    finished_batches,
    finished_in_lanes,
)
from esceme.evaluation.protocol import MemoryLifetime
from esceme.evaluation.result import Result, make_result, read_result, save_result
from esceme.evaluation.schedule import Interleaved, Lanes, ReleasedOrder
from esceme.evaluation.trace import FORMAT, TRACE, EpisodeTrace, write_trace
from esceme.evaluation.tracing import OnTraced, trace_episodes
from esceme.files import PrintableText, folder_lock, read_json, write_json
from esceme.memory import save_bank
from esceme.memory.bank_file import bank_checksum
from esceme.memory.map_file import save_maps
from esceme.rollout import RolloutStep
from esceme.runs import flatten
from esceme.tasks.episode import Episode
from esceme.trajectory import EpisodeSource, Trajectory
from esceme.workers import Job, run_jobs

JOURNAL = "journal.jsonl"
BANK = "bank.safetensors"
SESSION = "session.json"
"""File that names the session of an evaluation in a store."""
MAX_NAMES = 4
"""Maximum number of differing facts that an error message names."""
Message = TypeVar("Message")
MAPS = "maps.safetensors"
ProgressCallback = Callable[[int, int], None]
"""Function that receives the number of finished trajectories and their total."""
OnFinished = Callable[[list[JournalEntry]], None]
"""Function that receives the journal entries of trajectories that have just finished."""


def evaluate(
    config: EvaluationConfig,
    out: str | Path,
    *,
    processes: int = 1,
    trace: bool = False,
    on_progress: ProgressCallback = lambda finished, total: None,
    on_trace_progress: ProgressCallback = lambda finished, total: None,
    note: Callable[[str], None] = lambda message: None,
) -> Result:
    """Run and score a split; write result, predictions and memory bank to the folder `out`.

    Finished trajectories are stored in a journal file in `out`. An interrupted evaluation with the same
    settings and data is resumed, also with another number of processes. With `trace`, every decision is
    described in `trace.jsonl` as well, also for an evaluation that is finished already; see
    `esceme.evaluation.trace`. `note` receives messages for the user.
    """
    check_processes(config, processes)
    context, folder = with_margin(_with_session(load_context(config), Path(out)), note), Path(out)
    with context.lifetime() as lifetime:  # raises an error for an unsuitable bank before anything is written
        check_bank(context, lifetime, folder)
        if config.store is not None and config.memory == "warm" and lifetime.bank is not None:
            hashes = {**context.hashes, "store": bank_checksum(lifetime.bank)}
            context = replace(context, hashes=hashes)
        return _evaluate(context, lifetime, folder, processes, trace, on_progress, on_trace_progress, note)


def _with_session(context: EvaluationContext, folder: Path) -> EvaluationContext:
    """Return a context that names its session in the store.

    The name follows from the folder, the facts and the memory in the store when the session begins. It is
    written to the folder, because a resumed evaluation finds another memory in the store.
    """
    config, path, location = context.config, folder / SESSION, context.store_session
    if location is None:
        return context
    if not path.exists():
        digest = hashlib.sha256(context.fingerprint.encode())
        with closing(location.open(context.run.navigator.reader, context.atlas)) as store:
            for found in store.recalled(prefer=config.prefer) if config.memory == "warm" else ():
                digest.update(found.digest.encode())
        with folder_lock(folder, "evaluation"):
            if (folder / JOURNAL).exists():
                raise ConfigError(f"{folder}: holds an evaluation without a store; give another --out")
            if not path.exists():
                write_json(path, {"session": f"{folder.resolve().name}-{digest.hexdigest()[:8]}"})
    session = read_json(path, dict[str, PrintableText]).get("session", "")
    return replace(context, config=replace(config, session=session))


def _evaluate(
    context: EvaluationContext,
    lifetime: MemoryLifetime,
    folder: Path,
    processes: int,
    trace: bool,
    on_progress: ProgressCallback,
    on_trace_progress: ProgressCallback,
    note: Callable[[str], None],
) -> Result:
    """Run and score a split with a memory in its initial state; see `evaluate`."""
    config = context.config
    with (
        folder_lock(folder, "evaluation"),
        _naming_differences(folder, context.facts),
        Journal(folder / JOURNAL, context.fingerprint, JournalEntry, note=note) as journal,
    ):
        entries, total = journal.entries, len(context.episodes) * config.num_passes
        finished = len({(entry.pass_, entry.id) for entry in entries})

        def on_finished(new: list[JournalEntry]) -> None:
            nonlocal finished
            journal.write(new)
            finished = min(finished + len(new), total)
            on_progress(finished, total)

        on_progress(finished, total)
        if processes > 1 and finished < total:
            run_in_workers(context, processes, partial(run_scenes, entries), on_finished)
            entries = journal.read()  # trajectories of the workers were not collected, only written
        trajectories = run_episodes(context, lifetime, entries, on_finished)
        if lifetime.bank is not None:
            save_bank(lifetime.bank, folder / BANK, overwrite=True)
        if lifetime.maps is not None and config.memory != "masked":
            save_maps(lifetime.maps, folder / MAPS)
        result = make_result(context, [trajectories[episode.episode_id] for episode in context.episodes])
        save_result(result, folder)
        if trace:
            _write_trace(context, folder, journal.read(), processes, on_trace_progress, note)
    return result


@contextmanager
def _naming_differences(folder: Path, facts: Mapping[str, object]) -> Iterator[None]:
    """If `folder` has the result of another evaluation, add to the error in which facts that one differs."""
    try:
        yield
    except OtherJournalError as error:
        try:
            found = flatten(read_result(folder).facts)
        except EscemeError:  # it was interrupted
            raise error from None
        expected = flatten(msgspec.json.decode(msgspec.json.encode(facts)))  # tuples as lists
        names = [
            name for name in found | expected if found.get(name) != expected.get(name) and name != "code"
        ]
        values = [f"{name} {found.get(name)!s:.20} instead of {expected.get(name)!s:.20}" for name in names]
        reason = f" (it has {', '.join(values[:MAX_NAMES])})" if values else ""
        raise OtherJournalError(f"{error}{reason}") from None


def _write_trace(
    context: EvaluationContext,
    folder: Path,
    entries: Sequence[JournalEntry],
    processes: int,
    on_progress: ProgressCallback,
    note: Callable[[str], None],
) -> None:
    """Trace the finished episodes that are not traced yet; then sort the file by the episodes' order."""
    path, total = folder / TRACE, len(context.episodes)
    with Journal(path, context.fingerprint, EpisodeTrace, format=FORMAT, note=note) as journal:
        traces = {trace.id: trace for trace in journal.entries}

        def on_traced(new: list[EpisodeTrace]) -> None:
            journal.write(new)
            traces.update((trace.id, trace) for trace in new)
            on_progress(len(traces), total)

        on_progress(len(traces), total)
        if len(traces) < total:
            job = partial(_trace_scenes, entries, list(traces))
            if processes > 1:
                run_in_workers(context, processes, job, on_traced)
            else:
                with context.lifetime() as lifetime:
                    trace_episodes(context, lifetime, entries, list(traces), on_traced)
    order = [episode.episode_id for episode in context.episodes]
    if list(traces) != order:
        write_trace(path, context.fingerprint, [traces[name] for name in order])


def check_bank(context: EvaluationContext, lifetime: MemoryLifetime, folder: Path) -> None:
    """Raise `ConfigError` if the bank would be overwritten, or holds none of the scenes to run."""
    config = context.config
    if config.bank is None:
        return
    if Path(config.bank).resolve() in ((folder / name).resolve() for name in (BANK, MAPS)):
        raise ConfigError(f"{config.bank}: would be overwritten by the new bank; give another --out")
    if not config.allow_other_scenes:
        store = lifetime.maps if lifetime.bank is None else lifetime.bank  # as loaded from the file
        check_bank_scenes(config.bank, store.scenes if store is not None else (), context.episodes)


def check_processes(config: EvaluationConfig, processes: int) -> None:
    """Raise `ConfigError` if this number of processes cannot divide the scenes among them."""
    if processes < 1:
        raise ConfigError(f"processes: expected at least 1, found {processes}")
    if processes > 1 and config.schedule != "lanes":
        raise ConfigError("the schedule 'interleaved' mixes scenes in a batch; use one process")
    if processes > 1 and config.depends_on_batch:
        raise ConfigError(
            f"trajectories in {config.precision} depend on the rest of the batch; use one process, fp32 or "
            "guarded"
        )


def run_episodes(
    context: EvaluationContext,
    lifetime: MemoryLifetime,
    entries: Sequence[JournalEntry],
    on_finished: OnFinished,
    *,
    collect: bool = True,
) -> dict[str, Trajectory]:
    """Run the split once, or twice for protocol `two-pass`; return the last trajectories by episode id.

    `entries` are journal entries of episodes that have already finished. These episodes are not run again.
    Only their effect on the memory is repeated. Without `collect`, only `on_finished` receives trajectories.
    """
    config, atlas, max_steps = context.config, context.atlas, context.limits.max_steps
    order, visits = ReleasedOrder(context.episodes, config.batch, seed=config.seed), Counter[str]()
    trajectories: dict[str, Trajectory] = {}
    for number in range(1, config.num_passes + 1):
        if config.schedule == "lanes":
            trajectories = finished_in_lanes(entries, number, atlas, context.by_id, max_steps=max_steps)
            batches = _run_lanes(context, lifetime, dict(trajectories), number)
        else:
            planned = list(order.batches())
            finished = finished_batches(entries, number, atlas, planned, max_steps=max_steps)
            trajectories = {}
            for trajectory in (trajectory for batch in finished for trajectory in batch):
                trajectories.setdefault(trajectory.episode.episode_id, trajectory)
            batches = _run_interleaved(context, lifetime, planned, finished, visits)
        for batch, ended in batches:
            on_finished(
                [JournalEntry.of(trajectory, atlas, pass_number=number, batch=batch) for trajectory in ended]
            )
            for trajectory in ended if collect else ():  # the first trajectory of an episode counts
                trajectories.setdefault(trajectory.episode.episode_id, trajectory)
    return trajectories


def _run_lanes(
    context: EvaluationContext, lifetime: MemoryLifetime, finished: Mapping[str, Trajectory], number: int
) -> Iterator[tuple[int, list[Trajectory]]]:
    """Run all episodes once, with one episode per scene at a time; `number` counts the runs from 1.

    After each step, yield (0, trajectories that ended). The 0 stands for the batch number.
    """
    source = Lanes(
        context.atlas,
        context.episodes,
        lifetime,
        num_slots=context.config.batch,
        finished=finished,
        visits=context.visits,
        previous_passes=number - 1,
    )
    for step in _context_steps(context, source, lifetime):
        if step.finished:
            yield 0, step.finished


def _run_interleaved(
    context: EvaluationContext,
    lifetime: MemoryLifetime,
    planned: Sequence[Sequence[Episode]],
    finished: Sequence[Sequence[Trajectory]],
    visits: Counter[str],
) -> Iterator[tuple[int, list[Trajectory]]]:
    """Run batches of episodes from all scenes; after each batch, yield its number and its trajectories."""
    batch, ended = len(finished), list[Trajectory]()
    source = Interleaved(context.atlas, planned, lifetime, finished=finished, visits=visits)
    for step in _context_steps(context, source, lifetime):
        ended += step.finished
        if len(step.finished) == len(step.trajectories):
            yield batch, ended
            batch, ended = batch + 1, []


def _context_steps(
    context: EvaluationContext, source: EpisodeSource, lifetime: MemoryLifetime
) -> Iterator[RolloutStep]:
    return evaluation_steps(
        context.navigator(lifetime),
        context.atlas,
        source,
        lifetime.memory,
        encode=context.encode,
        max_steps=context.limits.max_steps,
        precision=context.config.precision,
        engine=context.config.engine,
    )


# -- worker processes ------------------------------------------------------------------------------------


def run_in_workers(
    context: EvaluationContext,
    processes: int,
    run: Callable[[EvaluationConfig, Collection[str], Mapping[str, str], Callable[[Message], None]], None],
    on_message: Callable[[Message], None],
) -> None:
    """Call `run(config, scenes, hashes, send)` in worker processes that divide the scenes among them."""
    groups, hashes = group_scenes(context.episodes, processes), dict(context.hashes)
    jobs = [Job(", ".join(sorted(scenes)), partial(run, context.config, scenes, hashes)) for scenes in groups]
    threads = max(1, torch.get_num_threads() // len(groups))
    run_jobs(
        jobs, processes=len(groups), threads=threads, on_message=lambda name, message: on_message(message)
    )


def run_scenes(
    entries: Sequence[JournalEntry],
    config: EvaluationConfig,
    scenes: Collection[str],
    hashes: Mapping[str, str],
    send: OnFinished,
) -> None:
    """Run the episodes of some scenes in a worker process; pass their journal entries to `send`."""
    context = load_context(config, scenes=scenes, hashes=hashes)
    with context.lifetime() as lifetime:
        run_episodes(context, lifetime, entries, send, collect=False)


def _trace_scenes(
    entries: Sequence[JournalEntry],
    traced: Collection[str],
    config: EvaluationConfig,
    scenes: Collection[str],
    hashes: Mapping[str, str],
    send: OnTraced,
) -> None:
    """Trace the episodes of some scenes in a worker process; pass their traces to `send`."""
    context = load_context(config, scenes=scenes, hashes=hashes)
    with context.lifetime() as lifetime:
        trace_episodes(context, lifetime, entries, traced, send)


def group_scenes(episodes: Sequence[Episode], num_groups: int) -> list[set[str]]:
    """Return at most `num_groups` non-empty groups of scenes with similar numbers of episodes."""
    counts = Counter(episode.scene_id for episode in episodes)
    groups: list[set[str]] = [set() for _ in range(min(num_groups, len(counts)))]
    for scene, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        min(groups, key=lambda group: sum(counts[member] for member in group)).add(scene)
    return groups
