"""All targets, by name."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from esceme.errors import ConfigError
from esceme.reproduction.paper_figures import PAPER_FIGURES
from esceme.reproduction.paper_tables import PAPER_TABLES
from esceme.reproduction.studies import STUDIES
from esceme.reproduction.targets import Target

ALL = "all"
TARGETS: dict[str, Target] = {target.name: target for target in (*PAPER_TABLES, *PAPER_FIGURES, *STUDIES)}
"""Name -> target."""


def find_targets(names: Sequence[str]) -> list[Target]:
    """Return the targets with the given names, or all. Raise `ConfigError` if a name is unknown."""
    for name in names:
        if name != ALL and name not in TARGETS:
            similar = get_close_matches(name.lower(), TARGETS, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(similar)}?" if similar else "see `esceme reproduce list`"
            raise ConfigError(f"no target '{name}'; {hint}")
    return list(TARGETS.values()) if ALL in names else [TARGETS[name] for name in dict.fromkeys(names)]
