"""`esceme demo`."""

from __future__ import annotations

import shlex
from pathlib import Path
from textwrap import fill

from rich.table import Table

from esceme.cli.console import note, print_json, progress, tables
from esceme.demo import SPLIT, TASK, Outcome, look_around
from esceme.synth.dataset import Size

COLUMNS = {"tl": "TL (m)", "ne": "NE (m)", "sr": "SR (%)", "spl": "SPL (%)", "ndtw": "nDTW (%)"}
"""Measures of the table, and what stands above them."""


def demo(out: Path = Path("demo"), size: Size = "small", seed: int = 0, json: bool = False) -> int:
    """Make, walk, score and draw the embedded world: the quickest look around.

    Generates houses with pictures, features and instructions (two minutes on two cores the first time, then
    kept in the cache), lets the data doctor examine them, and sends scripted walkers through the unseen ones:
    one that knows the way, one that wanders, and a reader that parses the instruction and looks for what it
    names, without memory, with a memory that begins empty, and with a full one. Needs no data.

    Examples:
        esceme demo
        esceme demo --size tiny --out /tmp/look --seed 7
        esceme demo --json

    Args:
        out: the folder to write to; files of an earlier demo are replaced.
        size: how large a world.
        seed: which world, and where the random walker goes.
        json: print one json object of plain fractions instead of a table.
    """
    note(f"making, examining and walking the embedded world; results go to {out}")
    seen = look_around(out, size=size, seed=seed, watch=progress)
    if json:
        files = {"world": seen.world, "annotations": seen.annotations, "drawing": seen.drawing}
        print_json(
            {
                "size": size,
                "seed": seed,
                "scores": seen.scores,
                "episode": seen.drawn.episode_id,
                **{name: str(path) for name, path in files.items()},
                "predictions": {name: str(path) for name, path in seen.predictions.items()},
            }
        )
    else:
        tables().print(_table(seen))
        print(_story(seen))
    return 0


def _table(seen: Outcome) -> Table:
    count = next(iter(seen.scores.values()))["n"]
    table = Table(title=f"{TASK} {SPLIT} of the embedded world: {count} episodes in unseen houses")
    table.add_column("walker")
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    for name, means in seen.scores.items():
        shown = [f"{means[key] * (100 if '%' in heading else 1):.2f}" for key, heading in COLUMNS.items()]
        table.add_row(name, *shown)
    return table


def _story(seen: Outcome) -> str:
    common = f"--annotations {_quoted(seen.annotations)} --connectivity {_quoted(seen.connectivity)}"
    read = _quoted(seen.predictions["reader, cold memory"])
    scene, episode = seen.drawn.scene_id, seen.drawn.episode_id
    without, cold = (seen.scores[f"reader, {memory} memory"]["spl"] for memory in ("no", "cold"))
    words = (
        f"A reader that remembers what it saw on earlier walks through a house scores {100 * cold:.0f} SPL, "
        f"the same reader without memory {100 * without:.0f}: many instructions name things that cannot be "
        f"seen from where one has to decide, and {seen.drawing} shows what that costs in episode {episode}. "
        f"The world lies in {seen.world} (panoramas/ is worth a look), the data doctor found all "
        f"{seen.sound} parts of it in order, and every command reads published data the same way; try next:"
    )
    commands = (
        f"esceme data check {_quoted(seen.world)}",
        f"esceme score --task {TASK} --predictions {read} {common} --bootstrap 1000",
        f"esceme scene {scene} {common} --episode {episode} --predictions {read} --out walk.svg",
    )
    return "\n".join(["", fill(words, width=100), "", *(f"  {command}" for command in commands)])


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
