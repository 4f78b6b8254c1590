"""`esceme demo`."""

from __future__ import annotations

import shlex
from pathlib import Path
from textwrap import fill

from rich.table import Table

from esceme.cli.console import note, print_json, tables
from esceme.demo import SPLIT, TASK, Outcome, look_around

COLUMNS = {"tl": "TL (m)", "ne": "NE (m)", "sr": "SR (%)", "spl": "SPL (%)", "ndtw": "nDTW (%)"}
"""Measures of the table, and what stands above them."""


def demo(out: Path = Path("demo"), seed: int = 0, json: bool = False) -> int:
    """Walk, score and draw the embedded world: the quickest look around.

    Writes a small generated world in the public file formats, lets the data doctor examine it, walks its
    unseen house with two scripted walkers (one takes the shortest path, one wanders), scores both and draws
    an episode from above. Needs neither data nor network.

    Examples:
        esceme demo
        esceme demo --out /tmp/look --seed 7
        esceme demo --json

    Args:
        out: the folder to write to; files of an earlier demo are replaced.
        seed: which world, and where the random walker goes.
        json: print one json object of plain fractions instead of a table.
    """
    note(f"writing, examining and walking a generated world below {out} ...")
    seen = look_around(out, seed=seed)
    if json:
        files = {"world": seen.world, "annotations": seen.annotations, "drawing": seen.drawing}
        print_json(
            {
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
    table = Table(title=f"{TASK} {SPLIT} of the toy world: {count} episodes")
    table.add_column("walker")
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    for name, means in seen.scores.items():
        shown = [f"{means[key] * (100 if '%' in heading else 1):.2f}" for key, heading in COLUMNS.items()]
        table.add_row(name, *shown)
    return table


def _story(seen: Outcome) -> str:
    common = f"--annotations {_quoted(seen.annotations)} --connectivity {_quoted(seen.connectivity)}"
    wandered = _quoted(seen.predictions["random"])
    scene, episode = seen.drawn.scene_id, seen.drawn.episode_id
    figure = _quoted(seen.drawing.with_name("random.svg"))
    asked = seen.scores["random"]["n"]
    words = (
        f"The data doctor found all {seen.sound} parts of {seen.world} in order; then a walker that knows "
        f"the way and one that wanders followed the same {asked} instructions, and {seen.drawing} shows "
        f"where they went in episode {episode}. Nothing here is a real building, but every command reads "
        "the published datasets in the same way; try next:"
    )
    commands = (
        f"esceme data check {_quoted(seen.world)}",
        f"esceme score --task {TASK} --predictions {wandered} {common} --bootstrap 1000",
        f"esceme scene {scene} {common} --episode {episode} --predictions {wandered} --out {figure}",
    )
    return "\n".join(["", fill(words, width=100), "", *(f"  {command}" for command in commands)])


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
