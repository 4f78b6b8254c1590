"""A scripted agent that reads: it parses an instruction and looks for what it names in the views.

It shows what the generated instructions are worth: with a full memory they can be followed, without one they
leave it guessing wherever only what lies beyond settles a decision.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast

import numpy as np

from esceme.synth.language import (
    BEYOND,
    ORDINALS,
    STOPS,
    TURNS,
    Clause,
    Counted,
    Side,
    count_ways,
    direction_to,
)
from esceme.synth.sights import Mention, Sights
from esceme.tasks.episode import Episode
from esceme.tasks.submission import Prediction, TrajectoryPoint
from esceme.world.geometry import snap

COUNTING = re.compile(rf"\w+ the (?P<number>{'|'.join(ORDINALS)}) (way on the )?(?P<side>left|right)")
JOINT = re.compile(r", then |, |\. ")


def parse(text: str, mentions: Collection[Mention]) -> list[Clause]:
    """The clauses of an instruction: its joints tell them apart, `mentions` are the things it may name."""
    phrases = [phrase.strip(" .").lower() for phrase in JOINT.split(text)]
    return [_clause(phrase, mentions) for phrase in phrases if phrase]


def _clause(phrase: str, mentions: Collection[Mention]) -> Clause:
    fitting = [each for each in mentions if re.search(rf"\bthe {each}\b", phrase)]
    named = max(fitting, key=lambda each: len(str(each)), default=None)
    if _begins_like(phrase, STOPS):
        return Clause(stop=named)
    if _begins_like(phrase, BEYOND):
        return Clause(beyond=named)
    if (found := COUNTING.match(phrase)) is not None:
        return Clause(counted=Counted(1 + ORDINALS.index(found["number"]), cast(Side, found["side"])))
    turn = next((way for way, phrases in TURNS.items() if phrase.startswith(phrases)), None)
    return Clause(direction=turn, landmark=named)


def _begins_like(phrase: str, templates: Sequence[str]) -> bool:
    return any(phrase.startswith(template.partition(" {}")[0]) for template in templates)


@dataclass
class Memory:
    """Which places a reader remembers; `frozen` ones learn nothing new."""

    places: set[int] = field(default_factory=set)
    frozen: bool = False

    def remember(self, place: int) -> None:
        """Keep what the views leading on from a place show."""
        if not self.frozen:
            self.places.add(place)


@dataclass
class Reader:
    """Follows instructions in one house with the memory it is given."""

    sights: Sights
    memory: Memory
    max_moves: int = 14

    def follow(self, text: str, start: int, heading: float, generator: np.random.Generator) -> list[int]:
        """The places walked through, ending where the reader stops."""
        walk = _Walk(self, [start], int(snap(heading)), generator)
        for clause in parse(text, self.sights.mentions):
            if clause.stop is not None or not walk.obey(clause):
                break
        self.memory.remember(walk.places[-1])
        return walk.places


@dataclass
class _Walk:
    """One episode of a reader."""

    reader: Reader
    places: list[int]
    view: int
    generator: np.random.Generator

    def obey(self, clause: Clause) -> bool:
        """Take the step that the clause asks for; False where the moves run out."""
        here = self.places[-1]
        tried: set[int] = set()
        while True:
            slot = self._choose(here, clause, tried)
            there = self._move(slot)
            if len(self.places) > self.reader.max_moves:
                return False
            if clause.beyond is None or clause.beyond in self.reader.sights.remembered(there):
                return True
            # Not what was promised: go back and try another way, if there is one.
            tried.add(slot)
            if len(tried) == self.reader.sights.graph.degrees[here]:
                return True
            self._move(self._slot_of(there, here))
            if len(self.places) > self.reader.max_moves:
                return False

    def _choose(self, here: int, clause: Clause, tried: set[int]) -> int:
        graph = self.reader.sights.graph
        slots = [slot for slot in range(graph.degrees[here]) if slot not in tried]
        scores = [self._score(here, slot, clause) for slot in slots]
        best = [slot for slot, score in zip(slots, scores, strict=True) if score == max(scores)]
        return best[int(self.generator.integers(len(best)))]

    def _score(self, here: int, slot: int, clause: Clause) -> float:
        """How well a candidate fits the clause; going back where one came from is a last resort."""
        sights = self.reader.sights
        graph = sights.graph
        there = int(graph.neighbours[here, slot])
        score = -0.5 if there in self.places[-2:-1] else 0.0
        if clause.direction is not None:
            score += 2.0 * (direction_to(float(graph.headings[here, slot]), self.view) == clause.direction)
        if clause.counted is not None:
            headings = graph.headings[here, : graph.degrees[here]].tolist()
            score += 2.0 * (count_ways(headings, self.view)[slot] == clause.counted)
        if clause.landmark is not None:
            score += 2.0 * (clause.landmark in sights.in_view(here, int(graph.views[here, slot])))
        if clause.beyond is not None and there in self.reader.memory.places:
            score += 2.0 if clause.beyond in sights.remembered(there) else -2.0
        return score

    def _slot_of(self, here: int, there: int) -> int:
        return int(np.flatnonzero(self.reader.sights.graph.neighbours[here] == there)[0])

    def _move(self, slot: int) -> int:
        graph, here = self.reader.sights.graph, self.places[-1]
        self.reader.memory.remember(here)
        self.view = int(graph.views[here, slot])
        self.places.append(int(graph.neighbours[here, slot]))
        return self.places[-1]


def read_episodes(
    sights: Mapping[str, Sights],
    episodes: Iterable[Episode],
    memory: Literal["none", "cold", "full"],
    generator: np.random.Generator,
) -> dict[str, Prediction]:
    """Let a reader follow episodes in their order, with a memory of its own for each house.

    `none` remembers nothing, `cold` begins empty and keeps what it has seen, `full` knows every place.
    """
    memories: dict[str, Memory] = {}
    predictions = {}
    for episode in episodes:
        seen = sights[episode.scene_id]
        known = set(range(len(seen.graph))) if memory == "full" else set[int]()
        kept = memories.setdefault(episode.scene_id, Memory(known, frozen=memory != "cold"))
        start = seen.graph.index(episode.start)
        walked = Reader(seen, kept).follow(episode.instruction, start, episode.heading, generator)
        stands = tuple(TrajectoryPoint(seen.graph.viewpoints[place]) for place in walked)
        predictions[episode.episode_id] = Prediction(episode.episode_id, stands)
    return predictions


def without_rooms(clauses: Sequence[Clause]) -> list[Clause]:
    """Clauses as a reader understands them: it does not use the names of rooms."""
    return [replace(clause, room="") for clause in clauses]
