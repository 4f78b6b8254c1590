"""What every reader keeps to, whatever it makes of a memory (`esceme.memory.reader`)."""

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
from esceme.learning.rollouts import Demonstrations, forward_all, forward_stepwise, teacher_rollout
from esceme.memory import READERS, MaskedMemory, Memory, MemoryBank, Reader
from esceme.navigator import Navigator
from esceme.observation import TOKEN_FIELDS, Observation
from esceme.rollout import roll_out
from esceme.runs import load_run, navigator_config, save_run
from esceme.trajectory import SingleBatch, teacher_by_step
from esceme.world import CANDIDATE, CONTEXT, STOP
from fixtures.random_observations import random_order, reordered, with_padding
from fixtures.toy_atlas import WIDTH, build_toy_atlas, encode, make_episode, small_navigator

ATLAS = build_toy_atlas()
REMEMBERED = [0, 1, 3, 5, 8]
PAST = np.array([[1, 2], [0, -1], [-1, -1], [0, 4], [3, 0], [0, -1], [5, 0], [8, -1], [-1, -1]])
EPISODES = [
    make_episode("garden", "door", "hall", "kitchen", name="0_0"),
    make_episode("attic", "landing", "hall", "landing", name="1_0", heading=3.0),
    make_episode("kitchen", name="2_0"),
    make_episode("hall", "door", scene="shed", name="3_0"),
]


def small(name: str, *, seed: int = 0) -> Reader:
    """A reader in a small size, whose every weight matters."""
    torch.manual_seed(seed)
    kind = READERS[name]
    known = {each.name for each in fields(kind.Config)}
    reader: Any = kind
    made: Reader = reader(kind.Config(**({"width": WIDTH} if "width" in known else {}))).eval()
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    return made


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> Reader:
    return small(request.param)


def sight() -> Observation:
    """Someone at every place, who came from somewhere."""
    pose = ATLAS.begin(np.arange(len(ATLAS)), np.linspace(0, 6, len(ATLAS)))
    return Observation.from_atlas(ATLAS, pose, previous_viewpoints=PAST)


def bank_of(reader: Reader, remembered: Sequence[int] = REMEMBERED) -> MemoryBank:
    bank = MemoryBank.from_atlas(ATLAS, pooling=reader.pooling)
    bank.remember_at(remembered)
    return bank


def memory_of(reader: Reader) -> MemoryBank | None:
    return bank_of(reader) if reader.uses_memory else None


def near(some: Tensor, others: Tensor) -> None:
    torch.testing.assert_close(some, others, atol=1e-5, rtol=1e-5)


# -- what is seen ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [False, True])
def test_tokens_stay_where_they_were_and_new_ones_cannot_be_chosen(reader: Reader, cut: bool) -> None:
    observation = sight().without_context_views() if cut else sight()
    read, tokens = reader(observation, memory_of(reader)), observation.token_type.shape[1]
    for name in (each for each in TOKEN_FIELDS if each != "raw_features"):
        assert torch.equal(getattr(read, name)[:, :tokens], getattr(observation, name)), name
    assert all(getattr(read, name).shape[:2] == read.token_type.shape for name in (*TOKEN_FIELDS, "features"))
    new = slice(tokens, None)
    assert (read.token_type[:, new] == CONTEXT).all() and (read.neighbour[:, new] == -1).all()
    assert (read.view[:, new] == -1).all()
    assert num_choices(read) == num_choices(observation)
    assert torch.equal(read.num_candidates, observation.num_candidates)
    assert torch.equal((read.token_type == STOP).sum(1), torch.ones(len(ATLAS), dtype=torch.int64))
    assert torch.equal(read.viewpoint, observation.viewpoint) and read.features.isfinite().all()
    assert (
        read.previous_viewpoints is observation.previous_viewpoints
        and read.feature_dropout == observation.feature_dropout
    )


def test_who_reads_a_memory_sees_the_same_panorama(reader: Reader) -> None:
    observation = sight()
    for seen in (observation, observation.without_context_views()):
        read = reader(seen, memory_of(reader))
        for told in (Observation.panorama_features, Observation.facing_features, Observation.max_features):
            if reader.uses_memory:
                assert torch.equal(told(read), told(observation))
            assert told(read).shape == told(observation).shape


def test_choices_are_read_alike_among_all_views_and_alone(reader: Reader) -> None:
    memory, observation = memory_of(reader), sight()
    whole, cut = (
        reader(each, memory).features for each in (observation, observation.without_context_views())
    )
    chosen = observation.token_type[:, : num_choices(observation)] != CONTEXT
    near(cut[:, : chosen.shape[1]][chosen], whole[:, : chosen.shape[1]][chosen])
    more = reader(observation, memory).token_type.shape[1] - observation.token_type.shape[1]
    if more:
        near(cut[:, -more:], whole[:, -more:])


def test_some_agents_read_what_they_read_among_all(reader: Reader) -> None:
    memory, observation = memory_of(reader), sight()
    together = reader(observation, memory)
    for rows in ([4, 0, 4], [8], list(range(9))[::-1]):
        some = torch.tensor(rows)
        apart = reader(observation.select(some), memory)
        near(apart.features, together.select(some).features)
        assert torch.equal(apart.valid, together.select(some).valid)


