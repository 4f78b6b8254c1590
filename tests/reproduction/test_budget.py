"""Time budgets: what is shortened, and by how much."""

from __future__ import annotations

from dataclasses import replace

import pytest

from esceme.errors import ConfigError
from esceme.reproduction import ReproductionConfig, Target
from esceme.reproduction import budget as module
from esceme.reproduction.budget import Speed, _Work, fit_budget, plan_within_budget
from esceme.workers import Job

SPEEDS = {"fast": Speed(1.0, 0.1, 0.05), "slow": Speed(2.0, 0.4, 0.1)}
WORK = _Work(
    [("fast", 700), ("slow", 700)],
    [("fast", 1, 600, True), ("slow", 2, 600, True), ("fast", 1, 600, False)],
    fits=0,
)


def fit(minutes: float, work: _Work = WORK) -> module.Budget:
    return fit_budget(work, SPEEDS, request="", minutes=minutes, processes=2)


def test_a_large_budget_changes_nothing() -> None:
    budget = fit(100)
    assert (budget.scale, budget.limit) == (1.0, None)
    # 700 iterations of 0.1 and 0.4 s; 600 episodes twice at 0.05 s, 1,200 at 0.1 s; 7 s of loading
    assert budget.planned_minutes == pytest.approx((350 + 60 + 120 + 7) / 60 / 2)


@pytest.mark.parametrize("minutes", [2, 3, 4, 5])
def test_a_small_budget_shortens_trainings_and_evaluations(minutes: float) -> None:
    budget = fit(minutes)
    assert budget.scale < 1 and budget.limit is not None
    assert budget.planned_minutes == pytest.approx(module.USED_SHARE * minutes)


def test_fits_of_planners_count() -> None:
    with_fits = fit(100, WORK._replace(fits=2))
    assert with_fits.planned_minutes - fit(100).planned_minutes == pytest.approx(module.FIT_SECONDS / 60)
    assert fit(5, WORK._replace(fits=2)).scale < fit(5).scale


def test_a_budget_that_cannot_be_kept_is_exceeded_by_the_shortest_jobs() -> None:
    budget = fit(0.1)
    assert budget.scale == 0 and budget.limit == module.LIMITS[-1] and budget.planned_minutes > 0.1


def test_a_plan_is_shortened_and_resumes_with_the_stored_numbers(
    target: Target, config: ReproductionConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, measured = list[str](), list[str]()

    def run_here(jobs: list[Job[object, Speed]], *, processes: int) -> list[Speed]:
        measured.extend(job.name for job in jobs)
        return [replace_iteration(job.function(lambda message: None)) for job in jobs]

    def replace_iteration(speed: Speed) -> Speed:
        assert min(speed.load, speed.iteration, speed.episode) > 0
        return Speed(0.0, 1.0, 0.0)  # a second per iteration, whatever the machine

    monkeypatch.setattr(module, "run_jobs", run_here)
    monkeypatch.setattr(module, "MIN_ITERATIONS", 1)
    monkeypatch.setattr("esceme.reproduction.planned_runs.MIN_ITERATIONS", 1)
    plan = plan_within_budget([target], config, 0.2, processes=1, note=notes.append)
    assert len(measured) == 2
    # four trainings of 4 iterations take 16 s; three quarters of 12 s are available
    assert plan.config.scale == pytest.approx(9 / 16)
    assert {t.experiment.training.iterations for t in plan.trainings.values()} == {2}
    again = plan_within_budget([target], config, 0.2, processes=1)
    assert again.trainings.keys() == plan.trainings.keys() and len(measured) == 2
    plan_within_budget([target], replace(config, seeds=1), 0.2, processes=1)
    assert len(measured) == 4
    (config.out / module.BUDGET_FILE).write_text("{")
    plan_within_budget([target], config, 0.2, processes=1)
    assert len(measured) == 6
    assert any("0.562 times the iterations" in text for text in notes)
    with pytest.raises(ConfigError, match="--budget 0: expected a positive number"):
        plan_within_budget([target], config, 0, processes=1)
