"""The commands `esceme figure memory`, `esceme figure episode` and `esceme figure curves`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from esceme.cli.console import note, print_facts
from esceme.cli.data_option import find_data
from esceme.errors import ConfigError
from esceme.evaluation import read_result
from esceme.report.charts import plot_curves
from esceme.report.episode_figure import draw_episode, draw_episode_steps
from esceme.report.figure_files import check_figure_path, write_figure, write_gif
from esceme.report.memory_figure import draw_memory, moments_after, moments_of_steps
from esceme.report.progress_curves import AXIS_LABELS, ProgressAxis, measure_label, progress_curves
from esceme.report.result_set import ResultSet, load_results, result_file, result_names
from esceme.report.selection import RULE_TEXTS, SelectionRule, select_by_rule


def memory(
    result: Annotated[Path, tyro.conf.arg(metavar="RESULT")],
    /,
    data: str | None = None,
    scene: str | None = None,
    after: tuple[int, ...] | None = None,
    out: Path = Path("memory.svg"),
    json: bool = False,
) -> int:
    """Draw how the memory of a scene grew during an evaluation (Figure 3 of the paper).

    By default the pictures are steps of two episodes, as in the paper: the first, and the next that starts
    at a viewpoint without memory and reaches remembered ones. With --after, they show the memory after these
    numbers of episodes.

    Examples:
        esceme figure memory runs/small/evaluations/r2r-val_unseen-cold --data embedded
        esceme figure memory RESULT --scene home-0026 --after 1 10 50 --out memory.pdf

    Args:
        result: result file, or folder that `esceme evaluate` wrote.
        data: the data folder of the evaluation; by default ESCEME_DATA, else ./datasets; or `embedded`.
        scene: the scene to draw; by default the one with most episodes.
        after: numbers of episodes after which the memory is drawn.
        out: file to write; .svg, .pdf or .png.
        json: print a summary as one JSON object.
    """
    check_figure_path(out)
    results = load_results([result], find_data(data))
    histories = results.histories[0]
    if scene is None:
        counts = Counter(episode.scene for episode in results.results[0].episodes)
        scene = max(sorted(counts), key=lambda name: counts[name])
    if scene not in histories:
        raise ConfigError(f"no scene '{scene}' in {result}; there are {', '.join(sorted(histories))}")
    history = histories[scene]
    moments = moments_of_steps(history) if after is None else moments_after(history, after)
    caption = None
    if after is None:
        numbers = sorted({moment.number for moment in moments if moment.number is not None})
        texts = [results.episodes[history.episode_ids[number]].instruction for number in numbers]
        caption = " ".join(f"{number + 1}: {text}" for number, text in zip(numbers, texts, strict=True))
    title = f"Memory of {scene}, {results.names[0]}"
    write_figure(draw_memory(results.split.graphs[scene], moments, title=title, caption=caption), out)
    counts_by_label = {moment.label: len(moment.remembered) for moment in moments}
    _print_files([out], {"scene": scene, "remembered": counts_by_label}, json=json)
    return 0


def episode(
    results: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RESULT...", help_behavior_hint="(required)")],
    /,
    data: str | None = None,
    episode: str | None = None,
    rule: SelectionRule | None = None,
    count: int = 1,
    names: tuple[str, ...] | None = None,
    gif: bool = False,
    out: Path | None = None,
    json: bool = False,
) -> int:
    """Draw an episode: the paths of all results from above, and the panoramas of every step.

    Give the id of the episode, or select episodes by a rule that compares the last result with the others:
    helped (it exceeds the others most: by success, then by SPL), hurt (the others exceed it most), failures
    (it fails; first where another succeeds, then by distance to the goal). Episodes of different scenes are
    preferred.

    Examples:
        esceme figure episode none/RESULT cold/RESULT --data embedded --rule helped
        esceme figure episode RESULT RESULT --rule failures --count 3 --out figures/failure.pdf
        esceme figure episode RESULT --episode 1588_2 --gif

    Args:
        results: result files, or folders that `esceme evaluate` wrote, of the same split.
        data: the data folder of the evaluation; by default ESCEME_DATA, else ./datasets; or `embedded`.
        episode: id of the episode, as in prediction files.
        rule: rule that selects episodes; by default helped for several results, failures for one.
        count: number of episodes that the rule selects.
        names: names of the results in the figure.
        gif: also write an animated GIF that shows the episode step by step.
        out: file to write; .svg, .pdf or .png; the files of several episodes get numbers.
        json: print a summary as one JSON object.
    """
    if count < 1 or (episode is not None and (rule is not None or count != 1)):
        raise ConfigError("give either --episode ID, or --rule and a positive --count")
    if out is not None:
        check_figure_path(out)
    loaded = load_results(results, find_data(data), names=names)
    rule = rule or ("helped" if len(results) > 1 else "failures")
    ids = [episode] if episode is not None else select_by_rule(loaded.results, rule, count)
    if not ids:
        raise ConfigError(f"no episode: the rule selects {RULE_TEXTS[rule]}, and there are none")
    files = _episode_files(ids, out)
    for episode_id, file in zip(ids, files, strict=True):
        write_figure(draw_episode(loaded, episode_id), file)
        if gif:
            write_gif(draw_episode_steps(loaded, episode_id), file.with_suffix(".gif"))
    written = [path for file in files for path in ([file, file.with_suffix(".gif")] if gif else [file])]
    _note_missing_panoramas(loaded, ids)
    facts: dict[str, object] = {"episodes": ids}
    if episode is None:
        facts |= {"rule": rule, "rule_text": RULE_TEXTS[rule]}
        if not json:
            note(f"selected by the rule '{rule}': {RULE_TEXTS[rule]}")
    _print_files(written, facts, json=json)
    return 0


def _episode_files(ids: Sequence[str], out: Path | None) -> list[Path]:
    if out is None:
        return [Path(f"episode-{re.sub(r'[^A-Za-z0-9.-]', '_', name)}.svg") for name in ids]
    if len(ids) == 1:
        return [out]
    return [out.with_name(f"{out.stem}-{number}{out.suffix}") for number in range(1, len(ids) + 1)]


def _note_missing_panoramas(loaded: ResultSet, ids: Sequence[str]) -> None:
    requested = {
        (loaded.find(name).scene_id, viewpoint)
        for name in ids
        for number in range(len(loaded.names))
        for viewpoint in loaded.viewpoints(number, name)
    }
    missing = sum(loaded.folder.panorama(*key) is None for key in requested)
    if missing:
        note(f"note: {missing} of {len(requested)} panoramas are not in {loaded.folder.root / 'panoramas'}")


def curves(
    results: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RESULT...", help_behavior_hint="(required)")],
    /,
    measure: str = "spl",
    over: ProgressAxis = "share",
    names: tuple[str, ...] | None = None,
    draws: int = 500,
    out: Path = Path("curves.svg"),
    json: bool = False,
) -> int:
    """Draw a measure over the progress of an evaluation, smoothed, with 95 % bootstrap intervals.

    The x axis is the share of a scene's episodes that were run, or the number of the visit to the scene. A
    memory that helps raises the curve to the right. Results need not be of the same episodes.

    Examples:
        esceme figure curves none/RESULT cold/RESULT
        esceme figure curves RESULT RESULT --measure cls --over visit --out cls.pdf

    Args:
        results: result files, or folders that `esceme evaluate` wrote.
        measure: the measure: spl, sr, cls, gp, ndtw, ...
        over: the x axis: share of the episodes of each scene, or number of the visit.
        names: names of the results in the figure.
        draws: number of bootstrap samples (paths are resampled).
        out: file to write; .svg, .pdf or .png.
        json: print the points of all curves as one JSON object.
    """
    if draws < 1:
        raise ConfigError(f"--draws {draws}: expected at least 1")
    check_figure_path(out)
    files = [result_file(path) for path in results]
    if not files:
        raise ConfigError("no result; give the result.json or the folder of at least one evaluation")
    loaded = [read_result(file) for file in files]
    labels = result_names(loaded, files, names)
    drawn = progress_curves(labels, loaded, measure=measure, axis=over, draws=draws)
    split = " and ".join(dict.fromkeys(f"{r.facts.get('task')} {r.facts.get('split')}" for r in loaded))
    label = measure_label(measure)
    plot_curves(drawn, out, title=f"{measure.upper()}, {split}", x_label=AXIS_LABELS[over], y_label=label)
    points = {
        curve.name: {"x": curve.xs, "y": curve.ys, "low": curve.low, "high": curve.high} for curve in drawn
    }
    _print_files([out], {"measure": measure, "over": over, "curves": points}, json=json)
    return 0


def _print_files(files: Sequence[Path], facts: dict[str, object], *, json: bool) -> None:
    names = [str(file) for file in files]
    print_facts({"out": names, **facts}, *names, json=json)
