"""What results look like: figures of scenes and routes, and curves."""

from esceme.report.curves import Curve, draw_curves
from esceme.report.floors import floors_of
from esceme.report.lanes import PathOverlay
from esceme.report.panorama import Sign, draw_panorama
from esceme.report.terminal import text_curve
from esceme.report.topdown import draw_scene

__all__ = [
    "Curve",
    "PathOverlay",
    "Sign",
    "draw_curves",
    "draw_panorama",
    "draw_scene",
    "floors_of",
    "text_curve",
]
