"""The report of the demo: a page of markdown, and the figures that belong to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from esceme import __version__
from esceme.demo.outcome import Outcome
from esceme.demo.scoring import GAIN, HEADINGS, Scoring, cells, verdict, visit_curves
from esceme.demo.walks import draw_parting, draw_walk
from esceme.demo.wish import SPLITS, TASK
from esceme.evaluation.result import Result
from esceme.files import write_text
from esceme.learning.training_log import FILE, read_log
from esceme.report import Curve, draw_curves
from esceme.tasks.catalogue import TASKS
from esceme.tasks.folder import DataFolder
from esceme.world.graph import read_scenes

UNSEEN = SPLITS[-1]
FIGURES = "figures"
CALLED = {"none": "without memory", "memory": "with memory"}
"""Agents by their folders, and what they are called."""
PROTOCOLS = """\
`none` is the agent trained without memory; the other rows are the one trained with it, for as many iterations
on the same walks. Its memory is empty when a split begins and kept from walk to walk (`cold`), filled by
living the split once before (`two-pass`), or emptied after every walk (`episodic`)."""
CHOSEN = """\
These are chosen, not typical: the walks in unseen houses on which the agent with memory was most ahead. What
it remembered when they began is yellow."""
SHOWN = {
    "visits": "SPL by the number of the walk in a house",
    "loss": "Imitation loss by iteration",
    "validation": "SPL by iteration",
    "walk": "A walk from above, with both agents and what was remembered",
    "panorama": "A panorama with its candidates",
}
"""Figures, without their numbers, and what they show."""


def write_report(outcome: Outcome, results: Mapping[str, Result]) -> None:
    """Write the report and its figures, given the results of unseen houses by protocol."""
    figures = {**_curves(outcome), **_walks(outcome, results)}
    for name, drawing in figures.items():
        write_text(outcome.wish.out / FIGURES / f"{name}.svg", drawing)
    write_text(outcome.report, _page(outcome, figures))


# -- figures ---------------------------------------------------------------------------------------------


def _curves(outcome: Outcome) -> dict[str, str]:
    """How training went, and scores by visit."""
    logs = {name: read_log(outcome.wish.run(agent) / FILE) for agent, name in CALLED.items()}
    validated = outcome.wish.experiments()["memory"].validation.splits
    figures = {
        "visits": draw_curves(
            visit_curves(outcome.scorings[UNSEEN], ("none", "cold", "episodic")),
            title="SPL by the number of the walk in an unseen house",
            x_label="walk (and how many there are)",
            y_label="SPL (%)",
        ),
        "loss": draw_curves(
            [_losses(name, log) for name, log in logs.items()],
            title="Imitation loss",
            x_label="iteration",
            y_label="cross-entropy of a walk",
        ),
    }
    if validated:
        figures["validation"] = draw_curves(
            [_validations(name, log, split) for split in validated for name, log in logs.items()],
            title="SPL of some walks of each split, while training",
            x_label="iteration",
            y_label="SPL (%)",
        )
    return figures


def _losses(name: str, log: Sequence[Mapping[str, Any]]) -> Curve:
    told = [entry for entry in log if entry["kind"] == "train"]
    return Curve(name=name, xs=_iterations(told), ys=[float(entry["imitation"]) for entry in told])


def _validations(name: str, log: Sequence[Mapping[str, Any]], split: str) -> Curve:
    told = [entry for entry in log if entry["kind"] == "validation"]
    scores = [100 * float(entry[split]["spl"]) for entry in told]
    return Curve(name=f"{split}, {name}", xs=_iterations(told), ys=scores)


def _iterations(told: Sequence[Mapping[str, Any]]) -> list[float]:
    return [float(entry["iteration"]) for entry in told]


def _walks(outcome: Outcome, results: Mapping[str, Result]) -> dict[str, str]:
    """Some walks from above, and what the agents see where they part on the first of them."""
    data = DataFolder(outcome.world)
    by_id = {each.episode_id: each for each in TASKS[TASK].read(data.require(TASK, UNSEEN))}
    episodes = [by_id[name] for name in outcome.walks]
    graphs = read_scenes(data.connectivity, {each.scene_id for each in episodes})
    figures = {
        f"walk-{place}": draw_walk(graphs[episode.scene_id], episode, results)
        for place, episode in enumerate(episodes, 1)
    }
    parting = draw_parting(outcome.world, graphs[episodes[0].scene_id], episodes[0], results)
    return {**figures, "panorama": parting}


# -- the page --------------------------------------------------------------------------------------------


def _page(outcome: Outcome, figures: Collection[str]) -> str:
    pictures = {name: f"![{SHOWN[name.partition('-')[0]]}]({FIGURES}/{name}.svg)" for name in figures}
    parts = [
        "# An agent that remembers, and one that does not",
        verdict(outcome.scorings[UNSEEN]),
        _origin(outcome),
        "## Scores",
        _table([outcome.scorings[split] for split in SPLITS]),
        f"Below each value is its 95 % bootstrap interval over paths; `{GAIN}` is the paired difference.",
        PROTOCOLS,
        "## The more often it has been there",
        pictures["visits"],
        "## Walks",
        CHOSEN,
        *(picture for name, picture in pictures.items() if name.startswith("walk-")),
        "On the first of them, this is where the agents part:",
        pictures["panorama"],
        "## How they learned",
        *(pictures[name] for name in ("loss", "validation") if name in pictures),
        "## Try next",
        "\n".join(["```console", *(f"$ {each}" for each in outcome.wish.advice(outcome.world)), "```"]),
    ]
    return "\n\n".join(parts) + "\n"


def _origin(outcome: Outcome) -> str:
    """Which command made it, out of what, and how long that took."""
    training = outcome.wish.experiments()["memory"].training
    took = ", ".join(f"{part} {seconds:.0f} s" for part, seconds in outcome.seconds.items())
    told = (
        f"Made by `{outcome.wish.command}` (esceme {__version__}) from the embedded world in "
        f"`{outcome.world}`: each agent with seed {outcome.wish.seed} and {training.iterations:,} iterations "
        f"of batch {training.batch}. It took: {took}."
    )
    resumed = [f"{CALLED[agent]} after {done:,}" for agent, done in outcome.begun_after.items() if done]
    return f"{told} It went on with trainings begun before: {', '.join(resumed)}." if resumed else told


def _table(scorings: Sequence[Scoring]) -> str:
    headings = ["memory", *HEADINGS.values(), GAIN]
    lines = [headings, [":--", *["--:"] * (len(headings) - 1)]]
    for scoring in scorings:
        lines.append([f"**{scoring.split}**", *[""] * (len(headings) - 1)])
        for row in scoring.rows:
            lines.append([row.memory, *("<br>".join(filter(None, cell)) for cell in cells(row))])
    sizes = (
        f"{each.split}: {each.episodes} walks of {each.paths} paths, {_houses(each)}" for each in scorings
    )
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{'; '.join(sizes)}."


def _houses(scoring: Scoring) -> str:
    return f"{scoring.scenes} house{'' if scoring.scenes == 1 else 's'}"
