"""A task: how its files are read, how long its instructions and walks may be, and what was published."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from esceme.tasks.episode import Episode


class SplitSize(NamedTuple):
    """How large a split is: walks, instructions, scenes."""

    paths: int
    instructions: int
    scenes: int

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> SplitSize:
        """Count what episodes hold."""
        return cls(
            paths=len({episode.path_id for episode in episodes}),
            instructions=len(episodes),
            scenes=len({episode.scene_id for episode in episodes}),
        )


@dataclass(frozen=True, kw_only=True)
class Task:
    """Everything that distinguishes one dataset from another, outside its file format."""

    name: str
    read: Callable[[Path], Sequence[Episode]]
    files: tuple[str, ...]
    """Where a split may lie below a data folder, `{split}` to be filled in; the first that exists counts."""
    published: Mapping[str, SplitSize | None]
    """Splits and their published sizes, None where the size is not known to us."""
    sizes_are: str = "as published"
    """What it means to have exactly these sizes."""
    earlier: Mapping[str, int] = field(default_factory=dict)
    """Splits -> the number of instructions in another release, which is right, too."""
    max_steps: int
    """Decisions per episode, STOP included (spec A.13)."""
    max_tokens: int
    keep: Literal["first", "last"] = "first"
    """Which end of a long instruction survives truncation (spec A.9)."""
    id_key: str = "instr_id"
    """How prediction files and submissions name an episode."""
