"""Evaluating HAMT with scene memory at the paper's size, against a straightforward lock-step loop.

The network has the paper's sizes and random weights, the features are random, instructions and scenes are
those of R2R val_unseen. Both loops run the same trajectories with the same weights; the benchmark asserts
that they choose the same action at every step, except where two scores are equal but for rounding.
"""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.lockstep import LockStep
from benchmarks.measure import Amount, Measurement, Ratio, Result, seconds
from esceme.agents import DUET, HAMT, TDSTP, HamtConfig
from esceme.engine import apply_engine
from esceme.evaluation.guarded import GuardedNavigator
from esceme.evaluation.protocol import MemoryLifetime
from esceme.evaluation.schedule import Lanes
from esceme.memory import CandidateEnhancing, MemoryBank, save_bank
from esceme.navigator import Navigator
from esceme.rollout import roll_out
from esceme.runs import load_run, navigator_config, save_run
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.r2r import read_r2r
from esceme.tasks.submission import read_predictions
from esceme.tasks.text import WordPiece, truncate
from esceme.trajectory import Trajectory, greedy, teacher_forcing
from esceme.world import ArrayFeatures, Atlas, read_scenes

SLOTS, WIDTH, MAX_STEPS, MAX_TOKENS = 8, 768, 15, 60
EPISODES_PER_SCENE = 6
PUBLISHED = "predictions/PREVALENT_R2R_seq2seq_teacher_val_unseen_iter36000.json"
"""Predictions of a published agent, for trajectories of realistic length."""
TOLERANCE = 1e-4
LABELS = {HAMT: "HAMT", TDSTP: "TD-STP", DUET: "DUET"}
MANY, FEW, NARROW, CANDIDATES = 1_000_000, 100, 256, 5
"""Viewpoints, width of their features and candidates per panorama when recall is timed."""
Decisions = Mapping[tuple[str, int], Sequence[float]]
"""Episode and step -> the logits of all actions."""


def run(data: Path) -> Iterator[Result]:
    """Throughput, share of memory operations, peak memory, and the effect of half precision."""
    torch.set_num_threads(1)
    work = EvaluationWorkload(data)
    paths = published_paths(data)
    yield from throughput(work, paths)
    yield from throughput(work, None)
    yield memory_share(work, paths)
    yield peak_memory(work, data)
    yield from half_precision(work, paths)
    yield scene_file_size()
    yield recall_growth()


def published_paths(data: Path) -> dict[str, Sequence[str]]:
    """Return the paths of a published agent by episode id."""
    predictions = read_predictions(data / PUBLISHED)
    return {name: prediction.path for name, prediction in predictions.items()}


