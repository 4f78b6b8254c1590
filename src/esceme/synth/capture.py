"""Capture of one viewpoint of a generated house: image, features, object boxes and visible viewpoints."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from esceme.perception.encoders import Encoder, encode_panorama
from esceme.perception.triangulation import IMAGE_SIZE
from esceme.perception.views import cut_ids
from esceme.synth.house_model import House
from esceme.synth.render import Panorama, Renderer
from esceme.synth.visibility import MIN_COVERAGE, view_coverage
from esceme.world.geometry import direction

JPEG_QUALITY = 88
MAX_OBJECT_DISTANCE = 3.0
"""Maximum distance in metres of the objects that the object file lists for a viewpoint, as in REVERIE."""


@dataclass(frozen=True)
class ViewpointCapture:
    """Everything that the files of the generated world store about one viewpoint."""

    jpeg: bytes
    """Content of the panorama's image file."""
    features: NDArray[np.float32]
    """(V, D): encoder features of the 36 views."""
    coverage: NDArray[np.float32]
    """(V, F): share of every view's pixels that every piece of furniture covers, from 0 to 1."""
    objects: list[dict[str, Any]]
    """Objects within `MAX_OBJECT_DISTANCE`, as records of the public object file of REVERIE."""
    visible: NDArray[np.bool_]
    """(P,): True for every other viewpoint of the house that is visible from this viewpoint."""


def capture_viewpoint(house: House, renderer: Renderer, viewpoint: int, encoder: Encoder) -> ViewpointCapture:
    """Render the panorama of a viewpoint index, and compute its features, objects and visible viewpoints.

    Features come from the pixels of the compressed image, as if they were extracted from the image file.
    """
    panorama = renderer.render(viewpoint)
    file = io.BytesIO()
    Image.fromarray(panorama.rgb).save(file, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    stored = np.asarray(Image.open(io.BytesIO(file.getvalue())))
    objects = cut_ids(panorama.objects)
    coverage = view_coverage(objects, len(house.furniture))
    return ViewpointCapture(
        jpeg=file.getvalue(),
        features=encode_panorama(encoder, stored),
        coverage=coverage,
        objects=_nearby_objects(house, panorama, objects, coverage),
        visible=_visible_viewpoints(house, panorama, viewpoint),
    )


def _nearby_objects(
    house: House, panorama: Panorama, objects: NDArray[np.int16], coverage: NDArray[np.float32]
) -> list[dict[str, Any]]:
    """Return records of the object file: id, name, view indices and boxes of the objects nearby."""
    nearest = np.full(len(house.furniture) + 1, np.inf, dtype=np.float32)
    np.minimum.at(nearest, panorama.objects.ravel(), panorama.depth.ravel())
    records = []
    for index, item in enumerate(house.furniture):
        views = np.flatnonzero(coverage[:, index] >= MIN_COVERAGE)
        if len(views) and nearest[index] <= MAX_OBJECT_DISTANCE:
            records.append(
                {
                    "id": item.object_id,
                    "name": item.name.replace(" ", "#"),
                    "views": views.tolist(),
                    "boxes": [_bounding_box(objects[view] == index) for view in views],
                }
            )
    return records


def _bounding_box(mask: NDArray[np.bool_]) -> list[int]:
    """Return the bounding box of a mask, [x, y, width, height] in pixels of `IMAGE_SIZE`."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    scale_y, scale_x = IMAGE_SIZE[1] / mask.shape[0], IMAGE_SIZE[0] / mask.shape[1]
    x, y = columns[0] * scale_x, rows[0] * scale_y
    return [round(x), round(y), round((columns[-1] + 1) * scale_x - x), round((rows[-1] + 1) * scale_y - y)]


def _visible_viewpoints(house: House, panorama: Panorama, viewpoint: int) -> NDArray[np.bool_]:
    """Return a mask (P,): True for viewpoints that no surface hides, according to the panorama's depth."""
    positions = np.array([other.position for other in house.viewpoints])
    offsets = positions - positions[viewpoint]
    towards = direction(offsets)
    height, width = panorama.depth.shape
    column = ((towards.heading + np.pi) / (2 * np.pi) * width).astype(int) % width
    row = ((np.pi / 2 - towards.elevation) / np.pi * height).astype(int).clip(0, height - 1)
    visible = panorama.depth[row, column] >= np.linalg.norm(offsets, axis=1) - 0.05
    visible[viewpoint] = False
    return visible
