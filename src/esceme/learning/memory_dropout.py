"""The scene memory during training, and memory dropout: which part of the memory the agent sees.

The released training never clears the memory. Its agents soon see an almost complete memory in every rollout
and do not learn to act without one (docs/spec.md C.6). Memory dropout offers alternatives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from esceme.errors import ConfigError, check_choices
from esceme.learning.distributed import ProcessGroup
from esceme.memory import MemoryBank, MemorySubgraph, Reader
from esceme.observation import Observation
from esceme.tasks.episode import Episode
from esceme.world.atlas import Atlas

MemoryDropoutMode = Literal["as-released", "reset", "forgetting", "sampled"]
"""How memory is dropped in training.

- `as-released`: not at all; the memory is never cleared.
- `reset`: a scene is cleared after every `reset_after` episodes in it.
- `forgetting`: before every rollout each remembered viewpoint of its scenes is forgotten with probability
  `forget_probability`.
- `sampled`: every rollout sees a random subset of each scene's memory: all of it with probability
  `full_probability`, nothing with probability `empty_probability`, otherwise a fraction drawn uniformly from
  [0, 1). Nothing is forgotten for good.
"""


@dataclass(frozen=True, kw_only=True)
class MemoryDropout:
    """Which part of a scene's memory is visible to an agent in training.

    Viewpoints that are remembered during a rollout are visible for the rest of it in every mode.
    """

    mode: MemoryDropoutMode = "as-released"
    """How memory is dropped: never, by clearing scenes, by forgetting viewpoints, or by sampling a subset."""
    reset_after: int = 20
    """Episodes in a scene after which its memory is cleared, in mode `reset`."""
    forget_probability: float = 0.5
    """Probability that a viewpoint is forgotten before a rollout, in mode `forgetting`."""
    full_probability: float = 0.3
    """Probability that a rollout sees the whole memory of a scene, in mode `sampled`."""
    empty_probability: float = 0.1
    """Probability that a rollout sees no memory of a scene, in mode `sampled`."""

    def __post_init__(self) -> None:
        check_choices(self)
        if self.reset_after < 1:
            raise ConfigError(f"reset_after: expected at least 1 episode, found {self.reset_after}")
        for name in ("forget_probability", "full_probability", "empty_probability"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}: expected a number from 0 to 1, found {getattr(self, name)}")
        if self.full_probability + self.empty_probability > 1:
            raise ConfigError(
                f"full_probability {self.full_probability} and empty_probability {self.empty_probability}: "
                "expected a sum of at most 1"
            )


class TrainingMemory:
    """The scene memory of a training run, filtered by memory dropout and equal on all ranks.

    Ranks exchange the viewpoints of their agents at every step. `remember_observation` and `end_rollout` are
    collectives: every rank calls one of them equally often.
    """

    def __init__(
        self,
        atlas: Atlas,
        reader: Reader,
        memory_dropout: MemoryDropout,
        *,
        process_group: ProcessGroup | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Start empty."""
        self.bank = MemoryBank.from_atlas(atlas, pooling=reader.pooling, device=device)
        self.memory_dropout = memory_dropout
        self._atlas, self._process_group = atlas, process_group or ProcessGroup()
        self._num_episodes = Counter[str]()  # per scene, since its last reset
        # One entry more than viewpoints: index -1 is never visible.
        self._visible = torch.zeros(len(atlas) + 1, dtype=torch.bool, device=device)
        self._visible_at_start = self._visible.clone()

    def begin_rollout(self, episodes: Sequence[Episode], rng: np.random.Generator) -> None:
        """Apply memory dropout before a rollout of `episodes`, which are the batch of all ranks together."""
        mode = self.memory_dropout.mode
        scenes = sorted({episode.scene_id for episode in episodes})
        if mode == "reset":
            self._reset_full_scenes(scenes)
            self._num_episodes.update(episode.scene_id for episode in episodes)
        for scene in scenes if mode == "forgetting" else ():
            self._forget_some(scene, rng)
        self._visible[:-1] = True
        for scene in scenes if mode == "sampled" else ():
            viewpoints = self._scene_viewpoints(scene)
            hidden = rng.random(len(viewpoints)) >= self._sample_visible_fraction(rng)
            self._visible[viewpoints] = torch.from_numpy(~hidden).to(self._visible)
        self._visible_at_start = torch.cat([self.bank.visited, self._visible.new_zeros(1)]) & self._visible

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        """Recall visible memory at viewpoints of any shape, (..., D); zeros where there is none."""
        return self.bank.recall_at(torch.where(self._visible[viewpoints], viewpoints, -1))

    def scene_subgraph(self, viewpoints: Tensor) -> MemorySubgraph:
        """Return the visible memory of the scenes of viewpoints (B,)."""
        subgraph = self.bank.scene_subgraph(viewpoints)
        return subgraph.restrict(self._visible[subgraph.viewpoints])

    def remember_observation(self, observation: Observation) -> None:
        """Remember the viewpoints of the agents of all ranks, and make them visible."""
        self.bank.remember_observation(observation)
        self._visible[observation.viewpoint] = True
        self._exchange(observation.viewpoint.tolist())

    def remember_at(self, viewpoints: Sequence[int]) -> None:
        """Remember viewpoints that are not remembered yet, and make all of them visible."""
        visited = self.bank.visited[torch.tensor(viewpoints, dtype=torch.int64)].tolist()
        self.bank.remember_at([v for v, is_known in zip(viewpoints, visited, strict=True) if not is_known])
        self._visible[viewpoints] = True

    def end_rollout(self) -> None:
        """Remember the viewpoints of other ranks until the rollouts of all ranks have ended."""
        while self._exchange(None):
            pass

    def _exchange(self, viewpoints: list[int] | None) -> bool:
        """Send this rank's viewpoints and remember those of other ranks; return whether any rank continues.

        `viewpoints` is None once the rollout of this rank has ended.
        """
        gathered = self._process_group.all_gather(viewpoints)
        for rank, others in enumerate(gathered):
            if others and rank != self._process_group.rank:
                self.remember_at(others)
        return any(others is not None for others in gathered)

    def remember_trajectories(
        self, viewpoints: Tensor, steps: Tensor, *, stepwise: bool = False
    ) -> TimeIndexedMemory:
        """Remember known trajectories at once, and return a view of what the memory holds at each step.

        Agent r of R is at `viewpoints[r]` at step `steps[r]`. The view is read for all R agents in one call,
        or with `stepwise` for one step after the other.
        """
        gathered = self._process_group.all_gather((viewpoints.cpu(), steps.cpu()))
        all_viewpoints, all_steps = (torch.cat(part).to(steps.device) for part in zip(*gathered, strict=True))
        never = torch.iinfo(torch.int64).max
        shape = self._visible_at_start.shape
        remembered_at = torch.full(shape, never, dtype=torch.int64, device=steps.device)
        remembered_at.scatter_reduce_(0, all_viewpoints, all_steps, "amin")
        remembered_at[self._visible_at_start] = -1
        self.remember_at(torch.unique(all_viewpoints).tolist())
        return TimeIndexedMemory(self.bank, remembered_at, None if stepwise else steps)

    def state_dict(self) -> dict[str, Any]:
        """Return the remembered viewpoints and the number of episodes per scene, for a resumed run."""
        visited = self.bank.visited.nonzero().flatten().cpu()
        return {"visited": visited, "num_episodes": dict(self._num_episodes)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the content of the memory by a result of `state_dict`."""
        self.bank.forget()
        self.bank.remember_at(state["visited"].tolist())
        self._num_episodes = Counter(state["num_episodes"])

    def _reset_full_scenes(self, scenes: Sequence[str]) -> None:
        for scene in scenes:
            if self._num_episodes[scene] >= self.memory_dropout.reset_after:
                self.bank.forget(scene)
                self._num_episodes[scene] = 0

    def _forget_some(self, scene: str, rng: np.random.Generator) -> None:
        viewpoints = self._scene_viewpoints(scene)
        survives = rng.random(len(viewpoints)) >= self.memory_dropout.forget_probability
        remaining = viewpoints[torch.from_numpy(survives) & self.bank.visited[viewpoints].cpu()]
        self.bank.forget(scene)
        self.bank.remember_at(remaining.tolist())

    def _scene_viewpoints(self, scene: str) -> Tensor:
        index = self._atlas.scenes.index(scene)
        return torch.arange(int(self._atlas.first[index]), int(self._atlas.first[index + 1]))

    def _sample_visible_fraction(self, rng: np.random.Generator) -> float:
        case, fraction = rng.random(2)
        if case < self.memory_dropout.full_probability:
            return 1.0
        is_empty = case < self.memory_dropout.full_probability + self.memory_dropout.empty_probability
        return 0.0 if is_empty else float(fraction)


class TimeIndexedMemory:
    """A view of a complete memory that returns what the memory held at an earlier step.

    Each agent of a batch is at a step of its own. Without `steps` all agents share one step, which every call
    of `remember_observation` increments.
    """

    def __init__(self, bank: MemoryBank, remembered_at: Tensor, steps: Tensor | None) -> None:
        """View `bank`: viewpoint v is available after step `remembered_at[v]`; agents are at `steps` (R,)."""
        self._bank, self._remembered_at, self._steps = bank, remembered_at, steps
        self._shared_step = 0

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        """Recall the memory of viewpoints (R, N) at the step of each agent, (R, N, D)."""
        return self._bank.recall_at(torch.where(self._is_available(viewpoints), viewpoints, -1))

    def scene_subgraph(self, viewpoints: Tensor) -> MemorySubgraph:
        """Return the memory of the scenes of viewpoints (R,) at the step of each agent."""
        subgraph = self._bank.scene_subgraph(viewpoints)
        return subgraph.restrict(self._is_available(subgraph.viewpoints))

    def remember_observation(self, observation: Observation) -> None:
        """Advance the shared step; the observation is remembered already."""
        self._shared_step += 1

    def _is_available(self, viewpoints: Tensor) -> Tensor:
        step = self._shared_step if self._steps is None else self._steps[:, None]
        return self._remembered_at[viewpoints] < step