class EvaluationWorkload:
    """Some episodes of R2R val_unseen in eight scenes, and a network, by default HAMT of the paper's size."""

    def __init__(
        self,
        data: Path,
        navigator: Navigator | None = None,
        *,
        loop: type[LockStep] = LockStep,
        per_scene: int = EPISODES_PER_SCENE,
    ) -> None:
        """Read the data; `loop` is the lock-step loop."""
        if navigator is None:
            torch.manual_seed(0)
            navigator = Navigator(HAMT(HamtConfig(initial_std=0.04)), CandidateEnhancing())
        self.navigator, self.loop = navigator.eval(), loop
        self.num_recomputed = 0
        """Number of decisions of the latest `run_lanes` that were computed again in full precision."""
        folder = DataFolder(data)
        by_scene: dict[str, list[Episode]] = {}
        for episode in read_r2r(folder.annotations("r2r", "val_unseen")):
            by_scene.setdefault(episode.scene_id, []).append(episode)
        scenes = sorted(by_scene)[:SLOTS]
        self.lanes = [by_scene[scene][:per_scene] for scene in scenes]
        self.episodes = [episode for lane in self.lanes for episode in lane]
        graphs = read_scenes(folder.connectivity, scenes)
        keys = [f"{scene}_{name}" for scene, graph in graphs.items() for name in graph.viewpoints]
        features = np.stack([_random_features(key, navigator.agent.config.feature_width) for key in keys])
        self.atlas = Atlas(graphs.values(), ArrayFeatures(keys, features, source="drawn"))
        words = WordPiece.read(folder.tokenizers[0])
        self.ids = {
            episode.episode_id: truncate(words.encode(episode.instruction), MAX_TOKENS, keep="first")
            for episode in self.episodes
        }

    def run_lanes(
        self,
        paths: Mapping[str, Sequence[str]] | None,
        *,
        half: bool = False,
        bank: MemoryBank | None = None,
        navigator: Navigator | None = None,
    ) -> Decisions:
        """Return all decisions of the package's rollout, where a slot gets a new episode when one ends."""
        bank = MemoryBank.from_atlas(self.atlas) if bank is None else bank
        source = Lanes(self.atlas, self.episodes, MemoryLifetime("cold", self.atlas, bank), num_slots=SLOTS)
        choose = (
            greedy
            if paths is None
            else teacher_forcing(self.atlas, lambda trajectory: self._next_viewpoint(trajectory, paths))
        )
        decisions: dict[tuple[str, int], list[float]] = {}
        self.num_recomputed = 0
        precision = torch.autocast("cpu", torch.bfloat16) if half else nullcontext()
        with torch.inference_mode(), precision:
            for step in roll_out(
                navigator or self.navigator,
                self.atlas,
                source,
                bank,
                choose,
                encode=lambda episode: self.ids[episode.episode_id],
                max_steps=MAX_STEPS,
            ):
                self.num_recomputed += sum(trajectory.num_recomputed for trajectory in step.finished)
                for trajectory, logits in zip(
                    step.trajectories, step.decision.logits.float().tolist(), strict=True
                ):
                    finite = [logit for logit in logits if logit > -np.inf]
                    decisions[trajectory.episode.episode_id, trajectory.num_decisions - 1] = finite
        return decisions

    def run_lock_step(self, paths: Mapping[str, Sequence[str]] | None) -> Decisions:
        """Return all decisions of the baseline.

        A batch holds one episode of every scene, so that memories agree with those of `run_lanes`.
        """
        loop = self.loop(self.navigator, self.atlas)
        expert = None if paths is None else lambda *arguments: self._action(*arguments, paths)
        with torch.inference_mode():
            decisions = [
                decision
                for batch in zip(*self.lanes, strict=True)
                for decision in loop.run(
                    [(item, self.ids[item.episode_id]) for item in batch], expert, MAX_STEPS
                )
            ]
        return {(decision.episode_id, decision.step): decision.logits for decision in decisions}

    def _next_viewpoint(self, trajectory: Trajectory, paths: Mapping[str, Sequence[str]]) -> int:
        path = paths[trajectory.episode.episode_id]
        name = path[min(trajectory.num_decisions + 1, len(path) - 1)]
        return int(self.atlas.locate(trajectory.episode.scene_id, [name])[0])

    def _action(self, episode: Episode, viewpoint: int, step: int, paths: Mapping[str, Sequence[str]]) -> int:
        path = paths[episode.episode_id]
        target = int(self.atlas.locate(episode.scene_id, [path[min(step + 1, len(path) - 1)]])[0])
        neighbours = self.atlas.neighbours[viewpoint, : self.atlas.degrees[viewpoint]].tolist()
        return len(neighbours) if target == viewpoint else neighbours.index(target)


def throughput(
    work: EvaluationWorkload,
    paths: Mapping[str, Sequence[str]] | None,
    *,
    rounds: int = 2,
    packed: bool = False,
) -> Iterator[Result]:
    """Time both loops alternately for some rounds; their decisions must agree.

    With `packed`, the package's loop is also timed with the engine `packed`.
    """
    runs: dict[str, Callable[..., Decisions]] = {"lock-step": work.run_lock_step, "eager": work.run_lanes}
    if packed:
        navigator = copy.deepcopy(work.navigator)
        apply_engine(navigator, "packed", "fp32")
        runs["packed"] = partial(work.run_lanes, navigator=navigator)
    times: dict[str, float] = dict.fromkeys(runs, float("inf"))
    decisions: dict[str, Decisions] = {}
    for _ in range(rounds):
        for name, run_loop in runs.items():
            begin = time.process_time()
            decisions[name] = run_loop(paths)
            times[name] = min(times[name], time.process_time() - begin)
    lock_step, slow = times["lock-step"], decisions["lock-step"]
    count, lengths = len(work.episodes), Counter(episode for episode, _ in slow).values()
    kind = "its own trajectories" if paths is None else "trajectories of a published agent"
    size = f"{count} episodes of {len(slow) / count:.1f} decisions, {min(lengths)} to {max(lengths)}"
    title = f"evaluating {LABELS[type(work.navigator.agent)]} + memory, {kind} ({size})"
    for name, fast in list(decisions.items())[1:]:
        assert slow.keys() == fast.keys(), "the trajectories of the two loops differ"
        error = max(np.abs(np.subtract(slow[key], fast[key])).max() for key in slow)
        assert error < TOLERANCE, f"logits differ by {error}"
        # The same choice, or one whose score is the highest as well but for rounding.
        assert all(slow[key][np.argmax(fast[key])] >= max(slow[key]) - 2 * error for key in slow)
        note = f"matrix products at full speed; logits equal within {error:.0e}"
        yield Ratio(title if name == "eager" else f"the same, engine {name}", lock_step, times[name], 2, note)
    rates = f"{count / times['eager']:.2f} against {count / lock_step:.2f} episodes a second"
    yield Measurement("the same in episodes", rates, "one thread")


