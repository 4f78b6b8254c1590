"""The page in headless Chromium: what a reader does with it, from opening to exporting a figure.

Every test asserts that no console message, no error and no request to anything but the page occurred.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

from esceme.report.result_set import load_results
from esceme.viewer.page import render_page
from esceme.viewer.page_data import build_page_data
from esceme.viewer.page_pictures import add_pictures
from fixtures.browser import BrowserPage, browser_pages
from fixtures.panoramas import copy_with_panoramas
from fixtures.viewed_results import traced_results

OpenPage = Callable[..., BrowserPage]
pytestmark = pytest.mark.long
NASTY = '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">'


@pytest.fixture(scope="module")
def open_page() -> Iterator[OpenPage]:
    with browser_pages() as new_page:
        yield new_page


@pytest.fixture(scope="module")
def page_file(toy_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Page of a scripted agent and of a network with memory; one instruction holds markup."""
    folder = tmp_path_factory.mktemp("page")
    world = copy_with_panoramas(toy_root, folder / "world")
    results = load_results(traced_results(folder, world), world, names=["shortest", "with memory"])
    data = build_page_data(results)
    data.episodes[1].instruction = NASTY
    add_pictures(data, results.folder, "thumbnails")
    (folder / "page.html").write_text(render_page(data))
    return folder / "page.html"


def test_page_opens_and_shows_the_first_episode(page_file: Path, open_page: OpenPage) -> None:
    page = open_page(page_file)
    assert page.count(".episodes li") == 36
    assert "36 of 36 episodes" in page.text(".count")
    assert page.count(".map .viewpoint") > 5 and page.count(".map .path.walked") >= 2
    assert "Figure" in page.text("header") and page.text("h1").startswith("ESceme")


def test_list_is_filtered_searched_and_sorted(page_file: Path, open_page: OpenPage) -> None:
    page = open_page(page_file)
    page.select("[data-state=show]", "first")
    num_first = page.count(".episodes li")
    assert 0 < num_first < 36
    page.fill("[data-state=text]", "no such words")
    assert page.count(".episodes li:not(.empty)") == 0
    page.click(".empty button")
    assert page.count(".episodes li") == 36 and page.evaluate("app.state.text") == ""
    page.select("[data-state=show]", "first")
    page.select("[data-state=sort]", "loss")
    assert page.count(".episodes li") == num_first
    page.wait_for_address("show=first&sort=loss")


def test_episode_is_stepped_played_and_stepped_back(page_file: Path, open_page: OpenPage) -> None:
    page = open_page(page_file)
    before = page.attribute(".marker.agent-0", "transform")
    page.press("ArrowRight")
    assert page.attribute(".marker.agent-0", "transform") != before
    assert "step 1 of" in page.text(".episode .step-label")
    page.press("ArrowLeft")
    assert page.attribute(".marker.agent-0", "transform") == before
    page.press(" ")
    page.wait_for_text(".episode .step-label", "step 1 of")
    page.press(" ")
    page.press("End")
    remembered = page.count(".map .memory.age-now")
    assert remembered > 0
    page.press("Home")
    assert page.count(".map .memory.age-now") == 0
    page.press("j")
    assert page.attribute(".episodes [aria-current]", "aria-current") == "true"


def test_deep_link_restores_everything(page_file: Path, open_page: OpenPage) -> None:
    page = open_page(page_file)
    name = page.evaluate("app.data.episodes[20].id")
    page.goto(page_file, f"episode={name}&step=1&hidden=0&show=first&theme=dark&turn=90&zoom=path")
    assert f"episode {name}" in page.text("#episode-title")
    assert "step 1 of" in page.text(".episode .step-label")
    assert page.count(".map .marker.agent-0") == 0 and page.count(".map .marker.agent-1") == 1
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("app.panorama.centre") == 90
    page.press("ArrowRight")
    page.wait_for_address("step=2")
    assert f"episode={name}" in page.address and "hidden=0" in page.address


