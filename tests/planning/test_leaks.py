"""A planner knows only what was visited: garbling everything else changes no decision.

Goals and references are unreachable by type: a planner receives a `SceneMap` and a `PlanRequest`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

import numpy as np
import pytest

from esceme.memory.scene_map import MapBank, SceneMap
from esceme.planning.planner import Planner, PlanRequest
from esceme.planning.planning_navigator import PlanningNavigator
from esceme.planning.routes import RouteLimits
from esceme.world.atlas import Atlas
from fixtures.toy_atlas import TOY_EPISODES, build_toy_atlas, encode
from fixtures.toy_planner import RANDOM_PRIOR, random_planner, walk


class FoggyBank(MapBank):
    """Maps that may read only visited viewpoints: everything else in its atlas is garbage."""

    def remember_at(self, viewpoints):  # type: ignore[no-untyped-def]
        for viewpoint in viewpoints:
            self._bound_atlas().reveal(int(viewpoint))  # type: ignore[attr-defined]
        super().remember_at(viewpoints)


class FoggyAtlas(Atlas):
    """An atlas in which features, positions and candidates of a viewpoint are garbage until it is visited."""

    def __init__(self, atlas: Atlas, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.__dict__.update(atlas.__dict__)
        self.true, self.visited = atlas, set[int]()
        self.positions = rng.normal(size=atlas.positions.shape) * 100
        self.neighbours = atlas.neighbours.copy()
        for row, degree in zip(self.neighbours, atlas.degrees, strict=True):
            row[:degree] = rng.permutation(len(atlas))[:degree]
        self.graphs = dict(atlas.graphs)
        self.tables = {scene: vars(graph).copy() for scene, graph in atlas.graphs.items()}
        self.garbage = rng.normal(size=(len(atlas), 36, atlas.features.width)).astype(np.float32) * 50
        self._garble_graphs(rng)

    def _garble_graphs(self, rng: np.random.Generator) -> None:
        from dataclasses import replace

        for scene, graph in self.true.graphs.items():
            changed = {
                name: rng.permuted(getattr(graph, name), axis=0)
                for name in ("headings", "elevations", "lengths", "views")
            }
            changed["views"] = changed["views"].clip(0)  # padding is -1
            self.graphs[scene] = replace(graph, **changed)

    def reveal(self, viewpoint: int) -> None:
        """Copy the truth about one viewpoint."""
        self.visited.add(viewpoint)
        self.positions[viewpoint] = self.true.positions[viewpoint]
        self.neighbours[viewpoint] = self.true.neighbours[viewpoint]
        scene, name = self.true.names[viewpoint]
        row = self.true.graph(scene).index(name)
        for table in ("headings", "elevations", "lengths", "views"):
            getattr(self.graphs[scene], table)[row] = getattr(self.true.graph(scene), table)[row]

    def panorama_features(self, viewpoints):  # type: ignore[no-untyped-def]
        """Return true features of visited viewpoints, and garbage of all others."""
        features = self.true.panorama_features(viewpoints)
        hidden = [index not in self.visited for index in viewpoints.tolist()]
        features[hidden] = self.garbage[viewpoints][hidden]
        return features


KINDS = (
    {},
    {"choice": "lookahead"},
    {"utility": "gp"},
    {"scorers": ("follower", "speaker", "matcher")},
    {"scorers": ("matcher",)},
    {"scorers": ("speaker", "matcher"), "routes": "two-leg", "limits": RouteLimits(2, 6), "utility": "sdtw"},
    {
        "scorers": ("speaker", "matcher"),
        "routes": "k-best",
        "limits": RouteLimits(2, 6),
        "prior": RANDOM_PRIOR,
        "utility": "sdtw",
    },
)
"""Settings of planners."""


def foggy_walks(seed: int, **settings: Any) -> list[list[str]]:
    planner, speaker = random_planner(**settings)
    atlas = FoggyAtlas(build_toy_atlas(), seed)
    return walk(planner, speaker, build_toy_atlas(), TOY_EPISODES, bank_of(atlas, speaker))


def bank_of(atlas: Atlas, speaker) -> MapBank:  # type: ignore[no-untyped-def]
    return FoggyBank.from_atlas(atlas, codebook=speaker.codebook)


@pytest.mark.parametrize("settings", KINDS)
def test_garbling_unvisited_viewpoints_changes_no_decision(settings: dict[str, Any]) -> None:
    planner, speaker = random_planner(**settings)
    clear = walk(planner, speaker, build_toy_atlas(), TOY_EPISODES)
    assert len({tuple(path) for path in clear}) > 3, "the planner must walk different routes"
    for seed in range(3):
        assert foggy_walks(seed, **settings) == clear


@pytest.mark.parametrize("settings", KINDS)
def test_canary_reading_beyond_the_frontier_changes_decisions(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """The test above can fail: maps that read neighbours of visited viewpoints as well are noticed."""

    remember = MapBank.remember_at

    def leaking(self: MapBank, viewpoints) -> None:  # type: ignore[no-untyped-def]
        atlas = self._bound_atlas()
        remember(self, viewpoints)
        for viewpoint in viewpoints:
            remember(self, atlas.neighbours[viewpoint, : atlas.degrees[viewpoint]].tolist())

    monkeypatch.setattr(MapBank, "remember_at", leaking)
    planner, speaker = random_planner(**settings)
    clear = walk(planner, speaker, build_toy_atlas(), TOY_EPISODES)
    assert any(foggy_walks(seed, **settings) != clear for seed in range(3))


def test_planner_receives_neither_goals_nor_references() -> None:
    hints = get_type_hints(Planner.plan)
    assert hints.keys() == {"scene_map", "request", "return"}
    assert hints["scene_map"] is SceneMap and hints["request"] is PlanRequest
    assert {field.name for field in fields(PlanRequest)} == {"words", "trajectory", "start_view"}
    assert not any("goal" in name or "reference" in name for name in vars(SceneMap()))


def test_navigator_discards_goals() -> None:
    atlas = build_toy_atlas()
    planner, speaker = random_planner()
    maps = MapBank.from_atlas(atlas, codebook=speaker.codebook)
    navigator = PlanningNavigator.__new__(PlanningNavigator)
    import torch

    from esceme.agents.base import PrivilegedInfo, TokenBatch

    words = torch.tensor([encode(TOY_EPISODES[0])])
    privileged = PrivilegedInfo(atlas, np.array([[3]]))
    state = navigator.begin(TokenBatch(words, words > 0), torch.tensor([0]), privileged)
    assert not any(value is privileged for value in vars(state).values())
    del maps, planner