def memory_share(work: EvaluationWorkload, paths: Mapping[str, Sequence[str]]) -> Amount:
    """Return the share of time spent on recalling, fusing and remembering."""
    spent = 0.0

    def timed(call: Callable[..., object]) -> Callable[..., object]:
        def wrapper(*arguments: object) -> object:
            nonlocal spent
            begin = time.process_time()
            result = call(*arguments)
            spent += time.process_time() - begin
            return result

        return wrapper

    reader, remember = work.navigator.reader, MemoryBank.remember_observation
    reader.forward = timed(reader.forward)  # type: ignore[method-assign]
    MemoryBank.remember_observation = timed(remember)  # type: ignore[method-assign, assignment]
    try:
        whole = seconds(lambda: work.run_lanes(paths))
    finally:
        del reader.forward
        MemoryBank.remember_observation = remember  # type: ignore[method-assign]
    return Amount(
        "memory's share: recall + fusion + remember", 100 * spent / whole, "%", 3, "the fusion's MLP"
    )


def peak_memory(work: EvaluationWorkload, data: Path) -> Amount:
    """Peak memory of a process that loads a run folder and evaluates."""
    with tempfile.TemporaryDirectory() as folder:
        save_run(Path(folder), work.navigator, navigator_config(work.navigator))
        program = [sys.executable, "-m", "benchmarks.hamt_evaluation", folder, str(data), "eager", "fp32"]
        done = subprocess.run(program, check=True, capture_output=True, text=True)
    return Amount("peak memory, 170 M parameters", float(done.stdout), "MB", 1500, "the weights: 690 MB")


def half_precision(work: EvaluationWorkload, paths: Mapping[str, Sequence[str]]) -> Iterator[Result]:
    """Compare bf16 with fp32 on the same trajectories."""
    begin = time.process_time()
    plain = work.run_lanes(paths)
    middle = time.process_time()
    half = work.run_lanes(paths, half=True)
    end = time.process_time()
    changed = sum(np.argmax(plain[key]) != np.argmax(half[key]) for key in plain)
    yield Ratio("bf16 against fp32", middle - begin, end - middle, 1, "all but matrix products")
    share = f"{changed} of {len(plain)}"
    yield Measurement("decisions that bf16 changes", share, "with random weights, logits are close together")


def scene_file_size() -> Amount:
    """A saved scene of 92 viewpoints, the paper's mean, at 768 numbers each."""
    bank, generator = MemoryBank(WIDTH), torch.Generator().manual_seed(0)
    names = [f"{number:032x}" for number in range(92)]
    for number, name in enumerate(names):
        near = [names[(number + step) % 92] for step in (1, 2, 91, 90)]
        bank.remember("scene", name, torch.randn(4, WIDTH, generator=generator), near)
    with tempfile.TemporaryDirectory() as folder:
        save_bank(bank, Path(folder) / "bank.safetensors")
        size = (Path(folder) / "bank.safetensors").stat().st_size
    return Amount("a saved scene of 92 viewpoints", size / 1e6, "MB", 0.3, "the vectors: 0.283 MB")


class NumberedViewpoints:
    """The part of an atlas that a bank needs to number viewpoints."""

    features = None

    def __init__(self, count: int) -> None:
        self.names = tuple(("scene", f"{number}") for number in range(count))
        self.scene_of, self.neighbours = np.zeros(count, np.int64), np.full((count, 1), -1)
        self.positions = np.zeros((count, 3))

    def __len__(self) -> int:
        return len(self.names)


def recall_growth() -> Amount:
    """Ratio of the recall times among a million and among 100 remembered viewpoints."""
    few, many = recall_seconds(FEW), recall_seconds(MANY)
    note = f"the number of rows, here of {NARROW} numbers, that fit into the processor's caches"
    return Amount(f"recall among {MANY:,} against {FEW} viewpoints", many / few, "x", 3, note)


def recall_seconds(count: int) -> float:
    """Return the time of 200 recalls for eight panoramas with five candidates, among `count` viewpoints."""
    bank, generator, names = MemoryBank(NARROW), torch.Generator().manual_seed(0), NumberedViewpoints(count)
    viewpoints = [name for _, name in names.names]
    bank["scene"]._insert(viewpoints, torch.randn(count, NARROW, generator=generator), [()] * count)
    bank.bind(names)  # type: ignore[arg-type]
    requested = torch.full((200, SLOTS, 42), -1)
    requested[:, :, :CANDIDATES] = torch.randint(count, (200, SLOTS, CANDIDATES), generator=generator)
    return min(seconds(lambda: [bank.recall_at(viewpoints) for viewpoints in requested]) for _ in range(5))


def _random_features(key: str, width: int) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(key.encode())).standard_normal((36, width), np.float32)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_folder, data_folder, engine, precision = sys.argv[1:]
    loaded = load_run(run_folder).navigator.eval()
    switch = apply_engine(loaded, engine, precision)  # type: ignore[arg-type]
    if precision == "guarded":
        loaded = GuardedNavigator(loaded, switch, margin=1e-3)
    EvaluationWorkload(Path(data_folder), loaded, per_scene=1).run_lanes(None)
    # `resource.getrusage` would include the peak of the process that started this one.
    peak = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    assert peak is not None
    print(int(peak[1]) / 1024)
