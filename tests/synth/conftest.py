"""What tests of the embedded world share: houses looked at, walks through them, and a tiny world."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from esceme.synth.capture import sights_of
from esceme.synth.dataset import WorldConfig, embedded_world
from esceme.synth.house import graph_of, make_house
from esceme.synth.sights import Sights
from esceme.synth.walks import Walk, take_walks

HEIGHT = 128
"""Of the pictures in which houses are looked at, in pixels."""
WALKS = 20


@pytest.fixture(autouse=True)
def leave_the_users_cache_alone(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESCEME_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def look() -> Callable[[int], Sights]:
    """What is seen in a house, by its number; every house is looked at once."""

    @cache
    def look_at(number: int) -> Sights:
        house = make_house(f"home-{number:04d}", seed=0)
        return sights_of(house, graph_of(house), height=HEIGHT)

    return look_at


@pytest.fixture(scope="session")
def walks_of(look: Callable[[int], Sights]) -> Callable[[int], list[Walk]]:
    """Walks through a house, by its number."""

    @cache
    def walk_through(number: int) -> list[Walk]:
        return take_walks(look(number), WALKS, np.random.default_rng(number))

    return walk_through


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The tiny world, made once for all workers; read-only, copy before damaging."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch, (shared / "world.lock").open("w") as lock:
        patch.setenv("ESCEME_CACHE", str(shared / "shared-cache"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = embedded_world(WorldConfig("tiny"), processes=1)
        fcntl.flock(lock, fcntl.LOCK_UN)
    yield made
