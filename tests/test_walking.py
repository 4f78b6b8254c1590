"""A walk, who hands it out, and how it chooses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cottage import cottage, walk_of
from esceme.agents.base import Decision
from esceme.errors import WorldError
from esceme.observation import Observation
from esceme.walking import Once, Walk, by_time, following, greedy, past_of, sampling
from esceme.world import Pose

ATLAS = cottage()


def begun(*names: str) -> list[Walk]:
    return [Walk.begin(ATLAS, walk_of(name, name=f"{row}_0")) for row, name in enumerate(names)]


def seen(walks: list[Walk]) -> Observation:
    poses = np.array([walk.poses[-1] for walk in walks])
    return Observation.of(ATLAS, Pose(poses[:, 0], poses[:, 1]))


# -- walks -------------------------------------------------------------------------------------------------


def test_a_walk_begins_where_its_episode_starts_facing_the_nearest_view() -> None:
    walk = Walk.begin(ATLAS, walk_of("kitchen", "hall", heading=math.radians(100)), visit=4)
    assert ATLAS.name(walk.viewpoint) == ("cottage", "kitchen")
    assert walk.poses == [(walk.viewpoint, 15)]
    assert (walk.decisions, walk.stopped, walk.visit) == (0, False, 4)


@pytest.mark.parametrize(
    ("poses", "stopped", "expected"),
    [
        ([5], False, []),  # not begun
        ([5], True, [5]),  # stopped at once
        ([5, 6, 7], True, [5, 6, 7]),  # two moves and STOP
        ([5, 6, 7], False, [5, 6]),  # two moves, and no decision was left
        ([5, 6, 5, 6], False, [5, 6, 5]),
    ],
)
def test_remembered_is_where_something_was_decided(
    poses: list[int], stopped: bool, expected: list[int]
) -> None:
    walk = Walk(walk_of("hall"), [(place, 12) for place in poses], stopped=stopped)
    assert walk.remembered == expected


def test_the_past_is_where_walks_have_been_before() -> None:
    walks = begun("hall", "kitchen", "attic")
    walks[1].poses += [(7, 0), (8, 12)]
    assert past_of(walks[:1]).shape == (1, 0)
    assert past_of(walks).tolist() == [[-1, -1], [walks[1].poses[0][0], 7], [-1, -1]]


def test_a_source_hands_out_its_episodes_once() -> None:
    source = Once(ATLAS, [walk_of("hall", name="0_0"), walk_of("attic", name="1_0")])
    walks = source.next([], [])
    assert [walk.episode.episode_id for walk in walks] == ["0_0", "1_0"]
    assert list(source.next([], walks)) == list(source.next(walks, [])) == []


# -- choices -----------------------------------------------------------------------------------------------


def decision(*rows: list[float]) -> Decision:
    return Decision(torch.tensor(rows))


def test_greedy_takes_the_highest_score_and_the_first_of_equals() -> None:
    walks = begun("hall", "garden", "door")
    scores = decision([1.0, 4.0, 4.0], [0.5, -torch.inf, -torch.inf], [-3.0, -2.0, -torch.inf])
    assert greedy(scores, seen(walks), walks).tolist() == [1, 0, 1]


def test_samples_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.2, 0.0, 0.3])
    walks = [Walk.begin(ATLAS, walk_of("hall", name=f"{number}_0")) for number in range(4000)]
    scores = Decision(probabilities.log().expand(4000, -1))
    drawn = sampling(0)(scores, seen(walks[:1]), walks)
    shares = torch.bincount(drawn, minlength=4) / 4000
    torch.testing.assert_close(shares, probabilities, atol=0.03, rtol=0)
    assert shares[2] == 0


def test_a_sample_depends_on_seed_episode_and_step_alone() -> None:
    walks = begun(*["hall"] * 30)
    scores = Decision(torch.zeros(30, 5))
    drawn = sampling(7)(scores, seen(walks), walks)
    assert len(set(drawn.tolist())) == 5
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    # Beside others, in another order, and with choices that do not exist.
    padded = Decision(torch.cat([torch.zeros(30, 5), torch.full((30, 2), -torch.inf)], 1))
    again = sampling(7)(padded, seen(walks), [walks[row] for row in order])
    assert torch.equal(again, drawn[order])
    for row in (0, 11, 29):
        alone = sampling(7)(Decision(scores.logits[:1]), seen(walks[:1]), [walks[row]])
        assert alone.tolist() == [int(drawn[row])]
    assert not torch.equal(sampling(8)(scores, seen(walks), walks), drawn)
    assert not torch.equal(sampling([7, 1])(scores, seen(walks), walks), drawn)
    for walk in walks:
        walk.decisions = 1
    assert not torch.equal(sampling(7)(scores, seen(walks), walks), drawn)


def test_sampling_leaves_the_callers_random_numbers_alone() -> None:
    walks = begun("hall")
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    sampling(0)(Decision(torch.zeros(1, 5)), seen(walks), walks)
    assert torch.equal(torch.rand(3), expected)


def test_following_is_going_where_the_teacher_says_or_stopping() -> None:
    walks = begun("hall", "attic", "garden")
    wanted = {"hall": "pantry", "attic": "landing", "garden": "garden"}

    def expert(walk: Walk) -> int:
        scene, here = ATLAS.name(walk.viewpoint)
        return int(ATLAS.locate(scene, [wanted[here]])[0])

    observation = seen(walks)
    chosen = following(ATLAS, expert)(Decision(torch.zeros(3, 5)), observation, walks)
    there = observation.neighbour[torch.arange(3), chosen].tolist()
    assert [ATLAS.name(each)[1] for each in there[:2]] == ["pantry", "landing"]
    assert int(chosen[2]) == 1 == int(ATLAS.degrees[walks[2].viewpoint])


def test_a_teacher_who_walks_through_walls_is_named() -> None:
    walks = begun("attic")
    through = following(ATLAS, lambda walk: int(ATLAS.locate("cottage", ["garden"])[0]))
    with pytest.raises(WorldError, match="episode 0_0.*from 'attic' to 'garden', which no edge joins"):
        through(Decision(torch.zeros(1, 2)), seen(walks), walks)


def test_the_teacher_of_imitation_goes_by_time_and_not_by_place() -> None:
    """Spec A.11: a path that comes by the same place twice is followed as it is."""
    episode, expert = walk_of("hall", "door", "hall", "kitchen"), by_time(ATLAS)
    # Who stays in the hall all the time is told where the path goes, and then to stop where it is.
    walk = Walk.begin(ATLAS, episode)
    told = []
    for step in range(5):
        walk.decisions = step
        told.append(ATLAS.name(expert(walk))[1])
    assert told == ["door", "hall", "kitchen", "hall", "hall"]


def test_the_teacher_of_imitation_says_stop_once_the_path_is_over_even_off_the_path() -> None:
    attic = int(ATLAS.locate("cottage", ["attic"])[0])
    astray = Walk(walk_of("hall", "door"), [(attic, 12)], decisions=1)
    assert by_time(ATLAS)(astray) == attic
    chosen = following(ATLAS, by_time(ATLAS))(Decision(torch.zeros(1, 2)), seen([astray]), [astray])
    assert chosen.tolist() == [ATLAS.degrees[attic]]
