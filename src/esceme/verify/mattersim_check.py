"""Replay recorded sessions of the original `MatterSim` module on `esceme.mattersim`, and compare all states.

A trace is a list of sessions; a session is a list of calls (operations) with the states and errors after
each. The original interface has two generations: `v2` is batched, `v0.1` is scalar.
"""

from __future__ import annotations

import math
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from esceme import mattersim
from esceme.errors import DataError
from esceme.files import expansion_limit, read_json
from esceme.mattersim import SimState, Simulator, ViewPoint
from esceme.tasks.folder import DataFolder
from esceme.verify.comparison import MALFORMED, FileComparison, Json
from esceme.verify.fixtures import ReferenceData
from esceme.verify.mattersim_probes import probe_interface

FILES = r"(.*/)?(v2|v01)_[a-z0-9_]+\.(json\.gz|npz)"
SESSIONS, PROBES = "mattersim-trace/1", "mattersim-contract/1"
POSE_TOLERANCE = 1e-9
ANGLE_TOLERANCE = 1e-6
"""Tolerance of relative angles (radians), which the original computes in single precision."""
DISTANCE_TOLERANCE = 2e-6
"""Tolerance of distances: metres up to a distance of one metre, and a share of longer distances."""
PLACE_PARTS = {
    "viewpoints": 0.0,
    "relative angles": ANGLE_TOLERANCE,
    "distances (relative)": DISTANCE_TOLERANCE,
}
"""Part of a location, in the order of `_split_places` -> its tolerance."""
SPECIAL = {"@nan": math.nan, "@inf": math.inf, "@-inf": -math.inf, "@EMPTYDIR": "/nonexistent-mattersim-dir"}
"""Texts in traces -> the values for which they stand."""
OPERATIONS = {"Simulator", "use", *(name for name in dir(Simulator) if name[0] != "_")}
MAX_BATCH = 1024
NPZ_ERRORS = (OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError)
"""Exceptions that reading a damaged file of arrays raises."""
ACCIDENTS = {
    "second initialize appends another batch",
    "unknown ids: partial state after the failure",
    "close and go on",
    "no graph directory, then repaired",
    "graph loaded once per process",
    "two simulators share one random stream; second seed ignored",
    "v0.1 failed scan load poisons that scan",
}
"""Names of sessions with unintended behaviour of the original, which `mattersim.simulator` lacks."""
DIFFERING_PROBES = {"has", "module_names", "rgb_access"}
"""Probes in which this implementation offers more: both generations at once, and `rgb` without pictures."""


def check_mattersim(path: Path, references: ReferenceData, comparison: FileComparison) -> None:
    """Replay one trace on `esceme.mattersim`."""
    connectivity = str(DataFolder(references.root).connectivity)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # traces hold angles that are not finite
            if path.suffix == ".npz":
                _check_bulk(path, connectivity, comparison)
            else:
                _check_json(path, connectivity, comparison)
    except (*MALFORMED, *NPZ_ERRORS, RecursionError, msgspec.DecodeError) as error:
        raise DataError(f"{path}: not a trace of this format ({error!r})") from None


def _check_json(path: Path, connectivity: str, comparison: FileComparison) -> None:
    """Compare a file of sessions or of probes."""
    stored = read_json(path, dict[str, Json])
    if stored.get("format") == PROBES:
        _check_probes(stored, connectivity, comparison)
    elif stored.get("format") == SESSIONS:
        for session in comparison.section(stored, "sessions", list[dict[str, Json]]):
            _check_session(session, connectivity, stored["scans"], comparison)
    else:
        raise DataError(f"{path}: expected the format {SESSIONS} or {PROBES}")


# -- sessions --------------------------------------------------------------------------------------------


