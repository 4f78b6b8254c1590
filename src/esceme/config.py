"""An experiment: a navigator, its data and its training as one tree of frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from esceme.errors import ConfigError
from esceme.evaluation.context import SCRIPTED
from esceme.learning import TrainingConfig, ValidationConfig
from esceme.runs import NavigatorConfig, as_json, flatten, from_json, require_fraction

__all__ = ["Experiment", "as_json", "flatten", "from_json"]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that determines the trained weights, except the data itself.

    Change it with `dataclasses.replace`; write it with `as_json` and read it with `from_json`. The sizes of
    `navigator` that depend on the data are set when the data is read: feature width and vocabulary.
    """

    about: str = ""
    """One-line description."""
    differences: tuple[str, ...] = ()
    """Where the paper and the released script disagree, and which of them this experiment follows."""
    navigator: NavigatorConfig = NavigatorConfig()
    training: TrainingConfig = TrainingConfig()
    validation: ValidationConfig = ValidationConfig()
    features: str = ""
    """Name or path of the feature file; if empty, the data folder must have exactly one."""
    feature_width: int | None = None
    """Features per view that the navigator reads; None for all features of the file."""
    text: Literal["encoded", "words"] = "encoded"
    """Token ids of instructions: stored in the annotations or made by the data folder's WordPiece vocabulary
    (`encoded`), or made by a vocabulary built from the training split (`words`)."""
    min_word_count: int = 3
    """Occurrences that a word needs to enter a vocabulary built from the training split."""
    vocabulary_size: int | None = None
    """Token ids that the agent embeds; None: the size of the vocabulary in use."""
    word_vectors: tuple[str, ...] = ()
    """Prefixes of PREFIX_vocab.txt and PREFIX_glove.npy below the data folder that initialise a grounding
    head; empty: random initialisation."""
    hold_out: int = 0
    """Number of training scenes that are not trained on and become the validation split `held_out`."""
    start: str = ""
    """A run folder whose weights training starts from; parameters that it lacks are random."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a value out of range or an agent that cannot be trained."""
        for name, least in (("min_word_count", 1), ("hold_out", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}: expected at least {least}, found {getattr(self, name)}")
        for name in ("feature_width", "vocabulary_size"):
            if (size := getattr(self, name)) is not None and size < 1:
                raise ConfigError(f"{name}: expected at least 1, found {size}")
        if self.seed >= 2**63:
            raise ConfigError(f"seed: expected a number below 2 ** 63, found {self.seed}")
        navigator = self.navigator
        if navigator.agent_name in SCRIPTED:
            raise ConfigError(f"agent '{navigator.agent_name}' is scripted and cannot be trained")
        for field in fields(navigator.agent):
            value = getattr(navigator.agent, field.name)
            if field.name.endswith("dropout") and value is not None:
                require_fraction(field.name, value)
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
