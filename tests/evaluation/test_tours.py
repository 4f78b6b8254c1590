"""Evaluation on tours (IVLN): memory at the start of every episode, and scores, for any agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from esceme.errors import DataError
from esceme.evaluation import MemoryLifetime, Result, compare, evaluate
from esceme.evaluation.protocol import check_tour_routes, tour_episodes, tour_positions
from esceme.evaluation.result import scores_of
from esceme.evaluation.schedule import Lanes
from esceme.files import read_json, write_json
from esceme.memory import READERS, MemoryBank
from esceme.metrics import TOUR_METRICS, score
from esceme.rollout import roll_out
from esceme.runs import save_run
from esceme.tasks.submission import read_predictions
from esceme.tasks.tours import Tour
from esceme.trajectory import Trajectory, teacher_forcing
from esceme.world import Atlas, SceneGraph
from fixtures.random_runs import random_navigator_config, random_run
from fixtures.toy_atlas import build_toy_atlas, encode, make_episode, plain_navigator, small_navigator
from fixtures.toy_dataset import EPISODES, SPLIT, WIDTH, ToyDataset

Evaluate = Callable[..., Any]
PRODUCTS = ("result.json", "predictions.json")

# -- a constructed example -------------------------------------------------------------------------------

TOY_EPISODES = [
    make_episode("hall", "door", "garden", name="1_0"),
    make_episode("pantry", "hall", "landing", name="2_0"),
    make_episode("attic", "landing", "hall", name="3_0"),
    make_episode("door", "hall", "kitchen", name="4_0"),
    make_episode("hall", "pantry", name="5_0"),
    make_episode("hall", "door", scene="shed", name="6_0"),
]
PATHS = {
    "1_0": ["hall", "kitchen"],  # stops in the kitchen instead of the garden
    "2_0": ["pantry", "hall"],  # too early
    "3_0": ["attic", "landing", "hall"],
    "4_0": ["door", "garden"],
    "5_0": ["hall"],  # does not move
    "6_0": ["hall", "door"],
}
TOURS = [
    Tour("cottage", ("1_0", "2_0", "3_0")),
    Tour("cottage", ("4_0", "5_0")),
    Tour("shed", ("6_0",)),
]
WITHOUT_ORACLE = {
    "1_0": set(),
    "2_0": {"hall", "kitchen"},
    "3_0": {"hall", "kitchen", "pantry"},
    "4_0": set(),
    "5_0": {"door", "garden"},
    "6_0": set(),
}
"""Remembered viewpoints at the start of every episode, without oracle phases."""
WITH_ORACLE = {
    "1_0": set(),
    # from the kitchen to the garden, and from there to the pantry
    "2_0": {"hall", "kitchen", "door", "garden", "pantry"},
    # from the hall to the landing, and up to the attic
    "3_0": {"hall", "kitchen", "door", "garden", "pantry", "landing", "attic"},
    "4_0": set(),
    # from the garden to the kitchen, and back to the hall
    "5_0": {"door", "garden", "hall", "kitchen"},
    "6_0": set(),
}
"""The same with oracle phases."""


class RecordingLifetime(MemoryLifetime):
    """Records the remembered viewpoints at the start of every episode."""

    def begin(self, trajectory: Trajectory) -> None:
        """Record after the memory was cleared."""
        super().begin(trajectory)
        self.begun = getattr(self, "begun", {})
        self.begun[trajectory.episode.episode_id] = self.remembered(trajectory.episode.scene_id)

    def remembered(self, scene: str) -> set[str]:
        return set() if self.bank is None or scene not in self.bank.scenes else {*self.bank[scene].viewpoints}


def run_tours(
    protocol: Any, *, oracle_phases: bool, slots: int = 2
) -> tuple[RecordingLifetime, dict[str, list[str]]]:
    """Run the tours along PATHS; return the lifetime and the trajectories."""
    atlas = build_toy_atlas()
    navigator = plain_navigator() if protocol == "none" else small_navigator()
    bank = None if protocol == "none" else MemoryBank.from_atlas(atlas)
    positions = tour_positions(TOURS, TOY_EPISODES)
    lifetime = RecordingLifetime(protocol, atlas, bank, tours=positions, oracle_phases=oracle_phases)

    def expert(trajectory: Trajectory) -> int:
        path = PATHS[trajectory.episode.episode_id]
        here = path[min(trajectory.num_decisions + 1, len(path) - 1)]
        return int(atlas.locate(trajectory.episode.scene_id, [here])[0])

    source = Lanes(atlas, tour_episodes(TOURS, TOY_EPISODES), lifetime, num_slots=slots)
    choose = teacher_forcing(atlas, expert)
    steps = roll_out(navigator, atlas, source, lifetime.memory, choose, encode=encode, max_steps=9)
    trajectories = {
        trajectory.episode.episode_id: [atlas.name(viewpoint)[1] for viewpoint, _ in trajectory.poses]
        for step in steps
        for trajectory in step.finished
    }
    return lifetime, trajectories


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize(("oracle_phases", "expected"), [(False, WITHOUT_ORACLE), (True, WITH_ORACLE)])
def test_memory_at_the_start_of_every_episode_of_a_tour(
    oracle_phases: bool, expected: dict[str, set[str]], slots: int
) -> None:
    lifetime, trajectories = run_tours("tour", oracle_phases=oracle_phases, slots=slots)
    assert lifetime.begun == expected
    assert trajectories == PATHS  # oracle phases are not part of them
    # The last episode stops in the hall; its oracle phase goes to the goal, and there is no next start.
    assert lifetime.remembered("cottage") == expected["5_0"] | ({"pantry"} if oracle_phases else set()) | {
        "hall"
    }


def test_other_protocols_keep_their_memory_between_tours() -> None:
    cold, _ = run_tours("cold", oracle_phases=False)
    assert cold.begun == {
        **WITHOUT_ORACLE,
        "4_0": (seen := {*WITHOUT_ORACLE["3_0"], "attic", "landing"}),
        "5_0": seen | WITHOUT_ORACLE["5_0"],
    }
    episodic, _ = run_tours("episodic", oracle_phases=False)
    assert not any(episodic.begun.values())
    nothing, trajectories = run_tours("none", oracle_phases=False)
    assert nothing.bank is None and trajectories == PATHS


def test_tours_without_a_path_to_the_next_start_are_refused() -> None:
    positions = {"hall": (0, 0, 0), "door": (0, 2, 0), "islet": (9, 0, 0), "pier": (9, 2, 0)}
    atlas = Atlas([SceneGraph.build("lake", positions, [("hall", "door"), ("islet", "pier")])])
    paths = [("hall", "door"), ("door", "hall"), ("pier", "islet")]
    episodes = [make_episode(*path, scene="lake", name=f"{n}_0") for n, path in enumerate(paths)]
    tours = [Tour("lake", ("0_0", "1_0", "2_0"))]
    with pytest.raises(DataError, match=r"t.json: scene 'lake': no path leads from episode '1_0' to '2_0'"):
        check_tour_routes(tours, episodes, atlas, "t.json")
    check_tour_routes([Tour("lake", ("0_0", "1_0")), Tour("lake", ("2_0",))], episodes, atlas, "t.json")


# -- any agent -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def without_memory(dataset: ToyDataset, tmp_path_factory: pytest.TempPathFactory) -> ToyDataset:
    """The dataset with an agent without a reader."""
    return dataset._replace(
        run=random_run(tmp_path_factory.mktemp("none"), dataset.root, has_memory=False, seed=23)
    )


def ids(result: Result) -> list[str]:
    return [episode.id for episode in result.episodes]


def test_agent_without_memory_runs_the_same_tours(
    dataset: ToyDataset, without_memory: ToyDataset, evaluated: Evaluate, tmp_path: Path
) -> None:
    without = evaluate(without_memory.config("none", tours=dataset.tours), tmp_path / "none")
    with_memory = evaluated("tour", tours=dataset.tours).result
    assert ids(without) == ids(with_memory)
    assert [e.visit for e in without.episodes] == [e.visit for e in with_memory.episodes]
    assert without.facts["order"] == "tours" and without.facts["memory"] == "none"
    assert list(without.means)[-3:] == list(TOUR_METRICS) and len(without.episodes) == EPISODES
    # Tours only add their scores; the trajectories are the same.
    plain = evaluate(without_memory.config("none"), tmp_path / "plain")
    assert {e.id: e.trajectory for e in plain.episodes} == {e.id: e.trajectory for e in without.episodes}
    assert {name: without.means[name] for name in plain.means} == pytest.approx(plain.means)
    assert not (tmp_path / "none" / "bank.safetensors").exists()


@pytest.mark.parametrize("agent", ["shortest", "random", "stop"])
def test_scripted_agents_run_tours(dataset: ToyDataset, tmp_path: Path, agent: str) -> None:
    means = evaluate(dataset.config("none", run=agent, tours=dataset.tours), tmp_path).means
    if agent == "shortest":
        assert means["t_sr"] == 1.0 and means["t_spl"] == pytest.approx(means["spl"])
    else:
        assert 0 < means["t_ndtw"] < 1


def test_scores_of_tours_equal_those_of_the_prediction_file(dataset: ToyDataset, evaluated: Evaluate) -> None:
    finished = evaluated("tour", tours=dataset.tours)
    context = dataset.context("tour", tours=dataset.tours)
    predictions = read_predictions(finished.folder / "predictions.json")
    pairs = [(context.by_id[name], prediction) for name, prediction in predictions.items()]
    again = score(pairs, context.atlas, tours=context.tours)
    assert again.means() == pytest.approx(finished.result.means)
    assert scores_of(finished.result).means() == pytest.approx(finished.result.means)
    assert list(scores_of(finished.result).tour_values) == list(TOUR_METRICS)


@pytest.mark.parametrize("oracle_phases", [False, True])
def test_resumed_tours_give_the_same_files_for_any_batch_and_processes(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path, oracle_phases: bool
) -> None:
    changes = {"tours": dataset.tours, "oracle_phases": oracle_phases}
    whole = evaluated("tour", **changes)
    expected = [(whole.folder / name).read_bytes() for name in PRODUCTS]
    journal = (whole.folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    for name, batch, processes in (("one", 1, 1), ("shared", 3, 2)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "journal.jsonl").write_bytes(b"".join(journal[:8]))
        evaluate(dataset.config("tour", batch=batch, **changes), folder, processes=processes)
        assert [(folder / name).read_bytes() for name in PRODUCTS] == expected


def test_only_episodes_on_tours_are_run(dataset: ToyDataset, tmp_path: Path) -> None:
    everything = read_json(Path(dataset.tours), dict[str, dict[str, list[list[str]]]])[SPLIT]
    scene = max(everything, key=lambda name: len(everything[name]))
    some = {scene: everything[scene][:1]}
    write_json(tmp_path / "some.json", {SPLIT: some})
    result = evaluate(dataset.config("tour", tours=str(tmp_path / "some.json")), tmp_path / "out")
    assert ids(result) == some[scene][0] and result.means["n"] == len(some[scene][0])
    assert result.facts["episodes"] + result.facts["left_out"] == EPISODES
    # Without tours there is no such fact, so that fingerprints of earlier versions stay valid.
    assert "left_out" not in dataset.context("cold").facts


# -- comparing -------------------------------------------------------------------------------------------


def test_results_of_the_same_tours_are_compared_by_tour_metrics(
    dataset: ToyDataset, without_memory: ToyDataset, evaluated: Evaluate, tmp_path: Path
) -> None:
    with_memory = evaluated("tour", tours=dataset.tours).result
    without = evaluate(without_memory.config("none", tours=dataset.tours), tmp_path / "none")
    found = {row.measure: row for row in compare([without, with_memory], draws=50).measures}
    for name in TOUR_METRICS:
        assert found[name].means == pytest.approx((without.means[name], with_memory.means[name]))
        (gain,) = found[name].differences
        assert gain.mean == pytest.approx(with_memory.means[name] - without.means[name])
        assert gain.over_paths is None and gain.over_scenes is not None  # a tour has many paths and one scene
    assert found["sr"].differences[0].over_paths is not None
    # Results of different tours have no tour metrics to compare.
    plain = evaluate(without_memory.config("none"), tmp_path / "plain")
    assert not {row.measure for row in compare([plain, with_memory], draws=5).measures} & {*TOUR_METRICS}


def test_tours_of_another_order_change_the_fingerprint(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path
) -> None:
    copytree(evaluated("tour", tours=dataset.tours).folder, tmp_path / "taken")
    everything = read_json(Path(dataset.tours), dict[str, dict[str, list[list[str]]]])[SPLIT]
    turned = {scene: [tour[::-1] for tour in tours] for scene, tours in everything.items()}
    write_json(tmp_path / "turned.json", {SPLIT: turned})
    with pytest.raises(DataError, match="holds another evaluation"):
        evaluate(dataset.config("tour", tours=str(tmp_path / "turned.json")), tmp_path / "taken")


def test_t_ndtw_is_equal_for_all_episodes_of_a_tour(dataset: ToyDataset, evaluated: Evaluate) -> None:
    result = evaluated("tour", tours=dataset.tours).result
    scores = {episode.id: episode.scores["t_ndtw"] for episode in result.episodes}
    tours = dataset.context("tour", tours=dataset.tours).tours
    assert tours is not None
    for tour in tours:
        assert all(scores[a] == scores[b] for a, b in pairwise(tour.episode_ids))
    assert np.mean(list(scores.values())) == pytest.approx(result.means["t_ndtw"])


@pytest.mark.parametrize("reader", [name for name, kind in READERS.items() if not kind.needs_map])
def test_every_reader_runs_tours(dataset: ToyDataset, tmp_path: Path, reader: str) -> None:
    base = random_navigator_config(dataset.root)
    width = {"width": WIDTH} if "width" in {field.name for field in fields(READERS[reader].Config)} else {}
    config = replace(base, reader=READERS[reader].Config(**width))
    run = save_run(tmp_path / "run", config.build(seed=0), config)
    if READERS[reader].uses_memory:
        config = dataset.config("tour", run=str(run), tours=dataset.tours, oracle_phases=True)
    else:
        config = dataset.config("none", run=str(run), tours=dataset.tours)
    means = evaluate(config, tmp_path / "out").means
    assert means["n"] == EPISODES and all(0 <= means[name] <= 1 + 1e-12 for name in TOUR_METRICS)