def test_two_agents_are_compared_and_one_is_hidden(page_file: Path, open_page: OpenPage) -> None:
    page = open_page(page_file)
    assert page.count(".scores tr") == 3
    page.click(".agent:nth-of-type(1) input")
    assert page.count(".scores tr") == 2 and page.count(".map .marker") == 1
    page.click(".agent:nth-of-type(1) input")
    page.click(".agent:nth-of-type(1) button")
    assert "no memory" in page.text(".memory-line")
    page.click(".agent:nth-of-type(2) button")
    assert "viewpoints remembered" in page.text(".memory-line")


def test_choices_show_what_memory_changed(page_file: Path, open_page: OpenPage) -> None:
    page = open_page(page_file)
    assert page.count(".choices tbody tr") >= 2
    header = page.text(".choices thead")
    assert "with memory" in header and "masked" in header
    # The memory of the first episode is empty: both distributions are equal.
    assert page.evaluate(
        "JSON.stringify(app.trajectory(1).steps[0][0]) === JSON.stringify(app.trajectory(1).steps[0][1])"
    )
    assert "Memory moves 0 %" in page.text(".moved")
    assert page.count(".instruction mark") > 0
    page.evaluate("app.set({episode: app.data.episodes.at(-1).id})")
    assert page.count(".map .memory.age-old, .map .memory.age-recent") > 0


def test_verdict_names_outcomes_and_steps(page_file: Path, open_page: OpenPage) -> None:
    page = open_page(page_file)
    assert "shortest reaches the goal (SPL 100); with memory " in page.text(".verdict")
    page.select("[data-state=show]", "choice")
    assert page.text("[data-state=show] option:checked") == (
        f"memory changed a choice ({page.count('.episodes li')})"
    )
    page.press("j")
    assert "Memory changes the first choice at step" in page.text(".verdict")
    step = int(page.evaluate("document.querySelector('.effect.changed title').textContent").split()[1][:-1])
    page.press("m")
    assert page.evaluate("app.step") == step
    assert "first choice changes from" in page.text(".moved")
    assert "ago" in page.text(".choices") and page.count(".effect.changed") > 0
    page.press("Home")
    page.page.locator(".verdict button").last.click()
    assert page.evaluate("app.step") > 0 or step == 0


def test_rooms_are_drawn_where_they_are_known(page_file: Path, open_page: OpenPage) -> None:
    page = open_page(page_file)
    rooms = page.evaluate("app.data.rooms")
    assert page.count(".map .room") == page.evaluate("new Set(app.scene.regions).size") > 1
    assert page.text(".map .room-name") in rooms and page.text(".place").endswith(tuple(rooms))
    page.evaluate("app.scene.rooms = app.scene.regions = null; app.render()")
    assert page.count(".map .room") == 0 and page.count(".map .room-name") == 0


def test_focus_stays_where_it_is(page_file: Path, open_page: OpenPage) -> None:
    page = open_page(page_file)
    for selector in (
        ".agent:nth-of-type(1) input",
        ".agent:nth-of-type(1) button",
        ".steps button:nth-of-type(4)",
    ):
        page.page.locator(selector).focus()
        page.press(" ")
        assert page.evaluate(f"document.activeElement === document.querySelector('{selector}')")


def test_compared_routes_are_drawn_and_listed(page_file: Path, open_page: OpenPage) -> None:
    page = open_page(page_file)
    page.evaluate(
        "const path = app.episode.reference; app.trajectory(1).steps[0][6] = {compared: 7, routes: ["
        "{path, probability: 0.4, utility: 1.5, scores: {text: 2}}, {path: path.slice(0, 2)}]}; app.render()"
    )
    assert page.count(".map .planned") == 2 and page.count(".map .planned.best") == 1
    assert page.text(".routes caption") == "Best 2 of 7 compared routes"
    assert [page.text(f".routes tbody td:nth-of-type({n})") for n in (1, 2)] == ["40 %", "1.50"]
    assert page.text(".routes tbody small").endswith("text 2.00")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.page.locator(".routes tbody tr").nth(1).focus()
    assert "best" in str(page.page.locator(".map .planned").nth(1).get_attribute("class"))


