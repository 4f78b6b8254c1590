"""What every view of a scene shows, by annotation: objects near a viewpoint, and those re-projected into it.

Annotators drew boxes only around what is close to a viewpoint. An object that they found there is also seen
from further away: it is placed in space (`triangulate`) and shown to every viewpoint within reach that sees
one of those that have it annotated. Walls are known only through who sees whom.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from esceme.errors import ConfigError, DataError
from esceme.files import read_json, read_records
from esceme.perception.triangulate import (
    PICTURE,
    Boxes,
    Sightings,
    Things,
    merge,
    sight_from,
    triangulate,
    view_shares,
)
from esceme.tasks.folder import OBJECTS, ROOMS, DataFolder
from esceme.tasks.symptoms import Rooms, room_labels
from esceme.world.geometry import VIEWS
from esceme.world.graph import SUFFIX

REACH = 7.0
"""Objects farther than this many metres are not seen."""
STOREY = 1.5
"""Viewpoints whose heights differ by more metres than this are on different floors."""


class Annotated(msgspec.Struct):
    """One object near a viewpoint: where its views show it; none do when something stands before it."""

    id: str | int
    name: str
    views: list[int]
    boxes: list[tuple[float, float, float, float]]


class _Record(msgspec.Struct):
    image_id: str
    pose: list[float]
    included: bool
    visible: list[bool]


@dataclass(frozen=True)
class Annotations:
    """All that people wrote about the views of all scenes."""

    objects: Mapping[str, Sequence[Annotated]]
    """By `<scene>_<viewpoint>`."""
    rooms: Mapping[str, str]
    """The room label of each `<scene>_<viewpoint>`."""
    labels: Mapping[str, str]
    """What each room label means."""

    @classmethod
    def read(cls, folder: DataFolder) -> Annotations:
        """The object boxes and room labels of a data folder."""
        if folder.objects is None or folder.rooms is None:
            missing = OBJECTS[0] if folder.objects is None else ROOMS[0]
            raise DataError(f"{folder.root}: no {missing}, which says what is seen; see docs/data.md")
        objects = read_json(folder.objects, dict[str, list[Annotated]])
        for key, found in objects.items():
            for each in found:
                _check(each, f"{folder.objects}: '{key}': object '{each.id}'")
        labels = read_json(folder.rooms, Rooms).label_name
        return cls(objects, room_labels(folder.rooms), labels)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every name of an object, sorted."""
        return tuple(sorted({each.name for found in self.objects.values() for each in found}))

    @cached_property
    def number_of(self) -> Mapping[str, int]:
        """Names to their places in `names`."""
        return {name: number for number, name in enumerate(self.names)}


def _check(each: Annotated, place: str) -> None:
    if len(each.views) != len(each.boxes):
        raise DataError(f"{place}: {len(each.views)} views but {len(each.boxes)} boxes")
    if any(not 0 <= view < VIEWS for view in each.views):
        raise DataError(f"{place}: views {each.views}; expected numbers from 0 to {VIEWS - 1}")
    for x, y, width, height in each.boxes:
        if not (x >= 0 and y >= 0 and x + width <= PICTURE[0] and y + height <= PICTURE[1]):
            raise DataError(f"{place}: box {(x, y, width, height)} leaves the picture of 640x480 pixels")


def name_words(name: str) -> list[str]:
    """The words of an object's name or a room's description, in lower case, without explanations.

    >>> name_words("dining#table"), name_words("laundryroom/mudroom (place where people do laundry, etc.)")
    (['dining', 'table'], ['laundryroom', 'mudroom'])
    """
    return re.findall(r"[a-z0-9]+", name.partition(" (")[0].lower())


class Surroundings(NamedTuple):
    """The viewpoints of a scene that can be stood on, where they are, and who sees whom."""

    scene_id: str
    viewpoints: tuple[str, ...]
    positions: NDArray[np.float64]
    """(P, 3)"""
    visible: NDArray[np.bool_]
    """(P, P)"""

    @property
    def keys(self) -> list[str]:
        """`<scene>_<viewpoint>` of each."""
        return [f"{self.scene_id}_{viewpoint}" for viewpoint in self.viewpoints]

    @classmethod
    def read(cls, path: Path) -> Surroundings:
        """The included viewpoints of a connectivity file, those without an edge too."""
        records = read_records(path, _Record)
        for each in records:
            if len(each.pose) != 16 or len(each.visible) != len(records):
                raise DataError(
                    f"{path}: viewpoint '{each.image_id}': {len(each.pose)} numbers of pose and "
                    f"{len(each.visible)} of visible, expected 16 and {len(records)}"
                )
        kept = [index for index, each in enumerate(records) if each.included]
        poses = np.array([records[index].pose for index in kept], dtype=np.float64).reshape(-1, 16)
        visible = np.array([records[index].visible for index in kept], dtype=bool).reshape(-1, len(records))
        names = tuple(records[index].image_id for index in kept)
        return cls(path.name.removesuffix(SUFFIX), names, poses[:, [3, 7, 11]], visible[:, kept])


