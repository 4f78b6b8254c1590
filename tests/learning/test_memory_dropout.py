"""How complete a memory is in training: every way does what it says, and what is seen meanwhile is shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from esceme.errors import ConfigError
from esceme.learning.memory_dropout import MemoryDropout, TimeIndexedMemory, TrainingMemory
from esceme.memory import MemoryBank
from esceme.observation import Observation
from esceme.tasks.episode import Episode
from esceme.world import Pose
from fixtures.toy_atlas import cottage, small_navigator, walk_of

ATLAS = cottage()
MODES = ("as-released", "reset", "forgetting", "sampled")
EVERYWHERE = list(range(len(ATLAS)))
COTTAGE = [int(each) for each in ATLAS.locate("cottage", ATLAS.graphs["cottage"].viewpoints)]
SHED = [int(each) for each in ATLAS.locate("shed", ATLAS.graphs["shed"].viewpoints)]
IN_COTTAGE, IN_SHED = walk_of("hall", "door"), walk_of("hall", "door", scene="shed")


def memory_of(mode: Any, **settings: Any) -> TrainingMemory:
    return TrainingMemory(ATLAS, small_navigator().reader, MemoryDropout(mode=mode, **settings))


def complete(mode: Any, **settings: Any) -> TrainingMemory:
    """A memory of every place."""
    memory = memory_of(mode, **settings)
    memory.bank.remember_at(EVERYWHERE)
    return memory


def begin(memory: TrainingMemory, *episodes: Episode, seed: int = 0) -> None:
    memory.begin_rollout(episodes or (IN_COTTAGE,), np.random.default_rng(seed))


def shown(memory: TrainingMemory, places: list[int] = EVERYWHERE) -> set[int]:
    """The places of which something is recalled."""
    recalled = memory.recall_at(torch.tensor(places)).any(-1)
    return {place for place, known in zip(places, recalled.tolist(), strict=True) if known}


def kept(memory: TrainingMemory) -> set[int]:
    return set(memory.bank.visited.nonzero().flatten().tolist())


def at(*places: int) -> Observation:
    return Observation.from_atlas(ATLAS, Pose(np.array(places), np.full(len(places), 12)))


def whole() -> Tensor:
    """What is to be remembered of every place."""
    bank = MemoryBank.from_atlas(ATLAS)
    bank.remember_all()
    return bank.recall_at(torch.tensor(EVERYWHERE))


# -- all ways ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_what_is_remembered_during_a_rollout_is_shown_from_then_on(mode: str) -> None:
    memory = complete(
        mode, full_probability=0.0, empty_probability=1.0, forget_probability=1.0, reset_after=1
    )
    begin(memory)
    begin(memory)  # by now all but the first way show nothing
    assert shown(memory, COTTAGE) == (set(COTTAGE) if mode == "as-released" else set())
    memory.remember_observation(at(COTTAGE[2], COTTAGE[4]))
    memory.remember_at([COTTAGE[5]])
    assert shown(memory, COTTAGE) >= {COTTAGE[2], COTTAGE[4], COTTAGE[5]}
    if mode != "as-released":
        assert shown(memory, COTTAGE) == {COTTAGE[2], COTTAGE[4], COTTAGE[5]}
    memory.remember_observation(at(COTTAGE[2]))  # coming by again changes nothing
    assert torch.equal(
        memory.recall_at(torch.tensor([COTTAGE[2], COTTAGE[5]])), whole()[[COTTAGE[2], COTTAGE[5]]]
    )


@pytest.mark.parametrize("mode", MODES)
def test_nowhere_and_places_nobody_has_been_to_are_zeros(mode: str) -> None:
    memory = memory_of(mode, full_probability=1.0, empty_probability=0.0, forget_probability=0.0)
    begin(memory)
    memory.remember_observation(at(3))
    recalled = memory.recall_at(torch.tensor([[-1, 3, 4], [3, -1, -1]]))
    assert recalled.any(-1).tolist() == [[False, True, False], [True, False, False]]
    assert torch.equal(recalled[0, 1], whole()[3])


@pytest.mark.parametrize("mode", MODES)
def test_other_scenes_are_left_alone(mode: str) -> None:
    memory = complete(
        mode, full_probability=0.0, empty_probability=1.0, forget_probability=1.0, reset_after=1
    )
    for _ in range(3):
        begin(memory, IN_COTTAGE)
    assert shown(memory, SHED) == set(SHED) <= kept(memory)


@pytest.mark.parametrize("mode", MODES)
def test_a_resumed_memory_goes_on_as_the_one_that_was_kept(mode: str) -> None:
    memory = complete(
        mode, full_probability=0.2, empty_probability=0.2, forget_probability=0.3, reset_after=3
    )
    begin(memory, IN_COTTAGE, IN_SHED)
    begin(memory, IN_COTTAGE)
    state = memory.state_dict()
    resumed = memory_of(
        mode, full_probability=0.2, empty_probability=0.2, forget_probability=0.3, reset_after=3
    )
    resumed.bank.remember_at([SHED[0]])  # what it knew before does not count
    resumed.load_state_dict(state)
    assert kept(resumed) == kept(memory)
    for seed in range(4):
        for each in (memory, resumed):
            begin(each, IN_COTTAGE, IN_SHED, seed=seed)
            each.remember_observation(at(COTTAGE[seed]))
        everywhere = torch.tensor(EVERYWHERE)
        assert torch.equal(memory.recall_at(everywhere), resumed.recall_at(everywhere))
        assert str(memory.state_dict()) == str(resumed.state_dict())


def test_a_state_does_not_change_when_more_is_remembered() -> None:
    memory = memory_of("as-released")
    begin(memory)
    memory.remember_observation(at(0))
    state = memory.state_dict()
    memory.remember_observation(at(1))
    begin(memory)
    assert state["visited"].tolist() == [0]


# -- one by one --------------------------------------------------------------------------------------------


def test_as_released_nothing_is_ever_forgotten() -> None:
    memory = memory_of(
        "as-released", reset_after=1, forget_probability=1.0, full_probability=0.0, empty_probability=1.0
    )
    lived: set[int] = set()
    for seed, place in enumerate([*COTTAGE, *SHED] * 3):
        begin(memory, IN_COTTAGE, IN_SHED, seed=seed)
        memory.remember_observation(at(place))
        lived.add(place)
        assert shown(memory) == kept(memory) == lived
    assert lived == set(EVERYWHERE)


def test_reset_forgets_a_scene_after_so_many_episodes_in_it() -> None:
    memory = complete("reset", reset_after=4)
    begin(memory, IN_COTTAGE, IN_COTTAGE, IN_SHED)
    begin(memory, IN_COTTAGE, IN_COTTAGE)
    assert kept(memory) == set(EVERYWHERE)  # four episodes are being lived in the cottage, none is too many
    begin(memory, IN_COTTAGE, IN_SHED)
    assert kept(memory) == set(SHED)
    memory.remember_observation(at(COTTAGE[1]))
    begin(memory, IN_COTTAGE, IN_COTTAGE, IN_COTTAGE)  # the count began anew: one so far
    assert shown(memory) == {COTTAGE[1], *SHED}
    begin(memory, IN_COTTAGE, IN_SHED)
    assert kept(memory) == set(SHED)


def test_forgetting_is_for_good_and_by_the_share() -> None:
    left = []
    for seed in range(300):
        memory = complete("forgetting", forget_probability=0.3)
        begin(memory, seed=seed)
        assert shown(memory) == kept(memory) >= set(SHED)
        left.append(len(kept(memory) & set(COTTAGE)))
    # 300 times 7 places: the share that is left has a standard deviation of 0.01.
    assert np.mean(left) / len(COTTAGE) == pytest.approx(0.7, abs=0.04)
    assert np.var(left) == pytest.approx(7 * 0.3 * 0.7, rel=0.25)  # each place by itself
    memory = complete("forgetting", forget_probability=0.3)
    before = set(COTTAGE)
    for seed in range(40):
        begin(memory, seed=seed)
        now = kept(memory) & set(COTTAGE)
        assert now <= before
        before = now
    assert not before


def test_places_that_were_not_forgotten_are_as_they_were() -> None:
    memory = complete("forgetting", forget_probability=0.5)
    begin(memory)
    still = sorted(kept(memory))
    assert set(SHED) < set(still) < set(EVERYWHERE)
    assert torch.equal(memory.recall_at(torch.tensor(still)), whole()[still])


def test_drawn_hides_for_one_rollout_and_forgets_nothing() -> None:
    memory = complete("sampled")
    seen: set[int] = set()
    for seed in range(30):
        begin(memory, seed=seed)
        seen |= shown(memory, COTTAGE)
        assert kept(memory) == set(EVERYWHERE)
    assert seen == set(COTTAGE)


def test_drawn_shares_are_all_nothing_or_drawn_evenly() -> None:
    """One share for a scene and a rollout: of few places it can be told only roughly, of many well."""
    memory = complete("sampled", full_probability=0.3, empty_probability=0.1)
    counts = np.zeros(len(COTTAGE) + 1)
    rollouts = 2000
    for seed in range(rollouts):
        begin(memory, seed=seed)
        counts[len(shown(memory, COTTAGE))] += 1
    # Of an even share, every number of 7 places is as likely: 0.6 / 8 each.
    expected = np.full(len(COTTAGE) + 1, 0.6 / 8)
    expected[[0, -1]] += [0.1, 0.3]
    np.testing.assert_allclose(counts / rollouts, expected, atol=0.035)


@pytest.mark.parametrize(("full", "empty", "expected"), [(1.0, 0.0, set(COTTAGE)), (0.0, 1.0, set())])
def test_drawn_may_show_always_all_or_always_nothing(full: float, empty: float, expected: set[int]) -> None:
    memory = complete("sampled", full_probability=full, empty_probability=empty)
    for seed in range(20):
        begin(memory, seed=seed)
        assert shown(memory, COTTAGE) == expected


def test_scenes_of_a_rollout_have_shares_of_their_own() -> None:
    memory = complete("sampled", full_probability=0.5, empty_probability=0.5)
    found = set()
    for seed in range(40):
        begin(memory, IN_COTTAGE, IN_SHED, seed=seed)
        found.add((bool(shown(memory, COTTAGE)), bool(shown(memory, SHED))))
    assert len(found) == 4


def test_the_same_draw_shows_the_same() -> None:
    one, other = complete("sampled"), complete("sampled")
    for seed in range(10):
        for memory in (one, other):
            begin(memory, IN_SHED, IN_COTTAGE, seed=seed)
        assert shown(one) == shown(other)


# -- rollouts that are known beforehand --------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_memory_that_foresees_gives_what_one_that_walks_would(mode: str) -> None:
    """Two walks of four steps: what is recalled at each, of every place, and what is left in the end."""
    hall, door, garden, kitchen, pantry = (
        int(each) for each in ATLAS.locate("cottage", ["hall", "door", "garden", "kitchen", "pantry"])
    )
    steps = [(hall, kitchen), (door, hall), (hall, pantry), (garden, hall)]
    for seed in range(6):
        walking, at_once, by_step = (
            memory_of(
                mode, full_probability=0.0, empty_probability=0.0, forget_probability=0.4, reset_after=1
            )
            for _ in range(3)
        )
        for memory in (walking, at_once, by_step):
            memory.bank.remember_at([door, pantry])
            begin(memory, seed=seed)
        places = torch.tensor([place for step in steps for place in step])
        when = torch.arange(len(steps)).repeat_interleave(2)
        foreseen = at_once.remember_trajectories(places, when)
        everywhere = torch.tensor([*EVERYWHERE, -1]).expand(len(places), -1)
        all_at_once = foreseen.recall_at(everywhere).view(len(steps), 2, len(ATLAS) + 1, -1)
        going = by_step.remember_trajectories(places, when, stepwise=True)
        for step, standing in enumerate(steps):
            expected = walking.recall_at(everywhere[:2])
            assert torch.equal(all_at_once[step], expected)
            assert torch.equal(going.recall_at(everywhere[:2]), expected)
            walking.remember_observation(at(*standing))
            going.remember_observation(at(*standing))
        assert kept(walking) == kept(at_once) == kept(by_step)
        assert shown(walking) == shown(at_once) == shown(by_step)


# -- the graph around agents -------------------------------------------------------------------------------


def known(memory: TrainingMemory | TimeIndexedMemory, *standing: int) -> list[set[int]]:
    """The places that each agent knows of its scene, and what it knows of them is what is recalled."""
    around = memory.scene_subgraph(torch.tensor(standing))
    assert torch.equal(around.features, whole()[around.viewpoints])
    return [set(around.viewpoints[row].tolist()) for row in around.known]


@pytest.mark.parametrize("mode", MODES)
def test_surroundings_are_the_places_that_are_shown(mode: str) -> None:
    for seed in range(5):
        memory = complete(mode, full_probability=0.2, empty_probability=0.2, forget_probability=0.5)
        begin(memory, IN_COTTAGE, IN_SHED, seed=seed)
        for _ in range(2):
            expected = [shown(memory) & set(scene) for scene in (COTTAGE, SHED)]
            assert known(memory, COTTAGE[0], SHED[0]) == expected
            memory.remember_observation(at(COTTAGE[2], SHED[1]))


@pytest.mark.parametrize("mode", MODES)
def test_foreseen_surroundings_are_those_of_walking(mode: str) -> None:
    """Each row knows what was remembered at its own step, and what the shown memory held before."""
    hall, door, kitchen, pantry = (
        int(each) for each in ATLAS.locate("cottage", ["hall", "door", "kitchen", "pantry"])
    )
    steps = [(hall, SHED[0]), (door, SHED[1]), (hall, SHED[0]), (kitchen, SHED[1])]
    for seed in range(4):
        walking, at_once, by_step = (
            memory_of(
                mode, full_probability=0.0, empty_probability=0.0, forget_probability=0.4, reset_after=1
            )
            for _ in range(3)
        )
        for memory in (walking, at_once, by_step):
            memory.bank.remember_at([door, pantry, SHED[1]])
            begin(memory, IN_COTTAGE, IN_SHED, seed=seed)
        places = torch.tensor([place for step in steps for place in step])
        when = torch.arange(len(steps)).repeat_interleave(2)
        found = known(at_once.remember_trajectories(places, when), *places.tolist())
        going = by_step.remember_trajectories(places, when, stepwise=True)
        for step, standing in enumerate(steps):
            expected = known(walking, *standing)
            assert found[2 * step : 2 * step + 2] == expected == known(going, *standing)
            walking.remember_observation(at(*standing))
            going.remember_observation(at(*standing))


# -- settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "sometimes"}, "mode 'sometimes': expected one of as-released, reset, forgetting, sampled"),
        ({"reset_after": 0}, "reset_after: expected at least 1 episode, found 0"),
        ({"forget_probability": 1.5}, "forget_probability: expected a number from 0 to 1, found 1.5"),
        ({"full_probability": -0.1}, "full_probability: expected a number from 0 to 1, found -0.1"),
        ({"empty_probability": float("nan")}, "empty_probability: expected a number from 0 to 1, found nan"),
        (
            {"full_probability": 0.7, "empty_probability": 0.4},
            "full_probability 0.7 and empty_probability 0.4: expected a sum of at most 1",
        ),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MemoryDropout(**settings)
