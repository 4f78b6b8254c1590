"""Torch networks as encoders, and ViT-B/16 of timm with weights from a file."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from esceme.errors import ConfigError, DataError

if TYPE_CHECKING:
    import torch
    from torch import nn


class Network:
    """A torch network as an encoder: pictures (N, 3, size, size) in, features (N, width) out.

    Views are treated as in timm's own evaluation, which the published files follow: the shorter side becomes
    `size / crop` pixels, the middle square is cut out, colours lose their `mean` and are divided by `std`.
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
        """Serve `network`, which gives `width` numbers for a picture; `batch` views are seen at a time."""
        self.name, self.width, self.view_width = name, width, view_width
        self.network = network.eval()
        self.size, self.crop, self.mean, self.std, self.batch = size, crop, mean, std, batch

    def encode(self, views: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Features (N, width) of pictures (N, h, w, 3)."""
        import torch

        batches = range(0, len(views), self.batch)
        with torch.inference_mode():
            parts = [self.network(self.prepare(views[start : start + self.batch])) for start in batches]
        return torch.cat(parts).float().numpy()

    def prepare(self, views: NDArray[np.uint8]) -> torch.Tensor:
        """Pictures as the network wants them: (N, h, w, 3) -> (N, 3, size, size)."""
        import torch
        from torch.nn.functional import interpolate

        height, width = views.shape[1:3]
        scale = int(self.size / self.crop) / min(height, width)
        pictures = torch.from_numpy(views).permute(0, 3, 1, 2).float()
        sides = (int(height * scale + 1e-6), int(width * scale + 1e-6))
        pictures = interpolate(pictures, sides, mode="bicubic", antialias=True).clamp(0, 255) / 255
        top, left = ((side - self.size) // 2 for side in sides)
        pictures = pictures[:, :, top : top + self.size, left : left + self.size]
        mean, std = (torch.tensor(each)[:, None, None] for each in (self.mean, self.std))
        return (pictures - mean) / std


def load_vit(weights: Path | None) -> Network:
    """ViT-B/16 of timm with weights from a file; a view's feature is its last CLS token, normed, (768,).

    The file holds the network's parameters under timm's names, as `.safetensors` or as a torch file; a
    classifier's head among them is left out.
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
    how = network.pretrained_cfg
    return Network(
        "vit-b-16",
        network,
        width=network.num_features,
        crop=how["crop_pct"],
        mean=tuple(how["mean"]),
        std=tuple(how["std"]),
    )


def load_weights(network: nn.Module, path: Path) -> None:
    """Fill a network from a file of parameters; raises `DataError` where names or shapes do not fit."""
    stored = _read_weights(path)
    for wrapper in ("model", "state_dict"):
        stored = stored.get(wrapper, stored)
    stored = {name: value for name, value in stored.items() if not name.startswith("head.")}
    wanted = network.state_dict()
    odd = [
        *(f"'{name}' is missing" for name in wanted if name not in stored),
        *(f"'{name}' is unknown" for name in stored if name not in wanted),
        *(
            f"'{name}' has shape {tuple(stored[name].shape)}, expected {tuple(wanted[name].shape)}"
            for name in wanted
            if name in stored and stored[name].shape != wanted[name].shape
        ),
    ]
    if odd:
        more = f" and {len(odd) - 1} more do not fit" if len(odd) > 1 else ""
        raise DataError(f"{path}: parameter {odd[0]}{more}; are these the weights of this network?")
    network.load_state_dict(stored)


def _read_weights(path: Path) -> dict[str, Any]:
    """A file's parameters by name; a torch file is read as tensors alone, no code in it is run."""
    import pickle

    import safetensors
    import torch
    from safetensors.torch import load_file

    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, safetensors.SafetensorError) as error:
        raise DataError(f"{path}: not a file of weights ({str(error).splitlines()[0]})") from None
    if not isinstance(stored, dict):
        raise DataError(f"{path}: holds a {type(stored).__name__}, expected parameters by name")
    return stored
