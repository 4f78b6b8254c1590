"""Evaluating DUET with scene memory at the published size, against a straightforward lock-step loop.

The setting is that of `benchmarks.hamt_evaluation`: random weights and features, instructions and scenes of
R2R val_unseen, and an assertion that both loops choose the same action at every step. On its own trajectories
DUET jumps along its map; the paths of a published agent have a realistic length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.hamt_evaluation import EvaluationWorkload, published_paths, throughput
from benchmarks.lockstep_duet import LockStepExplorer
from benchmarks.measure import Measurement, Result
from esceme.agents import DUET, DuetConfig
from esceme.memory import CandidateEnhancing
from esceme.navigator import Navigator

EPISODES_PER_SCENE = 3


def run(data: Path) -> Iterator[Result]:
    """Measure throughput along the paths of a published agent, and count the operations of both loops."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    navigator = Navigator(DUET(DuetConfig(initial_std=0.04)), CandidateEnhancing())
    work = EvaluationWorkload(data, navigator, loop=LockStepExplorer, per_scene=EPISODES_PER_SCENE)
    paths = published_paths(data)
    yield from throughput(work, paths, packed=True)
    theirs = count_operations(lambda: work.run_lock_step(paths))
    ours = count_operations(lambda: work.run_lanes(paths))
    text = f"{theirs:,.0f} against {ours:,.0f} Gflop: {theirs / ours:.2f}x"
    yield Measurement("linear layers of the same", text, "the ratio if all else took no time")


class OperationCounter(TorchDispatchMode):
    """Counts the floating-point operations of linear layers in inference."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func` and add its operations."""
        if func is torch.ops.aten.linear.default:
            self.total += 2 * args[0].numel() * len(args[1])
        return func(*args, **(kwargs or {}))


def count_operations(run_loop: Callable[[], object]) -> float:
    """Return 10^9 operations of a loop. No layers are fused meanwhile, so that all are counted."""
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with OperationCounter() as counter:
            run_loop()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    return counter.total / 1e9
