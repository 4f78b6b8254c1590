"""Compare this implementation with a folder of reference numbers that the original code computed.

The original code is the released PyTorch code of ESceme, HAMT, TD-STP or DUET. For every reference file whose
name is recognised, our code computes the same values again. Numbers must be equal within a tolerance; ids,
counts and other values must be equal exactly. The report lists everything that was not compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from esceme.errors import DataError, EscemeError
from esceme.tasks.file_checks import unreadable_reason
from esceme.verify import (
    duet_network_check,
    duet_rollout_check,
    duet_training_check,
    mattersim_check,
    metrics_check,
    network_check,
    rollout_check,
    simulator_check,
    training_check,
)
from esceme.verify.comparison import ComparedQuantity, FileComparison, Skipped, VerificationReport
from esceme.verify.fixtures import FIXTURE_FILES, NOT_COMPARED, ReferenceData, is_duet

__all__ = ["VerificationReport", "ComparedQuantity", "Skipped", "verify"]

Check = Callable[[Path, ReferenceData, FileComparison], None]
CHECKS: dict[str, Check] = {
    simulator_check.FILES: simulator_check.check_simulator,
    mattersim_check.FILES: mattersim_check.check_mattersim,
    metrics_check.FILES: metrics_check.check_metrics,
    network_check.FILES: network_check.check_network,
    rollout_check.FILES: rollout_check.check_rollouts,
    training_check.FILES: training_check.check_training,
}
"""Regular expression for the name of a reference file -> function that compares such a file."""
DUET_CHECKS: dict[str, Check] = {
    network_check.FILES: duet_network_check.check_duet_network,
    rollout_check.FILES: duet_rollout_check.check_duet_rollouts,
    duet_training_check.FILES: duet_training_check.check_duet_training,
}
"""Like `CHECKS`, for files beside weights of DUET, which have another structure."""


def verify(directory: str | Path, data: str | Path) -> VerificationReport:
    """Compare every recognised reference file in `directory` and its sub-folders; return the report.

    `data` is a data folder with navigation graphs, R2R annotations and predictions. A file that cannot be
    compared is listed in the report with the reason. Raises `DataError` if `directory` or `data` cannot be
    read.
    """
    directory, references, report = Path(directory), ReferenceData(Path(data)), VerificationReport()
    if why := unreadable_reason(directory):
        raise DataError(f"{directory}: cannot be read as a folder of reference vectors ({why})")
    if why := unreadable_reason(references.root):
        raise DataError(f"{data}: cannot be read as the data folder ({why}); give --data or set ESCEME_DATA")
    fixtures: list[str] = []
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_dir():
            if why := unreadable_reason(path):
                report.skipped.append(Skipped(name, f"cannot be read ({why})"))
        elif re.fullmatch(FIXTURE_FILES, name):
            fixtures.append(name)
        elif path.suffix not in (".md", ".py"):  # descriptions and tools
            check_file(name, path, references, report)
    unused = [name for name in fixtures if name not in report.used]
    report.skipped += [Skipped(name, "nothing that was compared uses it") for name in unused]
    return report


def check_file(name: str, path: Path, references: ReferenceData, report: VerificationReport) -> None:
    """Compare one reference file and add the result to `report`.

    If the file cannot be read or computed with, the report lists the file as skipped, with the reason.
    """
    checks = CHECKS | DUET_CHECKS if is_duet(path) else CHECKS
    check = next((function for pattern, function in checks.items() if re.fullmatch(pattern, name)), None)
    comparison, failures = FileComparison(name), list[Skipped]()
    try:
        if check is None:
            raise DataError(NOT_COMPARED)
        check(path, references, comparison)
        report.used |= {PurePosixPath(name).with_name(file).as_posix() for file in comparison.used}
    except EscemeError as error:
        failures.append(Skipped(name, str(error)))
    comparison.add_to(report)
    report.skipped += failures
