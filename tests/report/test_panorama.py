"""Panoramas: the embedded image, and markers at the candidates."""

from __future__ import annotations

import base64
import math
import re
import xml.etree.ElementTree as ET

import pytest

from esceme.report import CandidateMarker, draw_panorama
from esceme.report.panorama import HEIGHT, RADIUS, WIDTH

SVG = "{http://www.w3.org/2000/svg}"
IMAGE = b"\xff\xd8 not really an image"


def marker_positions(svg: str) -> dict[str, tuple[float, float, str]]:
    """Label -> x, y and fill colour of its marker."""
    groups = [group for group in ET.fromstring(svg).iter(f"{SVG}g") if group.get("class") == "candidate"]
    found = {}
    for group in groups:
        circle, text = group
        x, y = (float(circle.get(name, "")) for name in ("cx", "cy"))
        found[str(text.text)] = (x, y, circle.get("fill", ""))
    return found


def test_image_is_embedded() -> None:
    svg = draw_panorama(IMAGE, [], title="here")
    (image,) = ET.fromstring(svg).iter(f"{SVG}image")
    kind, _, data = image.get("href", "").partition(";base64,")
    assert kind == "data:image/jpeg" and base64.b64decode(data) == IMAGE
    assert "data:image/png" in draw_panorama(b"\x89PNG", [], title="here")
    assert svg.count("http") == 1  # the namespace


@pytest.mark.parametrize(
    ("heading", "elevation", "position"),
    [
        (0.0, 0.0, (WIDTH / 2, HEIGHT / 2)),
        (math.pi / 2, 0.0, (0.75 * WIDTH, HEIGHT / 2)),
        (1.5 * math.pi, 0.0, (0.25 * WIDTH, HEIGHT / 2)),
        (2 * math.pi, math.pi / 4, (WIDTH / 2, HEIGHT / 4)),
    ],
)
def test_marker_is_at_the_direction_of_its_candidate(
    heading: float, elevation: float, position: tuple[float, float]
) -> None:
    found = marker_positions(draw_panorama(IMAGE, [CandidateMarker("1", heading, elevation)], title="here"))
    assert found["1"][:2] == pytest.approx(position, abs=0.01)


def test_markers_do_not_overlap() -> None:
    close = [CandidateMarker(f"{n}", 0.01 * n, 0.0) for n in range(4)]
    points = [marker[:2] for marker in marker_positions(draw_panorama(IMAGE, close, title="here")).values()]
    assert len(points) == 4
    assert all(math.dist(a, b) >= 2 * RADIUS - 0.02 for a in points for b in points if a != b)


def test_remembered_candidates_differ_in_colour_and_are_described() -> None:
    svg = draw_panorama(
        IMAGE, [CandidateMarker("1", 0.0, 0.0, True), CandidateMarker("2", 2.0, 0.0)], title="here"
    )
    found = marker_positions(svg)
    assert found["1"][2] != found["2"][2]
    assert "2 candidates; 1 lead to remembered viewpoints" in svg
    assert re.search("that is remembered<.*that is not remembered<", svg, re.DOTALL)
    assert "is not remembered" not in draw_panorama(
        IMAGE, [CandidateMarker("1", 0.0, 0.0, True)], title="here"
    )


def test_hostile_text_stays_text() -> None:
    root = ET.fromstring(
        draw_panorama(IMAGE, [CandidateMarker("<b>", 0, 0)], title="<script> &", caption="]]> \x00")
    )
    assert not [element for element in root.iter() if "script" in element.tag]
