"""`SceneMemory`: one vector per visited viewpoint of a building, and the edges between them.

This is ESceme. At every decision the agent pools the views towards its candidates (Eq. 1) and stores the
vector. When that viewpoint is a candidate later, in this episode or any other in the building, the vector is
recalled (Eq. 2); unvisited viewpoints recall zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, KeysView, Sequence
from typing import Literal

import torch
from torch import Tensor

from esceme.errors import ConfigError, MemoryMismatch

Pooling = Literal["max", "mean"]


def pool(views: Tensor, pooling: Pooling = "max") -> Tensor:
    """Pool the views towards K candidates, (..., K, D) -> (..., D) (Eq. 1).

    >>> pool(torch.tensor([[1.0, 0.0], [0.0, 3.0]]), "max")
    tensor([1., 3.])
    """
    if pooling not in ("max", "mean"):
        raise ConfigError(f"pooling '{pooling}': expected 'max' or 'mean'")
    return views.amax(-2) if pooling == "max" else views.mean(-2)


class SceneMemory:
    """Episodic memory of one building: a graph that grows with every new viewpoint (Figure 3 of the paper).

    The first trajectory leads from V1 to V5 and remembers each viewpoint:

    >>> graph = {"V1": ["V2"], "V2": ["V1", "V3"], "V3": ["V2", "V4"], "V4": ["V3", "V5", "V6"]}
    >>> graph |= {"V5": ["V4"], "V6": ["V4", "V7"], "V7": ["V6"]}
    >>> views = {name: torch.eye(2)[: len(graph[name])] + row for row, name in enumerate(graph)}
    >>> memory = SceneMemory(width=2)
    >>> for name in ["V1", "V2", "V3", "V4", "V5"]:
    ...     assert memory.remember(name, views[name], graph[name])
    >>> sorted(memory.edges)
    [('V1', 'V2'), ('V2', 'V3'), ('V3', 'V4'), ('V4', 'V5')]

    The second one starts at V7. At V6 its next viewpoint V4 is known already, so visiting it adds nothing:

    >>> memory.remember("V7", views["V7"], graph["V7"]), memory.remember("V6", views["V6"], graph["V6"])
    (True, True)
    >>> memory.recall(["V4", "V8"])
    tensor([[4., 4.],
            [0., 0.]])
    >>> memory.remember("V4", views["V4"], graph["V4"])
    False
    """

    def __init__(self, width: int, *, pooling: Pooling = "max", storage: GrowingMatrix | None = None) -> None:
        """Create an empty memory of features of `width`; scenes may share one `storage`."""
        self.width, self.pooling = width, pooling
        self._storage = GrowingMatrix(width) if storage is None else storage
        self._rows: dict[str, int] = {}
        self._neighbours: dict[str, tuple[str, ...]] = {}

    def remember(self, viewpoint: str, views: Tensor, neighbours: Sequence[str]) -> bool:
        """Store the pooled views of a viewpoint; return True on the first visit.

        `views` (K, D) are raw features of the candidates' views, one per neighbour. A revisit changes
        nothing. No gradient flows into the memory. Raises `MemoryMismatch` for another shape, NaN and
        infinity.
        """
        if viewpoint in self:
            return False
        if views.ndim != 2 or len(views) == 0 or views.shape[1] != self.width:
            raise MemoryMismatch(
                f"viewpoint '{viewpoint}': expected views of shape (K, {self.width}), one per candidate, "
                f"found {tuple(views.shape)}; create the memory with the width of your features"
            )
        vector = pool(views.detach(), self.pooling).to(self._storage.matrix)
        if not views.isfinite().all() or not vector.isfinite().all():
            raise MemoryMismatch(
                f"viewpoint '{viewpoint}': expected finite features, found NaN, infinity or overflow in "
                "single precision; extract its features again"
            )
        self._insert([viewpoint], vector[None], [tuple(neighbours)])
        return True

    def recall(self, viewpoints: Iterable[str]) -> Tensor:
        """Return the vectors of `viewpoints`, (n, D); zeros for unvisited ones (Eq. 2)."""
        rows = [self._rows.get(viewpoint, 0) for viewpoint in viewpoints]
        return self._storage.matrix[torch.tensor(rows, dtype=torch.int64)]

    def forget(self) -> None:
        """Clear the memory of this scene."""
        self._storage.free(self._rows.values())
        self._rows.clear()
        self._neighbours.clear()

    def merge(self, other: SceneMemory) -> None:
        """Add the viewpoints of `other`, as if one memory had visited both.

        Merging is commutative, associative and idempotent. If both hold a viewpoint with different vectors,
        max pooling takes the elementwise maximum, mean pooling the lexicographically larger vector.
        """
        if (other.width, other.pooling) != (self.width, self.pooling):
            raise MemoryMismatch(
                f"a memory of width {self.width} and {self.pooling} pooling cannot merge one of width "
                f"{other.width} and {other.pooling} pooling; build both alike"
            )
        new = [viewpoint for viewpoint in other.viewpoints if viewpoint not in self]
        shared = [viewpoint for viewpoint in other.viewpoints if viewpoint in self]
        self._insert(new, other.recall(new), [other.neighbours_of(viewpoint) for viewpoint in new])
        for viewpoint in shared:
            first, second = self.neighbours_of(viewpoint), other.neighbours_of(viewpoint)
            self._neighbours[viewpoint] = first if first == second else tuple(sorted({*first, *second}))
        if shared:
            merged = _merge_vectors(self.recall(shared), other.recall(shared), self.pooling)
            self._storage.matrix[[self._rows[viewpoint] for viewpoint in shared]] = merged

    @property
    def viewpoints(self) -> KeysView[str]:
        """Visited viewpoints in order of the first visit; compares as a set."""
        return self._rows.keys()

    @property
    def edges(self) -> set[tuple[str, str]]:
        """Pairs of visited neighbours, each in alphabetical order."""
        pairs = ((a, b) for a, neighbours in self._neighbours.items() for b in neighbours if b in self)
        return {(min(pair), max(pair)) for pair in pairs}

    def neighbours_of(self, viewpoint: str) -> tuple[str, ...]:
        """Neighbours of a visited viewpoint, visited or not."""
        return self._neighbours[viewpoint]

    def __contains__(self, viewpoint: object) -> bool:
        return viewpoint in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Size of the stored vectors in bytes."""
        return len(self) * self.width * self._storage.matrix.element_size()

    def _insert(
        self, viewpoints: Sequence[str], vectors: Tensor, neighbours: Sequence[tuple[str, ...]]
    ) -> list[int]:
        """Store new viewpoints with vectors (n, D); return their rows."""
        rows = self._storage.append(vectors)
        self._rows.update(zip(viewpoints, rows, strict=True))
        self._neighbours.update(zip(viewpoints, neighbours, strict=True))
        return rows


