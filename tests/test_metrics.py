"""Metrics against values computed by hand, and against their definitions in plain loops."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import esceme.metrics
from esceme.errors import ConfigError, DataError
from esceme.metrics import (
    METRICS,
    TOUR_METRICS,
    PaddedPaths,
    Scores,
    cls,
    dtw,
    ndtw,
    path_length,
    score,
    score_paths,
    spl,
    spl_shortest,
)
from esceme.tasks.episode import DialogEpisode, Episode
from esceme.tasks.submission import Prediction, TrajectoryPoint
from esceme.tasks.tours import Tour
from esceme.world import Atlas, SceneGraph

Pair = tuple[Episode, Prediction]

# A corridor a - b - c - d - e with 2 m between neighbours, f 3 m behind e, and x 1 m beside c.
CORRIDOR = SceneGraph.build(
    "corridor",
    {
        "a": (0, 0, 0),
        "b": (0, 2, 0),
        "c": (0, 4, 0),
        "d": (0, 6, 0),
        "e": (0, 8, 0),
        "f": (0, 11, 0),
        "x": (1, 4, 0),
    },
    [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "f"), ("c", "x")],
)


@pytest.fixture(scope="module")
def atlas() -> Atlas:
    return Atlas([CORRIDOR])


def asked(reference: Sequence[str], episode_id: str = "1_0", **changes: Any) -> Episode:
    fields: dict[str, Any] = {
        "episode_id": episode_id,
        "scene_id": "corridor",
        "path_id": episode_id.partition("_")[0],
        "reference_path": tuple(reference),
        "heading": 0.0,
        "instruction": "go",
    }
    return Episode(**{**fields, **changes})


def dialog(reference: str, goals: str, **changes: Any) -> DialogEpisode:
    fields: dict[str, Any] = {
        "episode_id": "7",
        "scene_id": "corridor",
        "path_id": "3",
        "reference_path": tuple(reference),
        "heading": 0.0,
        "instruction": "go",
        "goals": tuple(goals),
        "planner_path": tuple(reference),
    }
    return DialogEpisode(**{**fields, **changes})


def went(walk: Sequence[str], episode_id: str = "1_0") -> Prediction:
    return Prediction(episode_id, tuple(TrajectoryPoint(viewpoint) for viewpoint in walk))


def means(atlas: Atlas, reference: str, walk: str, **changes: Any) -> dict[str, float]:
    return score([(asked(reference, **changes), went(walk))], atlas).means()


# -- by hand ---------------------------------------------------------------------------------------------


def test_stopping_one_viewpoint_early(atlas: Atlas) -> None:
    # e is 2 m from where the agent stopped, and in the warping it is matched with d.
    coverage = (4 + math.exp(-2 / 3)) / 5
    expected = coverage * 8  # metres due for what was covered: 7.2215, of which 6 were walked
    assert means(atlas, "abcde", "abcd") == pytest.approx(
        {
            "tl": 6.0,
            "ne": 2.0,
            "osr": 1.0,
            "sr": 1.0,
            "spl": 1.0,  # 8 / max(6, 8): a shorter walk is not rewarded
            "spl_shortest": 1.0,
            "cls": coverage * expected / (expected + (expected - 6)),
            "ndtw": math.exp(-2 / 15),
            "sdtw": math.exp(-2 / 15),
            "gp": 6.0,  # 8 m at the start, 2 m at the stop
            "steps": 3.0,
            "n": 1,
        }
    )


def test_detour_costs_length_and_warping(atlas: Atlas) -> None:
    # 2 + 2 + 1 + 1 + 2 + 2 = 10 m; x warps to c (1 m), c again to c (0 m).
    assert means(atlas, "abcde", "abcxcde") == pytest.approx(
        {
            "tl": 10.0,
            "ne": 0.0,
            "osr": 1.0,
            "sr": 1.0,
            "spl": 0.8,
            "spl_shortest": 0.8,
            "cls": 0.8,  # all covered: 8 / (8 + |8 - 10|)
            "ndtw": math.exp(-1 / 15),
            "sdtw": math.exp(-1 / 15),
            "gp": 8.0,
            "steps": 6.0,
            "n": 1,
        }
    )


def test_exactly_three_metres_is_no_success(atlas: Atlas) -> None:
    assert CORRIDOR.distance("e", "f") == 3.0
    assert means(atlas, "abcde", "abcdef") == pytest.approx(
        {
            "tl": 11.0,
            "ne": 3.0,
            "osr": 1.0,  # it came through e
            "sr": 0.0,
            "spl": 0.0,
            "spl_shortest": 0.0,
            "cls": 8 / (8 + 3),
            "ndtw": math.exp(-3 / 15),
            "sdtw": 0.0,
            "gp": 5.0,
            "steps": 5.0,
            "n": 1,
        }
    )


def test_exactly_three_metres_is_no_oracle_success_either(atlas: Atlas) -> None:
    found = means(atlas, "abcdef", "abcde")
    assert (found["ne"], found["sr"], found["osr"]) == (3.0, 0.0, 0.0)


def test_path_of_one_viewpoint(atlas: Atlas) -> None:
    coverage = sum(math.exp(-metres / 3) for metres in (0, 2, 4, 6, 8)) / 5
    assert means(atlas, "abcde", "a") == pytest.approx(
        {
            "tl": 0.0,
            "ne": 8.0,
            "osr": 0.0,
            "sr": 0.0,
            "spl": 0.0,
            "spl_shortest": 0.0,
            "cls": coverage / 2,  # E / (E + |E - 0|)
            "ndtw": math.exp(-(0 + 2 + 4 + 6 + 8) / 15),
            "sdtw": 0.0,
            "gp": 0.0,
            "steps": 0.0,
            "n": 1,
        }
    )


@pytest.mark.parametrize(
    ("reference", "walk", "against_reference", "against_shortest"),
    [
        ("abcdc", "abc", 1.0, 1.0),  # due 8 m, shortest 4 m, walked 4 m
        ("abcdc", "abcdc", 1.0, 0.5),  # walked 8 m
        ("abcdc", "abcdedc", 8 / 12, 4 / 12),  # walked 12 m
        ("aba", "a", 1.0, 1.0),  # due 4 m, shortest 0 m: standing still is the best one can do
        ("aba", "aba", 1.0, 0.0),
        ("abcba", "aba", 1.0, 0.0),
    ],
)
def test_spl_is_relative_to_reference_or_shortest_path(
    atlas: Atlas, reference: str, walk: str, against_reference: float, against_shortest: float
) -> None:
    found = means(atlas, reference, walk)
    assert found["sr"] == 1.0
    assert found["spl"] == pytest.approx(against_reference)
    assert found["spl_shortest"] == pytest.approx(against_shortest)


def test_step_without_edge_counts_as_the_shortest_path(atlas: Atlas) -> None:
    assert means(atlas, "abcde", "abe")["tl"] == 8.0
    assert means(atlas, "abcde", "abe")["steps"] == 2.0


def test_goal_progress_may_be_negative(atlas: Atlas) -> None:
    assert means(atlas, "cde", "cba")["gp"] == -4.0


def test_consecutive_equal_viewpoints_are_merged(atlas: Atlas) -> None:
    assert means(atlas, "abcde", "aabbbcxxcddee") == means(atlas, "abcde", "abcxcde")


def test_means_are_over_episodes(atlas: Atlas) -> None:
    walks = {"1_0": "abcd", "1_1": "abcdef", "2_0": "a"}
    pairs: list[Pair] = [(asked("abcde", name), went(walk, name)) for name, walk in walks.items()]
    scores = score(pairs, atlas)
    assert scores.episode_ids == ("1_0", "1_1", "2_0") and scores.path_ids == ("1", "1", "2")
    assert list(scores.means()) == [*METRICS, "n"]
    assert scores.means()["n"] == len(scores) == 3
    assert scores.means()["sr"] == pytest.approx(1 / 3)
    assert scores.means()["ne"] == pytest.approx((2 + 3 + 8) / 3)
    assert scores.values["tl"].tolist() == [6.0, 11.0, 0.0]


def test_single_metric_functions(atlas: Atlas) -> None:
    walked = PaddedPaths.of(atlas.locate_all([("corridor", "abcxcde"), ("corridor", "aa")]))
    assert walked.count.tolist() == [7, 1]
    assert path_length(walked, atlas).tolist() == [10.0, 0.0]
    one = np.ones(1)
    assert spl(one, length=np.array([10.0]), reference_length=np.array([8.0])).tolist() == [0.8]
    assert spl(one, length=np.zeros(1), reference_length=np.zeros(1)).tolist() == [
        0.0
    ]  # the original's 0.01 m
    assert spl_shortest(one, length=np.zeros(1), shortest=np.zeros(1)).tolist() == [1.0]
    assert ndtw(np.array([15.0]), np.array([5])).tolist() == [math.exp(-1)]


def test_coverage_ignores_padding_of_references() -> None:
    nearest = np.array([[0.0, 0.0], [3.0, 3.0], [0.0, 6.0]])  # three places; the first reference has two
    metres = np.array([4.0, 4.0])
    found = cls(nearest, np.array([2, 3]), length=metres, reference_length=metres)
    coverage = np.array([(1 + math.exp(-1)) / 2, (1 + math.exp(-1) + math.exp(-2)) / 3])
    assert found == pytest.approx(coverage * coverage)  # E / (E + (4 - E)) with E = 4 x coverage


# -- against plain loops ---------------------------------------------------------------------------------


def warp(costs: Sequence[Sequence[float]]) -> float:
    """Dynamic time warping by its recurrence, one cell at a time."""
    table = [[math.inf] * (len(costs[0]) + 1) for _ in range(len(costs) + 1)]
    table[0][0] = 0.0
    for i, row in enumerate(costs, 1):
        for j, cost in enumerate(row, 1):
            table[i][j] = cost + min(table[i - 1][j], table[i][j - 1], table[i - 1][j - 1])
    return table[-1][-1]


def by_definition(graph: SceneGraph, reference: Sequence[str], walk: Sequence[str]) -> dict[str, float]:
    """Every measure of one episode, from spec F.1."""
    sp = graph.distance

    def metres(path: Sequence[str]) -> float:
        return sum(sp(a, b) for a, b in zip(path, path[1:], strict=False))

    goal, walked, due = reference[-1], metres(walk), metres(reference)
    error = sp(walk[-1], goal)
    success = 1.0 if error < 3.0 else 0.0
    shortest = sp(reference[0], goal)
    fidelity = math.exp(-warp([[sp(p, r) for r in reference] for p in walk]) / (3 * len(reference)))
    coverage = sum(math.exp(-min(sp(r, p) for p in walk) / 3) for r in reference) / len(reference)
    expected = coverage * due
    return {
        "tl": walked,
        "ne": error,
        "osr": 1.0 if min(sp(p, goal) for p in walk) < 3.0 else 0.0,
        "sr": success,
        "spl": success * due / max(walked, due, 0.01),
        "spl_shortest": success * (shortest / max(walked, shortest) if shortest else float(walked == 0)),
        "cls": coverage * expected / (expected + abs(expected - walked)),
        "ndtw": fidelity,
        "sdtw": success * fidelity,
        "gp": shortest - error,
        "steps": len(walk) - 1.0,
    }


def merged(path: Sequence[str]) -> tuple[str, ...]:
    return tuple(b for a, b in zip([None, *path], path, strict=False) if a != b)


def random_graph(scene: str, size: int, rng: np.random.Generator) -> SceneGraph:
    """A connected graph on whole metres, so that distances of exactly 3 m and ties are common."""
    cells = rng.choice(8 * 8 * 2, size, replace=False)
    names = [f"{scene}-{index}" for index in range(size)]
    positions = {
        name: (int(c) % 8, int(c) // 8 % 8, 3 * (int(c) // 64)) for name, c in zip(names, cells, strict=True)
    }
    tree = [(names[int(rng.integers(index))], names[index]) for index in range(1, size)]
    extra = [(a, b) for a in names for b in names if a < b and rng.random() < 0.2]
    return SceneGraph.build(scene, positions, [*tree, *extra])


def random_path(
    graph: SceneGraph, start: str, steps: int, rng: np.random.Generator, *, rests: float = 0.0
) -> tuple[str, ...]:
    path = [start]
    for _ in range(steps):
        stays = rng.random() < rests
        around = [candidate.viewpoint for candidate in graph.candidates(path[-1])]
        path.append(path[-1] if stays else around[int(rng.integers(len(around)))])
    return tuple(path)


@st.composite
def worlds(draw: st.DrawFn, shortest_reference: int = 1) -> tuple[Atlas, list[Pair]]:
    """A few scenes, and episodes in them with random paths; instructions of one path share it."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, 3))
    graphs = [random_graph(f"s{number}", int(rng.integers(2, 10)), rng) for number in range(count)]
    pairs: list[Pair] = []
    for path in range(draw(st.integers(1, 5))):
        graph = graphs[int(rng.integers(count))]
        start = graph.viewpoints[int(rng.integers(len(graph)))]
        reference = random_path(graph, start, int(rng.integers(shortest_reference, 9)), rng)
        for k in range(int(rng.integers(1, 4))):
            walk = reference
            if rng.random() < 0.8:
                walk = random_path(graph, start, int(rng.integers(0, 14)), rng, rests=0.2)
            name = f"{path}_{k}"
            pairs.append((asked(reference, name, scene_id=graph.scene_id), went(walk, name)))
    return Atlas(graphs), pairs


