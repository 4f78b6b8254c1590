"""Panels: one scale, no overlap, within the page."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from esceme.report.panels import WIDTH, Bounds, Panel, arrange, extent

sides = st.floats(1, 90)
floors = st.lists(
    st.tuples(st.floats(-50, 50), st.floats(-50, 50), sides, sides, st.booleans()), min_size=1, max_size=6
)


def panels_of(floors: list[tuple[float, float, float, float, bool]]) -> list[Panel]:
    return [
        Panel(
            floor=n,
            heading=f"Floor {n + 1}",
            bounds=Bounds(west, south, west + width, south + height),
            thumbnail=small and n > 0,
        )
        for n, (west, south, width, height, small) in enumerate(floors)
    ]


@settings(deadline=None, derandomize=True)
@given(floors)
def test_panels_do_not_overlap_and_fit_the_page(
    floors: list[tuple[float, float, float, float, bool]],
) -> None:
    placed = arrange(panels_of(floors))
    assert sorted(panel.floor for panel in placed) == list(range(len(floors)))
    assert extent(placed)[0] <= WIDTH
    for n, a in enumerate(placed):
        assert a.x >= 0 and a.top >= 0 and a.y >= a.top
        for b in placed[:n]:
            beside = a.x >= b.x + b.width or b.x >= a.x + a.width
            below = a.top >= b.y + b.height or b.top >= a.y + a.height
            assert beside or below


@settings(deadline=None, derandomize=True)
@given(floors)
def test_all_floors_have_one_scale_and_thumbnails_a_smaller_one(
    floors: list[tuple[float, float, float, float, bool]],
) -> None:
    placed = arrange(panels_of(floors))
    large = {panel.scale for panel in placed if not panel.thumbnail}
    small = {panel.scale for panel in placed if panel.thumbnail}
    assert len(large) == 1
    assert len(small) <= 1
    assert all(scale < min(large) for scale in small)


def test_north_is_up_and_east_is_right() -> None:
    (panel,) = arrange(panels_of([(0, 0, 10, 10, False)]))
    x, y = panel.place(np.array([5.0, 5.0]))
    assert panel.place(np.array([5.0, 6.0])) == (x, y - panel.scale)
    assert panel.place(np.array([6.0, 5.0])) == (x + panel.scale, y)


def test_floors_in_a_row_line_up() -> None:
    first, second = arrange(panels_of([(0, 0, 10, 10, False), (0, 4, 10, 3, False)]))
    assert second.x > first.x
    stairs = np.array([5.0, 5.0])
    assert first.place(stairs)[1] == second.place(stairs)[1]
