"""How long a memory lives: each protocol against the plain loop that its name promises."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from esceme.errors import ConfigError, DataError, MemoryMismatch
from esceme.evaluation import MemoryLifetime, Result
from esceme.evaluation.context import EvaluationContext
from esceme.evaluation.journal import read_journal
from esceme.evaluation.protocol import TourPosition, check_protocol
from esceme.evaluation.schedule import Lanes
from esceme.memory import (
    CandidateEnhancing,
    CandidateEnhancingConfig,
    MemoryBank,
    NoMemory,
    Reader,
    save_bank,
)
from esceme.observation import Observation
from esceme.rollout import roll_out
from esceme.tasks.episode import Episode
from esceme.trajectory import EpisodeSource, Trajectory, greedy
from fixtures.toy_atlas import build_toy_atlas, make_episode
from fixtures.toy_dataset import WIDTH, ToyDataset

Evaluate = Callable[..., Any]
Trajectories = dict[str, list[str]]


def trajectories(result: Result) -> Trajectories:
    return {each.id: [viewpoint for viewpoint, *_ in each.trajectory] for each in result.episodes}


def walked(context: EvaluationContext, walk: Trajectory) -> list[str]:
    return [context.atlas.name(viewpoint)[1] for viewpoint, _ in walk.poses]


@torch.inference_mode()
def lived(
    context: EvaluationContext, source: EpisodeSource, lifetime: MemoryLifetime
) -> dict[str, tuple[Trajectory, list[Tensor]]]:
    """Every walk of a source with the logits of its decisions."""
    told: dict[str, tuple[Trajectory, list[Tensor]]] = {}
    for step in roll_out(
        context.run.navigator,
        context.atlas,
        source,
        lifetime.memory,
        greedy,
        encode=context.encode,
        max_steps=context.limits.max_steps,
    ):
        for row, walk in enumerate(step.trajectories):
            logits = step.decision.logits[row]
            told.setdefault(walk.episode.episode_id, (walk, []))[1].append(logits[logits.isfinite()])
    return told


def told_in_lanes(
    context: EvaluationContext, lifetime: MemoryLifetime | None = None
) -> dict[str, tuple[Trajectory, list[Tensor]]]:
    """The walks of a context, three at a time."""
    lifetime = lifetime or context.lifetime()
    return lived(context, Lanes(context.atlas, context.episodes, lifetime, num_slots=3), lifetime)


def places(bank: MemoryBank) -> set[tuple[str, str]]:
    return {(scene, name) for scene in bank.scenes for name in bank[scene].viewpoints}


def one_after_the_other(
    context: EvaluationContext, episodes: Iterable[Episode], bank: MemoryBank
) -> Trajectories:
    """The plainest loop: one agent, one episode at a time, one bank."""
    lifetime = MemoryLifetime("cold", context.atlas, bank)
    told = lived(context, Lanes(context.atlas, episodes, lifetime, num_slots=1), lifetime)
    return {name: walked(context, walk) for name, (walk, _) in told.items()}


def test_cold_keeps_one_memory_for_the_whole_split(dataset: ToyDataset, evaluated: Evaluate) -> None:
    context = dataset.context()
    scenes = sorted({episode.scene_id for episode in context.episodes})
    ordered = [each for scene in scenes for each in context.episodes if each.scene_id == scene]
    bank = MemoryBank.from_atlas(context.atlas)
    assert trajectories(evaluated().result) == one_after_the_other(context, ordered, bank)
    assert places(evaluated().bank) == places(bank)


def test_two_pass_coverage_is_at_least_that_of_cold(dataset: ToyDataset, evaluated: Evaluate) -> None:
    once, twice = evaluated("cold"), evaluated("two-pass")
    assert places(once.bank) < places(twice.bank)
    # The first pass is the cold life, and the second one is what counts.
    lines = read_journal(twice.folder / "journal.jsonl", dataset.context("two-pass").fingerprint)
    first, second = (
        {line.id: [name for name, _ in line.poses] for line in lines if line.pass_ == number}
        for number in (1, 2)
    )
    assert first == trajectories(once.result)
    assert second == trajectories(twice.result) != first


def test_a_warm_life_goes_on_from_a_saved_bank(evaluated: Evaluate) -> None:
    warm = evaluated("warm", bank=str(evaluated("cold").folder / "bank.safetensors"))
    twice = evaluated("two-pass")
    assert trajectories(warm.result) == trajectories(twice.result)
    assert places(warm.bank) == places(twice.bank)


def test_a_warm_life_keeps_scenes_of_the_bank_that_the_split_lacks(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path
) -> None:
    bank = MemoryBank.from_atlas(dataset.context().atlas)
    bank.remember("elsewhere", "hall", torch.ones(1, bank.width), ["door"])
    save_bank(bank, tmp_path / "other.safetensors")
    warm = evaluated("warm", bank=str(tmp_path / "other.safetensors"))
    assert trajectories(warm.result) == trajectories(evaluated("cold").result)
    assert places(warm.bank) == places(evaluated("cold").bank) | {("elsewhere", "hall")}


def test_a_bank_of_other_features_is_refused(dataset: ToyDataset, tmp_path: Path) -> None:
    save_bank(MemoryBank(width=WIDTH, source="others"), tmp_path / "bank.safetensors")
    with pytest.raises(MemoryMismatch, match="others.*street.hdf5"):
        dataset.context("warm", bank=str(tmp_path / "bank.safetensors")).lifetime()


@pytest.mark.parametrize("slots", [1, 8])
def test_episodic_equals_one_bank_per_episode_even_in_a_batch(
    dataset: ToyDataset, evaluated: Evaluate, slots: int
) -> None:
    context = dataset.context("episodic")
    alone: Trajectories = {}
    for episode in context.episodes:
        alone |= one_after_the_other(context, [episode], MemoryBank.from_atlas(context.atlas))
    assert trajectories(evaluated("episodic", batch=slots).result) == alone
    assert trajectories(evaluated("cold").result) != alone


def test_masked_equals_cold_at_the_very_first_decision_in_a_scene(dataset: ToyDataset) -> None:
    cold, masked = (told_in_lanes(dataset.context(memory)) for memory in ("cold", "masked"))
    first = [name for name, (walk, _) in cold.items() if walk.visit == 1]
    assert len(first) == 5
    for name in first:
        torch.testing.assert_close(cold[name][1][0], masked[name][1][0], atol=1e-5, rtol=0)
    later = [name for name, (walk, _) in cold.items() if walk.visit == 2]
    assert not all(torch.allclose(cold[name][1][0], masked[name][1][0], atol=1e-3) for name in later)


def test_masked_recalls_nothing_and_remembers_everything(dataset: ToyDataset, evaluated: Evaluate) -> None:
    class Blank(MemoryLifetime):
        """Zeros at all times, and nothing is kept."""

        memory = property(lambda self: self)

        def recall_at(self, viewpoints: Tensor) -> Tensor:
            return torch.zeros(*viewpoints.shape, WIDTH)

        def remember_observation(self, observation: Observation) -> None:
            pass

    context, masked = dataset.context("masked"), evaluated("masked")
    blank = told_in_lanes(context, Blank("cold", context.atlas, None))
    assert trajectories(masked.result) == {name: walked(context, walk) for name, (walk, _) in blank.items()}
    told = trajectories(masked.result)
    stood = {
        (each.scene, name) for each in masked.result.episodes for name in told[each.id][: each.decisions]
    }
    assert places(masked.bank) == stood


def test_an_oracle_remembers_everything_before_the_first_step(
    dataset: ToyDataset, evaluated: Evaluate
) -> None:
    context = dataset.context("oracle")
    bank = context.lifetime().bank
    assert bank is not None and bool(bank.visited.all())
    assert trajectories(evaluated("oracle").result) == one_after_the_other(context, context.episodes, bank)
    assert len(evaluated("oracle").bank) == len(context.atlas)


def test_a_tour_begins_with_nothing_and_keeps_what_it_meets(dataset: ToyDataset, evaluated: Evaluate) -> None:
    context = dataset.context("tour", tours=dataset.tours)
    assert context.tours is not None and max(map(len, context.tours)) == 3
    expected: Trajectories = {}
    for tour in context.tours:
        episodes = [context.by_id[each] for each in tour.episode_ids]
        expected |= one_after_the_other(context, episodes, MemoryBank.from_atlas(context.atlas))
    result = evaluated("tour", tours=dataset.tours, batch=8).result
    assert trajectories(result) == expected
    numbers = {each.id: each.visit for each in result.episodes}
    assert numbers == {each: n for tour in context.tours for n, each in enumerate(tour.episode_ids, 1)}
    # The same order of life without clearing would not give the same.
    assert expected != one_after_the_other(context, context.episodes, MemoryBank.from_atlas(context.atlas))


def test_oracle_phases_are_remembered_and_not_walked(dataset: ToyDataset, evaluated: Evaluate) -> None:
    context = dataset.context("tour", tours=dataset.tours)
    plain = trajectories(evaluated("tour", tours=dataset.tours, batch=8).result)
    with_phases = evaluated("tour", tours=dataset.tours, oracle_phases=True)
    led = trajectories(with_phases.result)
    first = [each.id for each in with_phases.result.episodes if each.visit == 1]
    assert {name: led[name] for name in first} == {name: plain[name] for name in first}
    assert led != plain
    assert context.tours is not None
    last = {tour.scene_id: tour.episode_ids for tour in context.tours}  # what is not cleared again
    for scene, ids in last.items():
        graph, expected = context.atlas.graph(scene), set[str]()
        for here, after in zip(ids, [*ids[1:], None], strict=True):
            goal = context.by_id[here].goal
            expected |= {*led[here], *graph.shortest_path(led[here][-1], goal)}
            expected |= set(graph.shortest_path(goal, context.by_id[after].start)) if after else set()
        assert set(with_phases.bank[scene].viewpoints) == expected


@pytest.mark.parametrize(
    ("following", "withheld", "phases", "expected"),
    [
        ("attic", False, True, {"kitchen", "hall", "door", "garden", "landing", "attic"}),
        (None, False, True, {"kitchen", "hall", "door", "garden"}),
        ("attic", True, True, {"kitchen", "hall", "landing", "attic"}),  # straight to the next start
        ("attic", False, False, set()),
    ],
)
def test_an_oracle_leads_to_the_goal_and_to_the_next_start(
    following: str | None, withheld: bool, phases: bool, expected: set[str]
) -> None:
    atlas = build_toy_atlas()
    bank = MemoryBank.from_atlas(atlas)
    episode = replace(make_episode("pantry", "hall", "door", "garden"), goal_withheld=withheld)
    after = None if following is None else make_episode(following, "landing", name="1_0")
    lifetime = MemoryLifetime(
        "tour", atlas, bank, tours={"0_0": TourPosition(0, after)}, oracle_phases=phases
    )
    poses = [(int(place), 12) for place in atlas.locate("cottage", ["pantry", "kitchen"])]
    lifetime.finish(
        Trajectory(episode, poses, num_decisions=1)
    )  # ended by the limit: the kitchen was not remembered
    assert set(bank["cottage"].viewpoints) == expected


@pytest.mark.parametrize("memory", ["cold", "episodic", "tour"])
def test_a_walk_that_is_replayed_leaves_behind_what_it_left_when_it_was_lived(
    dataset: ToyDataset, memory: str
) -> None:
    tours = {"tours": dataset.tours, "oracle_phases": True} if memory == "tour" else {}
    context = dataset.context(memory, **tours)
    one, other = context.lifetime(), context.lifetime()
    for walk, _ in told_in_lanes(context, one).values():
        other.replay(walk)
    assert one.bank is not None and other.bank is not None
    everywhere = torch.arange(len(context.atlas))
    assert torch.equal(one.bank.recall_at(everywhere), other.bank.recall_at(everywhere))
    assert bool(one.bank.visited.any())


FUSING = CandidateEnhancing(CandidateEnhancingConfig(width=4))


@pytest.mark.parametrize(
    ("memory", "reader", "changes", "message"),
    [
        ("none", FUSING, {}, "with 'masked' it recalls only zeros"),
        ("cold", NoMemory(), {}, "use 'none'"),
        ("masked", NoMemory(), {}, "use 'none'"),
        ("eternal", FUSING, {}, "expected one of none, cold"),
        ("warm", FUSING, {}, "belong together"),
        ("cold", FUSING, {"bank": "file"}, "belong together"),
        ("tour", FUSING, {}, "give the tours with --tours FILE"),
        ("tour", NoMemory(), {"tours": "file"}, "use 'none'"),
        ("cold", FUSING, {"oracle_phases": True}, "give --tours FILE as well"),
        ("none", NoMemory(), {"tours": "file", "oracle_phases": True}, "no effect with 'none'"),
        ("episodic", FUSING, {"tours": "file", "oracle_phases": True}, "no effect with 'episodic'"),
        ("oracle", FUSING, {"tours": "file", "oracle_phases": True}, "no effect with 'oracle'"),
        ("episodic", FUSING, {"lanes": False}, "memory 'episodic' needs .* use the schedule 'lanes'"),
        (
            "none",
            NoMemory(),
            {"tours": "file", "lanes": False},
            "tours need .* use the schedule 'lanes'",
        ),
        ("tour", FUSING, {"tours": "file", "lanes": False}, "use the schedule 'lanes'"),
    ],
)
def test_protocols_without_sense_are_refused(
    memory: str, reader: Reader, changes: dict[str, object], message: str
) -> None:
    options: dict[str, object] = {"bank": None, "tours": None, "oracle_phases": False, "lanes": True}
    with pytest.raises(ConfigError, match=message):
        check_protocol(memory, reader, **(options | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("memory", "reader", "oracle_phases"),
    [
        ("none", NoMemory(), False),
        ("tour", FUSING, True),
        ("cold", FUSING, True),
        ("two-pass", FUSING, False),
        ("episodic", FUSING, False),
        ("masked", FUSING, True),
        ("oracle", FUSING, False),
    ],
)
def test_every_protocol_may_follow_tours(memory: Any, reader: Reader, oracle_phases: bool) -> None:
    check_protocol(memory, reader, bank=None, tours="file", oracle_phases=oracle_phases, lanes=True)


def test_a_missing_bank_is_named(dataset: ToyDataset, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing.safetensors"):
        dataset.context("warm", bank=str(tmp_path / "missing.safetensors"))
