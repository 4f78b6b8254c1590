"""`esceme synth`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from esceme.cli.console import note, print_json, progress
from esceme.errors import ConfigError
from esceme.files import read_json
from esceme.synth.dataset import Size, WorldConfig, write_world
from esceme.tasks.manifest import COMPANION


def synth(
    out: Path,
    size: Size = "small",
    scenes: int | None = None,
    seed: int = 0,
    processes: int = 2,
    cache: bool = True,
    json: bool = False,
) -> int:
    """Make the embedded world: generated houses with pictures, features and every task, in public formats.

    The folder is laid out like the public datasets, so everything that reads those reads it. A world is made
    once per size, seed and version and kept in ESCEME_CACHE (default: the user's cache folder); the bytes are
    the same with and without the cache. An interrupted run leaves nothing behind, a killed one at most a
    hidden folder whose name ends in .part.

    Examples:
        esceme synth --out world
        esceme synth --out tiny --size tiny --seed 3
        esceme synth --out large --scenes 60 --processes 8 --no-cache

    Args:
        out: the folder to write; it must not exist yet, or be empty.
        size: tiny (tests; seconds) or small (the demo; about two minutes on two cores).
        scenes: how many houses to train on, instead of the size's own number.
        seed: of everything.
        processes: how many houses are photographed side by side; changes nothing about the result.
        cache: with --no-cache, the world is neither taken from the cache nor left there.
        json: print one json object instead of a sentence.
    """
    if processes < 1:
        raise ConfigError(f"--processes {processes}: at least one has to do the work")
    order = WorldConfig(size=size, seed=seed, scenes=scenes)
    write_world(out, order, processes=processes, watch=_watch, cache=cache)
    made = read_json(out / COMPANION, dict[str, object])
    if json:
        print_json({"out": str(out), **made})
    else:
        share = made["instructions_needing_memory"]
        print(
            f"{out}: " + ", ".join(f"{made[key]} {key}" for key in ("houses", "viewpoints", "instructions"))
        )
        note(f"{share:.0%} of the instructions hold a decision that only what lies beyond settles")
    return 0


def _watch(numbers: Iterable[int], label: str) -> Iterable[int]:
    return progress(numbers, label)
