"""`Belief`: the probability of every candidate route, a softmax of weighted scores and lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from esceme.errors import ConfigError
from esceme.planning.routes import RouteSet
from esceme.tasks.episode import SUCCESS_WITHIN

SHAPE = ("revisits", "has_revisit", "returns", "start_to_end", "end_near_start", "metres_per_edge")
"""Names of the columns of routes that are not shortest: how often they visit a viewpoint again and turn back,
and the distance of their ends."""
SHAPES: dict[str, tuple[str, ...]] = {"shortest": (), "two-leg": SHAPE, "k-best": (*SHAPE, "prior")}
"""Columns of the shape of routes, by name of the route generator."""
PENALTY = 1e-3
"""Weight of the squared weights of standardised columns in the fit."""


@dataclass(frozen=True)
class Belief:
    """Weights of the columns of `route_columns`, by name."""

    columns: tuple[str, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.columns) != len(self.weights) or not np.isfinite(self.weights).all():
            raise ConfigError(
                f"expected {len(self.columns)} finite weights, found {self.weights}; fit the planner again"
            )

    def probabilities(self, table: NDArray[np.float64], columns: Sequence[str]) -> NDArray[np.float64]:
        """Return the probability of each route, (R, F) -> (R,). `columns` name the columns of `table`."""
        if missing := [name for name in self.columns if name not in columns]:
            raise ConfigError(f"the belief reads {', '.join(missing)}, which no scorer gives")
        order = [list(columns).index(name) for name in self.columns]
        found: NDArray[np.float64] = softmax(table[:, order] @ np.array(self.weights))
        return found


def length_columns(max_moves: int, shape: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of the columns that read no instruction: numbers of edges, metres, and `shape`."""
    edges = [f"{end}edges_{depth}" for end in ("", "frontier_") for depth in range(max_moves + 1)]
    return (*edges, "metres", "frontier_metres", *shape)


def route_columns(
    scorer_columns: Sequence[Sequence[str]], max_moves: int, shape: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the names of the columns of `route_table`, given the columns of each scorer."""
    scores = tuple(name for columns in scorer_columns for name in columns)
    lengths = length_columns(max_moves, shape)
    return (*scores, *(f"frontier_{columns[0]}" for columns in scorer_columns), *lengths)


def route_table(
    routes: RouteSet, scores: Sequence[NDArray[np.float64]], max_moves: int, shape: Sequence[str] = ()
) -> NDArray[np.float64]:
    """Return all columns of the belief for R routes, (R, F), given the scores of each scorer.

    After the scores follow the first score of each scorer for routes to the frontier only, and the lengths.
    """
    frontier = ~routes.is_visited
    depth = np.minimum(routes.num_moves, max_moves) + np.where(frontier, max_moves + 1, 0)
    lengths = np.eye(2 * (max_moves + 1))[depth]
    metres = np.stack([routes.metres * ~frontier, routes.metres * frontier], 1)
    first = [score[:, :1] * frontier[:, None] for score in scores]
    shapes = [_shape(routes)] if shape else []
    if "prior" in shape:
        assert routes.log_prior is not None
        shapes.append(routes.log_prior[:, None])
    return np.concatenate([*scores, *first, lengths, metres, *shapes], 1)


def _shape(routes: RouteSet) -> NDArray[np.float64]:
    """Return the columns `SHAPE` of R routes, (R, 6)."""
    places = routes.places
    ordered = np.sort(places, 1)
    revisits = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).sum(1)
    returns = ((places[:, 2:] == places[:, :-2]) & (places[:, 2:] >= 0)).sum(1)
    apart = routes.area.distances[places[0, 0], routes.ends]
    per_edge = routes.metres / np.maximum(routes.num_moves, 1)
    return np.stack([revisits, revisits > 0, returns, apart, apart < SUCCESS_WITHIN, per_edge], 1)


def fit_belief(
    samples: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]],
    columns: Sequence[str],
    use: Sequence[str],
) -> tuple[Belief, float]:
    """Fit the weights of the columns `use` by maximum likelihood; return the belief and the mean loss.

    Each sample is a table of `columns` (R, F) and the shares of the right routes (R,), which sum to 1. The
    loss is the mean cross-entropy, with a small penalty on the weights of standardised columns.
    """
    from scipy.optimize import minimize  # takes a third of a second

    order = [list(columns).index(name) for name in use]
    tables = [table[:, order] for table, _ in samples]
    sizes = np.array([len(table) for table in tables])
    values = np.concatenate(tables)
    scale = values.std(0) + 1e-6
    values = (values - values.mean(0)) / scale
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    right = np.concatenate([shares for _, shares in samples])
    segment = np.repeat(np.arange(len(samples)), sizes)

    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        scores = values @ weights
        top = np.maximum.reduceat(scores, starts)
        exponents = np.exp(scores - top[segment])
        totals = np.add.reduceat(exponents, starts)
        value = (np.log(totals) + top).mean() - right @ scores / len(samples) + PENALTY * (weights**2).sum()
        expected = values.T @ (exponents / totals[segment])
        gradient = (expected - values.T @ right) / len(samples) + 2 * PENALTY * weights
        return float(value), gradient

    result: Any = minimize(loss, np.zeros(len(use)), jac=True, method="L-BFGS-B", options={"maxiter": 200})
    weights = tuple(float(weight) for weight in result.x / scale)
    return Belief(tuple(use), weights), float(result.fun)
