"""Rollout, training and evaluation name no agent and no reader, neither in code nor in comments."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from esceme.agents import AGENTS
from esceme.learning.teachers import SUPERVISIONS, TEACHERS
from esceme.memory import READERS

SOURCE = Path(__file__).parents[1] / "src" / "esceme"
AGNOSTIC_FILES = sorted(
    path.relative_to(SOURCE)
    for pattern in (
        "observation.py",
        "navigator.py",
        "trajectory.py",
        "rollout.py",
        "learning/*.py",
        "evaluation/*.py",
    )
    for path in SOURCE.glob(pattern)
)
CLASSES = [*AGENTS.values(), *READERS.values()]
NAMES = re.compile(
    "|".join(rf"\b{name}\b" for cls in CLASSES for name in (cls.__name__, cls.Config.__name__))
)
"""Class names, anywhere in a file."""
PAPERS = re.compile(
    r"hamt|td.?stp|duet|seq.?2.?seq|candidate.?enhanc|graph.?encod|esceme\W?'s reader", re.IGNORECASE
)
"""Other spellings of published agents and readers."""
KEYS = {*AGENTS, *READERS} - {*TEACHERS, *SUPERVISIONS, "blind", "none"}
"""Registry keys as whole strings, except those that other options share; `blind` is also a belief."""


def find_names(source: str) -> set[str]:
    """Agents and readers that a source text names."""
    found = {match[0] for pattern in (NAMES, PAPERS) for match in pattern.finditer(source)}
    constants = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
    return found | (KEYS & constants)


@pytest.mark.parametrize("file", AGNOSTIC_FILES, ids=str)
def test_file_names_no_agent_or_reader(file: Path) -> None:
    assert not find_names((SOURCE / file).read_text())


@pytest.mark.parametrize("file", AGNOSTIC_FILES, ids=str)
def test_file_imports_only_the_agent_contract(file: Path) -> None:
    for node in ast.walk(ast.parse((SOURCE / file).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.module not in {f"esceme.agents.{cls.__module__.rsplit('.')[-1]}" for cls in CLASSES}
            if node.module == "esceme.agents":
                assert {alias.name for alias in node.names} == {"AGENTS"}


def test_rollout_and_trainer_are_checked() -> None:
    assert {Path("rollout.py"), Path("learning/trainer.py"), Path("evaluation/evaluate.py")} <= set(
        AGNOSTIC_FILES
    )


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("if type(agent) is TDSTP: pass", {"TDSTP"}),
        ("from esceme.agents.hamt import HAMT", {"hamt", "HAMT"}),
        ("settings: HamtConfig", {"HamtConfig", "Hamt"}),
        ("if plan.run == 'random': pass", {"random"}),
        ("if reader == 'both': pass", {"both"}),
        ("'''As TD-STP does, unlike graph encoding.'''", {"TD-STP", "graph encod"}),
        ("isinstance(reader, NoMemory)", {"NoMemory"}),
        ("random.Random(0)  # both, TEACHERS['shortest'], stop", set()),
    ],
)
def test_names_are_found(source: str, found: set[str]) -> None:
    assert find_names(source) == found
