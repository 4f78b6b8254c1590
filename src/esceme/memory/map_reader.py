"""Map reader: an episode begins with the map of all that was remembered in its scene (docs/memory.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from esceme.memory.bank import Memory
from esceme.memory.reader import MemoryReader
from esceme.memory.scene import Pooling
from esceme.observation import Observation, RememberedPanoramas
from esceme.settings import Positive, check_settings


@dataclass(frozen=True, kw_only=True)
class MapReaderConfig:
    """Settings of the map reader."""

    pooling: Pooling = "max"
    """Pooling of the vectors that the memory stores. The map does not read them."""
    radius: Positive | None = None
    """Straight-line distance from the start in metres beyond which viewpoints are left out; None for none."""

    def __post_init__(self) -> None:
        check_settings(self)


class MapReader(MemoryReader):
    """Reader that passes the remembered panoramas of the scene to an agent that keeps a map.

    The panoramas are passed with the first observation of an episode. Features do not change.
    """

    Config = MapReaderConfig
    needs_map = True

    def forward(self, observation: Observation, memory: Memory | None) -> Observation:
        """Return the observation with `remembered` set for agents whose episode begins."""
        memory, previous = self.require_memory(memory), observation.previous_viewpoints
        if previous is not None and (previous >= 0).any(1).all():
            return observation
        graph = memory.scene_subgraph(observation.viewpoint)
        known = graph.known & (graph.viewpoints != observation.viewpoint[:, None])
        if previous is not None:
            known = known & ~(previous >= 0).any(1, keepdim=True)
        is_used = known.any(0)
        if not is_used.any():
            return observation
        panoramas, known = memory.observe(graph.viewpoints[is_used]), known[:, is_used]
        if self.config.radius is not None:
            known = known & (_distances(observation, panoramas) <= self.config.radius)
        return replace(observation, remembered=RememberedPanoramas(panoramas, known))


def _distances(observation: Observation, panoramas: Observation) -> Tensor:
    """Return the straight-line distances (B, M) in metres between agents and panoramas."""
    offsets = observation.agent_positions()[:, None] - panoramas.agent_positions()
    return offsets.norm(dim=2)
