"""Figures, and tables of the paper. This module exports figures that need no torch: charts and scenes."""

from esceme.report.charts import Curve, plot_curves
from esceme.report.floors import floor_indices
from esceme.report.paths import PathOverlay
from esceme.report.scene_figure import draw_scene

__all__ = [
    "Curve",
    "PathOverlay",
    "draw_scene",
    "floor_indices",
    "plot_curves",
]
