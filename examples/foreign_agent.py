"""A recurrent agent in plain PyTorch, built on nothing of this package, gains a memory in three marked lines.

    python examples/foreign_agent.py [DATA_FOLDER] [SPLIT]

Without a folder it walks a small generated world. The agent is not trained and does not get far; what shows
is how the share of candidates it remembers grows, and how far memory moves its mind (the probability that
goes to other choices). Gradients of a training would pass by the memory, never into it.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import esceme
from esceme.memory import MemoryBank
from esceme.synth import WorldConfig, embedded_world


class Recurrent(nn.Module):
    """What it sees on its way goes into a state; choices are scored by how well they answer to it."""

    def __init__(self, width: int, hidden: int = 64) -> None:
        super().__init__()
        self.cell, self.key = nn.GRUCell(width, hidden), nn.Linear(width, hidden)

    def forward(self, state: Tensor | None, panorama: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities of the K candidates and of STOP, (K + 1,), and the next state, (1, hidden)."""
        state = self.cell(panorama.mean(0, keepdim=True), state)
        stop = torch.zeros(1, candidates.shape[1])
        return (self.key(torch.cat([candidates, stop])) @ state[0]).softmax(0), state


@torch.inference_mode()
def main(folder: str, split: str) -> None:
    """Walk every episode of a split and print, by fifths of it, what memory gave."""
    torch.manual_seed(0)
    env = esceme.make_env(folder, task="r2r", split=split, reward="none")
    width = env.observation_space["features"].shape[-1]
    agent, counts = Recurrent(width), torch.zeros(5, 4)
    bank = MemoryBank(width)  # <- memory, 1 of 3: it outlives the episodes
    for number, episode in enumerate(env.episodes):
        observation, info = env.reset(options={"episode": episode.episode_id})
        state, ended = None, False
        while not ended:
            scene, here = info["scene_id"], info["viewpoint"]
            leads = [each.viewpoint for each in env.atlas.graph(scene).candidates(here)]
            panorama = torch.from_numpy(observation["features"])  # candidates come first
            seen = candidates = panorama[: len(leads)]
            candidates = candidates + bank.recall(scene, leads)  # <- memory, 2 of 3: before deciding
            without, _ = agent(state, panorama, seen)
            chances, state = agent(state, panorama, candidates)
            action = int(chances.multinomial(1))
            bank.remember(scene, here, seen, leads)  # <- memory, 3 of 3: after deciding, before moving
            known, moved = (candidates != seen).any(1).sum(), (chances - without).abs().sum() / 2
            counts[5 * number // len(env.episodes)] += torch.tensor([len(leads), known, 1, moved])
            observation, _, terminated, truncated, info = env.step(action)
            ended = terminated or truncated
    print("episodes    remembered    mind moved by")
    for fifth, (candidates_seen, remembered, decisions, moved_by) in enumerate(counts.tolist(), 1):
        print(f"fifth {fifth}  {remembered / candidates_seen:12.1%}  {moved_by / decisions:15.1%}")
    print(f"{len(bank)} viewpoints remembered, {bank.nbytes:,} bytes")


if __name__ == "__main__":
    given = sys.argv[1:]
    main(
        given[0] if given else str(embedded_world(WorldConfig("tiny"))),
        given[1] if given[1:] else "val_unseen",
    )
