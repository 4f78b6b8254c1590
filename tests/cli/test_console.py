"""What files hold is printed without control characters, which a terminal would obey."""

from __future__ import annotations

import pytest
from rich.table import Table

from esceme.cli import console
from esceme.errors import DataError

HOSTILE = "\x1b]0;title\x07\r\x9b2J\u202egnp"
ESCAPED = r"\x1b]0;title\x07\r\x9b2J\u202egnp"


def test_notes_lines_and_tables_escape_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    console.note(f"{HOSTILE}\nnext")
    console.print_line(f"{HOSTILE}\nnext")
    table = Table()
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    console.tables().print(table)
    out, err = capsys.readouterr()
    assert err == f"{ESCAPED}\nnext\n"
    first, *rest = out.splitlines()
    assert first == rf"{ESCAPED}\nnext"
    assert sum(ESCAPED in line for line in rest) == 2
    assert (out + err).replace("\n", "").isprintable()


def test_error_is_one_line() -> None:
    assert str(DataError(f"format '{HOSTILE}\n'")) == rf"format '{ESCAPED}\n'"
