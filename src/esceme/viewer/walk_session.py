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
    PageHistory,
    PageResult,
    PageStep,
    RoomNames,
    page_episodes,
    page_scene,
    page_step,
    token_spans,
)
from esceme.world.graph import SceneGraph

MAX_INSTRUCTION = 2000
"""Maximum number of letters of a typed instruction."""
MAX_PATH = 200
"""Maximum number of viewpoints of a path that a person walks."""
Number = Annotated[int, msgspec.Meta(ge=0, lt=1_000_000)]
AGENT, PERSON = 0, 1
"""Numbers of the results on the live page."""


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


class BeginReply(msgspec.Struct):
    """First pose of a walk, and the positions of the tokens in its instruction."""

    viewpoint: int
    view: int
    spans: list[int] | None


class StepReply(msgspec.Struct):
    """One decision of the agent, and the poses to which it led."""

    step: PageStep
    moves: list[int]
    """Viewpoint and view of the poses that the action led through, one after the other."""
    stored: int | None
    """Viewpoint that the memory stored at this step; None if it stored none."""
    finished: bool
    stopped: bool
    scores: list[float | None]
    """Scores at the end of an episode of the split; empty otherwise."""


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
        self._num_poses = 0

    @property
    def has_memory(self) -> bool:
        """Whether the agent has a memory."""
        return self.lifetime.bank is not None

    def page_data(self, token: str, *, can_save: bool) -> PageData:
        """Return the data of the live page, without any walk. Requests must carry `token`."""
        rooms = RoomNames(self.folder, self.graphs)
        config = self.context.config
        names = [Path(config.run).name if self.has_agent else "no agent", "you"]
        bank = self.lifetime.bank
        return PageData(
            task=self.context.task.name,
            split=config.split,
            measures=list(MEASURES),
            rooms=rooms.names,
            scenes=[page_scene(graph, rooms) for graph in self.graphs.values()],
            episodes=page_episodes(self.context.episodes, self.graphs),
            results=[
                PageResult(
                    name=name,
                    has_memory=number == AGENT and self.has_memory,
                    facts={},
                    means={},
                    trajectories=[],
                    histories=[
                        PageHistory([], [], [], self._remembered(graph) if number == AGENT and bank else [])
                        for graph in self.graphs.values()
                    ],
                )
                for number, name in enumerate(names)
            ],
            curves=[],
            live={
                "token": token,
                "agent": self.has_agent,
                "memory": self.has_memory,
                "saveable": can_save and self.has_memory,
            },
        )

    def _remembered(self, graph: SceneGraph) -> list[int]:
        bank = self.lifetime.bank
        if bank is None or graph.scene_id not in bank.scenes:
            return []
        return sorted(graph.index(name) for name in bank[graph.scene_id].viewpoints)

    # -- walks -------------------------------------------------------------------------------------------

    def begin(self, request: BeginRequest) -> BeginReply:
        """Start a walk of the agent; a walk that has not ended is given up."""
        if not self.has_agent:
            raise ConfigError("there is no agent; start `esceme walk RUN` with a run folder")
        episode = self._episode(request)
        if self.context.run.navigator.agent.needs_goals and episode.goal_withheld:
            raise ConfigError("this scripted agent needs a goal; choose an episode of the list")
        source = SingleBatch(self.context.atlas, [episode])
        trajectory = source.trajectories[0]
        if request.episode is None:
            viewpoint = trajectory.poses[0][0]
            trajectory.poses[0] = (viewpoint, request.view)
        self._num_poses = 1
        ids = self.context.encode(episode)
        self.lifetime.begin(trajectory)
        self._steps = evaluation_steps(
            self._navigator,
            self.context.atlas,
            source,
            self.lifetime.memory,
            encode=self.context.encode,
            max_steps=self.context.limits.max_steps,
        )
        graph = self.graphs[episode.scene_id]
        tokens = None if self._tokenizer is None else self._tokenizer.tokens(ids)
        return BeginReply(
            viewpoint=graph.index(episode.start),
            view=trajectory.poses[0][1],
            spans=None if tokens is None else token_spans(tokens, episode.instruction),
        )

    def step(self) -> StepReply:
        """Let the agent take one decision."""
        if self._steps is None:
            raise ConfigError("no walk has begun, or it has ended; begin another one")
        step = next(self._steps)
        trajectory, fields = step.trajectories[0], self._navigator.steps[0]
        graph = self.graphs[trajectory.episode.scene_id]
        trace = TraceStep(**fields, action=trajectory.actions[-1])
        moves = trajectory.poses[self._num_poses :]
        self._num_poses = len(trajectory.poses)
        finished = bool(step.finished)
        if finished:
            self._steps = None
            self.lifetime.finish(trajectory)
        return StepReply(
            step=page_step(trace, graph),
            moves=[value for viewpoint, view in moves for value in (self._number(graph, viewpoint), view)],
            stored=graph.index(trace.remembered[0]) if trace.remembered else None,
            finished=finished,
            stopped=trajectory.stopped,
            scores=self._scores(trajectory) if finished else [],
        )

    def clear(self) -> None:
        """Clear the memory of all scenes; a walk that has not ended is given up."""
        self._steps = None
        if self.lifetime.bank is not None:
            self.lifetime.bank.forget()

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
            episode_id="live",
            scene_id=graph.scene_id,
            path_id="live",
            reference_path=(graph.viewpoints[request.start],),
            heading=0.0,
            instruction=request.instruction,
            goal_withheld=True,
        )

    def _number(self, graph: SceneGraph, viewpoint: int) -> int:
        return graph.index(self.context.atlas.name(viewpoint)[1])

    def _scores(self, trajectory: Trajectory) -> list[float | None]:
        if trajectory.episode.goal_withheld:
            return []
        scores = score_trajectories(
            [trajectory], self.context.atlas, self.context.task, objects=self._objects
        )
        values = {name: float(column[0]) for name, column in scores.values.items()}
        return [None if name not in values else round(values[name], 4) for name in MEASURES]
