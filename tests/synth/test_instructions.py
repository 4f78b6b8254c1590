"""Instructions: every clause identifies its candidate, and named objects are visible where they should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from esceme.synth.annotated_paths import AnnotatedPath, fraction_needing_memory
from esceme.synth.instructions import (
    SECTORS,
    TURN_PHRASES,
    Clause,
    number_candidates,
    relative_direction,
)
from esceme.synth.render import Renderer
from esceme.synth.visibility import MIN_COVERAGE, Mention, Visibility
from esceme.world import Atlas

pytestmark = pytest.mark.long

HOUSES = range(10)
HEIGHT = 128
"""Panorama height, equal to that of the `visibility_of` fixture."""
VisibilityOf = Callable[[int], Visibility]
PathsOf = Callable[[int], list[AnnotatedPath]]


class Decision(NamedTuple):
    """One step of a path with its clause."""

    visibility: Visibility
    here: int
    there: int
    view: int
    """The view that the agent faces."""
    clause: Clause

    @property
    def neighbours(self) -> list[int]:
        graph = self.visibility.graph
        return graph.neighbours[self.here, : graph.degrees[self.here]].tolist()

    def view_of(self, neighbour: int) -> int:
        return int(self.visibility.graph.views[self.here, self.neighbours.index(neighbour)])

    def turn_to(self, neighbour: int) -> float:
        """The turn towards a neighbour in degrees, left negative, computed from positions only."""
        positions = self.visibility.graph.positions
        east, north, _ = positions[neighbour] - positions[self.here]
        facing = np.radians(30.0 * (self.view % 12))
        ahead = east * np.sin(facing) + north * np.cos(facing)
        right = east * np.cos(facing) - north * np.sin(facing)
        return float(np.degrees(np.arctan2(right, ahead)))

    def matching_neighbours(self) -> list[int]:
        """The neighbours that match all cues of the clause."""
        clause, visibility, matching = self.clause, self.visibility, self.neighbours
        turns = {neighbour: self.turn_to(neighbour) for neighbour in matching}
        if clause.direction is not None:
            matching = [n for n in matching if sector(turns[n]) == clause.direction]
        if clause.nth_candidate is not None:
            side = [n for n in self.neighbours if (turns[n] < 0) == (clause.nth_candidate.side == "left")]
            nth = sorted(side, key=lambda n: abs(turns[n]))[clause.nth_candidate.number - 1]
            matching = [n for n in matching if n == nth]
        if clause.landmark is not None:
            matching = [
                n for n in matching if clause.landmark in visibility.seen_in_view(self.here, self.view_of(n))
            ]
        if clause.beyond is not None:
            matching = [n for n in matching if clause.beyond in visibility.seen_in_candidate_views(n)]
        return matching


def sector(turn: float) -> str:
    name = next(name for limit, name in SECTORS if abs(turn) <= limit)
    return name if name in ("straight", "back") else f"{name} {'left' if turn < 0 else 'right'}".strip()


def decisions(path: AnnotatedPath) -> Iterator[Decision]:
    """Every decision of every instruction; after a step the agent faces the candidate's view."""
    for clauses in path.clauses:
        view = 12 + round(path.heading / (np.pi / 6)) % 12
        for here, there, clause in zip(path.path[:-1], path.path[1:], clauses[:-1], strict=True):
            decision = Decision(path.visibility, here, there, view, clause)
            yield decision
            view = decision.view_of(there)


# -- every clause of ten houses --------------------------------------------------------------------------


@pytest.mark.parametrize("number", HOUSES)
def test_every_clause_matches_only_the_right_candidate(number: int, paths_of: PathsOf) -> None:
    paths = paths_of(number)
    assert len(paths) >= 10
    for path in paths:
        for decision in decisions(path):
            assert decision.matching_neighbours() == [decision.there], decision
            assert decision.clause.beyond not in path.visibility.seen_in_panorama(decision.here)


@pytest.mark.parametrize("number", HOUSES)
def test_stop_object_is_largest_at_the_end(number: int, paths_of: PathsOf) -> None:
    for path in paths_of(number):
        for *before, last in path.clauses:
            assert not any(clause.stop for clause in before)
            assert last.stop is not None and last.stop in path.visibility.seen_in_panorama(path.path[-1])
            coverage = [path.visibility.max_coverage(viewpoint, last.stop) for viewpoint in path.path]
            assert max(coverage) == coverage[-1] >= MIN_COVERAGE and coverage.count(coverage[-1]) == 1


# -- against rendered images -----------------------------------------------------------------------------


