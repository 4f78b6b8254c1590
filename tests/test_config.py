"""Experiments: fields set by what a person writes, values that are refused, and what is stored of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from esceme.config import (
    Experiment,
    as_json,
    did_you_mean,
    from_json,
    settable,
    value_of,
    with_settings,
)
from esceme.errors import ConfigError
from esceme.learning import MemoryDropout, Training, Validation

REMEMBERING = Experiment(reader="candidate-enhancing", reader_settings={"pooling": "mean"})


def refusal(said: dict[str, str], experiment: Experiment | None = None) -> str:
    with pytest.raises(ConfigError) as raised:
        with_settings(experiment or Experiment(), said)
    return str(raised.value)


# -- fields by name --------------------------------------------------------------------------------------


def test_a_field_is_called_by_its_full_name_or_by_its_last_part() -> None:
    by_full, by_last = (
        with_settings(Experiment(), {name: "3"})
        for name in ("training.completeness.reset_after", "reset-after")
    )
    assert by_full == by_last
    assert by_full == replace(Experiment(), training=Training(completeness=MemoryDropout(reset_after=3)))


def test_a_field_of_the_experiment_comes_before_one_of_a_part() -> None:
    made = with_settings(Experiment(), {"max_steps": "8"})
    assert (made.max_steps, made.agent_settings) == (8, {})
    made = with_settings(Experiment(), {"agent.max_steps": "60"})
    assert (made.max_steps, made.agent_settings) == (15, {"max_steps": 60})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("training.learning_rate", "3e-4", 3e-4),
        ("training.scale_by_batch", "true", True),
        ("agent.encode_panorama", "false", False),
        ("agent.attention_dropout", "none", None),
        ("agent.attention_dropout", "0.25", 0.25),
        ("training.method", "dagger", "dagger"),
        ("validation.splits", "val_seen,val_unseen", ("val_seen", "val_unseen")),
        ("word_vectors", "glove/a", ("glove/a",)),
        ("training.augmentation", "", ""),
        ("start", "runs/one", "runs/one"),
    ],
)
def test_text_becomes_a_value_of_the_fields_type(name: str, text: str, value: object) -> None:
    made = with_settings(Experiment(), {name: text})
    found = value_of(made, tuple(name.split(".")))
    assert found == value and type(found) is type(value)


def test_every_settable_field_can_be_read_and_found_by_its_name() -> None:
    known = dict(settable(REMEMBERING))
    assert len(known) > 70
    for path in known:
        value = value_of(REMEMBERING, path)
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert value_of(with_settings(REMEMBERING, {".".join(path): str(value)}), path) == value
    named = {".".join(path) for path in known}
    assert {"seed", "training.batch", "training.completeness.way", "agent.hidden", "reader.pooling"} <= named
    assert not {"agent_settings", "reader_settings", "about", "differences"} & {path[0] for path in known}


def test_a_setting_that_is_not_set_has_the_default_of_its_part() -> None:
    assert value_of(REMEMBERING, ("reader", "pooling")) == "mean"
    assert value_of(REMEMBERING, ("reader", "order")) == "feature-memory"
    assert value_of(REMEMBERING, ("agent", "hidden")) == 768


def test_fields_are_set_at_once_so_that_their_order_does_not_matter() -> None:
    said = {"splits": "val_seen", "best_split": "val_seen", "hidden": "64", "heads": "4"}
    there = with_settings(Experiment(), said)
    back = with_settings(Experiment(), dict(reversed(said.items())))
    assert there == back and there.validation.best_split == "val_seen"
    assert "best_split 'val_unseen': expected one of the splits" in refusal({"splits": "val_seen"})


def test_an_experiment_is_not_changed_by_setting_fields_of_another() -> None:
    before = as_json(REMEMBERING)
    with_settings(REMEMBERING, {"pooling": "max", "agent.hidden": "96"})
    assert as_json(REMEMBERING) == before


def test_settings_fall_away_where_another_part_takes_the_place() -> None:
    made = with_settings(REMEMBERING, {"reader": "unaided"})
    assert (made.reader, made.reader_settings) == ("unaided", {})
    same = with_settings(REMEMBERING, {"reader": "candidate-enhancing"})
    assert same.reader_settings == {"pooling": "mean"}
    other = with_settings(
        replace(REMEMBERING, agent_settings={"heads": 6}), {"word_width": "32", "agent": "seq2seq"}
    )
    assert (other.agent, other.agent_settings) == ("seq2seq", {"word_width": 32})
    assert other.reader_settings == {"pooling": "mean"}


# -- names that do not exist -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("bacth", "batch"),
        ("learning-rat", "learning_rate"),
        ("training.batchs", "training.batch"),
        ("pooling", "positions"),  # of a reader that this experiment does not have
        ("agent_settings", "agent"),
    ],
)
def test_an_unknown_field_is_refused_with_the_closest_names(name: str, suggested: str) -> None:
    told = refusal({name: "1"})
    assert told.startswith(f"no field '{name}'; did you mean ") and suggested in told


def test_a_name_that_several_fields_have_is_refused_with_their_full_names() -> None:
    told = refusal({"hidden": "64"}, REMEMBERING)
    assert told == "--hidden: there are several such fields; say --agent.hidden or --reader.hidden"


def test_unknown_parts_are_refused_with_the_closest_names() -> None:
    assert refusal({"agent": "hmat"}) == "no agent 'hmat'; did you mean hamt?"
    assert "did you mean candidate-enhancing?" in refusal({"reader": "candidate-enhancer"})
    with pytest.raises(ConfigError, match="reader 'unaided' has no setting 'pooling'"):
        Experiment(reader_settings={"pooling": "max"})
    with pytest.raises(ConfigError, match="agent 'hamt' has no setting 'hiddn'; did you mean hidden"):
        Experiment(agent_settings={"hiddn": 64})


def test_suggestions_are_close_names_or_all_of_a_few() -> None:
    assert did_you_mean("colour", ["colours", "weight"]) == "; did you mean colours?"
    assert did_you_mean("xyz", ["colours", "weight"]) == "; there are colours, weight"
    assert did_you_mean("xyz", [f"colour{number}" for number in range(20)]) == ""


# -- values that make no sense ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"batch": "-4"}, "batch: expected at least 1, found -4"),
        ({"batch": "0"}, "batch: expected at least 1, found 0"),
        ({"batch": "many"}, "--training.batch many: expected a whole number"),
        ({"batch": "2.5"}, "--training.batch 2.5: expected a whole number"),
        ({"iterations": "0"}, "iterations: expected at least 1, found 0"),
        ({"learning_rate": "0"}, "learning_rate: expected a number above 0, found 0.0"),
        ({"learning_rate": "nan"}, "learning_rate: expected a number above 0, found nan"),
        ({"learning_rate": "fast"}, "--training.learning_rate fast: expected a number"),
        ({"discount": "1.1"}, "discount: expected a number from 0 to 1, found 1.1"),
        ({"feature_dropout": "1"}, "feature_dropout: expected a share from 0 to below 1, found 1.0"),
        ({"dropout": "1.5"}, "dropout: expected a share from 0 to below 1, found 1.5"),
        ({"attention_dropout": "-1"}, "attention_dropout: expected a share from 0 to below 1, found -1.0"),
        ({"critic_dropout": "nan"}, "critic_dropout: expected a share from 0 to below 1, found nan"),
        ({"hidden": "100"}, "hidden 100 cannot be shared out evenly to 12 heads"),
        ({"grounding": "-1"}, "grounding: expected a width, or 0 for none, found -1"),
        ({"way": "never"}, "--training.completeness.way never: expected one of as-released, reset, "),
        ({"full": "0.8", "empty": "0.4"}, "full 0.8 and empty 0.4: expected a sum of at most 1"),
        ({"method": "dager"}, "--training.method dager: expected one of imitation, imitation+a2c, dagger"),
        ({"teacher": "nobody"}, "teacher 'nobody': expected one of time, location, shortest"),
        ({"validation.memory": "warm"}, "memory 'warm': expected one of cold, two-pass, "),
        ({"scale_by_batch": "perhaps"}, "--training.scale_by_batch perhaps: expected true or false"),
        ({"every": "0"}, "every 0, limit 0: expected at least 1, and 0 or more"),
        ({"hold_out": "-1"}, "hold_out: expected 0 or more, found -1"),
        ({"seed": "-1"}, "seed: expected 0 or more, found -1"),
        ({"seed": str(2**63)}, "seed: expected a number below 2 ** 63, found 9223372036854775808"),
        ({"weight_decay": "inf"}, "weight_decay: expected 0 or more, found inf"),
        ({"entropy_weight": "inf"}, "entropy_weight: expected 0 or more, found inf"),
        ({"imitation_weight": "nan"}, "imitation_weight: expected 0 or more, found nan"),
        ({"method": "dagger", "dagger_teacher": "time"}, "dagger_teacher 'time': knows no way back to "),
        (
            {"max_steps": "52"},
            "max_steps 52: the agent has no more than 50 rows for them; give --agent.max-steps 52",
        ),
        (
            {"max_tokens": "600"},
            "max_tokens 600: the agent has no more than 512 rows for them; give --agent.positions 600",
        ),
        ({"agent": "random"}, "agent 'random' follows a script: there is nothing it could learn"),
    ],
)
def test_a_value_without_sense_is_refused(said: dict[str, str], message: str) -> None:
    assert refusal(said).startswith(message)


def test_a_network_needs_a_row_for_every_decision() -> None:
    assert with_settings(Experiment(), {"max_steps": "50"}).max_steps == 50
    both = with_settings(Experiment(), {"max_steps": "51", "agent.max_steps": "51"})
    assert both.agent_settings == {"max_steps": 51}


# -- stored ----------------------------------------------------------------------------------------------


def test_an_experiment_survives_being_stored() -> None:
    made = replace(
        REMEMBERING,
        differences=("a", "b"),
        training=Training(completeness=MemoryDropout(way="drawn")),
        validation=Validation(splits=("val_unseen",)),
    )
    stored = as_json(made)
    assert from_json(stored) == made and as_json(from_json(stored)) == stored
    assert stored["validation"]["splits"] == ["val_unseen"]  # as json has it, not as python has


@pytest.mark.parametrize(
    "change",
    [{"seed": "one"}, {"training": {"batch": 2.5}}, {"keep": "middle"}],
)
def test_an_experiment_of_another_version_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="not an experiment of this version"):
        from_json({**as_json(Experiment()), **change})
