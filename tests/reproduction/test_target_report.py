"""Reports of targets: directions of differences, and our rows in the tables of the paper."""

from __future__ import annotations

import pytest

from esceme.report.paper import read_paper_tables
from esceme.reproduction.costs import SystemCosts
from esceme.reproduction.target_report import as_table, direction, format_directions, format_report
from esceme.reproduction.target_results import ReportRow, RowDifference, TargetResults


def difference(mean: float, low: float, high: float, against: str = "HAMT") -> RowDifference:
    return RowDifference(against=against, mean=mean, over_paths=(low, high), over_scenes=None)


def row(name: str, spl: float, **differences: RowDifference) -> ReportRow:
    columns = {f"{split}.{measure}": spl for split in ("val_seen", "val_unseen") for measure in ("sr", "spl")}
    return ReportRow(
        name=name,
        paper=name,
        task="r2r",
        memory="none",
        evaluations=3,
        values=columns,
        spread=dict.fromkeys(columns, 1.25),
        differences={name.replace("_spl", ".spl"): found for name, found in differences.items()},
        first_told=columns,
        first_told_differences={},
        runs=[],
    )


def results(target: str, *rows: ReportRow, scale: float = 1.0, **costs: SystemCosts) -> TargetResults:
    return TargetResults(
        target=target,
        title="A table",
        code=["0" * 64],
        version="0.1.0",
        data="1" * 64,
        seeds=3,
        scale=scale,
        limit=None,
        episodes={"r2r val_seen": 10, "r2r val_unseen": 20},
        rows=list(rows),
        costs={name.replace("_", " + "): cost for name, cost in costs.items()},
    )


@pytest.mark.parametrize(
    ("paper", "ours", "answer"),
    [
        (2.3, difference(10.0, 6.0, 14.0), "yes"),
        (-2.3, difference(10.0, 6.0, 14.0), "no"),
        (2.3, difference(-10.0, -14.0, -6.0), "no"),
        (2.3, difference(1.0, -1.0, 3.0), "within noise"),
        (0.0, difference(10.0, 6.0, 14.0), "no"),
    ],
)
def test_directions(paper: float, ours: RowDifference, answer: str) -> None:
    assert direction(paper, ours) == answer


def test_our_rows_stand_below_the_rows_of_the_paper() -> None:
    found = results(
        "tab:r2r_abl",
        row("HAMT", 40.0),
        row("ESceme (max pooling)", 50.0, val_unseen_spl=difference(10.0, 6.0, 14.0)),
    )
    table = as_table(found)
    assert len(table.rows) == len(read_paper_tables()["tab:r2r_abl"].rows) + 2
    assert "| ESceme (max pooling) | HAMT | val_unseen.spl | +2.3 | +10.0 [+6.0, +14.0] | yes |" in (
        format_directions(found)
    )
    report = format_report(found, "What differs.")
    assert "What differs." in report and "50.0 ± 1.2" in report and "first-told instructions only" in report
    assert "Shortened" not in report
    shortened = format_report(results("tab:r2r_abl", row("HAMT", 40.0), scale=0.25), "")
    assert "0.25 times the iterations" in shortened


def test_costs_of_memory_are_shown_as_additions() -> None:
    def cost(parameters: float, milliseconds: float) -> SystemCosts:
        return SystemCosts(
            parameters_mb=parameters,
            peak_gb=1.0,
            ms_per_step=milliseconds,
            steps=10,
            memory_bytes=0,
            memory_formula_bytes=0.0,
            reader_mb=0.0,
            reader_formula_mb=0.0,
        )

    rows = (row("HAMT", 40.0), row("HAMT + ESceme", 50.0))
    found = results("tab:r2r_arc", *rows, HAMT=cost(651.5, 60.0), HAMT_ESceme=cost(658.25, 61.5))
    own = {entry.system: entry.values for entry in as_table(found).rows if entry.source == "ours"}
    assert [float(own[name]["parameters_mb"]) for name in own] == [651.5, 6.75]
    assert float(own["HAMT + ESceme"]["ms_per_step"]) == 1.5
    report = format_report(found, "")
    assert "on the CPU" in report and "+-" not in report  # nothing is measured on a GPU
