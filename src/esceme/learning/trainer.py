"""The training step: sample batches, roll out, compute losses, update weights (docs/spec.md E)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from esceme.agents.base import Decision
from esceme.errors import TrainingError
from esceme.learning.distributed import ProcessGroup
from esceme.learning.memory_dropout import TrainingMemory
from esceme.learning.reinforcement import REWARDS, Transition, actor_critic_loss
from esceme.learning.rollouts import (
    Demonstrations,
    LabelledStep,
    dagger_rollout,
    forward_demonstrations,
    oracle_rollout,
    sample_rollout,
    teacher_rollout,
)
from esceme.learning.teachers import IGNORE_INDEX, ORACLES, SUPERVISIONS, TEACHERS, stopping_at_goal
from esceme.learning.training_config import TrainingConfig
from esceme.navigator import Navigator
from esceme.tasks.episode import Episode
from esceme.tasks.split import InstructionEncoder
from esceme.trajectory import SingleBatch, sampling
from esceme.world.atlas import Atlas

IMITATION, SAMPLING, DROPOUT = range(3)
"""Keys that derive independent random seeds within an iteration, one per purpose."""
MAX_NAMES = 3
"""Maximum number of parameters that an error message names."""
ADVICE = (
    "All saved states are finite, but the same settings lead to the same error. Start another run with a "
    "smaller --learning-rate; --start begins it with existing weights, such as those of best/"
)

LossAndMetrics = tuple[Tensor, dict[str, float]]
"""A loss to backpropagate, and metrics by name for the log."""


class EpisodeStream:
    """Endless sequence of batches that contains all episodes, reshuffled in every epoch (docs/spec.md A.10).

    A batch depends only on its index and the seed. A run can therefore resume at any iteration.

    >>> stream = EpisodeStream("abcde", seed=0)
    >>> sorted(stream.batch(0, 3) + stream.batch(1, 3)[:2])
    ['a', 'b', 'c', 'd', 'e']
    """

    def __init__(self, episodes: Sequence[Any], *, seed: int, key: int = 0) -> None:
        """Shuffle `episodes` by `seed` and `key`. `key` distinguishes several datasets of one run."""
        self._episodes, self._seed = episodes, (seed, key)
        self._permutations: dict[int, list[int]] = {}  # of the current and the previous epoch

    def batch(self, index: int, size: int) -> list[Any]:
        """Return batch number `index`, counted from 0, if all batches have `size` episodes."""
        return [
            self._episodes[self._episode_index(position)]
            for position in range(index * size, (index + 1) * size)
        ]

    def _episode_index(self, position: int) -> int:
        epoch, offset = divmod(position, len(self._episodes))
        if epoch not in self._permutations:
            permutation = np.random.default_rng([*self._seed, epoch]).permutation(len(self._episodes))
            previous = {e: order for e, order in self._permutations.items() if e == epoch - 1}
            self._permutations = {**previous, epoch: permutation.tolist()}
        return self._permutations[epoch][offset]


class Trainer:
    """Trains a navigator. The state to save consists of weights, optimizer state and memory.

    All random numbers derive from the seed and the iteration.
    """

    def __init__(
        self,
        navigator: Navigator,
        atlas: Atlas,
        datasets: Sequence[Sequence[Episode]],
        config: TrainingConfig,
        *,
        encode: InstructionEncoder,
        max_steps: int,
        seed: int = 0,
        process_group: ProcessGroup | None = None,
    ) -> None:
        """Train on `datasets`, lists of episodes that alternate from iteration to iteration."""
        self.navigator, self.config = navigator, config
        self.process_group = process_group or ProcessGroup()
        self._atlas, self._encode, self._max_steps, self._seed = atlas, encode, max_steps, seed
        self._streams = [EpisodeStream(episodes, seed=seed, key=key) for key, episodes in enumerate(datasets)]
        self._teacher = TEACHERS[config.teacher](atlas)
        self._dagger_teacher = TEACHERS[config.dagger_teacher](atlas)
        self._supervise = SUPERVISIONS[config.supervision](atlas)
        self.oracle = ORACLES[config.oracle](atlas) if config.oracle_weight else None
        """Labels the steps of sampled rollouts; None if `config.oracle_weight` is 0."""
        self.memory: TrainingMemory | None = None
        if navigator.reader.uses_memory:
            self.memory = TrainingMemory(
                atlas,
                navigator.reader,
                config.memory_dropout,
                process_group=self.process_group,
                device=navigator.device,
            )
        self._critic = navigator.agent.critic_parameters
        critic_ids = {id(parameter) for parameter in self._critic}
        self._network = [p for p in navigator.parameters() if id(p) not in critic_ids]
        no_decay = {id(parameter) for parameter in navigator.agent.no_weight_decay}
        groups: list[dict[str, Any]] = [
            {"params": [p for p in navigator.parameters() if id(p) not in no_decay]},
            {"params": navigator.agent.no_weight_decay, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=True,
        )

    # -- one iteration -----------------------------------------------------------------------------------

    def training_step(self, iteration: int) -> dict[str, float]:
        """Train on the batches of one iteration, counted from 0, and return metrics for the log by name.

        Raise `TrainingError`, without updating weights, if a loss or a gradient is not finite.
        """
        torch.manual_seed(self._derived_seed(iteration, DROPOUT, self.process_group.rank))
        if not self.navigator.training:
            self.navigator.train()
        self.optimizer.zero_grad(set_to_none=True)
        metrics: dict[str, float] = {}
        for loss, part in self._losses(iteration):
            if loss.requires_grad:
                torch.autograd.backward(loss)
            for name, value in part.items():  # imitation and A2C both report an auxiliary loss
                metrics[name] = metrics[name] + value if name in metrics else value
        sums = self.process_group.all_reduce_sum(list(metrics.values()), self.navigator.device)
        metrics = dict(zip(metrics, sums, strict=True))
        self._check_metrics(iteration, metrics)
        if iteration < self.config.reader_warmup_iterations:
            self.navigator.agent.zero_grad(set_to_none=True)
        self.process_group.all_reduce_gradients([*self._network, *self._critic])
        gradient_norm = self.clip_gradients()
        self._check_metrics(iteration, {"gradient_norm": gradient_norm})
        learning_rate = self.config.learning_rate_at(iteration)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        return {**metrics, "gradient_norm": gradient_norm, "learning_rate": learning_rate}

    def clip_gradients(self) -> float:
        """Clip the gradient norm of all parameters except the critic's; return the norm before clipping.

        If a gradient is not finite, return nan and clip nothing.
        """
        try:
            nn.utils.clip_grad_norm_(self._critic, math.inf, error_if_nonfinite=True)
            return float(
                nn.utils.clip_grad_norm_(self._network, self.config.max_grad_norm, error_if_nonfinite=True)
            )
        except RuntimeError:
            return math.nan

    def _losses(self, iteration: int) -> Iterator[LossAndMetrics]:
        """Yield the losses of an iteration. The caller backpropagates each before the next is computed."""
        stream = self._streams[iteration % len(self._streams)]
        round_index = iteration // len(self._streams)
        has_samples = self.config.method.startswith("imitation+")
        batches_per_round = 2 if has_samples else 1
        method = self.config.method_at(iteration)

        def batch(offset: int) -> list[Episode]:
            return stream.batch(round_index * batches_per_round + offset, self.config.batch)

        if method == "dagger":
            yield self._dagger(batch(0), iteration)
            return
        weight = self.config.imitation_weight if method != "imitation" else 1.0
        if weight:
            yield self._imitation(batch(0), iteration, weight)
        if method == "imitation+a2c":
            yield self._a2c(batch(1), iteration)
        if method == "imitation+dagger":
            yield self._oracle_dagger(batch(1), iteration)

    def _imitation(self, episodes: list[Episode], iteration: int, weight: float) -> LossAndMetrics:
        """Return the imitation loss of a batch that follows the teacher, multiplied by `weight`."""
        rng = self._begin_rollout(episodes, iteration, IMITATION)
        supervised = [self._supervise(episode, rng) for episode in episodes]
        shard = self.process_group.shard(supervised)
        demonstrations = teacher_rollout(self._atlas, shard, self._teacher, max_steps=self._max_steps)
        return self.imitation_loss(demonstrations, self._forward(demonstrations), weight=weight)

    def _dagger(self, episodes: list[Episode], iteration: int) -> LossAndMetrics:
        """Return the imitation loss of a sampled batch, labelled by the DAgger teacher."""
        self._begin_rollout(episodes, iteration, SAMPLING)
        demonstrations = dagger_rollout(
            self.navigator,
            self._atlas,
            self.process_group.shard(episodes),
            self.memory,
            self._dagger_teacher,
            sampling([self._seed, iteration]),
            encode=self._encode,
            max_steps=self._max_steps,
        )
        return self.imitation_loss(demonstrations, self._forward(demonstrations))

    def _oracle_dagger(self, episodes: list[Episode], iteration: int) -> LossAndMetrics:
        rng = self._begin_rollout(episodes, iteration, SAMPLING)
        supervised = [self._supervise(episode, rng) for episode in episodes]
        assert self.oracle is not None  # by TrainingConfig
        steps = oracle_rollout(
            self.navigator,
            self._atlas,
            SingleBatch(self._atlas, self.process_group.shard(supervised)),
            self.memory,
            self.oracle,
            stopping_at_goal(self._atlas, sampling([self._seed, iteration])),
            encode=self._encode,
            max_steps=self._max_steps,
        )
        return self.oracle_loss(steps)

    def _a2c(self, episodes: list[Episode], iteration: int) -> LossAndMetrics:
        """Return the A2C loss of a sampled batch."""
        self._begin_rollout(episodes, iteration, SAMPLING)
        source = SingleBatch(self._atlas, self.process_group.shard(episodes))
        transitions, bootstrap = sample_rollout(
            self.navigator,
            self._atlas,
            source,
            self.memory,
            REWARDS[self.config.reward](self._atlas, source.trajectories),
            sampling([self._seed, iteration]),
            encode=self._encode,
            max_steps=self._max_steps,
            oracle=self.oracle,
        )
        return self.a2c_loss(transitions, bootstrap)

    def _forward(self, demonstrations: Demonstrations) -> Decision:
        return forward_demonstrations(
            self.navigator, self._atlas, demonstrations, self.memory, encode=self._encode
        )

    def _begin_rollout(self, episodes: list[Episode], iteration: int, key: int) -> np.random.Generator:
        """Apply memory dropout before a rollout of `episodes`, which is the whole batch of all ranks.

        Return a random generator, which is the same on all ranks. `key` distinguishes the kinds of rollouts.
        """
        rng = np.random.default_rng([self._seed, iteration, key])
        if self.memory is not None:
            self.memory.begin_rollout(episodes, rng)
        return rng

    def _derived_seed(self, *keys: int) -> int:
        return int(np.random.SeedSequence([self._seed, *keys]).generate_state(1, np.uint64)[0] >> 1)

    # -- losses ------------------------------------------------------------------------------------------

    def imitation_loss(
        self, demonstrations: Demonstrations, decision: Decision, *, weight: float = 1.0
    ) -> LossAndMetrics:
        """Return the imitation loss of the decisions of a batch, and metrics by name for the log.

        The loss is the cross-entropy of the teacher's actions, summed over steps, divided by the batch size
        and multiplied by `weight`. Steps at which the agent cannot take the teacher's action are left out.
        The agent's auxiliary loss is added.
        """
        labels = demonstrations.labels.to(decision.logits.device)
        is_impossible = decision.logits.detach().gather(1, labels[:, None]).squeeze(1) == -torch.inf
        labels = labels.masked_fill(is_impossible, IGNORE_INDEX)
        loss = functional.cross_entropy(decision.logits, labels, reduction="sum") / self.config.batch
        num_correct = (decision.logits.argmax(1) == labels).sum()
        num_steps = self.process_group.all_reduce_sum([len(labels)], self.navigator.device)[0]
        metrics = {"imitation": float(loss.detach()), "accuracy": float(num_correct) / num_steps}
        auxiliary, auxiliary_metrics = self._auxiliary_loss([decision.auxiliary_loss])
        return weight * loss + auxiliary, metrics | auxiliary_metrics

    def a2c_loss(self, transitions: Sequence[Transition], bootstrap: Tensor) -> LossAndMetrics:
        """Return the A2C loss of a batch, and metrics by name for the log (docs/spec.md E.5, E.6).

        `config.normalise` selects the divisor: number of steps or batch size. `bootstrap` (B,) is the
        critic's value of the final state of truncated trajectories, and zero for trajectories that stopped.
        """
        config = self.config
        terms = actor_critic_loss(transitions, bootstrap, discount=config.discount)
        num_steps = self.process_group.all_reduce_sum([terms.num_steps], self.navigator.device)[0]
        divisor = num_steps if config.normalise == "steps" else config.batch
        scale = (config.batch if config.scale_by_batch else 1) / divisor
        metrics = {
            "policy": float(terms.policy.detach()) / divisor,
            "critic": float(terms.critic.detach()) / divisor,
            "entropy": float(terms.entropy.detach()) / divisor,
            "reward": float(sum(transition.reward.sum() for transition in transitions)) / config.batch,
        }
        oracle, oracle_metrics = self._oracle_loss(
            [(step.logits, step.oracle_action) for step in transitions]
        )
        auxiliary, auxiliary_metrics = self._auxiliary_loss([step.auxiliary_loss for step in transitions])
        loss = scale * terms.total(config.entropy_weight) + oracle + auxiliary
        return loss, metrics | oracle_metrics | auxiliary_metrics

    def oracle_loss(self, steps: Sequence[LabelledStep]) -> LossAndMetrics:
        """Return the loss of sampled rollouts with the oracle's labels, and metrics by name for the log."""
        loss, metrics = self._oracle_loss([(step.logits, step.label) for step in steps])
        auxiliary, auxiliary_metrics = self._auxiliary_loss([step.auxiliary_loss for step in steps])
        return loss + auxiliary, metrics | auxiliary_metrics

    def _oracle_loss(self, steps: Sequence[tuple[Tensor, Tensor | None]]) -> LossAndMetrics:
        """Return the cross-entropy of the oracle's actions: the sum over steps, divided by the batch size.

        `steps` are logits (n, C) and the oracle's actions (n,).
        """
        losses = [
            functional.cross_entropy(logits, label, reduction="sum")
            for logits, label in steps
            if label is not None
        ]
        if not losses:
            return torch.zeros((), device=self.navigator.device), {}
        loss = torch.stack(losses).sum() / self.config.batch
        return self.config.oracle_weight * loss, {"oracle": float(loss.detach())}

    def _auxiliary_loss(self, parts: Sequence[Tensor | None]) -> LossAndMetrics:
        """Return the sum of the agent's auxiliary losses, divided by the batch size; 0 if there are none."""
        losses = [part.sum() for part in parts if part is not None]
        if not losses:
            return torch.zeros((), device=self.navigator.device), {}
        loss = torch.stack(losses).sum() / self.config.batch
        return loss, {"auxiliary": float(loss.detach())}

    # -- checks for non-finite values --------------------------------------------------------------------

    def check_finite(self, iteration: int) -> None:
        """Raise `TrainingError` if any weight or any value of the optimizer state is not finite."""
        if found := self._find_non_finite():
            raise TrainingError(f"iteration {iteration}: not finite are {found}. {ADVICE}")

    def _check_metrics(self, iteration: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            if not math.isfinite(value):
                found = self._find_non_finite() or "no weights or gradients"
                raise TrainingError(
                    f"iteration {iteration + 1}: '{name}' is {value}; not finite are {found}. {ADVICE}"
                )

    def _find_non_finite(self) -> str:
        """Return the names of parameters with non-finite weights, gradients or optimizer state, as a text."""
        found: dict[str, list[str]] = {}
        for name, parameter in self.navigator.named_parameters():
            averages = self.optimizer.state.get(parameter, {}).values()
            tensors = {"weights": [parameter], "gradients": [parameter.grad], "averages": averages}
            for kind, values in tensors.items():
                if not all(value is None or value.isfinite().all() for value in values):
                    found.setdefault(kind, []).append(name)
        return "; ".join(
            f"the {kind} of {', '.join(names[:MAX_NAMES])}"
            + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")
            for kind, names in found.items()
        )

    # -- state -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return all state that a resumed run needs, except the iteration."""
        return {
            "weights": self.navigator.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "memory": None if self.memory is None else self.memory.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load weights, optimizer state and memory from `state`, a result of `state_dict`."""
        self.navigator.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.memory is not None:
            self.memory.load_state_dict(state["memory"])
