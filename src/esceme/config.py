"""`Experiment`: a navigator, its data and its training as a tree of frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from esceme.errors import ConfigError
from esceme.evaluation.context import SCRIPTED
from esceme.learning import TrainingConfig, ValidationConfig
from esceme.runs import NavigatorConfig, as_json, flatten, from_json
from esceme.settings import Count, Seed, Size, check_settings

__all__ = ["Experiment", "as_json", "flatten", "from_json", "with_iterations"]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that determines the trained weights, except the data.

    Change an experiment with `dataclasses.replace`. Write it with `as_json` and read it with `from_json`.
    Feature width and vocabulary size of `navigator` are set when the data are read.
    """

    about: str = ""
    """Description in one line."""
    differences: tuple[str, ...] = ()
    """Differences between the paper and the released script, and which of the two this experiment follows."""
    navigator: NavigatorConfig = NavigatorConfig()
    training: TrainingConfig = TrainingConfig()
    validation: ValidationConfig = ValidationConfig()
    features: str = ""
    """Name or path of the feature file. If empty, the data folder must contain exactly one feature file."""
    feature_width: Size | None = None
    """Number of features per view that the navigator reads; None for all features in the file."""
    text: Literal["encoded", "words"] = "encoded"
    """Source of the token ids of instructions. `encoded`: stored in the annotations, or made by the data
    folder's WordPiece vocabulary. `words`: made by a vocabulary built from the training split."""
    min_word_count: Size = 3
    """Minimum number of occurrences of a word in a vocabulary that is built from the training split."""
    vocabulary_size: Size | None = None
    """Number of token ids that the agent embeds; None for the size of the vocabulary in use."""
    word_vectors: tuple[str, ...] = ()
    """Path prefixes of word vector files (PREFIX_vocab.txt, PREFIX_glove.npy) in the data folder, which
    initialise the grounding head; empty for random initialisation."""
    hold_out: Count = 0
    """Number of training scenes that are excluded from training and form the validation split `held_out`."""
    start: str = ""
    """Run folder with the weights from which training starts; empty for random weights. Parameters that the
    run does not have are random."""
    seed: Seed = 0
    """Seed of initialisation, batches, sampled actions and dropout."""

    def __post_init__(self) -> None:
        check_settings(self)
        navigator = self.navigator
        if navigator.agent_name in SCRIPTED:
            raise ConfigError(f"agent '{navigator.agent_name}' is scripted and cannot be trained")
        limits = navigator.agent.limits
        for name, option, length, size in (
            ("max_steps", "max-steps", navigator.max_steps, limits.max_steps),
            ("max_tokens", "positions", navigator.max_tokens, limits.max_tokens),
        ):
            if size is not None and length > size:
                raise ConfigError(
                    f"{name} {length}: the agent has only {size} embeddings for them; "
                    f"give --agent.{option} {length}"
                )


def with_iterations(experiment: Experiment, iterations: int) -> Experiment:
    """Return a copy of an experiment with another number of iterations.

    Warm-up, checkpoint and validation intervals are scaled in proportion.
    """
    training, validation = experiment.training, experiment.validation

    def scale(count: int, *, minimum: int = 0) -> int:
        return max(minimum, round(count * iterations / training.iterations))

    scaled = replace(
        training,
        iterations=iterations,
        imitation_warmup_iterations=scale(training.imitation_warmup_iterations),
        reader_warmup_iterations=scale(training.reader_warmup_iterations),
        warmup_iterations=scale(training.warmup_iterations),
        checkpoint_every=scale(training.checkpoint_every, minimum=1),
    )
    validation = replace(validation, every=scale(validation.every, minimum=1))
    return replace(experiment, training=scaled, validation=validation)
