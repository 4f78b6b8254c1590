"""`MemoryBank`: the memories of all buildings, stored in one matrix for fast batched recall.

`remember` and `recall` take viewpoint names. `remember_observation`, `recall_at` and `scene_subgraph` take
viewpoint indices of an atlas. Names and indices refer to the same vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esceme.errors import MemoryMismatch
from esceme.memory.scene import GrowingMatrix, Pooling, SceneMemory
from esceme.observation import Observation
from esceme.world.atlas import Atlas, Pose

CANONICAL_VIEW = 12
"""View that an agent faces in remembered panoramas: heading 0, level."""
PANORAMA_BATCH = 64
"""Number of panoramas that `remember_at` reads from the feature file at a time."""


class MemorySubgraph(NamedTuple):
    """Remembered graph of all scenes in which B agents are, with a mask of what each agent may recall."""

    viewpoints: Tensor
    """(M,) int64: remembered viewpoints of these scenes, as atlas indices without duplicates."""
    features: Tensor
    """(M, D): remembered feature of each viewpoint."""
    edges: Tensor
    """(2, E) int64: pairs of adjacent viewpoints, as indices into `viewpoints`; each pair occurs once."""
    known: Tensor
    """(B, M) bool: True for viewpoints that are in the agent's scene and that the agent may recall."""

    def restrict(self, mask: Tensor) -> MemorySubgraph:
        """Return the graph with `known` set to False where `mask`, (B, M) or (M,) bool, is False."""
        return self._replace(known=self.known & mask)

    def contains(self, viewpoints: Tensor) -> Tensor:
        """Return (B, M) bool: True for remembered viewpoints among `viewpoints` (B, S), padded with -1."""
        return (viewpoints[:, :, None] == self.viewpoints).any(1)

    def neighbours(self, mask: Tensor) -> Tensor:
        """Return (B, M) bool: True for viewpoints adjacent to a viewpoint where `mask` (B, M) is True."""
        source, target = self.edges
        reached = torch.zeros_like(mask, dtype=torch.float32)
        reached.index_add_(1, source, mask[:, target].float()).index_add_(1, target, mask[:, source].float())
        return reached > 0


class Visit(NamedTuple):
    """A visit to a viewpoint: the features (K, D) of the views that lead to its K neighbours."""

    scene_id: str
    viewpoint: str
    views: Tensor
    neighbours: Sequence[str]


class Memory(Protocol):
    """Memory interface that rollouts and readers use. Viewpoints are indices of an atlas."""

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        """Return the remembered features of viewpoints, (...) -> (..., D); zeros for -1 or unvisited ones."""

    def scene_subgraph(self, viewpoints: Tensor) -> MemorySubgraph:
        """Return the remembered graph of the scenes that contain `viewpoints` (B,)."""

    def observe(self, viewpoints: Tensor) -> Observation:
        """Return the panoramas at remembered viewpoints (M,), as seen by agents that face view 12."""

    def remember_observation(self, observation: Observation) -> None:
        """Store the features of the viewpoints at which the observed agents are."""


