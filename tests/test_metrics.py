"""Metrics against values computed by hand and against plain loops over their definitions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
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
    Scores,
    cls,
    dtw,
    score,
    score_paths,
    spl,
    spl_shortest,
)
from esceme.tasks.episode import DialogEpisode, Episode
from esceme.tasks.submission import Prediction
from esceme.tasks.tours import Tour
from esceme.world import Atlas, SceneGraph
from fixtures.toy_atlas import predict

Pair = tuple[Episode, Prediction]

# A corridor a - b - c - d - e with 2 m between neighbours, f 3 m behind e, and x 1 m beside c.
POSITIONS = {name: (0, metres, 0) for name, metres in zip("abcdef", (0, 2, 4, 6, 8, 11), strict=True)}
CORRIDOR = SceneGraph.build("corridor", POSITIONS | {"x": (1, 4, 0)}, [*pairwise("abcdef"), ("c", "x")])


@pytest.fixture(scope="module")
def atlas() -> Atlas:
    return Atlas([CORRIDOR])


def make_episode(reference: Sequence[str], episode_id: str = "1_0", **changes: Any) -> Episode:
    fields: dict[str, Any] = {
        "episode_id": episode_id,
        "scene_id": "corridor",
        "path_id": episode_id.partition("_")[0],
        "reference_path": tuple(reference),
        "heading": 0.0,
        "instruction": "go",
    }
    return (DialogEpisode if "goals" in changes else Episode)(**{**fields, **changes})


def make_dialog(reference: str, goals: str, **changes: Any) -> Episode:
    planner_path = {"planner_path": tuple(reference)}
    return make_episode(reference, **{**planner_path, "goals": tuple(goals), **changes})


def make_pairs(reference: str, paths: Mapping[str, str]) -> list[Pair]:
    """Episodes with the same reference path and the paths predicted for them."""
    return [(make_episode(reference, name), predict(path, name)) for name, path in paths.items()]


def means(atlas: Atlas, reference: str, path: str) -> dict[str, float]:
    return score(make_pairs(reference, {"1_0": path}), atlas).means()


# -- by hand ---------------------------------------------------------------------------------------------


EARLY_COVERAGE = (4 + math.exp(-2 / 3)) / 5
EARLY_CLS = EARLY_COVERAGE * 8 * EARLY_COVERAGE / (16 * EARLY_COVERAGE - 6)  # C x E / (E + (E - 6)), E = 8 C
START_COVERAGE = sum(math.exp(-metres / 3) for metres in (0, 2, 4, 6, 8)) / 5


@pytest.mark.parametrize(
    ("reference", "path", "expected"),
    [  # tl, ne, osr, sr, spl, spl_shortest, cls, DTW distance, gp, steps
        # One viewpoint early: d is matched with e, and a shorter path has no higher SPL.
        ("abcde", "abcd", [6, 2, 1, 1, 1, 1, EARLY_CLS, 2, 6, 3]),
        # A detour: x is matched with c (1 m), the second c with c.
        ("abcde", "abcxcde", [10, 0, 1, 1, 0.8, 0.8, 0.8, 1, 8, 6]),
        # Exactly 3 m from the goal is neither a success nor an oracle success.
        ("abcde", "abcdef", [11, 3, 1, 0, 0, 0, 8 / (8 + 3), 3, 5, 5]),
        ("abcdef", "abcde", [8, 3, 0, 0, 0, 0, None, 3, 8, 4]),
        # A path of one viewpoint: CLS is C x E / (E + |E - 0|).
        ("abcde", "a", [0, 8, 0, 0, 0, 0, START_COVERAGE / 2, 0 + 2 + 4 + 6 + 8, 0, 0]),
        # A step without an edge counts as the shortest path between its viewpoints.
        ("abcde", "abe", [8, 0, 1, 1, 1, 1, None, 4, 8, 2]),
        # Goal progress may be negative.
        ("cde", "cba", [4, 8, 0, 0, 0, 0, None, 12, -4, 2]),
    ],
)
def test_metrics_equal_values_computed_by_hand(
    atlas: Atlas, reference: str, path: str, expected: list[float | None]
) -> None:
    *before, coverage, dtw_distance, progress, steps = expected
    assert dtw_distance is not None
    found = means(atlas, reference, path)
    similarity = math.exp(-dtw_distance / (3 * len(reference)))
    coverage = found["cls"] if coverage is None else coverage
    values = [*before, coverage, similarity, found["sr"] * similarity, progress, steps]
    assert found == pytest.approx(dict(zip([*METRICS, "n"], [*values, 1], strict=True)))


@pytest.mark.parametrize(
    ("reference", "path", "to_reference", "to_shortest"),
    [
        ("abcdc", "abc", 1.0, 1.0),  # reference 8 m, shortest 4 m, path 4 m
        ("abcdc", "abcdc", 1.0, 0.5),  # path 8 m
        ("abcdc", "abcdedc", 8 / 12, 4 / 12),  # path 12 m
        ("aba", "a", 1.0, 1.0),  # reference 4 m, shortest 0 m
        ("aba", "aba", 1.0, 0.0),
        ("abcba", "aba", 1.0, 0.0),
    ],
)
def test_spl_is_relative_to_reference_or_shortest_path(
    atlas: Atlas, reference: str, path: str, to_reference: float, to_shortest: float
) -> None:
    found = means(atlas, reference, path)
    expected = (1.0, pytest.approx(to_reference), pytest.approx(to_shortest))
    assert (found["sr"], found["spl"], found["spl_shortest"]) == expected


def test_means_are_over_episodes(atlas: Atlas) -> None:
    scores = score(make_pairs("abcde", {"1_0": "abcd", "1_1": "abcdef", "2_0": "a"}), atlas)
    assert scores.episode_ids == ("1_0", "1_1", "2_0") and scores.path_ids == ("1", "1", "2")
    assert list(scores.means()) == [*METRICS, "n"]
    assert scores.means()["n"] == len(scores) == 3
    assert scores.means()["ne"] == pytest.approx((2 + 3 + 8) / 3)
    assert scores.values["tl"].tolist() == [6.0, 11.0, 0.0]


def test_reference_without_length_has_no_spl() -> None:
    """The published evaluators divide by at least 0.01 m."""
    zero = np.zeros(1)
    assert spl(np.ones(1), length=zero, reference_length=zero).tolist() == [0.0]
    assert spl_shortest(np.ones(1), length=zero, shortest=zero).tolist() == [1.0]


def test_coverage_ignores_padding_of_references() -> None:
    nearest = np.array([[0.0, 0.0], [3.0, 3.0], [0.0, 6.0]])  # the first reference has two viewpoints
    metres = np.array([4.0, 4.0])
    found = cls(nearest, np.array([2, 3]), length=metres, reference_length=metres)
    coverage = np.array([(1 + math.exp(-1)) / 2, (1 + math.exp(-1) + math.exp(-2)) / 3])
    assert found == pytest.approx(coverage * coverage)  # E / (E + (4 - E)) with E = 4 x coverage


# -- against plain loops ---------------------------------------------------------------------------------


def simple_dtw(costs: Sequence[Sequence[float]]) -> float:
    """Dynamic time warping by its recurrence, one cell at a time."""
    table = [[math.inf] * (len(costs[0]) + 1) for _ in range(len(costs) + 1)]
    table[0][0] = 0.0
    for i, row in enumerate(costs, 1):
        for j, cost in enumerate(row, 1):
            table[i][j] = cost + min(table[i - 1][j], table[i][j - 1], table[i - 1][j - 1])
    return table[-1][-1]


def path_metres(graph: SceneGraph, path: Sequence[str]) -> float:
    return sum(graph.distance(a, b) for a, b in pairwise(path))


def metrics_by_definition(
    graph: SceneGraph, reference: Sequence[str], path: Sequence[str]
) -> dict[str, float]:
    """Compute every metric of one episode from spec F.1."""
    distance = graph.distance
    goal, length, reference_length = reference[-1], path_metres(graph, path), path_metres(graph, reference)
    error = distance(path[-1], goal)
    success = 1.0 if error < 3.0 else 0.0
    shortest = distance(reference[0], goal)
    dtw_distance = simple_dtw([[distance(p, r) for r in reference] for p in path])
    similarity = math.exp(-dtw_distance / (3 * len(reference)))
    coverage = sum(math.exp(-min(distance(r, p) for p in path) / 3) for r in reference) / len(reference)
    expected = coverage * reference_length
    return {
        "tl": length,
        "ne": error,
        "osr": 1.0 if min(distance(p, goal) for p in path) < 3.0 else 0.0,
        "sr": success,
        "spl": success * reference_length / max(length, reference_length, 0.01),
        "spl_shortest": success * (shortest / max(length, shortest) if shortest else float(length == 0)),
        "cls": coverage * expected / (expected + abs(expected - length)),
        "ndtw": similarity,
        "sdtw": success * similarity,
        "gp": shortest - error,
        "steps": len(path) - 1.0,
    }


def without_repeats(path: Sequence[str]) -> tuple[str, ...]:
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
    graph: SceneGraph, start: str, steps: int, rng: np.random.Generator, *, repeat: float = 0.0
) -> tuple[str, ...]:
    """A random path in which a step repeats its viewpoint with probability `repeat`."""
    path = [start]
    for _ in range(steps):
        repeats = rng.random() < repeat
        candidates = [candidate.viewpoint for candidate in graph.candidates(path[-1])]
        path.append(path[-1] if repeats else candidates[int(rng.integers(len(candidates)))])
    return tuple(path)


@st.composite
def worlds(draw: st.DrawFn, shortest_reference: int = 1) -> tuple[Atlas, list[Pair]]:
    """A few scenes, and episodes in them with random paths; instructions of one path share it."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, 3))
    graphs = [random_graph(f"s{number}", int(rng.integers(2, 10)), rng) for number in range(count)]
    pairs: list[Pair] = []
    for number in range(draw(st.integers(1, 5))):
        graph = graphs[int(rng.integers(count))]
        start = graph.viewpoints[int(rng.integers(len(graph)))]
        reference = random_path(graph, start, int(rng.integers(shortest_reference, 9)), rng)
        for k in range(int(rng.integers(1, 4))):
            predicted = reference
            if rng.random() < 0.8:
                predicted = random_path(graph, start, int(rng.integers(0, 14)), rng, repeat=0.2)
            name = f"{number}_{k}"
            episode = make_episode(reference, name, scene_id=graph.scene_id)
            pairs.append((episode, predict(predicted, name)))
    return Atlas(graphs), pairs


