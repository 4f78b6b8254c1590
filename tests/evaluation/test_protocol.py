"""Memory protocols: every protocol against a plain loop with the memory it describes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from esceme.errors import ConfigError
from esceme.evaluation import MemoryLifetime, Result
from esceme.evaluation.context import EvaluationContext
from esceme.evaluation.journal import JournalEntry, read_journal
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
Paths = dict[str, list[str]]


def paths_of(result: Result) -> Paths:
    return {episode.id: [name for name, *_ in episode.trajectory] for episode in result.episodes}


def viewpoint_names(context: EvaluationContext, trajectory: Trajectory) -> list[str]:
    return [context.atlas.name(viewpoint)[1] for viewpoint, _ in trajectory.poses]


@torch.inference_mode()
def run_source(
    context: EvaluationContext, source: EpisodeSource, lifetime: MemoryLifetime
) -> dict[str, tuple[Trajectory, list[Tensor]]]:
    """Every trajectory of a source with the logits of its decisions."""
    found: dict[str, tuple[Trajectory, list[Tensor]]] = {}
    for step in roll_out(
        context.run.navigator,
        context.atlas,
        source,
        lifetime.memory,
        greedy,
        encode=context.encode,
        max_steps=context.limits.max_steps,
    ):
        for row, trajectory in enumerate(step.trajectories):
            logits = step.decision.logits[row]
            found.setdefault(trajectory.episode.episode_id, (trajectory, []))[1].append(
                logits[logits.isfinite()]
            )
    return found


def run_lanes(
    context: EvaluationContext, lifetime: MemoryLifetime | None = None
) -> dict[str, tuple[Trajectory, list[Tensor]]]:
    """The trajectories of a context in three lanes."""
    lifetime = lifetime or context.lifetime()
    return run_source(context, Lanes(context.atlas, context.episodes, lifetime, num_slots=3), lifetime)


def nodes(bank: MemoryBank) -> set[tuple[str, str]]:
    return {(scene, name) for scene in bank.scenes for name in bank[scene].viewpoints}


def run_sequentially(context: EvaluationContext, episodes: Iterable[Episode], bank: MemoryBank) -> Paths:
    """Run one episode at a time with one bank."""
    lifetime = MemoryLifetime("cold", context.atlas, bank)
    found = run_source(context, Lanes(context.atlas, episodes, lifetime, num_slots=1), lifetime)
    return {name: viewpoint_names(context, trajectory) for name, (trajectory, _) in found.items()}


def test_cold_keeps_one_memory_for_the_whole_split(dataset: ToyDataset, evaluated: Evaluate) -> None:
    context = dataset.context()
    scenes = sorted({episode.scene_id for episode in context.episodes})
    ordered = [e for scene in scenes for e in context.episodes if e.scene_id == scene]
    bank = MemoryBank.from_atlas(context.atlas)
    assert paths_of(evaluated().result) == run_sequentially(context, ordered, bank)
    assert nodes(evaluated().bank) == nodes(bank)


def test_two_pass_coverage_is_at_least_that_of_cold(dataset: ToyDataset, evaluated: Evaluate) -> None:
    once, twice = evaluated("cold"), evaluated("two-pass")
    assert nodes(once.bank) < nodes(twice.bank)
    # The first pass is that of the cold memory; the result is that of the second.
    lines, _ = read_journal(
        twice.folder / "journal.jsonl", dataset.context("two-pass").fingerprint, JournalEntry
    )
    first, second = (
        {line.id: [name for name, _ in line.poses] for line in lines if line.pass_ == number}
        for number in (1, 2)
    )
    assert first == paths_of(once.result)
    assert second == paths_of(twice.result) != first


def test_warm_memory_continues_from_a_saved_bank(evaluated: Evaluate) -> None:
    warm = evaluated("warm", bank=str(evaluated("cold").folder / "bank.safetensors"))
    twice = evaluated("two-pass")
    assert warm.result.facts["hashes"].keys() == twice.result.facts["hashes"].keys() | {"bank"}
    assert paths_of(warm.result) == paths_of(twice.result)
    assert nodes(warm.bank) == nodes(twice.bank)


def test_warm_memory_keeps_scenes_that_the_split_lacks(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path
) -> None:
    bank = MemoryBank.from_atlas(dataset.context().atlas)
    bank.remember("elsewhere", "hall", torch.ones(1, bank.width), ["door"])
    save_bank(bank, tmp_path / "other.safetensors")
    with pytest.raises(ConfigError, match="holds 1 other scenes, such as 'elsewhere', and none of the 5"):
        evaluated("warm", bank=str(tmp_path / "other.safetensors"))
    warm = evaluated("warm", bank=str(tmp_path / "other.safetensors"), allow_other_scenes=True)
    assert paths_of(warm.result) == paths_of(evaluated("cold").result)
    assert nodes(warm.bank) == nodes(evaluated("cold").bank) | {("elsewhere", "hall")}


@pytest.mark.parametrize("slots", [1, 8])
def test_episodic_equals_one_bank_per_episode_even_in_a_batch(
    dataset: ToyDataset, evaluated: Evaluate, slots: int
) -> None:
    context = dataset.context("episodic")
    alone: Paths = {}
    for episode in context.episodes:
        alone |= run_sequentially(context, [episode], MemoryBank.from_atlas(context.atlas))
    assert paths_of(evaluated("episodic", batch=slots).result) == alone
    assert paths_of(evaluated("cold").result) != alone


def test_masked_equals_cold_at_the_first_decision_in_a_scene(dataset: ToyDataset) -> None:
    cold, masked = (run_lanes(dataset.context(memory)) for memory in ("cold", "masked"))
    first = [name for name, (trajectory, _) in cold.items() if trajectory.visit == 1]
    assert len(first) == 5
    for name in first:
        torch.testing.assert_close(cold[name][1][0], masked[name][1][0], atol=1e-5, rtol=0)
    later = [name for name, (trajectory, _) in cold.items() if trajectory.visit == 2]
    assert not all(torch.allclose(cold[name][1][0], masked[name][1][0], atol=1e-3) for name in later)


def test_masked_recalls_nothing_and_remembers_everything(dataset: ToyDataset, evaluated: Evaluate) -> None:
    class Blank(MemoryLifetime):
        """A memory that recalls zeros and remembers nothing."""

        memory = property(lambda self: self)

        def recall_at(self, viewpoints: Tensor) -> Tensor:
            return torch.zeros(*viewpoints.shape, WIDTH)

        def remember_observation(self, observation: Observation) -> None:
            pass

    context, masked = dataset.context("masked"), evaluated("masked")
    blank = run_lanes(context, Blank("cold", context.atlas, None))
    assert paths_of(masked.result) == {
        name: viewpoint_names(context, trajectory) for name, (trajectory, _) in blank.items()
    }
    paths = paths_of(masked.result)
    decided = {(e.scene, name) for e in masked.result.episodes for name in paths[e.id][: e.decisions]}
    assert nodes(masked.bank) == decided


def test_oracle_memory_is_complete_before_the_first_step(dataset: ToyDataset, evaluated: Evaluate) -> None:
    context = dataset.context("oracle")
    bank = context.lifetime().bank
    assert bank is not None and bool(bank.visited.all())
    assert paths_of(evaluated("oracle").result) == run_sequentially(context, context.episodes, bank)
    assert len(evaluated("oracle").bank) == len(context.atlas)


def test_tour_memory_is_cleared_before_every_tour(dataset: ToyDataset, evaluated: Evaluate) -> None:
    context = dataset.context("tour", tours=dataset.tours)
    assert context.tours is not None and max(map(len, context.tours)) == 3
    expected: Paths = {}
    for tour in context.tours:
        episodes = [context.by_id[name] for name in tour.episode_ids]
        expected |= run_sequentially(context, episodes, MemoryBank.from_atlas(context.atlas))
    result = evaluated("tour", tours=dataset.tours, batch=8).result
    assert paths_of(result) == expected
    visits = {episode.id: episode.visit for episode in result.episodes}
    assert visits == {name: n for tour in context.tours for n, name in enumerate(tour.episode_ids, 1)}
    # Without clearing, the result would differ.
    assert expected != run_sequentially(context, context.episodes, MemoryBank.from_atlas(context.atlas))


def test_oracle_phases_extend_the_memory_and_not_the_trajectories(
    dataset: ToyDataset, evaluated: Evaluate
) -> None:
    context = dataset.context("tour", tours=dataset.tours)
    plain = paths_of(evaluated("tour", tours=dataset.tours, batch=8).result)
    with_phases = evaluated("tour", tours=dataset.tours, oracle_phases=True)
    phased = paths_of(with_phases.result)
    first = [episode.id for episode in with_phases.result.episodes if episode.visit == 1]
    assert {name: phased[name] for name in first} == {name: plain[name] for name in first}
    assert phased != plain
    assert context.tours is not None
    last = {tour.scene_id: tour.episode_ids for tour in context.tours}  # tours that are not cleared again
    for scene, ids in last.items():
        graph, expected = context.atlas.graph(scene), set[str]()
        for here, after in zip(ids, [*ids[1:], None], strict=True):
            goal = context.by_id[here].goal
            expected |= {*phased[here], *graph.shortest_path(phased[here][-1], goal)}
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
def test_oracle_phase_goes_to_the_goal_and_to_the_next_start(
    following: str | None, withheld: bool, phases: bool, expected: set[str]
) -> None:
    atlas = build_toy_atlas()
    bank = MemoryBank.from_atlas(atlas)
    episode = replace(make_episode("pantry", "hall", "door", "garden"), goal_withheld=withheld)
    after = None if following is None else make_episode(following, "landing", name="1_0")
    lifetime = MemoryLifetime(
        "tour", atlas, bank, tours={"0_0": TourPosition(0, after)}, oracle_phases=phases
    )
    poses = [(int(viewpoint), 12) for viewpoint in atlas.locate("cottage", ["pantry", "kitchen"])]
    lifetime.finish(Trajectory(episode, poses, num_decisions=1))  # the limit ended it in the kitchen
    assert set(bank["cottage"].viewpoints) == expected


@pytest.mark.parametrize("memory", ["cold", "episodic", "tour"])
def test_replayed_trajectories_restore_the_memory(dataset: ToyDataset, memory: str) -> None:
    tours = {"tours": dataset.tours, "oracle_phases": True} if memory == "tour" else {}
    context = dataset.context(memory, **tours)
    one, other = context.lifetime(), context.lifetime()
    for trajectory, _ in run_lanes(context, one).values():
        other.replay(trajectory)
    assert one.bank is not None and other.bank is not None
    everywhere = torch.arange(len(context.atlas))
    assert torch.equal(one.bank.recall_at(everywhere), other.bank.recall_at(everywhere))
    assert bool(one.bank.visited.any())


READER = CandidateEnhancing(CandidateEnhancingConfig(width=4))


@pytest.mark.parametrize(
    ("memory", "reader", "changes", "message"),
    [
        ("none", READER, {}, "with 'masked' it recalls only zeros"),
        ("cold", NoMemory(), {}, "use 'none'"),
        ("masked", NoMemory(), {}, "use 'none'"),
        ("unknown", READER, {}, "expected one of none, cold"),
        ("warm", READER, {}, "belong together"),
        ("cold", READER, {"bank": "file"}, "belong together"),
        ("tour", READER, {}, "give the tours with --tours FILE"),
        ("tour", NoMemory(), {"tours": "file"}, "use 'none'"),
        ("cold", READER, {"oracle_phases": True}, "give --tours FILE as well"),
        ("none", NoMemory(), {"tours": "file", "oracle_phases": True}, "no effect with 'none'"),
        ("episodic", READER, {"tours": "file", "oracle_phases": True}, "no effect with 'episodic'"),
        ("oracle", READER, {"tours": "file", "oracle_phases": True}, "no effect with 'oracle'"),
        ("episodic", READER, {"lanes": False}, "memory 'episodic' needs .* use the schedule 'lanes'"),
        ("none", NoMemory(), {"tours": "file", "lanes": False}, "tours need .* use the schedule 'lanes'"),
        ("tour", READER, {"tours": "file", "lanes": False}, "use the schedule 'lanes'"),
    ],
)
def test_invalid_protocols_are_refused(
    memory: str, reader: Reader, changes: dict[str, object], message: str
) -> None:
    options: dict[str, object] = {"bank": None, "tours": None, "oracle_phases": False, "lanes": True}
    with pytest.raises(ConfigError, match=message):
        check_protocol(memory, reader, **(options | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("memory", "reader", "oracle_phases"),
    [
        ("none", NoMemory(), False),
        ("tour", READER, True),
        ("cold", READER, True),
        ("two-pass", READER, False),
        ("episodic", READER, False),
        ("masked", READER, True),
        ("oracle", READER, False),
    ],
)
def test_every_protocol_may_be_run_on_tours(memory: Any, reader: Reader, oracle_phases: bool) -> None:
    check_protocol(memory, reader, bank=None, tours="file", oracle_phases=oracle_phases, lanes=True)
