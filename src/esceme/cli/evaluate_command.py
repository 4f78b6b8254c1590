"""The command `esceme evaluate`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

import tyro
from rich.markup import escape

from esceme.cli.console import TaskName, note, print_json, progress_bar, score_table, tables
from esceme.errors import ConfigError
from esceme.evaluation import EvaluationConfig, Protocol, Result, by_visit
from esceme.evaluation import evaluate as run_evaluation
from esceme.evaluation.context import SCRIPTED, Precision
from esceme.evaluation.evaluate import BANK, ProgressCallback
from esceme.evaluation.result import PREDICTIONS, RESULT, scores_of
from esceme.evaluation.schedule import ScheduleName
from esceme.runs import read_navigator_config
from esceme.tasks.catalogue import TASKS
from esceme.tasks.folder import DataFolder, default_data

DRAWS = 1000


def evaluate(
    run: tyro.conf.Positional[str],
    /,
    split: str,
    memory: Protocol,
    task: TaskName | None = None,
    bank: Path | None = None,
    tours: Path | None = None,
    oracle_phases: bool = False,
    schedule: ScheduleName = "lanes",
    order: Literal["file", "shuffled"] = "file",
    batch: int = 8,
    processes: int = 1,
    seed: int = 0,
    data: Path | None = None,
    features: Path | None = None,
    max_steps: int | None = None,
    max_tokens: int | None = None,
    precision: Precision = "fp32",
    out: Path | None = None,
    bootstrap: int = DRAWS,
    json: bool = False,
) -> int:
    """Run a split under a memory protocol, and score it.

    With the schedule `lanes`, the episodes of a scene run one after the other and scenes run side by side:
    the scores do not depend on --batch or --processes. Finished trajectories are kept; the same command
    continues an interrupted evaluation. The result file records everything that determines the scores.

    Examples:
        esceme evaluate runs/esceme-r2r --split val_unseen --memory cold
        esceme evaluate runs/esceme-r2r --split val_unseen --memory tour --tours tours_iVLN.json
        esceme evaluate runs/hamt-r2r --split val_unseen --memory none --tours tours_iVLN.json
        esceme evaluate runs/esceme-r2r --split val_seen --memory warm --bank bank.safetensors --processes 4
        esceme evaluate random --split val_unseen --memory none --data datasets --json

    Args:
        run: a run folder, or a scripted agent: random, shortest or stop.
        split: the split of the task.
        memory: the memory protocol: none (for agents without a reader), cold (ESceme: empty at the start of
            the split), two-pass (ESceme*: the split is run twice), episodic, tour, warm (starts with --bank),
            or a control: masked (recalls zeros), oracle (everything remembered before the start).
        task: by default the task of the run.
        bank: file of stored memories with which the protocol `warm` starts.
        tours: a file of tours (IVLN), which the episodes follow under any protocol; adds t_ndtw, t_sr, t_spl.
        oracle_phases: on tours, also remember the paths to an episode's goal and to the next start.
        schedule: lanes, or interleaved: batches of mixed scenes as in the released code, in one process.
        order: the order of the episodes of a scene, with the schedule lanes.
        batch: the number of episodes that run side by side.
        processes: the number of processes that share the scenes.
        seed: seed of shuffled orders, of the random agent and of the bootstrap.
        data: the data folder; by default ESCEME_DATA, else ./datasets.
        features: the feature file, where the data folder has several.
        max_steps: maximum number of decisions per episode; by default that of the run.
        max_tokens: maximum number of token ids per instruction; by default that of the run.
        precision: number format of the network; with bf16, decisions may depend on --batch.
        out: the folder of trajectories, predictions, scores and memories; by default in RUN/evaluations.
        bootstrap: number of bootstrap samples of 95 % confidence intervals (paths are resampled); 0 for none.
        json: print one JSON object of plain fractions instead of a table.
    """
    if bootstrap < 0:
        raise ConfigError(f"--bootstrap {bootstrap}: expected the number of samples, 0 for none")
    config = EvaluationConfig(
        run=run,
        data=str(data or default_data()),
        split=split,
        memory=memory,
        task=task or ("r2r" if run in SCRIPTED else read_navigator_config(Path(run)).task),
        schedule=schedule,
        batch=batch,
        seed=seed,
        order=order,
        bank=_as_text(bank),
        tours=_as_text(tours),
        oracle_phases=oracle_phases,
        features=_as_text(features),
        max_steps=max_steps,
        max_tokens=max_tokens,
        precision=precision,
    )
    folder = out or default_folder(config)
    with progress_bar(f"{config.task} {split}, {memory}") as progress:
        on_progress = _noting_resume(progress)
        result = run_evaluation(config, folder, processes=processes, on_progress=on_progress, note=note)
    _print_result(config, folder, result, bootstrap, json=json)
    return 0


def default_folder(config: EvaluationConfig) -> Path:
    """Return the output folder if --out is not given: inside the run folder, named after the settings."""
    parts = [f"{config.task}", config.split, config.memory]
    parts += [Path(file).stem for file in (config.bank, config.tours, config.features) if file is not None]
    depends_on_batch = config.schedule == "interleaved" or config.precision != "fp32"
    for part, applies in (
        ("interleaved", config.schedule == "interleaved"),
        (f"batch{config.batch}", depends_on_batch),
        ("shuffled", config.order == "shuffled"),
        (f"seed{config.seed}", config.seed > 0),
        ("phases", config.oracle_phases),
        (f"steps{config.max_steps}", config.max_steps is not None),
        (f"tokens{config.max_tokens}", config.max_tokens is not None),
        (config.precision, config.precision != "fp32"),
    ):
        parts += [part] if applies else []
    if config.run in SCRIPTED:
        return Path("evaluations") / "-".join([config.run, *parts])
    return Path(config.run) / "evaluations" / "-".join(parts)


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


def _print_result(config: EvaluationConfig, folder: Path, result: Result, draws: int, *, json: bool) -> None:
    scored = bool(result.means)
    intervals = scores_of(result).intervals(draws=draws, seed=config.seed) if scored and draws else {}
    visits = by_visit(result)
    files = {
        name: folder / file
        for name, file in (("result", RESULT), ("predictions", PREDICTIONS), ("bank", BANK))
        if (folder / file).is_file()
    }
    submit = (
        None if scored or TASKS[str(config.task)].leaderboard is None else _submission_command(config, folder)
    )
    if json:
        print_json(
            {
                "run": config.run,
                **{name: str(path) for name, path in files.items()},
                "facts": result.facts,
                "means": result.means,
                **({"ci95": intervals, "draws": draws} if intervals else {}),
                "by_visit": [group._asdict() for group in visits],
                **({} if submit is None else {"submit": submit}),
            }
        )
    else:
        if scored:
            title = f"{config.task} {config.split}, memory {config.memory}: {escape(config.run)}"
            tables().print(score_table(title, result.means, intervals))
        print(_format_facts(result))
        if visits:
            print("spl by visit: " + ", ".join(_format_visits(*group) for group in visits))
        for name, path in files.items():
            print(f"{name}: {path}")
    if not scored:
        note(f"the goals of '{config.split}' are withheld, so nothing is scored; the predictions are ready")
        if submit is not None:
            note(f"to submit them: {submit}")
    if left_out := result.facts.get("left_out"):
        which = f"{left_out} episodes of {config.split}"
        note(f"note: {which} are on no tour and were not run: n counts the others")


def _format_facts(result: Result) -> str:
    facts = result.facts
    named = ("agent", "reader", "memory", "schedule", "batch", "order", "seed", "precision", "max_steps")
    shown = [f"{name} {facts[name]}" for name in named if name in facts]
    shown += ["with oracle phases"] if facts.get("oracle_phases") else []
    return ", ".join(shown + [f"{name} {digest[:8]}" for name, digest in facts["hashes"].items()])


def _format_visits(first: int, last: int, mean: float, episodes: int) -> str:
    visits = f"{first}" if first == last else f"{first}-{last}"
    return f"{visits}: {100 * mean:.1f} (n {episodes})"


def _submission_command(config: EvaluationConfig, folder: Path) -> str:
    """Return the command line that converts the predictions to a leaderboard submission."""
    data = DataFolder(config.data)
    options = {
        "task": config.task,
        "predictions": folder / PREDICTIONS,
        "annotations": data.annotations(str(config.task), config.split),
        "connectivity": data.connectivity,
        "out": folder / f"submission{TASKS[str(config.task)].submission_suffix}",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return shlex.join(["esceme", "submit", *words])


def _as_text(path: Path | None) -> str | None:
    return None if path is None else str(path)
