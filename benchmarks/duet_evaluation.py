"""Evaluating DUET with scene memory at the published size, against a straightforward lock-step loop.

The setting is that of `benchmarks.hamt_evaluation`: random weights and features, instructions and scenes of
R2R val_unseen, and an assertion that both loops choose the same action at every step. On its own trajectories
DUET jumps along its map; the paths of a published agent have a realistic length.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.hamt_evaluation import EvaluationWorkload, published_paths, throughput
from benchmarks.lockstep_duet import LockStepExplorer
from benchmarks.measure import Result
from esceme.agents import DUET, DuetConfig
from esceme.memory import CandidateEnhancing
from esceme.navigator import Navigator

EPISODES_PER_SCENE = 3


def run(data: Path) -> Iterator[Result]:
    """Measure throughput along the paths of a published agent."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    navigator = Navigator(DUET(DuetConfig(initial_std=0.04)), CandidateEnhancing())
    work = EvaluationWorkload(data, navigator, loop=LockStepExplorer, per_scene=EPISODES_PER_SCENE)
    yield from throughput(work, published_paths(data))