World = tuple[Atlas, list[Pair]]


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(st.integers(1, 7), st.integers(1, 7)), min_size=1, max_size=6),
    st.floats(0, 0.3),
)
def test_batched_dtw_equals_single_dtw(seed: int, sizes: list[tuple[int, int]], forbidden: float) -> None:
    rng = np.random.default_rng(seed)
    rows, columns = (np.array(each) for each in zip(*sizes, strict=True))
    # What lies beyond a pair's true size is arbitrary, and must not matter.
    costs = rng.integers(0, 5, (rows.max(), columns.max(), len(sizes))).astype(float)
    costs[rng.random(costs.shape) < forbidden] = np.inf
    found = dtw(costs, rows, columns)
    for pair, (height, width) in enumerate(sizes):
        assert found[pair] == warp(costs[:height, :width, pair].tolist())


@given(worlds())
def test_metrics_equal_their_definitions(world: World) -> None:
    atlas, pairs = world
    scores = score(pairs, atlas)
    assert list(scores.values) == list(METRICS)
    for row, (episode, prediction) in enumerate(pairs):
        expected = by_definition(atlas.graph(episode.scene_id), episode.reference_path, prediction.path)
        assert {name: values[row] for name, values in scores.values.items()} == pytest.approx(expected)


@given(worlds())
def test_metrics_are_within_bounds(world: World) -> None:
    atlas, pairs = world
    found = score(pairs, atlas).values
    slack = 1e-9
    for name in ("osr", "sr", "spl", "spl_shortest", "cls", "ndtw", "sdtw"):
        assert (found[name] >= 0).all() and (found[name] <= 1 + slack).all()
    for name in ("spl", "spl_shortest", "sdtw"):
        assert (found[name] <= found["sr"] + slack).all()
    assert (found["sr"] <= found["osr"]).all()
    assert (found["ndtw"] > 0).all() and (found["sdtw"] <= found["ndtw"]).all()
    assert (found["tl"] >= found["gp"] - slack).all()  # progress is at most the length

    start = np.concatenate(atlas.locate_all([(episode.scene_id, (episode.start,)) for episode, _ in pairs]))
    goal = np.concatenate(atlas.locate_all([(episode.scene_id, (episode.goal,)) for episode, _ in pairs]))
    stop = np.concatenate(atlas.locate_all([(episode.scene_id, (walk.path[-1],)) for episode, walk in pairs]))
    apart, gone = atlas.distance(start, goal), atlas.distance(start, stop)
    assert (gone <= found["tl"] + slack).all()
    assert (np.abs(apart - gone) <= found["ne"] + slack).all() and (found["ne"] <= apart + gone + slack).all()


