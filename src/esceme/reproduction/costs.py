"""Costs of inference at the paper's size: parameters, peak memory, time per step, size of the scene memory.

The networks are those of the paper's recipes with random weights; features and token ids are random. The
trajectories follow the reference paths. Everything is measured on the CPU, in a process per system.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import torch

from esceme.evaluation.protocol import MemoryLifetime
from esceme.evaluation.schedule import Lanes
from esceme.jobs import SendProgress
from esceme.learning.teachers import TEACHERS
from esceme.memory import MemoryBank
from esceme.recipes import RECIPES
from esceme.rollout import roll_out
from esceme.tasks.catalogue import TASKS
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.trajectory import teacher_forcing
from esceme.workers import Job, run_jobs
from esceme.world import ArrayFeatures, Atlas, read_scenes
from esceme.world.geometry import VIEWS

MEGABYTE = 2**20
FLOAT_BYTES = 4
BATCH, NUM_SCENES, EPISODES_PER_SCENE, NUM_TOKENS, ROUNDS = 8, 6, 3, 30, 2
SYSTEMS = {
    "HAMT": ("r2r-hamt", 1),
    "HAMT + ESceme": ("r2r-hamt-esceme", 1),
    "HAMT + ESceme*": ("r2r-hamt-esceme", 2),
    "TDSTP": ("r2r-tdstp", 1),
    "TDSTP + ESceme": ("r2r-tdstp-esceme", 1),
    "TDSTP + ESceme*": ("r2r-tdstp-esceme", 2),
}
"""System -> its recipe and the number of passes over the episodes."""


class SystemCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Measured costs of one system on the CPU."""

    parameters_mb: float
    peak_gb: float
    """Peak resident memory of the process, with Python, torch and the features of a few scenes."""
    ms_per_step: float
    """Processor time of one thread per decision of one agent in a batch of `BATCH`, with all passes."""
    steps: int
    memory_bytes: int
    """Size of the vectors in the scene memory after the episodes; 0 without memory."""
    memory_formula_bytes: float
    """Size of the scene memory by the paper's formula, 3.81e-6 D K N megabytes: 4 bytes per number."""
    reader_mb: float
    reader_formula_mb: float
    """Parameters of the reader by the paper's formula, 1.14e-5 D^2 megabytes: three D x D matrices."""


def measure_costs(data: Path) -> dict[str, SystemCosts]:
    """Return the costs of all systems of `tab:r2r_arc`, each measured in a process of its own."""
    found = {}
    for system, (recipe, passes) in SYSTEMS.items():
        job = Job(system, partial(_measure_system, recipe, passes, data))
        (found[system],) = run_jobs([job], processes=1)
    return found


def _measure_system(recipe: str, passes: int, data: Path, send: SendProgress) -> SystemCosts:
    torch.set_num_threads(1)
    config = RECIPES[recipe].navigator
    navigator = config.build().eval()
    width = config.agent.limits.feature_width or 0
    atlas, episodes = _random_world(data, width)
    encode = partial(_random_tokens, config.agent.limits.vocabulary or 1)
    select = teacher_forcing(atlas, TEACHERS["time"](atlas))
    times: list[float] = []
    for _ in range(ROUNDS):  # the best counts: other programs slow this one down
        bank = MemoryBank.from_atlas(atlas) if navigator.reader.uses_memory else None
        lifetime = MemoryLifetime("none" if bank is None else "cold", atlas, bank)
        start = time.process_time()
        for number in range(passes):
            source, steps = Lanes(atlas, episodes, lifetime, num_slots=BATCH, previous_passes=number), 0
            with torch.inference_mode():
                for step in roll_out(
                    navigator, atlas, source, bank, select, encode=encode, max_steps=config.max_steps
                ):
                    steps += len(step.trajectories)
        times.append(time.process_time() - start)
    return SystemCosts(
        parameters_mb=_size_mb(navigator),
        peak_gb=peak_memory() / 2**30,
        ms_per_step=1000 * min(times) / steps,
        steps=steps,
        memory_bytes=0 if bank is None else bank.nbytes,
        memory_formula_bytes=0 if bank is None else FLOAT_BYTES * width * len(bank),
        reader_mb=_size_mb(navigator.reader),
        reader_formula_mb=0 if bank is None else 3 * FLOAT_BYTES * width**2 / MEGABYTE,
    )


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes.

    `getrusage` is only used where there is no /proc: on Linux it also counts the peak of the parent process.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _size_mb(module: torch.nn.Module) -> float:
    return sum(parameter.nbytes for parameter in module.parameters()) / MEGABYTE


def _random_world(data: Path, width: int) -> tuple[Atlas, list[Episode]]:
    """Return a few scenes of R2R val_unseen with random features, and some of their episodes."""
    folder = DataFolder(data)
    by_scene: dict[str, list[Episode]] = {}
    for episode in TASKS["r2r"].read(folder.require("r2r", "val_unseen")):
        by_scene.setdefault(episode.scene_id, []).append(episode)
    scenes = dict(islice(sorted(by_scene.items()), NUM_SCENES))
    graphs = read_scenes(folder.connectivity, list(scenes))
    keys = [f"{scene}_{name}" for scene, graph in graphs.items() for name in graph.viewpoints]
    features = np.random.default_rng(0).standard_normal((len(keys), VIEWS, width), dtype=np.float32)
    atlas = Atlas(graphs.values(), ArrayFeatures(keys, features, source="random"))
    return atlas, [episode for found in scenes.values() for episode in found[:EPISODES_PER_SCENE]]


def _random_tokens(vocabulary: int, episode: Episode) -> list[int]:
    seed = int.from_bytes(episode.episode_id.encode()[-6:])
    tokens: list[int] = np.random.default_rng(seed).integers(1, vocabulary, NUM_TOKENS).tolist()
    return tokens


def added_costs(costs: Mapping[str, SystemCosts], system: str) -> dict[str, float]:
    """Return the costs of a system by column of the paper's table.

    For a system with memory, these are the differences from the system without memory.
    """
    base, own = costs[system.partition(" + ")[0]], costs[system]
    values = {"parameters_mb": own.parameters_mb, "ms_per_step": own.ms_per_step}
    if own is not base:
        values = {name: value - getattr(base, name) for name, value in values.items()}
    return values


def format_costs(costs: Mapping[str, SystemCosts]) -> str:
    """Return a Markdown table of all measured costs, with the paper's formulas beside."""
    rows: list[Sequence[str]] = [
        (
            "system",
            "parameters (MB)",
            "peak memory (GB, CPU)",
            "ms per step (CPU)",
            "reader (MB)",
            "by 1.14e-5 D² (MB)",
            "scene memory (MB)",
            "by 3.81e-6 DKN (MB)",
        ),
        ("---", *["---:"] * 7),
    ]
    for system, cost in costs.items():
        sizes = (
            cost.reader_mb,
            cost.reader_formula_mb,
            cost.memory_bytes / MEGABYTE,
            cost.memory_formula_bytes / MEGABYTE,
        )
        numbers = [f"{cost.parameters_mb:.1f}", f"{cost.peak_gb:.2f}", f"{cost.ms_per_step:.1f}"]
        rows.append((system, *numbers, *(f"{size:.2f}" for size in sizes)))
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return (
        "Measured here on the CPU, one thread, at the paper's size, with random weights and features, on "
        f"reference paths in a batch of {BATCH}; the paper's times and memory are of a GPU. Rows with ESceme "
        f"show totals, not additions; times vary by some per cent.\n\n{lines}"
    )
