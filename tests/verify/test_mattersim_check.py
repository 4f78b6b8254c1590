"""Replay of simulator traces: own traces by the plain rules, damaged traces, and the recorded ones."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.plain_simulator import PlainLocation, PlainSimulator, PlainState

from esceme.verify import verify

CAMERA = (640, 480, math.radians(60))
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def connectivity(toy_root: Path) -> Path:
    return toy_root / "connectivity"


def entry(location: PlainLocation) -> list[float]:
    return [location.ix, *location[5:]]


def record(state: PlainState) -> dict[str, Any]:
    return {
        "scan": state.scanId,
        "step": state.step,
        "vi": state.viewIndex,
        "h": state.heading,
        "e": state.elevation,
        "loc": entry(state.location),
        "nav": [entry(location) for location in state.navigableLocations],
    }


def make_trace(connectivity: Path, *, scalar: bool) -> dict[str, Any]:
    """A session of one environment by the plain rules, with an error in the middle."""
    plain = PlainSimulator(connectivity, discretized=False, camera=CAMERA)
    scan = (connectivity / "scans.txt").read_text().split()[0]
    start = plain.scan(scan).ids[0]
    setup = [
        ["Simulator"],
        ["setNavGraphPath", "@NAV"],
        ["setRenderingEnabled", False],
        ["setElevationLimits", -0.94, 0.94],
        ["setCameraResolution", *CAMERA[:2]],
        ["setCameraVFOV", CAMERA[2]],
        ["init" if scalar else "initialize"],
    ]
    out: list[dict[str, Any]] = [
        {"r": True} if operation[0] == "setElevationLimits" else {} for operation in setup
    ]
    operations = [*setup]

    def call(name: str, *arguments: Any) -> None:
        operations.append(
            [name, *arguments] if not scalar else [name, *(argument[0] for argument in arguments)]
        )

    plain.newEpisode([scan], [start], [1.0], [0.1])
    call("newEpisode", [scan], [start], [1.0], [0.1])
    out.append({"s": [record(plain.getState()[0])]})
    for turn in (0.7, -2.0, 0.5, 1.1):
        index = len(plain.getState()[0].navigableLocations) - 1
        plain.makeAction([index], [turn], [0.05])
        call("makeAction", [index], [turn], [0.05])
        out.append({"s": [record(plain.getState()[0])]})
    call("makeAction", [99], [0], [0])
    out.append({"err": ["ValueError", "wrong index"], "s": []})
    tables = {scan: {"ids": plain.scan(scan).ids, "xyz": plain.scan(scan).positions}}
    session = {"name": "walk", "level": "core", "ops": operations, "out": out}
    return {
        "format": "mattersim-trace/1",
        "api": "v0.1" if scalar else "v2",
        "scans": tables,
        "sessions": [session],
    }


def replay(
    trace: dict[str, Any], folder: Path, data: Path, name: str = "v2_walk.json.gz"
) -> tuple[int, set[str]]:
    """Exit code of `verify`, and the quantities that differ."""
    folder.mkdir(exist_ok=True)
    (folder / "v2_walk.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))
    (folder / "tool.py").write_text("")
    report = verify(folder, data)
    return report.exit_code, {row.quantity for row in report.rows if not row.ok}


@pytest.mark.parametrize("scalar", [True, False])
def test_own_sessions_agree(scalar: bool, connectivity: Path, toy_root: Path, tmp_path: Path) -> None:
    trace = make_trace(connectivity, scalar=scalar)
    assert replay(trace, tmp_path / "traces", toy_root) == (0, set())


def last_state(trace: dict[str, Any]) -> dict[str, Any]:
    return trace["sessions"][0]["out"][-2]["s"][0]


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (lambda trace: last_state(trace).update(h=last_state(trace)["h"] + 1e-6), {"states.h"}),
        (lambda trace: last_state(trace).update(step=9), {"states.step"}),
        (lambda trace: last_state(trace)["nav"][0].__setitem__(0, 999), {"viewpoints"}),
        (lambda trace: last_state(trace)["nav"][0].__setitem__(1, 0.1), {"relative angles"}),
        (lambda trace: last_state(trace)["loc"].__setitem__(3, 0.1), {"distances (relative)"}),
        (lambda trace: trace["sessions"][0]["out"][-1].update(err=["IndexError", ""]), {"errors"}),
        (lambda trace: trace["sessions"][0]["out"][3].update(r=False), {"return values"}),
    ],
)
def test_every_difference_is_found(
    edit: Edit, expected: set[str], connectivity: Path, toy_root: Path, tmp_path: Path
) -> None:
    trace = make_trace(connectivity, scalar=False)
    edit(trace)
    code, differing = replay(trace, tmp_path / "traces", toy_root)
    assert code == 1 and expected <= differing


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda trace: trace.update(format="other"), "expected the format"),
        (lambda trace: trace["sessions"][0].pop("ops"), "not a trace of this format"),
        (lambda trace: trace.update(format="mattersim-contract/1"), "not a trace of this format"),
        (lambda trace: trace["sessions"][0]["ops"][4].__setitem__(0, "__init__"), "unknown operation"),
        (
            lambda trace: trace["sessions"][0]["ops"].insert(0, ["setBatchSize", 2**31]),
            "unknown operation",
        ),
        (lambda trace: last_state(trace).update(nav=3), "not a trace of this format"),
        (lambda trace: trace.update(sessions=[]), "holds no sessions"),
    ],
)
def test_malformed_traces_are_skipped_with_a_reason(
    edit: Edit, reason: str, connectivity: Path, toy_root: Path, tmp_path: Path
) -> None:
    trace = make_trace(connectivity, scalar=False)
    edit(trace)
    folder = tmp_path / "traces"
    assert replay(trace, folder, toy_root)[0] == 3
    assert reason in verify(folder, toy_root).skipped[0].reason


@pytest.mark.parametrize("fault", [0.0, 1e-3])
def test_bulk_traces_are_replayed(fault: float, connectivity: Path, toy_root: Path, tmp_path: Path) -> None:
    plain = PlainSimulator(connectivity, discretized=False, camera=CAMERA)
    scans = (connectivity / "scans.txt").read_text().split()[:2]
    rng = np.random.default_rng(0)
    episodes, actions, batch, unit = 2, 5, 2, 0.001
    changes = rng.integers(-900, 900, (2, episodes, actions, batch))
    states: list[list[PlainState]] = []
    choices = np.zeros((episodes, actions, batch), np.int64)
    headings = rng.uniform(0, 6, (episodes, batch))
    for episode in range(episodes):
        starts = [plain.scan(scan).ids[0] for scan in scans]
        plain.newEpisode(scans, starts, headings[episode].tolist(), [0.0] * batch)
        states.append(plain.getState())
        for action in range(actions):
            choices[episode, action] = [len(state.navigableLocations) - 1 for state in plain.getState()]
            turns, tilts = (changes[:, episode, action] * unit).tolist()
            plain.makeAction(choices[episode, action].tolist(), turns, tilts)
            states.append(plain.getState())
    flat = [state for step in states for state in step]
    shape = (episodes, actions + 1, batch)
    found = [location for state in flat for location in state.navigableLocations[1:]]
    block = {"discretized": False, "restricted": True, "width": 640, "height": 480, "vfov": CAMERA[2]}
    ids = {scan: plain.scan(scan).ids for scan in scans}
    meta = {"scans": scans, "ids": ids, "blocks": [block | {"increment_unit": unit}]}
    arrays = {
        "ep_scan": np.tile([0, 1], (episodes, 1)),
        "ep_ix": np.zeros((episodes, batch), int),
        "ep_h": headings,
        "ep_e": np.zeros((episodes, batch)),
        "a_ix": choices,
        "a_h": changes[0],
        "a_e": changes[1],
        "ix": np.reshape([state.location.ix for state in flat], shape),
        "h": np.reshape([state.heading for state in flat], shape),
        "e": np.reshape([state.elevation for state in flat], shape),
        "vi": np.reshape([state.viewIndex for state in flat], shape),
        "n": np.reshape([len(state.navigableLocations) for state in flat], shape),
        "nav_ix": [location.ix for location in found],
        "nav_rh": np.array([location.rel_heading for location in found]) + fault,
        "nav_re": [location.rel_elevation for location in found],
        "nav_rd": [location.rel_distance for location in found],
    }
    stored = {f"b0_{name}": np.asarray(values) for name, values in arrays.items()}
    encoded = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    np.savez(tmp_path / "v2_bulk.npz", meta=encoded, **stored)
    report = verify(tmp_path, toy_root)
    differing = {row.quantity for row in report.rows if not row.ok}
    assert (report.exit_code, differing) == ((1, {"bulk relative headings"}) if fault else (0, set()))


@pytest.mark.parametrize("content", [b"", b"PK", b"no archive"])
def test_damaged_bulk_traces_are_skipped(content: bytes, toy_root: Path, tmp_path: Path) -> None:
    (tmp_path / "v2_bulk.npz").write_bytes(content)
    report = verify(tmp_path, toy_root)
    assert report.exit_code == 3 and "not a trace of this format" in report.skipped[0].reason


def test_bulk_traces_that_expand_enormously_are_refused(toy_root: Path, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "v2_bulk.npz", meta=np.zeros(1 << 25, np.uint8))
    assert "expands to more than" in verify(tmp_path, toy_root).skipped[0].reason


@pytest.mark.real
def test_recorded_sessions_of_the_original_agree(data_root: Path) -> None:
    traces = data_root.parent / "references" / "mattersim"
    if not traces.is_dir():
        pytest.skip("the traces of the original simulator are not beside the datasets")
    report = verify(traces, data_root)
    assert report.exit_code == 0 and len(report.rows) > 200
