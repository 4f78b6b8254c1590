"""The command `esceme view`."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import tyro

from esceme.cli.console import note, print_facts
from esceme.cli.data_option import find_data
from esceme.files import write_text
from esceme.report.result_set import load_results
from esceme.viewer.page import render_page
from esceme.viewer.page_data import build_page_data
from esceme.viewer.page_pictures import PictureSize, add_pictures


def view(
    results: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RESULT...", help_behavior_hint="(required)")],
    /,
    data: str | None = None,
    out: Path = Path("page.html"),
    names: tuple[str, ...] | None = None,
    pictures: PictureSize = "thumbnails",
    open: bool = False,
    json: bool = False,
) -> int:
    """Write one HTML page that shows what agents saw, did and remembered.

    The page holds one or several results of the same split, side by side: every episode from above and step
    by step, the panoramas where the data folder has them, the memory as it grew, and scores over the
    evaluation. Results of `esceme evaluate --trace` also show the probabilities of every choice, with the
    memory and with the memory masked, and the words that the agent attended to. The file needs no server and
    sends no request.

    Examples:
        esceme view runs/small/evaluations/r2r-val_unseen-cold --data embedded --open
        esceme view NONE COLD --names "without memory" "with memory" --out page.html
        esceme view RESULT --pictures full

    Args:
        results: result files, or folders that `esceme evaluate` wrote, of the same split.
        data: the data folder of the evaluation; by default ESCEME_DATA, else ./datasets; or `embedded`.
        out: the page to write.
        names: names of the results on the page.
        pictures: panoramas on the page: small ones, full ones (about 100 kB each) or none.
        open: open the page in the browser.
        json: print a summary as one JSON object.
    """
    loaded = load_results(results, find_data(data), names=names)
    page = build_page_data(loaded)
    missing = add_pictures(page, loaded.folder, pictures)
    write_text(out, render_page(page))
    if missing:
        count = "no panorama is" if not page.pictures else f"{missing} panoramas are not"
        note(f"note: {count} in {loaded.folder.root / 'panoramas'}")
    versions = sorted({str(result.facts.get("version")) for result in loaded.results})
    if len(versions) > 1:
        note(f"note: the results are of different versions of ESceme: {', '.join(versions)}")
    if page.left_out:
        note(f"note: {page.left_out} episodes are not in every result and are not on the page")
    address = out.resolve().as_uri()
    counts = {name: len(getattr(page, name)) for name in ("episodes", "scenes", "pictures")}
    traced = [result.name for result in page.results if any(t.steps for t in result.trajectories)]
    facts = {"out": str(out), "address": address, "bytes": out.stat().st_size, **counts, "traced": traced}
    text = f"{out}: {len(page.episodes)} episodes, {len(page.results)} results"
    print_facts(facts, text, f"open {address}", json=json)
    if open:
        webbrowser.open(address)
    return 0
