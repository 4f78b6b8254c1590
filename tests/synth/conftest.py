"""Shared fixtures: visibility of generated houses, annotated paths through them, and the tiny world."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from benchmarks.instruction_follower import compute_visibility

from esceme.synth.annotated_paths import AnnotatedPath, sample_paths
from esceme.synth.dataset import WorldConfig, embedded_world
from esceme.synth.house import generate_house
from esceme.synth.visibility import Visibility

HEIGHT = 128
"""Panorama height for computing visibility, in pixels."""
NUM_PATHS = 20


@pytest.fixture(autouse=True)
def separate_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESCEME_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def visibility_of() -> Callable[[int], Visibility]:
    """Visibility of a house by its number, computed once."""

    @cache
    def compute(number: int) -> Visibility:
        return compute_visibility(generate_house(f"home-{number:04d}", seed=0), height=HEIGHT)

    return compute


@pytest.fixture(scope="session")
def paths_of(visibility_of: Callable[[int], Visibility]) -> Callable[[int], list[AnnotatedPath]]:
    """Annotated paths of a house by its number, sampled once."""

    @cache
    def sample(number: int) -> list[AnnotatedPath]:
        return sample_paths(visibility_of(number), NUM_PATHS, np.random.default_rng(number))

    return sample


@pytest.fixture(scope="session")
def world() -> Path:
    """The tiny world that all tests share; read-only, copy it before changing files.

    The name of its folder contains a digest of the code that generates it.
    """
    return embedded_world(WorldConfig("tiny"))
