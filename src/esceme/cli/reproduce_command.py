"""The command `esceme reproduce`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from esceme.cli.console import note, print_json, tables
from esceme.cli.data_option import find_data, world_config
from esceme.cli.job_bars import job_bars
from esceme.errors import ConfigError
from esceme.files import folder_lock
from esceme.reproduction import (
    TARGETS,
    ReproductionConfig,
    find_targets,
    make_plan,
    run_plan,
    write_target_report,
)
from esceme.reproduction.budget import plan_within_budget
from esceme.reproduction.manager import JobEvent
from esceme.reproduction.planned_runs import missing_data, missing_in_world
from esceme.reproduction.target_list import ALL
from esceme.reproduction.target_report import REPORT_FILE

LIST = "list"


def reproduce(
    targets: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TARGET...", help_behavior_hint="(required)")],
    /,
    data: str = "embedded",
    seeds: int | None = None,
    budget: float | None = None,
    scale: float = 1.0,
    out: Path = Path("reproduction"),
    features: Path | None = None,
    processes: int | None = None,
    json: bool = False,
) -> int:
    """Train and evaluate what a table of the paper, or a study, needs, and report it.

    `esceme reproduce list` lists the targets, the data that they need, and whether these are available; `all`
    stands for those that can run. Every training has a folder named by a digest of code, settings, data and
    seed, so finished work is not repeated, targets share trainings, and an interrupted command resumes.

    Examples:
        esceme reproduce list
        esceme reproduce headline --seeds 4
        esceme reproduce all --budget 60
        esceme reproduce mechanism --scale 0.5
        esceme reproduce headline-r2r --data datasets --features semantic.hdf5 --seeds 4 --out studies

    Args:
        targets: names of targets, `all`, or `list`.
        data: the data folder, or `embedded`, the generated world, or `embedded:tiny`.
        seeds: number of seeds of every training; by default 3, with a budget 2.
        budget: minutes that the command may take, about. Speeds are measured first; trainings, and if
            necessary evaluations, are shortened to fit, which the reports say.
        scale: factor of the number of iterations of all trainings, at most 1; not together with a budget.
        out: folder of all runs and reports.
        features: the feature file, if the data folder has none or several.
        processes: number of trainings and evaluations that run in parallel; by default one per core.
        json: print one JSON object.
    """
    if not targets:
        raise ConfigError("expected a target; `esceme reproduce list` lists them")
    if LIST in targets and len(targets) > 1:
        raise ConfigError("`list` stands alone: esceme reproduce list")
    if LIST in targets:
        return _list_targets(data, features, json=json)
    if budget is not None and scale != 1:
        raise ConfigError("--scale and --budget both shorten trainings; give one of them")
    if not 0 < scale <= 1:
        raise ConfigError(f"--scale {scale:g}: expected more than 0 and at most 1")
    chosen = find_targets(targets)
    config = ReproductionConfig(
        data=find_data(data).absolute(),
        out=out,
        seeds=seeds if seeds is not None else 3 if budget is None else 2,
        features="" if features is None else str(features.absolute()),
        scale=scale,
    )
    if ALL in targets:
        skipped = {target.name: missing_data(target, config) for target in chosen}
        for name, missing in skipped.items():
            if missing:
                note(f"{name}: skipped ({missing[0]})")
        chosen = [target for target in chosen if not skipped[target.name]]
    num_processes = _num_cores() if processes is None else processes
    if num_processes < 1:
        raise ConfigError(f"--processes {num_processes}: expected at least 1")
    with folder_lock(out, "reproduction"):
        if budget is None:
            plan = make_plan(chosen, config)
        else:
            plan = plan_within_budget(chosen, config, budget, processes=num_processes, note=note)
        note(f"{out}: {len(plan.trainings)} trainings and {len(plan.evaluations)} evaluations in all")
        try:
            with job_bars(hide_finished=True) as on_progress:
                run_plan(
                    plan,
                    processes=num_processes,
                    on_progress=on_progress,
                    on_job_end=_print_event,
                    note=note,
                )
        except KeyboardInterrupt:
            note("interrupted; the same command resumes")
            return 130
        folders = {target.name: write_target_report(plan, target) for target in chosen}
    if json:
        print_json({name: str(folder) for name, folder in folders.items()})
        return 0
    reports = [folder / REPORT_FILE for folder in folders.values()]
    if len(reports) == 1:
        print(reports[0].read_text())
    for report in reports:
        print(f"report: {report}")
    return 0


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))


def _print_event(event: JobEvent) -> None:
    minutes = event.seconds_left / 60
    left = f"{minutes / 60:.1f} h" if minutes > 90 else f"{minutes:.0f} min"
    clock = time.strftime("%H:%M")
    note(f"{clock} {event.done} of {event.total}: {event.name}; about {left} left")


def _list_targets(data: str, features: Path | None, *, json: bool) -> int:
    """Print all targets. A world that has not been generated yet counts as complete."""
    world = world_config(data)
    folder = find_data(data) if world is None or world.folder.is_dir() else world.folder
    config = ReproductionConfig(data=folder, out=Path(), features="" if features is None else str(features))
    kind = config.data_kind if folder.is_dir() else "embedded"
    missing = {
        name: missing_data(target, config) if folder.is_dir() else missing_in_world(target)
        for name, target in TARGETS.items()
    }
    if json:
        entries = [
            {
                "target": target.name,
                "kind": target.kind,
                "title": target.title,
                "needs": target.needs(kind),
                "missing": missing[target.name],
                "runnable": not missing[target.name],
            }
            for target in TARGETS.values()
        ]
        print_json(entries)
        return 0
    table = Table("target", "kind", "title", "needs", "can run")
    for target in TARGETS.values():
        can_run = f"no: {missing[target.name][0]}" if missing[target.name] else "yes"
        needs = ", ".join(target.needs(kind))
        table.add_row(target.name, target.kind, target.title, needs, can_run)
    tables().print(table)
    return 0
