"""The public data that reference numbers are about: graphs and R2R."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from esceme.tasks.episode import Episode
from esceme.tasks.r2r import read_r2r
from esceme.tasks.r4r import join_paths, read_walks
from esceme.world.atlas import Atlas
from esceme.world.graph import SceneGraph, read_scenes


@dataclass(frozen=True)
class References:
    """The public data that the reference numbers are about."""

    root: Path

    @cached_property
    def graphs(self) -> dict[str, SceneGraph]:
        """Every scene of the data folder."""
        return read_scenes(self.root / "connectivity")

    @cached_property
    def atlas(self) -> Atlas:
        """The same scenes as one atlas, without features."""
        return Atlas(self.graphs.values())

    def graph(self, scene: str) -> SceneGraph:
        """One scene; raises `WorldError` where the reference names one that does not exist."""
        return self.atlas.graph(scene)

    def episodes(self, split: str) -> dict[str, Episode]:
        """R2R episodes by id."""
        return {each.episode_id: each for each in read_r2r(self.root / "R2R" / f"R2R_{split}.json")}

    def r4r_paths(self, split: str) -> set[tuple[str, ...]]:
        """The paths of R4R, made from R2R."""
        walks = read_walks(self.root / "R2R" / f"R2R_{split}.json", self.graphs)
        return {tuple(record.path) for record in join_paths(walks, self.graphs)}
