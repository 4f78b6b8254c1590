"""`esceme data`: checking what is there, and making what can be made from it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import tyro
from rich.markup import escape
from rich.table import Table

from esceme.cli.console import TaskName, note, print_json, progress, tables
from esceme.errors import ConfigError, DataError
from esceme.files import write_json
from esceme.tasks.catalogue import TASKS
from esceme.tasks.doctor import Finding, examine
from esceme.tasks.r4r import join_paths, read_r2r_records
from esceme.tasks.tours import make_tours, write_tours
from esceme.world import read_scenes

MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "fault": "[bold red]FAULT[/]"}


def check(
    directory: tyro.conf.Positional[Path],
    /,
    task: tuple[TaskName, ...] = (),
    deep: bool = False,
    json: bool = False,
) -> int:
    """Say what a data folder holds and what is wrong with it.

    Reads every graph and annotation file, compares their sizes with the published ones, and looks into
    features, tours, objects, rooms and vocabularies. Exit code 0: nothing is wrong; 1: at least one fault.

    Examples:
        esceme data check datasets
        esceme data check datasets --task r2r rxr --deep
        esceme data check datasets --json > report.json

    Args:
        directory: the data folder; a folder per kind, or the layout of the HAMT family of code.
        task: look at these tasks only, and take a missing split of theirs for a fault.
        deep: read every feature instead of a sample.
        json: print one json object instead of a table.
    """
    findings = examine(directory, tasks=task or None, deep=deep, progress=progress)
    faults = sum(finding.level == "fault" for finding in findings)
    if json:
        rows = [finding._asdict() for finding in findings]
        print_json({"folder": str(directory), "ok": not faults, "faults": faults, "findings": rows})
    else:
        tables().print(_table(findings))
        note(f"{faults} fault{'s' * (faults > 1)}" if faults else "nothing is wrong")
    return 1 if faults else 0


def _table(findings: list[Finding]) -> Table:
    table = Table()
    for heading in ("", "file", "what was found"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        remedy = f"\n[dim]{escape(finding.remedy)}[/]" if finding.remedy else ""
        table.add_row(MARKS[finding.level], escape(finding.file), escape(finding.text) + remedy)
    return table


def r4r(r2r: Path, connectivity: Path, out: Path, json: bool = False) -> int:
    """Make R4R, the long-path dataset, from R2R.

    Two walks of one scene and split are joined where at most 3 metres lie between the end of the first and
    the start of the second. Writes R4R_{split}.json for train, val_seen and val_unseen, those that are there.

    Examples:
        esceme data r4r --r2r data/R2R --connectivity data/connectivity --out data/R4R

    Args:
        r2r: the folder of R2R_{split}.json.
        connectivity: the folder of navigation graphs.
        out: the folder to write to; files of the same name are replaced when the new one is complete.
        json: print the sizes as one json object.
    """
    if not r2r.is_dir():
        raise DataError(f"{r2r}: no such folder; expected the one with R2R_train.json")
    if out.exists() and not out.is_dir():
        raise DataError(f"{out}: is a file; give a folder to write to")
    graphs = read_scenes(connectivity)
    made = {}
    for split in ("train", "val_seen", "val_unseen"):
        source = r2r / f"R2R_{split}.json"
        if not source.is_file():
            note(f"{source}: not there, so no R4R_{split}.json")
            continue
        walks = read_r2r_records(source, graphs)
        made[split] = list(join_paths(walks, graphs, watch=partial(progress, label=f"R4R {split}")))
    if not made:
        raise DataError(f"{r2r}: no R2R_train.json, R2R_val_seen.json or R2R_val_unseen.json")
    sizes = {}
    for split, joined in made.items():
        write_json(out / f"R4R_{split}.json", joined)
        sizes[split] = {"paths": len(joined), "instructions": sum(len(each.instructions) for each in joined)}
    if json:
        print_json(sizes)
    else:
        for split, size in sizes.items():
            name = out / f"R4R_{split}.json"
            print(f"{name}: {size['paths']:,} paths, {size['instructions']:,} instructions")
    return 0


def tours(
    annotations: tyro.conf.Positional[tuple[Path, ...]],
    /,
    out: Path,
    task: TaskName = "r2r",
    longest: int = 100,
    seed: int = 0,
    json: bool = False,
) -> int:
    """Make IVLN-style tours: long series of episodes in one scene.

    Each annotation file becomes a split named after it (R2R_val_unseen.json gives val_unseen); every episode
    is in exactly one tour. The order is drawn with the seed, so the same seed gives the same file.

    Examples:
        esceme data tours data/R2R/R2R_val_seen.json data/R2R/R2R_val_unseen.json --out tours_iVLN.json

    Args:
        annotations: annotation files, one per split.
        out: the file to write, in the published form: split -> scene -> tours -> episode ids.
        task: which task the annotations are of.
        longest: the most episodes a tour may have.
        seed: of the order of episodes.
        json: print how many tours there are as one json object.
    """
    if longest < 1:
        raise ConfigError(f"--longest {longest}: a tour needs at least one episode")
    if not annotations:
        raise ConfigError("no annotation file was given; name at least one")
    made = {}
    for path in annotations:
        split = _split_of(path, task)
        if split in made:
            raise ConfigError(f"{path}: there is a split '{split}' already")
        made[split] = make_tours(list(TASKS[task].read(path)), longest=longest, seed=seed)
    write_tours(out, made)
    if json:
        print_json({split: len(each) for split, each in made.items()})
    else:
        print(f"{out}: " + ", ".join(f"{split} {len(each)} tours" for split, each in made.items()))
    return 0


def _split_of(path: Path, task: TaskName) -> str:
    """The split that a file's name says it is, or its whole stem."""
    splits, patterns = TASKS[task].split_sizes, TASKS[task].files
    named = {Path(pattern.format(split=split)).name: split for split in splits for pattern in patterns}
    stem = path.name.removesuffix(".gz").rsplit(".", 1)[0]
    return named.get(path.name) or next((split for split in splits if stem.endswith(split)), stem)
