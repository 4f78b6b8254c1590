"""Instruction generation: one clause per step of a path, and templates that turn clauses into text.

Every clause has a cue that identifies the next viewpoint. The cue is a direction that only one candidate has,
or an object that only the next viewpoint's candidate view shows. It can also be an object that is not visible
from the current viewpoint but in the candidate views of the next viewpoint (a `beyond` cue, as in the paper's
Figure 1). Only an agent with a memory of the next viewpoint can use a `beyond` cue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from esceme.synth.visibility import Mention, Visibility
from esceme.world.geometry import VIEW_HEADINGS, nearest_view, wrap_angle

RelativeDirection = Literal[
    "straight", "slight left", "left", "sharp left", "slight right", "right", "sharp right", "back"
]
"""Direction relative to the view that the agent faces."""
Side = Literal["left", "right"]

SECTORS = ((18.0, "straight"), (55.0, "slight"), (115.0, ""), (160.0, "sharp"), (180.0, "back"))
"""(angle, name) of every direction: the largest angle in degrees, to the left or to the right."""
BEYOND_PROBABILITY = {"visible cue": 0.05, "no visible cue": 0.8}
"""Probability of naming an object that only the next viewpoint shows, with and without a visible cue."""
MIN_ANGLE = np.radians(5.0)
"""Minimum angle in radians between counted candidates, and from a candidate to straight ahead or behind."""
ORDINALS = ("first", "second", "third", "fourth")


class NthCandidate(NamedTuple):
    """Position of a candidate on the left or on the right side, counted from straight ahead."""

    number: int
    side: Side


@dataclass(frozen=True, slots=True)
class Clause:
    """Content of one part of an instruction: the description of one step, or of the stop."""

    direction: RelativeDirection | None = None
    nth_candidate: NthCandidate | None = None
    """Position of the next viewpoint among the candidates on one side."""
    landmark: Mention | None = None
    """Object in the candidate view that shows the next viewpoint."""
    beyond: Mention | None = None
    """Object that is visible from the next viewpoint only; using this cue requires memory."""
    stop: Mention | None = None
    """In the last clause: the object to stop at."""
    room: str = ""
    """Kind of room that the step enters; empty if the room is not mentioned."""


def relative_direction(heading: float, view: int) -> RelativeDirection:
    """Return the direction of an absolute heading (radians) relative to the heading of a view index.

    >>> relative_direction(0.0, 12), relative_direction(1.0, 12), relative_direction(-2.5, 12)
    ('straight', 'right', 'sharp left')
    """
    turn = float(np.degrees(wrap_angle(heading - VIEW_HEADINGS[view])))
    name = next(name for limit, name in SECTORS if abs(turn) <= limit)
    if name not in ("straight", "back"):
        name = f"{name} {'left' if turn < 0 else 'right'}".strip()
    return cast(RelativeDirection, name)


def number_candidates(headings: Sequence[float], view: int) -> list[NthCandidate]:
    """Return the number and side of every candidate, counted on each side from straight ahead to behind.

    `headings` are absolute headings of the candidates in radians; `view` is the index of the view faced.

    >>> number_candidates([0.1, 0.5, -0.3], 12)[:2]
    [NthCandidate(number=1, side='right'), NthCandidate(number=2, side='right')]
    """
    turns = [float(wrap_angle(heading - VIEW_HEADINGS[view])) for heading in headings]
    return [
        NthCandidate(
            1 + sum((other < 0) == (turn < 0) and abs(other) < abs(turn) for other in turns),
            "left" if turn < 0 else "right",
        )
        for turn in turns
    ]


def plan_clauses(
    visibility: Visibility,
    path: Sequence[int],
    heading: float,
    generator: np.random.Generator,
) -> list[Clause] | None:
    """Return one clause per step of a path of viewpoint indices, and a clause for the stop.

    Returns None if no cue identifies one of the steps or the stop. `heading` is the heading at the start, in
    radians.
    """
    clauses, view = [], int(nearest_view(heading))
    for here, there in zip(path, path[1:], strict=False):
        clause, view = _plan_step_clause(visibility, here, there, view, generator)
        if clause is None:
            return None
        clauses.append(clause)
    stop = _plan_stop_clause(visibility, path, generator)
    return None if stop is None else [*clauses, stop]


def _plan_step_clause(
    visibility: Visibility,
    here: int,
    there: int,
    view: int,
    generator: np.random.Generator,
) -> tuple[Clause | None, int]:
    """Return a clause for the step from `here` to `there`, and the view index faced after this step.

    `here` and `there` are viewpoint indices; `view` is the view index faced before the step. The clause is
    None if no cue distinguishes `there` from the other candidates.
    """
    graph = visibility.graph
    neighbours = graph.neighbours[here, : graph.degrees[here]].tolist()
    headings, views = graph.headings[here, : len(neighbours)], graph.views[here]
    candidate = neighbours.index(there)
    others = [other for other in range(len(neighbours)) if other != candidate]

    direction = relative_direction(float(headings[candidate]), view)
    same_direction = [
        other for other in others if relative_direction(float(headings[other]), view) == direction
    ]
    in_view = [visibility.seen_in_view(here, int(views[other])) for other in range(len(neighbours))]
    landmarks = in_view[candidate] - _union(in_view[other] for other in others)
    with_direction = in_view[candidate] - _union(in_view[other] for other in same_direction)
    hidden = visibility.seen_in_candidate_views(there) - visibility.seen_in_panorama(here)
    hidden -= _union(visibility.seen_in_candidate_views(neighbours[other]) for other in others)

    next_view = int(views[candidate])
    room = _room_entered(visibility, here, there) if generator.random() < 0.3 else ""
    options: list[Clause] = []
    if not same_direction:
        options.append(Clause(direction=direction, room=room))
    if landmarks:
        options.append(Clause(landmark=_sample_mention(landmarks, generator), room=room))
    if with_direction and (same_direction or generator.random() < 0.3):
        landmark = _sample_mention(with_direction, generator)
        options.append(Clause(direction=direction, landmark=landmark, room=room))
    probability = BEYOND_PROBABILITY["visible cue" if options else "no visible cue"]
    if hidden and len(neighbours) > 2 and generator.random() < probability:
        return Clause(beyond=_sample_mention(hidden, generator)), next_view
    counted = number_candidates(headings.tolist(), view)[candidate]
    if not options and counted.number <= len(ORDINALS) and _is_countable(headings, candidate, view):
        options.append(Clause(nth_candidate=counted, room=room))
    return (options[int(generator.integers(len(options)))] if options else None), next_view


def _is_countable(headings: NDArray[np.float64], candidate: int, view: int) -> bool:
    """Return whether counting candidates identifies `candidate` without ambiguity.

    No other candidate may be close to it, and no candidate may be straight ahead or straight behind.
    """
    to_others = np.abs(wrap_angle(np.delete(headings, candidate) - headings[candidate]))
    turns = np.abs(wrap_angle(headings - VIEW_HEADINGS[view]))
    is_sided = (turns >= MIN_ANGLE) & (turns <= np.pi - MIN_ANGLE)
    return bool((to_others >= MIN_ANGLE).all() and is_sided.all())


def _union(sets: Iterable[frozenset[Mention]]) -> frozenset[Mention]:
    return frozenset[Mention]().union(*sets)


def _room_entered(visibility: Visibility, here: int, there: int) -> str:
    """Return the kind of the room that the step from `here` to `there` enters; empty without a change."""
    viewpoints, rooms = visibility.house.viewpoints, visibility.house.rooms
    return "" if viewpoints[here].room == viewpoints[there].room else rooms[viewpoints[there].room].kind


def _plan_stop_clause(
    visibility: Visibility, path: Sequence[int], generator: np.random.Generator
) -> Clause | None:
    """Return a clause that names an object which is larger in view at the end than anywhere else on the path.

    Returns None if there is no such object.
    """
    end, before = path[-1], path[:-1]
    mentions = [
        mention
        for mention in visibility.seen_in_panorama(end)
        if visibility.max_coverage(end, mention)
        > 1.2 * max(visibility.max_coverage(viewpoint, mention) for viewpoint in before)
    ]
    return Clause(stop=_sample_mention(mentions, generator)) if mentions else None


def _sample_mention(mentions: Iterable[Mention], generator: np.random.Generator) -> Mention:
    """Sample a mention; a mention without a colour is more likely."""
    ordered = sorted(mentions)
    plain = [mention for mention in ordered if not mention.colour]
    options = plain if plain and generator.random() < 0.6 else ordered
    return options[int(generator.integers(len(options)))]


# -- text ------------------------------------------------------------------------------------------------

TURN_PHRASES: dict[RelativeDirection, tuple[str, ...]] = {
    "straight": ("go straight", "keep straight on", "walk straight ahead", "continue forward"),
    "slight left": ("bear left", "veer left", "turn slightly left"),
    "left": ("turn left", "take a left", "go left"),
    "sharp left": ("turn sharp left", "make a sharp left"),
    "slight right": ("bear right", "veer right", "turn slightly right"),
    "right": ("turn right", "take a right", "go right"),
    "sharp right": ("turn sharp right", "make a sharp right"),
    "back": ("turn around", "go back", "make a u-turn"),
}
LANDMARK_TEMPLATES = (
    "walk to the {}",
    "head for the {}",
    "go towards the {}",
    "approach the {}",
    "move past the {}",
)
TURN_LANDMARK_TEMPLATES = ("at the {}", "towards the {}", "facing the {}", "by the {}")
BEYOND_TEMPLATES = ("find the {}", "look for the {}", "seek out the {}", "take the way to the {}")
COUNT_TEMPLATES = ("take the {} {}", "choose the {} {}", "take the {} way on the {}")
STOP_TEMPLATES = ("stop by the {}", "wait near the {}", "stop beside the {}", "wait at the {}")
ROOM_TEMPLATES = ("into the {}", "entering the {}")
SEPARATORS = (". ", ", ", ", then ")


def clauses_to_text(clauses: Sequence[Clause], generator: np.random.Generator) -> str:
    """Return an instruction's clauses as English text.

    The separators between clauses are drawn from `SEPARATORS`, at which `parse_instruction` splits the text.
    """
    text = ""
    for number, clause in enumerate(clauses):
        phrase, separator = _clause_to_phrase(clause, generator), ""
        if number:
            separator = SEPARATORS[int(generator.integers(len(SEPARATORS)))]
        if not number or separator == ". ":
            phrase = phrase[0].upper() + phrase[1:]
        text += separator + phrase
    return f"{text}. "


def _clause_to_phrase(clause: Clause, generator: np.random.Generator) -> str:
    def sample(options: Sequence[str]) -> str:
        return options[int(generator.integers(len(options)))]

    if clause.stop is not None:
        return sample(STOP_TEMPLATES).format(clause.stop)
    if clause.beyond is not None:
        phrase = sample(BEYOND_TEMPLATES).format(clause.beyond)
    elif clause.nth_candidate is not None:
        phrase = sample(COUNT_TEMPLATES).format(
            ORDINALS[clause.nth_candidate.number - 1], clause.nth_candidate.side
        )
    elif clause.direction is None:
        phrase = sample(LANDMARK_TEMPLATES).format(clause.landmark)
    else:
        phrase = sample(TURN_PHRASES[clause.direction])
        if clause.landmark is not None:
            phrase += " " + sample(TURN_LANDMARK_TEMPLATES).format(clause.landmark)
    return f"{phrase} {sample(ROOM_TEMPLATES).format(clause.room)}" if clause.room else phrase
