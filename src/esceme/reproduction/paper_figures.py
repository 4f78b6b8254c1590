"""Targets for the figures of the paper, drawn from evaluations of small agents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

from esceme.evaluation import average_results, read_result
from esceme.evaluation.history import MemoryHistory
from esceme.recipes import SMALL_READER
from esceme.report.charts import plot_curves
from esceme.report.episode_figure import draw_episode
from esceme.report.figure_files import write_figure
from esceme.report.graph_encoding_figure import draw_graph_encoding
from esceme.report.memory_figure import draw_memory, moments_after, moments_of_steps
from esceme.report.progress_curves import AXIS_LABELS, ProgressAxis, measure_label, progress_curves
from esceme.report.result_set import load_results
from esceme.report.selection import RULE_TEXTS, SelectionRule, select_by_rule
from esceme.reproduction.small_agents import DataKind, small_agent
from esceme.reproduction.targets import Row, Target
from esceme.world.graph import SceneGraph

NUM_EPISODES = 3
"""Number of episodes of qualitative figures."""
SUFFIXES = (".svg", ".pdf")
ENCODED_EPISODE = 10
"""Number of the episode of its scene at whose end graph encoding is drawn."""
MOMENTS = (1, 5, 20, 1_000_000)
"""Numbers of episodes after which a memory is drawn; the last means all episodes."""
CURVES = {"r2r": ("spl",), "r4r": ("spl", "cls"), "cvdn": ("gp",)}
"""Task -> measures over the progress of its split."""
Folders = Mapping[str, Sequence[Path]]
"""Row -> folders of its evaluations, one per seed."""


def _agents(*tasks: str) -> Callable[[DataKind], list[Row]]:
    """Return rows of an agent without memory and an agent with memory on each task."""

    def rows(kind: DataKind) -> list[Row]:
        found = []
        for task in tasks:
            none = Row(name=f"none ({task.upper()})", agent=small_agent(kind, task=task))
            agent = small_agent(kind, SMALL_READER, task=task)
            measures = tuple(dict.fromkeys((*CURVES[task], "sr")))
            cold = Row(name=f"cold ({task.upper()})", agent=agent, memory="cold", against=none.name)
            found += [replace(row, measures=measures) for row in (none, cold)]
        return found

    return rows


def _largest_memory(folders: Folders, data: Path) -> tuple[SceneGraph, MemoryHistory]:
    """Return the graph of the scene with most episodes, and the history of its memory."""
    results = load_results([folders["cold (R2R)"][0]], data)
    counts = Counter(episode.scene for episode in results.results[0].episodes)
    scene = max(sorted(counts), key=lambda name: counts[name])
    return results.split.graphs[scene], results.histories[0][scene]


def _draw_graph_encoding(folders: Folders, data: Path, out: Path) -> dict[str, str]:
    """Draw graph encoding at the last step of the tenth episode of a scene."""
    graph, history = _largest_memory(folders, data)
    episode = min(ENCODED_EPISODE, len(history.stored)) - 1
    _write(draw_graph_encoding(graph, history, episode, len(history.stored[episode]) - 1), out / "encoding")
    return {"encoding": f"Graph encoding of the memory of {graph.scene_id}"}


def _draw_memory(folders: Folders, data: Path, out: Path) -> dict[str, str]:
    """Draw the memory of the scene with most episodes at steps of two episodes, and after many episodes."""
    graph, history = _largest_memory(folders, data)
    scene = graph.scene_id
    drawings = {
        "steps": (moments_of_steps(history), f"Memory of {scene} at steps of two episodes"),
        "episodes": (moments_after(history, MOMENTS), f"Memory of {scene} after several episodes"),
    }
    for name, (moments, title) in drawings.items():
        _write(draw_memory(graph, moments, title=title), out / name)
    return {name: title for name, (_, title) in drawings.items()}


def _draw_curves(folders: Folders, data: Path, out: Path) -> dict[str, str]:
    """Draw scores, averaged over seeds, over the share of episodes and over the number of the visit."""
    titles = {}
    for task, measures in CURVES.items():
        names = [f"{memory} ({task.upper()})" for memory in ("none", "cold")]
        if any(name not in folders for name in names):
            continue
        results = [average_results([read_result(path) for path in folders[name]]) for name in names]
        for measure in measures:
            axes: tuple[ProgressAxis, ...] = get_args(ProgressAxis)
            for axis in axes:
                curves = progress_curves(["none", "cold"], results, measure=measure, axis=axis)
                name, title = f"{task}-{measure}-{axis}", f"{measure.upper()} on {task.upper()} val_unseen"
                for suffix in SUFFIXES:
                    plot_curves(
                        curves,
                        out / f"{name}{suffix}",
                        title=title,
                        x_label=AXIS_LABELS[axis],
                        y_label=measure_label(measure),
                    )
                titles[name] = title
    return titles


def _draw_episodes(*rules: SelectionRule) -> Callable[[Folders, Path, Path], dict[str, str]]:
    """Return a function that draws the episodes that rules select, with and without memory."""

    def draw(folders: Folders, data: Path, out: Path) -> dict[str, str]:
        paths = [folders[f"{memory} (R2R)"][0] for memory in ("none", "cold")]
        results, titles = load_results(paths, data, names=("none", "cold")), dict[str, str]()
        for rule in rules:
            for number, episode in enumerate(select_by_rule(results.results, rule, NUM_EPISODES), 1):
                _write(draw_episode(results, episode), out / f"{rule}-{number}")
                titles[f"{rule}-{number}"] = f"Episode {episode}. Rule `{rule}`: {RULE_TEXTS[rule]}."
        return titles

    return draw


def _write(drawing: str, path: Path) -> None:
    for suffix in SUFFIXES:
        write_figure(drawing, path.with_suffix(suffix))


_figure = partial(Target, kind="figure", rows=_agents("r2r"))
PAPER_FIGURES = (
    _figure(name="fig:memory", title="Construction of the scene memory (Figure 3)", draw=_draw_memory),
    _figure(
        name="fig:ge",
        title="Graph encoding of a scene memory (appendix A)",
        about="The memory is that of an evaluation of candidate enhancing: both readers build it alike.",
        draw=_draw_graph_encoding,
    ),
    _figure(
        name="fig:curves",
        title="Scores over the progress of a split",
        rows=_agents(*CURVES),
        draw=_draw_curves,
    ),
    _figure(name="fig:qualitative", title="Episodes in which memory helps", draw=_draw_episodes("helped")),
    _figure(
        name="fig:failures",
        title="Episodes in which the agent with memory fails, or memory does harm",
        draw=_draw_episodes("failures", "hurt"),
    ),
)
