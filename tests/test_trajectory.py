"""A walk, who hands it out, and how it chooses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from esceme.agents.base import BacktrackRoutes, Decision
from esceme.errors import WorldError
from esceme.observation import Observation
from esceme.trajectory import (
    SingleBatch,
    Trajectory,
    greedy,
    next_poses,
    previous_viewpoints,
    sampling,
    teacher_by_step,
    teacher_forcing,
)
from esceme.world import Pose
from fixtures.toy_atlas import build_toy_atlas, make_episode

ATLAS = build_toy_atlas()


def begun(*names: str) -> list[Trajectory]:
    return [Trajectory.begin(ATLAS, make_episode(name, name=f"{row}_0")) for row, name in enumerate(names)]


def seen(walks: list[Trajectory]) -> Observation:
    poses = np.array([walk.poses[-1] for walk in walks])
    return Observation.from_atlas(ATLAS, Pose(poses[:, 0], poses[:, 1]))


# -- walks -------------------------------------------------------------------------------------------------


def test_a_walk_begins_where_its_episode_starts_facing_the_nearest_view() -> None:
    walk = Trajectory.begin(ATLAS, make_episode("kitchen", "hall", heading=math.radians(100)), visit=4)
    assert ATLAS.name(walk.viewpoint) == ("cottage", "kitchen")
    assert walk.poses == [(walk.viewpoint, 15)]
    assert (walk.num_decisions, walk.stopped, walk.visit) == (0, False, 4)


@pytest.mark.parametrize(
    ("poses", "stopped", "expected"),
    [
        ([5], False, []),  # not begun
        ([5], True, [5]),  # stopped at once
        ([5, 6, 7], True, [5, 6, 7]),  # two moves and STOP
        ([5, 6, 7], False, [5, 6]),  # two moves, and no decision was left
        ([5, 6, 5, 6], False, [5, 6, 5]),
    ],
)
def test_remembered_is_where_something_was_decided(
    poses: list[int], stopped: bool, expected: list[int]
) -> None:
    walk = Trajectory(make_episode("hall"), [(place, 12) for place in poses], stopped=stopped)
    assert walk.decision_viewpoints == expected


def test_the_past_is_where_walks_have_been_before() -> None:
    walks = begun("hall", "kitchen", "attic")
    walks[1].poses += [(7, 0), (8, 12)]
    assert previous_viewpoints(walks[:1]).shape == (1, 0)
    assert previous_viewpoints(walks).tolist() == [[-1, -1], [walks[1].poses[0][0], 7], [-1, -1]]


def test_a_source_hands_out_its_episodes_once() -> None:
    source = SingleBatch(ATLAS, [make_episode("hall", name="0_0"), make_episode("attic", name="1_0")])
    walks = source.next([], [])
    assert [walk.episode.episode_id for walk in walks] == ["0_0", "1_0"]
    assert list(source.next([], walks)) == list(source.next(walks, [])) == []


# -- moves -------------------------------------------------------------------------------------------------


def at(name: str) -> int:
    return int(ATLAS.locate("cottage", [name])[0])


FIRST = 40
"""The choice that leads back to place 0."""


def going_back() -> tuple[Pose, Decision]:
    """Four agents, the last two of which have been to the hall, the landing and the hall again."""
    pose = Pose(
        np.array([at(name) for name in ("garden", "door", "attic", "attic")]), np.array([1, 2, 3, 35])
    )
    walked = [at("hall"), at("landing"), at("hall")]
    steps = torch.tensor([[0, 1, 0], [1, 0, 2], [0, 1, 0]])  # hall and landing are next to each other
    nothing = torch.zeros_like(steps)
    routes = BacktrackRoutes(
        first_action=FIRST,
        viewpoints=torch.tensor([[-1] * 3, [-1] * 3, walked, walked]),
        views=torch.tensor([[0] * 3, [0] * 3, [13, 25, 7], [13, 25, 7]]),
        current_edge_rank=torch.tensor([[0] * 3, [0] * 3, [0, 1, 0], [0, 1, 0]]),
        edge_rank=torch.stack([nothing, nothing, steps, steps]),
    )
    return pose, Decision(torch.zeros(4, FIRST + 3), routes=routes)


def test_who_stops_does_not_move_and_who_goes_on_faces_where_it_went() -> None:
    pose, decision = going_back()
    stop = int(ATLAS.degrees[at("garden")])
    to_hall = ATLAS.neighbours[at("door")].tolist().index(at("hall"))
    expected = ATLAS.step(pose, np.array([stop, to_hall, 1, 1]))
    for routes in (decision.routes, None):
        ways = next_poses(
            ATLAS, pose, Decision(decision.logits, routes=routes), torch.tensor([stop, to_hall, 1, 1])
        )
        assert ways == [[], [(at("hall"), int(expected.view[1]))], [], []]


def test_going_back_is_walked_node_by_node_without_turning_until_the_end() -> None:
    pose, decision = going_back()
    stop = [int(ATLAS.degrees[at(name)]) for name in ("garden", "door")]
    ways = next_poses(ATLAS, pose, decision, torch.tensor([*stop, FIRST, FIRST + 2]))
    assert ways == [
        [],
        [],
        [(at("landing"), 3), (at("hall"), 13)],  # on the way as before, at the end as at that visit
        [(at("landing"), 35), (at("hall"), 7)],
    ]
    assert {type(number) for way in ways for place in way for number in place} == {int}


def test_one_step_back_has_nothing_between() -> None:
    pose, decision = going_back()
    stop = [int(ATLAS.degrees[at(name)]) for name in ("garden", "door")]
    assert next_poses(ATLAS, pose, decision, torch.tensor([*stop, FIRST + 1, 0])) == [
        *([], []),
        [(at("landing"), 25)],
        [(at("landing"), int(ATLAS.step(pose, np.array([*stop, 0, 0])).view[3]))],  # as a candidate
    ]


def test_a_way_back_that_was_never_walked_is_an_error() -> None:
    pose, decision = going_back()
    assert decision.routes is not None
    cut = decision._replace(
        routes=decision.routes._replace(edge_rank=torch.zeros(4, 3, 3, dtype=torch.int64))
    )
    with pytest.raises(WorldError, match="no known path leads back to viewpoint"):
        next_poses(ATLAS, pose, cut, torch.tensor([1, 1, FIRST, 1]))


# -- choices -----------------------------------------------------------------------------------------------


def decision(*rows: list[float]) -> Decision:
    return Decision(torch.tensor(rows))


def test_greedy_takes_the_highest_score_and_the_first_of_equals() -> None:
    walks = begun("hall", "garden", "door")
    scores = decision([1.0, 4.0, 4.0], [0.5, -torch.inf, -torch.inf], [-3.0, -2.0, -torch.inf])
    assert greedy(scores, seen(walks), walks).tolist() == [1, 0, 1]


def test_samples_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.2, 0.0, 0.3])
    walks = [Trajectory.begin(ATLAS, make_episode("hall", name=f"{number}_0")) for number in range(4000)]
    scores = Decision(probabilities.log().expand(4000, -1))
    drawn = sampling(0)(scores, seen(walks[:1]), walks)
    shares = torch.bincount(drawn, minlength=4) / 4000
    torch.testing.assert_close(shares, probabilities, atol=0.03, rtol=0)
    assert shares[2] == 0


def test_a_sample_depends_on_seed_episode_and_step_alone() -> None:
    walks = begun(*["hall"] * 30)
    scores = Decision(torch.zeros(30, 5))
    drawn = sampling(7)(scores, seen(walks), walks)
    assert len(set(drawn.tolist())) == 5
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    # Beside others, in another order, and with choices that do not exist.
    padded = Decision(torch.cat([torch.zeros(30, 5), torch.full((30, 2), -torch.inf)], 1))
    again = sampling(7)(padded, seen(walks), [walks[row] for row in order])
    assert torch.equal(again, drawn[order])
    for row in (0, 11, 29):
        alone = sampling(7)(Decision(scores.logits[:1]), seen(walks[:1]), [walks[row]])
        assert alone.tolist() == [int(drawn[row])]
    assert not torch.equal(sampling(8)(scores, seen(walks), walks), drawn)
    assert not torch.equal(sampling([7, 1])(scores, seen(walks), walks), drawn)
    for walk in walks:
        walk.num_decisions = 1
    assert not torch.equal(sampling(7)(scores, seen(walks), walks), drawn)


def test_sampling_leaves_the_callers_random_numbers_alone() -> None:
    walks = begun("hall")
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    sampling(0)(Decision(torch.zeros(1, 5)), seen(walks), walks)
    assert torch.equal(torch.rand(3), expected)


def test_following_is_going_where_the_teacher_says_or_stopping() -> None:
    walks = begun("hall", "attic", "garden")
    wanted = {"hall": "pantry", "attic": "landing", "garden": "garden"}

    def expert(walk: Trajectory) -> int:
        scene, here = ATLAS.name(walk.viewpoint)
        return int(ATLAS.locate(scene, [wanted[here]])[0])

    observation = seen(walks)
    chosen = teacher_forcing(ATLAS, expert)(Decision(torch.zeros(3, 5)), observation, walks)
    there = observation.neighbour[torch.arange(3), chosen].tolist()
    assert [ATLAS.name(each)[1] for each in there[:2]] == ["pantry", "landing"]
    assert int(chosen[2]) == 1 == int(ATLAS.degrees[walks[2].viewpoint])


def test_a_teacher_who_walks_through_walls_is_named() -> None:
    walks = begun("attic")
    through = teacher_forcing(ATLAS, lambda walk: int(ATLAS.locate("cottage", ["garden"])[0]))
    with pytest.raises(WorldError, match="episode 0_0.*from 'attic' to 'garden' is not an edge"):
        through(Decision(torch.zeros(1, 2)), seen(walks), walks)


def test_the_teacher_of_imitation_goes_by_time_and_not_by_place() -> None:
    """Spec A.11: a path that comes by the same place twice is followed as it is."""
    episode, expert = make_episode("hall", "door", "hall", "kitchen"), teacher_by_step(ATLAS)
    # Who stays in the hall all the time is told where the path goes, and then to stop where it is.
    walk = Trajectory.begin(ATLAS, episode)
    told = []
    for step in range(5):
        walk.num_decisions = step
        told.append(ATLAS.name(expert(walk))[1])
    assert told == ["door", "hall", "kitchen", "hall", "hall"]


def test_the_teacher_of_imitation_says_stop_once_the_path_is_over_even_off_the_path() -> None:
    attic = int(ATLAS.locate("cottage", ["attic"])[0])
    astray = Trajectory(make_episode("hall", "door"), [(attic, 12)], num_decisions=1)
    assert teacher_by_step(ATLAS)(astray) == attic
    chosen = teacher_forcing(ATLAS, teacher_by_step(ATLAS))(
        Decision(torch.zeros(1, 2)), seen([astray]), [astray]
    )
    assert chosen.tolist() == [ATLAS.degrees[attic]]
