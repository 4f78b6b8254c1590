"""One place of a generated house photographed: the picture, its features, and the list of what was drawn."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from esceme.perception.encode import Encoder, encode_panorama
from esceme.perception.views import cut_ids
from esceme.synth.plan import House
from esceme.synth.render import Panorama, Renderer
from esceme.synth.sights import NOTICED, Sights, view_shares
from esceme.world.geometry import direction
from esceme.world.graph import SceneGraph

JPEG_QUALITY = 88
REACH = 3.0
"""Objects within this many metres are listed for a viewpoint, as REVERIE does."""
FRAME = (640, 480)
"""Width and height of the pictures that boxes are measured on."""


@dataclass(frozen=True)
class Capture:
    """What is kept of a place."""

    picture: bytes
    """The panorama as JPEG."""
    features: NDArray[np.float32]
    """(V, D)"""
    share: NDArray[np.float32]
    """(V, F): how much of each view each thing fills."""
    objects: list[dict[str, Any]]
    """The things near by in the form of the public object file."""
    visible: NDArray[np.bool_]
    """(P,): which other places can be seen from here."""


def capture(house: House, renderer: Renderer, place: int, encoder: Encoder) -> Capture:
    """Photograph one place; the encoder is given the pixels as they are stored and nothing else."""
    panorama = renderer.render(place)
    file = io.BytesIO()
    Image.fromarray(panorama.rgb).save(file, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    stored = np.asarray(Image.open(io.BytesIO(file.getvalue())))
    ids = cut_ids(panorama.objects)
    share = view_shares(ids, len(house.furniture))
    return Capture(
        picture=file.getvalue(),
        features=encode_panorama(encoder, stored),
        share=share,
        objects=_objects(house, panorama, ids, share),
        visible=_visible(house, panorama, place),
    )


def sights_of(house: House, graph: SceneGraph, *, height: int) -> Sights:
    """What is seen of a house from each of its places, without taking pictures."""
    renderer, things = Renderer(house, height=height), len(house.furniture)
    shares = [view_shares(cut_ids(renderer.objects(at)), things) for at in range(len(house.places))]
    return Sights(house, graph, np.stack(shares))


def _objects(
    house: House, panorama: Panorama, ids: NDArray[np.int16], share: NDArray[np.float32]
) -> list[dict[str, Any]]:
    nearest = np.full(len(house.furniture) + 1, np.inf, dtype=np.float32)
    np.minimum.at(nearest, panorama.objects.ravel(), panorama.depth.ravel())
    listed = []
    for index, thing in enumerate(house.furniture):
        views = np.flatnonzero(share[:, index] >= NOTICED)
        if len(views) and nearest[index] <= REACH:
            listed.append(
                {
                    "id": thing.object_id,
                    "name": thing.name.replace(" ", "#"),
                    "views": views.tolist(),
                    "boxes": [_box(ids[view] == index) for view in views],
                }
            )
    return listed


def _box(shown: NDArray[np.bool_]) -> list[int]:
    """The frame around what is shown, [x, y, width, height] in pixels of `FRAME`."""
    rows, columns = np.flatnonzero(shown.any(axis=1)), np.flatnonzero(shown.any(axis=0))
    down, right = FRAME[1] / shown.shape[0], FRAME[0] / shown.shape[1]
    x, y = columns[0] * right, rows[0] * down
    return [round(x), round(y), round((columns[-1] + 1) * right - x), round((rows[-1] + 1) * down - y)]


def _visible(house: House, panorama: Panorama, place: int) -> NDArray[np.bool_]:
    """Places in whose direction nothing is nearer than they are."""
    positions = np.array([each.position for each in house.places])
    offsets = positions - positions[place]
    seen = direction(offsets)
    height, width = panorama.depth.shape
    column = ((seen.heading + np.pi) / (2 * np.pi) * width).astype(int) % width
    row = ((np.pi / 2 - seen.elevation) / np.pi * height).astype(int).clip(0, height - 1)
    visible = panorama.depth[row, column] >= np.linalg.norm(offsets, axis=1) - 0.05
    visible[place] = False
    return visible
