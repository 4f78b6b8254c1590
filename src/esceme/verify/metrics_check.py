"""Compare our metrics with those of the original evaluator, for single episodes and prediction files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from esceme.errors import WorldError
from esceme.files import read_json
from esceme.metrics import Array, PaddedPaths, cls, dtw, ndtw, path_length, spl
from esceme.tasks.episode import SUCCESS_WITHIN, Episode
from esceme.tasks.submission import Prediction
from esceme.verify.comparison import FileComparison, Json, value_or_error, without
from esceme.verify.fixtures import ReferenceData
from esceme.world.atlas import Atlas

FILES = r"(.*/)?metrics_(?P<task>r2r|r4r)_(?P<split>train|val_seen|val_unseen)(_\w+)?\.json"
TOLERANCE = 1e-9
INPUTS = ("instr_id", "scan", "gt_path", "pred_path")
AGGREGATES = {"n", "n_scans", "aggregate", "extra"}
"""Keys of a file whose values summarise all predictions; a file holds all of these keys or none."""

PERCENTAGES = {"success": "sr", "oracle_success": "oracle_sr"}
PERCENTAGES |= {name: name for name in ("spl", "nDTW", "SDTW", "CLS")}
MEANS = {"trajectory_steps": "steps", "trajectory_lengths": "lengths"}
MEANS |= {name: name for name in ("nav_error", "oracle_error")}
"""Name of a metric in the records of single episodes -> its name in the summary of all episodes."""


def check_metrics(path: Path, references: ReferenceData, comparison: FileComparison) -> None:
    """Compare the metrics in a reference file `metrics_<task>_<split>….json` with those of our code."""
    stored, atlas = read_json(path, dict[str, Json]), references.atlas
    match = re.fullmatch(FILES, comparison.file)
    assert match is not None
    is_r4r, split = match["task"] == "r4r", match["split"]
    r4r_paths = references.r4r_paths(split) if is_r4r else set()
    episodes = {} if is_r4r else references.episodes(split)
    rows = comparison.section(stored, "rows", list[dict[str, Json]])
    comparison.add_distinct("rows.instr_id", [row.get("instr_id") for row in rows])
    for row in rows:
        comparison.add("rows", without(row, INPUTS), value_or_error(_row_metrics, row, atlas), TOLERANCE)
    aggregates = AGGREGATES & set(stored)
    predictions = None if is_r4r else _predictions_of(rows, references)
    if is_r4r:
        _compare_r4r_inputs(rows, r4r_paths, comparison)
    else:
        _compare_r2r_inputs(rows, episodes, predictions, comparison)
    if aggregates and predictions is None:
        names = ", ".join(sorted(aggregates))
        comparison.skipped.append(f"{names}: the predictions they are of are not in the data folder")
    elif aggregates and predictions is not None:
        given = {key: stored.get(key) for key in AGGREGATES}
        ours = value_or_error(_aggregate_metrics, predictions, episodes, atlas)
        comparison.add("", given, ours, TOLERANCE)
    comparison.unknown |= set(stored) - {"source", "preds", "rows"} - AGGREGATES


def _predictions_of(rows: Sequence[Json], references: ReferenceData) -> Mapping[str, Prediction] | None:
    """Return the prediction file of the data folder that contains most paths in `rows`.

    `rows` are the records of single episodes. Returns None if no file contains more than half of the paths.
    """
    best, most_equal = None, 0
    for predictions in references.predictions:
        pairs = [(predictions.get(f"{row.get('instr_id')}"), row.get("pred_path")) for row in rows]
        equal = sum(prediction is not None and list(prediction.path) == path for prediction, path in pairs)
        if equal > most_equal:
            best, most_equal = predictions, equal
    return best if 2 * most_equal > len(rows) else None


def _compare_r4r_inputs(
    rows: Sequence[Json], known: set[tuple[str, ...]], comparison: FileComparison
) -> None:
    """Check that every reference path in `rows` is in `known`, the paths of R4R.

    Paths are compared instead of ids, because ids differ between R4R files.
    """
    for row in rows:
        is_known = value_or_error(lambda path: tuple(path) in known, row.get("gt_path"))
        comparison.add("rows.gt_path (is of R4R)", is_known, True, 0.0)


def _compare_r2r_inputs(
    rows: Sequence[Json],
    episodes: Mapping[str, Episode],
    predictions: Mapping[str, Prediction] | None,
    comparison: FileComparison,
) -> None:
    """Compare scene and paths of every record with its R2R episode and, if available, its prediction."""
    known = {"scan", "gt_path"} | ({"pred_path"} if predictions is not None else set())
    for row in rows:
        given = {key: value for key, value in row.items() if key in known}
        comparison.add("rows", given, value_or_error(_row_inputs, row, episodes, predictions), 0.0)


def _row_inputs(
    row: Json, episodes: Mapping[str, Episode], predictions: Mapping[str, Prediction] | None
) -> Json:
    """Return scene and paths that the record of an episode should have."""
    if row.get("instr_id") not in episodes:
        raise WorldError(f"R2R has no episode {row.get('instr_id')}")
    episode = episodes[row["instr_id"]]
    inputs = {"scan": episode.scene_id, "gt_path": list(episode.reference_path)}
    if predictions is None:
        return inputs
    return inputs | {"pred_path": [point.viewpoint for point in predictions[episode.episode_id].trajectory]}


def _row_metrics(row: Json, atlas: Atlas) -> Json:
    """Return our metrics of the paths in the record of an episode."""
    values = metrics_of_paths([row["scan"]], [row["pred_path"]], [row["gt_path"]], atlas)
    return {key: float(value[0]) for key, value in values.items()}


def metrics_of_paths(
    scenes: Sequence[str], paths: Sequence[Sequence[str]], references: Sequence[Sequence[str]], atlas: Atlas
) -> dict[str, Array]:
    """Return a dict from the original code's name of a metric to its values (B,), for paths of ids."""
    located = (
        PaddedPaths.from_paths(atlas.locate_all(zip(scenes, names, strict=True)))
        for names in (paths, references)
    )
    return _metrics_by_name(*located, atlas=atlas)


