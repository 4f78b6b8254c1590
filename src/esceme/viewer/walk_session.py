"""Live walks: an agent follows instructions in a world step by step, and keeps its memory between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from esceme.errors import ConfigError
from esceme.evaluation.context import EvaluationConfig, EvaluationContext, load_context
from esceme.evaluation.inference import evaluation_steps
from esceme.evaluation.result import load_objects, score_trajectories
from esceme.evaluation.trace import TraceStep
from esceme.evaluation.tracing import TracingNavigator
from esceme.memory import save_bank
from esceme.rollout import RolloutStep
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.split import find_tokenizer
from esceme.tasks.text import Vocabulary
from esceme.trajectory import SingleBatch, Trajectory
from esceme.viewer.page_data import (
    MEASURES,
    PageData,
    PageEpisode,
    PageHistory,
    PageResult,
    PageTrajectory,
    RoomNames,
    align_steps,
    page_episodes,
    page_scene,
    token_spans,
)
from esceme.world.geometry import COLUMNS, TURN
from esceme.world.graph import SceneGraph

MAX_INSTRUCTION = 2000
"""Maximum number of characters of a typed instruction."""
MAX_PATH = 200
"""Maximum number of viewpoints of a path that a person walks."""
Number = Annotated[int, msgspec.Meta(ge=0, lt=1_000_000)]


class BeginRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Start of a walk: an episode of the split, or an instruction at any viewpoint."""

    scene: Number
    start: Number
    view: Annotated[int, msgspec.Meta(ge=0, lt=36)]
    instruction: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_INSTRUCTION)]
    episode: Annotated[str, msgspec.Meta(max_length=200)] | None = None


class ScoreRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Path that a person walked in an episode of the split."""

    episode: Annotated[str, msgspec.Meta(max_length=200)]
    path: Annotated[list[Number], msgspec.Meta(min_length=1, max_length=MAX_PATH)]


class StepRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Next decision of a walk."""

    walk: Number


class StepReply(msgspec.Struct):
    """The walk so far."""

    trajectory: PageTrajectory
    stored: list[int]
    """Viewpoints that the walk stored in memory, as in `PageHistory.stored`."""
    finished: bool


class WalkRecord(msgspec.Struct):
    """All walks of the agent since the server started or the memory was cleared."""

    walk: int
    """Number of the latest walk. A walk ends when another one begins."""
    episode: int
    """Number of its episode on the page; -1 without a walk."""
    typed: list[PageEpisode]
    """Typed instructions, which follow the episodes of the split."""
    trajectories: dict[int, PageTrajectory]
    """Latest trajectory by the number of its episode."""
    histories: list[PageHistory]
    """Memory of every scene."""


