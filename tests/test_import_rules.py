"""Structure of the package: import order (docs/architecture.md), unique names, and plain words."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "esceme"

LEVELS = [
    {"gym_registration"},
    {"errors"},
    {"settings"},
    {"files"},
    {"source_digest"},
    {"torch_files"},
    {"workers"},
    {"world"},
    {"tasks"},
    {"metrics"},
    {"perception"},
    {"mattersim"},
    {"synth"},
    {"dropout"},
    {"observation"},
    {"memory", "agents"},
    {"service"},
    {"navigator"},
    {"engine"},
    {"runs"},
    {"planning"},
    {"checkpoints"},
    {"trajectory"},
    {"rollout"},
    {"evaluation"},
    {"learning"},
    {"sharded_evaluation"},
    {"config"},
    {"training"},
    {"jobs"},
    {"planner_training"},
    {"route_descriptions"},
    {"recipes"},
    {"report"},
    {"viewer"},
    {"verify", "demo", "reproduction"},
    {"cli"},
    {"__main__"},
]
"""Packages by level; a package imports packages of lower levels only."""
LEVEL_OF = {package: level for level, packages in enumerate(LEVELS) for package in packages}
MAY_IMPORT_SYNTH = {"synth", "demo", "cli"}
FORBIDDEN = {("agents", "tasks"), ("agents", "memory"), ("memory", "agents")}


def is_module(name: str) -> bool:
    """Whether a dotted name is a file or folder of the package."""
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def imports_of(path: Path) -> set[tuple[str, ...]]:
    """All `esceme.…` modules that a file imports, as name parts below `esceme`."""
    found: set[tuple[str, ...]] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the full name"
            # `from esceme.tasks import manifest` imports a module if there is one of that name.
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            names = [name for name in names if name == node.module or is_module(name)]
        else:
            continue
        found |= {tuple(name.split(".")[1:]) for name in names if name.split(".")[0] == "esceme"}
    return found


FILES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=str)
def test_imports_follow_the_levels(file: Path) -> None:
    if file == Path("__init__.py"):
        return  # exports names of all levels
    package = file.parts[0].removesuffix(".py")
    assert package in LEVEL_OF, f"{file}: '{package}' has no level; add it to LEVELS"
    for parts in imports_of(SOURCE / file):
        if not parts or parts[0] == package:
            continue  # `from esceme import __version__`, or the same package
        assert LEVEL_OF[parts[0]] < LEVEL_OF[package], f"{file} may not import {'.'.join(parts)}"
        assert (package, parts[0]) not in FORBIDDEN, f"{file}: {package} may not import {parts[0]}"
        assert parts[0] != "synth" or package in MAY_IMPORT_SYNTH, f"{file} may not import synth"


@pytest.mark.parametrize(
    "package", sorted(path.name for path in SOURCE.iterdir() if path.is_dir() and path.name[0] != "_")
)
def test_imports_inside_a_package_have_no_cycle(package: str) -> None:
    graph = {
        path.stem: {parts[1] for parts in imports_of(path) if parts[:1] == (package,) and parts[1:]}
        for path in (SOURCE / package).glob("*.py")
        if path.name != "__init__.py"
    }
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError


def test_file_names_are_unique() -> None:
    counts = Counter(file.name for file in FILES if file.name not in ("__init__.py", "base.py"))
    assert [name for name, count in counts.items() if count > 1] == []


def test_class_names_are_unique() -> None:
    nodes = (node for file in FILES for node in ast.walk(ast.parse((SOURCE / file).read_text())))
    counts = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert [name for name, count in counts.items() if count > 1] == []


def test_variables_are_nouns() -> None:
    verbs = {"each", "told", "said", "lived", "made", "asked", "mine", "kept", "wanted"}
    for file in FILES:
        for node in ast.walk(ast.parse((SOURCE / file).read_text())):
            name = node.arg if isinstance(node, ast.arg) else node.id if isinstance(node, ast.Name) else ""
            assert name not in verbs, f"{file}, line {node.lineno}: name '{name}' by what it holds"


def test_no_file_or_tensor_is_a_person() -> None:
    persons = re.compile(r"\b(whoever|nobody|everybody|tells?|hears?|thinks?)\b", re.I)
    for file in FILES:
        found = persons.search((SOURCE / file).read_text())
        assert found is None, f"{file}: '{found and found[0]}'; state what the code does"


def test_scoring_and_data_checks_do_not_import_torch() -> None:
    program = (
        "import sys, esceme.cli.score_command, esceme.tasks.folder_check; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
