"""Rewards, compared with computations by hand in a small scene."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp

import numpy as np
import pytest

from esceme.learning.reinforcement import REWARDS, GoalReward, PathReward
from esceme.metrics import score
from esceme.tasks.episode import Episode
from esceme.tasks.submission import Prediction, TrajectoryPoint
from esceme.trajectory import Trajectory
from esceme.world import Atlas, SceneGraph
from fixtures.toy_atlas import make_episode

# Metres from the gate along a line; the goal is the oak. The pond and the well are both 5 m from the oak and
# 6 m from each other.
LINE = {"gate": 0.0, "path": 4.0, "oak": 8.0, "bench": 8.5, "post": 9.0, "wall": 9.25, "shed": 11.0}
POSITIONS = {
    **{name: (0.0, metres, 0.0) for name, metres in LINE.items()},
    "pond": (4.0, 11.0, 0.0),
    "well": (4.0, 5.0, 0.0),
}
EDGES = [
    *zip(list(LINE), list(LINE)[1:], strict=False),
    ("oak", "pond"),
    ("oak", "well"),
    ("pond", "well"),
]
PARK = Atlas([SceneGraph.build("park", POSITIONS, EDGES)])
TO_OAK = make_episode("gate", "path", "oak", scene="park")
AT_OAK = make_episode("oak", scene="park")
TWO_GOALS = replace(TO_OAK, goals=("post", "well"))


def at(name: str, atlas: Atlas = PARK, scene: str = "park") -> int:
    return int(atlas.locate(scene, [name])[0])


def trajectory_from(episode: Episode, start: str | None = None) -> Trajectory:
    return Trajectory(episode, [(at(start or episode.start), 12)])


def act(trajectory: Trajectory, *names: str) -> None:
    """Take one decision: a move, a jump along several viewpoints, or STOP without viewpoints."""
    trajectory.num_decisions += 1
    trajectory.stopped = not names
    trajectory.poses += [(at(name), 12) for name in names]


def rewards_of(kind: type[PathReward | GoalReward], trajectory: Trajectory, *moves: str) -> list[float]:
    """Return the rewards of moves and of STOP at the end."""
    reward, rewards = kind(PARK, [trajectory]), []
    for names in [*((move,) for move in moves), ()]:
        act(trajectory, *names)
        rewards += reward.step([trajectory]).tolist()
    return rewards


# -- path reward (spec E.3) --------------------------------------------------------------------------------

WARPED = exp(-12 / 9), exp(-4 / 9)
"""nDTW at the gate (0 + 4 + 8 m over three viewpoints times 3 m), and after the move to the path."""


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        (("path", "oak"), [1 + WARPED[1] - WARPED[0], 1 + 1 - WARPED[1], 2 + 2 * 1]),
        (("path", "gate"), [1 + WARPED[1] - WARPED[0], -1 + exp(-8 / 9) - WARPED[1], -2]),
        (("path",), [1 + WARPED[1] - WARPED[0], -2]),  # STOP 4 m from the goal
    ],
)
def test_path_reward_of_moves_and_stop(moves: tuple[str, ...], expected: list[float]) -> None:
    assert rewards_of(PathReward, trajectory_from(TO_OAK), *moves) == pytest.approx(expected)


def test_stop_is_rewarded_within_three_metres_only() -> None:
    moves = ("path", "oak", "bench", "post", "wall")
    near = rewards_of(PathReward, trajectory_from(TO_OAK), *moves)
    assert near[-1] == pytest.approx(2 + 2 * exp(-(0.5 + 1 + 1.25) / 9))
    assert PARK.distance(at("shed"), at("oak")) == 3.0
    assert rewards_of(PathReward, trajectory_from(TO_OAK), *moves, "shed")[-1] == -2


@pytest.mark.parametrize(
    ("start", "move", "distance", "expected"),
    [
        ("oak", "bench", 0.5, -1 - 2.0),  # from the goal itself
        ("bench", "post", 1.0, -1 - 1.0),  # from half a metre
        ("post", "wall", 1.25, -1),  # from one metre: no penalty
        ("wall", "shed", 3.0, -1),
        ("post", "bench", 0.5, 1),
        ("pond", "well", 5.0, 0),  # neither nearer nor farther
    ],
)
def test_moving_away_within_a_metre_of_the_goal_is_penalised(
    start: str, move: str, distance: float, expected: float
) -> None:
    before = float(PARK.distance(at(start), at("oak")))
    assert PARK.distance(at(move), at("oak")) == distance
    fidelity = exp(-(before + distance) / 3) - exp(-before / 3)
    reward = rewards_of(PathReward, trajectory_from(AT_OAK, start), move)[0]
    assert reward == pytest.approx(expected + fidelity)


def test_jump_is_one_decision_along_all_of_its_viewpoints() -> None:
    trajectory = trajectory_from(TO_OAK)
    reward = PathReward(PARK, [trajectory])
    act(trajectory, "path", "oak", "bench")
    assert reward.step([trajectory]).tolist() == pytest.approx([1 + exp(-0.5 / 9) - exp(-12 / 9)])
    # The decision starts and ends at the bench, so there is no penalty for leaving the goal.
    act(trajectory, "oak", "bench")
    assert reward.step([trajectory]).tolist() == pytest.approx([exp(-1 / 9) - exp(-0.5 / 9)])


def test_reward_created_after_the_first_move_starts_at_the_first_pose() -> None:
    early, late = trajectory_from(TO_OAK), trajectory_from(TO_OAK)
    before = PathReward(PARK, [early])
    for trajectory in (early, late):
        act(trajectory, "path")
    assert PathReward(PARK, [late]).step([late]).tolist() == before.step([early]).tolist()


def test_repeated_viewpoints_of_the_reference_path_count_once() -> None:
    repeated = trajectory_from(make_episode("gate", "gate", "path", "oak", "oak", scene="park"))
    expected = rewards_of(PathReward, trajectory_from(TO_OAK), "path", "oak")
    assert rewards_of(PathReward, repeated, "path", "oak") == expected


# -- goal reward (spec E.4) --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("episode", "start", "moves", "expected"),
    [
        (TWO_GOALS, "gate", ("path", "oak", "pond", "oak", "path"), [1, 1, -1, 1, -1, -2]),
        (TWO_GOALS, "pond", ("well",), [1, 2]),  # 6 m from both goals, then at the well
        (TWO_GOALS, "gate", ("path", "oak", "bench"), [1, 1, 1, -2]),  # near a goal is not enough
        (TWO_GOALS, "post", (), [2]),
        (TWO_GOALS, "post", ("bench", "post"), [-1, 1, 2]),  # no penalty for leaving a goal
        (replace(TO_OAK, goals=("oak",)), "pond", ("well", "pond"), [0, 0, -2]),  # distance unchanged
        (TO_OAK, "gate", ("path", "oak"), [1, 1, 2]),  # without goals: the end of the path
    ],
)
def test_goal_reward_counts_progress_to_the_nearest_goal(
    episode: Episode, start: str, moves: tuple[str, ...], expected: list[float]
) -> None:
    assert rewards_of(GoalReward, trajectory_from(episode, start), *moves) == expected


# -- batches -----------------------------------------------------------------------------------------------


def random_atlas(rng: np.random.Generator) -> Atlas:
    """Three scenes of twelve viewpoints."""
    graphs = []
    for scene in range(3):
        points = rng.uniform(0, 9, (12, 3))
        names = [f"{scene}{chr(97 + row)}" for row in range(12)]
        near = np.linalg.norm(points[:, None] - points[None], axis=-1) < 3.5
        near |= np.eye(12, k=1, dtype=bool)
        edges = [(names[a], names[b]) for a, b in np.argwhere(near).tolist() if a < b]
        positions = {name: tuple(point) for name, point in zip(names, points.tolist(), strict=True)}
        graphs.append(SceneGraph.build(f"scene-{scene}", positions, edges))
    return Atlas(graphs)


def random_path(atlas: Atlas, start: int, num_moves: int, rng: np.random.Generator) -> list[int]:
    path = [start]
    for _ in range(num_moves):
        path.append(int(rng.choice(atlas.neighbours[path[-1], : atlas.degrees[path[-1]]])))
    return path


def random_trajectory(atlas: Atlas, rng: np.random.Generator) -> Trajectory:
    """Begin an episode with a random reference path and random goals."""
    start = int(rng.integers(len(atlas)))
    scene = atlas.name(start)[0]
    path = [atlas.name(v)[1] for v in random_path(atlas, start, int(rng.integers(0, 9)), rng)]
    goals = rng.choice(atlas.graph(scene).viewpoints, int(rng.integers(0, 4)), replace=False)
    return Trajectory.begin(atlas, replace(make_episode(*path, scene=scene), goals=tuple(goals.tolist())))


def move_randomly(atlas: Atlas, trajectories: Sequence[Trajectory], rng: np.random.Generator) -> None:
    for trajectory in trajectories:
        trajectory.num_decisions += 1
        trajectory.stopped = bool(rng.random() < 0.15)
        if not trajectory.stopped:
            trajectory.poses.append((random_path(atlas, trajectory.viewpoint, 1, rng)[1], 12))


def ndtw_of_predictions(atlas: Atlas, trajectories: Sequence[Trajectory]) -> list[float]:
    pairs = []
    for trajectory in trajectories:
        points = (TrajectoryPoint(atlas.name(v)[1], 0.0, 0.0) for v, _ in trajectory.poses)
        pairs.append((trajectory.episode, Prediction("0_0", tuple(points))))
    return score(pairs, atlas).values["ndtw"].tolist()


@pytest.mark.parametrize("seed", range(4))
def test_incremental_ndtw_equals_the_metric(seed: int) -> None:
    rng = np.random.default_rng(seed)
    atlas = random_atlas(rng)
    active = [random_trajectory(atlas, rng) for _ in range(12)]
    reward = PathReward(atlas, active)
    assert reward.ndtw(active).tolist() == pytest.approx(ndtw_of_predictions(atlas, active), abs=1e-12)
    while active:
        move_randomly(atlas, active, rng)
        reward.step(active)
        assert reward.ndtw(active).tolist() == pytest.approx(ndtw_of_predictions(atlas, active), abs=1e-12)
        active = [t for t in active if not t.stopped and t.num_decisions < 20]


@pytest.mark.parametrize("name", list(REWARDS))
def test_rewards_do_not_depend_on_the_rest_of_the_batch(name: str) -> None:
    rng = np.random.default_rng(7)
    atlas = random_atlas(rng)
    active = [random_trajectory(atlas, rng) for _ in range(40)]
    batch, seen = REWARDS[name](atlas, active), set[float]()
    single = {trajectory: REWARDS[name](atlas, [trajectory]) for trajectory in active}
    while active:
        active = [active[row] for row in rng.permutation(len(active))]
        move_randomly(atlas, active, rng)
        rewards = batch.step(active)
        assert rewards.shape == (len(active),) and rewards.dtype == np.float64
        expected = [float(single[trajectory].step([trajectory])[0]) for trajectory in active]
        assert rewards.tolist() == pytest.approx(expected, abs=1e-12)
        seen |= set(rewards.round(6).tolist())
        active = [t for t in active if not t.stopped and t.num_decisions < 15]
    assert {-2.0, -1.0, 1.0, 2.0} <= seen if name == "goal" else len(seen) > 50


# -- real data ---------------------------------------------------------------------------------------------
