"""Links, module names and file names in the documentation lead to something that exists."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import iter_modules, resolve_name

import pytest

import esceme

REPOSITORY = Path(__file__).parents[1]
PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("benchmarks/*.md")])
MODULES = {"esceme"} | {module.name for module in iter_modules(esceme.__path__)}
VARIABLES = {"observation"}
"""Modules of `esceme` whose name is also that of a variable in the documentation."""


def names_nothing(code: str) -> bool:
    """Whether `code` has the form of a Python file or a dotted name of the package, but does not exist."""
    if re.fullmatch(r"[\w/-]+\.py", code):
        return not any(REPOSITORY.glob(f"**/{code}"))
    first = code.partition(".")[0]
    if not re.fullmatch(r"\w+(\.\w+)+", code) or first not in MODULES - VARIABLES or code.endswith(".json"):
        return False
    try:
        resolve_name(code if first == "esceme" else f"esceme.{code}")
    except (ImportError, AttributeError):
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_and_modules_exist(page: Path) -> None:
    assert not [code for code in re.findall(r"`([^`\n]+)`", page.read_text()) if names_nothing(code)]
