"""The commands `esceme memory show` and `esceme memory merge`, for stores and bank files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import tyro
from rich.markup import escape
from rich.table import Column, Table

from esceme.cli.console import print_facts, print_json, print_line, tables
from esceme.errors import ConfigError, DataError, prefix_errors
from esceme.memory import MemoryStore, load_bank, save_bank
from esceme.memory.bank_file import BankHeader, StoredScene, read_header
from esceme.memory.store import SceneSize
from esceme.memory.store_database import FORMAT as STORE_FORMAT
from esceme.memory.store_database import is_store
from esceme.report.figure_files import write_figure
from esceme.report.store_figure import Colouring, draw_store

BYTES_PER_NUMBER = 4
_NOTHING = SceneSize("", 0, 0, 0, 0, 0.0, 0.0)


def show(
    file: Annotated[Path, tyro.conf.arg(metavar="MEMORY")],
    /,
    out: Path | None = None,
    scene: str | None = None,
    colour: Colouring = "visits",
    json: bool = False,
) -> int:
    """Show the contents of a memory store or bank file: scenes, viewpoints, edges and the features' source.

    With --out, draw the remembered graph of a scene of a store from above.

    Examples:
        esceme memory show site.db
        esceme memory show site.db --scene home-0026 --colour robot --out memory.svg
        esceme memory show runs/hamt/bank.safetensors --json

    Args:
        file: file of a memory store, or bank file that an evaluation or `save_bank` wrote.
        out: file of a drawing; .svg, .pdf or .png.
        scene: the scene to draw; by default the one with most viewpoints.
        colour: colours of the drawing: time since the last visit (age), first robot, or number of visits.
        json: print one json object instead of a table.
    """
    if is_store(file):
        return _show_store(file, out, scene, colour, json)
    if out is not None:
        raise ConfigError(f"{file}: a bank file has no positions and cannot be drawn; give a memory store")
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


def merge(
    files: Annotated[
        tuple[Path, ...], tyro.conf.arg(metavar="MEMORY MEMORY...", help_behavior_hint="(required)")
    ],
    /,
    out: Path,
    json: bool = False,
) -> int:
    """Merge memory stores, or bank files, into one, as if one memory had visited all viewpoints.

    All must have the same features and pooling. The order does not matter. Stores keep all observations: if
    robots have different vectors of a viewpoint, the first durable one is recalled, and
    `esceme memory check` names the viewpoint. Bank files with max pooling keep the maximum.

    Examples:
        esceme memory merge monday.db tuesday.db --out site.db
        esceme memory merge monday/bank.safetensors tuesday/bank.safetensors --out bank.safetensors

    Args:
        files: stores or bank files, at least two.
        out: the file to write: a new file, or the first input.
        json: print one json object instead of text.
    """
    if len(files) < 2:
        raise ConfigError(f"expected at least two memory files to merge, found {len(files)}")
    if len(kinds := {is_store(file) for file in files}) > 1:
        raise ConfigError(
            "expected stores only, or bank files only; `esceme memory import` adds banks to a store"
        )
    if kinds == {True}:
        return _merge_stores(files, out, json)
    bank = load_bank(files[0])
    for file in files[1:]:
        other = load_bank(file)
        with prefix_errors(file=file):
            bank.merge(other)
    save_bank(bank, out)
    facts = {"out": str(out), "files": len(files), "scenes": len(bank.scenes), "viewpoints": len(bank)}
    text = f"{out}: {len(bank):,} viewpoints of {len(bank.scenes)} scenes, from {len(files)} files"
    print_facts(facts, text, json=json)
    return 0


def _merge_stores(files: Sequence[Path], out: Path, json: bool) -> int:
    if out.exists() and out.resolve() not in [file.resolve() for file in files]:
        raise DataError(f"{out}: exists already and is none of the stores to merge; take another name")
    with MemoryStore.open(files[0]) as first:
        settings = first.settings
    with MemoryStore.open(out, settings) as store:
        for file in files:
            if file.resolve() != out.resolve():
                with MemoryStore.open(file) as other:
                    store.merge(other)
        facts = {
            "out": str(out),
            "files": len(files),
            "observations": len(store),
            "conflicts": len(store.conflicts()),
            "digest": store.digest,
        }
    text = (
        f"{out}: {facts['observations']:,} observations from {len(files)} stores, {facts['conflicts']:,} "
        f"viewpoints with different vectors; digest {facts['digest']}"
    )
    print_facts(facts, text, json=json)
    return 0


def _show_store(file: Path, out: Path | None, scene: str | None, colour: Colouring, json: bool) -> int:
    with MemoryStore.open(file, read_only=True) as store:
        sizes = store.scene_sizes()
        facts = {
            "format": STORE_FORMAT,
            **msgspec.to_builtins(store.settings),
            "observations": len(store),
            "viewpoints": sum(size.viewpoints for size in sizes),
            "conflicts": len(store.conflicts()),
            "digest": store.digest,
            "bytes": file.stat().st_size,
        }
        audit = store.audit()
        chosen = scene or max(sizes, key=lambda size: size.viewpoints, default=_NOTHING).scene
        if (scene or out) and chosen not in [size.scene for size in sizes]:
            names = ", ".join(size.scene for size in sizes)
            raise ConfigError(f"{file}: no scene '{chosen}'; there are: {names or 'none'}")
        if out is not None:
            now = max(size.last_time for size in sizes)
            write_figure(draw_store(list(store.places(scene=chosen)), colour, now=now), out)
            facts["drawing"] = str(out)
    if json:
        scenes, rows = [size._asdict() for size in sizes], [row._asdict() for row in audit]
        print_json({"file": str(file), **facts, "scenes": scenes, "audit": rows})
        return 0
    for name, value in facts.items():
        print_line(f"{name:<13}{value:,}" if isinstance(value, int) else f"{name:<13}{value}")
    if sizes:
        table = Table("scene", *_right("viewpoints", "edges", "observations", "robots"), "first", "last")
        for size in sizes:
            numbers = (size.viewpoints, size.edges, size.observations, size.robots)
            times = (_format_time(size.first_time), _format_time(size.last_time))
            table.add_row(escape(size.scene), *(f"{number:,}" for number in numbers), *times)
        tables().print(table)
    for row in audit:
        words = [row.operation, *(f"{name}={value}" for name, value in row.arguments.items())]
        print_line(f"{_format_time(row.time)} {' '.join(words)}: {row.observations:,} observations")
    return 0


def _right(*headings: str) -> list[Column]:
    return [Column(heading, justify="right") for heading in headings]


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


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
