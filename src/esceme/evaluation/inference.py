"""Rollouts in inference mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import torch

from esceme.engine import EngineName, Precision
from esceme.memory.bank import Memory
from esceme.navigator import Navigator
from esceme.rollout import RolloutStep, roll_out
from esceme.tasks.split import InstructionEncoder
from esceme.trajectory import ActionSelector, EpisodeSource, greedy
from esceme.world.atlas import Atlas


def evaluation_steps(
    navigator: Navigator,
    atlas: Atlas,
    source: EpisodeSource,
    memory: Memory | None,
    *,
    encode: InstructionEncoder,
    max_steps: int,
    precision: Precision = "fp32",
    engine: EngineName = "eager",
    select: ActionSelector = greedy,
) -> Iterator[RolloutStep]:
    """Yield the steps of a rollout in inference mode. Call `navigator.eval()` before this function.

    Only eager bf16 is set here, as autocast; `apply_engine` has prepared the navigator for everything else.
    """
    steps = roll_out(navigator, atlas, source, memory, select, encode=encode, max_steps=max_steps)
    is_autocast = (engine, precision) == ("eager", "bf16")
    while True:  # inference mode and autocast are off while the caller handles a step
        autocast = torch.autocast(navigator.device.type, torch.bfloat16)
        with torch.inference_mode(), autocast if is_autocast else nullcontext():
            step = next(steps, None)
        if step is None:
            return
        yield step
