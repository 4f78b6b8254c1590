"""Random sights and instructions, for tests that need what an agent meets but no building.

Observations follow the layout of spec B.5: candidates, STOP, the other views in view order, padding.
A sight with three candidates or more has two of them in the same view, as every third viewpoint does.
The pictures of a viewpoint are always the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from esceme.agents.base import TokenBatch
from esceme.observation import Observation
from esceme.world import CANDIDATE, CONTEXT, STOP, Atlas, SceneGraph
from esceme.world.geometry import VIEWS, angle_feature, panorama_angles

COUNTS = (4, 1, 7, 3)
"""How many candidates the agents of a batch have, unless told otherwise."""
WIDTH = 16
VIEWPOINTS = 40
"""Viewpoints are numbered below this."""
SMALL_NETWORK: dict[str, Any] = {
    "vocabulary": 50,
    "positions": 20,
    "hidden": 24,
    "heads": 3,
    "feed_forward": 32,
    "text_layers": 1,
    "cross_layers": 2,
    "panorama_layers": 1,
    "feature_width": WIDTH,
    "max_steps": 6,
}
"""Sizes of an agent that looks at such observations."""


def random_observation(
    counts: Sequence[int] = COUNTS, *, width: int = WIDTH, viewpoints: int = VIEWPOINTS, seed: int = 0
) -> Observation:
    """What agents see who have `counts` candidates each: a row depends on its place and the seed alone."""
    sights = [
        _sight(count, width, viewpoints, np.random.default_rng([seed, row]))
        for row, count in enumerate(counts)
    ]
    longest = max(each.kind.shape[1] for each in sights)
    return joined([with_padding(each, longest - each.kind.shape[1]) for each in sights])


def _sight(count: int, width: int, viewpoints: int, generator: np.random.Generator) -> Observation:
    """What one agent sees: a batch of one."""
    facing = generator.integers(VIEWS, size=1)
    leading = generator.choice(VIEWS, count, replace=False)
    if count >= 3:
        leading[-1] = leading[0]
    rest = np.setdiff1d(np.arange(VIEWS), leading)
    here, *around = generator.choice(viewpoints, count + 1, replace=False).tolist()
    pictures = np.random.default_rng(here).normal(size=(VIEWS, width)).astype(np.float32)
    headings, elevations = generator.uniform(-3, 3, count), generator.uniform(-0.5, 0.5, count)
    features = np.concatenate([pictures[leading], np.zeros_like(pictures[:1]), pictures[rest]])
    towards, views = angle_feature(headings, elevations), panorama_angles(facing)[0]
    angles = np.concatenate([towards, np.zeros_like(views[:1]), views[rest]])
    seen = torch.from_numpy(features)[None]
    return Observation(
        features=seen,
        plain=seen,
        angles=torch.from_numpy(angles)[None],
        kind=torch.tensor([[CANDIDATE] * count + [STOP] + [CONTEXT] * len(rest)]),
        valid=torch.ones(1, len(features), dtype=torch.bool),
        neighbour=torch.tensor([[*around, *[-1] * (1 + len(rest))]]),
        view=torch.tensor([[*leading.tolist(), -1, *rest.tolist()]]),
        viewpoint=torch.tensor([here]),
        facing=torch.from_numpy(facing),
        positions=torch.stack([_position(each) for each in (*around, *[here] * (1 + len(rest)))])[None],
    )


def _position(viewpoint: int) -> Tensor:
    """Where a viewpoint lies, (3,)."""
    return torch.from_numpy(np.random.default_rng([1, viewpoint]).normal(size=3).astype(np.float32) * 5)


def joined(observations: Sequence[Observation]) -> Observation:
    """Observations of equally many tokens as one batch."""
    names = [field.name for field in fields(Observation) if field.name not in ("dropout", "whole", "past")]
    tensors = {name: torch.cat([getattr(each, name) for each in observations]) for name in names}
    if all(each.features is each.plain for each in observations):
        tensors["plain"] = tensors["features"]
    return replace(observations[0], **tensors)


def with_padding(observation: Observation, more: int) -> Observation:
    """The same sights with `more` tokens of padding."""

    def longer(tensor: Tensor, fill: int = 0) -> Tensor:
        sides = (0, more) if tensor.ndim == 2 else (0, 0, 0, more)
        return functional.pad(tensor, sides, value=fill)

    features = longer(observation.features)
    plain = features if observation.features is observation.plain else longer(observation.plain)
    return replace(
        observation,
        features=features,
        plain=plain,
        angles=longer(observation.angles),
        kind=longer(observation.kind, CONTEXT),
        valid=longer(observation.valid, False),
        neighbour=longer(observation.neighbour, -1),
        view=longer(observation.view, -1),
        positions=None if observation.positions is None else longer(observation.positions),
    )


def random_order(observation: Observation, *, seed: int = 0) -> Tensor:
    """Tokens (B, N) with the candidates of each agent shuffled and all else in place."""
    generator = np.random.default_rng(seed)
    order = np.tile(np.arange(observation.kind.shape[1]), (len(observation), 1))
    for row, count in enumerate(observation.candidate_count.tolist()):
        order[row, :count] = generator.permutation(count)
    return torch.from_numpy(order)


def reordered(observation: Observation, order: Tensor) -> Observation:
    """The same sights with tokens in another order (B, N)."""
    rows = torch.arange(len(observation))[:, None]
    names = ("features", "plain", "angles", "kind", "valid", "neighbour", "view", "positions")
    tensors = {name: getattr(observation, name)[rows, order] for name in names}
    if observation.features is observation.plain:
        tensors["plain"] = tensors["features"]
    return replace(observation, **tensors)


def random_words(lengths: Sequence[int] = (5, 9, 2, 7), *, vocabulary: int = 50, seed: int = 0) -> TokenBatch:
    """Instructions of these lengths, padded with id 0; no word of theirs is 0."""
    generator = np.random.default_rng([seed, 1])
    valid = np.arange(max(lengths)) < np.array(lengths)[:, None]
    ids = np.where(valid, generator.integers(1, vocabulary, valid.shape), 0)
    return TokenBatch(torch.from_numpy(ids), torch.from_numpy(valid))


def random_building(viewpoints: int = VIEWPOINTS, *, seed: int = 0) -> Atlas:
    """One connected scene, without features: every viewpoint has a way to every other."""
    generator = np.random.default_rng([seed, 2])
    places = generator.uniform(-9, 9, (viewpoints, 3)) * [1, 1, 0.1]
    names = [f"v{index}" for index in range(viewpoints)]
    edges = [(names[index], names[int(generator.integers(index))]) for index in range(1, viewpoints)]
    edges += [(a, b) for a in names for b in names if a < b and generator.random() < 0.05]
    return Atlas([SceneGraph.build("random", dict(zip(names, places.tolist(), strict=True)), edges)])
