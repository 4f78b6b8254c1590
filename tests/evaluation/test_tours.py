"""Episodes on tours (IVLN): what is remembered when each begins, and what is scored, for any agent."""

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

# -- by hand -----------------------------------------------------------------------------------------------

EPISODES_BY_HAND = [
    make_episode("hall", "door", "garden", name="1_0"),
    make_episode("pantry", "hall", "landing", name="2_0"),
    make_episode("attic", "landing", "hall", name="3_0"),
    make_episode("door", "hall", "kitchen", name="4_0"),
    make_episode("hall", "pantry", name="5_0"),
    make_episode("hall", "door", scene="shed", name="6_0"),
]
WALKED = {
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
OWN = {
    "1_0": set(),
    "2_0": {"hall", "kitchen"},
    "3_0": {"hall", "kitchen", "pantry"},
    "4_0": set(),
    "5_0": {"door", "garden"},
    "6_0": set(),
}
"""What is remembered when an episode begins, of the agent's own walks."""
LED = {
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
"""The same with what an oracle showed in between."""


class Watched(MemoryLifetime):
    """Keeps what was remembered of a scene when each of its episodes began."""

    def begin(self, walk: Trajectory) -> None:
        """Look, when whatever is forgotten has been."""
        super().begin(walk)
        self.begun = getattr(self, "begun", {})
        self.begun[walk.episode.episode_id] = self.places(walk.episode.scene_id)

    def places(self, scene: str) -> set[str]:
        return set() if self.bank is None or scene not in self.bank.scenes else {*self.bank[scene].viewpoints}


def live_by_hand(
    protocol: Any, *, oracle_phases: bool, slots: int = 2
) -> tuple[Watched, dict[str, list[str]]]:
    """Live the tours with an agent that walks as it is told; the memory, and the walks."""
    atlas = build_toy_atlas()
    navigator = plain_navigator() if protocol == "none" else small_navigator()
    bank = None if protocol == "none" else MemoryBank.from_atlas(atlas)
    places = tour_positions(TOURS, EPISODES_BY_HAND)
    lifetime = Watched(protocol, atlas, bank, tours=places, oracle_phases=oracle_phases)

    def told(walk: Trajectory) -> int:
        path = WALKED[walk.episode.episode_id]
        here = path[min(walk.num_decisions + 1, len(path) - 1)]
        return int(atlas.locate(walk.episode.scene_id, [here])[0])

    source = Lanes(atlas, tour_episodes(TOURS, EPISODES_BY_HAND), lifetime, num_slots=slots)
    choose = teacher_forcing(atlas, told)
    steps = roll_out(navigator, atlas, source, lifetime.memory, choose, encode=encode, max_steps=9)
    walks = {
        walk.episode.episode_id: [atlas.name(viewpoint)[1] for viewpoint, _ in walk.poses]
        for step in steps
        for walk in step.finished
    }
    return lifetime, walks


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize(("oracle_phases", "expected"), [(False, OWN), (True, LED)])
def test_what_is_remembered_when_each_episode_of_a_tour_begins(
    oracle_phases: bool, expected: dict[str, set[str]], slots: int
) -> None:
    lifetime, walks = live_by_hand("tour", oracle_phases=oracle_phases, slots=slots)
    assert lifetime.begun == expected
    assert walks == WALKED  # where an oracle led nobody is scored
    # The last episode stops in the hall; after it there is a goal to be led to, and no next start.
    assert lifetime.places("cottage") == expected["5_0"] | ({"pantry"} if oracle_phases else set()) | {"hall"}


def test_other_protocols_follow_tours_and_do_not_forget_at_their_beginning() -> None:
    cold, _ = live_by_hand("cold", oracle_phases=False)
    assert cold.begun == {**OWN, "4_0": (seen := {*OWN["3_0"], "attic", "landing"}), "5_0": seen | OWN["5_0"]}
    episodic, _ = live_by_hand("episodic", oracle_phases=False)
    assert not any(episodic.begun.values())
    nothing, walks = live_by_hand("none", oracle_phases=False)
    assert nothing.bank is None and walks == WALKED


def test_an_oracle_that_cannot_lead_to_the_next_start_is_an_error_of_the_tours() -> None:
    places = {"hall": (0, 0, 0), "door": (0, 2, 0), "islet": (9, 0, 0), "pier": (9, 2, 0)}
    atlas = Atlas([SceneGraph.build("lake", places, [("hall", "door"), ("islet", "pier")])])
    walks = [("hall", "door"), ("door", "hall"), ("pier", "islet")]
    episodes = [make_episode(*path, scene="lake", name=f"{n}_0") for n, path in enumerate(walks)]
    tours = [Tour("lake", ("0_0", "1_0", "2_0"))]
    with pytest.raises(DataError, match=r"t.json: scene 'lake': no path leads from episode '1_0' to '2_0'"):
        check_tour_routes(tours, episodes, atlas, "t.json")
    check_tour_routes([Tour("lake", ("0_0", "1_0")), Tour("lake", ("2_0",))], episodes, atlas, "t.json")


# -- any agent ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unaided(dataset: ToyDataset, tmp_path_factory: pytest.TempPathFactory) -> ToyDataset:
    """The dataset with an agent that has no memory."""
    return dataset._replace(
        run=random_run(tmp_path_factory.mktemp("none"), dataset.root, has_memory=False, seed=23)
    )


def order(result: Result) -> list[str]:
    return [each.id for each in result.episodes]


def test_an_agent_without_memory_lives_tours_like_one_with_it(
    dataset: ToyDataset, unaided: ToyDataset, evaluated: Evaluate, tmp_path: Path
) -> None:
    without = evaluate(unaided.config("none", tours=dataset.tours), tmp_path / "none")
    with_memory = evaluated("tour", tours=dataset.tours).result
    assert order(without) == order(with_memory)
    assert [each.visit for each in without.episodes] == [each.visit for each in with_memory.episodes]
    assert without.facts["order"] == "tours" and without.facts["memory"] == "none"
    assert list(without.means)[-3:] == list(TOUR_METRICS) and len(without.episodes) == EPISODES
    # Each walks as it would without tours; only their scores are added.
    plain = evaluate(unaided.config("none"), tmp_path / "plain")
    assert {each.id: each.trajectory for each in plain.episodes} == {
        each.id: each.trajectory for each in without.episodes
    }
    assert {name: without.means[name] for name in plain.means} == pytest.approx(plain.means)
    assert not (tmp_path / "none" / "bank.safetensors").exists()


@pytest.mark.parametrize("agent", ["shortest", "random", "stop"])
def test_scripted_agents_live_tours(dataset: ToyDataset, tmp_path: Path, agent: str) -> None:
    means = evaluate(dataset.config("none", run=agent, tours=dataset.tours), tmp_path).means
    if agent == "shortest":
        assert means["t_sr"] == 1.0 and means["t_spl"] == pytest.approx(means["spl"])
    else:
        assert 0 < means["t_ndtw"] < 1


def test_scores_of_tours_are_those_of_the_prediction_file(dataset: ToyDataset, evaluated: Evaluate) -> None:
    made = evaluated("tour", tours=dataset.tours)
    context = dataset.context("tour", tours=dataset.tours)
    predictions = read_predictions(made.folder / "predictions.json")
    pairs = [(context.by_id[name], each) for name, each in predictions.items()]
    again = score(pairs, context.atlas, tours=context.tours)
    assert again.means() == pytest.approx(made.result.means)
    assert scores_of(made.result).means() == pytest.approx(made.result.means)
    assert list(scores_of(made.result).tour_values) == list(TOUR_METRICS)


@pytest.mark.parametrize("oracle_phases", [False, True])
def test_tours_give_the_same_files_in_any_batch_after_a_kill_and_in_processes(
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


def test_tours_that_leave_episodes_out_are_what_is_lived(dataset: ToyDataset, tmp_path: Path) -> None:
    everything = read_json(Path(dataset.tours), dict[str, dict[str, list[list[str]]]])[SPLIT]
    scene = max(everything, key=lambda each: len(everything[each]))
    some = {scene: everything[scene][:1]}
    write_json(tmp_path / "some.json", {SPLIT: some})
    result = evaluate(dataset.config("tour", tours=str(tmp_path / "some.json")), tmp_path / "out")
    assert order(result) == some[scene][0] and result.means["n"] == len(some[scene][0])
    assert result.facts["episodes"] + result.facts["left_out"] == EPISODES
    # An evaluation without tours has no such fact: its fingerprint is what it was before there were tours.
    assert "left_out" not in dataset.context("cold").facts


# -- comparing ---------------------------------------------------------------------------------------------


def test_results_of_the_same_tours_are_compared_by_them_too(
    dataset: ToyDataset, unaided: ToyDataset, evaluated: Evaluate, tmp_path: Path
) -> None:
    with_memory = evaluated("tour", tours=dataset.tours).result
    without = evaluate(unaided.config("none", tours=dataset.tours), tmp_path / "none")
    found = {row.measure: row for row in compare([without, with_memory], draws=50).measures}
    for name in TOUR_METRICS:
        assert found[name].means == pytest.approx((without.means[name], with_memory.means[name]))
        (gain,) = found[name].differences
        assert gain.mean == pytest.approx(with_memory.means[name] - without.means[name])
        assert gain.over_paths is None and gain.over_scenes is not None  # tours are of one scene each
    assert found["sr"].differences[0].over_paths is not None
    # Where one of them lived no tours, or others, there is nothing of the kind to compare.
    plain = evaluate(unaided.config("none"), tmp_path / "plain")
    assert not {row.measure for row in compare([plain, with_memory], draws=5).measures} & {*TOUR_METRICS}


def test_tours_of_another_order_are_another_evaluation(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path
) -> None:
    copytree(evaluated("tour", tours=dataset.tours).folder, tmp_path / "taken")
    everything = read_json(Path(dataset.tours), dict[str, dict[str, list[list[str]]]])[SPLIT]
    turned = {scene: [tour[::-1] for tour in tours] for scene, tours in everything.items()}
    write_json(tmp_path / "turned.json", {SPLIT: turned})
    with pytest.raises(DataError, match="holds another evaluation"):
        evaluate(dataset.config("tour", tours=str(tmp_path / "turned.json")), tmp_path / "taken")


def test_a_tour_of_one_scene_adds_the_same_to_all_of_its_episodes(
    dataset: ToyDataset, evaluated: Evaluate
) -> None:
    result = evaluated("tour", tours=dataset.tours).result
    followed = {each.id: each.scores["t_ndtw"] for each in result.episodes}
    tours = dataset.context("tour", tours=dataset.tours).tours
    assert tours is not None
    for tour in tours:
        assert all(followed[a] == followed[b] for a, b in pairwise(tour.episode_ids))
    assert np.mean(list(followed.values())) == pytest.approx(result.means["t_ndtw"])


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_lives_tours(dataset: ToyDataset, tmp_path: Path, reader: str) -> None:
    drawn = random_navigator_config(dataset.root)
    width = {"width": WIDTH} if "width" in {each.name for each in fields(READERS[reader].Config)} else {}
    config = replace(drawn, reader=READERS[reader].Config(**width))
    run = save_run(tmp_path / "run", config.build(seed=0), config)
    if READERS[reader].uses_memory:
        config = dataset.config("tour", run=str(run), tours=dataset.tours, oracle_phases=True)
    else:
        config = dataset.config("none", run=str(run), tours=dataset.tours)
    means = evaluate(config, tmp_path / "out").means
    assert means["n"] == EPISODES and all(0 <= means[name] <= 1 + 1e-12 for name in TOUR_METRICS)
