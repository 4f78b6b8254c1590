"""Every agent with every reader at every task of the embedded world: it walks, and learns if it can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
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
"""What an agent or a reader has of these settings is set; everything else is as it comes."""
STEPS, BATCH = 4, 2
LEARNING = [name for name, kind in AGENTS.items() if not kind.is_scripted]


class Home(NamedTuple):
    """The embedded world, as far as it is needed here."""

    atlas: Atlas
    width: int
    """Of its features."""
    words: WordPiece
    episodes: dict[str, list[Episode]]
    """Two of each task that it has."""

    def encode(self, episode: Episode) -> Sequence[int]:
        ids = episode.tokens or self.words.encode(episode.instruction)
        return truncate(list(ids), SIZES["positions"], "first")


@pytest.fixture(scope="module")
def home() -> Home:
    root = embedded_world(WorldConfig("tiny"))
    data = DataFolder(root)
    episodes = {
        name: [every[0], every[-1]]  # in different scenes
        for name, task in TASKS.items()
        for file in lying(root, task.files)[:1]
        for every in [task.read(file)]
    }
    scenes = sorted({each.scene_id for few in episodes.values() for each in few})
    graphs = read_scenes(root / "connectivity", scenes)
    store = open_features(data.features[0])
    return Home(
        Atlas([graphs[scene] for scene in scenes], store),
        store.width,
        WordPiece.read(data.tokenizers[0]),
        episodes,
    )


def lying(root: Path, patterns: Sequence[str]) -> list[Path]:
    """The files of a task's train split; none of a task that the embedded world does not have."""
    return [path for path in (root / each.format(split="train") for each in patterns) if path.is_file()]


def episodes_of(home: Home, task: str) -> list[Episode]:
    if task not in home.episodes:
        pytest.skip(f"the embedded world has no {task}")
    return home.episodes[task]


def navigator_of(home: Home, agent: str, reader: str) -> Navigator:
    torch.manual_seed(0)
    fitting = SIZES | {
        "vocabulary": home.words.size,
        "feature_width": home.width,
        "width": home.width,
    }
    parts: list[Any] = []
    for kind in (AGENTS[agent], READERS[reader]):
        known = {each.name for each in fields(kind.Config)}
        made: Any = kind
        parts.append(made(kind.Config(**{name: value for name, value in fitting.items() if name in known})))
    return Navigator(*parts)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("agent", AGENTS)
def test_everybody_walks(home: Home, agent: str, reader: str, task: str) -> None:
    navigator, atlas = navigator_of(home, agent, reader).eval(), home.atlas
    pooling = getattr(navigator.reader.config, "pooling", "max")
    bank = MemoryBank.from_atlas(atlas, pooling=pooling) if navigator.reader.uses_memory else None
    source, known = SingleBatch(atlas, episodes_of(home, task)), 0
    with torch.no_grad():
        for step in roll_out(
            navigator, atlas, source, bank, sampling(3), encode=home.encode, max_steps=STEPS
        ):
            rows = torch.arange(len(step.trajectories))
            assert step.decision.logits[rows, step.actions].isfinite().all()
            assert not step.decision.logits.isnan().any()
            assert step.decision.value is None or step.decision.value.isfinite().all()
            if bank is not None:
                assert int(bank.visited.sum()) >= max(known, 1)
                known = int(bank.visited.sum())
    for walk in source.trajectories:
        assert walk.stopped or walk.num_decisions == STEPS
        for (one, _), (other, _) in zip(walk.poses, walk.poses[1:], strict=False):
            assert other in atlas.neighbours[one]
    if bank is not None:
        assert set(bank.visited.nonzero().flatten().tolist()) == {
            place for walk in source.trajectories for place in walk.decision_viewpoints
        }


@pytest.mark.parametrize("method", ["imitation", "imitation+a2c", "dagger"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("agent", LEARNING)
def test_everybody_who_can_learns(home: Home, agent: str, reader: str, task: str, method: str) -> None:
    navigator, episodes = navigator_of(home, agent, reader), episodes_of(home, task)
    to_goals = {"supervision": "player-or-shortest", "reward": "goal"} if episodes[0].goals else {}
    training = TrainingConfig(
        method=method,  # type: ignore[arg-type]
        batch=BATCH,
        learning_rate=1e-3,
        oracle_weight=0.4,
        **to_goals,  # type: ignore[arg-type]
    )
    trainer = Trainer(navigator, home.atlas, [episodes], training, encode=home.encode, max_steps=STEPS)
    before = [each.detach().clone() for each in navigator.parameters()]
    try:
        trainer.training_step(0)  # refuses what is not finite
    except ConfigError as error:  # nobody needs a critic, but then rewards are out of the question
        assert method == "imitation+a2c" and "has no critic" in str(error)
        return
    trainer.check_finite(1)
    assert any(not torch.equal(*pair) for pair in zip(before, navigator.parameters(), strict=True))
    assert (trainer.memory is not None) == navigator.reader.uses_memory
    if trainer.memory is not None:
        assert int(trainer.memory.bank.visited.sum()) >= BATCH


def test_the_embedded_world_has_the_tasks_of_the_paper(home: Home) -> None:
    assert {"r2r", "r4r", "rxr", "cvdn", "reverie"} <= home.episodes.keys()
