"""Where a naive re-implementation of ESceme goes wrong, one by one, through the classes that are used.

The numbers are those of the specification's list of tricky points. Points 9 to 11 and 13 belong to other
agents and to training.
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


def at(*names: str, scene: str = "cottage", facing: float = 0.0) -> Observation:
    """What agents see who stand at these places."""
    places = ATLAS.locate(scene, names)
    return Observation.from_atlas(ATLAS, ATLAS.begin(places, np.full(len(names), facing)))


def hamt(navigator: Navigator) -> HAMT:
    assert isinstance(navigator.agent, HAMT)
    return navigator.agent


def fusing(navigator: Navigator) -> CandidateEnhancing:
    assert isinstance(navigator.reader, CandidateEnhancing)
    return navigator.reader


def literal_fusion(reader: CandidateEnhancing, first: Tensor, second: Tensor) -> Tensor:
    """Linear, ReLU, LayerNorm, Linear over two halves side by side: the module as published (spec C.5)."""
    return reader.second(reader.norm(functional.relu(reader.first(torch.cat([first, second], -1)))))


def memories(observation: Observation, bank: MemoryBank) -> Tensor:
    """The memory vector of every token, by the table of spec C.4."""
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
    assert bank["cottage"].viewpoints == {"hall"}  # where it stood, not where it went
    next(steps)
    assert memory.requested[-1] == [{"hall", "garden"}]
    assert memory.found[-1] == [{"hall"}]
    assert bank["cottage"].viewpoints == {"hall", "door"}  # where it stops is kept
    assert list(steps) == []


def test_pitfall_1_the_last_node_of_a_truncated_episode_is_not_stored() -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    *_, last = run_batch(
        small_navigator(), ATLAS, [make_episode("hall", "door", "garden")], bank, max_steps=2
    )
    (walk,) = last.finished
    assert not walk.stopped
    assert [ATLAS.name(viewpoint)[1] for viewpoint, _ in walk.poses] == ["hall", "door", "garden"]
    assert bank["cottage"].viewpoints == {"hall", "door"}
    assert [ATLAS.name(viewpoint)[1] for viewpoint in walk.decision_viewpoints] == ["hall", "door"]


# -- 2: what is pooled -------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
def test_pitfall_2_raw_features_of_the_candidates_views_are_pooled(training: bool) -> None:
    bank, mean = MemoryBank.from_atlas(ATLAS), MemoryBank.from_atlas(ATLAS, pooling="mean")
    navigator = small_navigator().train(training)
    for memory in (bank, mean):
        list(run_batch(navigator, ATLAS, [make_episode("hall", "landing", "attic")], memory))
    for name in ("hall", "landing", "attic"):
        (place,) = ATLAS.locate("cottage", [name])
        views = ATLAS.views[place, : ATLAS.degrees[place]]
        features = ATLAS.panorama_features(np.array([place]))[0][views]
        assert np.array_equal(bank.recall("cottage", [name])[0].numpy(), features.max(0))
        np.testing.assert_allclose(mean.recall("cottage", [name])[0].numpy(), features.mean(0), rtol=1e-5)
    # Kitchen and pantry share a view: a mean counts it twice.
    (hall,) = ATLAS.locate("cottage", ["hall"])
    views = ATLAS.views[hall, : ATLAS.degrees[hall]].tolist()
    assert len(views) == 4 and len(set(views)) == 3


# -- 3: the memory of views that lead nowhere --------------------------------------------------------------


def test_pitfall_3_in_training_a_context_view_is_fused_with_itself_undropped() -> None:
    navigator = small_navigator().train()
    bank = MemoryBank.from_atlas(ATLAS)
    bank.remember_observation(at("door", "pantry"))
    observation = at("hall", "landing")
    torch.manual_seed(5)
    seen = navigator.observe(observation, bank)
    torch.manual_seed(5)
    dropped = functional.dropout(observation.raw_features, 0.4)
    assert 0.3 < float((dropped == 0)[observation.view >= 0].float().mean()) < 0.5
    memory = memories(observation, bank)
    fused = literal_fusion(fusing(navigator), dropped, memory)
    valid = observation.valid
    torch.testing.assert_close(seen.features[valid], fused[valid], atol=1e-5, rtol=0)
    assert torch.equal(memory[observation.is_context], observation.raw_features[observation.is_context])
    known = [ATLAS.name(each)[1] for each in observation.neighbour[memory.any(-1) & observation.is_candidate]]
    assert sorted(known) == ["door", "pantry"]
    # Neither zeros nor dropped features would do for views that lead nowhere.
    for wrong in (torch.zeros_like(dropped), dropped):
        other = literal_fusion(fusing(navigator), dropped, wrong)
        assert not torch.allclose(seen.features[seen.is_context], other[seen.is_context], atol=1e-2)


def test_pitfall_3_with_an_empty_memory_candidates_get_zeros_and_context_views_themselves() -> None:
    navigator, bank, observation = small_navigator(), MemoryBank.from_atlas(ATLAS), at("hall", "attic")
    recalled = fusing(navigator).recall(observation, bank)
    assert torch.equal(recalled[observation.is_context], observation.raw_features[observation.is_context])
    assert not recalled[~observation.is_context].any()


# -- 4: the order of the input and what follows ------------------------------------------------------------


def test_pitfall_4_features_come_first_and_hamts_own_embedding_follows() -> None:
    navigator, bank = small_navigator(), MemoryBank.from_atlas(ATLAS)
    bank.remember_observation(at("door", "kitchen", "landing"))
    observation = at("hall", "door", "attic")
    with torch.no_grad():
        seen = navigator.observe(observation, bank)
        memory, valid = memories(observation, bank), observation.valid
        right = literal_fusion(fusing(navigator), observation.raw_features, memory)
        torch.testing.assert_close(seen.features[valid], right[valid], atol=1e-5, rtol=0)
        swapped = literal_fusion(fusing(navigator), memory, observation.raw_features)
        candidates = observation.is_candidate
        assert not torch.allclose(seen.features[candidates], swapped[candidates], atol=1e-2)

        agent = hamt(navigator)
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


def test_pitfall_5_stop_is_nowhere_zero_after_fusion_and_the_same_everywhere() -> None:
    navigator, bank = small_navigator(), MemoryBank.from_atlas(ATLAS)
    with torch.no_grad():  # a drawn network has no biases yet
        for module in navigator.modules():
            if isinstance(module, nn.Linear):
                module.bias.normal_()
    bank.remember_all()
    places = list(ATLAS.graph("cottage").viewpoints)
    observation = at(*places, facing=1.0)
    with torch.no_grad():
        seen = navigator.observe(observation, bank)
        agent = hamt(navigator)
        embedded = agent.sight(seen, agent.text.kinds.weight[1])
    rows, stop = torch.arange(len(places)), observation.num_candidates
    assert (observation.token_type[rows, stop] == STOP).all() and int(
        (observation.token_type == STOP).sum()
    ) == len(rows)
    assert (observation.token_type[rows, stop + 1] == CONTEXT).all()
    assert not observation.raw_features[rows, stop].any() and not observation.angles[rows, stop].any()
    for tokens in (seen.features[rows, stop], embedded[rows, stop]):
        assert tokens[0].abs().max() > 1e-3
        torch.testing.assert_close(tokens, tokens[:1].expand_as(tokens), atol=1e-6, rtol=0)


def test_pitfall_5_choosing_the_number_of_candidates_is_stopping() -> None:
    navigator = plain_navigator()
    (step,) = run_batch(navigator, ATLAS, [make_episode("hall")], None)
    assert step.actions.tolist() == [4] and step.finished[0].stopped
    assert torch.isfinite(step.decision.logits).all() and step.decision.logits.shape == (1, 5)


# -- 6: scope and resets -----------------------------------------------------------------------------------


def test_pitfall_6_one_memory_for_all_episodes_batches_and_modes() -> None:
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


def test_pitfall_6_reads_of_a_step_come_before_its_writes_and_slots_share_what_was_written() -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    memory = RecordingMemory(bank, ATLAS)
    together = [make_episode("hall", "door", name="0_0"), make_episode("pantry", "kitchen", name="1_0")]
    steps = run_batch(small_navigator(), ATLAS, together, memory)
    next(steps)
    assert memory.found[-1] == [set(), set()]  # each stands beside the other, and neither is remembered yet
    next(steps)
    assert memory.found[-1] == [{"hall"}, {"hall", "pantry"}]


def test_pitfall_6_scenes_are_kept_apart() -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    memory = RecordingMemory(bank, ATLAS)
    list(run_batch(small_navigator(), ATLAS, [make_episode("hall", "door", scene="shed")], memory))
    memory.found.clear()
    next(run_batch(small_navigator(), ATLAS, [make_episode("hall")], memory))
    assert memory.found == [[set()]]


# -- 7: angles and tokens ----------------------------------------------------------------------------------


def test_pitfall_7_headings_are_relative_to_the_snapped_view_and_elevations_absolute() -> None:
    exact = math.radians(40)  # faces view 13, 30°
    observation = at("hall", facing=exact)
    assert observation.facing_view.tolist() == [13]
    base = float(VIEW_HEADINGS[13])
    for token, candidate in enumerate(ATLAS.graph("cottage").candidates("hall")):
        expected = angle_feature(np.array([candidate.heading - base]), np.array([candidate.elevation]))[0]
        np.testing.assert_allclose(observation.angles[0, token].numpy(), expected, atol=1e-6)
    up = [each.viewpoint for each in ATLAS.graph("cottage").candidates("hall")].index("landing")
    assert observation.angles[0, up, 2] == pytest.approx(math.sin(math.atan2(2, 2.5)), abs=1e-6)
    context = observation.is_context[0]
    table = panorama_angles(np.array([13]))[0]
    np.testing.assert_allclose(
        observation.angles[0, context].numpy(), table[observation.view[0, context].numpy()], atol=1e-6
    )


def test_pitfall_7_after_a_move_the_agent_faces_the_candidates_view_row_included() -> None:
    steps = list(
        run_batch(plain_navigator(), ATLAS, [make_episode("hall", "landing", "attic", heading=2.0)], None)
    )
    assert [int(step.observation.facing_view[0]) for step in steps] == [
        16,
        30,
        17,
    ]  # south and up, then on the level
    rows = [int(step.observation.facing_view[0]) // 12 for step in steps]
    assert rows == [1, 2, 1]
    # What is above stays above for who looks up.
    down = [each.viewpoint for each in ATLAS.graph("cottage").candidates("landing")].index("hall")
    assert steps[1].observation.angles[0, down, 2] == pytest.approx(-math.sin(math.atan2(2, 2.5)), abs=1e-6)


def test_pitfall_7_candidates_that_share_a_view_stay_apart_and_the_view_is_removed_once() -> None:
    observation = at("hall", "garden")
    assert observation.valid.sum(1).tolist() == [38, 37]
    assert observation.num_candidates.tolist() == [4, 1]
    views = observation.view[0, :4].tolist()
    assert len(set(views)) == 3
    assert set(observation.view[0, observation.is_context[0]].tolist()) == set(range(36)) - set(views)
    padding = ~observation.valid
    assert padding.tolist()[1][-1] and observation.token_type[padding].eq(CONTEXT).all()
    assert not observation.features[padding].any() and observation.neighbour[padding].eq(-1).all()


# -- 8: history --------------------------------------------------------------------------------------------


def test_pitfall_8_a_history_token_is_the_faced_view_the_chosen_angle_and_the_panorama() -> None:
    navigator = small_navigator()
    agent, bank = hamt(navigator), MemoryBank.from_atlas(ATLAS)
    bank.remember_all()  # what is fused must not reach the history
    observation = at("hall", "attic", facing=2.0)
    chosen = torch.tensor([1, int(observation.num_candidates[1])])  # a candidate, and STOP
    words = TokenBatch(torch.tensor([[1, 5, 2], [1, 2, 0]]), torch.tensor([[True] * 3, [True, True, False]]))
    with torch.no_grad():
        state = navigator.begin(words, observation.viewpoint)
        seen = navigator.observe(observation, bank)
        after = navigator.advance(state, seen, chosen)
        again = navigator.advance(after, seen, chosen)
    assert isinstance(state, HamtState) and isinstance(after, HamtState) and isinstance(again, HamtState)
    assert [each.history_length.tolist() for each in (state, after, again)] == [[1, 1], [2, 2], [3, 3]]
    assert torch.equal(again.history[:, :2], after.history[:, :2])  # raw tokens are fed again as they were

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
        for step, lived in ((0, after), (1, again)):
            expected = history.norm(described + history.steps.weight[step])
            torch.testing.assert_close(lived.history[:, step + 1], expected, atol=1e-5, rtol=0)


def test_pitfall_8_who_has_ended_does_not_lengthen_the_history_of_others() -> None:
    """Walks of different lengths in one batch decide as they do alone."""
    navigator, together = plain_navigator(), {}
    walks = [
        make_episode("hall", name="0_0"),
        make_episode("kitchen", "hall", "door", "garden", name="1_0"),
        make_episode("attic", "landing", name="2_0"),
    ]
    with torch.no_grad():
        for step in run_batch(navigator, ATLAS, walks, None):
            for row, walk in enumerate(step.trajectories):
                together[walk.episode.episode_id, walk.num_decisions] = step.decision.logits[row]
        for episode in walks:
            for step in run_batch(navigator, ATLAS, [episode], None):
                logits = step.decision.logits[0]
                same = together[episode.episode_id, step.trajectories[0].num_decisions][: len(logits)]
                torch.testing.assert_close(logits, same, atol=1e-5, rtol=0)


# -- 12: published files (more in tests/checkpoints) -------------------------------------------------------


def test_pitfall_12_a_published_file_walks_whatever_its_tables_hold() -> None:
    """A wrapped file with 50 history positions, in which nothing says that there are 50."""
    sizes = original_checkpoints.SMALL._replace(steps=50, positions=60, feature=WIDTH)
    content = original_checkpoints.fine_tuned(sizes, wrapper="module.")
    navigator, report = navigator_from(
        content["vln_bert"]["state_dict"], content["critic"]["state_dict"], heads=3
    )
    assert hamt(navigator).history.steps.weight.shape == (50, sizes.hidden)
    assert report.ignored == report.initialised == ()
    bank = MemoryBank.from_atlas(ATLAS)
    back_and_forth = make_episode(*["hall", "door"] * 20)
    *_, last = run_batch(navigator.eval(), ATLAS, [back_and_forth], bank, max_steps=60)
    assert last.finished[0].num_decisions == 40


# -- 14: masks and numerics --------------------------------------------------------------------------------


def test_pitfall_14_leaving_keys_out_is_adding_minus_10000() -> None:
    torch.manual_seed(0)
    attention = Attention(16, 4, dropout=0.1).eval()
    nn.init.normal_(attention.key.weight, std=0.5)
    valid = torch.arange(7) < torch.tensor([7, 3, 1])[:, None]
    asking, known = torch.randn(3, 5, 16), torch.randn(3, 7, 16)
    with torch.no_grad():
        everything = Tokens.pack(asking, torch.ones(3, 5, dtype=torch.bool))
        ours = attention(everything, attention.project(Tokens.pack(known, valid))).padded

        def split(tensor: Tensor) -> Tensor:
            return tensor.view(*tensor.shape[:2], 4, 4).transpose(1, 2)

        queries, keys, values = (
            split(attention.query(asking)),
            split(attention.key(known)),
            split(attention.value(known)),
        )
        scores = queries @ keys.transpose(2, 3) / 4**0.5 + torch.where(valid, 0.0, -10000.0)[:, None, None]
        seen = (scores.softmax(-1) @ values).transpose(1, 2).flatten(2)
        theirs = attention.norm(asking + attention.out(seen))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_pitfall_14_the_gelu_is_the_exact_one() -> None:
    torch.manual_seed(0)
    block = FeedForward(16, 32, dropout=0.1).eval()
    rows = 3 * torch.randn(50, 16)
    inner = block.inner(rows)
    exact = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
    out = block(Tokens(rows, PackedLayout(torch.ones(1, 50, dtype=torch.bool)))).rows
    torch.testing.assert_close(out, block.norm(rows + block.out(exact)), atol=1e-6, rtol=0)
    rough = block.norm(rows + block.out(functional.gelu(inner, approximate="tanh")))
    assert (out - rough).abs().max() > 1e-5


def test_pitfall_14_every_normalisation_adds_1e_12() -> None:
    epsilons = {each.eps for each in small_navigator().modules() if isinstance(each, nn.LayerNorm)}
    assert epsilons == {1e-12}
    # XLM-R's configuration says otherwise for text and cross-modal layers, and for nothing else.
    agent = hamt(small_navigator(epsilon=1e-5))
    changed = {name.split(".")[0] for name, each in agent.named_modules() if getattr(each, "eps", 0) == 1e-5}
    assert changed == {"text", "cross_layers"}


def test_pitfall_14_frozen_encoders_still_drop_in_training() -> None:
    navigator = small_navigator(freeze_text=True, freeze_history=True)
    agent = hamt(navigator)
    words = TokenBatch(torch.tensor([[1, 5, 7, 2]]), torch.ones(1, 4, dtype=torch.bool))
    assert not any(each.requires_grad for each in agent.text.layers.parameters())
    observation = at("hall")
    for training in (True, False):
        navigator.train(training)
        one, other = agent.encode_text(words), agent.encode_text(words)
        assert not one.requires_grad
        assert torch.equal(one, other) is not training
        state = navigator.begin(words, observation.viewpoint)
        steps = [navigator.advance(state, observation, torch.tensor([0])) for _ in range(2)]
        assert all(isinstance(each, HamtState) and not each.history.requires_grad for each in steps)
        tokens = [each.history[:, 1] for each in steps if isinstance(each, HamtState)]
        assert torch.equal(*tokens) is not training


def test_pitfall_14_the_global_history_token_is_dropped_alike_in_a_batch() -> None:
    agent = hamt(small_navigator().train())
    with torch.no_grad():
        agent.history.start.normal_()
    one, other = agent.history.begin(5), agent.history.begin(5)
    assert one.shape == (5, 1, 32)
    assert torch.equal(one, one[:1].expand_as(one))
    assert int((one[0] == 0).sum()) > 0
    assert not torch.equal(one, other)


# -- 15: evaluation ----------------------------------------------------------------------------------------

STREET = {"street": {"a": (0, 0, 0), "b": (0, 4, 0), "c": (0, 7, 0), "d": (0, 7, 2.9), "e": (5, 4, 0)}}
ALONG = {"street": [("a", "b"), ("b", "c"), ("c", "d"), ("b", "e"), ("e", "c")]}


def scored(episode: Episode, *path: str) -> dict[str, float]:
    atlas = build(STREET, ALONG)
    predicted = Prediction(episode.episode_id, tuple(TrajectoryPoint(name, 0.0, 0.0) for name in path))
    return {name: float(values[0]) for name, values in score([(episode, predicted)], atlas).values.items()}


def test_pitfall_15_three_metres_are_not_success() -> None:
    exactly = scored(make_episode("a", "b", "c", scene="street"), "a", "b")
    assert exactly["ne"] == 3.0 and exactly["sr"] == 0.0 and exactly["osr"] == 0.0
    nearer = scored(make_episode("a", "b", "c", "d", scene="street"), "a", "b", "c")
    assert nearer["ne"] == pytest.approx(2.9) and nearer["sr"] == 1.0


def test_pitfall_15_spl_is_by_the_length_of_the_reference_path() -> None:
    detour = make_episode("a", "b", "e", "c", scene="street")
    along = 4 + 5 + math.hypot(5, 3)
    assert scored(detour, "a", "b", "e", "c")["spl"] == 1.0
    assert scored(detour, "a", "b", "c")["spl"] == 1.0  # nobody is punished for the shorter way
    assert scored(make_episode("a", "b", "c", scene="street"), "a", "b", "e", "c")["spl"] == pytest.approx(
        7 / along
    )


def named(count: int) -> list[Episode]:
    return [
        make_episode("a", scene=f"{number % 11}", name=f"{number // 3}_{number % 3}")
        for number in range(count)
    ]


def test_pitfall_15_batches_are_those_of_the_released_code() -> None:
    """R2R val_unseen, spec J.9: 294 batches of 8 for 2,349 episodes, three of which are lived twice."""
    batches = list(ReleasedOrder(named(2349), 8, seed=0).batches())
    lived = [episode.episode_id for batch in batches for episode in batch]
    assert (len(batches), len(lived), len(lived) - len(set(lived))) == (294, 2352, 3)
    shuffled = named(2349)
    generator = random.Random(0)
    generator.shuffle(shuffled)
    assert lived[:2349] == [episode.episode_id for episode in shuffled]
    generator.shuffle(shuffled)  # the list as it lies then, not the file's
    assert lived[2349:] == [episode.episode_id for episode in shuffled[:3]]
    assert len({episode.scene_id for episode in batches[0]}) > 1  # not grouped by scene
