"""The scripted reader: what it understands, what it remembers, and how far that takes it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esceme.metrics import score
from esceme.synth.furniture import KINDS
from esceme.synth.language import ORDINALS, TURNS, Clause, Counted, say
from esceme.synth.reader import Memory, Reader, parse, read_episodes, without_rooms
from esceme.synth.sights import Mention, Sights
from esceme.synth.walks import Walk, take_walks
from esceme.tasks.episode import Episode, check_path
from esceme.world import Atlas

LookAt = Callable[[int], Sights]
WalksOf = Callable[[int], list[Walk]]

ROOMS = ("hallway", "living room", "dining room", "kitchen", "bedroom", "bathroom", "closet", "laundry")
ROOMS += ("office", "entry", "stairs")
MENTIONS = sorted(Mention(name, colour) for name in KINDS for colour in ("", "red", "turquoise"))

things = st.sampled_from(MENTIONS)
rooms = st.sampled_from(("", "", *ROOMS))
steps = st.one_of(
    st.builds(Clause, direction=st.sampled_from(sorted(TURNS)), landmark=st.none() | things, room=rooms),
    st.builds(Clause, landmark=things, room=rooms),
    st.builds(Clause, beyond=things, room=rooms),
    st.builds(
        Clause,
        counted=st.builds(Counted, st.integers(1, len(ORDINALS)), st.sampled_from(["left", "right"])),
        room=rooms,
    ),
)
stops = st.builds(Clause, stop=things)


# -- understanding ---------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.lists(steps, min_size=4, max_size=12), stops, st.integers(0, 2**32))
def test_what_was_said_is_understood(told: list[Clause], stop: Clause, seed: int) -> None:
    text = say([*told, stop], np.random.default_rng(seed))
    assert parse(text, MENTIONS) == without_rooms([*told, stop])


@pytest.mark.parametrize("number", [0, 1])
def test_every_instruction_of_a_house_is_understood(number: int, walks_of: WalksOf) -> None:
    for walk in walks_of(number):
        for clauses, text in zip(walk.told, walk.texts, strict=True):
            assert parse(text, walk.sights.mentions) == without_rooms(clauses)


def test_two_instructions_one_after_the_other_are_understood(walks_of: WalksOf) -> None:
    first, second = walks_of(0)[:2]
    joined = [*first.told[0], *second.told[2]]
    assert parse(first.texts[0] + second.texts[2], first.sights.mentions) == without_rooms(joined)


def test_the_longer_name_is_meant(look: LookAt) -> None:
    named = [
        Mention("table"),
        Mention("table", "red"),
        Mention("coffee table"),
        Mention("coffee table", "red"),
    ]
    for each in named:
        assert parse(f"Walk to the {each}. ", named) == [Clause(landmark=each)]


def test_nonsense_is_no_error(look: LookAt) -> None:
    assert parse("", []) == [] and parse(" . ", []) == []
    for text in ("", "Colourless green ideas sleep furiously.", ", , ,", "Stop", "turn", "Find the unicorn."):
        walked = Reader(look(1), Memory()).follow(text, 3, 0.0, np.random.default_rng(0))
        assert walked[0] == 3 and len(walked) <= 15


# -- walking ---------------------------------------------------------------------------------------------


def episodes_of(walks: list[Walk]) -> list[Episode]:
    return [
        Episode(
            episode_id=f"{walk.scene_id}-{walk.path_id}_{telling}",
            scene_id=walk.scene_id,
            path_id=f"{walk.scene_id}-{walk.path_id}",
            reference_path=tuple(walk.viewpoints),
            heading=walk.heading,
            instruction=text,
        )
        for walk in walks
        for telling, text in enumerate(walk.texts)
    ]


@pytest.fixture(scope="module")
def scores(look: LookAt) -> dict[str, dict[str, float]]:
    """Memory -> SR and SPL in percent, over many episodes of two houses."""
    sights = {look(number).graph.scene_id: look(number) for number in (0, 2)}
    walks = [walk for seen in sights.values() for walk in take_walks(seen, 40, np.random.default_rng(1))]
    atlas, episodes = Atlas([seen.graph for seen in sights.values()]), episodes_of(walks)
    found = {}
    for memory in ("none", "cold", "full"):
        walked = read_episodes(sights, episodes, memory, np.random.default_rng(0))
        means = score([(each, walked[each.episode_id]) for each in episodes], atlas)
        found[memory] = {name: 100 * float(means.values[name].mean()) for name in ("sr", "spl")}
    return found


def test_with_a_full_memory_instructions_can_be_followed(scores: dict[str, dict[str, float]]) -> None:
    assert scores["full"]["sr"] >= 90
    assert scores["full"]["spl"] >= 85


def test_without_memory_one_walks_in_vain(scores: dict[str, dict[str, float]]) -> None:
    assert scores["none"]["spl"] <= scores["full"]["spl"] - 10


def test_a_memory_that_begins_empty_pays_off(scores: dict[str, dict[str, float]]) -> None:
    assert scores["none"]["spl"] + 5 <= scores["cold"]["spl"] <= scores["full"]["spl"]


def test_with_a_full_memory_the_very_walk_is_taken(walks_of: WalksOf) -> None:
    for walk in walks_of(1):
        known = Memory(set(range(len(walk.sights.graph))), frozen=True)
        for text in walk.texts:
            walked = Reader(walk.sights, known).follow(
                text, walk.path[0], walk.heading, np.random.default_rng(0)
            )
            assert tuple(walked) == walk.path


def test_every_step_leads_to_a_neighbour_and_moves_run_out(walks_of: WalksOf) -> None:
    for walk in walks_of(2)[:10]:
        reader = Reader(walk.sights, Memory(frozen=True))
        long = walk.texts[0] + walk.texts[1].replace("Stop", "Go") + walk.texts[2]
        for text in (*walk.texts, long.replace("top", "urn").replace("ait", "alk") * 4):
            walked = reader.follow(text, walk.path[0], walk.heading, np.random.default_rng(3))
            names = [walk.sights.graph.viewpoints[place] for place in walked]
            check_path(walk.scene_id, names, {walk.scene_id: walk.sights.graph})
            assert len(walked) - 1 <= 14


def test_a_frozen_memory_learns_nothing_and_another_all_that_was_visited(walks_of: WalksOf) -> None:
    frozen, growing = Memory(frozen=True), Memory()
    visited = set()
    for walk in walks_of(3)[:5]:
        generator = np.random.default_rng(0)
        Reader(walk.sights, frozen).follow(walk.texts[0], walk.path[0], walk.heading, generator)
        visited |= set(
            Reader(walk.sights, growing).follow(walk.texts[0], walk.path[0], walk.heading, generator)
        )
    assert frozen.places == set()
    assert growing.places == visited


def test_episodes_are_read_in_their_houses(look: LookAt, walks_of: WalksOf) -> None:
    sights = {look(number).graph.scene_id: look(number) for number in (0, 1)}
    episodes = [
        each
        for pair in zip(episodes_of(walks_of(0)[:6]), episodes_of(walks_of(1)[:6]), strict=True)
        for each in pair
    ]
    read = read_episodes(sights, episodes, "full", np.random.default_rng(0))
    assert [read[each.episode_id].path for each in episodes] == [each.reference_path for each in episodes]
