"""Digests of source files: what changes them and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from esceme import source_digest as module
from esceme.source_digest import RESULT_MODULES, TRAINING_MODULES, strip_documentation

SOURCE = '''"""Docstring."""

LIMIT = 1  # a comment
"""Docstring of a constant."""


def double(x):
    """Docstring of
    several lines."""
    # a comment
    return "#" + x  # another
'''


def test_modules_exist() -> None:
    assert all((module.PACKAGE / name.removeprefix("-")).exists() for name in TRAINING_MODULES)
    assert all((module.PACKAGE / name).exists() for name in RESULT_MODULES)
    assert {*RESULT_MODULES} - {*TRAINING_MODULES} == {"evaluation", "planning"}


def test_only_code_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / "file.py"

    def digest(source: str) -> str:
        path.write_text(source)
        module.source_digest.cache_clear()
        return module.source_digest(("folder",))

    try:
        first = digest(SOURCE)
        reworded = SOURCE.replace("Docstring of", "Text about").replace("    # a comment\n", "")
        assert digest(reworded) == first and reworded != SOURCE
        assert digest(SOURCE.replace("LIMIT = 1", "LIMIT = 2")) != first
        assert digest(SOURCE.replace('"#"', '"%"')) != first
        (tmp_path / "folder" / "notes.txt").write_text("ignored")
        assert digest(SOURCE) == first
        (tmp_path / "folder" / "excluded.py").write_text("OTHER = 1")
        assert module.source_digest(("folder", "-folder/excluded.py")) == first
        assert digest(SOURCE) != first
    finally:
        module.source_digest.cache_clear()


def test_lines_of_code_are_kept() -> None:
    assert strip_documentation(SOURCE).splitlines() == [
        "LIMIT = 1  # a comment",
        "def double(x):",
        '    return "#" + x  # another',
    ]
