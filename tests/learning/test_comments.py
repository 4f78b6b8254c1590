"""What should have been done, of all that can be: along the path, or towards the goal (spec D.7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch.nn import functional

from esceme.agents.base import BacktrackRoutes, Decision
from esceme.learning.teachers import (
    IGNORE_INDEX,
    ORACLES,
    Oracle,
    choice_viewpoints,
    goal_oracle,
    path_oracle,
)
from esceme.observation import Observation
from esceme.tasks.episode import Episode
from esceme.trajectory import Trajectory
from esceme.world import Atlas, Pose
from fixtures.toy_atlas import build, cottage, walk_of

ATLAS = cottage()
STOP = "STOP"


class Place:
    """One agent somewhere, which has been elsewhere: what it could do, and what it should have done."""

    def __init__(
        self, episode: Episode, here: str, been: Sequence[str] = (), *, atlas: Atlas = ATLAS, padding: int = 2
    ) -> None:
        self.atlas, self.walk = atlas, Trajectory(episode, [(self.at(here, episode, atlas), 12)])
        self.seen = Observation.of(atlas, Pose(np.array([self.walk.viewpoint]), np.array([12])))
        width = self.seen.kind.shape[1]
        places = [-1] * padding + [self.at(name, episode, atlas) for name in been]
        back = torch.tensor([places], dtype=torch.int64).view(1, -1)
        none = torch.zeros_like(back)
        routes = BacktrackRoutes(width, back, none, none, none[..., None].expand(-1, -1, len(places)))
        possible = torch.cat([torch.arange(width)[None] <= self.seen.candidate_count, back >= 0], 1)
        self.decision = Decision(
            torch.zeros(1, width + len(places)).masked_fill(~possible, -torch.inf), routes=routes
        )
        self.padding = padding

    @staticmethod
    def at(name: str, episode: Episode, atlas: Atlas) -> int:
        return int(atlas.locate(episode.scene_id, [name])[0])

    def without(self, *choices: str) -> Place:
        """The same where something cannot be done, whatever else speaks for it."""
        for choice in choices:
            self.decision.logits[0, self.names().index(choice)] = -torch.inf
        return self

    def names(self) -> list[str]:
        """What each choice leads to."""
        leads = choice_viewpoints(self.decision, self.seen)[0].tolist()
        names = ["" if place < 0 else self.atlas.name(place)[1] for place in leads]
        names[int(self.seen.candidate_count)] = STOP
        first = self.seen.kind.shape[1]
        return [f"back to {name}" if at >= first and name else name for at, name in enumerate(names)]

    def wanted(self, comment: Oracle) -> str | int:
        """The choice that somebody would have made, by name."""
        (choice,) = comment(self.decision, self.seen, [self.walk]).tolist()
        return choice if choice == IGNORE_INDEX else self.names()[choice]


PATH = walk_of("garden", "door", "hall", "kitchen", "pantry")
ALONG, TOWARDS = path_oracle(ATLAS), goal_oracle(ATLAS)


# -- along the path ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("here", "been", "expected"),
    [
        ("garden", (), "door"),
        ("door", ("garden",), "hall"),
        ("hall", ("garden", "door"), "pantry"),  # a shortcut: it lies furthest along the path
        ("kitchen", ("garden", "door", "hall"), "pantry"),
        ("pantry", ("garden", "door", "hall", "kitchen"), STOP),  # nothing lies further than the end
        ("landing", ("garden", "door", "hall"), "back to hall"),  # candidate and place bit_equal: going back
        ("attic", ("garden", "door", "hall", "landing"), "back to hall"),
        ("attic", ("garden", "door", "hall", "pantry", "hall", "landing"), "back to pantry"),
        ("door", ("garden", "door", "hall", "kitchen", "hall"), "back to kitchen"),
    ],
)
def test_what_leads_furthest_along_the_path_is_wanted(
    here: str, been: tuple[str, ...], expected: str
) -> None:
    assert Place(PATH, here, been).wanted(ALONG) == expected


def test_who_stands_on_the_path_is_to_stop_where_all_else_leads_back() -> None:
    episode = walk_of("garden", "door", "hall")
    assert Place(episode, "hall", ("garden", "door")).wanted(ALONG) == STOP
    # Beside the path, STOP is never wanted.
    assert Place(episode, "kitchen", ("garden", "door", "hall")).wanted(ALONG) == "back to hall"


def test_a_place_counts_by_the_last_time_the_path_comes_by() -> None:
    """From the door: the hall is the last place but one, however early it was passed first."""
    loop = walk_of("hall", "kitchen", "pantry", "hall", "door")
    assert (
        Place(loop, "kitchen", ("hall",)).wanted(ALONG) == "back to hall"
    )  # not the pantry, which comes next
    assert Place(loop, "hall", ()).wanted(ALONG) == "door"
    assert Place(loop, "landing", ("hall", "kitchen", "pantry")).wanted(ALONG) == "back to hall"
    # Who stands where the path passes twice, and can neither reach its end, stays rather than goes back.
    assert Place(loop, "hall", ("pantry", "kitchen")).without("door").wanted(ALONG) == STOP


def test_of_equals_going_back_comes_first_and_of_ways_back_the_first() -> None:
    place = Place(PATH, "landing", ("hall", "door", "hall"))
    back = place.seen.kind.shape[1] + place.padding
    candidate = place.names().index("hall")
    for expected in (back, back + 2, candidate):  # the first visit to the hall, the second, the way there
        assert ALONG(place.decision, place.seen, [place.walk]).tolist() == [expected]
        place.decision.logits[0, expected] = -torch.inf
    assert place.wanted(ALONG) == "back to door"


@pytest.mark.parametrize("comment", [ALONG, TOWARDS])
def test_what_cannot_be_done_is_never_wanted(comment: Oracle) -> None:
    place = Place(PATH, "hall", ("garden", "door")).without("pantry")
    assert place.wanted(comment) == "kitchen"


def test_where_nothing_leads_onto_the_path_nobody_can_say_and_nothing_is_learned() -> None:
    lost = Place(PATH, "attic")
    assert lost.wanted(ALONG) == IGNORE_INDEX
    logits = torch.randn(1, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = functional.cross_entropy(logits, torch.tensor([IGNORE_INDEX]), reduction="sum")
    loss.backward()
    assert float(loss.detach()) == 0 and logits.grad is not None and not logits.grad.any()


@pytest.mark.parametrize("comment", [ALONG, TOWARDS])
def test_comments_on_a_batch_are_those_on_each_and_no_class_is_made_of_nobody(comment: Oracle) -> None:
    starts = ("garden", "attic", "hall", "pantry")
    walks = [Place(PATH, here).walk for here in starts]
    poses = np.array([walk.poses[-1] for walk in walks])
    seen = Observation.of(ATLAS, Pose(*poses.T))
    possible = torch.arange(seen.kind.shape[1]) <= seen.candidate_count[:, None]
    for width in (seen.kind.shape[1], int(seen.candidate_count.max()) + 1):  # with and without other views
        decision = Decision(torch.zeros(4, width).masked_fill(~possible[:, :width], -torch.inf))
        wanted = comment(decision, seen, walks)
        for row, here in enumerate(starts):
            alone = Place(PATH, here, padding=0)
            (expected,) = comment(alone.decision, alone.seen, [alone.walk]).tolist()
            assert int(wanted[row]) == expected
            assert expected == IGNORE_INDEX or bool(possible[row, expected])
    assert ((wanted == IGNORE_INDEX) == torch.tensor([False, comment is ALONG, False, False])).all()


# -- towards the goal --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("here", "been", "expected"),
    [
        ("garden", (), "door"),
        ("hall", ("garden", "door"), "pantry"),
        ("pantry", ("hall",), STOP),
        ("attic", (), "landing"),
        ("attic", ("hall", "landing"), "back to hall"),
        ("attic", ("pantry", "hall", "landing"), "back to pantry"),
        ("landing", ("hall",), "back to hall"),  # of equals, going back
    ],
)
def test_what_leads_nearest_to_the_goal_is_wanted(here: str, been: tuple[str, ...], expected: str) -> None:
    """Wherever the path leads: here it is a detour."""
    detour = walk_of("garden", "door", "hall", "landing", "hall", "pantry")
    assert Place(detour, here, been).wanted(TOWARDS) == expected


def test_where_no_way_leads_to_the_goal_nobody_can_say() -> None:
    islands = build(
        {"islands": {"a": (0, 0, 0), "b": (0, 2, 0), "c": (9, 0, 0), "d": (9, 2, 0)}},
        {"islands": [("a", "b"), ("c", "d")]},
    )
    lost = Place(walk_of("c", scene="islands"), "a", ("b",), atlas=islands)
    assert lost.wanted(goal_oracle(islands)) == IGNORE_INDEX


def test_comments_go_by_name() -> None:
    assert {"path": path_oracle, "goal": goal_oracle} == ORACLES
