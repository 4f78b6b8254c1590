"""Taking stored lessons again: choices are forced to be the stored ones, all else is what training does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esceme.agents.base import Decision, State
from esceme.agents.tdstp import TDSTP
from esceme.checkpoints import names_of
from esceme.checkpoints.names import CRITIC, TD_STP
from esceme.errors import ConfigError, DataError
from esceme.learning.losses import Transition, actor_critic, imitation, returns_of, step_terms, uncertainty
from esceme.learning.rewards import PathReward
from esceme.learning.rollouts import Decide, sample_rollout, teacher_rollout
from esceme.learning.teachers import TEACHERS
from esceme.learning.trainer import Trainer
from esceme.learning.training_config import Training
from esceme.memory import Memory
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.tasks.episode import Episode
from esceme.trajectory import SingleBatch, Trajectory
from esceme.verify.comparison import Json
from esceme.verify.replay import Item, encoded, episode_of, row_at
from esceme.verify.transcript import Asked, Imitated, ImitationLogs, Norms, Rewarded, RewardedLogs
from esceme.world.atlas import Atlas, Pose

STOPPED = -1
"""What a file says of who stops or has stopped."""


@dataclass(frozen=True)
class School:
    """Where lessons are taken: a network, a world, and the settings of training."""

    navigator: Navigator
    atlas: Atlas
    training: Training
    max_steps: int

    def imitate(self, items: Sequence[Asked], decide: Decide) -> Imitated:
        """Be led by the teacher; `decide` makes the decisions, at once or step by step."""
        trainer, episodes, made = *self._begin(items), list[Decision]()

        def keep(*given: Any, **named: Any) -> Decision:
            made.append(decide(*given, **named))
            return made[-1]

        teach = TEACHERS[trainer.training.teacher](self.atlas)
        told = teacher_rollout(self.atlas, episodes, teach, max_steps=self.max_steps)
        weight = trainer.training.imitation_weight
        loss = trainer.explain(told, {}, keep, weight=weight)
        torch.autograd.backward(loss)
        mine = [told.when.episode == row for row in range(len(episodes))]
        parts = [imitation(made[0].logits[rows], told.labels[rows]) / len(episodes) for rows in mine]
        losses, aside = [float(weight * part.detach()) for part in parts], made[0].aside
        logs = ImitationLogs([sum(losses)])
        if aside is not None:
            logs.target = [float(aside.sum().detach()) / len(episodes)]
        chosen = [self._as_stored(each, step, None) for step, each in enumerate(told.chosen)]
        return Imitated(
            items=list(items),
            actions=_table(told.walks, told.row, chosen),
            loss=losses if aside is None else float(loss.detach()),
            logs=logs,
            grad_norms=_norms(trainer.navigator),
            paths=_paths(self.atlas, told.walks),
        )

    def reinforce(self, items: Sequence[Asked], actions: Sequence[Sequence[int]]) -> Rewarded:
        """Walk as stored, and learn from the rewards."""
        trainer, episodes = self._begin(items)
        source = SingleBatch(self.atlas, episodes)
        forced = Forced(trainer.navigator, self.atlas, source.walks, actions)
        reward = Measured(self.atlas, source.walks)
        steps, beyond = sample_rollout(
            forced.onlooker,
            self.atlas,
            source,
            trainer.memory,
            reward,
            forced.choose,
            encode=encoded,
            max_steps=self.max_steps,
            comment=trainer.remark,
        )
        forced.finish(beyond)
        loss = trainer.reinforce(steps, beyond, {})
        torch.autograd.backward(loss)
        asides = [float(step.aside.sum().detach()) for step in steps if step.aside is not None]
        chosen = [self._as_stored(step.chosen, when, step.logits.shape[1]) for when, step in enumerate(steps)]
        return Rewarded(
            items=list(items),
            loss=float(loss.detach()) if asides else list(self._parts(steps, beyond, trainer.training)),
            grad_norms=_norms(trainer.navigator),
            paths=_paths(self.atlas, source.walks),
            actions=_table(source.walks, [step.rows for step in steps], chosen),
            rewards=reward.told,
            values=forced.values[::-1],
            logs=self._logs(steps, beyond, forced, float(loss.detach()), asides),
            norm=trainer.clip(),
        )

    def _as_stored(self, chosen: Any, step: int, choices: int | None) -> Any:
        """Choices as files number them: of TD-STP, history tokens come before candidates."""
        if not isinstance(self.navigator.agent, TDSTP):
            return chosen
        places = step + 1
        if choices is None:
            return chosen + places
        first = choices - places
        return torch.where(chosen < first, chosen + places, chosen - first)

    def _begin(self, items: Sequence[Asked]) -> tuple[Trainer, list[Episode]]:
        """Who has learned nothing yet from these episodes, and remembers nothing."""
        vocabulary = self.navigator.agent.config.vocabulary
        episodes = [episode_of(each.instr_id, _stated(each), vocabulary) for each in items]
        self.navigator.zero_grad(set_to_none=True)
        trainer = Trainer(
            self.navigator,
            self.atlas,
            [episodes],
            replace(self.training, batch=len(episodes)),
            encode=encoded,
            max_steps=self.max_steps,
        )
        if trainer.memory is not None:
            trainer.memory.begin(episodes, np.random.default_rng(0))
        return trainer, episodes

    def _parts(self, steps: Sequence[Transition], beyond: Tensor, training: Training) -> Iterator[float]:
        """What each walk adds to the loss."""
        count = sum(len(step.rows) for step in steps)
        divisor = count if training.normalise == "steps" else training.batch
        for row in range(len(beyond)):
            own = [step.rows == row for step in steps]
            lived = [
                Transition(*(None if each is None else each[mine] for each in step))  # type: ignore[arg-type]
                for step, mine in zip(steps, own, strict=True)
            ]
            terms = actor_critic(lived, beyond, discount=training.discount)
            yield float(terms.total(training.entropy_weight).detach()) / divisor

    def _logs(
        self,
        steps: Sequence[Transition],
        beyond: Tensor,
        forced: Forced,
        loss: float,
        asides: Sequence[float],
    ) -> RewardedLogs:
        returns = returns_of(steps, beyond, discount=self.training.discount)
        terms = [step_terms(*each) for each in zip(steps, returns, strict=True)][::-1]
        return RewardedLogs(
            entropy=forced.entropy,
            critic_loss=[float(each.critic.detach()) for each in terms],
            policy_loss=[float(each.policy.detach()) for each in terms],
            total=[float(sum(each.steps for each in terms))],
            loss=[loss - sum(asides) / len(beyond)],
            target=[sum(asides) / len(beyond)] if asides else None,
        )


def training_of(flags: Mapping[str, Json]) -> Training:
    """The settings of training among the original's flags; its defaults where they are not given."""
    normalise = {"total": "steps", "batch": "batch"}.get(str(flags.get("normalize", "total")), "unknown")
    try:
        return Training(
            imitation_weight=float(flags.get("ml_weight", 0.2)),
            discount=float(flags.get("gamma", 0.9)),
            comment_weight=float(flags.get("rl_teacher_weight", 0.0)),
            comments="goal" if flags.get("no-path-restriction", False) else "path",
            entropy_weight=float(flags.get("entropy_loss_weight", 0.01)),
            normalise=normalise,  # type: ignore[arg-type]  # checked by Training
        )
    except (ValueError, ConfigError) as error:
        raise DataError(f"flags that this version does not know: {error}") from None


