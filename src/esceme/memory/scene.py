"""`SceneMemory`: one vector per visited viewpoint of a building, and the edges between them.

This is the memory of the ESceme paper. At every decision, the features of the views that lead to candidates
are pooled (Eq. 1) and stored for the agent's viewpoint. The stored vector is recalled whenever this viewpoint
is a candidate, in the same or in another episode (Eq. 2). Unvisited viewpoints recall zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, KeysView, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esceme.errors import ConfigError, MemoryMismatch

Pooling = Literal["max", "mean"]


def pool(views: Tensor, pooling: Pooling = "max") -> Tensor:
    """Return the pooled features of the views that lead to K candidates, (..., K, D) -> (..., D) (Eq. 1).

    >>> pool(torch.tensor([[1.0, 0.0], [0.0, 3.0]]), "max")
    tensor([1., 3.])
    """
    if pooling not in ("max", "mean"):
        raise ConfigError(f"pooling '{pooling}': expected 'max' or 'mean'")
    return views.amax(-2) if pooling == "max" else views.mean(-2)


class SceneMemory:
    """Episodic memory of one building: a graph that grows with every new viewpoint (Figure 3 of the paper).

    The first trajectory leads from V1 to V5. Each viewpoint is remembered:

    >>> graph = {"V1": ["V2"], "V2": ["V1", "V3"], "V3": ["V2", "V4"], "V4": ["V3", "V5", "V6"]}
    >>> graph |= {"V5": ["V4"], "V6": ["V4", "V7"], "V7": ["V6"]}
    >>> views = {name: torch.eye(2)[: len(graph[name])] + row for row, name in enumerate(graph)}
    >>> memory = SceneMemory(width=2)
    >>> for name in ["V1", "V2", "V3", "V4", "V5"]:
    ...     assert memory.remember(name, views[name], graph[name])
    >>> sorted(memory.edges)
    [('V1', 'V2'), ('V2', 'V3'), ('V3', 'V4'), ('V4', 'V5')]

    The second trajectory leads from V7 to V6 and V4. V4 is known already, so that visiting it adds nothing:

    >>> memory.remember("V7", views["V7"], graph["V7"]), memory.remember("V6", views["V6"], graph["V6"])
    (True, True)
    >>> memory.recall(["V4", "V8"])
    tensor([[4., 4.],
            [0., 0.]])
    >>> memory.remember("V4", views["V4"], graph["V4"])
    False
    """

    def __init__(self, width: int, *, pooling: Pooling = "max", storage: GrowingMatrix | None = None) -> None:
        """Create an empty memory for features of size `width`. Scenes may share one `storage`."""
        self.width, self.pooling = width, pooling
        self._storage = GrowingMatrix(width) if storage is None else storage
        self._rows: dict[str, int] = {}
        self._neighbours: dict[str, tuple[str, ...]] = {}

    def remember(
        self, viewpoint: str, views: Tensor | NDArray[np.floating], neighbours: Sequence[str]
    ) -> bool:
        """Store the pooled views of a viewpoint and return True, or return False if it was visited before.

        `views` (K, D) are the features of the views that lead to `neighbours`, in the same order. A second
        visit changes nothing. No gradient flows into the memory. Raise `MemoryMismatch` if `views` has
        another shape or contains NaN or infinity.
        """
        if viewpoint in self:
            return False
        names = tuple(_require_names(neighbours))
        self._insert([viewpoint], self._pooled(viewpoint, torch.as_tensor(views))[None], [names])
        return True

    def _pooled(self, viewpoint: str, views: Tensor) -> Tensor:
        """Return the vector (D,) of a viewpoint; raise `MemoryMismatch` for views that have none."""
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
        return vector

    def recall(self, viewpoints: Iterable[str]) -> Tensor:
        """Return the vectors of `viewpoints`, (n, D), with zeros for unvisited viewpoints (Eq. 2)."""
        rows = [self._rows.get(viewpoint, 0) for viewpoint in _require_names(viewpoints)]
        return self._storage.matrix[torch.tensor(rows, dtype=torch.int64)]

    def forget(self) -> None:
        """Clear the memory of this scene."""
        self._storage.free(self._rows.values())
        self._rows.clear()
        self._neighbours.clear()

    def merge(self, other: SceneMemory) -> None:
        """Add the viewpoints of `other`, as if this memory had visited them too.

        Merging is commutative, associative and idempotent. If a viewpoint has two different vectors, max
        pooling keeps their elementwise maximum, mean pooling the lexicographically larger vector.
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
        """Visited viewpoints, in order of their first visit; a view that compares like a set."""
        return self._rows.keys()

    @property
    def edges(self) -> set[tuple[str, str]]:
        """Pairs of adjacent visited viewpoints; the names in a pair are in alphabetical order."""
        pairs = ((a, b) for a, neighbours in self._neighbours.items() for b in neighbours if b in self)
        return {(min(pair), max(pair)) for pair in pairs}

    def neighbours_of(self, viewpoint: str) -> tuple[str, ...]:
        """Return the neighbours of a visited viewpoint, including unvisited neighbours."""
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
        """Store new viewpoints with their vectors (n, D) and return their storage row numbers."""
        rows = self._storage.append(vectors)
        self._rows.update(zip(viewpoints, rows, strict=True))
        self._neighbours.update(zip(viewpoints, neighbours, strict=True))
        return rows


class GrowingMatrix:
    """Matrix that grows as needed by doubling its capacity. Row 0 is always zero; freed rows are reused."""

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
        """Mark rows as free, so that `append` can reuse them."""
        self._freed += rows

    def __len__(self) -> int:
        return self._end - 1 - len(self._freed)

    @property
    def nbytes(self) -> int:
        """Size in bytes of the rows in use, without free rows and row 0."""
        return len(self) * self.width * self.matrix.element_size()


def _require_names(viewpoints: Iterable[str]) -> Iterable[str]:
    """Return `viewpoints`; raise `MemoryMismatch` for a single string, which is a list of letters."""
    if isinstance(viewpoints, str):
        raise MemoryMismatch(f"expected a list of viewpoints, found one string; write ['{viewpoints}']")
    return viewpoints


def _merge_vectors(first: Tensor, second: Tensor, pooling: Pooling) -> Tensor:
    """Return one merged vector per viewpoint, (n, D), which does not depend on the order of the arguments."""
    second = second.to(first)
    if pooling == "max":
        return torch.maximum(first, second)
    return torch.stack([max(pair, key=Tensor.tolist) for pair in zip(first, second, strict=True)])
