"""`esceme figure`: files in every format, rules, missing panoramas, unsuitable results."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from esceme.cli import main
from esceme.evaluation import read_result
from fixtures.panoramas import copy_with_panoramas
from fixtures.random_runs import random_run

JsonOf = Callable[[Sequence[str]], dict[str, Any]]
ErrorOf = Callable[[Sequence[str]], str]
pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture(scope="module")
def world(toy_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_with_panoramas(toy_root, tmp_path_factory.mktemp("pictures") / "world")


@pytest.fixture(scope="module")
def folders(toy_root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished evaluations of the shortest path and of a network with memory."""
    out = tmp_path_factory.mktemp("results")
    run = random_run(out / "run", toy_root)
    common = ["--split", "val_seen", "--data", str(toy_root), "--max-steps", "4"]
    assert main(["evaluate", "shortest", "--memory", "none", "--out", str(out / "shortest"), *common]) == 0
    for memory in ("cold", "two-pass"):
        assert main(["evaluate", str(run), "--memory", memory, "--out", str(out / memory), *common]) == 0
    return {name: out / name for name in ("shortest", "cold", "two-pass")}


def test_memory_figure_is_written_in_every_format(
    folders: dict[str, Path], toy_root: Path, json_of: JsonOf
) -> None:
    for suffix, start in (("svg", b"<svg"), ("pdf", b"%PDF"), ("png", b"\x89PNG")):
        command = ["figure", "memory", str(folders["cold"]), "--data", str(toy_root)]
        summary = json_of([*command, "--out", f"memory.{suffix}"])
        assert Path(f"memory.{suffix}").read_bytes().startswith(start)
        assert summary["out"] == [f"memory.{suffix}"]
    summary = json_of([*command, "--after", "1", "3", "99", "--scene", summary["scene"]])
    assert list(summary["remembered"])[:2] == ["after 1 episode", "after 3 episodes"]
    assert list(summary["remembered"].values()) == sorted(summary["remembered"].values())


def test_first_pass_is_in_memory_from_the_start(
    folders: dict[str, Path], toy_root: Path, json_of: JsonOf
) -> None:
    options = ["--data", str(toy_root), "--after", "1"]
    cold, two_pass = (
        json_of(["figure", "memory", str(folders[name]), *options]) for name in ("cold", "two-pass")
    )
    assert two_pass["remembered"]["after 1 episode"] > cold["remembered"]["after 1 episode"]


def test_episode_figure_shows_panoramas_of_all_steps(
    folders: dict[str, Path], world: Path, json_of: JsonOf
) -> None:
    results = [str(folders[name]) for name in ("cold", "shortest")]
    summary = json_of(["figure", "episode", *results, "--data", str(world), "--out", "e.svg", "--gif"])
    (name,) = summary["episodes"]
    trajectories = [
        next(episode for episode in read_result(folder).episodes if episode.id == name) for folder in results
    ]
    drawing = Path("e.svg").read_text()
    images = [element for element in ET.fromstring(drawing).iter() if element.tag.endswith("image")]
    assert len(images) == sum(len(episode.trajectory) for episode in trajectories)
    assert "by success, then by SPL" in summary["rule_text"]
    with Image.open("e.gif") as gif:
        assert gif.n_frames == max(len(episode.trajectory) for episode in trajectories)
        gif.seek(gif.n_frames - 1)
        colours = np.asarray(gif.convert("RGB")).reshape(-1, 3).astype(int)
    for colour in ((213, 94, 0), (0, 114, 178)):  # of the two results
        assert np.abs(colours - colour).sum(axis=1).min() < 30


def test_several_episodes_get_numbers_and_missing_panoramas_are_noted(
    folders: dict[str, Path], toy_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["figure", "episode", str(folders["cold"]), "--data", str(toy_root), "--count", "2"]
    assert main([*command, "--out", "failure.svg", "--names", "<agent>"]) == 0
    out, err = capsys.readouterr()
    assert out.split() == ["failure-1.svg", "failure-2.svg"]
    assert "panoramas are not in" in err and "selected by the rule 'failures'" in err
    assert "&lt;agent&gt;" in Path("failure-1.svg").read_text()


def test_curves_of_results_are_drawn(folders: dict[str, Path], json_of: JsonOf) -> None:
    results = [str(folders[name]) for name in ("shortest", "cold")]
    for axis in ("share", "visit"):
        summary = json_of(["figure", "curves", *results, "--over", axis, "--out", f"{axis}.svg"])
        assert list(summary["curves"]) == ["shortest, memory none", "hamt, memory cold"]
        assert "SPL, r2r val_seen" in Path(f"{axis}.svg").read_text()


def test_unsuitable_results_are_one_line_errors(
    folders: dict[str, Path], toy_root: Path, error_of: ErrorOf, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cold, data = str(folders["cold"]), ["--data", str(toy_root)]
    scratch = tmp_path_factory.mktemp("scratch")
    (scratch / "interrupted").mkdir()
    (scratch / "interrupted/journal.jsonl").write_text("{}\n")
    other = json.loads((folders["cold"] / "result.json").read_text())
    for name, change in (
        ("split", {"split": "val_unseen"}),
        ("data", {"hashes": {**other["facts"]["hashes"], "data": "0" * 64}}),
    ):
        (scratch / name).mkdir()
        (scratch / name / "result.json").write_text(
            json.dumps({**other, "facts": {**other["facts"], **change}})
        )
    (scratch / "version").mkdir()
    (scratch / "version/result.json").write_text(json.dumps({**other, "format": "esceme-result-9"}))
    figure = ["figure", "episode", *data]
    for command, message in (
        ([*figure, cold, "--episode", "nowhere"], "no episode 'nowhere' in"),
        ([*figure, cold, "--out", "e.bmp"], "expected a file name that ends in .svg or .pdf or .png"),
        ([*figure, cold, "--rule", "helped"], "the rule 'helped' compares results"),
        ([*figure, cold, "--names", "a", "b"], "expected 1 different names"),
        ([*figure], "no result"),
        ([*figure, str(scratch / "interrupted")], "this evaluation was interrupted"),
        ([*figure, cold, str(scratch / "split")], "split 'val_unseen', and 'val_seen'"),
        ([*figure, str(scratch / "data")], "are not those of this result"),
        ([*figure, str(scratch / "version")], "format 'esceme-result-9'"),
        (["figure", "memory", cold, *data, "--scene", "castle"], "no scene 'castle'"),
        (["figure", "memory", str(folders["shortest"]), *data], "this result has no memory"),
        (["figure", "curves", cold, "--measure", "beauty"], "no measure 'beauty'"),
    ):
        assert message in error_of(command)
