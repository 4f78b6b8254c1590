"""What is remembered of all buildings: recalling for a whole batch of agents is one gather.

Agents that know places by name use `remember` and `recall`; those that walk in an atlas, where a viewpoint is
an integer, use `remember_seen`, `recall_at` and `surroundings`. Both see the same memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from esceme.errors import MemoryMismatch
from esceme.memory.scene import Pooling, Rows, SceneMemory
from esceme.observation import Observation
from esceme.world.atlas import Atlas

PANORAMAS_AT_ONCE = 64
"""How many panoramas are looked at together when everything is remembered."""


class MemorySubgraph(NamedTuple):
    """What is remembered of the scenes that a batch of agents stands in: a graph, each knows a part of it."""

    viewpoints: Tensor
    """(M,) int64: remembered by somebody, each once."""
    features: Tensor
    """(M, D): what is remembered of them."""
    edges: Tensor
    """(2, E) int64: rows of `viewpoints` that are neighbours, each pair once."""
    known: Tensor
    """(B, M) bool: which of them each agent's memory holds."""

    def limited(self, may: Tensor) -> MemorySubgraph:
        """The same where agents know only what they `may`, (B, M) or (M,) bool."""
        return self._replace(known=self.known & may)

    def among(self, viewpoints: Tensor) -> Tensor:
        """Which of the remembered viewpoints are among those of each agent, (B, S), -1 for none: (B, M)."""
        return (viewpoints[:, :, None] == self.viewpoints).any(1)

    def beside(self, some: Tensor) -> Tensor:
        """Which of the remembered viewpoints are neighbours of `some` (B, M) of them: (B, M)."""
        one, other = self.edges
        reached = torch.zeros_like(some, dtype=torch.float32)
        reached.index_add_(1, one, some[:, other].float()).index_add_(1, other, some[:, one].float())
        return reached > 0


class Memory(Protocol):
    """What a rollout needs of a memory."""

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        """What is remembered of viewpoints, any shape -> (..., D); zeros for -1 and where nobody has been."""

    def surroundings(self, viewpoints: Tensor) -> MemorySubgraph:
        """What is remembered of the scenes of agents that stand at viewpoints (B,)."""

    def remember_seen(self, observation: Observation) -> None:
        """Remember where the agents stand."""


