"""What an iteration moves, and what it leaves alone (spec B.9, E.7)."""

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
WHOLE: dict[str, Any] = {"language_cross_attention": False, "freeze_text": False, "freeze_history": False}
RATE = 0.01


def trainer_of(network: dict[str, Any] | None = None, **settings: Any) -> Trainer:
    """Who learns from two episodes at a time; every parameter is drawn, so that decay is seen everywhere."""
    navigator = small_navigator(**(network or {}))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, each in navigator.named_parameters():
            around = 1.0 if name.endswith(("norm.weight", "action.2.weight")) else 0.0
            each.normal_(around, 0.2, generator=generator)
    chosen = {"batch": 2, "iterations": 10, "learning_rate": RATE} | settings
    return Trainer(navigator, ATLAS, [EPISODES], TrainingConfig(**chosen), encode=encode, max_steps=5)


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in trainer.navigator.named_parameters()}


def moved(trainer: Trainer, iterations: int = 1) -> tuple[dict[str, Tensor], dict[str, Tensor], set[str]]:
    """The weights before and after some iterations, and the names of those that had a gradient."""
    before = weights(trainer)
    for iteration in range(iterations):
        trainer.training_step(iteration)
    learning = {name for name, each in trainer.navigator.named_parameters() if each.grad is not None}
    return before, weights(trainer), learning


@pytest.mark.parametrize("network", [{}, WHOLE], ids=["r2r", "r4r"])
def test_everything_that_learns_decays_biases_and_normalisations_too(network: dict[str, Any]) -> None:
    """AdamW takes its step and, beside it, the same share of every weight: the two runs differ by that."""
    decay = 0.5
    before, free, learning = moved(trainer_of(network, weight_decay=0.0))
    _, decayed, _ = moved(trainer_of(network, weight_decay=decay))
    for name in learning:
        torch.testing.assert_close(
            decayed[name] - free[name], -RATE * decay * before[name], atol=1e-6, rtol=1e-3
        )
    ends = {name.rsplit(".", 2)[-2] + "." + name.rsplit(".", 1)[-1] for name in learning}
    assert {"norm.weight", "norm.bias", "linear.bias", "query.bias", "0.bias"} <= ends


@pytest.mark.parametrize("method", ["imitation", "imitation+a2c", "dagger"])
def test_parameters_without_a_gradient_are_not_touched(method: str) -> None:
    before, after, learning = moved(trainer_of(method=method, weight_decay=0.5), iterations=3)
    idle = set(before) - learning
    assert all(torch.equal(before[name], after[name]) for name in idle)
    assert not any(torch.equal(before[name], after[name]) for name in learning)
    frozen = (
        "agent.text.words",
        "agent.text.positions",
        "agent.text.norm",
        "agent.text.layers",
        "agent.history.",
    )
    assert {name for name in before if name.startswith(frozen)} <= idle
    critic = {name for name in before if name.startswith("agent.critic.")}
    assert critic <= (learning if method == "imitation+a2c" else idle)
    assert idle - critic == {name for name in before if name.startswith(frozen)}


def test_only_what_marks_sights_is_learned_of_the_table_of_kinds_and_the_rest_decays() -> None:
    """Spec B.9: the row of text gets no gradient of its own, but is part of a table that gets one."""
    decay = 0.5
    before, after, _ = moved(trainer_of(weight_decay=decay))
    read, seen = (after["agent.text.kinds.weight"] / before["agent.text.kinds.weight"]).unbind()
    torch.testing.assert_close(read, torch.full_like(read, 1 - RATE * decay), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(seen, torch.full_like(seen, 1 - RATE * decay), atol=1e-3)


def test_unfrozen_encoders_learn_all_but_the_last_layers_half_for_text() -> None:
    before, after, learning = moved(trainer_of(WHOLE))
    idle = set(before) - learning
    assert idle == {name for name in before if name.startswith("agent.cross_layers.1.text.")}
    assert all(torch.equal(before[name], after[name]) for name in idle)


def test_the_memory_learns_nothing_and_is_what_was_seen() -> None:
    """No gradient leaves through it, and features that are dropped in training are remembered whole."""
    trainer = trainer_of()
    trainer.training_step(0)
    assert trainer.memory is not None
    places = trainer.memory.bank.visited.nonzero().flatten()
    seen = MemoryBank.from_atlas(ATLAS)
    seen.remember_at(places.tolist())
    recalled = trainer.memory.recall_at(places)
    assert len(places) > 4 and not recalled.requires_grad
    assert torch.equal(recalled, seen.recall_at(places))


def test_pitfall_6_one_memory_for_imitation_and_rewards_that_is_never_cleared() -> None:
    trainer, known = trainer_of(), set[int]()
    stream = EpisodeStream(EPISODES, seed=0)
    for iteration in range(4):
        trainer.training_step(iteration)
        assert trainer.memory is not None
        now = set(trainer.memory.bank.visited.nonzero().flatten().tolist())
        led, sampled = (stream.batch(2 * iteration + number, 2) for number in range(2))
        taught = {int(place) for each in led for place in ATLAS.locate("cottage", each.reference_path)}
        begun = {int(ATLAS.locate("cottage", [each.start])[0]) for each in sampled}
        assert now >= known | taught | begun
        known = now


def test_pitfall_11_the_path_of_a_dialog_is_drawn_anew_for_every_batch() -> None:
    dialog = DialogEpisode(
        **{name: getattr(EPISODES[1], name) for name in Episode.__slots__} | {"goals": ("garden", "pantry")},
        player_path=("hall", "kitchen", "pantry"),
    )
    taught: list[tuple[str, ...]] = []

    def read(episode: Episode) -> Sequence[int]:
        taught.append(episode.reference_path)
        return encode(episode)

    training = TrainingConfig(method="imitation", supervision="player-or-shortest", batch=4)
    trainer = Trainer(small_navigator(), ATLAS, [[dialog]], training, encode=read, max_steps=5)
    for iteration in range(10):
        trainer.training_step(iteration)
    assert len(taught) == 40
    shares = {path: taught.count(path) / 40 for path in set(taught)}
    assert shares == {
        ("hall", "kitchen", "pantry"): pytest.approx(0.5, abs=0.2),
        ("hall", "pantry"): pytest.approx(0.25, abs=0.2),
        ("hall", "door", "garden"): pytest.approx(0.25, abs=0.2),
    }
    assert len({tuple(taught[start : start + 4]) for start in range(0, 40, 4)}) > 5  # every batch its own


def test_the_learning_rate_rises_and_falls_as_told() -> None:
    trainer = trainer_of(lr_schedule="linear", warmup_iterations=2)
    rates = [trainer.training_step(iteration)["learning_rate"] for iteration in range(4)]
    assert rates == pytest.approx([RATE / 3, 0.9 * RATE * 2 / 3, 0.8 * RATE, 0.7 * RATE])
    assert [group["lr"] for group in trainer.optimizer.param_groups] == [rates[-1]]


def test_the_same_seed_learns_the_same_and_resumes_the_same() -> None:
    one, other = trainer_of(), trainer_of()
    for iteration in range(4):
        one.training_step(iteration)
    for iteration in range(2):
        other.training_step(iteration)
    resumed = trainer_of()
    resumed.load_state_dict(other.state_dict())
    for iteration in range(2, 4):
        resumed.training_step(iteration)
    assert all(
        torch.equal(*pair) for pair in zip(weights(one).values(), weights(resumed).values(), strict=True)
    )
