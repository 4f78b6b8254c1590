"""The 36 views: directions, image content, and malformed panoramas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from esceme.errors import ConfigError, DataError
from esceme.perception.views import (
    ViewGrid,
    cut_ids,
    cut_views,
    find_panoramas,
    pixel_directions,
    read_panorama,
    read_skybox,
    view_directions,
)
from esceme.world.camera import Camera
from esceme.world.geometry import VIEW_ELEVATIONS, VIEW_HEADINGS, VIEWS, wrap_angle

HEIGHT = 256
HEADING = (np.arange(2 * HEIGHT) + 0.5) / HEIGHT * np.pi - np.pi
ELEVATION = np.pi / 2 - (np.arange(HEIGHT) + 0.5) / HEIGHT * np.pi
CENTRE = (slice(None), slice(41, 43), slice(55, 57))
"""The four pixels around the middle of a view of 112 x 84."""


def compass(height: int = HEIGHT) -> NDArray[np.uint8]:
    """A panorama whose colours encode sine and cosine of the heading, and the elevation."""
    heading = (np.arange(2 * height) + 0.5) / height * np.pi - np.pi
    elevation = np.pi / 2 - (np.arange(height) + 0.5) / height * np.pi
    parts = np.broadcast_arrays(np.sin(heading), np.cos(heading), (elevation / (np.pi / 2))[:, None])
    return np.rint(np.stack(parts, axis=-1) * 127 + 128).astype(np.uint8)


def decoded(colours: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Heading and elevation encoded in colours of the compass."""
    east, north, up = np.moveaxis((colours.astype(np.float64) - 128) / 127, -1, 0)
    return np.arctan2(east, north), up * np.pi / 2


def disc(heading: float, elevation: float, *, radius: float) -> NDArray[np.uint8]:
    """A black panorama with a white disc in one direction; angles in degrees."""
    middle = np.radians(heading), np.radians(elevation)
    cosine = np.sin(ELEVATION[:, None]) * np.sin(middle[1]) + np.cos(ELEVATION[:, None]) * np.cos(
        middle[1]
    ) * np.cos(HEADING - middle[0])
    inside = cosine > np.cos(np.radians(radius))
    return np.repeat(inside[..., None], 3, axis=2).astype(np.uint8) * np.uint8(255)


@pytest.mark.parametrize("height", [64, 100, 256, 512, 1024])
def test_centre_of_a_view_has_its_heading_and_elevation(height: int) -> None:
    heading, elevation = decoded(cut_views(compass(height))[CENTRE].mean(axis=(1, 2)))
    assert np.abs(wrap_angle(heading - VIEW_HEADINGS)).max() < np.radians(1)
    assert np.abs(elevation - VIEW_ELEVATIONS).max() < np.radians(1)


@pytest.mark.parametrize("width", [40, 112, 320])
def test_pixels_have_the_computed_directions(width: int) -> None:
    seen = view_directions(width)
    heading, elevation = decoded(cut_views(compass(), width=width))
    assert np.abs(wrap_angle(heading - seen.heading)).max() < np.radians(1.5)
    assert np.abs(elevation - seen.elevation).max() < np.radians(1.5)


def test_field_of_view_is_the_simulators() -> None:
    seen = view_directions(640)
    heading, elevation = seen.heading[12, 240], seen.elevation[12, :, 320]
    assert np.degrees(np.ptp(heading)) == pytest.approx(2 * np.degrees(np.arctan(4 / 3 / 3**0.5)), abs=0.1)
    assert np.degrees(np.ptp(elevation)) == pytest.approx(60, abs=0.15)
    assert (np.diff(heading) > 0).all()  # clockwise to the right
    assert (np.diff(elevation) < 0).all()  # down to the bottom


@pytest.mark.parametrize("camera", [Camera(96, 32, 0.6), Camera(64, 64, 1.9), Camera(50, 81, 1.2)])
@pytest.mark.parametrize("view", [(0.3, 0.0), (3.1, 0.7), (-2.0, -1.2), (1.0, np.pi / 2)])
def test_any_camera_sees_the_computed_directions(camera: Camera, view: tuple[float, float]) -> None:
    seen = pixel_directions(camera, *view)
    (image,) = ViewGrid(camera, (view,)).cut(compass(512))
    heading, elevation = decoded(image)
    assert np.abs(elevation - seen.elevation).max() < np.radians(1.5)
    away = np.abs(seen.elevation) < np.radians(80)  # near the poles, a pixel has many headings
    assert np.abs(wrap_angle(heading - seen.heading))[away].max(initial=0) < np.radians(3)
    assert np.isfinite(seen.heading).all() and away.any()


