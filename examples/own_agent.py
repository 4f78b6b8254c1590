"""An agent of your own, walked and scored: it prefers the candidate straight ahead and stops after six moves.

    python examples/own_agent.py [DATA_FOLDER] [SPLIT]

Without a folder it walks a small generated world.
"""

from __future__ import annotations

import sys
from typing import Any

import esceme
from esceme.synth import WorldConfig, embedded_world
from esceme.tasks import TrajectoryPoint


def act(observation: dict[str, Any], info: dict[str, Any]) -> int:
    """The token to choose: candidates come first, STOP right after them."""
    stop = int(info["action_mask"].sum()) - 1
    if info["step"] == 6:
        return stop
    ahead = observation["angles"][:stop, 1]  # cosine of the heading relative to where the agent looks
    return int(ahead.argmax())


def main(folder: str, split: str) -> None:
    """Walk every episode of a split and print the scores."""
    env = esceme.make_env(folder, task="r2r", split=split)
    pairs = []
    for episode in env.episodes:
        observation, info = env.reset(options={"episode": episode.episode_id})
        ended = False
        while not ended:
            observation, _, terminated, truncated, info = env.step(act(observation, info))
            ended = terminated or truncated
        walk = tuple(TrajectoryPoint(*pose) for pose in info["trajectory"])
        pairs.append((episode, esceme.Prediction(episode.episode_id, walk)))
    for measure, value in esceme.score(pairs, env.atlas).means().items():
        print(f"{measure:14}{value:8.3f}")


if __name__ == "__main__":
    given = sys.argv[1:]
    main(
        given[0] if given else str(embedded_world(WorldConfig("tiny"))),
        given[1] if given[1:] else "val_unseen",
    )
