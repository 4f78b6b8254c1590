"""Engines and precisions of evaluation at the paper's size, by turns with an earlier commit.

Trajectories have a published agent's length, or are the network's own. The networks have random weights,
whose scores lie close together. The margin of `guarded` is therefore set so that as many decisions are
computed again as with trained agents; some others then change. That decisions of trained agents do not change
is measured in docs/performance.md.
"""

from __future__ import annotations

import json
import os
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
from benchmarks.training_versions import EARLIER, ask_worker, extract_sources, start_worker
from esceme.agents import DUET, HAMT, TDSTP, DuetConfig, HamtConfig, TdstpConfig
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
WALKS = OWN, PUBLISHED = 0, 1
"""Trajectories of the network itself, or of a published agent."""
EARLIER_PROGRAM = f"""
import json, re, sys, time
from pathlib import Path
import torch
from benchmarks.hamt_evaluation import EvaluationWorkload, published_paths
from esceme.runs import load_run
torch.set_num_threads(1)
run, data = sys.argv[1], Path(sys.argv[2])
work = EvaluationWorkload(data, load_run(run).navigator, per_scene={EPISODES_PER_SCENE})
published = published_paths(data)
for line in sys.stdin:
    begin = time.process_time()
    decisions = work.run_lanes(published if int(line) == {PUBLISHED} else None)
    seconds = time.process_time() - begin
    memory = int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
    print(json.dumps([seconds, memory / 1024, list(decisions.items())]), flush=True)
"""
"""Evaluates a run folder with the package and the benchmarks of the earlier commit."""


def run(data: Path) -> Iterator[Result]:
    """Throughput of both engines and of guarded precision for three agents, or `ESCEME_AGENTS`; memory."""
    names = os.environ.get("ESCEME_AGENTS", " ".join(LABELS.values())).split()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as earlier, tempfile.TemporaryDirectory() as folder:
        extract_sources(EARLIER, Path(earlier))
        for kind, config, shares in (
            (HAMT, HamtConfig(initial_std=STD), SHARES),
            (TDSTP, TdstpConfig(initial_std=STD), {0.03: 1.8}),
            # Random weights give all nodes similar probabilities of STOP: every end of DUET would be close.
            (DUET, DuetConfig(initial_std=STD), {0.0: None}),
        ):
            if LABELS[kind] not in names:
                continue
            path = Path(folder) / LABELS[kind]
            navigator = Navigator(kind(config), CandidateEnhancing()).eval()
            save_run(path, navigator, navigator_config(navigator))
            yield from compare_engines(data, navigator, shares, path, Path(earlier))
            for precision in ("fp32", "guarded"):
                yield peak_memory(data, path, LABELS[kind], precision)


def compare_engines(
    data: Path, packed: Navigator, shares: Mapping[float, float | None], folder: Path, earlier: Path
) -> Iterator[Result]:
    """Time all sides by turns; yield the median of the ratios to the earlier commit."""
    agent, published = LABELS[type(packed.agent)], published_paths(data)
    switch = apply_engine(packed, "packed", "guarded")  # in low precision only while the switch is on
    guarded = GuardedNavigator(packed, switch, LEAST_MARGIN).eval()
    work = EvaluationWorkload(data, guarded, per_scene=EPISODES_PER_SCENE)
    gaps = margins(work.run_lanes(published))
    sides: dict[str | float, Navigator] = {"packed": packed}
    for share in shares:
        margin = float(np.quantile(gaps, share)) if share else LEAST_MARGIN
        sides[share] = GuardedNavigator(packed, switch, margin).eval()
    program = ["-P", "-c", EARLIER_PROGRAM, str(folder), str(data)]
    with start_worker(program, (earlier / "src", earlier)) as worker:
        for walk in reversed(WALKS):
            times: dict[str | float, list[float]] = {name: [] for name in ("earlier", *sides)}
            decisions: dict[str | float, Decisions] = {}
            repeated: dict[str | float, int] = {}
            for _ in range(ROUNDS):
                seconds, memory, logits = json.loads(ask_worker(worker, walk))
                times["earlier"].append(seconds)
                decisions["earlier"] = {tuple(key): values for key, values in logits}
                for name, work.navigator in sides.items():
                    if walk == OWN and name != "packed":
                        continue
                    begin = time.process_time()
                    decisions[name] = work.run_lanes(published if walk == PUBLISHED else None)
                    times[name].append(time.process_time() - begin)
                    repeated[name] = work.num_recomputed
            yield from _ratios(agent, walk, shares, times, decisions, repeated)
        assert worker.stdin is not None
        worker.stdin.close()
    yield Measurement(f"{agent}: peak memory, commit {EARLIER}", f"{memory:.0f} MB", "")


def _ratios(
    agent: str,
    walk: int,
    shares: Mapping[float, float | None],
    times: Mapping[str | float, Sequence[float]],
    decisions: Mapping[str | float, Decisions],
    repeated: Mapping[str | float, int],
) -> Iterator[Result]:
    """Yield the median over the rounds of the ratio between the earlier commit and each side."""
    expected, baseline = decisions["earlier"], median(times["earlier"])
    walks = "a published agent's length" if walk == PUBLISHED else "its own, random walks"
    for name in [name for name in decisions if name != "earlier"]:
        found, changed = decisions[name], count_changed(expected, decisions[name])
        if name == "packed":
            error = max(np.abs(np.subtract(expected[key], found[key])).max() for key in expected)
            assert found.keys() == expected.keys() and not changed and error < TOLERANCE, f"{error}"
            what, target = "packed", 1.25
            note = f"same decisions, logits equal within {error:.0e}; matrix products at the kernels' limit"
        else:
            what = f"packed, guarded, {repeated[name]} computed again"
            target = shares[float(name)]
            note = f"{changed} decisions change (random weights); parts in single precision, attention"
        ratio = median(before / now for before, now in zip(times["earlier"], times[name], strict=True))
        label = f"{agent} + memory, {len(expected)} decisions, {walks}: {what}, against commit {EARLIER}"
        seconds = Ratio(label, baseline, baseline / ratio, target or 0, note)
        yield seconds if target and walk == PUBLISHED else Measurement(label, f"{ratio:.2f}x", note)


def count_changed(expected: Decisions, found: Decisions) -> int:
    """Return the number of decisions with another best action, of those that both have."""
    return sum(np.argmax(expected[key]) != np.argmax(found[key]) for key in expected.keys() & found.keys())


def margins(decisions: Decisions) -> list[float]:
    """Differences of the two highest scores of every decision."""
    ordered = [sorted(scores) for scores in decisions.values() if len(scores) > 1]
    return [scores[-1] - scores[-2] for scores in ordered]


def peak_memory(data: Path, folder: Path, agent: str, precision: str) -> Amount:
    """Peak memory of a process that loads a run folder, packs its weights and evaluates."""
    program = [sys.executable, "-m", "benchmarks.hamt_evaluation", str(folder), str(data), "packed"]
    done = subprocess.run([*program, precision], check=True, capture_output=True, text=True)
    return Amount(f"{agent}: peak memory, packed, {precision}", float(done.stdout), "MB", 1300, "the weights")
