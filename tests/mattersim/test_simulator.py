"""The simulator's interface: order of calls, arguments, misuse, object identity, and both generations."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esceme.mattersim import SimState, Simulator
from esceme.mattersim.simulator import _snap
from esceme.world.geometry import nearest_view
from esceme.world.graph import SceneGraph, read_scenes
from fixtures.simulators import MakeSimulator

angles = st.floats(-10, 10) | st.sampled_from([0.0, math.pi, 2 * math.pi, math.radians(15), -1e-17])


@pytest.fixture(scope="module")
def graphs(connectivity: Path) -> dict[str, SceneGraph]:
    return read_scenes(connectivity)


@pytest.fixture(scope="module")
def scan(graphs: dict[str, SceneGraph]) -> str:
    return next(iter(graphs))


@pytest.fixture(scope="module")
def start(graphs: dict[str, SceneGraph], scan: str) -> str:
    return graphs[scan].viewpoints[0]


def summary(state: SimState) -> list[object]:
    """Everything that a state shows, as values."""
    pose = [state.scanId, state.step, state.viewIndex, state.heading, state.elevation]
    places = [state.location, *state.navigableLocations] if state.location else []
    keys = ("viewpointId", "ix", "x", "y", "z", "rel_heading", "rel_elevation", "rel_distance")
    return pose + [[getattr(place, key) for key in keys] for place in places]


# -- order of calls --------------------------------------------------------------------------------------


def test_calls_in_the_wrong_order(make_simulator: MakeSimulator, scan: str, start: str) -> None:
    simulator = make_simulator()
    assert simulator.getState() == []
    with pytest.raises(RuntimeError, match="newEpisode must be called before makeAction"):
        simulator.makeAction([0], [0], [0])
    with pytest.raises(ValueError, match="invalid action index 0: there are 0"):
        simulator.makeAction(0, 0, 0)
    simulator.initialize()
    (state,) = simulator.getState()
    assert summary(state) == ["", 0, 0, 0.0, 0.0]
    assert (state.location, state.navigableLocations) == (None, [])
    with pytest.raises(ValueError, match="invalid action index 0 in environment 0 of 1"):
        simulator.makeAction([0], [0], [0])
    simulator.newEpisode([scan], [start], [0], [0])
    simulator.close()
    simulator.close()
    with pytest.raises(RuntimeError, match="newEpisode must be called"):
        simulator.makeAction([0], [0], [0])
    assert simulator.getState()[0] is state and state.location.viewpointId == start


def test_scalar_calls_in_the_wrong_order(make_simulator: MakeSimulator, scan: str, start: str) -> None:
    simulator = make_simulator()
    simulator.init()
    with pytest.raises(RuntimeError, match="newEpisode must be called before getState"):
        simulator.getState()
    with pytest.raises(ValueError, match="invalid action index 0"):
        simulator.makeAction(0, 0, 0)
    simulator.newEpisode(scan, start, 0, 0)
    simulator.close()
    with pytest.raises(ValueError, match="invalid action index 0"):
        simulator.makeAction(0, 0, 0)
    simulator.newEpisode(scan, start, 0, 0)
    simulator.makeAction(0, 1, 0)
    assert simulator.getState().step == 1


def test_first_episode_decides_about_the_interface(
    make_simulator: MakeSimulator, scan: str, start: str
) -> None:
    scalar, batched = make_simulator(), make_simulator()
    scalar.newEpisode(scan, start, 0.0, 0.0)
    batched.newEpisode([scan], [start], [0.0], [0.0])
    assert summary(scalar.getState()) == summary(batched.getState()[0])
    with pytest.raises(TypeError):
        scalar.makeAction([0], [0], [0])
    with pytest.raises(TypeError, match="expected a list"):
        batched.makeAction(0, 0, 0)


def test_late_settings_are_ignored_or_count_from_the_next_call(
    make_simulator: MakeSimulator, scan: str, start: str, tmp_path: Path
) -> None:
    simulator = make_simulator(setBatchSize=2)
    simulator.initialize()
    simulator.setBatchSize(4)
    simulator.setDiscretizedViewingAngles(False)
    simulator.setRestrictedNavigation(False)
    simulator.setNavGraphPath(str(tmp_path))
    simulator.setSeed(7)
    simulator.initialize()
    simulator.newEpisode([scan] * 2, [start] * 2, [0.3] * 2, [0.2] * 2)
    first, second = simulator.getState()
    assert first.heading == pytest.approx(math.radians(30)) and first.elevation == 0.0
    before = summary(first)
    simulator.setCameraVFOV(2.5)
    simulator.setCameraResolution(900, 300)
    assert summary(first) == before
    simulator.makeAction([0, 0], [0, 0], [0, 0])
    assert len(first.navigableLocations) == len(second.navigableLocations)
    assert [summary(first)[:1], summary(first)[2:5]] == [before[:1], before[2:5]]
    simulator.close()
    simulator.setDiscretizedViewingAngles(False)
    simulator.newEpisode([scan] * 4, [start] * 4, [0.3] * 4, [0.2] * 4)
    assert [state.heading for state in simulator.getState()] == [0.3] * 2  # setBatchSize(4) was ignored


def test_wide_cameras_show_all_and_narrow_ones_nothing(
    make_simulator: MakeSimulator, graphs: dict[str, SceneGraph], scan: str, start: str
) -> None:
    degree = int(graphs[scan].degrees[graphs[scan].index(start)])
    for vfov, resolution, count in ((2 * math.pi, (100, 100), degree), (1.0, (100, 0), 0), (0.0, (4, 3), 0)):
        simulator = make_simulator(setCameraVFOV=vfov, setCameraResolution=resolution)
        simulator.newEpisode([scan], [start], [0.0], [0.0])
        assert len(simulator.getState()[0].navigableLocations) == count + 1
    simulator = make_simulator(setCameraResolution=(1, 0), setRestrictedNavigation=False)
    simulator.newEpisode([scan], [start], [0.0], [0.0])
    assert len(simulator.getState()[0].navigableLocations) == degree + 1


def test_elevation_limits(make_simulator: MakeSimulator, scan: str, start: str) -> None:
    simulator = make_simulator(setDiscretizedViewingAngles=False)
    assert simulator.setElevationLimits(-0.5, 0.4) is True
    assert simulator.setElevationLimits(0.1, 0.4) is False
    simulator.newEpisode([scan], [start], [0.0], [1.0])
    (state,) = simulator.getState()
    assert state.elevation == 0.4
    simulator.makeAction([0], [-0.25], [-2.0])
    assert (state.elevation, state.heading) == (-0.5, pytest.approx(2 * math.pi - 0.25))


# -- bad input -------------------------------------------------------------------------------------------


def test_failed_calls_change_nothing(
    make_simulator: MakeSimulator, connectivity: Path, scan: str, start: str
) -> None:
    records = json.loads((connectivity / f"{scan}_connectivity.json").read_text())
    excluded = next(record["image_id"] for record in records if not record["included"])
    simulator = make_simulator(setBatchSize=2)
    simulator.newEpisode([scan] * 2, [start] * 2, [1.0, 2.0], [0.0, 0.0])
    states = simulator.getState()
    before = [summary(state) for state in states]
    for error, message, call, arguments in (
        (
            IndexError,
            "scan 'nowhere' is not in",
            "newEpisode",
            ([scan, "nowhere"], [start] * 2, [0, 0], [0, 0]),
        ),
        (
            ValueError,
            "could not find viewpoint 'x'",
            "newEpisode",
            ([scan] * 2, [start, "x"], [0, 0], [0, 0]),
        ),
        (ValueError, "is excluded", "newEpisode", ([scan] * 2, [start, excluded], [0, 0], [0, 0])),
        (IndexError, "1 entries for 2 env", "newEpisode", ([scan] * 2, [start] * 2, [0.5], [0, 0])),
        (IndexError, "0 entries for 2 env", "newEpisode", ([], [], [], [])),
        (TypeError, "expected a list", "newEpisode", (scan, start, 0, 0)),
        (TypeError, "expected a str", "newEpisode", ([1, 2], [start] * 2, [0, 0], [0, 0])),
        (IndexError, "not in", "newRandomEpisode", (["nowhere", scan],)),
        (ValueError, "index 99 in environment 1 of 2", "makeAction", ([0, 99], [1, 1], [1, 1])),
        (IndexError, "1 entries for 2", "makeAction", ([0], [1, 1], [1, 1])),
        (TypeError, "expected indices", "makeAction", ([0, -1], [1, 1], [1, 1])),
        (TypeError, "float", "makeAction", ([0, 1.0], [1, 1], [1, 1])),
        (TypeError, "real number", "makeAction", ([0, 0], ["1", 1], [1, 1])),
        (TypeError, "expected a list", "makeAction", ({0}, [1, 1], [1, 1])),
    ):
        with pytest.raises(error, match=message):
            getattr(simulator, call)(*arguments)
        assert [summary(state) for state in states] == before
    simulator.newEpisode([scan] * 3, [start] * 3, [0.0] * 3, [0.0] * 3)  # longer lists are accepted
    assert len(simulator.getState()) == 2


def test_scalar_misuse(make_simulator: MakeSimulator, connectivity: Path, scan: str, start: str) -> None:
    simulator = make_simulator()
    simulator.init()
    simulator.newEpisode(scan, start, 1.0, 0.0)
    before = summary(simulator.getState())
    for error, call, arguments in (
        (ValueError, "newEpisode", ("nowhere", start, 0, 0)),
        (ValueError, "newEpisode", (scan, "nowhere", 0, 0)),
        (TypeError, "newEpisode", (scan, start, 0)),
        (TypeError, "newEpisode", ([scan], [start], [0], [0])),
        (ValueError, "makeAction", (99, 0, 0)),
        (ValueError, "makeAction", (-1, 0, 0)),
        (TypeError, "makeAction", (1.0, 0, 0)),
        (TypeError, "makeAction", (2**31, 0, 0)),
        (TypeError, "makeAction", ([0], [0], [0])),
    ):
        with pytest.raises(error):
            getattr(simulator, call)(*arguments)
        assert summary(simulator.getState()) == before
    simulator.setNavGraphPath("/nowhere")  # counts for scans that were not read yet
    simulator.newEpisode(scan, start, 0.0, 0.0)


def test_broken_folders_are_read_again_when_they_are_mended(
    make_simulator: MakeSimulator, connectivity: Path, scan: str, start: str, tmp_path: Path
) -> None:
    simulator = make_simulator(setNavGraphPath=str(tmp_path))
    episode = [scan], [start], [0.0], [0.0]
    simulator.initialize()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"could not read the list of scans: .*scans\.txt: no such file"):
            simulator.newEpisode(*episode)
    (tmp_path / "scans.txt").write_text(f"{scan}\n")
    with pytest.raises(ValueError, match="could not read the navigation graph"):
        simulator.newEpisode(*episode)
    file = tmp_path / f"{scan}_connectivity.json"
    file.write_text("[{]")
    with pytest.raises(ValueError, match="not valid json"):
        simulator.newRandomEpisode([scan])
    shutil.copy(connectivity / file.name, file)
    simulator.newEpisode(*episode)
    assert simulator.getState()[0].location.viewpointId == start


def test_graphs_are_read_scene_by_scene(
    make_simulator: MakeSimulator, connectivity: Path, tmp_path: Path
) -> None:
    shutil.copytree(connectivity, tmp_path, dirs_exist_ok=True)
    scans = (tmp_path / "scans.txt").read_text().split()
    (tmp_path / f"{scans[1]}_connectivity.json").write_text("damaged")
    simulator = make_simulator(setNavGraphPath=f"{tmp_path}/")
    simulator.newRandomEpisode([scans[0]])
    with pytest.raises(ValueError, match="not valid json"):
        simulator.newRandomEpisode([scans[1]])


@pytest.mark.parametrize("discretized", [True, False])
def test_angles_that_are_not_finite_warn_once(
    discretized: bool, make_simulator: MakeSimulator, scan: str, start: str
) -> None:
    simulator = make_simulator(setDiscretizedViewingAngles=discretized)
    with pytest.warns(UserWarning, match="not finite"):
        simulator.newEpisode([scan], [start], [math.nan], [math.inf])
    (state,) = simulator.getState()
    simulator.makeAction([0], [-math.inf], [math.nan])  # no second warning
    if discretized:
        assert (state.viewIndex, state.elevation) == (12 + 11, 0.0)
    else:
        assert math.isnan(state.heading) and math.isnan(state.elevation)
        assert len(state.navigableLocations) == 1


def test_negative_resolution_is_refused_by_initialize(make_simulator: MakeSimulator) -> None:
    simulator = make_simulator(setCameraResolution=(-4, 3))
    with pytest.raises(RuntimeError, match="-4 x 3 pixels"):
        simulator.initialize()


def test_isolated_viewpoints_have_no_neighbours(make_simulator: MakeSimulator, tmp_path: Path) -> None:
    pose = [1, 0, 0, 0, 0, 0, 1, 0, 0, -1, 0, 0, 0, 0, 0, 1]
    adjacency = [
        [False, True, True, False],
        [True, False, True, False],
        [True, True, False, False],
        [False] * 4,
    ]
    records = [
        {
            "image_id": name,
            "pose": [*pose[:3], float(index), *pose[4:7], float(index % 2), *pose[8:]],
            "included": name != "c",
            "unobstructed": row,
        }
        for index, (name, row) in enumerate(zip("abcd", adjacency, strict=True))
    ]
    (tmp_path / "house_connectivity.json").write_text(json.dumps(records))
    simulator = make_simulator(setNavGraphPath=str(tmp_path), setRestrictedNavigation=False)
    simulator.init()
    simulator.newEpisode("house", "d", 0, 0)
    state = simulator.getState()
    assert [state.location.ix, state.location.point] == [3, [3.0, 1.0, 0.0]]
    assert len(state.navigableLocations) == 1
    simulator.setSeed(3)
    drawn = set()
    for _ in range(40):
        simulator.newEpisode("house", "", 0, 0)
        drawn.add(simulator.getState().location.viewpointId)
    assert drawn == {"a", "b", "d"}


# -- objects ---------------------------------------------------------------------------------------------


def test_states_are_live_and_chosen_locations_become_the_viewpoint(
    make_simulator: MakeSimulator, scan: str, start: str
) -> None:
    simulator = make_simulator(setRestrictedNavigation=False)
    simulator.newEpisode([scan], [start], [0], [0])
    (state,) = simulator.getState()
    entries = state.navigableLocations
    assert entries[0] is state.location and entries is not state.navigableLocations
    assert entries[1] is state.navigableLocations[1] and entries[1].rel_distance > 0
    simulator.makeAction([1], [0], [0])
    assert simulator.getState()[0] is state and state.location is entries[1]
    assert (entries[1].rel_heading, entries[1].rel_elevation, entries[1].rel_distance) == (0.0, 0.0, 0.0)
    assert entries[0].viewpointId == start
    state.navigableLocations.clear()
    assert state.navigableLocations


def test_scalar_states_are_snapshots(make_simulator: MakeSimulator, scan: str, start: str) -> None:
    simulator = make_simulator()
    simulator.init()
    simulator.newEpisode(scan, start, 0, 0)
    state = simulator.getState()
    before = summary(state)
    for _ in range(12):
        simulator.makeAction(len(simulator.getState().navigableLocations) - 1, 1, 0)
    assert summary(state) == before and state is not simulator.getState()
    assert state.navigableLocations is state.navigableLocations
    assert state.navigableLocations[0] is not state.location
    assert state.location.point == [state.location.x, state.location.y, state.location.z]
    assert np.array(state.rgb).shape == (480, 640, 3)


# -- random episodes -------------------------------------------------------------------------------------


def test_random_episodes_depend_on_the_seed_and_headings_do_not(
    make_simulator: MakeSimulator, graphs: dict[str, SceneGraph]
) -> None:
    scans = list(graphs)

    def draw(seed: int) -> list[list[tuple[str, float]]]:
        simulator = make_simulator(setSeed=seed, setBatchSize=len(scans), setDiscretizedViewingAngles=False)
        episodes = []
        for _ in range(6):
            simulator.newRandomEpisode(scans)
            episodes.append([(state.location.viewpointId, state.heading) for state in simulator.getState()])
        return episodes

    assert draw(3) == draw(3) != draw(4)
    for episode in draw(5):
        assert [heading for _, heading in episode][:2] == pytest.approx(
            [0.8264762952590881, 2.881783770664272]
        )
        for name, (viewpoint, _) in zip(scans, episode, strict=True):
            assert viewpoint in graphs[name]


def test_simulators_have_their_own_random_numbers(make_simulator: MakeSimulator, scan: str) -> None:
    first, second = make_simulator(), make_simulator()
    for _ in range(5):
        first.newRandomEpisode([scan])
        second.newRandomEpisode([scan])
        assert summary(first.getState()[0]) == summary(second.getState()[0])


@given(angles, angles)
def test_discretised_angles_are_the_nearest_view(heading: float, elevation: float) -> None:
    assert _snap(heading, elevation) == nearest_view(heading, elevation)


# -- both generations ------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    discretized=st.booleans(),
    camera=st.sampled_from([(640, 480, math.radians(60)), (320, 240, 0.8), (100, 300, 1.2)]),
    actions=st.lists(st.tuples(st.integers(0, 5), angles, angles), min_size=1, max_size=12),
    number=st.integers(0, 10**6),
)
def test_both_generations_agree(
    discretized: bool,
    camera: tuple[int, int, float],
    actions: list[tuple[int, float, float]],
    number: int,
    make_simulator: MakeSimulator,
    graphs: dict[str, SceneGraph],
) -> None:
    settings = {
        "setDiscretizedViewingAngles": discretized,
        "setCameraResolution": camera[:2],
        "setCameraVFOV": camera[2],
    }
    scalar, batched = make_simulator(**settings), make_simulator(**settings, setBatchSize=2)
    scalar.init()
    graph = list(graphs.values())[number % len(graphs)]
    viewpoint = graph.viewpoints[number % len(graph)]
    _, heading, elevation = actions[0]
    scalar.newEpisode(graph.scene_id, viewpoint, heading, elevation)
    batched.newEpisode([graph.scene_id] * 2, [viewpoint] * 2, [heading, 0.0], [elevation, 0.0])
    for choice, turn, tilt in actions:
        snapshot, (live, _) = scalar.getState(), batched.getState()
        assert summary(snapshot) == summary(live)
        index = choice % len(live.navigableLocations)
        scalar.makeAction(index, turn, tilt)
        batched.makeAction([index, 0], [turn, 1.0], [tilt, 0.0])
    assert summary(scalar.getState()) == summary(batched.getState()[0])
    assert isinstance(scalar, Simulator)