World = tuple[Atlas, list[Pair]]


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(st.integers(1, 7), st.integers(1, 7)), min_size=1, max_size=6),
    st.floats(0, 0.3),
)
def test_batched_dtw_equals_single_dtw(seed: int, sizes: list[tuple[int, int]], forbidden: float) -> None:
    rng = np.random.default_rng(seed)
    rows, columns = np.array(sizes).T
    # Costs beyond the size of a pair are arbitrary and must be ignored.
    costs = rng.integers(0, 5, (rows.max(), columns.max(), len(sizes))).astype(float)
    costs[rng.random(costs.shape) < forbidden] = np.inf
    found = dtw(costs, rows, columns)
    for pair, (height, width) in enumerate(sizes):
        assert found[pair] == simple_dtw(costs[:height, :width, pair].tolist())


@given(worlds())
def test_metrics_equal_their_definitions(world: World) -> None:
    atlas, pairs = world
    scores = score(pairs, atlas)
    assert list(scores.values) == list(METRICS)
    for row, (episode, prediction) in enumerate(pairs):
        expected = metrics_by_definition(
            atlas.graph(episode.scene_id), episode.reference_path, prediction.path
        )
        assert {name: values[row] for name, values in scores.values.items()} == pytest.approx(expected)


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
    repeated = [
        (episode, predict(np.repeat(path, rng.integers(1, 4, len(path))).tolist(), episode.episode_id))
        for episode, path in ((episode, prediction.path) for episode, prediction in pairs)
    ]
    found, expected = score(repeated, atlas).values, score(pairs, atlas).values
    assert all((found[name] == expected[name]).all() for name in expected)


