"""Instructions for walks through a house: what to do at each step, said in varied words.

An instruction is a series of clauses, one per decision and a last one for stopping. Each clause carries a
cue that settles its decision: a direction that only one candidate lies in, a thing that only the right
candidate's view shows, or, as in the paper's Figure 1, a thing that cannot be seen from here at all but that
the right neighbour's own candidate views show: that is what a memory of the neighbour knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from esceme.synth.sights import Mention, Sights
from esceme.world.geometry import VIEW_HEADINGS, snap, wrap

Direction = Literal[
    "straight", "slight left", "left", "sharp left", "slight right", "right", "sharp right", "back"
]

Side = Literal["left", "right"]

SECTORS = ((18.0, "straight"), (55.0, "slight"), (115.0, ""), (160.0, "sharp"), (180.0, "back"))
"""Up to how many degrees to the side a direction reaches."""
UNSETTLED = 0.8
"""How often a decision that nothing in sight settles is left to what lies beyond; else ways are counted."""
APART = np.radians(5.0)
"""Ways are counted only where each lies at least this far from the others, and clearly on one side."""
ORDINALS = ("first", "second", "third", "fourth")


class Counted(NamedTuple):
    """The first, second ... way on the left or on the right."""

    number: int
    side: Side


@dataclass(frozen=True, slots=True)
class Clause:
    """What an instruction says about one decision."""

    direction: Direction | None = None
    counted: Counted | None = None
    """The candidate counted from straight ahead, on one side."""
    landmark: Mention | None = None
    """Something that the right candidate's view shows."""
    beyond: Mention | None = None
    """Something that cannot be seen from here, but from where the right candidate leads."""
    stop: Mention | None = None
    """For the last clause: what to stop beside."""
    room: str = ""
    """The kind of room the step leads into, where it leads into another one."""

    @property
    def needs_memory(self) -> bool:
        """Whether only what lies beyond settles this decision."""
        return self.beyond is not None


def direction_to(heading: float, view: int) -> Direction:
    """The direction of an absolute heading for an agent that faces `view`.

    >>> direction_to(0.0, 12), direction_to(1.0, 12), direction_to(-2.5, 12)
    ('straight', 'right', 'sharp left')
    """
    turn = float(np.degrees(wrap(heading - VIEW_HEADINGS[view])))
    name = next(name for most, name in SECTORS if abs(turn) <= most)
    if name not in ("straight", "back"):
        name = f"{name} {'left' if turn < 0 else 'right'}".strip()
    return cast(Direction, name)


def count_ways(headings: Sequence[float], view: int) -> list[Counted]:
    """Each candidate as a way on one side, counted from straight ahead backwards.

    >>> count_ways([0.1, 0.5, -0.3], 12)
    [Counted(number=1, side='right'), Counted(number=2, side='right'), Counted(number=1, side='left')]
    """
    turns = [float(wrap(heading - VIEW_HEADINGS[view])) for heading in headings]
    return [
        Counted(
            1 + sum((other < 0) == (turn < 0) and abs(other) < abs(turn) for other in turns),
            "left" if turn < 0 else "right",
        )
        for turn in turns
    ]


def plan_clauses(
    sights: Sights,
    path: Sequence[int],
    heading: float,
    generator: np.random.Generator,
    *,
    beyond: float = 0.05,
) -> list[Clause] | None:
    """Clauses that settle every decision of a walk over places, or None where one cannot be settled.

    `beyond` is how often a decision is left to what lies beyond although something in sight settles it.
    """
    clauses, view = [], int(snap(heading))
    for here, there in zip(path, path[1:], strict=False):
        clause, view = _decision(sights, here, there, view, generator, beyond)
        if clause is None:
            return None
        clauses.append(clause)
    stop = _stop(sights, path, generator)
    return None if stop is None else [*clauses, stop]


def _decision(
    sights: Sights, here: int, there: int, view: int, generator: np.random.Generator, beyond: float
) -> tuple[Clause | None, int]:
    graph = sights.graph
    around = graph.neighbours[here, : graph.degrees[here]].tolist()
    slot = around.index(there)
    others = [each for each in range(len(around)) if each != slot]
    views = graph.views[here]

    way = direction_to(float(graph.headings[here, slot]), view)
    same_way = [each for each in others if direction_to(float(graph.headings[here, each]), view) == way]
    in_view = {each: sights.in_view(here, int(views[each])) for each in range(len(around))}
    landmarks = in_view[slot] - _together(in_view[each] for each in others)
    shared = in_view[slot] - _together(in_view[each] for each in same_way)
    hidden = sights.remembered(there) - sights.around(here)
    hidden -= _together(sights.remembered(around[each]) for each in others)

    faced = int(views[slot])
    room = _room_entered(sights, here, there) if generator.random() < 0.3 else ""
    told: list[Clause] = []
    if not same_way:
        told.append(Clause(direction=way, room=room))
    if landmarks:
        told.append(Clause(landmark=_pick(landmarks, generator), room=room))
    if shared and (same_way or generator.random() < 0.3):
        told.append(Clause(direction=way, landmark=_pick(shared, generator), room=room))
    if hidden and len(around) > 2 and generator.random() < (beyond if told else UNSETTLED):
        return Clause(beyond=_pick(hidden, generator)), faced
    headings = graph.headings[here, : len(around)]
    counted = count_ways(headings.tolist(), view)[slot]
    if not told and counted.number <= len(ORDINALS) and _can_be_counted(headings, slot, view):
        told.append(Clause(counted=counted, room=room))
    return (told[int(generator.integers(len(told)))] if told else None), faced


