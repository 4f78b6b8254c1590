"""The command `esceme verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from esceme.cli.console import note, print_json, tables
from esceme.cli.data_option import find_data
from esceme.verify import VerificationReport
from esceme.verify import verify as verify_folder


def verify(
    directory: Annotated[Path, tyro.conf.arg(metavar="FOLDER")],
    /,
    data: str | None = None,
    json: bool = False,
) -> int:
    """Compare this implementation with a folder of reference numbers from the original one.

    Prints a row per file and quantity. Exit code 0: every recognised file was compared completely and is
    within tolerance; 1: a difference exceeds its tolerance; 3: a file was skipped, or no file was compared.

    Examples:
        esceme verify vectors
        esceme verify vectors --data datasets --json

    Args:
        directory: the folder of reference files, searched with its sub-folders.
        data: data folder with connectivity, R2R and predictions; by default ESCEME_DATA, else ./datasets; or
            `embedded`, the generated world.
        json: print one json object instead of a table; max_abs_diff is null where a number is missing.
    """
    report = verify_folder(directory, find_data(data))
    if json:
        print_json(
            {
                "rows": [row._asdict() for row in report.rows],
                "skipped": [skip._asdict() for skip in report.skipped],
                "exit_code": report.exit_code,
            }
        )
        return report.exit_code
    tables().print(_table(report))
    for skip in report.skipped:
        note(f"skipped {skip.file}: {skip.reason}")
    faults = sum(not row.ok for row in report.rows)
    note(f"{len(report.rows)} quantities compared, {faults} beyond tolerance, {len(report.skipped)} skipped")
    return report.exit_code


def _table(report: VerificationReport) -> Table:
    table = Table()
    for heading in ("file", "quantity"):
        table.add_column(heading, overflow="fold")
    for heading in ("compared", "max_abs_diff", "tolerance", "ok"):
        table.add_column(heading, justify="right")
    for row in report.rows:
        cells = (row.file, row.quantity, f"{row.compared}", f"{row.max_abs_diff:.3g}", f"{row.tolerance:g}")
        table.add_row(*cells, "yes" if row.ok else "NO", style=None if row.ok else "bold red")
    return table
