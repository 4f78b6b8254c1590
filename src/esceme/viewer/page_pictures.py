"""Panoramas of the page as small JPEG images."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Literal

from PIL import Image

from esceme.errors import DataError
from esceme.tasks.folder import DataFolder
from esceme.viewer.page_data import PageData

PictureSize = Literal["thumbnails", "full", "none"]
WIDTHS: dict[PictureSize, int] = {"thumbnails": 384, "full": 1024, "none": 0}
"""Width of a panorama on the page in pixels."""
QUALITIES: dict[PictureSize, int] = {"thumbnails": 60, "full": 80, "none": 0}
"""JPEG quality of a panorama on the page."""


def add_pictures(page: PageData, folder: DataFolder, size: PictureSize) -> int:
    """Add the panoramas of all viewpoints on trajectories to the page; return how many are missing."""
    missing = 0
    if size == "none":
        return missing
    for scene, viewpoint in _shown_viewpoints(page):
        entry = page.scenes[scene]
        file = folder.panorama(entry.id, entry.viewpoints[viewpoint])
        if file is None:
            missing += 1
            continue
        picture = shrink_panorama(file, WIDTHS[size], QUALITIES[size])
        page.pictures[f"{scene}/{viewpoint}"] = base64.b64encode(picture).decode()
    return missing


def _shown_viewpoints(page: PageData) -> Iterator[tuple[int, int]]:
    """Yield the scene and the viewpoint of all poses and of all reference paths, without repetition."""
    shown: set[tuple[int, int]] = set()
    for number, episode in enumerate(page.episodes):
        paths: Iterable[list[int]] = (result.trajectories[number].poses[::2] for result in page.results)
        shown |= {(episode.scene, viewpoint) for path in (episode.reference, *paths) for viewpoint in path}
    yield from sorted(shown)


def shrink_panorama(file: Path, width: int, quality: int) -> bytes:
    """Return a panorama as a JPEG image that is at most `width` pixels wide."""
    try:
        with Image.open(file) as image:
            image.draft("RGB", (width, width // 2))
            small, content = image.convert("RGB"), BytesIO()
            if small.width > width:
                small = small.resize((width, round(small.height * width / small.width)))
            small.save(content, "JPEG", quality=quality)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{file}: expected a JPEG or PNG panorama ({error})") from None
    return content.getvalue()
