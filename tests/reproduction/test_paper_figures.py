"""Figures of the paper, drawn from evaluations of a small target."""

from __future__ import annotations

from dataclasses import replace

import pytest

from esceme.reproduction import TARGETS, ReproductionConfig, Target, make_plan, run_plan, write_target_report

pytestmark = pytest.mark.long


def test_every_figure_is_drawn_as_svg_and_pdf(
    target: Target, config: ReproductionConfig, started_jobs: list[str]
) -> None:
    names = {"none": "none (R2R)", "cold": "cold (R2R)"}
    rows = [
        replace(row, name=names[row.name], against=names.get(row.against, ""))
        for row in target.rows("semantic")
        if row.name in names
    ]
    figures = [
        replace(figure, rows=lambda kind: rows) for figure in TARGETS.values() if figure.draw is not None
    ]
    assert [figure.name for figure in figures] == [
        "fig:memory",
        "fig:ge",
        "fig:curves",
        "fig:qualitative",
        "fig:failures",
    ]
    plan = make_plan(figures, config)
    run_plan(plan, processes=1)
    for figure in figures:
        folder = write_target_report(plan, figure)
        drawn = {path.stem for path in folder.glob("*.svg")}
        assert drawn == {path.stem for path in folder.glob("*.pdf")}
        report = (folder / "report.md").read_text()
        assert all(f"({name}.svg)" in report for name in drawn)
        assert drawn or figure.name == "fig:qualitative"  # memory may help in no episode of this small world
