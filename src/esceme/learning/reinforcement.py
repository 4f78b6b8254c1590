"""Reinforcement learning from sampled trajectories: rewards, returns, A2C loss (docs/spec.md E.3 to E.6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esceme.metrics import PaddedPaths, dtw_step, ndtw
from esceme.tasks.episode import SUCCESS_WITHIN, locate_goals
from esceme.trajectory import Trajectory
from esceme.world.atlas import Atlas

STOP_REWARD = 2.0
"""Reward of STOP at the goal. STOP elsewhere has the reward `-STOP_REWARD`."""
NEAR_MISS_RADIUS = 1.0
"""Distance from the goal in metres within which a move away from the goal is penalised (docs/spec.md E.3)."""
NEAR_MISS_PENALTY = 2.0

Array = NDArray[np.float64]


# -- rewards -----------------------------------------------------------------------------------------------


class Reward(Protocol):
    """Reward function for the trajectories of one training batch; it keeps state from step to step."""

    def step(self, trajectories: Sequence[Trajectory]) -> Array:
        """Return the reward of the latest decision of each of n trajectories, (n,).

        Call this method once after every rollout step, with the trajectories that took part in the step, in
        any order. Their poses must already include the move. `Trajectory.stopped` is True after STOP.
        """


class PathReward:
    """Reward for progress towards the goal and for fidelity to the reference path (docs/spec.md E.3).

    A move gives 1 if the distance to the goal shrinks and -1 if it grows, plus the change in nDTW. A move
    away from a viewpoint within 1 m of the goal costs up to 2 more. STOP gives 2 + 2 nDTW within 3 m of the
    goal and -2 elsewhere. After backtracking, the distance may be unchanged. The released code fails on such
    a move; here its progress is 0.

    Only the last row of each dynamic time warping table is stored. The cost of a step is therefore
    proportional to the length of the reference path, not of the trajectory.
    """

    def __init__(self, atlas: Atlas, trajectories: Sequence[Trajectory]) -> None:
        """Initialise the state from the first pose of each trajectory; further poses are ignored."""
        episodes = [trajectory.episode for trajectory in trajectories]
        references = PaddedPaths.from_paths(
            atlas.locate_all((episode.scene_id, episode.reference_path) for episode in episodes)
        )
        self._atlas = atlas
        self._row_of = {trajectory: row for row, trajectory in enumerate(trajectories)}
        self._references, self._count = references.viewpoints, references.count  # (S, B), (B,)
        self._dtw = np.full((len(self._references) + 1, len(trajectories)), np.inf)  # (S + 1, B)
        self._dtw[0] = 0.0
        self._num_poses = np.ones(len(trajectories), dtype=np.int64)  # poses that the table includes
        start = np.array([trajectory.poses[0][0] for trajectory in trajectories])
        self._append_viewpoints(np.arange(len(trajectories)), start)
        self._distance = atlas.distance(start, references.end)  # (B,) metres to the goal

    def step(self, trajectories: Sequence[Trajectory]) -> Array:
        """Return the reward of the latest decision of each of n trajectories, (n,)."""
        rows = np.array([self._row_of[trajectory] for trajectory in trajectories])
        distance_before, fidelity_before = self._distance[rows], self.ndtw(trajectories)
        self._append_new_poses(trajectories, rows)
        distance, fidelity = self._distance[rows], self.ndtw(trajectories)
        missed = (distance_before <= NEAR_MISS_RADIUS) & (distance > distance_before)
        move_reward = _progress_sign(distance_before, distance) + (fidelity - fidelity_before)
        move_reward -= np.where(missed, NEAR_MISS_PENALTY * (NEAR_MISS_RADIUS - distance_before), 0.0)
        stop_reward = np.where(distance < SUCCESS_WITHIN, STOP_REWARD * (1.0 + fidelity), -STOP_REWARD)
        return np.where(_has_stopped(trajectories), stop_reward, move_reward)

    def ndtw(self, trajectories: Sequence[Trajectory]) -> Array:
        """Return the nDTW of each of n trajectories up to the latest call of `step`, (n,)."""
        rows = np.array([self._row_of[trajectory] for trajectory in trajectories])
        return ndtw(self._dtw[self._count[rows], rows], self._count[rows])

    def _append_new_poses(self, trajectories: Sequence[Trajectory], rows: NDArray[np.int64]) -> None:
        """Process all poses since the last step: one after a move, several after backtracking."""
        num_poses = np.array([len(trajectory.poses) for trajectory in trajectories])
        while (behind := np.flatnonzero(self._num_poses[rows] < num_poses)).size:
            late = rows[behind]
            viewpoints = np.array(
                [
                    trajectories[index].poses[pose][0]
                    for index, pose in zip(behind.tolist(), self._num_poses[late].tolist(), strict=True)
                ]
            )
            self._append_viewpoints(late, viewpoints)
            self._num_poses[late] += 1
            self._distance[late] = self._atlas.distance(viewpoints, self._references[-1, late])

    def _append_viewpoints(self, rows: NDArray[np.int64], viewpoints: NDArray[np.int64]) -> None:
        """Append viewpoints (n,) to the trajectories with indices `rows` (n,) in dynamic time warping."""
        costs = self._atlas.distance(viewpoints, self._references[:, rows])  # (S, n)
        dtw = self._dtw[:, rows]
        dtw_step(dtw, costs)
        self._dtw[:, rows] = dtw


class GoalReward:
    """Reward for progress towards the nearest goal, used for CVDN (docs/spec.md E.4).

    A move gives 1 if the distance to the goal shrinks, -1 if it grows, and 0 if it is unchanged. STOP gives 2
    at a goal and -2 elsewhere.
    """

    def __init__(self, atlas: Atlas, trajectories: Sequence[Trajectory]) -> None:
        """Initialise the state from the first pose of each trajectory; further poses are ignored."""
        self._atlas = atlas
        self._row_of = {trajectory: row for row, trajectory in enumerate(trajectories)}
        self._goals = locate_goals([trajectory.episode for trajectory in trajectories], atlas)  # (B, G)
        start = np.array([trajectory.poses[0][0] for trajectory in trajectories])
        self._distance = atlas.distance(start[:, None], self._goals).min(axis=1)  # (B,) metres

    def step(self, trajectories: Sequence[Trajectory]) -> Array:
        """Return the reward of the latest decision of each of n trajectories, (n,)."""
        rows = np.array([self._row_of[trajectory] for trajectory in trajectories])
        before = self._distance[rows]
        viewpoints = np.array([trajectory.viewpoint for trajectory in trajectories])
        distance = self._atlas.distance(viewpoints[:, None], self._goals[rows]).min(axis=1)
        self._distance[rows] = distance
        stop_reward = np.where(distance == 0.0, STOP_REWARD, -STOP_REWARD)
        return np.where(_has_stopped(trajectories), stop_reward, _progress_sign(before, distance))


RewardName = Literal["path", "goal"]
REWARDS: dict[RewardName, Callable[[Atlas, Sequence[Trajectory]], Reward]] = {
    "path": PathReward,
    "goal": GoalReward,
}
"""Reward classes by name. An instance is built for one batch of trajectories."""


def _has_stopped(trajectories: Sequence[Trajectory]) -> NDArray[np.bool_]:
    return np.array([trajectory.stopped for trajectory in trajectories])


def _progress_sign(before: Array, after: Array) -> Array:
    """Return 1 for each distance in metres that shrank, -1 for one that grew, 0 for one that is unchanged."""
    return (after < before).astype(np.float64) - (after > before)


# -- A2C ---------------------------------------------------------------------------------------------------


class Transition(NamedTuple):
    """One step of a sampled rollout, for the n trajectories of the batch that have not ended."""

    rows: Tensor
    """(n,) int64: indices of these trajectories in the batch."""
    logits: Tensor
    """(n, C): scores of the C possible actions; -inf for actions that do not exist."""
    value: Tensor
    """(n,): return expected by the critic."""
    action: Tensor
    """(n,) int64: the action that was taken."""
    reward: Tensor
    """(n,): reward of the action."""
    auxiliary_loss: Tensor | None = None
    """(n,): the agent's auxiliary loss; None if the agent has no such loss."""
    oracle_action: Tensor | None = None
    """(n,) int64: action that the oracle prefers, or `IGNORE_INDEX` for none. None without an oracle."""


