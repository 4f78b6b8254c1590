"""The embedded world as a folder: the same bytes however it is made, whole or absent, and nothing wrong."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from esceme import __version__
from esceme.cli.features import extract
from esceme.errors import ConfigError, DataError
from esceme.files import read_json
from esceme.perception.encode import encode_panorama, make_encoder
from esceme.perception.views import find_panoramas, read_panorama
from esceme.synth import dataset
from esceme.synth.dataset import (
    LABELS,
    SHAPES,
    Shape,
    Watch,
    WorldConfig,
    cache_folder,
    embedded_world,
    sights_of_world,
    write_world,
)
from esceme.synth.house import graph_of, make_house
from esceme.tasks.catalogue import TASKS
from esceme.tasks.doctor import examine
from esceme.tasks.folder import DataFolder
from esceme.tasks.manifest import check_manifest
from esceme.tasks.text import WordPiece
from esceme.world import Atlas, open_features, read_scenes

pytestmark = pytest.mark.long


@pytest.fixture
def speck(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> WorldConfig:
    """A world even smaller than the tiny one, with a cache of its own."""
    houses = {"train": 1, "val_unseen": 1, "test": 1}
    walks = {"train": 10, "val_seen": 4, "val_unseen": 10, "test": 4}
    monkeypatch.setitem(SHAPES, "tiny", Shape(houses, walks, 2, 64))
    monkeypatch.setenv("ESCEME_CACHE", str(tmp_path / "cache"))
    return WorldConfig("tiny", seed=3)


@pytest.fixture
def blank(speck: WorldConfig, monkeypatch: pytest.MonkeyPatch) -> WorldConfig:
    """An order whose world is made at once and holds one file: where it goes is what matters."""

    def make(root: Path, order: WorldConfig, processes: int, watch: Watch) -> None:
        for number in watch(range(3), "houses"):
            (root / "world.json").write_text(f"{number}")

    monkeypatch.setattr(dataset, "_make", make)
    return speck


def manifest(root: Path) -> bytes:
    """What says whether two worlds have the same bytes, once it is known to be true."""
    assert list(check_manifest(root)) == []
    listed = read_json(root / "manifest.json", dict[str, object])["files"]
    files = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    assert isinstance(listed, dict) and set(listed) == files - {"manifest.json"}
    return (root / "manifest.json").read_bytes()


def entries(folder: Path) -> list[str]:
    """Everything below a folder, hidden things, too."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


# -- what is in it ---------------------------------------------------------------------------------------


def test_the_doctor_finds_nothing_wrong(world: Path) -> None:
    findings = examine(world, deep=True)
    assert [finding for finding in findings if finding.level == "fault"] == []
    found = {finding.file for finding in findings if finding.level == "ok"}
    assert {"connectivity", "features/small.hdf5", "tours/tours_iVLN.json", "tokenizer/vocab.txt"} <= found
    assert {"rooms/viewpoint_rooms.json", "objects/reverie_objects.json.gz"} <= found
    for task in ("r2r", "r4r", "rxr", "cvdn", "reverie"):
        assert {
            file.relative_to(world).as_posix() for file in DataFolder(world).splits(task).values()
        } <= found


def test_every_file_is_listed_as_it_is(world: Path) -> None:
    assert manifest(world)


def test_the_houses_are_those_that_were_ordered(world: Path) -> None:
    order = WorldConfig("tiny")
    graphs = read_scenes(world / "connectivity")
    wanted = list(dict.fromkeys(name for names in order.houses().values() for name in names))
    assert (world / "connectivity/scans.txt").read_text().split() == wanted == sorted(graphs)
    for scene, graph in graphs.items():
        made = graph_of(make_house(scene, order.seed))
        assert graph.viewpoints == made.viewpoints
        assert (graph.neighbours == made.neighbours).all() and (graph.views == made.views).all()
        assert np.allclose(graph.positions, made.positions)


