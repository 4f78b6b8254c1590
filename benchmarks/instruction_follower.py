"""Scripted instruction follower: parses an instruction and looks up the objects that it names.

The follower shows that the generated instructions are sufficient. With a memory of all viewpoints it can
follow them. Without memory it has to guess when an instruction names an object that is visible only from the
next viewpoint (`Clause.beyond`). It gets the ground truth of visible objects, which learned agents never get.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from esceme.perception.views import cut_ids
from esceme.synth.dataset import WorldConfig
from esceme.synth.house import build_graph, generate_house
from esceme.synth.house_model import House
from esceme.synth.instructions import (
    BEYOND_TEMPLATES,
    ORDINALS,
    STOP_TEMPLATES,
    TURN_PHRASES,
    Clause,
    NthCandidate,
    Side,
    number_candidates,
    relative_direction,
)
from esceme.synth.ray_casting import PanoramaCamera, SceneGeometry, cast_rays
from esceme.synth.visibility import Mention, Visibility, view_coverage
from esceme.world.geometry import nearest_view

COUNT_PATTERN = re.compile(rf"\w+ the (?P<number>{'|'.join(ORDINALS)}) (way on the )?(?P<side>left|right)")
SEPARATOR_PATTERN = re.compile(r", then |, |\. ")


def compute_visibility(house: House, *, height: int) -> Visibility:
    """Compute the objects that every viewpoint of a house sees, as during generation but without colours.

    `height` is the height of the panoramas in pixels. It must equal that of the written world.
    """
    geometry, camera = SceneGeometry(house), PanoramaCamera(height)
    coverage = []
    for viewpoint in house.viewpoints:
        faces = cast_rays(geometry, viewpoint.position, camera).face.T
        coverage.append(view_coverage(cut_ids(geometry.object_index_of[faces // 6]), len(house.furniture)))
    return Visibility(house, build_graph(house), np.stack(coverage))


def world_visibility(config: WorldConfig, split: str) -> dict[str, Visibility]:
    """Return a dict from scene id to the objects visible in that house, for the scenes of a split."""
    houses = [generate_house(scene_id, config.seed) for scene_id in config.scene_ids()[split]]
    return {house.scene_id: compute_visibility(house, height=config.preset.height) for house in houses}


def parse_instruction(text: str, mentions: Collection[Mention]) -> list[Clause]:
    """Parse an instruction into clauses. `mentions` are the objects that the text may name.

    Names of rooms are ignored.
    """
    phrases = [phrase.strip(" .").lower() for phrase in SEPARATOR_PATTERN.split(text)]
    return [_parse_clause(phrase, mentions) for phrase in phrases if phrase]


def _parse_clause(phrase: str, mentions: Collection[Mention]) -> Clause:
    named = [mention for mention in mentions if re.search(rf"\bthe {mention}\b", phrase)]
    longest = max(named, key=lambda mention: len(str(mention)), default=None)
    if _starts_with_template(phrase, STOP_TEMPLATES):
        return Clause(stop=longest)
    if _starts_with_template(phrase, BEYOND_TEMPLATES):
        return Clause(beyond=longest)
    if (match := COUNT_PATTERN.match(phrase)) is not None:
        return Clause(
            nth_candidate=NthCandidate(1 + ORDINALS.index(match["number"]), cast(Side, match["side"]))
        )
    turn = next((turn for turn, phrases in TURN_PHRASES.items() if phrase.startswith(phrases)), None)
    return Clause(direction=turn, landmark=longest)


def _starts_with_template(phrase: str, templates: Sequence[str]) -> bool:
    return any(phrase.startswith(template.partition(" {}")[0]) for template in templates)


@dataclass
class FollowerMemory:
    """Indices of the viewpoints whose candidate views the follower knows. A frozen memory does not grow."""

    viewpoints: set[int] = field(default_factory=set)
    frozen: bool = False

    def remember(self, viewpoint: int) -> None:
        """Add a viewpoint index, unless the memory is frozen."""
        if not self.frozen:
            self.viewpoints.add(viewpoint)


@dataclass
class InstructionFollower:
    """Follows instructions in one house. Its memory persists across episodes."""

    visibility: Visibility
    memory: FollowerMemory
    max_moves: int = 14

    def follow(self, text: str, start: int, heading: float, generator: np.random.Generator) -> list[int]:
        """Follow an instruction from viewpoint index `start`; return the visited viewpoint indices.

        `heading` is in radians. The last viewpoint is the one at which the follower stops.
        """
        rollout = _Rollout(self, [start], int(nearest_view(heading)), generator)
        for clause in parse_instruction(text, self.visibility.mentions):
            if clause.stop is not None or not rollout.execute(clause):
                break
        self.memory.remember(rollout.path[-1])
        return rollout.path


@dataclass
class _Rollout:
    """State of one episode: visited viewpoint indices, and index of the view that the follower faces."""

    follower: InstructionFollower
    path: list[int]
    view: int
    generator: np.random.Generator

    def execute(self, clause: Clause) -> bool:
        """Take the step that a clause describes; return False if the maximum number of moves is exceeded.

        If the object of a `beyond` cue is not visible from the chosen neighbour, go back and try another.
        """
        follower, here = self.follower, self.path[-1]
        tried: set[int] = set()
        while True:
            candidate = self._choose_candidate(here, clause, tried)
            there = self._move_to(candidate)
            if len(self.path) > follower.max_moves:
                return False
            if clause.beyond is None or clause.beyond in follower.visibility.seen_in_candidate_views(there):
                return True
            # The object is not visible from there: go back and try another candidate, if there is one.
            tried.add(candidate)
            if len(tried) == follower.visibility.graph.degrees[here]:
                return True
            self._move_to(int(np.flatnonzero(follower.visibility.graph.neighbours[there] == here)[0]))
            if len(self.path) > follower.max_moves:
                return False

    def _choose_candidate(self, here: int, clause: Clause, tried: set[int]) -> int:
        degree = self.follower.visibility.graph.degrees[here]
        scores = {
            candidate: self._score_candidate(here, candidate, clause)
            for candidate in range(degree)
            if candidate not in tried
        }
        best = [candidate for candidate, score in scores.items() if score == max(scores.values())]
        return best[int(self.generator.integers(len(best)))]

    def _score_candidate(self, here: int, candidate: int, clause: Clause) -> float:
        """Return how well a candidate matches a clause. The previous viewpoint has a lower score."""
        visibility = self.follower.visibility
        graph = visibility.graph
        there = int(graph.neighbours[here, candidate])
        score = -0.5 if there in self.path[-2:-1] else 0.0
        if clause.direction is not None:
            score += 2.0 * (
                relative_direction(float(graph.headings[here, candidate]), self.view) == clause.direction
            )
        if clause.nth_candidate is not None:
            headings = graph.headings[here, : graph.degrees[here]].tolist()
            score += 2.0 * (number_candidates(headings, self.view)[candidate] == clause.nth_candidate)
        if clause.landmark is not None:
            score += 2.0 * (
                clause.landmark in visibility.seen_in_view(here, int(graph.views[here, candidate]))
            )
        if clause.beyond is not None and there in self.follower.memory.viewpoints:
            score += 2.0 if clause.beyond in visibility.seen_in_candidate_views(there) else -2.0
        return score

    def _move_to(self, candidate: int) -> int:
        graph, here = self.follower.visibility.graph, self.path[-1]
        self.follower.memory.remember(here)
        self.view = int(graph.views[here, candidate])
        self.path.append(int(graph.neighbours[here, candidate]))
        return self.path[-1]
