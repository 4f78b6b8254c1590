"""A frozen text encoder that reads each instruction once and for all."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from esceme.agents import HAMT, HamtConfig
from esceme.agents.base import TokenBatch
from esceme.errors import ConfigError

CONFIG = HamtConfig(
    vocabulary=30,
    positions=16,
    hidden=8,
    heads=2,
    feed_forward=16,
    text_layers=2,
    cross_layers=1,
    panorama_layers=1,
    feature_width=6,
    max_steps=5,
    critic_inner=8,
    read_once=True,
)


def words() -> TokenBatch:
    ids = torch.tensor([[2, 5, 9, 3], [2, 7, 3, 0]])
    return TokenBatch(ids, ids > 0)


def network(**changes: bool) -> HAMT:
    torch.manual_seed(0)
    return HAMT(replace(CONFIG, **changes)).train()


def test_it_reads_the_same_words_the_same_way_even_in_training() -> None:
    agent = network()
    first = agent.encode_text(words())
    assert torch.equal(first, agent.encode_text(words()))
    assert not torch.equal(network(read_once=False).encode_text(words()), first)  # which drops some
    assert agent.training and agent.text.training


def test_what_was_read_is_what_an_agent_in_evaluation_reads() -> None:
    plain = network(read_once=False).eval()
    torch.testing.assert_close(network().encode_text(words()), plain.encode_text(words()), atol=1e-6, rtol=0)


def test_each_instruction_is_read_once_whoever_else_is_in_the_batch() -> None:
    agent, times = network(), []
    agent.text.register_forward_hook(lambda *_: times.append(1))
    together = agent.encode_text(words())
    alone = agent.encode_text(TokenBatch(words().ids[1:, :3], words().valid[1:, :3]))
    assert len(times) == 2 and torch.equal(alone, together[1:, :3])


def test_new_weights_are_read_with_anew() -> None:
    agent = network()
    before = agent.encode_text(words())
    agent.load_state_dict({name: 2 * tensor for name, tensor in agent.state_dict().items()})
    assert not torch.equal(agent.encode_text(words()), before)


def test_what_an_evaluation_read_can_be_learned_from() -> None:
    agent = network()
    with torch.inference_mode():
        agent.encode_text(words())
    layer = torch.nn.Linear(8, 1)
    layer(agent.encode_text(words())).sum().backward()
    assert layer.weight.grad is not None


def test_weight_decay_leaves_the_marks_of_text_alone() -> None:
    assert [each is agent.text.kinds.weight for agent in [network()] for each in agent.no_weight_decay] == [
        True
    ]
    assert not network(read_once=False).no_weight_decay


def test_only_a_frozen_encoder_can_read_once() -> None:
    with pytest.raises(ConfigError, match="freeze_text"):
        HamtConfig(read_once=True, freeze_text=False)
