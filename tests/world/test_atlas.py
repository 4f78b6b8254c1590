"""The atlas: observations and steps against plain loops, names, distances, refused input."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from esceme.errors import DataError, WorldError
from esceme.world import CANDIDATE, CONTEXT, STOP, ArrayFeatures, Atlas, SceneGraph

WIDTH = 5


def random_graph(scene: str, size: int, generator: np.random.Generator) -> SceneGraph:
    """A connected scene of two storeys."""
    positions = generator.uniform(-6, 6, (size, 3)) * [1, 1, 0.1] + [0, 0, 1.5]
    positions[:, 2] += 2.8 * generator.integers(0, 2, size)
    names = [f"{scene}{index}" for index in range(size)]
    edges = [(names[index], names[int(generator.integers(index))]) for index in range(1, size)]
    edges += [(a, b) for a in names for b in names if a < b and generator.random() < 0.3]
    return SceneGraph.build(scene, dict(zip(names, positions.tolist(), strict=True)), edges)


@st.composite
def atlases(draw: st.DrawFn) -> Atlas:
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(2, 9), min_size=1, max_size=3))
    graphs = [random_graph(f"s{number}", size, generator) for number, size in enumerate(sizes)]
    keys = [f"{graph.scene_id}_{name}" for graph in graphs for name in graph.viewpoints]
    order = generator.permutation(len(keys))  # a feature file has its own order
    values = generator.normal(size=(len(keys), 36, WIDTH))
    panoramas = {keys[index]: values[index] for index in order}
    return Atlas(graphs, ArrayFeatures.from_mapping(panoramas, source="random"))


def angle(heading: float, elevation: float) -> list[float]:
    return [math.sin(heading), math.cos(heading), math.sin(elevation), math.cos(elevation)]


Token = tuple[NDArray[np.float32], list[float], int, int, str | None]
"""Feature, angle feature, kind, view, viewpoint of a candidate."""


def tokens_by_hand(atlas: Atlas, scene: str, viewpoint: str, view: int) -> list[Token]:
    """Candidates in the simulator's order, STOP, then every view without candidate (spec A.6, B.5)."""
    assert atlas.features is not None
    features = atlas.features.panorama(f"{scene}_{viewpoint}")
    base = view % 12 * math.pi / 6
    candidates = atlas.graph(scene).candidates(viewpoint)
    tokens: list[Token] = []
    for candidate in candidates:
        angles = angle(candidate.heading - base, candidate.elevation)
        tokens.append((features[candidate.view], angles, CANDIDATE, candidate.view, candidate.viewpoint))
    tokens.append((np.zeros(WIDTH, dtype=np.float32), [0.0] * 4, STOP, -1, None))
    for other in range(36):
        if other not in {candidate.view for candidate in candidates}:
            angles = angle(other % 12 * math.pi / 6 - base, (other // 12 - 1) * math.pi / 6)
            tokens.append((features[other], angles, CONTEXT, other, None))
    return tokens


@given(atlases(), st.data())
def test_observation_of_a_batch_equals_plain_loops(atlas: Atlas, data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, 6))
    at = np.array(data.draw(st.lists(st.integers(0, len(atlas) - 1), min_size=batch, max_size=batch)))
    views = np.array(data.draw(st.lists(st.integers(0, 35), min_size=batch, max_size=batch)))
    pose = atlas.begin(at, views % 12 * math.pi / 6, (views // 12 - 1) * math.pi / 6)
    assert pose.view.tolist() == views.tolist()

    seen = atlas.observe(pose)
    items = [
        tokens_by_hand(atlas, *atlas.name(viewpoint), view)
        for viewpoint, view in zip(at, views.tolist(), strict=True)
    ]
    assert seen.features.shape == (batch, max(map(len, items)), WIDTH)
    for row, item in enumerate(items):
        scene = atlas.name(at[row])[0]
        assert seen.valid[row].tolist() == [index < len(item) for index in range(seen.valid.shape[1])]
        for index, (feature, angles, kind, view, neighbour) in enumerate(item):
            assert (seen.features[row, index] == feature).all()
            assert seen.angles[row, index].tolist() == pytest.approx(angles, abs=1e-6)
            assert (seen.token_type[row, index], seen.view[row, index]) == (kind, view)
            expected = -1 if neighbour is None else atlas.locate(scene, [neighbour])[0]
            assert seen.neighbour[row, index] == expected
        padding = slice(len(item), None)
        assert not seen.features[row, padding].any() and not seen.angles[row, padding].any()
        assert (seen.token_type[row, padding] == CONTEXT).all()
        assert (seen.view[row, padding] == -1).all() and (seen.neighbour[row, padding] == -1).all()


@given(atlases())
def test_token_count_is_the_length_of_an_observation(atlas: Atlas) -> None:
    seen = atlas.observe(atlas.begin(np.arange(len(atlas)), 0.0))
    assert (seen.valid.sum(axis=1) == atlas.token_count).all()
    assert ((seen.token_type == CANDIDATE).sum(axis=1) == atlas.degrees).all()
    assert (seen.token_type.argmax(axis=1) == atlas.degrees).all()  # STOP is the largest kind


# -- steps -----------------------------------------------------------------------------------------------


@given(atlases(), st.data())
def test_step_faces_the_view_of_the_candidate(atlas: Atlas, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(atlas) - 1))
    pose = atlas.begin([at], heading=[data.draw(st.floats(-10, 10))])
    for _ in range(4):
        scene, viewpoint = atlas.name(pose.viewpoint[0])
        candidates = atlas.graph(scene).candidates(viewpoint)
        choice = data.draw(st.integers(-1, len(candidates)))
        after = atlas.step(pose, [choice])
        if choice in (-1, len(candidates)):
            assert (after.viewpoint, after.view) == (pose.viewpoint, pose.view)
        else:
            assert atlas.name(after.viewpoint[0]) == (scene, candidates[choice].viewpoint)
            assert after.view[0] == candidates[choice].view
        pose = after


def test_agents_of_a_batch_move_and_stop_independently() -> None:
    positions = {"a": (0, 0, 0), "b": (0, 2, 0), "c": (0, 4, 2)}
    atlas = Atlas([SceneGraph.build("toy", positions, [("a", "b"), ("b", "c")])])
    pose = atlas.begin([0, 1, 1, 1], heading=0.6)
    assert pose.view.tolist() == [13] * 4
    after = atlas.step(pose, [0, 0, 2, -1])
    assert [atlas.name(row)[1] for row in after.viewpoint] == ["b", "c", "b", "b"]
    assert after.view.tolist() == [12, 24, 13, 13]


@pytest.mark.parametrize("choice", [-2, 2, 40])
def test_step_refuses_a_missing_candidate(choice: int) -> None:
    atlas = Atlas([SceneGraph.build("toy", {"a": (0, 0, 0), "b": (0, 2, 0)}, [("a", "b")])])
    pose = atlas.begin([0, 1], heading=0.0)
    with pytest.raises(
        WorldError, match=f"choice {choice} at viewpoint 'b' of scene 'toy'.*candidates 0 to 0"
    ):
        atlas.step(pose, [0, choice])


@given(atlases(), st.data())
def test_panorama_features_are_in_the_order_of_views(atlas: Atlas, data: st.DataObject) -> None:
    at = np.array(data.draw(st.lists(st.integers(0, len(atlas) - 1), min_size=1, max_size=4)))
    features = atlas.panorama_features(at)
    assert atlas.features is not None
    for row, index in enumerate(at):
        assert (features[row] == atlas.features.panorama("_".join(atlas.name(index)))).all()
    angles = atlas.panorama_angles(np.array([14]))
    assert angles[0, 25].tolist() == pytest.approx(angle(-math.pi / 6, math.pi / 6), abs=1e-6)


# -- names and distances ---------------------------------------------------------------------------------


@given(atlases())
def test_names_and_integers_convert_both_ways(atlas: Atlas) -> None:
    assert sum(len(graph) for graph in atlas.graphs.values()) == len(atlas) == len(atlas.names)
    for index, (scene, viewpoint) in enumerate(atlas.names):
        assert atlas.locate(scene, [viewpoint]).tolist() == [index]
        assert atlas.scenes[atlas.scene_of[index]] == scene


@given(atlases())
def test_distances_are_those_of_each_graph_and_infinite_between_scenes(atlas: Atlas) -> None:
    every = np.arange(len(atlas))
    distances = atlas.distance(every[:, None], every[None])
    for i, (scene, a) in enumerate(atlas.names):
        for j, (other, b) in enumerate(atlas.names):
            expected = atlas.graph(scene).distance(a, b) if scene == other else math.inf
            assert distances[i, j] == expected


@given(atlases())
def test_neighbours_of_the_atlas_are_those_of_its_graphs(atlas: Atlas) -> None:
    for index, (scene, viewpoint) in enumerate(atlas.names):
        around = atlas.neighbours[index, : atlas.degrees[index]]
        candidates = atlas.graph(scene).candidates(viewpoint)
        assert [atlas.name(row) for row in around] == [
            (scene, candidate.viewpoint) for candidate in candidates
        ]
        assert (atlas.neighbours[index, atlas.degrees[index] :] == -1).all()
        lengths = atlas.lengths[index, : atlas.degrees[index]]
        assert lengths.tolist() == [candidate.distance for candidate in candidates]


# -- refused input -------------------------------------------------------------------------------------


def two_viewpoints(scene: str = "toy") -> SceneGraph:
    return SceneGraph.build(scene, {"a": (0, 0, 0), "b": (0, 2, 0), "c": (9, 9, 9)}, [("a", "b")])


def test_unknown_scenes_and_viewpoints_are_named() -> None:
    atlas = Atlas([two_viewpoints()])
    with pytest.raises(WorldError, match=r"scene 'Atlantis' is not loaded \(1 others are\)"):
        atlas.locate("Atlantis", ["a"])
    with pytest.raises(WorldError, match="'z' is not in scene 'toy'"):
        atlas.locate("toy", ["a", "z"])
    with pytest.raises(WorldError, match="'c' of scene 'toy' has no edge"):
        atlas.locate("toy", ["c"])


def test_empty_atlas_and_repeated_scenes_are_refused() -> None:
    with pytest.raises(WorldError, match="at least one scene"):
        Atlas([])
    with pytest.raises(WorldError, match="scene 'toy' is given twice"):
        Atlas([two_viewpoints("toy"), two_viewpoints("other"), two_viewpoints("toy")])


def test_without_features_atlas_moves_but_does_not_observe() -> None:
    atlas = Atlas([two_viewpoints()])
    pose = atlas.step(atlas.begin([0], heading=0.0), [0])
    with pytest.raises(WorldError, match="has no features"):
        atlas.observe(pose)
    with pytest.raises(WorldError, match="has no features"):
        atlas.panorama_features(pose.viewpoint)


def test_atlas_is_read_from_files(toy_root: Path) -> None:
    atlas = Atlas.read(toy_root / "connectivity", features=toy_root / "features" / "toy.hdf5", width=32)
    assert atlas.scenes == ("toy-cottage", "toy-house", "toy-villa")
    assert atlas.observe(atlas.begin([0], 0.0)).features.shape == (1, atlas.token_count[0], 32)
    only = Atlas.read(toy_root / "connectivity", scenes=["toy-villa"])
    assert (only.scenes, only.features) == (("toy-villa",), None)
    with pytest.raises(DataError, match="no Atlantis_connectivity.json"):
        Atlas.read(toy_root / "connectivity", scenes=["Atlantis"])
    with pytest.raises(DataError, match="toy.tar: expected a feature file"):
        Atlas.read(toy_root / "connectivity", features=toy_root / "toy.tar")


# -- real scenes ---------------------------------------------------------------------------------------


@pytest.mark.real
def test_real_observations_have_the_published_lengths(real_graphs: dict[str, SceneGraph]) -> None:
    lengths = Counter(Atlas(real_graphs.values()).token_count.tolist())
    assert lengths == {37: 7349, 38: 2483, 39: 560, 40: 135, 41: 26, 42: 6}


@pytest.mark.real
def test_real_distances_between_any_two_viewpoints_are_finite_within_a_scene(
    real_graphs: dict[str, SceneGraph],
) -> None:
    atlas = Atlas(real_graphs.values())
    generator = np.random.default_rng(0)
    a, b = generator.integers(len(atlas), size=(2, 2000))
    distances = atlas.distance(a, b)
    assert (np.isfinite(distances) == (atlas.scene_of[a] == atlas.scene_of[b])).all()
    np.testing.assert_allclose(distances, atlas.distance(b, a), rtol=1e-12)


def test_equal_names_in_two_scenes_have_different_integers() -> None:
    a, b = (0.0, 0.0, 0.0), (0.0, 2.0, 0.0)
    scenes = {"first": {"a": a, "b": b}, "second": {"b": b, "a": a}}
    atlas = Atlas([SceneGraph.build(name, positions, [("a", "b")]) for name, positions in scenes.items()])
    assert atlas.locate_all([("first", ("a", "b")), ("second", ("a", "b"))]) == [[0, 1], [3, 2]]