class Onlooker(Navigator):
    """A navigator that keeps what it saw and carried when it decided last."""

    memory: Memory | None = None
    state: State
    seen: Observation

    def see(self, observation: Observation, memory: Memory | None) -> Observation:
        """What is seen, as ever."""
        self.memory = memory
        return super().see(observation, memory)

    def decide(self, state: State, seen: Observation) -> Decision:
        """Scores, as ever."""
        decision = super().decide(state, seen)
        self.state, self.seen = decision.state or state, seen
        return decision


class Forced:
    """Stored choices, taken again; who has stopped goes on deciding where it stands, as in the original."""

    def __init__(
        self,
        navigator: Navigator,
        atlas: Atlas,
        walks: Sequence[Trajectory],
        actions: Sequence[Sequence[int]],
    ) -> None:
        """Take the `actions`; what cannot be done is STOP."""
        self.onlooker = Onlooker(navigator.agent, navigator.reader).eval()
        self.values: list[list[float]] = []
        """Of everybody at every step, and at the end."""
        self.entropy: list[float] = []
        """Of every step, summed over everybody."""
        self._atlas, self._walks, self._actions = atlas, walks, actions
        self._row_of = {walk: row for row, walk in enumerate(walks)}
        self._gone: list[Trajectory] = []
        self._state: State | None = None

    @torch.no_grad()
    def choose(self, decision: Decision, observation: Observation, walks: Sequence[Trajectory]) -> Tensor:
        """What is stored."""
        state, seen = self.onlooker.state, self.onlooker.seen
        values = dict(zip(walks, _values(decision), strict=True))
        doubt = uncertainty(decision.logits).sum()
        if self._gone:
            lingering = self._linger()
            values |= zip(self._gone, _values(lingering), strict=True)
            doubt += uncertainty(lingering.logits).sum()
        self.values.append([values[walk] for walk in self._walks])
        self.entropy.append(float(doubt))
        stop = observation.candidate_count
        first = None if decision.routes is None else decision.routes.first
        taken = [self._taken(walk, int(most), first) for walk, most in zip(walks, stop, strict=True)]
        chosen = torch.tensor(taken)
        if len(rows := (chosen == stop).nonzero().flatten()):
            ended = self.onlooker.advance(state.only(rows), seen.only(rows), chosen[rows])
            self._state = ended if self._state is None else self._state.joined(ended)
            self._gone += [walks[row] for row in rows.tolist()]
        return chosen

    @torch.no_grad()
    def finish(self, beyond: Tensor) -> None:
        """Add the values at the end, given those of who was cut off there, (B,)."""
        values = dict(zip(self._walks, beyond.tolist(), strict=True))
        if self._gone:
            values |= zip(self._gone, _values(self._linger()), strict=True)
        self.values.append([values[walk] for walk in self._walks])

    def _taken(self, walk: Trajectory, stop: int, first: int | None) -> int:
        """The stored choice of a walk, STOP where it is none; places are choices from `first` on."""
        row = self._row_of[walk]
        (stored,) = row_at(self._actions, walk.decisions)[row : row + 1] or [stop]
        if first is not None:
            places = walk.decisions + 1
            if 1 <= stored < places:
                return first + stored
            stored -= places
        return stored if 0 <= stored < stop else stop

    def _linger(self) -> Decision:
        """What those decide who have stopped."""
        poses = np.array([walk.poses[-1] for walk in self._gone], dtype=np.int64)
        observation = Observation.of(self._atlas, Pose(*poses.T))
        assert self._state is not None
        # Past the onlooker, who is to keep what the others saw and carried.
        seen = Navigator.see(self.onlooker, observation, self.onlooker.memory)
        decision = Navigator.decide(self.onlooker, self._state, seen)
        self._state = decision.state or self._state
        return decision


