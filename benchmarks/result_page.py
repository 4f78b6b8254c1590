"""The page of results: its generation and size, and in headless Chromium the times to open it and to scrub.

R2R val_unseen has 2,349 episodes in 11 scenes. The page shows a scripted agent and a small network with
memory, both with traces; weights and features are random. Times in Chromium are wall-clock times, so other
programs should not run. Where Chromium or Playwright is absent, they are left out.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from benchmarks.measure import Amount, Measurement
from esceme.agents import HamtConfig
from esceme.evaluation import EvaluationConfig, evaluate
from esceme.memory import CandidateEnhancingConfig
from esceme.report.result_set import load_results
from esceme.runs import NavigatorConfig, save_run
from esceme.tasks.folder import DataFolder
from esceme.tasks.split import load_split
from esceme.tasks.text import WordPiece
from esceme.viewer.page import render_page
from esceme.viewer.page_data import build_page_data
from esceme.world.features import write_features

SPLIT, SECONDS, WIDTH, MAX_STEPS = "val_unseen", 5, 16, 7
"""Split, duration of scrubbing, width of the random features, and decisions per episode."""
SCRUB = """
async (seconds) => {
  const range = app.stepRange;
  const begin = performance.now();
  const times = [];
  let last = begin;
  for (let frame = 0; last - begin < 1000 * seconds; frame++) {
    if (frame % 15 === 0) app.moveInList(1);
    range.value = frame % (app.lastStep + 1);
    range.dispatchEvent(new Event("input"));
    last = await new Promise(requestAnimationFrame);
    times.push(last);
  }
  return times.slice(1).map((time, index) => time - times[index]);
}
"""
"""Script that drags the slider over steps and moves to the next episode every 15 frames. It returns the times
between frames that the browser drew, in milliseconds."""


def write_run(data: Path, folder: Path, split: str) -> tuple[Path, Path]:
    """Write a run folder of a small network with memory, and features for it; return both paths."""
    generator, source = np.random.default_rng(0), DataFolder(data)
    keys = [
        f"{scene}_{name}"
        for scene, graph in load_split(source, "r2r", split).graphs.items()
        for name in graph.viewpoints
    ]
    features = ((key, generator.random((36, WIDTH), dtype=np.float32)) for key in keys)
    file = write_features(folder / "drawn.hdf5", features)
    agent = HamtConfig(
        vocabulary=WordPiece.read(source.tokenizers[0]).size,
        feature_width=WIDTH,
        hidden=32,
        heads=4,
        feed_forward=32,
        text_layers=1,
        cross_layers=1,
        panorama_layers=1,
        initial_std=0.2,
    )
    config = NavigatorConfig(
        agent=agent,
        reader=CandidateEnhancingConfig(width=WIDTH, initial_std=0.1),
        feature_source=file.name,
        origin="drawn",
    )
    return save_run(folder / "run", config.build(seed=0), config), file


def write_page(data: Path, folder: Path, *, split: str = SPLIT) -> tuple[Path, int, float]:
    """Evaluate both agents and write their page; return file, number of episodes and seconds of the page."""
    run, features = write_run(data, folder, split)
    for name, agent, memory in (("shortest", "shortest", "none"), ("memory", str(run), "cold")):
        config = EvaluationConfig(
            run=agent,
            data=str(data),
            split=split,
            memory=memory,
            task="r2r",
            features=str(features) if memory == "cold" else None,
            max_steps=MAX_STEPS,
        )
        evaluate(config, folder / name, trace=True)
    start = time.process_time()
    page = build_page_data(load_results([folder / "shortest", folder / "memory"], data))
    (folder / "page.html").write_text(render_page(page))
    return folder / "page.html", len(page.episodes), time.process_time() - start


class ChromiumTimes(NamedTuple):
    """Wall-clock times of a page, and the processor time of its main thread, which other programs spare."""

    opened: float
    """Seconds until the page is drawn."""
    opened_cpu: float
    frames: list[float]
    """Milliseconds between frames while scrubbing."""
    frame_cpu: float
    """Milliseconds per frame."""


def time_in_chromium(file: Path) -> ChromiumTimes | None:
    """Open a page and scrub; None without a browser."""
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
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})

        def main_thread() -> float:
            metrics = session.send("Performance.getMetrics")["metrics"]
            return next(float(entry["value"]) for entry in metrics if entry["name"] == "TaskDuration")

        start = time.monotonic()
        page.goto(file.as_uri())
        page.wait_for_function("() => window.app && document.querySelectorAll('.map .viewpoint').length > 0")
        opened, opened_cpu = time.monotonic() - start, main_thread()
        frames = page.evaluate(SCRUB, SECONDS)
        frame_cpu = 1000 * (main_thread() - opened_cpu) / len(frames)
        browser.close()
    return ChromiumTimes(opened, opened_cpu, frames, frame_cpu)


def run(data: Path, *, split: str = SPLIT) -> Iterator[Amount | Measurement]:
    with TemporaryDirectory() as name:
        file, episodes, seconds = write_page(data, Path(name), split=split)
        what = f"{episodes} episodes of two results, one with memory"
        rate = f"{episodes / seconds:.0f} episodes a second; reading the traces"
        yield Amount(f"page of {what}, per 200 episodes", 200 * seconds / episodes, "s", 1, rate)
        size = file.stat().st_size / 1e6
        yield Amount(
            "size of it without pictures, per 200 episodes", 200 * size / episodes, "MB", 3, "traces"
        )
        measured = time_in_chromium(file)
        if measured is None:
            yield Measurement("opening and scrubbing", "left out", "no Chromium or no Playwright here")
            return
        cpu = f"main thread {measured.opened_cpu:.2f} s: the list of episodes"
        yield Amount(f"opening it in Chromium ({size:.1f} MB)", measured.opened, "s", 2, cpu)
        frames = measured.frames
        mean, slow = sum(frames) / len(frames), sorted(frames)[int(0.95 * len(frames))]
        rate = f"{1000 / mean:.0f} frames a second, of 60 at most; main thread {measured.frame_cpu:.1f} ms"
        yield Amount("a frame while scrubbing, mean", mean, "ms", 33, rate)
        yield Amount("a frame while scrubbing, 95 %", slow, "ms", 50, "drawing another episode")
