"""What an agent remembers of one building: a vector for every viewpoint it has been to, and how they connect.

This is ESceme, the whole of it. Standing somewhere, an agent pools what it sees in the directions it could go
(Eq. 1) and keeps that. When such a place is a candidate later, in the same episode or in any other one in the
building, what it saw there comes back to it (Eq. 2); for a place it has never been to, zeros come back.
"""

from __future__ import annotations

from collections.abc import Iterable, KeysView, Sequence
from typing import Literal

import torch
from torch import Tensor

from esceme.errors import ConfigError, MemoryMismatch

Pooling = Literal["max", "mean"]


def pool(views: Tensor, pooling: Pooling = "max") -> Tensor:
    """One vector for what is seen in several directions, (..., K, D) -> (..., D) (Eq. 1).

    >>> pool(torch.tensor([[1.0, 0.0], [0.0, 3.0]]), "max")
    tensor([1., 3.])
    """
    if pooling not in ("max", "mean"):
        raise ConfigError(f"pooling '{pooling}': expected 'max' or 'mean'")
    return views.amax(-2) if pooling == "max" else views.mean(-2)


class SceneMemory:
    """The episodic memory of one building, a graph that grows with every new place (the paper's Figure 3).

    A first instruction leads from V1 to V5, and each place is remembered when it is left:

    >>> ways = {"V1": ["V2"], "V2": ["V1", "V3"], "V3": ["V2", "V4"], "V4": ["V3", "V5", "V6"], "V5": ["V4"]}
    >>> ways |= {"V6": ["V4", "V7"], "V7": ["V6"]}
    >>> sight = {place: torch.eye(2)[: len(ways[place])] + row for row, place in enumerate(ways)}
    >>> memory = SceneMemory(width=2)
    >>> for place in ["V1", "V2", "V3", "V4", "V5"]:
    ...     assert memory.remember(place, sight[place], ways[place])
    >>> sorted(memory.edges)
    [('V1', 'V2'), ('V2', 'V3'), ('V3', 'V4'), ('V4', 'V5')]

    A second one comes from V7. At V6 its way on, V4, is known already, and going there adds nothing:

    >>> memory.remember("V7", sight["V7"], ways["V7"]), memory.remember("V6", sight["V6"], ways["V6"])
    (True, True)
    >>> memory.recall(["V4", "V8"])
    tensor([[4., 4.],
            [0., 0.]])
    >>> memory.remember("V4", sight["V4"], ways["V4"])
    False
    """

    def __init__(self, width: int, *, pooling: Pooling = "max", rows: Rows | None = None) -> None:
        """Remember views of `width` numbers; scenes may share the `rows` that their vectors lie in."""
        self.width, self.pooling = width, pooling
        self._rows = Rows(width) if rows is None else rows
        self._row: dict[str, int] = {}
        self._neighbours: dict[str, tuple[str, ...]] = {}

    # -- living ------------------------------------------------------------------------------------------

    def remember(self, viewpoint: str, views: Tensor, neighbours: Sequence[str]) -> bool:
        """Keep what `viewpoint` looks like in the directions of its neighbours; True on a first visit.

        `views` (K, D) are plain features of the candidates' views, one per neighbour. A revisit changes
        nothing. No gradient flows into a memory.
        """
        if viewpoint in self:
            return False
        if views.ndim != 2 or len(views) == 0 or views.shape[1] != self.width:
            raise MemoryMismatch(
                f"viewpoint '{viewpoint}': this memory keeps views of shape (K, {self.width}), one for each "
                f"candidate, and was given {tuple(views.shape)}; make it with the width of your features"
            )
        self._keep([viewpoint], pool(views.detach(), self.pooling)[None], [tuple(neighbours)])
        return True

    def recall(self, viewpoints: Iterable[str]) -> Tensor:
        """What is remembered of `viewpoints`, (n, D); zeros where the agent has never been (Eq. 2)."""
        rows = [self._row.get(viewpoint, 0) for viewpoint in viewpoints]
        return self._rows.matrix[torch.tensor(rows, dtype=torch.int64)]

    def forget(self) -> None:
        """Be as if never having been here."""
        self._rows.free(self._row.values())
        self._row.clear()
        self._neighbours.clear()

    def merge(self, other: SceneMemory) -> None:
        """Know what `other` knows, too: the memory of a life that visited what either of them did.

        It does not matter who is merged into whom, in what order, and how often. Where both hold a place
        with other numbers, max pooling takes the larger of each, mean pooling the vector that sorts last.
        """
        if (other.width, other.pooling) != (self.width, self.pooling):
            raise MemoryMismatch(
                f"a memory of width {self.width} and {self.pooling} pooling cannot take in one of width "
                f"{other.width} and {other.pooling} pooling; build both alike"
            )
        new = [viewpoint for viewpoint in other.viewpoints if viewpoint not in self]
        both = [viewpoint for viewpoint in other.viewpoints if viewpoint in self]
        self._keep(new, other.recall(new), [other.neighbours_of(viewpoint) for viewpoint in new])
        for viewpoint in both:
            mine, theirs = self.neighbours_of(viewpoint), other.neighbours_of(viewpoint)
            self._neighbours[viewpoint] = mine if mine == theirs else tuple(sorted({*mine, *theirs}))
        if both:
            merged = _last(self.recall(both), other.recall(both), self.pooling)
            self._rows.matrix[[self._row[viewpoint] for viewpoint in both]] = merged

    # -- looking -----------------------------------------------------------------------------------------

    @property
    def viewpoints(self) -> KeysView[str]:
        """Where the agent has been, in the order of first visits; compares as a set."""
        return self._row.keys()

    @property
    def edges(self) -> set[tuple[str, str]]:
        """Pairs of remembered viewpoints that are neighbours, each pair in alphabetical order."""
        pairs = ((a, b) for a, neighbours in self._neighbours.items() for b in neighbours if b in self)
        return {(min(pair), max(pair)) for pair in pairs}

    def neighbours_of(self, viewpoint: str) -> tuple[str, ...]:
        """Where one could go from a remembered viewpoint, visited or not."""
        return self._neighbours[viewpoint]

    def __contains__(self, viewpoint: object) -> bool:
        return viewpoint in self._row

    def __len__(self) -> int:
        return len(self._row)

    @property
    def nbytes(self) -> int:
        """How many bytes the remembered vectors take."""
        return len(self) * self.width * self._rows.matrix.element_size()

    def _keep(
        self, viewpoints: Sequence[str], vectors: Tensor, neighbours: Sequence[tuple[str, ...]]
    ) -> list[int]:
        """Add places that are new, (n, D), and give the rows they lie in."""
        rows = self._rows.append(vectors)
        self._row.update(zip(viewpoints, rows, strict=True))
        self._neighbours.update(zip(viewpoints, neighbours, strict=True))
        return rows


class Rows:
    """A matrix that grows: its row 0 is zeros, for what was never seen, and freed rows are used again."""

    def __init__(self, width: int, *, device: torch.device | str | None = None) -> None:
        self.width = width
        self._freed: list[int] = []
        self._end = 1
        with torch.inference_mode(False):  # or training could not use what an evaluation remembered
            self.matrix = torch.zeros(1, width, device=device)
            """(rows of capacity, D)"""

    def append(self, vectors: Tensor) -> list[int]:
        """Keep copies of `vectors` (n, D) and give the rows they lie in."""
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
        """Let go of these rows, for later vectors."""
        self._freed += rows

    def __len__(self) -> int:
        return self._end - 1 - len(self._freed)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows in use, neither of those kept ready nor of the zeros."""
        return len(self) * self.width * self.matrix.element_size()


def _last(mine: Tensor, theirs: Tensor, pooling: Pooling) -> Tensor:
    """What two memories (n, D) of the same places agree on, whichever is asked first."""
    theirs = theirs.to(mine)
    if pooling == "max":
        return torch.maximum(mine, theirs)
    return torch.stack([max(pair, key=Tensor.tolist) for pair in zip(mine, theirs, strict=True)])