@given(worlds())
def test_ndtw_is_one_only_for_the_reference_path(world: World) -> None:
    atlas, pairs = world
    follows = [merged(episode.reference_path) == prediction.path for episode, prediction in pairs]
    found = score(pairs, atlas).values
    assert (found["ndtw"] == 1).tolist() == follows
    for name in ("sr", "spl", "cls", "sdtw"):
        assert found[name][follows] == pytest.approx(1.0)


@given(worlds(), st.data())
def test_scores_are_independent_of_other_episodes(world: World, data: st.DataObject) -> None:
    atlas, pairs = world
    together = score(pairs, atlas)
    order = data.draw(st.permutations(range(len(pairs))))
    shuffled = score([pairs[row] for row in order], atlas)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(esceme.metrics, "MAX_COSTS", data.draw(st.integers(1, 60)))
        in_pieces = score(pairs, atlas)
    for name, values in together.values.items():
        alone = [score([pair], atlas).values[name][0] for pair in pairs]
        assert values == pytest.approx(alone, rel=1e-12, abs=1e-12)
        assert values[order] == pytest.approx(shuffled.values[name], rel=1e-12, abs=1e-12)
        assert values == pytest.approx(in_pieces.values[name], rel=1e-12, abs=1e-12)


@given(worlds(), st.integers(0, 2**32 - 1))
def test_repeated_viewpoints_change_no_metric(world: World, seed: int) -> None:
    atlas, pairs = world
    rng = np.random.default_rng(seed)
    turning = [
        (episode, went([place for place in walk.path for _ in range(rng.integers(1, 4))], walk.episode_id))
        for episode, walk in pairs
    ]
    found, expected = score(turning, atlas).values, score(pairs, atlas).values
    assert all((found[name] == expected[name]).all() for name in expected)


