"""Rows of docs/planning.md: results of one split side by side, and the episodes on which they differ.

python -m benchmarks.planning_rows GREEDY COLD [OTHER ...]

Every argument is a folder of `esceme evaluate`. The first result is the baseline of differences. Subsets of
episodes are determined by the trajectories of the second result, in the order in which they were run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from esceme.evaluation.result import EpisodeResult, Result, read_result
from esceme.tasks.catalogue import TASKS
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder, default_data

DRAWS = 2000
VISITS = ((1, 5), (6, 15), (16, 30), (31, 60), (61, 120), (121, 10**6))


def main(folders: Sequence[str]) -> None:
    """Print the rows of all results, and subsets of the first two."""
    results = {Path(folder).name: read_result(folder) for folder in folders}
    first = next(iter(results.values()))
    facts = first.facts
    path = DataFolder(default_data()).require(facts["task"], facts["split"])
    episodes = {episode.episode_id: episode for episode in TASKS[facts["task"]].read(path)}
    base = spl_of(first)
    print("| row | SR | SPL | nDTW | TL | SPL difference, by path | by building |")
    print("|---|---|---|---|---|---|---|")
    for name, result in results.items():
        means = result.means
        scores = " | ".join(f"{100 * means[metric]:.1f}" for metric in ("sr", "spl", "ndtw"))
        spl = spl_of(result)
        cells = [
            interval(result, {key: spl[key] - base[key] for key in spl}, field) if result is not first else ""
            for field in ("path", "scene")
        ]
        print(f"| {name} | {scores} | {means['tl']:.1f} | {' | '.join(cells)} |")
    names = list(results)[:2]
    subsets = select_subsets(results[names[1]], episodes)
    print(f"\n| episodes | n | {' | '.join(names)} |\n|---|---|---|---|")
    for label, ids in subsets.items():
        means = [np.mean([spl_of(results[name])[key] for key in ids]) for name in names]
        print(f"| {label} | {len(ids)} | {' | '.join(f'{100 * mean:.1f}' for mean in means)} |")


def spl_of(result: Result) -> dict[str, float]:
    """Return the SPL of every episode, by id."""
    return {episode.id: episode.scores["spl"] for episode in result.episodes}


def interval(result: Result, differences: Mapping[str, float], field: str) -> str:
    """Return the mean difference and its bootstrap interval; paths or scenes are resampled."""
    groups = [getattr(episode, field) for episode in result.episodes]
    values: NDArray[np.float64] = np.array([differences[episode.id] for episode in result.episodes])
    _, index = np.unique(groups, return_inverse=True)
    sums, counts = np.bincount(index, values), np.bincount(index)
    rows = np.random.default_rng(0).integers(len(sums), size=(DRAWS, len(sums)))
    low, high = np.quantile(sums[rows].sum(1) / counts[rows].sum(1), [0.025, 0.975])
    return f"{100 * values.mean():+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def select_subsets(result: Result, episodes: Mapping[str, Episode]) -> dict[str, list[str]]:
    """Return ids of episodes by what the agent had visited in the scene before, and by the visit number."""
    by_scene: dict[str, list[EpisodeResult]] = {}
    for episode in result.episodes:
        by_scene.setdefault(episode.scene, []).append(episode)
    subsets: dict[str, list[str]] = {
        "first instruction of a path": [],
        "reference path not walked before": [],
        "a reference viewpoint never visited": [],
        "goal never visited": [],
    } | {f"visits {low} to {high if high < 10**6 else 'last'}": [] for low, high in VISITS}
    labels = list(subsets)
    for runs in by_scene.values():
        visited, walked, told = set[str](), set[tuple[str, ...]](), set[str]()
        for run in sorted(runs, key=lambda run: run.visit):
            reference = episodes[run.id].reference_path
            path = tuple(viewpoint for viewpoint, _, _ in run.trajectory)
            for label, applies in zip(
                labels,
                (
                    run.path not in told,
                    reference not in walked,
                    not set(reference) <= visited,
                    reference[-1] not in visited,
                    *(low <= run.visit <= high for low, high in VISITS),
                ),
                strict=True,
            ):
                subsets[label] += [run.id] if applies else []
            told.add(run.path)
            visited.update(path)
            walked.add(path)
    return {label: ids for label, ids in subsets.items() if ids}


if __name__ == "__main__":
    main(sys.argv[1:])
