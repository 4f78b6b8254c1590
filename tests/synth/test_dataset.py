"""The embedded world as a folder: valid content, same bytes however generated, all or nothing."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from esceme import __version__
from esceme.cli.features_command import extract
from esceme.errors import ConfigError, DataError
from esceme.files import read_json
from esceme.perception.views import find_panoramas, read_panorama
from esceme.synth import dataset
from esceme.synth.dataset import (
    WORLD_PRESETS,
    ProgressBar,
    WorldConfig,
    WorldPreset,
    cache_folder,
    embedded_world,
    write_world,
)
from esceme.synth.house import build_graph, generate_house
from esceme.tasks.catalogue import TASKS
from esceme.tasks.folder import DataFolder
from esceme.tasks.folder_check import check_folder
from esceme.tasks.manifest import check_manifest
from esceme.tasks.text import WordPiece
from esceme.world import Atlas, open_features, read_scenes

pytestmark = pytest.mark.long


@pytest.fixture
def small_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> WorldConfig:
    """A world smaller than the tiny one, with its own cache."""
    houses = {"train": 1, "val_unseen": 1, "test": 1}
    paths = {"train": 10, "val_seen": 4, "val_unseen": 10, "test": 4}
    monkeypatch.setitem(WORLD_PRESETS, "tiny", WorldPreset(houses, paths, 2, 64))
    monkeypatch.setenv("ESCEME_CACHE", str(tmp_path / "cache"))
    return WorldConfig("tiny", seed=3)


@pytest.fixture
def stub_config(small_config: WorldConfig, monkeypatch: pytest.MonkeyPatch) -> WorldConfig:
    """A config whose world is generated at once and has one file."""

    def generate(root: Path, config: WorldConfig, processes: int, progress: ProgressBar) -> None:
        for number in progress(range(3), "houses"):
            (root / "world.json").write_text(f"{number}")

    monkeypatch.setattr(dataset, "_generate_world", generate)
    return small_config


def manifest(root: Path) -> bytes:
    """The manifest, after checking that it lists every file correctly."""
    assert list(check_manifest(root)) == []
    listed = read_json(root / "manifest.json", dict[str, object])["files"]
    files = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    assert isinstance(listed, dict) and set(listed) == files - {"manifest.json"}
    return (root / "manifest.json").read_bytes()


def entries(folder: Path) -> list[str]:
    """Everything below a folder, including hidden files."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


# -- content ---------------------------------------------------------------------------------------------


def test_check_and_manifest_accept_every_file(world: Path) -> None:
    assert manifest(world)
    findings = check_folder(world, deep=True)
    assert [finding for finding in findings if finding.level == "fault"] == []
    accepted = {finding.file for finding in findings if finding.level == "ok"}
    expected = {"connectivity", "features/small.hdf5", "tours/tours_iVLN.json", "tokenizer/vocab.txt"}
    expected |= {"rooms/viewpoint_rooms.json", "objects/reverie_objects.json.gz"}
    for task in ("r2r", "r4r", "rxr", "cvdn", "reverie"):
        expected |= {file.relative_to(world).as_posix() for file in DataFolder(world).splits(task).values()}
    assert expected <= accepted


def test_connectivity_is_that_of_the_configured_houses(world: Path) -> None:
    config, graphs = WorldConfig("tiny"), read_scenes(world / "connectivity")
    scenes = list(dict.fromkeys(scene for group in config.scene_ids().values() for scene in group))
    assert (world / "connectivity/scans.txt").read_text().split() == scenes == sorted(graphs)
    for scene, graph in graphs.items():
        expected = build_graph(generate_house(scene, config.seed))
        assert graph.viewpoints == expected.viewpoints
        assert (graph.neighbours == expected.neighbours).all() and (graph.views == expected.views).all()
        assert np.allclose(graph.positions, expected.positions)
        records = read_json(world / f"connectivity/{scene}_connectivity.json", list[dict[str, object]])
        keys = {"image_id", "pose", "included", "visible", "unobstructed", "height"}
        assert {frozenset(record) for record in records} == {frozenset(keys)}
        visible = np.array([record["visible"] for record in records])
        adjacent = np.array([record["unobstructed"] for record in records])
        assert (visible | ~adjacent).all(), "a candidate is not visible"
        assert not visible.diagonal().any() and not adjacent.diagonal().any()
        assert (visible != visible.T).mean() < 0.02


