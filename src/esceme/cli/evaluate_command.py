"""`esceme evaluate`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import tyro
from rich.markup import escape

from esceme.cli.console import TaskName, counting, note, print_json, score_table, tables
from esceme.errors import ConfigError
from esceme.evaluation import EvaluationConfig, Protocol, Result, by_visit, evaluate_in_processes
from esceme.evaluation.evaluate import BANK
from esceme.evaluation.options import SCRIPTED, Precision
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
    """Let a run walk a split under a memory protocol, and score it.

    By the schedule `lanes`, the walks of a scene follow each other and scenes run side by side: the scores do
    not depend on --batch or --processes. Walks are kept as they end; started again after an interruption, the
    same evaluation goes on where it was. The result file records all that determines it.

    Examples:
        esceme evaluate runs/esceme-r2r --split val_unseen --memory cold
        esceme evaluate runs/esceme-r2r --split val_unseen --memory tour --tours tours_iVLN.json
        esceme evaluate runs/hamt-r2r --split val_unseen --memory none --tours tours_iVLN.json
        esceme evaluate runs/esceme-r2r --split val_seen --memory warm --bank bank.safetensors --processes 4
        esceme evaluate random --split val_unseen --memory none --data ../datasets --json

    Args:
        run: a run folder, or a scripted agent: random, shortest or stop.
        split: which split of the task.
        memory: how long a memory lives: none (for agents that read none), cold (ESceme: kept through the
            split), two-pass (ESceme*: the split lived twice), episodic, tour, warm (begins with --bank), or a
            control: masked (recalls zeros), oracle (everything remembered beforehand).
        task: by default the one the run was made for.
        bank: the memories that `warm` begins with.
        tours: a file of tours (IVLN), which the episodes follow under any protocol; adds t_ndtw, t_sr, t_spl.
        oracle_phases: on tours, also remember the ways to an episode's goal and to the next start.
        schedule: lanes, or interleaved as the released code does it (batches share writes; no --processes).
        order: how a scene's episodes follow each other in lanes.
        batch: how many walk side by side.
        processes: how many processes share out the scenes.
        seed: of shuffled orders, of the random agent and of the bootstrap.
        data: the data folder; by default ESCEME_DATA, else ./datasets.
        features: the feature file, where the data folder has several.
        max_steps: decisions per episode; by default as the run was made.
        max_tokens: words per instruction; by default as the run was made.
        precision: bf16 may change decisions, and then --batch may, too.
        out: where walks, predictions, scores and memories go; by default a folder in RUN/evaluations.
        bootstrap: draws for 95 % confidence intervals (paths are resampled); 0 for none.
        json: print one json object of plain fractions instead of a table.
    """
    if bootstrap < 0:
        raise ConfigError(f"--bootstrap {bootstrap}: expected the number of draws, 0 for none")
    plan = EvaluationConfig(
        run=run,
        data=str(data or default_data()),
        split=split,
        memory=memory,
        task=task or ("r2r" if run in SCRIPTED else read_navigator_config(Path(run)).task),
        schedule=schedule,
        batch=batch,
        seed=seed,
        order=order,
        bank=_text(bank),
        tours=_text(tours),
        oracle_phases=oracle_phases,
        features=_text(features),
        max_steps=max_steps,
        max_tokens=max_tokens,
        precision=precision,
    )
    folder = out or default_folder(plan)
    with counting(f"{plan.task} {split}, {memory}") as tell:
        result = evaluate_in_processes(plan, folder, processes=processes, report=_watched(tell))
    _print(plan, folder, result, bootstrap, json=json)
    if left_out := result.facts.get("left_out"):
        note(f"note: {left_out} episodes of {split} are on no tour and were not lived: n counts the others")
    return 0


def default_folder(plan: EvaluationConfig) -> Path:
    """Where an evaluation goes by itself: named by what was chosen, in the run's folder if it has one."""
    chosen = {
        "interleaved": plan.schedule == "interleaved",
        f"batch{plan.batch}": plan.schedule == "interleaved" or plan.precision != "fp32",
        "shuffled": plan.order == "shuffled",
        f"seed{plan.seed}": plan.seed > 0,
        "phases": plan.oracle_phases,
        f"steps{plan.max_steps}": plan.max_steps is not None,
        f"tokens{plan.max_tokens}": plan.max_tokens is not None,
        plan.precision: plan.precision != "fp32",
    }
    read = [Path(file).stem for file in (plan.bank, plan.tours, plan.features) if file is not None]
    parts = [f"{plan.task}", plan.split, plan.memory, *read, *(name for name, told in chosen.items() if told)]
    if plan.run in SCRIPTED:
        return Path("evaluations") / "-".join([plan.run, *parts])
    return Path(plan.run) / "evaluations" / "-".join(parts)


def _watched(tell: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Tell on, and say once where walks were there before."""
    told: list[int] = []

    def report(done: int, total: int) -> None:
        if not told and done == total:
            note(f"all {total} walks are there already: nothing is lived again")
        elif not told and done:
            note(f"going on with an evaluation that was interrupted: {done} of {total} walks are there")
        told.append(done)
        tell(done, total)

    return report


def _print(plan: EvaluationConfig, folder: Path, result: Result, draws: int, *, json: bool) -> None:
    scored = bool(result.means)
    intervals = scores_of(result).intervals(draws=draws, seed=plan.seed) if scored and draws else {}
    visits = by_visit(result)
    files = {
        name: folder / file
        for name, file in (("result", RESULT), ("predictions", PREDICTIONS), ("bank", BANK))
        if (folder / file).is_file()
    }
    submit = None if scored or TASKS[str(plan.task)].leaderboard is None else _submission(plan, folder)
    if json:
        print_json(
            {
                "run": plan.run,
                **{name: str(path) for name, path in files.items()},
                "facts": result.facts,
                "means": result.means,
                **({"ci95": intervals, "draws": draws} if intervals else {}),
                "by_visit": [each._asdict() for each in visits],
                **({} if submit is None else {"submit": submit}),
            }
        )
    else:
        if scored:
            title = f"{plan.task} {plan.split}, memory {plan.memory}: {escape(plan.run)}"
            tables().print(score_table(title, result.means, intervals))
        print(_facts(result))
        if visits:
            print("spl by visit: " + ", ".join(_group(*each) for each in visits))
        for name, path in files.items():
            print(f"{name}: {path}")
    if not scored:
        note(f"the goals of '{plan.split}' are withheld, so nothing is scored; the predictions are ready")
        if submit is not None:
            note(f"to submit them: {submit}")


def _facts(result: Result) -> str:
    facts = result.facts
    named = ("agent", "reader", "memory", "schedule", "batch", "order", "seed", "precision", "max_steps")
    stated = [f"{name} {facts[name]}" for name in named if name in facts]
    stated += ["with oracle phases"] if facts.get("oracle_phases") else []
    return ", ".join(stated + [f"{name} {each[:8]}" for name, each in facts["hashes"].items()])


def _group(first: int, last: int, mean: float, episodes: int) -> str:
    visits = f"{first}" if first == last else f"{first}-{last}"
    return f"{visits}: {100 * mean:.1f} (n {episodes})"


def _submission(plan: EvaluationConfig, folder: Path) -> str:
    """The command that makes a leaderboard's file of the predictions."""
    data = DataFolder(plan.data)
    options = {
        "task": plan.task,
        "predictions": folder / PREDICTIONS,
        "annotations": data.annotations(str(plan.task), plan.split),
        "connectivity": data.connectivity,
        "out": folder / f"submission{TASKS[str(plan.task)].submission_suffix}",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return shlex.join(["esceme", "submit", *words])


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
