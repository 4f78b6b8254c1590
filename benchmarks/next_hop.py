"""Whether seeing matters in the embedded world, and memory on top: probes that choose the next hop.

A probe gives every candidate a score: products of words and the candidate's features, in a common space of
few dimensions, each part of the features weighed by the words. It is fitted on the teacher's steps of the
training houses. The words are a bag: those of the whole instruction, or of the step's own clause. Without
views, a candidate is the direction in which it lies; with them, also the features of its view; with memory,
also the largest features over the views that lead on from there, which is all that the scene memory keeps.
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

from benchmarks.measure import Quality, line
from esceme.synth.dataset import WorldConfig, embedded_world
from esceme.synth.instruction_follower import SEPARATOR_PATTERN
from esceme.synth.instructions import BEYOND_TEMPLATES
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.r2r import read_r2r
from esceme.tasks.text import Vocabulary
from esceme.world import Atlas
from esceme.world.atlas import Pose

SEEDS = 3
SPACE, EPOCHS, BATCH, RATE, DECAY = 64, 4, 256, 2e-2, 1e-4
"""Dimensions that words and features meet in, and how the probes are fitted; tried on training houses."""
SECTORS = 24
"""A candidate's direction is told by the sector it lies in as well, or linear scores could not use it."""
AHEAD = tuple(phrase.partition(" {}")[0] for phrase in BEYOND_TEMPLATES)
"""How a clause begins that only what lies beyond settles."""
REWARDS, REWARDS_BEYOND = (0.1, 0.03, 0.0), (0.1, 0.0, 0.2)
"""How much more often a probe must be right than the one before it, or guessing; see `PROBES`."""
PROBES = {
    "directions": ("direction",),
    "and views": ("direction", "view"),
    "and memory": ("direction", "view", "memory"),
}
"""Probe -> what it knows the candidates by."""


class Steps(NamedTuple):
    """Teacher's steps (N) with up to K candidates each."""

    words: dict[str, Tensor]
    """Which words occur (N, W) in the whole `instruction`, and in the step's `clause`."""
    parts: dict[str, Tensor]
    """What the candidates are known by: `direction`, `view`, `memory`, each (N, K, .)."""
    valid: Tensor
    """(N, K)"""
    right: Tensor
    """(N,): the candidate that the path takes."""
    beyond: Tensor
    """(N,): whether only what lies beyond settles the step."""


def run(_data: Path | None = None) -> Iterator[Quality]:
    train, unseen = read_steps()
    every, beyond = np.ones(len(unseen.right), dtype=bool), unseen.beyond.numpy()
    whole, clause = try_probes(train, unseen, "instruction"), try_probes(train, unseen, "clause")
    chance = (1 / unseen.valid.sum(1)).numpy()
    yield from compare("every step by the instruction's words", whole, every, chance, REWARDS)
    yield from compare("every step by its clause's words", clause, every, chance, REWARDS)
    yield from compare("steps that what lies beyond settles", clause, beyond, chance, REWARDS_BEYOND)


def try_probes(train: Steps, unseen: Steps, words: str) -> dict[str, NDArray[np.bool_]]:
    """Probe -> which of the unseen steps it takes rightly, for every seed (S, N)."""
    return {
        name: np.stack([is_right(fit(train, words, parts, at), unseen, words, parts) for at in range(SEEDS)])
        for name, parts in PROBES.items()
    }


def compare(
    title: str,
    hits: dict[str, NDArray[np.bool_]],
    rows: NDArray[np.bool_],
    chance: NDArray[np.float32],
    rewards: Sequence[float],
) -> Iterator[Quality]:
    """Each probe on some of the steps; each has to be better than the one before it by its reward."""
    before = guessed = float(chance[rows].mean())
    for (name, right), reward in zip(hits.items(), rewards, strict=True):
        reached = right[:, rows].mean(axis=1)
        bound = "few houses to learn from: the viewpoints of training are known by heart"
        yield Quality(
            f"{title} ({rows.sum():,}): {name}",
            float(reached.mean()),
            before + reward,
            guessed,
            bound,
            float(reached.std()),
        )
        before = float(reached.mean())