def _metrics_by_name(paths: PaddedPaths, references: PaddedPaths, *, atlas: Atlas) -> dict[str, Array]:
    """Return a dict from the original code's name of a metric to its values (B,) for B episodes."""
    length, reference_length = path_length(paths, atlas), path_length(references, atlas)
    costs = atlas.distance(paths.viewpoints[:, None], references.viewpoints[None])
    warped = dtw(costs, paths.count, references.count)
    normalised = ndtw(warped, references.count)
    error = atlas.distance(paths.end, references.end)
    nearest = atlas.distance(paths.viewpoints, references.end).min(axis=0)
    success = (error < SUCCESS_WITHIN).astype(float)
    return {
        "nav_error": error,
        "oracle_error": nearest,
        "trajectory_steps": paths.count - 1.0,
        "trajectory_lengths": length,
        "success": success,
        "spl": spl(success, length=length, reference_length=reference_length),
        "oracle_success": (nearest < SUCCESS_WITHIN).astype(float),
        "DTW": warped,
        "nDTW": normalised,
        "SDTW": success * normalised,
        "CLS": cls(costs.min(axis=0), references.count, length=length, reference_length=reference_length),
    }


def _aggregate_metrics(
    predictions: Mapping[str, Prediction], episodes: Mapping[str, Episode], atlas: Atlas
) -> Json:
    """Return the mean of every metric over a prediction file, and the counts that reference files hold."""
    chosen = [episodes[name] for name in predictions]
    scenes = [episode.scene_id for episode in chosen]
    names = [[point.viewpoint for point in prediction.trajectory] for prediction in predictions.values()]
    values = metrics_of_paths(scenes, names, [episode.reference_path for episode in chosen], atlas)
    means = {key: float(value.mean()) for key, value in values.items()}
    return {
        "n": len(chosen),
        "n_scans": len(set(scenes)),
        "aggregate": {short: means[name] for name, short in MEANS.items()}
        | {short: 100 * means[name] for name, short in PERCENTAGES.items()},
        "extra": {
            "n_zero_length_predictions": sum(len(path) == 1 for path in names),
            "n_with_consecutive_duplicates": sum(
                any(a == b for a, b in zip(path, path[1:], strict=False)) for path in names
            ),
        },
    }
