"""Oracles: the best of all choices along the reference path, or towards the goal (spec D.7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch.nn import functional

from esceme.agents.base import BacktrackRoutes, Decision
from esceme.learning.teachers import (
    IGNORE_INDEX,
    Oracle,
    choice_viewpoints,
    goal_oracle,
    path_oracle,
)
from esceme.observation import Observation
from esceme.tasks.episode import Episode
from esceme.trajectory import Trajectory
from esceme.world import Atlas, Pose
from fixtures.toy_atlas import build, build_toy_atlas, make_episode

ATLAS = build_toy_atlas()
STOP = "STOP"


class Situation:
    """One agent at a viewpoint with backtrack choices to visited viewpoints."""

    def __init__(
        self,
        episode: Episode,
        viewpoint: str,
        visited: Sequence[str] = (),
        *,
        atlas: Atlas = ATLAS,
        padding: int = 2,
    ) -> None:
        self.atlas, self.trajectory = atlas, Trajectory(episode, [(self.at(viewpoint, episode, atlas), 12)])
        self.observation = Observation.from_atlas(
            atlas, Pose(np.array([self.trajectory.viewpoint]), np.array([12]))
        )
        width = self.observation.token_type.shape[1]
        viewpoints = [-1] * padding + [self.at(name, episode, atlas) for name in visited]
        back = torch.tensor([viewpoints], dtype=torch.int64).view(1, -1)
        none = torch.zeros_like(back)
        routes = BacktrackRoutes(width, back, none, none, none[..., None].expand(-1, -1, len(viewpoints)))
        possible = torch.cat([torch.arange(width)[None] <= self.observation.num_candidates, back >= 0], 1)
        self.decision = Decision(
            torch.zeros(1, width + len(viewpoints)).masked_fill(~possible, -torch.inf), routes=routes
        )
        self.padding = padding

    @staticmethod
    def at(name: str, episode: Episode, atlas: Atlas) -> int:
        return int(atlas.locate(episode.scene_id, [name])[0])

    def without(self, *choices: str) -> Situation:
        """Mask some choices."""
        for choice in choices:
            self.decision.logits[0, self.names().index(choice)] = -torch.inf
        return self

    def names(self) -> list[str]:
        """Return the destination of each choice."""
        destinations = choice_viewpoints(self.decision, self.observation)[0].tolist()
        names = ["" if viewpoint < 0 else self.atlas.name(viewpoint)[1] for viewpoint in destinations]
        names[int(self.observation.num_candidates)] = STOP
        first = self.observation.token_type.shape[1]
        return [f"back to {name}" if at >= first and name else name for at, name in enumerate(names)]

    def best(self, oracle: Oracle) -> str | int:
        """Return the choice of an oracle by name."""
        (choice,) = oracle(self.decision, self.observation, [self.trajectory]).tolist()
        return choice if choice == IGNORE_INDEX else self.names()[choice]


PATH = make_episode("garden", "door", "hall", "kitchen", "pantry")
ALONG_PATH, TO_GOAL = path_oracle(ATLAS), goal_oracle(ATLAS)


# -- path oracle ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("viewpoint", "visited", "expected"),
    [
        ("garden", (), "door"),
        ("door", ("garden",), "hall"),
        ("hall", ("garden", "door"), "pantry"),  # a shortcut
        ("kitchen", ("garden", "door", "hall"), "pantry"),
        ("pantry", ("garden", "door", "hall", "kitchen"), STOP),
        ("landing", ("garden", "door", "hall"), "back to hall"),  # backtracking before a candidate
        ("attic", ("garden", "door", "hall", "landing"), "back to hall"),
        ("attic", ("garden", "door", "hall", "pantry", "hall", "landing"), "back to pantry"),
        ("door", ("garden", "door", "hall", "kitchen", "hall"), "back to kitchen"),
    ],
)
def test_path_oracle_takes_the_choice_furthest_along_the_path(
    viewpoint: str, visited: tuple[str, ...], expected: str
) -> None:
    assert Situation(PATH, viewpoint, visited).best(ALONG_PATH) == expected


def test_path_oracle_stops_on_the_path_and_never_beside_it() -> None:
    episode = make_episode("garden", "door", "hall")
    assert Situation(episode, "hall", ("garden", "door")).best(ALONG_PATH) == STOP
    assert Situation(episode, "kitchen", ("garden", "door", "hall")).best(ALONG_PATH) == "back to hall"


def test_repeated_viewpoint_counts_by_its_last_position() -> None:
    loop = make_episode("hall", "kitchen", "pantry", "hall", "door")
    assert Situation(loop, "kitchen", ("hall",)).best(ALONG_PATH) == "back to hall"
    assert Situation(loop, "hall", ()).best(ALONG_PATH) == "door"
    assert Situation(loop, "landing", ("hall", "kitchen", "pantry")).best(ALONG_PATH) == "back to hall"
    assert Situation(loop, "hall", ("pantry", "kitchen")).without("door").best(ALONG_PATH) == STOP


def test_ties_prefer_the_first_backtrack() -> None:
    situation = Situation(PATH, "landing", ("hall", "door", "hall"))
    back = situation.observation.token_type.shape[1] + situation.padding
    candidate = situation.names().index("hall")
    for expected in (back, back + 2, candidate):
        assert ALONG_PATH(situation.decision, situation.observation, [situation.trajectory]).tolist() == [
            expected
        ]
        situation.decision.logits[0, expected] = -torch.inf
    assert situation.best(ALONG_PATH) == "back to door"


@pytest.mark.parametrize("oracle", [ALONG_PATH, TO_GOAL])
def test_masked_choice_is_never_taken(oracle: Oracle) -> None:
    situation = Situation(PATH, "hall", ("garden", "door")).without("pantry")
    assert situation.best(oracle) == "kitchen"


def test_step_without_a_choice_onto_the_path_is_ignored() -> None:
    lost = Situation(PATH, "attic")
    assert lost.best(ALONG_PATH) == IGNORE_INDEX
    logits = torch.randn(1, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = functional.cross_entropy(logits, torch.tensor([IGNORE_INDEX]), reduction="sum")
    loss.backward()
    assert float(loss.detach()) == 0 and logits.grad is not None and not logits.grad.any()


@pytest.mark.parametrize("oracle", [ALONG_PATH, TO_GOAL])
def test_batch_gives_the_labels_of_single_agents(oracle: Oracle) -> None:
    starts = ("garden", "attic", "hall", "pantry")
    trajectories = [Situation(PATH, viewpoint).trajectory for viewpoint in starts]
    poses = np.array([trajectory.poses[-1] for trajectory in trajectories])
    seen = Observation.from_atlas(ATLAS, Pose(*poses.T))
    possible = torch.arange(seen.token_type.shape[1]) <= seen.num_candidates[:, None]
    for width in (
        seen.token_type.shape[1],
        int(seen.num_candidates.max()) + 1,
    ):  # with and without other views
        decision = Decision(torch.zeros(4, width).masked_fill(~possible[:, :width], -torch.inf))
        labels = oracle(decision, seen, trajectories)
        for row, viewpoint in enumerate(starts):
            alone = Situation(PATH, viewpoint, padding=0)
            (expected,) = oracle(alone.decision, alone.observation, [alone.trajectory]).tolist()
            assert int(labels[row]) == expected
            assert expected == IGNORE_INDEX or bool(possible[row, expected])
    assert ((labels == IGNORE_INDEX) == torch.tensor([False, oracle is ALONG_PATH, False, False])).all()


# -- goal oracle ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("viewpoint", "visited", "expected"),
    [
        ("garden", (), "door"),
        ("hall", ("garden", "door"), "pantry"),
        ("pantry", ("hall",), STOP),
        ("attic", (), "landing"),
        ("attic", ("hall", "landing"), "back to hall"),
        ("attic", ("pantry", "hall", "landing"), "back to pantry"),
        ("landing", ("hall",), "back to hall"),
    ],
)
def test_goal_oracle_takes_the_choice_nearest_to_the_goal(
    viewpoint: str, visited: tuple[str, ...], expected: str
) -> None:
    """The reference path is a detour and does not matter."""
    detour = make_episode("garden", "door", "hall", "landing", "hall", "pantry")
    assert Situation(detour, viewpoint, visited).best(TO_GOAL) == expected


def test_unreachable_goal_is_ignored() -> None:
    islands = build(
        {"islands": {"a": (0, 0, 0), "b": (0, 2, 0), "c": (9, 0, 0), "d": (9, 2, 0)}},
        {"islands": [("a", "b"), ("c", "d")]},
    )
    lost = Situation(make_episode("c", scene="islands"), "a", ("b",), atlas=islands)
    assert lost.best(goal_oracle(islands)) == IGNORE_INDEX
