"""Scripted instruction follower: parsing, memory, and success with and without memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from benchmarks.instruction_follower import FollowerMemory, InstructionFollower, parse_instruction
from hypothesis import given, settings
from hypothesis import strategies as st

from esceme.metrics import score
from esceme.synth.annotated_paths import AnnotatedPath, sample_paths
from esceme.synth.furniture import CATALOGUE
from esceme.synth.instructions import ORDINALS, TURN_PHRASES, Clause, NthCandidate, clauses_to_text
from esceme.synth.visibility import Mention, Visibility
from esceme.tasks.episode import Episode
from esceme.tasks.submission import Prediction, TrajectoryPoint
from esceme.world import Atlas

VisibilityOf = Callable[[int], Visibility]
PathsOf = Callable[[int], list[AnnotatedPath]]

ROOMS = ("hallway", "living room", "dining room", "kitchen", "bedroom", "bathroom", "closet", "laundry")
MENTIONS = sorted(Mention(name, colour) for name in CATALOGUE.kinds for colour in ("", "red", "turquoise"))

mentions = st.sampled_from(MENTIONS)
rooms = st.sampled_from(("", "", *ROOMS, "office", "entry", "stairs"))
ordinals = st.builds(NthCandidate, st.integers(1, len(ORDINALS)), st.sampled_from(["left", "right"]))
turns = st.sampled_from(sorted(TURN_PHRASES))
steps = st.one_of(
    st.builds(Clause, direction=turns, landmark=st.none() | mentions, room=rooms),
    st.builds(Clause, landmark=mentions, room=rooms),
    st.builds(Clause, beyond=mentions, room=rooms),
    st.builds(Clause, nth_candidate=ordinals, room=rooms),
)


def without_rooms(*clauses: Clause) -> list[Clause]:
    """Clauses as the parser returns them."""
    return [replace(clause, room="") for clause in clauses]


# -- parsing ---------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.lists(steps, min_size=4, max_size=12), st.builds(Clause, stop=mentions), st.integers(0, 2**32))
def test_parsing_inverts_text_generation(clauses: list[Clause], stop: Clause, seed: int) -> None:
    text = clauses_to_text([*clauses, stop], np.random.default_rng(seed))
    assert parse_instruction(text, MENTIONS) == without_rooms(*clauses, stop)


def test_instructions_of_a_house_are_parsed_alone_and_joined(paths_of: PathsOf) -> None:
    for path in (*paths_of(0), *paths_of(1)):
        for clauses, text in zip(path.clauses, path.instructions, strict=True):
            assert parse_instruction(text, path.visibility.mentions) == without_rooms(*clauses)
    first, second = paths_of(0)[:2]
    joined = parse_instruction(first.instructions[0] + second.instructions[2], first.visibility.mentions)
    assert joined == without_rooms(*first.clauses[0], *second.clauses[2])


def test_longest_matching_mention_is_parsed() -> None:
    tables = [Mention(name, colour) for name in ("table", "coffee table") for colour in ("", "red")]
    for mention in tables:
        assert parse_instruction(f"Walk to the {mention}. ", tables) == [Clause(landmark=mention)]


# -- following -------------------------------------------------------------------------------------------


def full_memory(visibility: Visibility) -> FollowerMemory:
    return FollowerMemory(set(range(len(visibility.graph))), frozen=True)


def test_memory_makes_instructions_followable(visibility_of: VisibilityOf) -> None:
    """Without memory SPL drops by at least 10 points; a memory that starts empty gains at least 5."""
    houses = [visibility_of(0), visibility_of(2)]
    atlas = Atlas([house.graph for house in houses])
    memories = {
        "none": lambda visibility: FollowerMemory(frozen=True),
        "cold": lambda visibility: FollowerMemory(),
        "full": full_memory,
    }
    sr, spl = {}, {}
    for name, make_memory in memories.items():
        pairs, generator = [], np.random.default_rng(0)
        for house in houses:
            follower, viewpoints = InstructionFollower(house, make_memory(house)), house.graph.viewpoints
            for path in sample_paths(house, 40, np.random.default_rng(1)):
                for number, text in enumerate(path.instructions):
                    path_id = f"{path.scene_id}-{path.path_id}"
                    episode = Episode(
                        episode_id=f"{path_id}_{number}",
                        scene_id=path.scene_id,
                        path_id=path_id,
                        reference_path=tuple(path.viewpoints),
                        heading=path.heading,
                        instruction=text,
                    )
                    taken = follower.follow(text, path.path[0], path.heading, generator)
                    points = tuple(TrajectoryPoint(viewpoints[index]) for index in taken)
                    pairs.append((episode, Prediction(episode.episode_id, points)))
        scores = score(pairs, atlas)
        sr[name], spl[name] = (100 * float(scores.values[key].mean()) for key in ("sr", "spl"))
    assert sr["full"] >= 90 and spl["full"] >= 85
    assert spl["none"] <= spl["full"] - 10
    assert spl["none"] + 5 <= spl["cold"] <= spl["full"]


def test_full_memory_reproduces_the_path(paths_of: PathsOf) -> None:
    for path in paths_of(1):
        follower = InstructionFollower(path.visibility, full_memory(path.visibility))
        for text in path.instructions:
            taken = follower.follow(text, path.path[0], path.heading, np.random.default_rng(0))
            assert tuple(taken) == path.path
