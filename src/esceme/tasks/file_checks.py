"""Checks of single files of a data folder: paths, episodes, feature shapes, rooms, vocabularies."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import h5py
import msgspec

from esceme.errors import DataError, EscemeError
from esceme.files import PrintableText, read_bytes, read_json
from esceme.tasks.episode import Episode, check_paths
from esceme.tasks.text import WordPiece
from esceme.world.features import HDF5_ERRORS, HDF5_SUFFIXES, get_dataset
from esceme.world.graph import SceneGraph

BERT_PIECES = 30_522
LARGEST_HEADING = 4 * math.pi
"""Largest accepted heading in radians. Published headings lie within one turn."""


class Rooms(msgspec.Struct):
    """Room file: scene id -> viewpoint id -> (region number, room label, label of the region)."""

    label_name: dict[PrintableText, str]
    panos: dict[PrintableText, dict[PrintableText, tuple[int, PrintableText, str]]]


def unreadable_reason(folder: Path) -> str | None:
    """Return the reason why a folder cannot be listed; None if it can be listed."""
    try:
        for entry in folder.iterdir():
            entry.lstat()
            break
    except OSError as error:
        return error.strerror
    return None


def find_invalid_path(
    episodes: Iterable[Episode], graphs: dict[str, SceneGraph], file: Path, *, missing: Collection[str]
) -> str:
    """Return a text about the first episode whose path is not in its graph, with the number of others.

    The text is empty if there is no such episode. Episodes in `missing` scenes are skipped. If there are no
    graphs, all episodes are skipped.
    """
    first, num_invalid = "", 0
    for group in _group_by_path(episodes):
        if not graphs or group[0].scene_id in missing:
            continue
        try:
            check_paths(group[:1], graphs, file)
        except EscemeError as error:
            first, num_invalid = first or message_without_path(file, error), num_invalid + len(group)
    return f"{first}; and {num_invalid - 1:,} more episodes" if num_invalid > 1 else first


def find_invalid_episode(episodes: Sequence[Episode], *, vocabulary_size: int | None = None) -> str:
    """Return a text about the first episode without goal, instruction or valid heading.

    The text also has the number of other such episodes; it is empty if all episodes are valid. A missing goal
    is a fault only if other episodes have goals. A stored token id that is not below `vocabulary_size` is a
    fault too.
    """
    withheld = [episode for episode in episodes if episode.goal_withheld]
    faults = {
        "has no goal, unlike others": withheld if len(withheld) < len(episodes) else [],
        "has an empty instruction": [
            episode for episode in episodes if not episode.instruction.strip() and not episode.tokens
        ],
        "has a heading that is no angle in radians": [
            episode for episode in episodes if abs(episode.heading) > LARGEST_HEADING
        ],
        f"has a token id beyond the {vocabulary_size} of the tokenizer": [
            episode
            for episode in episodes
            if vocabulary_size is not None and max(episode.tokens or (0,)) >= vocabulary_size
        ],
    }
    for fault, found in faults.items():
        if found:
            more = f"; and {len(found) - 1:,} more episodes" if len(found) > 1 else ""
            return f"episode {found[0].episode_id}: {fault}{more}"
    return ""


def _group_by_path(episodes: Iterable[Episode]) -> Iterable[list[Episode]]:
    """Return lists of episodes that have the same paths and goals."""
    groups: dict[tuple[object, ...], list[Episode]] = defaultdict(list)
    for episode in episodes:
        groups[episode.scene_id, episode.annotated_paths, episode.goals].append(episode)
    return groups.values()


def find_unusual_shapes(path: Path) -> Iterator[str]:
    """Yield a description of every entry of an HDF5 file whose shape differs from that of most entries."""
    if path.suffix not in HDF5_SUFFIXES:
        return
    with h5py.File(path, "r") as file:
        shapes = {key: _shape_of_entry(file, key) for key in file}
    usual, _ = Counter(shapes.values()).most_common(1)[0]
    for key, found in shapes.items():
        if found != usual:
            yield f"'{key}' has shape {found}, most have {usual}"


def _shape_of_entry(file: h5py.File, key: str) -> tuple[int, ...] | None:
    try:
        return get_dataset(file, key, file.filename).shape
    except (DataError, *HDF5_ERRORS):
        return None


def room_labels(path: Path) -> dict[str, str]:
    """Return a dict from `<scene>_<viewpoint>` to room label; raise `DataError` for an unknown label."""
    rooms = read_json(path, Rooms)
    labels = {
        f"{scene}_{name}": label
        for scene, names in rooms.panos.items()
        for name, (_, label, _) in names.items()
    }
    if not labels:
        raise DataError(f"{path}: names no viewpoint")
    for key, label in labels.items():
        if label not in rooms.label_name:
            raise DataError(f"{path}: '{key}' has label '{label}', which label_name does not explain")
    return labels


def describe_vocabulary(path: Path) -> str:
    """Return a text with the size of a WordPiece vocabulary; raise `DataError` if the file is cut off."""
    pieces = WordPiece.read(path).size
    if pieces == BERT_PIECES:
        return f"{pieces:,} word pieces: as published"
    if path.suffix == ".txt" and not read_bytes(path).endswith(b"\n"):
        raise DataError(f"{path}: {pieces:,} word pieces, the last one cut off; BERT has {BERT_PIECES:,}")
    return f"{pieces:,} word pieces, where BERT has {BERT_PIECES:,}"


def message_without_path(path: Path, error: EscemeError) -> str:
    """Return the message of an error without the file path at its beginning."""
    return str(error).removeprefix(f"{path}: ")
