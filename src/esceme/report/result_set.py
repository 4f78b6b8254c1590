"""Results on the same split, with everything that figures show: episodes, scenes, panoramas, memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from esceme.errors import ConfigError, DataError
from esceme.evaluation.compare import require_same_data
from esceme.evaluation.context import hash_data, hash_facts
from esceme.evaluation.evaluate import BANK, JOURNAL
from esceme.evaluation.history import MemoryHistory, decision_viewpoints, memory_histories
from esceme.evaluation.journal import JournalEntry, read_journal
from esceme.evaluation.result import RESULT, EpisodeResult, Result, read_result
from esceme.memory import load_bank
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.split import Split, load_split
from esceme.world.graph import SceneGraph


@dataclass(frozen=True)
class ResultSet:
    """Results of evaluations on the same episodes, and the split that holds these episodes."""

    names: tuple[str, ...]
    """Name of each result, for labels. Names are unique."""
    paths: tuple[Path, ...]
    """File of each result."""
    results: tuple[Result, ...]
    folder: DataFolder
    split: Split

    @cached_property
    def episodes(self) -> dict[str, Episode]:
        """Episodes of the split by id."""
        return {episode.episode_id: episode for episode in self.split.episodes}

    @cached_property
    def by_id(self) -> list[dict[str, EpisodeResult]]:
        """For each result, the results of its episodes by episode id."""
        return [{episode.id: episode for episode in result.episodes} for result in self.results]

    @cached_property
    def histories(self) -> list[dict[str, MemoryHistory]]:
        """For each result, the history of the memory of every scene."""
        return [
            memory_histories(result, _initial_memory(path, result, self.split.graphs))
            for path, result in zip(self.paths, self.results, strict=True)
        ]

    def graph(self, episode_id: str) -> SceneGraph:
        """Return the graph of an episode's scene."""
        return self.split.graphs[self.find(episode_id).scene_id]

    def find(self, episode_id: str) -> Episode:
        """Return an episode that all results contain; raise `ConfigError` with examples otherwise."""
        if any(episode_id not in episodes for episodes in self.by_id):
            examples = ", ".join(list(self.by_id[0])[:3])
            raise ConfigError(f"no episode '{episode_id}' in {self.paths[0]}; it has {examples}, ...")
        return self.episodes[episode_id]

    def viewpoints(self, number: int, episode_id: str) -> tuple[str, ...]:
        """Return the viewpoint ids of an episode's trajectory in result `number`."""
        return tuple(viewpoint for viewpoint, _, _ in self.by_id[number][episode_id].trajectory)

    def remembered(self, number: int, episode_id: str, step: int = 0) -> Collection[str]:
        """Return the viewpoints in memory before a step of an episode in result `number`."""
        history = self.histories[number][self.find(episode_id).scene_id]
        return history.remembered(history.episode_ids.index(episode_id), step).keys()


def load_results(
    paths: Sequence[str | Path], data: str | Path, *, names: Sequence[str] | None = None
) -> ResultSet:
    """Load results of one split and the split itself.

    `paths` are result files or folders of evaluations, `data` is the data folder. Raise `DataError` if an
    evaluation is unfinished, if the results are of different data, or if the data folder has other data.
    """
    if not paths:
        raise ConfigError("no result; give the result.json or the folder of at least one evaluation")
    files = [result_file(Path(path)) for path in paths]
    results = [read_result(file) for file in files]
    first, facts = results[0], results[0].facts
    for file, result in zip(files, results, strict=True):
        require_same_data(first, result, str(files[0]), str(file))
    split = load_split(DataFolder(data), str(facts.get("task")), str(facts.get("split")))
    _check_data(split, results, files, data)
    return ResultSet(
        result_names(results, files, names), tuple(files), tuple(results), DataFolder(data), split
    )