def _check_session(
    session: Mapping[str, Json], connectivity: str, scans: Json, comparison: FileComparison
) -> None:
    """Repeat the calls of a session and compare states, errors and return values."""
    if session["name"] in ACCIDENTS:
        comparison.add_array(f"not followed: {session['name']}", [], [], 0.0)
        return
    simulators: list[Simulator] = []
    current: Simulator | None = None
    is_spoilt = False  # a failed call of the original changes some environments, until the next episode
    for operation, expected in zip(session["ops"], session["out"], strict=True):
        name, arguments = operation[0], [_decode(argument, connectivity) for argument in operation[1:]]
        if name not in OPERATIONS or (name == "setBatchSize" and max(arguments) > MAX_BATCH):
            raise DataError(f"unknown operation {operation} in a session")
        error: Exception | None = None
        returned: object = None
        try:
            if name == "Simulator":
                current = Simulator()
                simulators.append(current)
            elif name == "use":
                current = simulators[arguments[0]]
            else:
                returned = getattr(current, name)(*arguments)
        except Exception as raised:  # compared by its type
            error = raised
        failure = expected.get("err")
        if not failure and name in ("newEpisode", "newRandomEpisode"):
            is_spoilt = False
        if is_spoilt:
            continue
        is_spoilt = bool(failure) and failure[0] != "TypeError"
        comparison.add("errors", failure and failure[0], error and type(error).__name__, 0.0)
        if name == "setElevationLimits":
            comparison.add("return values", expected.get("r"), returned, 0.0)
        if "s" in expected and not is_spoilt and current is not None:
            _compare_states(expected["s"], _states(current), scans, comparison)


def _decode(value: Json, connectivity: str) -> Json:
    """Return an argument of a stored call, with special texts replaced by the values they stand for."""
    if isinstance(value, list):
        return [_decode(item, connectivity) for item in value]
    if value == "@NAV":
        return connectivity
    return SPECIAL.get(value, value) if isinstance(value, str) else value


def _states(simulator: Simulator) -> list[SimState]:
    """Return the states of a simulator as a list, which is empty before the first scalar episode."""
    try:
        found = simulator.getState()
    except RuntimeError:
        return []
    return found if isinstance(found, list) else [found]


def _compare_states(
    stored: list[Json], states: list[SimState], scans: Json, comparison: FileComparison
) -> None:
    """Compare stored states with ours; `scans` holds the viewpoints of each scan."""
    comparison.add("states (how many)", len(stored), len(states), 0.0)
    for theirs, state in zip(stored, states, strict=False):
        ours = _state_record(state, scans.get(state.scanId, {"ids": [], "xyz": []}))
        places = [theirs.pop("loc"), *theirs.pop("nav")], [ours.pop("loc"), *ours.pop("nav")]
        comparison.add("states", theirs, ours, POSE_TOLERANCE)
        for quantity, stored_part, part in zip(PLACE_PARTS, *map(_split_places, places), strict=True):
            comparison.add(quantity, stored_part, part, PLACE_PARTS[quantity])


def _split_places(places: list[Json]) -> tuple[list[Json], list[Json], list[Json]]:
    """Split locations into three lists: identities, relative angles, and distances / max(1, distance)."""
    present = [place for place in places if place is not None]
    return (
        [place and place[:-3] for place in places],
        [angle for place in present for angle in place[-3:-1]],
        [
            place[-1] if isinstance(place[-1], str) else place[-1] / max(1.0, abs(place[-1]))
            for place in present
        ],
    )


def _state_record(state: SimState, table: Json) -> dict[str, Json]:
    """Return a state in the format of traces; `table` holds the id and position of every record index."""
    return {
        "scan": state.scanId,
        "step": state.step,
        "vi": state.viewIndex,
        "h": _encode(state.heading),
        "e": _encode(state.elevation),
        "loc": _place_record(state.location, table),
        "nav": [_place_record(place, table) for place in state.navigableLocations],
    }


def _place_record(place: ViewPoint | None, table: Json) -> list[Json] | None:
    """Return a location as traces hold it: [ix, relative heading, relative elevation, distance].

    `ix` is the record index of the location. Its id and position are added if they differ from those that
    `table` has for this index.
    """
    if place is None:
        return None
    relative = [_encode(value) for value in (place.rel_heading, place.rel_elevation, place.rel_distance)]
    position = [place.x, place.y, place.z]
    is_known = place.ix < len(table["ids"]) and table["ids"][place.ix] == place.viewpointId
    if is_known and np.abs(np.subtract(table["xyz"][place.ix], position)).max() <= ANGLE_TOLERANCE:
        return [place.ix, *relative]
    return [place.viewpointId, place.ix, *position, *relative]


def _encode(value: float) -> Json:
    """Return a finite number unchanged, and any other number as the text that stands for it in traces."""
    if math.isfinite(value):
        return value
    return "@nan" if math.isnan(value) else "@inf" if value > 0 else "@-inf"


# -- probes ----------------------------------------------------------------------------------------------


