"""Costs of inference: measured sizes, and the paper's formulas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from esceme.recipes import RECIPES
from esceme.reproduction.costs import (
    MEGABYTE,
    SYSTEMS,
    _measure_system,
    added_costs,
    format_costs,
    peak_memory,
)


@pytest.mark.long
def test_sizes_are_measured_and_follow_the_formulas(training_data: Path) -> None:
    costs = {
        name: _measure_system(f"r2r-small{suffix}", 1, training_data, lambda message: None)
        for name, suffix in (("HAMT", ""), ("HAMT + ESceme", "-esceme"))
    }
    none, memory = costs.values()
    assert none.memory_bytes == none.reader_mb == 0
    assert memory.memory_bytes == memory.memory_formula_bytes > 0
    assert memory.steps == none.steps > 0 and min(none.ms_per_step, none.peak_gb) > 0
    # The small reader has 2 x 768 x 128 and 128 x 768 weights, biases and a norm.
    assert memory.reader_mb == pytest.approx(4 * (3 * 768 * 128 + 768 + 3 * 128) / MEGABYTE)
    assert memory.reader_formula_mb == pytest.approx(1.14e-5 * 768**2, rel=0.01)
    assert added_costs(costs, "HAMT + ESceme")["parameters_mb"] == pytest.approx(memory.reader_mb)
    assert added_costs(costs, "HAMT")["parameters_mb"] == none.parameters_mb
    assert f"| HAMT | {none.parameters_mb:.1f} |" in format_costs(costs)


def test_peak_memory_is_that_of_the_process_alone() -> None:
    large = np.ones(2**26)  # 512 MB
    assert peak_memory() > large.nbytes
    program = "from esceme.reproduction.costs import peak_memory; print(peak_memory())"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(child.stdout) < peak_memory() - large.nbytes // 2


def test_systems_are_those_of_the_paper() -> None:
    assert all(recipe in RECIPES and passes in (1, 2) for recipe, passes in SYSTEMS.values())
