"""Which weights and memories a training step changes (spec B.9, E.7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from esceme.learning.trainer import EpisodeStream, Trainer
from esceme.learning.training_config import TrainingConfig
from esceme.memory import MemoryBank
from esceme.tasks.episode import DialogEpisode, Episode
from fixtures.toy_atlas import TOY_EPISODES, build_toy_atlas, encode, small_navigator

ATLAS = build_toy_atlas()
EPISODES = TOY_EPISODES[:4]
UNFROZEN: dict[str, Any] = {"language_cross_attention": False, "freeze_text": False, "freeze_history": False}
RATE, DECAY = 0.01, 0.5


def make_trainer(network: dict[str, Any] | None = None, **settings: Any) -> Trainer:
    """Return a trainer whose parameters are all random, so that weight decay changes every one."""
    navigator = small_navigator(**(network or {}))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in navigator.named_parameters():
            mean = 1.0 if name.endswith(("norm.weight", "action.2.weight")) else 0.0
            parameter.normal_(mean, 0.2, generator=generator)
    config = TrainingConfig(**{"batch": 2, "iterations": 10, "learning_rate": RATE} | settings)
    return Trainer(navigator, ATLAS, [EPISODES], config, encode=encode, max_steps=5)


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in trainer.navigator.named_parameters()}


def train(trainer: Trainer, iterations: int = 1) -> tuple[dict[str, Tensor], dict[str, Tensor], set[str]]:
    """Return the weights before and after some iterations, and the names of those with a gradient."""
    before = weights(trainer)
    for iteration in range(iterations):
        trainer.training_step(iteration)
    parameters = trainer.navigator.named_parameters()
    return before, weights(trainer), {name for name, p in parameters if p.grad is not None}


@pytest.mark.parametrize("network", [{}, UNFROZEN], ids=["r2r", "r4r"])
def test_weight_decay_applies_to_every_weight_with_a_gradient(network: dict[str, Any]) -> None:
    """AdamW subtracts rate * decay * weight beside its step, from biases and normalisations, too."""
    before, free, trained = train(make_trainer(network, weight_decay=0.0))
    _, decayed, _ = train(make_trainer(network, weight_decay=DECAY))
    for name in trained:
        expected = -RATE * DECAY * before[name]
        torch.testing.assert_close(decayed[name] - free[name], expected, atol=1e-6, rtol=1e-3)
    suffixes = {".".join(name.split(".")[-2:]) for name in trained}
    assert {"norm.weight", "norm.bias", "linear.bias", "query.bias", "0.bias"} <= suffixes


@pytest.mark.parametrize("method", ["imitation", "imitation+a2c", "dagger"])
def test_weights_without_a_gradient_are_unchanged(method: str) -> None:
    before, after, trained = train(make_trainer(method=method, weight_decay=DECAY), iterations=3)
    assert trained == {name for name in before if not torch.equal(before[name], after[name])}
    prefixes = ("words", "positions", "norm", "layers")
    frozen = (*(f"agent.text.{prefix}" for prefix in prefixes), "agent.history.")
    critic = {name for name in before if name.startswith("agent.critic.")}
    expected = {name for name in before if name.startswith(frozen)}
    assert set(before) - trained == expected | (set() if method == "imitation+a2c" else critic)


def test_embedding_of_text_tokens_only_decays() -> None:
    """Spec B.9: its row has no gradient, but belongs to a table that has one."""
    before, after, _ = train(make_trainer(weight_decay=DECAY))
    text, vision = (after["agent.text.kinds.weight"] / before["agent.text.kinds.weight"]).unbind()
    torch.testing.assert_close(text, torch.full_like(text, 1 - RATE * DECAY), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(vision, torch.full_like(vision, 1 - RATE * DECAY), atol=1e-3)


def test_unfrozen_encoders_train_all_but_the_last_text_layer() -> None:
    before, after, trained = train(make_trainer(UNFROZEN))
    unchanged = set(before) - trained
    assert unchanged == {name for name in before if name.startswith("agent.cross_layers.1.text.")}
    assert all(torch.equal(before[name], after[name]) for name in unchanged)


def test_memory_has_no_gradient_and_features_without_dropout() -> None:
    trainer = make_trainer()
    trainer.training_step(0)
    assert trainer.memory is not None
    viewpoints = trainer.memory.bank.visited.nonzero().flatten()
    expected = MemoryBank.from_atlas(ATLAS)
    expected.remember_at(viewpoints.tolist())
    recalled = trainer.memory.recall_at(viewpoints)
    assert len(viewpoints) > 4 and not recalled.requires_grad
    assert torch.equal(recalled, expected.recall_at(viewpoints))


def test_pitfall_6_imitation_and_a2c_share_a_memory_that_is_never_cleared() -> None:
    trainer, known = make_trainer(), set[int]()
    stream = EpisodeStream(EPISODES, seed=0)
    for iteration in range(4):
        trainer.training_step(iteration)
        assert trainer.memory is not None
        remembered = set(trainer.memory.bank.visited.nonzero().flatten().tolist())
        imitated, sampled = (stream.batch(2 * iteration + offset, 2) for offset in range(2))
        names = [name for episode in imitated for name in episode.reference_path]
        names += [episode.start for episode in sampled]
        assert remembered >= known | set(ATLAS.locate("cottage", names).tolist())
        known = remembered


def test_pitfall_11_path_of_a_dialog_is_drawn_for_every_batch() -> None:
    dialog = DialogEpisode(
        **{name: getattr(EPISODES[1], name) for name in Episode.__slots__} | {"goals": ("garden", "pantry")},
        player_path=("hall", "kitchen", "pantry"),
    )
    paths: list[tuple[str, ...]] = []

    def record(episode: Episode) -> Sequence[int]:
        paths.append(episode.reference_path)
        return encode(episode)

    training = TrainingConfig(method="imitation", supervision="player-or-shortest", batch=4)
    trainer = Trainer(small_navigator(), ATLAS, [[dialog]], training, encode=record, max_steps=5)
    for iteration in range(10):
        trainer.training_step(iteration)
    assert len(paths) == 40
    shares = {path: paths.count(path) / 40 for path in set(paths)}
    assert shares == {
        ("hall", "kitchen", "pantry"): pytest.approx(0.5, abs=0.2),
        ("hall", "pantry"): pytest.approx(0.25, abs=0.2),
        ("hall", "door", "garden"): pytest.approx(0.25, abs=0.2),
    }
    assert len({tuple(paths[start : start + 4]) for start in range(0, 40, 4)}) > 5


def test_learning_rate_warms_up_and_decays() -> None:
    trainer = make_trainer(lr_schedule="linear", warmup_iterations=2)
    rates = [trainer.training_step(iteration)["learning_rate"] for iteration in range(4)]
    assert rates == pytest.approx([RATE / 3, 0.9 * RATE * 2 / 3, 0.8 * RATE, 0.7 * RATE])
    assert [group["lr"] for group in trainer.optimizer.param_groups] == [rates[-1]]


def test_resumed_trainer_with_dropout_continues_identically() -> None:
    whole, interrupted, resumed = make_trainer(), make_trainer(), make_trainer()
    for iteration in range(4):
        whole.training_step(iteration)
    for iteration in range(2):
        interrupted.training_step(iteration)
    resumed.load_state_dict(interrupted.state_dict())
    for iteration in range(2, 4):
        resumed.training_step(iteration)
    expected = weights(whole)
    assert all(torch.equal(weight, expected[name]) for name, weight in weights(resumed).items())


def test_the_agent_does_not_change_while_the_reader_is_warmed_up() -> None:
    trainer = make_trainer(reader_warmup_iterations=1, method="imitation+a2c", weight_decay=DECAY)
    before, after, trained = train(trainer)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == trained and changed and all(name.startswith("reader.") for name in changed)
    _, later, _ = train(trainer, iterations=2)
    assert any(name.startswith("agent.") and not torch.equal(after[name], later[name]) for name in after)
