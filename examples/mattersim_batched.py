"""A client of the simulator's batched interface, as VLN projects write them: an environment and an agent.

`esceme mattersim run --data DIR examples/mattersim_batched.py DIR` runs it on a data folder, for example one
that `esceme synth` wrote. The environment gathers the candidates of every viewpoint by turning through all 36
views; the agent follows shortest paths to the goals of R2R episodes.
"""

import json
import math
import sys
from pathlib import Path

import MatterSim

BATCH = 4


class BatchEnv:
    """Environments that run side by side, one episode each."""

    def __init__(self, batch_size):
        self.sim = MatterSim.Simulator()
        self.sim.setRenderingEnabled(False)
        self.sim.setDiscretizedViewingAngles(True)
        self.sim.setCameraResolution(640, 480)
        self.sim.setCameraVFOV(math.radians(60))
        self.sim.setBatchSize(batch_size)
        self.sim.initialize()

    def reset(self, items):
        """Start episodes at the first viewpoints of their paths."""
        self.sim.newEpisode(
            [item["scan"] for item in items],
            [item["path"][0] for item in items],
            [item["heading"] for item in items],
            [0.0] * len(items),
        )

    def candidates(self):
        """Turn once around, at three elevations; return viewpoint id -> (view, distance) per environment."""
        count = len(self.sim.getState())
        found = [{} for _ in range(count)]
        self.sim.makeAction([0] * count, [0] * count, [-1] * count)
        self.sim.makeAction([0] * count, [0] * count, [-1] * count)
        for _ in range(3):
            for _ in range(12):
                for views, state in zip(found, self.sim.getState(), strict=True):
                    for place in state.navigableLocations[1:]:
                        offset = math.hypot(place.rel_heading, place.rel_elevation)
                        if place.viewpointId not in views or offset < views[place.viewpointId][2]:
                            views[place.viewpointId] = (state.viewIndex, place.rel_distance, offset)
                self.sim.makeAction([0] * count, [1] * count, [0] * count)
            self.sim.makeAction([0] * count, [0] * count, [1] * count)
        return found

    def step(self, targets, found):
        """Turn towards targets and move there; None stays."""
        count = len(targets)
        while True:
            states, turns, tilts = self.sim.getState(), [0] * count, [0] * count
            for slot, (state, target) in enumerate(zip(states, targets, strict=True)):
                if target is not None:
                    view = found[slot][target][0]
                    steps = (view - state.viewIndex) % 12
                    turns[slot] = 0 if steps == 0 else 1 if steps <= 6 else -1
                    tilts[slot] = view // 12 - state.viewIndex // 12
            if not any(turns) and not any(tilts):
                break
            self.sim.makeAction([0] * count, turns, tilts)
        indices = [
            [place.viewpointId for place in state.navigableLocations].index(target) if target else 0
            for state, target in zip(states, targets, strict=True)
        ]
        self.sim.makeAction(indices, [0] * count, [0] * count)


def view_angles(sim):
    """Return heading and elevation of the 36 views, read at a well-known viewpoint as many projects do."""
    count = len(sim.getState())
    scan, viewpoint = "ZMojNkEp431", "2f4d90acd4024c269fb0efe49a8ac540"
    sim.newEpisode([scan] * count, [viewpoint] * count, [0] * count, [math.radians(-30)] * count)
    angles = []
    for view in range(36):
        state = sim.getState()[0]
        assert state.viewIndex == view
        angles.append((state.heading, state.elevation))
        sim.makeAction([0] * count, [1] * count, [int(view % 12 == 11)] * count)
    return angles


def main(data):
    """Follow the paths of the first episodes; print how many ended at their goals."""
    items = json.loads((data / "R2R" / "R2R_val_unseen.json").read_text())[:BATCH]
    env = BatchEnv(len(items))
    assert len(set(view_angles(env.sim))) == 36
    env.reset(items)
    for step in range(1, max(len(item["path"]) for item in items)):
        targets = [item["path"][step] if step < len(item["path"]) else None for item in items]
        env.step(targets, env.candidates())
    reached = [
        state.location.viewpointId == item["path"][-1]
        for state, item in zip(env.sim.getState(), items, strict=True)
    ]
    print(f"{sum(reached)} of {len(items)} episodes reached their goals")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
