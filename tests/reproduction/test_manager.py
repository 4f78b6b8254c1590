"""The run manager: what it runs, what it reuses, and what it makes again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from esceme.errors import DataError, EscemeError
from esceme.evaluation import read_result
from esceme.evaluation.journal import OtherJournalError
from esceme.files import read_json, write_text
from esceme.jobs import JobProgress
from esceme.reproduction import ReproductionConfig, Row, Target, make_plan, run_plan, write_target_report
from esceme.reproduction.manager import (
    FINISHED_FILE,
    FinishedTraining,
    JobEvent,
    _evaluate_planned,
    _find_prerequisite,
    _longest_first,
)
from esceme.reproduction.target_results import read_target_results
from esceme.source_digest import TRAINING_MODULES, source_digest
from esceme.training import train
from fixtures.files import file_contents
from fixtures.toy_dataset import Interrupt, Interrupted

pytestmark = pytest.mark.long


def test_a_plan_is_carried_out_once_and_reported(
    target: Target, config: ReproductionConfig, started_jobs: list[str]
) -> None:
    plan, events = make_plan([target], config), list[JobEvent]()
    assert (len(plan.trainings), len(plan.evaluations)) == (4, 5)
    run_plan(plan, processes=1, on_job_end=events.append)
    assert len(started_jobs) == 9
    assert [(event.done, event.total) for event in events] == [(n, 9) for n in range(1, 10)]
    assert events[-1].seconds_left == pytest.approx(0, abs=1e-6)
    for training in plan.trainings.values():
        stored = read_json(training.folder / FINISHED_FILE, FinishedTraining)
        assert stored.key == training.key and stored.facts["code"] == source_digest(TRAINING_MODULES)
    for evaluation in plan.evaluations.values():
        assert read_result(evaluation.folder).facts["code"] == source_digest()

    results = read_target_results(write_target_report(plan, target) / "results.json")
    assert results.code == [source_digest()]
    assert [(row.name, row.evaluations) for row in results.rows] == [
        ("none", 2),
        ("cold", 2),
        ("episodic", 1),
    ]
    none, cold = (
        [100 * read_result(e.folder).means["spl"] for e in plan.rows["small", name, "val_unseen"]]
        for name in ("none", "cold")
    )
    difference = results.rows[1].differences["val_unseen.spl"]
    assert difference.mean == pytest.approx((sum(cold) - sum(none)) / 2)
    assert results.rows[0].values["val_unseen.spl"] == pytest.approx(sum(none) / 2)

    run_plan(make_plan([target], config), processes=1)
    assert len(started_jobs) == 9


def test_jobs_that_take_longest_come_first_and_wait_for_their_prerequisites(
    target: Target, config: ReproductionConfig
) -> None:
    """A training counts with what waits for it: here the training that continues it, and its evaluations."""
    plan = make_plan([target], config)
    parents = [training for training in plan.trainings.values() if training.parent is None]
    children = [training for training in plan.trainings.values() if training.parent is not None]
    planned = [*plan.trainings.values(), *plan.evaluations.values()]
    jobs = _longest_first(planned)
    assert [*jobs.values()][:4] == [*parents, *children] and set(jobs) == {job.name for job in planned}
    assert [_find_prerequisite(child, jobs) for child in children] == [parent.name for parent in parents]
    assert _find_prerequisite(children[0], {}) == _find_prerequisite(parents[0], jobs) == ""
    position = {name: number for number, name in enumerate(jobs)}
    assert all(position[e.training.name] < position[e.name] for e in plan.evaluations.values())


def test_equal_trainings_of_two_targets_are_shared(target: Target, config: ReproductionConfig) -> None:
    other = replace(target, name="other")
    one, both = make_plan([target], config), make_plan([target, other], config)
    assert one.trainings.keys() == both.trainings.keys()
    assert both.rows["small", "cold", "val_unseen"] == both.rows["other", "cold", "val_unseen"]


def test_the_key_depends_on_code_settings_data_and_seed(
    target: Target, config: ReproductionConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = set(make_plan([target], config).trainings)
    assert set(make_plan([target], replace(config, out=tmp_path / "elsewhere")).trainings) == keys
    assert not keys & set(make_plan([target], replace(config, scale=2.0)).trainings)
    assert keys < set(make_plan([target], replace(config, seeds=3)).trainings)
    features = tmp_path / "other.hdf5"
    features.write_bytes((config.data / "features" / "street.hdf5").read_bytes() + b"changed")
    assert not keys & set(make_plan([target], replace(config, features=str(features))).trainings)
    monkeypatch.setattr("esceme.reproduction.planned_runs.source_digest", lambda *modules: "other code")
    assert not keys & set(make_plan([target], config).trainings)


def test_damaged_folders_are_made_again(
    target: Target, config: ReproductionConfig, started_jobs: list[str]
) -> None:
    plan, notes = make_plan([target], replace(config, seeds=1)), list[str]()
    run_plan(plan, processes=1)
    _, child = plan.trainings.values()
    before = file_contents(child.folder)
    cold, episodic = (plan.rows["small", name, "val_unseen"][0] for name in ("cold", "episodic"))
    weights = child.folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    write_text(plan.rows["small", "none", "val_unseen"][0].folder / "result.json", "{")
    started_jobs.clear()
    run_plan(plan, processes=1, note=notes.append)
    assert {*started_jobs} == {
        child.name,
        cold.name,
        episodic.name,
        plan.rows["small", "none", "val_unseen"][0].name,
    }
    assert sum("damaged, and made again" in text for text in notes) == 2
    after = file_contents(child.folder)
    assert after["weights.safetensors"] == before["weights.safetensors"]
    result = f"evaluations/{cold.folder.name}/result.json"
    assert after[result] == before[result]


def test_an_evaluation_keeps_its_journal_unless_it_is_of_another_one(
    target: Target, config: ReproductionConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the disk must not cost the finished trajectories."""
    job = next(iter(make_plan([target], config).evaluations.values()))
    write_text(job.folder / "journal.jsonl", "finished")
    errors: list[Exception] = [DataError("No space left"), OtherJournalError("of other weights")]

    def fail(*arguments: object, **options: object) -> None:
        if errors:
            raise errors.pop(0)

    monkeypatch.setattr("esceme.reproduction.manager.evaluate", fail)
    with pytest.raises(DataError, match="No space left"):
        _evaluate_planned(job, lambda progress: None)
    assert file_contents(job.folder) == {"journal.jsonl": b"finished"}
    notes = list[str]()
    _evaluate_planned(job, lambda progress: notes.append(progress.note))
    assert not job.folder.exists() and len(notes) == 1
    assert file_contents(job.folder.with_name(f"{job.folder.name}.damaged")) == {"journal.jsonl": b"finished"}


