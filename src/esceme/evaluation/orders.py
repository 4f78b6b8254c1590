"""Evaluation in several shuffled orders of the episodes, because memory makes the order matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from esceme.errors import ConfigError, DataError
from esceme.evaluation.aggregate import means_over_seeds
from esceme.evaluation.context import EvaluationConfig
from esceme.evaluation.evaluate import ProgressCallback, evaluate
from esceme.evaluation.result import Result
from esceme.files import read_json, write_json

FORMAT = "esceme-orders-1"
ORDERS_FILE = "orders.json"


class OrderSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of one order."""

    seed: int
    """Seed that shuffled the episodes."""
    folder: str
    """Folder of the evaluation, relative to that of the summary."""
    means: dict[str, float]


class OrdersSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of an evaluation in several orders, as stored in `orders.json`."""

    format: str = FORMAT
    means: dict[str, float]
    """Mean of each metric over the orders, by name; empty if goals are withheld."""
    stds: dict[str, float]
    """Standard deviation over the orders (of a sample, n - 1), by name; empty for a single order."""
    orders: list[OrderSummary]


def evaluate_orders(
    config: EvaluationConfig,
    out: str | Path,
    *,
    num_orders: int,
    processes: int = 1,
    trace: bool = False,
    on_progress: Callable[[int], ProgressCallback] = lambda seed: lambda finished, total: None,
    note: Callable[[str], None] = lambda message: None,
) -> list[Result]:
    """Evaluate in orders that the seeds `config.seed`, `config.seed` + 1, … shuffle; return their results.

    The evaluation with seed 3 is in the folder `out/seed3`, and `out/orders.json` has an `OrdersSummary`.
    Evaluations in `out` that have finished are not repeated, also if `num_orders` was smaller then.
    `evaluate` explains `trace`. `on_progress(seed)` returns the progress callback of an order.
    """
    if num_orders < 1:
        raise ConfigError(f"orders: expected at least 1, found {num_orders}")
    if config.schedule == "lanes":  # the other schedule is shuffled by its seed anyway
        config = replace(config, order="shuffled")
    seeds = range(config.seed, config.seed + num_orders)
    results = [
        evaluate(
            replace(config, seed=seed),
            Path(out) / f"seed{seed}",
            processes=processes,
            trace=trace,
            on_progress=on_progress(seed),
            note=note,
        )
        for seed in seeds
    ]
    write_json(Path(out) / ORDERS_FILE, summarise_orders(results), indent=2)
    return results


def summarise_orders(results: Sequence[Result]) -> OrdersSummary:
    """Return the scores of results of several orders, with mean and standard deviation."""
    over_orders = means_over_seeds(results)
    return OrdersSummary(
        means={name: value.mean for name, value in over_orders.items()},
        stds={name: value.std for name, value in over_orders.items() if value.std is not None},
        orders=[
            OrderSummary(seed=result.facts["seed"], folder=f"seed{result.facts['seed']}", means=result.means)
            for result in results
        ],
    )


def read_orders(folder: str | Path) -> OrdersSummary:
    """Return the summary in a folder of `evaluate_orders`."""
    path = Path(folder) / ORDERS_FILE
    summary = read_json(path, OrdersSummary)
    if summary.format != FORMAT:
        raise DataError(f"{path}: format '{summary.format}', expected '{FORMAT}'")
    return summary
