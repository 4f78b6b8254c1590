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
from esceme.evaluation.journal import Head, read_journals
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
from fixtures.toy_atlas import cottage, walk_of
from fixtures.toy_dataset import WIDTH, Street

Evaluate = Callable[..., Any]
Trajectories = dict[str, list[str]]


def trajectories(result: Result) -> Trajectories:
    return {each.id: [viewpoint for viewpoint, *_ in each.trajectory] for each in result.episodes}


def walked(stage: EvaluationContext, walk: Trajectory) -> list[str]:
    return [stage.atlas.name(viewpoint)[1] for viewpoint, _ in walk.poses]


@torch.inference_mode()
def lived(
    stage: EvaluationContext, source: EpisodeSource, lifetime: MemoryLifetime
) -> dict[str, tuple[Trajectory, list[Tensor]]]:
    """Every walk of a source with the logits of its decisions."""
    told: dict[str, tuple[Trajectory, list[Tensor]]] = {}
    for step in roll_out(
        stage.run.navigator,
        stage.atlas,
        source,
        lifetime.memory,
        greedy,
        encode=stage.encode,
        max_steps=stage.limits.max_steps,
    ):
        for row, walk in enumerate(step.trajectories):
            logits = step.decision.logits[row]
            told.setdefault(walk.episode.episode_id, (walk, []))[1].append(logits[logits.isfinite()])
    return told


def told_in_lanes(
    stage: EvaluationContext, lifetime: MemoryLifetime | None = None
) -> dict[str, tuple[Trajectory, list[Tensor]]]:
    """The walks of a stage, three at a time."""
    lifetime = lifetime or stage.lifetime()
    return lived(stage, Lanes(stage.atlas, stage.episodes, lifetime, slots=3), lifetime)


def places(bank: MemoryBank) -> set[tuple[str, str]]:
    return {(scene, name) for scene in bank.scenes for name in bank[scene].viewpoints}


def one_after_the_other(
    stage: EvaluationContext, episodes: Iterable[Episode], bank: MemoryBank
) -> Trajectories:
    """The plainest loop: one agent, one episode at a time, one bank."""
    lifetime = MemoryLifetime("cold", stage.atlas, bank)
    told = lived(stage, Lanes(stage.atlas, episodes, lifetime, slots=1), lifetime)
    return {name: walked(stage, walk) for name, (walk, _) in told.items()}


def test_cold_keeps_one_memory_for_the_whole_split(street: Street, evaluated: Evaluate) -> None:
    stage = street.stage()
    scenes = sorted({episode.scene_id for episode in stage.episodes})
    ordered = [each for scene in scenes for each in stage.episodes if each.scene_id == scene]
    bank = MemoryBank.of(stage.atlas)
    assert trajectories(evaluated().result) == one_after_the_other(stage, ordered, bank)
    assert places(evaluated().bank) == places(bank)


def test_two_pass_coverage_is_at_least_that_of_cold(street: Street, evaluated: Evaluate) -> None:
    once, twice = evaluated("cold"), evaluated("two-pass")
    assert places(once.bank) < places(twice.bank)
    # The first pass is the cold life, and the second one is what counts.
    lines = read_journals(twice.folder, Head(street.stage("two-pass").fingerprint))
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
    street: Street, evaluated: Evaluate, tmp_path: Path
) -> None:
    bank = MemoryBank.of(street.stage().atlas)
    bank.remember("elsewhere", "hall", torch.ones(1, bank.width), ["door"])
    save_bank(bank, tmp_path / "other.safetensors")
    warm = evaluated("warm", bank=str(tmp_path / "other.safetensors"))
    assert trajectories(warm.result) == trajectories(evaluated("cold").result)
    assert places(warm.bank) == places(evaluated("cold").bank) | {("elsewhere", "hall")}


def test_a_bank_of_other_features_is_refused(street: Street, tmp_path: Path) -> None:
    save_bank(MemoryBank(width=WIDTH, source="others"), tmp_path / "bank.safetensors")
    with pytest.raises(MemoryMismatch, match="others.*street.hdf5"):
        street.stage("warm", bank=str(tmp_path / "bank.safetensors")).lifetime()


@pytest.mark.parametrize("slots", [1, 8])
def test_episodic_equals_one_bank_per_episode_even_in_a_batch(
    street: Street, evaluated: Evaluate, slots: int
) -> None:
    stage = street.stage("episodic")
    alone: Trajectories = {}
    for episode in stage.episodes:
        alone |= one_after_the_other(stage, [episode], MemoryBank.of(stage.atlas))
    assert trajectories(evaluated("episodic", batch=slots).result) == alone
    assert trajectories(evaluated("cold").result) != alone


def test_masked_equals_cold_at_the_very_first_decision_in_a_scene(street: Street) -> None:
    cold, masked = (told_in_lanes(street.stage(memory)) for memory in ("cold", "masked"))
    first = [name for name, (walk, _) in cold.items() if walk.visit == 1]
    assert len(first) == 5
    for name in first:
        torch.testing.assert_close(cold[name][1][0], masked[name][1][0], atol=1e-5, rtol=0)
    later = [name for name, (walk, _) in cold.items() if walk.visit == 2]
    assert not all(torch.allclose(cold[name][1][0], masked[name][1][0], atol=1e-3) for name in later)


