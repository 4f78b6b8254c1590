"""`esceme view`: the page it writes, its summary, and results that it refuses."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from esceme.cli import main
from esceme.evaluation import EvaluationConfig, evaluate
from esceme.viewer.walk_server import WalkServer
from fixtures.viewed_results import traced_results

JsonOf = Callable[[Sequence[str]], dict[str, Any]]
ErrorOf = Callable[[Sequence[str]], str]
pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture(scope="module")
def folders(toy_root: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [str(folder) for folder in traced_results(tmp_path_factory.mktemp("results"), toy_root)]


def test_page_is_written_with_a_summary(folders: list[str], toy_root: Path, json_of: JsonOf) -> None:
    summary = json_of(["view", *folders, "--data", str(toy_root), "--out", "page.html"])
    page = Path("page.html").read_text()
    assert page.startswith("<!doctype html>") and len(page.encode()) == summary["bytes"] < 3_000_000
    assert summary["episodes"] == 36 and summary["traced"] == ["hamt, memory cold"]
    assert summary["address"].startswith("file:///")


def test_missing_panoramas_are_named(
    folders: list[str], toy_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", folders[0], "--data", str(toy_root)]) == 0
    assert "no panorama is in" in capsys.readouterr().err
    assert main(["view", folders[0], "--data", str(toy_root), "--pictures", "none"]) == 0
    assert "panorama" not in capsys.readouterr().err


def test_same_results_give_the_same_page(folders: list[str], toy_root: Path) -> None:
    for name in ("a.html", "b.html"):
        assert main(["view", *folders, "--data", str(toy_root), "--out", name]) == 0
    assert Path("a.html").read_bytes() == Path("b.html").read_bytes()


def test_results_of_different_versions_are_noted(
    folders: list[str], toy_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folders[0], "older")
    file = Path("older/result.json")
    file.write_text(re.sub(r'"version": ?"[^"]*"', '"version":"0.0.1"', file.read_text()))
    assert main(["view", "older", folders[1], "--data", str(toy_root)]) == 0
    assert "different versions of ESceme: 0.0.1, " in capsys.readouterr().err


def test_unsuitable_input_is_an_error(
    folders: list[str], toy_root: Path, error_of: ErrorOf, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = ["--data", str(toy_root)]
    other = tmp_path_factory.mktemp("other")
    config = EvaluationConfig(run="stop", data=str(toy_root), split="val_unseen", memory="none", task="r2r")
    evaluate(config, other / "split")
    for name in ("interrupted", "version"):
        shutil.copytree(folders[0], other / name)
    (other / "interrupted" / "result.json").unlink()
    result = other / "version" / "result.json"
    result.write_text(result.read_text().replace('"esceme-result-', '"esceme-result-9'))
    damaged = tmp_path_factory.mktemp("damaged") / "cold"
    shutil.copytree(folders[1], damaged)
    trace = damaged / "trace.jsonl"
    trace.write_bytes(trace.read_bytes()[:-200])
    for command, message in (
        (["view", *data], "no result"),
        (["view", folders[0], str(other / "split"), *data], "val_unseen"),
        (["view", str(other / "interrupted"), *data], "this evaluation was interrupted"),
        (["view", str(other / "version"), *data], "esceme-result-9"),
        (["view", str(damaged), *data], "trace.jsonl"),
        (["view", "nowhere", *data], "nowhere"),
        (["view", folders[0], "--data", "nowhere"], "no such folder"),
        (["walk", "nowhere", *data], "nowhere"),
        (["walk", "stop", *data, "--port", "70000"], "expected 0 to 65535"),
        (["walk", "stop", *data, "--split", "nowhere"], "no split 'nowhere'"),
    ):
        assert message in error_of(command)


def test_walk_serves_until_it_is_interrupted(
    toy_root: Path, json_of: JsonOf, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(WalkServer, "serve_forever", interrupt)
    command = ["walk", "--data", str(toy_root), "--split", "val_seen"]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", json_of(command)["address"])
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert out.startswith("open http://127.0.0.1:") and "only you can walk" in err and "stopped" in err