def _can_be_counted(headings: NDArray[np.float64], slot: int, view: int) -> bool:
    """Whether no other way lies close to this one, and none between the sides: straight ahead or behind."""
    from_it = np.abs(wrap(np.delete(headings, slot) - headings[slot]))
    aside = np.abs(wrap(headings - VIEW_HEADINGS[view]))
    return bool((from_it >= APART).all() and ((aside >= APART) & (aside <= np.pi - APART)).all())


def _together(parts: Iterable[frozenset[Mention]]) -> frozenset[Mention]:
    return frozenset[Mention]().union(*parts)


def _room_entered(sights: Sights, here: int, there: int) -> str:
    places, rooms = sights.house.places, sights.house.rooms
    return "" if places[here].room == places[there].room else rooms[places[there].room].kind


def _stop(sights: Sights, path: Sequence[int], generator: np.random.Generator) -> Clause | None:
    """Stop beside something that is more prominent at the end than anywhere before."""
    end, before = path[-1], path[:-1]
    fitting = [
        mention
        for mention in sights.around(end)
        if sights.prominence(end, mention) > 1.2 * max(sights.prominence(place, mention) for place in before)
    ]
    if not fitting:
        return None
    return Clause(stop=_pick(fitting, generator))


def _pick(mentions: Iterable[Mention], generator: np.random.Generator) -> Mention:
    """One of them, mostly the shortest way to say it: a bare name where that is enough."""
    listed = sorted(mentions)
    plain = [each for each in listed if not each.colour]
    chosen = plain if plain and generator.random() < 0.6 else listed
    return chosen[int(generator.integers(len(chosen)))]


# -- words -----------------------------------------------------------------------------------------------

TURNS: dict[Direction, tuple[str, ...]] = {
    "straight": ("go straight", "keep straight on", "walk straight ahead", "continue forward"),
    "slight left": ("bear left", "veer left", "turn slightly left"),
    "left": ("turn left", "take a left", "go left"),
    "sharp left": ("turn sharp left", "make a sharp left"),
    "slight right": ("bear right", "veer right", "turn slightly right"),
    "right": ("turn right", "take a right", "go right"),
    "sharp right": ("turn sharp right", "make a sharp right"),
    "back": ("turn around", "go back", "make a u-turn"),
}
TOWARDS = ("walk to the {}", "head for the {}", "go towards the {}", "approach the {}", "move past the {}")
AND_TOWARDS = ("at the {}", "towards the {}", "facing the {}", "by the {}")
BEYOND = ("find the {}", "look for the {}", "seek out the {}", "take the way to the {}")
COUNTED = ("take the {} {}", "choose the {} {}", "take the {} way on the {}")
STOPS = ("stop by the {}", "wait near the {}", "stop beside the {}", "wait at the {}")
INTO = ("into the {}", "entering the {}")
JOINTS = (". ", ", ", ", then ")


def say(clauses: Sequence[Clause], generator: np.random.Generator) -> str:
    """The clauses as one text; a joint stands between every two, so that a reader can tell them apart."""
    text = ""
    for number, clause in enumerate(clauses):
        phrase = _phrase(clause, generator)
        if number:
            joint = JOINTS[int(generator.integers(len(JOINTS)))]
            text += joint
            phrase = phrase[0].upper() + phrase[1:] if joint == ". " else phrase
        else:
            phrase = phrase[0].upper() + phrase[1:]
        text += phrase
    return f"{text}. "


def _phrase(clause: Clause, generator: np.random.Generator) -> str:
    def one(options: Sequence[str]) -> str:
        return options[int(generator.integers(len(options)))]

    if clause.stop is not None:
        return one(STOPS).format(clause.stop)
    if clause.beyond is not None:
        phrase = one(BEYOND).format(clause.beyond)
    elif clause.counted is not None:
        phrase = one(COUNTED).format(ORDINALS[clause.counted.number - 1], clause.counted.side)
    elif clause.direction is None:
        phrase = one(TOWARDS).format(clause.landmark)
    else:
        phrase = one(TURNS[clause.direction])
        if clause.landmark is not None:
            phrase += " " + one(AND_TOWARDS).format(clause.landmark)
    return f"{phrase} {one(INTO).format(clause.room)}" if clause.room else phrase
