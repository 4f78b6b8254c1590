"""Scores of single episodes and whole files against the original evaluator's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from esceme.errors import WorldError
from esceme.files import read_json
from esceme.metrics import Array, PaddedPaths, cls, dtw, ndtw, path_length, spl
from esceme.tasks.episode import SUCCESS_WITHIN, Episode
from esceme.tasks.submission import Prediction
from esceme.verify.comparison import Comparison, Json, Report, Skipped, or_fault, outputs_of
from esceme.verify.references import References
from esceme.world.atlas import Atlas

FILES = r"(.*/)?metrics_(?P<task>r2r|r4r)_(?P<split>train|val_seen|val_unseen)(_\w+)?\.json"
TOLERANCE = 1e-9
INPUTS = ("instr_id", "scan", "gt_path", "pred_path")
AGGREGATES = {"n", "n_scans", "aggregate", "extra"}
"""What a file says about all predictions together; it says all of these or none."""

PER_CENT = {
    "success": "sr",
    "oracle_success": "oracle_sr",
    "spl": "spl",
    "nDTW": "nDTW",
    "SDTW": "SDTW",
    "CLS": "CLS",
}
PLAIN = {
    "trajectory_steps": "steps",
    "trajectory_lengths": "lengths",
    "nav_error": "nav_error",
    "oracle_error": "oracle_error",
}


def compare_measures(name: str, path: Path, references: References, report: Report) -> None:
    """Compare `metrics_<task>_<split>….json`."""
    stored, atlas, comparison = read_json(path, dict[str, Json]), references.atlas, Comparison(name)
    found = re.fullmatch(FILES, name)
    task, split = (found["task"], found["split"]) if found else ("", "")
    rows = comparison.section(stored, "rows", list[dict[str, Json]])
    comparison.add_distinct("rows.instr_id", [row.get("instr_id") for row in rows])
    for row in rows:
        comparison.add("rows", outputs_of(row, INPUTS), or_fault(_measured, row, atlas), TOLERANCE)
    whole, predictions = AGGREGATES & set(stored), None
    if task == "r4r":
        _compare_paths(rows, references.r4r_paths(split), comparison)
    else:
        predictions = _predictions_of(rows, references)
        _compare_inputs(rows, references.episodes(split), predictions, comparison)
    if whole and predictions is None:
        reason = f"{', '.join(sorted(whole))}: the predictions they are of are not in the data folder"
        report.skipped.append(Skipped(name, reason))
    elif whole and predictions is not None:
        given = {key: stored.get(key) for key in AGGREGATES}
        ours = or_fault(_aggregate, predictions, references.episodes(split), atlas)
        comparison.add("", given, ours, TOLERANCE)
    comparison.unknown |= set(stored) - {"source", "preds", "rows"} - AGGREGATES
    comparison.add_to(report)


def _predictions_of(rows: Sequence[Json], references: References) -> Mapping[str, Prediction] | None:
    """The prediction file of the data folder that most of the rows were taken from, if there is one."""
    best, agreeing = None, 0
    for predictions in references.predictions:
        stated = [(predictions.get(f"{row.get('instr_id')}"), row.get("pred_path")) for row in rows]
        alike = sum(each is not None and list(each.path) == path for each, path in stated)
        if alike > agreeing:
            best, agreeing = predictions, alike
    return best if 2 * agreeing > len(rows) else None


def _compare_paths(rows: Sequence[Json], known: set[tuple[str, ...]], comparison: Comparison) -> None:
    """R4R's files number their paths as they like: each must be one of ours."""
    for row in rows:
        is_known = or_fault(lambda path: tuple(path) in known, row.get("gt_path"))
        comparison.add("rows.gt_path (is of R4R)", is_known, True, 0.0)


def _compare_inputs(
    rows: Sequence[Json],
    episodes: Mapping[str, Episode],
    predictions: Mapping[str, Prediction] | None,
    comparison: Comparison,
) -> None:
    """Scene and path of a row are those of its R2R episode, and the prediction's where that is known."""
    known = {"scan", "gt_path"} | ({"pred_path"} if predictions is not None else set())
    for row in rows:
        given = {key: value for key, value in row.items() if key in known}
        comparison.add("rows", given, or_fault(_inputs, row, episodes, predictions), 0.0)


def _inputs(row: Json, episodes: Mapping[str, Episode], predictions: Mapping[str, Prediction] | None) -> Json:
    if row.get("instr_id") not in episodes:
        raise WorldError(f"R2R has no episode {row.get('instr_id')}")
    episode = episodes[row["instr_id"]]
    inputs = {"scan": episode.scene_id, "gt_path": list(episode.reference_path)}
    if predictions is None:
        return inputs
    return inputs | {"pred_path": [stand.viewpoint for stand in predictions[episode.episode_id].trajectory]}


def _measured(row: Json, atlas: Atlas) -> Json:
    walked, planned = (
        PaddedPaths.of(atlas.locate_all([(row["scan"], row[key])])) for key in ("pred_path", "gt_path")
    )
    return {key: float(value[0]) for key, value in _measures(walked, planned, atlas).items()}


def _measures(walked: PaddedPaths, planned: PaddedPaths, atlas: Atlas) -> dict[str, Array]:
    """The original's measures of each episode, under its own names."""
    metres, due = path_length(walked, atlas), path_length(planned, atlas)
    costs = atlas.distance(walked.viewpoints[:, None], planned.viewpoints[None])
    warped = dtw(costs, walked.count, planned.count)
    follow = ndtw(warped, planned.count)
    error = atlas.distance(walked.end, planned.end)
    nearest = atlas.distance(walked.viewpoints, planned.end).min(axis=0)
    success = (error < SUCCESS_WITHIN).astype(float)
    return {
        "nav_error": error,
        "oracle_error": nearest,
        "trajectory_steps": walked.count - 1.0,
        "trajectory_lengths": metres,
        "success": success,
        "spl": spl(success, length=metres, reference_length=due),
        "oracle_success": (nearest < SUCCESS_WITHIN).astype(float),
        "DTW": warped,
        "nDTW": follow,
        "SDTW": success * follow,
        "CLS": cls(costs.min(axis=0), planned.count, length=metres, reference_length=due),
    }


def _aggregate(predictions: Mapping[str, Prediction], episodes: Mapping[str, Episode], atlas: Atlas) -> Json:
    """The means over a whole file, and what the original counted about it."""
    chosen = [(episodes[name], prediction) for name, prediction in predictions.items()]
    stands = [[stand.viewpoint for stand in prediction.trajectory] for _, prediction in chosen]
    scenes = [episode.scene_id for episode, _ in chosen]
    walked = PaddedPaths.of(atlas.locate_all(zip(scenes, stands, strict=True)))
    planned = PaddedPaths.of(atlas.locate_all((each.scene_id, each.reference_path) for each, _ in chosen))
    means = {key: float(value.mean()) for key, value in _measures(walked, planned, atlas).items()}
    return {
        "n": len(chosen),
        "n_scans": len({each.scene_id for each, _ in chosen}),
        "aggregate": {short: means[name] for name, short in PLAIN.items()}
        | {short: 100 * means[name] for name, short in PER_CENT.items()},
        "extra": {
            "n_zero_length_predictions": sum(len(path) == 1 for path in stands),
            "n_with_consecutive_duplicates": sum(
                any(a == b for a, b in zip(path, path[1:], strict=False)) for path in stands
            ),
        },
    }
