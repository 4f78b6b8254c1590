"""Questions to a memory store: places near a position, seen since a time, similar to a vector."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from esceme.errors import DataError
from esceme.files import PrintableText
from esceme.memory.store import ORDER, MemoryStore, Prefer
from esceme.memory.store_record import Position

MAX_FOUND = 1000
CHUNK = 4096
"""Number of vectors that are compared at a time."""


class PlaceQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conditions on what is recalled of the places of a scene. All given ones have to hold."""

    scene: PrintableText
    near: Position | None = None
    """Position in metres; places are sorted by their distance to it."""
    radius: float | None = None
    """Largest distance to `near` in metres."""
    after: float | None = None
    """Time in seconds since 1970; with `prefer="newest"`, places that were visited since."""
    before: float | None = None
    prefer: Prefer = "first"
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_FOUND)] = 10

    def check(self) -> None:
        """Raise `DataError` if a number is not finite."""
        numbers = (*(self.near or ()), self.radius or 0.0, self.after or 0.0, self.before or 0.0)
        if not all(map(math.isfinite, numbers)):
            raise DataError("expected finite numbers in a query")


class FoundPlace(NamedTuple):
    """A place that a query found."""

    viewpoint: str
    position: Position | None
    time: float
    robot: str
    distance: float | None
    """Distance to `near` in metres."""
    similarity: float | None
    """Cosine of the angle between its vector and the given one."""


def find_places(store: MemoryStore, query: PlaceQuery, similar: bytes | None = None) -> list[FoundPlace]:
    """Return the places that fulfil a query, at most `limit`.

    They are sorted by similarity to the vector `similar`, if given, else by distance, else newest first.
    """
    query.check()
    conditions: dict[str, tuple[object, ...]] = {
        "time > ?": () if query.after is None else (query.after,),
        "time < ?": () if query.before is None else (query.before,),
    }
    given = {sql: values for sql, values in conditions.items() if values}
    rows = store.database.query(
        "SELECT id, viewpoint, x, y, z, time, robot FROM (SELECT id, viewpoint, x, y, z, time, robot, "
        f"ROW_NUMBER() OVER (PARTITION BY viewpoint ORDER BY {ORDER[query.prefer]}) AS place_rank "
        "FROM observation WHERE scene = ?) ranked WHERE place_rank = 1"
        + "".join(f" AND {sql}" for sql in given)
        + " ORDER BY time DESC, viewpoint",
        (query.scene, *(value for values in given.values() for value in values)),
    )
    places = [(row[0], _place(row, query.near)) for row in rows]
    if query.near is not None:
        limit = math.inf if query.radius is None else query.radius
        places = [item for item in places if item[1].distance is not None and item[1].distance <= limit]
        places.sort(key=lambda item: (item[1].distance, item[1].viewpoint))
    if similar is not None:
        found = _similarities(store, [number for number, _ in places], similar)
        places = [(number, place._replace(similarity=found[number])) for number, place in places]
        places.sort(key=lambda item: -(item[1].similarity or 0.0))
    return [place for _, place in places[: query.limit]]


def _place(row: tuple[object, ...], near: Position | None) -> FoundPlace:
    _, viewpoint, x, y, z, time, robot = row
    position = None if x is None else (x, y, z)
    distance = None if near is None or position is None else math.dist(near, position)  # type: ignore[arg-type]
    return FoundPlace(viewpoint, position, time, robot, distance, None)  # type: ignore[arg-type]


def _similarities(store: MemoryStore, ids: list[int], similar: bytes) -> dict[int, float]:
    """Return the cosine similarity of the vectors of some rows to a vector, by id."""
    target, found = store.settings.decode(similar)[0].numpy(), dict[int, float]()
    target = target / max(float(np.linalg.norm(target)), 1e-12)
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        marks = ", ".join("?" * len(chunk))
        rows = store.database.query(f"SELECT id, vector FROM observation WHERE id IN ({marks})", chunk)
        vectors = store.settings.decode(b"".join(vector for _, vector in rows)).numpy()
        cosines = vectors @ target / np.maximum(np.linalg.norm(vectors, axis=1), 1e-12)
        found |= {number: float(cosine) for (number, _), cosine in zip(rows, cosines, strict=True)}
    return {number: found.get(number, 0.0) for number in ids}
