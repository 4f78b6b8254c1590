"""Settings of training and validation; defaults are those of the released scripts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from esceme.errors import ConfigError, check_choices
from esceme.learning.memory_dropout import MemoryDropout
from esceme.learning.reinforcement import RewardName
from esceme.learning.teachers import OracleName, SupervisionName, TeacherName

Method = Literal["imitation", "imitation+a2c", "dagger"]
"""Rollouts and losses of an iteration.

- `imitation`: a batch of teacher rollouts.
- `imitation+a2c`: a batch of teacher rollouts, and one of sampled rollouts for A2C (docs/spec.md E.1).
- `dagger`: a batch of sampled rollouts, every step labelled with the action of `dagger_teacher`.
"""
Schedule = Literal["constant", "linear"]
Normalise = Literal["steps", "batch"]
Criterion = Literal["sr+spl", "spl", "gp", "t_sr+t_spl"]
ValidationMemory = Literal["cold", "two-pass", "episodic", "tour", "masked", "oracle", "leaking"]
"""Memory protocols of validation: those of evaluation (except `none` and `warm`), and `leaking`."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of the optimisation."""

    method: Method = "imitation+a2c"
    """Rollouts and losses of an iteration: imitation of a teacher, imitation and A2C, or DAgger."""
    iterations: int = 100_000
    """Number of training iterations; each updates the weights once."""
    imitation_warmup_iterations: int = 0
    """Number of initial iterations that use imitation only, whatever the method."""
    batch: int = 8
    """Batch size in episodes, over all processes."""
    learning_rate: float = 1e-5
    """Learning rate of AdamW, before the schedule and the warm-up apply."""
    lr_schedule: Schedule = "constant"
    """Schedule of the learning rate: constant, or linear to 0 at the last iteration."""
    warmup_iterations: int = 0
    """Number of iterations in which the learning rate rises linearly from 0."""
    weight_decay: float = 0.01
    """Applies to every parameter with a gradient, biases and layer norms included (docs/spec.md E.7)."""
    max_grad_norm: float = 40.0
    """Maximum gradient norm of the network; the critic's gradient is not clipped (docs/spec.md E.1)."""
    imitation_weight: float = 0.2
    """Weight of the imitation loss with method `imitation+a2c`; with other methods the weight is 1."""
    discount: float = 0.9
    """Discount of later rewards in A2C, per step."""
    entropy_weight: float = 0.01
    """Weight of the policy's entropy in the A2C loss; a larger weight gives more random actions."""
    oracle_weight: float = 0.0
    """Weight of the cross-entropy of the oracle's actions, added to the A2C loss (docs/spec.md D.7)."""
    oracle: OracleName = "path"
    """Action that the oracle prefers: the one furthest along the reference path, or nearest to the goal."""
    normalise: Normalise = "steps"
    """Divisor of the summed A2C loss: number of steps or batch size."""
    scale_by_batch: bool = False
    """Whether the A2C loss is multiplied by the batch size; the released CVDN code does this by accident
    (docs/spec.md E.6)."""
    teacher: TeacherName = "time"
    """Teacher of imitation: it follows the reference path by step number (`time`) or from the current
    viewpoint (`location`), or takes the shortest path to a goal."""
    dagger_teacher: TeacherName = "shortest"
    """Teacher that labels the sampled rollouts of DAgger; only `shortest` has a label at every viewpoint."""
    supervision: SupervisionName = "annotated"
    """Path that imitation teaches: the annotated one, the shortest one to a goal, or for dialogs the player's
    or the shortest one at random."""
    reward: RewardName = "path"
    """Reward of A2C: progress and fidelity to the reference path, or progress to the nearest goal (CVDN)."""
    augmentation: str = ""
    """A task whose train split is used in every other iteration; empty: none."""
    memory_dropout: MemoryDropout = field(default_factory=MemoryDropout)
    """Part of the scene memory that is visible in training."""
    checkpoint_every: int = 500
    """Number of iterations between checkpoints from which an interrupted run resumes."""

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
        check_choices(self)
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
    """Splits to validate on; none: no validation."""
    limit: int = 0
    """Maximum number of episodes per split, spaced evenly; 0: all. With tours, about as many episodes, from
    the beginning of each tour."""
    memory: ValidationMemory = "cold"
    """Memory protocol; has no effect for an agent without memory. `leaking` is the behaviour of the released
    code: validation reads the memory of training and adds to it (docs/spec.md C.6)."""
    tours: str = ""
    """File of tours whose order the episodes follow, also for agents without memory. Empty: the data folder's
    tours with the protocol `tour`, no tours with other protocols."""
    oracle_phases: bool = False
    """Whether memory includes the oracle's path to the goal and to the next start between episodes of a
    tour."""
    best: Criterion = "sr+spl"
    """Score, or sum of scores, that selects the best weights; the latest in a tie (docs/spec.md E.9)."""
    best_split: str = "val_unseen"
    """Split whose score selects the best weights."""

    def __post_init__(self) -> None:
        if self.every < 1 or self.limit < 0:
            raise ConfigError(f"every {self.every}, limit {self.limit}: expected at least 1, and 0 or more")
        check_choices(self)
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
