"""`esceme demo` as a person runs it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from esceme.cli import main


def test_the_demo_prints_a_table_and_commands_that_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--size", "tiny", "--out", str(tmp_path / "look around")]) == 0
    printed = capsys.readouterr().out
    assert all(
        word in printed
        for word in ("shortest", "random", "cold memory", "TL (m)", "NE (m)", "SR (%)", "SPL (%)", "nDTW")
    )
    commands = [shlex.split(line) for line in printed.splitlines() if line.startswith("  esceme ")]
    assert [command[1] for command in commands] == ["data", "score", "scene"]
    for command in commands:
        assert main(command[1:]) == 0
    assert (tmp_path / "walk.svg").is_file()


def test_with_json_standard_output_holds_the_json_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--size", "tiny", "--out", str(tmp_path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["size"], printed["seed"]) == ("tiny", 0)
    assert printed["scores"]["shortest path"]["sr"] == 1.0
    assert all(Path(printed[name]).exists() for name in ("world", "annotations", "drawing"))
    assert set(printed["predictions"]) == set(printed["scores"])


def test_a_folder_that_cannot_be_written_is_a_message_not_a_crash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert main(["demo", "--size", "tiny", "--out", str(tmp_path / "file")]) == 2
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize("seed", ["-1", "many"])
def test_a_seed_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: str
) -> None:
    try:
        code = main(["demo", "--out", str(tmp_path), "--seed", seed])
    except SystemExit as stop:
        code = stop.code  # type: ignore[assignment]
    assert code == 2
    assert "seed" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
