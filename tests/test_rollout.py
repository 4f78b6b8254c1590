"""The loop: in what order a step happens, who leaves and who takes the place, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from esceme import rollout
from esceme.agents.base import Decision, PrivilegedInfo, State, TokenBatch
from esceme.agents.scripted import ShortestPath, StopAtOnce
from esceme.evaluation.result import named_poses
from esceme.memory import MemoryBank, NoMemory
from esceme.metrics import score
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.rollout import roll_out
from esceme.tasks import Prediction, TrajectoryPoint
from esceme.tasks.episode import Episode
from esceme.trajectory import Trajectory, greedy, sampling, teacher_by_step, teacher_forcing
from fixtures.backtracking_agent import Homesick, HomesickState, told
from fixtures.toy_atlas import (
    WIDTH,
    build_toy_atlas,
    encode,
    make_episode,
    plain_navigator,
    run_batch,
    small_navigator,
)

ATLAS = build_toy_atlas()
TO_GARDEN = make_episode("hall", "door", "garden", name="0_0")
TO_ATTIC = make_episode("hall", "landing", "attic", name="1_0")
STAY = make_episode("kitchen", name="2_0")
TO_PANTRY = make_episode("attic", "landing", "hall", "pantry", name="3_0")
ALL = [TO_GARDEN, TO_ATTIC, STAY, TO_PANTRY]


class Told(Navigator):
    """A navigator that writes down what is asked of it."""

    def __init__(self, diary: list[str], navigator: Navigator) -> None:
        super().__init__(navigator.agent, navigator.reader)
        self.diary = diary

    def begin(self, words: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None) -> State:
        self.diary.append(f"begin {len(start)}")
        return super().begin(words, start, privileged)

    def observe(self, observation: Observation, memory: Any) -> Observation:
        self.diary.append("see")
        return super().observe(observation, memory)

    def decide(self, state: State, seen: Observation) -> Decision:
        self.diary.append("decide")
        return super().decide(state, seen)

    def advance(self, state: State, seen: Observation, chosen: Tensor) -> State:
        self.diary.append(f"advance {len(chosen)}")
        return super().advance(state, seen, chosen)


class Diary(MemoryBank):
    """A bank that writes down what is asked of it."""

    diary: list[str]

    @classmethod
    def written_into(cls, diary: list[str]) -> Diary:
        bank = cls(WIDTH, source="by-hand.hdf5")
        bank.bind(ATLAS)
        bank.diary = diary
        return bank

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        self.diary.append("recall")
        return super().recall_at(viewpoints)

    def remember_observation(self, observation: Observation) -> None:
        names = [ATLAS.name(each)[1] for each in observation.viewpoint.tolist()]
        self.diary.append(f"remember {' '.join(names)}")
        super().remember_observation(observation)


class Refilling:
    """A source with two slots, whose episodes follow each other."""

    def __init__(self, episodes: Sequence[Episode], slots: int = 2) -> None:
        self.waiting, self.slots = list(episodes), slots
        self.asked: list[tuple[list[str], list[str]]] = []

    def next(self, finished: Sequence[Trajectory], living: Sequence[Trajectory]) -> Sequence[Trajectory]:
        self.asked.append((ids(finished), ids(living)))
        free = self.slots - len(living)
        begun, self.waiting = self.waiting[:free], self.waiting[free:]
        return [Trajectory.begin(ATLAS, episode) for episode in begun]


def ids(walks: Sequence[Trajectory]) -> list[str]:
    return [walk.episode.episode_id for walk in walks]


def places(walk: Trajectory) -> list[str]:
    return [ATLAS.name(viewpoint)[1] for viewpoint, _ in walk.poses]


def test_a_step_is_read_decide_remember_move() -> None:
    diary: list[str] = []
    bank = Diary.written_into(diary)
    choose = teacher_forcing(ATLAS, teacher_by_step(ATLAS))

    def chosen(decision: Decision, observation: Observation, walks: Sequence[Trajectory]) -> Tensor:
        diary.append("choose")
        return choose(decision, observation, walks)

    steps = run_batch(Told(diary, small_navigator()), ATLAS, [TO_GARDEN, STAY], bank, choose=chosen)
    for step in steps:
        diary.append("told " + " ".join(places(walk)[-1] for walk in step.trajectories))
    assert diary == [
        *["begin 2", "see", "recall", "decide", "choose", "remember hall kitchen", "told door kitchen"],
        *["advance 1", "see", "recall", "decide", "choose", "remember door", "told garden"],
        *["advance 1", "see", "recall", "decide", "choose", "remember garden", "told garden"],
    ]


def test_stopping_keeps_the_place_and_the_view() -> None:
    *_, last = run_batch(plain_navigator(), ATLAS, [make_episode("hall", "landing")], None)
    (walk,) = last.finished
    assert places(walk) == ["hall", "landing"]
    assert (walk.num_decisions, walk.stopped) == (2, True)
    assert walk.poses[-1] == (walk.viewpoint, 30)


def test_a_walk_ends_at_the_limit_where_its_last_move_led() -> None:
    *_, last = run_batch(plain_navigator(), ATLAS, [TO_PANTRY, STAY], None, max_steps=2)
    (walk,) = last.finished
    assert places(walk) == ["attic", "landing", "hall"]
    assert (walk.num_decisions, walk.stopped) == (2, False)


def test_stopping_with_the_last_decision_is_stopping() -> None:
    *_, last = run_batch(plain_navigator(), ATLAS, [TO_GARDEN], None, max_steps=3)
    assert last.finished[0].stopped


def test_who_ends_leaves_and_the_others_keep_their_order() -> None:
    lived = [
        (
            [walk.episode.episode_id for walk in step.trajectories],
            [walk.episode.episode_id for walk in step.finished],
        )
        for step in run_batch(plain_navigator(), ATLAS, ALL, None)
    ]
    assert lived == [
        (["0_0", "1_0", "2_0", "3_0"], ["2_0"]),
        (["0_0", "1_0", "3_0"], []),
        (["0_0", "1_0", "3_0"], ["0_0", "1_0"]),
        (["3_0"], ["3_0"]),
    ]


def test_a_free_slot_is_refilled_before_the_next_step() -> None:
    source = Refilling([STAY, TO_GARDEN, TO_ATTIC, TO_PANTRY])
    choose = teacher_forcing(ATLAS, teacher_by_step(ATLAS))
    living = [
        ids(step.trajectories)
        for step in roll_out(plain_navigator(), ATLAS, source, None, choose, encode=encode, max_steps=9)
    ]
    assert living == [
        *[["2_0", "0_0"], ["0_0", "1_0"], ["0_0", "1_0"], ["1_0", "3_0"]],
        *[["3_0"], ["3_0"], ["3_0"]],
    ]
    assert source.asked[0] == ([], []) and source.asked[-1] == (["3_0"], [])
    assert source.asked[1] == (["2_0"], ["0_0"])


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_refilled_slots_decide_as_walks_that_are_alone(slots: int) -> None:
    navigator = plain_navigator()
    choose = teacher_forcing(ATLAS, teacher_by_step(ATLAS))
    with torch.inference_mode():
        for step in roll_out(
            navigator, ATLAS, Refilling(ALL, slots), None, choose, encode=encode, max_steps=9
        ):
            for row, walk in enumerate(step.trajectories):
                *_, alone = (
                    each
                    for each, _ in zip(
                        run_batch(navigator, ATLAS, [walk.episode], None),
                        range(walk.num_decisions),
                        strict=False,
                    )
                )
                logits = alone.decision.logits[0]
                torch.testing.assert_close(
                    step.decision.logits[row, : len(logits)], logits, atol=1e-5, rtol=0
                )


def test_nobody_walks_where_there_are_no_episodes() -> None:
    source = Refilling([])
    assert list(roll_out(plain_navigator(), ATLAS, source, None, greedy, encode=encode, max_steps=3)) == []
    assert source.asked == [([], [])]


def test_what_is_told_is_what_was_seen_and_chosen() -> None:
    for step in run_batch(small_navigator(), ATLAS, ALL, MemoryBank.from_atlas(ATLAS)):
        before = [walk.poses[-1 if walk.stopped else -2] for walk in step.trajectories]
        assert step.observation.viewpoint.tolist() == [viewpoint for viewpoint, _ in before]
        assert step.observation.facing_view.tolist() == [view for _, view in before]
        assert step.observation.features is not step.observation.raw_features
        for row, walk in enumerate(step.trajectories):
            if not walk.stopped:
                assert int(step.observation.neighbour[row, step.actions[row]]) == walk.viewpoint


@pytest.mark.parametrize("choose", [greedy, sampling(3)], ids=["greedy", "sampling"])
def test_walks_do_not_depend_on_who_walks_beside_them(choose: Callable[..., Tensor]) -> None:
    navigator = plain_navigator(seed=4)
    with torch.inference_mode():
        together = {
            walk.episode.episode_id: walk.poses
            for step in run_batch(navigator, ATLAS, ALL, None, choose=choose)
            for walk in step.finished
        }
        alone = {
            walk.episode.episode_id: walk.poses
            for episode in ALL
            for step in run_batch(navigator, ATLAS, [episode], None, choose=choose)
            for walk in step.finished
        }
    assert together == alone
    assert len({tuple(poses) for poses in together.values()}) == 4


def test_scripted_agents_are_told_the_goals() -> None:
    guide = Navigator(ShortestPath(), NoMemory())
    nearest = replace(make_episode("hall", "pantry", name="4_0"), goals=("attic", "garden"))
    ended = [
        walk
        for step in run_batch(guide, ATLAS, [TO_PANTRY, nearest], None, choose=greedy)
        for walk in step.finished
    ]
    assert {walk.episode.episode_id: places(walk) for walk in ended} == {
        "3_0": ["attic", "landing", "hall", "pantry"],
        "4_0": ["hall", "door", "garden"],
    }


def test_nobody_is_told_a_goal_that_is_withheld() -> None:
    heard = []

    class Curious(StopAtOnce):
        def begin(self, words: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None) -> Any:
            heard.append(privileged)
            return super().begin(words, start, privileged)

    withheld = replace(make_episode("hall"), goal_withheld=True)
    list(run_batch(Navigator(Curious(), NoMemory()), ATLAS, [withheld, TO_PANTRY], None, choose=greedy))
    assert heard == [None]


# -- going back --------------------------------------------------------------------------------------------

FORTH = make_episode("hall", "landing", "attic", name="0_0")
ORDERS = {
    "0_0": ["landing", "attic", "back to hall", "pantry", "back to attic", "stop"],
    "1_0": ["door", "stop"],
    "2_0": ["pantry", "hall", "back to kitchen", "hall"],
}
BESIDE = [make_episode("hall", "door", name="1_0"), make_episode("kitchen", "hall", name="2_0")]


def gone_back(
    episodes: Sequence[Episode] = (FORTH,), memory: MemoryBank | None = None, *, max_steps: int = 9
) -> list[rollout.Step]:
    navigator = Navigator(Homesick(), NoMemory())
    choose = told(ATLAS, ORDERS)
    return list(run_batch(navigator, ATLAS, episodes, memory, choose=choose, max_steps=max_steps))


def test_a_jump_is_walked_node_by_node_and_is_one_decision() -> None:
    walk = gone_back()[-1].finished[0]
    assert places(walk) == [
        *["hall", "landing", "attic"],
        *["landing", "hall"],
        "pantry",
        *["hall", "landing", "attic"],
    ]
    assert (walk.num_decisions, walk.stopped) == (6, True)
    views = [view for _, view in walk.poses]
    assert views[3] == views[2] and views[4] == views[0]  # not turned on the way, then as at the first visit
    assert views[6] == views[7] == views[5] and views[8] == views[2]
    assert len({views[0], views[2], views[5]}) == 3


def test_what_is_walked_on_a_way_back_counts_in_the_scores() -> None:
    walk = gone_back()[-1].finished[0]
    stands = tuple(TrajectoryPoint(*each) for each in named_poses(walk, ATLAS))
    scored = score([(FORTH, Prediction("0_0", stands))], ATLAS).means()
    graph, names = ATLAS.graph("cottage"), places(walk)
    metres = sum(graph.distance(*pair) for pair in zip(names, names[1:], strict=False))
    there = graph.distance("hall", "attic")
    assert scored["tl"] == pytest.approx(metres)
    assert scored["sr"] == 1.0 and scored["spl"] == pytest.approx(there / metres)


def test_a_place_is_remembered_once_and_only_where_something_was_decided() -> None:
    diary: list[str] = []
    bank = Diary.written_into(diary)
    (walk,) = gone_back(memory=bank)[-1].finished
    assert diary == [
        f"remember {name}" for name in ("hall", "landing", "attic", "hall", "pantry", "attic")
    ]  # nothing at what was passed through
    assert sorted(bank["cottage"].viewpoints) == ["attic", "hall", "landing", "pantry"]
    assert set(walk.decision_viewpoints) == set(bank.visited.nonzero().flatten().tolist())
    again = MemoryBank.from_atlas(ATLAS)
    again.remember_at(walk.decision_viewpoints)
    everywhere = torch.arange(len(ATLAS))
    assert torch.equal(again.recall_at(everywhere), bank.recall_at(everywhere))
    assert set(again["cottage"].edges) == set(bank["cottage"].edges)


@pytest.mark.parametrize("max_steps", range(1, 6))
def test_a_walk_that_ends_with_a_way_back_remembers_what_it_should(max_steps: int) -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    (walk,) = gone_back(memory=bank, max_steps=max_steps)[-1].finished
    assert walk.num_decisions == max_steps and not walk.stopped
    assert set(walk.decision_viewpoints) == set(bank.visited.nonzero().flatten().tolist())


def test_what_was_thought_is_carried_on() -> None:
    for number, step in enumerate(gone_back()):
        assert isinstance(step.state, HomesickState)
        assert step.state is step.decision.state
        assert step.state.thoughts.tolist() == [number + 1]  # every decision began where the last one ended
        assert step.state.walked.tolist() == [number]  # but nothing was done yet


def test_who_goes_back_does_not_disturb_who_walks_beside() -> None:
    together = {
        walk.episode.episode_id: walk.poses
        for step in gone_back([FORTH, *BESIDE], max_steps=4)
        for walk in step.finished
    }
    for episode in (FORTH, *BESIDE):
        (alone,) = gone_back([episode], max_steps=4)[-1].finished
        assert together[episode.episode_id] == alone.poses
    names = [ATLAS.name(viewpoint)[1] for viewpoint, _ in together["2_0"]]
    assert names == ["kitchen", "pantry", "hall", "kitchen", "hall"]  # two rooms that share an edge


def test_what_is_past_includes_what_was_passed_through() -> None:
    """Readers are told where a walk has been before, in order."""
    past = [step.observation.previous_viewpoints for step in gone_back()]
    *_, last = past
    assert last is not None
    assert [ATLAS.name(each)[1] for each in last[0].tolist()] == [
        *["hall", "landing", "attic", "landing", "hall", "pantry", "hall", "landing"]
    ]


def test_gradients_flow_through_the_loop() -> None:
    navigator = small_navigator(freeze_history=False).train()
    bank = MemoryBank.from_atlas(ATLAS)
    losses = [
        step.decision.logits.log_softmax(1)[:, 0].sum() for step in run_batch(navigator, ATLAS, ALL, bank)
    ]
    torch.stack(losses).sum().backward()
    learned = {
        name for name, each in navigator.named_parameters() if each.grad is not None and each.grad.any()
    }
    assert {"reader.first.weight", "agent.history.picture.linear.weight", "agent.action.0.weight"} <= learned


def test_poses_are_plain_integers() -> None:
    """They are written as json."""
    *_, last = run_batch(plain_navigator(), ATLAS, [TO_GARDEN], None)
    assert {type(number) for pose in last.finished[0].poses for number in pose} == {int}
    assert np.array(last.finished[0].poses).shape == (3, 2)


def test_the_loop_is_one_story() -> None:
    assert len(Path(rollout.__file__).read_text().splitlines()) < 150
