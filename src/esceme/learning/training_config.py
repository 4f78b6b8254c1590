"""Settings of training and validation; defaults are those of the released scripts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

from esceme.errors import ConfigError
from esceme.evaluation.protocol import PROTOCOLS
from esceme.learning.memory_dropout import MemoryDropout
from esceme.learning.reinforcement import REWARDS
from esceme.learning.teachers import ORACLES, SUPERVISIONS, TEACHERS

Method = Literal["imitation", "imitation+a2c", "dagger"]
"""What an iteration consists of.

- `imitation`: a batch of teacher rollouts.
- `imitation+a2c`: a batch of teacher rollouts, and another of sampled rollouts trained by A2C (spec E.1).
- `dagger`: a batch of sampled rollouts, every step labelled with the action of `dagger_teacher`.
"""
Schedule = Literal["constant", "linear"]
Normalise = Literal["steps", "batch"]
Criterion = Literal["sr+spl", "spl", "gp", "t_sr+t_spl"]


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of the optimisation."""

    method: Method = "imitation+a2c"
    iterations: int = 100_000
    imitation_warmup_iterations: int = 0
    """Number of initial iterations that use imitation only, whatever the method."""
    batch: int = 8
    """Batch size in episodes, over all processes."""
    learning_rate: float = 1e-5
    lr_schedule: Schedule = "constant"
    """Schedule of the learning rate: constant, or linear to 0 at the last iteration."""
    warmup_iterations: int = 0
    """Number of iterations in which the learning rate rises linearly from 0."""
    weight_decay: float = 0.01
    """Applies to every parameter with a gradient, biases and layer norms included (spec E.7)."""
    max_grad_norm: float = 40.0
    """Maximum gradient norm of the network; the critic's gradient is not clipped (spec E.1)."""
    imitation_weight: float = 0.2
    """Weight of the imitation loss beside A2C; without A2C the weight is 1."""
    discount: float = 0.9
    entropy_weight: float = 0.01
    oracle_weight: float = 0.0
    """Weight of the cross-entropy of the oracle's actions in sampled rollouts, beside A2C (spec D.7)."""
    oracle: str = "path"
    """What the oracle prefers: the choice furthest along the reference path, or nearest to the goal."""
    normalise: Normalise = "steps"
    """Divisor of the summed A2C loss: number of steps or batch size."""
    scale_by_batch: bool = False
    """Whether the A2C loss is multiplied by the batch size; the released CVDN code does this by accident
    (spec E.6)."""
    teacher: str = "time"
    """Teacher of imitation."""
    dagger_teacher: str = "shortest"
    supervision: str = "annotated"
    """The path that is taught."""
    reward: str = "path"
    augmentation: str = ""
    """A task whose train split alternates with the task's own by iteration; none by default."""
    memory_dropout: MemoryDropout = field(default_factory=MemoryDropout)
    checkpoint_every: int = 500

    def __post_init__(self) -> None:
        for name in ("iterations", "batch", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, found {getattr(self, name)}")
        weights = ("weight_decay", "imitation_weight", "entropy_weight", "oracle_weight")
        for name in ("imitation_warmup_iterations", "warmup_iterations", *weights):
            if not 0 <= getattr(self, name) < 1e31:
                raise ConfigError(f"{name}: expected 0 or more, found {getattr(self, name)}")
        for name in ("learning_rate", "max_grad_norm"):
            if not 0 < getattr(self, name) < 1e31:
                raise ConfigError(f"{name}: expected a number above 0, found {getattr(self, name)}")
        if not 0 <= self.discount <= 1:
            raise ConfigError(f"discount: expected a number from 0 to 1, found {self.discount}")
        _require_one_of(
            self,
            method=get_args(Method),
            lr_schedule=get_args(Schedule),
            normalise=get_args(Normalise),
            teacher=TEACHERS,
            dagger_teacher=TEACHERS,
            supervision=SUPERVISIONS,
            reward=REWARDS,
            oracle=ORACLES,
        )
        if self.method == "dagger" and self.dagger_teacher != "shortest":
            raise ConfigError(
                f"dagger_teacher '{self.dagger_teacher}': has no label off the reference path, which sampled "
                "rollouts leave; expected shortest"
            )

    def learning_rate_at(self, iteration: int) -> float:
        """Return the learning rate of an iteration, counted from 0."""
        rate = self.learning_rate
        if self.lr_schedule == "linear":
            rate *= 1 - iteration / self.iterations
        return rate * min(1.0, (iteration + 1) / (self.warmup_iterations + 1))

    def method_at(self, iteration: int) -> Method:
        """Return the method of an iteration, counted from 0."""
        return "imitation" if iteration < self.imitation_warmup_iterations else self.method


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """Settings of validation and of the selection of the best weights."""

    every: int = 2000
    """Number of iterations between validations."""
    before_training: bool = False
    """Whether to validate before training as well."""
    splits: tuple[str, ...] = ("val_seen", "val_unseen")
    limit: int = 0
    """Maximum number of episodes per split, spaced evenly; 0: all. Of tours, about as many episodes, from the
    beginning of each."""
    memory: str = "cold"
    """Memory protocol; an agent without memory uses `none`. `leaking` is the behaviour of the released code:
    validation reads the memory of training and adds to it (spec C.6)."""
    tours: str = ""
    """File of tours whose order the episodes follow; by default, for the protocol `tour`, that of the data
    folder. It applies to agents without memory as well."""
    oracle_phases: bool = False
    """Whether memory includes the oracle's path to the goal and to the next start between episodes of a
    tour."""
    best: Criterion = "sr+spl"
    """Score, or sum of scores, that selects the best weights; of equal ones the latest (spec E.9)."""
    best_split: str = "val_unseen"

    def __post_init__(self) -> None:
        if self.every < 1 or self.limit < 0:
            raise ConfigError(f"every {self.every}, limit {self.limit}: expected at least 1, and 0 or more")
        protocols = (*(protocol for protocol in PROTOCOLS if protocol not in ("none", "warm")), "leaking")
        _require_one_of(self, memory=protocols, best=get_args(Criterion))
        if not self.follows_tours and (self.oracle_phases or self.best == "t_sr+t_spl"):
            option = "oracle_phases" if self.oracle_phases else f"best '{self.best}'"
            raise ConfigError(
                f"{option}: there are no tours; expected memory 'tour', or a file of tours: "
                "--validation.memory tour, --validation.tours FILE"
            )
        if self.splits and self.best_split not in self.splits:
            raise ConfigError(
                f"best_split '{self.best_split}': expected one of the splits, {', '.join(self.splits)}"
            )

    @property
    def follows_tours(self) -> bool:
        """Whether episodes follow the order of tours."""
        return self.memory == "tour" or bool(self.tours)


def _require_one_of(config: object, **allowed: Iterable[str]) -> None:
    """Raise `ConfigError` for a field with a value that is not allowed."""
    for name, values in allowed.items():
        if (value := getattr(config, name)) not in (choices := tuple(values)):
            raise ConfigError(f"{name} '{value}': expected one of {', '.join(choices)}")
