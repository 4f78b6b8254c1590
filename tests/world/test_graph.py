"""Scene graphs: candidates against plain loops over the views, distances, damaged files."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esceme.errors import DataError, WorldError
from esceme.world import SceneGraph, read_scenes
from esceme.world.graph import listed_scene_ids, scene_ids
from fixtures.files import unprivileged

Position = tuple[float, float, float]
Edges = list[tuple[str, str]]


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Position], Edges, SceneGraph]:
    """Positions of 2 to 14 viewpoints on up to three storeys, edges between some of them, and their graph."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = draw(st.integers(2, 14))
    values = generator.uniform(-8, 8, (size, 3)) * [1, 1, 0.05]
    values[:, 2] += 2.8 * generator.integers(0, draw(st.integers(1, 3)), size)
    names = [f"v{index}" for index in range(size)]
    pairs = list(combinations(names, 2))
    share = draw(st.floats(0.15, 0.9))
    edges = [pair for pair in pairs if generator.random() < share] or pairs[:1]
    positions = dict(zip(names, map(tuple, values.tolist()), strict=True))
    return positions, edges, SceneGraph.build("house", positions, edges)


Case = tuple[dict[str, Position], Edges, SceneGraph]


# -- candidates ------------------------------------------------------------------------------------------


def relative_angles(here: Position, there: Position, view: int) -> tuple[float, float]:
    """Heading and elevation of a neighbour relative to a view (spec A.5), positions in single precision."""
    dx, dy, dz = (float(np.float32(b) - np.float32(a)) for a, b in zip(here, there, strict=True))
    heading = math.atan2(dx, dy) - view % 12 * math.pi / 6
    while heading > math.pi:
        heading -= 2 * math.pi
    while heading <= -math.pi:
        heading += 2 * math.pi
    elevation = math.atan2(dz, math.sqrt(dx * dx + dy * dy)) - (view // 12 - 1) * math.pi / 6
    return heading, elevation


def navigable_by_loop(
    positions: dict[str, Position], neighbours: list[str], here: str, view: int
) -> list[Any]:
    """Visible neighbours by angular distance: (angular distance, viewpoint, heading, elevation)."""
    visible = []
    for name in neighbours:
        heading, elevation = relative_angles(positions[here], positions[name], view)
        if abs(heading) <= 40 * math.pi / 180:
            visible.append((math.sqrt(heading**2 + elevation**2), name, heading, elevation))
    return sorted(visible)


def candidates_by_loop(
    positions: dict[str, Position], edges: Edges, here: str
) -> dict[str, dict[str, float]]:
    """Spec A.6: loop over views 0..35; the nearest view is chosen, the first view sets the order."""
    neighbours = sorted({b for a, b in edges if a == here} | {a for a, b in edges if b == here})
    found: dict[str, dict[str, float]] = {}
    for view in range(36):
        for distance, name, heading, elevation in navigable_by_loop(positions, neighbours, here, view):
            if name not in found:
                found[name] = {"angular_distance": math.inf}
            if distance < found[name]["angular_distance"]:
                found[name].update(
                    angular_distance=distance,
                    view=view,
                    heading=view % 12 * math.pi / 6 + heading,
                    elevation=(view // 12 - 1) * math.pi / 6 + elevation,
                )
    return found


@given(cases())
def test_candidates_equal_a_loop_over_36_views(case: Case) -> None:
    positions, edges, graph = case
    for viewpoint in graph.viewpoints:
        expected = candidates_by_loop(positions, edges, viewpoint)
        candidates = graph.candidates(viewpoint)
        assert [candidate.viewpoint for candidate in candidates] == list(expected)
        for candidate in candidates:
            for name, value in expected[candidate.viewpoint].items():
                assert getattr(candidate, name) == pytest.approx(value, abs=1e-9)
            length = math.dist(positions[viewpoint], positions[candidate.viewpoint])
            assert candidate.distance == pytest.approx(length)


@given(cases(), st.integers(0, 35))
def test_neighbours_of_a_view_are_sorted_by_angular_distance(case: Case, view: int) -> None:
    positions, _, graph = case
    for viewpoint in graph.viewpoints:
        neighbours = [candidate.viewpoint for candidate in graph.candidates(viewpoint)]
        expected = navigable_by_loop(positions, neighbours, viewpoint, view)
        sightings = graph.navigable_locations(viewpoint, view)
        assert [sighting.viewpoint for sighting in sightings] == [name for _, name, _, _ in expected]
        for sighting, (_, _, heading, elevation) in zip(sightings, expected, strict=True):
            assert (sighting.heading, sighting.elevation) == pytest.approx((heading, elevation), abs=1e-6)


@pytest.mark.parametrize(
    ("neighbours", "expected"),
    [
        ({"b": (0.0, 2.0, 0.0), "c": (0.1, 4.0, 0.0)}, [("b", 12), ("c", 12)]),  # in the same view
        ({"b": (-1, 2, 0)}, [("b", 23)]),  # west of north
        ({"b": (0, 0, 3)}, [("b", 24)]),  # straight above
        ({"b": (0, 0, -3)}, [("b", 0)]),  # straight below
    ],
)
def test_views_of_candidates(neighbours: dict[str, Position], expected: list[tuple[str, int]]) -> None:
    graph = SceneGraph.build("house", {"a": (0, 0, 0)} | neighbours, [("a", name) for name in neighbours])
    candidates = graph.candidates("a")
    assert [(candidate.viewpoint, candidate.view) for candidate in candidates] == expected
    if expected == [("b", 23)]:
        assert candidates[0].heading == pytest.approx(2 * math.pi - math.atan2(1, 2))


# -- distances -------------------------------------------------------------------------------------------


@given(cases())
def test_distances_are_symmetric_and_never_longer_than_a_detour(case: Case) -> None:
    distances = case[2].distances
    np.testing.assert_allclose(distances, distances.T, rtol=1e-12)
    assert (np.diag(distances) == 0).all()
    detours = distances[:, :, None] + distances[None, :, :]  # via the middle viewpoint
    assert (distances[:, None, :] <= detours + 1e-9).all()


@given(cases())
def test_distances_equal_those_of_networkx(case: Case) -> None:
    positions, edges, graph = case
    reference = nx.Graph()
    for a, b in edges:
        reference.add_edge(a, b, weight=math.dist(positions[a], positions[b]))
    assert set(reference) == set(graph.viewpoints)
    assert reference.number_of_edges() == graph.num_edges == len(graph.edges())
    lengths = dict(nx.all_pairs_dijkstra_path_length(reference))
    for a in graph.viewpoints:
        for b in graph.viewpoints:
            assert graph.distance(a, b) == pytest.approx(lengths[a].get(b, math.inf))
    assert graph.is_connected == nx.is_connected(reference)


@given(cases())
def test_shortest_path_follows_edges_and_is_as_long_as_the_distance(case: Case) -> None:
    graph = case[2]
    for a in graph.viewpoints:
        for b in graph.viewpoints:
            if math.isinf(graph.distance(a, b)):
                with pytest.raises(WorldError, match=f"there is no path from '{a}' to '{b}'"):
                    graph.shortest_path(a, b)
                continue
            path = graph.shortest_path(a, b)
            assert (path[0], path[-1], len(set(path))) == (a, b, len(path))
            assert all(graph.adjacent(u, v) for u, v in pairwise(path))
            length = sum(graph.distance(u, v) for u, v in pairwise(path))
            assert length == pytest.approx(graph.distance(a, b))


def test_edges_of_zero_length_and_to_the_viewpoint_itself() -> None:
    positions = {"a": (0, 0, 0), "b": (0, 0, 0), "c": (0, 2, 0)}
    graph = SceneGraph.build("house", positions, [("a", "b"), ("b", "c"), ("a", "a")])
    assert graph.distance("a", "b") == 0.0
    assert graph.shortest_path("a", "c") == ["a", "b", "c"]
    assert not graph.adjacent("a", "a") and graph.num_edges == 2


# -- omitted viewpoints and refused graphs -------------------------------------------------------------


def test_excluded_and_isolated_viewpoints_are_omitted_with_a_reason() -> None:
    positions = {name: (float(index), 0.0, 0.0) for index, name in enumerate("abcdef")}
    edges = [("a", "b"), ("b", "c"), ("c", "f")]
    graph = SceneGraph.build("house", positions, edges, excluded=["c", "e"])
    assert graph.viewpoints == ("a", "b")
    # All neighbours of f are excluded.
    assert graph.left_out == {"c": "excluded", "d": "isolated", "e": "excluded", "f": "isolated"}
    for viewpoint, reason in [("c", "excluded"), ("d", "no edge"), ("x", "not in scene 'house'")]:
        assert viewpoint not in graph
        with pytest.raises(WorldError, match=f"'{viewpoint}'.*{reason}"):
            graph.index(viewpoint)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([("a", "b"), ("a", "ghost")], "edge a - ghost: viewpoint 'ghost' has no position"),
        ([], "scene 'house': no two viewpoints are connected"),
    ],
)
def test_invalid_edges_are_refused(edges: Edges, message: str) -> None:
    with pytest.raises(DataError, match=message):
        SceneGraph.build("house", {"a": (0, 0, 0), "b": (0, 2, 0)}, edges)


