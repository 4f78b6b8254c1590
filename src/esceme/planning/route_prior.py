"""`RoutePrior`: how probable a route is before an instruction is read, learned from training paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from esceme.settings import LARGEST, check_settings

TURN_COLUMNS = ("straight", "turn_45", "turn_90", "turn_135", "turn_180")
"""Columns of a step: whether its turn, to either side, is nearest to this many degrees."""
STEP_COLUMNS = (*TURN_COLUMNS, "metres", "detour")
"""Columns of a step. `detour` is the length in metres that does not lead away from the start of the route."""
Weight = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]


@dataclass(frozen=True)
class RoutePrior:
    """Log-linear probability of each step of a route, given the step before it."""

    steps: Annotated[tuple[Weight, ...], Meta(min_length=len(STEP_COLUMNS), max_length=len(STEP_COLUMNS))]
    """Weights of `STEP_COLUMNS`."""
    revisit: Annotated[float, Meta(ge=-LARGEST, le=0)] | None = None
    """Added for every step to a viewpoint of the same route; None if routes visit no viewpoint twice."""

    def __post_init__(self) -> None:
        check_settings(self)


def step_columns(
    turns: NDArray[np.floating], metres: NDArray[np.floating], away: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Return the columns `STEP_COLUMNS` of S steps, (S, 7).

    `turns` are in radians. `away` (S,) is the change of the shortest distance from the start in metres.
    """
    size = len(TURN_COLUMNS) - 1
    sectors = np.round(turns / (np.pi / size)).astype(np.int64) % (2 * size)
    folded = np.minimum(sectors, 2 * size - sectors)
    return np.concatenate([np.eye(size + 1)[folded], metres[:, None], (metres - away)[:, None]], 1)
