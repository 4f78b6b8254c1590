"""`esceme verify`: exit codes, table, JSON, and the search for the data folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from esceme.cli import main
from esceme.world import read_scenes
from fixtures.corrupted_files import scene_statistics, write_stored


@pytest.fixture
def stored(toy_root: Path) -> dict[str, Any]:
    return scene_statistics(read_scenes(toy_root / "connectivity", ["toy-villa"])["toy-villa"])


@pytest.fixture
def vectors(tmp_path: Path, stored: dict[str, Any]) -> Path:
    """A folder of reference vectors with one small file."""
    return write(tmp_path / "vectors", stored)


def write(folder: Path, stored: dict[str, Any]) -> Path:
    return write_stored(folder / "sim_candidates.json.gz", stored).parent


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not json")

    return json.loads(text, parse_constant=refuse)


def test_json_has_a_row_per_quantity_and_lists_skipped_files(
    vectors: Path, toy_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(vectors), "--data", str(toy_root), "--json"]) == 3
    report = strict(capsys.readouterr().out)
    assert set(report) == {"rows", "skipped", "exit_code"}
    assert report["exit_code"] == 3
    assert {tuple(row) for row in report["rows"]} == {
        ("file", "quantity", "compared", "max_abs_diff", "tolerance", "ok")
    }
    row = next(row for row in report["rows"] if row["quantity"] == "graph_stats.sum_all_pairs_distance")
    assert row["file"] == "sim_candidates.json.gz" and row["compared"] == 1 and row["ok"] is True
    assert row["max_abs_diff"] <= row["tolerance"] == 1e-6
    assert [set(skip) for skip in report["skipped"]] == [{"file", "reason"}]
    assert "observations" in report["skipped"][0]["reason"]


@pytest.mark.parametrize("value", ["text", None, 10**400])
def test_an_infinite_difference_is_null_in_json(
    tmp_path: Path, stored: dict[str, Any], toy_root: Path, capsys: pytest.CaptureFixture[str], value: Any
) -> None:
    stored["graph_stats"]["toy-villa"]["sum_all_pairs_distance"] = value
    words = ["verify", str(write(tmp_path / "vectors", stored)), "--data", str(toy_root)]
    assert main([*words, "--json"]) == 1
    report = strict(capsys.readouterr().out)
    (row,) = [row for row in report["rows"] if not row["ok"]]
    assert (row["quantity"], row["max_abs_diff"]) == ("graph_stats.sum_all_pairs_distance", None)
    assert main(words) == 1
    printed = capsys.readouterr()
    assert "inf" in printed.out and "NO" in printed.out
    assert "5 quantities compared, 1 beyond tolerance, 1 skipped" in printed.err


def test_the_table_is_printed_and_notes_go_to_standard_error(
    vectors: Path, toy_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(vectors), "--data", str(toy_root)]) == 3
    printed = capsys.readouterr()
    assert "graph_stats.nodes" in printed.out and "skipped" not in printed.out
    assert "skipped sim_candidates.json.gz: the file holds no observations" in printed.err
    assert printed.err.endswith("5 quantities compared, 0 beyond tolerance, 1 skipped\n")


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_missing_data_folder_is_one_error_line(
    vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["verify", str(vectors), "--data", str(tmp_path / "nowhere"), *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1
    assert "nowhere" in printed.err and "ESCEME_DATA" in printed.err


def test_data_is_the_option_else_the_variable_else_the_folder_datasets(
    vectors: Path,
    toy_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ESCEME_DATA", raising=False)
    assert main(["verify", str(vectors)]) == 2
    assert "datasets" in capsys.readouterr().err
    (tmp_path / "datasets").symlink_to(toy_root)
    assert main(["verify", str(vectors)]) == 3
    monkeypatch.setenv("ESCEME_DATA", str(tmp_path / "elsewhere"))
    assert main(["verify", str(vectors)]) == 2
    assert "elsewhere" in capsys.readouterr().err
    assert main(["verify", str(vectors), "--data", str(toy_root)]) == 3
    monkeypatch.setenv("ESCEME_DATA", str(toy_root))
    assert main(["verify", str(vectors)]) == 3
    assert main(["verify", str(vectors), "--data", str(tmp_path / "elsewhere")]) == 2
