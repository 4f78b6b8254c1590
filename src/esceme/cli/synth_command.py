"""The command `esceme synth`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from esceme.cli.console import note, print_json, progress
from esceme.errors import ConfigError
from esceme.files import read_json
from esceme.synth.dataset import WorldConfig, WorldSize, write_world
from esceme.tasks.manifest import COMPANION


def synth(
    out: Path,
    size: WorldSize = "small",
    scenes: int | None = None,
    seed: int = 0,
    processes: int = 2,
    cache: Annotated[bool, tyro.conf.arg(help_behavior_hint="(default: the cache is used)")] = True,
    json: bool = False,
) -> int:
    """Generate the embedded world: houses with panoramas, features and all tasks, in the public formats.

    The folder has the layout of the public datasets. A world is generated once per size, seed and version and
    cached in ESCEME_CACHE (default: the user's cache folder); the files are the same with and without the
    cache. An interrupted run leaves nothing behind. A killed run leaves a hidden folder that ends in .part,
    which the next run removes.

    Examples:
        esceme synth --out world
        esceme synth --out tiny --size tiny --seed 3
        esceme synth --out large --scenes 60 --processes 8 --no-cache

    Args:
        out: folder to write; it must not exist yet, or be empty.
        size: tiny (for tests; seconds) or small (for the demo; about two minutes on two cores).
        scenes: number of training houses, instead of the size's own number.
        seed: seed of all random choices.
        processes: number of processes that render houses; the files do not depend on it.
        cache: neither read the world from the cache nor store it there.
        json: print one JSON object instead of text.
    """
    if processes < 1:
        raise ConfigError(f"--processes {processes}: give 1 or more")
    config = WorldConfig(size=size, seed=seed, scenes=scenes)
    write_world(out, config, processes=processes, progress=progress, cache=cache)
    summary = read_json(out / COMPANION, dict[str, object])
    if json:
        print_json({"out": str(out), **summary})
    else:
        counts = ", ".join(f"{summary[key]} {key}" for key in ("houses", "viewpoints", "instructions"))
        print(f"{out}: {counts}")
        share = summary["instructions_needing_memory"]
        note(f"{share:.0%} of the instructions have a decision that requires memory of a neighbour")
    return 0
