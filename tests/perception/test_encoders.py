"""Encoders: one contract for all, what the small one sees, and how networks are fed and filled."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn

from esceme.errors import ConfigError, DataError
from esceme.perception.encoders import (
    ENCODERS,
    Encoder,
    NetworkEncoder,
    encode_panorama,
    load_weights,
    make_encoder,
)
from esceme.perception.small_encoder import SmallEncoder
from esceme.perception.views import cut_views

Pictures = NDArray[np.uint8]


class Means(nn.Module):
    """The smallest network of the right kind: a linear layer on the mean colour."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 5)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        assert not self.training
        return self.layer(pictures.mean(dim=(2, 3)))


def network() -> NetworkEncoder:
    torch.manual_seed(0)
    return NetworkEncoder("means", Means(), width=5, view_width=80, batch=3)


def room(seed: int = 0, *, count: int = 1) -> Pictures:
    """Views of grey walls and wooden floors, with a little noise."""
    rng = np.random.default_rng(seed)
    views = np.empty((count, 84, 112, 3))
    views[:, :50] = (212, 213, 216)
    views[:, 50:] = (184, 148, 108)
    return np.clip(views + rng.normal(0, 2, views.shape), 0, 255).astype(np.uint8)


def with_thing(
    views: Pictures, colour: tuple[int, int, int], *, share: float, light: float = 1.0
) -> Pictures:
    """The same views with a square of one colour that fills a share of them."""
    side = round((share * 84 * 112) ** 0.5)
    views = views.copy()
    views[:, 30 : 30 + side, 20 : 20 + side] = np.rint(np.array(colour) * light)
    return views


@pytest.mark.parametrize("encoder", [SmallEncoder(), network()], ids=["small", "network"])
class TestEveryEncoder:
    def test_gives_one_finite_vector_for_a_view(self, encoder: Encoder) -> None:
        features = encoder.encode(np.random.default_rng(0).integers(0, 256, (7, 84, 112, 3), dtype=np.uint8))
        assert features.shape == (7, encoder.width)
        assert features.dtype == np.float32
        assert np.isfinite(features).all()

    def test_sees_every_view_by_itself(self, encoder: Encoder) -> None:
        views = np.random.default_rng(1).integers(0, 256, (5, 84, 112, 3), dtype=np.uint8)
        together = encoder.encode(views)
        alone = np.concatenate([encoder.encode(view[None]) for view in views])
        np.testing.assert_allclose(together, alone, atol=1e-6)

    def test_gives_the_same_for_the_same(self, encoder: Encoder) -> None:
        views = room(count=2)
        assert (encoder.encode(views) == encoder.encode(views.copy())).all()

    @pytest.mark.parametrize("colour", [0, 255])
    def test_bears_black_and_white(self, encoder: Encoder, colour: int) -> None:
        assert np.isfinite(encoder.encode(np.full((1, 84, 112, 3), colour, np.uint8))).all()

    def test_describes_a_panorama_view_by_view(self, encoder: Encoder) -> None:
        picture = np.random.default_rng(2).integers(0, 256, (64, 128, 3), dtype=np.uint8)
        features = encode_panorama(encoder, picture)
        views = cut_views(picture, width=encoder.view_width)
        assert features.shape == (36, encoder.width)
        np.testing.assert_allclose(features[17], encoder.encode(views[17:18])[0], atol=1e-6)


# -- small ------------------------------------------------------------------------------------------------

TONES = SmallEncoder().tone_weights.shape[0]


def test_the_small_encoder_has_the_width_it_says_and_stays_between_0_and_1() -> None:
    features = SmallEncoder().encode(
        np.random.default_rng(3).integers(0, 256, (4, 84, 112, 3), dtype=np.uint8)
    )
    assert features.shape[1] == SmallEncoder().width == 498
    assert features.min() >= 0
    assert features.max() <= 1


def test_one_hundredth_of_a_view_is_plainly_seen() -> None:
    views = room()
    empty, furnished = SmallEncoder().encode(
        np.concatenate([views, with_thing(views, (23, 52, 207), share=0.01)])
    )
    assert (furnished - empty)[:TONES].max() > 0.3


def test_tones_stay_when_the_light_goes() -> None:
    shares = [
        SmallEncoder().encode(with_thing(room(), (206, 66, 30), share=0.2, light=light))[0, :TONES]
        for light in (1.0, 0.6)
    ]
    other = SmallEncoder().encode(with_thing(room(), (206, 120, 30), share=0.2))[0, :TONES]
    assert np.abs(shares[0] - shares[1]).max() < 0.5
    assert np.abs(shares[0] - other).max() > 0.9


def test_brightness_is_seen_apart_from_tones() -> None:
    black, white = SmallEncoder().encode(
        np.stack([np.full((84, 112, 3), level, np.uint8) for level in (20, 235)])
    )
    assert np.abs(black - white)[:TONES].max() < 0.2
    assert np.abs(black - white)[TONES:].max() > 0.9


