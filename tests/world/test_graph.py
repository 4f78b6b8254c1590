"""Scene graphs: candidates against the simulator's sweep written as plain loops, distances, damaged files."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from collections.abc import Callable
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
from fixtures.permissions import unprivileged

Position = tuple[float, float, float]
Edges = list[tuple[str, str]]


@st.composite
def buildings(draw: st.DrawFn) -> tuple[dict[str, Position], Edges]:
    """Positions of 2 to 14 viewpoints on up to three storeys, and edges between some pairs of them."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = draw(st.integers(2, 14))
    places = generator.uniform(-8, 8, (size, 3)) * [1, 1, 0.05]
    places[:, 2] += 2.8 * generator.integers(0, draw(st.integers(1, 3)), size)
    names = [f"v{index}" for index in range(size)]
    pairs = [(a, b) for place, a in enumerate(names) for b in names[place + 1 :]]
    share = draw(st.floats(0.15, 0.9))
    edges = [pair for pair in pairs if generator.random() < share] or pairs[:1]
    return {
        name: (float(x), float(y), float(z)) for name, (x, y, z) in zip(names, places, strict=True)
    }, edges


buildings_and_graphs = buildings().map(lambda each: (*each, SceneGraph.build("house", *each)))
Case = tuple[dict[str, Position], Edges, SceneGraph]


# -- candidates ------------------------------------------------------------------------------------------


