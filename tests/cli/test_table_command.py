"""`esceme table`: its formats, rows of results, means over seeds, and its errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from esceme.cli import main
from esceme.evaluation import EvaluationConfig, evaluate, read_result
from esceme.evaluation.result import Result
from esceme.files import write_json

Capture = pytest.CaptureFixture[str]
WriteResult = Callable[..., str]


@pytest.fixture
def write_result(tmp_path: Path) -> WriteResult:
    """Write a result without episodes and return its folder."""

    def write(name: str, spl: float | None = 0.5, **facts: Any) -> str:
        means = {} if spl is None else {"spl": spl, "sr": spl, "ne": 4.0, "gp": 3.0, "cls": spl}
        hashes = {"weights": "w", "data": f"d-{facts.get('split')}", **facts.pop("hashes", {})}
        known = {"task": "r2r", "split": "val_unseen", "agent": "hamt", "reader": "none", "memory": "none"}
        result = Result(facts={**known, "seed": 0, **facts, "hashes": hashes}, means=means, episodes=[])
        write_json(tmp_path / name / "result.json", result)
        return str(tmp_path / name)

    return write


def ours(capsys: Capture, *words: str) -> list[dict[str, Any]]:
    assert main(["table", *words, "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == ["target", "rows"] and printed["target"] == words[0]
    assert all(list(row) == ["system", "source", "values", "spread"] for row in printed["rows"])
    return [row for row in printed["rows"] if row["source"] == "ours"]


def refused(capsys: Capture, *words: str) -> str:
    assert main(["table", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    return err


def test_paper_rows_in_all_formats(tmp_path: Path, capsys: Capture) -> None:
    assert main(["table", "tab:r2r_arc"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("(tab:r2r_arc)") and lines[2].startswith("| system | source | val seen TL |")
    assert lines[5].startswith("| HAMT + ESceme | paper | 10.81 ± 0.12 | 2.60 ± 0.12 | 72.6 ± 0.4 |")
    assert lines[5].endswith("| +6.8 | +0.1 | +1.4 |")
    out = tmp_path / "table.tex"
    assert main(["table", "tab:ivln", "--format", "latex", "--out", str(out)]) == 0
    assert capsys.readouterr().out == ""
    text = out.read_text()
    assert r" & \multicolumn{4}{c}{val seen} & \multicolumn{4}{c}{val unseen} \\" in text
    assert r"IVLN & 9.4 & 5.8 & 45 & 43 & 10.0 & 6.2 & 39 & 36 \\" in text
    assert main(["table", "tab:r2r", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["rows"][-1]
    assert row["system"] == "ESceme" and row["source"] == "paper" and row["spread"] == {}
    assert row["values"]["val_unseen.spl"] == 64 and row["values"]["test.spl"] == 63


def test_results_of_evaluations_are_averaged_over_seeds(
    toy_root: Path, tmp_path: Path, capsys: Capture
) -> None:
    folders: dict[str, list[str]] = {"val_seen": [], "val_unseen": []}
    for split, seed in (("val_seen", 0), ("val_unseen", 0), ("val_unseen", 1), ("val_unseen", 2)):
        folders[split].append(f"{tmp_path}/{split}-{seed}")
        config = EvaluationConfig(run="random", data=str(toy_root), split=split, memory="none", seed=seed)
        evaluate(config, Path(folders[split][-1]))
    (row,) = ours(capsys, "tab:r2r", *folders["val_seen"], *folders["val_unseen"])
    means = [read_result(folder).means for folder in folders["val_unseen"]]
    assert row["system"] == "random, 3 seeds"
    assert row["values"]["val_unseen.ne"] == pytest.approx(fmean(scores["ne"] for scores in means))
    assert row["spread"]["val_unseen.ne"] == pytest.approx(stdev(scores["ne"] for scores in means))
    assert row["values"]["val_unseen.sr"] == pytest.approx(100 * fmean(scores["sr"] for scores in means))
    assert row["values"]["val_seen.tl"] == pytest.approx(read_result(folders["val_seen"][0]).means["tl"])
    assert "val_seen.tl" not in row["spread"] and not [key for key in row["values"] if "test" in key]


def test_row_is_printed_with_the_digits_of_the_paper(write_result: WriteResult, capsys: Capture) -> None:
    paths = [write_result("a", 0.61, seed=1), write_result("b", 0.62, seed=2)]
    assert main(["table", "tab:r2r_abl", *paths]) == 0
    row = "| - | - | - | - | - | 4.00 ± 0.00 | 61.5 ± 0.7 | 61.5 ± 0.7 |"
    assert capsys.readouterr().out.splitlines()[-1] == f"| hamt, 2 seeds | ours {row}"
    path = write_result("c", 0.61, agent="my_agent|{x}", reader="graph-encoding", memory="cold")
    assert main(["table", "tab:r2r_abl", path, "--format", "latex"]) == 0
    assert r"my\_agent|\{x\} + graph-encoding, cold & - &" in capsys.readouterr().out.splitlines()[-3]
    assert main(["table", "tab:r2r_abl", path]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(r"| my_agent\|{x} + graph-encoding, cold |")


def test_different_settings_are_different_rows(
    write_result: WriteResult, tmp_path: Path, capsys: Capture
) -> None:
    for name, alpha, seed in (("a", 0.2, 0), ("b", 0.2, 1), ("c", 1.0, 0)):
        experiment = {"training": {"imitation": alpha}, "seed": seed, "start": ""}
        write_json(tmp_path / name / "experiment.json", {"experiment": experiment})
    paths = [
        write_result(f"{name}/evaluations/{memory}", memory=memory, hashes={"weights": name})
        for name in "abc"
        for memory in ("cold", "masked")
    ]
    best = write_result("a/best/evaluations/cold", memory="cold", hashes={"weights": "best"})
    rows = ours(capsys, "tab:r2r", *paths, best)
    assert [(row["system"].partition(" [")[0], bool(row["spread"])) for row in rows] == [
        ("hamt, cold, 2 seeds", True),
        ("hamt, masked, 2 seeds", True),
        ("hamt, cold", False),
        ("hamt, masked", False),
        ("hamt, cold", False),
    ]
    assert rows[2]["system"] == f"hamt, cold [{paths[4]}]" and rows[4]["system"] == f"hamt, cold [{best}]"


def test_unknown_training_is_averaged_with_a_note(write_result: WriteResult, capsys: Capture) -> None:
    paths = [write_result(name, hashes={"weights": name}) for name in "ab"]
    assert main(["table", "tab:r2r", *paths]) == 0
    assert "note: hamt, 2 seeds: averaged over results of unknown training" in capsys.readouterr().err


def test_tables_of_several_tasks_take_the_columns_of_the_task(
    write_result: WriteResult, capsys: Capture
) -> None:
    paths = [write_result(task, 0.4, task=task) for task in ("r4r", "cvdn")]
    rows = ours(capsys, "tab:order", *paths)
    assert [row["system"] for row in rows] == ["hamt (R4R)", "hamt (CVDN)"]
    assert [row["values"] for row in rows] == [
        {"val_unseen.spl": 40, "val_unseen.cls": 40},
        {"val_unseen.gp": 3},
    ]


def test_test_split_without_scores_is_noted(write_result: WriteResult, capsys: Capture) -> None:
    path = write_result("test", None, split="test")
    assert main(["table", "tab:cvdn", write_result("c", None, split="test", task="cvdn")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "| hamt | ours | - | - | - |"
    assert main(["table", "tab:r2r", path, write_result("unseen")]) == 0
    out, err = capsys.readouterr()
    assert err == f"note: {path}: no scores, because the goals of 'test' are withheld\n"
    assert out.splitlines()[-1].startswith("| hamt | ours | ")


def test_wrong_input_is_refused(write_result: WriteResult, tmp_path: Path, capsys: Capture) -> None:
    path, same = write_result("a"), write_result("b")
    assert "did you mean tab:r2r " in refused(capsys, "tab:r2", path)
    assert "a result of task 'r2r', but tab:rxr is a table of rxr" in refused(capsys, "tab:rxr", path)
    assert "task 'r2r', but tab:r4r_sm is a table of r4r and cvdn" in refused(capsys, "tab:r4r_sm", path)
    seen = write_result("seen", task="r4r", split="val_seen")
    assert "split 'val_seen', and tab:r4r has r4r on val_unseen" in refused(capsys, "tab:r4r", seen)
    assert f"{same}: same settings, split and seed as {path}" in refused(capsys, "tab:r2r", path, same)
    other = write_result("c", seed=1, hashes={"data": "other"})
    assert f"{other}: other data than {path}" in refused(capsys, "tab:r2r", path, other)
    assert "task 'None'" in refused(capsys, "tab:r2r", write_result("d", task=None))
    assert f"{tmp_path}/gone: no such file" in refused(capsys, "tab:r2r", f"{tmp_path}/gone")
    assert "--json contradicts" in refused(capsys, "tab:r2r", "--json", "--format", "latex")
