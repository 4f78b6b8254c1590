"""Probes that predict the next hop in the embedded world from directions, views and memory.

A probe scores every candidate by products of words and candidate features in a common low-dimensional space;
the words also weight each part of the features. It is fitted on the teacher's steps in the training houses.
The words are a bag: those of the whole instruction, or of the step's own clause. A candidate is described by
its direction, then also by the features of its view, then also by the maximum of the features over its own
candidate views, which is what the scene memory stores.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.instruction_follower import SEPARATOR_PATTERN
from benchmarks.measure import Quality, print_results
from esceme.synth.dataset import WorldConfig, embedded_world
from esceme.synth.instructions import BEYOND_TEMPLATES
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.r2r import read_r2r
from esceme.tasks.text import Vocabulary
from esceme.world import Atlas
from esceme.world.atlas import Pose

SEEDS = 3
SPACE, EPOCHS, BATCH, RATE, DECAY = 64, 4, 256, 2e-2, 1e-4
"""Width of the common space and training hyperparameters; tuned on training houses."""
SECTORS = 24
"""Number of sectors of the one-hot direction, which makes directions usable by linear scores."""
BEYOND_PREFIXES = tuple(phrase.partition(" {}")[0] for phrase in BEYOND_TEMPLATES)
"""Beginnings of clauses with a `beyond` cue, which requires memory."""
MARGINS, MARGINS_BEYOND = (0.1, 0.03, 0.0), (0.1, 0.0, 0.2)
"""Required gain in accuracy of each probe over the one before it (the first: over chance); see `PROBES`."""
PROBES = {
    "directions": ("direction",),
    "and views": ("direction", "view"),
    "and memory": ("direction", "view", "memory"),
}
"""Probe -> its parts of the candidate features."""


class Steps(NamedTuple):
    """Teacher's steps (N) with up to K candidates each."""

    words: dict[str, Tensor]
    """Bags of words (N, W) of the whole `instruction` and of the step's `clause`."""
    parts: dict[str, Tensor]
    """Candidate features `direction`, `view` and `memory`, each (N, K, .)."""
    valid: Tensor
    """(N, K)"""
    right: Tensor
    """(N,): slot of the next viewpoint."""
    beyond: Tensor
    """(N,): whether the clause has a `beyond` cue."""


def run(_data: Path | None = None) -> Iterator[Quality]:
    train, unseen = read_steps()
    every, beyond = np.ones(len(unseen.right), dtype=bool), unseen.beyond.numpy()
    whole, clause = try_probes(train, unseen, "instruction"), try_probes(train, unseen, "clause")
    chance = (1 / unseen.valid.sum(1)).numpy()
    yield from compare("every step by the instruction's words", whole, every, chance, MARGINS)
    yield from compare("every step by its clause's words", clause, every, chance, MARGINS)
    yield from compare("steps that require memory", clause, beyond, chance, MARGINS_BEYOND)


def try_probes(train: Steps, unseen: Steps, words: str) -> dict[str, NDArray[np.bool_]]:
    """Return for each probe which unseen steps it predicts correctly, for every seed (S, N)."""
    return {
        name: np.stack([is_right(fit(train, words, parts, at), unseen, words, parts) for at in range(SEEDS)])
        for name, parts in PROBES.items()
    }


def compare(
    title: str,
    hits: dict[str, NDArray[np.bool_]],
    rows: NDArray[np.bool_],
    chance: NDArray[np.float32],
    margins: Sequence[float],
) -> Iterator[Quality]:
    """Yield the accuracy of each probe on some steps; each must exceed the one before it by its margin."""
    previous = at_chance = float(chance[rows].mean())
    for (name, right), margin in zip(hits.items(), margins, strict=True):
        accuracy = right[:, rows].mean(axis=1)
        bound = "few training houses: probes overfit to the training viewpoints"
        yield Quality(
            f"{title} ({rows.sum():,}): {name}",
            float(accuracy.mean()),
            previous + margin,
            at_chance,
            bound,
            float(accuracy.std()),
        )
        previous = float(accuracy.mean())


def read_steps() -> tuple[Steps, Steps]:
    """Return the teacher's steps in the training houses and in the unseen ones."""
    folder = DataFolder(embedded_world(WorldConfig("small")))
    atlas = Atlas.read(folder.connectivity, features=folder.features[0])
    train, unseen = (read_r2r(folder.splits("r2r")[split]) for split in ("train", "val_unseen"))
    vocabulary = Vocabulary.build(episode.instruction for episode in train)
    return collect(atlas, train, vocabulary), collect(atlas, unseen, vocabulary)


