"""The rules of the Matterport3D simulator in plain Python: one environment, one neighbour at a time."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np


class PlainLocation(NamedTuple):
    """Viewpoint relative to the camera."""

    viewpointId: str
    ix: int
    x: float
    y: float
    z: float
    rel_heading: float
    rel_elevation: float
    rel_distance: float


class PlainState(NamedTuple):
    """State of one environment."""

    scanId: str
    step: int
    viewIndex: int
    heading: float
    elevation: float
    location: PlainLocation
    navigableLocations: list[PlainLocation]


class PlainScan:
    """Records of one scan."""

    def __init__(self, file: Path) -> None:
        records = json.loads(file.read_text())
        self.ids = [record["image_id"] for record in records]
        self.positions = [
            [float(np.float32(record["pose"][entry])) for entry in (3, 7, 11)] for record in records
        ]
        self.neighbours = [
            [
                there
                for there, other in enumerate(records)
                if there != here and record["unobstructed"][there] and other["included"]
            ]
            for here, record in enumerate(records)
        ]


class PlainSimulator:
    """Environments, each simulated by itself."""

    def __init__(
        self,
        connectivity: Path,
        *,
        batch_size: int = 1,
        discretized: bool = True,
        restricted: bool = True,
        camera: tuple[int, int, float] = (640, 480, math.radians(60)),
        limits: tuple[float, float] = (-0.94, 0.94),
    ) -> None:
        self.connectivity, self.batch_size = connectivity, batch_size
        self.discretized, self.restricted, self.limits = discretized, restricted, limits
        self.camera = camera
        self.scans: dict[str, PlainScan] = {}
        self.states: list[PlainState] = []

    def scan(self, name: str) -> PlainScan:
        """Scan of a name, read at its first use."""
        if name not in self.scans:
            self.scans[name] = PlainScan(self.connectivity / f"{name}_connectivity.json")
        return self.scans[name]

    def newEpisode(
        self, scans: list[str], viewpoints: list[str], headings: list[float], elevations: list[float]
    ) -> None:
        """Start episodes."""
        self.states = [
            self.observe(name, self.scan(name).ids.index(viewpoint), heading, elevation, 0, 0)
            for name, viewpoint, heading, elevation in zip(
                scans, viewpoints, headings, elevations, strict=True
            )
        ]

    def makeAction(self, indices: list[int], headings: list[float], elevations: list[float]) -> None:
        """Move and turn."""
        states = []
        for state, index, turn, tilt in zip(self.states, indices, headings, elevations, strict=True):
            if self.discretized:
                turn, tilt = (math.copysign(math.pi / 6, change) if change else 0 for change in (turn, tilt))
            place = state.navigableLocations[index]
            heading, elevation = state.heading + turn, state.elevation + tilt
            states.append(
                self.observe(state.scanId, place.ix, heading, elevation, state.step + 1, state.viewIndex)
            )
        self.states = states

    def getState(self) -> list[PlainState]:
        """States of all environments."""
        return self.states

    def observe(
        self, name: str, ix: int, heading: float, elevation: float, step: int, view: int
    ) -> PlainState:
        """State at a viewpoint; `view` is the view index until angles are discretised."""
        heading = math.fmod(heading, 2 * math.pi)
        while heading < 0:
            heading += 2 * math.pi
        if self.discretized:
            turns = heading / (2 * math.pi / 12)
            column = int(turns) + (turns - int(turns) >= 0.5)
            column = 0 if column == 12 else column
            heading = column * (2 * math.pi / 12)
            row = 0 if elevation < -math.pi / 12 else 2 if elevation > math.pi / 12 else 1
            elevation = (row - 1) * math.pi / 6
            view = 12 * row + column
        else:
            elevation = max(min(elevation, self.limits[1]), self.limits[0])
        scan = self.scan(name)
        stay = PlainLocation(scan.ids[ix], ix, *scan.positions[ix], 0.0, 0.0, 0.0)
        seen = [
            location
            for there in scan.neighbours[ix]
            if (location := self.look_at(scan, ix, there, heading, elevation)) is not None
        ]
        seen.sort(key=lambda location: math.hypot(location.rel_heading, location.rel_elevation))
        return PlainState(name, step, view, heading, elevation, stay, [stay, *seen])

    def look_at(
        self, scan: PlainScan, here: int, there: int, heading: float, elevation: float
    ) -> PlainLocation | None:
        """Neighbour as the camera sees it; None if it is not in view."""
        x, y, z = (b - a for a, b in zip(scan.positions[here], scan.positions[there], strict=True))
        width, height, vfov = self.camera
        ahead_x, ahead_y = math.sin(heading), math.cos(heading)
        level = math.hypot(x, y)
        cosine = (x * ahead_x + y * ahead_y) / level
        if self.restricted and cosine < math.cos(vfov * width / height / 2):
            return None
        rel_heading = math.atan2(x * ahead_y - y * ahead_x, x * ahead_x + y * ahead_y)
        rel_elevation = math.atan2(z, level) - elevation
        position = scan.positions[there]
        return PlainLocation(
            scan.ids[there], there, *position, rel_heading, rel_elevation, math.hypot(level, z)
        )