@given(worlds())
def test_returning_to_the_start_has_no_goal_progress(world: World) -> None:
    atlas, pairs = world
    there = score(pairs, atlas).values
    back = score(
        [(episode, went([*walk.path, *walk.path[-2::-1]], walk.episode_id)) for episode, walk in pairs], atlas
    ).values
    assert back["tl"] == pytest.approx(2 * there["tl"])
    assert back["gp"] == pytest.approx(np.zeros(len(pairs)))
    assert (back["osr"] == there["osr"]).all()
    assert (back["spl_shortest"] <= back["sr"]).all()


@pytest.mark.real
@pytest.mark.parametrize("name", ["metrics_r2r_val_unseen", "metrics_r4r_val_seen_synthetic"])
def test_real_episodes_score_as_with_the_original_evaluator(
    vectors_root: Path, real_graphs: dict[str, SceneGraph], name: str
) -> None:
    rows = json.loads((vectors_root / f"{name}.json").read_text())["rows"]
    pairs: list[Pair] = [
        (
            asked(row["gt_path"], row["instr_id"], scene_id=row["scan"]),
            went(row["pred_path"], row["instr_id"]),
        )
        for row in rows
    ]
    atlas = Atlas([real_graphs[scene] for scene in {row["scan"] for row in rows}])
    found = score(pairs, atlas).values
    keys = {
        "tl": "trajectory_lengths",
        "ne": "nav_error",
        "osr": "oracle_success",
        "sr": "success",
        "spl": "spl",
        "cls": "CLS",
        "ndtw": "nDTW",
        "sdtw": "SDTW",
        "steps": "trajectory_steps",
    }
    for ours, theirs in keys.items():
        assert found[ours] == pytest.approx([row[theirs] for row in rows], rel=1e-9, abs=1e-9), ours


# -- dialogs and objects ---------------------------------------------------------------------------------


def test_dialog_succeeds_near_the_end_of_the_trusted_path(atlas: Atlas) -> None:
    # Trusted end c, end panoramas e and f: the agent stops at d, 2 m from c and 2 m from e.
    pairs: list[Pair] = [(dialog("abc", "ef"), went("abcd", "7"))]
    found = score(pairs, atlas).means()
    assert list(found) == [*METRICS, "sr_end", "n"]
    assert (found["ne"], found["sr"], found["osr"], found["sr_end"]) == (2.0, 1.0, 1.0, 0.0)
    assert found["spl"] == found["spl_shortest"] == pytest.approx(4 / 6)
    assert found["gp"] == 6.0  # from 8 m to 2 m before the nearer end panorama
    assert found["ndtw"] == found["sdtw"] == pytest.approx(math.exp(-2 / 9))