# -- dialogs and objects ---------------------------------------------------------------------------------


def dialog_means(atlas: Atlas, reference: str, goals: str, path: str, rule: Any = "trusted") -> Any:
    return score([(make_dialog(reference, goals), predict(path))], atlas, success_rule=rule).means()


def test_dialog_succeeds_near_the_end_of_the_trusted_path(atlas: Atlas) -> None:
    # Trusted end c, end panoramas e and f: the agent stops at d, 2 m from c and 2 m from e.
    found = dialog_means(atlas, "abc", "ef", "abcd")
    assert list(found) == [*METRICS, "sr_end", "n"]
    assert (found["ne"], found["sr"], found["osr"], found["sr_end"]) == (2.0, 1.0, 1.0, 0.0)
    assert found["spl"] == found["spl_shortest"] == pytest.approx(4 / 6)
    assert found["gp"] == 6.0  # from 8 m to 2 m before the nearer end panorama
    assert found["ndtw"] == found["sdtw"] == pytest.approx(math.exp(-2 / 9))


@pytest.mark.parametrize(
    ("goals", "path", "expected"),
    [  # ne, sr, osr, sr_end, spl, gp
        ("ef", "abcd", [2, 0, 0, 0, 0, 6]),
        ("ef", "abcxcde", [0, 1, 1, 1, 8 / 10, 8]),
        ("d", "abcde", [2, 0, 1, 0, 0, 4]),
        ("e", "abcde", [0, 1, 1, 1, 1, 8]),  # e is 4 m behind c, the end of the trusted path
    ],
)
def test_end_panos_rule_requires_an_end_panorama(
    atlas: Atlas, goals: str, path: str, expected: list[float]
) -> None:
    found = dialog_means(atlas, "abc", goals, path, "end-panos")
    keys = ["ne", "sr", "osr", "sr_end", "spl", "gp"]
    assert [found[key] for key in keys] == pytest.approx(expected)
    assert found["spl"] == found["spl_shortest"] and found["sdtw"] == found["sr"] * found["ndtw"]
    trusted = dialog_means(atlas, "abc", goals, path)
    assert [trusted[key] for key in ("sr_end", "gp")] == [found[key] for key in ("sr_end", "gp")]


