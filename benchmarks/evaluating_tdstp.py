"""Evaluating TD-STP with scene memory at the paper's size, against the obvious lock-step loop.

As `benchmarks.evaluating` does it with HAMT: random weights and features, instructions and buildings of R2R
val_unseen, and that both sides would decide alike at every step is asserted. Led by a published agent's walks
nobody jumps back; where it walks as it likes, some do, and most stop at once or never.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.evaluating import Work, published, throughput
from benchmarks.lockstep_tdstp import LockStepPlanner
from benchmarks.measure import Result
from esceme.agents import TDSTP, TdstpConfig
from esceme.memory import CandidateEnhancing
from esceme.navigator import Navigator

EPISODES_PER_SCENE = 3


def run(data: Path) -> Iterator[Result]:
    """Throughput with its own walks, and with walks as long as a published agent's."""
    torch.set_num_threads(1)
    work = Work(data, drawn(), loop=LockStepPlanner, per_scene=EPISODES_PER_SCENE)
    yield from throughput(work, None)
    yield from throughput(work, published(data))


def drawn() -> Navigator:
    """TD-STP of the paper's size with random weights."""
    torch.manual_seed(0)
    return Navigator(TDSTP(TdstpConfig(initial_std=0.04)), CandidateEnhancing())
