"""What results look like: figures of scenes and routes."""

from esceme.report.floors import floors_of
from esceme.report.lanes import Route
from esceme.report.topdown import draw_scene

__all__ = ["Route", "draw_scene", "floors_of"]
