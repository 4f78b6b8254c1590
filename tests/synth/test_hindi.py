"""Hindi text: a different word for every object, colour and cue."""

from __future__ import annotations

import re
from collections.abc import Callable

from esceme.synth.annotated_paths import AnnotatedPath
from esceme.synth.furniture import CATALOGUE
from esceme.synth.hindi import COLOURS, clauses_to_hindi
from esceme.synth.instructions import ORDINALS, TURN_PHRASES, Clause, NthCandidate
from esceme.synth.visibility import Mention


def test_every_object_and_colour_has_its_own_word() -> None:
    assert {surface.colour for group in CATALOGUE.surfaces.values() for surface in group} <= set(COLOURS)
    for words in ([kind.hindi for kind in CATALOGUE.kinds.values()], list(COLOURS.values())):
        assert len(set(words)) == len(words)
        assert not any(re.search("[A-Za-z]", word) for word in words)


def test_every_cue_has_its_own_words() -> None:
    chair = Mention("chair", "red")
    clauses = [Clause(direction=direction) for direction in TURN_PHRASES]
    clauses += [
        Clause(nth_candidate=NthCandidate(1 + n, side))
        for n in range(len(ORDINALS))
        for side in ("left", "right")
    ]
    clauses += [
        Clause(landmark=chair),
        Clause(beyond=chair),
        Clause(stop=chair),
        Clause(beyond=Mention("bed")),
    ]
    texts = [clauses_to_hindi([clause]) for clause in clauses]
    assert len(set(texts)) == len(clauses)
    for text, clause in zip(texts, clauses, strict=True):
        assert "left" not in str(clause) or "बा" in text
        assert "right" not in str(clause) or "दा" in text


def test_every_clause_is_one_sentence(paths_of: Callable[[int], list[AnnotatedPath]]) -> None:
    for path in paths_of(0):
        text = clauses_to_hindi(path.clauses[0])
        assert text.count("।") == len(path.clauses[0]) and text.endswith("।")
        assert "None" not in text and "  " not in text
    clauses = [Clause(direction="left", landmark=Mention("bed", "blue")), Clause(stop=Mention("sofa"))]
    assert clauses_to_hindi(clauses) == "बाएँ मुड़ें, नीला बिस्तर की ओर। सोफ़ा के पास रुकें।"
