"""`esceme train-planner`, `esceme speak` and `esceme evaluate --planner`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from esceme.cli import main
from esceme.files import read_json
from esceme.planner_training import load_planner_data
from esceme.tasks.r2r import read_r2r
from esceme.training import train
from fixtures.toy_dataset import SPLIT, WORDS, small_experiment

pytestmark = pytest.mark.long
FEW = ("--fit.partial-maps", "4", "--fit.rounds", "0", "--speaker.codes", "6", "--speaker.iterations", "2")
ONE = ("--fit.late", "4", "--fit.early", "10", "--fit.cleared", "2")


def test_train_speak_and_evaluate(
    training_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, data = tmp_path / "run", ("--data", str(training_data))
    experiment = small_experiment(iterations=1, reader="none", splits=())
    train(replace(experiment, hold_out=1, text="words", min_word_count=1), training_data, run)
    options = ["--split", SPLIT, "--memory", "cold", "--planner", "routes", *data]
    assert main(["evaluate", str(run), *options]) == 2
    assert "has no fitted planner" in capsys.readouterr().err
    assert main(["train-planner", str(run), *FEW, *ONE, *data, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["exploration"]["cleared"]["early"] == 2.0
    assert "speaker, iteration 2: perplexity" in printed.err
    record = read_json(training_data / "R2R" / f"R2R_{SPLIT}.json", list[dict[str, object]])[0]
    scene, path = str(record["scan"]), [str(name) for name in record["path"]]  # type: ignore[attr-defined]
    assert main(["speak", str(run), "--scene", scene, "--path", *path, "--words", "3", *data, "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [step["viewpoint"] for step in steps] == path
    assert all(len(step["words"]) == 3 and set(step["words"]) <= set(WORDS) for step in steps)
    assert main(["speak", str(run), "--scene", scene, "--path", path[0], path[-1], *data]) == 2
    assert "no edge leads to" in capsys.readouterr().err
    generated = [tmp_path / "generated.json", tmp_path / "again.json"]
    for file in generated:
        assert main(["speak", str(run), "--random-paths", "5", "--out", str(file), *data]) == 0
    assert generated[0].read_bytes() == generated[1].read_bytes()
    trained = {e.scene_id for e in read_r2r(training_data / "R2R" / "R2R_train.json")} - {
        e.scene_id for e in load_planner_data(run, training_data).held_out
    }
    for episode in read_r2r(generated[0]):
        assert episode.scene_id in trained and set(episode.instruction.split()) <= set(WORDS)
    for wrong in (["--random-paths", "5"], ["--random-paths", "-1", "--out", "x.json"], ["--scene", scene]):
        assert main(["speak", str(run), *wrong, *data]) == 2
        assert "--random-paths" in capsys.readouterr().err
    out = tmp_path / "out"
    assert main(["evaluate", str(run), *options, "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["maps"] == str(out / "maps.safetensors")
