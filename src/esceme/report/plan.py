"""What a scene figure shows: a graph, the floor of each of its viewpoints, and trips through it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esceme.report.floors import floors_of
from esceme.report.lanes import Leg, PathOverlay, legs_of, length, walk
from esceme.report.marks import PREDICTED, REFERENCE, Style
from esceme.world.graph import SceneGraph


class Trip(NamedTuple):
    """A route as it is walked and drawn."""

    route: PathOverlay
    rows: list[int]
    legs: list[Leg]
    style: Style

    @property
    def goal(self) -> int | None:
        """Where a reference ends; None for predictions and for goals that are withheld."""
        return self.rows[-1] if self.route.kind == "reference" and self.legs else None


class Stairs(NamedTuple):
    """A way off a floor: the rows of both ends, the place halfway, and whether it leads up."""

    here: int
    there: int
    middle: NDArray[np.float64]
    up: bool


@dataclass(frozen=True, eq=False)
class Plan:
    """All that is drawn: a graph, the floor of each of its viewpoints, and trips through it."""

    graph: SceneGraph
    floors: NDArray[np.int64]
    trips: list[Trip]
    remembered: frozenset[int]
    """Rows that a memory held when the trips began."""

    @classmethod
    def of(cls, graph: SceneGraph, routes: Sequence[PathOverlay], remembered: Collection[str] = ()) -> Plan:
        """Walk all routes, references first, and give each its style."""
        routes = sorted(routes, key=lambda route: route.kind != "reference")
        walks = [walk(graph, route) for route in routes]
        numbers = np.cumsum([route.kind == "predicted" for route in routes]) - 1
        styles = [
            REFERENCE if route.kind == "reference" else PREDICTED[n % len(PREDICTED)]
            for route, n in zip(routes, numbers.tolist(), strict=True)
        ]
        trips = [Trip(*parts) for parts in zip(routes, walks, legs_of(walks), styles, strict=True)]
        return cls(graph, floors_of(graph), trips, frozenset(map(graph.index, remembered)))

    def stairs(self, floor: int) -> Iterator[Stairs]:
        """Every way off a floor."""
        for edge in self.graph.edges().tolist():
            for here, there in (edge, edge[::-1]):
                if self.floors[here] == floor != self.floors[there]:
                    middle = self.graph.positions[[here, there], :2].mean(axis=0)
                    yield Stairs(here, there, middle, bool(self.floors[there] > floor))

    @property
    def goal(self) -> int | None:
        """Where the first reference with a known goal ends."""
        return next((trip.goal for trip in self.trips if trip.goal is not None), None)

    def facts(self, trip: Trip) -> str:
        """Length of a trip and, for a prediction, how far from the goal it ends."""
        count = len(trip.legs)
        text = f"{length(self.graph, trip.rows):.1f} m, {count} step{'' if count == 1 else 's'}"
        if trip.route.kind == "reference" or self.goal is None:
            return text
        left = float(self.graph.distances[trip.rows[-1], self.goal])
        return f"{text}, stops {f'{left:.1f} m from' if left else 'at'} the goal"

    def describe(self) -> str:
        """The figure in words, for those who cannot see it."""
        count = int(self.floors.max()) + 1
        size = f"{len(self.graph)} viewpoints and {self.graph.num_edges} edges"
        parts = [
            f"Navigation graph of scene {self.graph.scene_id}: {size} on {count} floor{'s'[: count - 1]}."
        ]
        if self.remembered:
            parts.append(f"Of its viewpoints {len(self.remembered)} were remembered before.")
        return " ".join(parts + [f"{trip.route.label}: {self.facts(trip)}." for trip in self.trips])
