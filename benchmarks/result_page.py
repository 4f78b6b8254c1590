"""The page of results: its generation and size, and in headless Chromium the times to open it and to scrub.

R2R val_unseen has 2,349 episodes in 11 scenes. The page shows two scripted agents with traces. Times in
Chromium are wall-clock times; where Chromium or Playwright is absent, they are left out.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Amount, Measurement
from esceme.evaluation import EvaluationConfig, evaluate
from esceme.report.result_set import load_results
from esceme.viewer.page import render_page
from esceme.viewer.page_data import build_page_data

SPLIT, AGENTS = "val_unseen", ("random", "shortest")
FRAMES = 150
SCRUB = """
async (frames) => {
  const times = [];
  for (let frame = 0; frame < frames; frame++) {
    if (frame % 15 === 0) app.moveInList(1);
    const start = performance.now();
    app.set({ step: frame % (app.lastStep + 1) });
    document.body.getBoundingClientRect();
    times.push(performance.now() - start);
    await new Promise(requestAnimationFrame);
  }
  return times;
}
"""
"""Script that moves through steps and episodes, and returns the milliseconds of each move with its layout."""


def write_page(data: Path, folder: Path, *, split: str = SPLIT) -> tuple[Path, int, float]:
    """Evaluate both agents and write their page; return file, number of episodes and seconds of the page."""
    for agent in AGENTS:
        config = EvaluationConfig(run=agent, data=str(data), split=split, memory="none", task="r2r")
        evaluate(config, folder / agent, trace=True)
    start = time.process_time()
    page = build_page_data(load_results([folder / agent for agent in AGENTS], data))
    (folder / "page.html").write_text(render_page(page))
    return folder / "page.html", len(page.episodes), time.process_time() - start


def time_in_chromium(file: Path) -> tuple[float, list[float]] | None:
    """Return the seconds until the page is drawn, and milliseconds per move; None without a browser."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto("about:blank")
        start = time.monotonic()
        page.goto(file.as_uri())
        page.wait_for_function("() => window.app && document.querySelectorAll('.map .viewpoint').length > 0")
        opened = time.monotonic() - start
        moves = page.evaluate(SCRUB, FRAMES)
        browser.close()
    return opened, moves


def run(data: Path, *, split: str = SPLIT) -> Iterator[Amount | Measurement]:
    with TemporaryDirectory() as name:
        file, episodes, seconds = write_page(data, Path(name), split=split)
        what = f"{episodes} episodes of two results"
        yield Amount(
            f"page of {what}, per 200 episodes", 200 * seconds / episodes, "s", 1, "reading the traces"
        )
        size = file.stat().st_size / 1e6
        yield Amount(
            "size of it without pictures, per 200 episodes", 200 * size / episodes, "MB", 3, "traces"
        )
        measured = time_in_chromium(file)
        if measured is None:
            yield Measurement("opening and scrubbing", "left out", "no Chromium or no Playwright here")
            return
        opened, moves = measured
        yield Amount(f"opening it in Chromium ({size:.1f} MB)", opened, "s", 2, "the list of episodes")
        slow = sorted(moves)[int(0.95 * len(moves))]
        yield Amount("a step while scrubbing, median", statistics.median(moves), "ms", 33, "layout")
        yield Amount("a step while scrubbing, 95 %", slow, "ms", 33, "drawing another episode")
