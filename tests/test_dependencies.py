"""Lower bounds of the dependencies."""

from __future__ import annotations

import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def read_floors() -> dict[str, str]:
    lines = (REPOSITORY / "constraints-floors.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_floors_are_the_lower_bounds_of_the_package() -> None:
    """`make test-floors` installs constraints-floors.txt; users install by the bounds in pyproject.toml."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    bounds = [dependency.split(",")[0].split(">=") for dependency in project["dependencies"]]
    assert dict(bounds) == read_floors()


def test_torch_refuses_code_in_weights() -> None:
    """Loading with `weights_only` runs code below torch 2.6 (CVE-2025-32434) and 2.10 (CVE-2026-24747)."""
    assert [int(part) for part in read_floors()["torch"].split(".")] >= [2, 10]
