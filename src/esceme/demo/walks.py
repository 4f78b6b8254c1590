"""Walks that are worth a picture: those in which a memory helped most, and what it held when they began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from esceme.evaluation.result import EpisodeResult, Result
from esceme.files import read_bytes
from esceme.report import PathOverlay, Sign, draw_panorama, draw_scene
from esceme.tasks.episode import Episode
from esceme.world.graph import SceneGraph

SHOWN = 3
LABELS = {"none": "without memory", "cold": "with memory (cold)"}
"""The walkers that are drawn, and what they are called."""


def telling(results: Mapping[str, Result], count: int = SHOWN) -> list[str]:
    """The episodes whose SPL a cold memory raised most, of different scenes as far as there are such.

    First come those in which only the agent that remembers arrives: neither the one without memory does, nor
    the same weights where they remember nothing of earlier walks.
    """
    without = [
        {each.id: each.scores for each in results[memory].episodes}
        for memory in ("none", "episodic")
        if memory in results
    ]

    def help_in(each: EpisodeResult) -> tuple[float, ...]:
        return tuple(
            each.scores[name] - max(scores[each.id][name] for scores in without) for name in ("sr", "spl")
        )

    ranked = sorted(results["cold"].episodes, key=help_in, reverse=True)
    of_scene = {each.scene: each.id for each in reversed(ranked)}.values()  # the first that are ranked
    of_path = {each.path: each.id for each in reversed(ranked)}.values()
    ranked.sort(key=lambda each: (each.id not in of_scene, each.id not in of_path))
    return [each.id for each in ranked[:count]]


def remembered_before(result: Result, episode: str) -> list[str]:
    """The viewpoints that a cold memory held when an episode began: where earlier walks there decided."""
    asked = _find(result, episode)
    earlier = [each for each in result.episodes if each.scene == asked.scene and each.visit < asked.visit]
    held = (viewpoint for each in earlier for viewpoint, _, _ in each.trajectory[: each.decisions])
    return sorted(set(held))


def draw_walk(graph: SceneGraph, episode: Episode, results: Mapping[str, Result]) -> str:
    """An episode from above: the reference path, where both agents went, and what was remembered, as SVG."""
    lived = {memory: _find(results[memory], episode.episode_id) for memory in LABELS}
    routes = [
        PathOverlay(label, tuple(viewpoint for viewpoint, _, _ in lived[memory].trajectory), "predicted")
        for memory, label in LABELS.items()
    ]
    return draw_scene(
        graph,
        [PathOverlay("reference path", episode.reference_path, "reference"), *routes],
        title=f"{graph.scene_id}, episode {episode.episode_id}: walk {lived['cold'].visit} in this house",
        caption=episode.instruction,
        remembered=remembered_before(results["cold"], episode.episode_id),
    )


def draw_parting(world: Path, graph: SceneGraph, episode: Episode, results: Mapping[str, Result]) -> str:
    """What both agents see where they part, with a sign at each candidate, as SVG."""
    lived = {memory: _find(results[memory], episode.episode_id) for memory in LABELS}
    steps = {LABELS[memory]: [pose[0] for pose in each.trajectory] for memory, each in lived.items()}
    step = _parting(*steps.values())
    here = steps[LABELS["cold"]][step]
    known = {*remembered_before(results["cold"], episode.episode_id), *steps[LABELS["cold"]][:step]}
    candidates = graph.candidates(here)
    labels = {each.viewpoint: f"{place}" for place, each in enumerate(candidates, 1)}
    chosen = {who: labels[path[step + 1]] if step + 1 < len(path) else "STOP" for who, path in steps.items()}
    return draw_panorama(
        read_bytes(world / "panoramas" / graph.scene_id / f"{here}.jpg"),
        [
            Sign(labels[each.viewpoint], each.heading, each.elevation, each.viewpoint in known)
            for each in candidates
        ],
        title=f"{graph.scene_id}, episode {episode.episode_id}, decision {step + 1}: "
        + ", ".join(f"{who} {choice}" for who, choice in chosen.items()),
        caption=episode.instruction,
    )


def _parting(first: Sequence[str], second: Sequence[str]) -> int:
    """The step at which two paths from one viewpoint are last at the same.

    >>> _parting(["hall", "den", "bath"], ["hall", "den", "attic"]), _parting(["hall"], ["hall", "den"])
    (1, 0)
    """
    apart = (step for step, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    return next(apart, min(len(first), len(second))) - 1


def _find(result: Result, episode: str) -> EpisodeResult:
    return next(each for each in result.episodes if each.id == episode)
