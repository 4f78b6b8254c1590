"""Experiments: refused values, and the JSON form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Literal, get_origin, get_type_hints

import pytest

from esceme.agents import AGENTS, HamtConfig, Seq2SeqConfig, StopConfig, TdstpConfig
from esceme.config import Experiment, as_json, flatten, from_json
from esceme.errors import ConfigError
from esceme.learning import MemoryDropout, TrainingConfig, ValidationConfig
from esceme.memory import READERS, CandidateEnhancingConfig, CombinedReaderConfig, GraphEncodingConfig
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


PART_CONFIGS = [part.Config for parts in (AGENTS, READERS) for part in parts.values()]
CONFIGS = [TrainingConfig, MemoryDropout, ValidationConfig, Experiment, NavigatorConfig, *PART_CONFIGS]


@pytest.mark.parametrize("config", CONFIGS)
def test_every_setting_has_a_type_and_bounds(config: type[Any]) -> None:
    types = get_type_hints(config)
    for field in fields(config):
        value = field.default
        wrong: list[object]
        if get_origin(types[field.name]) is Literal:
            wrong = ["nonsense", None]
        elif isinstance(value, bool):
            wrong = [1, "yes"]
        elif isinstance(value, int):
            wrong = [-(2**62), 1.5, True]
        elif isinstance(value, float):
            wrong = [float("nan"), float("inf"), -5.0, True]
        else:
            continue
        for other in wrong:
            with pytest.raises(ConfigError, match=f"^{field.name}: expected .*, found {other!r}$"):
                config(**{field.name: other})


@pytest.mark.parametrize(
    ("config", "name", "value", "expected"),
    [
        (TrainingConfig, "batch", 0, "at least 1"),
        (TrainingConfig, "batch", 2**40, "at most 1000000"),
        (TrainingConfig, "warmup_iterations", -1, "at least 0"),
        (TrainingConfig, "learning_rate", 0.0, "a number above 0"),
        (TrainingConfig, "discount", 1.1, "at most 1"),
        (TrainingConfig, "entropy_weight", float("inf"), "at most 1e+31"),
        (MemoryDropout, "full_probability", -0.1, "at least 0"),
        (Experiment, "feature_width", 0, "at least 1"),
        (Experiment, "vocabulary_size", 0, "at least 1"),
        (Experiment, "seed", 2**63, f"at most {2**63 - 1}"),
        (HamtConfig, "dropout", 7, "a number below 1"),
        (HamtConfig, "attention_dropout", -1.0, "at least 0"),
        (HamtConfig, "clause_ends", (3, -1), "at least 0"),
        (TdstpConfig, "grid", 2**20, "at most 100"),
        (CandidateEnhancingConfig, "hidden", 0, "at least 1"),
        (GraphEncodingConfig, "width", 1, "at least 2"),
        (GraphEncodingConfig, "hops", 10**9, "at most 1000"),
        (CombinedReaderConfig, "width", 1, "at least 2"),
    ],
)
def test_number_out_of_range_is_refused(config: type[Any], name: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config(**{name: value})
    assert str(refused.value) == f"{name}: expected {expected}, found {value!r}"


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (TrainingConfig, {"teacher": "x"}, "teacher: expected one of time, location, shortest, found 'x'"),
        (TrainingConfig, {"method": "dagger", "dagger_teacher": "time"}, "dagger_teacher 'time': "),
        (
            MemoryDropout,
            {"full_probability": 0.8, "empty_probability": 0.4},
            "full_probability 0.8 and empty_probability 0.4: expected a sum of at most 1",
        ),
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
        (Seq2SeqConfig, {"hidden": 15}, "hidden: expected an even number, half per direction, found 15"),
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


def test_missing_fields_are_named() -> None:
    stored = as_json(WITH_MEMORY)
    del stored["seed"], stored["hold_out"]
    with pytest.raises(ConfigError, match=r"missing: hold_out, seed$"):
        from_json(stored, Experiment)
    stored = as_json(WITH_MEMORY)
    del stored["navigator"]["reader"]["order"]
    with pytest.raises(ConfigError, match=r"missing: navigator.reader.order$"):
        from_json(stored, Experiment)


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
