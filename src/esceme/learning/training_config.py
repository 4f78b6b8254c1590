"""Settings of training and validation. The defaults are those of the released training scripts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from esceme.errors import ConfigError
from esceme.learning.memory_dropout import MemoryDropout
from esceme.learning.reinforcement import RewardName
from esceme.learning.teachers import OracleName, SupervisionName, TeacherName
from esceme.settings import Count, NonNegative, Positive, Probability, Size, check_settings

Method = Literal["imitation", "imitation+a2c", "imitation+dagger", "dagger"]
"""Rollouts and losses of one training iteration.

- `imitation`: a batch of rollouts that follow the teacher.
- `imitation+a2c`: a batch of rollouts that follow the teacher, and one of sampled rollouts for A2C
  (docs/spec.md E.1).
- `imitation+dagger`: a batch of rollouts that follow the teacher, and one of sampled rollouts, every step
  labelled with the action of `oracle` among all actions (docs/spec.md I.7). Sampled rollouts end at the
  goal.
- `dagger`: a batch of sampled rollouts, every step labelled with the action of `dagger_teacher`.
"""
Schedule = Literal["constant", "linear"]
Normalise = Literal["steps", "batch"]
Criterion = Literal["sr+spl", "spl", "gp", "t_sr+t_spl"]
ValidationMemory = Literal["cold", "two-pass", "episodic", "tour", "masked", "oracle", "leaking"]
"""Memory protocols of validation: those of evaluation, without `none` and `warm`, and `leaking`."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of training: rollouts, losses and optimizer."""

    method: Method = "imitation+a2c"
    """Rollouts and losses of an iteration: imitation of a teacher, alone or with sampled rollouts that learn
    by A2C or from an oracle (DAgger), or DAgger with a teacher."""
    iterations: Size = 100_000
    """Number of training iterations. Each iteration updates the weights once."""
    imitation_warmup_iterations: Count = 0
    """Number of iterations at the start that use imitation only, whatever `method` is."""
    reader_warmup_iterations: Count = 0
    """Number of iterations at the start that train only the reader; the agent's weights do not change."""
    batch: Annotated[int, Meta(ge=1, le=1_000_000)] = 8
    """Number of episodes per batch, summed over all processes."""
    learning_rate: Positive = 1e-5
    """Learning rate of AdamW, before schedule and warm-up are applied."""
    lr_schedule: Schedule = "constant"
    """Schedule of the learning rate: constant, or linear decay to 0 at the last iteration."""
    warmup_iterations: Count = 0
    """Number of iterations at the start in which the learning rate rises linearly from 0."""
    weight_decay: NonNegative = 0.01
    """Weight decay of AdamW; also applies to biases and layer norms (docs/spec.md E.7)."""
    max_grad_norm: Positive = 40.0
    """Norm to which gradients are clipped; those of the critic are not clipped (docs/spec.md E.1)."""
    imitation_weight: NonNegative = 0.2
    """Weight of the imitation loss if `method` adds sampled rollouts. Other methods use weight 1."""
    discount: Probability = 0.9
    """Discount factor per step of later rewards in A2C."""
    entropy_weight: NonNegative = 0.01
    """Weight of the policy's entropy in the A2C loss. A larger weight favours more random actions."""
    oracle_weight: NonNegative = 0.0
    """Weight of the cross-entropy of the oracle's actions in sampled rollouts: an additional loss of A2C
    (docs/spec.md D.7), 0 for none, and the only loss of `imitation+dagger`."""
    oracle: OracleName = "path"
    """Action that the oracle prefers: `path` the one leading furthest along the reference path, `goal` the
    one leading nearest to the goal, `shortest` the one on the shortest way to the goal, `ndtw` the one after
    which the path has the highest nDTW."""
    normalise: Normalise = "steps"
    """Divisor of the A2C loss, which is summed over steps: number of steps or batch size."""
    scale_by_batch: bool = False
    """Whether to multiply the A2C loss by the batch size, as released for CVDN (docs/spec.md E.6)."""
    teacher: TeacherName = "time"
    """Teacher of imitation: follow the reference path by step number (`time`) or by current viewpoint
    (`location`), or take the shortest path to a goal (`shortest`)."""
    dagger_teacher: TeacherName = "shortest"
    """Teacher that labels the sampled rollouts of DAgger. Only `shortest` has a label at every viewpoint."""
    supervision: SupervisionName = "annotated"
    """Path that imitation teaches: the annotated path, the shortest path to a goal, or for dialogs (CVDN) at
    random either the player's path or the shortest path."""
    reward: RewardName = "path"
    """Reward of A2C: `path` for progress and fidelity to the reference path, `goal` for progress towards the
    nearest goal (CVDN)."""
    augmentation: str = ""
    """Second task, whose train split is used in every other iteration; empty for none."""
    memory_dropout: MemoryDropout = field(default_factory=MemoryDropout)
    """Settings that determine which part of the scene memory an agent sees in training."""
    checkpoint_every: Size = 500
    """Number of iterations between checkpoints. An interrupted run resumes from the last checkpoint."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.method == "dagger" and self.dagger_teacher != "shortest":
            raise ConfigError(
                f"dagger_teacher '{self.dagger_teacher}': has no label off the reference path, which sampled "
                "rollouts leave; expected shortest"
            )

        if self.method == "imitation+dagger" and not self.oracle_weight:
            raise ConfigError(
                "oracle_weight 0: sampled rollouts of 'imitation+dagger' learn from the oracle only; "
                "expected a positive weight, such as 1"
            )

    def learning_rate_at(self, iteration: int) -> float:
        """Return the learning rate of an iteration, counted from 0."""
        rate = self.learning_rate
        if self.lr_schedule == "linear":
            rate *= 1 - iteration / self.iterations
        return rate * min(1.0, (iteration + 1) / (self.warmup_iterations + 1))

    def method_at(self, iteration: int) -> Method:
        """Return the method of an iteration, counted from 0, considering `imitation_warmup_iterations`."""
        return "imitation" if iteration < self.imitation_warmup_iterations else self.method


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """Settings of validation during training and of the selection of the best weights."""

    every: Size = 2000
    """Number of iterations between validations."""
    before_training: bool = False
    """Whether to validate also before the first iteration."""
    splits: tuple[str, ...] = ("val_seen", "val_unseen")
    """Splits on which to validate; empty for no validation."""
    limit: Count = 0
    """Maximum number of episodes per split, chosen at equal intervals; 0 for all. With tours, every tour is
    cut after its first episodes, to about this number in total."""
    memory: ValidationMemory = "cold"
    """Memory protocol of validation. It has no effect for an agent without memory. With `leaking`, as in the
    released code, validation reads the memory of training and adds to it (docs/spec.md C.6)."""
    tours: str = ""
    """File of tours, which give the order of the episodes, also for agents without memory. If empty, the
    protocol `tour` uses the tours of the data folder, and other protocols use no tours."""
    oracle_phases: bool = False
    """Whether the memory also receives, between episodes of a tour, the path that an oracle would take to the
    goal and to the next start."""
    best: Criterion = "sr+spl"
    """Metric, or sum of two metrics, that selects the best weights (docs/spec.md E.9). In a tie, the latest
    weights are selected."""
    best_split: str = "val_unseen"
    """Split whose metrics select the best weights."""

    def __post_init__(self) -> None:
        check_settings(self)
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
        """Whether the order of episodes is that of tours."""
        return self.memory == "tour" or bool(self.tours)
