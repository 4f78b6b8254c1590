"""Fixtures of reproduction tests: a small target, and a manager that runs its jobs in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from esceme.memory import CandidateEnhancingConfig
from esceme.reproduction import ReproductionConfig, Target
from esceme.reproduction.small_agents import TrainedAgent
from esceme.reproduction.targets import Row
from esceme.workers import Job
from fixtures.jobs import iterate_here
from fixtures.toy_dataset import WIDTH, small_experiment


@pytest.fixture
def target() -> Target:
    """A study of an agent without memory and an agent with memory that continues from it."""
    none = TrainedAgent(small_experiment(reader="none", iterations=4, splits=(), method="imitation"))
    memory = none.continued(learning_rate=1e-4).with_reader(CandidateEnhancingConfig(width=WIDTH))
    rows = (
        Row(name="none", agent=none),
        Row(name="cold", agent=memory, memory="cold", against="none"),
        Row(name="episodic", agent=memory, memory="episodic", against="none", max_seeds=1),
    )
    return Target(name="small", kind="study", title="A small study", rows=lambda kind: rows)


@pytest.fixture
def config(training_data: Path, tmp_path: Path) -> ReproductionConfig:
    return ReproductionConfig(data=training_data, out=tmp_path / "out", seeds=2)


@pytest.fixture
def started_jobs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the jobs of all plans, which run in this process instead of worker processes."""
    started: list[str] = []

    def iterate(jobs: Sequence[Job[Any, Any]], **options: Any) -> Iterator[Any]:
        for job in jobs:
            started.append(job.name)
            yield from iterate_here([job], **options)

    monkeypatch.setattr("esceme.reproduction.manager.iterate_jobs", iterate)
    return started
