"""Where teachers send an agent, and which path they teach."""

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
    shortest_path,
    shortest_path_teacher,
    teacher_actions,
    teacher_by_location,
    teacher_by_step,
)
from esceme.tasks.cvdn import read_cvdn
from esceme.tasks.episode import DialogEpisode, Episode, check_path
from esceme.tasks.r2r import read_r2r
from esceme.trajectory import Teacher, Trajectory
from esceme.world import Atlas, SceneGraph
from fixtures.toy_atlas import build_toy_atlas, make_episode

ATLAS = build_toy_atlas()


def standing(episode: Episode, place: str, *, after: int = 0) -> Trajectory:
    """A walk that has come to a place by so many decisions, however it did."""
    viewpoint = int(ATLAS.locate(episode.scene_id, [place])[0])
    return Trajectory(episode, [(viewpoint, 12)], num_decisions=after)


def told(teacher: Teacher, walk: Trajectory) -> str:
    return ATLAS.name(teacher(walk))[1]


def run_batch(teacher: Teacher, episode: Episode, *, atlas: Atlas = ATLAS, most: int = 12) -> list[str]:
    """The viewpoints that somebody comes by who does as told."""
    walk = Trajectory.begin(atlas, episode)
    for _ in range(most):
        (choice,) = teacher_actions(atlas, teacher, [walk])
        walk.num_decisions += 1
        if choice == atlas.degrees[walk.viewpoint]:
            break
        walk.poses.append((int(atlas.neighbours[walk.viewpoint, choice]), 12))
    return [atlas.name(viewpoint)[1] for viewpoint, _ in walk.poses]


# -- where to go next --------------------------------------------------------------------------------------


def test_pitfall_11_the_path_is_taught_by_the_clock_even_off_the_path() -> None:
    episode = make_episode("garden", "door", "hall", "kitchen")
    teacher = teacher_by_step(ATLAS)
    # Who went astray to the landing is told what was due at that time, not the way back to the path.
    assert [told(teacher, standing(episode, "landing", after=step)) for step in range(3)] == [
        "door",
        "hall",
        "kitchen",
    ]
    assert told(shortest_path_teacher(ATLAS), standing(episode, "landing", after=2)) == "hall"
    # STOP when the path is over.
    for late in (3, 4, 9):
        (stop,) = teacher_actions(ATLAS, teacher, [standing(episode, "kitchen", after=late)])
        assert stop == ATLAS.degrees[int(ATLAS.locate("cottage", ["kitchen"])[0])]


def test_a_place_teaches_what_comes_after_it_at_any_time() -> None:
    episode = make_episode("garden", "door", "hall", "kitchen")
    teacher = teacher_by_location(ATLAS)
    for late in (0, 2, 7):
        assert told(teacher, standing(episode, "door", after=late)) == "hall"
        assert told(teacher, standing(episode, "kitchen", after=late)) == "kitchen"


def test_a_teacher_by_location_knows_nothing_of_other_places() -> None:
    episode = make_episode("garden", "door", "hall", "kitchen", name="7_1")
    with pytest.raises(WorldError, match="'attic' is not on the reference path of episode 7_1"):
        teacher_by_location(ATLAS)(standing(episode, "attic"))


def test_a_path_that_comes_by_a_place_twice_is_a_trap_by_location_and_not_by_time() -> None:
    episode = make_episode("hall", "door", "hall", "kitchen")
    assert run_batch(teacher_by_step(ATLAS), episode) == ["hall", "door", "hall", "kitchen"]
    assert run_batch(teacher_by_location(ATLAS), episode, most=6) == ["hall", "door"] * 3 + ["hall"]


def test_the_shortest_way_leads_to_the_end_of_the_path_by_default() -> None:
    detour = make_episode("kitchen", "hall", "door", "hall", "pantry")
    assert run_batch(shortest_path_teacher(ATLAS), detour) == ["kitchen", "pantry"]


def test_the_shortest_way_leads_to_the_nearest_goal() -> None:
    episode = replace(make_episode("hall"), goals=("garden", "attic", "pantry"))
    assert run_batch(shortest_path_teacher(ATLAS), episode) == [
        "hall",
        "door",
        "garden",
    ]  # 6 m; 6.006 m to the pantry
    assert run_batch(shortest_path_teacher(ATLAS), replace(episode, goals=("attic", "kitchen"))) == [
        "hall",
        "kitchen",
    ]
    for place in ("garden", "attic", "pantry"):
        assert told(shortest_path_teacher(ATLAS), standing(episode, place)) == place
    assert told(shortest_path_teacher(ATLAS), standing(episode, "landing")) == "attic"


