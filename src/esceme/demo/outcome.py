"""What the demo has come to: who learned for how long, and what both agents then scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from esceme.demo.scoring import Scoring
from esceme.demo.wish import Wish


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was seen."""

    wish: Wish
    world: Path
    begun_after: Mapping[str, int]
    """Agent -> how many of its iterations an earlier demo had done that was interrupted."""
    seconds: Mapping[str, float]
    """Part of the story -> how long it took this time."""
    scorings: Mapping[str, Scoring]
    """By split."""
    walks: tuple[str, ...]
    """Episodes of which there are figures."""

    @property
    def report(self) -> Path:
        """The report."""
        return self.wish.out / "report.md"

    @property
    def iterations(self) -> int:
        """Of each training."""
        return self.wish.experiments()["memory"].training.iterations
