"""Visible objects: annotated boxes, re-projection into other viewpoints, and malformed annotations."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from esceme.errors import ConfigError, DataError
from esceme.files import read_json, write_json
from esceme.perception.triangulation import AngularBoxes, angular_box, box_coverage, merge_views, triangulate
from esceme.perception.visible_objects import (
    DatasetAnnotations,
    ObjectAnnotation,
    SceneObjects,
    SceneViewpoints,
    collect_objects,
    find_visible_objects,
)
from esceme.tasks.folder import DataFolder
from esceme.world.geometry import VIEWS
from esceme.world.graph import SUFFIX, scene_ids

HALL = SceneViewpoints(
    scene_id="hall",
    viewpoints=("a", "b", "far", "hidden", "upstairs"),
    positions=np.array([[0, 0, 1.5], [1, 0, 1.5], [0, -9, 1.5], [0, -2, 1.5], [0, -1, 4.3]]),
    visible=np.array([[i != j and 3 not in (i, j) for j in range(5)] for i in range(5)]),
)
LAMP = ObjectAnnotation(id="7", name="lamp", views=[12], boxes=[(290.0, 210.0, 60.0, 60.0)])
ANNOTATIONS = DatasetAnnotations({"hall_a": [LAMP]}, {}, {})


def test_object_is_reprojected_into_visible_near_viewpoints_of_the_same_floor() -> None:
    objects = find_visible_objects(HALL, ANNOTATIONS)
    assert set(objects.viewpoint) == {0, 1}
    views = set(objects.view[objects.viewpoint == 1])  # b is one metre east of a, the lamp is to the north
    assert 11 + 12 in views and 12 + 6 not in views
    assert objects.is_annotated.sum() == 1
    assert set(find_visible_objects(HALL, ANNOTATIONS, reach=20).viewpoint) == {0, 1, 2}


def test_reach_zero_leaves_the_annotated_boxes() -> None:
    objects = find_visible_objects(HALL, ANNOTATIONS, reach=0)
    assert objects.is_annotated.all()
    assert objects.coverage.tolist() == pytest.approx([3600 / 307200])
    with pytest.raises(ConfigError, match="-1"):
        find_visible_objects(HALL, ANNOTATIONS, reach=-1)


def test_object_listed_without_a_box_is_not_reprojected() -> None:
    occluded = msgspec.structs.replace(LAMP, views=[], boxes=[])
    annotations = DatasetAnnotations({"hall_a": [LAMP], "hall_b": [occluded]}, {}, {})
    assert set(find_visible_objects(HALL, annotations).viewpoint) == {0}


def test_scene_without_objects_is_empty() -> None:
    assert len(find_visible_objects(HALL, DatasetAnnotations({}, {}, {})).coverage) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"views": [12, 13]}, "2 views but 1 boxes"),
        ({"views": [36]}, "from 0 to 35"),
        ({"boxes": [[600, 0, 60, 10]]}, "leaves the picture"),
        ({"boxes": [[600, 0, 60]]}, "boxes"),
    ],
)
def test_error_names_the_malformed_annotation(
    toy_root: Path, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    for kind in ("objects", "rooms"):
        shutil.copytree(toy_root / kind, tmp_path / kind)
    entry = {"id": "1", "name": "sofa", "views": [3], "boxes": [[0, 0, 10, 10]]} | change
    (tmp_path / "objects/reverie_objects.json.gz").unlink()
    write_json(tmp_path / "objects/reverie_objects.json", {"toy-villa_ab": [entry]})
    with pytest.raises(DataError, match=f"toy-villa_ab.*{message}"):
        DatasetAnnotations.read(DataFolder(tmp_path))


def test_error_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="reverie_objects"):
        DatasetAnnotations.read(DataFolder(tmp_path))


def test_toy_objects_are_reprojected_into_included_viewpoints(toy_root: Path) -> None:
    path = toy_root / f"connectivity/toy-villa{SUFFIX}"
    scene = SceneViewpoints.read(path)
    included = [r["image_id"] for r in read_json(path, list[dict]) if r["included"]]  # type: ignore[type-arg]
    assert list(scene.viewpoints) == included and scene.visible.shape == (len(included), len(included))
    objects = find_visible_objects(scene, DatasetAnnotations.read(DataFolder(toy_root)))
    assert objects.is_annotated.any() and not objects.is_annotated.all()
    assert (objects.coverage > 0).all() and (objects.coverage <= 1).all()
    assert objects.view.min() >= 0 and objects.view.max() < VIEWS


def real_objects(data_root: Path, every: int) -> Iterator[tuple[SceneViewpoints, SceneObjects, AngularBoxes]]:
    """Yield the viewpoints, the objects and the angular boxes of every n-th real scene."""
    annotations = DatasetAnnotations.read(DataFolder(data_root))
    for scene_id in scene_ids(data_root / "connectivity")[::every]:
        scene = SceneViewpoints.read(data_root / f"connectivity/{scene_id}{SUFFIX}")
        objects = collect_objects(scene, annotations)
        yield scene, objects, merge_views(objects.boxes)


@pytest.mark.real
def test_matterport_objects_lie_in_front_and_in_their_annotated_views(data_root: Path) -> None:
    """On all 90 scenes: 99.9 % in front, 95 % of annotated views hit, 99 % of the largest ones."""
    front, hit, largest = [], [], []
    for scene, objects, merged in real_objects(data_root, 6):
        geometry = triangulate(merged, scene.positions, num_objects=len(objects.names))
        offset = geometry.position[merged.object] - scene.positions[merged.viewpoint]
        coverage = box_coverage(*angular_box(offset, geometry.size[merged.object]))
        front.append((offset * merged.rays).sum(axis=1) > 0)

        row = np.full((len(objects.names), len(scene.viewpoints)), -1)
        row[merged.object, merged.viewpoint] = np.arange(len(merged.object))
        areas = np.zeros_like(coverage)
        boxes = objects.boxes
        areas[row[boxes.object, boxes.viewpoint], boxes.view] = boxes.box[:, 2] * boxes.box[:, 3]
        hit.append(coverage[areas > 0] > 0)
        largest.append(coverage[np.arange(len(areas)), areas.argmax(axis=1)] > 0)
    assert np.concatenate(front).mean() > 0.995
    assert np.concatenate(hit).mean() > 0.94
    assert np.concatenate(largest).mean() > 0.985


@pytest.mark.real
def test_matterport_object_is_located_for_a_held_out_viewpoint(data_root: Path) -> None:
    """On all 90 scenes the median error is 3°."""
    errors = []
    for scene, objects, merged in real_objects(data_root, 9):
        first = np.unique(merged.object, return_index=True)[1]
        held_out = first[np.bincount(merged.object)[merged.object[first]] >= 3]
        rest = type(merged)(*(np.delete(array, held_out) for array in merged))
        geometry = triangulate(rest, scene.positions, num_objects=len(objects.names))
        offset = geometry.position[merged.object[held_out]] - scene.positions[merged.viewpoint[held_out]]
        cosine = (offset * merged.rays[held_out]).sum(axis=1) / np.linalg.norm(offset, axis=1)
        errors.append(np.degrees(np.arccos(np.clip(cosine, -1, 1))))
    assert np.median(np.concatenate(errors)) < 4