def test_impossible_field_of_view_is_refused() -> None:
    for vfov in (0.0, -1.0, np.pi, np.nan):
        with pytest.raises(ConfigError, match="field of view"):
            pixel_directions(Camera(8, 6, vfov), 0.0, 0.0)


@pytest.mark.parametrize(("size", "faces"), [((64, 32), 1), ((64, 32), 6), ((8, 8), 1)])
def test_skybox_of_wrong_size_is_refused(size: tuple[int, int], faces: int, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(6 if faces == 1 else 1)]
    for path in paths:
        Image.new("RGB", size).save(path)
    with pytest.raises(DataError, match="squares side by side"):
        read_skybox(paths)


def test_faces_of_different_sizes_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(6)]
    for number, path in enumerate(paths):
        Image.new("RGB", (32 + number // 5, 32 + number // 5)).save(path)
    with pytest.raises(DataError, match="differs"):
        read_skybox(paths)


def test_left_is_left_and_up_is_up() -> None:
    left_of_east = cut_views(disc(75, 0, radius=4))[15].mean(axis=2)
    assert left_of_east[:, :56].any() and not left_of_east[:, 56:].any()
    above_south = cut_views(disc(180, 18, radius=4))[18].mean(axis=2)
    assert above_south[:42].any() and not above_south[42:].any()


def test_horizon_and_vertical_edges_are_straight_lines() -> None:
    sky = np.zeros((HEIGHT, 2 * HEIGHT), dtype=np.int16)
    sky[: HEIGHT // 2] = 7
    views = cut_ids(sky)
    assert (views[12:24, :42] == 7).all() and (views[12:24, 42:] == 0).all()
    # In views 30 degrees down the horizon is the upper edge, in views up the lower one.
    assert (views[:12] == 0).all() and (views[24:] == 7).all()
    east = np.broadcast_to(np.abs(HEADING - np.pi / 4) < np.pi / 4, (HEIGHT, 2 * HEIGHT))
    north, beside = cut_ids(east)[12], cut_ids(east)[13]
    assert (north[:, 56:]).all() and not north[:, :56].any()
    assert (beside == beside[:1]).all()


def test_neighbouring_views_agree_where_they_overlap() -> None:
    rng = np.random.default_rng(0)
    panorama = np.repeat(np.repeat(rng.integers(0, 256, (32, 64, 3), dtype=np.uint8), 16, axis=0), 16, axis=1)
    seen, views = view_directions(), cut_views(panorama).astype(np.int64)
    focal = 42 * 3**0.5
    for view in (12, 17, 23):  # the neighbour of 23 is 12, across the seam
        after = 12 + (view - 11) % 12
        offset = wrap_angle(seen.heading[view] - VIEW_HEADINGS[after])
        column = np.rint(np.tan(offset) * focal + 55.5)
        row = np.rint(41.5 - np.tan(seen.elevation[view]) / np.cos(offset) * focal)
        both = (np.abs(offset) < 1) & (column >= 0) & (column < 112) & (row >= 0) & (row < 84)
        difference = np.abs(views[view][both] - views[after][row[both].astype(int), column[both].astype(int)])
        assert both.mean() > 0.4
        assert np.median(difference) < 3
    assert np.median(np.abs(views[12] - views[14])) > 30  # other views differ


def test_constant_colour_is_preserved_and_fine_patterns_are_averaged() -> None:
    for height, width in ((64, 112), (512, 112), (1024, 40), (1024, 112), (256, 224)):
        panorama = np.broadcast_to(np.array([255, 17, 0], np.uint8), (height, 2 * height, 3))
        assert (cut_views(panorama, width=width) == [255, 17, 0]).all()
    checks = np.indices((1024, 2048)).sum(axis=0) % 2 * 255
    assert cut_views(np.repeat(checks[..., None], 3, axis=2).astype(np.uint8)).std() < 8


def test_ids_are_never_blended_and_lie_where_colours_do() -> None:
    ids = np.random.default_rng(1).choice(np.array([-1, 5, 900], dtype=np.int16), (HEIGHT, 2 * HEIGHT))
    views = cut_ids(ids)
    assert views.shape == (VIEWS, 84, 112) and views.dtype == np.int16
    assert set(np.unique(views)) == {-1, 5, 900}
    white = disc(100, -20, radius=12)
    inside, colours = cut_ids(white[..., 0] > 0), cut_views(white)[..., 0]
    assert (colours[inside] > 100).mean() > 0.98
    assert (colours[~inside] < 155).mean() > 0.999


@pytest.mark.parametrize("shape", [(64, 64, 3), (16, 32, 3), (64, 128), (64, 128, 4)])
def test_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="expected colours|twice as wide as high"):
        cut_views(np.zeros(shape, np.uint8))


@pytest.mark.parametrize("width", [0, 2, 113, -4])
def test_width_that_is_no_multiple_of_four_is_refused(width: int) -> None:
    with pytest.raises(ConfigError, match="multiple of 4"):
        cut_ids(np.zeros((64, 128)), width=width)


def save(path: Path, image: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def test_panoramas_are_found_by_both_naming_schemes(tmp_path: Path) -> None:
    for name in ("house/b.jpg", "house/a.jpeg", "cabin_c.png"):
        save(tmp_path / name, compass(64))
    (tmp_path / "notes.txt").write_text("no picture")
    names = {key: path.name for key, path in find_panoramas(tmp_path).items()}
    assert names == {"house_a": "a.jpeg", "house_b": "b.jpg", "cabin_c": "cabin_c.png"}


def test_panorama_is_read_as_saved_and_grey_gets_three_channels(tmp_path: Path) -> None:
    save(tmp_path / "a_b.png", compass(64))
    assert (read_panorama(tmp_path / "a_b.png") == compass(64)).all()
    save(tmp_path / "a_b.png", compass(64)[..., 0])
    assert (read_panorama(tmp_path / "a_b.png") == compass(64)[..., :1]).all()


def test_errors_name_the_faulty_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: no such folder"):
        find_panoramas(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no pictures"):
        find_panoramas(tmp_path)
    save(tmp_path / "h_a.jpg", compass(64))
    save(tmp_path / "h/a.jpg", compass(64))
    with pytest.raises(DataError, match="'h_a' has another picture"):
        find_panoramas(tmp_path)
    save(tmp_path / "odd/alone.jpg", compass(64)[:, :100])
    with pytest.raises(DataError, match=r"alone\.jpg: a picture of 100 x 64 pixels"):
        read_panorama(tmp_path / "odd/alone.jpg")
    with pytest.raises(DataError, match="expected '<scene>_<viewpoint>'"):
        find_panoramas(tmp_path / "odd")
    whole = (tmp_path / "h_a.jpg").read_bytes()
    (tmp_path / "h_a.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"h_a\.jpg: not a whole picture"):
        read_panorama(tmp_path / "h_a.jpg")


def test_size_of_a_picture_is_checked_before_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (9000, 4500)).save(tmp_path / "bomb.png")
    Image.new("RGB", (9000, 10)).save(tmp_path / "wide.png")
    monkeypatch.setattr(Image.Image, "convert", lambda *arguments: pytest.fail("decoded"))
    with pytest.raises(DataError, match=r"bomb\.png: 9000 x 4500 pixels are more than 64 times its size"):
        read_panorama(tmp_path / "bomb.png")
    with pytest.raises(DataError, match=r"wide\.png: a picture of 9000 x 10 pixels"):
        read_panorama(tmp_path / "wide.png")


def test_plain_picture_of_usual_size_is_read(tmp_path: Path) -> None:
    Image.new("RGB", (4096, 2048)).save(tmp_path / "plain.png")
    assert read_panorama(tmp_path / "plain.png").shape == (2048, 4096, 3)


@pytest.mark.parametrize("kind", ["TIFF", "EPS", "GIF"])
def test_picture_of_another_format_is_refused(tmp_path: Path, kind: str) -> None:
    Image.fromarray(compass(64)).save(tmp_path / "a.jpg", kind)
    with pytest.raises(DataError, match=r"a\.jpg: not a whole picture"):
        read_panorama(tmp_path / "a.jpg")