def test_masked_recalls_nothing_and_remembers_everything(street: Street, evaluated: Evaluate) -> None:
    class Blank(MemoryLifetime):
        """Zeros at all times, and nothing is kept."""

        memory = property(lambda self: self)

        def recall_at(self, viewpoints: Tensor) -> Tensor:
            return torch.zeros(*viewpoints.shape, WIDTH)

        def remember_seen(self, observation: Observation) -> None:
            pass

    stage, masked = street.stage("masked"), evaluated("masked")
    blank = told_in_lanes(stage, Blank("cold", stage.atlas, None))
    assert trajectories(masked.result) == {name: walked(stage, walk) for name, (walk, _) in blank.items()}
    told = trajectories(masked.result)
    stood = {
        (each.scene, name) for each in masked.result.episodes for name in told[each.id][: each.decisions]
    }
    assert places(masked.bank) == stood


def test_an_oracle_remembers_everything_before_the_first_step(street: Street, evaluated: Evaluate) -> None:
    stage = street.stage("oracle")
    bank = stage.lifetime().bank
    assert bank is not None and bool(bank.visited.all())
    assert trajectories(evaluated("oracle").result) == one_after_the_other(stage, stage.episodes, bank)
    assert len(evaluated("oracle").bank) == len(stage.atlas)


def test_a_tour_begins_with_nothing_and_keeps_what_it_meets(street: Street, evaluated: Evaluate) -> None:
    stage = street.stage("tour", tours=street.tours)
    assert stage.tours is not None and max(map(len, stage.tours)) == 3
    expected: Trajectories = {}
    for tour in stage.tours:
        episodes = [stage.by_id[each] for each in tour.episode_ids]
        expected |= one_after_the_other(stage, episodes, MemoryBank.of(stage.atlas))
    result = evaluated("tour", tours=street.tours, batch=8).result
    assert trajectories(result) == expected
    numbers = {each.id: each.visit for each in result.episodes}
    assert numbers == {each: n for tour in stage.tours for n, each in enumerate(tour.episode_ids, 1)}
    # The same order of life without clearing would not give the same.
    assert expected != one_after_the_other(stage, stage.episodes, MemoryBank.of(stage.atlas))


def test_oracle_phases_are_remembered_and_not_walked(street: Street, evaluated: Evaluate) -> None:
    stage = street.stage("tour", tours=street.tours)
    plain = trajectories(evaluated("tour", tours=street.tours, batch=8).result)
    with_phases = evaluated("tour", tours=street.tours, oracle_phases=True)
    led = trajectories(with_phases.result)
    first = [each.id for each in with_phases.result.episodes if each.visit == 1]
    assert {name: led[name] for name in first} == {name: plain[name] for name in first}
    assert led != plain
    assert stage.tours is not None
    last = {tour.scene_id: tour.episode_ids for tour in stage.tours}  # what is not cleared again
    for scene, ids in last.items():
        graph, expected = stage.atlas.graph(scene), set[str]()
        for here, after in zip(ids, [*ids[1:], None], strict=True):
            goal = stage.by_id[here].goal
            expected |= {*led[here], *graph.shortest_path(led[here][-1], goal)}
            expected |= set(graph.shortest_path(goal, stage.by_id[after].start)) if after else set()
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
    atlas = cottage()
    bank = MemoryBank.of(atlas)
    episode = replace(walk_of("pantry", "hall", "door", "garden"), goal_withheld=withheld)
    after = None if following is None else walk_of(following, "landing", name="1_0")
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
    street: Street, memory: str
) -> None:
    tours = {"tours": street.tours, "oracle_phases": True} if memory == "tour" else {}
    stage = street.stage(memory, **tours)
    one, other = stage.lifetime(), stage.lifetime()
    for walk, _ in told_in_lanes(stage, one).values():
        other.replay(walk)
    assert one.bank is not None and other.bank is not None
    everywhere = torch.arange(len(stage.atlas))
    assert torch.equal(one.bank.recall_at(everywhere), other.bank.recall_at(everywhere))
    assert bool(one.bank.visited.any())


FUSING = CandidateEnhancing(CandidateEnhancingConfig(width=4))


@pytest.mark.parametrize(
    ("memory", "reader", "changes", "message"),
    [
        ("none", FUSING, {}, "'masked' shows it nothing but zeros"),
        ("cold", NoMemory(), {}, "use 'none'"),
        ("masked", NoMemory(), {}, "use 'none'"),
        ("eternal", FUSING, {}, "expected one of none, cold"),
        ("warm", FUSING, {}, "belong together"),
        ("cold", FUSING, {"bank": "file"}, "belong together"),
        ("tour", FUSING, {}, "say which there are with --tours FILE"),
        ("tour", NoMemory(), {"tours": "file"}, "use 'none'"),
        ("cold", FUSING, {"oracle_phases": True}, "give --tours FILE as well"),
        ("none", NoMemory(), {"tours": "file", "oracle_phases": True}, "'none' makes no use of that"),
        ("episodic", FUSING, {"tours": "file", "oracle_phases": True}, "'episodic' makes no use of that"),
        ("oracle", FUSING, {"tours": "file", "oracle_phases": True}, "'oracle' makes no use of that"),
        ("episodic", FUSING, {"lanes": False}, "memory 'episodic' lives .* use the schedule 'lanes'"),
        (
            "none",
            NoMemory(),
            {"tours": "file", "lanes": False},
            "tours are lived .* use the schedule 'lanes'",
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


def test_a_missing_bank_is_named(street: Street, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing.safetensors"):
        street.stage("warm", bank=str(tmp_path / "missing.safetensors"))