def _check_probes(stored: Mapping[str, Json], connectivity: str, comparison: FileComparison) -> None:
    """Compare identities, aliases, types and accepted arguments."""
    expected = {key: value for key, value in stored["probes"].items() if key not in DIFFERING_PROBES}
    ours = probe_interface(mattersim, stored["api"] == "v2", connectivity, *stored["start"])
    comparison.unknown |= {f"probes.{key}" for key in expected if key not in ours}
    for key, value in ours.items():
        comparison.add(f"probes.{key}", _items(expected.get(key)), _items(value), 0.0)


def _items(value: Json) -> Json:
    return [[key, value[key]] for key in sorted(value)] if isinstance(value, dict) else value


# -- bulk traces -----------------------------------------------------------------------------------------


def _check_bulk(path: Path, connectivity: str, comparison: FileComparison) -> None:
    """Replay a trace of arrays: blocks of E episodes x T actions x B environments."""
    with zipfile.ZipFile(path) as members:
        if sum(member.file_size for member in members.infolist()) > expansion_limit(path):
            raise DataError(f"{path}: expands to more than {expansion_limit(path)} bytes")
    with np.load(path, allow_pickle=False) as arrays:
        meta = msgspec.json.decode(bytes(arrays["meta"]))
        for number, block in enumerate(meta["blocks"]):
            prefix = f"b{number}_"
            names = [name.removeprefix(prefix) for name in arrays.files if name.startswith(prefix)]
            _replay_block(
                block, {name: arrays[prefix + name] for name in names}, meta, connectivity, comparison
            )


def _replay_block(
    block: Mapping[str, Json],
    arrays: Mapping[str, NDArray[np.generic]],
    meta: Mapping[str, Json],
    connectivity: str,
    comparison: FileComparison,
) -> None:
    episodes, actions, batch = arrays["a_ix"].shape
    simulator = Simulator()
    simulator.setNavGraphPath(connectivity)
    simulator.setRenderingEnabled(False)
    simulator.setDiscretizedViewingAngles(block["discretized"])
    simulator.setRestrictedNavigation(block["restricted"])
    simulator.setCameraResolution(block["width"], block["height"])
    simulator.setCameraVFOV(block["vfov"])
    if block.get("elevation_limits"):
        simulator.setElevationLimits(*block["elevation_limits"])
    simulator.setBatchSize(batch)
    unit = block["increment_unit"]
    poses: dict[str, list[float]] = {name: [] for name in ("ix", "h", "e", "vi", "n")}
    entries: list[tuple[float, ...]] = []
    for episode in range(episodes):
        scans = [meta["scans"][number] for number in arrays["ep_scan"][episode].tolist()]
        starts = arrays["ep_ix"][episode].tolist()
        viewpoints = [meta["ids"][scan][ix] for scan, ix in zip(scans, starts, strict=True)]
        simulator.newEpisode(scans, viewpoints, arrays["ep_h"][episode], arrays["ep_e"][episode])
        for action in range(actions + 1):
            if action:
                turns, tilts = (
                    [number * unit for number in arrays[key][episode, action - 1].tolist()]
                    for key in ("a_h", "a_e")
                )
                simulator.makeAction(arrays["a_ix"][episode, action - 1], turns, tilts)
            for state in _states(simulator):
                _, *navigable = state.navigableLocations
                pose = (
                    state.location.ix,
                    state.heading,
                    state.elevation,
                    state.viewIndex,
                    len(navigable) + 1,
                )
                for name, value in zip(poses, pose, strict=True):
                    poses[name].append(value)
                entries += [
                    (place.ix, place.rel_heading, place.rel_elevation, place.rel_distance)
                    for place in navigable
                ]
    for name, values in poses.items():
        tolerance = POSE_TOLERANCE if name in ("h", "e") else 0.0
        comparison.add_array(f"bulk states {name}", arrays[name].ravel(), values, tolerance)
    found = np.array(entries).reshape(-1, 4).T
    comparison.add_array("bulk viewpoints", arrays["nav_ix"], found[0], 0.0)
    comparison.add_array("bulk relative headings", arrays["nav_rh"], found[1], ANGLE_TOLERANCE)
    comparison.add_array("bulk relative elevations", arrays["nav_re"], found[2], ANGLE_TOLERANCE)
    distances = arrays["nav_rd"].tolist()
    comparison.add_relative("bulk distances", distances, found[3].tolist(), DISTANCE_TOLERANCE, floor=1.0)