class Glimpses(NamedTuple):
    """What the views of a scene show, an entry per object, viewpoint and view."""

    viewpoint: NDArray[np.int64]
    view: NDArray[np.int64]
    name: NDArray[np.int64]
    """Place in `Annotations.names`."""
    share: NDArray[np.float32]
    """Of the picture's area."""
    near: NDArray[np.bool_]
    """Whether the annotators drew the box; otherwise it was re-projected."""

    def only_near(self) -> Glimpses:
        """What the annotators drew."""
        drawn = self.near
        return Glimpses(
            self.viewpoint[drawn], self.view[drawn], self.name[drawn], self.share[drawn], self.near[drawn]
        )


class Inventory(NamedTuple):
    """The objects of a scene: names, annotated boxes, and at which viewpoints (P, O) one is listed at all."""

    names: NDArray[np.int64]
    boxes: Boxes
    listed: NDArray[np.bool_]


def take_inventory(around: Surroundings, annotations: Annotations) -> Inventory:
    """The objects that have a box somewhere in a scene, in the order in which viewpoints list them."""
    number: dict[str, int] = {}
    names: list[int] = []
    entries: list[tuple[int, int, int]] = []
    boxes: list[tuple[float, float, float, float]] = []
    listed: list[tuple[int, int]] = []
    for row, key in enumerate(around.keys):
        for each in annotations.objects.get(key, ()):
            thing = number.setdefault(str(each.id), len(number))
            if thing == len(names):
                names.append(annotations.number_of[each.name])
            entries += [(thing, row, view) for view in each.views]
            boxes += each.boxes
            listed.append((row, thing))
    flat = np.array(entries, dtype=np.int64).reshape(-1, 3)
    corners = np.array(boxes, dtype=np.float64).reshape(-1, 4)
    found = Boxes(flat[:, 0], flat[:, 1], flat[:, 2], corners)
    where = np.zeros((len(around.viewpoints), len(names)), dtype=bool)
    where[tuple(np.array(listed, dtype=np.int64).reshape(-1, 2).T)] = True
    return Inventory(np.array(names, dtype=np.int64), found, where)


def glimpse(around: Surroundings, annotations: Annotations, *, reach: float = REACH) -> Glimpses:
    """What each view of a scene shows: the annotated boxes, and what lies within `reach` metres.

    Where annotators listed an object but drew no box, something stands before it: it stays hidden.
    """
    if not reach >= 0:
        raise ConfigError(f"objects within {reach} metres; give 0 or more")
    inventory = take_inventory(around, annotations)
    boxes = inventory.boxes
    drawn = (boxes.box[:, 2] * boxes.box[:, 3] / (PICTURE[0] * PICTURE[1])).astype(np.float32)
    seen = merge(boxes)
    things = triangulate(seen, around.positions, count=len(inventory.names))
    viewpoint, thing = np.nonzero(_within_sight(around, seen, things, reach) & ~inventory.listed)
    sight = sight_from(things.position[thing] - around.positions[viewpoint], things.size[thing])
    shares = view_shares(*sight)  # (M, 36)
    pair, view = np.nonzero(shares)
    return Glimpses(
        viewpoint=np.concatenate([boxes.viewpoint, viewpoint[pair]]),
        view=np.concatenate([boxes.view, view]),
        name=inventory.names[np.concatenate([boxes.thing, thing[pair]])],
        share=np.concatenate([drawn, shares[pair, view]]),
        near=np.arange(len(drawn) + len(pair)) < len(drawn),
    )


def _within_sight(around: Surroundings, seen: Sightings, things: Things, reach: float) -> NDArray[np.bool_]:
    """Which viewpoints (P, O) see one that sees an object, on the same floor, and are within reach of it."""
    witness = np.zeros((len(around.viewpoints), len(things.position)), dtype=np.float32)
    witness[seen.viewpoint, seen.thing] = 1
    height = around.positions[:, 2]
    same_floor = np.abs(height[:, None] - height) <= STOREY
    meets = (around.visible & same_floor).astype(np.float32) @ witness > 0
    gaps = np.linalg.norm(around.positions[:, None] - things.position, axis=-1)  # NaN compares as False
    return (meets | (witness > 0)) & (gaps <= reach)
