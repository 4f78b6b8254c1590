"""Scores of a matcher: against a plain restatement, in batches, and in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from esceme.errors import DataError, MemoryMismatch
from esceme.memory.codebook import Codebook
from esceme.memory.scene_map import MapBank
from esceme.planning.matcher import (
    STEP_POSITIONS,
    WORD_POSITIONS,
    PooledViews,
    RouteMatcher,
    StepInputs,
    matcher_key,
    read_matcher,
    route_index,
    write_matcher,
)
from esceme.planning.routes import RouteLimits, RouteSet, Start, shortest_routes
from esceme.planning.scoring import MatcherScorer
from fixtures.toy_atlas import WIDTH, build_toy_atlas
from fixtures.toy_planner import random_matcher

WORDS = np.array([3, 7, 7, 1, 12])


def partial_routes() -> RouteSet:
    """Routes from the hall of the cottage, of which the kitchen and the door were visited as well."""
    atlas = build_toy_atlas()
    maps = MapBank.from_atlas(atlas)
    maps.remember_at(atlas.locate("cottage", ["hall", "kitchen", "door"]).tolist())
    scene_map = maps["cottage"]
    return shortest_routes(scene_map, Start(scene_map.node("hall"), 14), RouteLimits(max_moves=4))


def test_scores_equal_a_plain_restatement() -> None:
    """Each route by itself, word by word and step by step, from the panoramas."""
    matcher, routes = random_matcher(), partial_routes()
    scores = MatcherScorer(matcher).score(routes, WORDS)
    assert scores.shape == (len(routes), 1) and len(set(scores[:, 0].tolist())) == len(routes) == 6
    area, scene_map = routes.area, routes.area.scene_map
    with torch.inference_mode():
        queries, weights = (
            tensor[0].numpy()
            for tensor in matcher._encode_words(torch.tensor(WORDS)[None], torch.ones(1, 5, dtype=torch.bool))
        )
        for row in range(len(routes)):
            keys = []
            for number in range(routes.num_moves[row] + int(routes.is_visited[row])):
                node = int(area.nodes[routes.places[row, number]])
                keys.append(plain_key(matcher, routes, row, number, scene_map.record(scene_map.name(node))))
            if not routes.is_visited[row]:
                usual = max(int(matcher.usual_steps), int(routes.num_moves[row]) + 1)
                keys += [matcher.unknown[0].numpy()] * (usual - len(keys) - 1) + [matcher.unknown[1].numpy()]
            total = 0.0
            for word, (query, weight) in enumerate(zip(queries, weights, strict=True)):
                column = int((word + 0.5) / len(WORDS) * WORD_POSITIONS)
                table = matcher.alignment[:, column].numpy()
                aligned = [table[int((step + 0.5) / len(keys) * STEP_POSITIONS)] for step in range(len(keys))]
                matches = [query @ key / np.sqrt(len(query)) for key in keys]
                total += weight * (logsumexp(np.add(aligned, matches)) - logsumexp(aligned))
            assert scores[row, 0] == pytest.approx(total, abs=1e-4)


def plain_key(matcher: RouteMatcher, routes: RouteSet, row: int, number: int, record) -> np.ndarray:  # type: ignore[no-untyped-def,type-arg]
    """Return the key of one step, from the record of its viewpoint."""
    is_end = number == routes.num_moves[row]
    views = record.features.astype(np.float32)
    faced = routes.views[row, number] % 12 * np.pi / 6
    slot = routes.slots[row, number] if not is_end else -1
    heading = faced if is_end else record.headings[slot]
    sector = round(float(heading) / (np.pi / 6)) % 12
    columns = [(sector + shift) % 12 for shift in (-1, 0, 1)]
    ahead = views[[12 * floor + column for floor in range(3) for column in columns]].max(0)
    target, flags = np.zeros(WIDTH, np.float32), (0.0, 0.0)
    if not is_end:
        area = routes.area
        place = routes.places[row, number + 1]
        flags = (1.0, 0.0) if area.visited[place] else (0.0, 1.0)
        if area.visited[place]:
            name = area.scene_map.name(int(area.nodes[place]))
            target = area.scene_map.record(name).features.astype(np.float32).max(0)
    length = 0.0 if is_end else record.lengths[slot]
    rise = 0.0 if is_end else length * np.sin(record.elevations[slot])
    turn = heading - faced
    numbers = [np.sin(turn), np.cos(turn), np.clip(rise, -2, 2), length / 5, float(is_end), *flags]
    hidden = matcher.ahead(torch.tensor(ahead)) + matcher.around(torch.tensor(views.max(0)))
    hidden = hidden + matcher.target(torch.tensor(target)) + matcher.geometry(torch.tensor(numbers).float())
    return matcher.key(torch.nn.functional.gelu(hidden)).numpy()  # type: ignore[no-any-return]


def test_routes_to_the_frontier_go_on_with_unknown_steps() -> None:
    found = route_index(
        np.array([[4, 5], [4, 6], [7, 0]]),
        np.array([8, 0, 9]),
        np.array([2, 2, 1]),
        np.array([True, False, True]),
        unknown=20,
        usual_steps=4,
    )
    assert found.tolist() == [[4, 5, 8, -1], [4, 6, 20, 21], [7, 9, -1, -1]]


def test_scores_do_not_depend_on_padding() -> None:
    torch.manual_seed(1)
    matcher, views = random_matcher(), PooledViews.of(torch.randn(5, 36, WIDTH))
    steps = StepInputs(
        torch.randint(5, (2, 6)),
        torch.randint(12, (2, 6)),
        torch.randint(-1, 5, (2, 6)),
        torch.randn(2, 6, 5),
    )
    words = torch.tensor([[4, 9, 2, 0, 0], [1, 5, 5, 8, 3]])
    index = torch.tensor([[[0, 2, -1], [3, -1, -1]], [[5, 6, 7], [1, 4, 2]]])
    is_word = torch.arange(5) < torch.tensor([3, 5])[:, None]
    with torch.inference_mode():
        both = matcher(words, is_word, views, steps, index)
        first = StepInputs(*(tensor[:1] for tensor in steps))
        alone = matcher(words[:1, :3], is_word[:1, :3], views, first, index[:1, :, :2])
    torch.testing.assert_close(both[:1], alone)


def test_maps_without_features_are_refused() -> None:
    atlas = build_toy_atlas()
    maps = MapBank.from_atlas(atlas, codebook=Codebook(np.eye(3, WIDTH)), keeps_features=False)
    maps.remember_all()
    routes = shortest_routes(maps["shed"], Start(maps["shed"].node("hall"), 0), RouteLimits())
    with pytest.raises(MemoryMismatch, match="keeps codes and no features"):
        MatcherScorer(random_matcher()).score(routes, WORDS)


def test_files_keep_weights_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    path, matcher = tmp_path / "matcher.safetensors", random_matcher()
    matcher.usual_steps.fill_(9)
    write_matcher(path, matcher, "inputs")
    assert matcher_key(path) == "inputs"
    routes = partial_routes()
    scores = [MatcherScorer(model).score(routes, WORDS) for model in (matcher, read_matcher(path))]
    assert scores[0].tobytes() == scores[1].tobytes()
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    assert matcher_key(path) == ""
    with pytest.raises(DataError, match="not a complete matcher"):
        read_matcher(path)
    with pytest.raises(DataError, match="no matcher here"):
        read_matcher(tmp_path / "other")
    with torch.no_grad():
        matcher.key.bias[0] = torch.nan
    write_matcher(path, matcher, "inputs")
    with pytest.raises(DataError, match="not finite"):
        read_matcher(path)
