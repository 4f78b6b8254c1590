"""Teachers: the next viewpoint, labels, and the path that is taught."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from esceme.errors import WorldError
from esceme.learning.teachers import (
    SUPERVISIONS,
    TEACHERS,
    player_or_shortest_path,
    shortest_path_teacher,
    teacher_actions,
)
from esceme.tasks.cvdn import read_cvdn
from esceme.tasks.episode import DialogEpisode, Episode, check_path
from esceme.tasks.r2r import read_r2r
from esceme.trajectory import Teacher, Trajectory
from esceme.world import Atlas, SceneGraph
from fixtures.toy_atlas import build_toy_atlas, make_episode

ATLAS = build_toy_atlas()
BY_STEP, BY_LOCATION, SHORTEST = (TEACHERS[name](ATLAS) for name in ("time", "location", "shortest"))
EPISODE = make_episode("garden", "door", "hall", "kitchen", name="7_1")


def trajectory_at(episode: Episode, viewpoint: str, *, num_decisions: int = 0) -> Trajectory:
    """A trajectory that is at a viewpoint after some decisions, by any path."""
    pose = int(ATLAS.locate(episode.scene_id, [viewpoint])[0]), 12
    return Trajectory(episode, [pose], num_decisions=num_decisions)


def next_viewpoint(teacher: Teacher, episode: Episode, viewpoint: str, *, num_decisions: int = 0) -> str:
    return ATLAS.name(teacher(trajectory_at(episode, viewpoint, num_decisions=num_decisions)))[1]


def follow(teacher: Teacher, episode: Episode, *, atlas: Atlas = ATLAS, max_steps: int = 12) -> list[str]:
    """Return the viewpoints of a trajectory that follows a teacher."""
    trajectory = Trajectory.begin(atlas, episode)
    for _ in range(max_steps):
        (action,) = teacher_actions(atlas, teacher, [trajectory])
        trajectory.num_decisions += 1
        if action == atlas.degrees[trajectory.viewpoint]:
            break
        trajectory.poses.append((int(atlas.neighbours[trajectory.viewpoint, action]), 12))
    return [atlas.name(viewpoint)[1] for viewpoint, _ in trajectory.poses]


# -- the next viewpoint ------------------------------------------------------------------------------------


def test_pitfall_11_reference_path_teacher_by_step_ignores_the_viewpoint() -> None:
    for step, expected in enumerate(("door", "hall", "kitchen")):
        assert next_viewpoint(BY_STEP, EPISODE, "landing", num_decisions=step) == expected
    assert next_viewpoint(SHORTEST, EPISODE, "landing", num_decisions=2) == "hall"
    for late in (3, 4, 9):  # STOP after the end of the path
        assert next_viewpoint(BY_STEP, EPISODE, "kitchen", num_decisions=late) == "kitchen"


def test_reference_path_teacher_by_location_ignores_the_step() -> None:
    for step in (0, 2, 7):
        assert next_viewpoint(BY_LOCATION, EPISODE, "door", num_decisions=step) == "hall"
        assert next_viewpoint(BY_LOCATION, EPISODE, "kitchen", num_decisions=step) == "kitchen"
    with pytest.raises(WorldError, match="'attic' is not on the reference path of episode 7_1"):
        next_viewpoint(BY_LOCATION, EPISODE, "attic")


def test_reference_path_teacher_by_location_never_leaves_a_loop() -> None:
    episode = make_episode("hall", "door", "hall", "kitchen")
    assert follow(BY_STEP, episode) == ["hall", "door", "hall", "kitchen"]
    assert follow(BY_LOCATION, episode, max_steps=6) == ["hall", "door"] * 3 + ["hall"]


def test_shortest_path_leads_to_the_nearest_goal() -> None:
    assert follow(SHORTEST, make_episode("kitchen", "hall", "door", "hall", "pantry")) == [
        "kitchen",
        "pantry",
    ]
    episode = replace(make_episode("hall"), goals=("garden", "attic", "pantry"))
    assert follow(SHORTEST, episode) == ["hall", "door", "garden"]  # 6 m; 6.006 m to the pantry
    assert follow(SHORTEST, replace(episode, goals=("attic", "kitchen"))) == ["hall", "kitchen"]
    for goal in episode.goals:
        assert next_viewpoint(SHORTEST, episode, goal) == goal
    assert next_viewpoint(SHORTEST, episode, "landing") == "attic"


def test_shortest_paths_have_the_length_of_the_distance_in_every_scene() -> None:
    for scene, graph in ATLAS.graphs.items():
        for start in graph.viewpoints:
            for goal in graph.viewpoints:
                path = follow(SHORTEST, replace(make_episode(start, scene=scene), goals=(goal,)))
                metres = sum(graph.distance(a, b) for a, b in zip(path, path[1:], strict=False))
                assert path[-1] == goal
                assert metres == pytest.approx(graph.distance(start, goal))


def test_unreachable_goal_is_an_error() -> None:
    positions = {"a": (0, 0, 0), "b": (0, 2, 0), "c": (9, 0, 0), "d": (9, 2, 0)}
    atlas = Atlas([SceneGraph.build("islands", positions, [("a", "b"), ("c", "d")])])
    episode = replace(make_episode("a", scene="islands", name="3_0"), goals=("c", "d"))
    with pytest.raises(WorldError, match="episode 3_0: no path leads from 'a' to a goal"):
        shortest_path_teacher(atlas)(Trajectory.begin(atlas, episode))
    reachable = replace(episode, goals=("c", "b"))
    assert follow(shortest_path_teacher(atlas), reachable, atlas=atlas) == ["a", "b"]


def test_label_is_the_index_of_a_candidate_or_of_stop() -> None:
    targets = {"hall": "pantry", "garden": "garden", "attic": "landing", "door": "hall"}

    def teacher(trajectory: Trajectory) -> int:
        return int(ATLAS.locate("cottage", [targets[ATLAS.name(trajectory.viewpoint)[1]]])[0])

    labels = teacher_actions(ATLAS, teacher, [trajectory_at(make_episode(start), start) for start in targets])
    for (start, target), label in zip(targets.items(), labels.tolist(), strict=True):
        candidates = [candidate.viewpoint for candidate in ATLAS.graph("cottage").candidates(start)]
        assert [*candidates, start][label] == target
    assert labels.dtype == np.int64


def test_label_without_an_edge_is_an_error() -> None:
    trajectories = [
        trajectory_at(make_episode("hall", "door"), "hall"),
        trajectory_at(make_episode("hall", "door", "garden", name="5_2"), "attic", num_decisions=1),
    ]
    with pytest.raises(WorldError, match="episode 5_2.*from 'attic' to 'garden' is not an edge"):
        teacher_actions(ATLAS, BY_STEP, trajectories)


# -- the path that is taught -------------------------------------------------------------------------------

PLAYER_PATH = ("hall", "door", "hall", "kitchen", "pantry")
SHORTEST_PATHS = {("hall", "door", "garden"), ("hall", "landing", "attic"), ("hall", "pantry")}
DIALOG = DialogEpisode(
    episode_id="12",
    scene_id="cottage",
    path_id="3",
    reference_path=("hall",),
    heading=0.0,
    instruction="<TAR> jam",
    goals=("garden", "attic", "pantry"),
    target="jam",
    player_path=PLAYER_PATH,
)


def taught_paths(name: str, episode: Episode, num_draws: int, seed: int = 0) -> list[tuple[str, ...]]:
    """Draw paths of a supervision; assert that it changes nothing else."""
    supervise, rng = SUPERVISIONS[name](ATLAS), np.random.default_rng(seed)
    episodes = [supervise(episode, rng) for _ in range(num_draws)]
    assert replace(episodes[0], reference_path=episode.reference_path) == episode
    return [episode.reference_path for episode in episodes]


def test_annotated_path_is_unchanged_and_draws_nothing() -> None:
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    assert SUPERVISIONS["annotated"](ATLAS)(DIALOG, rng) is DIALOG
    assert rng.bit_generator.state == before


@pytest.mark.parametrize(("name", "player"), [("player-or-shortest", 0.5), ("shortest", 0.0)])
def test_player_path_and_goals_are_drawn_with_their_probabilities(name: str, player: float) -> None:
    paths = taught_paths(name, DIALOG, 3000)
    assert paths.count(PLAYER_PATH) / 3000 == pytest.approx(player, abs=0.03)
    assert set(paths) == SHORTEST_PATHS | ({PLAYER_PATH} if player else set())
    for path in SHORTEST_PATHS:
        assert paths.count(path) / 3000 == pytest.approx((1 - player) / 3, abs=0.03)
    assert paths[:40] == taught_paths(name, DIALOG, 40) != taught_paths(name, DIALOG, 40, seed=5)


@pytest.mark.parametrize("player_path", [(), ("hall",), ("door", "hall", "kitchen")])
def test_player_path_that_does_not_lead_on_from_the_start_is_not_taught(player_path: tuple[str, ...]) -> None:
    dialog = replace(DIALOG, player_path=player_path)
    assert set(taught_paths("player-or-shortest", dialog, 100)) == SHORTEST_PATHS


@pytest.mark.parametrize("name", ["shortest", "player-or-shortest"])
def test_episode_without_goals_or_dialog_is_taught_the_shortest_path_to_its_end(name: str) -> None:
    withheld = replace(DIALOG, goals=(), goal_withheld=True)
    assert set(taught_paths(name, withheld, 20)) == {("hall",)}
    detour = make_episode("kitchen", "hall", "door", "hall", "pantry")
    assert set(taught_paths(name, detour, 20)) == {("kitchen", "pantry")}


# -- real data ---------------------------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.parametrize(("name", "key"), [("time", "teacher_t"), ("location", "teacher_none")])
def test_teachers_equal_the_originals(
    vectors_root: Path, data_root: Path, real_graphs: dict[str, SceneGraph], name: str, key: str
) -> None:
    stored = json.loads(gzip.decompress((vectors_root / "sim_candidates.json.gz").read_bytes()))
    rows = stored["teacher_path_actions"]
    episodes = {episode.path_id: episode for episode in read_r2r(data_root / "R2R" / "R2R_val_unseen.json")}
    atlas = Atlas([real_graphs[scene] for scene in sorted({row["scan"] for row in rows})])
    teacher = TEACHERS[name](atlas)
    for row in rows:
        viewpoint = int(atlas.locate(row["scan"], [row["at"]])[0])
        trajectory = Trajectory(episodes[str(row["path_id"])], [(viewpoint, 12)], num_decisions=row["t"])
        assert atlas.name(teacher(trajectory)) == (row["scan"], row[key])


@pytest.mark.real
def test_every_dialog_has_a_path_of_edges(data_root: Path, real_graphs: dict[str, SceneGraph]) -> None:
    episodes = read_cvdn(data_root / "CVDN" / "val_unseen.json")
    atlas = Atlas([real_graphs[scene] for scene in sorted({episode.scene_id for episode in episodes})])
    supervise, rng = player_or_shortest_path(atlas), np.random.default_rng(0)
    num_player_paths = 0
    for episode in episodes:
        supervised = supervise(episode, rng)
        check_path(supervised.scene_id, supervised.reference_path, real_graphs)
        assert supervised.start == episode.start
        assert supervised.goal in episode.goals or supervised.reference_path == episode.player_path
        num_player_paths += supervised.reference_path == episode.player_path
    assert num_player_paths > 0.5 * len(episodes)  # some shortest paths equal the player's