class MemoryBank:
    """The memories of all buildings; whoever makes a bank decides how long it lives.

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
        """Remember features of `width` numbers; `source` names them, so that no others are mixed in."""
        self.width, self.pooling, self.source = width, pooling, source
        self._rows = Rows(width, device=device)
        self._scenes: dict[str, SceneMemory] = {}
        self._atlas: Atlas | None = None
        self._index: dict[tuple[str, str], int] = {}
        self._row_of: Tensor = torch.zeros(1, dtype=torch.int64)
        self._scene_of: Tensor = torch.zeros(0, dtype=torch.int64)
        self._neighbours: Tensor = torch.zeros(0, 0, dtype=torch.int64)

    @classmethod
    def of(
        cls, atlas: Atlas, *, pooling: Pooling = "max", device: torch.device | str | None = None
    ) -> MemoryBank:
        """An empty bank for the features of an atlas, settled there."""
        if atlas.features is None:
            raise MemoryMismatch("this atlas has no features to remember; give it a feature file")
        source = _name_of(atlas.features.source)
        bank = cls(atlas.features.width, pooling=pooling, source=source, device=device)
        bank.settle(atlas)
        return bank

    # -- by name -----------------------------------------------------------------------------------------

    def __getitem__(self, scene_id: str) -> SceneMemory:
        if scene_id not in self._scenes:
            self._scenes[scene_id] = _SceneOfBank(scene_id, self)
        return self._scenes[scene_id]

    @property
    def scenes(self) -> tuple[str, ...]:
        """The scenes of which something is remembered, in alphabetical order."""
        return tuple(sorted(scene_id for scene_id, memory in self._scenes.items() if len(memory)))

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """How many bytes the remembered vectors take."""
        return self._rows.nbytes

    def remember(self, scene_id: str, viewpoint: str, views: Tensor, neighbours: Sequence[str]) -> bool:
        """Keep what a viewpoint looks like, (K, D); True on a first visit. See `SceneMemory.remember`."""
        return self[scene_id].remember(viewpoint, views, neighbours)

    def recall(self, scene_id: str, viewpoints: Sequence[str]) -> Tensor:
        """What is remembered of viewpoints of a scene, (n, D); zeros where nobody has been."""
        return self[scene_id].recall(viewpoints)

    def forget(self, scene_id: str | None = None) -> None:
        """Forget one scene, or everything."""
        for each in self.scenes if scene_id is None else (scene_id,):
            self[each].forget()

    def merge(self, other: MemoryBank) -> None:
        """Know what `other` knows, too; see `SceneMemory.merge`."""
        self.require(other.width, other.source, "the other bank")
        if other.pooling != self.pooling:
            raise MemoryMismatch(
                f"a bank of {self.pooling} pooling cannot take in one of {other.pooling} pooling; "
                "build both alike"
            )
        for scene_id in other.scenes:
            self[scene_id].merge(other[scene_id])

    def require(self, width: int, source: str, who: str) -> None:
        """Raise `MemoryMismatch` unless `who` has the features that are remembered here."""
        if (width, source) != (self.width, self.source):
            raise MemoryMismatch(
                f"the bank remembers features of width {self.width} from '{self.source}', {who} has width "
                f"{width} from '{source}'; build the bank from the features it is used with"
            )

    # -- in an atlas -------------------------------------------------------------------------------------

    def settle(self, atlas: Atlas) -> None:
        """Learn the integers of an atlas; afterwards `recall_at` and `remember_seen` understand them."""
        if atlas.features is not None:
            self.require(atlas.features.width, _name_of(atlas.features.source), "the atlas")
        self._atlas = atlas
        self._index = {name: index for index, name in enumerate(atlas.names)}
        device = self._rows.matrix.device
        with torch.inference_mode(False):
            # One row number per viewpoint, 0 = never visited; the last entry is nowhere (-1).
            self._row_of = torch.zeros(len(atlas) + 1, dtype=torch.int64, device=device)
            self._scene_of = torch.from_numpy(atlas.scene_of).to(device, torch.int64)
            self._neighbours = torch.from_numpy(atlas.neighbours).to(device, torch.int64)
        for scene_id, memory in self._scenes.items():
            self._note(scene_id, list(memory.viewpoints), list(memory._row.values()))

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        """What is remembered of viewpoints, any shape -> (..., D); zeros for -1 and where nobody has been."""
        self._settled()
        return self._rows.matrix[self._row_of[viewpoints]]

    def surroundings(self, viewpoints: Tensor) -> MemorySubgraph:
        """What is remembered of the scenes of agents that stand at viewpoints (B,)."""
        visited, here = self.visited.nonzero().flatten(), self._scene_of[viewpoints]
        places = visited[torch.isin(self._scene_of[visited], here)]  # (M,)
        order = torch.arange(len(places), device=places.device)
        row_of = torch.full_like(self._row_of, -1).index_copy_(0, places, order)
        beside = row_of[self._neighbours[places]]  # (M, K), -1 for who is not remembered
        one, slot = (beside > order[:, None]).nonzero(as_tuple=True)
        edges = torch.stack([one, beside[one, slot]])
        return MemorySubgraph(places, self.recall_at(places), edges, self._scene_of[places] == here[:, None])

    def remember_seen(self, observation: Observation) -> None:
        """Remember where the agents stand: pooled over the plain features of their candidates."""
        names = self._settled().names
        for slot in (self._row_of[observation.viewpoint] == 0).nonzero().flatten().tolist():
            scene_id, viewpoint = names[int(observation.viewpoint[slot])]
            leads = observation.is_candidate[slot]
            neighbours = [names[index][1] for index in observation.neighbour[slot, leads].tolist()]
            self.remember(scene_id, viewpoint, observation.plain[slot, leads], neighbours)

    def remember_at(self, viewpoints: Sequence[int]) -> None:
        """Remember viewpoints of the atlas as if someone had stood there."""
        atlas = self._settled()
        for at in torch.split(torch.tensor(viewpoints, dtype=torch.int64), PANORAMAS_AT_ONCE):
            panoramas = torch.from_numpy(atlas.panorama_features(at.numpy()))  # (B, 36, D)
            for index, panorama in zip(at.tolist(), panoramas, strict=True):
                scene_id, viewpoint = atlas.names[index]
                degree = int(atlas.degrees[index])
                neighbours = [atlas.names[other][1] for other in atlas.neighbours[index, :degree].tolist()]
                views = panorama[atlas.views[index, :degree].tolist()]
                self.remember(scene_id, viewpoint, views, neighbours)

    def remember_all(self) -> None:
        """Remember every viewpoint of the atlas: what a walk of endless length would leave behind."""
        self.remember_at(range(len(self._settled())))

    @property
    def visited(self) -> Tensor:
        """Which viewpoints of the atlas are remembered, (P,) bool."""
        self._settled()
        return self._row_of[:-1] > 0

    def _settled(self) -> Atlas:
        if self._atlas is None:
            raise MemoryMismatch("this bank knows viewpoints by name only; call settle(atlas) first")
        return self._atlas

    def _note(self, scene_id: str, viewpoints: Sequence[str], rows: Sequence[int]) -> None:
        """Keep `row_of` true: these viewpoints lie in these rows now, 0 for forgotten."""
        pairs = ((self._index.get((scene_id, each)), row) for each, row in zip(viewpoints, rows, strict=True))
        known = [(index, row) for index, row in pairs if index is not None]
        if known:
            places, at = zip(*known, strict=True)
            self._row_of[list(places)] = torch.tensor(at).to(self._row_of)


class MaskedMemory:
    """A memory that is written but never read: the control that tells a memory's effect from its weights'."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        """Zeros, (..., D)."""
        return torch.zeros_like(self.memory.recall_at(viewpoints))

    def surroundings(self, viewpoints: Tensor) -> MemorySubgraph:
        """Of which nobody knows anything."""
        around = self.memory.surroundings(viewpoints)
        return around.limited(torch.zeros_like(around.known))

    def remember_seen(self, observation: Observation) -> None:
        """Remember where the agents stand."""
        self.memory.remember_seen(observation)


class _SceneOfBank(SceneMemory):
    """A scene whose rows lie in a bank, which is told what changes."""

    def __init__(self, scene_id: str, bank: MemoryBank) -> None:
        super().__init__(bank.width, pooling=bank.pooling, rows=bank._rows)
        self._scene_id, self._bank = scene_id, bank

    def forget(self) -> None:
        gone = list(self.viewpoints)
        super().forget()
        self._bank._note(self._scene_id, gone, [0] * len(gone))

    def _keep(
        self, viewpoints: Sequence[str], vectors: Tensor, neighbours: Sequence[tuple[str, ...]]
    ) -> list[int]:
        rows = super()._keep(viewpoints, vectors, neighbours)
        self._bank._note(self._scene_id, viewpoints, rows)
        return rows


def _name_of(source: str) -> str:
    """The name of a feature file, wherever it lies."""
    return Path(source).name