def collect(atlas: Atlas, episodes: Sequence[Episode], vocabulary: Vocabulary) -> Steps:
    """Collect every step of the reference paths with its candidate features."""
    viewpoints, views, right, clauses, texts = [], [], [], [], []
    for episode in episodes:
        path = atlas.locate(episode.scene_id, episode.reference_path)
        pose = atlas.begin(path[:1], [episode.heading])
        for there, clause in zip(path[1:], SEPARATOR_PATTERN.split(episode.instruction), strict=False):
            viewpoints.append(pose.viewpoint[0])
            views.append(pose.view[0])
            right.append(int(np.flatnonzero(atlas.neighbours[pose.viewpoint[0]] == there)[0]))
            clauses.append(clause.lower())
            texts.append(episode.instruction)
            pose = atlas.step(pose, right[-1:])
    at = Pose(np.array(viewpoints), np.array(views))
    return Steps(
        words={"instruction": bags(texts, vocabulary), "clause": bags(clauses, vocabulary)},
        parts={"direction": directions(atlas, at), **visual_features(atlas, at.viewpoint)},
        valid=torch.from_numpy(atlas.neighbours[at.viewpoint] >= 0),
        right=torch.tensor(right),
        beyond=torch.tensor([clause.startswith(BEYOND_PREFIXES) for clause in clauses]),
    )


def bags(texts: Sequence[str], vocabulary: Vocabulary) -> Tensor:
    """Return bags of words (N, W)."""
    found = torch.zeros(len(texts), vocabulary.size)
    for row, text in enumerate(texts):
        found[row, vocabulary.encode(text)] = 1.0
    return found


def directions(atlas: Atlas, pose: Pose) -> Tensor:
    """Return each candidate's angle features and its one-hot sector (N, K, .)."""
    angles = torch.from_numpy(atlas.observe(pose).angles[:, : atlas.neighbours.shape[1]])
    turn = torch.atan2(angles[..., 0], angles[..., 1])
    sector = ((turn / (2 * torch.pi) + 0.5) * SECTORS).long() % SECTORS
    return torch.cat([angles, nn.functional.one_hot(sector, SECTORS)], dim=-1)


def visual_features(atlas: Atlas, viewpoints: NDArray[np.int64]) -> dict[str, Tensor]:
    """Return the features of each candidate's view, and the maximum over its own candidate views."""
    rows = np.arange(len(atlas))
    candidates = atlas.panorama_features(rows)[rows[:, None], atlas.views.clip(0)]  # (P, K, D)
    candidates[atlas.neighbours < 0] = 0.0  # features are never negative
    pooled = candidates.max(axis=1)  # (P, D)
    neighbours = atlas.neighbours[viewpoints].clip(0)
    return {"view": torch.from_numpy(candidates[viewpoints]), "memory": torch.from_numpy(pooled[neighbours])}


class Probe(nn.Module):
    """Projects words and candidate features to a common space; the words weight each part of the features."""

    def __init__(self, words: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.project_words = nn.Linear(words, SPACE)
        self.project_parts = nn.ModuleList(nn.Linear(width, SPACE, bias=False) for width in widths)
        self.weight_parts = nn.Linear(words, len(widths))

    def forward(self, words: Tensor, parts: Sequence[Tensor], valid: Tensor) -> Tensor:
        """(B, W), each (B, K, .), (B, K) -> scores (B, K)."""
        query, weights = self.project_words(words), torch.sigmoid(self.weight_parts(words))
        keys = torch.stack([project(part) for project, part in zip(self.project_parts, parts, strict=True)])
        scores = torch.einsum("bh,pbkh,bp->bk", query, keys, weights)
        return scores.masked_fill(~valid, -torch.inf)


def fit(steps: Steps, words: str, parts: Sequence[str], seed: int) -> Probe:
    torch.manual_seed(seed)
    bag, features = steps.words[words], [steps.parts[part] for part in parts]
    probe = Probe(bag.shape[1], [part.shape[-1] for part in features])
    optimiser = torch.optim.AdamW(probe.parameters(), lr=RATE, weight_decay=DECAY)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(steps.right)).split(BATCH):
            scores = probe(bag[rows], [part[rows] for part in features], steps.valid[rows])
            loss = nn.functional.cross_entropy(scores, steps.right[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return probe


@torch.no_grad()
def is_right(probe: Probe, steps: Steps, words: str, parts: Sequence[str]) -> NDArray[np.bool_]:
    """Return whether the candidate with the highest score is the next viewpoint (N,)."""
    scores = probe(steps.words[words], [steps.parts[part] for part in parts], steps.valid)
    return (scores.argmax(1) == steps.right).numpy()


if __name__ == "__main__":
    sys.exit(print_results(run()))
