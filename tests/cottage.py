"""A cottage and a shed, drawn by hand: for tests that know every place and every way by name.

From the hall, the kitchen and the pantry behind it lie in the same view, and the landing is up the stairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from esceme.agents import HAMT, HamtConfig
from esceme.memory import CandidateEnhancing, CandidateEnhancingConfig, Memory, NoMemory, Reader
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.rollout import RolloutStep, roll_out
from esceme.tasks.episode import Episode
from esceme.trajectory import ActionSelector, SingleBatch, teacher_by_step, teacher_forcing
from esceme.world import ArrayFeatures, Atlas, SceneGraph
from esceme.world.geometry import VIEWS

WIDTH = 12
VOCABULARY = 30
PLACES: dict[str, dict[str, Any]] = {
    "cottage": {
        "hall": (0, 0, 0),
        "door": (0, 3, 0),
        "garden": (0, 6, 0),
        "kitchen": (3, 0, 0),
        "pantry": (6, 0.3, 0),
        "landing": (0, -2.5, 2),
        "attic": (1, -6, 2),
    },
    "shed": {"hall": (0, 0, 0), "door": (4, 0, 0)},
}
WAYS = {
    "cottage": [
        ("hall", "door"),
        ("door", "garden"),
        ("hall", "kitchen"),
        ("hall", "pantry"),
        ("kitchen", "pantry"),
        ("hall", "landing"),
        ("landing", "attic"),
    ],
    "shed": [("hall", "door")],
}


def build(
    places: dict[str, dict[str, Any]], ways: dict[str, list[tuple[str, str]]], *, width: int = WIDTH
) -> Atlas:
    """Scenes whose features are noise, always the same."""
    graphs = [SceneGraph.build(scene, places[scene], ways[scene]) for scene in places]
    rng = np.random.default_rng(0)
    panoramas = {
        f"{scene}_{name}": rng.normal(size=(VIEWS, width)) for scene in places for name in places[scene]
    }
    return Atlas(graphs, ArrayFeatures.from_mapping(panoramas, source="by-hand.hdf5"))


def cottage(*, width: int = WIDTH) -> Atlas:
    """Both buildings."""
    return build(PLACES, WAYS, width=width)


def small_navigator(
    reader: Reader | None = None, *, feature_dropout: float = 0.4, seed: int = 0, **settings: Any
) -> Navigator:
    """A small HAMT with ESceme's reader, as it is evaluated."""
    sizes: dict[str, Any] = {
        "vocabulary": VOCABULARY,
        "positions": 20,
        "hidden": 32,
        "heads": 4,
        "feed_forward": 64,
        "text_layers": 1,
        "cross_layers": 2,
        "panorama_layers": 1,
        "feature_width": WIDTH,
        "max_steps": 20,
        "initial_std": 0.2,
    }
    torch.manual_seed(seed)
    agent = HAMT(HamtConfig(**(sizes | settings)))
    reader = reader or CandidateEnhancing(CandidateEnhancingConfig(width=WIDTH, initial_std=0.3))
    return Navigator(agent, reader, feature_dropout=feature_dropout).eval()


def blind_navigator(**settings: Any) -> Navigator:
    """A small HAMT that reads no memory."""
    return small_navigator(NoMemory(), **settings)


def walk_of(*path: str, scene: str = "cottage", name: str = "0_0", heading: float = 0.0) -> Episode:
    """An episode with this reference path."""
    return Episode(
        episode_id=name,
        scene_id=scene,
        path_id=name,
        reference_path=path,
        heading=heading,
        instruction="",
        tokens=(1, *(2 + len(place) for place in path), 2),
    )


def encode(episode: Episode) -> Sequence[int]:
    """The ids of an episode's instruction."""
    assert episode.tokens is not None
    return episode.tokens


def led(
    navigator: Navigator,
    atlas: Atlas,
    episodes: Sequence[Episode],
    memory: Memory | None,
    *,
    choose: ActionSelector | None = None,
    max_steps: int = 15,
) -> Iterator[RolloutStep]:
    """Live episodes together, by default along their reference paths."""
    choose = choose or teacher_forcing(atlas, teacher_by_step(atlas))
    return roll_out(
        navigator, atlas, SingleBatch(atlas, episodes), memory, choose, encode=encode, max_steps=max_steps
    )


class Recalling:
    """A memory that tells what was recalled from it, by name, one set per agent and step."""

    def __init__(self, memory: Memory, atlas: Atlas) -> None:
        self.memory, self.atlas = memory, atlas
        self.asked: list[list[set[str]]] = []
        self.found: list[list[set[str]]] = []

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        recalled = self.memory.recall_at(viewpoints)
        for told, counts in ((self.asked, viewpoints >= 0), (self.found, recalled.any(-1))):
            told.append(
                [
                    {self.atlas.name(each)[1] for each in row[which].tolist()}
                    for row, which in zip(viewpoints, counts, strict=True)
                ]
            )
        return recalled

    def remember_seen(self, observation: Observation) -> None:
        self.memory.remember_seen(observation)


WALKS = [
    walk_of("garden", "door", "hall", "kitchen", name="0_0"),
    walk_of("hall", "landing", "attic", name="1_0", heading=1.0),
    walk_of("attic", "landing", "hall", "pantry", name="2_0", heading=3.0),
    walk_of("kitchen", "hall", name="3_0"),
    walk_of("hall", "door", scene="shed", name="4_0"),
    walk_of("pantry", "kitchen", "hall", "door", name="5_0"),
]
"""Some to learn from, in both buildings."""
