"""Compare greedy rollouts with those of the original code: paths, scores, recalled tokens and memory.

A file holds passes. A pass is a run over several batches of episodes. Each pass starts with the memory at the
end of the pass before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import torch
from torch import Tensor

from esceme.agents.base import BacktrackRoutes, Decision
from esceme.agents.crossmodal import CrossModalState
from esceme.agents.tdstp import TDSTP, TdstpState
from esceme.errors import DataError
from esceme.evaluation.protocol import open_memory
from esceme.evaluation.schedule import Interleaved
from esceme.memory import CandidateEnhancing, MemoryBank
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.rollout import roll_out
from esceme.trajectory import Trajectory, next_poses
from esceme.verify.comparison import MALFORMED, FileComparison, Json
from esceme.verify.fixtures import NetworkFiles, ReferenceData, network_of
from esceme.verify.recording import ENCODER, RecordedFile, RecordedItem, RecordedRollout, RecordingNavigator
from esceme.world.atlas import CONTEXT, Atlas, Pose
from esceme.world.geometry import VIEW_ELEVATIONS, VIEW_HEADINGS

FILES = r"(.*/)?rollout_argmax[^/]*\.json\.gz"
REPLACED = "replaced_"
"""Prefix of a key whose value replaces a tensor of the weights; the rest of the key names the tensor."""
STEP_TOLERANCES = {"raw_logits": 1e-4, "nav_types": 0.0, "hist_lens": 0.0, "node_nonzero_per_item": 0.0}
ANGLE_TOLERANCE, MEMORY_TOLERANCE = 1e-6, 1e-6
POSE_KEYS = ("viewpoint", "heading", "elevation")
TIE = 1e-4
"""Two actions are tied if their scores differ by less than this; the original code may take either action."""
NUM_FLAGS = 10
"""Number of tokens for which a file stores whether the memory recalled a feature."""
NUM_FEATURES = 4
"""Number of values that a file stores of each memory vector."""


class RolloutItem(RecordedItem, kw_only=True):
    """Record of one episode of a greedy rollout in a reference file."""

    start: str
    reference_path: list[str] = msgspec.field(name="gt_path")


class RecordedStep(msgspec.Struct):
    """One step of a batch. Every list has one entry per episode, also for episodes that have ended."""

    raw_logits: list[list[float | None]]
    nav_types: list[list[int]]
    hist_lens: list[int]
    node_nonzero_per_item: list[list[int]] | None = None


class GreedyRollout(RecordedRollout, kw_only=True):
    """Batch of episodes in which the agent takes the action with the best score."""

    instr_ids: list[str]
    items: list[RolloutItem]
    paths: list[list[tuple[str, float, float]]]
    steps: list[RecordedStep]

    @property
    def episode_ids(self) -> list[str]:
        """Episode ids, in the order of `items`."""
        return self.instr_ids

    @property
    def has_episodes(self) -> bool:
        """Whether the batch has at least one episode with an id."""
        return bool(self.instr_ids and self.items)


class RecordedPass(msgspec.Struct):
    """Run over several batches, and the memory after the last batch."""

    batches: list[GreedyRollout]
    memory_first4_of_feat: dict[str, dict[str, list[float]]] | None = None
    memory_edges: dict[str, list[tuple[str, str]]] | None = None


class RolloutFile(RecordedFile, kw_only=True):
    """Content of a file of greedy rollouts. Each pass starts with the memory of the pass before."""

    passes: list[RecordedPass]
    weights: str = ""

    @property
    def batches(self) -> list[GreedyRollout]:
        """All batches of the file, in the order in which they were run."""
        return [batch for recorded in self.passes for batch in recorded.batches]

    @property
    def rollouts(self) -> list[tuple[str, RecordedRollout]]:
        """(name in the report, batch) pairs of all batches in the file."""
        return [("passes.batches", batch) for batch in self.batches]


def check_rollouts(path: Path, references: ReferenceData, comparison: FileComparison) -> None:
    """Compare the greedy rollouts in a reference file `rollout_argmax….json.gz` with those of our code."""
    stored, raw = RolloutFile.read(path, comparison)
    comparison.unknown -= {key for key in raw if key.startswith(REPLACED)}
    if not stored.passes or not all(recorded.batches for recorded in stored.passes):
        comparison.add_missing("passes.batches")
    for batch in stored.batches:
        comparison.add("passes.batches.items (how many)", len(batch.items), len(batch.instr_ids), 0.0)
    stored.compare_items(references, comparison)
    navigator = rollout_navigator(stored, NetworkFiles(path, comparison.used), raw)
    if any(batch.items for batch in stored.batches):
        for recorded, ours, num_ties in replay_passes(stored, navigator, references):
            _compare_pass(recorded, ours, num_ties, comparison)


def rollout_navigator(stored: RecordedFile, files: NetworkFiles, raw: Mapping[str, Json]) -> Navigator:
    """Build the navigator of a file of rollouts, with the tensors that the file stores as replacements."""
    values = {key.removeprefix(REPLACED): value for key, value in raw.items() if key.startswith(REPLACED)}
    try:
        replaced = {key: torch.tensor(value, dtype=torch.float32) for key, value in values.items()}
    except (*MALFORMED, RuntimeError) as error:
        raise DataError(f"a replaced tensor is invalid: {error}") from None
    return stored.navigator(files, replaced=replaced)


# -- replay ------------------------------------------------------------------------------------------------


def replay_passes(
    stored: RolloutFile, navigator: Navigator, references: ReferenceData
) -> list[tuple[RecordedPass, RecordedPass, int]]:
    """Run the stored episodes again with our code.

    Returns, for every pass (run over batches), the stored pass, our pass, and the number of tied decisions
    for which our code took the stored action.
    """
    vocabulary, atlas = network_of(navigator).config.vocabulary, stored.atlas(navigator, references)
    max_steps = stored.max_steps(max(len(batch.steps) for batch in stored.batches))
    recorder = RecordingNavigator(navigator.agent, navigator.reader).eval()
    lifetime, passes = open_memory("cold", navigator.reader, atlas), []
    for recorded in stored.passes:
        replay = GreedyReplay(atlas, recorder, recorded.batches)
        source = Interleaved(atlas, [batch.episodes(vocabulary) for batch in replay.batches], lifetime)
        with torch.inference_mode():
            for _ in roll_out(
                recorder, atlas, source, lifetime.bank, replay.choose, encode=ENCODER, max_steps=max_steps
            ):
                pass
        ours = RecordedPass(replay.recorded(), *_recorded_memory(lifetime.bank))
        passes.append((recorded, ours, replay.num_ties))
    return passes


def _recorded_memory(
    bank: MemoryBank | None,
) -> tuple[dict[str, dict[str, list[float]]] | None, dict[str, list[tuple[str, str]]] | None]:
    """Return memory vectors and edges as a file stores them: two dicts keyed by scene; None without memory.

    Only the first `NUM_FEATURES` values of a vector are returned.
    """
    if bank is None:
        return None, None
    vectors, edges = {}, {}
    for scene in bank.scenes:
        names = sorted(bank[scene].viewpoints)
        values = bank[scene].recall(names)[:, :NUM_FEATURES].tolist()
        vectors[scene] = dict(zip(names, values, strict=True))
        edges[scene] = [(a, b) for a, b in sorted(bank[scene].edges)]
    return vectors, edges


class GreedyReplay:
    """Action selector that takes the best action and records each step as in a recorded rollout file.

    If several actions are tied for the best score, the stored action is taken.
    """

    def __init__(self, atlas: Atlas, navigator: RecordingNavigator, batches: Sequence[GreedyRollout]) -> None:
        """Prepare to run `batches`, except batches without episodes."""
        self.batches = [batch for batch in batches if batch.has_episodes]
        self.num_ties = 0
        self._atlas, self._navigator = atlas, navigator
        self._trajectories: list[list[Trajectory]] = []
        """Trajectories of every batch that has begun, including ended trajectories."""
        self._steps: list[list[RecordedStep]] = []
        self._views: dict[Trajectory, dict[int, int]] = {}
        """Trajectory -> pose index -> view faced before the turn, for poses at which backtracking ends."""

    def choose(
        self, decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]
    ) -> Tensor:
        """Return the action of each active episode, (A,), and record the step."""
        if trajectories[0].num_decisions == 0:
            self._trajectories.append(list(trajectories))
            self._steps.append([])
        self._steps[-1].append(self._record_step(decision, observation, trajectories))
        chosen = decision.logits.argmax(1)
        for row, trajectory in enumerate(trajectories):
            if (tied := self._tied_action(trajectory, row, decision)) is not None:
                self.num_ties += 1
                chosen[row] = tied
            action, routes = int(chosen[row]), decision.routes
            if routes is not None and action >= routes.first_action:
                arrival = len(trajectory.poses) + len(routes.shortest_path(row, action)) - 1
                self._views.setdefault(trajectory, {})[arrival] = trajectory.poses[-1][1]
        return chosen

    def recorded(self) -> list[GreedyRollout]:
        """Return all batches that this selector has seen, in the format of a recorded rollout file."""
        return [
            GreedyRollout(
                instr_ids=batch.instr_ids,
                items=batch.items,
                paths=[self._recorded_path(trajectory) for trajectory in trajectories],
                steps=steps,
            )
            for batch, trajectories, steps in zip(self.batches, self._trajectories, self._steps, strict=True)
        ]

    def _recorded_path(self, trajectory: Trajectory) -> list[tuple[str, float, float]]:
        """Return (viewpoint id, heading, elevation) of every pose, as a file stores them.

        Files do not store the turn of the agent at the end of backtracking.
        """
        views = self._views.get(trajectory, {})
        return [
            (
                self._atlas.name(viewpoint)[1],
                float(VIEW_HEADINGS[views.get(index, view)]),
                float(VIEW_ELEVATIONS[views.get(index, view)]),
            )
            for index, (viewpoint, view) in enumerate(trajectory.poses)
        ]

    def _record_step(
        self, decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]
    ) -> RecordedStep:
        """Return a step in the format of a recorded rollout file.

        The scores of all active episodes are padded to one length. The scores of an ended episode are empty.
        """
        batch, navigator = self._trajectories[-1], self._navigator
        ended = [trajectory for trajectory in batch if trajectory not in trajectories]
        widths = [int(self._atlas.token_count[trajectory.viewpoint]) for trajectory in ended]
        width = max([observation.token_type.shape[1], *widths])

        def per_episode(values: Iterable[Any], if_ended: Any) -> list[Any]:
            """Return one value per episode: an entry of `values` for active episodes, else `if_ended`."""
            value_of = dict(zip(trajectories, values, strict=True))
            return [value_of.get(trajectory, if_ended) for trajectory in batch]

        scores, history_scores = self._scores(decision)
        logits = [_pad(row, width, -math.inf) for row in scores.tolist()]
        if history_scores is not None:
            logits = [[*first, *row] for first, row in zip(history_scores.tolist(), logits, strict=True)]
        logits = [[None if math.isinf(value) else value for value in row] for row in logits]
        recall_flags = None
        if isinstance(navigator.reader, CandidateEnhancing):
            recalled = navigator.reader.recall(observation, navigator.memory).any(-1)
            recall_flags = per_episode(recalled[:, :NUM_FLAGS].int().tolist(), [])
        token_types = [_pad(row, width, CONTEXT) for row in observation.token_type.tolist()]
        lengths = cast(CrossModalState, navigator.state).history_length.tolist()
        return RecordedStep(
            per_episode(logits, []), per_episode(token_types, []), per_episode(lengths, 0), recall_flags
        )

    def _scores(self, decision: Decision) -> tuple[Tensor, Tensor | None]:
        """Return the scores of candidates and STOP (B, C), and of TD-STP's history tokens (B, S) or None.

        TD-STP's penalty for reversed jumps is not applied yet, as in the files.
        """
        agent, state = self._navigator.agent, self._navigator.state
        if not isinstance(agent, TDSTP) or not isinstance(state, TdstpState):
            return decision.logits, None
        assert isinstance(decision.state, TdstpState)
        planned = agent.encode(replace(state, origin=decision.state.origin), self._navigator.observation)
        return planned.logits, planned.node_logits

    def _tied_action(self, trajectory: Trajectory, row: int, decision: Decision) -> int | None:
        """Return the stored action if it is tied with another action for the best score, otherwise None."""
        scores = decision.logits[row]
        near = (scores > scores.max() - TIE).nonzero().flatten().tolist()
        stored = [action for action in near if self._continues_as_stored(trajectory, row, action, decision)]
        return stored[0] if len(near) > 1 and stored else None

    def _continues_as_stored(self, trajectory: Trajectory, row: int, action: int, decision: Decision) -> bool:
        """Return whether an action moves the agent along the stored path."""
        batch = len(self._trajectories) - 1
        row_in_batch = self._trajectories[batch].index(trajectory)
        (path,) = self.batches[batch].paths[row_in_batch : row_in_batch + 1] or [[]]
        pose = Pose(*(np.array([value]) for value in trajectory.poses[-1]))
        routes = decision.routes
        if isinstance(routes, BacktrackRoutes):
            routes = BacktrackRoutes(routes.first_action, *(tensor[row : row + 1] for tensor in routes[1:]))
        single = Decision(decision.logits[row : row + 1], routes=routes)
        (poses,) = next_poses(self._atlas, pose, single, torch.tensor([action]))
        start = len(trajectory.poses)
        stored = [viewpoint for viewpoint, *_ in path[start : start + max(len(poses), 1)]]
        return stored == [self._atlas.name(viewpoint)[1] for viewpoint, _ in poses]


def _pad(row: list[Any], width: int, fill: float) -> list[Any]:
    return row + [fill] * (width - len(row))


# -- comparison --------------------------------------------------------------------------------------------


def _compare_pass(
    stored: RecordedPass, ours: RecordedPass, num_ties: int, comparison: FileComparison
) -> None:
    batches = [batch for batch in stored.batches if batch.has_episodes]
    for batch, own in zip(batches, ours.batches, strict=True):
        for step, own_step in zip(batch.steps, own.steps, strict=False):
            _compare_step(step, own_step, comparison)
        comparison.add("passes.batches.steps (how many)", len(batch.steps), len(own.steps), 0.0)
        for step in batch.steps:
            rows = [len(step.raw_logits), len(step.nav_types), len(step.hist_lens)]
            comparison.add("passes.batches.steps (rows)", rows, [len(own.paths)] * 3, 0.0)
        paths, own_paths = (
            [[dict(zip(POSE_KEYS, pose, strict=True)) for pose in path] for path in rollout.paths]
            for rollout in (batch, own)
        )
        comparison.add("passes.batches.paths", paths, own_paths, ANGLE_TOLERANCE)
    _compare_memory(stored, ours, comparison)
    if num_ties:
        zeros = np.zeros(num_ties)
        comparison.add_array("passes.batches.paths (ties, settled as stored)", zeros, zeros, 0.0)


def _compare_step(stored: RecordedStep, ours: RecordedStep, comparison: FileComparison) -> None:
    """Compare one step for all episodes that have not ended."""
    for row, logits in enumerate(ours.raw_logits):
        for key, tolerance in STEP_TOLERANCES.items():
            if logits and getattr(ours, key) is not None:
                values, own = (_numbers(getattr(step, key), row) for step in (stored, ours))
                comparison.add_array(f"passes.batches.steps.{key}", values, own, tolerance)


def _numbers(rows: Sequence[Any] | None, row: int) -> list[float]:
    """Return the numbers of one episode, with -inf for None; empty if the file has no such episode."""
    (numbers,) = (rows or [])[row : row + 1] or [[]]
    numbers = numbers if isinstance(numbers, list) else [numbers]
    return [-math.inf if number is None else number for number in numbers]


def _compare_memory(stored: RecordedPass, ours: RecordedPass, comparison: FileComparison) -> None:
    if ours.memory_first4_of_feat is None or ours.memory_edges is None:
        comparison.add("passes.memory_first4_of_feat", stored.memory_first4_of_feat, None, 0.0)
        comparison.add("passes.memory_edges", stored.memory_edges, None, 0.0)
        return
    vectors, edges = stored.memory_first4_of_feat or {}, stored.memory_edges or {}
    for key, scenes in (("memory_first4_of_feat", vectors), ("memory_edges", edges)):
        comparison.add(f"passes.{key} (scenes)", sorted(scenes), list(ours.memory_edges), 0.0)
    for scene, own_vectors in ours.memory_first4_of_feat.items():
        known = vectors.get(scene, {})
        comparison.add("passes.memory_first4_of_feat (viewpoints)", sorted(known), list(own_vectors), 0.0)
        for name, vector in own_vectors.items():
            quantity = "passes.memory_first4_of_feat"
            comparison.add_array(quantity, known.get(name, []), vector, MEMORY_TOLERANCE)
        pairs = sorted({(min(pair), max(pair)) for pair in edges.get(scene, [])})
        own_pairs = [list(pair) for pair in ours.memory_edges[scene]]
        comparison.add("passes.memory_edges", [list(pair) for pair in pairs], own_pairs, 0.0)