def test_every_viewpoint_has_a_panorama_and_features(world: Path) -> None:
    graphs = read_scenes(world / "connectivity")
    viewpoints = {f"{scene}_{name}" for scene, graph in graphs.items() for name in graph.viewpoints}
    panoramas = find_panoramas(world / "panoramas")
    assert set(panoramas) == viewpoints == set(open_features(world / "features/small.hdf5").keys)
    assert {read_panorama(path).shape for path in panoramas.values()} == {(256, 512, 3)}
    atlas = Atlas.read(world / "connectivity", features=world / "features/small.hdf5")
    seen = atlas.observe(atlas.begin(np.arange(len(atlas)), heading=[0.0] * len(atlas)))
    assert np.isfinite(seen.features).all() and seen.features.max() > 0


def test_features_equal_those_extracted_from_the_panoramas(world: Path, tmp_path: Path) -> None:
    names = sorted(find_panoramas(world / "panoramas"))[::16]
    for name in names:
        scene, _, viewpoint = name.rpartition("_")
        (tmp_path / "panoramas" / scene).mkdir(parents=True, exist_ok=True)
        shutil.copy(world / "panoramas" / scene / f"{viewpoint}.jpg", tmp_path / "panoramas" / scene)
    extract(tmp_path / "panoramas", out=tmp_path / "again.hdf5")
    stored, again = open_features(world / "features/small.hdf5"), open_features(tmp_path / "again.hdf5")
    assert sorted(again.keys) == names
    assert all((stored.panorama(name) == again.panorama(name)).all() for name in names)


def test_vocabulary_covers_every_word(world: Path) -> None:
    pieces = WordPiece.read(world / "tokenizer/vocab.txt")
    unknown = (world / "tokenizer/vocab.txt").read_text().split("\n").index("[UNK]")
    words = set()
    for name, task in TASKS.items():
        for file in DataFolder(world).splits(name).values():
            for episode in task.read(file):
                assert unknown not in pieces.encode(episode.instruction)
                words |= {word for word in episode.instruction.lower().split() if word.isascii()}
    assert 100 < len(words) < pieces.size < 2000


def test_summary_describes_the_world(world: Path) -> None:
    summary = read_json(world / "world.json", dict[str, object])
    files = DataFolder(world).splits("r2r").values()
    lengths = [len(episode.instruction.split()) for file in files for episode in TASKS["r2r"].read(file)]
    assert summary == {
        "version": __version__,
        "size": "tiny",
        "seed": 0,
        "scenes": None,
        "houses": 4,
        "viewpoints": sum(len(graph) for graph in read_scenes(world / "connectivity").values()),
        "instructions": len(lengths),
        "words_per_instruction": round(np.mean(lengths), 2),
        "instructions_needing_memory": summary["instructions_needing_memory"],
    }
    assert 22 <= summary["words_per_instruction"] <= 30  # type: ignore[operator]
    assert summary["instructions_needing_memory"] >= 0.4  # type: ignore[operator]


# -- configuration ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "huge"}, "no size 'huge'; there are tiny, small"),
        ({"seed": -1}, "seed is -1"),
        ({"scenes": 0}, "0 scenes"),
        ({"scenes": 1001}, "1001 scenes"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorldConfig(**options)  # type: ignore[arg-type]


def test_different_options_have_different_keys() -> None:
    options = [("small", 0), ("tiny", 0), ("small", 1), ("tiny", 1), ("small", 0, 1), ("small", 0, 24)]
    keys = [WorldConfig(*values).key for values in options]  # type: ignore[arg-type]
    assert len(set(keys)) == len(options)
    assert WorldConfig("tiny", seed=1).key == keys[3]


def test_scenes_option_sets_the_number_of_training_houses() -> None:
    scenes = WorldConfig("small", scenes=3).scene_ids()
    assert {split: len(group) for split, group in scenes.items()} == {
        "train": 3,
        "val_unseen": 6,
        "test": 2,
        "val_seen": 3,
    }
    assert scenes["val_seen"] == scenes["train"]
    assert len({scene for group in scenes.values() for scene in group}) == 11
    assert [len(group) for group in WorldConfig("small").scene_ids().values()] == [24, 6, 2, 24]


# -- determinism -----------------------------------------------------------------------------------------


def test_processes_and_cache_do_not_change_the_bytes(small_config: WorldConfig, tmp_path: Path) -> None:
    cached = embedded_world(small_config, processes=1)
    uncached = write_world(tmp_path / "uncached", small_config, processes=2, cache=False)
    copied = write_world(tmp_path / "copied", small_config)
    assert manifest(cached) == manifest(uncached) == manifest(copied)


# -- cache -----------------------------------------------------------------------------------------------


def fail_if_generated(items: Iterable[int], label: str) -> Iterator[int]:
    raise AssertionError("generated again")


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("ESCEME_CACHE", str(tmp_path / "own"))
    for variable, folder in (
        ("ESCEME_CACHE", "own"),
        ("XDG_CACHE_HOME", "xdg/esceme"),
        ("HOME", "home/.cache/esceme"),
    ):
        assert cache_folder() == tmp_path / folder
        monkeypatch.delenv(variable)


def test_cached_world_is_generated_once(stub_config: WorldConfig, tmp_path: Path) -> None:
    folder = embedded_world(stub_config)
    assert folder == tmp_path / "cache" / "worlds" / stub_config.key
    assert embedded_world(stub_config, progress=fail_if_generated) == folder
    out = write_world(tmp_path / "out", stub_config, progress=fail_if_generated)
    assert entries(out) == entries(folder) == ["world.json"]
    with pytest.raises(AssertionError, match="generated again"):
        write_world(tmp_path / "other", stub_config, progress=fail_if_generated, cache=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "out"]


def test_uncached_world_leaves_no_cache(stub_config: WorldConfig, tmp_path: Path) -> None:
    (tmp_path / "usual").mkdir()
    out = write_world(tmp_path / "out", stub_config, cache=False)
    assert entries(tmp_path) == ["out", "out/world.json", "usual"]
    assert out.stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_concurrent_generation_of_one_world_succeeds(stub_config: WorldConfig, tmp_path: Path) -> None:
    barrier = threading.Barrier(2, timeout=60)

    def wait_for_both(items: Iterable[int], label: str) -> Iterable[int]:
        barrier.wait()
        return items

    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(lambda _: embedded_world(stub_config, progress=wait_for_both), range(2)))
    assert folders == [tmp_path / "cache" / "worlds" / stub_config.key] * 2
    assert entries(tmp_path / "cache" / "worlds") == [stub_config.key, f"{stub_config.key}/world.json"]


