"""Evaluation of agents under named memory protocols. The scores do not depend on the batch size."""

from esceme.evaluation.aggregate import MeanOverSeeds, average_results, first_told, means_over_seeds
from esceme.evaluation.compare import Comparison, by_visit, compare
from esceme.evaluation.context import EvaluationConfig
from esceme.evaluation.evaluate import evaluate
from esceme.evaluation.orders import OrdersSummary, evaluate_orders, read_orders
from esceme.evaluation.protocol import PROTOCOLS, MemoryLifetime, Protocol
from esceme.evaluation.result import EpisodeResult, Result, read_result
from esceme.evaluation.trace import EpisodeTrace, Trace, TraceStep, read_trace

__all__ = [
    "PROTOCOLS",
    "Comparison",
    "EpisodeResult",
    "EpisodeTrace",
    "EvaluationConfig",
    "MeanOverSeeds",
    "MemoryLifetime",
    "OrdersSummary",
    "Protocol",
    "Result",
    "Trace",
    "TraceStep",
    "average_results",
    "by_visit",
    "compare",
    "evaluate",
    "evaluate_orders",
    "first_told",
    "means_over_seeds",
    "read_orders",
    "read_result",
    "read_trace",
]
