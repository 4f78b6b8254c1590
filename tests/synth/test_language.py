"""Instructions: every clause settles its decision, and what it says is there to be seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from esceme.synth.language import (
    ORDINALS,
    SECTORS,
    TURNS,
    Clause,
    Counted,
    count_ways,
    direction_to,
    plan_clauses,
    say,
)
from esceme.synth.render import Renderer
from esceme.synth.sights import NOTICED, Mention, Sights
from esceme.synth.walks import Walk, share_needing_memory
from esceme.world import Atlas

pytestmark = pytest.mark.long

HOUSES = range(10)
HEIGHT = 128
"""Of the pictures, as those that the instructions were told by."""
LookAt = Callable[[int], Sights]
WalksOf = Callable[[int], list[Walk]]


class Decision(NamedTuple):
    """One step of a walk, and what was said about it."""

    sights: Sights
    here: int
    there: int
    view: int
    """Which view one faces."""
    clause: Clause

    @property
    def neighbours(self) -> list[int]:
        graph = self.sights.graph
        return graph.neighbours[self.here, : graph.degrees[self.here]].tolist()

    def view_of(self, neighbour: int) -> int:
        return int(self.sights.graph.views[self.here, self.neighbours.index(neighbour)])


def decisions(walk: Walk) -> Iterator[Decision]:
    """Every decision of every telling; one faces where one came from looking, as an agent does."""
    for clauses in walk.told:
        view = 12 + round(walk.heading / (np.pi / 6)) % 12
        for here, there, clause in zip(walk.path[:-1], walk.path[1:], clauses[:-1], strict=True):
            made = Decision(walk.sights, here, there, view, clause)
            yield made
            view = made.view_of(there)


def turn_to(made: Decision, neighbour: int) -> float:
    """How far one turns to face a neighbour, in degrees, left negative: from positions alone."""
    positions = made.sights.graph.positions
    east, north, _ = positions[neighbour] - positions[made.here]
    facing = np.radians(30.0 * (made.view % 12))
    ahead = east * np.sin(facing) + north * np.cos(facing)
    right = east * np.cos(facing) - north * np.sin(facing)
    return float(np.degrees(np.arctan2(right, ahead)))


def sector(turn: float) -> str:
    reach = next(name for most, name in SECTORS if abs(turn) <= most)
    side = "left" if turn < 0 else "right"
    return reach if reach in ("straight", "back") else f"{reach} {side}".strip()


def nth_way(made: Decision, counted: Counted) -> int:
    """The neighbour that one comes to when counting from straight ahead to one side."""
    turns = {neighbour: turn_to(made, neighbour) for neighbour in made.neighbours}
    aside = [each for each, turn in turns.items() if (turn < 0) == (counted.side == "left")]
    return sorted(aside, key=lambda each: abs(turns[each]))[counted.number - 1]


def fitting(made: Decision) -> list[int]:
    """The neighbours that the clause may mean."""
    clause, sights, left = made.clause, made.sights, made.neighbours
    if clause.direction is not None:
        left = [each for each in left if sector(turn_to(made, each)) == clause.direction]
    if clause.counted is not None:
        left = [each for each in left if each == nth_way(made, clause.counted)]
    if clause.landmark is not None:
        left = [each for each in left if clause.landmark in sights.in_view(made.here, made.view_of(each))]
    if clause.beyond is not None:
        left = [each for each in left if clause.beyond in sights.remembered(each)]
    return left


# -- every clause of ten houses --------------------------------------------------------------------------


@pytest.mark.parametrize("number", HOUSES)
def test_every_clause_means_the_right_candidate_and_no_other(number: int, walks_of: WalksOf) -> None:
    walks = walks_of(number)
    assert len(walks) >= 10
    for walk in walks:
        for made in decisions(walk):
            assert fitting(made) == [made.there], made


@pytest.mark.parametrize("number", HOUSES)
def test_left_is_left(number: int, walks_of: WalksOf) -> None:
    for walk in walks_of(number):
        for made in decisions(walk):
            side = made.clause.counted.side if made.clause.counted else made.clause.direction or ""
            turn = turn_to(made, made.there)
            assert "left" not in side or -180 < turn < 0
            assert "right" not in side or 0 <= turn < 180
            assert made.clause.direction != "straight" or abs(turn) < 20
            assert made.clause.direction != "back" or abs(turn) > 150


@pytest.mark.parametrize("number", HOUSES)
def test_what_lies_beyond_is_hidden_from_here_and_only_the_right_neighbour_shows_it(
    number: int, walks_of: WalksOf
) -> None:
    for walk in walks_of(number):
        graph, sights = walk.sights.graph, walk.sights
        for made in decisions(walk):
            if (thing := made.clause.beyond) is None:
                continue
            assert not any(thing in sights.in_view(made.here, view) for view in range(36))
            for neighbour in made.neighbours:
                leading = graph.views[neighbour, : graph.degrees[neighbour]].tolist()
                shown = any(thing in sights.in_view(neighbour, view) for view in leading)
                assert shown == (neighbour == made.there)


@pytest.mark.parametrize("number", HOUSES)
def test_one_stops_where_the_thing_is_plainest(number: int, walks_of: WalksOf) -> None:
    for walk in walks_of(number):
        for *before, last in walk.told:
            assert not any(clause.stop for clause in before)
            assert last.stop is not None and last.stop in walk.sights.around(walk.path[-1])
            shares = [walk.sights.prominence(place, last.stop) for place in walk.path]
            assert max(shares) == shares[-1] >= NOTICED and shares.count(shares[-1]) == 1


# -- against the pictures --------------------------------------------------------------------------------


@cache
def pinhole(height: int, across: int = 120) -> NDArray[np.int64]:
    """Which pixel of a flattened panorama each pixel of each view sees, (36, h * w), by turning vectors."""
    focal = across * 3 / 8 / np.tan(np.radians(30))
    x = np.arange(across) + 0.5 - across / 2
    z = across * 3 / 8 - 0.5 - np.arange(across * 3 // 4)
    rays = np.stack(np.broadcast_arrays(x[None, :], focal, z[:, None]), axis=-1).reshape(-1, 3)
    found = []
    for view in range(36):
        raised, turned = np.radians(30 * (view // 12 - 1)), np.radians(30 * (view % 12))
        pitch = [[1, 0, 0], [0, np.cos(raised), -np.sin(raised)], [0, np.sin(raised), np.cos(raised)]]
        yaw = [[np.cos(turned), np.sin(turned), 0], [-np.sin(turned), np.cos(turned), 0], [0, 0, 1]]
        east, north, up = np.array(yaw) @ np.array(pitch) @ rays.T
        column = ((np.arctan2(east, north) + np.pi) / (2 * np.pi) * 2 * height).astype(int) % (2 * height)
        row = ((np.pi / 2 - np.arctan2(up, np.hypot(east, north))) / np.pi * height).astype(int)
        found.append(row * 2 * height + column)
    return np.array(found)


class Pictures:
    """The panoramas of a house, drawn anew; how much of a view something fills is counted in their pixels."""

    def __init__(self, sights: Sights) -> None:
        self.house = sights.house
        self.renderer = Renderer(sights.house, height=HEIGHT)
        self.shares = cache(self._shares)

    def _shares(self, place: int, mention: Mention) -> NDArray[np.float64]:
        """(36,): how much of each view the largest thing that the mention fits fills."""
        seen = self.ids(place)
        fits = [
            index
            for index, thing in enumerate(self.house.furniture)
            if thing.name == mention.name and mention.colour in ("", thing.surface.colour)
        ]
        assert fits, f"no {mention} in the house"
        return np.max([(seen == index).mean(axis=1) for index in fits], axis=0)

    @cache  # noqa: B019 - lives as long as one test
    def ids(self, place: int) -> NDArray[np.int16]:
        return self.renderer.render(place).objects.ravel()[pinhole(HEIGHT)]


@pytest.mark.parametrize("number", HOUSES)
def test_everything_an_instruction_names_is_in_the_picture_where_it_says(
    number: int, walks_of: WalksOf, look: LookAt
) -> None:
    pictures, named = Pictures(look(number)), 0
    plain, faint = 0.8 * NOTICED, 1.2 * NOTICED  # other pixels are counted here than when it was told
    for walk in walks_of(number)[:8]:
        for made in decisions(walk):
            clause = made.clause
            if clause.landmark is not None:
                assert pictures.shares(made.here, clause.landmark)[made.view_of(made.there)] > plain
            if clause.beyond is not None:
                assert pictures.shares(made.here, clause.beyond).max() < faint
                leading = walk.sights.graph.views[made.there, : walk.sights.graph.degrees[made.there]]
                assert pictures.shares(made.there, clause.beyond)[leading].max() > plain
            named += bool(clause.landmark or clause.beyond)
        for *_, last in walk.told:
            assert last.stop is not None
            assert pictures.shares(walk.path[-1], last.stop).max() > plain
    assert named > 10


@pytest.mark.parametrize("number", HOUSES)
def test_every_candidate_is_seen_in_its_direction(number: int, look: LookAt) -> None:
    house, graph = look(number).house, look(number).graph
    renderer = Renderer(house, height=HEIGHT)
    for here in range(len(graph)):
        depth = renderer.render(here).depth
        for slot, there in enumerate(graph.neighbours[here, : graph.degrees[here]]):
            east, north, up = np.subtract(house.places[there].position, house.places[here].position)
            away = float(np.sqrt(east**2 + north**2 + up**2))
            heading, elevation = np.arctan2(east, north), np.arcsin(up / away)
            assert np.cos(graph.headings[here, slot] - heading) > 1 - 1e-9
            assert np.cos(np.radians(30.0 * (graph.views[here, slot] % 12)) - heading) > np.cos(
                np.radians(16)
            )
            column = int((heading + np.pi) / (2 * np.pi) * 256) % 256
            row = int((np.pi / 2 - elevation) / np.pi * 128)
            assert depth[row, column] > away - 0.1, f"something hides {there} from {here}"


# -- words -----------------------------------------------------------------------------------------------


def test_instructions_are_as_long_as_those_of_r2r_and_almost_half_need_memory(walks_of: WalksOf) -> None:
    walks = [walk for number in HOUSES for walk in walks_of(number)]
    texts = [text for walk in walks for text in walk.texts]
    assert 22 <= np.mean([len(text.split()) for text in texts]) <= 30
    assert 0.4 <= share_needing_memory(walks) <= 0.8
    told = [any(clause.beyond for clause in clauses) for walk in walks for clauses in walk.told]
    assert share_needing_memory(walks) == np.mean(told)
    words = {word.strip(".,").lower() for text in texts for word in text.split()}
    assert 100 < len(words) < 1000
    assert len(set(texts)) > 0.95 * len(texts)


def test_a_walk_is_told_in_different_words(walks_of: WalksOf) -> None:
    told = [walk.texts for number in (0, 1) for walk in walks_of(number)]
    assert all(len(set(texts)) == 3 for texts in told)


def test_the_same_seed_says_the_same(look: LookAt, walks_of: WalksOf) -> None:
    walk = walks_of(0)[0]

    def tell(seed: int) -> tuple[list[Clause] | None, str]:
        generator = np.random.default_rng(seed)
        clauses = plan_clauses(look(0), walk.path, walk.heading, generator)
        return clauses, say(clauses or [], generator)

    assert tell(5) == tell(5)
    assert len({tell(seed)[1] for seed in range(20)}) > 10


def test_texts_are_sentences(walks_of: WalksOf) -> None:
    for walk in walks_of(0):
        for text in walk.texts:
            assert text[0].isupper() and text.endswith(". ") and "  " not in text and ".." not in text
            assert "{" not in text and "None" not in text


def test_one_faces_what_an_agent_of_the_atlas_faces(walks_of: WalksOf, look: LookAt) -> None:
    atlas = Atlas([look(0).graph])
    for walk in walks_of(0):
        pose = atlas.begin(atlas.locate(walk.scene_id, walk.viewpoints[:1]), heading=[walk.heading])
        for made in list(decisions(walk))[: len(walk.path) - 1]:
            assert (pose.viewpoint[0], pose.view[0] % 12) == (made.here, made.view % 12)
            pose = atlas.step(pose, [made.neighbours.index(made.there)])
        assert pose.viewpoint[0] == walk.path[-1]


# -- directions ------------------------------------------------------------------------------------------


@given(st.floats(-10, 10), st.integers(0, 35), st.integers(0, 11))
def test_turning_oneself_turns_every_direction(heading: float, view: int, by: int) -> None:
    turned = view // 12 * 12 + (view + by) % 12
    turn = np.degrees(heading) - 30 * (view % 12)
    if min(abs((abs(turn) - edge + 180) % 360 - 180) for edge, _ in SECTORS) > 1e-6 < abs(turn) % 180:
        assert direction_to(heading, view) == direction_to(heading + by * np.pi / 6, turned)


@given(st.floats(-3.1, 3.1).filter(lambda turn: abs(turn) > 1e-6))
def test_the_mirror_swaps_left_and_right(turn: float) -> None:
    mirrored = {"left": "right", "right": "left"}
    words = direction_to(turn, 12).split()
    assert direction_to(-turn, 12).split() == [mirrored.get(word, word) for word in words]
    assert ("left" in words) <= (turn < 0) and ("right" in words) <= (turn > 0)
    assert " ".join(words) in TURNS


@given(st.lists(st.integers(-179, 180), min_size=1, max_size=9, unique=True), st.integers(0, 35))
def test_counted_ways_are_each_one_way(degrees: list[int], view: int) -> None:
    counted = count_ways(np.radians(degrees).tolist(), view)
    assert len(set(counted)) == len(degrees)
    for side in ("left", "right"):
        numbers = sorted(each.number for each in counted if each.side == side)
        assert numbers == list(range(1, len(numbers) + 1))


def test_a_way_that_cannot_be_counted_is_not_told(walks_of: WalksOf) -> None:
    counted = [made.clause.counted for walk in walks_of(3) for made in decisions(walk) if made.clause.counted]
    assert counted and all(1 <= each.number <= len(ORDINALS) for each in counted)
