"""Targets: their names and their experiments."""

from __future__ import annotations

import pytest

from esceme.errors import ConfigError
from esceme.memory import READERS
from esceme.reproduction import TARGETS, Target, find_targets
from esceme.reproduction.small_agents import DataKind


def test_an_unknown_target_names_similar_ones() -> None:
    with pytest.raises(ConfigError, match="no target 'headlin'; did you mean headline"):
        find_targets(["headlin"])
    with pytest.raises(ConfigError, match="esceme reproduce list"):
        find_targets(["headline", "zzz"])
    assert find_targets(["all"]) == list(TARGETS.values())


@pytest.mark.parametrize("kind", ["embedded", "semantic"])
@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_rows_are_consistent(target: Target, kind: DataKind) -> None:
    rows = {row.name: row for row in target.rows(kind)}
    assert len(rows) == len(target.rows(kind))
    for row in rows.values():
        assert row.against == "" or row.against in rows
        reader = READERS[row.agent.experiment.navigator.reader_name]
        plans = ("planner", "routes") in row.variants[0]
        assert (reader.uses_memory or plans) == (row.memory != "none")
        assert not plans or all(agent.experiment.hold_out for agent in row.agent.lineage)
        assert all(agent.experiment.start == "" for agent in row.agent.lineage)
    assert target.needs(kind)
