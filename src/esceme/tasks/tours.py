"""Tours (IVLN): sequences of episodes in one scene. The agent keeps its memory from episode to episode."""

from __future__ import annotations

import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from esceme.errors import ConfigError, DataError
from esceme.files import PrintableText, read_json, write_json
from esceme.tasks.episode import Episode, require_unique_ids


@dataclass(frozen=True, slots=True)
class Tour:
    """Ordered sequence of episodes in one scene."""

    scene_id: str
    episode_ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.episode_ids)


def read_all_tours(path: str | Path) -> dict[str, list[Tour]]:
    """Return a dict from split to tours, read from a published tour file.

    The file maps split -> scene -> lists of episode ids.
    """
    path = Path(path)
    found = read_json(path, dict[PrintableText, dict[PrintableText, list[list[PrintableText]]]])
    splits = {
        split: [Tour(scene, tuple(ids)) for scene, tours in scenes.items() for ids in tours]
        for split, scenes in found.items()
    }
    for split, tours in splits.items():
        if not tours:
            raise DataError(f"{path}: split '{split}' holds no tours")
    return splits


def read_tours(path: str | Path, split: str) -> list[Tour]:
    """Return the tours of one split of a published tour file."""
    splits = read_all_tours(path)
    if split not in splits:
        raise DataError(f"{path}: no split '{split}'; the file holds {', '.join(sorted(splits)) or 'none'}")
    return splits[split]


def write_tours(path: str | Path, splits: Mapping[str, Iterable[Tour]]) -> None:
    """Write a dict from split to tours in the published format."""
    published: dict[str, dict[str, list[tuple[str, ...]]]] = {}
    for split, tours in splits.items():
        scenes = published.setdefault(split, {})
        for tour in tours:
            scenes.setdefault(tour.scene_id, []).append(tour.episode_ids)
    write_json(Path(path), published)


def make_tours(episodes: Sequence[Episode], *, longest: int = 100, seed: int = 0) -> list[Tour]:
    """Divide the episodes of each scene into tours of about equal length, at most `longest` episodes.

    The order of the episodes of a scene depends only on `seed` and on the set of their ids.

    >>> episodes = [
    ...     Episode(episode_id=f"{k}_0", scene_id=scene, path_id=f"{k}", reference_path=("a",),
    ...             heading=0.0, instruction="wait")
    ...     for k, scene in enumerate(["attic"] * 5 + ["barn"] * 2)
    ... ]
    >>> [(tour.scene_id, len(tour)) for tour in make_tours(episodes, longest=3)]
    [('attic', 2), ('attic', 3), ('barn', 2)]
    """
    if longest < 1:
        raise ConfigError(f"tours of at most {longest} episodes: expected at least 1")
    if seed < 0:
        raise ConfigError(f"the seed is {seed}; give 0 or more")
    by_scene: dict[str, list[str]] = defaultdict(list)
    for episode in require_unique_ids(episodes, "making tours"):
        by_scene[episode.scene_id].append(episode.episode_id)
    tours = []
    for scene, episode_ids in sorted(by_scene.items()):
        generator = np.random.default_rng([seed, zlib.crc32(scene.encode())])
        ids = sorted(episode_ids)
        order = [ids[index] for index in generator.permutation(len(ids))]
        count = math.ceil(len(ids) / longest)
        bounds = [len(ids) * k // count for k in range(count + 1)]
        tours += [Tour(scene, tuple(order[a:b])) for a, b in pairwise(bounds)]
    return tours


def check_tours(tours: Iterable[Tour], episodes: Iterable[Episode], file: object) -> None:
    """Raise `DataError` if a tour is empty, or an episode is unknown, repeated or in another scene."""
    scene_of = {episode.episode_id: episode.scene_id for episode in episodes}
    toured: set[str] = set()
    num_tours: Counter[str] = Counter()
    for tour in tours:
        location = f"{file}: scene '{tour.scene_id}', tour {num_tours[tour.scene_id]}"
        num_tours[tour.scene_id] += 1
        if not tour.episode_ids:
            raise DataError(f"{location}: is empty; expected at least one episode id")
        for episode_id in tour.episode_ids:
            if episode_id not in scene_of:
                raise DataError(f"{location}: episode '{episode_id}' is unknown; is this the split?")
            if scene_of[episode_id] != tour.scene_id:
                raise DataError(f"{location}: episode '{episode_id}' is in scene '{scene_of[episode_id]}'")
            if episode_id in toured:
                raise DataError(f"{location}: episode '{episode_id}' is in two tours; expected one")
            toured.add(episode_id)
