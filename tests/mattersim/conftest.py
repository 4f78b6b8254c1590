"""Generated graphs in the published format, and simulators on them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from fixtures import simulators


@pytest.fixture(scope="session")
def connectivity(toy_root: Path) -> Path:
    """Connectivity folder of the toy world."""
    return toy_root / "connectivity"


@pytest.fixture(scope="session")
def make_simulator(connectivity: Path) -> simulators.MakeSimulator:
    """Function that returns a simulator of the toy world."""
    return partial(simulators.make_simulator, connectivity)
