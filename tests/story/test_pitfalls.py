"""Common mistakes of re-implementations of ESceme, numbered as in the specification's list of pitfalls.

Points 9 to 11 and 13 concern other agents and training; their tests are elsewhere.
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from esceme.agents import HAMT
from esceme.agents.base import TokenBatch
from esceme.agents.hamt import HamtState
from esceme.agents.layers import Attention, FeedForward, PackedLayout, Tokens
from esceme.checkpoints import navigator_from
from esceme.dropout import dropout
from esceme.evaluation.schedule import ReleasedOrder
from esceme.memory import CandidateEnhancing, MemoryBank
from esceme.metrics import score
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.tasks.episode import Episode
from esceme.tasks.submission import Prediction, TrajectoryPoint
from esceme.trajectory import greedy
from esceme.world import CANDIDATE, CONTEXT, STOP
from esceme.world.geometry import VIEW_HEADINGS, angle_feature, panorama_angles
from fixtures import original_checkpoints
from fixtures.toy_atlas import (
    WIDTH,
    RecordingMemory,
    build,
    build_toy_atlas,
    make_episode,
    plain_navigator,
    run_batch,
    small_navigator,
)

ATLAS = build_toy_atlas()


def observe(*names: str, scene: str = "cottage", facing: float = 0.0) -> Observation:
    """One row per viewpoint name."""
    viewpoints = ATLAS.locate(scene, names)
    return Observation.from_atlas(ATLAS, ATLAS.begin(viewpoints, np.full(len(names), facing)))


def hamt_of(navigator: Navigator) -> HAMT:
    assert isinstance(navigator.agent, HAMT)
    return navigator.agent


def reader_of(navigator: Navigator) -> CandidateEnhancing:
    assert isinstance(navigator.reader, CandidateEnhancing)
    return navigator.reader


def literal_fusion(reader: CandidateEnhancing, first: Tensor, second: Tensor) -> Tensor:
    """The published fusion (spec C.5): Linear, ReLU, LayerNorm, Linear on concatenated inputs."""
    return reader.second(reader.norm(functional.relu(reader.first(torch.cat([first, second], -1)))))


def memories(observation: Observation, bank: MemoryBank) -> Tensor:
    """The memory vector of every token, by the table of spec C.4, (B, N, D)."""
    vectors = torch.zeros_like(observation.raw_features)
    for row, token in observation.valid.nonzero().tolist():
        if observation.token_type[row, token] == CONTEXT:
            vectors[row, token] = observation.raw_features[row, token]
        elif observation.token_type[row, token] == CANDIDATE:
            scene, name = ATLAS.name(int(observation.neighbour[row, token]))
            vectors[row, token] = bank.recall(scene, [name])[0]
    return vectors


# -- 1: the order of read, act, write ----------------------------------------------------------------------


def test_pitfall_1_read_then_act_then_write_then_move() -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    memory = RecordingMemory(bank, ATLAS)
    steps = run_batch(small_navigator(), ATLAS, [make_episode("hall", "door")], memory)
    next(steps)
    assert memory.requested == [[{"door", "kitchen", "pantry", "landing"}]]
    assert memory.found == [[set()]]
    assert bank["cottage"].viewpoints == {"hall"}  # the viewpoint of the decision, not the next one
    next(steps)
    assert memory.requested[-1] == [{"hall", "garden"}]
    assert memory.found[-1] == [{"hall"}]
    assert bank["cottage"].viewpoints == {"hall", "door"}  # including the last viewpoint
    assert list(steps) == []


def test_pitfall_1_the_last_node_of_a_truncated_episode_is_not_stored() -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    *_, last = run_batch(
        small_navigator(), ATLAS, [make_episode("hall", "door", "garden")], bank, max_steps=2
    )
    (trajectory,) = last.finished
    assert not trajectory.stopped
    assert [ATLAS.name(viewpoint)[1] for viewpoint, _ in trajectory.poses] == ["hall", "door", "garden"]
    assert bank["cottage"].viewpoints == {"hall", "door"}
    assert [ATLAS.name(viewpoint)[1] for viewpoint in trajectory.decision_viewpoints] == ["hall", "door"]


# -- 2: what is pooled -------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
def test_pitfall_2_raw_features_of_the_candidates_views_are_pooled(training: bool) -> None:
    bank, mean = MemoryBank.from_atlas(ATLAS), MemoryBank.from_atlas(ATLAS, pooling="mean")
    navigator = small_navigator().train(training)
    for memory in (bank, mean):
        list(run_batch(navigator, ATLAS, [make_episode("hall", "landing", "attic")], memory))
    for name in ("hall", "landing", "attic"):
        (viewpoint,) = ATLAS.locate("cottage", [name])
        views = ATLAS.views[viewpoint, : ATLAS.degrees[viewpoint]]
        features = ATLAS.panorama_features(np.array([viewpoint]))[0][views]
        assert np.array_equal(bank.recall("cottage", [name])[0].numpy(), features.max(0))
        np.testing.assert_allclose(mean.recall("cottage", [name])[0].numpy(), features.mean(0), rtol=1e-5)
    # Kitchen and pantry share a view: a mean counts it twice.
    (hall,) = ATLAS.locate("cottage", ["hall"])
    views = ATLAS.views[hall, : ATLAS.degrees[hall]].tolist()
    assert len(views) == 4 and len(set(views)) == 3


# -- 3: the memory of context views ------------------------------------------------------------------------


def test_pitfall_3_in_training_a_context_view_is_fused_with_its_raw_feature() -> None:
    navigator = small_navigator().train()
    bank = MemoryBank.from_atlas(ATLAS)
    bank.remember_observation(observe("door", "pantry"))
    observation = observe("hall", "landing")
    torch.manual_seed(5)
    seen = navigator.observe(observation, bank)
    torch.manual_seed(5)
    dropped = dropout(observation.raw_features, 0.4)
    assert 0.3 < float((dropped == 0)[observation.view >= 0].float().mean()) < 0.5
    memory = memories(observation, bank)
    fused = literal_fusion(reader_of(navigator), dropped, memory)
    valid = observation.valid
    torch.testing.assert_close(seen.features[valid], fused[valid], atol=1e-5, rtol=0)
    assert torch.equal(
        memory[observation.is_context_view], observation.raw_features[observation.is_context_view]
    )
    known = [
        ATLAS.name(index)[1] for index in observation.neighbour[memory.any(-1) & observation.is_candidate]
    ]
    assert sorted(known) == ["door", "pantry"]
    # Zeros or dropped features of context views would give other results.
    for wrong in (torch.zeros_like(dropped), dropped):
        other = literal_fusion(reader_of(navigator), dropped, wrong)
        assert not torch.allclose(seen.features[seen.is_context_view], other[seen.is_context_view], atol=1e-2)


def test_pitfall_3_with_an_empty_memory_candidates_get_zeros_and_context_views_their_features() -> None:
    navigator, bank, observation = small_navigator(), MemoryBank.from_atlas(ATLAS), observe("hall", "attic")
    recalled = reader_of(navigator).recall(observation, bank)
    assert torch.equal(
        recalled[observation.is_context_view], observation.raw_features[observation.is_context_view]
    )
    assert not recalled[~observation.is_context_view].any()


# -- 4: the order of the input and what follows ------------------------------------------------------------


def test_pitfall_4_fusion_reads_features_then_memory_before_the_embedding() -> None:
    navigator, bank = small_navigator(), MemoryBank.from_atlas(ATLAS)
    bank.remember_observation(observe("door", "kitchen", "landing"))
    observation = observe("hall", "door", "attic")
    with torch.no_grad():
        seen = navigator.observe(observation, bank)
        memory, valid = memories(observation, bank), observation.valid
        right = literal_fusion(reader_of(navigator), observation.raw_features, memory)
        torch.testing.assert_close(seen.features[valid], right[valid], atol=1e-5, rtol=0)
        swapped = literal_fusion(reader_of(navigator), memory, observation.raw_features)
        candidates = observation.is_candidate
        assert not torch.allclose(seen.features[candidates], swapped[candidates], atol=1e-2)

        agent = hamt_of(navigator)
        sight, mark = agent.sight, agent.text.kinds.weight[1]
        embedded = (
            sight.picture.norm(sight.picture.linear(right))
            + sight.angle.norm(sight.angle.linear(observation.angles))
            + mark
            + sight.kinds(observation.token_type)
        )
        expected = sight.norm(embedded)
        torch.testing.assert_close(sight(seen, mark)[valid], expected[valid], atol=1e-5, rtol=0)


# -- 5: STOP -----------------------------------------------------------------------------------------------


def test_pitfall_5_stop_is_not_zero_after_fusion_and_equal_at_all_viewpoints() -> None:
    navigator, bank = small_navigator(), MemoryBank.from_atlas(ATLAS)
    with torch.no_grad():  # initial biases are zero
        for module in navigator.modules():
            if isinstance(module, nn.Linear):
                module.bias.normal_()
    bank.remember_all()
    names = list(ATLAS.graph("cottage").viewpoints)
    observation = observe(*names, facing=1.0)
    with torch.no_grad():
        seen = navigator.observe(observation, bank)
        agent = hamt_of(navigator)
        embedded = agent.sight(seen, agent.text.kinds.weight[1])
    rows, stop = torch.arange(len(names)), observation.num_candidates
    assert (observation.token_type[rows, stop] == STOP).all()
    assert int((observation.token_type == STOP).sum()) == len(rows)
    assert (observation.token_type[rows, stop + 1] == CONTEXT).all()
    assert not observation.raw_features[rows, stop].any() and not observation.angles[rows, stop].any()
    for tokens in (seen.features[rows, stop], embedded[rows, stop]):
        assert tokens[0].abs().max() > 1e-3
        torch.testing.assert_close(tokens, tokens[:1].expand_as(tokens), atol=1e-6, rtol=0)


def test_pitfall_5_stop_is_the_action_after_the_candidates() -> None:
    navigator = plain_navigator()
    (step,) = run_batch(navigator, ATLAS, [make_episode("hall")], None)
    assert step.actions.tolist() == [4] and step.finished[0].stopped
    assert torch.isfinite(step.decision.logits).all() and step.decision.logits.shape == (1, 5)


# -- 6: scope and resets -----------------------------------------------------------------------------------


def test_pitfall_6_one_memory_serves_all_episodes_batches_and_modes() -> None:
    navigator, bank = small_navigator(), MemoryBank.from_atlas(ATLAS)
    memory = RecordingMemory(bank, ATLAS)
    list(run_batch(navigator.train(), ATLAS, [make_episode("hall", "door")], memory))  # imitation
    list(
        run_batch(
            navigator.eval(), ATLAS, [make_episode("kitchen", "pantry")], memory, choose=greedy, max_steps=1
        )
    )
    memory.found.clear()
    next(run_batch(navigator.eval(), ATLAS, [make_episode("pantry")], memory))
    assert memory.found == [[{"hall", "kitchen"}]]


def test_pitfall_6_a_step_reads_before_it_writes_and_rows_share_the_memory() -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    memory = RecordingMemory(bank, ATLAS)
    together = [make_episode("hall", "door", name="0_0"), make_episode("pantry", "kitchen", name="1_0")]
    steps = run_batch(small_navigator(), ATLAS, together, memory)
    next(steps)
    assert memory.found[-1] == [set(), set()]  # the two are neighbours and not remembered yet
    next(steps)
    assert memory.found[-1] == [{"hall"}, {"hall", "pantry"}]


# -- 7: angles and tokens ----------------------------------------------------------------------------------


def test_pitfall_7_headings_are_relative_to_the_snapped_view_and_elevations_absolute() -> None:
    exact = math.radians(40)  # faces view 13, 30°
    observation = observe("hall", facing=exact)
    assert observation.facing_view.tolist() == [13]
    base = float(VIEW_HEADINGS[13])
    for token, candidate in enumerate(ATLAS.graph("cottage").candidates("hall")):
        expected = angle_feature(np.array([candidate.heading - base]), np.array([candidate.elevation]))[0]
        np.testing.assert_allclose(observation.angles[0, token].numpy(), expected, atol=1e-6)
    up = [candidate.viewpoint for candidate in ATLAS.graph("cottage").candidates("hall")].index("landing")
    assert observation.angles[0, up, 2] == pytest.approx(math.sin(math.atan2(2, 2.5)), abs=1e-6)
    context = observation.is_context_view[0]
    table = panorama_angles(np.array([13]))[0]
    np.testing.assert_allclose(
        observation.angles[0, context].numpy(), table[observation.view[0, context].numpy()], atol=1e-6
    )


def test_pitfall_7_after_a_move_the_agent_faces_the_view_of_the_candidate() -> None:
    steps = list(
        run_batch(plain_navigator(), ATLAS, [make_episode("hall", "landing", "attic", heading=2.0)], None)
    )
    views = [int(step.observation.facing_view[0]) for step in steps]
    assert views == [16, 30, 17]  # south and up, then level
    # Elevations do not depend on the elevation of the facing view.
    down = [candidate.viewpoint for candidate in ATLAS.graph("cottage").candidates("landing")].index("hall")
    assert steps[1].observation.angles[0, down, 2] == pytest.approx(-math.sin(math.atan2(2, 2.5)), abs=1e-6)


def test_pitfall_7_candidates_that_share_a_view_are_separate_tokens() -> None:
    observation = observe("hall", "garden")
    assert observation.valid.sum(1).tolist() == [38, 37]
    assert observation.num_candidates.tolist() == [4, 1]
    views = observation.view[0, :4].tolist()
    assert len(set(views)) == 3
    assert set(observation.view[0, observation.is_context_view[0]].tolist()) == set(range(36)) - set(views)
    padding = ~observation.valid
    assert padding.tolist()[1][-1] and observation.token_type[padding].eq(CONTEXT).all()
    assert not observation.features[padding].any() and observation.neighbour[padding].eq(-1).all()


# -- 8: history --------------------------------------------------------------------------------------------


def test_pitfall_8_a_history_token_is_the_facing_view_the_action_angle_and_the_panorama() -> None:
    navigator = small_navigator()
    agent, bank = hamt_of(navigator), MemoryBank.from_atlas(ATLAS)
    bank.remember_all()  # fused features must not reach the history
    observation = observe("hall", "attic", facing=2.0)
    chosen = torch.tensor([1, int(observation.num_candidates[1])])  # a candidate, and STOP
    words = TokenBatch(torch.tensor([[1, 5, 2], [1, 2, 0]]), torch.tensor([[True] * 3, [True, True, False]]))
    with torch.no_grad():
        state = navigator.begin(words, observation.viewpoint)
        seen = navigator.observe(observation, bank)
        after = navigator.advance(state, seen, chosen)
        again = navigator.advance(after, seen, chosen)
    assert isinstance(state, HamtState) and isinstance(after, HamtState) and isinstance(again, HamtState)
    assert [step.history_length.tolist() for step in (state, after, again)] == [[1, 1], [2, 2], [3, 3]]
    assert torch.equal(again.history[:, :2], after.history[:, :2])  # tokens are not updated

    history = agent.history
    panoramas = torch.from_numpy(ATLAS.panorama_features(observation.viewpoint.numpy()))
    angles = torch.from_numpy(panorama_angles(observation.facing_view.numpy()))
    faced = panoramas[torch.arange(2), observation.facing_view]
    towards = observation.angles[torch.arange(2), chosen]
    assert towards[0].any() and not towards[1].any()
    with torch.no_grad():
        around = history.panorama_picture(panoramas) + history.panorama_angle(angles)
        tokens = Tokens.pack(around, torch.ones(2, 36, dtype=torch.bool))
        for layer in history.panorama_layers:
            tokens = layer(tokens)
        mean = tokens.rows.view(2, 36, -1).mean(1)
        described = history.picture(faced) + history.angle(towards) + history.kind.weight[0] + mean
        for step, later in ((0, after), (1, again)):
            expected = history.norm(described + history.steps.weight[step])
            torch.testing.assert_close(later.history[:, step + 1], expected, atol=1e-5, rtol=0)


# -- 12: published files (more in tests/checkpoints) -------------------------------------------------------


def test_pitfall_12_the_length_of_the_history_table_is_inferred() -> None:
    """A file with `module.` prefixes and 50 history positions."""
    sizes = original_checkpoints.SMALL._replace(steps=50, positions=60, feature=WIDTH)
    content = original_checkpoints.fine_tuned(sizes, wrapper="module.")
    navigator, report = navigator_from(
        content["vln_bert"]["state_dict"], content["critic"]["state_dict"], heads=3
    )
    assert hamt_of(navigator).history.steps.weight.shape == (50, sizes.hidden)
    assert report.ignored == report.initialised == ()
    bank = MemoryBank.from_atlas(ATLAS)
    back_and_forth = make_episode(*["hall", "door"] * 20)
    *_, last = run_batch(navigator.eval(), ATLAS, [back_and_forth], bank, max_steps=60)
    assert last.finished[0].num_decisions == 40


# -- 14: masks and numerics --------------------------------------------------------------------------------


def test_pitfall_14_removing_keys_equals_adding_minus_10000() -> None:
    torch.manual_seed(0)
    attention = Attention(16, 4, dropout=0.1).eval()
    nn.init.normal_(attention.key.weight, std=0.5)
    valid = torch.arange(7) < torch.tensor([7, 3, 1])[:, None]
    query_tokens, key_tokens = torch.randn(3, 5, 16), torch.randn(3, 7, 16)
    with torch.no_grad():
        queries = Tokens.pack(query_tokens, torch.ones(3, 5, dtype=torch.bool))
        ours = attention(queries, attention.project(Tokens.pack(key_tokens, valid))).padded

        def split(tensor: Tensor) -> Tensor:
            return tensor.view(*tensor.shape[:2], 4, 4).transpose(1, 2)

        queries, keys, values = (
            split(attention.query(query_tokens)),
            split(attention.key(key_tokens)),
            split(attention.value(key_tokens)),
        )
        scores = queries @ keys.transpose(2, 3) / 4**0.5 + torch.where(valid, 0.0, -10000.0)[:, None, None]
        seen = (scores.softmax(-1) @ values).transpose(1, 2).flatten(2)
        theirs = attention.norm(query_tokens + attention.out(seen))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_pitfall_14_gelu_is_exact() -> None:
    torch.manual_seed(0)
    block = FeedForward(16, 32, dropout=0.1).eval()
    rows = 3 * torch.randn(50, 16)
    inner = block.inner(rows)
    exact = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
    out = block(Tokens(rows, PackedLayout(torch.ones(1, 50, dtype=torch.bool)))).rows
    torch.testing.assert_close(out, block.norm(rows + block.out(exact)), atol=1e-6, rtol=0)
    rough = block.norm(rows + block.out(functional.gelu(inner, approximate="tanh")))
    assert (out - rough).abs().max() > 1e-5


def test_pitfall_14_layer_norms_use_epsilon_1e_12() -> None:
    epsilons = {module.eps for module in small_navigator().modules() if isinstance(module, nn.LayerNorm)}
    assert epsilons == {1e-12}
    # XLM-R's configuration sets another value for text and cross-modal layers only.
    agent = hamt_of(small_navigator(epsilon=1e-5))
    changed = {
        name.split(".")[0] for name, module in agent.named_modules() if getattr(module, "eps", 0) == 1e-5
    }
    assert changed == {"text", "cross_layers"}


def test_pitfall_14_frozen_encoders_use_dropout_in_training() -> None:
    navigator = small_navigator(freeze_text=True, freeze_history=True)
    agent = hamt_of(navigator)
    words = TokenBatch(torch.tensor([[1, 5, 7, 2]]), torch.ones(1, 4, dtype=torch.bool))
    assert not any(parameter.requires_grad for parameter in agent.text.layers.parameters())
    observation = observe("hall")
    for training in (True, False):
        navigator.train(training)
        one, other = agent.encode_text(words), agent.encode_text(words)
        assert not one.requires_grad
        assert torch.equal(one, other) is not training
        state = navigator.begin(words, observation.viewpoint)
        steps = [navigator.advance(state, observation, torch.tensor([0])) for _ in range(2)]
        tokens = [after.history[:, 1] for after in steps if isinstance(after, HamtState)]
        assert not any(token.requires_grad for token in tokens)
        assert torch.equal(*tokens) is not training


def test_pitfall_14_dropout_of_the_global_history_token_is_shared_by_the_batch() -> None:
    agent = hamt_of(small_navigator().train())
    with torch.no_grad():
        agent.history.start.normal_()
    one, other = agent.history.begin(5), agent.history.begin(5)
    assert one.shape == (5, 1, 32)
    assert torch.equal(one, one[:1].expand_as(one))
    assert int((one[0] == 0).sum()) > 0
    assert not torch.equal(one, other)


# -- 15: evaluation ----------------------------------------------------------------------------------------

POSITIONS = {"street": {"a": (0, 0, 0), "b": (0, 4, 0), "c": (0, 7, 0), "d": (0, 7, 2.9), "e": (5, 4, 0)}}
EDGES = {"street": [("a", "b"), ("b", "c"), ("c", "d"), ("b", "e"), ("e", "c")]}


def scored(episode: Episode, *path: str) -> dict[str, float]:
    atlas = build(POSITIONS, EDGES)
    predicted = Prediction(episode.episode_id, tuple(TrajectoryPoint(name, 0.0, 0.0) for name in path))
    return {name: float(values[0]) for name, values in score([(episode, predicted)], atlas).values.items()}


def test_pitfall_15_an_error_of_three_metres_is_no_success() -> None:
    exactly = scored(make_episode("a", "b", "c", scene="street"), "a", "b")
    assert exactly["ne"] == 3.0 and exactly["sr"] == 0.0 and exactly["osr"] == 0.0
    nearer = scored(make_episode("a", "b", "c", "d", scene="street"), "a", "b", "c")
    assert nearer["ne"] == pytest.approx(2.9) and nearer["sr"] == 1.0


def test_pitfall_15_spl_uses_the_length_of_the_reference_path() -> None:
    detour = make_episode("a", "b", "e", "c", scene="street")
    along = 4 + 5 + math.hypot(5, 3)
    assert scored(detour, "a", "b", "e", "c")["spl"] == 1.0
    assert scored(detour, "a", "b", "c")["spl"] == 1.0  # a shorter path is not penalised
    assert scored(make_episode("a", "b", "c", scene="street"), "a", "b", "e", "c")["spl"] == pytest.approx(
        7 / along
    )


def episodes_of(count: int) -> list[Episode]:
    return [
        make_episode("a", scene=f"{number % 11}", name=f"{number // 3}_{number % 3}")
        for number in range(count)
    ]


def test_pitfall_15_batches_are_those_of_the_released_code() -> None:
    """R2R val_unseen, spec J.9: 294 batches of 8 for 2,349 episodes, three of which occur twice."""
    batches = list(ReleasedOrder(episodes_of(2349), 8, seed=0).batches())
    ids = [episode.episode_id for batch in batches for episode in batch]
    assert (len(batches), len(ids), len(ids) - len(set(ids))) == (294, 2352, 3)
    shuffled = episodes_of(2349)
    generator = random.Random(0)
    generator.shuffle(shuffled)
    assert ids[:2349] == [episode.episode_id for episode in shuffled]
    generator.shuffle(shuffled)  # the shuffled list is shuffled again
    assert ids[2349:] == [episode.episode_id for episode in shuffled[:3]]
    assert len({episode.scene_id for episode in batches[0]}) > 1  # not grouped by scene
