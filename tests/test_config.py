"""Experiments: refused values, and the JSON form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from esceme.agents import HamtConfig, Seq2SeqConfig, StopConfig
from esceme.config import Experiment, as_json, flatten, from_json
from esceme.errors import ConfigError
from esceme.learning import MemoryDropout, TrainingConfig, ValidationConfig
from esceme.memory import CandidateEnhancingConfig
from esceme.runs import NavigatorConfig

WITH_MEMORY = Experiment(
    differences=("a", "b"),
    navigator=NavigatorConfig(reader=CandidateEnhancingConfig(pooling="mean")),
    training=TrainingConfig(memory_dropout=MemoryDropout(mode="sampled")),
    validation=ValidationConfig(splits=("val_unseen",)),
)


def navigator(**values: Any) -> Experiment:
    return Experiment(navigator=NavigatorConfig(**values))


def agent(**values: Any) -> Experiment:
    return navigator(agent=HamtConfig(**values))


NAN, INF = float("nan"), float("inf")
ABOVE_0, AT_LEAST_0, AT_LEAST_1 = "expected a number above 0", "expected 0 or more", "expected at least 1"
FRACTION, PROBABILITY = "expected 0 <= value < 1", "expected a number from 0 to 1"


@pytest.mark.parametrize(
    ("make", "name", "value", "expected"),
    [
        (TrainingConfig, "batch", 0, AT_LEAST_1),
        (TrainingConfig, "iterations", 0, AT_LEAST_1),
        (TrainingConfig, "learning_rate", 0.0, ABOVE_0),
        (TrainingConfig, "learning_rate", NAN, ABOVE_0),
        (TrainingConfig, "discount", 1.1, PROBABILITY),
        (TrainingConfig, "weight_decay", INF, AT_LEAST_0),
        (TrainingConfig, "entropy_weight", INF, AT_LEAST_0),
        (TrainingConfig, "imitation_weight", NAN, AT_LEAST_0),
        (TrainingConfig, "oracle_weight", -0.1, AT_LEAST_0),
        (MemoryDropout, "reset_after", 0, "expected at least 1 episode"),
        (MemoryDropout, "forget_probability", 1.5, PROBABILITY),
        (MemoryDropout, "full_probability", -0.1, PROBABILITY),
        (MemoryDropout, "empty_probability", NAN, PROBABILITY),
        (Experiment, "hold_out", -1, "expected at least 0"),
        (Experiment, "min_word_count", 0, AT_LEAST_1),
        (Experiment, "feature_width", 0, AT_LEAST_1),
        (Experiment, "vocabulary_size", 0, AT_LEAST_1),
        (Experiment, "seed", -1, "expected at least 0"),
        (Experiment, "seed", 2**63, "expected a number below 2 ** 63"),
        (navigator, "feature_dropout", 1.0, FRACTION),
        (navigator, "max_tokens", 0, AT_LEAST_1),
        (agent, "dropout", 1.5, FRACTION),
        (agent, "attention_dropout", -1.0, FRACTION),
        (agent, "critic_dropout", NAN, FRACTION),
    ],
)
def test_number_out_of_range_is_refused(
    make: Callable[..., object], name: str, value: float, expected: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        make(**{name: value})
    assert str(refused.value) == f"{name}: {expected}, found {value}"


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (TrainingConfig, {"teacher": "x"}, "teacher 'x': expected one of time, location, shortest"),
        (TrainingConfig, {"oracle": "x"}, "oracle 'x': expected one of path, goal"),
        (TrainingConfig, {"method": "dagger", "dagger_teacher": "time"}, "dagger_teacher 'time': "),
        (MemoryDropout, {"mode": "x"}, "mode 'x': expected one of as-released, reset, forgetting, sampled"),
        (
            MemoryDropout,
            {"full_probability": 0.8, "empty_probability": 0.4},
            "full_probability 0.8 and empty_probability 0.4: expected a sum of at most 1",
        ),
        (ValidationConfig, {"memory": "warm"}, "memory 'warm': expected one of cold, two-pass, "),
        (ValidationConfig, {"every": 0}, "every 0, limit 0: expected at least 1, and 0 or more"),
        (ValidationConfig, {"splits": ("val_seen",)}, "best_split 'val_unseen': expected one of the splits"),
        (navigator, {"max_steps": 51}, "max_steps 51: the agent has only 50 embeddings for them; "),
        (navigator, {"max_tokens": 600}, "max_tokens 600: the agent has only 512 embeddings for them; "),
        (navigator, {"agent": StopConfig()}, "agent 'stop' is scripted and cannot be trained"),
        (
            navigator,
            {"agent": CandidateEnhancingConfig()},
            "CandidateEnhancingConfig is the Config of none ",
        ),
        (agent, {"hidden": 100}, "hidden 100 "),
        (agent, {"grounding": -1}, "grounding: "),
    ],
)
def test_invalid_settings_are_refused(
    make: Callable[..., object], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        make(**values)
    assert str(refused.value).startswith(message)


def test_agent_needs_an_embedding_for_every_decision() -> None:
    assert navigator(max_steps=50).navigator.max_steps == 50
    assert navigator(max_steps=51, agent=HamtConfig(max_steps=51)).navigator.max_steps == 51
    assert navigator(max_steps=999, agent=Seq2SeqConfig()).navigator.max_steps == 999  # recurrent


# -- JSON ------------------------------------------------------------------------------------------------


def test_experiment_survives_json() -> None:
    stored = as_json(WITH_MEMORY)
    assert from_json(stored, Experiment) == WITH_MEMORY
    assert as_json(from_json(stored, Experiment)) == stored
    assert stored["validation"]["splits"] == ["val_unseen"]
    assert stored["navigator"]["reader"]["name"] == "candidate-enhancing"


def test_missing_fields_take_their_defaults() -> None:
    assert from_json({}, Experiment) == Experiment()
    stored = as_json(WITH_MEMORY)
    del stored["navigator"]["reader"]["order"], stored["training"]["batch"]
    assert from_json(stored, Experiment) == WITH_MEMORY


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": "one"}, "seed: Expected `int`, got `str`"),
        ({"training": {"batch": 2.5}}, "training.batch: Expected `int`, got `float`"),
        ({"training": {"bacth": 2}}, "unknown field 'training.bacth'; expected one of method, "),
        ({"training": 3}, "training: expected an object, found 3"),
        ({"navigator": {"keep": "middle"}}, "navigator.keep: Invalid enum value 'middle'"),
        ({"navigator": {"agent": {"name": "hmat"}}}, "no agent 'hmat'; expected one of hamt, "),
    ],
)
def test_malformed_json_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_json({**as_json(Experiment()), **change}, Experiment)
    assert str(refused.value).startswith(message)


def test_flatten_joins_names_with_dots() -> None:
    flat = flatten(as_json(replace(WITH_MEMORY, seed=3)))
    assert flat["navigator.reader.pooling"] == "mean" and flat["seed"] == 3
    assert flat["training.memory_dropout.mode"] == "sampled"
