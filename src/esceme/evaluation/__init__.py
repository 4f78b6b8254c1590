"""Evaluation of agents under named memory protocols. The scores do not depend on the batch size."""

from esceme.evaluation.compare import Comparison, by_visit, compare
from esceme.evaluation.context import EvaluationConfig
from esceme.evaluation.evaluate import evaluate
from esceme.evaluation.protocol import PROTOCOLS, MemoryLifetime, Protocol
from esceme.evaluation.result import EpisodeResult, Result, read_result

__all__ = [
    "PROTOCOLS",
    "Comparison",
    "EpisodeResult",
    "EvaluationConfig",
    "MemoryLifetime",
    "Protocol",
    "Result",
    "by_visit",
    "compare",
    "evaluate",
    "read_result",
]
