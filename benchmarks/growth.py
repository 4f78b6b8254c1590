"""Cost per unit while the work grows: episodes, viewpoints in memory, scenes, results compared.

The value of a row is the cost per unit at the largest size, relative to the lowest cost per unit at a smaller
size: 1 if the cost is proportional to the work. Costs of small sizes contain what every command needs once.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks.measure import Amount, Result, seconds
from esceme.evaluation import EvaluationConfig, compare, evaluate, read_result
from esceme.evaluation.context import load_context
from esceme.evaluation.evaluate import JOURNAL
from esceme.evaluation.journal import Journal, JournalEntry, read_journal
from esceme.memory import MemoryBank, load_bank, save_bank
from esceme.observation import Observation
from esceme.report.result_set import load_results
from esceme.tasks.r4r import join_paths, read_r2r_records
from esceme.tasks.split import blank_features
from esceme.viewer.page_data import build_page_data
from esceme.workers import Job, run_jobs
from esceme.world import Atlas, read_scenes
from esceme.world.atlas import Pose

EPISODES = (100, 1_000, 10_000, 100_000)
JOURNALLED = (1_000, 10_000)
VIEWPOINTS = (100, 10_000, 1_000_000)
SCENES = (1, 10, 90)
RESULTS = (2, 4, 8, 16)
INSTRUCTIONS, MAX_STEPS, DRAWS = 9, 4, 200
"""Instructions per R4R path, decisions per episode, and bootstrap samples."""
WIDTH, PER_SCENE, BATCH, STEPS = 64, 100, 8, 500
"""Width of features, viewpoints per scene, and batch and number of the steps that are timed."""
LIMIT, MIN_SECONDS = 1.2, 0.3
Costs = dict[str, dict[int, float]]
"""What is measured -> size -> seconds per unit."""


def run(data: Path) -> Iterator[Result]:
    """Measure all sizes and compare the costs per unit."""
    torch.set_num_threads(1)
    yield from growth_rows("episodes", "episode", episode_costs(data))
    yield from growth_rows("episodes", "episode", parent_costs())
    yield from growth_rows("viewpoints in memory", "viewpoint or step", viewpoint_costs())
    yield from growth_rows("scenes", "scene or step", scene_costs(data))
    yield from growth_rows("results compared", "result", result_costs(data))


def growth_rows(what: str, unit: str, costs: Costs) -> Iterator[Result]:
    """Yield a row per measured work."""
    for name, by_size in costs.items():
        *smaller, largest = by_size.values()
        shown = ", ".join(f"{size:,}: {1e6 * cost:.3g}" for size, cost in by_size.items())
        title = f"{min(by_size):,} to {max(by_size):,} {what}: {name}"
        yield Amount(title, largest / min(smaller), "x", LIMIT, f"µs per {unit}: {shown}")


def repeat(work: Callable[[], object]) -> float:
    """Return the best process time of one call; short calls are repeated."""
    times = [seconds(work)]
    while sum(times) < MIN_SECONDS:
        times.append(seconds(work))
    return min(times)


# -- episodes --------------------------------------------------------------------------------------------


def episode_costs(data: Path, sizes: Sequence[int] = EPISODES) -> Costs:
    """Time what `evaluate`, `compare` and `view` do with episodes of R4R train, drawn from all its scenes."""
    costs: Costs = {}
    graphs = read_scenes(data / "connectivity")
    records = list(join_paths(read_r2r_records(data / "R2R" / "R2R_train.json", graphs), graphs))
    order = np.random.default_rng(0).permutation(len(records))
    for size in sizes:
        with TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "R4R").mkdir()
            (folder / "connectivity").symlink_to((data / "connectivity").resolve())
            chosen = [records[row] for row in order[: -(-size // INSTRUCTIONS)]]
            (folder / "R4R" / "R4R_train.json").write_bytes(msgspec.json.encode(chosen))
            for what, cost in time_episodes(folder, size):
                costs.setdefault(what, {})[size] = cost / size
    return costs


def time_episodes(folder: Path, size: int) -> Iterator[tuple[str, float]]:
    """Yield names and seconds of the work with `size` episodes of the data in `folder`."""
    config = EvaluationConfig(
        run="random",
        data=str(folder),
        split="train",
        memory="none",
        task="r4r",
        limit=size,
        max_steps=MAX_STEPS,
    )
    out = folder / "out"
    context = load_context(config)
    yield "reading data", repeat(partial(load_context, config))
    yield "evaluating, a scripted agent of 4 decisions", seconds(partial(evaluate, config, out))
    fingerprint = context.fingerprint
    yield "reading the journal", repeat(partial(read_journal, out / JOURNAL, fingerprint, JournalEntry))
    yield "resuming: journal, scores, result", repeat(partial(evaluate, config, out))
    result = read_result(out)
    yield "comparing two results", repeat(partial(compare, [result, result], draws=DRAWS))
    yield "data of the page", repeat(lambda: build_page_data(load_results([out], folder)))


def parent_costs(sizes: Sequence[int] = JOURNALLED) -> Costs:
    """Time the parent of two worker processes: receiving finished trajectories and writing the journal."""
    costs = {}
    for size in sizes:
        jobs = [Job(f"worker {number}", partial(send_entries, size // 2)) for number in range(2)]
        with TemporaryDirectory() as name, Journal(Path(name) / JOURNAL, "", JournalEntry) as journal:
            on_message = partial(_write_message, journal)
            costs[size] = seconds(partial(run_jobs, jobs, processes=2, on_message=on_message)) / size
    return {"parent of two processes": costs}


def send_entries(count: int, send: Callable[[list[JournalEntry]], None]) -> None:
    """Send entries of ten poses, one at a time, as a worker does."""
    poses = [(f"{number:032x}", number) for number in range(10)]
    for number in range(count):
        send([JournalEntry(1, 0, f"{number}", 1, 10, True, poses, list(range(10)))])


def _write_message(journal: Journal[JournalEntry], _: str, entries: list[JournalEntry]) -> None:
    journal.write(entries)


# -- viewpoints ------------------------------------------------------------------------------------------


class NumberedScenes:
    """The part of an atlas that a bank needs: scenes of 100 viewpoints in a circle."""

    features = None

    def __init__(self, count: int) -> None:
        index = np.arange(count)
        self.names = tuple(
            (f"{number // PER_SCENE}", f"{number % PER_SCENE:032x}") for number in range(count)
        )
        self.scene_of = index // PER_SCENE
        self.first = np.append(np.arange(0, count, PER_SCENE), count)
        start = self.scene_of * PER_SCENE
        steps = np.array([1, 2, PER_SCENE - 2, PER_SCENE - 1])
        self.neighbours = start[:, None] + (index[:, None] - start[:, None] + steps) % PER_SCENE

    def __len__(self) -> int:
        return len(self.names)


def viewpoint_costs(sizes: Sequence[int] = VIEWPOINTS) -> Costs:
    """Time a bank that holds all viewpoints but one scene."""
    costs: Costs = {}
    for size in sizes:
        atlas = NumberedScenes(size + PER_SCENE)
        for what, units, work in bank_work(atlas, size):
            costs.setdefault(what, {})[size] = repeat(work) / units
    return costs


def bank_work(atlas: Any, size: int) -> Iterator[tuple[str, int, Callable[[], object]]]:
    """Yield the name, the number of units and the work of each operation of a bank of `size` viewpoints."""
    bank, generator = MemoryBank(WIDTH), torch.Generator().manual_seed(0)
    neighbours = [tuple(f"{other % PER_SCENE:032x}" for other in row) for row in atlas.neighbours[:PER_SCENE]]
    names = [name for _, name in atlas.names[:PER_SCENE]]
    for scene in range(size // PER_SCENE):
        bank[f"{scene}"]._insert(names, torch.randn(PER_SCENE, WIDTH, generator=generator), neighbours)
    bank.bind(atlas)
    at = torch.randint(size, (STEPS, BATCH), generator=generator)
    in_one_scene = at[:, :1] // PER_SCENE * PER_SCENE + at % PER_SCENE
    candidates = torch.from_numpy(atlas.neighbours)[at]
    views, last = torch.randn(4, WIDTH, generator=generator), f"{size // PER_SCENE}"

    def remember_scene() -> None:
        for name, near in zip(names, neighbours, strict=True):
            bank.remember(last, name, views, near)
        bank.forget(last)

    yield "recalling candidates of 8 agents", STEPS, lambda: [bank.recall_at(row) for row in candidates]
    yield "remembering and forgetting", PER_SCENE, remember_scene
    yield "graph of the scene of 8 agents", STEPS, lambda: [bank.scene_subgraph(row) for row in in_one_scene]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "bank.safetensors"
        yield "saving a bank", size, partial(save_bank, bank, file, overwrite=True)
        yield "loading a bank", size, partial(load_bank, file)


# -- scenes and results ----------------------------------------------------------------------------------


def scene_costs(data: Path, sizes: Sequence[int] = SCENES) -> Costs:
    """Time loading and observing copies of one scene."""
    costs: Costs = {}
    source = min((data / "connectivity").glob("*_connectivity.json"))
    for size in sizes:
        with TemporaryDirectory() as name:
            for number in range(size):
                shutil.copy(source, Path(name) / f"copy{number}_connectivity.json")
            costs.setdefault("loading with all distances", {})[size] = (
                repeat(lambda: load_atlas(Path(name))) / size
            )
            atlas = load_atlas(Path(name))
        poses = np.random.default_rng(0).integers(len(atlas), size=(STEPS, BATCH))
        work = partial(observe, atlas, poses)
        costs.setdefault("observing, 8 agents", {})[size] = repeat(work) / STEPS
    return costs


def load_atlas(folder: Path) -> Atlas:
    """Read all scenes of a folder, and compute the distances in each."""
    graphs = read_scenes(folder)
    atlas = Atlas(graphs.values(), blank_features(graphs))
    assert all(np.isfinite(graph.distances).all() for graph in atlas.graphs.values())
    return atlas


def observe(atlas: Atlas, viewpoints: np.ndarray) -> None:
    """Observe at each row of viewpoints."""
    for row in viewpoints:
        Observation.from_atlas(atlas, Pose(row, np.zeros_like(row)))


def result_costs(data: Path, sizes: Sequence[int] = RESULTS) -> Costs:
    """Time comparing results of R2R val_unseen with different seeds."""
    with TemporaryDirectory() as name:
        config = EvaluationConfig(run="stop", data=str(data), split="val_unseen", memory="none", task="r2r")
        result = evaluate(config, name)
    costs = {size: repeat(partial(compare, [result] * size, draws=DRAWS)) / size for size in sizes}
    return {"all metrics, 2,349 episodes": costs}