def result_file(path: Path) -> Path:
    """Return the result file of a folder; raise `DataError` if its evaluation is unfinished."""
    file = path / RESULT if path.is_dir() else path
    if file.name == RESULT and not file.is_file() and (file.parent / JOURNAL).is_file():
        raise DataError(f"{file.parent}: this evaluation was interrupted; run its `esceme evaluate` again")
    return file


def _check_data(split: Split, results: Sequence[Result], files: Sequence[Path], data: str | Path) -> None:
    """Raise `DataError` if the results were computed on another split or other data."""
    expected = results[0].facts.get("hashes", {}).get("data")
    if expected != hash_data(split):
        raise DataError(
            f"{files[0]}: {split.annotations.name} or the graphs in {data} are not those of this result; "
            "give the data folder of the evaluation with --data"
        )
    known = {episode.episode_id: episode.scene_id for episode in split.episodes}
    for file, result in zip(files, results, strict=True):
        counts = Counter(episode.id for episode in result.episodes)
        if not counts or max(counts.values()) > 1:
            raise DataError(f"{file}: expected episodes with different ids; evaluate again")
        for episode in result.episodes:
            if known.get(episode.id) != episode.scene:
                raise DataError(f"{file}: episode '{episode.id}' is not in {split.annotations}")
            graph = split.graphs[episode.scene]
            if not episode.trajectory:
                raise DataError(f"{file}: episode '{episode.id}' has an empty trajectory; evaluate again")
            for viewpoint, _, _ in episode.trajectory:
                if viewpoint not in graph:
                    raise DataError(
                        f"{file}: episode '{episode.id}': no viewpoint '{viewpoint}' in its scene"
                    )


def result_names(
    results: Sequence[Result], files: Sequence[Path], names: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Return a unique name per result.

    By default, a name is agent and memory protocol, with the path where these are not unique. Raise
    `ConfigError` if the given `names` are not unique or not as many as the results.
    """
    if names is not None:
        if len({*names}) != len(results) or len(names) != len(results):
            raise ConfigError(f"names {', '.join(names)}: expected {len(results)} different names")
        return tuple(names)
    names = [f"{result.facts.get('agent')}, memory {result.facts.get('memory')}" for result in results]
    counts = Counter(names)
    labels = [
        name if counts[name] == 1 else f"{name} ({file.parent})"
        for name, file in zip(names, files, strict=True)
    ]
    repeated = Counter(labels)
    return tuple(
        label if repeated[label] == 1 else f"{label} {number}" for number, label in enumerate(labels, 1)
    )


def _initial_memory(
    file: Path, result: Result, graphs: Mapping[str, SceneGraph]
) -> dict[str, Collection[str]]:
    """Return the viewpoints in memory before the scored pass, by scene, as far as they are known.

    With the protocol `two-pass`, the viewpoints of the first pass are read from the journal beside `file`.
    With `warm`, the viewpoints are those in the final bank that no episode stored. With `oracle`, they are
    all viewpoints.
    """
    protocol, folder = result.facts.get("memory"), file.parent
    scenes = {episode.id: episode.scene for episode in result.episodes}
    initial: dict[str, set[str]] = defaultdict(set)
    if protocol == "oracle":
        return {scene: graphs[scene].viewpoints for scene in scenes.values()}
    if protocol == "two-pass" and (folder / JOURNAL).is_file():
        for entry in read_journal(folder / JOURNAL, hash_facts(result.facts), JournalEntry)[0]:
            if entry.pass_ == 1 and entry.id in scenes:
                poses = entry.poses if entry.stopped else entry.poses[:-1]
                initial[scenes[entry.id]] |= {viewpoint for viewpoint, _ in poses}
    if protocol == "warm" and (folder / BANK).is_file():
        bank = load_bank(folder / BANK)
        for scene in {*scenes.values()} & {*bank.scenes}:
            initial[scene] |= {*bank[scene].viewpoints}
        for episode in result.episodes:
            initial[episode.scene] -= {*decision_viewpoints(episode)}
    return dict(initial)