class MemoryBank:
    """The memories of all buildings, by scene id; each holds one vector per visited viewpoint.

    >>> bank = MemoryBank(width=2, source="my features")
    >>> bank.remember("house", "hall", torch.tensor([[1.0, 0.0], [0.0, 3.0]]), ["door", "stairs"])
    True
    >>> bank.recall("house", ["hall", "attic"])
    tensor([[1., 3.],
            [0., 0.]])
    >>> bank.scenes, len(bank), bank.nbytes
    (('house',), 1, 8)
    """

    def __init__(
        self,
        width: int,
        *,
        pooling: Pooling = "max",
        source: str = "",
        device: torch.device | str | None = None,
    ) -> None:
        """Create an empty bank for features of size `width`. `source` names the features' origin.

        Banks with different sources cannot be merged.
        """
        self.width, self.pooling, self.source = width, pooling, source
        self._storage = GrowingMatrix(width, device=device)
        self._scenes: dict[str, SceneMemory] = {}
        self._atlas: Atlas | None = None
        self._viewpoint_index: dict[tuple[str, str], int] = {}
        self._row_of: Tensor = torch.zeros(1, dtype=torch.int64)
        self._scene_of: Tensor = torch.zeros(0, dtype=torch.int64)
        self._neighbours: Tensor = torch.zeros(0, 0, dtype=torch.int64)
        self.stored_checksums: dict[Path, str] = {}
        """Checksum of each file when this bank was loaded from it or saved to it; see `save_bank`."""

    @classmethod
    def from_atlas(
        cls, atlas: Atlas, *, pooling: Pooling = "max", device: torch.device | str | None = None
    ) -> MemoryBank:
        """Return an empty bank for the features of `atlas`, bound to its viewpoint indices."""
        if atlas.features is None:
            raise MemoryMismatch("this atlas has no features to remember; give it a feature file")
        source = Path(atlas.features.source).name
        bank = cls(atlas.features.width, pooling=pooling, source=source, device=device)
        bank.bind(atlas)
        return bank

    # -- by name -----------------------------------------------------------------------------------------

    def __getitem__(self, scene_id: str) -> SceneMemory:
        if scene_id not in self._scenes:
            self._scenes[scene_id] = _BankScene(scene_id, self)
        return self._scenes[scene_id]

    @property
    def scenes(self) -> tuple[str, ...]:
        """Ids of the scenes with at least one remembered viewpoint, in alphabetical order."""
        return tuple(sorted(scene_id for scene_id, memory in self._scenes.items() if len(memory)))

    def __len__(self) -> int:
        return len(self._storage)

    @property
    def nbytes(self) -> int:
        """Size of the stored vectors in bytes."""
        return self._storage.nbytes

    def remember(
        self, scene_id: str, viewpoint: str, views: Tensor | NDArray[np.floating], neighbours: Sequence[str]
    ) -> bool:
        """Store the pooled `views` (K, D) of a viewpoint; return whether it was new.

        See `SceneMemory.remember`.
        """
        return self[scene_id].remember(viewpoint, views, neighbours)

    def recall(self, scene_id: str, viewpoints: Sequence[str]) -> Tensor:
        """Return the remembered features of viewpoints of a scene, (n, D); zeros for unvisited viewpoints."""
        return self[scene_id].recall(viewpoints)

    def forget(self, scene_id: str | None = None) -> None:
        """Clear the memory of one scene, or of all scenes if `scene_id` is None."""
        for scene in self.scenes if scene_id is None else (scene_id,):
            self[scene].forget()

    def merge(self, other: MemoryBank) -> None:
        """Add the memories of `other` to this bank; see `SceneMemory.merge`."""
        self._check_features(other.width, other.source, "the other bank")
        if other.pooling != self.pooling:
            raise MemoryMismatch(
                f"a bank of {self.pooling} pooling cannot merge one of {other.pooling} pooling; "
                "build both alike"
            )
        for scene_id in other.scenes:
            self[scene_id].merge(other[scene_id])

    # -- by index of an atlas ------------------------------------------------------------------------------

    def bind(self, atlas: Atlas) -> None:
        """Use the viewpoint indices of `atlas` from now on; raise `MemoryMismatch` if its features differ."""
        if atlas.features is not None:
            self._check_features(atlas.features.width, Path(atlas.features.source).name, "the atlas")
        self._atlas = atlas
        self._viewpoint_index = {name: index for index, name in enumerate(atlas.names)}
        device = self._storage.matrix.device
        with torch.inference_mode(False):
            # Row of each viewpoint, 0 if unvisited; the last entry serves index -1.
            self._row_of = torch.zeros(len(atlas) + 1, dtype=torch.int64, device=device)
            self._scene_of = torch.from_numpy(atlas.scene_of).to(device, torch.int64)
            self._neighbours = torch.from_numpy(atlas.neighbours).to(device, torch.int64)
        for scene_id, memory in self._scenes.items():
            self._set_rows(scene_id, list(memory.viewpoints), list(memory._rows.values()))

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        """Return the remembered features of viewpoints, (...) -> (..., D); zeros for -1 or unvisited ones."""
        self._bound_atlas()
        return self._storage.matrix[self._row_of[viewpoints]]

    def scene_subgraph(self, viewpoints: Tensor) -> MemorySubgraph:
        """Return the remembered graph of the scenes that contain `viewpoints` (B,)."""
        # Only viewpoints of these scenes are read, so that the cost does not grow with the bank.
        first, scenes = self._bound_atlas().first, self._scene_of[viewpoints]
        spans = [(int(first[scene]), int(first[scene + 1])) for scene in torch.unique(scenes).tolist()]
        ranges = [torch.arange(*span, device=scenes.device) for span in spans]
        places = torch.cat([scenes[:0], *ranges])  # (P,), sorted
        is_visited = self._row_of[places] > 0
        nodes = places[is_visited]  # (M,)
        order = torch.arange(len(nodes), device=nodes.device)
        order_of = torch.full_like(places, -1).masked_scatter_(is_visited, order)
        adjacent = self._neighbours[nodes]  # (M, K), -1 for padding
        neighbours = order_of[torch.searchsorted(places, adjacent.clamp(min=0)).clamp(max=len(places) - 1)]
        neighbours = neighbours.masked_fill(adjacent < 0, -1)  # -1 for unvisited
        source, slot = (neighbours > order[:, None]).nonzero(as_tuple=True)
        edges = torch.stack([source, neighbours[source, slot]])
        return MemorySubgraph(nodes, self.recall_at(nodes), edges, self._scene_of[nodes] == scenes[:, None])

    def observe(self, viewpoints: Tensor) -> Observation:
        """Return the panoramas at viewpoints (M,), read from the atlas, for agents that face view 12.

        The bank stores one vector per viewpoint. Panoramas come from the feature file of the atlas.
        """
        indices = viewpoints.cpu().numpy()
        pose = Pose(indices, np.full_like(indices, CANONICAL_VIEW))
        return Observation.from_atlas(self._bound_atlas(), pose, device=viewpoints.device)

    def remember_observation(self, observation: Observation) -> None:
        """Store the viewpoints at which the agents are: the pooled features of the views with candidates.

        Features are taken before dropout and before a reader changes them.
        """
        names, visits = self._bound_atlas().names, list[Visit]()
        for row in self._is_new(observation.viewpoint).nonzero().flatten().tolist():
            scene_id, viewpoint = names[int(observation.viewpoint[row])]
            is_candidate = observation.is_candidate[row]
            neighbours = [names[index][1] for index in observation.neighbour[row, is_candidate].tolist()]
            views = observation.raw_features[row, is_candidate]
            visits.append(Visit(scene_id, viewpoint, views, neighbours))
        self.remember_visits(visits)

    def _is_new(self, viewpoints: Tensor) -> Tensor:
        """Return (B,) bool: whether visits to viewpoints have to be stored."""
        return self._row_of[viewpoints] == 0

    def remember_visits(self, visits: Sequence[Visit]) -> None:
        """Store visits, in this order."""
        for visit in visits:
            self.remember(*visit)

    def remember_at(self, viewpoints: Sequence[int]) -> None:
        """Store viewpoints, given as atlas indices, with features read from the atlas' feature file."""
        atlas = self._bound_atlas()
        for batch in torch.split(torch.tensor(viewpoints, dtype=torch.int64), PANORAMA_BATCH):
            panoramas = torch.from_numpy(atlas.panorama_features(batch.numpy()))  # (B, 36, D)
            visits = []
            for index, panorama in zip(batch.tolist(), panoramas, strict=True):
                scene_id, viewpoint = atlas.names[index]
                degree = int(atlas.degrees[index])
                neighbours = [atlas.names[other][1] for other in atlas.neighbours[index, :degree].tolist()]
                views = panorama[atlas.views[index, :degree].tolist()]
                visits.append(Visit(scene_id, viewpoint, views, neighbours))
            self.remember_visits(visits)

    def remember_all(self) -> None:
        """Store every viewpoint of the atlas. This is the memory of the `oracle` protocol."""
        self.remember_at(range(len(self._bound_atlas())))

    @property
    def visited(self) -> Tensor:
        """(P,) bool: whether each of the P viewpoints of the atlas is remembered."""
        self._bound_atlas()
        return self._row_of[:-1] > 0

    def _bound_atlas(self) -> Atlas:
        if self._atlas is None:
            raise MemoryMismatch("this bank is not bound to an atlas; call bind(atlas) first")
        return self._atlas

    def _check_features(self, width: int, source: str, owner: str) -> None:
        if (width, source) != (self.width, self.source):
            raise MemoryMismatch(
                f"the bank holds features of width {self.width} from '{self.source}', {owner} has width "
                f"{width} from '{source}'; build the bank from the features it is used with"
            )

    def _set_rows(self, scene_id: str, viewpoints: Sequence[str], rows: Sequence[int]) -> None:
        """Record the storage row of each viewpoint, for lookup by atlas index; row 0 means forgotten."""
        indices = [self._viewpoint_index.get((scene_id, viewpoint)) for viewpoint in viewpoints]
        known = [(index, row) for index, row in zip(indices, rows, strict=True) if index is not None]
        if known:
            index, row = zip(*known, strict=True)
            self._row_of[list(index)] = torch.tensor(row).to(self._row_of)


