"""Figure of a growing memory: moments, and what is drawn of them."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from esceme.errors import ConfigError
from esceme.evaluation.history import MemoryHistory
from esceme.report.memory_figure import MEMORY_EDGE, draw_memory, moments_after, moments_of_steps
from esceme.report.symbols import REMEMBERED
from esceme.world import SceneGraph

GRAPH = SceneGraph.build(
    "house",
    {"hall": (0, 0, 0), "den": (0, 3, 0), "bath": (3, 3, 0), "attic": (-3, 3, 3), "loft": (-3, 6, 3)},
    [("hall", "den"), ("den", "bath"), ("den", "attic"), ("attic", "loft")],
)
HISTORY = MemoryHistory(("1_0", "2_0", "3_0"), (("hall", "den"), ("bath", "den", "attic"), ("loft",)))


def count(drawing: str, **attributes: str) -> int:
    elements = ET.fromstring(drawing).iter()
    return sum(
        all(e.get(name.replace("_", "-")) == value for name, value in attributes.items()) for e in elements
    )


def test_moments_after_episodes_hold_what_was_stored_until_then() -> None:
    moments = moments_after(HISTORY, [2, 1, 50, 0])
    assert [moment.label for moment in moments] == [
        *("after 0 episodes", "after 1 episode", "after 2 episodes", "after 3 episodes")
    ]
    assert [sorted(moment.new) for moment in moments] == [[], ["den", "hall"], ["attic", "bath"], ["loft"]]


def test_steps_end_where_the_second_episode_meets_the_memory() -> None:
    moments = moments_of_steps(HISTORY)
    assert [moment.label for moment in moments] == [
        *("episode 1, step 1", "episode 1, step 2", "episode 2, step 1", "episode 2, step 2")
    ]
    assert [moment.current for moment in moments] == ["hall", "den", "bath", "den"]
    assert sorted(moments[-1].remembered) == ["bath", "den", "hall"] and moments[-1].chosen == "attic"


def test_figure_shows_remembered_viewpoints_and_edges_in_every_picture() -> None:
    drawing = draw_memory(GRAPH, moments_after(HISTORY, [1, 3]), title="<Memory>", caption="a & b")
    num_in_legend = 2
    assert count(drawing, fill=REMEMBERED) == 2 + 5 + num_in_legend
    assert "after 1 episode: 2 of 5" in drawing and "after 3 episodes: 5 of 5" in drawing
    assert count(drawing, stroke=MEMORY_EDGE) > 0 and "&lt;Memory&gt;" in drawing
    assert draw_memory(GRAPH, moments_after(HISTORY, [1, 3]), title="<Memory>", caption="a & b") == drawing


def test_results_without_memory_and_negative_numbers_are_errors() -> None:
    with pytest.raises(ConfigError, match="this result has no memory"):
        moments_of_steps(MemoryHistory(("1_0",), ((),)))
    with pytest.raises(ConfigError, match="none negative"):
        moments_after(HISTORY, [-1])
