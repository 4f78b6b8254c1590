"""Room-to-Room (R2R) and files of the same format: R4R, R2R-Last, R2R-Back, PREVALENT."""

from __future__ import annotations

from pathlib import Path

import msgspec

from esceme.errors import DataError
from esceme.files import PrintableText, read_records
from esceme.tasks.episode import Angle, Episode, TokenId, require_unique_ids


class R2RRecord(msgspec.Struct, omit_defaults=True):
    """Record of an R2R file: one path with its instructions. Keys without a field here are ignored."""

    scan: PrintableText
    path_id: int | PrintableText
    path: list[str]
    heading: Angle
    instructions: list[str]
    instr_encodings: list[list[TokenId]] | None = None
    distance: float | None = None


def read_r2r(path: str | Path) -> list[Episode]:
    """Read one episode per instruction of a published or pre-encoded file; ids are `<path_id>_<k>`."""
    path = Path(path)
    episodes = []
    for record in read_records(path, R2RRecord):
        if not record.path:
            raise DataError(f"{path}: path {record.path_id}: 'path' is empty; expected at least the start")
        if not record.instructions:
            raise DataError(f"{path}: path {record.path_id}: no instructions; expected at least one")
        encodings = record.instr_encodings
        if encodings is not None and len(encodings) != len(record.instructions):
            raise DataError(
                f"{path}: path {record.path_id}: {len(record.instructions)} instructions "
                f"but {len(encodings)} instr_encodings"
            )
        path_viewpoints = tuple(record.path)
        for k, instruction in enumerate(record.instructions):
            episodes.append(
                Episode(
                    episode_id=f"{record.path_id}_{k}",
                    scene_id=record.scan,
                    path_id=str(record.path_id),
                    reference_path=path_viewpoints,
                    heading=record.heading,
                    instruction=instruction,
                    tokens=None if encodings is None else tuple(encodings[k]),
                    goal_withheld=len(path_viewpoints) == 1,
                )
            )
    return require_unique_ids(episodes, path)
