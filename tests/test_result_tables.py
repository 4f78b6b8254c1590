"""The tables of README.md and docs/results.md follow from the kept results of `esceme reproduce`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from esceme.errors import DataError
from esceme.files import write_json
from esceme.reproduction.target_results import ReportRow, RowDifference, TargetResults, read_target_results

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    """The script docs/result_tables.py."""
    spec = importlib.util.spec_from_file_location("result_tables", ROOT / "docs" / "result_tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["README.md", "docs/results.md", "docs/planning.md"])
def test_tables_equal_those_of_the_kept_results(tables: ModuleType, page: str) -> None:
    text = (ROOT / page).read_text()
    assert tables.rewrite(text) == text


def test_kept_results_are_used_and_name_their_code(tables: ModuleType) -> None:
    pages = "".join((ROOT / page).read_text() for page in tables.PAGES)
    used = {name for block in tables.BLOCK.finditer(pages) for name in block[2].split()}
    assert {path.stem for path in tables.KEPT.glob("*.json")} == used
    for path in tables.KEPT.glob("*.json"):
        results = read_target_results(path)
        assert len(results.code) == 1 and len(results.code[0]) == 64
        if results.scale != 1:  # the page must say by how much trainings were shortened
            assert f"<!-- results {path.stem}: origin -->" in pages


def test_a_block_is_replaced_by_the_table_of_its_results(tables: ModuleType, tmp_path: Path) -> None:
    difference = RowDifference(against="none", mean=3.25, over_paths=(1.0, 5.5), over_scenes=None)
    shared = {"paper": "", "task": "r2r", "evaluations": 2, "spread": {}, "runs": []}
    columns = {f"val_unseen.{name}": 40.0 for name in ("tl", "ne", "sr", "spl")}
    rows = [
        ReportRow(
            name=name,
            memory="none",
            values=columns,
            first_told=columns,
            differences={} if name == "none" else {"val_unseen.spl": difference},
            first_told_differences={} if name == "none" else {"val_unseen.spl": difference},
            **shared,  # type: ignore[arg-type]
        )
        for name in tables.SUMMARY
    ]
    facts = {"target": "small", "title": "Memory, toy world", "code": ["c"], "version": "1", "data": "d"}
    results = TargetResults(
        **facts,  # type: ignore[arg-type]
        seeds=2,
        scale=1.0,
        limit=None,
        episodes={"r2r val_unseen": 10},
        rows=rows,
    )
    write_json(tmp_path / "small.json", results)
    page = "before\n<!-- results small: {} -->\nreplaced\n<!-- end of results -->\nafter\n"
    found = tables.rewrite(page.format("differences"), tmp_path)
    assert "| memory, cold | 2 | 40.00 | 40.00 | 40.0 | 40.0 | +3.2 [+1.0, +5.5] |" in found
    assert "replaced" not in found and found.startswith("before\n") and found.endswith("\nafter\n")
    assert tables.rewrite(found, tmp_path) == found
    summary = "| toy world, 2 seeds | 40.0 | 40.0 | +3.2 [+1.0, +5.5] | +3.2 [+1.0, +5.5] | 40.0 | 40.0 |"
    assert summary in tables.rewrite(page.format("summary"), tmp_path)
    with pytest.raises(DataError, match="table 'unknown' of 1 results: expected summary, plans, differences"):
        tables.rewrite(page.format("unknown"), tmp_path)
