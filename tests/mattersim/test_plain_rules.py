"""Random actions on generated houses, against the rules in plain Python."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from benchmarks.plain_simulator import PlainLocation, PlainSimulator, PlainState

from esceme.mattersim import SimState, Simulator
from esceme.synth import WorldConfig, embedded_world
from esceme.world import read_scenes

BATCH = 16
EDGE = 1e-6
"""Angle within which single and double precision may order or show viewpoints differently."""


def play(connectivity: Path, steps: int, *, discretized: bool, seed: int) -> tuple[int, int]:
    """Take random actions in both simulators; return how many states were compared, and were at an edge."""
    rng = np.random.default_rng(seed)
    graphs = read_scenes(connectivity)
    names = list(graphs)
    width, height, vfov = (640, 480, math.radians(60)) if seed % 2 else (320, 240, 0.8)
    plain = PlainSimulator(
        connectivity, batch_size=BATCH, discretized=discretized, camera=(width, height, vfov)
    )
    ours = Simulator()
    ours.setNavGraphPath(str(connectivity))
    ours.setRenderingEnabled(False)
    ours.setDiscretizedViewingAngles(discretized)
    ours.setCameraResolution(width, height)
    ours.setCameraVFOV(vfov)
    ours.setBatchSize(BATCH)
    num_edges, is_synchronous = 0, False
    for step in range(steps):
        if step % 20 == 0 or not is_synchronous:
            scans = [names[number] for number in rng.integers(len(names), size=BATCH)]
            starts = [graphs[scan].viewpoints[rng.integers(len(graphs[scan]))] for scan in scans]
            poses = rng.uniform(-7, 7, BATCH).tolist(), rng.uniform(-1, 1, BATCH).tolist()
            plain.newEpisode(scans, starts, *poses)
            ours.newEpisode(scans, starts, *poses)
        else:
            counts = [len(state.navigableLocations) for state in ours.getState()]
            indices = [int(rng.integers(count)) if rng.random() < 0.5 else 0 for count in counts]
            changes = (rng.normal(size=(2, BATCH)) * rng.integers(0, 2, (2, BATCH))).tolist()
            plain.makeAction(indices, *changes)
            ours.makeAction(indices, *changes)
        differing = [
            theirs
            for theirs, state in zip(plain.getState(), ours.getState(), strict=True)
            if not is_equal(theirs, state)
        ]
        assert all(is_at_edge(plain, state) for state in differing)
        num_edges += len(differing)
        is_synchronous = not differing  # indices mean other locations now
    return steps * BATCH, num_edges


def is_equal(theirs: PlainState, ours: SimState) -> bool:
    assert (theirs.scanId, theirs.step, theirs.viewIndex) == (ours.scanId, ours.step, ours.viewIndex)
    assert abs(theirs.heading - ours.heading) < 1e-9 and abs(theirs.elevation - ours.elevation) < 1e-9
    assert theirs.location[:5] == tuple(getattr(ours.location, key) for key in PlainLocation._fields[:5])
    entries = ours.navigableLocations
    if [entry.ix for entry in entries] != [entry.ix for entry in theirs.navigableLocations]:
        return False
    for entry, expected in zip(entries, theirs.navigableLocations, strict=True):
        assert entry.viewpointId == expected.viewpointId
        for key in ("rel_elevation", "rel_distance"):
            assert getattr(entry, key) == pytest.approx(getattr(expected, key), abs=2e-6, rel=2e-6)
        assert math.remainder(entry.rel_heading - expected.rel_heading, 2 * math.pi) == pytest.approx(
            0, abs=2e-6
        )
    return True


def is_at_edge(plain: PlainSimulator, state: PlainState) -> bool:
    """Whether a neighbour is at the edge of the view, or two are equally far from its centre."""
    width, height, vfov = plain.camera
    wide = PlainSimulator(plain.connectivity, discretized=plain.discretized, restricted=False)
    wide.scans = plain.scans
    shown = wide.observe(state.scanId, state.location.ix, state.heading, state.elevation, 0, 0)
    offsets = sorted(math.hypot(*entry[5:7]) for entry in shown.navigableLocations[1:])
    edges = [
        abs(abs(entry.rel_heading) - vfov * width / height / 2) for entry in shown.navigableLocations[1:]
    ]
    return min([*np.diff(offsets).tolist(), *edges], default=1.0) < EDGE


@pytest.mark.parametrize("discretized", [True, False])
def test_random_actions_follow_the_plain_rules(discretized: bool) -> None:
    connectivity = embedded_world(WorldConfig("tiny")) / "connectivity"
    compared, num_edges = play(connectivity, 400, discretized=discretized, seed=1)
    assert compared == 6400 and num_edges < 0.01 * compared


@pytest.mark.slow
@pytest.mark.parametrize("discretized", [True, False])
@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_many_random_actions_follow_the_plain_rules(discretized: bool, seed: int) -> None:
    connectivity = embedded_world(WorldConfig("tiny", seed=seed)) / "connectivity"
    compared, num_edges = play(connectivity, 1000, discretized=discretized, seed=seed)
    assert compared == 16_000 and num_edges < 0.01 * compared
