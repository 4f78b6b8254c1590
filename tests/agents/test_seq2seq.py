"""The recurrent baseline: encoder, decoder, attention, training."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from esceme.agents.seq2seq import Seq2Seq, Seq2SeqConfig
from fixtures.random_observations import WIDTH, random_observation, random_words

CONFIG = Seq2SeqConfig(vocabulary=50, word_width=8, hidden=16, feature_width=WIDTH, dropout=0.5)


@pytest.fixture
def agent() -> Seq2Seq:
    torch.manual_seed(0)
    return Seq2Seq(CONFIG).eval()


def test_encoding_a_batch_equals_encoding_single_instructions(agent: Seq2Seq) -> None:
    """Compared with the LSTM on one instruction at a time, without packing."""
    words = random_words((5, 9, 2))
    state = agent.begin(words, torch.zeros(3, dtype=torch.int64))
    for row, length in enumerate((5, 9, 2)):
        read, (last, _) = agent.encoder(agent.embedding(words.ids[row : row + 1, :length]))
        torch.testing.assert_close(state.text[row, :length], read[0])
        assert not state.text[row, length:].any()
        torch.testing.assert_close(state.hidden[row], agent.bridge(last.flatten()).tanh())


def test_instruction_views_and_actions_change_the_decision(agent: Seq2Seq) -> None:
    words, observation = random_words((6,)), random_observation((4,))
    state = agent.begin(words, observation.viewpoint)
    reverse = agent.begin(words._replace(ids=words.ids.flip(1)), observation.viewpoint)
    context = observation.features.clone()
    context[0, 5:] += 1.0  # context views reach the decision through attention only
    actions = [agent.advance(state, observation, torch.tensor([action])) for action in (0, 1, 4)]
    decisions = [
        agent.decide(state, observation),
        agent.decide(reverse, observation),
        agent.decide(state, observation.with_features(context)),
        *(agent.decide(after, observation) for after in actions),
    ]
    for index, one in enumerate(decisions):
        for other in decisions[:index]:
            assert (one.logits - other.logits).abs().max() > 1e-4


def test_the_decoder_reads_the_previous_action_and_the_attended_views(agent: Seq2Seq) -> None:
    """Computed by hand for one agent: attention over all tokens but STOP, which has index 4."""
    observation = random_observation((4,))
    views = torch.cat([observation.features, observation.angles], 2)[0]
    attended = [token for token in range(len(views)) if token != 4]
    state = agent.begin(random_words((6,)), observation.viewpoint)
    hidden, cell, previous = state.hidden[0], state.cell[0], torch.zeros(WIDTH + 4)
    for action in (2, 0):
        weights = (views[attended] @ agent.view_query(hidden)).softmax(0)
        hidden, cell = agent.decoder(torch.cat([previous, weights @ views[attended]]), (hidden, cell))
        previous = views[action]
        state = agent.advance(state, observation, torch.tensor([action]))
        torch.testing.assert_close(state.hidden[0], hidden)
        torch.testing.assert_close(state.cell[0], cell)
        torch.testing.assert_close(state.previous_action[0], previous)


def test_the_logit_of_stop_comes_from_its_parameter(agent: Seq2Seq) -> None:
    observation = random_observation((4,))
    state = agent.begin(random_words((6,)), observation.viewpoint)
    before = agent.decide(state, observation).logits
    with torch.no_grad():
        agent.stop.zero_()
    after = agent.decide(state, observation).logits
    assert torch.equal(before[:, :4], after[:, :4])
    assert before[0, 4] != 0.0
    assert after[0, 4] == 0.0


def test_dropout_does_not_affect_the_hidden_state(agent: Seq2Seq) -> None:
    agent.train()
    observation = random_observation((4, 2))
    state = agent.begin(random_words((6, 3)), observation.viewpoint)
    chosen = torch.tensor([1, 0])
    first, second = (agent.advance(state, observation, chosen) for _ in range(2))
    assert torch.equal(first.hidden, second.hidden)
    assert not torch.equal(agent.decide(state, observation).logits, agent.decide(state, observation).logits)


def unrolled_loss(agent: Seq2Seq) -> Tensor:
    """Loss of three steps: cross entropy of the first candidate, squared error to a return of 1."""
    observations = [random_observation(seed=seed) for seed in range(3)]
    state = agent.begin(random_words(), observations[0].viewpoint)
    loss = torch.zeros(())
    for observation in observations:
        decision = agent.decide(state, observation)
        chosen = torch.zeros(4, dtype=torch.int64)
        assert decision.value is not None
        loss = loss + functional.cross_entropy(decision.logits, chosen) + (decision.value - 1).square().mean()
        state = agent.advance(state, observation, chosen)
    return loss


def test_gradients_reach_every_parameter_and_training_lowers_the_loss(agent: Seq2Seq) -> None:
    agent.train()
    optimizer = torch.optim.Adam(agent.parameters(), lr=0.01)
    losses = []
    for step in range(40):
        loss = unrolled_loss(agent)
        optimizer.zero_grad()
        loss.backward()
        for name, parameter in agent.named_parameters() if step == 0 else ():
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.3 * sum(losses[:5])