def test_the_shortest_way_is_as_long_as_the_distance_in_every_scene_of_an_atlas() -> None:
    teacher = shortest_path_teacher(ATLAS)
    for scene, graph in ATLAS.graphs.items():
        for start in graph.viewpoints:
            for goal in graph.viewpoints:
                path = run_batch(teacher, replace(make_episode(start, scene=scene), goals=(goal,)))
                metres = sum(graph.distance(a, b) for a, b in zip(path, path[1:], strict=False))
                assert path[-1] == goal
                assert metres == pytest.approx(graph.distance(start, goal))


def test_the_shortest_way_that_does_not_exist_is_named() -> None:
    places = {"a": (0, 0, 0), "b": (0, 2, 0), "c": (9, 0, 0), "d": (9, 2, 0)}
    atlas = Atlas([SceneGraph.build("islands", places, [("a", "b"), ("c", "d")])])
    episode = replace(make_episode("a", scene="islands", name="3_0"), goals=("c", "d"))
    with pytest.raises(WorldError, match="episode 3_0: no path leads from 'a' to a goal"):
        shortest_path_teacher(atlas)(Trajectory.begin(atlas, episode))
    assert run_batch(shortest_path_teacher(atlas), replace(episode, goals=("c", "b")), atlas=atlas) == [
        "a",
        "b",
    ]


def test_a_label_is_the_place_of_a_candidate_or_after_the_last_one() -> None:
    starts = ["hall", "garden", "attic", "door"]
    wanted = dict(zip(starts, ["pantry", "garden", "landing", "hall"], strict=True))

    def teacher(walk: Trajectory) -> int:
        return int(ATLAS.locate("cottage", [wanted[ATLAS.name(walk.viewpoint)[1]]])[0])

    found = teacher_actions(ATLAS, teacher, [standing(make_episode(start), start) for start in starts])
    graph = ATLAS.graph("cottage")
    for start, label in zip(starts, found.tolist(), strict=True):
        names = [each.viewpoint for each in graph.candidates(start)]
        assert [*names, start][label] == wanted[start]
    assert found.dtype == np.int64


def test_a_label_that_no_edge_leads_to_is_an_error() -> None:
    walks = [
        standing(make_episode("hall", "door"), "hall"),
        standing(make_episode("hall", "door", "garden", name="5_2"), "attic", after=1),
    ]
    with pytest.raises(WorldError, match="episode 5_2.*from 'attic' to 'garden' is not an edge"):
        teacher_actions(ATLAS, teacher_by_step(ATLAS), walks)


# -- which path is taught ----------------------------------------------------------------------------------

WALKED = ("hall", "door", "hall", "kitchen", "pantry")


def dialog(
    *, goals: tuple[str, ...] = ("garden", "attic", "pantry"), player: tuple[str, ...] = WALKED
) -> DialogEpisode:
    return DialogEpisode(
        episode_id="12",
        scene_id="cottage",
        path_id="3",
        reference_path=("hall",),
        heading=0.0,
        instruction="<TAR> jam",
        goals=goals,
        target="jam",
        player_path=player,
    )


DIRECT = {("hall", "door", "garden"), ("hall", "landing", "attic"), ("hall", "pantry")}


def test_an_annotated_path_is_taught_as_it_is() -> None:
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    episode = dialog()
    assert SUPERVISIONS["annotated"](ATLAS)(episode, rng) is episode
    assert rng.bit_generator.state == before


def test_half_of_the_time_a_dialog_is_taught_as_the_human_walked_it() -> None:
    supervise, rng = player_or_shortest_path(ATLAS), np.random.default_rng(0)
    paths = [supervise(dialog(), rng).reference_path for _ in range(3000)]
    assert set(paths) == {WALKED} | DIRECT
    assert paths.count(WALKED) / 3000 == pytest.approx(0.5, abs=0.03)
    for path in DIRECT:
        assert paths.count(path) / 3000 == pytest.approx(1 / 6, abs=0.025)


def test_what_is_taught_follows_from_the_seed() -> None:
    def drawn(seed: int) -> list[tuple[str, ...]]:
        supervise, rng = player_or_shortest_path(ATLAS), np.random.default_rng(seed)
        return [supervise(dialog(), rng).reference_path for _ in range(40)]

    assert drawn(4) == drawn(4) != drawn(5)


def test_without_human_paths_every_goal_is_as_likely() -> None:
    supervise, rng = shortest_path(ATLAS), np.random.default_rng(1)
    paths = [supervise(dialog(), rng).reference_path for _ in range(3000)]
    assert set(paths) == DIRECT
    for path in DIRECT:
        assert paths.count(path) / 3000 == pytest.approx(1 / 3, abs=0.03)


