"""Run and score your own agent: it chooses the candidate closest to its heading and stops after six moves.

    python examples/own_agent.py [DATA_FOLDER] [SPLIT]

The default folder is a small generated world.
"""

from __future__ import annotations

import sys
from typing import Any

import esceme
from esceme.synth import WorldConfig, embedded_world
from esceme.tasks import TrajectoryPoint


def act(observation: dict[str, Any], info: dict[str, Any]) -> int:
    """Return the action, a token index: candidates first, then STOP."""
    stop = int(info["action_mask"].sum()) - 1
    if info["step"] == 6:
        return stop
    ahead = observation["angles"][:stop, 1]  # cosine of the heading relative to the agent's
    return int(ahead.argmax())


def main(folder: str, split: str) -> None:
    """Run every episode of a split and print the scores."""
    env = esceme.make_env(folder, task="r2r", split=split)
    pairs = []
    for episode in env.episodes:
        observation, info = env.reset(options={"episode": episode.episode_id})
        is_over = False
        while not is_over:
            observation, _, terminated, truncated, info = env.step(act(observation, info))
            is_over = terminated or truncated
        trajectory = tuple(TrajectoryPoint(*pose) for pose in info["trajectory"])
        pairs.append((episode, esceme.Prediction(episode.episode_id, trajectory)))
    for metric, value in esceme.score(pairs, env.atlas).means().items():
        print(f"{metric:14}{value:8.3f}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(
        arguments[0] if arguments else str(embedded_world(WorldConfig("tiny"))),
        arguments[1] if arguments[1:] else "val_unseen",
    )
