"""Compare DUET's greedy rollouts with those of the original code: poses, maps, scores, paths and metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esceme.agents.base import Decision
from esceme.agents.duet import BranchOutput, DuetInputs, DuetState
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.rollout import roll_out
from esceme.trajectory import SingleBatch, Trajectory
from esceme.verify.comparison import FileComparison, Json
from esceme.verify.duet_map import MapOrder, Segments, action_to, action_viewpoint
from esceme.verify.fixtures import NetworkFiles, ReferenceData, duet_of
from esceme.verify.metrics_check import MEANS, PERCENTAGES, metrics_of_paths
from esceme.verify.recording import ENCODER, RecordedFile, RecordedRollout, RecordingNavigator
from esceme.verify.rollout_check import REPLACED, TIE, RolloutItem, rollout_navigator
from esceme.world.atlas import Atlas
from esceme.world.geometry import VIEW_ELEVATIONS, VIEW_HEADINGS

STEP_TOLERANCES = {
    "gmap_pos_fts": 1e-6,
    "start_pos_fts": 1e-6,
    "global_logits": 5e-5,
    "local_logits": 5e-5,
    "fused_logits": 5e-5,
    "fuse_weight": 5e-5,
    "stop_prob": 1e-5,
}
"""Absolute tolerances; other values of a step must be equal."""
SUM_TOLERANCE = 1e-6
"""Relative tolerance of `pair_dist_sum`."""
METRIC_TOLERANCE = 1e-9
STOP_TIE = 1e-5
"""Two STOP probabilities are tied if they differ by less than this; either relocation is accepted."""


class DuetStep(msgspec.Struct, kw_only=True):
    """One decision of an episode."""

    pose: tuple[str, float, float, int]
    """Viewpoint id, heading and elevation in radians, view."""
    gmap_vpids: list[str | None]
    visited: list[int]
    step_ids: list[int]
    cand_vpids: list[str | None]
    gmap_pos_fts: list[list[float]]
    start_pos_fts: list[float]
    pair_dist_sum: float
    global_logits: list[float | None]
    local_logits: list[float | None]
    fused_logits: list[float | None]
    fuse_weight: float
    stop_prob: float
    best: int
    action: str | None


class DuetBatch(RecordedRollout, kw_only=True):
    """Batch of episodes in which the agent takes the action with the best score."""

    instr_ids: list[str]
    items: list[RolloutItem]
    trajectories: list[list[list[str]]]
    """Segments of viewpoint ids per episode; the last one may be the way back after the end."""
    stop_scores: list[dict[str, float]]
    steps: list[list[DuetStep | None]]

    @property
    def episode_ids(self) -> list[str]:
        """Episode ids, in the order of `items`."""
        return self.instr_ids


class DuetPass(msgspec.Struct):
    """Run over several batches."""

    batches: list[DuetBatch]


class DuetRolloutFile(RecordedFile, kw_only=True):
    """Content of a file of DUET's greedy rollouts, and the original evaluator's metrics of them."""

    variants: ClassVar[tuple[str, ...]] = ("duet",)
    passes: list[DuetPass]
    weights: str = ""
    feature_width: int = 0
    metrics: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)

    @property
    def batches(self) -> list[DuetBatch]:
        """All batches of the file."""
        return [batch for recorded in self.passes for batch in recorded.batches]

    @property
    def rollouts(self) -> list[tuple[str, RecordedRollout]]:
        """(name in the report, batch) pairs of all batches in the file."""
        return [("passes.batches", batch) for batch in self.batches]


def check_duet_rollouts(path: Path, references: ReferenceData, comparison: FileComparison) -> None:
    """Compare the greedy rollouts in a reference file `rollout_argmax….json.gz` with those of our DUET."""
    stored, raw = DuetRolloutFile.read(path, comparison)
    comparison.unknown -= {key for key in raw if key.startswith(REPLACED)}
    stored.compare_items(references, comparison)
    navigator = rollout_navigator(stored, NetworkFiles(path, comparison.used), raw)
    atlas = stored.atlas(navigator, references)
    if not stored.batches:
        comparison.add_missing("passes.batches")
    num_ties, ours = 0, list[DuetBatch]()
    for batch in stored.batches:
        replayed, ties = replay_batch(batch, navigator, atlas, stored.max_steps(len(batch.steps)))
        num_ties += ties
        ours.append(replayed)
        _compare_batch(batch, replayed, comparison)
    if num_ties:
        zeros = np.zeros(num_ties)
        comparison.add_array("passes.batches.trajectories (ties, settled as stored)", zeros, zeros, 0.0)
    if stored.metrics:
        _compare_metrics(stored.metrics, ours, atlas, comparison)


# -- replay ------------------------------------------------------------------------------------------------


def replay_batch(
    batch: DuetBatch, navigator: Navigator, atlas: Atlas, max_steps: int
) -> tuple[DuetBatch, int]:
    """Run the episodes of a batch; return them as a file records them, and the number of tied decisions."""
    episodes = batch.episodes(navigator.agent.config.vocabulary)
    source = SingleBatch(atlas, episodes)
    recorder = RecordingNavigator(navigator.agent, navigator.reader).eval()
    recording = MapRecording(atlas, recorder, batch, source, max_steps)
    with torch.inference_mode():
        for _ in roll_out(
            recorder, atlas, source, None, recording.choose, encode=ENCODER, max_steps=max_steps
        ):
            pass
    ours = DuetBatch(
        instr_ids=batch.instr_ids,
        items=batch.items,
        trajectories=[recording.segments.of(trajectory) for trajectory in source.trajectories],
        stop_scores=[recording.stop_scores[trajectory] for trajectory in source.trajectories],
        steps=recording.steps,
    )
    return ours, recording.num_ties


class MapRecording:
    """Action selector that takes the best action and records each step as in a file of rollouts.

    If the two best stored scores are tied, the stored action is taken.
    """

    def __init__(
        self,
        atlas: Atlas,
        navigator: RecordingNavigator,
        batch: DuetBatch,
        source: SingleBatch,
        max_steps: int,
    ) -> None:
        self.num_ties = 0
        self.steps: list[list[DuetStep | None]] = []
        self.stop_scores: dict[Trajectory, dict[str, float]] = {}
        self.segments = Segments(atlas)
        self._atlas, self._navigator, self._stored, self._max_steps = atlas, navigator, batch.steps, max_steps
        self._row_of = {trajectory: row for row, trajectory in enumerate(source.trajectories)}

    def choose(
        self, decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]
    ) -> Tensor:
        """Return the action of each active episode, (A,), and record the step."""
        actions, agent = decision.logits.argmax(1), duet_of(self._navigator)
        inputs = agent.encode(cast(DuetState, self._navigator.state), self._navigator.observation)
        output = agent.score(inputs)
        line: list[DuetStep | None] = [None] * len(self._row_of)
        for row, trajectory in enumerate(trajectories):
            self.segments.add_decision(trajectory)
            slot = self._row_of[trajectory]
            if (tied := self._tied_action(trajectory, slot)) is not None:
                self.num_ties += 1
                (goal,) = self._atlas.locate(trajectory.episode.scene_id, [tied]).tolist()
                actions[row] = action_to(goal, decision, observation, row)
            chosen = action_viewpoint(int(actions[row]), decision, observation, row)
            is_last = trajectory.num_decisions + 1 >= self._max_steps
            line[slot] = self._record(
                trajectory, inputs, output, agent.fuse(inputs, output), row, None if is_last else chosen
            )
        self.steps.append(line)
        return actions

    def _tied_action(self, trajectory: Trajectory, slot: int) -> str | None:
        """Return the stored goal viewpoint of a tied decision; None without a tie or if the agent ended."""
        line = self._stored[step] if (step := trajectory.num_decisions) < len(self._stored) else []
        stored = line[slot] if slot < len(line) else None
        if stored is None or stored.action is None:
            return None
        best = sorted((score for score in stored.fused_logits if score is not None), reverse=True)[:2]
        return stored.action if len(best) == 2 and best[0] - best[1] < TIE else None

    def _record(
        self,
        trajectory: Trajectory,
        inputs: DuetInputs,
        output: BranchOutput,
        fused: Tensor,
        row: int,
        goal: int | None,
    ) -> DuetStep:
        names, (viewpoint, view) = self._atlas.names, trajectory.poses[-1]
        tokens, order = inputs.map_tokens, MapOrder.of(inputs.state, ~inputs.is_open, row)
        columns = [0, *(node + 1 for node in order.nodes)]
        candidates = [index for index in inputs.candidates[row].tolist() if index >= 0]
        scores, local = fused[row, columns], output.view_scores[row]
        stop = float(scores.softmax(0)[0])
        self.stop_scores.setdefault(trajectory, {})[names[viewpoint][1]] = stop
        is_closed = torch.tensor(order.closed_flags)
        return DuetStep(
            pose=(
                names[viewpoint][1],
                float(VIEW_HEADINGS[view]),
                float(VIEW_ELEVATIONS[view]),
                view,
            ),
            gmap_vpids=[None, *(names[index][1] for index in order.viewpoints)],
            visited=[int(flag) for flag in order.closed_flags],
            step_ids=tokens.step_id[row, columns].tolist(),
            cand_vpids=[None, *(names[index][1] for index in candidates)],
            gmap_pos_fts=tokens.position[row, columns].tolist(),
            start_pos_fts=tokens.position[row, 1].tolist(),
            pair_dist_sum=float(tokens.distance[row][columns][:, columns].double().sum()),
            global_logits=_finite(output.map_scores[row, columns].masked_fill(is_closed, -math.inf)),
            local_logits=_finite(local[[len(candidates), *range(len(candidates))]]),
            fused_logits=_finite(scores),
            fuse_weight=float(output.gate[row]),
            stop_prob=stop,
            best=int(scores.argmax()),
            action=None if goal is None else names[goal][1],
        )


def _finite(values: Tensor) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]


# -- comparison --------------------------------------------------------------------------------------------


def _compare_batch(stored: DuetBatch, ours: DuetBatch, comparison: FileComparison) -> None:
    comparison.add("passes.batches.steps (how many)", len(stored.steps), len(ours.steps), 0.0)
    for line, own_line in zip(stored.steps, ours.steps, strict=False):
        ended = [step is None for step in own_line]
        comparison.add("passes.batches.steps (ended)", [step is None for step in line], ended, 0.0)
        for step, own in zip(line, own_line, strict=False):
            if step is not None and own is not None:
                _compare_step(step, own, comparison)
    for scores, own_scores, path, own_path in zip(
        stored.stop_scores, ours.stop_scores, stored.trajectories, ours.trajectories, strict=False
    ):
        comparison.add("passes.batches.stop_scores (viewpoints)", sorted(scores), sorted(own_scores), 0.0)
        for name, score in own_scores.items():
            comparison.add("passes.batches.stop_scores", scores.get(name), score, 1e-5)
        best = sorted(scores.values(), reverse=True)[:2]
        if len(best) == 2 and best[0] - best[1] < STOP_TIE and path != own_path:
            continue
        comparison.add("passes.batches.trajectories", path, own_path, 0.0)


def _compare_step(stored: DuetStep, ours: DuetStep, comparison: FileComparison) -> None:
    values, own_values = msgspec.to_builtins(stored), msgspec.to_builtins(ours)
    scale = max(abs(ours.pair_dist_sum), 1.0)
    comparison.add_relative(
        "passes.batches.steps.pair_dist_sum",
        [stored.pair_dist_sum],
        [ours.pair_dist_sum],
        SUM_TOLERANCE,
        floor=scale,
    )
    for name, own in own_values.items():
        quantity = f"passes.batches.steps.{name}"
        if name in STEP_TOLERANCES:
            comparison.add_array(quantity, _array(values[name]), _array(own), STEP_TOLERANCES[name])
        elif name == "pose":
            comparison.add(quantity, list(values[name]), list(own), 1e-9)
        elif name != "pair_dist_sum":
            comparison.add(quantity, values[name], own, 0.0)


def _array(values: Json) -> NDArray[np.float64]:
    """Return numbers as an array, with -inf for None; empty if nested lists differ in length."""
    try:
        array = np.array(values, dtype=np.float64)
    except ValueError:
        return np.zeros(0)
    return np.where(np.isnan(array), -np.inf, array)


def _compare_metrics(
    stored: Mapping[str, Json], ours: Sequence[DuetBatch], atlas: Atlas, comparison: FileComparison
) -> None:
    """Compare the original evaluator's metrics with ours of the same paths."""
    scenes, paths, references, ids, segments = [], [], [], list[str](), []
    for batch in ours:
        for episode_id, item, trajectory in zip(
            batch.instr_ids, batch.items, batch.trajectories, strict=True
        ):
            ids.append(episode_id)
            scenes.append(item.scan)
            paths.append([name for segment in trajectory for name in segment])
            references.append(item.reference_path)
            segments.append(len(trajectory) - 1.0)
    values = {
        name: array.tolist() for name, array in metrics_of_paths(scenes, paths, references, atlas).items()
    }
    values["action_steps"] = segments
    means = {name: float(np.mean(value)) for name, value in values.items()}
    average = {"action_steps": means["action_steps"]}
    average |= {short: means[name] for name, short in MEANS.items()}
    average |= {short: 100 * means[name] for name, short in PERCENTAGES.items()}
    comparison.add("metrics.average", stored.get("average"), average, METRIC_TOLERANCE)
    comparison.add("metrics.per_item", stored.get("per_item"), {**values, "instr_id": ids}, METRIC_TOLERANCE)
