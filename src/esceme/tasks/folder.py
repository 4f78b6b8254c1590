"""Paths of the files in a data folder, which can have one of two common layouts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePath

from esceme.errors import DataError
from esceme.tasks.catalogue import TASKS

CONNECTIVITY = ("connectivity", "R2R/connectivity")
FEATURES = ("features", "*/features")
TOKENIZERS = ("tokenizer/vocab.txt", "tokenizer/tokenizer.json")
OBJECTS = ("objects/reverie_objects.json.gz", "objects/reverie_objects.json", "REVERIE/objects.json.gz")
ROOMS = ("rooms/viewpoint_rooms.json",)
TOURS = (
    "tours/tours_iVLN.json",
    "tours_iVLN.json",
    "R2R/annotations/tours_iVLN.json",
    "IVLN/tours_iVLN.json",
)
PANORAMA_SUFFIXES = ("jpg", "png")
FEATURE_SUFFIXES = (".hdf5", ".h5", ".npy")


def default_data() -> Path:
    """Return the folder in the environment variable `ESCEME_DATA`; by default `datasets`."""
    return Path(os.environ.get("ESCEME_DATA") or "datasets")


@dataclass(frozen=True)
class DataFolder:
    """Finds connectivity, annotations, features and other files in a data folder.

    Two layouts are supported. One has a folder per kind of file: `connectivity/`, `R2R/R2R_train.json`,
    `features/`. The other is that of HAMT and related code: `R2R/connectivity/`,
    `R2R/annotations/R2R_train_enc.json`, `R2R/features/`.
    """

    root: Path

    def __init__(self, root: str | Path) -> None:
        """Use the data folder `root`. No file is read yet."""
        object.__setattr__(self, "root", Path(root))

    @property
    def connectivity(self) -> Path:
        """Folder of the navigation graphs."""
        for path in CONNECTIVITY:
            if os.path.isdir(self.root / path):
                return self.root / path
        raise DataError(f"{self.root}: no connectivity folder; looked for {' and '.join(CONNECTIVITY)}")

    def annotations(self, task: str, split: str) -> Path | None:
        """Return the path of a split's annotation file, or None if there is no such file."""
        return self._first_existing(pattern.format(split=split) for pattern in TASKS[task].files)

    def require(self, task: str, split: str) -> Path:
        """Return the path of a split's annotation file; raise `DataError` if there is no such file.

        The error message lists the splits that exist.
        """
        if (path := self.annotations(task, split)) is None:
            here = ", ".join(self.splits(task)) or "none"
            files = " or ".join(pattern.format(split=split) for pattern in TASKS[task].files)
            raise DataError(
                f"{self.root}: no split '{split}' of {task}; splits that are here: {here}; looked for {files}"
            )
        return path

    def splits(self, task: str) -> dict[str, Path]:
        """Return a dict from split to annotation file of a task, published splits first."""
        found = {split: self.annotations(task, split) for split in TASKS[task].split_sizes}
        for pattern in TASKS[task].files:
            before, _, after = pattern.partition("{split}")
            for path in sorted(self.root.glob(pattern.replace("{split}", "*"))):
                split = path.relative_to(self.root).as_posix()[len(before) : -len(after) or None]
                if after and self.annotations(task, split) == path:
                    found.setdefault(split, path)
        return {split: path for split, path in found.items() if path is not None}

    @property
    def features(self) -> list[Path]:
        """Paths of all feature files."""
        found = {path for folder in FEATURES for path in self.root.glob(f"{folder}/*")}
        return sorted(path for path in found if path.suffix in FEATURE_SUFFIXES and os.path.isfile(path))

    def find_features(self, name: str = "", *, option: str) -> Path:
        """Return the path of the feature file called `name`; if there is none, that of the only feature file.

        Raises `DataError` if there are no feature files, or several of which none or more than one has the
        name. The message names `option`, the command-line option that selects a file.
        """
        found = [path for path in self.features if path.name == name] or self.features
        if len(found) != 1:
            names = ", ".join(file.name for file in found) or "none"
            raise DataError(f"{self.root}: expected one feature file, found {names}; say which with {option}")
        return found[0]

    @property
    def objects(self) -> Path | None:
        """File of the objects visible from each viewpoint (REVERIE); None if there is no such file."""
        return self._first_existing(OBJECTS)

    @property
    def rooms(self) -> Path | None:
        """File of the room labels of viewpoints; None if there is no such file."""
        return self._first_existing(ROOMS)

    def panorama(self, scene: str, viewpoint: str) -> Path | None:
        """Return the file of a viewpoint's equirectangular panorama; None if there is no such file."""
        return self._first_existing(f"panoramas/{scene}/{viewpoint}.{suffix}" for suffix in PANORAMA_SUFFIXES)

    @property
    def tours(self) -> Path | None:
        """File of IVLN tours; None if there is no such file."""
        return self._first_existing(TOURS)

    @property
    def tokenizers(self) -> list[Path]:
        """Files of WordPiece vocabularies."""
        return [self.root / path for path in TOKENIZERS if os.path.isfile(self.root / path)]

    @property
    def known_folders(self) -> list[Path]:
        """Existing folders that may hold files of a dataset, including folders without read permission."""
        patterns = chain(
            (f"{folder}/*" for folder in (*CONNECTIVITY, *FEATURES)),
            *(task.files for task in TASKS.values()),
            *(TOKENIZERS, OBJECTS, ROOMS, TOURS),
        )
        names = {parent for pattern in patterns for parent in PurePath(pattern).parents if parent.name}
        found = {path for name in names for path in self.root.glob(f"{name}")}
        return sorted(path for path in found if os.path.isdir(path))

    def _first_existing(self, paths: Iterable[str]) -> Path | None:
        return next((self.root / path for path in paths if os.path.isfile(self.root / path)), None)
