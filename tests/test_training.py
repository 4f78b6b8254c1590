"""An experiment carried out: which data it reads, and what it refuses before anything is written."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from esceme.config import Experiment
from esceme.errors import ConfigError, DataError
from esceme.files import read_json, write_json
from esceme.learning import TrainingCallback, Validation
from esceme.runs import load_run
from esceme.tasks.folder import DataFolder
from esceme.training import prepare, read_data, require_same, train
from fixtures.toy_training import SPLIT, TAUGHT, Interrupt, Interrupted, lesson_plan, products, write_school

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def school(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_school(tmp_path_factory.mktemp("school"))


def holding_out(splits: tuple[str, ...]) -> Experiment:
    plan = replace(lesson_plan(iterations=1), hold_out=1)
    return replace(plan, validation=Validation(splits=splits, best_split=splits[0]))


@pytest.mark.parametrize("splits", [("held_out", SPLIT), (SPLIT, "held_out"), ("held_out",), (SPLIT,)])
def test_scenes_that_are_held_out_are_validated_on_and_not_learned_from(
    school: Path, splits: tuple[str, ...], tmp_path: Path
) -> None:
    experiment = holding_out(splits)
    room = read_data(experiment, DataFolder(school))
    (taught,) = {episode.scene_id for episode in room.lessons[0]}
    assert taught in TAUGHT
    assert room.sets.keys() == set(splits)
    if "held_out" in splits:
        assert {episode.scene_id for episode in room.sets["held_out"]} == {*TAUGHT} - {taught}
    scenes = {episode.scene_id for episodes in room.sets.values() for episode in episodes}
    assert {taught, *scenes} <= set(room.atlas.scenes)
    prepare(experiment, school, tmp_path, watch=TrainingCallback()).run()


def test_an_augmentation_does_not_tell_of_scenes_that_are_held_out(school: Path, tmp_path: Path) -> None:
    data = write_school(tmp_path)
    records = read_json(data / "R2R" / "R2R_train.json", list[dict[str, Any]])
    write_json(data / "R2R" / "prevalent_aug_train_enc.json", records)
    plan = holding_out(("held_out",))
    plan = replace(plan, training=replace(plan.training, augmentation="prevalent"))
    room = read_data(plan, DataFolder(data))
    seen = [{episode.scene_id for episode in lesson} for lesson in room.lessons]
    assert seen[0] == seen[1] == {*TAUGHT} - {episode.scene_id for episode in room.sets["held_out"]}
    only = [record for record in records if record["scan"] not in seen[0]]
    write_json(data / "R2R" / "prevalent_aug_train_enc.json", only)
    with pytest.raises(ConfigError, match="hold_out 1: leaves nothing to learn from of prevalent"):
        read_data(plan, DataFolder(data))


def test_what_cannot_be_validated_on_is_refused(school: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'held_out' is made by --hold-out"):
        read_data(replace(holding_out(("held_out",)), hold_out=0), DataFolder(school))
    with pytest.raises(ConfigError, match="hold_out 2: expected fewer than the 2 scenes"):
        read_data(replace(holding_out(("held_out",)), hold_out=2), DataFolder(school))
    with pytest.raises(DataError, match="val_seen"):
        train(lesson_plan(splits=(SPLIT, "val_seen")), school, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_with_words_of_its_own_resumes_and_keeps_them_beside_its_weights(
    school: Path, tmp_path: Path
) -> None:
    experiment = replace(lesson_plan(), text="words", rarest=1)
    whole = train(experiment, school, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(experiment, school, tmp_path / "cut", watch=Interrupt(4))
    assert not (tmp_path / "cut" / "vocab.txt").exists()  # no weights there yet
    cut = train(experiment, school, tmp_path / "cut")
    assert products(cut) == products(whole)
    words = [run.vocabulary for run in (load_run(cut), load_run(cut / "best"))]
    assert words == [cut / "vocab.txt", cut / "best" / "vocab.txt"]
    assert len({path.read_bytes() for path in words if path}) == 1


# -- which folders it goes on in ---------------------------------------------------------------------------


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_with_another_experiment_is_refused_and_says_what_differs(
    school: Path, tmp_path: Path
) -> None:
    train(lesson_plan(iterations=1), school, tmp_path)
    before = everything_in(tmp_path)
    with pytest.raises(ConfigError, match=r"differs in training.batch, training.iterations; give another"):
        train(lesson_plan(iterations=2, batch=2), school, tmp_path)
    assert everything_in(tmp_path) == before
    reworded = replace(lesson_plan(iterations=1), about="the same, described better", differences=("none",))
    prepare(reworded, school, tmp_path, watch=TrainingCallback())


@pytest.mark.parametrize("name", ["experiment.json", "result.json", "log.jsonl", "vocab.txt", "state/1.pt"])
def test_a_folder_of_something_else_is_refused_and_left_alone(
    school: Path, tmp_path: Path, name: str
) -> None:
    write_json(tmp_path / name, ["precious"])
    before = everything_in(tmp_path)
    with pytest.raises(ConfigError, match=r"holds something else than training \(\w+(\.\w+)? without"):
        train(lesson_plan(), school, tmp_path)
    assert everything_in(tmp_path) == before


def test_held_out_scenes_follow_the_tours_of_train(school: Path) -> None:
    plan = holding_out(("held_out",))
    plan = replace(plan, validation=replace(plan.validation, memory="tour"))
    room = read_data(plan, DataFolder(school))
    toured = [each for tour in room.tours["held_out"] for each in tour.episode_ids]
    assert sorted(toured) == sorted(episode.episode_id for episode in room.sets["held_out"])
    assert room.facts["tours"] == {"held_out": [len(tour) for tour in room.tours["held_out"]]}


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
def test_tours_that_are_not_there_or_do_not_fit_are_named_and_nothing_is_written(
    tmp_path: Path, content: Any, message: str
) -> None:
    data = write_school(tmp_path / "data")
    (data / "tours" / "tours_iVLN.json").unlink()
    if content is not None:
        write_json(data / "tours" / "tours_iVLN.json", content)
    plan = lesson_plan(iterations=1, memory="tour")
    with pytest.raises(DataError, match=re.escape(message)):
        train(plan, data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_of_a_version_without_a_field_goes_on_with_its_default(school: Path, tmp_path: Path) -> None:
    train(lesson_plan(iterations=1), school, tmp_path)
    stored = read_json(tmp_path / "experiment.json", dict[str, Any])
    del stored["experiment"]["validation"]["tours"]
    del stored["experiment"]["training"]["completeness"]["forget_share"]
    write_json(tmp_path / "experiment.json", stored)
    require_same(lesson_plan(iterations=1), tmp_path)
    other = lesson_plan(iterations=1)
    other = replace(other, validation=replace(other.validation, tours="some.json"))
    with pytest.raises(ConfigError, match=r"differs in validation.tours; give another"):
        require_same(other, tmp_path)


def test_a_run_does_not_go_on_with_other_data(school: Path, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(lesson_plan(), school, tmp_path / "run", watch=Interrupt(3))
    other = write_school(tmp_path / "other")
    path = other / "R2R" / "R2R_train.json"
    write_json(path, read_json(path, list[dict[str, Any]])[1:])
    with pytest.raises(ConfigError, match=r"differs in data.train"):
        train(lesson_plan(), other, tmp_path / "run")


def test_a_run_that_begins_with_another_says_which_weights_it_takes(school: Path, tmp_path: Path) -> None:
    shorter = {"iterations": 1, "every": 1}
    first = train(lesson_plan(reader="unaided", **shorter), school, tmp_path / "first")
    plan, watch = replace(lesson_plan(**shorter), start=str(first)), Interrupt(99)
    course = prepare(plan, school, tmp_path / "second", watch=watch)
    old = load_run(first).navigator.state_dict()
    new = [name for name in course.trainer.navigator.state_dict() if name not in old]
    assert watch.notes == [
        f"begins with {first}: {len(old)} of its {len(old)} tensors are taken; {len(new)} are drawn: "
        + ", ".join([*new[:3], "..."])
    ]
    course.run()
    again = Interrupt(99)
    prepare(plan, school, tmp_path / "second", watch=again)
    assert again.notes == []  # it goes on with weights of its own
    back = replace(lesson_plan(reader="unaided", **shorter), start=str(tmp_path / "second"))
    prepare(back, school, tmp_path / "third", watch=again)
    assert again.notes[0].endswith(
        f"{len(old)} of its {len(old) + len(new)} tensors are taken; {len(new)} of its own are ignored: "
        + ", ".join([*new[:3], "..."])
    )
