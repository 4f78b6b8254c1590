"""Encoders: the common contract, properties of the small encoder, and loading of networks."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn

from esceme.errors import CheckpointError, ConfigError, DataError
from esceme.perception.encoders import Encoder, NetworkEncoder, encode_panorama, load_weights, make_encoder
from esceme.perception.small_encoder import SmallEncoder
from esceme.perception.views import cut_views

Images = NDArray[np.uint8]


class MeanColour(nn.Module):
    """Linear layer on the mean colour."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert not self.training
        return self.layer(images.mean(dim=(2, 3)))


def make_network() -> NetworkEncoder:
    torch.manual_seed(0)
    return NetworkEncoder("means", MeanColour(), width=5, view_width=80, batch=3)


def room_views(count: int = 1) -> Images:
    """Views of grey walls and wooden floors with a little noise."""
    views = np.empty((count, 84, 112, 3))
    views[:, :50], views[:, 50:] = (212, 213, 216), (184, 148, 108)
    return np.clip(views + np.random.default_rng(0).normal(0, 2, views.shape), 0, 255).astype(np.uint8)


def with_square(colour: tuple[int, int, int], *, share: float, light: float = 1.0) -> Images:
    """A room view with a square of one colour that covers a share of it."""
    views, side = room_views(), round((share * 84 * 112) ** 0.5)
    views[:, 30 : 30 + side, 20 : 20 + side] = np.rint(np.array(colour) * light)
    return views


def random_images(*shape: int) -> Images:
    return np.random.default_rng(1).integers(0, 256, (*shape, 3), dtype=np.uint8)


@pytest.mark.parametrize("encoder", [SmallEncoder(), make_network()], ids=["small", "network"])
class TestEveryEncoder:
    def test_encodes_every_view_independently_and_deterministically(self, encoder: Encoder) -> None:
        views = random_images(5, 84, 112)
        features = encoder.encode(views)
        assert features.shape == (5, encoder.width) and features.dtype == np.float32
        assert np.isfinite(features).all() and (encoder.encode(views.copy()) == features).all()
        alone = np.concatenate([encoder.encode(view[None]) for view in views])
        np.testing.assert_allclose(features, alone, atol=1e-6)

    @pytest.mark.parametrize("colour", [0, 255])
    def test_black_and_white_give_finite_features(self, encoder: Encoder, colour: int) -> None:
        assert np.isfinite(encoder.encode(np.full((1, 84, 112, 3), colour, np.uint8))).all()

    def test_panorama_is_encoded_view_by_view(self, encoder: Encoder) -> None:
        panorama = random_images(64, 128)
        features = encode_panorama(encoder, panorama)
        views = cut_views(panorama, width=encoder.view_width)
        assert features.shape == (36, encoder.width)
        np.testing.assert_allclose(features[17], encoder.encode(views[17:18])[0], atol=1e-6)


# -- small ------------------------------------------------------------------------------------------------

SMALL = SmallEncoder()
TONES = SMALL.tone_weights.shape[0]
BLUE = (23, 52, 207)


def test_small_features_have_width_498_and_lie_between_0_and_1() -> None:
    features = SMALL.encode(random_images(4, 84, 112))
    assert features.shape[1] == SMALL.width == 498
    assert features.min() >= 0 and features.max() <= 1


def test_object_that_covers_one_hundredth_changes_a_tone_clearly() -> None:
    empty, with_object = SMALL.encode(np.concatenate([room_views(), with_square(BLUE, share=0.01)]))
    assert (with_object - empty)[:TONES].max() > 0.3


def test_tones_do_not_depend_on_light_but_brightness_does() -> None:
    bright, dark = (
        SMALL.encode(with_square((206, 66, 30), share=0.2, light=light))[0, :TONES] for light in (1.0, 0.6)
    )
    other = SMALL.encode(with_square((206, 120, 30), share=0.2))[0, :TONES]
    assert np.abs(bright - dark).max() < 0.5
    assert np.abs(bright - other).max() > 0.9
    black, white = SMALL.encode(np.stack([np.full((84, 112, 3), level, np.uint8) for level in (20, 235)]))
    assert np.abs(black - white)[:TONES].max() < 0.2
    assert np.abs(black - white)[TONES:].max() > 0.9


def test_mirrored_view_has_the_same_histograms_and_another_layout() -> None:
    views = with_square(BLUE, share=0.2)
    original, mirrored = SMALL.encode(np.concatenate([views, views[:, :, ::-1]]))
    assert (original[: TONES + 36] == mirrored[: TONES + 36]).all()
    assert np.abs(original - mirrored)[TONES + 36 :].max() > 0.1


