"""How complete the memory is that an agent is trained with: what decides whether a cold start is a fall.

The released training never forgets, so that after a short while its agents see an almost complete memory, and
never learn to do without one (spec C.6). Here that is one of several named ways.
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
from esceme.memory import MemoryBank, MemorySubgraph, Pooling, Reader
from esceme.observation import Observation
from esceme.tasks.episode import Episode
from esceme.world.atlas import Atlas

Way = Literal["as-released", "reset", "forgetting", "drawn"]
"""How a memory is kept from being complete.

- `as-released`: not at all; it is never cleared.
- `reset`: a scene is forgotten after every `reset_after` episodes in it.
- `forgetting`: before every rollout each remembered place of its scenes is forgotten with probability
  `forget_share`.
- `drawn`: every rollout sees a share of each scene's memory that is drawn anew: all of it with probability
  `full`, nothing with probability `empty`, otherwise a share drawn evenly. Nothing is forgotten for good.
"""


@dataclass(frozen=True, kw_only=True)
class MemoryDropout:
    """What of a scene's memory an agent in training is shown; what it remembers meanwhile always is."""

    way: Way = "as-released"
    reset_after: int = 20
    forget_share: float = 0.5
    full: float = 0.3
    empty: float = 0.1

    def __post_init__(self) -> None:
        if self.way not in (ways := ("as-released", "reset", "forgetting", "drawn")):
            raise ConfigError(f"way '{self.way}': expected one of {', '.join(ways)}")
        if self.reset_after < 1:
            raise ConfigError(f"reset_after: expected at least 1 episode, found {self.reset_after}")
        for name in ("forget_share", "full", "empty"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}: expected a share from 0 to 1, found {getattr(self, name)}")
        if self.full + self.empty > 1:
            raise ConfigError(f"full {self.full} and empty {self.empty}: expected a sum of at most 1")


