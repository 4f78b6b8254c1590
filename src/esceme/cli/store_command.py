"""The commands `esceme memory export`, `import`, `forget` and `check`, for stores and bank files."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import tyro

from esceme.cli.console import note, print_facts, print_json, print_line
from esceme.errors import ConfigError, DataError
from esceme.memory import MemoryStore, load_bank, save_bank
from esceme.memory.bank_file import bank_checksum, read_header
from esceme.memory.store import Prefer
from esceme.memory.store_database import is_store
from esceme.memory.store_formats import from_bank, read_parquet, to_bank, write_geojson, write_parquet
from esceme.memory.store_record import StoreSettings
from esceme.memory.store_recovery import check_store, open_readable
from esceme.memory.stored_memory import connect_store, features_digest
from esceme.world.features import open_features

GEOJSON, PARQUET, BANK, STORE = ".geojson", ".parquet", ".safetensors", ".db"


def export(
    store: Annotated[str, tyro.conf.arg(metavar="STORE")],
    /,
    out: Path,
    scene: str | None = None,
    frame: str = "map",
    prefer: Prefer = "first",
    json: bool = False,
) -> int:
    """Write a store in another format, or everything that is readable in a damaged store.

    The end of the name of --out gives the format: .geojson is the remembered graph of a scene, as nav2's
    route server reads it; .parquet a table of all observations; .safetensors a bank file of what is
    recalled; .db another store, with everything readable.

    Examples:
        esceme memory export site.db --out floor.geojson --scene home-0026
        esceme memory export site.db --out observations.parquet
        esceme memory export damaged.db --out rescued.db

    Args:
        store: file of a memory store, or postgresql://...
        out: the file to write.
        scene: the scene, for route graphs (by default the only one) and bank files (by default all).
        frame: the coordinate frame of a route graph.
        prefer: the first observation of a viewpoint, or the newest, for route graphs and bank files.
        json: print one json object instead of text.
    """
    if out.suffix not in (GEOJSON, PARQUET, BANK, STORE):
        raise ConfigError(f"{out}: expected a name ending in {GEOJSON}, {PARQUET}, {BANK} or {STORE}")
    with open_readable(store, note) as found:
        if out.suffix == GEOJSON:
            number, what = write_geojson(found, out, scene, frame=frame, prefer=prefer), "viewpoints"
        elif out.suffix == PARQUET:
            number, what = write_parquet(found, out), "observations"
        elif out.suffix == BANK:
            bank = to_bank(found, prefer=prefer, scene=scene)
            save_bank(bank, out)
            number, what = len(bank), "viewpoints"
        else:
            if out.exists():
                raise DataError(f"{out}: exists already; take another name")
            with MemoryStore.open(out, found.settings) as copy:
                number, what = copy.merge(found), "observations"
    print_facts({"out": str(out), what: number}, f"{out}: {number:,} {what}", json=json)
    return 0


def import_(
    file: Annotated[Path, tyro.conf.arg(metavar="FILE")],
    /,
    store: Path,
    robot: str = "import",
    features: Path | None = None,
    json: bool = False,
) -> int:
    """Add a bank file, a Parquet table or another store to a store. Importing twice changes nothing.

    Examples:
        esceme memory import runs/hamt/bank.safetensors --store site.db --features features.hdf5
        esceme memory import observations.parquet --store site.db

    Args:
        file: bank file, .parquet file of `esceme memory export`, or store.
        store: file of the store; it is created if it does not exist.
        robot: the name under which the store keeps the memories of a bank file.
        features: the feature file from which a bank file was built; required if the store is new.
        json: print one json object instead of text.
    """
    if is_store(file):
        with open_readable(file, note) as other, MemoryStore.open(store, other.settings) as found:
            number = found.merge(other)
    elif file.suffix == PARQUET:
        settings, observations = read_parquet(file)
        with MemoryStore.open(store, settings) as found:
            number = found.add(observations, operation="import")
    else:
        bank = load_bank(file)
        new = None
        if not store.exists():
            if features is None:
                raise ConfigError(f"{store}: a new store for a bank needs the feature file (--features)")
            encoder = features_digest(open_features(features, width=bank.width))
            new = StoreSettings(width=bank.width, pooling=bank.pooling, source=bank.source, encoder=encoder)
        with MemoryStore.open(store, new) as found:
            session = f"bank-{bank_checksum(bank)[:8]}"
            memories = from_bank(
                bank, found.settings, robot=robot, session=session, time=file.stat().st_mtime
            )
            number = found.add(memories, operation="import")
    text = f"{store}: {number:,} new observations from {file}"
    print_facts({"store": str(store), "new": number}, text, json=json)
    return 0


def forget(
    file: Annotated[str, tyro.conf.arg(metavar="MEMORY")],
    /,
    scene: str | None = None,
    viewpoint: str | None = None,
    robot: str | None = None,
    before: str | None = None,
    superseded: bool = False,
    json: bool = False,
) -> int:
    """Remove observations from a store, or a scene from a bank file. No later merge brings them back.

    Observations that match all options are removed, and their bytes are overwritten. The store keeps their
    keys, and a row of its audit that names the operation.

    Examples:
        esceme memory forget site.db --scene home-0026 --viewpoint v0017
        esceme memory forget site.db --robot r7
        esceme memory forget site.db --before 2026-01-31 --superseded

    Args:
        file: file of a memory store, postgresql://..., or bank file.
        scene: only this scene.
        viewpoint: only this viewpoint.
        robot: only observations of this robot.
        before: only observations before this day or time, such as 2026-01-31 or 2026-01-31T12:00.
        superseded: only observations that are not recalled: neither the first of their viewpoint nor the
            newest. What is recalled stays the same.
        json: print one json object instead of text.
    """
    if not is_store(file):
        if scene is None or viewpoint or robot or before or superseded:
            raise ConfigError(
                f"{file}: a bank file forgets whole scenes only; give --scene and no other option"
            )
        bank = load_bank(file)
        number = len(bank[scene])
        bank.forget(scene)
        save_bank(bank, file)
    else:
        with connect_store(file) as store:
            number = store.forget(
                scene=scene,
                viewpoint=viewpoint,
                robot=robot,
                before=None if before is None else _to_seconds(before),
                superseded=superseded,
            )
            store.compact()
    text = f"{file}: {number:,} observations forgotten"
    print_facts({"file": str(file), "forgotten": number}, text, json=json)
    return 0


def check(file: Annotated[str, tyro.conf.arg(metavar="MEMORY")], /, json: bool = False) -> int:
    """Verify every row of a store, or the checksum of a bank file. The exit code is 1 if it is damaged.

    Examples:
        esceme memory check site.db
        esceme memory check bank.safetensors --json

    Args:
        file: file of a memory store, postgresql://..., or bank file.
        json: print one json object instead of text.
    """
    if not is_store(file):
        viewpoints = sum(len(scene.neighbours) for scene in read_header(file).scenes)
        facts = {"file": str(file), "viewpoints": viewpoints, "faults": []}
        print_facts(facts, f"{file}: {viewpoints:,} viewpoints, undamaged", json=json)
        return 0
    report = check_store(file)
    digest = None
    if not report.faults:
        with connect_store(file, read_only=True) as store:
            digest = store.digest
    if json:
        print_json({"file": str(file), "digest": digest, **report._asdict()})
        return 1 if report.faults else 0
    for line in (*report.notes, *report.faults):
        print_line(line)
    if report.faults:
        print_line(
            f"{file}: damaged; {report.observations:,} observations are readable. Save them with: "
            f"esceme memory export {file} --out rescued.db"
        )
        return 1
    print_line(f"{file}: {report.observations:,} observations, undamaged; digest {digest}")
    return 0


def _to_seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ConfigError(f"--before {text}: expected a day or time such as 2026-01-31T12:00") from None