def test_end_panos_rule_requires_an_end_panorama(atlas: Atlas) -> None:
    near = score([(dialog("abc", "ef"), went("abcd", "7"))], atlas, success_rule="end-panos").means()
    assert (near["ne"], near["sr"], near["osr"], near["spl"], near["sdtw"]) == (2.0, 0.0, 0.0, 0.0, 0.0)
    assert near["gp"] == 6.0
    there = score([(dialog("abc", "ef"), went("abcxcde", "7"))], atlas, success_rule="end-panos").means()
    assert (there["ne"], there["sr"], there["sr_end"], there["gp"]) == (0.0, 1.0, 1.0, 8.0)
    assert there["spl"] == there["spl_shortest"] == pytest.approx(8 / 10)
    past = score([(dialog("abc", "d"), went("abcde", "7"))], atlas, success_rule="end-panos").means()
    assert (past["sr"], past["osr"], past["sr_end"]) == (0.0, 1.0, 0.0)


def test_sr_end_is_the_same_under_either_rule(atlas: Atlas) -> None:
    pairs: list[Pair] = [(dialog("abc", "e"), went("abcde", "7"))]
    trusted, strict = score(pairs, atlas).means(), score(pairs, atlas, success_rule="end-panos").means()
    assert (trusted["sr"], strict["sr"]) == (0.0, 1.0)  # e is 4 m behind c
    assert trusted["sr_end"] == strict["sr_end"] == 1.0
    assert trusted["gp"] == strict["gp"] == 8.0


def test_coverage_of_a_path_without_length(atlas: Atlas) -> None:
    # Nothing is due: whoever stays covers all of it, whoever walks 2 m scores 0 / (0 + 2).
    for walk, expected in (("a", 1.0), ("ab", 0.0)):
        assert score([(dialog("a", "e"), went(walk, "7"))], atlas).means()["cls"] == expected


@pytest.mark.parametrize(("walk", "expected"), [("a", 1.0), ("ab", 0.0), ("aba", 0.0)])
@pytest.mark.parametrize("rule", ["trusted", "end-panos"])
def test_goal_at_the_start_gives_spl_only_without_moves(
    atlas: Atlas, walk: str, expected: float, rule: Any
) -> None:
    found = score([(dialog("a", "ab"), went(walk, "7"))], atlas, success_rule=rule).means()
    assert (found["sr"], found["spl"], found["spl_shortest"]) == (1.0, expected, expected)


def test_dialogs_without_a_planner_path_have_no_trusted_end(atlas: Atlas) -> None:
    pairs: list[Pair] = [(dialog("abc", "e", planner_path=()), went("abcde", "7"))]
    with pytest.raises(ConfigError, match="--success end-panos"):
        score(pairs, atlas)
    assert score(pairs, atlas, success_rule="end-panos").means()["sr"] == 1.0


@pytest.mark.parametrize(
    ("walk", "sr", "osr"),
    [
        ("abcd", 0.0, 0.0),  # 2 m from the end of the path, but the lamp is not in sight
        ("abcde", 1.0, 1.0),
        ("abcx", 1.0, 1.0),  # far from the end of the path, in sight of the lamp
        ("abcxc", 0.0, 1.0),
    ],
)
def test_reverie_succeeds_where_the_object_is_in_sight(
    atlas: Atlas, walk: str, sr: float, osr: float
) -> None:
    objects = {
        "corridor_e": frozenset({"12", "40"}),
        "corridor_x": frozenset({"12"}),
        "corridor_d": frozenset({"40"}),
        "elsewhere_d": frozenset({"12"}),
    }
    found = score([(asked("abcde", object_id="12"), went(walk))], atlas, objects=objects).means()
    assert (found["sr"], found["osr"]) == (sr, osr)
    # 8 m are due; 8 m lead to e, 5 m to x.
    assert found["spl"] == found["spl_shortest"] == sr
    assert found["sdtw"] == sr * found["ndtw"]
    assert found["ne"] == CORRIDOR.distance(walk[-1], "e")


# -- tours -----------------------------------------------------------------------------------------------


def tour_by_definition(atlas: Atlas, tour: Tour, pairs: Sequence[Pair]) -> float:
    """Spec H.4 as it stands: one long warping of the whole tour, quadratic in its length."""
    by_id = {episode.episode_id: (episode, prediction) for episode, prediction in pairs}
    graph = atlas.graph(tour.scene_id)
    agent: list[str] = []
    truth: list[str] = []
    only: dict[int, int] = {}  # place on the reference -> the one place of the agent it may match
    clashes: set[int] = set()  # ... unless it would have to match two
    for number, name in enumerate(tour.episode_ids):
        episode, prediction = by_id[name]
        if number > 0:
            only[len(truth)] = len(agent)
        agent += prediction.path
        truth += merged(episode.reference_path)
        if number < len(tour) - 1:
            last = len(truth) - 1
            if only.get(last, len(agent) - 1) != len(agent) - 1:
                clashes.add(last)
            only[last] = len(agent) - 1
    costs = [
        [
            graph.distance(p, r) if only.get(j, i) == i and j not in clashes else math.inf
            for j, r in enumerate(truth)
        ]
        for i, p in enumerate(agent)
    ]
    return math.exp(-warp(costs) / (3 * len(truth)))