# -- files -----------------------------------------------------------------------------------------------


Records = list[dict[str, Any]]


def row_of_four() -> Records:
    """Four viewpoints in a row, a - b - c - d; d is excluded."""
    records = []
    for index, name in enumerate("abcd"):
        pose = [1, 0, 0, 2.0 * index, 0, 1, 0, 0.0, 0, 0, 1, 1.5, 0, 0, 0, 1]
        edges = [abs(index - other) == 1 for other in range(4)]
        records.append({"image_id": name, "pose": pose, "included": name != "d", "unobstructed": edges})
    return records


def write(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "house_connectivity.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_file_is_read_with_its_extra_keys_ignored(tmp_path: Path) -> None:
    records = row_of_four()
    records[0] |= {"height": 1.5, "visible": [True] * 4, "colour": "red"}
    graph = SceneGraph.read(write(tmp_path, records))
    assert (graph.scene_id, graph.viewpoints) == ("house", ("a", "b", "c"))
    assert graph.positions.tolist() == [[0, 0, 1.5], [2, 0, 1.5], [4, 0, 1.5]]
    assert graph.distance("a", "c") == 4.0


def change(**values: object) -> Records:
    """Records with other values of viewpoint c."""
    records = row_of_four()
    records[2].update(values)
    return records


DAMAGE: dict[str, tuple[Callable[[], object], str]] = {
    "empty": (lambda: "", "empty"),
    "blank": (lambda: " \n", "empty"),
    "truncated": (lambda: json.dumps(row_of_four())[:-40], "not valid json"),
    "not json": (lambda: "<html>404</html>", "not valid json"),
    "not text": (lambda: bytes(range(256)), "house_connectivity.json: "),
    "an object": (lambda: {"a": 1}, "expected array, got object"),
    "no records": (list, "holds no records"),
    "a string for a flag": (lambda: change(included="yes"), "record 2: field 'included'"),
    "a string in a pose": (lambda: change(pose=["0"] * 16), "record 2: field 'pose"),
    "a missing key": (lambda: [{"image_id": "a"}], "record 0: .*pose"),
    "a number as id": (lambda: change(image_id=7), "record 2: field 'image_id'"),
    "a control character in an id": (lambda: change(image_id="\x1b[2J"), "record 2: field 'image_id'"),
    "a viewpoint twice": (lambda: change(image_id="a"), "viewpoint 'a' occurs twice"),
    "one-way edge": (lambda: change(unobstructed=[True, True, False, True]), "not symmetric: 'c' sees 'a'"),
    "short adjacency": (
        lambda: change(unobstructed=[True] * 3),
        "viewpoint 'c': unobstructed has 3 entries, not 4",
    ),
    "short pose": (lambda: change(pose=[0.0] * 15), "viewpoint 'c': pose has 15 entries, not 16"),
    "NaN": (lambda: change(pose=[math.nan] * 16), "not valid json"),
    "a very large pose": (lambda: change(pose=[1e300] * 16), "viewpoint 'c': pose"),
    "a number out of range": (
        lambda: json.dumps(row_of_four()).replace("1.5", "1e999"),
        "record 0: field 'pose|valid",
    ),
    "nothing included": (
        lambda: [record | {"included": False} for record in row_of_four()],
        "no two viewpoints are connected",
    ),
}


@pytest.mark.parametrize("fault", DAMAGE)
def test_damaged_file_is_named_with_its_record(tmp_path: Path, fault: str) -> None:
    content, message = DAMAGE[fault]
    path = write(tmp_path, content())
    with pytest.raises(DataError, match=message) as caught:
        SceneGraph.read(path)
    assert str(path) in str(caught.value)


def test_asymmetry_among_excluded_viewpoints_does_not_matter(tmp_path: Path) -> None:
    records = row_of_four()
    records[3]["unobstructed"] = [True, True, False, True]
    assert len(SceneGraph.read(write(tmp_path, records))) == 3


def test_only_selected_scenes_are_read_in_order_of_names(toy_root: Path) -> None:
    folder = toy_root / "connectivity"
    assert scene_ids(folder) == sorted(listed_scene_ids(folder) or [])
    assert list(read_scenes(folder)) == scene_ids(folder)
    assert list(read_scenes(folder, ["toy-villa"])) == ["toy-villa"]


def test_folder_without_a_list_of_scenes_is_valid(tmp_path: Path) -> None:
    write(tmp_path, row_of_four())
    assert listed_scene_ids(tmp_path) is None
    assert scene_ids(tmp_path) == ["house"]


def test_scene_with_control_characters_in_its_name_is_refused(tmp_path: Path) -> None:
    write(tmp_path, row_of_four()).rename(tmp_path / "\x1b[2J_connectivity.json")
    with pytest.raises(DataError, match=r"scene '\\x1b\[2J' has control characters in its name; rename"):
        scene_ids(tmp_path)


def test_invalid_folders_are_named(toy_root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="connectivity: no Atlantis_connectivity.json; .* 3 other scenes"):
        read_scenes(toy_root / "connectivity", ["Atlantis"])
    with pytest.raises(DataError, match=r"write \['toy-villa'\]"):
        read_scenes(toy_root / "connectivity", "toy-villa")
    with pytest.raises(DataError, match=f"{tmp_path}: no file ends in _connectivity.json"):
        read_scenes(tmp_path)
    (tmp_path / "house_connectivity.json").mkdir()
    with pytest.raises(DataError, match="house_connectivity.json: cannot be read"):
        read_scenes(tmp_path)
    (tmp_path / "file").write_text("")
    for name in ("file", "nowhere"):
        with pytest.raises(DataError, match=f"{name}: cannot be read as a connectivity folder"):
            read_scenes(tmp_path / name)


def test_unreadable_folder_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    write(folder, row_of_four())
    folder.chmod(0o000)
    reads: list[Callable[[], object]] = [
        lambda: read_scenes(folder),
        lambda: SceneGraph.read(folder / "house_connectivity.json"),
        lambda: listed_scene_ids(folder),
    ]
    try:
        for read in reads:
            with unprivileged(), pytest.raises(DataError, match="locked.*Permission denied"):
                read()
    finally:
        folder.chmod(0o700)


# -- real scenes ---------------------------------------------------------------------------------------


@pytest.mark.real
def test_real_graphs_have_the_published_sizes(data_root: Path, real_graphs: dict[str, SceneGraph]) -> None:
    reasons = Counter(reason for graph in real_graphs.values() for reason in graph.left_out.values())
    degrees = np.concatenate([graph.degrees for graph in real_graphs.values()])
    assert len(real_graphs) == 90
    assert len(degrees) == 10_559
    assert reasons == {"isolated": 8, "excluded": 233}
    assert sum(graph.num_edges for graph in real_graphs.values()) == 21_468
    assert (round(degrees.mean(), 2), degrees.max()) == (4.07, 13)
    assert round(2 * 21_468 / 10_567, 2) == 4.06  # the published mean counts isolated viewpoints too
    assert all(graph.is_connected for graph in real_graphs.values())
    views = np.concatenate([graph.views[graph.neighbours >= 0] for graph in real_graphs.values()])
    assert Counter((views // 12).tolist()) == {0: 1128, 1: 40_680, 2: 1128}
    folder = data_root / "connectivity"
    assert sorted(listed_scene_ids(folder) or []) == scene_ids(folder)
