"""The second language: a word for everything, and different words for different things."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from esceme.synth import hindi, language
from esceme.synth.furniture import KINDS
from esceme.synth.language import Clause, Counted
from esceme.synth.palette import SHADES
from esceme.synth.sights import Mention, Sights
from esceme.synth.walks import Walk


def test_everything_that_can_stand_in_a_house_has_a_word() -> None:
    assert set(KINDS) <= set(hindi.THINGS)
    assert len(set(hindi.THINGS.values())) == len(hindi.THINGS)


def test_every_colour_has_a_word() -> None:
    assert {shade.colour for shades in SHADES.values() for shade in shades} <= set(hindi.COLOURS)
    assert len(set(hindi.COLOURS.values())) == len(hindi.COLOURS)


@pytest.mark.parametrize("number", range(3))
def test_everything_seen_in_a_house_can_be_named(number: int, look: Callable[[int], Sights]) -> None:
    for mention in look(number).mentions:
        assert not re.search("[A-Za-z]", hindi.say([Clause(stop=mention)]))


def test_every_direction_and_every_count_is_said_in_its_own_words() -> None:
    clauses = [Clause(direction=way) for way in language.TURNS]
    clauses += [
        Clause(counted=Counted(number, side))
        for number in range(1, 1 + len(language.ORDINALS))
        for side in ("left", "right")
    ]
    chair = Mention("chair", "red")
    clauses += [
        Clause(landmark=chair),
        Clause(beyond=chair),
        Clause(stop=chair),
        Clause(beyond=Mention("bed")),
    ]
    said = [hindi.say([clause]) for clause in clauses]
    assert len(set(said)) == len(clauses)
    assert all("बा" in text for text, clause in zip(said, clauses, strict=True) if "left" in str(clause))
    assert all("दा" in text for text, clause in zip(said, clauses, strict=True) if "right" in str(clause))


def test_each_clause_is_a_sentence(walks_of: Callable[[int], list[Walk]]) -> None:
    for walk in walks_of(0):
        text = hindi.say(list(walk.told[0]))
        assert text.count("।") == len(walk.told[0]) and text.endswith("।")
        assert "None" not in text and "  " not in text


def test_what_is_said_depends_on_nothing_but_the_clauses() -> None:
    clauses = [Clause(direction="left", landmark=Mention("bed", "blue")), Clause(stop=Mention("sofa"))]
    assert hindi.say(clauses) == "बाएँ मुड़ें, नीला बिस्तर की ओर। सोफ़ा के पास रुकें।"
    assert language.say(clauses, np.random.default_rng(0)) != hindi.say(clauses)
