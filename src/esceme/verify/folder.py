"""A whole folder of reference files: each goes to what can compare it, and what nothing can is said."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from esceme.errors import DataError, EscemeError
from esceme.verify import measures, simulator
from esceme.verify.comparison import Report, Skipped
from esceme.verify.references import References

COMPARERS: dict[str, Callable[[str, Path, References, Report], None]] = {
    simulator.FILES: simulator.compare_simulator,
    measures.FILES: measures.compare_measures,
}
"""Names of reference files -> what compares them."""


def verify(directory: str | Path, data: str | Path) -> Report:
    """Compare everything in `directory` that this version recognises; `data` holds connectivity and R2R."""
    directory, references, report = Path(directory), References(Path(data)), Report()
    if not directory.is_dir():
        raise DataError(f"{directory}: no such folder; expected a folder of reference vectors")
    for path in sorted(each for each in directory.rglob("*") if each.is_file()):
        name = path.relative_to(directory).as_posix()
        if path.suffix == ".md":
            continue
        compare = next(
            (function for pattern, function in COMPARERS.items() if re.fullmatch(pattern, name)), None
        )
        if compare is None:
            report.skipped.append(Skipped(name, "this version does not compare such files"))
            continue
        try:
            compare(name, path, references, report)
        except EscemeError as error:
            report.skipped.append(Skipped(name, str(error)))
    return report
