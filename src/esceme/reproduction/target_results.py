"""Results of a target: means over seeds, spread and paired differences, as stored in `results.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from esceme.errors import DataError
from esceme.evaluation import Result, compare, first_told, means_over_seeds, read_result
from esceme.evaluation.compare import Interval
from esceme.files import read_json, write_json
from esceme.metrics import COUNTS, METRES, TOUR_METRICS
from esceme.reproduction.costs import SystemCosts, measure_costs
from esceme.reproduction.planned_runs import KEY_LENGTH, Plan
from esceme.reproduction.subsets import SubsetScore, score_subsets, select_subsets
from esceme.reproduction.targets import Row, Target, main_measure
from esceme.source_digest import source_digest
from esceme.tasks.catalogue import TASKS

RESULTS_FILE = "results.json"
FORMAT = "esceme-reproduction-1"
Found = Mapping[tuple[str, str], list[Result]]
"""(row, split) -> the results of all seeds."""


class RowDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Difference of a measure to another row, with 95 % intervals, in metres or per cent."""

    against: str
    mean: float
    over_paths: tuple[float, float] | None
    over_scenes: tuple[float, float] | None

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval over paths (over scenes, if there is none) does not contain 0."""
        interval = self.over_paths or self.over_scenes
        return interval is not None and (interval[0] > 0 or interval[1] < 0)


class ReportRow(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of one row: means over seeds, in metres or per cent."""

    name: str
    paper: str
    """Name of the system in the table of the paper, or empty."""
    task: str
    memory: str
    evaluations: int
    """Number of results of each split: seeds, or orders."""
    values: dict[str, float]
    """Column, such as `val_unseen.spl`, -> mean over seeds."""
    spread: dict[str, float]
    """Column -> standard deviation over seeds; empty with one seed."""
    differences: dict[str, RowDifference]
    """Column -> difference to another row, for the measures of the row."""
    first_told: dict[str, float]
    """Column -> mean over seeds on the first instruction of every path."""
    first_told_differences: dict[str, RowDifference]
    subsets: dict[str, SubsetScore] = {}
    """Subset of the episodes of the first split -> score by the main measure of the task."""
    runs: list[str]
    """Names of the run folders, which end with the keys of the trainings."""


