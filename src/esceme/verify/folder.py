"""A whole folder of reference files: each goes to what can compare it, and what nothing can is said."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from esceme.errors import DataError, EscemeError
from esceme.tasks.symptoms import why_closed
from esceme.verify import beside, learning, lives, measures, network, simulator
from esceme.verify.comparison import Report, Skipped
from esceme.verify.references import References

COMPARERS: dict[str, Callable[[str, Path, References, Report], None]] = {
    simulator.FILES: simulator.compare_simulator,
    measures.FILES: measures.compare_measures,
    network.FILES: network.compare_network,
    lives.FILES: lives.compare_lives,
    learning.FILES: learning.compare_learning,
}
"""Names of reference files -> what compares them."""


def verify(directory: str | Path, data: str | Path) -> Report:
    """Compare everything in `directory` that this version recognises; `data` holds connectivity and R2R."""
    directory, references, report = Path(directory), References(Path(data)), Report()
    if why := why_closed(directory):
        raise DataError(f"{directory}: cannot be read as a folder of reference vectors ({why})")
    if why := why_closed(references.root):
        raise DataError(f"{data}: cannot be read as the data folder ({why}); give --data or set ESCEME_DATA")
    helping: list[str] = []
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_dir():
            report.skipped += [Skipped(name, f"cannot be read ({why})")] if (why := why_closed(path)) else []
        elif re.fullmatch(beside.FILES, name):
            helping.append(name)
        elif path.suffix != ".md":
            _compare(name, path, references, report)
    unused = [name for name in helping if name not in report.used]
    report.skipped += [Skipped(name, "nothing that was compared uses it") for name in unused]
    return report


def _compare(name: str, path: Path, references: References, report: Report) -> None:
    compare = next((function for pattern, function in COMPARERS.items() if re.fullmatch(pattern, name)), None)
    if compare is None:
        report.skipped.append(Skipped(name, beside.NOT_COMPARED))
        return
    try:
        compare(name, path, references, report)
    except EscemeError as error:
        report.skipped.append(Skipped(name, str(error)))
