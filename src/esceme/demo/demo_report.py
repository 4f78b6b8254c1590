"""Scores, figures and the markdown report of the demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esceme import __version__
from esceme.demo.demo_config import SPLITS, UNSEEN, DemoConfig, result_folder
from esceme.evaluation.compare import Difference, VisitGroup, by_visit, compare
from esceme.evaluation.result import Result, scores_of
from esceme.files import write_text
from esceme.learning.training_log import LOG_FILE, read_log
from esceme.report import Curve, plot_curves
from esceme.report.episode_figure import draw_episode
from esceme.report.figure_files import write_figure
from esceme.report.result_set import ResultSet, load_results
from esceme.report.selection import RULE_TEXTS, SelectionRule, select_by_rule
from esceme.viewer.page import render_page
from esceme.viewer.page_data import build_page_data
from esceme.viewer.page_pictures import add_pictures

HEADINGS = {"tl": "TL (m)", "ne": "NE (m)", "sr": "SR (%)", "spl": "SPL (%)"}
"""Metric -> column heading in the score table."""
GAIN_HEADING = "SPL - none"
"""Column heading of the difference in SPL to the agent without memory, paired by episode."""
METRICS_IN_METRES = ("tl", "ne")
BOOTSTRAP_DRAWS = 1000
"""Number of bootstrap samples of a confidence interval."""
NUM_EPISODES = 3
"""Number of episodes whose paths are drawn in the report."""
AGENT_NAMES = {"none": "without memory", "memory": "with memory"}
"""Name of an agent's run folder -> name of the agent in reports."""
RULES: tuple[SelectionRule, ...] = ("helped", "failures")
"""Rules that select the drawn episodes; a rule that selects none is followed by the next one."""
PATH_LABELS = {"none": "without memory", "cold": "with memory (cold)"}
"""Memory protocol -> label of its path, for the protocols whose paths are drawn."""
FIGURES = "figures"
"""Name of the folder of figures, inside the folder of the demo."""
PROTOCOLS_TEXT = """\
`none` is the agent trained without memory. The other rows are the agent trained with memory, for the same
number of iterations on the same episodes. Its memory is empty at the start of a split and kept between
episodes (`cold`), filled by a first pass over the split (`two-pass`), or cleared after every episode
(`episodic`)."""
REMEMBERED_TEXT = "Viewpoints that were in memory at the start of the episode are yellow."


# -- scores ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProtocolScores:
    """Scores of one memory protocol on one split."""

    memory: str
    """Name of the memory protocol, which determines when memory is cleared: `none`, `cold` ..."""
    means: Mapping[str, float]
    """Metric -> mean over episodes."""
    intervals: Mapping[str, tuple[float, float]]
    """Metric -> (lower, upper) bound of the 95 % confidence interval, from a bootstrap over paths."""
    gain: Difference | None
    """Difference in SPL to the protocol `none`, paired by episode; None for the protocol `none`."""
    visits: Sequence[VisitGroup]
    """Mean SPL of first, second ... visits to a scene."""


@dataclass(frozen=True)
class SplitScores:
    """Scores of all memory protocols on one split, and how many episodes, paths and scenes it has."""

    split: str
    episodes: int
    paths: int
    scenes: int
    rows: Sequence[ProtocolScores]
    """One item per memory protocol, in the order of the score table."""

    def row(self, memory: str) -> ProtocolScores:
        """Return the scores of one memory protocol."""
        return next(row for row in self.rows if row.memory == memory)

    @classmethod
    def of(cls, split: str, results: Mapping[str, Result]) -> SplitScores:
        """Compute scores from a dict from memory protocol to result. The first key must be `none`."""
        names = [f"{split}, {memory}" for memory in results]
        comparison = compare(list(results.values()), measures=["spl"], names=names)
        gains = (None, *comparison.measures[0].differences)
        rows = []
        for (memory, result), gain in zip(results.items(), gains, strict=True):
            intervals = scores_of(result).intervals(draws=BOOTSTRAP_DRAWS)
            means = {name: result.means[name] for name in HEADINGS}
            intervals = {name: intervals[name] for name in HEADINGS}
            rows.append(ProtocolScores(memory, means, intervals, gain, by_visit(result)))
        return cls(split, comparison.episodes, comparison.paths, comparison.scenes, rows)


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """Result of the demo: settings, durations, scores and selected episodes."""

    config: DemoConfig
    world: Path
    resumed_after: Mapping[str, int]
    """Agent -> number of iterations that an earlier, interrupted demo had completed."""
    seconds: Mapping[str, float]
    """Part of the demo -> its duration in seconds."""
    scores: Mapping[str, SplitScores]
    """Split -> its scores."""
    episodes: tuple[str, ...]
    """Ids of the episodes whose paths are drawn."""

    @property
    def page(self) -> Path:
        """The HTML page that shows all episodes in unseen houses."""
        return self.config.out / "page.html"

    @property
    def report(self) -> Path:
        """The report file."""
        return self.config.out / "report.md"