def test_a_mirrored_view_has_the_same_colours_in_another_layout() -> None:
    views = with_thing(room(), (23, 52, 207), share=0.2)
    here, mirrored = SmallEncoder().encode(np.concatenate([views, views[:, :, ::-1]]))
    assert (here[: TONES + 36] == mirrored[: TONES + 36]).all()
    assert np.abs(here - mirrored)[TONES + 36 :].max() > 0.1


def test_edges_know_their_direction() -> None:
    stripes = np.zeros((1, 84, 112, 3), np.uint8)
    stripes[:, :, ::2] = 255
    upright = SmallEncoder().encode(stripes)[0, -48:].reshape(12, 4)
    level = (
        SmallEncoder().encode(np.ascontiguousarray(np.zeros_like(stripes) + _rows()))[0, -48:].reshape(12, 4)
    )
    assert (upright[:, 0] > 0.8).all() and (upright[:, 1] == 0).all()
    assert (level[:, 1] > 0.8).all() and (level[:, 0] == 0).all()


def _rows() -> Pictures:
    return (np.arange(84) % 2 * 255).astype(np.uint8)[None, :, None, None]


def test_views_of_any_size_have_about_the_same_features() -> None:
    views = with_thing(room(), (23, 52, 207), share=0.1)
    large = views.repeat(2, axis=1).repeat(2, axis=2)
    small_one, large_one = SmallEncoder().encode(views), SmallEncoder().encode(large)
    assert np.abs(small_one - large_one)[0, : TONES + 36 + 36].max() < 1e-5


# -- networks ---------------------------------------------------------------------------------------------


def test_a_network_sees_the_middle_square_with_its_mean_taken_off() -> None:
    views = np.full((1, 48, 64, 3), 255, np.uint8)
    views[:, :, :8] = views[:, :, -8:] = 0  # the sides, outside the square
    pictures = NetworkEncoder("n", Means(), width=5, size=24, crop=1.0).prepare(views)
    assert pictures.shape == (1, 3, 24, 24)
    assert torch.allclose(pictures[..., 2:-2], torch.ones(1), atol=1e-4)


def test_a_network_is_not_left_in_training_and_keeps_no_gradients() -> None:
    encoder = network()
    encoder.encode(room())
    assert all(parameter.grad is None for parameter in encoder.network.parameters())


@pytest.mark.parametrize("wrapper", [None, "model", "state_dict"])
@pytest.mark.parametrize("ending", [".safetensors", ".pth"])
def test_weights_come_from_either_kind_of_file(tmp_path: Path, ending: str, wrapper: str | None) -> None:
    torch.manual_seed(1)
    source, target, path = Means(), Means(), tmp_path / f"weights{ending}"
    stored = source.state_dict() | {"head.weight": torch.zeros(2, 5)}
    if ending == ".safetensors":
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
    ],
)
def test_weights_of_another_network_are_refused(tmp_path: Path, stored: object, message: str) -> None:
    torch.save(stored, tmp_path / "w.pth")
    with pytest.raises(DataError, match=message):
        load_weights(Means(), tmp_path / "w.pth")


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_a_file_that_holds_no_weights_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="no such file"):
        load_weights(Means(), tmp_path / name)
    (tmp_path / name).write_bytes(b"not weights at all")
    with pytest.raises(DataError, match="not a file of weights"):
        load_weights(Means(), tmp_path / name)


def test_a_torch_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    torch.save({"layer": Means()}, tmp_path / "w.pth")
    with pytest.raises(DataError, match="not a file of weights"):
        load_weights(Means(), tmp_path / "w.pth")


def test_encoders_are_made_by_name() -> None:
    assert make_encoder("small").width == 498
    with pytest.raises(ConfigError, match="there are small, vit-b-16"):
        make_encoder("resnet")
    with pytest.raises(ConfigError, match="small has no weights"):
        make_encoder("small", Path("w.pth"))
    assert list(ENCODERS) == ["small", "vit-b-16"]


def test_without_timm_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match=r"pip install 'esceme\[timm\]'"):
        make_encoder("vit-b-16", Path("w.pth"))


def test_vit_gives_the_cls_token_of_its_own_weights(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm", reason="timm is not installed", exc_type=ImportError)
    torch.manual_seed(0)
    source = timm.create_model("vit_base_patch16_224", pretrained=False).eval()
    save_file(source.state_dict(), tmp_path / "vit.safetensors")
    with pytest.raises(ConfigError, match="needs --weights"):
        make_encoder("vit-b-16")
    encoder = make_encoder("vit-b-16", tmp_path / "vit.safetensors")
    views = np.random.default_rng(0).integers(0, 256, (2, 120, 160, 3), dtype=np.uint8)
    features = encoder.encode(views)
    assert isinstance(encoder, NetworkEncoder)
    with torch.inference_mode():
        tokens = source.forward_features(encoder.prepare(views))
    assert (encoder.width, features.shape) == (768, (2, 768))
    np.testing.assert_allclose(features, tokens[:, 0].numpy(), atol=1e-4)
