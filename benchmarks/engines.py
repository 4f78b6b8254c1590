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
SHARE = 0.1
"""Share of decisions that are computed again; above that of the trained agents measured."""
Paths = Mapping[str, Sequence[str]]


def run(data: Path) -> Iterator[Result]:
    """Throughput of both engines and of low precisions for three agents; peak memory of HAMT."""
    torch.set_num_threads(1)
    paths = published_paths(data)
    torch.manual_seed(0)
    yield from compare_engines(data, paths, HAMT(HamtConfig(initial_std=STD)), 1.25, 1.8)
    yield from compare_engines(data, paths, TDSTP(TdstpConfig(initial_std=STD)), 1.25, 1.8)
    yield from compare_engines(data, paths, DUET(DuetConfig(initial_std=STD)), 1.25, None)
    for engine, precision in (("packed", "fp32"), ("packed", "guarded")):
        yield peak_memory(data, engine, precision)


def compare_engines(
    data: Path, paths: Paths, agent: Agent, target: float, guarded_target: float | None
) -> Iterator[Result]:
    """Time all sides by turns and compare the medians."""
    eager = Navigator(agent, CandidateEnhancing()).eval()
    work = EvaluationWorkload(data, eager, per_scene=EPISODES_PER_SCENE)
    packed, low, int8 = copy.deepcopy(eager), copy.deepcopy(eager), copy.deepcopy(eager)
    apply_engine(packed, "packed", "fp32")
    apply_engine(int8, "packed", "int8")
    guarded = GuardedNavigator(low, apply_engine(low, "packed", "guarded"), margin=1e-30).eval()
    sides: dict[str, Navigator] = {"eager": eager, "packed": packed, "guarded": guarded, "int8": int8}
    times: dict[str, list[float]] = {name: [] for name in sides}
    decisions: dict[str, Decisions] = {}
    for turn in range(ROUNDS):
        for name, work.navigator in sides.items():
            begin = time.process_time()
            decisions[name] = work.run_lanes(paths)
            if turn or name != "guarded":  # the first turn finds the margin
                times[name].append(time.process_time() - begin)
        if turn == 0 and guarded_target is not None:
            guarded.margin = float(np.quantile(margins(decisions["guarded"]), SHARE))
    plain, fast = decisions["eager"], decisions["packed"]
    error = max(np.abs(np.subtract(plain[key], fast[key])).max() for key in plain)
    assert error < TOLERANCE, f"logits differ by {error}"
    assert all(np.argmax(plain[key]) == np.argmax(fast[key]) for key in plain)
    label = f"{LABELS[type(agent)]} + memory, {len(plain)} decisions of a published agent's length"
    seconds = {name: median(values) for name, values in times.items()}
    note = f"matrix products at the limit of the kernels; logits equal within {error:.0e}"
    yield Ratio(f"{label}: packed against eager", seconds["eager"], seconds["packed"], target, note)
    if guarded_target is not None:
        share = work.num_recomputed / len(plain)
        note = "text, panoramas and repeated decisions in single precision; attention"
        name = f"the same: guarded, {100 * share:.0f} % computed again"
        yield Ratio(name, seconds["eager"], seconds["guarded"], guarded_target, note)
    else:
        value = f"{seconds['eager'] / seconds['guarded']:.2f}x"
        yield Measurement("the same: guarded, nothing computed again", value, "an upper limit")
    value = f"{seconds['eager'] / seconds['int8']:.2f}x"
    yield Measurement("the same: int8 in all transformer layers", value, "changes decisions")


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
