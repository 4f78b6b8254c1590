"""Encoders: a view's pixels in, one vector out, and nothing but pixels is seen.

`small` is fixed, quick and needs no weights. `vit-b-16` is the network of the published feature files; it
needs `timm` and a file of weights, and nothing is ever downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from esceme.errors import ConfigError
from esceme.perception.network import load_vit
from esceme.perception.small import Small
from esceme.perception.views import cut_views


class Encoder(Protocol):
    """What turns views into features."""

    @property
    def name(self) -> str:
        """What it is called on the command line."""

    @property
    def width(self) -> int:
        """How many numbers describe a view."""

    @property
    def view_width(self) -> int:
        """How many pixels across it wants a view to be cut."""

    def encode(self, views: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Features (N, width) of pictures (N, h, w, 3)."""


def make_encoder(name: str, weights: Path | None = None) -> Encoder:
    """An encoder by its name in `ENCODERS`; `weights` is the file of one that has learned."""
    if name not in ENCODERS:
        raise ConfigError(f"no encoder '{name}'; there are {', '.join(ENCODERS)}")
    return ENCODERS[name](weights)


def encode_panorama(encoder: Encoder, picture: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The features of a viewpoint, (36, width), from its panorama (H, 2H, 3)."""
    return encoder.encode(cut_views(picture, width=encoder.view_width))


def _small(weights: Path | None) -> Small:
    if weights is not None:
        raise ConfigError(f"the encoder small has no weights; leave out {weights}")
    return Small()


ENCODERS: Mapping[str, Callable[[Path | None], Encoder]] = {"small": _small, "vit-b-16": load_vit}
"""Encoders by name; each is made from a file of weights, or from none."""
