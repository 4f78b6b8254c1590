"""Computation of a trace: finished episodes are run again, with their recorded actions, one at a time.

The trajectories therefore cannot change, and the trace depends on neither batch size nor processes: outputs
of a network differ in their last bits if other episodes are in the batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from esceme.agents.base import Decision, PrivilegedInfo, State, TokenBatch
from esceme.errors import EvaluationError
from esceme.evaluation.context import EvaluationContext
from esceme.evaluation.inference import evaluation_steps
from esceme.evaluation.journal import JournalEntry, finished_batches, finished_in_lanes
from esceme.evaluation.protocol import MemoryLifetime
from esceme.evaluation.schedule import Interleaved, Lanes, ReleasedOrder
from esceme.evaluation.trace import EpisodeTrace, TraceStep
from esceme.memory import Memory, MemoryBank, MemorySubgraph, ZeroRecallMemory
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.planning.planning_navigator import PlanningNavigator
from esceme.rollout import RolloutStep
from esceme.tasks.folder import DataFolder
from esceme.tasks.text import Tokenizer
from esceme.trajectory import EpisodeSource, Trajectory, replaying
from esceme.world.atlas import Atlas

DIGITS = 5
"""Number of decimal places of probabilities and attention weights."""
OnTraced = Callable[[list[EpisodeTrace]], None]
"""Function that receives the traces of episodes that have just been traced."""


class RecordingMemory:
    """Memory that keeps which viewpoints a reader has recalled, by batch index."""

    def __init__(self, memory: Memory, batch: int) -> None:
        self._memory = memory
        self.recalled: list[set[int]] = [set() for _ in range(batch)]

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        """Return the remembered features of viewpoints, (B, …) -> (B, …, D)."""
        features = self._memory.recall_at(viewpoints)
        for recalled, found, row in zip(self.recalled, features.any(-1), viewpoints, strict=True):
            recalled.update(row[found].flatten().tolist())
        return features

    def scene_subgraph(self, viewpoints: Tensor) -> MemorySubgraph:
        """Return the remembered graph of the scenes that contain `viewpoints` (B,)."""
        graph = self._memory.scene_subgraph(viewpoints)
        for recalled, known in zip(self.recalled, graph.known, strict=True):
            recalled.update(graph.viewpoints[known].tolist())
        return graph

    def observe(self, viewpoints: Tensor) -> Observation:
        """Return the panoramas at remembered viewpoints (M,)."""
        return self._memory.observe(viewpoints)

    def remember_observation(self, observation: Observation) -> None:
        """Store the features of the viewpoints at which the observed agents are."""
        self._memory.remember_observation(observation)


class TracingNavigator(Navigator):
    """Navigator that makes the decisions of another navigator and describes those of the latest step."""

    def __init__(self, navigator: Navigator, atlas: Atlas, bank: MemoryBank | None) -> None:
        """Trace `navigator`. `bank` is the memory to which observations are stored, if there is one."""
        super().__init__(navigator.agent, navigator.reader, feature_dropout=navigator.feature_dropout)
        self._traced, self._atlas, self._bank = navigator, atlas, bank
        self._masked_observation: Observation | None = None
        self._recalled: Sequence[Collection[int]] = ()
        self._is_new: list[bool] = []
        self.steps: list[dict[str, Any]] = []
        """Fields of `TraceStep` of each agent in the batch, without the action."""

    def begin(
        self, instructions: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None
    ) -> State:
        """Return the initial state for B instructions."""
        return self._traced.begin(instructions, start, privileged)

    def observe(self, observation: Observation, memory: Memory | None) -> Observation:
        """Return the traced navigator's observation; store that with zeros as recalled features as well."""
        batch = len(observation)
        recording = None if memory is None else RecordingMemory(memory, batch)
        observed = self._traced.observe(observation, recording)
        self._recalled = [()] * batch if recording is None else recording.recalled
        self._is_new = [False] * batch
        if self._bank is not None:
            viewpoints = observation.viewpoint.tolist()
            unvisited = (~self._bank.visited[observation.viewpoint]).tolist()
            self._is_new = [
                is_new and viewpoints.index(here) == row
                for row, (here, is_new) in enumerate(zip(viewpoints, unvisited, strict=True))
            ]
        self._masked_observation = None
        if memory is not None and self.reader.uses_memory and not isinstance(self._traced, PlanningNavigator):
            self._masked_observation = self._traced.observe(observation, ZeroRecallMemory(memory))
        return observed

    def decide(self, state: State, observation: Observation) -> Decision:
        """Return the decision of the traced navigator; describe it in `steps`."""
        plans = isinstance(self._traced, PlanningNavigator)  # then the agent only rehearses routes
        attention = None if plans else self.agent.text_attention(state, observation)
        masked = None
        if self._masked_observation is not None:
            masked = self._traced.decide(state, self._masked_observation)
        decision = self._traced.decide(state, observation)
        self.steps = [
            {
                **self._describe_actions(decision, observation, row),
                "masked": None if masked is None else _probabilities(masked, observation, row),
                "recalled": sorted(self._names(self._recalled[row])),
                "remembered": self._names([int(observation.viewpoint[row])] if self._is_new[row] else []),
                "attention": None if attention is None else _rounded(attention[row]),
                "details": self._traced.decision_details(row),
            }
            for row in range(len(observation))
        ]
        return decision

    def advance(self, state: State, observation: Observation, actions: Tensor) -> State:
        """Return the state after the agents took `actions` (B,)."""
        return self._traced.advance(state, observation, actions)

    def final_paths(self, state: State) -> list[list[int]] | None:
        """Return the paths of the traced navigator after the episodes."""
        return self._traced.final_paths(state)

    def _describe_actions(self, decision: Decision, observation: Observation, row: int) -> dict[str, Any]:
        degree = int(observation.num_candidates[row])
        routes = [] if decision.routes is None else decision.routes.viewpoints[row].tolist()
        return {
            "viewpoint": self._names([int(observation.viewpoint[row])])[0],
            "view": int(observation.facing_view[row]),
            "candidates": self._names(observation.neighbour[row, :degree].tolist()),
            "routes": ["" if target < 0 else self._names([target])[0] for target in routes],
            "probabilities": _probabilities(decision, observation, row),
        }

    def _names(self, viewpoints: Collection[int]) -> list[str]:
        return [self._atlas.name(viewpoint)[1] for viewpoint in viewpoints]


