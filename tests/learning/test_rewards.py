"""What steps are worth, in a street that is short enough to measure by hand."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from math import exp
from pathlib import Path

import numpy as np
import pytest

from esceme.learning.reinforcement import REWARDS, GoalReward, PathReward, Reward
from esceme.metrics import score
from esceme.tasks.episode import Episode
from esceme.tasks.submission import Prediction, TrajectoryPoint
from esceme.trajectory import Trajectory
from esceme.world import Atlas, SceneGraph
from fixtures.toy_atlas import make_episode

# Along a line, metres from the gate: the goal is the oak. The pond and the well lie beside the oak, both 5 m
# from it; between them there are 6 m.
LINE = {"gate": 0.0, "path": 4.0, "oak": 8.0, "bench": 8.5, "post": 9.0, "wall": 9.25, "shed": 11.0}
PLACES = {
    **{name: (0.0, metres, 0.0) for name, metres in LINE.items()},
    "pond": (4.0, 11.0, 0.0),
    "well": (4.0, 5.0, 0.0),
}
MODES = [
    *zip(list(LINE), list(LINE)[1:], strict=False),
    ("oak", "pond"),
    ("oak", "well"),
    ("pond", "well"),
]
PARK = Atlas([SceneGraph.build("park", PLACES, MODES)])
TO_THE_OAK = make_episode("gate", "path", "oak", scene="park")


def place(name: str, atlas: Atlas = PARK, scene: str = "park") -> int:
    return int(atlas.locate(scene, [name])[0])


def starting(episode: Episode, start: str | None = None) -> Trajectory:
    """A walk of the episode, if need be from somewhere else."""
    return Trajectory(episode, [(place(start or episode.start), 12)])


def go(walk: Trajectory, *names: str) -> None:
    """One decision: a move, a jump along several places, or STOP for no place."""
    walk.num_decisions += 1
    walk.stopped = not names
    walk.poses += [(place(name), 12) for name in names]


def rewards_of(kind: type[PathReward | GoalReward], walk: Trajectory, *mode: str) -> list[float]:
    """What every move is worth, and STOP at the end."""
    reward, found = kind(PARK, [walk]), []
    for name in mode:
        go(walk, name)
        found += reward.step([walk]).tolist()
    go(walk)
    return found + reward.step([walk]).tolist()


# -- the reward of paths (spec E.3) ------------------------------------------------------------------------


def test_the_whole_path_and_stop() -> None:
    found = rewards_of(PathReward, starting(TO_THE_OAK), "path", "oak")
    # Warping: the gate alone 0 + 4 + 8 m, then 0 + 0 + 4, then nothing; over three viewpoints times 3 m.
    first, second = exp(-12 / 9), exp(-4 / 9)
    assert found == pytest.approx([1 + second - first, 1 + 1 - second, 2 + 2 * 1])


def test_a_move_away_from_the_goal_costs_one_and_what_it_loses_of_the_path() -> None:
    found = rewards_of(PathReward, starting(TO_THE_OAK), "path", "gate")
    # The last place meets the end of the path: 4 m apart at first, then 8 m.
    assert found[1] == pytest.approx(-1 + exp(-8 / 9) - exp(-4 / 9))
    assert found[2] == -2


def test_stop_too_far_from_the_goal_costs_two_however_close_to_the_path() -> None:
    assert rewards_of(PathReward, starting(TO_THE_OAK), "path")[-1] == -2  # 4 m from the oak


def test_stop_near_the_goal_gives_two_and_twice_the_fidelity() -> None:
    found = rewards_of(PathReward, starting(TO_THE_OAK), "path", "oak", "bench", "post", "wall")
    assert found[-1] == pytest.approx(2 + 2 * exp(-(0.5 + 1 + 1.25) / 9))


def test_three_metres_are_too_far() -> None:
    found = rewards_of(PathReward, starting(TO_THE_OAK), "path", "oak", "bench", "post", "wall", "shed")
    assert PARK.distance(place("shed"), place("oak")) == 3.0
    assert found[-1] == -2


@pytest.mark.parametrize(
    ("left", "entered", "distance", "penalty"),
    [
        ("oak", "bench", 0.5, 2.0),  # from the goal itself
        ("bench", "post", 1.0, 1.0),  # from half a metre
        ("post", "wall", 1.25, 0.0),  # from one metre: nothing to pay
        ("wall", "shed", 3.0, 0.0),  # from beyond
    ],
)
def test_leaving_the_goals_surroundings_costs_extra(
    left: str, entered: str, distance: float, penalty: float
) -> None:
    """The walk stands at `left` from the beginning, so that nDTW is that of one and of two viewpoints."""
    episode = make_episode("oak", scene="park")
    apart = float(PARK.distance(place(left), place("oak")))
    found = rewards_of(PathReward, starting(episode, left), entered)
    before, after = exp(-apart / 3), exp(-(apart + distance) / 3)
    assert found[0] == pytest.approx(-1 + after - before - penalty)


def test_coming_nearer_within_a_metre_costs_nothing() -> None:
    found = rewards_of(PathReward, starting(make_episode("oak", scene="park"), "post"), "bench")
    assert found[0] == pytest.approx(1 + exp(-1.5 / 3) - exp(-1 / 3))


def test_a_move_that_keeps_the_distance_is_neither_nearer_nor_farther() -> None:
    assert PARK.distance(place("pond"), place("oak")) == PARK.distance(place("well"), place("oak")) == 5.0
    found = rewards_of(PathReward, starting(make_episode("oak", scene="park"), "pond"), "well")
    assert found[0] == pytest.approx(exp(-10 / 3) - exp(-5 / 3))


def test_a_jump_is_one_decision_along_all_of_its_places() -> None:
    walk = starting(TO_THE_OAK)
    reward = PathReward(PARK, [walk])
    go(walk, "path", "oak", "bench")
    # From 8 m to half a metre: nearer, once. Of what was passed, only the bench is off the path.
    assert reward.step([walk]).tolist() == pytest.approx([1 + exp(-0.5 / 9) - exp(-12 / 9)])
    # Back and forth: the goal was left by nobody, for the decision began and ended at the bench.
    go(walk, "oak", "bench")
    assert reward.step([walk]).tolist() == pytest.approx([exp(-1 / 9) - exp(-0.5 / 9)])


def test_a_reward_begins_where_walks_began() -> None:
    """So it can be made when the first step has been told."""
    early, late = starting(TO_THE_OAK), starting(TO_THE_OAK)
    before = PathReward(PARK, [early])
    for walk in (early, late):
        go(walk, "path")
    assert PathReward(PARK, [late]).step([late]).tolist() == before.step([early]).tolist()


def test_a_reference_that_stands_still_is_as_long_as_where_it_goes() -> None:
    still = make_episode("gate", "gate", "path", "oak", "oak", scene="park")
    assert rewards_of(PathReward, starting(still), "path", "oak") == rewards_of(
        PathReward, starting(TO_THE_OAK), "path", "oak"
    )


# -- the reward of goals (spec E.4) ------------------------------------------------------------------------

TO_EITHER = replace(TO_THE_OAK, goals=("post", "well"))


def test_moves_towards_the_nearest_goal_give_one_and_others_cost_one() -> None:
    found = rewards_of(GoalReward, starting(TO_EITHER), "path", "oak", "pond", "oak", "path")
    # To the post 9, 5, 1, 6, 1 and 5 m; from nowhere here is the well nearer, though as near from the pond.
    assert found == [1, 1, -1, 1, -1, -2]


def test_another_goal_may_become_the_nearest() -> None:
    found = rewards_of(GoalReward, starting(TO_EITHER, "pond"), "well")
    assert found == [1, 2]  # 6 m to either, and then at the well


def test_a_goal_nearby_is_not_enough() -> None:
    beside = rewards_of(GoalReward, starting(TO_EITHER), "path", "oak", "bench")
    assert beside == [1, 1, 1, -2]
    assert rewards_of(GoalReward, starting(TO_EITHER, "post")) == [2]


def test_goals_give_nothing_for_a_move_that_keeps_the_distance() -> None:
    episode = replace(TO_THE_OAK, goals=("oak",))
    assert rewards_of(GoalReward, starting(episode, "pond"), "well", "pond") == [0, 0, -2]


def test_leaving_a_goal_costs_no_more_than_any_other_move() -> None:
    assert rewards_of(GoalReward, starting(TO_EITHER, "post"), "bench", "post") == [-1, 1, 2]


def test_without_goals_the_end_of_the_path_is_one() -> None:
    assert rewards_of(GoalReward, starting(TO_THE_OAK), "path", "oak") == [1, 1, 2]


# -- batches -----------------------------------------------------------------------------------------------


def drawn_world(rng: np.random.Generator) -> Atlas:
    """Three scenes of a dozen places."""
    graphs = []
    for scene in range(3):
        places = rng.uniform(0, 9, (12, 3))
        names = [f"{scene}{chr(97 + row)}" for row in range(12)]
        near = np.linalg.norm(places[:, None] - places[None], axis=-1) < 3.5
        near |= np.eye(12, k=1, dtype=bool)
        ways = [(names[a], names[b]) for a, b in np.argwhere(near).tolist() if a < b]
        positions = {name: tuple(each) for name, each in zip(names, places.tolist(), strict=True)}
        graphs.append(SceneGraph.build(f"scene-{scene}", positions, ways))
    return Atlas(graphs)


def strolled(atlas: Atlas, start: int, moves: int, rng: np.random.Generator) -> list[int]:
    """A random walk, which may come by the same place again."""
    way = [start]
    for _ in range(moves):
        way.append(int(rng.choice(atlas.neighbours[way[-1], : atlas.degrees[way[-1]]])))
    return way


def drawn_walk(atlas: Atlas, rng: np.random.Generator) -> Trajectory:
    start = int(rng.integers(len(atlas)))
    scene = atlas.name(start)[0]
    reference = [atlas.name(each)[1] for each in strolled(atlas, start, int(rng.integers(0, 9)), rng)]
    goals = rng.choice(atlas.graph(scene).viewpoints, int(rng.integers(0, 4)), replace=False)
    return Trajectory.begin(
        atlas, replace(make_episode(*reference, scene=scene), goals=tuple(goals.tolist()))
    )


def stroll_on(atlas: Atlas, walks: Sequence[Trajectory], rng: np.random.Generator) -> None:
    for walk in walks:
        walk.num_decisions += 1
        walk.stopped = bool(rng.random() < 0.15)
        if not walk.stopped:
            walk.poses.append((strolled(atlas, walk.viewpoint, 1, rng)[1], 12))


def scored_ndtw(atlas: Atlas, walks: Sequence[Trajectory]) -> list[float]:
    """The nDTW of walks by the measures of whole files."""
    pairs = [
        (
            walk.episode,
            Prediction(
                "0_0", tuple(TrajectoryPoint(atlas.name(place)[1], 0.0, 0.0) for place, _ in walk.poses)
            ),
        )
        for walk in walks
    ]
    return score(pairs, atlas).values["ndtw"].tolist()


@pytest.mark.parametrize("seed", range(4))
def test_fidelity_step_by_step_is_that_of_the_whole_walk(seed: int) -> None:
    rng = np.random.default_rng(seed)
    atlas = drawn_world(rng)
    living = [drawn_walk(atlas, rng) for _ in range(12)]
    reward = PathReward(atlas, living)
    assert reward.ndtw(living).tolist() == pytest.approx(scored_ndtw(atlas, living), abs=1e-12)
    while living:
        stroll_on(atlas, living, rng)
        reward.step(living)
        assert reward.ndtw(living).tolist() == pytest.approx(scored_ndtw(atlas, living), abs=1e-12)
        living = [walk for walk in living if not walk.stopped and walk.num_decisions < 20]


@pytest.mark.parametrize("name", list(REWARDS))
def test_a_reward_does_not_depend_on_who_else_walks(name: str) -> None:
    """Others end earlier, come in another order, or have longer paths and more goals."""
    rng = np.random.default_rng(7)
    atlas = drawn_world(rng)
    walks = [drawn_walk(atlas, rng) for _ in range(40)]
    process_group = REWARDS[name](atlas, walks)
    alone: dict[Trajectory, Reward] = {walk: REWARDS[name](atlas, [walk]) for walk in walks}
    living, seen = walks, set[float]()
    while living:
        living = [living[row] for row in rng.permutation(len(living))]
        stroll_on(atlas, living, rng)
        found = process_group.step(living)
        assert found.shape == (len(living),) and found.dtype == np.float64
        expected = [float(alone[walk].step([walk])[0]) for walk in living]
        assert found.tolist() == pytest.approx(expected, abs=1e-12)
        seen |= set(found.round(6).tolist())
        living = [walk for walk in living if not walk.stopped and walk.num_decisions < 15]
    assert {-2.0, -1.0, 1.0, 2.0} <= seen if name == "goal" else len(seen) > 50


# -- real data ---------------------------------------------------------------------------------------------


@pytest.mark.real
def test_rewards_are_those_of_the_original(vectors_root: Path, real_graphs: dict[str, SceneGraph]) -> None:
    file = vectors_root / "hamt_esceme" / "train_il_a2c.json.gz"
    stored = json.loads(gzip.decompress(file.read_bytes()))["A2C"]
    items, steps = stored["items"], stored["reward_mask_dist_ndtw_per_step"]
    atlas = Atlas([real_graphs[scene] for scene in sorted({item["scan"] for item in items})])
    walks = [Trajectory.begin(atlas, make_episode(*item["path"], scene=item["scan"])) for item in items]
    reward, checked = PathReward(atlas, walks), 0
    for actions, told in zip(stored["sampled_actions(-1=stop/ended)"], steps, strict=True):
        worth, mask, metres, fidelity = np.array(told)
        living = [row for row, walk in enumerate(walks) if not walk.stopped]
        assert np.flatnonzero(mask).tolist() == living
        for row in living:
            walks[row].stopped = actions[row] < 0
            if actions[row] >= 0:
                walks[row].poses.append((int(atlas.neighbours[walks[row].viewpoint, actions[row]]), 12))
        alive = [walks[row] for row in living]
        np.testing.assert_allclose(reward.step(alive), worth[living], atol=1e-6)
        np.testing.assert_allclose(reward.ndtw(alive), fidelity[living], atol=1e-6)
        goals = [place(walk.episode.goal, atlas, walk.episode.scene_id) for walk in walks]
        left = atlas.distance([walk.viewpoint for walk in walks], goals)
        np.testing.assert_allclose(left, metres, atol=1e-5)
        checked += len(living)
    assert checked == stored["logs(policy/critic in reverse time)"]["total"][0]
    ways = [[atlas.name(viewpoint)[1] for viewpoint, _ in walk.poses] for walk in walks]
    assert ways == stored["paths"]
