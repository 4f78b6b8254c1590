"""The figure of a panorama: the picture inside, signs where candidates are, and nothing else needed."""

from __future__ import annotations

import base64
import math
import re
import xml.etree.ElementTree as ET

import pytest

from esceme.report import Sign, draw_panorama
from esceme.report.panorama import HEIGHT, RADIUS, WIDTH

SVG = "{http://www.w3.org/2000/svg}"
PICTURE = b"\xff\xd8 not really a picture"


def signs_of(svg: str) -> dict[str, tuple[float, float, str]]:
    """Label -> where its sign stands, and its colour."""
    groups = [each for each in ET.fromstring(svg).iter(f"{SVG}g") if each.get("class") == "candidate"]
    found = {}
    for group in groups:
        circle, text = group
        found[str(text.text)] = (
            float(circle.get("cx", "")),
            float(circle.get("cy", "")),
            circle.get("fill", ""),
        )
    return found


def test_the_picture_is_inside() -> None:
    svg = draw_panorama(PICTURE, [], title="here")
    (image,) = ET.fromstring(svg).iter(f"{SVG}image")
    kind, _, data = image.get("href", "").partition(";base64,")
    assert kind == "data:image/jpeg" and base64.b64decode(data) == PICTURE
    assert "data:image/png" in draw_panorama(b"\x89PNG", [], title="here")
    assert svg.count("http") == 1  # the namespace


@pytest.mark.parametrize(
    ("heading", "elevation", "place"),
    [
        (0.0, 0.0, (WIDTH / 2, HEIGHT / 2)),
        (math.pi / 2, 0.0, (0.75 * WIDTH, HEIGHT / 2)),
        (1.5 * math.pi, 0.0, (0.25 * WIDTH, HEIGHT / 2)),
        (2 * math.pi, math.pi / 4, (WIDTH / 2, HEIGHT / 4)),
    ],
)
def test_a_sign_stands_where_its_candidate_is_seen(
    heading: float, elevation: float, place: tuple[float, float]
) -> None:
    found = signs_of(draw_panorama(PICTURE, [Sign("1", heading, elevation)], title="here"))
    assert found["1"][:2] == pytest.approx(place, abs=0.01)


def test_signs_do_not_hide_each_other() -> None:
    close = [Sign(f"{n}", 0.01 * n, 0.0) for n in range(4)]
    places = [place[:2] for place in signs_of(draw_panorama(PICTURE, close, title="here")).values()]
    assert len(places) == 4
    assert all(math.dist(a, b) >= 2 * RADIUS - 0.02 for a in places for b in places if a != b)


def test_what_is_remembered_is_told_by_colour_and_in_words() -> None:
    svg = draw_panorama(PICTURE, [Sign("1", 0.0, 0.0, True), Sign("2", 2.0, 0.0)], title="here")
    found = signs_of(svg)
    assert found["1"][2] != found["2"][2]
    assert "2 candidates; 1 lead to remembered viewpoints" in svg
    assert re.search("that is remembered<.*that is not remembered<", svg, re.DOTALL)
    assert "is not remembered" not in draw_panorama(PICTURE, [Sign("1", 0.0, 0.0, True)], title="here")


def test_hostile_text_stays_text() -> None:
    root = ET.fromstring(draw_panorama(PICTURE, [Sign("<b>", 0, 0)], title="<script> &", caption="]]> \x00"))
    assert not [each for each in root.iter() if "script" in each.tag]
