"""Who may import whom: one line, leftwards only (docs/architecture.md)."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "esceme"

LEVELS = [
    {"errors"},
    {"files"},
    {"workers"},
    {"world"},
    {"tasks"},
    {"metrics"},
    {"perception"},
    {"synth"},
    {"observation"},
    {"memory", "agents"},
    {"navigator"},
    {"runs"},
    {"checkpoints"},
    {"trajectory"},
    {"rollout"},
    {"evaluation"},
    {"learning"},
    {"config"},
    {"training"},
    {"recipes"},
    {"report"},
    {"verify", "demo"},
    {"cli"},
    {"__main__"},
]
LEVEL_OF = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
KNOWS_IT_IS_GENERATED = {"synth", "demo", "cli"}
FORBIDDEN = {("agents", "tasks"), ("agents", "memory"), ("memory", "agents")}


def room_of(parts: tuple[str, ...]) -> str:
    return parts[0].removesuffix(".py")


def is_module(name: str) -> bool:
    """Whether a dotted name is one of our files or folders."""
    place = SOURCE.parent.joinpath(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").is_file()


def imports_of(path: Path) -> set[tuple[str, ...]]:
    """Every `esceme.…` module that a file imports, as its dotted parts below the package."""
    found: set[tuple[str, ...]] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the full name"
            # `from esceme.tasks import manifest` is an import of a module, if there is one of that name.
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            names = [name for name in names if name == node.module or is_module(name)]
        else:
            continue
        found |= {tuple(name.split(".")[1:]) for name in names if name.split(".")[0] == "esceme"}
    return found


FILES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=str)
def test_imports_go_leftwards_only(file: Path) -> None:
    if file == Path("__init__.py"):
        return  # the package's front door may show anything
    room = room_of(file.parts)
    assert room in LEVEL_OF, f"{file}: room '{room}' has no place in the import order; give it one"
    for parts in imports_of(SOURCE / file):
        if not parts:
            continue  # `from esceme import __version__`
        other = room_of(parts)
        if other == room:
            continue
        assert LEVEL_OF[other] < LEVEL_OF[room], f"{file} ({room}) may not import {'.'.join(parts)}"
        assert (room, other) not in FORBIDDEN, f"{file}: {room} never imports {other}"
        if other == "synth":
            assert room in KNOWS_IT_IS_GENERATED, f"{file} knows that the world is generated"


@pytest.mark.parametrize(
    "room", sorted(path.name for path in SOURCE.iterdir() if path.is_dir() and path.name[0] != "_")
)
def test_imports_inside_a_folder_have_no_cycle(room: str) -> None:
    names = {path.stem for path in (SOURCE / room).glob("*.py")} - {"__init__"}
    graph = {
        name: {
            parts[1]
            for parts in imports_of(SOURCE / room / f"{name}.py")
            if parts[:1] == (room,) and parts[1:]
        }
        for name in names
    }
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError


def test_loading_the_world_and_the_tasks_does_not_load_torch() -> None:
    program = "import sys, esceme.cli.score_command, esceme.tasks.doctor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
