"""Hindi text of generated instructions, for the RxR-style files."""

from __future__ import annotations

from collections.abc import Sequence

from esceme.synth.furniture import CATALOGUE
from esceme.synth.instructions import Clause, RelativeDirection
from esceme.synth.visibility import Mention

COLOURS = {
    "red": "लाल",
    "blue": "नीला",
    "green": "हरा",
    "turquoise": "फ़िरोज़ी",
    "purple": "बैंगनी",
    "brown": "भूरा",
    "orange": "नारंगी",
    "pink": "गुलाबी",
    "yellow": "पीला",
    "white": "सफ़ेद",
    "black": "काला",
    "grey": "स्लेटी",
}
ORDINALS = ("पहला", "दूसरा", "तीसरा", "चौथा")
TURN_PHRASES: dict[RelativeDirection, str] = {
    "straight": "सीधे चलें",
    "slight left": "थोड़ा बाएँ मुड़ें",
    "left": "बाएँ मुड़ें",
    "sharp left": "तेज़ बाएँ मुड़ें",
    "slight right": "थोड़ा दाएँ मुड़ें",
    "right": "दाएँ मुड़ें",
    "sharp right": "तेज़ दाएँ मुड़ें",
    "back": "पीछे मुड़ें",
}


def clauses_to_hindi(clauses: Sequence[Clause]) -> str:
    """Return an instruction's clauses as Hindi text, one sentence per clause."""
    return " ".join(f"{_clause_to_hindi(clause)}।" for clause in clauses)


def _clause_to_hindi(clause: Clause) -> str:
    if clause.stop is not None:
        return f"{_mention_to_hindi(clause.stop)} के पास रुकें"
    if clause.beyond is not None:
        return f"उस ओर जाएँ जहाँ से {_mention_to_hindi(clause.beyond)} दिखता है"
    if clause.nth_candidate is not None:
        side = {"left": "बाईं", "right": "दाईं"}[clause.nth_candidate.side]
        return f"{side} ओर का {ORDINALS[clause.nth_candidate.number - 1]} रास्ता लें"
    turn = TURN_PHRASES[clause.direction] if clause.direction else "आगे बढ़ें"
    return f"{turn}, {_mention_to_hindi(clause.landmark)} की ओर" if clause.landmark else turn


def _mention_to_hindi(mention: Mention) -> str:
    colour = COLOURS.get(mention.colour, mention.colour)
    return f"{colour} {CATALOGUE.kinds[mention.name].hindi}".strip()
