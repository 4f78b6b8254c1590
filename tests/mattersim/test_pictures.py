"""Images of the simulator: from panoramas and skyboxes, and without pictures."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from esceme.mattersim import SimState, Simulator
from esceme.perception.views import cut_views, read_panorama, skybox_panorama
from esceme.synth import WorldConfig, embedded_world
from esceme.world.graph import read_scenes

WIDTH, HEIGHT = 112, 84


@pytest.fixture(scope="module")
def world() -> Path:
    return embedded_world(WorldConfig("tiny"))


@pytest.fixture(scope="module")
def start(world: Path) -> tuple[str, str]:
    scan, graph = next(iter(read_scenes(world / "connectivity").items()))
    return scan, graph.viewpoints[0]


def simulator_with(
    pictures: Path, connectivity: Path, *, scalar: bool = False, discretized: bool = True
) -> Simulator:
    simulator = Simulator()
    simulator.setNavGraphPath(str(connectivity))
    simulator.setDatasetPath(str(pictures))
    simulator.setCameraResolution(WIDTH, HEIGHT)
    simulator.setCameraVFOV(math.radians(60))
    simulator.setDiscretizedViewingAngles(discretized)
    simulator.setDepthEnabled(True)
    if scalar:
        simulator.init()
    else:
        simulator.initialize()
    return simulator


def state_of(simulator: Simulator) -> SimState:
    found = simulator.getState()
    return found[0] if isinstance(found, list) else found


# -- panoramas -------------------------------------------------------------------------------------------


def test_images_are_the_views_of_the_panorama(world: Path, start: tuple[str, str]) -> None:
    scan, viewpoint = start
    views = cut_views(read_panorama(world / "panoramas" / scan / f"{viewpoint}.jpg"), width=WIDTH)
    simulator = simulator_with(world / "panoramas", world / "connectivity")
    simulator.newEpisode([scan], [viewpoint], [0.0], [math.radians(-30)])
    state = state_of(simulator)
    for view in range(36):
        assert state.viewIndex == view
        assert (np.array(state.rgb) == views[view][..., ::-1]).all()  # blue first
        simulator.makeAction([0], [1], [int(view % 12 == 11)])
    assert "Rendered 36 frames" in simulator.timingInfo()


def test_moving_changes_the_image_and_turning_shifts_it(world: Path, start: tuple[str, str]) -> None:
    simulator = simulator_with(world / "panoramas", world / "connectivity", discretized=False)
    simulator.newEpisode([start[0]], [start[1]], [1.0], [0.0])
    state = state_of(simulator)
    before = np.array(state.rgb).astype(int)
    simulator.makeAction([0], [1e-9], [0.0])
    assert (np.array(state.rgb) == before).mean() > 0.99
    simulator.makeAction([0], [0.0], [0.1])  # up: the image moves down
    raised = np.array(state.rgb).astype(int)
    shift = round(math.tan(0.1) * HEIGHT / 2 / math.tan(math.radians(30)))
    middle = slice(WIDTH // 2 - 3, WIDTH // 2 + 3)
    assert np.abs(raised[shift:, middle] - before[:-shift, middle]).mean() < np.abs(raised - before).mean()


def test_snapshots_keep_their_image(world: Path, start: tuple[str, str]) -> None:
    simulator = simulator_with(world / "panoramas", world / "connectivity", scalar=True)
    simulator.newEpisode(*start, 0.0, 0.0)
    first = state_of(simulator)
    simulator.makeAction(0, 1, 0)
    second = state_of(simulator)
    views = cut_views(read_panorama(world / "panoramas" / start[0] / f"{start[1]}.jpg"), width=WIDTH)
    assert (np.array(second.rgb) == views[13][..., ::-1]).all()
    assert (np.array(first.rgb) == views[12][..., ::-1]).all()


# -- skyboxes --------------------------------------------------------------------------------------------


def marked_faces(size: int = 64) -> NDArray[np.uint8]:
    """Six faces: red is the number of the face, green grows with the column and blue with the row."""
    faces = np.zeros((6, size, size, 3), np.uint8)
    faces[..., 0] = 40 * np.arange(6)[:, None, None]
    faces[..., 1] = np.linspace(0, 255, size)[None, None, :]
    faces[..., 2] = np.linspace(0, 255, size)[None, :, None]
    return faces


def test_faces_of_a_skybox_surround_the_camera() -> None:
    upright = np.array([[1.0, 0, 0, 0], [0, 0, 1, 0], [0, -1, 0, 0], [0, 0, 0, 1]])
    panorama = skybox_panorama(marked_faces(), upright).astype(int)
    assert panorama.shape == (128, 256, 3)
    row = panorama[64]
    # The middle is forward (3), then right (4), back (1) and left (2); images are not mirrored.
    assert [row[column, 0] // 40 for column in (128, 192, 0, 64)] == [3, 4, 1, 2]
    assert (np.diff(row[100:156, 1]) >= 0).all()
    assert (np.diff(panorama[48:80, 128, 2]) >= 0).all()
    assert (panorama[0, :, 0] == 0).all() and (panorama[-1, :, 0] == 200).all()
    # Up continues forward at its upper edge, down at its lower edge.
    edges = [row for row in range(127) if panorama[row, 128, 0] != panorama[row + 1, 128, 0]]
    assert len(edges) == 2
    assert panorama[edges[0], 128, 2] < 8 and panorama[edges[1] + 1, 128, 2] > 247


def test_skybox_turns_with_the_pose() -> None:
    east = np.array([[0.0, 0, 1, 5], [-1, 0, 0, 6], [0, -1, 0, 7], [0, 0, 0, 1]])  # forward is +x
    panorama = skybox_panorama(marked_faces(), east).astype(int)
    assert [panorama[64, column, 0] // 40 for column in (192, 0, 64, 128)] == [3, 4, 1, 2]


@pytest.mark.parametrize("layout", ["strip", "faces"])
def test_skyboxes_of_matterport_are_found(layout: str, connectivity: Path, tmp_path: Path) -> None:
    scan, graph = next(iter(read_scenes(connectivity).items()))
    viewpoint, pose = graph.viewpoints[0], graph.poses[graph.record_indices[0]]
    folder = tmp_path / "v1" / "scans" / scan / "matterport_skybox_images"
    folder.mkdir(parents=True)
    faces = np.repeat(np.array([10, 60, 110, 160, 210, 250], np.uint8), 32 * 32 * 3).reshape(6, 32, 32, 3)
    if layout == "strip":
        strip = Image.fromarray(np.concatenate(faces, axis=1))
        strip.save(folder / f"{viewpoint}_skybox_small.jpg", quality=95)
    else:
        for number, face in enumerate(faces):
            Image.fromarray(face).save(folder / f"{viewpoint}_skybox{number}_sami.jpg", quality=95)
    simulator = simulator_with(tmp_path, connectivity, scalar=True, discretized=False)
    forward = math.atan2(pose[0, 2], pose[1, 2])
    for quarter, colour in enumerate([160, 210, 60, 110]):  # forward, right, back, left
        simulator.newEpisode(scan, viewpoint, forward + quarter * math.pi / 2, 0.0)
        image = np.array(state_of(simulator).rgb)
        assert abs(int(image[HEIGHT // 2, WIDTH // 2].mean()) - colour) < 8


# -- without pictures ------------------------------------------------------------------------------------


def test_missing_pictures_are_black_and_warn_once(
    world: Path, start: tuple[str, str], tmp_path: Path
) -> None:
    simulator = simulator_with(tmp_path, world / "connectivity")
    simulator.newEpisode([start[0]], [start[1]], [0.0], [0.0])
    state = state_of(simulator)
    with pytest.warns(UserWarning, match="pictures are missing.*give setDatasetPath") as caught:
        assert not np.array(state.rgb).any()
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="no depth"):
        depth = np.array(state.depth)
    assert (depth.shape, depth.dtype, depth.any()) == ((HEIGHT, WIDTH, 1), np.uint16, False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulator.makeAction([0], [1], [0])
        assert np.array(state.rgb).shape == (HEIGHT, WIDTH, 3)
        assert not np.array(state.depth).any()


def test_rendering_that_is_disabled_does_not_warn(world: Path, start: tuple[str, str]) -> None:
    simulator = Simulator()
    simulator.setNavGraphPath(str(world / "connectivity"))
    simulator.setRenderingEnabled(False)
    simulator.setDepthEnabled(True)
    simulator.newEpisode([start[0]], [start[1]], [0.0], [0.0])
    state = state_of(simulator)
    assert np.array(state.rgb).shape == (240, 320, 3) and not np.array(state.rgb).any()
    np.asarray(state.rgb)[0, 0] = 9
    simulator.makeAction([0], [0], [0])
    assert np.array(state.rgb)[0, 0, 0] == 9


@pytest.mark.parametrize(
    ("content", "message"), [(b"no picture", "not a whole picture"), (None, "twice as wide as high")]
)
def test_damaged_pictures_are_errors(
    content: bytes | None, message: str, world: Path, start: tuple[str, str], tmp_path: Path
) -> None:
    file = tmp_path / start[0] / f"{start[1]}.png"
    file.parent.mkdir()
    if content is None:
        Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(file)
    else:
        file.write_bytes(content)
    simulator = simulator_with(tmp_path, world / "connectivity")
    simulator.newEpisode([start[0]], [start[1]], [0.0], [0.0])
    with pytest.raises(ValueError, match=message):
        _ = state_of(simulator).rgb


def test_impossible_fields_of_view_are_errors_of_images_only(world: Path, start: tuple[str, str]) -> None:
    simulator = simulator_with(world / "panoramas", world / "connectivity")
    simulator.setCameraVFOV(4.0)
    simulator.newEpisode([start[0]], [start[1]], [0.0], [0.0])
    assert state_of(simulator).navigableLocations
    with pytest.raises(ValueError, match="a field of view of 229"):
        _ = state_of(simulator).rgb
