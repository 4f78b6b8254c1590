"""The command `esceme memory show`, which shows the content of a bank file."""

from __future__ import annotations

from pathlib import Path

import tyro
from rich.markup import escape
from rich.table import Table

from esceme.cli.console import print_json, print_line, tables
from esceme.memory.bank_file import BankHeader, StoredScene, read_header

BYTES_PER_NUMBER = 4


def show(file: tyro.conf.Positional[Path], /, json: bool = False) -> int:
    """Show the contents of a bank file: scenes, viewpoints, edges and the source of the features.

    Examples:
        esceme memory show runs/hamt/bank.safetensors
        esceme memory show bank.safetensors --json

    Args:
        file: bank file (memories of scenes) that an evaluation or `save_bank` wrote.
        json: print one json object instead of a table.
    """
    header = read_header(file)
    facts = {
        "format": header.format,
        "width": header.width,
        "pooling": header.pooling,
        "source": header.source,
        "viewpoints": sum(len(scene.neighbours) for scene in header.scenes),
        "bytes": file.stat().st_size,
    }
    if json:
        scenes = [{"scene": scene.scene_id, **_scene_size(scene, header)} for scene in header.scenes]
        print_json({"file": str(file), **facts, "scenes": scenes})
        return 0
    for name, value in facts.items():
        print_line(f"{name:<12}{value:,}" if isinstance(value, int) else f"{name:<12}{value}")
    if header.scenes:
        tables().print(_bank_table(header))
    return 0


def _bank_table(header: BankHeader) -> Table:
    table = Table()
    table.add_column("scene", overflow="fold")
    for heading in ("viewpoints", "edges", "bytes"):
        table.add_column(heading, justify="right")
    for scene in header.scenes:
        sizes = _scene_size(scene, header).values()
        table.add_row(escape(scene.scene_id), *(f"{size:,}" for size in sizes))
    return table


def _scene_size(scene: StoredScene, header: BankHeader) -> dict[str, int]:
    """Return the number of viewpoints and edges of a scene, and the bytes of its memory vectors."""
    viewpoints = len(scene.neighbours)
    return {
        "viewpoints": viewpoints,
        "edges": len(scene.edges),
        "bytes": viewpoints * header.width * BYTES_PER_NUMBER,
    }
