"""Who walks, learns and judges knows no agent and no reader by name: not in code, not in its remarks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from esceme.agents import AGENTS
from esceme.learning.teachers import SUPERVISIONS, TEACHERS
from esceme.memory import READERS

SOURCE = Path(__file__).parents[1] / "src" / "esceme"
IGNORANT = sorted(
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
KINDS = [*AGENTS.values(), *READERS.values()]
NAMES = re.compile(
    "|".join(rf"\b{name}\b" for kind in KINDS for name in (kind.__name__, kind.Config.__name__))
)
"""Of classes, wherever they stand."""
PAPERS = re.compile(
    r"hamt|td.?stp|seq.?2.?seq|candidate.?enhanc|graph.?encod|esceme\W?'s reader", re.IGNORECASE
)
"""Other spellings of agents and readers that papers describe."""
KEYS = {*AGENTS, *READERS} - {*TEACHERS, *SUPERVISIONS}
"""As a whole text in the code; teachers have names, too, and one is an agent's."""


def texts(source: str) -> Iterator[str]:
    """Every string in some code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def named(source: str) -> set[str]:
    """The agents and readers that a file speaks of."""
    found = {match[0] for pattern in (NAMES, PAPERS) for match in pattern.finditer(source)}
    return found | (KEYS & set(texts(source)))


@pytest.mark.parametrize("file", IGNORANT, ids=str)
def test_no_agent_and_no_reader_is_named(file: Path) -> None:
    assert not named((SOURCE / file).read_text())


@pytest.mark.parametrize("file", IGNORANT, ids=str)
def test_of_agents_only_what_all_have_is_imported(file: Path) -> None:
    for node in ast.walk(ast.parse((SOURCE / file).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.module not in {f"esceme.agents.{kind.__module__.rsplit('.')[-1]}" for kind in KINDS}
            if node.module == "esceme.agents":
                assert {alias.name for alias in node.names} == {"AGENTS"}


def test_the_loop_and_the_trainer_are_among_them() -> None:
    assert {Path("rollout.py"), Path("learning/trainer.py"), Path("evaluation/evaluate.py")} <= set(IGNORANT)
    assert len(IGNORANT) > 25


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
def test_names_would_be_found(source: str, found: set[str]) -> None:
    assert named(source) == found
