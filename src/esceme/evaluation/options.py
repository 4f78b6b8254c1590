"""What is to be evaluated, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from esceme.agents import AGENTS
from esceme.errors import ConfigError
from esceme.evaluation.protocol import Protocol
from esceme.evaluation.schedule import ScheduleName

SCRIPTED = tuple(name for name, kind in AGENTS.items() if kind.scripted)
"""Agents that need no run folder."""
Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What is to be evaluated, and how: all that a person decides."""

    run: str
    """A run folder, or the name of a scripted agent."""
    data: str
    split: str
    memory: Protocol
    task: str | None = None
    """By default the one the run was made for."""
    schedule: ScheduleName = "lanes"
    batch: int = 8
    seed: int = 0
    order: Literal["file", "shuffled"] = "file"
    """How a scene's episodes follow each other in lanes: as in the file, or drawn from the seed."""
    bank: str | None = None
    tours: str | None = None
    oracle_phases: bool = False
    features: str | None = None
    max_steps: int | None = None
    max_tokens: int | None = None
    precision: Precision = "fp32"

    @property
    def passes(self) -> int:
        """How often the split is lived; the last time counts."""
        return 2 if self.memory == "two-pass" else 1

    def __post_init__(self) -> None:
        for name in ("batch", "max_steps", "max_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name}: expected at least 1, found {value}")
        if self.seed < 0:
            raise ConfigError(f"seed: expected 0 or more, found {self.seed}")
        if self.tours is not None and self.order != "file":
            raise ConfigError("tours have an order of their own; give either --tours or an order")
        if self.schedule == "interleaved" and self.order != "file":
            raise ConfigError("'interleaved' shuffles by its seed as it is; an order is for 'lanes'")
        choices = {
            "schedule": ("lanes", "interleaved"),
            "order": ("file", "shuffled"),
            "precision": ("fp32", "bf16"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} '{getattr(self, name)}': expected {' or '.join(known)}")
