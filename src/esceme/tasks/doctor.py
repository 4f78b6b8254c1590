"""The data doctor: what a data folder holds, how that compares with what was published, and what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from esceme.errors import DataError, EscemeError
from esceme.files import read_json
from esceme.tasks.catalogue import TASKS
from esceme.tasks.episode import Episode, check_paths
from esceme.tasks.folder import DataFolder
from esceme.tasks.reverie import read_objects
from esceme.tasks.task import Counts
from esceme.tasks.text import WordPiece
from esceme.tasks.tours import check_tours, read_all_tours
from esceme.world.features import FeatureStore, open_features
from esceme.world.graph import SUFFIX, SceneGraph, listed_scene_ids, scene_ids

MATTERPORT = re.compile(r"[A-Za-z0-9]{11}")
"""What Matterport3D calls its scenes; other names are somebody's own building, with nothing published."""
MATTERPORT_SCENES, MATTERPORT_VIEWPOINTS, MATTERPORT_EDGES = 90, 10_567, 21_468
SAMPLE = 64
"""How many viewpoints of a feature file are read through, unless all are asked for."""

SOURCES = {
    "connectivity": "it comes with the Matterport3D simulator's repository, folder connectivity/",
    "r2r": "R2R is on the Room-to-Room project page",
    "r4r": "make it from R2R: esceme data r4r",
    "rxr": "RxR's guide files are in the dataset's own public bucket",
    "cvdn": "NDH comes with the CVDN repository, whose script downloads train and test",
    "reverie": "REVERIE v2 comes with the REVERIE repository",
    "prevalent": "it is part of the HAMT data bundle",
    "features": "fetch the file again, or extract the features anew",
}
"""What to do about a missing or broken file; docs/data.md says more."""


class Finding(NamedTuple):
    """One thing the doctor has to say."""

    level: Literal["ok", "note", "fault"]
    file: str
    text: str
    remedy: str = ""


Watch = Callable[[Iterable[str], str], Iterable[str]]
"""Something that shows progress over names under a label."""


def examine(
    root: str | Path,
    *,
    tasks: Sequence[str] | None = None,
    deep: bool = False,
    watch: Watch = lambda names, label: names,
) -> list[Finding]:
    """Look at everything below `root`; with `tasks`, a missing split of one of them is a fault, too.

    `deep` reads every feature instead of a sample.
    """
    folder = DataFolder(Path(root))
    try:
        next(folder.root.iterdir(), None)
    except OSError as error:
        raise DataError(f"{folder.root}: cannot be read as a data folder ({error.strerror})") from None
    examination = _Examination(folder, deep=deep, watch=watch)
    findings = [*examination.connectivity()]
    for task in TASKS if tasks is None else tasks:
        findings += examination.annotations(task, required=tasks is not None)
    findings += [*examination.features(), *examination.others()]
    if tasks is None and len(findings) == 1:
        findings.append(
            Finding("fault", str(folder.root), "holds nothing that ESceme knows", "see docs/data.md")
        )
    return findings


