"""Scripted agents: StopAtOnce, RandomAgent, ShortestPath."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from esceme.agents.base import Agent, PrivilegedInfo, TokenBatch
from esceme.agents.scripted import RandomAgent, RandomConfig, ShortestPath, StopAtOnce
from esceme.errors import ConfigError
from esceme.observation import Observation
from esceme.world import ArrayFeatures, Atlas, Pose, SceneGraph
from fixtures.random_observations import random_building, random_observation, random_words


def follow(
    agent: Agent[Any], atlas: Atlas, starts: list[int], goals: list[list[int]], steps: int
) -> list[list[int]]:
    """Viewpoints of greedy rollouts."""
    pose = atlas.begin(starts, np.zeros(len(starts)))
    state = agent.begin(
        random_words([1] * len(starts)), torch.tensor(starts), PrivilegedInfo(atlas, np.array(goals))
    )
    paths = [[start] for start in starts]
    for _ in range(steps):
        observation = Observation.from_atlas(atlas, pose)
        chosen = agent.decide(state, observation).logits.argmax(1)
        state = agent.advance(state, observation, chosen)
        pose = atlas.step(pose, chosen.numpy())
        for path, viewpoint in zip(paths, pose.viewpoint.tolist(), strict=True):
            path.append(viewpoint)
    return paths


def with_features(atlas: Atlas) -> Atlas:
    """The same scenes with zero features."""
    panoramas = {f"{scene}_{name}": np.zeros((36, 2)) for scene, name in atlas.names}
    return Atlas(atlas.graphs.values(), ArrayFeatures.from_mapping(panoramas, source="nothing"))


# -- StopAtOnce ------------------------------------------------------------------------------------------


def test_stop_has_probability_one() -> None:
    observation, agent = random_observation(), StopAtOnce()
    state = agent.begin(random_words(), observation.viewpoint)
    probability = agent.decide(state, observation).logits.softmax(1)
    assert probability[torch.arange(4), observation.num_candidates].tolist() == [1.0] * 4


# -- RandomAgent -----------------------------------------------------------------------------------------


def random_logits(
    seed: int, words: TokenBatch, observation: Observation, *, start: int = 5, step: int = 0
) -> torch.Tensor:
    """Logits of RandomAgent at a step of episodes that begin at `start`."""
    agent = RandomAgent(RandomConfig(seed=seed))
    state = agent.begin(words, torch.full((len(observation),), start))
    for _ in range(step):
        state = agent.advance(state, observation, observation.num_candidates)
    return agent.decide(state, observation).logits


def test_logits_are_independent_gumbel_noise() -> None:
    """Therefore all candidates and STOP are equally likely."""
    observation = random_observation((7,)).select(torch.zeros(2000, dtype=torch.int64))
    ids = torch.arange(2000)[:, None]
    words = TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool))
    for step in range(3):
        logits = random_logits(0, words, observation, step=step)
        assert float(logits.mean()) == pytest.approx(np.euler_gamma, abs=0.03)
        assert float(logits.var()) == pytest.approx(np.pi**2 / 6, abs=0.06)
        assert np.abs(np.corrcoef(logits.numpy().T) - np.eye(8)).max() < 0.1
        share = logits.argmax(1).bincount(minlength=8) / 2000
        assert share.tolist() == pytest.approx([1 / 8] * 8, abs=0.03)


def test_logits_depend_on_seed_instruction_start_and_step() -> None:
    observation, words = random_observation((4,)), random_words((3,))
    draws = [
        random_logits(0, words, observation),
        random_logits(1, words, observation),
        random_logits(0, words._replace(ids=words.ids.flip(1)), observation),
        random_logits(0, words._replace(valid=torch.tensor([[True, True, False]])), observation),
        random_logits(0, words, observation, start=6),
        random_logits(0, words, observation, step=1),
        # The same sum of seed and start.
        random_logits(5, words, observation, start=0),
    ]
    assert len({tuple(draw.flatten().tolist()) for draw in draws}) == len(draws)
    assert torch.equal(random_logits(0, words, observation), draws[0])


def test_logits_depend_on_the_neighbours_and_not_on_features() -> None:
    observation, words = random_observation((4,)), random_words((3,))
    other = random_observation((4,), seed=9)
    neighbour = other.neighbour.clone()
    neighbour[0, :4] = observation.neighbour[0, :4]
    expected = random_logits(0, words, observation)
    assert not torch.equal(random_logits(0, words, other), expected)
    assert torch.equal(random_logits(0, words, replace(other, neighbour=neighbour)), expected)


# -- ShortestPath ----------------------------------------------------------------------------------------


def test_shortest_path_reaches_the_nearest_goal_and_stays() -> None:
    atlas = with_features(random_building())
    generator = np.random.default_rng(0)
    starts = generator.integers(len(atlas), size=30).tolist()
    goals = generator.integers(len(atlas), size=(30, 2)).tolist()
    paths = follow(ShortestPath(), atlas, starts, goals, 20)
    for start, targets, path in zip(starts, goals, paths, strict=True):
        shortest = atlas.distance(start, targets)
        length = sum(float(atlas.distance(a, b)) for a, b in zip(path, path[1:], strict=False))
        assert length == pytest.approx(float(shortest.min()))
        assert path[-1] == targets[int(shortest.argmin())]


def test_a_logit_is_minus_the_detour_in_metres() -> None:
    positions = {"a": (0, 0, 0), "b": (0, 3, 0), "c": (4, 0, 0), "d": (4, 3, 0)}
    edges = [("a", "b"), ("b", "d"), ("a", "c"), ("a", "d")]
    atlas = with_features(Atlas([SceneGraph.build("toy", positions, edges)]))
    a, b, c, d = atlas.locate("toy", list("abcd")).tolist()
    observation = Observation.from_atlas(atlas, Pose(np.array([a]), np.array([12])))
    agent = ShortestPath()
    state = agent.begin(random_words((1,)), observation.viewpoint, PrivilegedInfo(atlas, np.array([[d]])))
    logits = agent.decide(state, observation).logits[0, :3].tolist()
    detours = dict(zip(observation.neighbour[0, :3].tolist(), logits, strict=True))
    assert detours == pytest.approx({d: 0.0, b: -2.0, c: -8.0})


def test_padding_of_goals_is_no_goal() -> None:
    """Goals are padded with viewpoint 0, where an agent with another goal must not stop."""
    atlas = with_features(random_building())
    agent, words, start = ShortestPath(), random_words((1,)), torch.tensor([0])
    one = agent.begin(words, start, PrivilegedInfo(atlas, np.array([[9]])))
    two = agent.begin(words, start, PrivilegedInfo(atlas, np.array([[9, 0]])))
    observation = Observation.from_atlas(atlas, Pose(np.array([0, 0]), np.array([12, 12])))
    chosen = agent.decide(one.concat(two), observation).logits.argmax(1)
    assert (chosen == observation.num_candidates).tolist() == [False, True]


def test_an_unreachable_goal_leads_to_stop() -> None:
    graphs = [
        SceneGraph.build(name, {"a": (0, 0, 0), "b": (0, 2, 0)}, [("a", "b")]) for name in ("one", "other")
    ]
    assert follow(ShortestPath(), with_features(Atlas(graphs)), [0], [[3]], 2) == [[0, 0, 0]]


def test_shortest_path_needs_goals() -> None:
    with pytest.raises(ConfigError, match="expects goals, and none came"):
        ShortestPath().begin(random_words((2,)), torch.tensor([0]))


@pytest.mark.parametrize("kind", [StopAtOnce, RandomAgent, ShortestPath])
def test_scripted_agents_have_no_parameters(kind: type[Agent[Any]]) -> None:
    assert list(kind().parameters()) == []
