"""Single calls of `esceme.mattersim`, against the rules in plain Python and the original C++ module.

Both sides take the same episodes and actions with discretised angles; reading touches the pose and all
attributes of all navigable locations. The limits are the calls per second that were measured for the original
module (rendering off, one thread, best of five).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Amount, Measurement, Ratio, both_sides, seconds
from benchmarks.plain_simulator import PlainLocation, PlainSimulator
from esceme.mattersim import Simulator
from esceme.world import SceneGraph, read_scenes

CALLS = 1600
"""Environment steps per measurement; larger batches make fewer calls."""
ORIGINAL = {
    "newEpisode + getState": (57_000, 9_900, 1_225),
    "newEpisode + getState + read": (51_500, 8_200, 1_000),
    "makeAction": (248_000, 23_100, 2_860),
    "makeAction + getState": (224_000, 22_200, 2_780),
    "makeAction + getState + read": (142_000, 15_700, 1_800),
}
"""Calls per second of the original module at batch sizes 1, 8 and 64."""
BATCHES = (1, 8, 64)
MIN_RATIO = 1
BOUND = "the interpreter: one pass over the environments; navigable locations come from a table per scan"


def make_simulator(connectivity: Path, batch: int, *, discretized: bool = True) -> Simulator:
    simulator = Simulator()
    simulator.setNavGraphPath(str(connectivity))
    simulator.setRenderingEnabled(False)
    simulator.setDiscretizedViewingAngles(discretized)
    simulator.setCameraResolution(640, 480)
    simulator.setCameraVFOV(math.radians(60))
    simulator.setBatchSize(batch)
    simulator.initialize()
    return simulator


def draw_calls(
    graphs: dict[str, SceneGraph], batch: int, rng: np.random.Generator
) -> tuple[list[Any], list[Any]]:
    """Arguments of `newEpisode` and of `makeAction`: turns in random directions."""
    names, episodes, actions = list(graphs), [], []
    for _ in range(max(CALLS // batch, 4)):
        scans = [names[number] for number in rng.integers(len(names), size=batch)]
        starts = [graphs[scan].viewpoints[rng.integers(len(graphs[scan]))] for scan in scans]
        episodes.append((scans, starts, rng.uniform(0, 6, batch).tolist(), [0.0] * batch))
        actions.append(([0] * batch, *rng.integers(-1, 2, (2, batch)).tolist()))
    return episodes, actions


def read(states: Sequence[Any]) -> None:
    """Touch the pose and every attribute of every navigable location."""
    for state in states:
        _ = (state.scanId, state.step, state.viewIndex, state.heading, state.elevation, state.location)
        for place in state.navigableLocations:
            _ = (place.viewpointId, place.ix, place.x, place.y, place.z)
            _ = (place.rel_heading, place.rel_elevation, place.rel_distance)


def loops(simulator: Any, episodes: list[Any], actions: list[Any]) -> dict[str, Callable[[], None]]:
    """One function per measured combination of calls."""

    def loop(method: str, calls: list[Any], get: bool, touch: bool) -> Callable[[], None]:
        call, state = getattr(simulator, method), simulator.getState

        def run_calls() -> None:
            for arguments in calls:
                call(*arguments)
                if touch:
                    read(state())
                elif get:
                    state()

        return run_calls

    return {
        name: loop(
            "newEpisode" if name.startswith("new") else "makeAction",
            episodes if name.startswith("new") else actions,
            "getState" in name,
            "read" in name,
        )
        for name in ORIGINAL
    }


def check_equal(plain: PlainSimulator, ours: Simulator, calls: tuple[list[Any], list[Any]]) -> None:
    """Assert that both sides see the same locations."""
    for method, arguments in (("newEpisode", calls[0][0]), *(("makeAction", action) for action in calls[1])):
        getattr(plain, method)(*arguments)
        getattr(ours, method)(*arguments)
        for theirs, state in zip(plain.getState(), ours.getState(), strict=True):
            assert (theirs.viewIndex, theirs.step) == (state.viewIndex, state.step)
            keys = PlainLocation._fields[:2]
            found = [tuple(getattr(place, key) for key in keys) for place in state.navigableLocations]
            assert sorted(found) == sorted(place[:2] for place in theirs.navigableLocations)


def time_first_episodes(connectivity: Path, graphs: dict[str, SceneGraph]) -> float:
    """Process seconds until a new simulator has started an episode in every scan."""
    begin = time.process_time()
    simulator = make_simulator(connectivity, 1)
    for scan, graph in graphs.items():
        simulator.newEpisode([scan], [graph.viewpoints[0]], [0.0], [0.0])
    return time.process_time() - begin


def run(data: Path) -> Iterator[Ratio | Amount | Measurement]:
    connectivity = data / "connectivity"
    graphs = read_scenes(connectivity)
    ready = min(time_first_episodes(connectivity, graphs) for _ in range(3))
    yield Amount(
        f"first episodes in {len(graphs)} scenes", ready, "s", 1, "reading json; then the tables of 36 views"
    )
    for column, batch in enumerate(BATCHES):
        calls = draw_calls(graphs, batch, np.random.default_rng(batch))
        ours = make_simulator(connectivity, batch)
        plain = PlainSimulator(connectivity, batch_size=batch)
        check_equal(plain, ours, calls)
        our_loops, plain_loops = loops(ours, *calls), loops(plain, *calls)
        for name, rates in ORIGINAL.items():
            slow, fast = both_sides(plain_loops[name], our_loops[name], 5)
            yield Ratio(f"batch {batch}: {name}, plain Python", slow, fast, MIN_RATIO, BOUND)
            microseconds = 1e6 * fast / len(calls[0])
            limit = 1e6 / rates[column]
            title, text = f"batch {batch}: {name}, original", f"{microseconds:.1f} µs per call"
            if batch == 1:
                yield Measurement(title, f"{text}; the original {limit:.1f} µs", BOUND)
            else:
                yield Amount(title, microseconds, "µs per call", round(limit, 1), BOUND)
        continuous = make_simulator(connectivity, batch, discretized=False)
        looped = loops(continuous, *calls)
        looped["newEpisode + getState"]()
        best = min(seconds(looped["makeAction + getState"]) for _ in range(5))
        yield Measurement(
            f"batch {batch}: makeAction + getState, any direction",
            f"{1e6 * best / len(calls[1]):.1f} µs per call",
            "about 40 numpy calls, whatever the batch size",
        )