def test_edge_features_distinguish_directions() -> None:
    stripes = np.zeros((1, 112, 112, 3), np.uint8)
    stripes[:, :, ::2] = 255
    upright = SMALL.encode(stripes)[0, -48:].reshape(12, 4)
    level = SMALL.encode(np.ascontiguousarray(stripes.swapaxes(1, 2)))[0, -48:].reshape(12, 4)
    assert (upright[:, 0] > 0.8).all() and (upright[:, 1] == 0).all()
    assert (level[:, 1] > 0.8).all() and (level[:, 0] == 0).all()


def test_histograms_and_layout_do_not_depend_on_the_image_size() -> None:
    views = with_square(BLUE, share=0.1)
    large = views.repeat(2, axis=1).repeat(2, axis=2)
    assert np.abs(SMALL.encode(views) - SMALL.encode(large))[0, : TONES + 36 + 36].max() < 1e-5


# -- networks ---------------------------------------------------------------------------------------------


def test_network_gets_the_normalised_centre_square() -> None:
    views = np.full((1, 48, 64, 3), 255, np.uint8)
    views[:, :, :8] = views[:, :, -8:] = 0  # outside the square
    images = NetworkEncoder("n", MeanColour(), width=5, size=24, crop=1.0).preprocess(views)
    assert images.shape == (1, 3, 24, 24)
    assert torch.allclose(images[..., 2:-2], torch.ones(1), atol=1e-4)


@pytest.mark.parametrize("wrapper", [None, "model", "state_dict"])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_are_loaded_from_either_format(tmp_path: Path, suffix: str, wrapper: str | None) -> None:
    torch.manual_seed(1)
    source, target, path = MeanColour(), MeanColour(), tmp_path / f"weights{suffix}"
    stored = source.state_dict() | {"head.weight": torch.zeros(2, 5)}
    if suffix == ".safetensors":
        save_file(stored, path)
    else:
        torch.save(stored if wrapper is None else {wrapper: stored}, path)
    load_weights(target, path)
    assert torch.equal(source.layer.weight, target.layer.weight)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"layer.weight": torch.zeros(5, 3)}, "parameter 'layer.bias' is missing;"),
        ({"blocks.0": torch.zeros(1)}, "'layer.weight' is missing and 2 more do not fit"),
        (
            {"layer.weight": torch.zeros(5, 3), "layer.bias": torch.zeros(4)},
            r"'layer.bias' has shape \(4,\), expected \(5,\)",
        ),
        ([1, 2], "holds a list"),
        ({"layer": MeanColour()}, "expected only tensors"),  # would run code
    ],
)
def test_weights_of_another_network_are_refused(tmp_path: Path, stored: object, message: str) -> None:
    torch.save(stored, tmp_path / "w.pth")
    with pytest.raises((DataError, CheckpointError), match=message):
        load_weights(MeanColour(), tmp_path / "w.pth")


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_missing_or_damaged_weights_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        load_weights(MeanColour(), tmp_path / name)
    (tmp_path / name).write_bytes(b"not weights at all")
    with pytest.raises(CheckpointError, match=f"{name}: (expected only|not a complete file of) tensors"):
        load_weights(MeanColour(), tmp_path / name)


def test_encoders_are_made_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_encoder("small").width == 498
    with pytest.raises(ConfigError, match="there are small, vit-b-16"):
        make_encoder("resnet")
    with pytest.raises(ConfigError, match="small has no weights"):
        make_encoder("small", Path("w.pth"))
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match=r"pip install 'esceme\[timm\]'"):
        make_encoder("vit-b-16", Path("w.pth"))


def test_vit_returns_the_cls_token_of_the_loaded_weights(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm", reason="timm is not installed", exc_type=ImportError)
    torch.manual_seed(0)
    source = timm.create_model("vit_base_patch16_224", pretrained=False).eval()
    save_file(source.state_dict(), tmp_path / "vit.safetensors")
    with pytest.raises(ConfigError, match="needs --weights"):
        make_encoder("vit-b-16")
    encoder = make_encoder("vit-b-16", tmp_path / "vit.safetensors")
    assert isinstance(encoder, NetworkEncoder)
    views = random_images(2, 120, 160)
    features = encoder.encode(views)
    with torch.inference_mode():
        tokens = source.forward_features(encoder.preprocess(views))
    assert (encoder.width, features.shape) == (768, (2, 768))
    np.testing.assert_allclose(features, tokens[:, 0].numpy(), atol=1e-4)