# -- all or nothing --------------------------------------------------------------------------------------


def interrupt_after_one(items: Iterable[int], label: str) -> Iterator[int]:
    for number in items:
        if number == 1:
            raise KeyboardInterrupt
        yield number


@pytest.mark.parametrize(("processes", "cache"), [(1, False), (2, True)])
def test_interruption_leaves_nothing(
    processes: int, cache: bool, small_config: WorldConfig, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        write_world(
            tmp_path / "out", small_config, processes=processes, progress=interrupt_after_one, cache=cache
        )
    assert entries(tmp_path) == (["cache", "cache/worlds"] if cache else [])


@pytest.mark.parametrize("cache", [True, False])
def test_full_disk_leaves_nothing(cache: bool, stub_config: WorldConfig, tmp_path: Path) -> None:
    def fill(items: Iterable[int], label: str) -> Iterator[int]:
        yield from items
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match=r": cannot be written \(No space left on device\)$"):
        write_world(tmp_path / "out", stub_config, progress=fill, cache=cache)
    assert entries(tmp_path) == (["cache", "cache/worlds"] if cache else [])


@pytest.mark.parametrize("kind", ["file", "full", "file above", "here", "mount"])
def test_unusable_folder_is_refused_before_generation(
    kind: str, small_config: WorldConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    if kind in ("file", "file above"):
        out.write_text("existing")
        out = out / "below" / "it" if kind == "file above" else out
    else:
        out.mkdir()
    if kind == "full":
        (out / ".hidden").write_text("existing")
    elif kind == "here":
        monkeypatch.chdir(out)
        out = Path(".")
    elif kind == "mount":
        monkeypatch.setattr(Path, "is_mount", lambda path: path == out)
    before = entries(tmp_path)
    with pytest.raises(DataError):
        write_world(out, small_config, progress=fail_if_generated)
    assert entries(tmp_path) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder_is_refused(small_config: WorldConfig, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    with pytest.raises(DataError, match="cannot be written"):
        write_world(tmp_path / "locked" / "out", small_config, progress=fail_if_generated)


def test_unusable_cache_is_refused(small_config: WorldConfig, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(DataError, match="cache/worlds/.*: cannot be written"):
        write_world(tmp_path / "out", small_config, progress=fail_if_generated)
    assert entries(tmp_path) == ["cache"]


@pytest.mark.parametrize("kind", ["new", "deep", "empty", "link", "dangling"])
def test_world_is_written_to_any_usable_folder(kind: str, stub_config: WorldConfig, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "er" / "out" if kind == "deep" else tmp_path / "out"
    if kind in ("empty", "link"):
        (tmp_path / kind).mkdir()
        out = tmp_path / "empty" if kind == "empty" else out
    if kind in ("link", "dangling"):
        out.symlink_to(tmp_path / kind)
    assert write_world(out, stub_config) == out
    assert (out / "world.json").read_text() == "2"
    assert not [name for name in entries(tmp_path) if name.endswith(".part")]


def test_folder_created_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(DataError, match="cannot be written"), dataset._create_folder_atomically(out) as part:
        (part / "ours").touch()
        out.mkdir()
        (out / "theirs").touch()
    assert entries(tmp_path) == ["out", "out/theirs"]