class TrainingMemory:
    """The memory of a training run, shown as completely as `completeness` wants."""

    def __init__(
        self,
        atlas: Atlas,
        reader: Reader,
        completeness: MemoryDropout,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        """Begin with nothing remembered."""
        pooling: Pooling = getattr(reader.config, "pooling", "max")
        self.bank = MemoryBank.of(atlas, pooling=pooling, device=device)
        self.completeness = completeness
        self._atlas = atlas
        self._lived = Counter[str]()
        # One more than viewpoints: nowhere (-1) is never shown.
        self._shown = torch.zeros(len(atlas) + 1, dtype=torch.bool, device=device)
        self._known = self._shown.clone()

    def begin(self, episodes: Sequence[Episode], draw: np.random.Generator) -> None:
        """A rollout of `episodes` is about to begin."""
        way = self.completeness.way
        scenes = sorted({episode.scene_id for episode in episodes})
        if way == "reset":
            self._reset(episodes)
        for scene in scenes if way == "forgetting" else ():
            self._forget_some(scene, draw)
        self._shown[:-1] = True
        for scene in scenes if way == "drawn" else ():
            places = self._places(scene)
            hidden = draw.random(len(places)) >= self._draw_share(draw)
            self._shown[places] = torch.from_numpy(~hidden).to(self._shown)
        self._known = torch.cat([self.bank.visited, self._shown.new_zeros(1)]) & self._shown

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        """What is remembered of viewpoints and shown, any shape -> (..., D); zeros elsewhere."""
        return self.bank.recall_at(torch.where(self._shown[viewpoints], viewpoints, -1))

    def surroundings(self, viewpoints: Tensor) -> MemorySubgraph:
        """What is remembered of the scenes of agents that stand at viewpoints (B,), and shown."""
        around = self.bank.surroundings(viewpoints)
        return around.limited(self._shown[around.viewpoints])

    def remember_seen(self, observation: Observation) -> None:
        """Remember where the agents stand; for the rest of the rollout that is shown."""
        self.bank.remember_seen(observation)
        self._shown[observation.viewpoint] = True

    def remember_at(self, viewpoints: Sequence[int]) -> None:
        """Remember where others stand: agents of the same rollout in other processes."""
        visited = self.bank.visited[torch.tensor(viewpoints, dtype=torch.int64)].tolist()
        self.bank.remember_at([v for v, known in zip(viewpoints, visited, strict=True) if not known])
        self._shown[viewpoints] = True

    def finish(self) -> None:
        """A rollout is over."""

    def foresee(self, viewpoints: Tensor, steps: Tensor, *, at_once: bool = True) -> TimeIndexedMemory:
        """The memory of a rollout that is known beforehand: its rows stand at `viewpoints` at `steps`, (R,).

        It is asked for all rows `at_once`, or step by step.
        """
        return self._foresee(viewpoints, steps, steps if at_once else None)

    def _foresee(self, viewpoints: Tensor, steps: Tensor, asking: Tensor | None) -> TimeIndexedMemory:
        """The same for rows that ask at steps `asking`, while `viewpoints` and `steps` are everybody's."""
        never = torch.iinfo(torch.int64).max
        remembered = torch.full(self._known.shape, never, dtype=torch.int64, device=steps.device)
        remembered.scatter_reduce_(0, viewpoints, steps, "amin")
        remembered[self._known] = -1
        self.remember_at(torch.unique(viewpoints).tolist())
        return TimeIndexedMemory(self.bank, remembered, asking)

    # -- keeping a run -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to know: places, which it looks at again, and counts."""
        return {"visited": self.bank.visited.nonzero().flatten().cpu(), "lived": dict(self._lived)}

    def resume(self, state: dict[str, Any]) -> None:
        """Remember what `state` says, and nothing else."""
        self.bank.forget()
        self.bank.remember_at(state["visited"].tolist())
        self._lived = Counter(state["lived"])

    # -- ways --------------------------------------------------------------------------------------------

    def _reset(self, episodes: Sequence[Episode]) -> None:
        """Forget scenes in which enough has been lived."""
        for scene in sorted({episode.scene_id for episode in episodes}):
            if self._lived[scene] >= self.completeness.reset_after:
                self.bank.forget(scene)
                self._lived[scene] = 0
        self._lived.update(episode.scene_id for episode in episodes)

    def _forget_some(self, scene: str, draw: np.random.Generator) -> None:
        """Forget places of a scene by chance, keeping the others."""
        places = self._places(scene)
        kept = draw.random(len(places)) >= self.completeness.forget_share
        still = places[torch.from_numpy(kept) & self.bank.visited[places].cpu()]
        self.bank.forget(scene)
        self.bank.remember_at(still.tolist())

    def _places(self, scene: str) -> Tensor:
        number = self._atlas.scenes.index(scene)
        return torch.arange(int(self._atlas.first[number]), int(self._atlas.first[number + 1]))

    def _draw_share(self, draw: np.random.Generator) -> float:
        which, share = draw.random(2)
        if which < self.completeness.full:
            return 1.0
        return 0.0 if which < self.completeness.full + self.completeness.empty else float(share)


class TimeIndexedMemory:
    """A memory that is complete already, and gives only what it held when it is asked.

    Rows of a batch ask at steps of their own, or all at the same, which every `remember_seen` moves on.
    """

    def __init__(self, bank: MemoryBank, remembered: Tensor, asking: Tensor | None) -> None:
        """Know viewpoint v from after step `remembered[v]` on; rows ask at steps `asking` (R,)."""
        self._bank, self._remembered, self._asking = bank, remembered, asking
        self._now = 0

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        """What was remembered of viewpoints (R, N) when each row asked, (R, N, D)."""
        asking = self._now if self._asking is None else self._asking[:, None]
        return self._bank.recall_at(torch.where(self._remembered[viewpoints] < asking, viewpoints, -1))

    def surroundings(self, viewpoints: Tensor) -> MemorySubgraph:
        """What was remembered of the scenes of rows that stand at viewpoints (R,) when each asked."""
        around = self._bank.surroundings(viewpoints)
        asking = self._now if self._asking is None else self._asking[:, None]
        return around.limited(self._remembered[around.viewpoints] < asking)

    def remember_seen(self, observation: Observation) -> None:
        """Go on to the next step: what was seen has been remembered beforehand."""
        self._now += 1
