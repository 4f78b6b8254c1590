"""What the data doctor looks for in one file: walks that lead nowhere, odd shapes, cut-off vocabularies."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import h5py
import msgspec

from esceme.errors import DataError, EscemeError, prefix_errors
from esceme.files import read_bytes, read_json
from esceme.tasks.episode import DialogEpisode, Episode, check_path, check_paths
from esceme.tasks.text import WordPiece
from esceme.world.features import HDF5_SUFFIXES
from esceme.world.graph import SceneGraph

BERT_PIECES = 30_522
LARGEST_HEADING = 4 * math.pi
"""Headings lie in one turn; two, in either direction, are borne with."""


class Rooms(msgspec.Struct):
    """Room labels as the file has them: scene, viewpoint, then region, label and the region's label."""

    label_name: dict[str, str]
    panos: dict[str, dict[str, tuple[int, str, str]]]


def unreadable_reason(place: Path) -> str | None:
    """Why a folder cannot be looked into, if it cannot."""
    try:
        for entry in place.iterdir():
            entry.lstat()
            break
    except OSError as error:
        return error.strerror
    return None


def wrong_walks(
    episodes: Iterable[Episode], graphs: dict[str, SceneGraph], file: Path, *, lost: Collection[str]
) -> str:
    """The first episode whose walk its scene does not have, and how many more there are; empty if none.

    Scenes that are `lost` are left out, and so is everything where there is no graph at all.
    """
    first, wrong = "", 0
    for shared in _by_walk(episodes):
        if not graphs or shared[0].scene_id in lost:
            continue
        try:
            _check_episode(shared[0], graphs, file)
        except EscemeError as error:
            first, wrong = first or said(error, file), wrong + len(shared)
    return f"{first}; and {wrong - 1:,} more episodes" if wrong > 1 else first


def odd_episodes(episodes: Sequence[Episode]) -> str:
    """An episode that lacks what it needs or what the others have, and how many more do; empty if none."""
    withheld = [each for each in episodes if each.goal_withheld]
    oddities = {
        "has no goal, unlike others": withheld if len(withheld) < len(episodes) else [],
        "has an empty instruction": [
            each for each in episodes if not each.instruction.strip() and not each.tokens
        ],
        "has a heading that is no angle in radians": [
            each for each in episodes if abs(each.heading) > LARGEST_HEADING
        ],
    }
    for oddity, found in oddities.items():
        if found:
            more = f"; and {len(found) - 1:,} more episodes" if len(found) > 1 else ""
            return f"episode {found[0].episode_id}: {oddity}{more}"
    return ""


def _by_walk(episodes: Iterable[Episode]) -> Iterable[list[Episode]]:
    """Episodes that share a walk: the instructions of one path."""
    shared: dict[tuple[object, ...], list[Episode]] = defaultdict(list)
    for each in episodes:
        shared[each.scene_id, each.reference_path, each.goals, *_shown_walks(each)].append(each)
    return shared.values()


def _shown_walks(episode: Episode) -> tuple[tuple[str, ...], ...]:
    """What the people of a raw dialog walked and were shown, either of which may be the reference path."""
    if isinstance(episode, DialogEpisode) and episode.planner_path:
        return episode.player_path, episode.planner_path
    return ()


def _check_episode(episode: Episode, graphs: dict[str, SceneGraph], file: Path) -> None:
    check_paths([episode], graphs, file)
    for walk in _shown_walks(episode):
        with prefix_errors(file=file, record=f"episode {episode.episode_id}"):
            check_path(episode.scene_id, walk, graphs)


def odd_shapes(path: Path) -> Iterator[str]:
    """Entries of an HDF5 file that are not shaped like most of them, in all their columns."""
    if path.suffix not in HDF5_SUFFIXES:
        return
    with h5py.File(path, "r") as file:
        shapes = {key: _shape(file, key) for key in file}
    usual, _ = Counter(shapes.values()).most_common(1)[0]
    for key, found in shapes.items():
        if found != usual:
            yield f"'{key}' has shape {found}, most have {usual}"


def _shape(file: h5py.File, key: str) -> tuple[int, ...] | None:
    try:
        return getattr(file[key], "shape", None)
    except (KeyError, OSError, RuntimeError):
        return None


def room_labels(path: Path) -> dict[str, str]:
    """The room label of each `<scene>_<viewpoint>`; raises `DataError` for one that is not explained."""
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


def word_pieces(path: Path) -> str:
    """How large a vocabulary is; raises `DataError` where its end is missing."""
    pieces = WordPiece.read(path).size
    if pieces == BERT_PIECES:
        return f"{pieces:,} word pieces: as published"
    if path.suffix == ".txt" and not read_bytes(path).endswith(b"\n"):
        raise DataError(f"{path}: {pieces:,} word pieces, the last one cut off; BERT has {BERT_PIECES:,}")
    return f"{pieces:,} word pieces, where BERT has {BERT_PIECES:,}"


def said(error: EscemeError, path: Path) -> str:
    """An error's message without the file, which is named elsewhere."""
    return str(error).removeprefix(f"{path}: ")
