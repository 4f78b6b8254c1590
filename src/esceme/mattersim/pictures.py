"""Camera images of the simulator, cut from equirectangular panoramas or skyboxes where there are any."""

from __future__ import annotations

import time
import warnings
from collections import OrderedDict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from esceme.errors import EscemeError
from esceme.perception.views import (
    IMAGE_SUFFIXES,
    STANDARD_VIEWS,
    PackedPanorama,
    cut_packed,
    pack_panorama,
    read_panorama,
    read_skybox,
    skybox_panorama,
)
from esceme.world.camera import Camera

MAX_CACHE_BYTES = 1 << 30
SKYBOX_FOLDER = "matterport_skybox_images"
LAYOUTS = (
    *(f"{{scan}}/{{viewpoint}}{suffix}" for suffix in IMAGE_SUFFIXES),
    *(f"{{scan}}_{{viewpoint}}{suffix}" for suffix in IMAGE_SUFFIXES),
)
"""Names of panorama files below a folder of pictures."""
ADVICE = (
    "give setDatasetPath a folder of panoramas <scan>/<viewpoint>.jpg (esceme synth writes them) or of "
    f"skyboxes <scan>/{SKYBOX_FOLDER}/<viewpoint>_skybox_small.jpg"
)
CALL_DEPTH = 5
"""Number of calls from a program's `state.rgb` to the warning, which names the program's line."""


class PictureFolder:
    """Folder of panoramas or skyboxes, each read at its first use."""

    def __init__(self, path: str, cache_size: int) -> None:
        """Use the folder `path`, and keep up to `cache_size` panoramas in memory (at most 1 GiB)."""
        self.path, self._cache_size = path, cache_size
        self._cache: OrderedDict[tuple[str, str, str, Camera], PackedPanorama | None] = OrderedDict()
        self._cached_bytes = 0
        self._warned: set[str] = set()
        self.num_frames = 0
        self.load_seconds = self.cut_seconds = 0.0

    def render(
        self,
        key: tuple[str, str],
        pose: tuple[NDArray[np.float64], float, float],
        vfov: float,
        out: NDArray[np.uint8],
    ) -> None:
        """Cut an image into `out` (H, W, 3), in the order blue, green, red.

        `key` is the scan and viewpoint; `pose` is the camera's pose in the scene (4, 4), its heading and its
        elevation in radians. Without a picture, or with a pose that is not finite, the image is black and a
        warning is shown once. Raises `ValueError` if a picture is damaged.
        """
        camera_pose, heading, elevation = pose
        camera = Camera(out.shape[1], out.shape[0], vfov)
        out[:] = 0
        if not out.size or not np.isfinite(heading + elevation):
            return
        begin = time.perf_counter()
        try:
            panorama = self._load(key, camera_pose, camera)
            loaded = time.perf_counter()
            self.load_seconds += loaded - begin
            if panorama is None:
                self._warn("rgb", f"{self.path}: pictures are missing, and rgb is black there; {ADVICE}")
                return
            view = (heading, elevation)
            images = cut_packed(panorama, camera, [view], cache=view in STANDARD_VIEWS)
        except EscemeError as error:
            raise ValueError(str(error)) from None
        out[:] = images[0, ..., ::-1]
        self.num_frames += 1
        self.cut_seconds += time.perf_counter() - loaded

    def _load(
        self, key: tuple[str, str], camera_pose: NDArray[np.float64], camera: Camera
    ) -> PackedPanorama | None:
        """Return the cached or newly read panorama of `key`, a (scan, viewpoint); None without a picture."""
        entry = (self.path, *key, camera)
        if entry in self._cache:
            self._cache.move_to_end(entry)
            return self._cache[entry]
        colours = self._read(*key, camera_pose)
        panorama = None if colours is None else pack_panorama(colours, camera)
        if panorama is not None:
            self._cache[entry] = panorama
            self._cached_bytes += panorama.words.nbytes
        while self._cache and (
            len(self._cache) > max(self._cache_size, 1) or self._cached_bytes > MAX_CACHE_BYTES
        ):
            oldest = self._cache.popitem(last=False)[1]
            self._cached_bytes -= 0 if oldest is None else oldest.words.nbytes
        return panorama

    def _read(self, scan: str, viewpoint: str, camera_pose: NDArray[np.float64]) -> NDArray[np.uint8] | None:
        """Return the panorama (H, 2H, 3) of a viewpoint; None if there is no picture."""
        root = Path(self.path)
        for folder in (root, root / "v1" / "scans"):
            for layout in LAYOUTS:
                file = folder / layout.format(scan=scan, viewpoint=viewpoint)
                if file.is_file():
                    return read_panorama(file)
            sky = folder / scan / SKYBOX_FOLDER
            strip = sky / f"{viewpoint}_skybox_small.jpg"
            faces = [sky / f"{viewpoint}_skybox{number}_sami.jpg" for number in range(6)]
            if strip.is_file():
                return skybox_panorama(read_skybox([strip]), camera_pose)
            if faces[0].is_file():
                return skybox_panorama(read_skybox(faces), camera_pose)
        return None

    def warn_about_depth(self) -> None:
        """Warn once that there are no depth images."""
        self._warn("depth", "esceme.mattersim has no depth images: depth is zero")

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(message, stacklevel=CALL_DEPTH)