def test_who_can_be_seen_can_see(world: Path) -> None:
    for file in sorted((world / "connectivity").glob("*.json")):
        records = read_json(file, list[dict[str, object]])
        visible = np.array([record["visible"] for record in records])
        reachable = np.array([record["unobstructed"] for record in records])
        assert (visible | ~reachable).all(), "a candidate is out of sight"
        assert not visible.diagonal().any() and not reachable.diagonal().any()
        assert (visible != visible.T).mean() < 0.02
        keys = {"image_id", "pose", "included", "visible", "unobstructed", "height"}
        assert {frozenset(record) for record in records} == {frozenset(keys)}


def test_there_is_a_panorama_and_a_feature_for_every_viewpoint(world: Path) -> None:
    viewpoints = {
        f"{scene}_{name}"
        for scene, graph in read_scenes(world / "connectivity").items()
        for name in graph.viewpoints
    }
    pictures = find_panoramas(world / "panoramas")
    assert set(pictures) == viewpoints == set(open_features(world / "features/small.hdf5").keys)
    shapes = {read_panorama(path).shape for path in pictures.values()}
    assert shapes == {(SHAPES["tiny"].height, 2 * SHAPES["tiny"].height, 3)}


def test_features_are_those_that_the_command_takes_from_the_pictures(world: Path, tmp_path: Path) -> None:
    names = sorted(find_panoramas(world / "panoramas"))[::16]
    for name in names:
        scene, _, viewpoint = name.rpartition("_")
        (tmp_path / "panoramas" / scene).mkdir(parents=True, exist_ok=True)
        shutil.copy(world / "panoramas" / scene / f"{viewpoint}.jpg", tmp_path / "panoramas" / scene)
    extract(tmp_path / "panoramas", out=tmp_path / "again.hdf5")
    stored, again = open_features(world / "features/small.hdf5"), open_features(tmp_path / "again.hdf5")
    assert sorted(again.keys) == names
    for name in names:
        assert (stored.panorama(name) == again.panorama(name)).all()
    seen = encode_panorama(
        make_encoder("small"), read_panorama(find_panoramas(world / "panoramas")[names[0]])
    )
    assert (stored.panorama(names[0]) == seen).all()


def test_the_vocabulary_knows_every_word(world: Path) -> None:
    pieces = WordPiece.read(world / "tokenizer/vocab.txt")
    unknown = (world / "tokenizer/vocab.txt").read_text().split("\n").index("[UNK]")
    words = set()
    for task in TASKS:
        for file in DataFolder(world).splits(task).values():
            for episode in TASKS[task].read(file):
                ids = pieces.encode(episode.instruction)
                assert unknown not in ids
                words |= {word for word in episode.instruction.lower().split() if word.isascii()}
    assert 100 < len(words) < pieces.size < 2000


def test_an_atlas_of_it_can_be_observed(world: Path) -> None:
    atlas = Atlas.read(world / "connectivity", features=world / "features/small.hdf5")
    pose = atlas.begin(np.arange(len(atlas)), heading=[0.0] * len(atlas))
    seen = atlas.observe(pose)
    assert np.isfinite(seen.features).all() and seen.features.max() > 0


def test_what_is_said_about_the_world_is_so(world: Path) -> None:
    said = read_json(world / "world.json", dict[str, object])
    episodes = [each for file in DataFolder(world).splits("r2r").values() for each in TASKS["r2r"].read(file)]
    assert said == {
        "version": __version__,
        "size": "tiny",
        "seed": 0,
        "scenes": None,
        "houses": 4,
        "viewpoints": sum(len(graph) for graph in read_scenes(world / "connectivity").values()),
        "instructions": len(episodes),
        "words_per_instruction": round(np.mean([len(each.instruction.split()) for each in episodes]), 2),
        "instructions_needing_memory": said["instructions_needing_memory"],
    }
    assert 22 <= said["words_per_instruction"] <= 30  # type: ignore[operator]
    assert said["instructions_needing_memory"] >= 0.4  # type: ignore[operator]


def test_sights_are_those_that_the_world_was_made_by(world: Path) -> None:
    sights = sights_of_world(WorldConfig("tiny"), "val_unseen")
    graphs = read_scenes(world / "connectivity", sights)
    assert list(sights) == WorldConfig("tiny").houses()["val_unseen"]
    assert all(each.graph.viewpoints == graphs[scene].viewpoints for scene, each in sights.items())


