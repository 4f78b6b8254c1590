"""Rollouts and training of every agent with every reader on every task of the embedded world."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from esceme.agents import AGENTS
from esceme.errors import ConfigError
from esceme.learning import Trainer, TrainingConfig
from esceme.memory import READERS, MemoryBank
from esceme.navigator import Navigator
from esceme.rollout import roll_out
from esceme.synth import WorldConfig, embedded_world
from esceme.tasks import TASKS, Episode, WordPiece
from esceme.tasks.folder import DataFolder
from esceme.tasks.text import truncate
from esceme.trajectory import SingleBatch, sampling
from esceme.world import Atlas, open_features, read_scenes

pytestmark = pytest.mark.long

SIZES: dict[str, Any] = {
    "positions": 16,
    "hidden": 16,
    "heads": 2,
    "feed_forward": 16,
    "text_layers": 1,
    "cross_layers": 1,
    "panorama_layers": 1,
    "critic_inner": 16,
    "word_width": 8,
    "max_steps": 8,
}
"""Settings of agents and readers, as far as they have them; the rest are defaults."""
STEPS, BATCH = 4, 2
METHODS = ("imitation", "imitation+a2c", "imitation+dagger", "dagger")
TRAINABLE = [name for name, kind in AGENTS.items() if not kind.is_scripted]


class EmbeddedData(NamedTuple):
    """Parts of the embedded world."""

    atlas: Atlas
    width: int
    """Of the features."""
    words: WordPiece
    episodes: dict[str, list[Episode]]
    """Two episodes per task."""

    def encode(self, episode: Episode) -> Sequence[int]:
        ids = episode.tokens or self.words.encode(episode.instruction)
        return truncate(list(ids), SIZES["positions"], "first")


@pytest.fixture(scope="module")
def data() -> EmbeddedData:
    root = embedded_world(WorldConfig("tiny"))
    folder = DataFolder(root)
    episodes = {
        name: [episodes[0], episodes[-1]]  # in different scenes
        for name, task in TASKS.items()
        for file in files_of(root, task.files)[:1]
        for episodes in [task.read(file)]
    }
    scenes = sorted({episode.scene_id for pair in episodes.values() for episode in pair})
    graphs = read_scenes(root / "connectivity", scenes)
    store = open_features(folder.features[0])
    return EmbeddedData(
        Atlas([graphs[scene] for scene in scenes], store),
        store.width,
        WordPiece.read(folder.tokenizers[0]),
        episodes,
    )


def files_of(root: Path, patterns: Sequence[str]) -> list[Path]:
    """Existing files of a task's train split."""
    paths = (root / pattern.format(split="train") for pattern in patterns)
    return [path for path in paths if path.is_file()]


def episodes_of(data: EmbeddedData, task: str) -> list[Episode]:
    if task not in data.episodes:
        pytest.skip(f"the embedded world has no {task}")
    return data.episodes[task]


def navigator_of(data: EmbeddedData, agent: str, reader: str) -> Navigator:
    torch.manual_seed(0)
    settings = SIZES | {"vocabulary": data.words.size, "feature_width": data.width, "width": data.width}
    if READERS[reader].needs_map and not AGENTS[agent].keeps_map:
        pytest.skip(f"{agent} keeps no map")
    parts: list[Any] = []
    for kind in (AGENTS[agent], READERS[reader]):
        names = {field.name for field in fields(kind.Config)} & settings.keys()
        build: Any = kind
        parts.append(build(kind.Config(**{name: settings[name] for name in names})))
    return Navigator(*parts)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("agent", AGENTS)
def test_every_combination_rolls_out(data: EmbeddedData, agent: str, reader: str, task: str) -> None:
    navigator, atlas = navigator_of(data, agent, reader).eval(), data.atlas
    pooling = getattr(navigator.reader.config, "pooling", "max")
    bank = MemoryBank.from_atlas(atlas, pooling=pooling) if navigator.reader.uses_memory else None
    source, num_known = SingleBatch(atlas, episodes_of(data, task)), 0
    with torch.no_grad():
        for step in roll_out(
            navigator, atlas, source, bank, sampling(3), encode=data.encode, max_steps=STEPS
        ):
            rows = torch.arange(len(step.trajectories))
            assert step.decision.logits[rows, step.actions].isfinite().all()
            assert not step.decision.logits.isnan().any()
            assert step.decision.value is None or step.decision.value.isfinite().all()
            if bank is not None:
                assert int(bank.visited.sum()) >= max(num_known, 1)
                num_known = int(bank.visited.sum())
    for trajectory in source.trajectories:
        assert trajectory.stopped or trajectory.num_decisions == STEPS
        for (one, _), (other, _) in zip(trajectory.poses, trajectory.poses[1:], strict=False):
            assert other in atlas.neighbours[one]
    if bank is not None:
        assert set(bank.visited.nonzero().flatten().tolist()) == {
            viewpoint for trajectory in source.trajectories for viewpoint in trajectory.decision_viewpoints
        }


def trained_combinations() -> Iterator[Any]:
    """Every agent with every reader and method on one task; on the other tasks in the slow tests.

    The tasks alternate: each is trained with every agent, every reader and every method.
    """
    for numbered in product(*map(enumerate, (TRAINABLE, READERS, TASKS, METHODS))):
        (agent, reader, task, method), names = zip(*numbered, strict=True)
        is_fast = (agent + reader + method) % len(TASKS) == task
        yield pytest.param(*names, marks=() if is_fast else pytest.mark.slow)


@pytest.mark.parametrize(("agent", "reader", "task", "method"), [*trained_combinations()])
def test_every_trainable_combination_trains(
    data: EmbeddedData, agent: str, reader: str, task: str, method: str
) -> None:
    navigator, episodes = navigator_of(data, agent, reader), episodes_of(data, task)
    goal_settings = {"supervision": "player-or-shortest", "reward": "goal"} if episodes[0].goals else {}
    training = TrainingConfig(
        method=method,  # type: ignore[arg-type]
        batch=BATCH,
        learning_rate=1e-3,
        oracle_weight=0.4,
        oracle="shortest" if method == "imitation+dagger" else "path",
        **goal_settings,  # type: ignore[arg-type]
    )
    trainer = Trainer(navigator, data.atlas, [episodes], training, encode=data.encode, max_steps=STEPS)
    before = [parameter.detach().clone() for parameter in navigator.parameters()]
    try:
        trainer.training_step(0)  # raises if a loss is not finite
    except ConfigError as error:  # A2C needs a critic
        assert method == "imitation+a2c" and "has no critic" in str(error)
        return
    trainer.check_finite(1)
    assert any(not torch.equal(*pair) for pair in zip(before, navigator.parameters(), strict=True))
    assert (trainer.memory is not None) == navigator.reader.uses_memory
    if trainer.memory is not None:
        assert int(trainer.memory.bank.visited.sum()) >= BATCH


def test_the_embedded_world_has_all_tasks_of_the_paper(data: EmbeddedData) -> None:
    assert {"r2r", "r4r", "rxr", "cvdn", "reverie"} <= data.episodes.keys()