class TargetResults(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `results.json`."""

    format: str = FORMAT
    target: str
    title: str
    code: list[str]
    """Digests of the code of the evaluations. There is one, unless the package changed between them."""
    version: str
    data: str
    """Digest of the data."""
    seeds: int
    scale: float
    """Factor of the number of training iterations, 1 unless a budget was given."""
    limit: int | None
    """Maximum number of episodes per evaluation, None unless a budget was given."""
    episodes: dict[str, int]
    """Task and split, such as `r2r val_unseen`, -> number of episodes."""
    rows: list[ReportRow]
    costs: dict[str, SystemCosts] = {}
    """System -> its costs at the paper's size, if the target has them."""


def read_target_results(path: Path) -> TargetResults:
    """Return the content of a `results.json`."""
    results = read_json(path, TargetResults)
    if results.format != FORMAT:
        raise DataError(f"{path}: format '{results.format}', expected '{FORMAT}'")
    return results


def collect_results(plan: Plan, target: Target) -> TargetResults:
    """Return the scores of all rows of a target. All its evaluations must be finished."""
    rows = target.rows(plan.config.data_kind)
    found = {
        (row.name, split): [
            read_result(evaluation.folder) for evaluation in plan.rows[target.name, row.name, split]
        ]
        for row in rows
        for split in row.splits
    }
    everything = [result for results in found.values() for result in results]
    return TargetResults(
        target=target.name,
        title=target.title,
        code=sorted({str(result.facts.get("code")) for result in everything}),
        version=str(everything[0].facts["version"]),
        data=plan.data_digest(rows[0].agent.experiment),
        seeds=plan.config.seeds,
        scale=plan.config.scale,
        limit=plan.config.limit,
        episodes={
            f"{row.task} {split}": len(found[row.name, split][0].episodes)
            for row in rows
            for split in row.splits
        },
        rows=_with_subsets(plan, target, rows, [_make_row(plan, target, row, found) for row in rows], found),
        costs=_find_costs(plan) if target.has_costs else {},
    )


def _find_costs(plan: Plan) -> dict[str, SystemCosts]:
    """Return the costs at the paper's size. They are measured once per output folder and code."""
    path = plan.config.out / f"costs-{source_digest()[:KEY_LENGTH]}.json"
    try:
        return read_json(path, dict[str, SystemCosts])
    except DataError:  # none yet, or damaged
        costs = measure_costs(plan.config.data)
        write_json(path, costs, indent=1)
        return costs


def _make_row(plan: Plan, target: Target, row: Row, found: Found) -> ReportRow:
    values, spread, first = dict[str, float](), dict[str, float](), dict[str, float]()
    differences, first_differences = dict[str, RowDifference](), dict[str, RowDifference]()
    for split in row.splits:
        results = found[row.name, split]
        for measure, over_seeds in means_over_seeds(results).items():
            values[f"{split}.{measure}"] = _unit(measure) * over_seeds.mean
            if over_seeds.std is not None:
                spread[f"{split}.{measure}"] = _unit(measure) * over_seeds.std
        for measure, over_seeds in means_over_seeds([first_told(result) for result in results]).items():
            first[f"{split}.{measure}"] = _unit(measure) * over_seeds.mean
        if row.against:
            base = found[row.against, split]
            groups = (base[: len(results)], results)
            differences |= _compare_rows(row, split, groups, row.measures)
            measures = [measure for measure in row.measures if measure not in TOUR_METRICS]
            first_differences |= _compare_rows(row, split, groups, measures, only_first_told=True)
    evaluations = plan.rows[target.name, row.name, row.splits[0]]
    return ReportRow(
        name=row.name,
        paper=row.paper,
        task=row.task,
        memory=row.memory,
        evaluations=len(evaluations),
        values=values,
        spread=spread,
        differences=differences,
        first_told=first,
        first_told_differences=first_differences,
        runs=[evaluation.training.name for evaluation in evaluations],
    )


def _with_subsets(
    plan: Plan, target: Target, rows: Sequence[Row], reported: list[ReportRow], found: Found
) -> list[ReportRow]:
    """Return the rows with their scores on the subsets of the target's episodes, if it has any."""
    if not target.subsets_of:
        return reported
    by_name = {row.name: row for row in rows}
    chosen = by_name[target.subsets_of]
    split = chosen.splits[0]
    path = plan.config.folder.require(chosen.task, split)
    episodes = {episode.episode_id: episode for episode in TASKS[chosen.task].read(path)}
    subsets = [select_subsets(result, episodes) for result in found[chosen.name, split]]

    def scores(row: Row) -> dict[str, SubsetScore]:
        if (row.task, len(row.variants)) != (chosen.task, 1):  # other episodes, or other orders
            return {}
        results = found[row.name, split]
        base = found[row.against, split][: len(results)] if row.against else None
        return score_subsets(subsets, results, base, main_measure(row.task))

    return [msgspec.structs.replace(report, subsets=scores(by_name[report.name])) for report in reported]


def _unit(measure: str) -> float:
    return 1.0 if measure in METRES | COUNTS else 100.0


def _compare_rows(
    row: Row,
    split: str,
    groups: tuple[Sequence[Result], Sequence[Result]],
    measures: Sequence[str],
    *,
    only_first_told: bool = False,
) -> dict[str, RowDifference]:
    """Return the differences of the second group of results to the first, by column."""
    comparison = compare(groups, measures=measures, names=(row.against, row.name), first_told=only_first_told)

    def edges(interval: Interval | None, unit: float) -> tuple[float, float] | None:
        return None if interval is None else (unit * interval.low, unit * interval.high)

    found = {}
    for metric in comparison.measures:
        unit, difference = _unit(metric.measure), metric.differences[0]
        found[f"{split}.{metric.measure}"] = RowDifference(
            against=row.against,
            mean=unit * difference.mean,
            over_paths=edges(difference.over_paths, unit),
            over_scenes=edges(difference.over_scenes, unit),
        )
    return found
