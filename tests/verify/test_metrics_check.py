"""`metrics_….json`: accepted unchanged, refused once any value is changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from esceme.tasks.r4r import join_paths, read_r2r_records
from esceme.verify import metrics_check
from esceme.verify.comparison import VerificationReport
from esceme.verify.fixtures import ReferenceData
from fixtures.corrupted_files import (
    additional_keys,
    junk_values,
    missing_keys,
    read_stored,
    slight_changes,
    write_stored,
)

R2R, R4R = "metrics_r2r_val_unseen.json", "metrics_r4r_val_seen_synthetic.json"
# Changes that are not noticed: remarks on the source of numbers and predictions; and the number and order of
# rows, which are independent.
FREE = {"source: another", "preds: another", "rows: swapped", "rows: one fewer"}


@pytest.fixture(scope="module")
def r2r_file(toy: ReferenceData) -> dict[str, Any]:
    """A file of the published form about predictions in the toy world: our own numbers, to be corrupted."""
    (predictions,), episodes = toy.predictions, toy.episodes("val_unseen")
    rows = [
        {
            "instr_id": name,
            "scan": episodes[name].scene_id,
            "gt_path": list(episodes[name].reference_path),
            "pred_path": list(predictions[name].path),
        }
        for name in list(predictions)[3:12]
    ]
    return {
        "source": "ourselves",
        "preds": "predictions/toy.json",
        "rows": [row | metrics_check._row_metrics(row, toy.atlas) for row in rows],
        **metrics_check._aggregate_metrics(predictions, episodes, toy.atlas),
    }


@pytest.fixture(scope="module")
def r4r_file(toy: ReferenceData) -> dict[str, Any]:
    """Synthetic predictions for R4R: beginnings of the paths. No aggregate is stored."""
    records = read_r2r_records(toy.root / "R2R" / "R2R_val_seen.json", toy.graphs)
    rows = [
        {
            "instr_id": f"{number}_0",
            "scan": record.scan,
            "gt_path": record.path,
            "pred_path": record.path[: 4 + number % 6],
        }
        for number, record in enumerate(list(join_paths(records, toy.graphs))[:8])
    ]
    return {"source": "ourselves", "rows": [row | metrics_check._row_metrics(row, toy.atlas) for row in rows]}


ReportOn = Callable[..., VerificationReport]


@pytest.fixture(params=[R2R, R4R])
def file(
    request: pytest.FixtureRequest, r2r_file: dict[str, Any], r4r_file: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """A file's name and content."""
    return request.param, r2r_file if request.param == R2R else r4r_file


def linked(folder: Path, toy: ReferenceData, *names: str) -> ReferenceData:
    """A data folder that holds only some parts of the toy world."""
    for name in names:
        (folder / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "data" / name).symlink_to(toy.root / name)
    return ReferenceData(folder / "data")


def test_our_own_numbers_are_accepted(file: tuple[str, dict[str, Any]], report_on: ReportOn) -> None:
    report = report_on(*file)
    assert report.exit_code == 0, (report.rows, report.skipped)


def test_no_value_can_be_changed_unnoticed(file: tuple[str, dict[str, Any]], report_on: ReportOn) -> None:
    name, content = file
    codes = {what: report_on(name, corrupted).exit_code for what, corrupted in slight_changes(content)}
    assert {what for what, code in codes.items() if code != 1} == FREE & set(codes)
    assert len(codes) > (30 if name == R2R else 15)


@pytest.mark.parametrize("corrupt", [junk_values, missing_keys])
def test_invalid_and_missing_values_are_reported_and_raise_nothing_else(
    file: tuple[str, dict[str, Any]], report_on: ReportOn, corrupt: Callable[[Any], Any]
) -> None:
    name, content = file
    codes = [(kind, report_on(name, corrupted).exit_code) for kind, corrupted in corrupt(content)]
    # Remarks are free; R4R's files number their paths in different ways, so that its ids must only differ.
    free = {"source", "preds"} if name == R2R else {"source", "rows[].instr_id"}
    assert {kind for kind, code in codes if code not in (1, 3)} == free


def test_an_unknown_key_is_named_and_the_rest_compared(r2r_file: dict[str, Any], report_on: ReportOn) -> None:
    for kind, corrupted in additional_keys(r2r_file):
        report = report_on(R2R, corrupted)
        assert report.exit_code == 3, kind
        named = kind.replace("[]", "")
        assert report.skipped[0].reason == f"unknown to this version, not compared: {named}"


def test_rows_alone_are_enough(r2r_file: dict[str, Any], report_on: ReportOn) -> None:
    assert report_on(R2R, {"rows": r2r_file["rows"]}).exit_code == 0


def test_without_the_predictions_their_aggregate_is_skipped(
    r2r_file: dict[str, Any], toy: ReferenceData, tmp_path: Path, report_on: ReportOn
) -> None:
    data = linked(tmp_path, toy, "connectivity", "R2R")
    report = report_on(R2R, r2r_file, data)
    assert report.exit_code == 3
    assert report.skipped[0].reason.startswith("aggregate, extra, n, n_scans: the predictions they are of")
    quantities = {row.quantity for row in report.rows}
    assert {"rows.nDTW", "rows.gt_path"} <= quantities
    assert "rows.pred_path" not in quantities  # it would be compared with itself
    assert report_on(R2R, {"rows": r2r_file["rows"]}, data).exit_code == 0


@pytest.mark.parametrize("content", ["{}", "[", "[]", '[{"instr_id": "1_0"}]', "\x00"])
def test_other_json_files_among_the_predictions_are_ignored(
    r2r_file: dict[str, Any], toy: ReferenceData, tmp_path: Path, report_on: ReportOn, content: str
) -> None:
    data = linked(tmp_path, toy, "connectivity", "R2R", "predictions/toy.json")
    (data.root / "predictions" / "a_note.json").write_text(content)
    assert report_on(R2R, r2r_file, data).exit_code == 0


def test_predictions_of_more_than_the_split_are_noticed(
    r2r_file: dict[str, Any], toy: ReferenceData, tmp_path: Path, report_on: ReportOn
) -> None:
    data = linked(tmp_path, toy, "connectivity", "R2R")
    predicted = read_stored(toy.root / "predictions" / "toy.json")
    predicted.append(predicted[0] | {"instr_id": "999999_0"})
    write_stored(data.root / "predictions" / "more.json", predicted)
    assert report_on(R2R, r2r_file, data).exit_code == 1


def test_the_data_may_have_hamts_layout(
    r2r_file: dict[str, Any], toy: ReferenceData, tmp_path: Path, report_on: ReportOn
) -> None:
    data = tmp_path / "data"
    (data / "R2R" / "annotations").mkdir(parents=True)
    (data / "R2R" / "connectivity").symlink_to(toy.root / "connectivity")
    (data / "predictions").symlink_to(toy.root / "predictions")
    plain = toy.root / "R2R" / "R2R_val_unseen.json"
    (data / "R2R" / "annotations" / "R2R_val_unseen_enc.json").symlink_to(plain)
    assert report_on(R2R, r2r_file, ReferenceData(data)).exit_code == 0
