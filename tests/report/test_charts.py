"""Charts of curves: file formats, drawn values, gaps, bands, texts and refused input."""

from __future__ import annotations

import math
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from esceme.errors import ConfigError
from esceme.report import Curve, plot_curves
from esceme.report.charts import MAX_POINTS, STYLES
from fixtures.files import svg_text

HOSTILE = '<script>alert(1)</script> & "quotes" ]]> $x^ \'\x00\ud800'
VISITS = ["1", "2", "3-5", "6-10"]
PLAIN = Curve(name="no memory", xs=VISITS, ys=[42.0, 41.0, 43.0, 42.0])
NUMBERS = Curve(name="even", xs=[0, 100], ys=[0.0, 20.0])
MEMORY = Curve(
    name="cold memory",
    xs=VISITS,
    ys=[40.0, 45.0, 50.0, 55.0],
    low=[36.0, 41.0, 46.0, 51.0],
    high=[44.0, 49.0, 54.0, 59.0],
)
TEXTS = {"title": "SPL by visit", "x_label": "visit", "y_label": "SPL (%)"}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """All figures that are saved, to check their content."""
    saved: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (saved.append(self), save(self, *a, **k)))
    return saved


@pytest.mark.parametrize(("name", "start"), [("a.svg", b"<?xml"), ("b.PDF", b"%PDF"), ("c.png", b"\x89PNG")])
def test_file_ending_selects_the_format_and_equal_charts_are_equal_files(
    name: str, start: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "figures" / name
    plot_curves([PLAIN, MEMORY], path, **TEXTS)
    data = path.read_bytes()
    assert data.startswith(start)
    plot_curves([PLAIN, MEMORY], path, **TEXTS)
    assert path.read_bytes() == data


def test_unknown_file_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"chart.gif: expected a file name that ends in .svg, .pdf or .png"):
        plot_curves([PLAIN], tmp_path / "chart.gif", **TEXTS)
    assert not list(tmp_path.iterdir())


def test_importing_the_package_and_the_score_command_does_not_load_matplotlib() -> None:
    program = "import sys, esceme.cli.score_command, esceme.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_curves_over_names_share_the_x_axis(tmp_path: Path, figures: list[Figure]) -> None:
    part = Curve(name="part", xs=["2", "6-10"], ys=[40.0, 41.0])
    plot_curves([PLAIN, part], tmp_path / "chart.svg", **TEXTS)
    axes = figures[0].axes[0]
    first, second = axes.get_lines()
    assert first.get_xydata().tolist() == [[at, y] for at, y in enumerate(PLAIN.ys)]
    assert second.get_xydata().tolist() == [[1, 40.0], [3, 41.0]]
    assert [label.get_text() for label in axes.get_xticklabels()] == VISITS


def test_band_lies_between_the_bounds_and_is_in_the_legend(tmp_path: Path, figures: list[Figure]) -> None:
    plot_curves([PLAIN, MEMORY], tmp_path / "chart.svg", band_label="over seeds", **TEXTS)
    band = figures[0].axes[0].collections[0].get_paths()[0].vertices
    for x, (low, high) in enumerate(zip(MEMORY.low, MEMORY.high, strict=True)):
        ys = band[band[:, 0] == x][:, 1]
        assert {ys.min(), ys.max()} == {low, high}
    for text in ("SPL by visit", "no memory", "cold memory", "over seeds", "SPL (%) by visit."):
        assert text in svg_text(tmp_path / "chart.svg")
    plot_curves([PLAIN], tmp_path / "chart.svg", **TEXTS)
    assert "95 % interval" not in svg_text(tmp_path / "chart.svg")


@pytest.mark.parametrize("gap", [math.nan, math.inf, -math.inf, 1e300])
def test_non_finite_values_leave_a_gap(gap: float, tmp_path: Path, figures: list[Figure]) -> None:
    ys = [42.0, 41.0, gap, 43.0, 42.0, gap, 44.0]
    torn = Curve(name="torn", xs=range(7), ys=ys, low=[y - 1 for y in ys], high=[y + 1 for y in ys])
    plot_curves([torn], tmp_path / "chart.svg", **TEXTS)
    axes = figures[0].axes[0]
    (line,) = axes.get_lines()
    assert np.isnan(line.get_ydata()).tolist() == [False, False, True, False, False, True, False]
    assert line.get_markevery() == [0, 1, 3, 4, 6]
    assert axes.get_ylim()[1] < 50
    area, single = axes.collections
    assert len(area.get_paths()) >= 2 and len(single.get_segments()) == 1


