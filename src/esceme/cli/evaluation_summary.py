"""Printed results of `esceme evaluate`: tables or JSON, files, and notes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from msgspec import to_builtins
from rich.markup import escape

from esceme.cli.console import note, print_json, score_table, tables
from esceme.evaluation import EvaluationConfig, Result, by_visit
from esceme.evaluation.aggregate import first_told as restrict_to_first_told
from esceme.evaluation.evaluate import BANK, MAPS
from esceme.evaluation.orders import ORDERS_FILE, summarise_orders
from esceme.evaluation.result import PREDICTIONS, RESULT, scores_of
from esceme.evaluation.trace import TRACE
from esceme.tasks.catalogue import TASKS
from esceme.tasks.folder import DataFolder

COUNTS = "recomputed", "decisions"
FILES = {"result": RESULT, "predictions": PREDICTIONS, "bank": BANK, "maps": MAPS, "trace": TRACE}
"""Files that an evaluation may write, by the name under which they are printed."""


def print_result(
    config: EvaluationConfig, folder: Path, result: Result, draws: int, *, first_told: bool, json: bool
) -> None:
    """Print the scores, facts and files of an evaluation. `draws` is the number of bootstrap samples."""
    scored = bool(result.means)
    first = restrict_to_first_told(result).means if scored and first_told else None
    intervals = scores_of(result).intervals(draws=draws, seed=config.seed) if scored and draws else {}
    visits = by_visit(result)
    files = {name: folder / file for name, file in FILES.items() if (folder / file).is_file()}
    is_submittable = not scored and TASKS[str(config.task)].leaderboard and not config.selects_episodes
    submit = _submission_command(config, folder) if is_submittable else None
    if json:
        print_json(
            {
                "run": config.run,
                **{name: str(path) for name, path in files.items()},
                "facts": result.facts,
                "means": result.means,
                **({"ci95": intervals, "draws": draws} if intervals else {}),
                **({} if first is None else {"first_told": first}),
                "by_visit": [group._asdict() for group in visits],
                **({} if submit is None else {"submit": submit}),
            }
        )
    else:
        if scored:
            title = f"{config.task} {config.split}, memory {config.memory}: {escape(config.run)}"
            columns = {} if first is None else {"first told": first}
            tables().print(score_table(title, result.means, intervals, columns))
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
        reason = "on no tour" if config.tours else "not selected"
        note(f"note: {which} are {reason} and were not run: n counts the others")


def print_orders(
    config: EvaluationConfig, folder: Path, results: Sequence[Result], *, first_told: bool, json: bool
) -> None:
    """Print the scores of an evaluation in several orders, with their mean and standard deviation."""
    summary = summarise_orders(results)
    first = summarise_orders([restrict_to_first_told(result) for result in results]) if first_told else None
    if json:
        print_json(
            {
                "run": config.run,
                "folder": str(folder),
                **to_builtins(summary),
                **({} if first is None else {"first_told": {"means": first.means, "stds": first.stds}}),
            }
        )
        return
    title = f"{config.task} {config.split}, memory {config.memory}: {escape(config.run)}"
    columns = {f"seed {order.seed}": order.means for order in summary.orders}
    tables().print(
        score_table(f"{title}, {len(results)} orders", summary.means, {}, columns, stds=summary.stds)
    )
    if first is not None:
        columns = {f"seed {order.seed}": order.means for order in first.orders}
        tables().print(score_table(f"{title}, first told only", first.means, {}, columns, stds=first.stds))
    print(f"orders: {folder / ORDERS_FILE}")


def _format_facts(result: Result) -> str:
    facts = result.facts
    named = ("agent", "reader", "memory", "schedule", "batch", "order", "seed", "precision", "engine")
    shown = [f"{name} {facts[name]}" for name in (*named, "max_steps") if name in facts]
    if "margin" in facts:
        again, total = (sum(getattr(episode, name) or 0 for episode in result.episodes) for name in COUNTS)
        shown.append(f"{again} of {total} decisions computed again")
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
