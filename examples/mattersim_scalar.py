"""A client of the simulator's older, scalar interface: one environment, snapshots, `location.point`.

`esceme mattersim run --data DIR examples/mattersim_scalar.py DIR` runs it on a data folder. The agent turns
right until the next viewpoint of its path is in view, moves there, and adds up the length of its way.
"""

import json
import math
import sys
from pathlib import Path

import MatterSim


def make_sim():
    """Return a simulator with the camera of most VLN projects."""
    sim = MatterSim.Simulator()
    sim.setRenderingEnabled(False)
    sim.setDiscretizedViewingAngles(True)
    sim.setCameraResolution(640, 480)
    sim.setCameraVFOV(math.radians(60))
    sim.init()
    return sim


def follow(sim, item):
    """Walk along a path; return the last state and the length of the way in metres."""
    sim.newEpisode(item["scan"], item["path"][0], item["heading"], 0)
    length = 0.0
    for target in item["path"][1:]:
        before = sim.getState()
        for _ in range(12):
            names = [place.viewpointId for place in sim.getState().navigableLocations]
            if target in names:
                break
            sim.makeAction(0, 1, 0)
        sim.makeAction(names.index(target), 0, 0)
        length += math.dist(before.location.point, sim.getState().location.point)
    return sim.getState(), length


def main(data):
    """Follow the paths of ten episodes; print how many ended at their goals, and the mean length."""
    items = json.loads((data / "R2R" / "R2R_val_unseen.json").read_text())[:10]
    sim = make_sim()
    ends = [follow(sim, item) for item in items]
    reached = [
        state.location.viewpointId == item["path"][-1] for (state, _), item in zip(ends, items, strict=True)
    ]
    mean = sum(length for _, length in ends) / len(ends)
    error = max(abs(length - item["distance"]) for (_, length), item in zip(ends, items, strict=True))
    print(f"{sum(reached)} of {len(items)} episodes reached their goals, {mean:.1f} m on average")
    assert error < 0.01, "shortest paths have the length that the annotations state"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
