"""`Codebook`: view features as small integers, so that a map of a building needs few bytes per viewpoint."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from esceme.errors import MemoryMismatch

MAX_CODES = 2**15


class Codebook:
    """Centroids of view features. The code of a view is the number of the nearest centroid.

    >>> codebook = Codebook(np.array([[0.0, 0.0], [2.0, 0.0]]))
    >>> codebook.encode(np.array([[0.1, 0.0], [1.8, 0.3]])).tolist()
    [0, 1]
    """

    def __init__(self, centroids: NDArray[np.floating]) -> None:
        """Use `centroids` (C, D); raise `MemoryMismatch` unless they are a finite matrix."""
        if centroids.ndim != 2 or not 0 < len(centroids) <= MAX_CODES or not np.isfinite(centroids).all():
            raise MemoryMismatch(
                f"expected a finite matrix of 1 to {MAX_CODES} centroids, found shape {centroids.shape}"
            )
        self.centroids = centroids.astype(np.float32)
        self._norms = (self.centroids**2).sum(1)

    def __len__(self) -> int:
        return len(self.centroids)

    @property
    def width(self) -> int:
        """Number of features per view, D."""
        return self.centroids.shape[1]

    def encode(self, features: NDArray[np.floating]) -> NDArray[np.int16]:
        """Return the codes of views, (..., D) -> (...)."""
        products = features.astype(np.float32) @ self.centroids.T
        return (self._norms - 2 * products).argmin(-1).astype(np.int16)

    @classmethod
    def fit(
        cls, features: NDArray[np.floating], size: int, *, iterations: int = 8, seed: int = 0
    ) -> Codebook:
        """Return a codebook of at most `size` centroids of `features` (N, D), by k-means from random rows."""
        generator = np.random.default_rng(seed)
        rows = features.astype(np.float32)
        size = min(size, len(rows))
        codebook = cls(rows[generator.permutation(len(rows))[:size]])
        for _ in range(iterations):
            codes = codebook.encode(rows)
            counts = np.bincount(codes, minlength=size)[:, None]
            members = csr_array((np.ones(len(rows)), (codes, np.arange(len(rows)))), shape=(size, len(rows)))
            sums = members @ rows
            fresh = rows[generator.permutation(len(rows))[:size]]  # for centroids without views
            codebook = cls(np.where(counts > 0, sums / np.maximum(counts, 1), fresh))
        return codebook