def format_score(metric: str, value: float, *, sign: str = "") -> str:
    """Return a score as text: metres with two decimal digits, or a share as per cent with one digit.

    >>> format_score("ne", 3.14159), format_score("spl", 0.5), format_score("spl", 0.051, sign="+")
    ('3.14', '50.0', '+5.1')
    """
    return f"{value:{sign}.2f}" if metric in METRICS_IN_METRES else f"{100 * value:{sign}.1f}"


def format_cells(row: ProtocolScores) -> list[tuple[str, str]]:
    """Return (value, interval) texts for every column of the score table; missing texts are empty."""
    cells = [
        (format_score(name, row.means[name]), _format_interval(name, *row.intervals[name]))
        for name in HEADINGS
    ]
    if row.gain is None:
        return [*cells, ("", "")]
    interval = row.gain.over_paths
    text = "" if interval is None else _format_interval("spl", interval.low, interval.high, sign="+")
    return [*cells, (format_score("spl", row.gain.mean, sign="+"), text)]


def _format_interval(metric: str, low: float, high: float, *, sign: str = "") -> str:
    return f"{format_score(metric, low, sign=sign)}..{format_score(metric, high, sign=sign)}"


def visit_curves(scores: SplitScores, memories: Sequence[str]) -> list[Curve]:
    """Return one curve per memory protocol: mean SPL, in per cent, of first, second ... visits to a scene.

    The labels on the x axis hold the number of the visit and its number of episodes.
    """

    def label(group: VisitGroup) -> str:
        visits = f"{group.first}" if group.first == group.last else f"{group.first}-{group.last}"
        return f"{visits} (n {group.episodes})"

    groups = {memory: scores.row(memory).visits for memory in memories}
    return [
        Curve(name=memory, xs=list(map(label, visits)), ys=[100 * group.mean for group in visits])
        for memory, visits in groups.items()
    ]


def summary_sentence(scores: SplitScores) -> str:
    """Return one sentence that compares all protocols on a split and states whether memory helped."""
    none, cold, two_pass, episodic = (
        format_score("spl", scores.row(memory).means["spl"])
        for memory in ("none", "cold", "two-pass", "episodic")
    )
    houses = f"{scores.scenes} houses" if scores.scenes > 1 else "one house"
    return (
        f"On {scores.episodes} episodes in {houses} that neither agent saw in training, the agent with "
        f"memory of earlier episodes (cold) reached {cold} SPL and the agent without memory {none}, "
        f"{_conclusion(scores)}; after a first pass over all episodes (two-pass) the agent with memory "
        f"reached {two_pass}, and with its memory cleared after every episode (episodic) {episodic}."
    )


def _conclusion(scores: SplitScores) -> str:
    """Return the clause of the summary about the difference between the protocols `cold` and `none`."""
    gain = scores.row("cold").gain
    assert gain is not None
    change = f"a difference of {format_score('spl', gain.mean, sign='+')} points"
    if gain.over_paths is None:
        return f"{change}, without an interval because there is only one path"
    low, high = gain.over_paths.low, gain.over_paths.high
    meaning = "this run does not show whether memory helped"
    if low > 0 or high < 0:
        meaning = "memory helped" if low > 0 else "memory did harm"
    return f"{change} (95 % interval {_format_interval('spl', low, high, sign='+')}), so {meaning}"


# -- figures ---------------------------------------------------------------------------------------------


def select_trajectories(results: Mapping[str, Result], count: int = NUM_EPISODES) -> list[str]:
    """Return the ids of at most `count` episodes in which memory (protocol `cold`) raised the scores most.

    Where it raised none, the episodes are its failures; where it has none of these, the first one. `results`
    is keyed by memory protocol; the agent with memory must be ahead of the better of `none` and `episodic`.
    """
    ranked = [results[memory] for memory in ("none", "episodic", "cold") if memory in results]
    for rule in RULES:
        if selected := select_by_rule(ranked, rule, count):
            return selected
    return [results["cold"].episodes[0].id]


def selection_sentence(results: Mapping[str, Result], count: int = NUM_EPISODES) -> str:
    """Return a sentence that states by which rule the episodes are selected."""
    ranked = [results[memory] for memory in ("none", "episodic", "cold") if memory in results]
    for rule in RULES:
        if select_by_rule(ranked, rule, count):
            return f"These episodes in unseen houses are selected, not typical: {RULE_TEXTS[rule]}."
    return "Memory changed no score in unseen houses; this is the first episode."


