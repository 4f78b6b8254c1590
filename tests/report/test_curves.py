"""Charts of curves: well-formed, true to the values, and legible without colour."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esceme.errors import ConfigError
from esceme.report import Curve, draw_curves
from esceme.report.curves import HEIGHT, POINTS, STYLES, WIDTH
from esceme.report.svg import width_of

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '<script>alert(1)</script> & "quotes" ]]> \'\x00\ud800'
VISITS = ["1", "2", "3-5", "6-10"]
PLAIN = Curve(name="no memory", xs=VISITS, ys=[42.0, 41.0, 43.0, 42.0])
PLAIN_OVER_NUMBERS = Curve(name="even", xs=[0, 100], ys=[0.0, 20.0])
MEMORY = Curve(
    name="cold memory",
    xs=VISITS,
    ys=[40.0, 45.0, 50.0, 55.0],
    low=[36.0, 41.0, 46.0, 51.0],
    high=[44.0, 49.0, 54.0, 59.0],
)


def drawn(*series: Curve, title: str = "SPL by visit", **words: str) -> ET.Element:
    return ET.fromstring(
        draw_curves(series, title=title, x_label="visit", y_label="SPL (%)", **words).encode()
    )


def of_class(root: ET.Element, name: str) -> list[ET.Element]:
    return [each for each in root.iter() if name in each.get("class", "").split()]


def texts(root: ET.Element) -> list[str]:
    return ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]


def lines(root: ET.Element) -> list[list[tuple[float, float]]]:
    """The points of every stretch of every curve, in pixels."""
    paths = [path for curve in of_class(root, "curve") for path in curve.iter(f"{SVG}path")]
    return [pairs(path.get("d", "").removeprefix("M")) for path in paths]


def pairs(text: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in text.split())]


def heights(root: ET.Element) -> dict[float, float]:
    """The labels of the upward axis, and where they are in pixels."""
    return {float(tick.text or ""): float(tick.get("y", "")) - 3.2 for tick in of_class(root, "y-tick")}


def value_at(root: ET.Element, y: float) -> float:
    (low, bottom), *_, (high, top) = sorted(heights(root).items())
    return low + (high - low) * (bottom - y) / (bottom - top)


def test_a_point_is_as_high_as_its_value_between_the_labels() -> None:
    root = drawn(PLAIN, MEMORY)
    for line, curve in zip(lines(root), (PLAIN, MEMORY), strict=True):
        assert [value_at(root, y) for _, y in line] == pytest.approx(curve.ys, abs=0.01)


def test_curves_over_names_share_their_places_whatever_each_leaves_out() -> None:
    part = Curve(name="part", xs=["2", "6-10"], ys=[40.0, 41.0])
    whole, partial = lines(drawn(PLAIN, part))
    assert [x for x, _ in partial] == [whole[1][0], whole[3][0]]
    labels = [tick.text for tick in of_class(drawn(PLAIN, part), "x-tick")]
    assert labels == VISITS


def test_curves_over_numbers_lie_as_far_apart_as_their_numbers() -> None:
    ((a, b, c),) = lines(drawn(Curve(name="loss", xs=[100, 200, 600], ys=[3.0, 2.0, 1.0])))
    assert (c[0] - b[0]) / (b[0] - a[0]) == pytest.approx(4, rel=1e-3)


def test_the_band_bounds_the_line() -> None:
    root = drawn(PLAIN, MEMORY)
    (band,) = of_class(root, "band")
    corners = pairs(band[0].get("points", ""))
    edges = [value_at(root, y) for _, y in corners]
    assert edges[:4] == pytest.approx(MEMORY.high, abs=0.01)
    assert edges[:3:-1] == pytest.approx(MEMORY.low, abs=0.01)
    assert "95 % interval" in texts(root)
    assert "over seeds" in texts(drawn(MEMORY, band="over seeds"))
    assert not of_class(drawn(PLAIN), "band") and "95 % interval" not in texts(drawn(PLAIN))


@pytest.mark.parametrize("gap", [math.nan, math.inf, -math.inf, 1e300])
def test_what_is_not_finite_leaves_a_gap_and_does_not_stretch_the_axis(gap: float) -> None:
    ys = [42.0, 41.0, gap, 43.0, 42.0, gap, 44.0]
    root = drawn(Curve(name="torn", xs=range(7), ys=ys, low=[y - 1 for y in ys], high=[y + 1 for y in ys]))
    assert [len(line) for line in lines(root)] == [2, 2]
    assert [len(pairs(each.get("points", ""))) for each in of_class(root, "band")[0]] == [4, 4, 4]
    assert len(of_class(root, "marks")[0]) == 5  # the point without neighbours has one
    assert max(heights(root)) < 50


def test_a_lone_point_of_a_long_curve_is_a_dot() -> None:
    ys = [1.0] * 20 + [math.nan, 2.0, math.nan] + [1.0] * 20
    root = drawn(Curve(name="loss", xs=range(len(ys)), ys=ys))
    assert len(lines(root)) == 2 and not of_class(root, "marks")
    assert len(list(of_class(root, "curve")[0].iter(f"{SVG}circle"))) == 1


@pytest.mark.parametrize("count", [POINTS + 1, 10 * POINTS, 10 * POINTS + 1])
def test_long_curves_are_thinned_by_means(count: int) -> None:
    wave = [10 + (-1) ** at for at in range(count)]  # what is left of it are means of nearly 10
    root = drawn(Curve(name="loss", xs=range(count), ys=wave), PLAIN_OVER_NUMBERS)
    line, _ = lines(root)
    assert POINTS / 2 <= len(line) <= POINTS
    size = math.ceil(count / POINTS)
    means = [sum(wave[at : at + size]) / len(wave[at : at + size]) for at in range(0, count, size)]
    assert [value_at(root, y) for _, y in line] == pytest.approx(means, abs=0.05)


def test_styles_differ_in_more_than_colour() -> None:
    assert len({style.colour for style in STYLES}) == len({style.dash for style in STYLES}) == len(STYLES)
    root = drawn(*(replace(PLAIN, name=f"agent {at}") for at in range(len(STYLES))))
    samples = [path.get("stroke-dasharray") for curve in of_class(root, "curve") for path in curve]
    assert len(set(samples)) == len(STYLES)


def test_every_curve_is_in_the_legend_and_every_mark_says_its_value() -> None:
    root = drawn(PLAIN, MEMORY)
    assert {"no memory", "cold memory"} <= set(texts(root))
    said = [each.text for mark in of_class(root, "marks") for each in mark.iter(f"{SVG}title")]
    assert said[0] == "no memory, 1: 42.0"
    assert said[-1] == "cold memory, 6-10: 55.0 (51.0 .. 59.0)"


def test_title_and_words_for_those_who_cannot_see_it() -> None:
    root = drawn(PLAIN, Curve(name="loss", xs=[], ys=[]))
    assert root.get("role") == "img" and root.findtext(f"{SVG}title") == "SPL by visit"
    told = root.findtext(f"{SVG}desc") or ""
    assert "SPL (%) by visit. no memory: from 42.00 at 1 to 42.00 at 6-10. loss: no values." in told


@given(
    curves=st.lists(
        st.lists(st.tuples(st.floats(), st.floats(), st.floats()), max_size=5).flatmap(
            lambda values: st.lists(st.floats(-1e99, 1e99), min_size=len(values), max_size=len(values)).map(
                lambda xs: (sorted(xs), values)
            )
        ),
        max_size=4,
    )
)
def test_any_numbers_make_a_document_within_its_frame(
    curves: list[tuple[list[float], list[tuple[float, float, float]]]],
) -> None:
    series = [
        Curve(
            name="a",
            xs=xs,
            ys=[each[0] for each in values],
            low=[each[1] for each in values],
            high=[each[2] for each in values],
        )
        for xs, values in curves
    ]
    root = drawn(*series)
    places = [pair for line in lines(root) for pair in line]
    places += [pair for each in root.iter(f"{SVG}polygon") for pair in pairs(each.get("points", ""))]
    assert all(-20 <= x <= WIDTH and -20 <= y <= HEIGHT + 20 for x, y in places)
    assert not re.search(r"\bnan\b|\binf\b", ET.tostring(root, encoding="unicode"))


def test_hostile_and_long_words_stay_words_and_fit() -> None:
    curve = Curve(name=HOSTILE * 20, xs=[HOSTILE, "b"], ys=[1.0, 2.0])
    svg = draw_curves([curve], title=HOSTILE * 9, x_label=HOSTILE * 30, y_label=HOSTILE * 30, band=HOSTILE)
    root = ET.fromstring(svg.encode())
    assert not list(root.iter("script")) and not list(root.iter(f"{SVG}script"))
    assert all(width_of(text, 9) <= WIDTH for text in texts(root))


def test_names_are_written_as_many_as_there_is_room_for() -> None:
    names = [f"a rather long name {at}" for at in range(30)]
    shown = of_class(drawn(Curve(name="a", xs=names, ys=[1.0] * 30)), "x-tick")
    room = (float(shown[1].get("x", "")) - float(shown[0].get("x", ""))) if len(shown) > 1 else WIDTH
    assert 2 <= len(shown) < 30 and room > width_of(names[0], 9)


def test_the_same_curves_give_the_same_bytes_and_an_empty_chart_can_be_drawn() -> None:
    words = {"title": "t", "x_label": "x", "y_label": "y"}
    assert draw_curves([PLAIN, MEMORY], **words) == draw_curves([PLAIN, MEMORY], **words)
    ET.fromstring(draw_curves([], **words))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ys": [1.0]}, "has 4 places, but not as many values"),
        ({"low": [1.0] * 4}, "has one bound"),
        ({"low": [1.0] * 4, "high": [1.0] * 3}, "has 4 places"),
        ({"xs": ["1", 2, 3, 4]}, "over numbers and names"),
        ({"xs": [1, 2, 4, 3]}, "that fall or are not finite"),
        ({"xs": [1, 2, math.nan, 3]}, "that fall or are not finite"),
    ],
)
def test_a_curve_that_contradicts_itself_is_named(wrong: dict[str, list[float]], message: str) -> None:
    with pytest.raises(ConfigError, match=f"curve 'no memory'.*{message}"):
        replace(PLAIN, **wrong)


def test_numbers_and_names_are_not_drawn_on_one_axis() -> None:
    with pytest.raises(ConfigError, match="some over names; draw them apart"):
        drawn(PLAIN, PLAIN_OVER_NUMBERS)
