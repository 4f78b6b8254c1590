"""One iteration after the other: batches drawn, walks walked, losses taken, weights moved (spec E)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from esceme.errors import TrainingError
from esceme.learning.distributed import ProcessGroup, SharedMemory
from esceme.learning.losses import Transition, actor_critic, imitation
from esceme.learning.rewards import REWARDS
from esceme.learning.rollouts import (
    Decide,
    Demonstrations,
    dagger_rollout,
    forward_demonstrations,
    sample_rollout,
    teacher_rollout,
)
from esceme.learning.teachers import COMMENTS, SUPERVISIONS, TEACHERS
from esceme.learning.training_config import Training
from esceme.navigator import Navigator
from esceme.tasks.episode import Episode
from esceme.tasks.split import InstructionEncoder
from esceme.trajectory import SingleBatch, sampling
from esceme.world.atlas import Atlas

IMITATING, SAMPLING, DROPPING = range(3)
"""What draws random numbers in an iteration; each has a stream of its own."""
ADVICE = (
    "All that was saved is finite, but the same settings lead here again: begin another run with a smaller "
    "--learning-rate; with --start it takes over weights, such as those of best/"
)


class Stream:
    """Episodes in an endless order: all of them, shuffled anew each time (spec A.10).

    Which ones make up a batch depends on its number and the seed alone, so that a run can resume anywhere.

    >>> stream = Stream("abcde", seed=0)
    >>> sorted(stream.batch(0, 3) + stream.batch(1, 3)[:2])
    ['a', 'b', 'c', 'd', 'e']
    """

    def __init__(self, episodes: Sequence[Any], *, seed: int, key: int = 0) -> None:
        """Shuffle by `seed`; streams with other keys go other ways."""
        self._episodes, self._seed = episodes, (seed, key)
        self._orders: dict[int, list[int]] = {}

    def batch(self, number: int, size: int) -> list[Any]:
        """The batch with this number, of batches of this size."""
        return [self._episodes[self._at(place)] for place in range(number * size, (number + 1) * size)]

    def _at(self, place: int) -> int:
        epoch, within = divmod(place, len(self._episodes))
        if epoch not in self._orders:
            order = np.random.default_rng([*self._seed, epoch]).permutation(len(self._episodes)).tolist()
            recent = {each: kept for each, kept in self._orders.items() if each == epoch - 1}
            self._orders = {**recent, epoch: order}
        return self._orders[epoch][within]


class Trainer:
    """A navigator that learns; the state of a run is its weights, its optimiser's, and what it remembers.

    Everything random follows from the seed and the number of an iteration.
    """

    def __init__(
        self,
        navigator: Navigator,
        atlas: Atlas,
        sets: Sequence[Sequence[Episode]],
        training: Training,
        *,
        encode: InstructionEncoder,
        max_steps: int,
        seed: int = 0,
        together: ProcessGroup | None = None,
    ) -> None:
        """Learn from `sets` of episodes that take turns."""
        self.navigator, self.training, self.together = navigator, training, together or ProcessGroup()
        self._atlas, self._encode, self._max_steps, self._seed = atlas, encode, max_steps, seed
        self._streams = [Stream(episodes, seed=seed, key=key) for key, episodes in enumerate(sets)]
        self._teach, self._comment = (
            TEACHERS[training.teacher](atlas),
            TEACHERS[training.dagger_teacher](atlas),
        )
        self._supervise = SUPERVISIONS[training.supervision](atlas)
        self.remark = COMMENTS[training.comments](atlas) if training.comment_weight else None
        """Who says what should have been done on sampled walks, if anybody."""
        self.memory: SharedMemory | None = None
        if navigator.reader.uses_memory:
            self.memory = SharedMemory(
                atlas, navigator.reader, training.completeness, device=navigator.device
            )
            self.memory.together = self.together
        critic = getattr(navigator.agent, "critic", None)
        self._critic = [] if critic is None else list(critic.parameters())
        mine = {id(each) for each in self._critic}
        self._network = [each for each in navigator.parameters() if id(each) not in mine]
        kept = {id(each) for each in navigator.agent.undecayed}
        groups: list[dict[str, Any]] = [
            {"params": [each for each in navigator.parameters() if id(each) not in kept]},
            {"params": navigator.agent.undecayed, "weight_decay": 0.0},
        ]
        self.optimiser = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=training.learning_rate,
            weight_decay=training.weight_decay,
        )

    # -- one iteration -----------------------------------------------------------------------------------

    def iterate(self, iteration: int) -> dict[str, float]:
        """Learn from the batches of an iteration, counted from 0; losses and other things to log."""
        torch.manual_seed(self._number(iteration, DROPPING, self.together.rank))
        self.navigator.train()
        self.optimiser.zero_grad(set_to_none=True)
        method, said = self.training.method_at(iteration), dict[str, float]()
        for loss in self._losses(iteration, method, said):
            if loss.requires_grad:
                torch.autograd.backward(loss)
        names = list(said)
        said = dict(zip(names, self.together.sums(list(said.values()), self.navigator.device), strict=True))
        self._require_finite(iteration, said)
        parameters = [*self._network, *self._critic]
        self.together.add_gradients(parameters)
        norm = self.clip()
        self._require_finite(iteration, {"gradient": norm})
        said |= {"gradient": norm, "rate": self.training.rate_at(iteration)}
        for group in self.optimiser.param_groups:
            group["lr"] = said["rate"]
        self.optimiser.step()
        return said

    def clip(self) -> float:
        """Scale the network's gradient down to the largest allowed norm, not the critic's; the norm before.

        Where a gradient is not finite that is nan, and nothing is scaled.
        """
        try:
            nn.utils.clip_grad_norm_(self._critic, math.inf, error_if_nonfinite=True)
            return float(nn.utils.clip_grad_norm_(self._network, self.training.clip, error_if_nonfinite=True))
        except RuntimeError:
            return math.nan

    def _losses(self, iteration: int, method: str, said: dict[str, float]) -> Iterator[Tensor]:
        """The parts of an iteration's loss, each to be propagated back before the next is made."""
        stream = self._streams[iteration % len(self._streams)]
        turn = iteration // len(self._streams)
        batches = 2 if self.training.method == "imitation+a2c" else 1
        if method == "dagger":
            yield self._dagger(self._batch(stream, turn * batches), iteration, said)
            return
        weight = self.training.imitation_weight if method == "imitation+a2c" else 1.0
        if weight:
            yield self._imitation(self._batch(stream, turn * batches), iteration, said, weight)
        if method == "imitation+a2c":
            yield self._a2c(self._batch(stream, turn * batches + 1), iteration, said)

    def _imitation(
        self, episodes: list[Episode], iteration: int, said: dict[str, float], weight: float
    ) -> Tensor:
        told = teacher_rollout(
            self._atlas, self._supervised(episodes, iteration), self._teach, max_steps=self._max_steps
        )
        return self.explain(told, said, weight=weight)

    def _dagger(self, episodes: list[Episode], iteration: int, said: dict[str, float]) -> Tensor:
        self._begin(episodes, iteration, SAMPLING)
        told = dagger_rollout(
            self.navigator,
            self._atlas,
            self.together.share(episodes),
            self.memory,
            self._comment,
            sampling([self._seed, iteration]),
            encode=self._encode,
            max_steps=self._max_steps,
        )
        return self.explain(told, said)

    def explain(
        self,
        told: Demonstrations,
        said: dict[str, float],
        decide: Decide = forward_demonstrations,
        *,
        weight: float = 1.0,
    ) -> Tensor:
        """The cross-entropy of what a teacher said to walks, summed over steps and divided by the batch.

        It has a `weight`; what an agent's own loss adds to it has none here.
        """
        decision = decide(self.navigator, self._atlas, told, self.memory, encode=self._encode)
        wanted = told.labels.to(decision.logits.device)
        loss = imitation(decision.logits, wanted) / self.training.batch
        right = (decision.logits.argmax(1) == wanted).sum()
        steps = self.together.sums([len(wanted)], self.navigator.device)[0]
        said |= {"imitation": float(loss.detach()), "agreement": float(right) / steps}
        return weight * loss + self._aside([decision.aside], said)

    def _a2c(self, episodes: list[Episode], iteration: int, said: dict[str, float]) -> Tensor:
        self._begin(episodes, iteration, SAMPLING)
        source = SingleBatch(self._atlas, self.together.share(episodes))
        steps, beyond = sample_rollout(
            self.navigator,
            self._atlas,
            source,
            self.memory,
            REWARDS[self.training.reward](self._atlas, source.trajectories),
            sampling([self._seed, iteration]),
            encode=self._encode,
            max_steps=self._max_steps,
            comment=self.remark,
        )
        return self.reinforce(steps, beyond, said)

    def reinforce(self, steps: Sequence[Transition], beyond: Tensor, said: dict[str, float]) -> Tensor:
        """A2C's loss of walks, divided by their steps or by the batch (spec E.5, E.6)."""
        terms = actor_critic(steps, beyond, discount=self.training.discount)
        count = self.together.sums([terms.steps], self.navigator.device)[0]
        divisor = count if self.training.normalise == "steps" else self.training.batch
        scale = (self.training.batch if self.training.scale_by_batch else 1) / divisor
        parts = {"policy": terms.policy, "critic": terms.critic, "entropy": terms.entropy}
        said |= {name: float(value.detach()) / divisor for name, value in parts.items()}
        said["reward"] = float(sum(step.reward.sum() for step in steps)) / self.training.batch
        loss = scale * terms.total(self.training.entropy_weight)
        return loss + self._commented(steps, said) + self._aside([step.aside for step in steps], said)

    def _commented(self, steps: Sequence[Transition], said: dict[str, float]) -> Tensor:
        """The cross-entropy of what should have been done instead, summed and divided by the batch."""
        told = [imitation(step.logits, step.wanted) for step in steps if step.wanted is not None]
        if not told:
            return torch.zeros((), device=self.navigator.device)
        loss = torch.stack(told).sum() / self.training.batch
        said["comments"] = float(loss.detach())
        return self.training.comment_weight * loss

    def _aside(self, told: Sequence[Tensor | None], said: dict[str, float]) -> Tensor:
        """The agent's own loss, summed and divided by the batch; nothing where it has none."""
        asides = [each.sum() for each in told if each is not None]
        if not asides:
            return torch.zeros((), device=self.navigator.device)
        loss = torch.stack(asides).sum() / self.training.batch
        said["aside"] = said.get("aside", 0.0) + float(loss.detach())
        return loss

    def _supervised(self, episodes: list[Episode], iteration: int) -> list[Episode]:
        """This process's part of a batch, with the paths that are taught today."""
        draw = self._begin(episodes, iteration, IMITATING)
        return self.together.share([self._supervise(episode, draw) for episode in episodes])

    def _begin(self, episodes: list[Episode], iteration: int, purpose: int) -> np.random.Generator:
        """Prepare the memory for a rollout of a whole batch; whoever draws on draws the same everywhere."""
        draw = np.random.default_rng([self._seed, iteration, purpose])
        if self.memory is not None:
            self.memory.begin(episodes, draw)
        return draw

    def _batch(self, stream: Stream, number: int) -> list[Episode]:
        return stream.batch(number, self.training.batch)

    def _number(self, *keys: int) -> int:
        return int(np.random.SeedSequence([self._seed, *keys]).generate_state(1, np.uint64)[0] >> 1)

    # -- numbers that are none ---------------------------------------------------------------------------

    def require_finite(self, done: int) -> None:
        """Raise `TrainingError` where weights, or what the optimiser keeps of them, are not finite."""
        if faults := self._not_finite():
            raise TrainingError(f"iteration {done}: not finite are {faults}. {ADVICE}")

    def _require_finite(self, iteration: int, said: dict[str, float]) -> None:
        """Raise `TrainingError` where something that was computed is not finite."""
        for name, value in said.items():
            if not math.isfinite(value):
                faults = self._not_finite() or "no weights or gradients"
                raise TrainingError(
                    f"iteration {iteration + 1}: '{name}' is {value}; not finite are {faults}. {ADVICE}"
                )

    def _not_finite(self) -> str:
        """Which weights, which gradients, and the optimiser's averages of which, in words."""
        found: dict[str, list[str]] = {}
        for name, each in self.navigator.named_parameters():
            averages = self.optimiser.state.get(each, {}).values()
            for what, tensors in (("weights", [each]), ("gradients", [each.grad]), ("averages", averages)):
                if not all(tensor is None or tensor.isfinite().all() for tensor in tensors):
                    found.setdefault(what, []).append(name)
        return "; ".join(
            f"the {what} of {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
            for what, names in found.items()
        )

    # -- keeping a run -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs besides the number of the iteration."""
        return {
            "weights": self.navigator.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "memory": None if self.memory is None else self.memory.state(),
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.navigator.load_state_dict(state["weights"])
        self.optimiser.load_state_dict(state["optimiser"])
        if self.memory is not None:
            self.memory.resume(state["memory"])
