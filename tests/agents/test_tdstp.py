"""TD-STP: goal grid, logits, recurrence, positions, structured attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from esceme.agents import TDSTP, Decision, TdstpConfig
from esceme.agents.base import num_choices
from esceme.agents.tdstp import TdstpState, grid_points
from esceme.errors import ConfigError
from esceme.observation import Observation
from fixtures.random_observations import assert_close, random_observation, random_words, small_network

pytestmark = pytest.mark.usefixtures("no_gradients")

COUNTS = [(4, 1, 7, 3), (2, 5, 1, 6), (3, 3, 8, 2)]
"""Numbers of candidates of four episodes at three steps."""
SWITCHES: list[dict[str, Any]] = [
    {},
    {"language_cross_attention": False},
    {"structured": True, "history_layers": 1},
    {"map_history": False, "encode_panorama": False, "grid": 3, "action_input": "ob_txt_hist"},
]


def small(**settings: Any) -> TDSTP:
    return small_network(TDSTP, TdstpConfig, **({"initial_std": 0.1} | settings))


def observations() -> list[Observation]:
    return [random_observation(counts, seed=step) for step, counts in enumerate(COUNTS)]


def state_after(agent: TDSTP, steps: int = 2, seen: list[Observation] | None = None) -> TdstpState:
    """The state after some steps with the first candidate chosen."""
    seen = seen or observations()
    state = agent.begin(random_words(), seen[0].viewpoint)
    for observation in seen[:steps]:
        state = agent.advance(state, observation, torch.zeros(len(observation), dtype=torch.int64))
    return state


def decisions_of(agent: TDSTP, seen: list[Observation]) -> list[Decision]:
    return [agent.decide(state_after(agent, step, seen), now) for step, now in enumerate(seen)]


def moved(observation: Observation, by: Tensor) -> Observation:
    assert observation.positions is not None
    return replace(observation, positions=observation.positions + by)


@pytest.fixture(params=SWITCHES, ids=lambda switches: "-".join(switches) or "plain")
def agent(request: pytest.FixtureRequest) -> TDSTP:
    return small(**request.param)


# -- the target grid (spec D.3) ----------------------------------------------------------------------------


def test_the_grid_is_centred_on_the_start_in_column_order() -> None:
    points = grid_points(5, 6.0)
    assert points.shape == (25, 3)
    for i in range(5):
        for j in range(5):
            assert points[5 * i + j].tolist() == [-12 + 6 * i, -12 + 6 * j, 0]
    assert torch.equal(small().grid_points, points)
    assert grid_points(1, 6.0).tolist() == [[0, 0, 0]] and grid_points(0, 6.0).shape == (0, 3)


def test_a_target_token_is_its_encoded_position_times_the_text() -> None:
    agent, words = small(grid=2, spacing=3.0), random_words()
    state = agent.begin(words, torch.zeros(4))
    points = torch.tensor([[-1.5, -1.5, 0], [-1.5, 1.5, 0], [1.5, -1.5, 0], [1.5, 1.5, 0]])
    assert_close(state.target, agent.position_encoder(points) * agent.encode_text(words)[:, :1])


@pytest.mark.parametrize("weight", [0.1, 2.0])
def test_auxiliary_loss_is_the_cross_entropy_of_the_nearest_grid_point(weight: float) -> None:
    agent, seen = small(target_weight=weight), observations()
    decision = agent.decide(state_after(agent), seen[2])
    start = seen[0].positions[torch.arange(4), seen[0].num_candidates]  # type: ignore[index]
    offset = torch.tensor([[0.0, 0, 90], [5, -4, 0], [-100, 8, 1], [2.9, 3.1, -7]])
    nearest = torch.tensor([12, 5 * 3 + 1, 5 * 0 + 3, 5 * 2 + 3])  # height is ignored
    assert decision.goal_logits is not None
    expected = -weight * decision.goal_logits.log_softmax(1)[torch.arange(4), nearest]
    assert_close(agent.auxiliary_loss(decision, start + offset), expected)  # type: ignore[arg-type]


def test_without_a_grid_there_is_no_auxiliary_loss() -> None:
    agent = small(grid=0)
    decision = agent.decide(state_after(agent), observations()[2])
    assert decision.goal_logits is not None and decision.goal_logits.shape == (4, 0)
    assert agent.auxiliary_loss(decision, torch.zeros(4, 3)) is None
    assert decision.logits.isfinite().any(1).all()


# -- logits (spec D.5) ------------------------------------------------------------------------------------


def test_candidates_stop_and_previous_viewpoints_share_one_head(agent: TDSTP) -> None:
    state, seen = state_after(agent), observations()[2]
    whole, decision = agent.encode(state, seen, compute_all=True), agent.decide(state, seen)
    text, history = whole.text[:, :1], whole.history
    crosses = agent.config.language_cross_attention
    factors = {"ob_txt": text, "ob_txt_hist": text + history[:, :1]}
    factor = factors[agent.config.action_input] if crosses else 1
    mapped = agent.history_mapper(history) if agent.config.map_history else history
    forward, back = (agent.action(tokens * factor).squeeze(2) for tokens in (whole.observation, mapped))
    width = seen.token_type.shape[1]
    assert decision.logits.shape == (4, width + 3) and decision.routes is not None
    assert decision.routes.first_action == width
    possible = torch.arange(width) <= seen.num_candidates[:, None]
    assert_close(decision.logits[:, :width], forward.masked_fill(~possible, -torch.inf))
    assert_close(decision.logits[:, width + 1 :], back[:, 1:])
    assert (decision.logits[:, width] == -torch.inf).all()  # the global token is no viewpoint
    critic_input = whole.text[:, 0] * history[:, 0] if crosses else history[:, 0]
    assert decision.value is not None
    assert_close(decision.value, agent.critic(critic_input).squeeze(1))
    goal_text = text if crosses else agent.text_per_layer(state.text, state.text_mask)[-1][:, :1]
    assert decision.goal_logits is not None
    assert_close(decision.goal_logits, agent.goal_head(whole.target * goal_text).squeeze(2))


def test_compute_all_gives_the_same_outputs(agent: TDSTP) -> None:
    for step, seen in enumerate(observations()):
        state = state_after(agent, step)
        packed, whole = agent.encode(state, seen), agent.encode(state, seen, compute_all=True)
        for name in ("logits", "node_logits", "critic_input", "goal_logits", "history", "target"):
            assert_close(getattr(packed, name), getattr(whole, name))
        assert whole.observation.shape[:2] == seen.token_type.shape
        width = num_choices(seen)
        is_choice = seen.token_type[:, :width] != 0
        assert_close(packed.observation[is_choice], whole.observation[:, :width][is_choice])


def test_the_current_viewpoint_is_no_backtracking_choice() -> None:
    agent, seen = small(), observations()
    here = replace(seen[2], viewpoint=torch.where(torch.arange(4) < 2, seen[0].viewpoint, seen[1].viewpoint))
    decision = agent.decide(state_after(agent), here)
    impossible = torch.tensor([[True, True, False]] * 2 + [[True, False, True]] * 2)
    assert torch.equal(decision.logits[:, seen[2].token_type.shape[1] :] == -torch.inf, impossible)
    assert decision.routes is not None
    assert torch.equal(decision.routes.viewpoints < 0, impossible)


def test_backtracking_can_be_disabled() -> None:
    seen = observations()[2]
    width = seen.token_type.shape[1]
    agents = (small(), small(allow_backtracking=False))
    free, bound = (agent.decide(state_after(agent), seen) for agent in agents)
    assert torch.equal(free.logits[:, :width], bound.logits[:, :width])
    assert (bound.logits[:, width:] == -torch.inf).all() and free.logits[:, width + 1 :].isfinite().all()
    assert bound.routes is not None and (bound.routes.viewpoints == -1).all()


# -- recurrence (spec D.4) --------------------------------------------------------------------------------


def test_outputs_are_the_inputs_of_the_next_step(agent: TDSTP) -> None:
    state, seen = state_after(agent, 1), observations()[1]
    encoded, decision = agent.encode(state, seen), agent.decide(state, seen)
    assert isinstance(decision.state, TdstpState)
    after = agent.advance(decision.state, seen, torch.zeros(4, dtype=torch.int64))
    assert_close(after.history[:, :-1], encoded.history)
    assert_close(after.target, encoded.target)
    assert not torch.allclose(after.history[:, :-1], state.history, atol=0.1)
    assert torch.equal(after.text, state.text)  # the encoded text stays the same at every step


def test_feature_dropout_does_not_apply_to_the_history() -> None:
    """PITFALLS 13."""
    agent, seen = small(dropout=0.0, head_dropout=0.0, critic_dropout=0.0).train(), observations()[0]
    state, chosen = agent.begin(random_words(), seen.viewpoint), torch.zeros(4, dtype=torch.int64)
    dropping = agent.advance(state, replace(seen, feature_dropout=0.9), chosen)
    assert torch.equal(dropping.history, agent.advance(state, seen, chosen).history)


# -- positions (spec D.2) ----------------------------------------------------------------------------------


def test_translating_the_scene_changes_no_decision(agent: TDSTP) -> None:
    by = torch.tensor([200.0, -70, 3])
    before = decisions_of(agent, observations())
    after = decisions_of(agent, [moved(observation, by) for observation in observations()])
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one.logits, other.logits, atol=2e-3, rtol=0)  # large positions lose digits
        goals = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)) * 9
        losses = agent.auxiliary_loss(one, goals), agent.auxiliary_loss(other, goals + by)
        torch.testing.assert_close(*losses, atol=1e-3, rtol=0)


def test_translating_the_current_viewpoint_changes_decisions(agent: TDSTP) -> None:
    seen = observations()
    translated = [seen[0], seen[1], moved(seen[2], torch.tensor([3.0, 0, 0]))]
    plain, other = decisions_of(agent, seen), decisions_of(agent, translated)
    assert torch.equal(plain[1].logits, other[1].logits)
    assert not torch.allclose(plain[2].logits, other[2].logits, atol=1e-2)


@pytest.mark.parametrize("positions", ["candidate", "agent"])
def test_candidate_positions_are_those_of_the_neighbour_or_of_the_agent(positions: str) -> None:
    agent, seen = small(candidate_position_source=positions), observations()[0]
    assert seen.positions is not None
    translated = replace(seen, positions=seen.positions + seen.is_candidate[..., None] * 4.0)
    state = state_after(agent, 0)
    is_equal = torch.equal(agent.decide(state, seen).logits, agent.decide(state, translated).logits)
    assert is_equal == (positions == "agent")


@pytest.mark.parametrize("enabled", [True, False])
def test_history_tokens_can_include_positions(enabled: bool) -> None:
    agent, seen = small(history_positions=enabled), observations()
    farther = [seen[0], moved(seen[1], torch.tensor([0.0, 2, 0]))]
    tokens = [state_after(agent, 2, path).history[:, -1] for path in (seen, farther)]
    assert torch.equal(*tokens) is not enabled


def test_an_observation_without_positions_is_refused() -> None:
    agent, seen = small(), replace(observations()[0], positions=None)
    with pytest.raises(ConfigError, match="needs positions"):
        agent.decide(state_after(agent, 0), seen)


# -- structure (spec D.6) ----------------------------------------------------------------------------------


def with_edges(state: TdstpState, linked: Tensor) -> TdstpState:
    return replace(state, edge_rank=functional.pad(linked.long(), (1, 0, 1, 0)).expand(4, -1, -1))


def test_structured_history_tokens_attend_only_to_neighbours() -> None:
    """With one cross layer, changing a history token affects exactly the tokens that attend to it."""
    agent, seen = small(structured=True, cross_layers=1, history_layers=0), observations()[2]
    linked = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 1, 1]], dtype=torch.bool)
    state = with_edges(state_after(agent, 3), linked)
    plain = agent.encode(state, seen, compute_all=True)
    for node in range(3):
        history = state.history.clone()
        history[:, node + 1] += torch.linspace(-2, 3, 24).square()
        other = agent.encode(replace(state, history=history), seen, compute_all=True)
        change = (plain.history - other.history).abs().amax((0, 2)) > 1e-5
        assert change.tolist() == [True, *linked[node].tolist()]
        assert ((plain.target - other.target).abs().amax(2) > 1e-6).all()
        assert ((plain.observation - other.observation)[seen.valid].abs().amax(1) > 1e-6).all()


def test_edges_matter_only_to_structured_agents() -> None:
    plain, structured, seen = small(), small(structured=True), observations()[2]
    state = state_after(plain)
    none = with_edges(state, torch.eye(2, dtype=torch.bool))
    complete = with_edges(state, torch.ones(2, 2, dtype=torch.bool))
    assert torch.equal(plain.encode(none, seen).node_logits, plain.encode(complete, seen).node_logits)
    one, other = (structured.encode(edges, seen).node_logits for edges in (none, complete))
    assert not torch.allclose(one, other, atol=1e-4)
    for name in ("logits", "node_logits", "goal_logits", "critic_input"):  # complete graph: no mask
        assert_close(*(getattr(agent.encode(complete, seen), name) for agent in (plain, structured)))
    first = [agent.decide(state_after(agent, 0), observations()[0]).logits for agent in (plain, structured)]
    assert_close(*first)


# -- settings ----------------------------------------------------------------------------------------------
