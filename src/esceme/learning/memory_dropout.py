"""The scene memory during training, and memory dropout, which hides a part of it from the agent.

The released training code never clears the memory. Agents therefore soon see an almost complete memory in
every rollout and do not learn to act without memory (docs/spec.md C.6). Memory dropout offers alternatives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from esceme.errors import ConfigError
from esceme.learning.distributed import ProcessGroup
from esceme.memory import MemoryBank, MemorySubgraph, Reader
from esceme.observation import Observation
from esceme.settings import Probability, Size, check_settings
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
    """Settings that determine which part of a scene's memory an agent sees in training.

    In every mode, viewpoints that are remembered during a rollout are visible until the rollout ends.
    """

    mode: MemoryDropoutMode = "as-released"
    """How memory is dropped: never (`as-released`), by clearing scenes (`reset`), by forgetting viewpoints
    (`forgetting`), or by hiding a random subset (`sampled`)."""
    reset_after: Size = 20
    """In mode `reset`: number of episodes in a scene after which the scene's memory is cleared."""
    forget_probability: Probability = 0.5
    """In mode `forgetting`: probability that a remembered viewpoint is forgotten before a rollout."""
    full_probability: Probability = 0.3
    """In mode `sampled`: probability that a rollout sees the whole memory of a scene."""
    empty_probability: Probability = 0.1
    """In mode `sampled`: probability that a rollout sees no memory of a scene."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.full_probability + self.empty_probability > 1:
            raise ConfigError(
                f"full_probability {self.full_probability} and empty_probability {self.empty_probability}: "
                "expected a sum of at most 1"
            )


class TrainingMemory:
    """The scene memory of a training run, filtered by memory dropout and equal on all ranks.

    Ranks exchange the viewpoints of their agents at every step. `remember_observation` and `end_rollout` are
    collectives. A rank whose rollout has ended calls `end_rollout`, while other ranks still call
    `remember_observation`.
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
        self.bank = MemoryBank.from_atlas(atlas, pooling=reader.pooling, device=device)
        self.memory_dropout = memory_dropout
        self._atlas, self._process_group = atlas, process_group or ProcessGroup()
        self._num_episodes = Counter[str]()  # per scene, since its last reset
        # One entry more than viewpoints: index -1 is never visible.
        self._visible = torch.zeros(len(atlas) + 1, dtype=torch.bool, device=device)
        self._visible_at_start = self._visible.clone()

    def begin_rollout(self, episodes: Sequence[Episode], rng: np.random.Generator) -> None:
        """Apply memory dropout before a rollout of `episodes`, which is the whole batch of all ranks."""
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
        """Return the visible memory of viewpoints, (...) -> (..., D); zeros if unvisited, hidden or -1."""
        return self.bank.recall_at(torch.where(self._visible[viewpoints], viewpoints, -1))

    def scene_subgraph(self, viewpoints: Tensor) -> MemorySubgraph:
        """Return the visible part of the remembered graph of the scenes that contain `viewpoints` (B,)."""
        subgraph = self.bank.scene_subgraph(viewpoints)
        return subgraph.restrict(self._visible[subgraph.viewpoints])

    def observe(self, viewpoints: Tensor) -> Observation:
        """Return the panoramas at remembered viewpoints (M,)."""
        return self.bank.observe(viewpoints)

    def remember_observation(self, observation: Observation) -> None:
        """Store the viewpoints at which the agents of all ranks are, and make these viewpoints visible."""
        self.bank.remember_observation(observation)
        self._visible[observation.viewpoint] = True
        self._exchange(observation.viewpoint.tolist())

    def remember_at(self, viewpoints: Sequence[int]) -> None:
        """Store those of `viewpoints` that are not remembered yet, and make all of `viewpoints` visible."""
        visited = self.bank.visited[torch.tensor(viewpoints, dtype=torch.int64)].tolist()
        self.bank.remember_at([v for v, is_known in zip(viewpoints, visited, strict=True) if not is_known])
        self._visible[viewpoints] = True

    def end_rollout(self) -> None:
        """Store the viewpoints that other ranks visit, until the rollouts of all ranks have ended."""
        while self._exchange(None):
            pass

    def _exchange(self, viewpoints: list[int] | None) -> bool:
        """Send this rank's viewpoints, store those of other ranks, and return whether any rank continues.

        `viewpoints` is None if the rollout of this rank has ended.
        """
        gathered = self._process_group.all_gather(viewpoints)
        for rank, others in enumerate(gathered):
            if others and rank != self._process_group.rank:
                self.remember_at(others)
        return any(others is not None for others in gathered)

    def remember_trajectories(
        self, viewpoints: Tensor, steps: Tensor, *, stepwise: bool = False
    ) -> TimeIndexedMemory:
        """Store known trajectories; return a memory that recalls, at each step, what was stored before it.

        `viewpoints` (R,) and `steps` (R,) are the viewpoint and step number of R agents. The returned memory
        is read for all R agents in one call, or, with `stepwise`, for one step after another.
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
        """Return the remembered viewpoints and the number of episodes per scene, for resuming a run."""
        visited = self.bank.visited.nonzero().flatten().cpu()
        return {"visited": visited, "num_episodes": dict(self._num_episodes)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the content of the memory by `state`, a result of `state_dict`."""
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
    """Memory that recalls only what had been stored before the step at which each agent is.

    It allows all steps of known trajectories to be computed in one batch.
    """

    def __init__(self, bank: MemoryBank, remembered_at: Tensor, steps: Tensor | None) -> None:
        """Restrict `bank`: an agent at step t can recall viewpoint v if `remembered_at[v] < t`.

        `steps` (R,) are the steps of R agents. If None, all agents share one step, starting at 0.
        """
        self._bank, self._remembered_at, self._steps = bank, remembered_at, steps
        self._shared_step = 0

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        """Return the memory of viewpoints (R, N) that is available at the step of each agent, (R, N, D)."""
        return self._bank.recall_at(torch.where(self._is_available(viewpoints), viewpoints, -1))

    def scene_subgraph(self, viewpoints: Tensor) -> MemorySubgraph:
        """Return the graph of the scenes of `viewpoints` (R,) that is available at each agent's step."""
        subgraph = self._bank.scene_subgraph(viewpoints)
        return subgraph.restrict(self._is_available(subgraph.viewpoints))

    def observe(self, viewpoints: Tensor) -> Observation:
        """Return the panoramas at remembered viewpoints (M,)."""
        return self._bank.observe(viewpoints)

    def remember_observation(self, observation: Observation) -> None:
        """Advance the step that all agents share. Nothing is stored: the memory contains all steps."""
        self._shared_step += 1

    def _is_available(self, viewpoints: Tensor) -> Tensor:
        step = self._shared_step if self._steps is None else self._steps[:, None]
        return self._remembered_at[viewpoints] < step
