"""Evaluating agents under named memory protocols: the same scores for every batch size."""

from esceme.evaluation.compare import Comparison, by_visit, compare
from esceme.evaluation.evaluate import evaluate
from esceme.evaluation.options import EvaluationConfig
from esceme.evaluation.protocol import PROTOCOLS, MemoryLifetime, Protocol
from esceme.evaluation.result import EpisodeResult, Result, read_result
from esceme.evaluation.shards import evaluate_in_processes

__all__ = [
    "PROTOCOLS",
    "Comparison",
    "MemoryLifetime",
    "EpisodeResult",
    "EvaluationConfig",
    "Protocol",
    "Result",
    "by_visit",
    "compare",
    "evaluate",
    "evaluate_in_processes",
    "read_result",
]
