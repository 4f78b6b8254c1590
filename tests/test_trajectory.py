"""Trajectories, their source, moves to the next poses, and action selectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from esceme.agents.base import BacktrackRoutes, Decision
from esceme.errors import EvaluationError, WorldError
from esceme.observation import Observation
from esceme.trajectory import (
    SingleBatch,
    Trajectory,
    greedy,
    next_poses,
    previous_viewpoints,
    reference_path_teacher_by_step,
    sampling,
    teacher_forcing,
)
from esceme.world import Pose
from fixtures.toy_atlas import build_toy_atlas, make_episode

ATLAS = build_toy_atlas()


def begin(*names: str) -> list[Trajectory]:
    return [Trajectory.begin(ATLAS, make_episode(name, name=f"{row}_0")) for row, name in enumerate(names)]


def observe(trajectories: list[Trajectory]) -> Observation:
    poses = np.array([trajectory.poses[-1] for trajectory in trajectories])
    return Observation.from_atlas(ATLAS, Pose(poses[:, 0], poses[:, 1]))


# -- trajectories ----------------------------------------------------------------------------------------


def test_trajectory_begins_at_the_start_facing_the_nearest_view() -> None:
    trajectory = Trajectory.begin(ATLAS, make_episode("kitchen", "hall", heading=math.radians(100)), visit=4)
    assert ATLAS.name(trajectory.viewpoint) == ("cottage", "kitchen")
    assert trajectory.poses == [(trajectory.viewpoint, 15)]
    assert (trajectory.num_decisions, trajectory.stopped, trajectory.visit) == (0, False, 4)


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
def test_decision_viewpoints_exclude_a_last_pose_without_decision(
    poses: list[int], stopped: bool, expected: list[int]
) -> None:
    trajectory = Trajectory(make_episode("hall"), [(viewpoint, 12) for viewpoint in poses], stopped=stopped)
    assert trajectory.decision_viewpoints == expected


def test_previous_viewpoints_are_padded_and_exclude_the_current_one() -> None:
    trajectories = begin("hall", "kitchen", "attic")
    trajectories[1].poses += [(7, 0), (8, 12)]
    assert previous_viewpoints(trajectories[:1]).shape == (1, 0)
    assert previous_viewpoints(trajectories).tolist() == [
        [-1, -1],
        [trajectories[1].poses[0][0], 7],
        [-1, -1],
    ]


def test_single_batch_returns_its_episodes_once() -> None:
    source = SingleBatch(ATLAS, [make_episode("hall", name="0_0"), make_episode("attic", name="1_0")])
    trajectories = source.next([], [])
    assert [trajectory.episode.episode_id for trajectory in trajectories] == ["0_0", "1_0"]
    assert list(source.next([], trajectories)) == list(source.next(trajectories, [])) == []


# -- moves -----------------------------------------------------------------------------------------------


def at(name: str) -> int:
    return int(ATLAS.locate("cottage", [name])[0])


FIRST = 40
"""The action that returns to history entry 0."""


def backtracking() -> tuple[Pose, Decision]:
    """Four agents; the last two have visited hall, landing and hall."""
    pose = Pose(
        np.array([at(name) for name in ("garden", "door", "attic", "attic")]), np.array([1, 2, 3, 35])
    )
    visited = [at("hall"), at("landing"), at("hall")]
    ranks = torch.tensor([[0, 1, 0], [1, 0, 2], [0, 1, 0]])  # hall and landing share an edge
    none = torch.zeros_like(ranks)
    routes = BacktrackRoutes(
        first_action=FIRST,
        viewpoints=torch.tensor([[-1] * 3, [-1] * 3, visited, visited]),
        views=torch.tensor([[0] * 3, [0] * 3, [13, 25, 7], [13, 25, 7]]),
        current_edge_rank=torch.tensor([[0] * 3, [0] * 3, [0, 1, 0], [0, 1, 0]]),
        edge_rank=torch.stack([none, none, ranks, ranks]),
    )
    return pose, Decision(torch.zeros(4, FIRST + 3), routes=routes)


def test_stop_keeps_the_pose_and_a_move_faces_its_direction() -> None:
    pose, decision = backtracking()
    stop = int(ATLAS.degrees[at("garden")])
    to_hall = ATLAS.neighbours[at("door")].tolist().index(at("hall"))
    expected = ATLAS.step(pose, np.array([stop, to_hall, 1, 1]))
    for routes in (decision.routes, None):
        moves = next_poses(
            ATLAS, pose, Decision(decision.logits, routes=routes), torch.tensor([stop, to_hall, 1, 1])
        )
        assert moves == [[], [(at("hall"), int(expected.view[1]))], [], []]


def test_backtracking_visits_every_viewpoint_and_turns_only_at_the_end() -> None:
    pose, decision = backtracking()
    stop = [int(ATLAS.degrees[at(name)]) for name in ("garden", "door")]
    moves = next_poses(ATLAS, pose, decision, torch.tensor([*stop, FIRST, FIRST + 2]))
    assert moves == [
        *([], []),
        [(at("landing"), 3), (at("hall"), 13)],  # the last view is that of the earlier visit
        [(at("landing"), 35), (at("hall"), 7)],
    ]
    assert {type(number) for poses in moves for pose in poses for number in pose} == {int}
    assert next_poses(ATLAS, pose, decision, torch.tensor([*stop, FIRST + 1, 0])) == [
        *([], []),
        [(at("landing"), 25)],
        [(at("landing"), int(ATLAS.step(pose, np.array([*stop, 0, 0])).view[3]))],  # as a candidate
    ]


def test_backtracking_without_a_known_path_is_an_error() -> None:
    pose, decision = backtracking()
    assert decision.routes is not None
    cut = decision._replace(
        routes=decision.routes._replace(edge_rank=torch.zeros(4, 3, 3, dtype=torch.int64))
    )
    with pytest.raises(WorldError, match="no known path leads back to viewpoint"):
        next_poses(ATLAS, pose, cut, torch.tensor([1, 1, FIRST, 1]))


# -- action selectors ------------------------------------------------------------------------------------


def decision(*rows: list[float]) -> Decision:
    return Decision(torch.tensor(rows))


def test_greedy_selects_the_first_of_the_highest_logits() -> None:
    trajectories = begin("hall", "garden", "door")
    scores = decision([1.0, 4.0, 4.0], [0.5, -torch.inf, -torch.inf], [-3.0, -2.0, -torch.inf])
    assert greedy(scores, observe(trajectories), trajectories).tolist() == [1, 0, 1]


@pytest.mark.parametrize("row", [[0.0, torch.nan, 1.0], [0.0, torch.inf, 1.0], [-torch.inf] * 3])
def test_greedy_names_the_episode_whose_logits_are_not_finite(row: list[float]) -> None:
    trajectories = begin("hall", "garden")
    trajectories[1].num_decisions = 2
    with pytest.raises(EvaluationError, match="episode 1_0, decision 3: the scores .* are not finite"):
        greedy(decision([1.0, 2.0, -torch.inf], row), observe(trajectories), trajectories)


def test_samples_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.2, 0.0, 0.3])
    trajectories = [
        Trajectory.begin(ATLAS, make_episode("hall", name=f"{number}_0")) for number in range(4000)
    ]
    scores = Decision(probabilities.log().expand(4000, -1))
    drawn = sampling(0)(scores, observe(trajectories[:1]), trajectories)
    shares = torch.bincount(drawn, minlength=4) / 4000
    torch.testing.assert_close(shares, probabilities, atol=0.03, rtol=0)
    assert shares[2] == 0


def test_sample_depends_only_on_seed_episode_and_step() -> None:
    trajectories = begin(*["hall"] * 30)
    scores = Decision(torch.zeros(30, 5))
    drawn = sampling(7)(scores, observe(trajectories), trajectories)
    assert len(set(drawn.tolist())) == 5
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    # Another order of rows, and padded actions.
    padded = Decision(torch.cat([torch.zeros(30, 5), torch.full((30, 2), -torch.inf)], 1))
    again = sampling(7)(padded, observe(trajectories), [trajectories[row] for row in order])
    assert torch.equal(again, drawn[order])
    for row in (0, 11, 29):
        alone = sampling(7)(Decision(scores.logits[:1]), observe(trajectories[:1]), [trajectories[row]])
        assert alone.tolist() == [int(drawn[row])]
    assert not torch.equal(sampling(8)(scores, observe(trajectories), trajectories), drawn)
    assert not torch.equal(sampling([7, 1])(scores, observe(trajectories), trajectories), drawn)
    for trajectory in trajectories:
        trajectory.num_decisions = 1
    assert not torch.equal(sampling(7)(scores, observe(trajectories), trajectories), drawn)


def test_sampling_does_not_use_the_global_generator() -> None:
    trajectories = begin("hall")
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    sampling(0)(Decision(torch.zeros(1, 5)), observe(trajectories), trajectories)
    assert torch.equal(torch.rand(3), expected)


def test_teacher_forcing_selects_the_teachers_viewpoint_or_stop() -> None:
    trajectories = begin("hall", "attic", "garden")
    targets = {"hall": "pantry", "attic": "landing", "garden": "garden"}

    def expert(trajectory: Trajectory) -> int:
        scene, here = ATLAS.name(trajectory.viewpoint)
        return int(ATLAS.locate(scene, [targets[here]])[0])

    observation = observe(trajectories)
    chosen = teacher_forcing(ATLAS, expert)(Decision(torch.zeros(3, 5)), observation, trajectories)
    there = observation.neighbour[torch.arange(3), chosen].tolist()
    assert [ATLAS.name(viewpoint)[1] for viewpoint in there[:2]] == ["pantry", "landing"]
    assert int(chosen[2]) == 1 == int(ATLAS.degrees[trajectories[2].viewpoint])


def test_teacher_without_an_edge_to_its_viewpoint_is_an_error() -> None:
    trajectories = begin("attic")
    through = teacher_forcing(ATLAS, lambda trajectory: int(ATLAS.locate("cottage", ["garden"])[0]))
    with pytest.raises(WorldError, match="episode 0_0.*from 'attic' to 'garden' is not an edge"):
        through(Decision(torch.zeros(1, 2)), observe(trajectories), trajectories)


def test_reference_path_teacher_by_step_follows_the_path_by_step_number() -> None:
    """Spec A.11: a path may visit a viewpoint twice; after its end the teacher stops at any viewpoint."""
    episode, expert = make_episode("hall", "door", "hall", "kitchen"), reference_path_teacher_by_step(ATLAS)
    trajectory = Trajectory.begin(ATLAS, episode)
    targets = []
    for step in range(5):  # at the hall all the time
        trajectory.num_decisions = step
        targets.append(ATLAS.name(expert(trajectory))[1])
    assert targets == ["door", "hall", "kitchen", "hall", "hall"]
    attic = at("attic")
    astray = Trajectory(make_episode("hall", "door"), [(attic, 12)], num_decisions=1)
    assert reference_path_teacher_by_step(ATLAS)(astray) == attic
    chosen = teacher_forcing(ATLAS, reference_path_teacher_by_step(ATLAS))(
        Decision(torch.zeros(1, 2)), observe([astray]), [astray]
    )
    assert chosen.tolist() == [ATLAS.degrees[attic]]