class Measured(PathReward):
    """The reward of paths, and what a file holds of every step."""

    def __init__(self, atlas: Atlas, walks: Sequence[Trajectory]) -> None:
        """Begin where the walks began."""
        super().__init__(atlas, walks)
        self.told: list[list[list[float]]] = []
        self._walks = walks
        self._ends = np.array([atlas.locate(each.episode.scene_id, [each.episode.goal])[0] for each in walks])

    def step(self, walks: Sequence[Trajectory]) -> NDArray[np.float64]:
        """The reward of each walk's latest decision, (B,)."""
        rewards = super().step(walks)
        worth = dict(zip(walks, rewards.tolist(), strict=True))
        here = np.array([walk.viewpoint for walk in self._walks])
        self.told.append(
            [
                [worth.get(walk, 0.0) for walk in self._walks],
                [float(walk in worth) for walk in self._walks],
                self._atlas.distance(here, self._ends).tolist(),
                self.ndtw(self._walks).tolist(),
            ]
        )
        return rewards


def _stated(asked: Asked) -> Item:
    """The same item as files of rollouts have it."""
    return Item(asked.scan, "".join(asked.path[:1]), asked.heading, asked.path, asked.instr_encoding)


def _values(decision: Decision) -> list[float]:
    return [] if decision.value is None else decision.value.tolist()


def _table(walks: Sequence[Trajectory], rows: Sequence[Any], chosen: Sequence[Any]) -> list[list[int]]:
    """What every walk did at every step."""
    table = []
    for at, (who, what) in enumerate(zip(rows, chosen, strict=True)):
        row = [STOPPED] * len(walks)
        for index, choice in zip(who.tolist(), what.tolist(), strict=True):
            walk = walks[index]
            row[index] = STOPPED if walk.stopped and at == walk.decisions - 1 else choice
        table.append(row)
    return table


def _paths(atlas: Atlas, walks: Sequence[Trajectory]) -> list[list[str]]:
    return [[atlas.name(viewpoint)[1] for viewpoint, _ in walk.poses] for walk in walks]


def _norms(navigator: Navigator) -> Norms:
    """The norm of each parameter's gradient by the original's names."""
    before = {CRITIC: "critic.", **dict.fromkeys(TD_STP, "")}
    whole = {
        ours: next((begin for part, begin in before.items() if name.startswith(part)), "vln_bert.") + name
        for ours, name in names_of(navigator).items()
    }
    return {
        whole[name]: None if each.grad is None else float(each.grad.double().norm())
        for name, each in navigator.named_parameters()
    }