def test_a_training_whose_states_are_damaged_starts_over(
    target: Target, config: ReproductionConfig, started_jobs: list[str]
) -> None:
    plan, notes = make_plan([target], replace(config, seeds=1)), list[str]()
    run_plan(plan, processes=1)
    training = next(iter(plan.trainings.values()))
    weights = (training.folder / "weights.safetensors").read_bytes()
    (training.folder / FINISHED_FILE).unlink()
    for state in (training.folder / "state").iterdir():
        state.write_bytes(b"damaged")
    run_plan(plan, processes=1, on_progress=lambda name, progress: notes.append(progress.note))
    assert any("damaged, and made again" in text for text in notes)
    assert (training.folder / "weights.safetensors").read_bytes() == weights


def test_data_without_a_needed_file_is_refused(target: Target, config: ReproductionConfig) -> None:
    rows = [replace(row, splits=("val_seen",)) for row in target.rows("semantic")]
    on_val_seen = replace(target, rows=lambda kind: rows)
    with pytest.raises(DataError, match=r"cannot serve small: no R2R/R2R_val_seen.json"):
        make_plan([on_val_seen], config)


def test_an_interrupted_training_resumes(
    target: Target, config: ReproductionConfig, started_jobs: list[str]
) -> None:
    config = replace(config, seeds=1)
    complete = make_plan([target], config)
    run_plan(complete, processes=1)
    interrupted = make_plan([target], replace(config, out=config.out.with_name("interrupted")))
    training = next(iter(interrupted.trainings.values()))
    with pytest.raises(Interrupted):
        train(training.experiment, config.data, training.folder, callback=Interrupt(after=3))
    assert (training.folder / "state" / "00000002.pt").is_file()
    progress = list[JobProgress]()
    run_plan(interrupted, processes=1, on_progress=lambda name, state: progress.append(state))
    assert progress[0] == JobProgress(2, 4)
    for one, other in zip(complete.trainings.values(), interrupted.trainings.values(), strict=True):
        weights = [(folder / "weights.safetensors").read_bytes() for folder in (one.folder, other.folder)]
        assert weights[0] == weights[1]


def test_a_disk_error_removes_nothing(
    target: Target, config: ReproductionConfig, started_jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan([target], replace(config, seeds=1))
    training = next(iter(plan.trainings.values()))
    with pytest.raises(Interrupted):
        train(training.experiment, config.data, training.folder, callback=Interrupt(after=3))

    def full_disk(folder: Path, iteration: int, state: object) -> None:
        raise DataError(f"{folder}: cannot be written (No space left on device)")

    monkeypatch.setattr("esceme.learning.run.save_state", full_disk)
    with pytest.raises(EscemeError, match=f"{training.name}: .*No space left on device"):
        run_plan(plan, processes=1)
    assert (training.folder / "state" / "00000002.pt").is_file()


def test_planners_are_fitted_before_evaluations_that_plan(
    target: Target, config: ReproductionConfig, started_jobs: list[str]
) -> None:
    agent = target.rows("embedded")[0].agent.with_held_out(1)
    plans = ((("planner", "routes"),),)
    rows = (
        Row(name="greedy", agent=agent, measures=("spl",)),
        Row(name="planner", agent=agent, memory="cold", against="greedy", variants=plans, measures=("spl",)),
    )
    study = Target(name="plans", kind="study", title="Plans", rows=lambda kind: rows, subsets_of="planner")
    plan = make_plan([study], replace(config, seeds=1, limit=6))
    run_plan(plan, processes=1)
    training, fit = next(iter(plan.trainings.values())), next(iter(plan.fits.values()))
    evaluation = plan.rows["plans", "planner", "val_unseen"][0]
    assert (
        started_jobs.index(training.name) < started_jobs.index(fit.name) < started_jobs.index(evaluation.name)
    )
    folder = write_target_report(plan, study)
    report = read_target_results(folder / "results.json").rows[1]
    assert report.subsets["visits 1 to 5"].difference == pytest.approx(
        report.differences["val_unseen.spl"].mean
    )
    assert "| goal never visited |" in (folder / "report.md").read_text()
    run_plan(plan, processes=1)
    assert len(started_jobs) == 4

    # A planner of other settings is fitted again, and its evaluation is made again.
    stored = training.folder / "planner" / "planner.json"
    write_text(stored, stored.read_text().replace('"seed": 0', '"seed": 1'))
    run_plan(plan, processes=1)
    assert started_jobs[4:] == [fit.name, evaluation.name]
