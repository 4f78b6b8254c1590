"""The commands `esceme memory show` and `esceme memory merge`, for bank files."""

from __future__ import annotations

from pathlib import Path

import tyro
from rich.markup import escape
from rich.table import Table

from esceme.cli.console import print_json, print_line, tables
from esceme.errors import ConfigError, prefix_errors
from esceme.memory import load_bank, save_bank
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


def merge(files: tyro.conf.Positional[tuple[Path, ...]], /, out: Path, json: bool = False) -> int:
    """Merge bank files into one, as if one memory had visited all viewpoints.

    All banks must have the same features and pooling. The order does not matter. If banks have different
    vectors of a viewpoint, max pooling keeps their maximum.

    Examples:
        esceme memory merge monday/bank.safetensors tuesday/bank.safetensors --out bank.safetensors

    Args:
        files: bank files, at least two.
        out: the bank file to write; the first of `files`, or a new file.
        json: print one json object instead of text.
    """
    if len(files) < 2:
        raise ConfigError(f"expected at least two bank files to merge, found {len(files)}")
    bank = load_bank(files[0])
    for file in files[1:]:
        other = load_bank(file)
        with prefix_errors(file=file):
            bank.merge(other)
    save_bank(bank, out)
    facts = {"out": str(out), "files": len(files), "scenes": len(bank.scenes), "viewpoints": len(bank)}
    if json:
        print_json(facts)
    else:
        print_line(f"{out}: {len(bank):,} viewpoints of {len(bank.scenes)} scenes, from {len(files)} files")
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