@dataclass(frozen=True)
class ActorCriticLoss:
    """Terms of the A2C (advantage actor-critic) loss, summed over the steps of a batch."""

    policy: Tensor
    critic: Tensor
    entropy: Tensor
    num_steps: int

    def total(self, entropy_weight: float) -> Tensor:
        """Return the loss to minimise: policy plus critic term, minus the weighted entropy."""
        return self.policy + self.critic - entropy_weight * self.entropy


def actor_critic_loss(
    transitions: Sequence[Transition], bootstrap: Tensor, *, discount: float
) -> ActorCriticLoss:
    """Return the terms of the A2C loss, summed over all transitions of a batch (docs/spec.md E.5).

    `bootstrap` (B,) is the critic's value of the final state of truncated trajectories. It is zero for
    trajectories that stopped. Values are not detached: the critic's loss also trains the rest of the network.
    """
    returns = discounted_returns(transitions, bootstrap, discount=discount)
    losses = [transition_loss(*pair) for pair in zip(transitions, returns, strict=True)]
    return ActorCriticLoss(
        policy=torch.stack([loss.policy for loss in losses]).sum(),
        critic=torch.stack([loss.critic for loss in losses]).sum(),
        entropy=torch.stack([loss.entropy for loss in losses]).sum(),
        num_steps=sum(loss.num_steps for loss in losses),
    )


def discounted_returns(
    transitions: Sequence[Transition], bootstrap: Tensor, *, discount: float
) -> list[Tensor]:
    """Return the discounted returns of every transition, a list of (n,) tensors (docs/spec.md E.5).

    A return is the reward plus `discount` times the return of the next step. The return after the last step
    is `bootstrap` (B,).
    """
    running, returns = bootstrap.detach().clone(), list[Tensor]()
    for transition in reversed(transitions):
        returns.append(discount * running[transition.rows] + transition.reward)
        running = running.index_put((transition.rows,), returns[-1])
    return returns[::-1]


def transition_loss(transition: Transition, returns: Tensor) -> ActorCriticLoss:
    """Return the terms of the A2C loss of one transition, given its discounted returns (n,)."""
    log_probability = transition.logits.log_softmax(1).gather(1, transition.action[:, None]).squeeze(1)
    advantage = returns - transition.value
    policy, critic = -(log_probability * advantage.detach()).sum(), 0.5 * advantage.square().sum()
    return ActorCriticLoss(policy, critic, policy_entropy(transition.logits).sum(), len(transition.rows))


def policy_entropy(logits: Tensor) -> Tensor:
    """Return the entropy of softmax(logits), (n, C) -> (n,). Logits of -inf contribute nothing."""
    log_probability = logits.log_softmax(1)
    finite = log_probability.masked_fill(~log_probability.isfinite(), 0.0)
    return -(log_probability.exp() * finite).sum(1)
