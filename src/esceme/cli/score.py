"""`esceme score`."""

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
    bootstrap: int = 0,
    seed: int = 0,
    per_episode: Path | None = None,
    json: bool = False,
) -> int:
    """Score a prediction file with every measure of the field.

    Both forms of SPL are always given: against the length of the reference path, as the field reports it, and
    against the shortest distance from start to goal. Turns on the spot are merged first.

    Examples:
        esceme score --task r2r --predictions p.json --annotations R2R_val_unseen.json --connectivity graphs
        esceme score --task cvdn --success end-panos --predictions p.json --annotations val_seen.json ...
        esceme score --task r2r ... --tours tours_iVLN.json --split val_unseen --bootstrap 1000 --json

    Args:
        task: which task the annotations are of.
        predictions: trajectories, json or json lines, in any form the field writes.
        annotations: the split's annotation file, as published.
        connectivity: the folder of navigation graphs.
        success: what counts as success in a dialog (cvdn): the end of the trusted path, or the end panoramas.
        objects: which objects are seen from where (reverie: needed).
        tours: tours of the split; adds t_ndtw, t_sr and t_spl of the episodes that are on them.
        split: which split of the tours file; by default the one that the annotations belong to.
        partial: score the episodes that have a prediction, instead of asking for all.
        jumps: what to do about steps between viewpoints that share no edge.
        bootstrap: draws for 95 % confidence intervals (paths are resampled); 0 for none.
        seed: of the bootstrap.
        per_episode: also write every episode's values: .csv, .jsonl, otherwise json.
        json: print one json object of plain fractions instead of a table.
    """
    _require_sense(task, success, objects, tours, split)
    loaded = read_split(TASKS[task], annotations, connectivity)
    episodes, found = loaded.episodes, read_predictions(predictions)
    pairs = match_predictions(episodes, found, TASKS[task], file=predictions, partial=partial)
    if jumps == "refuse":
        check_predictions(pairs, loaded.graphs, file=predictions)
    visits = None if tours is None else _visits(tours, split, episodes)
    scores = score_pairs(
        pairs,
        Atlas(loaded.graphs.values()),
        success_rule=success,
        objects=None if objects is None else read_objects(objects),
        tours=visits,
        file=predictions,
        annotations=annotations,
    )
    _say_what_is_left_out(len(pairs), len(episodes), visits)
    intervals = scores.intervals(draws=bootstrap, seed=seed) if bootstrap else {}
    if per_episode is not None:
        _write_values(per_episode, scores)
    if json:
        print_json(
            scores.means() | ({"ci95": intervals, "draws": bootstrap, "seed": seed} if bootstrap else {})
        )
    else:
        tables().print(score_table(f"{task}: {escape(predictions.name)}", scores.means(), intervals))
    return 0


def _visits(tours: Path, split: str | None, episodes: Sequence[Episode]) -> list[Tour]:
    """The tours of a split, by default of the one that the episodes belong to."""
    visits = read_tours(tours, split or _split_of(tours, episodes))
    check_tours(visits, episodes, tours)
    return visits


def _say_what_is_left_out(scored: int, asked: int, visits: Sequence[Tour] | None) -> None:
    if visits is not None and (on_tours := sum(map(len, visits))) < scored:
        note(f"note: {on_tours} of {scored} episodes are on tours; t_ndtw, t_sr and t_spl are theirs alone")
    if scored < asked:
        note(f"note: {scored} of {asked} episodes have a prediction; the rest is left out")


def _require_sense(
    task: TaskName, success: SuccessRule, objects: Path | None, tours: Path | None, split: str | None
) -> None:
    """Raise `ConfigError` for an option that would have no effect, and for one that is needed."""
    if TASKS[task].scores_objects and objects is None:
        raise ConfigError("REVERIE counts success by the objects in sight: give --objects FILE")
    if not TASKS[task].scores_objects and objects is not None:
        raise ConfigError(f"--objects belongs to reverie, not to {task}")
    if success not in TASKS[task].success_rules:
        raise ConfigError(f"--success {success} belongs to cvdn, not to {task}")
    if split is not None and tours is None:
        raise ConfigError(f"--split {split} chooses among tours: give --tours FILE as well")


def _split_of(tours: Path, episodes: Sequence[Episode]) -> str:
    """The split of a tour file that these episodes belong to."""
    annotated = {episode.episode_id for episode in episodes}
    splits = read_all_tours(tours)
    fitting = [
        split for split, each in splits.items() if any(annotated & set(tour.episode_ids) for tour in each)
    ]
    if len(fitting) != 1:
        names = ", ".join(splits)
        raise DataError(f"{tours}: {len(fitting)} of its splits ({names}) fit the annotations; use --split")
    return fitting[0]


def _write_values(path: Path, scores: Scores) -> None:
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
