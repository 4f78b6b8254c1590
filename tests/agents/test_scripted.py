"""Agents that learn nothing: what they do is known exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from esceme.agents.base import Agent, PrivilegedInfo, TokenBatch
from esceme.agents.scripted import RandomAgent, RandomConfig, ShortestPath, StopAtOnce
from esceme.errors import ConfigError
from esceme.observation import Observation
from esceme.tasks.r2r import read_r2r
from esceme.world import ArrayFeatures, Atlas, Pose, SceneGraph
from fixtures.random_observations import random_building, random_observation, random_words


def walk(
    agent: Agent[Any], atlas: Atlas, starts: list[int], goals: list[list[int]], steps: int
) -> list[list[int]]:
    """The viewpoints that agents pass, doing what they score highest."""
    pose = atlas.begin(starts, np.zeros(len(starts)))
    words = TokenBatch(
        torch.ones(len(starts), 1, dtype=torch.int64), torch.ones(len(starts), 1, dtype=torch.bool)
    )
    state = agent.begin(words, torch.tensor(starts), PrivilegedInfo(atlas, np.array(goals)))
    paths = [[start] for start in starts]
    for _ in range(steps):
        observation = Observation.from_atlas(atlas, pose)
        chosen = agent.decide(state, observation).logits.argmax(1)
        state = agent.advance(state, observation, chosen)
        pose = atlas.step(pose, chosen.numpy())
        for path, at in zip(paths, pose.viewpoint.tolist(), strict=True):
            path.append(at)
    return paths


def with_features(atlas: Atlas) -> Atlas:
    """The same scenes where there is nothing to see."""
    panoramas = {f"{scene}_{name}": np.zeros((36, 2)) for scene, name in atlas.names}
    return Atlas(atlas.graphs.values(), ArrayFeatures.from_mapping(panoramas, source="nothing"))


# -- StopAtOnce ------------------------------------------------------------------------------------------


def test_who_stops_at_once_stays_even_when_choices_are_drawn() -> None:
    observation = random_observation()
    agent = StopAtOnce()
    state = agent.begin(random_words(), observation.viewpoint)
    probability = agent.decide(state, observation).logits.softmax(1)
    assert probability[torch.arange(4), observation.num_candidates].tolist() == [1.0] * 4


# -- RandomAgent -----------------------------------------------------------------------------------------


def drawn(
    seed: int, words: TokenBatch, observation: Observation, *, start: int = 5, step: int = 0
) -> torch.Tensor:
    """What a wanderer scores at some step of episodes that all began at `start`."""
    agent = RandomAgent(RandomConfig(seed=seed))
    state = agent.begin(words, torch.full((len(observation),), start))
    for _ in range(step):
        state = agent.advance(state, observation, observation.num_candidates)
    return agent.decide(state, observation).logits


def test_every_candidate_and_stop_are_equally_likely() -> None:
    episodes = 4000
    observation = random_observation((3,)).select(torch.zeros(episodes, dtype=torch.int64))
    ids = torch.arange(2 * episodes).reshape(episodes, 2)
    words = TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool))
    for step in range(3):
        chosen = drawn(0, words, observation, step=step).argmax(1)
        share = chosen.bincount(minlength=4) / episodes
        assert share.tolist() == pytest.approx([0.25] * 4, abs=0.03)


def test_scores_are_gumbel_noise() -> None:
    observation = random_observation((7,)).select(torch.zeros(2000, dtype=torch.int64))
    ids = torch.arange(2000)[:, None]
    scores = drawn(0, TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool)), observation)
    assert float(scores.mean()) == pytest.approx(np.euler_gamma, abs=0.03)
    assert float(scores.var()) == pytest.approx(np.pi**2 / 6, abs=0.06)
    correlation = np.corrcoef(scores.numpy().T)
    assert np.abs(correlation - np.eye(8)).max() < 0.1


def test_another_seed_instruction_start_or_step_is_another_draw() -> None:
    observation, words = random_observation((4,)), random_words((3,))
    draws = [
        drawn(0, words, observation),
        drawn(1, words, observation),
        drawn(0, words._replace(ids=words.ids.flip(1)), observation),
        drawn(0, words._replace(valid=torch.tensor([[True, True, False]])), observation),
        drawn(0, words, observation, start=6),
        drawn(0, words, observation, step=1),
        # Neither do a seed and a start that together make the same number fall together.
        drawn(5, words, observation, start=0),
    ]
    assert len({tuple(draw.flatten().tolist()) for draw in draws}) == len(draws)
    assert torch.equal(drawn(0, words, observation), draws[0])


def test_a_draw_depends_on_where_candidates_lead_and_not_on_what_is_seen() -> None:
    """The same places in the same order, but other pictures, another view faced, another token length."""
    observation, words = random_observation((4,)), random_words((3,))
    elsewhere = random_observation((4,), seed=9)
    neighbour = elsewhere.neighbour.clone()
    neighbour[0, :4] = observation.neighbour[0, :4]
    assert not torch.equal(drawn(0, words, elsewhere), drawn(0, words, observation))
    assert torch.equal(drawn(0, words, replace(elsewhere, neighbour=neighbour)), drawn(0, words, observation))


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="seed: expected 0 or more, found -1"):
        RandomConfig(seed=-1)


# -- ShortestPath ----------------------------------------------------------------------------------------


def test_who_knows_the_way_walks_a_shortest_path_to_the_nearest_goal_and_stays() -> None:
    atlas = with_features(random_building())
    generator = np.random.default_rng(0)
    starts = generator.integers(len(atlas), size=30).tolist()
    goals = generator.integers(len(atlas), size=(30, 2)).tolist()
    for start, targets, path in zip(
        starts, goals, walk(ShortestPath(), atlas, starts, goals, 20), strict=True
    ):
        shortest = atlas.distance(start, targets)
        length = sum(float(atlas.distance(a, b)) for a, b in zip(path, path[1:], strict=False))
        assert length == pytest.approx(float(shortest.min()))
        assert path[-1] == targets[int(shortest.argmin())]


def test_stop_is_chosen_exactly_at_a_goal() -> None:
    atlas = with_features(random_building())
    everywhere = np.arange(len(atlas))
    goals = np.tile([7, 21], (len(atlas), 1))
    observation = Observation.from_atlas(atlas, Pose(everywhere, np.full_like(everywhere, 12)))
    agent = ShortestPath()
    state = agent.begin(random_words([1] * len(atlas)), observation.viewpoint, PrivilegedInfo(atlas, goals))
    stops = agent.decide(state, observation).logits.argmax(1) == observation.num_candidates
    assert stops.nonzero().flatten().tolist() == [7, 21]


def test_a_score_is_minus_the_metres_of_detour() -> None:
    places = {"a": (0, 0, 0), "b": (0, 3, 0), "c": (4, 0, 0), "d": (4, 3, 0)}
    atlas = with_features(
        Atlas([SceneGraph.build("toy", places, [("a", "b"), ("b", "d"), ("a", "c"), ("a", "d")])])
    )
    a, b, c, d = atlas.locate("toy", list("abcd")).tolist()
    observation = Observation.from_atlas(atlas, Pose(np.array([a]), np.array([12])))
    agent = ShortestPath()
    state = agent.begin(random_words((1,)), observation.viewpoint, PrivilegedInfo(atlas, np.array([[d]])))
    scores = agent.decide(state, observation).logits[0, :3].tolist()
    scored = dict(zip(observation.neighbour[0, :3].tolist(), scores, strict=True))
    assert scored == pytest.approx({d: 0.0, b: -2.0, c: -8.0})


def test_goals_that_pad_a_joined_batch_are_nobodys() -> None:
    """Padding is viewpoint 0, where an agent with a single goal elsewhere must not stop."""
    atlas = with_features(random_building())
    agent, words, start = ShortestPath(), random_words((1,)), torch.tensor([0])
    one = agent.begin(words, start, PrivilegedInfo(atlas, np.array([[9]])))
    two = agent.begin(words, start, PrivilegedInfo(atlas, np.array([[9, 0]])))
    observation = Observation.from_atlas(atlas, Pose(np.array([0, 0]), np.array([12, 12])))
    chosen = agent.decide(one.concat(two), observation).logits.argmax(1)
    assert (chosen == observation.num_candidates).tolist() == [False, True]


def test_a_goal_of_another_building_is_given_up() -> None:
    graphs = [
        SceneGraph.build(name, {"a": (0, 0, 0), "b": (0, 2, 0)}, [("a", "b")]) for name in ("here", "there")
    ]
    assert walk(ShortestPath(), with_features(Atlas(graphs)), [0], [[3]], 2) == [[0, 0, 0]]


def test_who_is_to_know_the_way_must_be_told_the_goals() -> None:
    with pytest.raises(ConfigError, match="expects goals, and none came"):
        ShortestPath().begin(random_words((2,)), torch.tensor([0]))


def test_every_toy_episode_is_walked_along_its_shortest_path(toy_root: Path) -> None:
    atlas = Atlas.read(toy_root / "connectivity", features=toy_root / "features/toy.hdf5", width=32)
    episodes = read_r2r(toy_root / "R2R/R2R_val_unseen.json")
    ends = np.stack([atlas.locate(each.scene_id, [each.start, each.goal]) for each in episodes])
    paths = walk(ShortestPath(), atlas, ends[:, 0].tolist(), ends[:, 1:].tolist(), 15)
    for (start, goal), path in zip(ends.tolist(), paths, strict=True):
        length = sum(float(atlas.distance(a, b)) for a, b in zip(path, path[1:], strict=False))
        assert path[-1] == goal
        assert length == pytest.approx(float(atlas.distance(start, goal)))


@pytest.mark.parametrize("kind", [StopAtOnce, RandomAgent, ShortestPath])
def test_scripted_agents_have_nothing_to_learn(kind: type[Agent[Any]]) -> None:
    assert list(kind().parameters()) == []
