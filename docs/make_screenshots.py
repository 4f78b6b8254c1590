"""Make the pictures of docs/view.md from a finished demo: `make screenshots DEMO=demo`, which needs Chromium.

Episodes are the first of the rules `helped` and `hurt` (docs/view.md) in which memory changed a choice. In
the live walk the agent follows three instructions of one scene.
"""

from __future__ import annotations

import argparse
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Page, sync_playwright

from esceme.evaluation import EvaluationConfig, read_result
from esceme.report.result_set import load_results
from esceme.report.selection import SelectionRule, select_by_rule
from esceme.viewer.page import render_page
from esceme.viewer.page_data import build_page_data
from esceme.viewer.page_pictures import add_pictures
from esceme.viewer.walk_server import WalkServer
from esceme.viewer.walk_session import WalkSession

SIZE, PHONE = {"width": 1360, "height": 930}, {"width": 390, "height": 844}
CHANGED_CHOICE = """
(ids) => {
  const agent = app.data.results.length - 1;
  const best = (values) => values.indexOf(Math.max(...values));
  for (const id of ids) {
    const number = app.data.episodes.findIndex((episode) => episode.id === id);
    const steps = app.data.results[agent].trajectories[number].steps;
    const step = steps.findIndex((entry) => entry && entry[1] && best(entry[0]) !== best(entry[1]));
    if (step >= 0) return `episode=${id}&step=${step}`;
  }
  return `episode=${ids[0]}`;
}
"""
"""Script that returns the first of several episodes in which memory changed a choice, at this step."""
EPISODES = (1, 10, 50)
"""Numbers of episodes after which the memory is shown."""
SPLIT = "val_unseen"
STYLE = files("esceme.viewer") / "web" / "page.css"
SYMBOL_COLOURS = [*b"".join(map(bytes.fromhex, sorted({*re.findall(r"#(\w{6})\b", STYLE.read_text())})))]
"""Colours of the page, red, green and blue one after the other: pictures with few colours keep them."""
TIMEOUT = 120_000
"""Milliseconds that a picture may take."""
HEADING_SIZE = 20
"""Size of the letters above the maps of memories."""


def main() -> None:
    """Write all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("demo", type=Path, help="folder of a finished `esceme demo`")
    parser.add_argument("data", type=Path, help="data folder of the demo: the embedded world")
    parser.add_argument("--routes", type=Path, help="traced result of `esceme evaluate --planner routes`")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    results = [
        read_result(options.demo / run / f"evaluations/r2r-{SPLIT}-{memory}")
        for run, memory in (("none", "none"), ("memory", "cold"))
    ]
    runs = {
        "none/evaluations/r2r-val_unseen-none": "without memory",
        "memory/evaluations/r2r-val_unseen-cold": "with memory",
    }
    named = {options.demo / name: label for name, label in runs.items()}
    page_file = _write_page(named, options.data, options.demo / "page.html")
    with _chromium() as browser:

        def shoot(address: str, name: str, *, dark: bool = False, phone: bool = False) -> None:
            context = browser.new_context(
                viewport=PHONE if phone else SIZE, color_scheme="dark" if dark else "light"
            )
            page = context.new_page()
            page.set_default_timeout(TIMEOUT)
            page.goto(address)
            page.wait_for_timeout(400)
            _save(page.screenshot(), options.out / f"{name}.png")
            context.close()

        def address_of(rule: SelectionRule) -> str:
            page = browser.new_page()
            page.goto(page_file)
            state = page.evaluate(CHANGED_CHOICE, select_by_rule(results, rule, 1000))
            page.close()
            return f"{page_file}#{state}"

        shoot(address_of("helped"), "view-helped")
        shoot(address_of("hurt"), "view-hurt", dark=True)
        shoot(address_of("helped"), "view-phone", phone=True)
        shoot(address_of("helped"), "view-phone-dark", phone=True, dark=True)
        if options.routes is not None:
            file = _write_page({options.routes: "planner"}, options.data, options.demo / "routes.html")
            shoot(file, "view-routes")
        _shoot_memory(browser, page_file, options.out / "view-memory.png")
        _shoot_walk(browser, options.demo / "memory", options.data, options.out / "view-walk.png")


def _write_page(named: dict[Path, str], data: Path, out: Path) -> str:
    """Write a page of results (folder -> name) with the present code; return its address."""
    loaded = load_results(list(named), data, names=list(named.values()))
    page = build_page_data(loaded)
    add_pictures(page, loaded.folder, "thumbnails")
    out.write_text(render_page(page))
    return out.resolve().as_uri()


@contextmanager
def _chromium() -> Iterator[Any]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def _save(content: bytes, path: Path) -> None:
    with Image.open(BytesIO(content)) as image:
        picture = image.convert("RGB")
        frequent = picture.quantize(256 - len(SYMBOL_COLOURS) // 3, method=Image.Quantize.MEDIANCUT)
        palette = Image.new("P", (1, 1))
        palette.putpalette(SYMBOL_COLOURS + (frequent.getpalette() or []))
        small = picture.quantize(palette=palette, dither=Image.Dither.NONE)
        small.save(path, optimize=True)


def _shoot_memory(browser: Any, page_file: str, path: Path) -> None:
    """Write the map of one scene after several numbers of episodes, side by side."""
    page: Page = browser.new_page(viewport=SIZE, color_scheme="light")
    page.set_default_timeout(TIMEOUT)
    page.goto(page_file)
    parts = []
    for number in EPISODES:
        page.evaluate(
            "(order) => { const history = app.data.results[app.agent].histories[0];"
            "app.set({episode: app.data.episodes[history.episodes[order]].id, step: 0, hidden: '0.1'}); }",
            number,  # the memory before the next episode
        )
        page.wait_for_timeout(200)
        with Image.open(BytesIO(page.locator(".map-box").screenshot())) as image:
            part = image.convert("RGB")
        count = page.locator(".memory-line").text_content()
        text = f"after {number} episode{'s' if number > 1 else ''}: {count}"
        font = ImageFont.load_default(HEADING_SIZE)
        heading = Image.new("RGB", (part.width, part.height + 3 * HEADING_SIZE), "white")
        ImageDraw.Draw(heading).text((4, HEADING_SIZE), text.partition(" viewpoints")[0], "#1a1a1a", font)
        heading.paste(part, (0, 3 * HEADING_SIZE))
        parts.append(heading)
    sheet = Image.new("RGB", (sum(part.width for part in parts), max(part.height for part in parts)), "white")
    x = 0
    for part in parts:
        sheet.paste(part, (x, 0))
        x += part.width
    content = BytesIO()
    sheet.resize((1360, round(sheet.height * 1360 / sheet.width))).save(content, "PNG")
    _save(content.getvalue(), path)
    page.close()


def _shoot_walk(browser: Any, run: Path, data: Path, path: Path) -> None:
    """Write the live page after the agent has walked three instructions in one scene."""
    config = EvaluationConfig(run=str(run), data=str(data), split=SPLIT, memory="cold", task="r2r")
    with WalkServer(WalkSession(config)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        page: Page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.set_default_timeout(TIMEOUT)
        page.goto(server.address)
        for number in (3, 6, 1):
            page.evaluate("(number) => app.set({episode: app.data.episodes[number].id})", number)
            page.evaluate("() => app.walkEpisode()")
        page.evaluate("() => app.set({step: 2})")
        page.wait_for_timeout(800)
        _save(page.screenshot(), path)
        page.close()
        server.shutdown()
        thread.join()


if __name__ == "__main__":
    main()
