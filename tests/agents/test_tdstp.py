"""TD-STP: what is scored and guessed, what it thinks on with, and what changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from esceme.agents import TDSTP, Decision, TdstpConfig
from esceme.agents.base import num_choices
from esceme.agents.tdstp import TdstpState, grid_points
from esceme.errors import ConfigError
from esceme.observation import Observation
from fixtures.random_observations import SMALL_NETWORK, random_observation, random_words

COUNTS = [(4, 1, 7, 3), (2, 5, 1, 6), (3, 3, 8, 2)]
"""Candidates of four agents at three steps."""
SWITCHES: list[dict[str, Any]] = [
    {},
    {"language_cross_attention": False},
    {"structured": True, "history_layers": 1},
    {"map_history": False, "encode_panorama": False, "grid": 3, "action_input": "ob_txt_hist"},
]


def small(seed: int = 0, **changes: Any) -> TDSTP:
    sizes = {**SMALL_NETWORK, "initial_std": 0.1}
    torch.manual_seed(seed)
    agent = TDSTP(TdstpConfig(**(sizes | changes)))
    with torch.no_grad():
        for module in agent.modules():
            if isinstance(module, nn.Linear):
                module.bias.normal_(std=0.3)
    return agent.eval()


def sights() -> list[Observation]:
    return [random_observation(counts, seed=step) for step, counts in enumerate(COUNTS)]


def lived(agent: TDSTP, steps: int = 2, seen: list[Observation] | None = None) -> TdstpState:
    """The state after some steps, at each of which the first candidate was chosen."""
    seen = seen or sights()
    state = agent.begin(random_words(), seen[0].viewpoint)
    for each in seen[:steps]:
        state = agent.advance(state, each, torch.zeros(len(each), dtype=torch.int64))
    return state


def decided(agent: TDSTP, seen: list[Observation]) -> list[Decision]:
    return [agent.decide(lived(agent, step, seen), each) for step, each in enumerate(seen)]


def moved(observation: Observation, by: Tensor) -> Observation:
    assert observation.positions is not None
    return replace(observation, positions=observation.positions + by)


@pytest.fixture(params=SWITCHES, ids=lambda each: "-".join(each) or "plain")
def agent(request: pytest.FixtureRequest) -> TDSTP:
    return small(**request.param)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def assert_close(some: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(some, other, atol=1e-5, rtol=0)


# -- the target grid (spec D.3) ----------------------------------------------------------------------------


def test_the_grid_lies_around_the_start_column_by_column() -> None:
    points = grid_points(5, 6.0)
    assert points.shape == (25, 3)
    for i in range(5):
        for j in range(5):
            assert points[5 * i + j].tolist() == [-12 + 6 * i, -12 + 6 * j, 0]
    assert torch.equal(small().grid_points, points)
    assert grid_points(1, 6.0).tolist() == [[0, 0, 0]] and grid_points(0, 6.0).shape == (0, 3)


def test_a_token_of_the_grid_is_its_place_times_the_instruction() -> None:
    agent, words = small(grid=2, spacing=3.0), random_words()
    state = agent.begin(words, torch.zeros(4))
    points = torch.tensor([[-1.5, -1.5, 0], [-1.5, 1.5, 0], [1.5, -1.5, 0], [1.5, 1.5, 0]])
    assert_close(state.target, agent.position_encoder(points) * agent.encode_text(words)[:, :1])


@pytest.mark.parametrize("weight", [0.1, 2.0])
def test_the_aside_is_how_badly_the_nearest_point_is_guessed(weight: float) -> None:
    agent, seen = small(target_weight=weight), sights()
    decision = agent.decide(lived(agent), seen[2])
    start = seen[0].positions[torch.arange(4), seen[0].num_candidates]  # type: ignore[index]
    away = torch.tensor([[0.0, 0, 90], [5, -4, 0], [-100, 8, 1], [2.9, 3.1, -7]])
    nearest = torch.tensor([12, 5 * 3 + 1, 5 * 0 + 3, 5 * 2 + 3])  # height does not count
    assert decision.goal_logits is not None
    expected = -weight * decision.goal_logits.log_softmax(1)[torch.arange(4), nearest]
    assert_close(agent.auxiliary_loss(decision, start + away), expected)  # type: ignore[arg-type]


def test_without_a_grid_nothing_is_guessed() -> None:
    agent = small(grid=0)
    decision = agent.decide(lived(agent), sights()[2])
    assert decision.goal_logits is not None and decision.goal_logits.shape == (4, 0)
    assert agent.auxiliary_loss(decision, torch.zeros(4, 3)) is None
    assert decision.logits.isfinite().any(1).all()


# -- what is scored (spec D.5) -----------------------------------------------------------------------------


def test_candidates_stop_and_places_are_scored_by_one_head(agent: TDSTP) -> None:
    state, seen = lived(agent), sights()[2]
    whole, decision = agent.encode(state, seen, compute_all=True), agent.decide(state, seen)
    told, history = whole.text[:, :1], whole.history
    read = agent.config.language_cross_attention
    factor = {"ob_txt": told, "ob_txt_hist": told + history[:, :1]}[agent.config.action_input] if read else 1
    mapped = agent.history_mapper(history) if agent.config.map_history else history
    sight, back = (agent.action(each * factor).squeeze(2) for each in (whole.observation, mapped))
    width = seen.token_type.shape[1]
    assert decision.logits.shape == (4, width + 3) and decision.routes is not None
    assert decision.routes.first_action == width
    possible = torch.arange(width) <= seen.num_candidates[:, None]
    assert_close(decision.logits[:, :width], sight.masked_fill(~possible, -torch.inf))
    assert_close(decision.logits[:, width + 1 :], back[:, 1:])
    assert (decision.logits[:, width] == -torch.inf).all()  # the global token is no place
    states = whole.text[:, 0] * history[:, 0] if read else history[:, 0]
    assert decision.value is not None
    assert_close(decision.value, agent.critic(states).squeeze(1))
    whole_text = told if read else agent.text_per_layer(state.text, state.text_mask)[-1][:, :1]
    assert decision.goal_logits is not None
    assert_close(decision.goal_logits, agent.goal_head(whole.target * whole_text).squeeze(2))


def test_computing_everything_gives_the_same_numbers(agent: TDSTP) -> None:
    for step, seen in enumerate(sights()):
        state = lived(agent, step)
        packed, whole = agent.encode(state, seen), agent.encode(state, seen, compute_all=True)
        for name in ("logits", "node_logits", "critic_input", "goal_logits", "history", "target"):
            assert_close(getattr(packed, name), getattr(whole, name))
        assert whole.observation.shape[:2] == seen.token_type.shape
        choices = num_choices(seen)
        wanted = seen.token_type[:, :choices] != 0
        assert_close(packed.observation[wanted], whole.observation[:, :choices][wanted])


def test_where_an_agent_stands_is_no_place_to_go_back_to() -> None:
    agent, seen = small(), sights()
    state = lived(agent)
    here = replace(seen[2], viewpoint=torch.where(torch.arange(4) < 2, seen[0].viewpoint, seen[1].viewpoint))
    decision = agent.decide(state, here)
    shut = torch.tensor([[True, True, False]] * 2 + [[True, False, True]] * 2)
    assert torch.equal(decision.logits[:, seen[2].token_type.shape[1] :] == -torch.inf, shut)
    assert decision.routes is not None
    assert torch.equal(decision.routes.viewpoints < 0, shut)


def test_places_can_be_closed() -> None:
    open_, closed = (small(go_back=go_back) for go_back in (True, False))
    seen = sights()[2]
    width = seen.token_type.shape[1]
    free, bound = (each.decide(lived(each), seen) for each in (open_, closed))
    assert torch.equal(free.logits[:, :width], bound.logits[:, :width])
    assert (bound.logits[:, width:] == -torch.inf).all() and free.logits[:, width + 1 :].isfinite().all()
    assert bound.routes is not None and (bound.routes.viewpoints == -1).all()


# -- what is thought on with (spec D.4) --------------------------------------------------------------------


def test_what_comes_out_goes_in_at_the_next_step(agent: TDSTP) -> None:
    state, seen = lived(agent, 1), sights()[1]
    planned, decision = agent.encode(state, seen), agent.decide(state, seen)
    assert isinstance(decision.state, TdstpState)
    after = agent.advance(decision.state, seen, torch.zeros(4, dtype=torch.int64))
    assert_close(after.history[:, :-1], planned.history)
    assert_close(after.target, planned.target)
    assert not torch.allclose(after.history[:, :-1], state.history, atol=0.1)
    assert torch.equal(after.text, state.text)  # the text is read anew at each step


def test_a_batch_that_has_emptied_can_be_filled_again() -> None:
    agent, seen = small(), sights()
    decision = agent.decide(lived(agent, 1), seen[1])
    assert isinstance(decision.state, TdstpState)
    nobody = decision.state.select(torch.tensor([], dtype=torch.int64))
    begun = agent.begin(random_words(), seen[0].viewpoint)
    chosen = torch.zeros(4, dtype=torch.int64)
    again, plain = (agent.advance(each, seen[0], chosen) for each in (nobody.concat(begun), begun))
    assert torch.equal(agent.decide(again, seen[1]).logits, agent.decide(plain, seen[1]).logits)


def test_histories_are_not_dropped_from_in_training() -> None:
    """PITFALLS 13: features are dropped from what is seen, not from what is told of it."""
    agent, seen = small(dropout=0.0, head_dropout=0.0, critic_dropout=0.0).train(), sights()[0]
    state, chosen = agent.begin(random_words(), seen.viewpoint), torch.zeros(4, dtype=torch.int64)
    dropping = agent.advance(state, replace(seen, feature_dropout=0.9), chosen)
    assert torch.equal(dropping.history, agent.advance(state, seen, chosen).history)


# -- where things lie (spec D.2) ---------------------------------------------------------------------------


def test_moving_the_whole_building_changes_nothing(agent: TDSTP) -> None:
    by = torch.tensor([200.0, -70, 3])
    for here, there in zip(
        decided(agent, sights()), decided(agent, [moved(each, by) for each in sights()]), strict=True
    ):
        torch.testing.assert_close(here.logits, there.logits, atol=2e-3, rtol=0)  # metres lose digits
        goals = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)) * 9
        torch.testing.assert_close(
            agent.auxiliary_loss(here, goals), agent.auxiliary_loss(there, goals + by), atol=1e-3, rtol=0
        )


def test_moving_a_part_of_the_building_changes_decisions(agent: TDSTP) -> None:
    seen = sights()
    elsewhere = [seen[0], seen[1], moved(seen[2], torch.tensor([3.0, 0, 0]))]
    plain, other = decided(agent, seen), decided(agent, elsewhere)
    assert torch.equal(plain[1].logits, other[1].logits)
    assert not torch.allclose(plain[2].logits, other[2].logits, atol=1e-2)


@pytest.mark.parametrize("positions", ["there", "here"])
def test_candidates_lie_where_they_lead_or_where_the_agent_stands(positions: str) -> None:
    agent, seen = small(candidate_positions=positions), sights()[0]
    assert seen.positions is not None
    elsewhere = replace(seen, positions=seen.positions + seen.is_candidate[..., None] * 4.0)
    plain, other = (agent.decide(lived(agent, 0), each).logits for each in (seen, elsewhere))
    assert torch.equal(plain, other) == (positions == "here")


@pytest.mark.parametrize("known", [True, False])
def test_history_tokens_may_know_where_they_were(known: bool) -> None:
    agent, seen = small(history_positions=known), sights()
    farther = [seen[0], moved(seen[1], torch.tensor([0.0, 2, 0]))]
    tokens = [lived(agent, 2, each).history[:, -1] for each in (seen, farther)]
    assert torch.equal(*tokens) is not known
    assert_close(lived(agent, 1, seen).history[:, -1], lived(agent, 1, farther).history[:, -1])


def test_an_observation_without_places_is_refused() -> None:
    agent, seen = small(), replace(sights()[0], positions=None)
    with pytest.raises(ConfigError, match="needs positions"):
        agent.decide(lived(agent, 0), seen)


# -- structure (spec D.6) ----------------------------------------------------------------------------------


def with_links(state: TdstpState, linked: Tensor) -> TdstpState:
    return replace(state, edge_rank=functional.pad(linked.long(), (1, 0, 1, 0)).expand(4, -1, -1))


def test_a_place_attends_only_to_its_neighbours_and_all_else_to_everything() -> None:
    """With one cross layer, what one token changes in another has come by attention to it alone."""
    agent, seen = small(structured=True, cross_layers=1, history_layers=0), sights()[2]
    linked = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 1, 1]], dtype=torch.bool)
    state = with_links(lived(agent, 3), linked)
    plain = agent.encode(state, seen, compute_all=True)
    for place in range(3):
        history = state.history.clone()
        history[:, place + 1] += torch.linspace(-2, 3, 24).square()
        other = agent.encode(replace(state, history=history), seen, compute_all=True)
        change = (plain.history - other.history).abs().amax((0, 2)) > 1e-5
        assert change.tolist() == [True, *linked[place].tolist()]
        assert ((plain.target - other.target).abs().amax(2) > 1e-6).all()
        assert ((plain.observation - other.observation)[seen.valid].abs().amax(1) > 1e-6).all()


def test_the_release_ignores_structure() -> None:
    agent, seen = small(), sights()[2]
    linked = [torch.eye(2, dtype=torch.bool), torch.ones(2, 2, dtype=torch.bool)]
    none, all_ = (with_links(lived(agent), each) for each in linked)
    assert torch.equal(agent.encode(none, seen).node_logits, agent.encode(all_, seen).node_logits)
    structured = small(structured=True)
    assert not torch.allclose(
        structured.encode(none, seen).node_logits, structured.encode(all_, seen).node_logits, atol=1e-4
    )


def test_where_all_places_are_neighbours_structure_changes_nothing() -> None:
    plain, structured = small(), small(structured=True)
    state = with_links(lived(plain), torch.ones(2, 2, dtype=torch.bool))
    for name in ("logits", "node_logits", "goal_logits", "critic_input"):
        assert_close(*(getattr(each.encode(state, sights()[2]), name) for each in (plain, structured)))
    first = [agent.decide(lived(agent, 0), sights()[0]).logits for agent in (plain, structured)]
    assert_close(*first)


# -- settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": -1}, "grid -1"),
        ({"spacing": 0.0}, "spacing 0.0"),
        ({"target_weight": -0.1}, "target_weight: expected 0 or more"),
        ({"candidate_positions": "nowhere"}, "candidate_positions 'nowhere': expected one of there, here"),
        ({"history_mask": "none"}, "history_mask 'none': expected one of real, as-released"),
        ({"hidden": 25}, "25 is not divisible by 3 heads"),
    ],
)
def test_settings_that_mean_nothing_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(**changes)
