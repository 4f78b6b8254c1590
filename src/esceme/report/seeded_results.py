"""Results grouped by their settings: those of a group differ only in the seeds of training and evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from esceme.errors import DataError
from esceme.evaluation import Result, read_result
from esceme.evaluation.compare import is_fitted
from esceme.files import read_json
from esceme.learning.run import BEST_FOLDER
from esceme.runs import flatten
from esceme.training import EXPERIMENT_FILE

PER_EVALUATION = ("split", "episodes", "left_out", "hashes", "version", "code")
"""Facts that may differ between the results of one group."""
SEARCHED_FOLDERS = 5
"""Number of folders, from the folder of a result upwards, in which the experiment file is looked for."""


class SeededResult(NamedTuple):
    """A result with the settings and seeds that it was made with."""

    path: Path
    result: Result
    facts: dict[str, Any]
    """Facts of the result by dotted names."""
    settings: bytes
    """Settings of evaluation and training without seeds. Results with equal settings form a group."""
    seeds: tuple[object, object]
    """Seeds of training and evaluation. If the training is unknown, its weights' digest replaces its seed."""
    training_known: bool

    @property
    def means(self) -> dict[str, float]:
        """Mean of each metric."""
        return self.result.means

    @property
    def split(self) -> str:
        """Split of the evaluation."""
        return str(self.facts["split"])


def read_seeded_result(path: Path) -> SeededResult:
    """Return the result in a file or folder, with the settings of its training if they are found."""
    result = read_result(path)
    facts = flatten(result.facts)
    training, seed = _read_training(path if path.is_dir() else path.parent)
    own = {
        name: value
        for name, value in facts.items()
        if name.partition(".")[0] not in PER_EVALUATION
        and not is_fitted(name)
        and not name.startswith("planner.digests.")
    }
    return SeededResult(
        path,
        result,
        facts,
        settings=msgspec.json.encode([_without_seeds(own), training], order="sorted"),
        seeds=(facts.get("hashes.weights") if training is None else seed, facts.get("seed")),
        training_known=training is not None,
    )


def group_by_settings(results: Iterable[SeededResult]) -> list[list[SeededResult]]:
    """Return groups of results with equal settings, in the order of their first results."""
    groups: dict[bytes, list[SeededResult]] = {}
    for result in results:
        groups.setdefault(result.settings, []).append(result)
    return list(groups.values())


def is_training_unknown(group: Sequence[SeededResult]) -> bool:
    """Whether the results of a group have different weights, and it is unknown how these were trained."""
    return len({result.seeds[0] for result in group if not result.training_known}) > 1


def check_seeds_and_data(group: Sequence[SeededResult]) -> None:
    """Raise `DataError` if two results of a group and split have the same seed or different data."""
    first = group[0]
    by_seed: dict[tuple[object, object], SeededResult] = {}
    for result in group:
        if (other := by_seed.setdefault(result.seeds, result)) is not result:
            raise DataError(f"{result.path}: same settings, split and seed as {other.path}; give one of them")
        for name in ("data", "features", "episode_ids"):
            if result.facts.get(f"hashes.{name}") != first.facts.get(f"hashes.{name}"):
                raise DataError(
                    f"{result.path}: other {name} than {first.path}; print them in separate tables"
                )


def _read_training(folder: Path) -> tuple[dict[str, Any] | None, object]:
    """Return settings and seed of the training whose run folder holds `folder`; (None, None) if unknown."""
    folder = folder.absolute()
    for run in (folder, *folder.parents)[:SEARCHED_FOLDERS]:
        path = run / EXPERIMENT_FILE
        experiment = flatten(read_json(path, dict[str, Any])) if path.is_file() else {}
        if "experiment.seed" not in experiment:
            continue
        if start := experiment.get("experiment.start"):  # seeds may start from runs of different seeds
            experiment["experiment.start"] = _read_training(Path(start))[0] or start
        experiment["best"] = folder.relative_to(run).parts[:1] == (BEST_FOLDER,)
        return _without_seeds(experiment), experiment["experiment.seed"]
    return None, None


def _without_seeds(settings: Mapping[str, Any]) -> dict[str, Any]:
    ignored = ("seed", "about", "differences", "version", "code")
    return {
        name: value for name, value in flatten(settings).items() if name.rpartition(".")[2] not in ignored
    }