def tours_of(pairs: Sequence[Pair], rng: np.random.Generator, longest: int) -> list[Tour]:
    by_scene: dict[str, list[str]] = {}
    for row in rng.permutation(len(pairs)):
        by_scene.setdefault(pairs[row][0].scene_id, []).append(pairs[row][0].episode_id)
    return [
        Tour(scene, tuple(names[first : first + longest]))
        for scene, names in by_scene.items()
        for first in range(0, len(names), longest)
    ]


@settings(max_examples=200)
@given(worlds(shortest_reference=0), st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 60))
def test_tour_dtw_equals_dtw_of_one_path_with_matched_borders(
    world: World, seed: int, longest: int, cells: int
) -> None:
    atlas, pairs = world
    tours = tours_of(pairs, np.random.default_rng(seed), longest)
    expected = sum(tour_by_definition(atlas, tour, pairs) * len(tour) for tour in tours) / len(pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(esceme.metrics, "MAX_COSTS", cells)
        assert score(pairs, atlas, tours=tours).means()["t_ndtw"] == pytest.approx(expected)


@given(worlds(shortest_reference=4), st.integers(0, 2**32 - 1))
def test_tour_dtw_is_at_least_the_sum_of_its_episodes(world: World, seed: int) -> None:
    atlas, pairs = world
    for tour in tours_of(pairs, np.random.default_rng(seed), 4):
        toured = [pair for pair in pairs if pair[0].episode_id in tour.episode_ids]
        scores = score(toured, atlas, tours=[tour])
        viewpoints = np.array([len(merged(episode.reference_path)) for episode, _ in toured])
        warped = -3 * viewpoints * np.log(scores.values["ndtw"])  # borders tied: never less than this
        assert scores.means()["t_ndtw"] <= math.exp(-warped.sum() / (3 * viewpoints.sum())) + 1e-9


def test_tour_of_one_episode_is_that_episode(atlas: Atlas) -> None:
    pairs: list[Pair] = [(asked("abcde"), went("abcxcd"))]
    scores = score(pairs, atlas, tours=[Tour("corridor", ("1_0",))])
    means = scores.means()
    assert [means[f"t_{name}"] for name in ("ndtw", "sr", "spl")] == pytest.approx(
        [means[name] for name in ("ndtw", "sr", "spl")]
    )
    assert list(means) == [*METRICS, "n", *TOUR_METRICS]
    assert not score(pairs, atlas).tour_values and list(score(pairs, atlas).means()) == [*METRICS, "n"]


def test_tour_of_two_by_hand(atlas: Atlas) -> None:
    # First: a b c d against a b c. Apart, c takes both c and d: 0 + 2. In a tour the end c may only match the
    # stop d (2 m), so the c walked through goes to b (2 m): 4. Second: exact, 0. Six viewpoints.
    pairs: list[Pair] = [
        (asked("abc", "1_0"), went("abcd", "1_0")),
        (asked("cde", "2_0"), went("cde", "2_0")),
    ]
    scores = score(pairs, atlas, tours=[Tour("corridor", ("1_0", "2_0"))])
    assert scores.values["ndtw"].tolist() == pytest.approx([math.exp(-2 / 9), 1.0])
    assert scores.means()["t_ndtw"] == pytest.approx(math.exp(-4 / 18))
    # As the last of its tour, the first episode is free again.
    last = score(pairs, atlas, tours=[Tour("corridor", ("2_0", "1_0"))])
    assert last.means()["t_ndtw"] == pytest.approx(math.exp(-2 / 18))


def test_long_paths_have_more_weight_in_tour_success(atlas: Atlas) -> None:
    # Reference a b c, 4 m. Walks: a b c (4 m, there), a b c d e f (11 m, 7 m too far), a (0 m, too short),
    # a b c x c (6 m, there). Weights max(4, walked) / 4: 1, 11/4 | 1, 3/2, of two tours of two episodes.
    walks = {"1_0": "abc", "2_0": "abcdef", "3_0": "a", "4_0": "abcxc"}
    pairs: list[Pair] = [(asked("abc", name), went(walk, name)) for name, walk in walks.items()]
    tours = [Tour("corridor", ("1_0", "2_0")), Tour("corridor", ("3_0", "4_0"))]
    scores = score(pairs, atlas, tours=tours)
    assert scores.values["sr"].tolist() == [1, 0, 0, 1]
    assert scores.values["spl"].tolist() == pytest.approx([1, 0, 0, 4 / 6])
    means = scores.means()
    first, second = 1 / (1 + 11 / 4), (3 / 2) / (1 + 3 / 2)
    assert means["t_sr"] == pytest.approx((first + second) / 2)
    assert means["t_spl"] == pytest.approx((first + second * 4 / 6) / 2)


def success_by_definition(tours: Sequence[Tour], scores: Scores, due: dict[str, float], of: str) -> float:
    """Spec H.4 in plain loops: weights within a tour, then tours by their number of episodes."""
    row_of = {name: row for row, name in enumerate(scores.episode_ids)}
    total = 0.0
    for tour in tours:
        weights, reached = [], []
        for name in tour.episode_ids:
            walked = float(scores.values["tl"][row_of[name]])
            weights.append(max(due[name], walked) / due[name])
            reached.append(float(scores.values[of][row_of[name]]))
        inner = sum(weight * value for weight, value in zip(weights, reached, strict=True)) / sum(weights)
        total += len(tour) * inner
    return total / sum(map(len, tours))


@given(worlds(shortest_reference=2), st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_success_of_tours_is_as_defined(world: World, seed: int, longest: int) -> None:
    atlas, pairs = world
    tours = tours_of(pairs, np.random.default_rng(seed), longest)
    tours = tours[: max(1, len(tours) // 2)]  # the rest of the episodes is on none
    scores = score(pairs, atlas, tours=tours)
    due = {
        episode.episode_id: sum(
            atlas.graph(episode.scene_id).distance(a, b) for a, b in pairwise(episode.reference_path)
        )
        for episode, _ in pairs
    }
    for of in ("sr", "spl"):
        expected = success_by_definition(tours, scores, due, of)
        assert scores.means()[f"t_{of}"] == pytest.approx(expected)
        assert 0 <= scores.means()[f"t_{of}"] <= 1 + 1e-12


def test_episodes_on_no_tour_contribute_nothing(atlas: Atlas) -> None:
    walks = {"1_0": "abc", "1_1": "abcd", "2_0": "abc"}
    pairs: list[Pair] = [(asked("abc", name), went(walk, name)) for name, walk in walks.items()]
    toured = score(pairs, atlas, tours=[Tour("corridor", ("1_0", "1_1")), Tour("corridor", ())]).tour_values
    assert list(toured) == list(TOUR_METRICS) and all(each[2] == 0 for each in toured.values())
    alone = score(pairs[:2], atlas, tours=[Tour("corridor", ("1_0", "1_1"))])
    assert {name: each.mean() for name, each in toured.items()} == pytest.approx(
        {name: alone.means()[name] for name in TOUR_METRICS}
    )


def test_reference_without_length_weighs_by_a_centimetre(atlas: Atlas) -> None:
    pairs: list[Pair] = [(asked("a", "1_0"), went("a", "1_0")), (asked("abc", "2_0"), went("a", "2_0"))]
    means = score(pairs, atlas, tours=[Tour("corridor", ("1_0", "2_0"))]).means()
    assert (means["t_sr"], means["t_spl"]) == (0.5, 0.0)  # spl of a path of 0 m is 0, as the field has it


def test_there_are_no_intervals_of_tours(atlas: Atlas) -> None:
    pairs: list[Pair] = [(asked("abc", "1_0"), went("abc", "1_0")), (asked("abc", "2_0"), went("a", "2_0"))]
    scores = score(pairs, atlas, tours=[Tour("corridor", ("1_0", "2_0"))])
    assert list(scores.intervals(draws=5)) == list(METRICS)


def test_tour_that_cannot_be_matched_counts_as_zero(atlas: Atlas) -> None:
    # Two reference viewpoints, both tied to a border, leave nothing for the third viewpoint walked.
    walks = {"1_0": ("ab", "ab"), "2_0": ("bc", "bcd"), "3_0": ("cd", "cd"), "4_0": ("ab", "ab")}
    pairs: list[Pair] = [(asked(r, name), went(p, name)) for name, (r, p) in walks.items()]
    tours = [Tour("corridor", ("1_0", "2_0", "3_0")), Tour("corridor", ("4_0",))]
    assert score(pairs, atlas, tours=tours).means()["t_ndtw"] == pytest.approx((3 * 0.0 + 1 * 1.0) / 4)


def test_tours_are_weighted_by_their_number_of_episodes(atlas: Atlas) -> None:
    walks = {"1_0": "abc", "1_1": "abc", "1_2": "abcd", "2_0": "a"}
    pairs: list[Pair] = [(asked("abc", name), went(walk, name)) for name, walk in walks.items()]
    tours = [Tour("corridor", ("1_0", "1_1")), Tour("corridor", ("1_2",))]
    assert score(pairs, atlas, tours=tours).means()["t_ndtw"] == pytest.approx((2 * 1 + math.exp(-2 / 9)) / 3)


@pytest.mark.parametrize(
    ("tours", "message"),
    [
        ([Tour("corridor", ("1_0", "9_0"))], "scene 'corridor' names episode 9_0, which was not scored"),
        ([Tour("corridor", ())], "hold no episodes"),
        ([], "hold no episodes"),
    ],
)
def test_tours_of_other_episodes_are_refused(atlas: Atlas, tours: list[Tour], message: str) -> None:
    with pytest.raises(DataError, match=message):
        score([(asked("abc"), went("abc"))], atlas, tours=tours)


# -- intervals -------------------------------------------------------------------------------------------


def many(atlas: Atlas, *, paths: int = 60, copies: int = 1, own_path: bool = False) -> Scores:
    """Scores of many episodes with `copies` instructions; with `own_path` as if all had different paths."""
    rng = np.random.default_rng(5)
    pairs: list[Pair] = []
    for path in range(paths):
        walk = random_path(CORRIDOR, "a", int(rng.integers(0, 9)), rng)
        for k in range(copies):
            name = f"{path * copies + k if own_path else path}_{k}"
            pairs.append((asked("abcde", name), went(walk, name)))
    return score(pairs, atlas)


def test_intervals_are_the_same_for_a_seed_and_hold_the_mean(atlas: Atlas) -> None:
    scores = many(atlas)
    found = scores.intervals(draws=400, seed=3)
    assert found == scores.intervals(draws=400, seed=3) != scores.intervals(draws=400, seed=4)
    assert list(found) == list(METRICS)
    for name, (low, high) in found.items():
        assert low < scores.means()[name] < high


def test_interval_width_matches_the_standard_error(atlas: Atlas) -> None:
    scores = many(atlas, paths=200)
    deviation = scores.values["tl"].std() / math.sqrt(200)
    low, high = scores.intervals(draws=4000)["tl"]
    assert high - low == pytest.approx(2 * 1.96 * deviation, rel=0.08)
    narrow = scores.intervals(draws=4000, level=0.5)["tl"]
    assert narrow[1] - narrow[0] == pytest.approx(2 * 0.674 * deviation, rel=0.08)


def test_repeated_paths_do_not_narrow_the_interval(atlas: Atlas) -> None:
    once = many(atlas).intervals(draws=500)
    retold = many(atlas, copies=3).intervals(draws=500)
    taken_apart = many(atlas, copies=3, own_path=True).intervals(draws=500)
    for name, interval in once.items():
        assert retold[name] == pytest.approx(interval)
    assert np.diff(taken_apart["tl"]) < 0.75 * np.diff(once["tl"])


def test_one_path_has_nothing_to_resample(atlas: Atlas) -> None:
    scores = score(
        [(asked("abc", f"1_{k}"), went(walk, f"1_{k}")) for k, walk in enumerate(["a", "abc"])], atlas
    )
    for name, interval in scores.intervals(draws=20).items():
        assert interval == pytest.approx((scores.means()[name],) * 2)


@pytest.mark.parametrize("choice", [{"draws": 0}, {"draws": -5}, {"draws": 5, "seed": -1}])
def test_impossible_intervals_are_refused(atlas: Atlas, choice: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least 1 draw and no negative seed"):
        many(atlas, paths=2).intervals(**choice)


# -- refusals --------------------------------------------------------------------------------------------


def test_withheld_goals_cannot_be_scored(atlas: Atlas) -> None:
    pairs: list[Pair] = [
        (asked("abc", "1_0"), went("abc", "1_0")),
        (asked("a", "2_0", goal_withheld=True), went("abc", "2_0")),
    ]
    with pytest.raises(DataError, match="episode 2_0 is a test episode"):
        score(pairs, atlas)


@pytest.mark.parametrize(
    ("reference", "walk", "message"),
    [
        ("abc", "abz", "preds.json: episode 2_0: viewpoint 'z' is not in scene 'corridor'"),
        ("abz", "abc", "annotations: episode 2_0: viewpoint 'z' is not in scene 'corridor'"),
        ("abc", "bc", "preds.json: episode 2_0: starts at 'b', not 'a'"),
    ],
)
def test_errors_name_the_file_and_the_episode(atlas: Atlas, reference: str, walk: str, message: str) -> None:
    pairs: list[Pair] = [
        (asked("abc", "1_0"), went("abc", "1_0")),
        (asked(reference, "2_0"), went(walk, "2_0")),
    ]
    with pytest.raises(DataError, match=message):
        score(pairs, atlas, file="preds.json")


def test_unknown_scene_names_the_episode(atlas: Atlas) -> None:
    with pytest.raises(DataError, match="episode 1_0: scene 'barn' is not loaded"):
        score([(asked("abc", scene_id="barn"), went("abc"))], atlas)


def test_nothing_to_score_is_refused(atlas: Atlas) -> None:
    with pytest.raises(DataError, match="preds.json: no episodes to score"):
        score([], atlas, file="preds.json")


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ((asked("ab"), went("ap")), "preds.json: episode 1_0: no way leads along its trajectory"),
        ((asked("ap"), went("ab")), "annotations: episode 1_0: no way leads along its reference path"),
        ((dialog("ab", "p"), went("ab", "7")), "episode 7: no way leads to its end panoramas"),
    ],
)
def test_disconnected_paths_are_refused(pair: Pair, message: str) -> None:
    places = {"a": (0, 0, 0), "b": (0, 2, 0), "p": (9, 0, 0), "q": (9, 2, 0)}
    divided = Atlas([SceneGraph.build("corridor", places, [("a", "b"), ("p", "q")])])
    with pytest.raises(DataError, match=message):
        score([pair], divided, file="preds.json")


def test_one_end_panorama_in_reach_is_enough() -> None:
    places = {"a": (0, 0, 0), "b": (0, 2, 0), "p": (9, 0, 0), "q": (9, 2, 0)}
    divided = Atlas([SceneGraph.build("corridor", places, [("a", "b"), ("p", "q")])])
    assert score([(dialog("ab", "pb"), went("ab", "7"))], divided).means()["gp"] == 2.0


def test_integer_paths_score_as_their_names(atlas: Atlas) -> None:
    episodes = [asked("abcde", "1_0"), asked("abx", "2_0")]
    found = score_paths(episodes, [[0, 1, 1, 2, 3], [0, 1]], atlas)
    named = score(list(zip(episodes, [went("abcd", "1_0"), went("ab", "2_0")], strict=True)), atlas)
    assert found.means() == named.means()
    with pytest.raises(DataError, match="episode 1_0: starts at 'b', not 'a'"):
        score_paths(episodes[:1], [[1, 2]], atlas)
