"""Repetition of a sampled rollout: an action selector and a reward for the actions of a reference file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esceme.agents.base import Decision, State
from esceme.learning.reinforcement import PathReward, policy_entropy
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.tasks.episode import locate_goals
from esceme.trajectory import Trajectory
from esceme.verify.recording import RecordingNavigator
from esceme.world.atlas import Atlas, Pose


class ForcedActions:
    """Action selector that takes the actions stored in a reference file and records the critic's values.

    As in the original code, the network also computes decisions for episodes that have ended. These decisions
    cause no moves.
    """

    def __init__(
        self,
        navigator: Navigator,
        atlas: Atlas,
        trajectories: Sequence[Trajectory],
        actions: Sequence[Sequence[int]],
    ) -> None:
        """Prepare to take `actions[step][episode]`; an action that is not possible is replaced by STOP."""
        self.navigator = RecordingNavigator(navigator.agent, navigator.reader).eval()
        self.values: list[list[float]] = []
        """The critic's value of every episode, at every step and after the last step: (steps + 1, B)."""
        self.entropy: list[float] = []
        """Entropy of the policy at every step, summed over all episodes."""
        self._atlas, self._trajectories, self._actions = atlas, trajectories, actions
        self._row_of = {trajectory: row for row, trajectory in enumerate(trajectories)}
        self._ended: list[Trajectory] = []
        self._ended_state: State | None = None

    @torch.no_grad()
    def choose(
        self, decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]
    ) -> Tensor:
        """Return the stored actions (A,) of active episodes; record the values and entropy of a step."""
        state, seen = self.navigator.next_state, self.navigator.observation
        values = dict(zip(trajectories, _critic_values(decision), strict=True))
        entropy = policy_entropy(decision.logits).sum()
        self.entropy.append(float(entropy + self._record_values(values)))
        stop = observation.num_candidates
        first = None if decision.routes is None else decision.routes.first_action
        actions = [
            self._stored_or_stop(trajectory, int(limit), first)
            for trajectory, limit in zip(trajectories, stop, strict=True)
        ]
        chosen = torch.tensor(actions)
        if len(rows := (chosen == stop).nonzero().flatten()):
            state = self.navigator.advance(state.select(rows), seen.select(rows), chosen[rows])
            self._ended_state = state if self._ended_state is None else self._ended_state.concat(state)
            self._ended += [trajectories[row] for row in rows.tolist()]
        return chosen

    @torch.no_grad()
    def finish(self, final_values: Tensor) -> None:
        """Record the critic's values after the last step; `final_values` (B,) has one value per episode."""
        self._record_values(dict(zip(self._trajectories, final_values.tolist(), strict=True)))

    def _record_values(self, values: dict[Trajectory, float]) -> Tensor | float:
        """Record the critic's values of all episodes at one step; `values` holds those of active episodes.

        The values of ended episodes are computed here. Returns the sum of the policy entropies of ended
        episodes.
        """
        entropy: Tensor | float = 0.0
        if self._ended:
            decision = self._decide_ended()
            values |= zip(self._ended, _critic_values(decision), strict=True)
            entropy = policy_entropy(decision.logits).sum()
        self.values.append([values[trajectory] for trajectory in self._trajectories])
        return entropy

    def _stored_or_stop(self, trajectory: Trajectory, stop: int, first: int | None) -> int:
        """Return the stored action of the next step of an episode; STOP if this action is impossible.

        The result is an index of our logits. `stop` is the index of STOP, and `first` the index of the first
        action that returns to an earlier viewpoint; `first` is None for HAMT. In files of TD-STP, these
        actions come before the candidates.
        """
        row, step = self._row_of[trajectory], trajectory.num_decisions
        line = self._actions[step] if step < len(self._actions) else []
        action = line[row] if row < len(line) else stop
        if first is not None:
            num_history = step + 1
            if 1 <= action < num_history:
                return first + action
            action -= num_history
        return action if 0 <= action < stop else stop

    def _decide_ended(self) -> Decision:
        """Return the decision of the network for all ended episodes at their last viewpoints."""
        poses = np.array([trajectory.poses[-1] for trajectory in self._ended], dtype=np.int64)
        observation = Observation.from_atlas(self._atlas, Pose(*poses.T))
        assert self._ended_state is not None
        seen = Navigator.observe(self.navigator, observation, self.navigator.memory)
        decision = Navigator.decide(self.navigator, self._ended_state, seen)
        self._ended_state = decision.state or self._ended_state
        return decision


class RecordingReward(PathReward):
    """Path reward that also records rewards, distances and nDTW of every step, as reference files do."""

    def __init__(self, atlas: Atlas, trajectories: Sequence[Trajectory]) -> None:
        super().__init__(atlas, trajectories)
        self.steps: list[list[list[float]]] = []
        self._trajectories = trajectories
        self._goals = locate_goals([trajectory.episode for trajectory in trajectories], atlas)[:, 0]

    def step(self, trajectories: Sequence[Trajectory]) -> NDArray[np.float64]:
        """Return the reward (A,) of the latest decision of each given trajectory, and record the step."""
        rewards = super().step(trajectories)
        reward_of = dict(zip(trajectories, rewards.tolist(), strict=True))
        positions = np.array([trajectory.viewpoint for trajectory in self._trajectories])
        self.steps.append(
            [
                [reward_of.get(trajectory, 0.0) for trajectory in self._trajectories],
                [float(trajectory in reward_of) for trajectory in self._trajectories],
                self._atlas.distance(positions, self._goals).tolist(),
                self.ndtw(self._trajectories).tolist(),
            ]
        )
        return rewards


def _critic_values(decision: Decision) -> list[float]:
    return [] if decision.value is None else decision.value.tolist()