@cache
def pinhole_pixels(height: int, width: int = 120) -> NDArray[np.int64]:
    """Panorama pixel that each pixel of each view sees, (36, h * w), computed by rotating rays."""
    focal = width * 3 / 8 / np.tan(np.radians(30))
    x = np.arange(width) + 0.5 - width / 2
    z = width * 3 / 8 - 0.5 - np.arange(width * 3 // 4)
    rays = np.stack(np.broadcast_arrays(x[None, :], focal, z[:, None]), axis=-1).reshape(-1, 3)
    pixels = []
    for view in range(36):
        raised, turned = np.radians(30 * (view // 12 - 1)), np.radians(30 * (view % 12))
        pitch = [[1, 0, 0], [0, np.cos(raised), -np.sin(raised)], [0, np.sin(raised), np.cos(raised)]]
        yaw = [[np.cos(turned), np.sin(turned), 0], [-np.sin(turned), np.cos(turned), 0], [0, 0, 1]]
        east, north, up = np.array(yaw) @ np.array(pitch) @ rays.T
        column = ((np.arctan2(east, north) + np.pi) / (2 * np.pi) * 2 * height).astype(int) % (2 * height)
        row = ((np.pi / 2 - np.arctan2(up, np.hypot(east, north))) / np.pi * height).astype(int)
        pixels.append(row * 2 * height + column)
    return np.array(pixels)


@pytest.mark.parametrize("number", HOUSES)
def test_named_objects_are_in_the_rendered_views(
    number: int, paths_of: PathsOf, visibility_of: VisibilityOf
) -> None:
    house = visibility_of(number).house
    renderer = Renderer(house, height=HEIGHT)

    @cache
    def objects_at(viewpoint: int) -> NDArray[np.int16]:
        return renderer.render(viewpoint).objects.ravel()[pinhole_pixels(HEIGHT)]

    @cache
    def coverage(viewpoint: int, mention: Mention) -> NDArray[np.float64]:
        """(36,): the share of each view that the largest matching object covers."""
        matching = [
            index
            for index, item in enumerate(house.furniture)
            if item.name == mention.name and mention.colour in ("", item.surface.colour)
        ]
        return np.max([(objects_at(viewpoint) == index).mean(axis=1) for index in matching], axis=0)

    num_named = 0
    visible, hidden = 0.8 * MIN_COVERAGE, 1.2 * MIN_COVERAGE  # other pixels are sampled than at generation
    for path in paths_of(number)[:8]:
        graph = path.visibility.graph
        for decision in decisions(path):
            clause, here, there = decision.clause, decision.here, decision.there
            if clause.landmark is not None:
                assert coverage(here, clause.landmark)[decision.view_of(there)] > visible
            if clause.beyond is not None:
                assert coverage(here, clause.beyond).max() < hidden
                assert (
                    coverage(there, clause.beyond)[graph.views[there, : graph.degrees[there]]].max() > visible
                )
            num_named += bool(clause.landmark or clause.beyond)
        for *_, last in path.clauses:
            assert last.stop is not None and coverage(path.path[-1], last.stop).max() > visible
    assert num_named > 10


# -- text ------------------------------------------------------------------------------------------------


def test_instructions_are_as_long_as_those_of_r2r_and_many_need_memory(paths_of: PathsOf) -> None:
    paths = [path for number in HOUSES for path in paths_of(number)]
    texts = [text for path in paths for text in path.instructions]
    assert 22 <= np.mean([len(text.split()) for text in texts]) <= 30
    assert 0.4 <= fraction_needing_memory(paths) <= 0.8
    assert 100 < len({word.strip(".,").lower() for text in texts for word in text.split()}) < 1000
    assert len(set(texts)) > 0.95 * len(texts)


def test_instructions_are_different_well_formed_sentences(paths_of: PathsOf) -> None:
    for path in (*paths_of(0), *paths_of(1)):
        assert len(set(path.instructions)) == 3
        for text in path.instructions:
            assert text[0].isupper() and text.endswith(". ")
            assert not any(fault in text for fault in ("  ", "..", "{", "None"))


def test_facing_agrees_with_the_atlas(paths_of: PathsOf, visibility_of: VisibilityOf) -> None:
    atlas = Atlas([visibility_of(0).graph])
    for path in paths_of(0):
        pose = atlas.begin(atlas.locate(path.scene_id, path.viewpoints[:1]), heading=[path.heading])
        for decision in list(decisions(path))[: len(path.path) - 1]:
            assert (pose.viewpoint[0], pose.view[0] % 12) == (decision.here, decision.view % 12)
            pose = atlas.step(pose, [decision.neighbours.index(decision.there)])
        assert pose.viewpoint[0] == path.path[-1]


# -- directions ------------------------------------------------------------------------------------------


@given(st.floats(-10, 10), st.integers(0, 35), st.integers(0, 11))
def test_direction_is_invariant_to_rotation(heading: float, view: int, by: int) -> None:
    turned = view // 12 * 12 + (view + by) % 12
    turn = np.degrees(heading) - 30 * (view % 12)
    if min(abs((abs(turn) - edge + 180) % 360 - 180) for edge, _ in SECTORS) > 1e-6 < abs(turn) % 180:
        assert relative_direction(heading, view) == relative_direction(heading + by * np.pi / 6, turned)


@given(st.floats(-3.1, 3.1).filter(lambda turn: abs(turn) > 1e-6))
def test_mirroring_swaps_left_and_right(turn: float) -> None:
    mirrored = {"left": "right", "right": "left"}
    words = relative_direction(turn, 12).split()
    assert relative_direction(-turn, 12).split() == [mirrored.get(word, word) for word in words]
    assert ("left" in words) <= (turn < 0) and ("right" in words) <= (turn > 0)
    assert " ".join(words) in TURN_PHRASES


@given(st.lists(st.integers(-179, 180), min_size=1, max_size=9, unique=True), st.integers(0, 35))
def test_counting_numbers_each_candidate_once(degrees: list[int], view: int) -> None:
    counted = number_candidates(np.radians(degrees).tolist(), view)
    assert len(set(counted)) == len(degrees)
    for side in ("left", "right"):
        numbers = sorted(candidate.number for candidate in counted if candidate.side == side)
        assert numbers == list(range(1, len(numbers) + 1))