class ZeroRecallMemory:
    """A memory that stores observations but recalls zeros, to measure what the reader does without memory."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        """Return zeros of shape (..., D)."""
        return torch.zeros_like(self.memory.recall_at(viewpoints))

    def scene_subgraph(self, viewpoints: Tensor) -> MemorySubgraph:
        """Return the remembered graph with all viewpoints marked as unknown."""
        graph = self.memory.scene_subgraph(viewpoints)
        return graph.restrict(torch.zeros_like(graph.known))

    def observe(self, viewpoints: Tensor) -> Observation:
        """Return the panoramas at remembered viewpoints (M,)."""
        return self.memory.observe(viewpoints)

    def remember_observation(self, observation: Observation) -> None:
        """Store the features of the viewpoints at which the observed agents are."""
        self.memory.remember_observation(observation)


class _BankScene(SceneMemory):
    """Scene of a bank. Changes also update the bank's lookup table by atlas index."""

    def __init__(self, scene_id: str, bank: MemoryBank) -> None:
        super().__init__(bank.width, pooling=bank.pooling, storage=bank._storage)
        self._scene_id, self._bank = scene_id, bank

    def forget(self) -> None:
        viewpoints = list(self.viewpoints)
        super().forget()
        self._bank._set_rows(self._scene_id, viewpoints, [0] * len(viewpoints))

    def _insert(
        self, viewpoints: Sequence[str], vectors: Tensor, neighbours: Sequence[tuple[str, ...]]
    ) -> list[int]:
        rows = super()._insert(viewpoints, vectors, neighbours)
        self._bank._set_rows(self._scene_id, viewpoints, rows)
        return rows