def test_padding_changes_nothing(reader: Reader) -> None:
    memory, observation = memory_of(reader), sight()
    read, padded = reader(observation, memory), reader(with_padding(observation, 3), memory)
    tokens = observation.token_type.shape[1]
    near(padded.features[:, :tokens], read.features[:, :tokens])
    near(padded.features[:, tokens + 3 :], read.features[:, tokens:])
    assert not padded.valid[:, tokens : tokens + 3].any()


def test_permuting_candidates_permutes_what_is_read_of_them(reader: Reader) -> None:
    memory, observation = memory_of(reader), sight()
    order = random_order(observation)
    read, moved = reader(observation, memory), reader(reordered(observation, order), memory)
    tokens, rows = observation.token_type.shape[1], torch.arange(len(ATLAS))[:, None]
    near(moved.features[:, :tokens], read.features[rows, order])
    near(moved.features[:, tokens:], read.features[:, tokens:])


# -- what is remembered ------------------------------------------------------------------------------------


def test_a_reader_uses_a_memory_or_does_without(reader: Reader) -> None:
    observation = sight()
    if not reader.uses_memory:
        assert len(reader(observation, None)) == len(observation)
        return
    with pytest.raises(ConfigError, match="Masked"):
        reader(observation, None)
    bank = bank_of(reader)
    before = bank.recall_at(torch.arange(len(ATLAS)))
    read = reader(observation, bank).features
    assert torch.equal(bank.recall_at(torch.arange(len(ATLAS))), before)
    empty, masked = bank_of(reader, []), MaskedMemory(bank)
    assert torch.equal(reader(observation, empty).features, reader(observation, masked).features)
    assert not torch.allclose(read, reader(observation, empty).features)


@pytest.mark.parametrize("remembered", [[], REMEMBERED])
def test_gradients_are_finite_and_reach_every_weight(reader: Reader, remembered: list[int]) -> None:
    weights = list(reader.parameters())
    if not weights:
        return
    reader(sight(), bank_of(reader, remembered)).features.pow(2).sum().backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in weights)
    if remembered:
        assert all(each.grad is not None and each.grad.any() for each in weights)


def test_a_reader_survives_being_stored(reader: Reader, tmp_path: Path) -> None:
    navigator = small_navigator(reader)
    save_run(tmp_path, navigator, navigator_config(navigator))
    loaded = load_run(tmp_path).navigator
    assert type(loaded.reader) is type(reader) and loaded.reader.config == reader.config
    memory, observation = memory_of(reader), sight()
    assert torch.equal(loaded.reader(observation, memory).features, reader(observation, memory).features)


def test_the_same_seed_draws_the_same_reader(reader: Reader) -> None:
    setup = navigator_config(small_navigator(reader))
    one, again = (setup.build(seed=3).reader.state_dict() for _ in range(2))
    assert all(torch.equal(one[name], again[name]) for name in one)


# -- in an agent -------------------------------------------------------------------------------------------


def training_memory(navigator: Navigator) -> TrainingMemory | None:
    if not navigator.reader.uses_memory:
        return None
    memory = TrainingMemory(
        ATLAS, navigator.reader, MemoryDropout(mode="sampled", full_probability=0.0, empty_probability=0.0)
    )
    memory.bank.remember_at(REMEMBERED)
    memory.begin_rollout(EPISODES, np.random.default_rng(3))
    return memory


def stepping(navigator: Navigator, told: Demonstrations, memory: Memory | None) -> Tensor:
    """The walks again by the loop that everything walks with, (R, C)."""
    steps = iter([step.action for step in told.steps])

    def choose(decision: Decision, observation: Observation, walks: Any) -> Tensor:
        return torch.from_numpy(next(steps))

    source = SingleBatch(ATLAS, [walk.episode for walk in told.trajectories])
    lived = roll_out(navigator, ATLAS, source, memory, choose, encode=encode, max_steps=len(told.steps))
    logits = [step.decision.logits for step in lived]
    most = max(each.shape[1] for each in logits)
    return torch.cat([functional.pad(each, (0, most - each.shape[1]), value=-torch.inf) for each in logits])


@pytest.mark.parametrize("views", [True, False])
def test_decisions_made_at_once_are_those_of_stepping(reader: Reader, views: bool) -> None:
    navigator = small_navigator(reader, context_views=views)
    told = teacher_rollout(ATLAS, EPISODES, teacher_by_step(ATLAS), max_steps=15)
    with torch.no_grad():
        expected = stepping(navigator, told, training_memory(navigator))
        for decide in (forward_all, forward_stepwise):
            found = decide(navigator, ATLAS, told, training_memory(navigator), encode=encode).logits
            near(found, expected)


@pytest.mark.parametrize("views", [True, False])
def test_what_is_remembered_reaches_the_decision(reader: Reader, views: bool) -> None:
    """At the hall, to some of whose neighbours somebody has been."""
    if not reader.uses_memory:
        return
    navigator = small_navigator(reader, context_views=views)
    told = teacher_rollout(ATLAS, [make_episode("hall", "kitchen")], teacher_by_step(ATLAS), max_steps=1)
    bank = bank_of(reader)
    with torch.no_grad():
        remembering, forgetful = (stepping(navigator, told, each) for each in (bank, MaskedMemory(bank)))
    assert remembering.isfinite().all() and not torch.allclose(remembering, forgetful, atol=1e-4)


def test_kinds_are_what_this_file_takes_them_for() -> None:
    observation = sight()
    assert {CANDIDATE, STOP, CONTEXT} == set(observation.token_type.unique().tolist())
    assert not observation.valid.all(), "there should be padding to look at"