@pytest.mark.parametrize(("path", "expected"), [("a", 1.0), ("ab", 0.0), ("aba", 0.0)])
@pytest.mark.parametrize("rule", ["trusted", "end-panos"])
def test_goal_at_the_start_gives_spl_and_cls_only_without_moves(
    atlas: Atlas, path: str, expected: float, rule: str
) -> None:
    found = dialog_means(atlas, "a", "ab", path, rule)
    assert [found[name] for name in ("sr", "spl", "spl_shortest", "cls")] == [1.0] + [expected] * 3


def test_dialogs_without_a_planner_path_have_no_trusted_end(atlas: Atlas) -> None:
    pairs: list[Pair] = [(make_dialog("abc", "e", planner_path=()), predict("abcde"))]
    with pytest.raises(ConfigError, match="--success end-panos"):
        score(pairs, atlas)
    assert score(pairs, atlas, success_rule="end-panos").means()["sr"] == 1.0


@pytest.mark.parametrize(
    ("path", "sr", "osr"),
    [
        ("abcd", 0.0, 0.0),  # 2 m from the goal, but the object is not visible
        ("abcde", 1.0, 1.0),
        ("abcx", 1.0, 1.0),  # far from the goal, but the object is visible
        ("abcxc", 0.0, 1.0),
    ],
)
def test_reverie_succeeds_where_the_object_is_visible(atlas: Atlas, path: str, sr: float, osr: float) -> None:
    visible = {"corridor_e": {"12", "40"}, "corridor_x": {"12"}, "corridor_d": {"40"}, "elsewhere_d": {"12"}}
    objects = {key: frozenset(names) for key, names in visible.items()}
    pairs: list[Pair] = [(make_episode("abcde", object_id="12"), predict(path))]
    found = score(pairs, atlas, objects=objects).means()
    assert (found["sr"], found["osr"]) == (sr, osr)
    assert found["spl"] == found["spl_shortest"] == sr  # the paths are not longer than the reference
    assert found["sdtw"] == sr * found["ndtw"]
    assert found["ne"] == CORRIDOR.distance(path[-1], "e")


# -- tours -----------------------------------------------------------------------------------------------


