"""The command `esceme evaluate`."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from esceme.cli.console import TaskName, note, progress_bar
from esceme.cli.data_option import find_data
from esceme.cli.evaluation_summary import print_orders, print_result
from esceme.engine import EngineName, Precision
from esceme.errors import ConfigError
from esceme.evaluation import EvaluationConfig, Protocol, evaluate_orders
from esceme.evaluation import evaluate as run_evaluation
from esceme.evaluation.context import SCRIPTED, ChoiceName, InstructionsName, PlannerName
from esceme.evaluation.evaluate import ProgressCallback
from esceme.evaluation.schedule import ScheduleName
from esceme.files import read_bytes
from esceme.memory.store import Prefer
from esceme.runs import read_navigator_config

DRAWS = 1000


def evaluate(
    run: Annotated[str, tyro.conf.arg(metavar="RUN")],
    /,
    split: str,
    memory: Protocol,
    task: TaskName | None = None,
    bank: Path | None = None,
    store: str | None = None,
    robot: str = "robot",
    prefer: Prefer = "first",
    tours: Path | None = None,
    allow_other_scenes: bool = False,
    oracle_phases: bool = False,
    schedule: ScheduleName = "lanes",
    order: Literal["file", "shuffled"] = "file",
    orders: int | None = None,
    episodes: Path | None = None,
    limit: int | None = None,
    batch: int = 8,
    processes: int = 1,
    seed: int = 0,
    data: str | None = None,
    features: Path | None = None,
    max_steps: int | None = None,
    max_tokens: int | None = None,
    precision: Precision = "fp32",
    engine: EngineName = "eager",
    trace: bool = False,
    planner: PlannerName = "none",
    belief: str = "full",
    choice: ChoiceName = "bayes",
    instructions: InstructionsName = "own",
    paranoid: bool = False,
    out: Path | None = None,
    first_told: bool = False,
    bootstrap: int = DRAWS,
    json: bool = False,
) -> int:
    """Run a split under a memory protocol, and score it.

    With the schedule `lanes`, the episodes of a scene run one after the other and scenes run side by side:
    the scores do not depend on --batch or --processes. Finished trajectories are kept; the same command
    continues an interrupted evaluation. The result file records everything that determines the scores.
    Under torchrun, processes on several machines that share a file system divide the scenes; the first one
    prints (docs/performance.md).

    Examples:
        esceme evaluate runs/esceme-r2r --split val_unseen --memory cold
        esceme evaluate runs/esceme-r2r --split val_unseen --memory tour --tours tours_iVLN.json
        esceme evaluate runs/hamt-r2r --split val_unseen --memory none --tours tours_iVLN.json
        esceme evaluate runs/esceme-r2r --split val_seen --memory warm --bank bank.safetensors --processes 4
        esceme evaluate runs/esceme-r2r --split val_unseen --memory cold --orders 5 --first-told
        esceme evaluate runs/esceme-r2r --split val_unseen --memory warm --store site.db --robot r1
        esceme evaluate runs/esceme-r2r --split val_unseen --memory cold --engine packed --precision guarded
        esceme evaluate runs/hamt-r2r --split val_unseen --memory cold --planner routes
        esceme evaluate random --split val_unseen --memory none --data datasets --json
        torchrun --nproc-per-node 2 -m esceme evaluate runs/esceme-r2r --split val_unseen --memory cold

    Args:
        run: a run folder, or a scripted agent: random, shortest or stop.
        split: the split of the task.
        memory: when memory starts and is cleared: none (for agents without a reader), cold (ESceme: empty at
            the start of the split), two-pass (ESceme*: the split is run twice), episodic and tour (cleared
            before every episode or tour), warm (starts with --bank or --store), or a control: masked (recall
            returns zeros), oracle (everything is remembered beforehand).
        task: by default the task of the run.
        bank: file of stored memories with which the protocol `warm` starts.
        store: a memory store (docs/robots.md), to which everything remembered is written at once. With
            `warm` the memory starts with what the store held when this evaluation began, otherwise empty.
        robot: the name under which the store keeps the observations.
        prefer: which observation of a viewpoint is recalled from a store.
        allow_other_scenes: accept a bank that holds none of the scenes of the split, and so has no effect.
        tours: a file of tours (IVLN), which determine the order of the episodes; adds t_ndtw, t_sr, t_spl.
        oracle_phases: on tours, also remember the paths to an episode's goal and to the next start.
        schedule: lanes (the episodes of a scene one after the other), or interleaved (batches of mixed scenes
            as in the released code, in one process).
        order: the order of the episodes of a scene, with the schedule lanes.
        orders: number of shuffled orders to evaluate, with the seeds --seed, --seed + 1 and so on; report
            mean and standard deviation over them.
        episodes: file of the episode ids to run, in this order: text with an id per line, or a JSON array.
        limit: number of episodes to run, from the start of the split or of --episodes, before shuffling.
        batch: the number of episodes that run in parallel.
        processes: the number of processes among which the scenes are divided.
        seed: seed of shuffled orders, of the random agent and of the bootstrap.
        data: the data folder, by default ESCEME_DATA, else ./datasets; or `embedded`, the generated world
            of size small, or `embedded:tiny`.
        features: the feature file, where the data folder has several.
        max_steps: maximum number of decisions per episode; by default that of the run.
        max_tokens: maximum number of token ids per instruction; by default that of the run.
        precision: number format of the network. With bf16 and int8, decisions may change and may depend on
            --batch; guarded computes in int8 and repeats close decisions in fp32 (docs/performance.md).
        engine: packed stores weights in the layout of the CPU's matrix kernels: faster, equal up to rounding.
        trace: also write trace.jsonl, which describes every decision: probabilities with and without memory,
            recalled viewpoints, attention to the words (docs/traces.md).
        planner: routes compares whole routes in the scene's map; see `esceme train-planner`.
        belief: what the planner's probabilities of routes use: full (everything), or a control: blind (not
            the instruction), no-lengths, one scorer (follower: the agent; speaker; matcher), or all but one
            (no-follower, no-speaker, no-matcher).
        choice: the planner chooses the route of the best expected score (bayes), the most probable (argmax),
            or also counts what could be reached from unvisited viewpoints (lookahead).
        instructions: with other, a control, every episode gets the instruction of another path in its scene.
        paranoid: read and check weights and features again, even if the size and time stamps of their files
            have not changed since an earlier evaluation.
        out: the folder of trajectories, predictions, scores and memories; by default in RUN/evaluations.
        first_told: also score only the first instruction of each path, in the order in which the episodes are
            run. Later instructions repeat a path that a memory may know.
        bootstrap: number of bootstrap samples of 95 % confidence intervals (paths are resampled); 0 for none.
        json: print one JSON object of plain fractions instead of a table.
    """
    if bootstrap < 0:
        raise ConfigError(f"--bootstrap {bootstrap}: expected the number of samples, 0 for none")
    is_sharded, is_main = "RANK" in os.environ, os.environ.get("RANK", "0") == "0"
    if is_sharded and orders is not None:
        raise ConfigError("--orders does not work under torchrun; give --order shuffled and --seed")
    config = EvaluationConfig(
        run=run,
        data=str(find_data(data, is_main=is_main)),
        split=split,
        memory=memory,
        task=task or ("r2r" if run in SCRIPTED else read_navigator_config(Path(run)).task),
        schedule=schedule,
        batch=batch,
        seed=seed,
        order=order,
        episode_file=_as_text(episodes),
        limit=limit,
        bank=_as_text(bank),
        store=store,
        robot=robot,
        prefer=prefer,
        allow_other_scenes=allow_other_scenes,
        tours=_as_text(tours),
        oracle_phases=oracle_phases,
        features=_as_text(features),
        max_steps=max_steps,
        max_tokens=max_tokens,
        precision=precision,
        engine=engine,
        planner=planner,
        belief=belief,
        choice=choice,
        instructions=instructions,
        paranoid=paranoid,
    )
    if orders is not None:
        return _evaluate_orders(config, out, orders, processes, trace=trace, first_told=first_told, json=json)
    folder = out or default_folder(config)
    label = f"{config.task} {split}, {memory}"
    with progress_bar(label) as progress, progress_bar(f"{label}, trace") as trace_progress:
        on_progress = _noting_resume(progress)
        if is_sharded:
            _run_sharded(config, folder, processes, on_progress if is_main else lambda finished, total: None)
        if not is_main:
            return 0
        result = run_evaluation(
            config,
            folder,
            processes=processes,
            trace=trace,
            on_progress=on_progress,
            on_trace_progress=trace_progress,
            note=note,
        )
    print_result(config, folder, result, bootstrap, first_told=first_told, json=json)
    return 0


def _run_sharded(
    config: EvaluationConfig, folder: Path, processes: int, on_progress: ProgressCallback
) -> None:
    """Run the episodes in all processes that torchrun started."""
    from esceme.learning import ProcessGroup  # not above: an evaluation without torchrun needs no training
    from esceme.sharded_evaluation import run_trajectories

    group = ProcessGroup.from_environment()
    try:
        if group.size > 1:
            run_trajectories(config, folder, group, processes=processes, on_progress=on_progress, note=note)
    finally:
        group.destroy()


def _evaluate_orders(
    config: EvaluationConfig,
    out: Path | None,
    orders: int,
    processes: int,
    *,
    trace: bool,
    first_told: bool,
    json: bool,
) -> int:
    """Evaluate in several shuffled orders, and print the scores of each order, mean and deviation."""
    shared = default_folder(replace(config, seed=0))  # each order has its seed in the name of a subfolder
    folder = out or shared.with_name(f"{shared.name}-orders")
    with ExitStack() as bars:

        def on_progress(seed: int) -> ProgressCallback:
            bars.close()
            label = f"{config.task} {config.split}, {config.memory}, order of seed {seed}"
            return _noting_resume(bars.enter_context(progress_bar(label)))

        results = evaluate_orders(
            config,
            folder,
            num_orders=orders,
            processes=processes,
            trace=trace,
            on_progress=on_progress,
            note=note,
        )
    print_orders(config, folder, results, first_told=first_told, json=json)
    return 0


def default_folder(config: EvaluationConfig) -> Path:
    """Return the output folder if --out is not given: inside the run folder, named after the settings."""
    parts = [f"{config.task}", config.split, config.memory]
    parts += [
        _name_with_digest(Path(file)) for file in (config.bank, config.episode_file) if file is not None
    ]
    parts += [Path(file).stem for file in (config.tours, config.features) if file is not None]
    if config.store is not None:
        address = config.store.partition("://")[2].rpartition("@")[2]  # without a password
        names = (address or Path(config.store).stem, config.robot)
        parts += [re.sub(r"[^\w.-]", "-", name) for name in names]
    for part, applies in (
        ("interleaved", config.schedule == "interleaved"),
        (f"batch{config.batch}", config.depends_on_batch),
        ("shuffled", config.order == "shuffled"),
        (f"seed{config.seed}", config.seed > 0),
        ("phases", config.oracle_phases),
        (f"limit{config.limit}", config.limit is not None),
        (f"steps{config.max_steps}", config.max_steps is not None),
        (f"tokens{config.max_tokens}", config.max_tokens is not None),
        (config.precision, config.precision != "fp32"),
        (config.engine, config.engine != "eager"),
        ("planner", config.planner != "none"),
        (config.belief, config.belief != "full"),
        (config.choice, config.choice != "bayes"),
        (config.prefer, config.prefer != "first"),
        (f"{config.instructions}-instructions", config.instructions != "own"),
    ):
        parts += [part] if applies else []
    if config.run in SCRIPTED:
        return Path("evaluations") / "-".join([config.run, *parts])
    return Path(config.run) / "evaluations" / "-".join(parts)


def _name_with_digest(path: Path) -> str:
    """Return the name of a file with a digest of its content: many banks are called `bank.safetensors`."""
    return f"{path.stem}-{hashlib.sha256(read_bytes(path)).hexdigest()[:8]}"


def _noting_resume(progress: ProgressCallback) -> ProgressCallback:
    """Return a progress callback that also prints a note if an earlier run has finished trajectories."""
    is_first = True

    def on_progress(finished: int, total: int) -> None:
        nonlocal is_first
        if is_first and finished == total:
            note(f"all {total} trajectories are finished already: nothing is run again")
        elif is_first and finished:
            note(f"continuing an interrupted evaluation: {finished} of {total} trajectories are finished")
        is_first = False
        progress(finished, total)

    return on_progress


def _as_text(path: Path | None) -> str | None:
    return None if path is None else str(path)