def _probabilities(decision: Decision, observation: Observation, row: int) -> list[float]:
    """Return the probabilities of the actions of one agent: candidates, STOP, then routes."""
    probabilities = decision.logits[row].double().softmax(0)
    degree = int(observation.num_candidates[row])
    parts = [probabilities[: degree + 1]]
    if decision.routes is not None:
        parts.append(probabilities[decision.routes.first_action :])
    return _rounded(torch.cat(parts))


def _rounded(values: Tensor) -> list[float]:
    return [round(value, DIGITS) for value in values.tolist()]


# -- episodes --------------------------------------------------------------------------------------------


def trace_episodes(
    context: EvaluationContext,
    lifetime: MemoryLifetime,
    entries: Sequence[JournalEntry],
    traced: Collection[str],
    on_traced: OnTraced,
) -> None:
    """Trace the episodes of the last pass, except those whose ids are in `traced`.

    `entries` are the journal entries of all episodes of `context`. `lifetime` is a memory in its initial
    state. The computation uses one thread, because numbers may depend on the number of threads.
    """
    tokenizer = context.run.tokenizer(DataFolder(context.config.data))
    recorded = {(entry.id, entry.visit): entry for entry in entries}
    navigator = TracingNavigator(context.navigator(lifetime, exact=True), context.atlas, lifetime.bank).eval()
    steps: dict[int, list[TraceStep]] = {}
    done = set(traced)
    with _one_thread():
        for source in _sources(context, lifetime, entries, traced):
            for step in _replay(context, navigator, source, lifetime, recorded):
                for row, trajectory in enumerate(step.trajectories):
                    fields, action = navigator.steps[row], trajectory.actions[-1]
                    steps.setdefault(id(trajectory), []).append(TraceStep(**fields, action=action))
                for trajectory in step.finished:
                    _check_replay(trajectory, recorded, context.atlas)
                    trace = _episode_trace(trajectory, steps.pop(id(trajectory)), context, tokenizer)
                    if trace.id not in done:  # a batch may repeat an episode, whose first trajectory counts
                        done.add(trace.id)
                        on_traced([trace])


def _sources(
    context: EvaluationContext,
    lifetime: MemoryLifetime,
    entries: Sequence[JournalEntry],
    traced: Collection[str],
) -> Iterator[EpisodeSource]:
    """Yield one source per pass. In the first pass of `two-pass`, only the effect on memory is repeated."""
    config, atlas, max_steps = context.config, context.atlas, context.limits.max_steps
    order, visits = ReleasedOrder(context.episodes, config.batch, seed=config.seed), Counter[str]()
    for number in range(1, config.num_passes + 1):
        is_last = number == config.num_passes
        if config.schedule == "lanes":
            finished = finished_in_lanes(entries, number, atlas, context.by_id, max_steps=max_steps)
            repeated = {name: path for name, path in finished.items() if not is_last or name in traced}
            yield Lanes(
                atlas,
                context.episodes,
                lifetime,
                num_slots=1,
                finished=repeated,
                visits=context.visits,
                previous_passes=number - 1,
            )
        else:  # agents of a batch share its memory: whole batches are run again
            planned = list(order.batches())
            batches = finished_batches(entries, number, atlas, planned, max_steps=max_steps)
            yield Interleaved(atlas, planned, lifetime, finished=[] if is_last else batches, visits=visits)


def _replay(
    context: EvaluationContext,
    navigator: Navigator,
    source: EpisodeSource,
    lifetime: MemoryLifetime,
    recorded: Mapping[tuple[str, int], JournalEntry],
) -> Iterator[RolloutStep]:
    def recorded_actions(trajectory: Trajectory) -> Sequence[int]:
        return recorded[trajectory.episode.episode_id, trajectory.visit].actions

    return evaluation_steps(
        navigator,
        context.atlas,
        source,
        lifetime.memory,
        encode=context.encode,
        max_steps=context.limits.max_steps,
        precision=context.config.precision,
        engine=context.config.engine,
        select=replaying(recorded_actions),
    )


def _check_replay(
    trajectory: Trajectory, recorded: Mapping[tuple[str, int], JournalEntry], atlas: Atlas
) -> None:
    """Raise `EvaluationError` if a repeated trajectory is not the recorded one."""
    entry = recorded[trajectory.episode.episode_id, trajectory.visit]
    poses = [(atlas.name(viewpoint)[1], view) for viewpoint, view in trajectory.poses]
    if poses != entry.poses:
        raise EvaluationError(
            f"episode {entry.id}: its trajectory was recorded without actions by an older version and cannot "
            "be repeated exactly; evaluate with --trace in another folder (--out)"
        )


def _episode_trace(
    trajectory: Trajectory, steps: list[TraceStep], context: EvaluationContext, tokenizer: Tokenizer | None
) -> EpisodeTrace:
    ids = context.encode(trajectory.episode)
    return EpisodeTrace(
        id=trajectory.episode.episode_id,
        scene=trajectory.episode.scene_id,
        visit=trajectory.visit,
        tokens=[str(token) for token in ids] if tokenizer is None else tokenizer.tokens(ids),
        steps=steps,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
