"""The command `esceme table`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from esceme.cli.console import note
from esceme.errors import ConfigError
from esceme.files import write_text
from esceme.report.paper import FORMATS, add_results


def table(
    target: Annotated[str, tyro.conf.arg(metavar="TARGET")],
    results: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="[RESULT...]")] = (),
    /,
    format: Literal["markdown", "latex", "json"] = "markdown",
    out: Path | None = None,
    json: bool = False,
) -> int:
    """Print a table of the paper, with results of evaluations as further rows.

    Results of one agent under one memory protocol form one row, with the values of each split. Results that
    differ only in the seeds of training and evaluation are averaged: mean ± standard deviation. Values are
    metres or per cent.

    Examples:
        esceme table tab:r2r
        esceme table tab:r2r runs/a/evaluations/r2r-val_seen-cold runs/a/evaluations/r2r-val_unseen-cold
        esceme table tab:r4r seed0/result.json seed1/result.json --format latex --out r4r.tex

    Args:
        target: label of the table: tab:r2r, tab:r4r, tab:cvdn, tab:r2r_abl, tab:r2r_arc, tab:order,
            tab:r2r_abl_supp, tab:r2r_sm, tab:r4r_sm, tab:pre-exp, tab:reinit, tab:rxr or tab:ivln.
        results: result files, or folders that `esceme evaluate` wrote.
        format: markdown, latex (needs the package booktabs) or json.
        out: file to write instead of standard output.
        json: the same as --format json.
    """
    if json and format == "latex":
        raise ConfigError("--json contradicts --format latex; give one of them")
    extended, notes = add_results(target, results)
    text = FORMATS["json" if json else format](target, extended)
    if out is None:
        print(text)
    else:
        write_text(out, f"{text}\n")
    for message in notes:
        note(f"note: {message}")
    return 0
