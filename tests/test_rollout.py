"""Rollouts: order of operations in a step, finished and new trajectories, and the reported steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

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
from esceme.trajectory import Trajectory, greedy, reference_path_teacher_by_step, sampling, teacher_forcing
from fixtures.backtracking_agent import BacktrackingAgent, BacktrackingState, actions_by_name
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


class RecordingNavigator(Navigator):
    """A navigator that records its calls."""

    def __init__(self, calls: list[str], navigator: Navigator) -> None:
        super().__init__(navigator.agent, navigator.reader)
        self.calls = calls

    def begin(self, words: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None) -> State:
        self.calls.append(f"begin {len(start)}")
        return super().begin(words, start, privileged)

    def observe(self, observation: Observation, memory: Any) -> Observation:
        self.calls.append("observe")
        return super().observe(observation, memory)

    def decide(self, state: State, seen: Observation) -> Decision:
        self.calls.append("decide")
        return super().decide(state, seen)

    def advance(self, state: State, seen: Observation, chosen: Tensor) -> State:
        self.calls.append(f"advance {len(chosen)}")
        return super().advance(state, seen, chosen)


class RecordingBank(MemoryBank):
    """A bank that records its calls."""

    calls: list[str]

    @classmethod
    def create(cls, calls: list[str]) -> RecordingBank:
        bank = cls(WIDTH, source="by-hand.hdf5")
        bank.bind(ATLAS)
        bank.calls = calls
        return bank

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        self.calls.append("recall")
        return super().recall_at(viewpoints)

    def remember_observation(self, observation: Observation) -> None:
        names = [ATLAS.name(viewpoint)[1] for viewpoint in observation.viewpoint.tolist()]
        self.calls.append(f"remember {' '.join(names)}")
        super().remember_observation(observation)


class SlotSource:
    """A source that refills free slots and records its calls."""

    def __init__(self, episodes: Sequence[Episode], slots: int = 2) -> None:
        self.waiting, self.slots = list(episodes), slots
        self.calls: list[tuple[list[str], list[str]]] = []

    def next(self, finished: Sequence[Trajectory], active: Sequence[Trajectory]) -> Sequence[Trajectory]:
        self.calls.append((ids(finished), ids(active)))
        free = self.slots - len(active)
        begun, self.waiting = self.waiting[:free], self.waiting[free:]
        return [Trajectory.begin(ATLAS, episode) for episode in begun]


def ids(trajectories: Sequence[Trajectory]) -> list[str]:
    return [trajectory.episode.episode_id for trajectory in trajectories]


def names(trajectory: Trajectory) -> list[str]:
    return [ATLAS.name(viewpoint)[1] for viewpoint, _ in trajectory.poses]


def test_step_recalls_decides_remembers_and_moves() -> None:
    calls: list[str] = []
    bank = RecordingBank.create(calls)
    choose = teacher_forcing(ATLAS, reference_path_teacher_by_step(ATLAS))

    def record_choice(
        decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]
    ) -> Tensor:
        calls.append("choose")
        return choose(decision, observation, trajectories)

    steps = run_batch(
        RecordingNavigator(calls, small_navigator()), ATLAS, [TO_GARDEN, STAY], bank, choose=record_choice
    )
    for step in steps:
        calls.append("reported " + " ".join(names(trajectory)[-1] for trajectory in step.trajectories))
    assert calls == [
        *[
            "begin 2",
            "observe",
            "recall",
            "decide",
            "choose",
            "remember hall kitchen",
            "reported door kitchen",
        ],
        *["advance 1", "observe", "recall", "decide", "choose", "remember door", "reported garden"],
        *["advance 1", "observe", "recall", "decide", "choose", "remember garden", "reported garden"],
    ]


def test_stopping_keeps_viewpoint_and_view_as_plain_integers() -> None:
    *_, last = run_batch(plain_navigator(), ATLAS, [make_episode("hall", "landing")], None)
    (trajectory,) = last.finished
    assert names(trajectory) == ["hall", "landing"]
    assert (trajectory.num_decisions, trajectory.stopped) == (2, True)
    assert trajectory.poses[-1] == (trajectory.viewpoint, 30)
    assert {type(number) for pose in trajectory.poses for number in pose} == {int}  # written as json


def test_trajectory_ends_at_the_step_limit() -> None:
    *_, last = run_batch(plain_navigator(), ATLAS, [TO_PANTRY, STAY], None, max_steps=2)
    (trajectory,) = last.finished
    assert names(trajectory) == ["attic", "landing", "hall"]
    assert (trajectory.num_decisions, trajectory.stopped) == (2, False)
    *_, last = run_batch(plain_navigator(), ATLAS, [TO_GARDEN], None, max_steps=3)
    assert last.finished[0].stopped  # with the last decision


def test_finished_trajectories_are_removed_and_the_order_is_unchanged() -> None:
    steps = [
        (ids(step.trajectories), ids(step.finished))
        for step in run_batch(plain_navigator(), ATLAS, ALL, None)
    ]
    assert steps == [
        (["0_0", "1_0", "2_0", "3_0"], ["2_0"]),
        (["0_0", "1_0", "3_0"], []),
        (["0_0", "1_0", "3_0"], ["0_0", "1_0"]),
        (["3_0"], ["3_0"]),
    ]


def test_free_slot_is_refilled_before_the_next_step() -> None:
    source = SlotSource([STAY, TO_GARDEN, TO_ATTIC, TO_PANTRY])
    choose = teacher_forcing(ATLAS, reference_path_teacher_by_step(ATLAS))
    active = [
        ids(step.trajectories)
        for step in roll_out(plain_navigator(), ATLAS, source, None, choose, encode=encode, max_steps=9)
    ]
    assert active == [
        *[["2_0", "0_0"], ["0_0", "1_0"], ["0_0", "1_0"], ["1_0", "3_0"]],
        *[["3_0"], ["3_0"], ["3_0"]],
    ]
    assert source.calls[0] == ([], []) and source.calls[-1] == (["3_0"], [])
    assert source.calls[1] == (["2_0"], ["0_0"])


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_refilled_slots_decide_as_single_trajectories(slots: int) -> None:
    navigator = plain_navigator()
    choose = teacher_forcing(ATLAS, reference_path_teacher_by_step(ATLAS))
    with torch.inference_mode():
        for step in roll_out(
            navigator, ATLAS, SlotSource(ALL, slots), None, choose, encode=encode, max_steps=9
        ):
            for row, trajectory in enumerate(step.trajectories):
                alone = list(run_batch(navigator, ATLAS, [trajectory.episode], None))[
                    trajectory.num_decisions - 1
                ]
                logits = alone.decision.logits[0]
                torch.testing.assert_close(
                    step.decision.logits[row, : len(logits)], logits, atol=1e-5, rtol=0
                )


def test_no_episodes_give_no_steps() -> None:
    source = SlotSource([])
    assert list(roll_out(plain_navigator(), ATLAS, source, None, greedy, encode=encode, max_steps=3)) == []
    assert source.calls == [([], [])]


def test_step_reports_observation_and_actions() -> None:
    for step in run_batch(small_navigator(), ATLAS, ALL, MemoryBank.from_atlas(ATLAS)):
        before = [trajectory.poses[-1 if trajectory.stopped else -2] for trajectory in step.trajectories]
        assert step.observation.viewpoint.tolist() == [viewpoint for viewpoint, _ in before]
        assert step.observation.facing_view.tolist() == [view for _, view in before]
        assert step.observation.features is not step.observation.raw_features
        for row, trajectory in enumerate(step.trajectories):
            if not trajectory.stopped:
                assert int(step.observation.neighbour[row, step.actions[row]]) == trajectory.viewpoint


@pytest.mark.parametrize("choose", [greedy, sampling(3)], ids=["greedy", "sampling"])
def test_trajectories_do_not_depend_on_the_batch(choose: Callable[..., Tensor]) -> None:
    navigator = plain_navigator(seed=4)
    with torch.inference_mode():
        together = {
            trajectory.episode.episode_id: trajectory.poses
            for step in run_batch(navigator, ATLAS, ALL, None, choose=choose)
            for trajectory in step.finished
        }
        alone = {
            trajectory.episode.episode_id: trajectory.poses
            for episode in ALL
            for step in run_batch(navigator, ATLAS, [episode], None, choose=choose)
            for trajectory in step.finished
        }
    assert together == alone
    assert len({tuple(poses) for poses in together.values()}) == 4


def test_scripted_agents_receive_the_goals() -> None:
    guide = Navigator(ShortestPath(), NoMemory())
    nearest = replace(make_episode("hall", "pantry", name="4_0"), goals=("attic", "garden"))
    ended = [
        trajectory
        for step in run_batch(guide, ATLAS, [TO_PANTRY, nearest], None, choose=greedy)
        for trajectory in step.finished
    ]
    assert {trajectory.episode.episode_id: names(trajectory) for trajectory in ended} == {
        "3_0": ["attic", "landing", "hall", "pantry"],
        "4_0": ["hall", "door", "garden"],
    }


def test_withheld_goals_are_not_passed_to_agents() -> None:
    received = []

    class RecordingAgent(StopAtOnce):
        def begin(self, words: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None) -> Any:
            received.append(privileged)
            return super().begin(words, start, privileged)

    withheld = replace(make_episode("hall"), goal_withheld=True)
    list(
        run_batch(Navigator(RecordingAgent(), NoMemory()), ATLAS, [withheld, TO_PANTRY], None, choose=greedy)
    )
    assert received == [None]


# -- backtracking ----------------------------------------------------------------------------------------

TO_ATTIC_AND_BACK = make_episode("hall", "landing", "attic", name="0_0")
ORDERS = {
    "0_0": ["landing", "attic", "back to hall", "pantry", "back to attic", "stop"],
    "1_0": ["door", "stop"],
    "2_0": ["pantry", "hall", "back to kitchen", "hall"],
}
OTHERS = [make_episode("hall", "door", name="1_0"), make_episode("kitchen", "hall", name="2_0")]


def backtrack(
    episodes: Sequence[Episode] = (TO_ATTIC_AND_BACK,),
    memory: MemoryBank | None = None,
    *,
    max_steps: int = 9,
) -> list[rollout.RolloutStep]:
    navigator = Navigator(BacktrackingAgent(), NoMemory())
    choose = actions_by_name(ATLAS, ORDERS)
    return list(run_batch(navigator, ATLAS, episodes, memory, choose=choose, max_steps=max_steps))


def test_backtracking_visits_every_viewpoint_and_is_one_decision() -> None:
    trajectory = backtrack()[-1].finished[0]
    assert names(trajectory) == [
        *["hall", "landing", "attic"],
        *["landing", "hall"],
        "pantry",
        *["hall", "landing", "attic"],
    ]
    assert (trajectory.num_decisions, trajectory.stopped) == (6, True)
    views = [view for _, view in trajectory.poses]
    assert (
        views[3] == views[2] and views[4] == views[0]
    )  # turned only at the end, to the view of the first visit
    assert views[6] == views[7] == views[5] and views[8] == views[2]
    assert len({views[0], views[2], views[5]}) == 3


def test_backtracked_distance_counts_in_the_scores() -> None:
    trajectory = backtrack()[-1].finished[0]
    points = tuple(TrajectoryPoint(*pose) for pose in named_poses(trajectory, ATLAS))
    scored = score([(TO_ATTIC_AND_BACK, Prediction("0_0", points))], ATLAS).means()
    graph = ATLAS.graph("cottage")
    metres = sum(graph.distance(*pair) for pair in pairwise(names(trajectory)))
    there = graph.distance("hall", "attic")
    assert scored["tl"] == pytest.approx(metres)
    assert scored["sr"] == 1.0 and scored["spl"] == pytest.approx(there / metres)


def test_memory_holds_the_viewpoints_of_decisions_only() -> None:
    calls: list[str] = []
    bank = RecordingBank.create(calls)
    (trajectory,) = backtrack(memory=bank)[-1].finished
    assert calls == [f"remember {name}" for name in ("hall", "landing", "attic", "hall", "pantry", "attic")]
    assert sorted(bank["cottage"].viewpoints) == ["attic", "hall", "landing", "pantry"]
    assert set(trajectory.decision_viewpoints) == set(bank.visited.nonzero().flatten().tolist())
    again = MemoryBank.from_atlas(ATLAS)
    again.remember_at(trajectory.decision_viewpoints)
    everywhere = torch.arange(len(ATLAS))
    assert torch.equal(again.recall_at(everywhere), bank.recall_at(everywhere))
    assert set(again["cottage"].edges) == set(bank["cottage"].edges)


@pytest.mark.parametrize("max_steps", range(1, 6))
def test_memory_is_right_when_the_limit_ends_a_backtracking_trajectory(max_steps: int) -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    (trajectory,) = backtrack(memory=bank, max_steps=max_steps)[-1].finished
    assert trajectory.num_decisions == max_steps and not trajectory.stopped
    assert set(trajectory.decision_viewpoints) == set(bank.visited.nonzero().flatten().tolist())


def test_state_of_the_decision_is_passed_on() -> None:
    for number, step in enumerate(backtrack()):
        assert isinstance(step.state, BacktrackingState)
        assert step.state is step.decision.state
        assert step.state.num_decisions.tolist() == [number + 1]  # updated by every decision
        assert step.state.num_visited.tolist() == [number]  # not yet advanced


def test_backtracking_does_not_affect_other_rows() -> None:
    together = {
        trajectory.episode.episode_id: trajectory.poses
        for step in backtrack([TO_ATTIC_AND_BACK, *OTHERS], max_steps=4)
        for trajectory in step.finished
    }
    for episode in (TO_ATTIC_AND_BACK, *OTHERS):
        (alone,) = backtrack([episode], max_steps=4)[-1].finished
        assert together[episode.episode_id] == alone.poses
    path = [ATLAS.name(viewpoint)[1] for viewpoint, _ in together["2_0"]]
    assert path == ["kitchen", "pantry", "hall", "kitchen", "hall"]  # pantry and kitchen share an edge


def test_previous_viewpoints_include_backtracked_ones() -> None:
    past = [step.observation.previous_viewpoints for step in backtrack()]
    *_, last = past
    assert last is not None
    assert [ATLAS.name(viewpoint)[1] for viewpoint in last[0].tolist()] == [
        *["hall", "landing", "attic", "landing", "hall", "pantry", "hall", "landing"]
    ]


def test_gradients_flow_through_the_loop() -> None:
    navigator = small_navigator(freeze_history=False).train()
    bank = MemoryBank.from_atlas(ATLAS)
    losses = [
        step.decision.logits.log_softmax(1)[:, 0].sum() for step in run_batch(navigator, ATLAS, ALL, bank)
    ]
    torch.stack(losses).sum().backward()
    learned = {name for name, p in navigator.named_parameters() if p.grad is not None and p.grad.any()}
    assert {"reader.first.weight", "agent.history.picture.linear.weight", "agent.action.0.weight"} <= learned
