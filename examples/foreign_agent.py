"""Add scene memory to a recurrent agent in plain PyTorch; three marked lines use this package's memory.

    python examples/foreign_agent.py [DATA_FOLDER] [SPLIT]

The default folder is a small generated world. The agent is not trained. The output shows the share of
remembered candidates, and the effect of memory on the action probabilities (total variation distance). In
training, no gradient would flow into the memory.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import esceme
from esceme.memory import MemoryBank
from esceme.synth import WorldConfig, embedded_world


class RecurrentAgent(nn.Module):
    """GRU over mean panorama features; an action's score is the dot product of its key and the state."""

    def __init__(self, width: int, hidden: int = 64) -> None:
        super().__init__()
        self.cell, self.key = nn.GRUCell(width, hidden), nn.Linear(width, hidden)

    def forward(self, state: Tensor | None, panorama: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities of the K candidates and STOP, (K + 1,), and the next state, (1, hidden)."""
        state = self.cell(panorama.mean(0, keepdim=True), state)
        stop = torch.zeros(1, candidates.shape[1])
        return (self.key(torch.cat([candidates, stop])) @ state[0]).softmax(0), state


@torch.inference_mode()
def main(folder: str, split: str) -> None:
    """Run every episode of a split and print statistics of the memory per fifth of the split."""
    torch.manual_seed(0)
    env = esceme.make_env(folder, task="r2r", split=split, reward="none")
    width = env.observation_space["features"].shape[-1]
    agent, counts = RecurrentAgent(width), torch.zeros(5, 4)
    bank = MemoryBank(width)  # <- memory, 1 of 3: one bank for all episodes
    for number, episode in enumerate(env.episodes):
        observation, info = env.reset(options={"episode": episode.episode_id})
        state, is_over = None, False
        while not is_over:
            scene, here = info["scene_id"], info["viewpoint"]
            neighbours = [candidate.viewpoint for candidate in env.atlas.graph(scene).candidates(here)]
            panorama = torch.from_numpy(observation["features"])  # candidates come first
            views = candidates = panorama[: len(neighbours)]
            candidates = candidates + bank.recall(scene, neighbours)  # <- memory, 2 of 3: before deciding
            without_memory, _ = agent(state, panorama, views)
            probabilities, state = agent(state, panorama, candidates)
            action = int(probabilities.multinomial(1))
            bank.remember(scene, here, views, neighbours)  # <- memory, 3 of 3: after deciding, before moving
            num_recalled = (candidates != views).any(1).sum()
            change = (probabilities - without_memory).abs().sum() / 2
            counts[5 * number // len(env.episodes)] += torch.tensor(
                [len(neighbours), num_recalled, 1, change]
            )
            observation, _, terminated, truncated, info = env.step(action)
            is_over = terminated or truncated
    print("episodes    remembered    probability change")
    for fifth, (num_candidates, num_recalled, num_decisions, total_change) in enumerate(counts.tolist(), 1):
        print(f"fifth {fifth}  {num_recalled / num_candidates:12.1%}  {total_change / num_decisions:20.1%}")
    print(f"{len(bank)} viewpoints remembered, {bank.nbytes:,} bytes")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(
        arguments[0] if arguments else str(embedded_world(WorldConfig("tiny"))),
        arguments[1] if arguments[1:] else "val_unseen",
    )
