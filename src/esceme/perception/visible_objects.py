"""Objects visible in every view of a scene, from annotated boxes and re-projected objects.

Annotators drew boxes only around objects close to a viewpoint. The position of an annotated object is
therefore triangulated, and the object is projected into the views of other viewpoints within reach. These
viewpoints must see a viewpoint at which the object is annotated. The connectivity files say which viewpoints
see each other; this is the only information about walls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from esceme.errors import ConfigError, DataError
from esceme.files import read_json, read_records
from esceme.perception.triangulation import (
    IMAGE_SIZE,
    AngularBoxes,
    ImageBoxes,
    ObjectGeometry,
    angular_box,
    box_coverage,
    merge_views,
    triangulate,
)
from esceme.tasks.file_checks import Rooms, room_labels
from esceme.tasks.folder import OBJECTS, ROOMS, DataFolder
from esceme.world.geometry import VIEWS
from esceme.world.graph import SUFFIX

REACH = 7.0
"""Maximum distance in metres at which a re-projected object counts as visible."""
MAX_FLOOR_UNEVENNESS = 1.5
"""Viewpoints whose heights differ by more than this (in metres) are on different floors."""


class ObjectAnnotation(msgspec.Struct):
    """Object near a viewpoint, with its boxes in the views. An object without boxes is occluded."""

    id: str | int
    name: str
    views: list[int]
    boxes: list[tuple[float, float, float, float]]


class _ConnectivityRecord(msgspec.Struct):
    image_id: str
    pose: list[float]
    included: bool
    visible: list[bool]


@dataclass(frozen=True)
class DatasetAnnotations:
    """Object boxes and room labels of all scenes of a data folder."""

    objects: Mapping[str, Sequence[ObjectAnnotation]]
    """`<scene>_<viewpoint>` -> objects near this viewpoint."""
    rooms: Mapping[str, str]
    """`<scene>_<viewpoint>` -> room label."""
    labels: Mapping[str, str]
    """Room label -> its description in words."""

    @classmethod
    def read(cls, folder: DataFolder) -> DatasetAnnotations:
        """Read the annotations of a data folder; raise `DataError` if a file is missing or malformed."""
        if folder.objects is None or folder.rooms is None:
            missing = OBJECTS[0] if folder.objects is None else ROOMS[0]
            raise DataError(f"{folder.root}: no {missing}, which lists what is visible; see docs/data.md")
        objects = read_json(folder.objects, dict[str, list[ObjectAnnotation]])
        for key, group in objects.items():
            for annotation in group:
                _check_object_boxes(annotation, f"{folder.objects}: '{key}': object '{annotation.id}'")
        labels = read_json(folder.rooms, Rooms).label_name
        return cls(objects, room_labels(folder.rooms), labels)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All different object names, sorted."""
        return tuple(sorted({item.name for group in self.objects.values() for item in group}))

    @cached_property
    def index_of(self) -> Mapping[str, int]:
        """Object name -> index in `names`."""
        return {name: index for index, name in enumerate(self.names)}


def _check_object_boxes(annotation: ObjectAnnotation, location: str) -> None:
    if len(annotation.views) != len(annotation.boxes):
        raise DataError(f"{location}: {len(annotation.views)} views but {len(annotation.boxes)} boxes")
    if any(not 0 <= view < VIEWS for view in annotation.views):
        raise DataError(f"{location}: views {annotation.views}; expected numbers from 0 to {VIEWS - 1}")
    for x, y, width, height in annotation.boxes:
        if not (x >= 0 and y >= 0 and x + width <= IMAGE_SIZE[0] and y + height <= IMAGE_SIZE[1]):
            raise DataError(f"{location}: box {(x, y, width, height)} leaves the picture of 640x480 pixels")


def split_into_words(name: str) -> list[str]:
    """Return the lower-case words of an object name or room description, without text in parentheses.

    >>> split_into_words("laundryroom/mudroom (place where people do laundry, etc.)")
    ['laundryroom', 'mudroom']
    >>> split_into_words("dining#table")
    ['dining', 'table']
    """
    return re.findall(r"[a-z0-9]+", name.partition(" (")[0].lower())


class SceneViewpoints(NamedTuple):
    """Included viewpoints (P) of a scene with their positions and mutual visibility."""

    scene_id: str
    viewpoints: tuple[str, ...]
    positions: NDArray[np.float64]
    """(P, 3): x, y and z in metres."""
    visible: NDArray[np.bool_]
    """(P, P): True where the viewpoint of the row sees the viewpoint of the column."""

    @property
    def keys(self) -> list[str]:
        """`<scene>_<viewpoint>` of every viewpoint."""
        return [f"{self.scene_id}_{viewpoint}" for viewpoint in self.viewpoints]

    @classmethod
    def read(cls, path: Path) -> SceneViewpoints:
        """Read the included viewpoints of a connectivity file, with and without edges."""
        records = read_records(path, _ConnectivityRecord)
        for record in records:
            if len(record.pose) != 16 or len(record.visible) != len(records):
                raise DataError(
                    f"{path}: viewpoint '{record.image_id}': {len(record.pose)} numbers of pose and "
                    f"{len(record.visible)} of visible, expected 16 and {len(records)}"
                )
        included = [index for index, record in enumerate(records) if record.included]
        poses = np.array([records[index].pose for index in included], dtype=np.float64).reshape(-1, 16)
        visible = np.array([records[index].visible for index in included], dtype=bool)
        visible = visible.reshape(-1, len(records))[:, included]
        names = tuple(records[index].image_id for index in included)
        return cls(path.name.removesuffix(SUFFIX), names, poses[:, [3, 7, 11]], visible)


