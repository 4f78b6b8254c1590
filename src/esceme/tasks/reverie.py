"""REVERIE: instructions that refer to a remote object, and the objects visible from each viewpoint."""

from __future__ import annotations

from pathlib import Path

import msgspec

from esceme.errors import DataError
from esceme.files import PrintableText, read_json, read_records
from esceme.tasks.episode import Angle, Episode, require_unique_ids


class ReverieRecord(msgspec.Struct, omit_defaults=True):
    """Record of a REVERIE file: a path to an object, with instructions.

    Test records have neither object nor path id.
    """

    id: PrintableText | int
    scan: PrintableText
    path: list[str]
    heading: Angle
    instructions: list[str]
    path_id: int | PrintableText | None = None
    objId: int | PrintableText | None = None  # noqa: N815 (the file's own key)


class VisibleObject(msgspec.Struct):
    """Object near a viewpoint, as listed in an object file. Keys without a field here are ignored."""

    id: PrintableText | int


def read_reverie(path: str | Path) -> list[Episode]:
    """Read one episode per instruction of a REVERIE file (v2). Episode ids are `<id>_<k>`.

    Episodes from the same R2R path share a `path_id`, although some end at different viewpoints. If a record
    has no object (test split), the goal is withheld.
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
    return require_unique_ids(episodes, path)


def read_objects(path: str | Path) -> dict[str, frozenset[str]]:
    """Return a dict from `<scene>_<viewpoint>` to the ids of the objects near this viewpoint."""
    path = Path(path)
    objects = read_json(path, dict[PrintableText, list[VisibleObject]])
    if not objects:
        raise DataError(f"{path}: lists no viewpoints")
    return {key: frozenset(str(item.id) for item in visible) for key, visible in objects.items()}
