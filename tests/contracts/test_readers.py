"""The contract of all readers (`esceme.memory.reader`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from esceme.agents.base import Decision, num_choices
from esceme.errors import ConfigError
from esceme.learning.memory_dropout import MemoryDropout, TrainingMemory
from esceme.learning.rollouts import Demonstrations, forward_demonstrations, teacher_rollout
from esceme.memory import READERS, Memory, MemoryBank, Reader, ZeroRecallMemory
from esceme.navigator import Navigator
from esceme.observation import TOKEN_FIELDS, Observation
from esceme.rollout import roll_out
from esceme.runs import load_run, navigator_config, save_run
from esceme.trajectory import SingleBatch, reference_path_teacher_by_step
from esceme.world import CONTEXT, STOP
from fixtures.random_observations import random_order, reordered, with_padding
from fixtures.toy_atlas import WIDTH, build_toy_atlas, encode, make_episode, small_duet, small_navigator

ATLAS = build_toy_atlas()
REMEMBERED = [0, 1, 3, 5, 8]
PAST = np.array([[1, 2], [0, -1], [-1, -1], [0, 4], [3, 0], [0, -1], [5, 0], [8, -1], [-1, -1]])
EPISODES = [
    make_episode("garden", "door", "hall", "kitchen", name="0_0"),
    make_episode("attic", "landing", "hall", "landing", name="1_0", heading=3.0),
    make_episode("kitchen", name="2_0"),
    make_episode("hall", "door", scene="shed", name="3_0"),
]


def small(name: str) -> Reader:
    """A small reader with random, non-zero parameters."""
    torch.manual_seed(0)
    kind: Any = READERS[name]
    has_width = "width" in {field.name for field in fields(kind.Config)}
    reader: Reader = kind(kind.Config(**({"width": WIDTH} if has_width else {}))).eval()
    for parameter in reader.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return reader


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> Reader:
    return small(request.param)


def navigator_for(reader: Reader, **settings: Any) -> Navigator:
    """A navigator with this reader and an agent that can use it."""
    return (small_duet if reader.needs_map else small_navigator)(reader, **settings)


def added(read: Observation) -> Tensor:
    """What a reader changes: features, or the viewpoints that each agent remembers."""
    if read.remembered is None:
        return read.features
    known = read.remembered.known
    return torch.cat(
        [read.features.flatten(1), known.float() @ read.remembered.panoramas.viewpoint[:, None].float()], 1
    )


def observe() -> Observation:
    """One row per viewpoint, with previous viewpoints."""
    pose = ATLAS.begin(np.arange(len(ATLAS)), np.linspace(0, 6, len(ATLAS)))
    observation = Observation.from_atlas(ATLAS, pose, previous_viewpoints=PAST)
    assert not observation.valid.all(), "the tests need padding"
    return observation


def bank_of(reader: Reader, remembered: Sequence[int] = REMEMBERED) -> MemoryBank:
    bank = MemoryBank.from_atlas(ATLAS, pooling=reader.pooling)
    bank.remember_at(remembered)
    return bank


def memory_of(reader: Reader) -> MemoryBank | None:
    return bank_of(reader) if reader.uses_memory else None


def assert_close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


# -- tokens -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [False, True])
def test_tokens_are_unchanged_and_new_ones_are_context(reader: Reader, cut: bool) -> None:
    observation = observe().without_context_views() if cut else observe()
    read, tokens = reader(observation, memory_of(reader)), observation.token_type.shape[1]
    for name in TOKEN_FIELDS[1:]:  # without raw_features
        assert torch.equal(getattr(read, name)[:, :tokens], getattr(observation, name)), name
    assert all(getattr(read, name).shape[:2] == read.token_type.shape for name in (*TOKEN_FIELDS, "features"))
    new = slice(tokens, None)
    assert (read.token_type[:, new] == CONTEXT).all() and (read.neighbour[:, new] == -1).all()
    assert (read.view[:, new] == -1).all()
    assert num_choices(read) == num_choices(observation)
    assert torch.equal(read.num_candidates, observation.num_candidates)
    assert torch.equal((read.token_type == STOP).sum(1), torch.ones(len(ATLAS), dtype=torch.int64))
    assert torch.equal(read.viewpoint, observation.viewpoint) and read.features.isfinite().all()
    assert read.previous_viewpoints is observation.previous_viewpoints
    assert read.feature_dropout == observation.feature_dropout


def test_memory_readers_do_not_change_the_panorama(reader: Reader) -> None:
    observation = observe()
    for visible in (observation, observation.without_context_views()):
        read = reader(visible, memory_of(reader))
        for method in (Observation.panorama_features, Observation.facing_features, Observation.max_features):
            if reader.uses_memory:
                assert torch.equal(method(read), method(observation))
            assert method(read).shape == method(observation).shape


def test_choices_are_read_equally_with_and_without_context_views(reader: Reader) -> None:
    memory, observation = memory_of(reader), observe()
    whole, cut = (
        reader(visible, memory).features for visible in (observation, observation.without_context_views())
    )
    is_choice = observation.token_type[:, : num_choices(observation)] != CONTEXT
    assert_close(cut[:, : is_choice.shape[1]][is_choice], whole[:, : is_choice.shape[1]][is_choice])
    added = whole.shape[1] - observation.token_type.shape[1]
    if added:
        assert_close(cut[:, -added:], whole[:, -added:])


def test_rows_do_not_depend_on_other_rows(reader: Reader) -> None:
    memory, observation = memory_of(reader), observe()
    batch = reader(observation, memory)
    for rows in ([4, 0, 4], [8], list(range(9))[::-1]):
        some = torch.tensor(rows)
        part = reader(observation.select(some), memory)
        assert_close(part.features, batch.select(some).features)
        assert torch.equal(part.valid, batch.select(some).valid)


def test_padding_does_not_matter(reader: Reader) -> None:
    memory, observation = memory_of(reader), observe()
    read, padded = reader(observation, memory), reader(with_padding(observation, 3), memory)
    tokens = observation.token_type.shape[1]
    assert_close(padded.features[:, :tokens], read.features[:, :tokens])
    assert_close(padded.features[:, tokens + 3 :], read.features[:, tokens:])
    assert not padded.valid[:, tokens : tokens + 3].any()


def test_permuting_candidates_permutes_features(reader: Reader) -> None:
    memory, observation = memory_of(reader), observe()
    order = random_order(observation)
    read, moved = reader(observation, memory), reader(reordered(observation, order), memory)
    tokens, rows = observation.token_type.shape[1], torch.arange(len(ATLAS))[:, None]
    assert_close(moved.features[:, :tokens], read.features[rows, order])
    assert_close(moved.features[:, tokens:], read.features[:, tokens:])


# -- memory -----------------------------------------------------------------------------------------------


def test_a_reader_uses_a_memory_or_needs_none(reader: Reader) -> None:
    observation = observe()
    if not reader.uses_memory:
        assert len(reader(observation, None)) == len(observation)
        return
    with pytest.raises(ConfigError, match="pass a ZeroRecallMemory"):
        reader(observation, None)
    bank = bank_of(reader)
    before = bank.recall_at(torch.arange(len(ATLAS)))
    features = added(reader(observation, bank))
    assert torch.equal(bank.recall_at(torch.arange(len(ATLAS))), before)
    empty, masked = (
        added(reader(observation, memory)) for memory in (bank_of(reader, []), ZeroRecallMemory(bank))
    )
    assert torch.equal(empty, masked)
    assert features.shape != empty.shape or not torch.allclose(features, empty)


@pytest.mark.parametrize("remembered", [[], REMEMBERED])
def test_gradients_reach_every_parameter_and_not_the_memory(reader: Reader, remembered: list[int]) -> None:
    if not list(reader.parameters()):
        return
    bank = bank_of(reader, remembered)
    reader(observe(), bank).features.pow(2).sum().backward()
    assert not bank.recall_at(torch.arange(len(ATLAS))).requires_grad
    for name, parameter in reader.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert not remembered or parameter.grad.any(), name


def test_a_saved_reader_is_restored(reader: Reader, tmp_path: Path) -> None:
    navigator = navigator_for(reader)
    save_run(tmp_path, navigator, navigator_config(navigator))
    loaded = load_run(tmp_path).navigator
    assert type(loaded.reader) is type(reader) and loaded.reader.config == reader.config
    memory, observation = memory_of(reader), observe()
    assert torch.equal(loaded.reader(observation, memory).features, reader(observation, memory).features)


def test_the_same_seed_initialises_the_same_reader(reader: Reader) -> None:
    config = navigator_config(navigator_for(reader))
    one, again = (config.build(seed=3).reader.state_dict() for _ in range(2))
    assert all(torch.equal(one[name], again[name]) for name in one)


# -- decisions --------------------------------------------------------------------------------------------


def training_memory(navigator: Navigator) -> TrainingMemory | None:
    if not navigator.reader.uses_memory:
        return None
    memory = TrainingMemory(
        ATLAS, navigator.reader, MemoryDropout(mode="sampled", full_probability=0.0, empty_probability=0.0)
    )
    memory.bank.remember_at(REMEMBERED)
    memory.begin_rollout(EPISODES, np.random.default_rng(3))
    return memory


def logits_of_rollout(navigator: Navigator, rollout: Demonstrations, memory: Memory | None) -> Tensor:
    """The logits of `roll_out` along the same trajectories, (R, C)."""
    actions = iter([step.action for step in rollout.steps])

    def choose(decision: Decision, observation: Observation, trajectories: Any) -> Tensor:
        return torch.from_numpy(next(actions))

    source = SingleBatch(ATLAS, [trajectory.episode for trajectory in rollout.trajectories])
    steps = roll_out(navigator, ATLAS, source, memory, choose, encode=encode, max_steps=len(rollout.steps))
    logits = [step.decision.logits for step in steps]
    width = max(step.shape[1] for step in logits)
    return torch.cat([functional.pad(step, (0, width - step.shape[1]), value=-torch.inf) for step in logits])


@pytest.mark.parametrize("views", [True, False])
def test_forward_at_once_and_stepwise_equal_the_rollout(reader: Reader, views: bool) -> None:
    navigator = navigator_for(reader, context_views=views)
    rollout = teacher_rollout(ATLAS, EPISODES, reference_path_teacher_by_step(ATLAS), max_steps=15)
    with torch.no_grad():
        expected = logits_of_rollout(navigator, rollout, training_memory(navigator))
        for stepwise in {not navigator.agent.supports_decide_all, True}:
            memory = training_memory(navigator)
            found = forward_demonstrations(
                navigator, ATLAS, rollout, memory, encode=encode, stepwise=stepwise
            ).logits
            assert_close(found, expected)


@pytest.mark.parametrize("views", [True, False])
def test_the_memory_changes_decisions(reader: Reader, views: bool) -> None:
    """At the hall, some of whose neighbours are remembered."""
    if not reader.uses_memory:
        return
    navigator, bank = navigator_for(reader, context_views=views), bank_of(reader)
    rollout = teacher_rollout(
        ATLAS, [make_episode("hall", "kitchen")], reference_path_teacher_by_step(ATLAS), max_steps=1
    )
    with torch.no_grad():
        logits, masked = (
            logits_of_rollout(navigator, rollout, memory) for memory in (bank, ZeroRecallMemory(bank))
        )
    assert not logits.isnan().any()
    assert logits.shape != masked.shape or not torch.allclose(logits, masked, atol=1e-4)
