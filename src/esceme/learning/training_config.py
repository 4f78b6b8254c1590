"""How an agent is trained: everything a person decides about it, with the released scripts' values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from esceme.errors import ConfigError
from esceme.evaluation.protocol import PROTOCOLS
from esceme.learning.memory_dropout import MemoryDropout
from esceme.learning.rewards import REWARDS
from esceme.learning.teachers import COMMENTS, SUPERVISIONS, TEACHERS

Method = Literal["imitation", "imitation+a2c", "dagger"]
"""What an iteration consists of.

- `imitation`: walks led by the teacher.
- `imitation+a2c`: a batch of those and another batch of sampled walks that learn from rewards (spec E.1).
- `dagger`: sampled walks, and at every step what `dagger_teacher` would have done.
"""


@dataclass(frozen=True, kw_only=True)
class Training:
    """One run of training."""

    method: Method = "imitation+a2c"
    iterations: int = 100_000
    imitation_first: int = 0
    """How many of them are by imitation alone, before the method."""
    batch: int = 8
    """Episodes of a batch, shared out to all processes."""
    learning_rate: float = 1e-5
    decay: Literal["constant", "linear"] = "constant"
    """Whether the learning rate stays, or falls to nothing at the last iteration."""
    warm_up: int = 0
    """Iterations in which the learning rate rises from nothing."""
    weight_decay: float = 0.01
    """On every parameter that gets a gradient, biases and normalisations included (spec E.7)."""
    clip: float = 40.0
    """The largest norm of the network's gradient; the critic's is not clipped (spec E.1)."""
    imitation_weight: float = 0.2
    """Of imitation beside A2C; alone it has weight 1."""
    discount: float = 0.9
    entropy_weight: float = 0.01
    comment_weight: float = 0.0
    """Of imitating what should have been done at the steps of sampled walks, beside A2C (spec D.7)."""
    comments: str = "path"
    """What should have been done: go on along the reference path as far as possible, or towards the goal."""
    normalise: Literal["steps", "batch"] = "steps"
    """What A2C's sums are divided by."""
    scale_by_batch: bool = False
    """Whether A2C's part is multiplied by the batch, as released CVDN code does by accident (spec E.6)."""
    teacher: str = "time"
    dagger_teacher: str = "shortest"
    supervision: str = "annotated"
    reward: str = "path"
    augmentation: str = ""
    """A task whose train split takes turns with the task's own, iteration by iteration; none by default."""
    completeness: MemoryDropout = field(default_factory=MemoryDropout)
    checkpoint_every: int = 500

    def __post_init__(self) -> None:
        for name in ("iterations", "batch", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, found {getattr(self, name)}")
        for name in (
            "imitation_first",
            "warm_up",
            "weight_decay",
            "imitation_weight",
            "entropy_weight",
            "comment_weight",
        ):
            if not 0 <= getattr(self, name) < 1e31:
                raise ConfigError(f"{name}: expected 0 or more, found {getattr(self, name)}")
        for name in ("learning_rate", "clip"):
            if not 0 < getattr(self, name) < 1e31:
                raise ConfigError(f"{name}: expected a number above 0, found {getattr(self, name)}")
        if not 0 <= self.discount <= 1:
            raise ConfigError(f"discount: expected a number from 0 to 1, found {self.discount}")
        _require_one_of(
            self,
            method=("imitation", "imitation+a2c", "dagger"),
            decay=("constant", "linear"),
            normalise=("steps", "batch"),
            teacher=TEACHERS,
            dagger_teacher=TEACHERS,
            supervision=SUPERVISIONS,
            reward=REWARDS,
            comments=COMMENTS,
        )
        if self.method == "dagger" and self.dagger_teacher != "shortest":
            raise ConfigError(
                f"dagger_teacher '{self.dagger_teacher}': knows no way back to the reference path, which "
                "sampled walks leave; expected shortest"
            )

    def rate_at(self, iteration: int) -> float:
        """The learning rate of an iteration, counted from 0."""
        rate = self.learning_rate
        if self.decay == "linear":
            rate *= 1 - iteration / self.iterations
        return rate * min(1.0, (iteration + 1) / (self.warm_up + 1))

    def method_at(self, iteration: int) -> Method:
        """What an iteration consists of."""
        return "imitation" if iteration < self.imitation_first else self.method


@dataclass(frozen=True, kw_only=True)
class Validation:
    """When, where and how a run is validated, and what counts as best."""

    every: int = 2000
    first: bool = False
    """Whether before training, too."""
    splits: tuple[str, ...] = ("val_seen", "val_unseen")
    limit: int = 0
    """At most so many episodes of each split, spread evenly over it; 0: all of them. Of tours about so many,
    the beginning of each."""
    memory: str = "cold"
    """The protocol of an agent with a memory; without one it is always `none`. `leaking` is what the released
    code does: validations share the memory of training, and keep what they add to it (spec C.6)."""
    tours: str = ""
    """A file of tours that episodes follow; by default, where the protocol is `tour`, that of the data
    folder. Agents without a memory follow them, too."""
    oracle_phases: bool = False
    """Whether the ways to an episode's goal and to the next start are remembered on tours."""
    best: Literal["sr+spl", "spl", "gp", "t_sr+t_spl"] = "sr+spl"
    """By which score the best weights are chosen; of equals the latest (spec E.9)."""
    best_split: str = "val_unseen"

    def __post_init__(self) -> None:
        if self.every < 1 or self.limit < 0:
            raise ConfigError(f"every {self.every}, limit {self.limit}: expected at least 1, and 0 or more")
        allowed = (*(each for each in PROTOCOLS if each not in ("none", "warm")), "leaking")
        _require_one_of(self, memory=allowed, best=("sr+spl", "spl", "gp", "t_sr+t_spl"))
        if not self.follows_tours and (self.oracle_phases or self.best == "t_sr+t_spl"):
            what = "oracle_phases" if self.oracle_phases else f"best '{self.best}'"
            raise ConfigError(
                f"{what}: there are no tours; expected memory 'tour', or a file of tours: "
                "--validation.memory tour, --validation.tours FILE"
            )
        if self.splits and self.best_split not in self.splits:
            raise ConfigError(
                f"best_split '{self.best_split}': expected one of the splits, {', '.join(self.splits)}"
            )

    @property
    def follows_tours(self) -> bool:
        """Whether episodes are lived in the order of tours."""
        return self.memory == "tour" or bool(self.tours)


def _require_one_of(config: object, **allowed: Iterable[str]) -> None:
    """Raise `ConfigError` for a field with a value that is not allowed."""
    for name, values in allowed.items():
        if (value := getattr(config, name)) not in (known := tuple(values)):
            raise ConfigError(f"{name} '{value}': expected one of {', '.join(known)}")