class VisibleObjects(NamedTuple):
    """Visible objects of a scene as arrays (N,), with one entry per object, viewpoint and view."""

    viewpoint: NDArray[np.int64]
    view: NDArray[np.int64]
    name: NDArray[np.int64]
    """Index in `DatasetAnnotations.names`."""
    coverage: NDArray[np.float32]
    """Share of the view image that the object covers."""
    is_annotated: NDArray[np.bool_]
    """True if the box was annotated, False if the object was re-projected."""

    def only_annotated(self) -> VisibleObjects:
        """Return only the entries whose box was annotated."""
        arrays: list[Any] = [array[self.is_annotated] for array in self]
        return VisibleObjects(*arrays)


class SceneObjects(NamedTuple):
    """Objects (O) of a scene: name indices (O,), annotated boxes, and the mask `is_listed` (P, O).

    The mask is True where the annotations of a viewpoint list an object, with or without a box.
    """

    names: NDArray[np.int64]
    boxes: ImageBoxes
    is_listed: NDArray[np.bool_]


def collect_objects(scene: SceneViewpoints, annotations: DatasetAnnotations) -> SceneObjects:
    """Return the objects that the annotations of a scene list, in the order of their first occurrence."""
    index_of: dict[str, int] = {}
    names: list[int] = []
    entries: list[tuple[int, int, int]] = []
    boxes: list[tuple[float, float, float, float]] = []
    listed: list[tuple[int, int]] = []
    for row, key in enumerate(scene.keys):
        for annotation in annotations.objects.get(key, ()):
            index = index_of.setdefault(str(annotation.id), len(index_of))
            if index == len(names):
                names.append(annotations.index_of[annotation.name])
            entries += [(index, row, view) for view in annotation.views]
            boxes += annotation.boxes
            listed.append((row, index))
    objects, viewpoints, views = np.array(entries, dtype=np.int64).reshape(-1, 3).T
    corners = np.array(boxes, dtype=np.float64).reshape(-1, 4)
    image_boxes = ImageBoxes(objects, viewpoints, views, corners)
    is_listed = np.zeros((len(scene.viewpoints), len(names)), dtype=bool)
    is_listed[tuple(np.array(listed, dtype=np.int64).reshape(-1, 2).T)] = True
    return SceneObjects(np.array(names, dtype=np.int64), image_boxes, is_listed)


def find_visible_objects(
    scene: SceneViewpoints, annotations: DatasetAnnotations, *, reach: float = REACH
) -> VisibleObjects:
    """Return the annotated objects of a scene, and re-projected objects within `reach` metres of a viewpoint.

    An object that a viewpoint lists without a box is occluded. It is not re-projected into this viewpoint.
    """
    if not reach >= 0:
        raise ConfigError(f"objects within {reach} metres; give 0 or more")
    objects = collect_objects(scene, annotations)
    boxes = objects.boxes
    areas = (boxes.box[:, 2] * boxes.box[:, 3] / (IMAGE_SIZE[0] * IMAGE_SIZE[1])).astype(np.float32)
    merged = merge_views(boxes)
    geometry = triangulate(merged, scene.positions, num_objects=len(objects.names))
    in_sight = _find_objects_in_sight(scene, merged, geometry, reach) & ~objects.is_listed
    viewpoint, index = np.nonzero(in_sight)
    offset = geometry.position[index] - scene.positions[viewpoint]
    coverage = box_coverage(*angular_box(offset, geometry.size[index]))  # (M, 36)
    pair, view = np.nonzero(coverage)
    return VisibleObjects(
        viewpoint=np.concatenate([boxes.viewpoint, viewpoint[pair]]),
        view=np.concatenate([boxes.view, view]),
        name=objects.names[np.concatenate([boxes.object, index[pair]])],
        coverage=np.concatenate([areas, coverage[pair, view]]),
        is_annotated=np.arange(len(areas) + len(pair)) < len(areas),
    )


def _find_objects_in_sight(
    scene: SceneViewpoints, boxes: AngularBoxes, geometry: ObjectGeometry, reach: float
) -> NDArray[np.bool_]:
    """Return a mask (P, O): True where a viewpoint sees an object that is at most `reach` metres away.

    A viewpoint sees an object if it has a box of the object, or if it sees another viewpoint on the same
    floor that has a box of the object.
    """
    has_box = np.zeros((len(scene.viewpoints), len(geometry.position)), dtype=np.float32)
    has_box[boxes.viewpoint, boxes.object] = 1
    height = scene.positions[:, 2]
    same_floor = np.abs(height[:, None] - height) <= MAX_FLOOR_UNEVENNESS
    sees_one = (scene.visible & same_floor).astype(np.float32) @ has_box > 0
    distance = np.linalg.norm(scene.positions[:, None] - geometry.position, axis=-1)  # NaN compares as False
    return (sees_one | (has_box > 0)) & (distance <= reach)
