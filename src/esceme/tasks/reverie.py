"""REVERIE: instructions that name a remote object, and the objects that can be seen from each viewpoint."""

from __future__ import annotations

from pathlib import Path

import msgspec

from esceme.errors import DataError
from esceme.files import read_json, read_records
from esceme.tasks.episode import Episode, require_unique


class ReverieRecord(msgspec.Struct, omit_defaults=True):
    """One walk to one object with its instructions; test records have neither object nor path id."""

    id: str | int
    scan: str
    path: list[str]
    heading: float
    instructions: list[str]
    path_id: int | str | None = None
    objId: int | str | None = None  # noqa: N815 (the file's own key)


class VisibleObject(msgspec.Struct):
    """One object near a viewpoint; its name, views and boxes are not needed here."""

    id: str | int


def read_reverie(path: str | Path) -> list[Episode]:
    """One episode per instruction of a REVERIE file (v2); ids are `<id>_<k>`.

    Records for different objects share a `path_id` when they stem from the same R2R walk; some of them end
    at different viewpoints. Where the object is missing (test), the goal is withheld.
    """
    path = Path(path)
    episodes = []
    for record in read_records(path, ReverieRecord):
        if not record.path:
            raise DataError(f"{path}: record '{record.id}': 'path' is empty; expected at least the start")
        for k, instruction in enumerate(record.instructions):
            episodes.append(
                Episode(
                    episode_id=f"{record.id}_{k}",
                    scene_id=record.scan,
                    path_id=str(record.id if record.path_id is None else record.path_id),
                    reference_path=tuple(record.path),
                    heading=record.heading,
                    instruction=instruction,
                    object_id=None if record.objId is None else str(record.objId),
                    goal_withheld=record.objId is None,
                )
            )
    return require_unique(episodes, path)


def read_objects(path: str | Path) -> dict[str, frozenset[str]]:
    """The ids of the objects within reach of each viewpoint, keyed `<scene>_<viewpoint>`.

    Stopping at a viewpoint whose set holds the episode's `object_id` is success.
    """
    path = Path(path)
    listed = read_json(path, dict[str, list[VisibleObject]])
    if not listed:
        raise DataError(f"{path}: lists no viewpoints")
    return {key: frozenset(str(seen.id) for seen in found) for key, found in listed.items()}