class _Examination:
    """One visit: what is read once serves all later checks."""

    def __init__(self, folder: DataFolder, *, deep: bool, watch: Watch) -> None:
        self.folder = folder
        self.deep = deep
        self.watch = watch
        self.graphs: dict[str, SceneGraph] = {}
        self.broken: set[str] = set()
        self.episodes: dict[tuple[str, str], Sequence[Episode]] = {}

    def name(self, path: Path) -> str:
        return path.relative_to(self.folder.root).as_posix()

    # -- graphs ------------------------------------------------------------------------------------------

    def connectivity(self) -> Iterator[Finding]:
        remedy = SOURCES["connectivity"]
        try:
            directory = self.folder.connectivity
            present = scene_ids(directory)
            listed = listed_scene_ids(directory)
        except DataError as error:
            yield Finding("fault", "connectivity", str(error), remedy)
            return
        for scene in self.watch(present, "graphs"):
            yield from self._graph(directory / f"{scene}{SUFFIX}", scene)
        place = self.name(directory)
        for scene in sorted(set(listed or present) - set(present)):
            yield Finding("fault", f"{place}/{scene}{SUFFIX}", "named in scans.txt, but missing", remedy)
        for scene in sorted(set(present) - set(listed or present)):
            yield Finding(
                "fault", f"{place}/scans.txt", f"does not name scene '{scene}', which is here", remedy
            )
        if listed is None:
            yield Finding("note", f"{place}/scans.txt", "missing; only the C++ simulator needs it")
        yield self._graph_counts(place)

    def _graph(self, path: Path, scene: str) -> Iterator[Finding]:
        try:
            graph = SceneGraph.read(path)
        except EscemeError as error:
            self.broken.add(scene)
            yield Finding("fault", self.name(path), _short(error, path), SOURCES["connectivity"])
            return
        self.graphs[scene] = graph
        if not graph.is_connected:
            yield Finding("fault", self.name(path), "not every viewpoint can be reached from every other")

    def _graph_counts(self, place: str) -> Finding:
        included = sum(
            len(graph) + sum(reason == "isolated" for reason in graph.left_out.values())
            for graph in self.graphs.values()
        )
        edges = sum(graph.edge_count for graph in self.graphs.values())
        text = f"{len(self.graphs)} scenes, {included:,} viewpoints, {edges:,} edges"
        whole = (MATTERPORT_SCENES, MATTERPORT_VIEWPOINTS, MATTERPORT_EDGES)
        if not all(MATTERPORT.fullmatch(scene) for scene in self.graphs) or not self.graphs:
            return Finding("ok" if self.graphs else "fault", place, text)
        if (len(self.graphs), included, edges) == whole:
            return Finding("ok", place, f"{text}: as published")
        published = "published: {} scenes, {:,} viewpoints, {:,} edges".format(*whole)
        level: Literal["note", "fault"] = "note" if len(self.graphs) < MATTERPORT_SCENES else "fault"
        return Finding(level, place, f"{text}; {published}", SOURCES["connectivity"])

    # -- annotations -------------------------------------------------------------------------------------

    def annotations(self, task: str, *, required: bool) -> Iterator[Finding]:
        found = self.folder.splits(task)
        for split in TASKS[task].published:
            if split not in found and (required or found):
                text = f"{task} {split}: no file; looked for {_either(TASKS[task].files, split)}"
                expected = required and TASKS[task].published[split] is not None
                yield Finding("fault" if expected else "note", task, text, SOURCES[task])
        if required and not found:
            yield Finding("fault", task, f"no file of {task} was found", SOURCES[task])
        for split in self.watch(found, task):
            yield from self._split(task, split, found[split])

    def _split(self, task: str, split: str, path: Path) -> Iterator[Finding]:
        try:
            episodes = TASKS[task].read(path)
            checked = [each for each in episodes if each.scene_id not in self.broken]
            check_paths(_one_per_path(checked), self.graphs, path)
        except EscemeError as error:
            yield Finding("fault", self.name(path), _short(error, path), SOURCES[task])
            return
        self.episodes[task, split] = episodes
        counts, published = Counts.of(episodes), TASKS[task].published.get(split)
        text = _describe(counts)
        if published is None or not MATTERPORT.fullmatch(episodes[0].scene_id):
            yield Finding("ok", self.name(path), text)
        elif counts == published:
            yield Finding("ok", self.name(path), f"{text}: as published")
        else:
            yield Finding(
                "fault", self.name(path), f"{text}; published: {_describe(published)}", SOURCES[task]
            )

    # -- features ----------------------------------------------------------------------------------------

    def features(self) -> Iterator[Finding]:
        for path in self.folder.features:
            try:
                yield from self._store(path, open_features(path))
            except EscemeError as error:
                yield Finding("fault", self.name(path), _short(error, path), SOURCES["features"])

    def _store(self, path: Path, store: FeatureStore) -> Iterator[Finding]:
        viewpoints = {f"{scene}_{name}" for scene, graph in self.graphs.items() for name in graph.viewpoints}
        aside = {f"{scene}_{name}" for scene, graph in self.graphs.items() for name in graph.left_out}
        missing, unknown = sorted(viewpoints - set(store.keys)), sorted(set(store.keys) - viewpoints - aside)
        covered = [key for key in store.keys if key in viewpoints]
        for key in self.watch(self._sample(covered or store.keys), path.name):
            store.panorama(key)
        level: Literal["ok", "fault"] = "fault" if missing else "ok"
        lack = f", none for {len(missing):,} viewpoints, such as '{missing[0]}'" if missing else ""
        text = f"{len(store):,} viewpoints, {store.width} numbers a view{lack}"
        yield Finding(level, self.name(path), text, SOURCES["features"] if missing else "")
        if unknown:
            text = f"{len(unknown):,} keys belong to no viewpoint, such as '{unknown[0]}'"
            yield Finding("note", self.name(path), text, "is connectivity of another release?")

    def _sample(self, keys: Sequence[str]) -> list[str]:
        if self.deep or len(keys) <= SAMPLE:
            return list(keys)
        return [keys[place] for place in np.linspace(0, len(keys) - 1, SAMPLE).astype(int)]

    # -- the rest ----------------------------------------------------------------------------------------

    def others(self) -> Iterator[Finding]:
        checks: Mapping[Path | None, Callable[[Path], str]] = {
            self.folder.objects: self._objects,
            self.folder.rooms: self._rooms,
            self.folder.tours: self._tours,
            **dict.fromkeys(self.folder.tokenizers, _vocabulary),
        }
        for path, check in checks.items():
            if path is None:
                continue
            try:
                yield Finding("ok", self.name(path), check(path))
            except EscemeError as error:
                yield Finding(
                    "fault", self.name(path), _short(error, path), "fetch the file again; see docs/data.md"
                )

    def _objects(self, path: Path) -> str:
        objects = read_objects(path)
        self._require_known(path, (key.split("_", 1) for key in objects))
        return f"{sum(map(len, objects.values())):,} objects seen from {len(objects):,} viewpoints"

    def _rooms(self, path: Path) -> str:
        rooms = read_json(path, _Rooms)
        self._require_known(path, ([scene, name] for scene, names in rooms.panos.items() for name in names))
        labels = {label for names in rooms.panos.values() for _, label, *_ in names.values()}
        return f"{len(labels)} labels over {sum(map(len, rooms.panos.values())):,} viewpoints"

    def _tours(self, path: Path) -> str:
        splits = read_all_tours(path)
        for split, tours in splits.items():
            if (episodes := self.episodes.get(("r2r", split))) is not None:
                check_tours(tours, episodes, path)
        return ", ".join(f"{split}: {len(tours)} tours" for split, tours in splits.items())

    def _require_known(self, path: Path, places: Iterable[Sequence[str]]) -> None:
        for scene, viewpoint in places:
            graph = self.graphs.get(scene)
            if graph is None and scene not in self.broken:
                raise DataError(f"{path}: scene '{scene}' has no connectivity file")
            if graph is not None and viewpoint not in graph.left_out:
                graph.index(viewpoint)


class _Rooms(msgspec.Struct):
    label_name: dict[str, str]
    panos: dict[str, dict[str, list[int | str]]]


def _vocabulary(path: Path) -> str:
    return f"{WordPiece.read(path).size:,} word pieces"


def _one_per_path(episodes: Sequence[Episode]) -> Iterable[Episode]:
    """An episode for each different walk: its instructions share it."""
    return {(each.scene_id, each.reference_path, each.goals): each for each in episodes}.values()


def _describe(counts: Counts) -> str:
    return f"{counts.paths:,} paths, {counts.instructions:,} instructions, {counts.scenes} scenes"


def _either(patterns: Sequence[str], split: str) -> str:
    return " or ".join(pattern.format(split=split) for pattern in patterns)


def _short(error: EscemeError, path: Path) -> str:
    return str(error).removeprefix(f"{path}: ")
