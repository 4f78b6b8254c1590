"""Probes of the `MatterSim` interface: identity of objects, aliases, types and accepted arguments."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from esceme.verify.comparison import Json

LIMITS = (
    *((-0.5, 0.5), (0.0, 0.5), (-0.5, 0.0), (0.1, 0.5), (-1.6, 0.5), (-0.5, 1.6), (-math.pi / 2, 0.5)),
    *((-1.5707963267948963, 1.5707963267948963), (0.5, -0.5), (-1e-300, 1e-300)),
)
"""Lower and upper elevation limits; the original accepts three of them."""


def probe_interface(module: ModuleType, batched: bool, connectivity: str, scan: str, viewpoint: str) -> Json:
    """Return properties of a simulator of `module` that recorded sessions do not show, by name.

    `batched` selects the generation of the interface. The episodes start at `viewpoint` of `scan`, a scan of
    the folder `connectivity`.
    """
    found, held = _probe_simulator(module, batched, connectivity, scan, viewpoint)
    return found | {"state_survives_simulator": held.location.viewpointId == viewpoint}


def _probe_simulator(
    module: ModuleType, batched: bool, connectivity: str, scan: str, viewpoint: str
) -> tuple[dict[str, Json], Any]:
    """Return the properties of the simulator and its last state (a `SimState`); see `probe_interface`."""
    simulator = module.Simulator()

    def repeat(value: object) -> object:
        return [value] if batched else value

    def state() -> Any:
        return simulator.getState()[0] if batched else simulator.getState()

    found: dict[str, Json] = {
        "setters_return": _results(
            simulator,
            ("setNavGraphPath", connectivity),
            ("setRenderingEnabled", False),
            ("setDiscretizedViewingAngles", True),
            ("setCameraResolution", 64, 48),
            ("setCameraVFOV", math.radians(60)),
            ("setElevationLimits", -0.5, 0.5),
            ("setDatasetPath", "/nowhere"),
            ("setSeed", 3),
        )
    }
    if batched:
        found["setters_return_v2"] = _results(
            simulator,
            ("setRestrictedNavigation", True),
            ("setPreloadingEnabled", False),
            ("setDepthEnabled", True),
            ("setBatchSize", 1),
            ("setCacheSize", 10),
        )
    found["init_returns"] = repr(simulator.initialize() if batched else simulator.init())
    returned = simulator.newEpisode(repeat(scan), repeat(viewpoint), repeat(0), repeat(0))
    found["newEpisode_returns"] = repr(returned)
    held = state()
    if batched:
        found["getState_type"] = type(simulator.getState()).__name__
        found["getState_new_list_each_call"] = simulator.getState() is not simulator.getState()
    found["state_identity_kept"] = state() is held
    while len(state().navigableLocations) < 2 and state().step < 12:
        simulator.makeAction(repeat(0), repeat(1), repeat(0))
    held = state()
    found |= _probe_state(held, batched)
    found |= _probe_move(simulator, held, repeat, state, viewpoint)
    simulator.newEpisode(repeat(scan), repeat(viewpoint), repeat(1.0), repeat(0.4))
    found["held_state_follows_newEpisode"] = [held.step == 0, held.location.viewpointId == viewpoint]
    found |= _probe_protection(module, simulator, held)
    if batched:
        found |= _probe_images(simulator, held)
    else:
        found["point"] = [type(held.location.point).__name__, held.location.point is held.location.point]
    found["accepts"] = _accepted(simulator, batched, connectivity, scan, viewpoint)
    found["limits"] = [[low, high, simulator.setElevationLimits(low, high)] for low, high in LIMITS]
    if batched:
        timing = simulator.timingInfo()
        words = [line.split(":")[0].split(" ")[0].strip() for line in timing.split("\n")]
        found["timingInfo"] = [type(timing).__name__, words]
        found["resetTimers"] = repr(simulator.resetTimers())
    found["class_names"] = [type(held).__name__, type(held.location).__name__]
    found["close_returns"] = [repr(simulator.close()), repr(simulator.close())]
    if batched:
        found["state_after_close"] = [simulator.getState()[0] is held, held.location is not None]
        found["makeAction_after_close"] = _outcome(simulator.makeAction, [0], [0], [0])
    return found, held


def _results(simulator: Any, *calls: tuple[Any, ...]) -> list[str]:
    return [repr(getattr(simulator, name)(*arguments)) for name, *arguments in calls]


def _outcome(call: Callable[..., object], *arguments: Any, **keywords: Any) -> str:
    """Return 'ok', or the name of the error that a call raises."""
    try:
        call(*arguments, **keywords)
    except Exception as error:  # any error is a result
        return type(error).__name__
    return "ok"


def _probe_state(state: Any, batched: bool) -> dict[str, Json]:
    first, second = state.navigableLocations, state.navigableLocations
    coordinates = ("x", "y", "z") if batched else ("point",)
    location_keys = ("viewpointId", "ix", *coordinates, "rel_heading", "rel_elevation", "rel_distance")
    state_keys = ("scanId", "step", "heading", "elevation", "viewIndex", "location")
    return {
        "nav_type": type(first).__name__,
        "nav_list_same_object": first is second,
        "nav_elements_same_object": first[1] is second[1],
        "nav0_is_location": first[0] is state.location,
        "nav0_id_is_location_id": first[0].viewpointId == state.location.viewpointId,
        "types": {key: type(getattr(state, key)).__name__ for key in state_keys},
        "loc_types": {key: type(getattr(state.location, key)).__name__ for key in location_keys},
    }


def _probe_move(
    simulator: Any, held_state: Any, repeat: Callable[[object], object], state: Callable[[], Any], start: str
) -> dict[str, Json]:
    """Move to the first navigable location, and return how objects that were read before have changed."""
    target, origin, step = held_state.navigableLocations[1], held_state.location, held_state.step
    before = target.rel_distance > 0
    returned = simulator.makeAction(repeat(1), repeat(0), repeat(0))
    relative = (target.rel_heading, target.rel_elevation, target.rel_distance)
    return {
        "target_rel_nonzero_before": before,
        "makeAction_returns": repr(returned),
        "held_state_is_live": held_state.step == step + 1,
        "held_state_location_moved": held_state.location.viewpointId == target.viewpointId,
        "held_target_rel_zeroed": [value == 0 for value in relative],
        "new_location_is_held_target": state().location is target,
        "old_location_kept_values": origin.viewpointId == start,
    }


def _probe_protection(module: ModuleType, simulator: Any, state: Any) -> dict[str, Json]:
    return {
        "readonly": [
            _outcome(setattr, state, "heading", 1.0),
            _outcome(setattr, state.location, "ix", 1),
            _outcome(setattr, simulator, "foo", 1),
        ],
        "construct": [_outcome(module.SimState), _outcome(module.ViewPoint)],
        "copy": [
            _outcome(copy.copy, state),
            _outcome(copy.deepcopy, state),
            _outcome(pickle.dumps, state),
            _outcome(pickle.dumps, simulator),
        ],
    }


def _probe_images(simulator: Any, state: Any) -> dict[str, Json]:
    """Return properties of the image buffers without pictures, such as whether a written value is kept."""
    found: dict[str, Json] = {}
    for key in ("rgb", "depth"):
        image = np.array(getattr(state, key))
        kind = type(getattr(state, key)).__name__
        found[key] = [list(image.shape), str(image.dtype), int(image.sum()), kind]
    view = memoryview(state.rgb)
    found["rgb_memoryview"] = [view.format, view.readonly, view.ndim]
    np.asarray(state.rgb)[0, 0, 0] = 7
    found["rgb_writes_are_shared"] = int(np.array(state.rgb)[0, 0, 0])
    simulator.setCameraResolution(32, 24)
    simulator.makeAction([0], [0], [0])
    found["rgb_after_late_resize"] = [list(np.array(state.rgb).shape), int(np.array(state.rgb)[0, 0, 0])]
    simulator.setCameraResolution(64, 48)
    return found


def _accepted(simulator: Any, batched: bool, connectivity: str, scan: str, viewpoint: str) -> dict[str, str]:
    """Return the outcome of calls with unusual arguments, in the order of the stored probes."""
    act, begin = simulator.makeAction, simulator.newEpisode
    calls: dict[str, tuple[Callable[..., object], Sequence[Any]]]
    if batched:
        calls = {
            "tuple": (act, ((0,), (0.0,), (0.0,))),
            "ndarray": (act, (np.array([0]), np.array([0.0]), np.array([0.0]))),
            "ndarray_uint8_index_float32": (act, (np.array([0], np.uint8), np.array([0], np.float32), [0])),
            "list_np_int64": (act, ([np.int64(0)], [np.float32(0)], [np.float64(0)])),
            "bool_index": (act, ([False], [0], [0])),
            "float_index": (act, ([0.0], [0], [0])),
            "np_float_index": (act, ([np.float64(0)], [0], [0])),
            "ndarray_float_index": (act, (np.array([0.0]), [0], [0])),
            "negative_index": (act, ([-1], [0], [0])),
            "index_2**32": (act, ([2**32], [0], [0])),
            "str_heading": (act, ([0], ["1"], [0])),
            "none_heading": (act, ([0], [None], [0])),
            "scalars": (act, (0, 0, 0)),
            "generator": (act, (iter([0]), [0], [0])),
            "set": (act, ({0}, [0], [0])),
            "scalar_newEpisode": (begin, (scan, viewpoint, 0, 0)),
            "np_str_list": (begin, ([np.str_(scan)], np.array([viewpoint]), [0], [0])),
            "bytes_scan": (begin, ([scan.encode()], [viewpoint], [0], [0])),
            "three_args_newEpisode": (begin, ([scan], [viewpoint], [0])),
            "batch_negative": (simulator.setBatchSize, (-1,)),
            "batch_float": (simulator.setBatchSize, (2.0,)),
            "cache_negative": (simulator.setCacheSize, (-1,)),
        }
        keywords: dict[str, Any] = {"index": [0], "heading": [0], "elevation": [0]}
    else:
        calls = {
            "list_args": (act, ([0], [0], [0])),
            "np_int64": (act, (np.int64(0), np.float32(0), np.float64(0))),
            "bool_index": (act, (False, 0, 0)),
            "float_index": (act, (0.0, 0, 0)),
            "negative_index": (act, (-1, 0, 0)),
            "one_arg_newEpisode": (begin, (scan,)),
            "three_args_newEpisode": (begin, (scan, viewpoint, 0)),
        }
        keywords = {"index": 0, "heading": 0, "elevation": 0}
    calls |= {
        "resolution_float": (simulator.setCameraResolution, (64.0, 48.0)),
        "resolution_np_int": (simulator.setCameraResolution, (np.int64(64), np.int32(48))),
        "vfov_int": (simulator.setCameraVFOV, (1,)),
        "vfov_str": (simulator.setCameraVFOV, ("1",)),
        "seed_float": (simulator.setSeed, (1.5,)),
        "flag_int": (simulator.setRenderingEnabled, (0,)),
        "flag_none": (simulator.setRenderingEnabled, (None,)),
        "flag_str": (simulator.setRenderingEnabled, ("no",)),
        "flag_np_bool": (simulator.setRenderingEnabled, (np.bool_(False),)),
        "path_bytes": (simulator.setNavGraphPath, (connectivity.encode(),)),
        "path_pathlib": (simulator.setNavGraphPath, (Path(connectivity),)),
    }
    outcomes = {name: _outcome(call, *arguments) for name, (call, arguments) in calls.items()}
    return outcomes | {"keywords": _outcome(act, **keywords)}