def test_panorama_is_dragged(page_file: Path, open_page: OpenPage) -> None:
    page = open_page(page_file)
    assert page.evaluate("getComputedStyle(document.querySelector('.panorama')).backgroundImage").startswith(
        'url("data:'
    )
    before = page.evaluate("app.panorama.centre")
    page.drag(".panorama", -60)
    assert page.evaluate("app.panorama.centre") != before
    page.wait_for_address("turn=")
    assert page.count(".panorama .candidate") == page.evaluate(
        "app.scene.neighbours[app.trajectory(1).poses[0]].length"
    )


def test_series_shows_the_memory_fill_up(page_file: Path, open_page: OpenPage) -> None:
    page = open_page(page_file)
    assert page.count(".growth rect") > 1
    page.evaluate("app.seriesRange.value = 2; app.seriesRange.dispatchEvent(new Event('input'))")
    assert page.text(".series .step-label").startswith("3 of")
    assert page.count(".curves polyline") == 2 and page.count(".curves .band") == 2
    page.select("[data-state=axis]", "visit")
    assert "visit" in page.text(".curves .axis-label.x")


def test_figures_are_exported(page_file: Path, open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(page_file)
    page.click(".menu summary")
    drawing = page.download(".menu button:nth-of-type(1)", tmp_path / "view.svg").read_text()
    root = ET.fromstring(drawing)
    assert root.tag.endswith("svg") and "class=" not in drawing and "var(" not in drawing
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert "memory masked" in texts and texts.count("STOP") == 1
    assert any(element.tag.endswith("image") for element in root.iter())  # the current panorama
    sheet = page.download(".menu button:nth-of-type(3)", tmp_path / "sheet.svg").read_text()
    images = [element for element in ET.fromstring(sheet).iter() if element.tag.endswith("image")]
    assert len(images) == page.evaluate(
        "app.trajectory(0).poses.length / 2 + app.trajectory(1).poses.length / 2"
    )
    with Image.open(page.download(".menu button:nth-of-type(2)", tmp_path / "view.png")) as image:
        assert image.width > 1000


def test_markup_in_instructions_is_text(page_file: Path, open_page: OpenPage) -> None:
    page = open_page(page_file)
    page.press("j")
    assert page.text(".instruction") == NASTY
    assert page.evaluate("window.hacked === undefined")
    page.goto(page_file, f"text={NASTY}&episode={NASTY}&measure={NASTY}")
    assert page.evaluate("window.hacked === undefined")


def test_page_fits_a_phone_in_both_themes(page_file: Path, open_page: OpenPage) -> None:
    for dark in (False, True):
        page = open_page(page_file, size=(390, 844), dark=dark)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", colour))) < 128) == dark


CONTRASTS = """
() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
  const ground = (element) => {
    const colour = numbers(getComputedStyle(element).backgroundColor);
    const isOpaque = colour.length === 3 || colour[3] > 0.99;
    return isOpaque || !element.parentElement ? colour : ground(element.parentElement);
  };
  const texts = [...document.querySelectorAll("p, b, small, th, td, h1, h2, h3, li, button, label, .mark")];
  return texts
    .filter((element) => [...element.childNodes].some((node) => node.nodeType === 3))
    .filter((element) => element.checkVisibility())
    .map((element) => {
      const [a, b] = [luminance(numbers(getComputedStyle(element).color)), luminance(ground(element))];
      return [element.outerHTML.slice(0, 80), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
    })
    .filter(([, contrast]) => contrast < 4.5);
}
"""
"""Script that returns the texts whose contrast is below 4.5."""


@pytest.mark.parametrize("dark", [False, True])
def test_texts_have_enough_contrast(page_file: Path, open_page: OpenPage, dark: bool) -> None:
    page = open_page(page_file, dark=dark)
    assert page.page.evaluate(CONTRASTS) == []


def test_everything_has_a_label(page_file: Path, open_page: OpenPage) -> None:
    page = open_page(page_file)
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, input, select, svg[role=img]')].filter((e) => "
        "!e.textContent.trim() && !e.getAttribute('aria-label') && !e.labels?.length).map((e) => e.outerHTML)"
    )
    assert unnamed == []
    assert page.evaluate("document.querySelector('.map').getAttribute('aria-label')").startswith("Map of")
