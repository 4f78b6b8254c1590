"""Training of an experiment: the data it loads, and what it refuses before anything is written."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from esceme.config import Experiment
from esceme.errors import CheckpointError, ConfigError, DataError
from esceme.files import read_json, write_json
from esceme.learning import TrainingCallback, ValidationConfig
from esceme.runs import load_run
from esceme.tasks.folder import DataFolder
from esceme.training import load_training_data, prepare, require_same_experiment, train
from fixtures.files import file_contents
from fixtures.toy_dataset import (
    SPLIT,
    TRAIN_SCENES,
    Interrupt,
    Interrupted,
    run_files,
    small_experiment,
    write_training_data,
)

pytestmark = pytest.mark.long


def holding_out(splits: tuple[str, ...]) -> Experiment:
    experiment = replace(small_experiment(iterations=1), hold_out=1)
    return replace(experiment, validation=ValidationConfig(splits=splits, best_split=splits[0]))


@pytest.mark.parametrize("splits", [("held_out", SPLIT), (SPLIT, "held_out"), ("held_out",), (SPLIT,)])
def test_held_out_scenes_are_validated_on_and_not_trained_on(
    training_data: Path, splits: tuple[str, ...], tmp_path: Path
) -> None:
    experiment = holding_out(splits)
    data = load_training_data(experiment, DataFolder(training_data))
    (trained,) = {episode.scene_id for episode in data.train[0]}
    assert trained in TRAIN_SCENES
    assert data.validation.keys() == set(splits)
    if "held_out" in splits:
        assert {episode.scene_id for episode in data.validation["held_out"]} == {*TRAIN_SCENES} - {trained}
    scenes = {episode.scene_id for episodes in data.validation.values() for episode in episodes}
    assert {trained, *scenes} <= set(data.dataset.atlas.scenes)
    prepare(experiment, training_data, tmp_path, callback=TrainingCallback()).run()


def test_augmentation_leaves_out_held_out_scenes(tmp_path: Path) -> None:
    root = write_training_data(tmp_path)
    records = read_json(root / "R2R" / "R2R_train.json", list[dict[str, Any]])
    write_json(root / "R2R" / "prevalent_aug_train_enc.json", records)
    experiment = holding_out(("held_out",))
    experiment = replace(experiment, training=replace(experiment.training, augmentation="prevalent"))
    data = load_training_data(experiment, DataFolder(root))
    seen = [{episode.scene_id for episode in split} for split in data.train]
    held_out = {episode.scene_id for episode in data.validation["held_out"]}
    assert seen[0] == seen[1] == {*TRAIN_SCENES} - held_out
    only = [record for record in records if record["scan"] not in seen[0]]
    write_json(root / "R2R" / "prevalent_aug_train_enc.json", only)
    with pytest.raises(ConfigError, match="hold_out 1: no episode of prevalent is left to train on"):
        load_training_data(experiment, DataFolder(root))


def test_unknown_token_id_is_refused_before_the_first_iteration(tmp_path: Path) -> None:
    root = write_training_data(tmp_path)
    for split in ("train", SPLIT):
        records = read_json(root / "R2R" / f"R2R_{split}.json", list[dict[str, Any]])
        for record in records:
            record["instr_encodings"] = [[2, 5, 3]] * len(record["instructions"])
        write_json(root / "R2R" / f"R2R_{split}.json", records)
    prepare(small_experiment(), root, tmp_path / "out", callback=TrainingCallback())
    records[-1]["instr_encodings"][-1] = [2, 10**6, 3]
    write_json(root / "R2R" / f"R2R_{SPLIT}.json", records)
    with pytest.raises(
        DataError, match=rf"episode {records[-1]['path_id']}_\d: token id 1000000 is not one of"
    ):
        prepare(small_experiment(), root, tmp_path / "out", callback=TrainingCallback())


def test_unusable_validation_split_is_refused(training_data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'held_out' is made by --hold-out"):
        load_training_data(replace(holding_out(("held_out",)), hold_out=0), DataFolder(training_data))
    with pytest.raises(ConfigError, match="hold_out 2: expected fewer than the 2 scenes"):
        load_training_data(replace(holding_out(("held_out",)), hold_out=2), DataFolder(training_data))
    with pytest.raises(DataError, match="val_seen"):
        train(small_experiment(splits=(SPLIT, "val_seen")), training_data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_run_with_its_own_vocabulary_resumes_and_saves_it_with_the_weights(
    training_data: Path, tmp_path: Path
) -> None:
    experiment = replace(small_experiment(), text="words", min_word_count=1)
    whole = train(experiment, training_data, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(experiment, training_data, tmp_path / "cut", callback=Interrupt(4))
    assert not (tmp_path / "cut" / "vocab.txt").exists()  # no weights there yet
    cut = train(experiment, training_data, tmp_path / "cut")
    assert run_files(cut) == run_files(whole)
    words = [run.vocabulary for run in (load_run(cut), load_run(cut / "best"))]
    assert words == [cut / "vocab.txt", cut / "best" / "vocab.txt"]
    assert len({path.read_bytes() for path in words if path}) == 1


# -- longer training ----------------------------------------------------------------------


def test_finished_run_with_more_iterations_goes_on_as_if_it_had_them_from_the_start(
    training_data: Path, tmp_path: Path
) -> None:
    train(small_experiment(iterations=3), training_data, tmp_path / "longer")
    with pytest.raises(Interrupted):  # killed after the experiment was written, before the first new state
        train(small_experiment(iterations=6), training_data, tmp_path / "longer", callback=Interrupt(4))
    progress = Interrupt(100)
    train(small_experiment(iterations=6), training_data, tmp_path / "longer", callback=progress)
    assert progress.start == 3
    train(small_experiment(iterations=6), training_data, tmp_path / "whole")
    for name in ("weights.safetensors", "navigator.json"):
        assert (tmp_path / "longer" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    with pytest.raises(ConfigError, match="differs in training.iterations"):
        train(small_experiment(iterations=5), training_data, tmp_path / "longer")


def test_longer_training_with_a_falling_learning_rate_says_so(training_data: Path, tmp_path: Path) -> None:
    train(small_experiment(iterations=1, lr_schedule="linear"), training_data, tmp_path)
    notes = Interrupt(100)
    train(small_experiment(iterations=2, lr_schedule="linear"), training_data, tmp_path, callback=notes)
    assert any("trained for 1 iterations with a learning rate that fell to 0" in note for note in notes.notes)


# -- resuming ---------------------------------------------------------------------------


def test_folder_of_another_experiment_is_refused_with_the_differences(
    training_data: Path, tmp_path: Path
) -> None:
    train(small_experiment(iterations=1), training_data, tmp_path)
    before = file_contents(tmp_path)
    with pytest.raises(ConfigError, match=r"differs in training.batch; give another"):
        train(small_experiment(iterations=2, batch=2), training_data, tmp_path)
    assert file_contents(tmp_path) == before
    reworded = replace(
        small_experiment(iterations=1), about="the same, described better", differences=("none",)
    )
    prepare(reworded, training_data, tmp_path, callback=TrainingCallback())


@pytest.mark.parametrize("name", ["navigator.json", "result.json", "log.jsonl", "vocab.txt", "state/1.pt"])
def test_folder_of_something_else_is_refused_and_unchanged(
    training_data: Path, tmp_path: Path, name: str
) -> None:
    write_json(tmp_path / name, ["other data"])
    before = file_contents(tmp_path)
    with pytest.raises(ConfigError, match=r"holds something else than training \(\w+(\.\w+)? without"):
        train(small_experiment(), training_data, tmp_path)
    assert file_contents(tmp_path) == before


def test_held_out_scenes_follow_the_tours_of_train(training_data: Path) -> None:
    experiment = holding_out(("held_out",))
    experiment = replace(experiment, validation=replace(experiment.validation, memory="tour"))
    data = load_training_data(experiment, DataFolder(training_data))
    toured = [episode_id for tour in data.tours["held_out"] for episode_id in tour.episode_ids]
    assert sorted(toured) == sorted(episode.episode_id for episode in data.validation["held_out"])
    assert data.sizes["tours"] == {"held_out": [len(tour) for tour in data.tours["held_out"]]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "validation follows tours, and there is no tours/tours_iVLN.json; make one with `esceme data"),
        ({"train": {"number-0": [["0_0"]]}}, "tours_iVLN.json: no split 'val_unseen'"),
        (
            {SPLIT: {"number-1": [["0_9"]]}},
            "tours_iVLN.json: scene 'number-1', tour 0: episode '0_9' is unknown",
        ),
    ],
)
def test_missing_or_unfitting_tours_are_named_and_nothing_is_written(
    tmp_path: Path, content: Any, message: str
) -> None:
    data = write_training_data(tmp_path / "data")
    (data / "tours" / "tours_iVLN.json").unlink()
    if content is not None:
        write_json(data / "tours" / "tours_iVLN.json", content)
    experiment = small_experiment(iterations=1, memory="tour")
    with pytest.raises(DataError, match=re.escape(message)):
        train(experiment, data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({}, "holds no experiment; give another --out"),
        ({"experiment": {"unknown": 1}}, "not an experiment of this version .unknown field 'unknown'"),
    ],
)
def test_unreadable_experiment_is_refused(tmp_path: Path, stored: dict[str, Any], message: str) -> None:
    write_json(tmp_path / "experiment.json", stored)
    write_json(tmp_path / "log.jsonl", {"kind": "train", "iteration": 10})
    with pytest.raises(CheckpointError, match=message):
        require_same_experiment(small_experiment(), tmp_path)


class FailedStart(TrainingCallback):
    """Ends training before its first iteration."""

    def on_train_begin(self, iteration: int, num_iterations: int) -> None:
        raise Interrupted


def test_failed_start_does_not_block_the_folder(training_data: Path, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(small_experiment(iterations=2), training_data, tmp_path / "run", callback=FailedStart())
    assert (tmp_path / "run" / "experiment.json").is_file()
    experiment = small_experiment(iterations=1)
    assert load_run(train(experiment, training_data, tmp_path / "run"))
    stored = read_json(tmp_path / "run" / "experiment.json", dict[str, Any])
    assert stored["experiment"]["training"]["iterations"] == 1


def test_run_does_not_resume_with_other_data(training_data: Path, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(small_experiment(), training_data, tmp_path / "run", callback=Interrupt(3))
    other = write_training_data(tmp_path / "other")
    path = other / "R2R" / "R2R_train.json"
    write_json(path, read_json(path, list[dict[str, Any]])[1:])
    with pytest.raises(ConfigError, match=r"differs in data.train"):
        train(small_experiment(), other, tmp_path / "run")


def test_run_that_starts_from_another_names_the_loaded_weights(training_data: Path, tmp_path: Path) -> None:
    shorter = {"iterations": 1, "every": 1}
    first = train(small_experiment(reader="none", **shorter), training_data, tmp_path / "first")
    experiment, callback = replace(small_experiment(**shorter), start=str(first)), Interrupt(99)
    run = prepare(experiment, training_data, tmp_path / "second", callback=callback)
    old = load_run(first).navigator.state_dict()
    new = [name for name in run.trainer.navigator.state_dict() if name not in old]
    assert callback.notes == [
        f"starts from {first}: {len(old)} of its {len(old)} tensors are loaded; {len(new)} are random: "
        + ", ".join([*new[:3], "..."])
    ]
    run.run()
    again = Interrupt(99)
    prepare(experiment, training_data, tmp_path / "second", callback=again)
    assert again.notes == []  # a resumed run has its own weights
    back = replace(small_experiment(reader="none", **shorter), start=str(tmp_path / "second"))
    prepare(back, training_data, tmp_path / "third", callback=again)
    assert again.notes[0].endswith(
        f"{len(old)} of its {len(old) + len(new)} tensors are loaded; {len(new)} of its own are ignored: "
        + ", ".join([*new[:3], "..."])
    )
