"""Engines and precisions of evaluation at the paper's size, on trajectories of a published agent's length.

The networks have random weights, whose scores lie close together. The margin of `guarded` is therefore set so
that as many decisions are computed again as with trained agents (docs/performance.md); that its decisions
are those of fp32 is measured there.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.hamt_evaluation import LABELS, TOLERANCE, Decisions, EvaluationWorkload, published_paths
from benchmarks.measure import Amount, Measurement, Ratio, Result
from esceme.agents import DUET, HAMT, TDSTP, DuetConfig, HamtConfig, TdstpConfig
from esceme.agents.base import Agent
from esceme.engine import apply_engine
from esceme.evaluation.guarded import GuardedNavigator
from esceme.memory import CandidateEnhancing
from esceme.navigator import Navigator
from esceme.runs import navigator_config, save_run

ROUNDS, EPISODES_PER_SCENE, STD = 5, 1, 0.04
SHARES = {0.03: 1.8, 0.12: None}
"""Shares of repeated decisions, as with trained agents with and without memory, and targets."""
LEAST_MARGIN = 1e-30
Paths = Mapping[str, Sequence[str]]


def run(data: Path) -> Iterator[Result]:
    """Throughput of both engines and of guarded precision for three agents; peak memory of HAMT."""
    torch.set_num_threads(1)
    paths = published_paths(data)
    torch.manual_seed(0)
    yield from compare_engines(data, paths, HAMT(HamtConfig(initial_std=STD)), SHARES)
    yield from compare_engines(data, paths, TDSTP(TdstpConfig(initial_std=STD)), {0.03: 1.8})
    # Random weights give all nodes similar probabilities of STOP, so that every end of DUET would be close.
    yield from compare_engines(data, paths, DUET(DuetConfig(initial_std=STD)), {0.0: None})
    for engine, precision in (("packed", "fp32"), ("packed", "guarded")):
        yield peak_memory(data, engine, precision)


def compare_engines(
    data: Path, paths: Paths, agent: Agent, shares: Mapping[float, float | None]
) -> Iterator[Result]:
    """Time all sides by turns and compare the medians."""
    eager = Navigator(agent, CandidateEnhancing()).eval()
    work = EvaluationWorkload(data, eager, per_scene=EPISODES_PER_SCENE)
    packed = copy.deepcopy(eager)  # in low precision only while the switch is on
    switch = apply_engine(packed, "packed", "guarded")
    work.navigator = GuardedNavigator(packed, switch, LEAST_MARGIN).eval()
    gaps = margins(work.run_lanes(paths))
    sides: dict[str | float, Navigator] = {"eager": eager, "packed": packed}
    for share in shares:
        margin = float(np.quantile(gaps, share)) if share else LEAST_MARGIN
        sides[share] = GuardedNavigator(packed, switch, margin).eval()
    times: dict[str | float, list[float]] = {name: [] for name in sides}
    decisions: dict[str | float, Decisions] = {}
    repeated: dict[str | float, int] = {}
    for _ in range(ROUNDS):
        for name, work.navigator in sides.items():
            begin = time.process_time()
            decisions[name] = work.run_lanes(paths)
            times[name].append(time.process_time() - begin)
            repeated[name] = work.num_recomputed
    plain, fast = decisions["eager"], decisions["packed"]
    error = max(np.abs(np.subtract(plain[key], fast[key])).max() for key in plain)
    assert error < TOLERANCE, f"logits differ by {error}"
    assert all(np.argmax(plain[key]) == np.argmax(fast[key]) for key in plain)
    label = f"{LABELS[type(agent)]} + memory, {len(plain)} decisions of a published agent's length"
    seconds = {name: median(values) for name, values in times.items()}
    note = f"matrix products at the limit of the kernels; logits equal within {error:.0e}"
    yield Ratio(f"{label}: packed against eager", seconds["eager"], seconds["packed"], 1.25, note)
    for share, target in shares.items():
        name = f"the same: guarded, {repeated[share]} of {len(plain)} decisions computed again"
        note = "text, panoramas and repeated decisions in single precision; attention"
        ratio = Ratio(name, seconds["eager"], seconds[share], target or 0, note)
        yield ratio if target else Measurement(name, f"{ratio.value:.2f}x", note)


def margins(decisions: Decisions) -> list[float]:
    """Differences of the two highest scores of every decision."""
    ordered = [sorted(scores) for scores in decisions.values() if len(scores) > 1]
    return [scores[-1] - scores[-2] for scores in ordered]


def peak_memory(data: Path, engine: str, precision: str) -> Amount:
    """Peak memory of a process that loads a run folder, converts its layers and evaluates."""
    torch.manual_seed(0)
    navigator = Navigator(HAMT(HamtConfig(initial_std=STD)), CandidateEnhancing())
    with tempfile.TemporaryDirectory() as folder:
        save_run(Path(folder), navigator, navigator_config(navigator))
        program = [sys.executable, "-m", "benchmarks.hamt_evaluation", folder, str(data), engine, precision]
        done = subprocess.run(program, check=True, capture_output=True, text=True)
    what = f"peak memory, 170 M parameters, {engine}, {precision}"
    return Amount(what, float(done.stdout), "MB", 1300, "the weights: 690 MB")
