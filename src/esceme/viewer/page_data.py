"""Data of the page: scenes, episodes, trajectories and decisions of several results, as compact JSON.

`web/types.js` describes the same fields for the code of the page. A viewpoint is given by its index in its
scene.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from esceme import __version__
from esceme.evaluation.history import MemoryHistory
from esceme.evaluation.result import RESULT, EpisodeResult
from esceme.evaluation.trace import TRACE, EpisodeTrace, TraceStep, read_trace
from esceme.files import read_json
from esceme.report.floors import floor_heights, floor_indices
from esceme.report.progress_curves import AXIS_LABELS, measure_label, progress_curve
from esceme.report.result_set import ResultSet
from esceme.tasks.episode import Episode
from esceme.tasks.file_checks import Rooms
from esceme.tasks.folder import DataFolder
from esceme.world.geometry import nearest_view
from esceme.world.graph import SceneGraph

FORMAT = "esceme-page-1"
MEASURES = ("sr", "spl", "ne", "tl", "osr", "ndtw", "sdtw", "cls", "gp")
"""Measures of an episode that the page shows, where they are known."""
CURVE_MEASURES = ("spl", "sr", "cls", "ndtw", "gp")
CURVE_DRAWS = 200
"""Number of bootstrap samples of the bands of curves."""
PROBABILITY_UNIT = 10_000
"""Probabilities and attention weights are integers in this unit."""
FACTS = ("agent", "reader", "memory", "schedule", "order", "seed", "max_steps", "version")
"""Facts of a result that the page shows."""


class PageScene(msgspec.Struct):
    """Navigation graph of a scene."""

    id: str
    viewpoints: list[str]
    positions: list[int]
    """x, y and z of every viewpoint in centimetres, one after the other."""
    floors: list[int]
    """Floor of every viewpoint."""
    heights: list[int]
    """Height of every floor in centimetres."""
    neighbours: list[list[int]]
    """Candidates of every viewpoint, in the order of the actions."""
    rooms: list[int] | None
    """Kind of room of every viewpoint: index into `PageData.rooms`; -1 where it is not known."""
    regions: list[int] | None
    """Number of the room of every viewpoint in its scene, from 0; -1 where it is not known."""


class PageEpisode(msgspec.Struct):
    """Instruction with its reference path."""

    id: str
    scene: int
    path: str
    instruction: str
    reference: list[int]
    view: int
    """View that the agent faces at the start."""
    goals: list[int]
    """Viewpoints at which stopping is a success; empty if they are withheld."""
    instruction_number: int
    """Number of this instruction among those of its path, in the order of the first result, from 1."""


class PageStep(msgspec.Struct, array_like=True):
    """One decision of an agent: see `TraceStep`."""

    probabilities: list[int]
    masked: list[int] | None
    action: int
    recalled: list[int]
    attention: list[int] | None
    routes: list[int]
    details: Any


class PageTrajectory(msgspec.Struct):
    """Trajectory of an agent in one episode."""

    visit: int
    order: int
    """Number of the episode in its scene, in the order of the evaluation, from 0."""
    poses: list[int]
    """Viewpoint and view at the start and after every move, one after the other."""
    stopped: bool
    scores: list[float | None]
    spans: list[int] | None = None
    """Begin and end of every token in the instruction, one after the other; -1 where it is not found."""
    steps: list[PageStep | None] | None = None
    """Decision at every pose; None at poses that the agent only passed."""


class PageHistory(msgspec.Struct):
    """Memory of one scene in one result: see `MemoryHistory`."""

    episodes: list[int]
    """Episodes in the order of the evaluation."""
    stored: list[list[int]]
    cleared: list[int]
    initial: list[int]


class PageResult(msgspec.Struct):
    """One result: trajectories by episode, and the histories of its memories by scene."""

    name: str
    has_memory: bool
    facts: dict[str, Any]
    means: dict[str, float]
    trajectories: list[PageTrajectory]
    histories: list[PageHistory]


class PageCurve(msgspec.Struct):
    """Measure over progress, one line per result."""

    measure: str
    axis: str
    x_label: str
    y_label: str
    lines: list[dict[str, list[float]]]


class PageData(msgspec.Struct, kw_only=True):
    """Everything on the page."""

    format: str = FORMAT
    version: str = __version__
    task: str
    split: str
    measures: list[str]
    rooms: list[str]
    scenes: list[PageScene]
    episodes: list[PageEpisode]
    results: list[PageResult]
    curves: list[PageCurve]
    left_out: int = 0
    """Number of episodes that are not in every result."""
    pictures: dict[str, str] = {}
    """`<scene number>/<viewpoint number>` -> JPEG as base64."""
    live: dict[str, Any] | None = None
    """Settings of the live page; None for a page of results."""


def build_page_data(results: ResultSet) -> PageData:
    """Return the data of a page that shows results side by side, without pictures."""
    common = set.intersection(*({*episodes} for episodes in results.by_id))
    ids = [episode.id for episode in results.results[0].episodes if episode.id in common]
    episodes = [results.episodes[name] for name in ids]
    scene_ids = sorted({episode.scene_id for episode in episodes})
    graphs = {scene: results.split.graphs[scene] for scene in scene_ids}
    rooms = RoomNames(results.folder, graphs)
    measures = [
        name for name in MEASURES if all(name in result.episodes[0].scores for result in results.results)
    ]
    facts = results.results[0].facts
    return PageData(
        task=str(facts.get("task")),
        split=str(facts.get("split")),
        measures=measures,
        rooms=rooms.names,
        scenes=[page_scene(graph, rooms) for graph in graphs.values()],
        episodes=page_episodes(episodes, graphs),
        results=[
            _page_result(results, number, ids, graphs, measures) for number in range(len(results.names))
        ],
        curves=_page_curves(results),
        left_out=max(len(result.episodes) for result in results.results) - len(ids),
    )


class RoomNames:
    """Rooms of viewpoints as the data folder names them."""

    def __init__(self, folder: DataFolder, graphs: Mapping[str, SceneGraph]) -> None:
        """Read the rooms of scenes from a data folder; without a file of rooms there are none."""
        self._rooms: dict[str, dict[str, tuple[int, str]]] = {}
        if folder.rooms is not None:
            stored = read_json(folder.rooms, Rooms)
            self._rooms = {
                scene: {
                    name: (region, stored.label_name.get(label, label))
                    for name, (region, label, _) in names.items()
                }
                for scene, names in stored.panos.items()
                if scene in graphs
            }
        self.names = sorted({kind for rooms in self._rooms.values() for _, kind in rooms.values()})

    def of(self, graph: SceneGraph) -> tuple[list[int], list[int]] | tuple[None, None]:
        """Return the kind of every viewpoint's room (an index into `names`) and the number of this room.

        Both are -1 for a viewpoint without a room, and None if no room of the scene is known.
        """
        rooms = self._rooms.get(graph.scene_id)
        if rooms is None:
            return None, None
        kinds = {name: number for number, name in enumerate(self.names)}
        numbers = {region: number for number, region in enumerate(sorted({r for r, _ in rooms.values()}))}
        found = [rooms.get(name) for name in graph.viewpoints]
        return (
            [-1 if room is None else kinds[room[1]] for room in found],
            [-1 if room is None else numbers[room[0]] for room in found],
        )


def page_scene(graph: SceneGraph, rooms: RoomNames) -> PageScene:
    """Return the graph of a scene for the page."""
    heights = floor_heights(graph)
    kinds, regions = rooms.of(graph)
    return PageScene(
        id=graph.scene_id,
        viewpoints=list(graph.viewpoints),
        positions=np.round(100 * graph.positions).astype(int).ravel().tolist(),
        floors=floor_indices(graph).tolist(),
        heights=np.round(100 * (heights - heights[0])).astype(int).tolist(),
        neighbours=[
            row[:degree].tolist() for row, degree in zip(graph.neighbours, graph.degrees, strict=True)
        ],
        rooms=kinds,
        regions=regions,
    )


def page_episodes(episodes: Sequence[Episode], graphs: Mapping[str, SceneGraph]) -> list[PageEpisode]:
    """Return episodes for the page. `graphs` are the scenes of the page in their order."""
    numbers, instruction_counts = {scene: number for number, scene in enumerate(graphs)}, Counter[str]()
    found = []
    for episode in episodes:
        graph = graphs[episode.scene_id]
        instruction_counts[episode.path_id] += 1
        goals = () if episode.goal_withheld else episode.goals or (episode.goal,)
        found.append(
            PageEpisode(
                id=episode.episode_id,
                scene=numbers[episode.scene_id],
                path=episode.path_id,
                instruction=episode.instruction,
                reference=[graph.index(name) for name in episode.reference_path],
                view=int(nearest_view(episode.heading)),
                goals=[graph.index(name) for name in goals],
                instruction_number=instruction_counts[episode.path_id],
            )
        )
    return found


def _page_result(
    results: ResultSet,
    number: int,
    ids: Sequence[str],
    graphs: Mapping[str, SceneGraph],
    measures: Sequence[str],
) -> PageResult:
    result, path = results.results[number], results.paths[number]
    traces = read_traces(path)
    index = {name: position for position, name in enumerate(ids)}
    histories = results.histories[number]
    orders = {name: order for history in histories.values() for order, name in enumerate(history.episode_ids)}
    return PageResult(
        name=results.names[number],
        has_memory=result.facts.get("memory") != "none",
        facts={name: result.facts[name] for name in FACTS if name in result.facts},
        means={name: round(float(value), 5) for name, value in result.means.items()},
        trajectories=[
            page_trajectory(
                results.by_id[number][name],
                graphs[results.episodes[name].scene_id],
                measures,
                order=orders[name],
                instruction=results.episodes[name].instruction,
                trace=traces.get(name),
            )
            for name in ids
        ],
        histories=[_page_history(histories[scene], graph, index) for scene, graph in graphs.items()],
    )


def read_traces(path: Path) -> dict[str, EpisodeTrace]:
    """Return the traces beside a result file by episode id; empty if there is no trace."""
    if path.name != RESULT or not path.with_name(TRACE).is_file():
        return {}
    return {trace.id: trace for trace in read_trace(path.with_name(TRACE)).episodes}


def page_trajectory(
    episode: EpisodeResult,
    graph: SceneGraph,
    measures: Sequence[str],
    *,
    order: int,
    instruction: str,
    trace: EpisodeTrace | None,
) -> PageTrajectory:
    """Return a trajectory for the page, with its decisions if there is a trace."""
    views = nearest_view([pose[1] for pose in episode.trajectory], [pose[2] for pose in episode.trajectory])
    viewpoints = [graph.index(name) for name, _, _ in episode.trajectory]
    page = PageTrajectory(
        visit=episode.visit,
        order=order,
        poses=[value for pair in zip(viewpoints, views.tolist(), strict=True) for value in pair],
        stopped=episode.stopped,
        scores=[_rounded(episode.scores.get(name)) for name in measures],
    )
    if trace is not None:
        page.steps = align_steps(trace.steps, viewpoints, graph)
        if any(step.attention for step in trace.steps):
            page.spans = token_spans(trace.tokens, instruction)
    return page


def align_steps(
    steps: Sequence[TraceStep], viewpoints: Sequence[int], graph: SceneGraph
) -> list[PageStep | None]:
    """Return the decision at every pose of a trajectory; None where the agent passed without a decision.

    An agent that returns to an earlier viewpoint passes several poses after one decision.
    """
    aligned: list[PageStep | None] = [None] * len(viewpoints)
    pose = 0
    for step in steps:
        aligned[pose] = page_step(step, graph)
        route = step.action - len(step.candidates) - 1
        if route >= 0:
            target = graph.index(step.routes[route])
            pose = next((n for n in range(pose + 1, len(viewpoints)) if viewpoints[n] == target), pose)
        elif step.action < len(step.candidates):
            pose = min(pose + 1, len(viewpoints) - 1)
    return aligned


def page_step(step: TraceStep, graph: SceneGraph) -> PageStep:
    """Return a decision for the page."""
    return PageStep(
        probabilities=_integers(step.probabilities),
        masked=None if step.masked is None else _integers(step.masked),
        action=step.action,
        recalled=[graph.index(name) for name in step.recalled],
        attention=None if step.attention is None else _integers(step.attention),
        routes=[graph.index(name) if name else -1 for name in step.routes],
        details=page_details(step.details, graph),
    )


def page_details(details: Mapping[str, Any], graph: SceneGraph) -> Any:
    """Return the details of a decision, with the viewpoints of compared routes as numbers; None without any.

    A planning agent describes each route as `{"path": [viewpoint, ...], "probability": ..., ...}`.
    """
    if not details:
        return None
    routes = details.get("routes")
    if not isinstance(routes, list):
        return dict(details)
    numbered = [
        {**route, "path": [graph.index(name) for name in route["path"] if name in graph]}
        for route in routes
        if isinstance(route, dict) and isinstance(route.get("path"), list)
    ]
    return {**details, "routes": numbered}


def token_spans(tokens: Sequence[str], text: str) -> list[int]:
    """Return begin and end of every token in a text, one after the other; -1, -1 for special tokens.

    >>> token_spans(["[CLS]", "turn", "slight", "##ly", "left", "[SEP]"], "Turn slightly left.")
    [-1, -1, 0, 4, 5, 11, 11, 13, 14, 18, -1, -1]
    """
    lower, position, spans = text.lower(), 0, list[int]()
    if len(lower) != len(text):  # letters whose lower case has another length
        return [-1] * (2 * len(tokens))
    for token in tokens:
        word = token.removeprefix("##").lower()
        begin = lower.find(word, position) if word and not token.startswith(("[", "<")) else -1
        if begin < 0 or begin - position > 40:  # a token that the text does not have
            spans += [-1, -1]
            continue
        position = begin + len(word)
        spans += [begin, position]
    return spans


def _page_history(history: MemoryHistory, graph: SceneGraph, index: Mapping[str, int]) -> PageHistory:
    return PageHistory(
        episodes=[index.get(name, -1) for name in history.episode_ids],
        stored=[[graph.index(name) for name in stored] for stored in history.stored],
        cleared=sorted(history.cleared),
        initial=sorted(graph.index(name) for name in history.initial),
    )


def _page_curves(results: ResultSet) -> list[PageCurve]:
    """Return the curves of all measures that every result has, over both axes."""
    if not all(result.means for result in results.results):
        return []
    curves = []
    for measure in CURVE_MEASURES:
        if any(measure not in result.episodes[0].scores for result in results.results):
            continue
        for axis, x_label in AXIS_LABELS.items():
            lines = []
            for name, result in zip(results.names, results.results, strict=True):
                curve = progress_curve(name, result, measure=measure, axis=axis, draws=CURVE_DRAWS)
                rows = {"x": curve.xs, "y": curve.ys, "low": curve.low or (), "high": curve.high or ()}
                lines.append({key: [round(float(v), 2) for v in values] for key, values in rows.items()})
            curves.append(PageCurve(measure, axis, x_label, measure_label(measure), lines))
    return curves


def _integers(values: Sequence[float]) -> list[int]:
    return [round(PROBABILITY_UNIT * value) for value in values]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
