"""Evaluating TD-STP with scene memory at the paper's size, against a straightforward lock-step loop.

The setting is that of `benchmarks.hamt_evaluation`: random weights and features, instructions and scenes of
R2R val_unseen, and an assertion that both loops choose the same action at every step. Along the paths of a
published agent, TD-STP never jumps back to a visited viewpoint. On its own trajectories it sometimes does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.hamt_evaluation import EvaluationWorkload, published_paths, throughput
from benchmarks.lockstep_tdstp import LockStepPlanner
from benchmarks.measure import Result
from esceme.agents import TDSTP, TdstpConfig
from esceme.memory import CandidateEnhancing
from esceme.navigator import Navigator

EPISODES_PER_SCENE = 3


def run(data: Path) -> Iterator[Result]:
    """Measure throughput along trajectories of a published agent, and along the agent's own."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    navigator = Navigator(TDSTP(TdstpConfig(initial_std=0.04)), CandidateEnhancing())
    work = EvaluationWorkload(data, navigator, loop=LockStepPlanner, per_scene=EPISODES_PER_SCENE)
    yield from throughput(work, published_paths(data))
    yield from throughput(work, None)
