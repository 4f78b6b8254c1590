"""Figure of graph encoding."""

from __future__ import annotations

from xml.etree import ElementTree

from esceme.evaluation.history import MemoryHistory
from esceme.report.graph_encoding_figure import draw_graph_encoding, encoded_viewpoints
from esceme.report.memory_figure import MEMORY_EDGE
from esceme.world.graph import SceneGraph

GRAPH = SceneGraph.build(
    "toy",
    {"hall": (0, 0, 0), "den": (2, 0, 0), "bath": (4, 0, 0), "attic": (4, 2, 0)},
    [("hall", "den"), ("den", "bath"), ("bath", "attic")],
)
HISTORY = MemoryHistory(("a", "b"), (("hall", "den", "bath"), ("attic", "bath")))


def test_window_leaves_out_the_path_of_the_episode() -> None:
    assert encoded_viewpoints(HISTORY, 1, 1) == (["hall", "den"], ["bath", "attic"])
    assert encoded_viewpoints(HISTORY, 0, 0) == ([], [])


def test_tensor_has_an_entry_per_viewpoint_and_two_per_edge() -> None:
    root = ElementTree.fromstring(draw_graph_encoding(GRAPH, HISTORY, 1, 1))
    fills = [node.get("fill") for node in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert fills.count(MEMORY_EDGE) == 2 + 1  # hall - den in both directions, and the legend