class GrowingMatrix:
    """A matrix whose capacity doubles as needed; row 0 is always zeros, and freed rows are reused."""

    def __init__(self, width: int, *, device: torch.device | str | None = None) -> None:
        self.width = width
        self._freed: list[int] = []
        self._end = 1
        with torch.inference_mode(False):  # inference tensors could not be used in training later
            self.matrix = torch.zeros(1, width, device=device)
            """(capacity, D)"""

    def append(self, vectors: Tensor) -> list[int]:
        """Copy `vectors` (n, D) into free rows and return the row numbers."""
        reused = [self._freed.pop() for _ in range(min(len(vectors), len(self._freed)))]
        fresh = range(self._end, self._end + len(vectors) - len(reused))
        rows, self._end = [*reused, *fresh], fresh.stop
        with torch.inference_mode(False), torch.no_grad():
            if self._end > len(self.matrix):
                missing = max(self._end, 2 * len(self.matrix)) - len(self.matrix)
                self.matrix = torch.cat([self.matrix, self.matrix.new_zeros(missing, self.width)])
            if rows:
                self.matrix[rows] = vectors.to(self.matrix)
        return rows

    def free(self, rows: Iterable[int]) -> None:
        """Release rows for later vectors."""
        self._freed += rows

    def __len__(self) -> int:
        return self._end - 1 - len(self._freed)

    @property
    def nbytes(self) -> int:
        """Size of the rows in use in bytes, without spare capacity and the zero row."""
        return len(self) * self.width * self.matrix.element_size()


def _merge_vectors(first: Tensor, second: Tensor, pooling: Pooling) -> Tensor:
    """Merge two vectors per viewpoint, (n, D) each, independently of their order."""
    second = second.to(first)
    if pooling == "max":
        return torch.maximum(first, second)
    return torch.stack([max(pair, key=Tensor.tolist) for pair in zip(first, second, strict=True)])
