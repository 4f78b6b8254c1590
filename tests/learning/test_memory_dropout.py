"""Memory dropout: every mode hides what it should, and new observations are visible at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from esceme.learning.memory_dropout import MemoryDropout, TimeIndexedMemory, TrainingMemory
from esceme.memory import MemoryBank
from esceme.observation import Observation
from esceme.tasks.episode import Episode
from esceme.world import Pose
from fixtures.toy_atlas import build_toy_atlas, make_episode, small_navigator

ATLAS = build_toy_atlas()
MODES = ("as-released", "reset", "forgetting", "sampled")
EVERYWHERE = list(range(len(ATLAS)))
COTTAGE = [int(viewpoint) for viewpoint in ATLAS.locate("cottage", ATLAS.graphs["cottage"].viewpoints)]
SHED = [int(viewpoint) for viewpoint in ATLAS.locate("shed", ATLAS.graphs["shed"].viewpoints)]
IN_COTTAGE, IN_SHED = make_episode("hall", "door"), make_episode("hall", "door", scene="shed")


def make_memory(mode: Any, **settings: Any) -> TrainingMemory:
    return TrainingMemory(ATLAS, small_navigator().reader, MemoryDropout(mode=mode, **settings))


def complete_memory(mode: Any, **settings: Any) -> TrainingMemory:
    """Return a memory of all viewpoints."""
    memory = make_memory(mode, **settings)
    memory.bank.remember_at(EVERYWHERE)
    return memory


def begin(memory: TrainingMemory, *episodes: Episode, seed: int = 0) -> None:
    memory.begin_rollout(episodes or (IN_COTTAGE,), np.random.default_rng(seed))


def visible(memory: TrainingMemory, viewpoints: list[int] = EVERYWHERE) -> set[int]:
    """Return the viewpoints that can be recalled."""
    recalled = memory.recall_at(torch.tensor(viewpoints)).any(-1)
    return {viewpoint for viewpoint, known in zip(viewpoints, recalled.tolist(), strict=True) if known}


def remembered(memory: TrainingMemory) -> set[int]:
    return set(memory.bank.visited.nonzero().flatten().tolist())


def at(*viewpoints: int) -> Observation:
    return Observation.from_atlas(ATLAS, Pose(np.array(viewpoints), np.full(len(viewpoints), 12)))


def complete_features() -> Tensor:
    """Return the memory of all viewpoints, (P, D)."""
    bank = MemoryBank.from_atlas(ATLAS)
    bank.remember_all()
    return bank.recall_at(torch.tensor(EVERYWHERE))


# -- all modes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_new_observations_are_visible_for_the_rest_of_the_rollout(mode: str) -> None:
    memory = complete_memory(
        mode, full_probability=0.0, empty_probability=1.0, forget_probability=1.0, reset_after=1
    )
    begin(memory)
    begin(memory)  # now all modes but the first hide everything
    assert visible(memory, COTTAGE) == (set(COTTAGE) if mode == "as-released" else set())
    memory.remember_observation(at(COTTAGE[2], COTTAGE[4]))
    memory.remember_at([COTTAGE[5]])
    assert visible(memory, COTTAGE) >= {COTTAGE[2], COTTAGE[4], COTTAGE[5]}
    if mode != "as-released":
        assert visible(memory, COTTAGE) == {COTTAGE[2], COTTAGE[4], COTTAGE[5]}
    memory.remember_observation(at(COTTAGE[2]))  # a revisit changes nothing
    assert torch.equal(
        memory.recall_at(torch.tensor([COTTAGE[2], COTTAGE[5]])),
        complete_features()[[COTTAGE[2], COTTAGE[5]]],
    )


@pytest.mark.parametrize("mode", MODES)
def test_padding_and_unvisited_viewpoints_are_zeros(mode: str) -> None:
    memory = make_memory(mode, full_probability=1.0, empty_probability=0.0, forget_probability=0.0)
    begin(memory)
    memory.remember_observation(at(3))
    recalled = memory.recall_at(torch.tensor([[-1, 3, 4], [3, -1, -1]]))
    assert recalled.any(-1).tolist() == [[False, True, False], [True, False, False]]
    assert torch.equal(recalled[0, 1], complete_features()[3])


@pytest.mark.parametrize("mode", MODES)
def test_other_scenes_are_unchanged(mode: str) -> None:
    memory = complete_memory(
        mode, full_probability=0.0, empty_probability=1.0, forget_probability=1.0, reset_after=1
    )
    for _ in range(3):
        begin(memory, IN_COTTAGE)
    assert visible(memory, SHED) == set(SHED) <= remembered(memory)


@pytest.mark.parametrize("mode", MODES)
def test_resumed_memory_continues_identically(mode: str) -> None:
    memory = complete_memory(
        mode, full_probability=0.2, empty_probability=0.2, forget_probability=0.3, reset_after=3
    )
    begin(memory, IN_COTTAGE, IN_SHED)
    begin(memory, IN_COTTAGE)
    state = memory.state_dict()
    resumed = make_memory(
        mode, full_probability=0.2, empty_probability=0.2, forget_probability=0.3, reset_after=3
    )
    resumed.bank.remember_at([SHED[0]])  # is replaced
    resumed.load_state_dict(state)
    assert remembered(resumed) == remembered(memory)
    for seed in range(4):
        for other in (memory, resumed):
            begin(other, IN_COTTAGE, IN_SHED, seed=seed)
            other.remember_observation(at(COTTAGE[seed]))
        everywhere = torch.tensor(EVERYWHERE)
        assert torch.equal(memory.recall_at(everywhere), resumed.recall_at(everywhere))
        assert str(memory.state_dict()) == str(resumed.state_dict())


def test_state_dict_is_a_copy() -> None:
    memory = make_memory("as-released")
    begin(memory)
    memory.remember_observation(at(0))
    state = memory.state_dict()
    memory.remember_observation(at(1))
    begin(memory)
    assert state["visited"].tolist() == [0]


# -- single modes -----------------------------------------------------------------------------------------


def test_as_released_forgets_nothing() -> None:
    memory = make_memory(
        "as-released", reset_after=1, forget_probability=1.0, full_probability=0.0, empty_probability=1.0
    )
    visited: set[int] = set()
    for seed, viewpoint in enumerate([*COTTAGE, *SHED] * 3):
        begin(memory, IN_COTTAGE, IN_SHED, seed=seed)
        memory.remember_observation(at(viewpoint))
        visited.add(viewpoint)
        assert visible(memory) == remembered(memory) == visited
    assert visited == set(EVERYWHERE)


def test_reset_clears_a_scene_after_reset_after_episodes() -> None:
    memory = complete_memory("reset", reset_after=4)
    begin(memory, IN_COTTAGE, IN_COTTAGE, IN_SHED)
    begin(memory, IN_COTTAGE, IN_COTTAGE)
    assert remembered(memory) == set(EVERYWHERE)  # exactly four episodes
    begin(memory, IN_COTTAGE, IN_SHED)
    assert remembered(memory) == set(SHED)
    memory.remember_observation(at(COTTAGE[1]))
    begin(memory, IN_COTTAGE, IN_COTTAGE, IN_COTTAGE)  # the count restarted
    assert visible(memory) == {COTTAGE[1], *SHED}
    begin(memory, IN_COTTAGE, IN_SHED)
    assert remembered(memory) == set(SHED)


def test_forgetting_is_permanent_and_independent_per_viewpoint() -> None:
    left = []
    for seed in range(300):
        memory = complete_memory("forgetting", forget_probability=0.3)
        begin(memory, seed=seed)
        assert visible(memory) == remembered(memory) >= set(SHED)
        left.append(len(remembered(memory) & set(COTTAGE)))
    # 300 rollouts of 7 viewpoints: the standard deviation of the mean is 0.01.
    assert np.mean(left) / len(COTTAGE) == pytest.approx(0.7, abs=0.04)
    assert np.var(left) == pytest.approx(7 * 0.3 * 0.7, rel=0.25)
    memory = complete_memory("forgetting", forget_probability=0.3)
    before = set(COTTAGE)
    for seed in range(40):
        begin(memory, seed=seed)
        now = remembered(memory) & set(COTTAGE)
        assert now <= before
        before = now
    assert not before


def test_viewpoints_that_were_not_forgotten_are_unchanged() -> None:
    memory = complete_memory("forgetting", forget_probability=0.5)
    begin(memory)
    remaining = sorted(remembered(memory))
    assert set(SHED) < set(remaining) < set(EVERYWHERE)
    assert torch.equal(memory.recall_at(torch.tensor(remaining)), complete_features()[remaining])


def test_sampled_hides_for_one_rollout_and_forgets_nothing() -> None:
    memory = complete_memory("sampled")
    seen: set[int] = set()
    for seed in range(30):
        begin(memory, seed=seed)
        seen |= visible(memory, COTTAGE)
        assert remembered(memory) == set(EVERYWHERE)
    assert seen == set(COTTAGE)


def test_sampled_fraction_is_full_empty_or_uniform() -> None:
    memory = complete_memory("sampled", full_probability=0.3, empty_probability=0.1)
    counts = np.zeros(len(COTTAGE) + 1)
    rollouts = 2000
    for seed in range(rollouts):
        begin(memory, seed=seed)
        counts[len(visible(memory, COTTAGE))] += 1
    # A uniform fraction makes all counts of 7 viewpoints equally likely: 0.6 / 8 each.
    expected = np.full(len(COTTAGE) + 1, 0.6 / 8)
    expected[[0, -1]] += [0.1, 0.3]
    np.testing.assert_allclose(counts / rollouts, expected, atol=0.035)


def test_scenes_of_a_rollout_are_sampled_independently() -> None:
    memory = complete_memory("sampled", full_probability=0.5, empty_probability=0.5)
    combinations = set()
    for seed in range(40):
        begin(memory, IN_COTTAGE, IN_SHED, seed=seed)
        combinations.add((bool(visible(memory, COTTAGE)), bool(visible(memory, SHED))))
    assert len(combinations) == 4


# -- subgraphs and trajectories that are known in advance --------------------------------------------------


def known(memory: TrainingMemory | TimeIndexedMemory, *viewpoints: int) -> list[set[int]]:
    """Return the viewpoints in the subgraph of each agent, and check their features."""
    subgraph = memory.scene_subgraph(torch.tensor(viewpoints))
    assert torch.equal(subgraph.features, complete_features()[subgraph.viewpoints])
    return [set(subgraph.viewpoints[row].tolist()) for row in subgraph.known]


@pytest.mark.parametrize("mode", MODES)
def test_subgraph_holds_the_visible_viewpoints(mode: str) -> None:
    for seed in range(5):
        memory = complete_memory(mode, full_probability=0.2, empty_probability=0.2, forget_probability=0.5)
        begin(memory, IN_COTTAGE, IN_SHED, seed=seed)
        for _ in range(2):
            expected = [visible(memory) & set(scene) for scene in (COTTAGE, SHED)]
            assert known(memory, COTTAGE[0], SHED[0]) == expected
            memory.remember_observation(at(COTTAGE[2], SHED[1]))


@pytest.mark.parametrize("mode", MODES)
def test_time_indexed_memory_equals_the_memory_of_a_rollout(mode: str) -> None:
    """Two trajectories of four steps: features and subgraph at each step, and the memory at the end."""
    hall, door, kitchen, pantry = (
        int(viewpoint) for viewpoint in ATLAS.locate("cottage", ["hall", "door", "kitchen", "pantry"])
    )
    steps = [(hall, SHED[0]), (door, SHED[1]), (hall, pantry), (kitchen, SHED[1])]
    viewpoints, step_index = torch.tensor(steps).flatten(), torch.arange(4).repeat_interleave(2)
    everywhere = torch.tensor([*EVERYWHERE, -1]).expand(len(viewpoints), -1)
    settings = {"full_probability": 0.0, "empty_probability": 0.0, "forget_probability": 0.4}
    for seed in range(6):
        rollout, at_once, stepwise = (make_memory(mode, reset_after=1, **settings) for _ in range(3))
        for memory in (rollout, at_once, stepwise):
            memory.bank.remember_at([door, pantry, SHED[1]])
            begin(memory, IN_COTTAGE, IN_SHED, seed=seed)
        view = at_once.remember_trajectories(viewpoints, step_index)
        features, subgraphs = view.recall_at(everywhere), known(view, *viewpoints.tolist())
        step_view = stepwise.remember_trajectories(viewpoints, step_index, stepwise=True)
        for step, positions in enumerate(steps):
            rows = slice(2 * step, 2 * step + 2)
            expected = rollout.recall_at(everywhere[:2])
            assert torch.equal(features[rows], expected)
            assert torch.equal(step_view.recall_at(everywhere[:2]), expected)
            assert subgraphs[rows] == known(rollout, *positions) == known(step_view, *positions)
            rollout.remember_observation(at(*positions))
            step_view.remember_observation(at(*positions))
        assert remembered(rollout) == remembered(at_once) == remembered(stepwise)
        assert visible(rollout) == visible(at_once) == visible(stepwise)
