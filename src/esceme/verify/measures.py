"""Scores of single episodes and whole files against the original evaluator's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from esceme.errors import WorldError
from esceme.files import read_json
from esceme.metrics import Array, Walks, cls, dtw, length, locate_walks, ndtw, spl
from esceme.tasks.episode import SUCCESS_WITHIN, Episode
from esceme.tasks.submission import Prediction, read_predictions
from esceme.verify.comparison import Comparison, Json, Report, Skipped, or_fault, outputs_of, records_of
from esceme.verify.references import References
from esceme.world.atlas import Atlas

FILES = r"(.*/)?metrics_(?P<task>r2r|r4r)_(?P<split>train|val_seen|val_unseen)(_\w+)?\.json"
TOLERANCE = 1e-9
INPUTS = ("instr_id", "scan", "gt_path", "pred_path")

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
    stored = read_json(path, dict[str, Json])
    found = re.fullmatch(FILES, name)
    task, split = (found["task"], found["split"]) if found else ("", "")
    comparison = Comparison(name)
    rows = records_of(stored, "rows")
    known = references.r4r_paths(split) if task == "r4r" else None
    episodes = references.episodes(split) if task == "r2r" else {}
    predictions = _predictions_of(rows, references) if task == "r2r" else None
    comparison.add("rows.instr_id (distinct)", len({row.get("instr_id") for row in rows}), len(rows), 0.0)
    for row in rows:
        comparison.add("rows", outputs_of(row, INPUTS), or_fault(_measured, row, references.atlas), TOLERANCE)
        if known is not None:
            comparison.add("rows.gt_path (is of R4R)", tuple(row.get("gt_path", ())) in known, True, 0.0)
        else:
            inputs = or_fault(_inputs, row, episodes, predictions)
            given = outputs_of(row, set(row) - set(INPUTS[1:]))
            comparison.add("rows", given, inputs, 0.0)
    whole = {"n", "n_scans", "aggregate", "extra"} & set(stored)
    if whole and predictions is None:
        reason = f"{', '.join(sorted(whole))}: the predictions they are of are not in the data folder"
        report.skipped.append(Skipped(name, reason))
    elif whole:
        ours = _aggregate(predictions or {}, episodes, references.atlas)
        comparison.add("", {key: stored[key] for key in whole}, {key: ours[key] for key in whole}, TOLERANCE)
    comparison.unknown |= set(stored) - {"source", "preds", "rows", "n", "n_scans", "aggregate", "extra"}
    comparison.add_to(report)


def _predictions_of(rows: Sequence[Json], references: References) -> dict[str, Prediction] | None:
    """The prediction file of the data folder that most of the rows were taken from, if there is one."""
    best, agreeing = None, 0
    for path in sorted((references.root / "predictions").glob("*.json")):
        predictions = read_predictions(path)
        alike = sum(
            list(predictions[row["instr_id"]].path) == row.get("pred_path")
            for row in rows
            if row.get("instr_id") in predictions
        )
        if alike > agreeing:
            best, agreeing = predictions, alike
    return best if 2 * agreeing > len(rows) else None


def _inputs(row: Json, episodes: Mapping[str, Episode], predictions: Mapping[str, Prediction] | None) -> Json:
    if row.get("instr_id") not in episodes:
        raise WorldError(f"R2R has no episode {row.get('instr_id')}")
    episode = episodes[row["instr_id"]]
    inputs = {"scan": episode.scene_id, "gt_path": list(episode.reference_path)}
    if predictions is None:
        return inputs | {"pred_path": row.get("pred_path")}
    return inputs | {"pred_path": [stand.viewpoint for stand in predictions[episode.episode_id].trajectory]}


def _measured(row: Json, atlas: Atlas) -> Json:
    walked, planned = (locate_walks([(row["scan"], row[key])], atlas) for key in ("pred_path", "gt_path"))
    return {key: float(value[0]) for key, value in _measures(walked, planned, atlas).items()}


def _measures(walked: Walks, planned: Walks, atlas: Atlas) -> dict[str, Array]:
    """The original's measures of each episode, under its own names."""
    metres, due = length(walked, atlas), length(planned, atlas)
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
        "spl": spl(success, metres, due),
        "oracle_success": (nearest < SUCCESS_WITHIN).astype(float),
        "DTW": warped,
        "nDTW": follow,
        "SDTW": success * follow,
        "CLS": cls(costs.min(axis=0), planned.count, walked=metres, planned=due),
    }


def _aggregate(predictions: Mapping[str, Prediction], episodes: Mapping[str, Episode], atlas: Atlas) -> Json:
    """The means over a whole file, and what the original counted about it."""
    chosen = [(episodes[name], prediction) for name, prediction in predictions.items()]
    stands = [[stand.viewpoint for stand in prediction.trajectory] for _, prediction in chosen]
    scenes = [episode.scene_id for episode, _ in chosen]
    walked = locate_walks(zip(scenes, stands, strict=True), atlas)
    planned = locate_walks(((each.scene_id, each.reference_path) for each, _ in chosen), atlas)
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