def read_steps() -> tuple[Steps, Steps]:
    """The teacher's steps in the houses to train on, and in the unseen ones."""
    folder = DataFolder(embedded_world(WorldConfig("small")))
    atlas = Atlas.read(folder.connectivity, features=folder.features[0])
    train, unseen = (read_r2r(folder.splits("r2r")[split]) for split in ("train", "val_unseen"))
    vocabulary = Vocabulary.build(episode.instruction for episode in train)
    return collect(atlas, train, vocabulary), collect(atlas, unseen, vocabulary)


def collect(atlas: Atlas, episodes: Sequence[Episode], vocabulary: Vocabulary) -> Steps:
    """Every step of the reference paths, and what is known of the candidates there."""
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
        parts={"direction": directions(atlas, at), **looks(atlas, at.viewpoint)},
        valid=torch.from_numpy(atlas.neighbours[at.viewpoint] >= 0),
        right=torch.tensor(right),
        beyond=torch.tensor([clause.startswith(AHEAD) for clause in clauses]),
    )


def bags(texts: Sequence[str], vocabulary: Vocabulary) -> Tensor:
    """(N, W): which words occur in each text."""
    found = torch.zeros(len(texts), vocabulary.size)
    for row, text in enumerate(texts):
        found[row, vocabulary.encode(text)] = 1.0
    return found


def directions(atlas: Atlas, pose: Pose) -> Tensor:
    """(N, K, .): each candidate's angles as agents know them, and the sector that it lies in."""
    angles = torch.from_numpy(atlas.observe(pose).angles[:, : atlas.neighbours.shape[1]])
    turn = torch.atan2(angles[..., 0], angles[..., 1])
    sector = ((turn / (2 * torch.pi) + 0.5) * SECTORS).long() % SECTORS
    return torch.cat([angles, nn.functional.one_hot(sector, SECTORS)], dim=-1)


def looks(atlas: Atlas, viewpoints: NDArray[np.int64]) -> dict[str, Tensor]:
    """The features of each candidate's view, and the largest over those that lead on from it."""
    every = np.arange(len(atlas))
    panoramas = atlas.panorama_features(every)
    leading = panoramas[every[:, None], atlas.views.clip(0)]  # (P, K, D)
    leading[atlas.neighbours < 0] = 0.0  # features are never negative
    kept = leading.max(axis=1)  # (P, D)
    there = atlas.neighbours[viewpoints].clip(0)
    return {"view": torch.from_numpy(leading[viewpoints]), "memory": torch.from_numpy(kept[there])}


class Probe(nn.Module):
    """Words and each part of a candidate meet in a common space; the words say how much each part counts."""

    def __init__(self, words: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.of_words = nn.Linear(words, SPACE)
        self.of_parts = nn.ModuleList(nn.Linear(width, SPACE, bias=False) for width in widths)
        self.weigh = nn.Linear(words, len(widths))

    def forward(self, words: Tensor, parts: Sequence[Tensor], valid: Tensor) -> Tensor:
        """(B, W), each (B, K, .), (B, K) -> scores (B, K)."""
        asked, counts = self.of_words(words), torch.sigmoid(self.weigh(words))
        seen = torch.stack([of(part) for of, part in zip(self.of_parts, parts, strict=True)])
        scores = torch.einsum("bh,pbkh,bp->bk", asked, seen, counts)
        return scores.masked_fill(~valid, -torch.inf)


def fit(steps: Steps, words: str, parts: Sequence[str], seed: int) -> Probe:
    torch.manual_seed(seed)
    told, known = steps.words[words], [steps.parts[part] for part in parts]
    probe = Probe(told.shape[1], [part.shape[-1] for part in known])
    optimiser = torch.optim.AdamW(probe.parameters(), lr=RATE, weight_decay=DECAY)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(steps.right)).split(BATCH):
            scores = probe(told[rows], [part[rows] for part in known], steps.valid[rows])
            loss = nn.functional.cross_entropy(scores, steps.right[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return probe


@torch.no_grad()
def is_right(probe: Probe, steps: Steps, words: str, parts: Sequence[str]) -> NDArray[np.bool_]:
    """(N,): whether the candidate with the highest score is the one that the path takes."""
    scores = probe(steps.words[words], [steps.parts[part] for part in parts], steps.valid)
    return (scores.argmax(1) == steps.right).numpy()


def main() -> int:
    found = list(run())
    for each in found:
        print(line(each.row()))
    return 0 if all(each.met for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
