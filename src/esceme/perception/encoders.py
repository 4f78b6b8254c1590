"""View encoders, which convert the pixels of a view to one feature vector.

The encoder `small` is fixed and fast and has no weights. The encoder `vit-b-16` is the network of the
published feature files; it needs the package `timm` and a file of weights. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from esceme.errors import ConfigError, DataError
from esceme.perception.small_encoder import SmallEncoder
from esceme.perception.views import ViewGrid, standard_camera

if TYPE_CHECKING:
    import torch
    from torch import nn


class Encoder(Protocol):
    """Interface of encoders, which convert view images to feature vectors."""

    @property
    def name(self) -> str:
        """Name of this encoder on the command line."""

    @property
    def width(self) -> int:
        """Number of features per view."""

    @property
    def view_width(self) -> int:
        """Width in pixels that view images should have."""

    def encode(self, views: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the features (N, width) of view images (N, h, w, 3)."""


def make_encoder(name: str, weights: Path | None = None) -> Encoder:
    """Return the encoder called `name`, a key of `ENCODERS`. `weights` is the file of its parameters.

    Raises `ConfigError` if the name is unknown, or if weights are missing or not needed.
    """
    if name not in ENCODERS:
        raise ConfigError(f"no encoder '{name}'; there are {', '.join(ENCODERS)}")
    return ENCODERS[name](weights)


def encode_panorama(
    encoder: Encoder, panorama: NDArray[np.uint8], grid: ViewGrid | None = None
) -> NDArray[np.float32]:
    """Return the features (N, width) of the views of a panorama (H, 2H, 3); by default of the 36 views."""
    grid = grid or ViewGrid(standard_camera(encoder.view_width))
    return encoder.encode(grid.cut(panorama))


class NetworkEncoder:
    """Encoder that applies a torch network to preprocessed view images.

    Preprocessing equals timm's preprocessing for evaluation, as in the published files. The shorter side is
    resized to `size / crop` pixels, the centre square of `size` pixels is cut out, and colours are normalised
    by `mean` and `std`.
    """

    def __init__(
        self,
        name: str,
        network: nn.Module,
        *,
        width: int,
        view_width: int = 640,
        size: int = 224,
        crop: float = 0.9,
        mean: tuple[float, float, float] = (0.5, 0.5, 0.5),
        std: tuple[float, float, float] = (0.5, 0.5, 0.5),
        batch: int = 12,
    ) -> None:
        """Wrap `network`, which maps images (N, 3, size, size) to features (N, width).

        The network encodes `batch` views at a time.
        """
        self.name, self.width, self.view_width = name, width, view_width
        self.network = network.eval()
        self.size, self.crop, self.mean, self.std, self.batch = size, crop, mean, std, batch

    def encode(self, views: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the features (N, width) of view images (N, h, w, 3)."""
        import torch

        starts = range(0, len(views), self.batch)
        with torch.inference_mode():
            features = [self.network(self.preprocess(views[start : start + self.batch])) for start in starts]
        return torch.cat(features).float().numpy()

    def preprocess(self, views: NDArray[np.uint8]) -> torch.Tensor:
        """Resize, crop and normalise images: (N, h, w, 3) -> (N, 3, size, size)."""
        import torch
        from torch.nn.functional import interpolate

        height, width = views.shape[1:3]
        scale = int(self.size / self.crop) / min(height, width)
        images = torch.from_numpy(views).permute(0, 3, 1, 2).float()
        sides = (int(height * scale + 1e-6), int(width * scale + 1e-6))
        images = interpolate(images, sides, mode="bicubic", antialias=True).clamp(0, 255) / 255
        top, left = ((side - self.size) // 2 for side in sides)
        images = images[:, :, top : top + self.size, left : left + self.size]
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (images - mean) / std


def load_vit(weights: Path | None) -> NetworkEncoder:
    """Return timm's ViT-B/16 with weights from a file. The features of a view are its last CLS token (768,).

    The file is a `.safetensors` or torch file with timm's parameter names. Parameters of a classifier head
    are ignored.
    """
    try:
        timm = import_module("timm")
    except ImportError as error:
        raise ConfigError(
            f"the encoder vit-b-16 needs timm ({error}): pip install 'esceme[timm]', "
            "with the torchvision that belongs to the installed torch"
        ) from None
    if weights is None:
        raise ConfigError("the encoder vit-b-16 needs --weights FILE; nothing is downloaded")
    network = timm.create_model("vit_base_patch16_224", pretrained=False, num_classes=0)
    load_weights(network, weights)
    config = network.pretrained_cfg
    mean, std = tuple(config["mean"]), tuple(config["std"])
    return NetworkEncoder(
        "vit-b-16", network, width=network.num_features, crop=config["crop_pct"], mean=mean, std=std
    )


def load_weights(network: nn.Module, path: Path) -> None:
    """Load parameters from a file into a network; raise `DataError` if names or shapes do not match."""
    stored = _read_weights(path)
    for wrapper in ("model", "state_dict"):
        stored = stored.get(wrapper, stored)
    stored = {name: value for name, value in stored.items() if not name.startswith("head.")}
    expected = network.state_dict()
    faults = [f"'{name}' is missing" for name in expected if name not in stored]
    faults += [f"'{name}' is unknown" for name in stored if name not in expected]
    faults += [
        f"'{name}' has shape {tuple(stored[name].shape)}, expected {tuple(parameter.shape)}"
        for name, parameter in expected.items()
        if name in stored and stored[name].shape != parameter.shape
    ]
    if faults:
        more = f" and {len(faults) - 1} more do not fit" if len(faults) > 1 else ""
        raise DataError(f"{path}: parameter {faults[0]}{more}; are these the weights of this network?")
    network.load_state_dict(stored)


def _read_weights(path: Path) -> dict[str, Any]:
    """Return a dict from parameter name to tensor, read from a `.safetensors` or torch file."""
    from esceme.torch_files import load_tensors  # imports torch

    stored = load_tensors(path)
    if not isinstance(stored, dict):
        raise DataError(f"{path}: holds a {type(stored).__name__}, expected parameters by name")
    return stored


def _make_small_encoder(weights: Path | None) -> SmallEncoder:
    if weights is not None:
        raise ConfigError(f"the encoder small has no weights; leave out {weights}")
    return SmallEncoder()


ENCODERS: Mapping[str, Callable[[Path | None], Encoder]] = {
    "small": _make_small_encoder,
    "vit-b-16": load_vit,
}
"""Encoder name -> function that returns the encoder, given a file of weights or None."""