def _write_charts(result: DemoResult, folder: Path) -> dict[str, str]:
    """Write charts of scores and trainings as SVG files; return a dict from figure name to title."""
    visits = visit_curves(result.scores[UNSEEN], ("none", "cold", "episodic"))
    losses, validations = [], []
    for agent, name in AGENT_NAMES.items():
        log = read_log(result.config.run_folder(agent) / LOG_FILE)
        losses.append(_log_curve(name, log, "train", "imitation"))
        validations += [
            _log_curve(f"{split}, {name}", log, "validation", split)
            for split in result.config.experiments()[agent].validation.splits
        ]
    charts = {
        "visits": ("SPL by visit to an unseen house", visits, "visit (and number of episodes)", "SPL (%)"),
        "loss": ("Imitation loss by iteration", losses, "iteration", "cross-entropy per episode"),
        "validation": ("SPL on parts of the splits by iteration", validations, "iteration", "SPL (%)"),
    }
    drawn = {name: chart for name, chart in charts.items() if chart[1]}
    for name, (title, curves, x_label, y_label) in drawn.items():
        plot_curves(curves, folder / f"{name}.svg", title=title, x_label=x_label, y_label=y_label)
    return {name: chart[0] for name, chart in drawn.items()}


def _log_curve(name: str, log: Sequence[Mapping[str, Any]], kind: str, key: str) -> Curve:
    """Return a curve over iterations of the value `key` in all log entries of one kind (SPL in per cent)."""
    entries = [entry for entry in log if entry["kind"] == kind]
    values = [100 * entry[key]["spl"] if kind == "validation" else entry[key] for entry in entries]
    xs = [float(entry["iteration"]) for entry in entries]
    return Curve(name=name, xs=xs, ys=list(map(float, values)))


def _write_drawings(result: DemoResult, shown: ResultSet, folder: Path) -> dict[str, str]:
    """Write drawings of the selected episodes as SVG files; return a dict from figure name to title."""
    titles = {}
    for number, episode_id in enumerate(result.episodes, 1):
        write_figure(draw_episode(shown, episode_id), folder / f"episode-{number}.svg")
        titles[f"episode-{number}"] = "An episode from above, and the panoramas of both agents"
    return titles


# -- the page --------------------------------------------------------------------------------------------


def write_report(result: DemoResult, results: Mapping[str, Result]) -> None:
    """Write the markdown report, its figures, and the page of all episodes in unseen houses.

    `results` maps memory protocols to their results on unseen houses.
    """
    folder = result.config.out / FIGURES
    paths = [
        result_folder(config)
        for config in result.config.evaluations(result.world)
        if config.split == UNSEEN and config.memory in PATH_LABELS
    ]
    shown = load_results(paths, result.world, names=list(PATH_LABELS.values()))
    titles = {**_write_charts(result, folder), **_write_drawings(result, shown, folder)}
    page = build_page_data(shown)
    add_pictures(page, shown.folder, "thumbnails")
    write_text(result.page, render_page(page))
    images = {name: f"![{title}]({FIGURES}/{name}.svg)" for name, title in titles.items()}
    parts = [
        "# An agent with memory and an agent without",
        summary_sentence(result.scores[UNSEEN]),
        _origin_paragraph(result),
        "## Scores",
        _score_table([result.scores[split] for split in SPLITS]),
        "Below each value is its 95 % bootstrap interval over paths; "
        f"`{GAIN_HEADING}` is the paired difference.",
        PROTOCOLS_TEXT,
        "## Scores by visit",
        images["visits"],
        "## Episodes",
        f"{selection_sentence(results)} {REMEMBERED_TEXT}",
        *(image for name, image in images.items() if name.startswith("episode-")),
        f"[{result.page.name}]({result.page.name}) shows all episodes step by step; open it in a browser.",
        "## Training",
        *(images[name] for name in ("loss", "validation") if name in images),
        "## Try next",
        "\n".join(
            ["```console", *(f"$ {line}" for line in result.config.next_commands(result.world)), "```"]
        ),
    ]
    write_text(result.report, "\n\n".join(parts) + "\n")


def _origin_paragraph(result: DemoResult) -> str:
    """Return a paragraph about command, data, training iterations and durations."""
    config, training = result.config, result.config.experiments()["memory"].training
    durations = ", ".join(f"{part} {seconds:.0f} s" for part, seconds in result.seconds.items())
    text = (
        f"Written by `{config.command}` (esceme {__version__}) for the embedded world in `{result.world}`. "
        f"Both agents: seed {config.seed}, {training.iterations:,} iterations of batch {training.batch}. "
        f"Durations: {durations}."
    )
    resumed = [f"{AGENT_NAMES[agent]} after {done:,}" for agent, done in result.resumed_after.items() if done]
    return f"{text} Resumed trainings: {', '.join(resumed)} iterations." if resumed else text


def _score_table(splits: Sequence[SplitScores]) -> str:
    headings = ["memory", *HEADINGS.values(), GAIN_HEADING]
    lines = [headings, [":--", *["--:"] * (len(headings) - 1)]]
    for scores in splits:
        lines.append([f"**{scores.split}**", *[""] * (len(headings) - 1)])
        for row in scores.rows:
            lines.append([row.memory, *("<br>".join(filter(None, cell)) for cell in format_cells(row))])
    sizes = (
        f"{scores.split}: {scores.episodes} episodes of {scores.paths} paths in "
        f"{scores.scenes} house{'' if scores.scenes == 1 else 's'}"
        for scores in splits
    )
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{'; '.join(sizes)}."