def look(here: Position, there: Position, view: int) -> tuple[float, float]:
    """Heading and elevation of a neighbour relative to a view (spec A.5), positions in single precision."""
    dx, dy, dz = (float(np.float32(b) - np.float32(a)) for a, b in zip(here, there, strict=True))
    heading = math.atan2(dx, dy) - view % 12 * math.pi / 6
    while heading > math.pi:
        heading -= 2 * math.pi
    while heading <= -math.pi:
        heading += 2 * math.pi
    elevation = math.atan2(dz, math.sqrt(dx * dx + dy * dy)) - (view // 12 - 1) * math.pi / 6
    return heading, elevation


def navigable_by_loop(positions: dict[str, Position], around: list[str], here: str, view: int) -> list[Any]:
    """What one view shows, from its centre outwards: (angular distance, viewpoint, heading, elevation)."""
    shown = []
    for name in around:
        heading, elevation = look(positions[here], positions[name], view)
        if abs(heading) <= 40 * math.pi / 180:
            shown.append((math.sqrt(heading**2 + elevation**2), name, heading, elevation))
    return sorted(shown)


def candidates_by_sweep(
    positions: dict[str, Position], edges: Edges, here: str
) -> dict[str, dict[str, float]]:
    """Spec A.6: sweep over views 0..35; the strictly nearest view wins, first sightings fix the order."""
    around = sorted({b for a, b in edges if a == here} | {a for a, b in edges if b == here})
    found: dict[str, dict[str, float]] = {}
    for view in range(36):
        for distance, name, heading, elevation in navigable_by_loop(positions, around, here, view):
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


@given(buildings_and_graphs)
def test_candidates_are_those_of_the_sweep_over_36_views_in_its_order(case: Case) -> None:
    positions, edges, graph = case
    for viewpoint in graph.viewpoints:
        expected = candidates_by_sweep(positions, edges, viewpoint)
        candidates = graph.candidates(viewpoint)
        assert [candidate.viewpoint for candidate in candidates] == list(expected)
        for candidate in candidates:
            wanted = expected[candidate.viewpoint]
            assert candidate.view == wanted["view"]
            assert candidate.heading == pytest.approx(wanted["heading"], abs=1e-9)
            assert candidate.elevation == pytest.approx(wanted["elevation"], abs=1e-9)
            assert candidate.angular_distance == pytest.approx(wanted["angular_distance"], abs=1e-9)
            assert candidate.distance == pytest.approx(
                math.dist(positions[viewpoint], positions[candidate.viewpoint])
            )


@given(buildings_and_graphs, st.integers(0, 35))
def test_view_lists_its_neighbours_from_the_centre_outwards(case: Case, view: int) -> None:
    positions, _, graph = case
    for viewpoint in graph.viewpoints:
        around = [candidate.viewpoint for candidate in graph.candidates(viewpoint)]
        expected = navigable_by_loop(positions, around, viewpoint, view)
        sightings = graph.navigable(viewpoint, view)
        assert [sighting.viewpoint for sighting in sightings] == [name for _, name, _, _ in expected]
        for sighting, (_, _, heading, elevation) in zip(sightings, expected, strict=True):
            assert (sighting.heading, sighting.elevation) == pytest.approx((heading, elevation), abs=1e-9)


def test_neighbours_in_one_view_stay_separate_candidates() -> None:
    corridor = {"a": (0.0, 0.0, 0.0), "b": (0.0, 2.0, 0.0), "c": (0.1, 4.0, 0.0)}
    graph = SceneGraph.build("corridor", corridor, [("a", "b"), ("a", "c")])
    assert [(candidate.viewpoint, candidate.view) for candidate in graph.candidates("a")] == [
        ("b", 12),
        ("c", 12),
    ]


def test_heading_west_of_north_is_counted_on_from_its_view() -> None:
    graph = SceneGraph.build("two", {"a": (0, 0, 0), "b": (-1, 2, 0)}, [("a", "b")])
    (candidate,) = graph.candidates("a")
    assert candidate.view == 23
    assert candidate.heading == pytest.approx(2 * math.pi - math.atan2(1, 2))


def test_neighbour_straight_above_is_seen_in_the_top_row() -> None:
    graph = SceneGraph.build("shaft", {"a": (0, 0, 0), "b": (0, 0, 3)}, [("a", "b")])
    assert graph.candidates("a")[0].view == 24
    assert graph.candidates("b")[0].view == 0


# -- distances -------------------------------------------------------------------------------------------


@given(buildings_and_graphs)
def test_distances_are_symmetric_and_never_longer_than_a_detour(case: Case) -> None:
    distances = case[2].distances
    np.testing.assert_allclose(distances, distances.T, rtol=1e-12)
    assert (np.diag(distances) == 0).all()
    detours = distances[:, :, None] + distances[None, :, :]  # over the middle one
    assert (distances[:, None, :] <= detours + 1e-9).all()


@given(buildings_and_graphs)
def test_distances_are_those_of_networkx(case: Case) -> None:
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


@given(buildings_and_graphs)
def test_shortest_path_follows_edges_and_has_the_length_of_the_distance(case: Case) -> None:
    graph = case[2]
    for a in graph.viewpoints:
        for b in graph.viewpoints:
            if math.isinf(graph.distance(a, b)):
                with pytest.raises(WorldError, match=f"no way leads from '{a}' to '{b}'"):
                    graph.shortest_path(a, b)
                continue
            path = graph.shortest_path(a, b)
            assert (path[0], path[-1], len(set(path))) == (a, b, len(path))
            assert all(graph.adjacent(u, v) for u, v in zip(path, path[1:], strict=False))
            walked = sum(graph.distance(u, v) for u, v in zip(path, path[1:], strict=False))
            assert walked == pytest.approx(graph.distance(a, b))


def test_viewpoints_at_one_position_have_distance_zero() -> None:
    graph = SceneGraph.build(
        "double", {"a": (0, 0, 0), "b": (0, 0, 0), "c": (0, 2, 0)}, [("a", "b"), ("b", "c")]
    )
    assert graph.distance("a", "b") == 0.0
    assert graph.shortest_path("a", "c") == ["a", "b", "c"]


def test_viewpoint_is_not_adjacent_to_itself() -> None:
    graph = SceneGraph.build("loop", {"a": (0, 0, 0), "b": (0, 2, 0)}, [("a", "b"), ("a", "a")])
    assert not graph.adjacent("a", "a")
    assert graph.num_edges == 1


# -- viewpoints that cannot be stood on ------------------------------------------------------------------


def test_excluded_and_isolated_viewpoints_are_omitted_with_a_reason() -> None:
    places = {name: (float(index), 0.0, 0.0) for index, name in enumerate("abcd")}
    graph = SceneGraph.build("house", places, [("a", "b"), ("b", "c")], excluded=["c"])
    assert graph.viewpoints == ("a", "b")
    assert graph.left_out == {"c": "excluded", "d": "isolated"}
    for viewpoint, reason in [("c", "excluded"), ("d", "no edge"), ("e", "not in scene 'house'")]:
        assert viewpoint not in graph
        with pytest.raises(WorldError, match=f"'{viewpoint}'.*{reason}"):
            graph.index(viewpoint)


def test_viewpoint_whose_neighbours_are_all_excluded_is_isolated() -> None:
    places = {name: (float(index), 0.0, 0.0) for index, name in enumerate("abcd")}
    graph = SceneGraph.build("house", places, [("a", "b"), ("c", "d")], excluded=["d"])
    assert graph.left_out == {"c": "isolated", "d": "excluded"}


def test_edge_to_a_viewpoint_without_position_is_refused() -> None:
    with pytest.raises(DataError, match="edge a - ghost: viewpoint 'ghost' has no position"):
        SceneGraph.build("house", {"a": (0, 0, 0), "b": (0, 2, 0)}, [("a", "b"), ("a", "ghost")])


def test_building_without_edges_is_refused() -> None:
    with pytest.raises(DataError, match="scene 'house': no two viewpoints are connected"):
        SceneGraph.build("house", {"a": (0, 0, 0), "b": (0, 2, 0)}, [])


# -- files -----------------------------------------------------------------------------------------------


Records = list[dict[str, Any]]


def square() -> Records:
    """Four viewpoints in a row: a - b - c, and d, which is excluded."""
    records = []
    for index, name in enumerate("abcd"):
        pose = [1, 0, 0, 2.0 * index, 0, 1, 0, 0.0, 0, 0, 1, 1.5, 0, 0, 0, 1]
        edges = [abs(index - other) == 1 for other in range(4)]
        records.append({"image_id": name, "pose": pose, "included": name != "d", "unobstructed": edges})
    return records


def write(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "house_connectivity.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_file_is_read_with_its_extra_keys_ignored(tmp_path: Path) -> None:
    records = square()
    records[0] |= {"height": 1.5, "visible": [True] * 4, "colour": "red"}
    graph = SceneGraph.read(write(tmp_path, records))
    assert (graph.scene_id, graph.viewpoints) == ("house", ("a", "b", "c"))
    assert graph.positions.tolist() == [[0, 0, 1.5], [2, 0, 1.5], [4, 0, 1.5]]
    assert graph.distance("a", "c") == 4.0


def drop_last_entry(records: Records, key: str) -> Records:
    records[1][key].pop()
    return records


def change(records: Records, **values: object) -> Records:
    records[2].update(values)
    return records


DAMAGE: dict[str, tuple[Callable[[], object], str]] = {
    "empty": (lambda: "", "empty"),
    "blank": (lambda: " \n", "empty"),
    "truncated": (lambda: json.dumps(square())[:-40], "not valid json"),
    "not json": (lambda: "<html>404</html>", "not valid json"),
    "an object": (lambda: {"a": 1}, "expected array, got object"),
    "no records": (list, "holds no records"),
    "a string for a flag": (lambda: change(square(), included="yes"), "record 2: field 'included'"),
    "a string in a pose": (lambda: change(square(), pose=["0"] * 16), "record 2: field 'pose"),
    "a missing key": (
        lambda: [{k: v for k, v in record.items() if k != "pose"} for record in square()],
        "record 0: .*pose",
    ),
    "a number as id": (lambda: change(square(), image_id=7), "record 2: field 'image_id'"),
    "a viewpoint twice": (lambda: change(square(), image_id="a"), "viewpoint 'a' occurs twice"),
    "one-way edge": (
        lambda: change(square(), unobstructed=[True, True, False, True]),
        "not symmetric: 'c' sees 'a'",
    ),
    "short adjacency": (
        lambda: drop_last_entry(square(), "unobstructed"),
        "viewpoint 'b': unobstructed has 3 entries, not 4",
    ),
    "short pose": (lambda: drop_last_entry(square(), "pose"), "viewpoint 'b': pose has 15 entries, not 16"),
    "NaN": (lambda: change(square(), pose=[math.nan] * 16), "not valid json"),
    "a pose out of this world": (lambda: change(square(), pose=[1e300] * 16), "viewpoint 'c': pose"),
    "a number too large": (
        lambda: json.dumps(square()).replace("1.5", "1e999"),
        "record 0: field 'pose|valid",
    ),
    "nothing included": (
        lambda: [record | {"included": False} for record in square()],
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


def test_bytes_that_are_no_text_are_an_error_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "house_connectivity.json"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(DataError, match="house_connectivity.json"):
        SceneGraph.read(path)


def test_asymmetry_among_excluded_viewpoints_does_not_matter(tmp_path: Path) -> None:
    records = square()
    records[3]["unobstructed"] = [True, True, False, True]
    assert len(SceneGraph.read(write(tmp_path, records))) == 3


def test_only_selected_scenes_are_read_in_order_of_names(toy_root: Path) -> None:
    folder = toy_root / "connectivity"
    assert scene_ids(folder) == sorted(listed_scene_ids(folder) or [])
    assert list(read_scenes(folder)) == scene_ids(folder)
    assert list(read_scenes(folder, ["toy-villa"])) == ["toy-villa"]


def test_folder_without_a_list_of_scenes_is_fine(tmp_path: Path) -> None:
    write(tmp_path, square())
    assert listed_scene_ids(tmp_path) is None
    assert scene_ids(tmp_path) == ["house"]


def test_unknown_scene_is_named(toy_root: Path) -> None:
    with pytest.raises(DataError, match="connectivity: no Atlantis_connectivity.json; .* 3 other scenes"):
        read_scenes(toy_root / "connectivity", ["Atlantis"])


def test_folder_that_holds_no_scenes_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{tmp_path}: no file ends in _connectivity.json"):
        read_scenes(tmp_path)


def test_file_where_a_folder_is_expected_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, square())
    with pytest.raises(DataError, match=f"{path}: cannot be read as a connectivity folder"):
        read_scenes(path)
    with pytest.raises(DataError, match="nowhere: cannot be read as a connectivity folder"):
        read_scenes(tmp_path / "nowhere")


def test_folder_where_a_file_is_expected_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "house_connectivity.json").mkdir()
    with pytest.raises(DataError, match="house_connectivity.json: cannot be read"):
        read_scenes(tmp_path)


def test_unreadable_folder_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    write(folder, square())
    folder.chmod(0o000)
    try:
        with unprivileged(), pytest.raises(DataError, match="locked.*Permission denied"):
            read_scenes(folder)
        with unprivileged(), pytest.raises(DataError, match="locked.*Permission denied"):
            SceneGraph.read(folder / "house_connectivity.json")
        with unprivileged(), pytest.raises(DataError, match="locked.*Permission denied"):
            listed_scene_ids(folder)
    finally:
        folder.chmod(0o700)


# -- the real buildings ----------------------------------------------------------------------------------


@pytest.mark.real
def test_real_graphs_have_the_published_sizes(real_graphs: dict[str, SceneGraph]) -> None:
    reasons = Counter(reason for graph in real_graphs.values() for reason in graph.left_out.values())
    degrees = np.concatenate([graph.degrees for graph in real_graphs.values()])
    assert len(real_graphs) == 90
    assert len(degrees) == 10_559
    assert reasons == {"isolated": 8, "excluded": 233}
    assert sum(graph.num_edges for graph in real_graphs.values()) == 21_468
    assert (round(degrees.mean(), 2), degrees.max()) == (4.07, 13)
    assert round(2 * 21_468 / 10_567, 2) == 4.06  # the published mean counts isolated viewpoints too
    assert all(graph.is_connected for graph in real_graphs.values())


@pytest.mark.real
def test_real_candidates_lie_in_the_published_rows(real_graphs: dict[str, SceneGraph]) -> None:
    views = np.concatenate([graph.views[graph.neighbours >= 0] for graph in real_graphs.values()])
    assert Counter((views // 12).tolist()) == {0: 1128, 1: 40_680, 2: 1128}


@pytest.mark.real
def test_real_scenes_are_those_that_the_folder_lists(data_root: Path) -> None:
    assert sorted(listed_scene_ids(data_root / "connectivity") or []) == scene_ids(data_root / "connectivity")


@pytest.mark.real
def test_real_candidates_are_those_of_the_simulator(
    real_graphs: dict[str, SceneGraph], vectors_root: Path
) -> None:
    stored = json.loads(gzip.decompress((vectors_root / "sim_candidates.json.gz").read_bytes()))
    for seen in stored["observations"]:
        graph = real_graphs[seen["scan"]]
        candidates = graph.candidates(seen["viewpoint"])
        assert [candidate.viewpoint for candidate in candidates] == [
            record["viewpointId"] for record in seen["candidates"]
        ]
        assert [candidate.view for candidate in candidates] == [
            record["pointId"] for record in seen["candidates"]
        ]
        for ours, theirs in zip(candidates, seen["candidates"], strict=True):
            assert ours.heading == pytest.approx(theirs["normalized_heading"], abs=1e-6)
            assert ours.elevation == pytest.approx(theirs["elevation"], abs=1e-6)
        shown = [record["viewpointId"] for record in seen["navigableLocations"][1:]]
        assert [
            location.viewpoint for location in graph.navigable(seen["viewpoint"], seen["viewIndex"])
        ] == shown
