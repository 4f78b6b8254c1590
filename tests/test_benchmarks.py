"""What benchmarks compare with: the obvious side learns and decides the same, and clocks add up."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from esceme.agents import AGENTS
from esceme.memory import CandidateEnhancing, CandidateEnhancingConfig
from esceme.navigator import Navigator
from esceme.synth import WorldConfig, embedded_world
from esceme.tasks.r2r import read_r2r
from fixtures.toy_dataset import SPLIT, WIDTH, write_toy_dataset
from fixtures.toy_training import SMALL

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def learning() -> Iterator[ModuleType]:
    """`benchmarks.learning`, which is no part of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(REPOSITORY)
        from benchmarks import learning

        yield learning
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]


@pytest.fixture
def graph_encoding() -> Iterator[ModuleType]:
    """`benchmarks.graph_encoding`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(REPOSITORY)
        from benchmarks import graph_encoding

        yield graph_encoding


@pytest.fixture
def evaluating() -> Iterator[ModuleType]:
    """`benchmarks.evaluating_tdstp`, which has HAMT's loop, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(REPOSITORY)
        from benchmarks import evaluating_tdstp

        yield evaluating_tdstp


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_dataset(tmp_path_factory.mktemp("dataset")).root


@pytest.fixture(scope="module")
def world() -> Path:
    return embedded_world(WorldConfig("tiny"))


def test_obvious_training_equals_ours(learning: ModuleType, world: Path) -> None:
    experiment = learning.small(**learning.AT_REST, **learning.CERTAIN, batch="4")
    course = learning.enrol(experiment, world)
    ours, obvious = course.trainer, learning.obvious_side(course, experiment)
    for iteration in range(4):  # the memory grows, the weights stay
        assert learning.both_iterate(ours, obvious, iteration).difference < 1e-5
        theirs = dict(obvious.navigator.named_parameters())
        for name, mine in ours.navigator.named_parameters():
            assert (mine.grad is None) == (theirs[name].grad is None), name
            if mine.grad is not None:
                within = 1e-5 * max(1.0, float(mine.grad.abs().max()))
                np.testing.assert_allclose(theirs[name].grad, mine.grad, rtol=0, atol=within, err_msg=name)
    remembered = {course.atlas.name(each) for each in ours.memory.bank.visited.nonzero().flatten().tolist()}
    assert set(obvious.memory) == remembered


def test_forward_all_equals_forward_stepwise(learning: ModuleType, world: Path) -> None:
    course = learning.enrol(learning.small(**learning.CERTAIN), world)
    assert learning.known_walks(course, 6).compare().difference < 1e-5


def test_two_processes_take_the_time_that_they_spend_on_each_other(learning: ModuleType, world: Path) -> None:
    experiment = learning.small(batch="4")
    (alone,) = learning.in_company(1, [experiment], world, warm_up=0, measured=2)
    (both,) = learning.in_company(2, [experiment], world, warm_up=0, measured=2)
    assert len(alone) == len(both) == 2
    for one, two in zip(alone, both, strict=True):
        assert one.waiting + one.exchanging < 0.01 * one.whole
        assert 0 < two.exchanging < two.waiting + two.exchanging < two.whole


def test_graphs_of_all_pairs_and_counted_ones_are_encoded_alike(
    graph_encoding: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = graph_encoding.drawn_reader()
    slow, fast = graph_encoding.measured(25, reader)  # which asserts it
    assert slow is not None and slow > 0 and fast > 0
    monkeypatch.setattr(graph_encoding, "ROOM", 0)
    assert graph_encoding.measured(25, reader)[0] is None
    monkeypatch.setattr(graph_encoding, "all_pairs", lambda *_: torch.ones(1, graph_encoding.WIDTH))
    monkeypatch.setattr(graph_encoding, "ROOM", 1e9)
    with pytest.raises(AssertionError):
        graph_encoding.measured(25, reader)


# -- evaluating ------------------------------------------------------------------------------------------


def small(agent: str, seed: int) -> Navigator:
    """An agent with drawn weights and a memory."""
    torch.manual_seed(seed)
    config = AGENTS[agent].Config(**SMALL, feature_width=WIDTH, vocabulary=100)
    return Navigator(AGENTS[agent](config), CandidateEnhancing(CandidateEnhancingConfig(width=WIDTH)))


@pytest.mark.parametrize("agent", ["hamt", "tdstp"])
def test_lock_step_decisions_equal_those_of_lanes(
    agent: str, evaluating: ModuleType, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps = []

    class Counted(evaluating.LockStepPlanner):  # type: ignore[misc, name-defined]
        def move(self, item, choice):  # type: ignore[no-untyped-def]
            jumps.append(choice >= item.width)
            super().move(item, choice)

    loop = {"loop": Counted} if agent == "tdstp" else {}
    work = evaluating.Work(dataset, small(agent, 3), **loop, per_scene=2)
    led = {each.episode_id: each.reference_path for each in read_r2r(dataset / "R2R" / f"R2R_{SPLIT}.json")}
    for paths in (led, None):
        ratio, _ = evaluating.throughput(work, paths, rounds=1)  # which asserts it
        assert ratio.obvious > 0 and ratio.ours > 0
    assert agent == "hamt" or any(jumps) and not all(jumps)
    monkeypatch.setattr(evaluating.LockStepPlanner, "restrict", lambda *_: None)
    if agent == "tdstp":
        with pytest.raises(AssertionError):
            list(evaluating.throughput(work, None, rounds=1))