def test_every_kind_of_room_has_a_label() -> None:
    kinds = {room.kind for number in range(8) for room in make_house(f"home-{number:04d}", 0).rooms}
    assert kinds <= set(LABELS)


# -- orders ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"size": "huge"}, "no size 'huge'; there are tiny, small"),
        ({"seed": -1}, "seed is -1"),
        ({"scenes": 0}, "0 scenes"),
        ({"scenes": -3}, "-3 scenes"),
        ({"scenes": 1001}, "1001 scenes"),
    ],
)
def test_an_impossible_order_is_refused(fault: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorldConfig(**fault)  # type: ignore[arg-type]


def test_different_orders_have_different_keys() -> None:
    orders = [
        WorldConfig(),
        WorldConfig("tiny"),
        WorldConfig(seed=1),
        WorldConfig(scenes=1),
        WorldConfig(scenes=24),
        WorldConfig("tiny", seed=1),
    ]
    assert len({order.key for order in orders}) == len(orders)
    assert WorldConfig("tiny", seed=1).key == WorldConfig("tiny", seed=1).key


def test_scenes_are_those_to_train_on() -> None:
    houses = WorldConfig("small", scenes=3).houses()
    assert [len(houses[split]) for split in ("train", "val_seen", "val_unseen", "test")] == [3, 3, 6, 2]
    assert houses["val_seen"] == houses["train"]
    named = [name for split in ("train", "val_unseen", "test") for name in houses[split]]
    assert len(set(named)) == len(named)
    assert [len(names) for names in WorldConfig("small").houses().values()] == [24, 6, 2, 24]


# -- the same bytes --------------------------------------------------------------------------------------


def test_the_same_order_gives_the_same_bytes_however_it_is_made(speck: WorldConfig, tmp_path: Path) -> None:
    cached = embedded_world(speck, processes=1)
    bare = write_world(tmp_path / "bare", speck, processes=2, cache=False)
    copied = write_world(tmp_path / "copied", speck)
    assert manifest(cached) == manifest(bare) == manifest(copied)


@pytest.mark.slow
def test_another_seed_gives_other_bytes(speck: WorldConfig, tmp_path: Path) -> None:
    worlds = [
        write_world(tmp_path / f"{seed}", WorldConfig("tiny", seed=seed), processes=1, cache=False)
        for seed in (3, 4)
    ]
    for name in ("R2R/R2R_train.json", "features/small.hdf5", "connectivity/home-0000_connectivity.json"):
        one, other = ((world / name).read_bytes() for world in worlds)
        assert one != other


# -- the cache -------------------------------------------------------------------------------------------


def no_more_work(numbers: Iterable[int], label: str) -> Iterator[int]:
    raise AssertionError("houses are photographed again")


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ESCEME_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("ESCEME_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "esceme"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "esceme"


def test_a_world_is_made_once(blank: WorldConfig, tmp_path: Path) -> None:
    made = embedded_world(blank)
    assert made == tmp_path / "cache" / "worlds" / blank.key
    assert embedded_world(blank, watch=no_more_work) == made
    out = write_world(tmp_path / "out", blank, watch=no_more_work)
    assert entries(out) == entries(made) == ["world.json"]
    with pytest.raises(AssertionError, match="photographed again"):
        write_world(tmp_path / "other", blank, watch=no_more_work, cache=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "out"]


def test_without_the_cache_nothing_is_left_in_it(blank: WorldConfig, tmp_path: Path) -> None:
    write_world(tmp_path / "out", blank, cache=False)
    assert entries(tmp_path) == ["out", "out/world.json"]


def test_two_that_make_the_same_world_at_once_both_get_it(blank: WorldConfig, tmp_path: Path) -> None:
    meeting = threading.Barrier(2, timeout=60)

    def together(numbers: Iterable[int], label: str) -> Iterable[int]:
        meeting.wait()
        return numbers

    with ThreadPoolExecutor(2) as pool:
        got = list(pool.map(lambda _: embedded_world(blank, watch=together), range(2)))
    assert got == [tmp_path / "cache" / "worlds" / blank.key] * 2
    assert entries(tmp_path / "cache" / "worlds") == [blank.key, f"{blank.key}/world.json"]


# -- whole or absent -------------------------------------------------------------------------------------


def stumble(numbers: Iterable[int], label: str) -> Iterator[int]:
    """Let the first house be made, and then fail."""
    for number in numbers:
        if number == 1:
            raise KeyboardInterrupt
        yield number


@pytest.mark.parametrize(("processes", "cache"), [(1, False), (2, True)])
def test_an_interruption_leaves_nothing(
    processes: int, cache: bool, speck: WorldConfig, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        write_world(tmp_path / "out", speck, processes=processes, watch=stumble, cache=cache)
    assert entries(tmp_path) == (["cache", "cache/worlds"] if cache else [])


@pytest.mark.parametrize("cache", [True, False])
def test_a_full_disk_leaves_nothing(cache: bool, blank: WorldConfig, tmp_path: Path) -> None:
    def fill(numbers: Iterable[int], label: str) -> Iterator[int]:
        yield from numbers
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match=r": cannot be written \(No space left on device\)$"):
        write_world(tmp_path / "out", blank, watch=fill, cache=cache)
    assert entries(tmp_path) == (["cache", "cache/worlds"] if cache else [])


def test_a_helper_that_dies_is_a_clear_error(
    speck: WorldConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "_follow_parent", partial(os._exit, 1))
    with pytest.raises(DataError, match="a process that photographs houses was killed"):
        write_world(tmp_path / "out", speck, processes=2, cache=False)
    assert entries(tmp_path) == []


@pytest.mark.parametrize("kind", ["file", "full", "file above", "here", "mount"])
def test_a_folder_that_cannot_be_had_is_refused_first(
    kind: str, speck: WorldConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    elif kind == "full":
        out.mkdir()
        (out / ".hidden").write_text("mine")
    elif kind == "file above":
        out.write_text("mine")
        out = out / "below" / "it"
    elif kind == "here":
        out.mkdir()
        monkeypatch.chdir(out)
        out = Path(".")
    else:
        out.mkdir()
        monkeypatch.setattr(Path, "is_mount", lambda path: path == out)
    before = entries(tmp_path)
    with pytest.raises(DataError):
        write_world(out, speck, watch=no_more_work)
    assert entries(tmp_path) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_refused(speck: WorldConfig, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    with pytest.raises(DataError, match="cannot be written"):
        write_world(tmp_path / "locked" / "out", speck, watch=no_more_work)


def test_a_cache_that_cannot_be_had_is_refused(
    speck: WorldConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(DataError, match="cache/worlds/.*: cannot be written"):
        write_world(tmp_path / "out", speck, watch=no_more_work)
    assert entries(tmp_path) == ["cache"]


@pytest.mark.parametrize("kind", ["new", "deep", "empty", "link", "dangling"])
def test_a_world_appears_where_it_should(kind: str, blank: WorldConfig, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "er" / "out" if kind == "deep" else tmp_path / "out"
    if kind in ("empty", "link"):
        (tmp_path / kind).mkdir()
        out = tmp_path / "empty" if kind == "empty" else out
    if kind in ("link", "dangling"):
        out.symlink_to(tmp_path / kind)
    assert write_world(out, blank) == out
    assert (out / "world.json").read_text() == "2"
    assert not [name for name in entries(tmp_path) if name.endswith(".part")]


def test_what_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(DataError, match="cannot be written"), dataset._becoming(out) as part:
        (part / "ours").touch()
        out.mkdir()
        (out / "theirs").touch()
    assert entries(tmp_path) == ["out", "out/theirs"]


def test_a_new_folder_has_the_usual_permissions(blank: WorldConfig, tmp_path: Path) -> None:
    (tmp_path / "usual").mkdir()
    made = write_world(tmp_path / "out", blank, cache=False)
    assert made.stat().st_mode == (tmp_path / "usual").stat().st_mode
