"""The commands `esceme data`: check a data folder, make R4R, make tours."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import tyro
from rich.markup import escape
from rich.table import Table

from esceme.cli.console import TaskName, note, print_facts, print_json, progress, tables
from esceme.cli.data_option import find_data
from esceme.errors import ConfigError, DataError
from esceme.files import folder_lock
from esceme.tasks.catalogue import TASKS
from esceme.tasks.folder_check import Finding, check_folder
from esceme.tasks.manifest import write_json_set
from esceme.tasks.r4r import R4R_MANIFEST, join_paths, read_r2r_records
from esceme.tasks.tours import Tour, make_tours, write_tours
from esceme.world import read_scenes

MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "fault": "[bold red]FAULT[/]"}


def check(
    directory: Annotated[str, tyro.conf.arg(metavar="FOLDER")],
    /,
    task: tuple[TaskName, ...] = (),
    deep: bool = False,
    json: bool = False,
) -> int:
    """Check the files of a data folder.

    Reads all graphs and annotations, compares them with published sizes, and checks features,
    tours, objects, rooms and vocabularies. Exit code 0: no fault; 1: at least one fault.

    Examples:
        esceme data check datasets
        esceme data check datasets --task r2r rxr --deep
        esceme data check datasets --json > report.json

    Args:
        directory: the data folder, with a folder per kind of file or in the layout of HAMT; or `embedded`,
            the generated world.
        task: check these tasks only; a missing split is a fault.
        deep: check every feature instead of a sample.
        json: print one json object instead of a table.
    """
    findings = check_folder(find_data(directory), tasks=task or None, deep=deep, progress=progress)
    faults = sum(finding.level == "fault" for finding in findings)
    if json:
        rows = [finding._asdict() for finding in findings]
        print_json({"folder": str(directory), "ok": not faults, "faults": faults, "findings": rows})
    else:
        tables().print(_findings_table(findings))
        note(f"{faults} fault{'s' * (faults > 1)}" if faults else "nothing is wrong")
    return 1 if faults else 0


def _findings_table(findings: list[Finding]) -> Table:
    table = Table()
    for heading in ("", "file", "what was found"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        remedy = f"\n[dim]{escape(finding.remedy)}[/]" if finding.remedy else ""
        table.add_row(MARKS[finding.level], escape(finding.file), escape(finding.text) + remedy)
    return table


def r4r(r2r: Path, connectivity: Path, out: Path, json: bool = False) -> int:
    """Make R4R, the long-path dataset, from R2R.

    Two paths of a scene and split are joined if the second starts at most 3 metres from the end of the first.
    Writes R4R_{split}.json for the available splits of train, val_seen and val_unseen, and r4r_manifest.json,
    by which `esceme data check` notices that the files were not written together.

    Examples:
        esceme data r4r --r2r data/R2R --connectivity data/connectivity --out data/R4R

    Args:
        r2r: the folder of R2R_{split}.json.
        connectivity: the folder of navigation graphs.
        out: the output folder; existing files are replaced once all new ones are complete.
        json: print the sizes as one json object.
    """
    if not r2r.is_dir():
        raise DataError(f"{r2r}: no such folder; expected the one with R2R_train.json")
    if out.exists() and not out.is_dir():
        raise DataError(f"{out}: is a file; give a folder to write to")
    graphs = read_scenes(connectivity)
    joined = {}
    for split in ("train", "val_seen", "val_unseen"):
        source = r2r / f"R2R_{split}.json"
        if not source.is_file():
            note(f"{source}: no such file, so no R4R_{split}.json")
            continue
        records = read_r2r_records(source, graphs)
        label = f"R4R {split}"
        joined[split] = list(join_paths(records, graphs, progress=partial(progress, label=label)))
    if not joined:
        raise DataError(f"{r2r}: no R2R_train.json, R2R_val_seen.json or R2R_val_unseen.json")
    files = {f"R4R_{split}.json": records for split, records in joined.items()}
    with folder_lock(out, "data r4r"):
        write_json_set(out, files, manifest_name=R4R_MANIFEST)
    sizes = {}
    for split, records in joined.items():
        num_instructions = sum(len(record.instructions) for record in records)
        sizes[split] = {"paths": len(records), "instructions": num_instructions}
    if json:
        print_json(sizes)
    else:
        for split, size in sizes.items():
            name = out / f"R4R_{split}.json"
            print(f"{name}: {size['paths']:,} paths, {size['instructions']:,} instructions")
    return 0


def tours(
    annotations: Annotated[
        tuple[Path, ...], tyro.conf.arg(metavar="FILE...", help_behavior_hint="(required)")
    ],
    /,
    out: Path,
    task: TaskName = "r2r",
    longest: int = 100,
    seed: int = 0,
    json: bool = False,
) -> int:
    """Make IVLN-style tours: long sequences of episodes in one scene.

    Each annotation file becomes a split of the same name (R2R_val_unseen.json gives val_unseen). Every
    episode is in exactly one tour. Equal seeds give equal files.

    Examples:
        esceme data tours data/R2R/R2R_val_seen.json data/R2R/R2R_val_unseen.json --out tours_iVLN.json

    Args:
        annotations: annotation files, one per split.
        out: the output file, in the published format: split -> scene -> tours -> episode ids.
        task: the task of the annotations.
        longest: maximum number of episodes per tour.
        seed: seed of the order of episodes.
        json: print the numbers of tours as one json object.
    """
    if longest < 1:
        raise ConfigError(f"--longest {longest}: a tour needs at least one episode")
    if not annotations:
        raise ConfigError("no annotation file was given; name at least one")
    splits: dict[str, list[Tour]] = {}
    for path in annotations:
        split = _split_from_file_name(path, task)
        if split in splits:
            raise ConfigError(f"{path}: there is a split '{split}' already")
        splits[split] = make_tours(list(TASKS[task].read(path)), longest=longest, seed=seed)
    write_tours(out, splits)
    sizes = {split: len(tours) for split, tours in splits.items()}
    counts = ", ".join(f"{split} {size} tours" for split, size in sizes.items())
    print_facts(sizes, f"{out}: {counts}", json=json)
    return 0


def _split_from_file_name(path: Path, task: TaskName) -> str:
    """Return the split in the name of an annotation file; if none is found, the name without suffix."""
    splits, patterns = TASKS[task].split_sizes, TASKS[task].files
    split_of = {Path(pattern.format(split=split)).name: split for split in splits for pattern in patterns}
    stem = path.name.removesuffix(".gz").rsplit(".", 1)[0]
    return split_of.get(path.name) or next((split for split in splits if stem.endswith(split)), stem)