def test_long_curves_are_averaged_and_have_markers_only_at_isolated_points(
    tmp_path: Path, figures: list[Figure]
) -> None:
    count = 10 * MAX_POINTS + 1
    wave = [10.0 + (-1) ** at for at in range(count)]
    plot_curves([Curve(name="loss", xs=range(count), ys=wave), NUMBERS], tmp_path / "a.svg", **TEXTS)
    ys = figures[0].axes[0].get_lines()[0].get_ydata()
    size = math.ceil(count / MAX_POINTS)
    means = [np.mean(wave[at : at + size]) for at in range(0, count, size)]
    assert len(ys) <= MAX_POINTS and ys.tolist() == pytest.approx(means)
    assert figures[0].axes[0].get_lines()[0].get_marker() == ""
    ys = [1.0] * 20 + [math.nan, 2.0, math.nan] + [1.0] * 20
    plot_curves([Curve(name="loss", xs=range(len(ys)), ys=ys)], tmp_path / "a.svg", **TEXTS)
    assert figures[1].axes[0].get_lines()[0].get_markevery() == [21]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "curves",
    [
        [],
        [Curve(name="empty", xs=[], ys=[])],
        [Curve(name="one", xs=[5], ys=[3.0])],
        [Curve(name="missing", xs=[1, 2], ys=[math.nan, math.inf])],
        [Curve(name="huge", xs=[-1e99, 1e99], ys=[-1e99, 1e99])],
        [Curve(name="equal", xs=[0.5, 0.5], ys=[-0.0, 1e-300])],
        [replace(PLAIN, name=f"agent {at}") for at in range(len(STYLES) + 1)],
    ],
    ids=["none", "empty", "one", "missing", "huge", "equal", "many"],
)
def test_any_numbers_make_a_chart(curves: list[Curve], tmp_path: Path) -> None:
    plot_curves(curves, tmp_path / "chart.svg", **TEXTS)
    assert not {"nan", "inf"} & set(svg_text(tmp_path / "chart.svg").split())


def test_name_that_starts_with_an_underscore_is_in_the_legend(tmp_path: Path) -> None:
    plot_curves([replace(PLAIN, name="_hidden_")], tmp_path / "chart.svg", **{**TEXTS, "title": "t"})
    root = ET.parse(tmp_path / "chart.svg").getroot()
    assert "_hidden_" in {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}


def test_hostile_and_long_texts_stay_texts(tmp_path: Path) -> None:
    curve = Curve(name=HOSTILE * 20, xs=[HOSTILE, "b"], ys=[1.0, 2.0])
    texts = {"title": HOSTILE * 9, "x_label": HOSTILE * 30, "y_label": HOSTILE * 30, "band_label": HOSTILE}
    plot_curves([curve], tmp_path / "chart.svg", **texts)
    tags = {element.tag.rpartition("}")[2] for element in ET.parse(tmp_path / "chart.svg").iter()}
    assert "script" not in tags and "text" in tags
    assert "<script>alert(1)</script> &" in svg_text(tmp_path / "chart.svg")


def test_names_are_written_as_far_as_there_is_space(tmp_path: Path, figures: list[Figure]) -> None:
    names = [f"a rather long name {at}" for at in range(30)]
    plot_curves([Curve(name="a", xs=names, ys=[1.0] * 30)], tmp_path / "chart.svg", **TEXTS)
    assert 2 <= len(figures[0].axes[0].get_xticks()) <= 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ys": [1.0]}, "has 4 x values, but 1 y values"),
        ({"low": [1.0] * 4}, "has only one of `low` and `high`"),
        ({"low": [1.0] * 4, "high": [1.0] * 3}, "has 4 x values, but 3"),
        ({"xs": ["1", 2, 3, 4]}, "mixes numbers and names"),
        ({"xs": [1, 2, 4, 3]}, "decrease or are not finite"),
        ({"xs": [1, 2, math.nan, 3]}, "decrease or are not finite"),
    ],
)
def test_contradictory_curve_is_refused(changes: dict[str, list[float]], message: str) -> None:
    with pytest.raises(ConfigError, match=f"curve 'no memory'.*{message}"):
        replace(PLAIN, **changes)


def test_numbers_and_names_on_one_axis_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="some have names on the x axis; draw separate charts"):
        plot_curves([PLAIN, NUMBERS], tmp_path / "chart.svg", **TEXTS)
