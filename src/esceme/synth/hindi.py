"""Hindi text of generated instructions, for the RxR-style files."""

from __future__ import annotations

from collections.abc import Sequence

from esceme.synth.instructions import Clause, RelativeDirection
from esceme.synth.visibility import Mention


def _read_table(text: str) -> dict[str, str]:
    """Parse `english: hindi, ...`."""
    pairs = (entry.partition(": ") for entry in " ".join(text.split()).split(", "))
    return {english: hindi for english, _, hindi in pairs}


COLOURS = _read_table(
    """
    red: लाल, blue: नीला, green: हरा, turquoise: फ़िरोज़ी, purple: बैंगनी, brown: भूरा, orange: नारंगी,
    pink: गुलाबी, yellow: पीला, white: सफ़ेद, black: काला, grey: स्लेटी
    """
)
OBJECTS = _read_table(
    """
    sofa: सोफ़ा, armchair: आरामकुर्सी, coffee table: छोटी मेज़, television: टीवी, fireplace: अँगीठी,
    piano: पियानो, bookshelf: किताबों की अलमारी, rug: कालीन, painting: तस्वीर, plant: पौधा, lamp: दीपक,
    curtain: परदा, dining table: खाने की मेज़, chair: कुर्सी, sideboard: बर्तनों की अलमारी, stove: चूल्हा,
    fridge: फ़्रिज, counter: काउंटर, sink: सिंक, dishwasher: बर्तन धोने की मशीन,
    kitchen island: रसोई का चबूतरा, stool: स्टूल, bed: बिस्तर, nightstand: तिपाई, wardrobe: अलमारी,
    dresser: सिंगार मेज़, mirror: आईना, bathtub: नहाने का टब, toilet: शौचालय, shower: फुहारा, towel: तौलिया,
    washing machine: कपड़े धोने की मशीन, dryer: कपड़े सुखाने की मशीन, basket: टोकरी, desk: लिखने की मेज़,
    office chair: दफ़्तर की कुर्सी, computer: कंप्यूटर, filing cabinet: फ़ाइलों की अलमारी,
    coat rack: कोट की खूँटी, bench: बेंच, clock: घड़ी, console table: पतली मेज़, window: खिड़की,
    front door: मुख्य दरवाज़ा, statue: मूर्ति, vase: फूलदान, trash can: कूड़ेदान, aquarium: मछलीघर,
    globe: ग्लोब, treadmill: दौड़ने की मशीन
    """
)
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
    """Return the clauses as Hindi text, one sentence per clause."""
    return " ".join(f"{_sentence(clause)}।" for clause in clauses)


def _sentence(clause: Clause) -> str:
    if clause.stop is not None:
        return f"{_object(clause.stop)} के पास रुकें"
    if clause.beyond is not None:
        return f"उस ओर जाएँ जहाँ से {_object(clause.beyond)} दिखता है"
    if clause.counted is not None:
        side = {"left": "बाईं", "right": "दाईं"}[clause.counted.side]
        return f"{side} ओर का {ORDINALS[clause.counted.number - 1]} रास्ता लें"
    turn = TURN_PHRASES[clause.direction] if clause.direction else "आगे बढ़ें"
    return f"{turn}, {_object(clause.landmark)} की ओर" if clause.landmark else turn


def _object(mention: Mention) -> str:
    colour = COLOURS.get(mention.colour, mention.colour)
    return f"{colour} {OBJECTS.get(mention.name, mention.name)}".strip()
