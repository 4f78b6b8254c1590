"""Check of a data folder: every file is read, and sizes are compared with the published ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

import numpy as np

from esceme.errors import DataError, EscemeError
from esceme.tasks import manifest
from esceme.tasks.catalogue import TASKS, SplitSize
from esceme.tasks.episode import Episode
from esceme.tasks.file_checks import (
    describe_vocabulary,
    find_invalid_episode,
    find_invalid_path,
    find_unusual_shapes,
    message_without_path,
    room_labels,
    unreadable_reason,
)
from esceme.tasks.folder import CONNECTIVITY, FEATURE_SUFFIXES, FEATURES, OBJECTS, DataFolder
from esceme.tasks.r4r import R4R_MANIFEST
from esceme.tasks.reverie import read_objects
from esceme.tasks.split import load_wordpiece
from esceme.tasks.tours import check_tours, read_all_tours
from esceme.world.features import FeatureStore, check_panorama, open_features
from esceme.world.graph import SUFFIX, SceneGraph, listed_scene_ids, scene_ids

MATTERPORT = re.compile(r"[A-Za-z0-9]{11}")
"""Matches scene ids of Matterport3D. Only data of these scenes is compared with published sizes."""
MATTERPORT_SCENES, MATTERPORT_VIEWPOINTS, MATTERPORT_EDGES = 90, 10_567, 21_468
EXTRA_SPLITS = {"val_train_seen", "val_unseen_sampled"}
"""Splits that the HAMT data bundle adds to the published splits."""
SAMPLE = 64
"""Number of viewpoints of a feature file that are checked, unless `deep` is True."""

SOURCES = {
    "connectivity": "it comes with the Matterport3D simulator's repository, folder connectivity/",
    "features": "fetch the file again, or extract the features anew",
}
"""Kind of file -> what to do if it is missing or broken. For annotations, `Task.source` is used instead."""

Level = Literal["ok", "note", "fault"]


class Finding(NamedTuple):
    """Result of checking a file: level (ok, note or fault), file, what was found, and what to do."""

    level: Level
    file: str
    text: str
    remedy: str = ""


NamesProgress = Callable[[Iterable[str], str], Iterable[str]]
"""Takes names and a label; returns the same names and displays progress as they are consumed."""


def check_folder(
    root: str | Path,
    *,
    tasks: Sequence[str] | None = None,
    deep: bool = False,
    progress: NamesProgress = lambda names, label: names,
) -> list[Finding]:
    """Check all files in the folder `root` and return the findings.

    By default the annotations of all tasks are checked, and a missing split is only a note. With `tasks`,
    only these tasks are checked, and a missing split is a fault. With `deep`, the features of all viewpoints
    are checked instead of a sample.
    """
    folder = DataFolder(root)
    if reason := unreadable_reason(folder.root):
        raise DataError(f"{folder.root}: cannot be read as a data folder ({reason})")
    check = _FolderCheck(folder, deep=deep, progress=progress)
    findings = [*check.unreadable_folders(), *check.connectivity()]
    for task in TASKS if tasks is None else tasks:
        findings += check.annotations(task, required=tasks is not None)
    findings += [*check.features(), *check.auxiliary_files(), *check.manifest()]
    if len(findings) == 1 and findings[0].level == "fault":
        text = "holds nothing else that ESceme knows"
        findings.append(Finding("fault", str(folder.root), text, "see docs/data.md"))
    return findings


class _FolderCheck:
    """Checks one data folder. Graphs and episodes are kept in memory, because later checks need them."""

    def __init__(self, folder: DataFolder, *, deep: bool, progress: NamesProgress) -> None:
        self.folder = folder
        self.deep = deep
        self.progress = progress
        self.graphs: dict[str, SceneGraph] = {}
        self.missing: set[str] = set()
        """Scenes whose graph is missing or broken; each is reported once, not for every file that uses it."""
        self.episodes: dict[tuple[str, str], Sequence[Episode]] = {}

    def name(self, path: Path) -> str:
        return path.relative_to(self.folder.root).as_posix()

    def unreadable_folders(self) -> Iterator[Finding]:
        """Yield a fault for every unreadable folder, except that of graphs, which `connectivity` checks."""
        for folder in self.folder.known_folders:
            name = self.name(folder)
            if name not in CONNECTIVITY and (reason := unreadable_reason(folder)):
                yield Finding("fault", name, f"cannot be read ({reason})", "change its permissions")

    # -- graphs ------------------------------------------------------------------------------------------

    def connectivity(self) -> Iterator[Finding]:
        try:
            directory = self.folder.connectivity
            present = scene_ids(directory)
        except DataError as error:
            yield Finding("fault", "connectivity", str(error), SOURCES["connectivity"])
            return
        for scene in self.progress(present, "graphs"):
            yield from self._check_graph(directory / f"{scene}{SUFFIX}", scene)
        yield from self._check_scene_list(directory, present)
        yield self._graph_counts(self.name(directory))

    def _check_scene_list(self, directory: Path, present: Sequence[str]) -> Iterator[Finding]:
        """Yield a fault for every difference between the list `scans.txt` and the graph files."""
        file, remedy = directory / "scans.txt", SOURCES["connectivity"]
        try:
            listed = listed_scene_ids(directory)
        except DataError as error:
            yield Finding("fault", self.name(file), message_without_path(file, error), remedy)
            return
        if listed is None:
            yield Finding("note", self.name(file), "missing; only the C++ simulator needs it")
            return
        self.missing |= set(listed) - set(present)
        for scene in sorted(set(listed) - set(present)):
            graph = directory / f"{scene}{SUFFIX}"
            yield Finding("fault", self.name(graph), "named in scans.txt, but missing", remedy)
        if unlisted := sorted(set(present) - set(listed)):
            text = f"does not name scene '{unlisted[0]}'{_count_others(unlisted, 'scenes')}, which is here"
            yield Finding("fault", self.name(file), text, remedy)

    def _check_graph(self, path: Path, scene: str) -> Iterator[Finding]:
        try:
            graph = SceneGraph.read(path)
        except EscemeError as error:
            self.missing.add(scene)
            yield Finding(
                "fault", self.name(path), message_without_path(path, error), SOURCES["connectivity"]
            )
            return
        self.graphs[scene] = graph
        if not graph.is_connected:
            yield Finding("fault", self.name(path), "not every viewpoint can be reached from every other")

    def _graph_counts(self, name: str) -> Finding:
        num_viewpoints = sum(
            len(graph) + sum(reason == "isolated" for reason in graph.left_out.values())
            for graph in self.graphs.values()
        )
        num_edges = sum(graph.num_edges for graph in self.graphs.values())
        text = f"{len(self.graphs)} scenes, {num_viewpoints:,} viewpoints, {num_edges:,} edges"
        complete = (MATTERPORT_SCENES, MATTERPORT_VIEWPOINTS, MATTERPORT_EDGES)
        if not all(MATTERPORT.fullmatch(scene) for scene in self.graphs) or not self.graphs:
            return Finding("ok" if self.graphs else "fault", name, text)
        if (len(self.graphs), num_viewpoints, num_edges) == complete:
            return Finding("ok", name, f"{text}: as published")
        published = "published: {} scenes, {:,} viewpoints, {:,} edges".format(*complete)
        level: Level = "note" if len(self.graphs) < MATTERPORT_SCENES else "fault"
        return Finding(level, name, f"{text}; {published}", SOURCES["connectivity"])

    # -- annotations -------------------------------------------------------------------------------------

    def annotations(self, task: str, *, required: bool) -> Iterator[Finding]:
        found = self.folder.splits(task)
        for split in TASKS[task].split_sizes:
            if split not in found and (required or found):
                text = f"{task} {split}: no file; looked for {_format_alternatives(TASKS[task].files, split)}"
                level: Level = "fault" if required and split not in EXTRA_SPLITS else "note"
                yield Finding(level, task, text, TASKS["prevalent" if split in EXTRA_SPLITS else task].source)
        for split in self.progress(found, task):
            yield from self._check_split(task, split, found[split])

    @cached_property
    def vocabulary_size(self) -> int | None:
        """Number of token ids of the tokenizer; None if there is none or it cannot be read."""
        with suppress(EscemeError):
            tokenizer = load_wordpiece(self.folder)
            return None if tokenizer is None else tokenizer.size
        return None

    def _check_split(self, task: str, split: str, path: Path) -> Iterator[Finding]:
        name, source = self.name(path), TASKS[task].source
        try:
            episodes = TASKS[task].read(path)
        except EscemeError as error:
            yield Finding("fault", name, message_without_path(path, error), source)
            return
        fault = find_invalid_path(episodes, self.graphs, path, missing=self.missing)
        size = self.vocabulary_size if TASKS[task].has_bert_tokens else None
        if fault := fault or find_invalid_episode(episodes, vocabulary_size=size):
            yield Finding("fault", name, fault, source)
            return
        if not episodes:
            yield Finding("fault", name, "holds no instructions", source)
            return
        self.episodes[task, split] = episodes
        counts, published = SplitSize.of(episodes), TASKS[task].split_sizes.get(split)
        text = _describe_size(counts)
        if published is not None and MATTERPORT.fullmatch(episodes[0].scene_id):
            if counts.instructions == TASKS[task].earlier_instructions.get(split):
                text = f"{text}: as published in an earlier release"
            elif counts == published:
                text = f"{text}: {TASKS[task].sizes_note}"
            else:
                yield Finding("fault", name, f"{text}; expected: {_describe_size(published)}", source)
                return
        if unchecked := sum(not self.graphs or episode.scene_id in self.missing for episode in episodes):
            text = f"{text}; {unchecked:,} instructions in scenes without a graph: paths not checked"
        yield Finding("note" if unchecked else "ok", name, text)

    # -- features ----------------------------------------------------------------------------------------

    def features(self) -> Iterator[Finding]:
        if self.graphs and not self.folder.features:
            kinds = ", ".join(FEATURE_SUFFIXES)
            text = f"no file ({kinds}) in {' or '.join(FEATURES)}; an agent needs one to see"
            yield Finding("note", "features", text, "see docs/data.md")
        for path in self.folder.features:
            try:
                yield from self._check_features(path, open_features(path))
            except EscemeError as error:
                yield Finding(
                    "fault", self.name(path), message_without_path(path, error), SOURCES["features"]
                )

    def _check_features(self, path: Path, store: FeatureStore) -> Iterator[Finding]:
        file, source = self.name(path), SOURCES["features"]
        viewpoints = {f"{scene}_{name}" for scene, graph in self.graphs.items() for name in graph.viewpoints}
        covered = [key for key in store.keys if key in viewpoints]
        faults = [*find_unusual_shapes(path)] or [*self._panorama_faults(path, store, covered or store.keys)]
        if faults:
            yield Finding("fault", file, f"{faults[0]}{_count_others(faults, 'such faults')}", source)
        text = f"{len(store):,} viewpoints, {store.width} numbers a view"
        if missing := sorted(viewpoints - set(store.keys)):
            text += f", none for {len(missing):,} viewpoints, such as '{missing[0]}'"
        yield Finding("fault" if missing else "ok", file, text, source if missing else "")
        if unknown := self._unknown_keys(store.keys):
            text = f"{len(unknown):,} keys belong to no viewpoint, such as '{unknown[0]}'"
            yield Finding("note", file, text, "is connectivity of another release?")

    def _panorama_faults(self, path: Path, store: FeatureStore, keys: Sequence[str]) -> Iterator[str]:
        for key in self.progress(self._sample_keys(keys), path.name):
            try:
                check_panorama(store.panorama(key), key, str(path))
            except EscemeError as error:
                yield message_without_path(path, error)

    def _sample_keys(self, keys: Sequence[str]) -> list[str]:
        if self.deep or len(keys) <= SAMPLE:
            return list(keys)
        return [keys[index] for index in np.linspace(0, len(keys) - 1, SAMPLE).astype(int)]

    # -- the rest ----------------------------------------------------------------------------------------

    def auxiliary_files(self) -> Iterator[Finding]:
        """Check the files of objects, rooms, tours and tokenizer vocabularies, and yield the findings."""
        if self.folder.objects is None:
            for task in dict.fromkeys(task for task, _ in self.episodes):
                if TASKS[task].scores_objects:
                    text = f"no file; {task} is scored with {OBJECTS[0]}"
                    yield Finding("note", "objects", text, TASKS[task].source)
        checks: Mapping[Path | None, Callable[[Path], str]] = {
            self.folder.objects: self._describe_objects,
            self.folder.rooms: self._describe_rooms,
            self.folder.tours: self._describe_tours,
            **dict.fromkeys(self.folder.tokenizers, describe_vocabulary),
        }
        for path, check in checks.items():
            if path is None:
                continue
            try:
                yield Finding("ok", self.name(path), check(path))
            except EscemeError as error:
                remedy = "fetch the file again; see docs/data.md"
                yield Finding("fault", self.name(path), message_without_path(path, error), remedy)

    def manifest(self) -> Iterator[Finding]:
        """Yield a fault for every file that differs from the manifest of the folder or of R4R, if any."""
        path, remedy = self.folder.root / manifest.NAME, "make or fetch the folder again"
        if path.exists():
            yield from self._check_manifest(path, remedy)
        elif (self.folder.root / manifest.COMPANION).exists():
            yield Finding("fault", manifest.NAME, f"missing beside {manifest.COMPANION}", remedy)
        for path in sorted(self.folder.root.glob(f"*/{R4R_MANIFEST}")):
            yield from self._check_manifest(path, TASKS["r4r"].source)

    def _check_manifest(self, path: Path, remedy: str) -> Iterator[Finding]:
        try:
            damaged = [*manifest.check_manifest(path.parent, path.name)]
        except EscemeError as error:
            yield Finding("fault", self.name(path), message_without_path(path, error), remedy)
            return
        for damage in damaged:
            file = PurePosixPath(self.name(path)).parent / damage.file
            yield Finding("fault", str(file), damage.text, remedy)
        if not damaged:
            yield Finding("ok", self.name(path), "every file is as it was written")

    def _describe_objects(self, path: Path) -> str:
        objects = read_objects(path)
        self._require_known(objects)
        return f"{sum(map(len, objects.values())):,} objects seen from {len(objects):,} viewpoints"

    def _describe_rooms(self, path: Path) -> str:
        labels = room_labels(path)
        self._require_known(labels)
        return f"{len(set(labels.values()))} labels over {len(labels):,} viewpoints"

    def _describe_tours(self, path: Path) -> str:
        splits, counts = read_all_tours(path), []
        if not splits:
            raise DataError("holds no split")
        for split, tours in splits.items():
            episodes = self.episodes.get(("r2r", split))
            if episodes is not None:
                check_tours(tours, episodes, path)
            unchecked = " (no R2R to check them with)" if episodes is None else ""
            counts.append(f"{split}: {len(tours)} tours{unchecked}")
        return ", ".join(counts)

    def _require_known(self, keys: Iterable[str]) -> None:
        if unknown := self._unknown_keys(keys):
            more = _count_others(unknown, "entries")
            raise DataError(
                f"'{unknown[0]}'{more} belongs to no viewpoint; is connectivity of another release?"
            )

    def _unknown_keys(self, keys: Iterable[str]) -> list[str]:
        """Return the keys `<scene>_<viewpoint>` that are in no graph; skip scenes whose graph is missing."""
        if not self.graphs:
            return []
        known = {
            f"{scene}_{name}"
            for scene, graph in self.graphs.items()
            for name in (*graph.viewpoints, *graph.left_out)
        }
        ignored = tuple(f"{scene}_" for scene in self.missing)
        return sorted(key for key in set(keys) - known if not key.startswith(ignored))


def _describe_size(counts: SplitSize) -> str:
    return f"{counts.paths:,} paths, {counts.instructions:,} instructions, {counts.scenes} scenes"


def _format_alternatives(patterns: Sequence[str], split: str) -> str:
    return " or ".join(pattern.format(split=split) for pattern in patterns)


def _count_others(names: Sequence[str], noun: str) -> str:
    return f" and {len(names) - 1:,} more {noun}" if len(names) > 1 else ""
