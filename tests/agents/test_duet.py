"""DUET: sizes, map and relocation in rollouts, dropout and gradients, the remembered map (spec I)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from esceme.agents import DUET
from esceme.agents.base import Decision, TokenBatch
from esceme.agents.duet import DuetState
from esceme.errors import ConfigError
from esceme.learning import Trainer, TrainingConfig
from esceme.learning.teachers import shortest_path_oracle, stopping_at_goal
from esceme.memory import (
    READERS,
    CandidateEnhancing,
    CandidateEnhancingConfig,
    MapReader,
    MapReaderConfig,
    MemoryBank,
    NoMemory,
    ZeroRecallMemory,
)
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.rollout import roll_out
from esceme.trajectory import SingleBatch, Trajectory, greedy, sampling
from esceme.world.atlas import Pose
from fixtures.toy_atlas import (
    TOY_EPISODES,
    WIDTH,
    build_toy_atlas,
    encode,
    make_episode,
    plain_navigator,
    run_batch,
    small_duet,
)

ATLAS = build_toy_atlas()


def paths(
    agent: Navigator,
    episodes: Sequence[Any],
    memory: Any = None,
    *,
    max_steps: int = 15,
    choose: Any = greedy,
) -> list[list[int]]:
    source = SingleBatch(ATLAS, episodes)
    with torch.inference_mode():
        for _ in roll_out(agent, ATLAS, source, memory, choose, encode=encode, max_steps=max_steps):
            pass
    return [[viewpoint for viewpoint, _ in trajectory.poses] for trajectory in source.trajectories]


def test_the_published_network_has_423_tensors() -> None:
    with torch.device("meta"):
        agent = DUET()
    assert len(agent.state_dict()) == 423
    assert sum(parameter.numel() for parameter in agent.parameters()) == 180_489_221


def test_every_move_is_an_edge_and_the_last_decision_is_no_move() -> None:
    for seed in range(4):
        for max_steps in (1, 4, 15):
            source = SingleBatch(ATLAS, TOY_EPISODES)
            agent = small_duet(seed=seed)
            with torch.inference_mode():
                steps = list(
                    roll_out(agent, ATLAS, source, None, sampling(seed), encode=encode, max_steps=max_steps)
                )
            assert len(steps) <= max_steps
            for trajectory in source.trajectories:
                visited = [viewpoint for viewpoint, _ in trajectory.poses]
                assert all(b in ATLAS.neighbours[a] for a, b in pairwise(visited))
                assert trajectory.stopped and (max_steps > 1 or len(visited) == 1)


def test_views_after_a_jump_are_those_of_the_last_edge() -> None:
    source = SingleBatch(ATLAS, [make_episode("garden", "door", name="0_0")])

    def to_attic(decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]) -> Tensor:
        """Door, hall, kitchen, then the landing, which was seen from the hall."""
        names = ["door", "hall", "kitchen", "landing"][trajectories[0].num_decisions :]
        if not names:
            return observation.num_candidates
        goal = int(ATLAS.locate("cottage", names[:1])[0])
        candidates = observation.neighbour[0].tolist()
        if goal in candidates:
            return torch.tensor([candidates.index(goal)])
        assert decision.routes is not None
        return torch.tensor(
            [decision.routes.first_action + decision.routes.viewpoints[0].tolist().index(goal)]
        )

    with torch.inference_mode():
        steps = list(roll_out(small_duet(), ATLAS, source, None, to_attic, encode=encode, max_steps=9))
    poses = steps[-1].trajectories[0].poses[:6]
    names = [ATLAS.name(viewpoint)[1] for viewpoint, _ in poses]
    assert names == ["garden", "door", "hall", "kitchen", "hall", "landing"]
    for (here, _), (there, view) in pairwise(poses):
        slot = ATLAS.neighbours[here].tolist().index(there)
        assert view == ATLAS.views[here, slot]
    assert int(steps[4].observation.facing_view[0]) == poses[5][1]


def test_the_agent_ends_where_stop_was_most_probable() -> None:
    """The scores of the last state decide; the way back is not decided or observed."""
    num_relocated = 0
    for seed in range(6):
        source = SingleBatch(ATLAS, TOY_EPISODES[:3])
        with torch.inference_mode():
            for step in roll_out(
                small_duet(seed=seed), ATLAS, source, None, sampling(seed), encode=encode, max_steps=5
            ):
                assert isinstance(step.state, DuetState)
                for row, trajectory in enumerate(step.trajectories):
                    if trajectory not in step.finished:
                        continue
                    probability = step.state.stop_probability[row]
                    visited = step.state.is_visited[row]
                    best = int(probability.masked_fill(~visited, -1).argmax())
                    assert trajectory.viewpoint == int(step.state.node[row, best]) - 1
                    num_relocated += best != int(step.state.current[row])
    assert num_relocated


def test_an_exhausted_map_leaves_only_stop() -> None:
    """The shed has two viewpoints: after both are visited, STOP has probability 1."""
    source = SingleBatch(ATLAS, [make_episode("hall", "door", scene="shed")])

    def never_stop(
        decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]
    ) -> Tensor:
        open_actions = decision.logits.isfinite()
        stop = observation.num_candidates[:, None]
        moves = open_actions.scatter(1, stop, False)
        return torch.where(moves.any(1), moves.int().argmax(1), stop[:, 0])

    with torch.inference_mode():
        steps = list(roll_out(small_duet(), ATLAS, source, None, never_stop, encode=encode, max_steps=9))
    assert len(steps) == 2
    assert steps[1].decision.logits.softmax(1).max() == 1.0


def test_batches_do_not_change_trajectories() -> None:
    together = paths(small_duet(), TOY_EPISODES)
    assert together == [paths(small_duet(), [episode])[0] for episode in TOY_EPISODES]


def test_too_many_decisions_are_refused() -> None:
    agent = small_duet(max_steps=3)
    assert agent.agent.config.limits.max_steps == 2
    with pytest.raises(ConfigError, match="beyond the 3 step embeddings"):
        paths(agent, TOY_EPISODES[:1], max_steps=9, choose=sampling(3))


def test_dagger_trains_every_part() -> None:
    """One iteration; no gradient reaches the padding row of the word table."""
    agent = small_duet()
    training = TrainingConfig(
        method="imitation+dagger", batch=3, oracle="shortest", oracle_weight=1.0, learning_rate=1e-3
    )
    trainer = Trainer(agent, ATLAS, [TOY_EPISODES], training, encode=encode, max_steps=6)
    before = {name: parameter.detach().clone() for name, parameter in agent.named_parameters()}
    metrics = trainer.training_step(0)
    assert metrics["oracle"] > 0 and metrics["imitation"] > 0
    assert all(not torch.equal(before[name], parameter) for name, parameter in agent.named_parameters())
    words = agent.agent.text.words.weight
    assert not words.grad[0].any() and words.grad.any()


def test_sampled_rollouts_end_at_the_goal() -> None:
    episode = make_episode("kitchen", "pantry", name="3_0")
    source = SingleBatch(ATLAS, [episode])
    oracle = shortest_path_oracle(ATLAS)
    labels = []

    def follow(decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]) -> Tensor:
        labels.append(oracle(decision, observation, trajectories))
        return torch.zeros(1, dtype=torch.int64)  # always the first candidate

    select = stopping_at_goal(ATLAS, follow)
    with torch.inference_mode():
        steps = list(roll_out(small_duet(), ATLAS, source, None, select, encode=encode, max_steps=9))
    assert [int(step.observation.viewpoint[0]) for step in steps] == ATLAS.locate(
        "cottage", ["kitchen", "pantry"]
    ).tolist()
    assert int(labels[1]) == int(steps[1].observation.num_candidates[0])


def test_later_losses_reach_earlier_panoramas() -> None:
    """Node embeddings are not detached (spec I.4)."""
    agent = small_duet()
    steps = list(run_batch(agent, ATLAS, TOY_EPISODES[:1], None))
    loss = steps[-1].decision.logits.masked_fill(~steps[-1].decision.logits.isfinite(), 0).sum()
    features = agent.agent.panorama.picture.linear.weight
    (gradient,) = torch.autograd.grad(loss, features)
    assert gradient.any()


# -- memory ------------------------------------------------------------------------------------------------


def filled_bank(*names: str) -> MemoryBank:
    bank = MemoryBank.from_atlas(ATLAS)
    bank.remember_at(ATLAS.locate("cottage", list(names)).tolist())
    return bank


@pytest.mark.parametrize("shortcut", ["feature", "both"])
def test_an_untrained_memory_changes_nothing(shortcut: Any) -> None:
    """With a shortcut and a zero last layer, candidate enhancing keeps features, bit for bit."""
    config = CandidateEnhancingConfig(width=WIDTH, shortcut=shortcut, context="untouched", stop="zero")
    memory = ZeroRecallMemory(filled_bank("hall", "door"))
    assert paths(small_duet(CandidateEnhancing(config)), TOY_EPISODES, memory) == paths(
        small_duet(), TOY_EPISODES
    )


def decide_with(memory: Any, episode: Any) -> tuple[Decision, DuetState]:
    reader = MapReader() if memory is not None else NoMemory()
    source = SingleBatch(ATLAS, [episode])
    with torch.inference_mode():
        step = next(roll_out(small_duet(reader), ATLAS, source, memory, greedy, encode=encode, max_steps=5))
    assert isinstance(step.state, DuetState)
    return step.decision, step.state


def test_an_empty_memory_gives_the_plain_agent() -> None:
    plain, _ = decide_with(None, TOY_EPISODES[0])
    for memory in (MemoryBank.from_atlas(ATLAS), ZeroRecallMemory(filled_bank("hall", "landing"))):
        remembering, _ = decide_with(memory, TOY_EPISODES[0])
        assert torch.equal(plain.logits, remembering.logits)


def test_choices_lead_to_remembered_viewpoints_and_their_neighbours() -> None:
    bank = filled_bank("door", "hall")
    decision, state = decide_with(bank, make_episode("garden", "door"))
    assert decision.routes is not None
    reached = {ATLAS.name(index)[1] for index in decision.routes.viewpoints[0].tolist() if index >= 0}
    assert reached == {"hall", "kitchen", "pantry", "landing"}  # the door is a candidate
    column = [
        index
        for index, viewpoint in enumerate(decision.routes.viewpoints[0].tolist())
        if viewpoint >= 0 and ATLAS.name(viewpoint)[1] == "landing"
    ][0]
    path = decision.routes.shortest_path(0, decision.routes.first_action + column)
    assert [ATLAS.name(viewpoint)[1] for viewpoint, _ in path] == ["door", "hall", "landing"]
    assert int(state.is_visited.sum()) == 1  # remembered nodes count as not visited


def test_parts_of_the_memory_without_a_way_are_left_out() -> None:
    decision, _ = decide_with(filled_bank("attic"), make_episode("garden", "door"))
    plain, _ = decide_with(None, make_episode("garden", "door"))
    finite = decision.logits[decision.logits.isfinite()]
    torch.testing.assert_close(finite, plain.logits[plain.logits.isfinite()])


class FrozenMemory(ZeroRecallMemory):
    """A memory that stores nothing more."""

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        return self.memory.recall_at(viewpoints)

    def scene_subgraph(self, viewpoints: Tensor) -> Any:
        return self.memory.scene_subgraph(viewpoints)

    def remember_observation(self, observation: Observation) -> None:
        pass


def test_the_remembered_map_does_not_depend_on_the_batch() -> None:
    memory = FrozenMemory(filled_bank("door", "hall", "landing"))
    agent = small_duet(MapReader())
    together = paths(agent, TOY_EPISODES, memory)
    assert together == [paths(agent, [episode], memory)[0] for episode in TOY_EPISODES]


@pytest.mark.parametrize("name", ["candidate-enhancing", "graph-encoding", "both", "map"])
def test_scores_with_a_reader_do_not_depend_on_the_batch(name: str) -> None:
    """A token that a reader appends stands behind the padding of smaller panoramas."""
    reader: Any = READERS[name]
    torch.manual_seed(0)
    reader = reader(reader.Config(**({} if name == "map" else {"width": WIDTH}))).eval()
    for parameter in reader.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    memory, agent = FrozenMemory(filled_bank("door", "hall", "landing")), small_duet(reader)

    def scores(episodes: Sequence[Any]) -> dict[str, list[Tensor]]:
        source = SingleBatch(ATLAS, episodes)
        found: dict[str, list[Tensor]] = {episode.episode_id: [] for episode in episodes}
        with torch.inference_mode():
            for step in roll_out(agent, ATLAS, source, memory, greedy, encode=encode, max_steps=6):
                for trajectory, row in zip(step.trajectories, step.decision.logits, strict=True):
                    found[trajectory.episode.episode_id].append(row[row.isfinite()])
        return found

    together = scores(TOY_EPISODES)
    for episode in TOY_EPISODES:
        (alone,) = scores([episode]).values()
        torch.testing.assert_close(alone, together[episode.episode_id], rtol=0, atol=1e-5)


def test_a_radius_limits_the_remembered_map() -> None:
    bank = filled_bank("door", "hall", "landing", "attic")
    source = SingleBatch(ATLAS, [make_episode("garden", "door")])
    sizes = []
    for radius in (1.0, 4.0, 7.0, None):
        reader = MapReader(MapReaderConfig(radius=radius))
        with torch.inference_mode():
            step = next(roll_out(small_duet(reader), ATLAS, source, bank, greedy, encode=encode, max_steps=5))
        assert isinstance(step.state, DuetState)
        sizes.append(int((step.state.node > 0).sum()))
        source = SingleBatch(ATLAS, [make_episode("garden", "door")])
    assert sizes == sorted(sizes) and sizes[0] == 2 < sizes[1] < sizes[2] < sizes[3]


def test_only_agents_with_a_map_take_the_map_reader() -> None:
    with pytest.raises(ConfigError, match="HAMT keeps none"):
        Navigator(plain_navigator().agent, MapReader())


def test_training_with_a_remembered_map() -> None:
    agent = small_duet(MapReader())
    training = TrainingConfig(
        method="imitation+dagger", batch=6, oracle="shortest", oracle_weight=1.0, learning_rate=1e-3
    )
    trainer = Trainer(agent, ATLAS, [TOY_EPISODES], training, encode=encode, max_steps=6)
    losses = [trainer.training_step(iteration)["oracle"] for iteration in range(3)]
    trainer.check_finite(3)
    assert np.isfinite(losses).all() and trainer.memory is not None


def test_encoded_panoramas_are_reused_only_with_the_same_features() -> None:
    """Two observations at one pose, with other features for one view, as after a change of the memory."""
    agent = small_duet().agent
    pose = Pose(np.array([0, 1]), np.array([12, 15]))
    seen = Observation.from_atlas(ATLAS, pose)
    fused = seen.with_features(seen.features + 0.5)
    changed = seen.with_features(fused.features.index_fill(1, torch.tensor([0]), 2.0))
    with torch.inference_mode():
        state = agent.begin(TokenBatch(torch.ones(2, 3).long(), torch.ones(2, 3).bool()), seen.viewpoint)
        for observation, size in ((seen, 2), (fused, 4), (fused, 4), (changed, 6), (seen, 6)):
            tokens, _ = agent._encode_observation(state, observation)
            assert len(state.panorama_cache) == size
            torch.testing.assert_close(tokens, agent.encode_panorama(observation), atol=1e-6, rtol=0)
    trained, _ = agent._encode_observation(state, fused)
    assert trained.requires_grad
