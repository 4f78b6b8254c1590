"""The public data that reference numbers are about: graphs, R2R and predictions, read once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from esceme.errors import DataError, EscemeError
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.r2r import read_r2r
from esceme.tasks.r4r import join_paths, read_r2r_records
from esceme.tasks.submission import Prediction, read_predictions
from esceme.world.atlas import Atlas
from esceme.world.graph import SceneGraph, read_scenes


@dataclass(frozen=True)
class References:
    """The public data that the reference numbers are about."""

    root: Path

    @cached_property
    def graphs(self) -> dict[str, SceneGraph]:
        """Every scene of the data folder."""
        return read_scenes(DataFolder(self.root).connectivity)

    @cached_property
    def atlas(self) -> Atlas:
        """The same scenes as one atlas, without features."""
        return Atlas(self.graphs.values())

    @cached_property
    def episodes(self) -> Callable[[str], dict[str, Episode]]:
        """R2R episodes of a split by id."""
        return cache(lambda split: {each.episode_id: each for each in read_r2r(self._r2r(split))})

    @cached_property
    def r4r_paths(self) -> Callable[[str], set[tuple[str, ...]]]:
        """The paths of a split of R4R, made from R2R."""
        return cache(lambda split: set(self._joined(split)))

    @cached_property
    def predictions(self) -> list[dict[str, Prediction]]:
        """The prediction files of the data folder; what is none is left out."""
        found = []
        for path in sorted((self.root / "predictions").glob("*.json")):
            with suppress(EscemeError):
                found.append(read_predictions(path))
        return found

    def _joined(self, split: str) -> Iterator[tuple[str, ...]]:
        walks = read_r2r_records(self._r2r(split), self.graphs)
        return (tuple(record.path) for record in join_paths(walks, self.graphs))

    def _r2r(self, split: str) -> Path:
        path = DataFolder(self.root).annotations("r2r", split)
        if path is None:
            raise DataError(f"{self.root}: no R2R file of split {split}")
        return path
