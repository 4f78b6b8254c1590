"""The command `esceme score`."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
from rich.markup import escape

from esceme.cli.console import TaskName, note, print_json, score_table, tables
from esceme.errors import ConfigError, DataError
from esceme.files import write_text
from esceme.metrics import Scores
from esceme.metrics import score as score_pairs
from esceme.tasks.catalogue import TASKS, SuccessRule
from esceme.tasks.episode import Episode
from esceme.tasks.reverie import read_objects
from esceme.tasks.split import read_split
from esceme.tasks.submission import check_predictions, match_predictions, read_predictions
from esceme.tasks.tours import Tour, check_tours, read_all_tours, read_tours
from esceme.world import Atlas


def score(
    task: TaskName,
    predictions: Path,
    annotations: Path,
    connectivity: Path,
    success: SuccessRule = "trusted",
    objects: Path | None = None,
    tours: Path | None = None,
    split: str | None = None,
    partial: bool = False,
    jumps: Literal["refuse", "shortest"] = "refuse",
    first_told: bool = False,
    bootstrap: int = 0,
    seed: int = 0,
    per_episode: Path | None = None,
    json: bool = False,
) -> int:
    """Score a prediction file.

    SPL is computed relative to the length of the reference path, as papers report it, and relative to the
    shortest distance from start to goal. Consecutive equal viewpoints are merged first.

    Examples:
        esceme score --task r2r --predictions p.json --annotations R2R_val_unseen.json --connectivity graphs
        esceme score --task cvdn --success end-panos --predictions p.json --annotations val_seen.json ...
        esceme score --task r2r ... --tours tours_iVLN.json --split val_unseen --bootstrap 1000 --json

    Args:
        task: the task of the annotations.
        predictions: trajectories, as json or json lines, in any common format.
        annotations: the annotation file of the split, as published.
        connectivity: the folder of navigation graphs.
        success: success rule of dialogs (cvdn): the end of the trusted path, or the end panoramas.
        objects: file of the objects visible from each viewpoint (required for reverie).
        tours: tour file; adds t_ndtw, t_sr and t_spl.
        split: split of the tour file; by default the split of the annotations.
        partial: score the episodes that have a prediction, instead of requiring all.
        jumps: whether steps between viewpoints without an edge are errors or shortest paths.
        first_told: also score only the first instruction of each path, in the order of the predictions. Later
            instructions repeat a path that an agent with memory may know.
        bootstrap: number of bootstrap samples of 95 % confidence intervals (paths are resampled); 0 for none.
        seed: seed of the bootstrap.
        per_episode: also write the values of every episode, as .csv, .jsonl, or else json.
        json: print one json object of plain fractions instead of a table.
    """
    _check_options(task, success, objects, tours, split)
    loaded = read_split(TASKS[task], annotations, connectivity)
    episodes, found = loaded.episodes, read_predictions(predictions)
    pairs = match_predictions(episodes, found, TASKS[task], file=predictions, partial=partial)
    if jumps == "refuse":
        check_predictions(pairs, loaded.graphs, file=predictions)
    split_tours = None if tours is None else _load_tours(tours, split, episodes)
    scores = score_pairs(
        pairs,
        Atlas(loaded.graphs.values()),
        success_rule=success,
        objects=None if objects is None else read_objects(objects),
        tours=split_tours,
        file=predictions,
        annotations=annotations,
    )
    _report_omissions(len(pairs), len(episodes), split_tours)
    intervals = scores.intervals(draws=bootstrap, seed=seed) if bootstrap else {}
    if per_episode is not None:
        _write_episode_values(per_episode, scores)
    first = {}
    if first_told:
        rank = {name: number for number, name in enumerate(found)}
        order = sorted(range(len(pairs)), key=lambda row: rank[pairs[row][1].episode_id])
        first = {"first told": scores.first_told(order).means()}
    if json:
        print_json(
            scores.means()
            | ({"ci95": intervals, "draws": bootstrap, "seed": seed} if bootstrap else {})
            | ({"first_told": first["first told"]} if first else {})
        )
    else:
        tables().print(score_table(f"{task}: {escape(predictions.name)}", scores.means(), intervals, first))
    return 0


def _load_tours(tours: Path, split: str | None, episodes: Sequence[Episode]) -> list[Tour]:
    """Return the tours of `split`, by default of the split that contains the episodes."""
    found = read_tours(tours, split or _find_split(tours, episodes))
    check_tours(found, episodes, tours)
    return found


def _report_omissions(num_scored: int, num_episodes: int, tours: Sequence[Tour] | None) -> None:
    if tours is not None and (on_tours := sum(map(len, tours))) < num_scored:
        omitted = f"{on_tours} of {num_scored} episodes are on tours"
        note(f"note: {omitted}; t_ndtw, t_sr and t_spl are theirs alone")
    if num_scored < num_episodes:
        note(f"note: {num_scored} of {num_episodes} episodes have a prediction; the rest is left out")


def _check_options(
    task: TaskName, success: SuccessRule, objects: Path | None, tours: Path | None, split: str | None
) -> None:
    """Raise `ConfigError` if an option has no effect for the task or a required option is missing."""
    if TASKS[task].scores_objects and objects is None:
        raise ConfigError("REVERIE scores need the objects visible from each viewpoint: give --objects FILE")
    if not TASKS[task].scores_objects and objects is not None:
        raise ConfigError(f"--objects belongs to reverie, not to {task}")
    if success not in TASKS[task].success_rules:
        raise ConfigError(f"--success {success} belongs to cvdn, not to {task}")
    if split is not None and tours is None:
        raise ConfigError(f"--split {split} chooses among tours: give --tours FILE as well")


def _find_split(tours: Path, episodes: Sequence[Episode]) -> str:
    """Return the split of a tour file that contains these episodes."""
    episode_ids = {episode.episode_id for episode in episodes}
    splits = read_all_tours(tours)
    matching = [
        split
        for split, tours_of in splits.items()
        if any(episode_ids & set(tour.episode_ids) for tour in tours_of)
    ]
    if len(matching) != 1:
        names = ", ".join(splits)
        raise DataError(f"{tours}: {len(matching)} of its splits ({names}) fit the annotations; use --split")
    return matching[0]


def _write_episode_values(path: Path, scores: Scores) -> None:
    rows = [
        {"id": name, **{key: float(values[row]) for key, values in scores.values.items()}}
        for row, name in enumerate(scores.episode_ids)
    ]
    if path.suffix == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return write_text(path, text.getvalue())
    lines = [msgspec.json.encode(row).decode() for row in rows]
    write_text(path, "\n".join(lines) + "\n" if path.suffix == ".jsonl" else f"[{','.join(lines)}]\n")