def tour_ndtw_by_definition(atlas: Atlas, tour: Tour, pairs: Sequence[Pair]) -> float:
    """Spec H.4: nDTW of the whole tour as one path, quadratic in its length."""
    by_id = {episode.episode_id: (episode, prediction) for episode, prediction in pairs}
    graph = atlas.graph(tour.scene_id)
    path: list[str] = []
    reference: list[str] = []
    only: dict[int, int] = {}  # index in the reference -> the one index in the path it may match
    unmatched: set[int] = set()  # indices in the reference that would have to match two
    for number, name in enumerate(tour.episode_ids):
        episode, prediction = by_id[name]
        if number > 0:
            only[len(reference)] = len(path)
        path += prediction.path
        reference += without_repeats(episode.reference_path)
        if number < len(tour) - 1:
            last = len(reference) - 1
            if only.get(last, len(path) - 1) != len(path) - 1:
                unmatched.add(last)
            only[last] = len(path) - 1

    def cost(i: int, j: int) -> float:
        matches = only.get(j, i) == i and j not in unmatched
        return graph.distance(path[i], reference[j]) if matches else math.inf

    costs = [[cost(i, j) for j in range(len(reference))] for i in range(len(path))]
    return math.exp(-simple_dtw(costs) / (3 * len(reference)))


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
    expected = sum(tour_ndtw_by_definition(atlas, tour, pairs) * len(tour) for tour in tours) / len(pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(esceme.metrics, "MAX_COSTS", cells)
        assert score(pairs, atlas, tours=tours).means()["t_ndtw"] == pytest.approx(expected)


def test_tour_of_one_episode_is_that_episode(atlas: Atlas) -> None:
    pairs = make_pairs("abcde", {"1_0": "abcxcd"})
    scores = score(pairs, atlas, tours=[Tour("corridor", ("1_0",))])
    means = scores.means()
    assert [means[f"t_{name}"] for name in ("ndtw", "sr", "spl")] == pytest.approx(
        [means[name] for name in ("ndtw", "sr", "spl")]
    )
    assert list(means) == [*METRICS, "n", *TOUR_METRICS]
    assert not score(pairs, atlas).tour_values and list(score(pairs, atlas).means()) == [*METRICS, "n"]


def test_tour_of_two_by_hand(atlas: Atlas) -> None:
    # First: a b c d against a b c. Alone, c matches both c and d: 0 + 2. Within a tour the last c may only
    # match the stop d (2 m), so the c of the path matches b (2 m): 4. Second: 0. Six reference viewpoints.
    pairs = [*make_pairs("abc", {"1_0": "abcd"}), *make_pairs("cde", {"2_0": "cde"})]
    scores = score(pairs, atlas, tours=[Tour("corridor", ("1_0", "2_0"))])
    assert scores.values["ndtw"].tolist() == pytest.approx([math.exp(-2 / 9), 1.0])
    assert scores.means()["t_ndtw"] == pytest.approx(math.exp(-4 / 18))
    # The end of the last episode of a tour is not restricted.
    last = score(pairs, atlas, tours=[Tour("corridor", ("2_0", "1_0"))])
    assert last.means()["t_ndtw"] == pytest.approx(math.exp(-2 / 18))


def test_long_paths_have_more_weight_in_tour_success(atlas: Atlas) -> None:
    # The reference has 4 m, the paths 4, 11, 0 and 6 m. Weights are max(4, length) / 4, normalised by tour.
    pairs = make_pairs("abc", {"1_0": "abc", "2_0": "abcdef", "3_0": "a", "4_0": "abcxc"})
    tours = [Tour("corridor", ("1_0", "2_0")), Tour("corridor", ("3_0", "4_0"))]
    scores = score(pairs, atlas, tours=tours)
    assert scores.values["sr"].tolist() == [1, 0, 0, 1]
    assert scores.values["spl"].tolist() == pytest.approx([1, 0, 0, 4 / 6])
    first, second = 1 / (1 + 11 / 4), (3 / 2) / (1 + 3 / 2)
    assert scores.means()["t_sr"] == pytest.approx((first + second) / 2)
    assert scores.means()["t_spl"] == pytest.approx((first + second * 4 / 6) / 2)


def tour_success_by_definition(
    tours: Sequence[Tour], scores: Scores, reference_length: Mapping[str, float], metric: str
) -> float:
    """Spec H.4 in plain loops: weights within a tour, then tours by their number of episodes."""
    row_of = {name: row for row, name in enumerate(scores.episode_ids)}
    total = 0.0
    for tour in tours:
        lengths = [reference_length[name] for name in tour.episode_ids]
        rows = [row_of[name] for name in tour.episode_ids]
        weights = np.array([max(a, b) / a for a, b in zip(lengths, scores.values["tl"][rows], strict=True)])
        total += len(tour) * float(weights @ scores.values[metric][rows]) / weights.sum()
    return total / sum(map(len, tours))


@given(worlds(shortest_reference=2), st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_tour_success_equals_its_definition(world: World, seed: int, longest: int) -> None:
    atlas, pairs = world
    tours = tours_of(pairs, np.random.default_rng(seed), longest)
    tours = tours[: max(1, len(tours) // 2)]  # the other episodes are in no tour
    scores = score(pairs, atlas, tours=tours)
    reference_length = {
        episode.episode_id: path_metres(atlas.graph(episode.scene_id), episode.reference_path)
        for episode, _ in pairs
    }
    for metric in ("sr", "spl"):
        expected = tour_success_by_definition(tours, scores, reference_length, metric)
        assert scores.means()[f"t_{metric}"] == pytest.approx(expected)
        assert 0 <= scores.means()[f"t_{metric}"] <= 1 + 1e-12


def test_episodes_in_no_tour_contribute_nothing(atlas: Atlas) -> None:
    pairs = make_pairs("abc", {"1_0": "abc", "1_1": "abcd", "2_0": "abc"})
    tours = [Tour("corridor", ("1_0", "1_1"))]
    found = score(pairs, atlas, tours=[*tours, Tour("corridor", ())])
    assert list(found.tour_values) == list(TOUR_METRICS)
    assert all(values[2] == 0 for values in found.tour_values.values())
    alone = score(pairs[:2], atlas, tours=tours).means()
    assert [found.means()[name] for name in TOUR_METRICS] == pytest.approx(
        [alone[name] for name in TOUR_METRICS]
    )
    assert list(found.intervals(draws=5)) == list(METRICS)  # none of tours


def test_reference_without_length_weighs_as_one_centimetre(atlas: Atlas) -> None:
    pairs = [*make_pairs("a", {"1_0": "a"}), *make_pairs("abc", {"2_0": "a"})]
    means = score(pairs, atlas, tours=[Tour("corridor", ("1_0", "2_0"))]).means()
    assert (means["t_sr"], means["t_spl"]) == (0.5, 0.0)  # SPL of a reference of 0 m is 0


def test_tour_that_cannot_be_matched_counts_as_zero(atlas: Atlas) -> None:
    # Both reference viewpoints b and c match only the ends of the path b c d; none is left for its c.
    paths = {"1_0": ("ab", "ab"), "2_0": ("bc", "bcd"), "3_0": ("cd", "cd"), "4_0": ("ab", "ab")}
    pairs = [make_pairs(reference, {name: path})[0] for name, (reference, path) in paths.items()]
    tours = [Tour("corridor", ("1_0", "2_0", "3_0")), Tour("corridor", ("4_0",))]
    assert score(pairs, atlas, tours=tours).means()["t_ndtw"] == pytest.approx((3 * 0.0 + 1 * 1.0) / 4)


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
        score(make_pairs("abc", {"1_0": "abc"}), atlas, tours=tours)


# -- intervals -------------------------------------------------------------------------------------------


def random_scores(atlas: Atlas, *, paths: int = 60, copies: int = 1, own_path: bool = False) -> Scores:
    """Scores of random paths with `copies` instructions; with `own_path` all have different paths."""
    rng = np.random.default_rng(5)
    pairs: list[Pair] = []
    for number in range(paths):
        path = "".join(random_path(CORRIDOR, "a", int(rng.integers(0, 9)), rng))
        names = [f"{number * copies + k if own_path else number}_{k}" for k in range(copies)]
        pairs += make_pairs("abcde", dict.fromkeys(names, path))
    return score(pairs, atlas)


def test_intervals_are_reproducible_and_contain_the_mean(atlas: Atlas) -> None:
    scores = random_scores(atlas)
    found = scores.intervals(draws=400, seed=3)
    assert found == scores.intervals(draws=400, seed=3) != scores.intervals(draws=400, seed=4)
    assert list(found) == list(METRICS)
    for name, (low, high) in found.items():
        assert low < scores.means()[name] < high


def test_interval_width_matches_the_standard_error(atlas: Atlas) -> None:
    scores = random_scores(atlas, paths=200)
    deviation = scores.values["tl"].std() / math.sqrt(200)
    low, high = scores.intervals(draws=4000)["tl"]
    assert high - low == pytest.approx(2 * 1.96 * deviation, rel=0.08)
    narrow = scores.intervals(draws=4000, level=0.5)["tl"]
    assert narrow[1] - narrow[0] == pytest.approx(2 * 0.674 * deviation, rel=0.08)


def test_repeated_paths_do_not_narrow_the_interval(atlas: Atlas) -> None:
    once = random_scores(atlas).intervals(draws=500)
    repeated = random_scores(atlas, copies=3).intervals(draws=500)
    separate = random_scores(atlas, copies=3, own_path=True).intervals(draws=500)
    for name, interval in once.items():
        assert repeated[name] == pytest.approx(interval)
    assert np.diff(separate["tl"]) < 0.75 * np.diff(once["tl"])


def test_intervals_of_one_path_have_no_width(atlas: Atlas) -> None:
    scores = score(make_pairs("abc", {"1_0": "a", "1_1": "abc"}), atlas)
    for name, interval in scores.intervals(draws=20).items():
        assert interval == pytest.approx((scores.means()[name],) * 2)


@pytest.mark.parametrize("choice", [{"draws": 0}, {"draws": -5}, {"draws": 5, "seed": -1}])
def test_impossible_intervals_are_refused(atlas: Atlas, choice: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least 1 draw and no negative seed"):
        random_scores(atlas, paths=2).intervals(**choice)


# -- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("episode", "path", "message"),
    [
        (make_episode("a", "2_0", goal_withheld=True), "abc", "episode 2_0 is a test episode"),
        (
            make_episode("abc", "2_0"),
            "abz",
            "preds.json: episode 2_0: viewpoint 'z' is not in scene 'corridor'",
        ),
        (
            make_episode("abz", "2_0"),
            "abc",
            "annotations: episode 2_0: viewpoint 'z' is not in scene 'corridor'",
        ),
        (make_episode("abc", "2_0"), "bc", "preds.json: episode 2_0: starts at 'b', not 'a'"),
        (make_episode("abc", "2_0", scene_id="barn"), "abc", "episode 2_0: scene 'barn' is not loaded"),
    ],
)
def test_errors_name_the_file_and_the_episode(
    atlas: Atlas, episode: Episode, path: str, message: str
) -> None:
    pairs = [*make_pairs("abc", {"1_0": "abc"}), (episode, predict(path, "2_0"))]
    with pytest.raises(DataError, match=message):
        score(pairs, atlas, file="preds.json")


def test_nothing_to_score_is_refused(atlas: Atlas) -> None:
    with pytest.raises(DataError, match="preds.json: no episodes to score"):
        score([], atlas, file="preds.json")


@pytest.mark.parametrize(
    ("episode", "path", "message"),
    [
        (make_episode("ab"), "ap", "preds.json: episode 1_0: its trajectory is disconnected"),
        (make_episode("ap"), "ab", "annotations: episode 1_0: its reference path is disconnected"),
        (make_dialog("ab", "p"), "ab", "episode 1_0: its end panoramas are out of reach"),
    ],
)
def test_disconnected_paths_are_refused(episode: Episode, path: str, message: str) -> None:
    positions = {"a": (0, 0, 0), "b": (0, 2, 0), "p": (9, 0, 0), "q": (9, 2, 0)}
    divided = Atlas([SceneGraph.build("corridor", positions, [("a", "b"), ("p", "q")])])
    with pytest.raises(DataError, match=message):
        score([(episode, predict(path))], divided, file="preds.json")
    # One reachable end panorama is enough.
    assert score([(make_dialog("ab", "pb"), predict("ab"))], divided).means()["gp"] == 2.0


def test_integer_paths_score_as_their_names(atlas: Atlas) -> None:
    episodes = [make_episode("abcde", "1_0"), make_episode("abx", "2_0")]
    found = score_paths(episodes, [[0, 1, 1, 2, 3], [0, 1]], atlas)
    predictions = [predict("abcd", "1_0"), predict("ab", "2_0")]
    assert found.means() == score(list(zip(episodes, predictions, strict=True)), atlas).means()