def test_only_the_path_of_an_episode_changes() -> None:
    rng = np.random.default_rng(2)
    for supervise in (make(ATLAS) for make in SUPERVISIONS.values()):
        taught = supervise(dialog(), rng)
        assert replace(taught, reference_path=("hall",)) == dialog()


@pytest.mark.parametrize("player", [(), ("hall",), ("door", "hall", "kitchen")])
def test_a_human_path_that_does_not_lead_on_from_the_start_is_not_taught(player: tuple[str, ...]) -> None:
    supervise, rng = player_or_shortest_path(ATLAS), np.random.default_rng(3)
    assert {supervise(dialog(player=player), rng).reference_path for _ in range(100)} == DIRECT


@pytest.mark.parametrize("name", ["shortest", "player-or-shortest"])
def test_an_episode_without_goals_is_left_with_its_start(name: str) -> None:
    supervise, rng = SUPERVISIONS[name](ATLAS), np.random.default_rng(4)
    episode = replace(dialog(goals=()), goal_withheld=True)
    assert {supervise(episode, rng).reference_path for _ in range(20)} == {("hall",)}


@pytest.mark.parametrize("name", ["shortest", "player-or-shortest"])
def test_an_episode_that_is_no_dialog_is_taught_the_shortest_way_to_its_end(name: str) -> None:
    supervise, rng = SUPERVISIONS[name](ATLAS), np.random.default_rng(5)
    detour = make_episode("kitchen", "hall", "door", "hall", "pantry")
    assert {supervise(detour, rng).reference_path for _ in range(20)} == {("kitchen", "pantry")}


# -- real data ---------------------------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.parametrize(("name", "key"), [("time", "teacher_t"), ("location", "teacher_none")])
def test_teachers_say_what_the_originals_say(
    vectors_root: Path, data_root: Path, real_graphs: dict[str, SceneGraph], name: str, key: str
) -> None:
    stored = json.loads(gzip.decompress((vectors_root / "sim_candidates.json.gz").read_bytes()))
    rows = stored["teacher_path_actions"]
    episodes = {each.path_id: each for each in read_r2r(data_root / "R2R" / "R2R_val_unseen.json")}
    atlas = Atlas([real_graphs[scene] for scene in sorted({row["scan"] for row in rows})])
    teacher = TEACHERS[name](atlas)
    for row in rows:
        here = int(atlas.locate(row["scan"], [row["at"]])[0])
        walk = Trajectory(episodes[str(row["path_id"])], [(here, 12)], num_decisions=row["t"])
        assert atlas.name(teacher(walk)) == (row["scan"], row[key])


@pytest.mark.real
@pytest.mark.parametrize("folder", ["hamt", "hamt_esceme"])
def test_labels_are_those_of_the_original(
    vectors_root: Path, real_graphs: dict[str, SceneGraph], folder: str
) -> None:
    stored = json.loads(gzip.decompress((vectors_root / folder / "train_il_a2c.json.gz").read_bytes()))["IL"]
    items = stored["items"]
    atlas = Atlas([real_graphs[scene] for scene in sorted({item["scan"] for item in items})])
    walks = [Trajectory.begin(atlas, make_episode(*item["path"], scene=item["scan"])) for item in items]
    for actions in stored["actions"]:
        here = np.array([walk.viewpoint for walk in walks])
        found = teacher_actions(atlas, teacher_by_step(atlas), walks)
        assert np.where(found == atlas.degrees[here], -1, found).tolist() == actions
        for walk, action in zip(walks, actions, strict=True):
            walk.num_decisions += 1
            if action >= 0:
                walk.poses.append((int(atlas.neighbours[walk.viewpoint, action]), 12))


@pytest.mark.real
def test_every_dialog_can_be_taught_step_by_step(data_root: Path, real_graphs: dict[str, SceneGraph]) -> None:
    episodes = read_cvdn(data_root / "CVDN" / "val_unseen.json")
    atlas = Atlas([real_graphs[scene] for scene in sorted({each.scene_id for each in episodes})])
    supervise, rng = player_or_shortest_path(atlas), np.random.default_rng(0)
    human = 0
    for episode in episodes:
        taught = supervise(episode, rng)
        check_path(taught.scene_id, taught.reference_path, real_graphs)
        assert taught.start == episode.start
        assert taught.goal in episode.goals or taught.reference_path == episode.player_path
        human += taught.reference_path == episode.player_path
    assert human > 0.5 * len(episodes)  # some of the shortest ways are the human's, too