class WalkSession:
    """Session in the scenes of one split, with or without an agent. Memory is kept between walks."""

    def __init__(self, config: EvaluationConfig, *, has_agent: bool = True) -> None:
        """Load the navigator and the split of an evaluation. Without an agent, only people walk."""
        self.context: EvaluationContext = load_context(config)
        self.has_agent = has_agent
        self.lifetime = self.context.lifetime()
        split = {episode.scene_id: None for episode in self.context.episodes}
        self.graphs: dict[str, SceneGraph] = {
            scene: self.context.atlas.graph(scene) for scene in sorted(split)
        }
        self.folder = DataFolder(config.data)
        self._objects = load_objects(self.folder, self.context.task)
        self._navigator = TracingNavigator(
            self.context.run.navigator, self.context.atlas, self.lifetime.bank
        ).eval()
        self._tokenizer = find_tokenizer(
            self.folder,
            None if self.context.run.vocabulary is None else Vocabulary.read(self.context.run.vocabulary),
            self.context.run.config.agent.limits.vocabulary,
        )
        self._steps: Iterator[RolloutStep] | None = None
        self._traces: list[TraceStep] = []
        self._numbers = {episode.episode_id: number for number, episode in enumerate(self.context.episodes)}
        self.record = WalkRecord(0, -1, [], {}, self._new_histories())

    @property
    def has_memory(self) -> bool:
        """Whether the agent has a memory."""
        return self.lifetime.bank is not None

    def page_data(self, *, can_save: bool) -> PageData:
        """Return the data of the live page: the split, and in `live` all walks up to now."""
        rooms = RoomNames(self.folder, self.graphs)
        config = self.context.config
        graphs = list(self.graphs.values())
        return PageData(
            task=self.context.task.name,
            split=config.split,
            measures=list(MEASURES),
            rooms=rooms.names,
            scenes=[page_scene(graph, rooms) for graph in graphs],
            episodes=page_episodes(self.context.episodes, self.graphs),
            results=[
                PageResult(
                    name=name,
                    has_memory=name == "agent" and self.has_memory,
                    facts={"run": config.run} if name == "agent" else {},
                    means={},
                    trajectories=[],
                    histories=[PageHistory([], [], [], []) for _ in graphs],
                )
                for name in (["agent"] if self.has_agent else []) + ["you"]
            ],
            curves=[],
            pictures={
                f"{scene}/{number}": ""
                for scene, graph in enumerate(graphs)
                for number, name in enumerate(graph.viewpoints)
                if self.folder.panorama(graph.scene_id, name) is not None
            },
            live={
                "agent": self.has_agent,
                "memory": self.has_memory,
                "saveable": can_save and self.has_memory,
                "record": self.record,
            },
        )

    def _new_histories(self) -> list[PageHistory]:
        return [PageHistory([], [], [], self._remembered(graph)) for graph in self.graphs.values()]

    def _remembered(self, graph: SceneGraph) -> list[int]:
        bank = self.lifetime.bank
        if bank is None or graph.scene_id not in bank.scenes:
            return []
        return sorted(graph.index(name) for name in bank[graph.scene_id].viewpoints)

    # -- walks -------------------------------------------------------------------------------------------

    def begin(self, request: BeginRequest) -> WalkRecord:
        """Start a walk of the agent; a walk that has not ended is given up."""
        if not self.has_agent:
            raise ConfigError("there is no agent; start `esceme walk RUN` with a run folder")
        episode, record = self._episode(request), self.record
        if self.context.run.navigator.agent.needs_goals and episode.goal_withheld:
            raise ConfigError("this scripted agent needs a goal; choose an episode of the list")
        ids = self.context.encode(episode)
        source = SingleBatch(self.context.atlas, [episode])
        trajectory = source.trajectories[0]
        self.lifetime.begin(trajectory)
        self._traces = []
        self._steps = evaluation_steps(
            self._navigator,
            self.context.atlas,
            source,
            self.lifetime.memory,
            encode=self.context.encode,
            max_steps=self.context.limits.max_steps,
        )
        if request.episode is None:
            record.typed += page_episodes([episode], self.graphs)
        number = self._numbers.get(episode.episode_id, len(self._numbers) + len(record.typed) - 1)
        history = record.histories[list(self.graphs).index(episode.scene_id)]
        history.episodes.append(number)
        history.stored.append([])
        tokens = None if self._tokenizer is None else self._tokenizer.tokens(ids)
        record.trajectories[number] = PageTrajectory(
            visit=len(history.episodes),
            order=len(history.episodes) - 1,
            poses=self._poses(trajectory),
            stopped=False,
            scores=[],
            spans=None if tokens is None else token_spans(tokens, episode.instruction),
            steps=[],
        )
        record.walk, record.episode = record.walk + 1, number
        return record

    def step(self, request: StepRequest) -> StepReply:
        """Let the agent take one decision."""
        record = self.record
        if self._steps is None or request.walk != record.walk:
            raise ConfigError("this walk has ended: it was finished, or another page began a walk")
        step = next(self._steps)
        trajectory, fields = step.trajectories[0], self._navigator.steps[0]
        self._traces.append(TraceStep(**fields, action=trajectory.actions[-1]))
        page, graph = record.trajectories[record.episode], self.graphs[trajectory.episode.scene_id]
        page.poses, page.stopped = self._poses(trajectory), trajectory.stopped
        page.steps = align_steps(self._traces, page.poses[::2], graph)
        stored = [self._number(viewpoint) for viewpoint in trajectory.decision_viewpoints]
        history = record.histories[list(self.graphs).index(graph.scene_id)]
        history.stored[page.order] = stored if self.has_memory else []
        if step.finished:
            self._steps = None
            self.lifetime.finish(trajectory)
            page.scores = self._scores(trajectory)
        return StepReply(page, history.stored[page.order], finished=bool(step.finished))

    def clear(self) -> WalkRecord:
        """Clear the memory of all scenes, and forget all walks; one that has not ended is given up."""
        self._steps = None
        if self.lifetime.bank is not None:
            self.lifetime.bank.forget()
        self.record = WalkRecord(self.record.walk + 1, -1, [], {}, self._new_histories())
        return self.record

    def save(self, path: Path) -> None:
        """Save the memory to a file, which is replaced."""
        if self.lifetime.bank is None:
            raise ConfigError("this agent has no memory")
        save_bank(self.lifetime.bank, path, overwrite=True)

    def score(self, request: ScoreRequest) -> list[float | None]:
        """Return the scores of the path that a person walked, in the order of `MEASURES`."""
        episode = self._find(request.episode)
        graph = self.graphs[episode.scene_id]
        if max(request.path) >= len(graph) or graph.viewpoints[request.path[0]] != episode.start:
            raise ConfigError(f"path: expected viewpoints of {episode.scene_id} from the episode's start")
        names = [graph.viewpoints[number] for number in request.path]
        for here, after in zip(names, names[1:], strict=False):
            if here != after and not graph.adjacent(here, after):
                raise ConfigError(f"path: no edge leads from '{here}' to '{after}'")
        trajectory = Trajectory.begin(self.context.atlas, episode)
        located = self.context.atlas.locate(episode.scene_id, names).tolist()
        trajectory.poses = [(viewpoint, 0) for viewpoint in located]
        trajectory.stopped = True
        return self._scores(trajectory)

    # -- parts -------------------------------------------------------------------------------------------

    def _find(self, episode_id: str) -> Episode:
        episode = self.context.by_id.get(episode_id)
        if episode is None:
            raise ConfigError(f"no episode '{episode_id}' in {self.context.config.split}")
        return episode

    def _episode(self, request: BeginRequest) -> Episode:
        """Return the episode that a request names, or one with the typed instruction and without a goal."""
        if request.episode is not None:
            return self._find(request.episode)
        if request.scene >= len(self.graphs):
            raise ConfigError(f"scene {request.scene}: expected less than {len(self.graphs)}")
        graph = list(self.graphs.values())[request.scene]
        if request.start >= len(graph):
            raise ConfigError(f"start {request.start}: expected less than {len(graph)}")
        return Episode(
            episode_id=f"typed-{len(self.record.typed) + 1}",
            scene_id=graph.scene_id,
            path_id="typed",
            reference_path=(graph.viewpoints[request.start],),
            heading=request.view % COLUMNS * TURN,
            instruction=request.instruction,
            goal_withheld=True,
        )

    def _poses(self, trajectory: Trajectory) -> list[int]:
        return [value for viewpoint, view in trajectory.poses for value in (self._number(viewpoint), view)]

    def _number(self, viewpoint: int) -> int:
        scene, name = self.context.atlas.name(viewpoint)
        return self.graphs[scene].index(name)

    def _scores(self, trajectory: Trajectory) -> list[float | None]:
        if trajectory.episode.goal_withheld:
            return []
        scores = score_trajectories(
            [trajectory], self.context.atlas, self.context.task, objects=self._objects
        )
        values = {name: float(column[0]) for name, column in scores.values.items()}
        return [None if name not in values else round(values[name], 4) for name in MEASURES]
