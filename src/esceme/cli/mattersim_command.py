"""The command `esceme mattersim run`."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tyro

from esceme.cli.console import note
from esceme.cli.data_option import find_data
from esceme.errors import ConfigError
from esceme.mattersim import install
from esceme.tasks.folder import DataFolder

OPTIONS_WITH_VALUE = ("--data", "--connectivity", "--panoramas")


def run(
    data: str | None = None,
    connectivity: Path | None = None,
    panoramas: Path | None = None,
    replace: bool = False,
    program: tyro.conf.Suppress[tyro.conf.Fixed[tuple[str, ...]]] = (),
) -> int:
    """Run a program that imports MatterSim, without the compiled module of the Matterport3D simulator.

    Usage: esceme mattersim run [OPTIONS] SCRIPT [ARGS...] or esceme mattersim run [OPTIONS] -m MODULE
    [ARGS...]. The program runs as with python SCRIPT or python -m MODULE; import MatterSim imports
    esceme.mattersim. If the compiled module is on the path, it is imported instead, unless --replace is
    given. A message on standard error states which one the program imports.

    Examples:
        esceme mattersim run train.py --batch 8
        esceme mattersim run --data world -m tasks.R2R.train

    Args:
        data: data folder whose graphs and panoramas replace those that the program asks for; or `embedded`,
            the generated world.
        connectivity: folder of navigation graphs, instead of that of --data.
        panoramas: folder of panoramas or skyboxes, instead of that of --data.
        replace: import esceme.mattersim even if the compiled module is on the path.
        program: script, or -m and a module, and the program's arguments.
    """
    if not program or program == ("-m",):
        raise ConfigError("expected a program: esceme mattersim run SCRIPT [ARGS...], or -m MODULE [ARGS...]")
    if data is not None:
        folder = find_data(data)
        connectivity = connectivity or DataFolder(folder).connectivity
        pictures = folder / "panoramas"
        panoramas = panoramas or (pictures if pictures.is_dir() else None)
    if program[0] != "-m" and not Path(program[0]).is_file():
        raise ConfigError(f"{program[0]}: no such script")
    install(connectivity=connectivity, panoramas=panoramas, replace=replace, report=note)
    return _run_program(program)


def parser_options(args: Sequence[str]) -> dict[str, Any]:
    """Return keyword arguments of `tyro.cli`, which parses only the options before the program."""
    own = 0
    while own < len(args) and args[own].startswith("-") and args[own] != "-m":
        own += 2 if args[own] in OPTIONS_WITH_VALUE else 1
    return {"f": partial(run, program=tuple(args[own:])), "args": args[:own]}


def _run_program(program: Sequence[str]) -> int:
    """Run a script or module as `python` does, and return its exit code. Its errors are printed in full."""
    is_module = program[0] == "-m"
    name, *arguments = program[1:] if is_module else program
    sys.argv = [name, *arguments]
    sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(os.path.abspath(name)))
    try:
        if is_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
