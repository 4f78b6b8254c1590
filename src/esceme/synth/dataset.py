"""The embedded world as a data folder: generated houses, photographed and told about, in the public formats.

A world is made once per seed, size and version, kept in the cache, and copied from there; the bytes are the
same with and without it.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context, parent_process
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from esceme import __version__
from esceme.errors import ConfigError, DataError
from esceme.files import atomic_open, write_json, write_text
from esceme.perception.encode import make_encoder
from esceme.synth.annotations import (
    Walks,
    write_augmentation,
    write_cvdn,
    write_r2r,
    write_reverie,
    write_rxr,
    write_tour_file,
)
from esceme.synth.capture import Capture, capture, sights_of
from esceme.synth.house import graph_of, make_house
from esceme.synth.plan import EYE, House
from esceme.synth.render import Renderer
from esceme.synth.sights import Sights
from esceme.synth.walks import Walk, share_needing_memory, take_walks
from esceme.tasks.catalogue import TASKS
from esceme.tasks.folder import DataFolder
from esceme.tasks.manifest import COMPANION, write_manifest
from esceme.tasks.text import WordPiece, build_wordpiece
from esceme.world.features import write_features

Size = Literal["tiny", "small"]
Watch = Callable[[Iterable[int], str], Iterable[int]]
"""Something that shows progress over numbers under a label."""

LABELS = {
    "bathroom": "a",
    "bedroom": "b",
    "closet": "c",
    "dining room": "d",
    "entry": "e",
    "hallway": "h",
    "laundry": "j",
    "kitchen": "k",
    "living room": "l",
    "office": "o",
    "stairs": "s",
}
"""Kinds of room -> the letters that Matterport3D labels them with."""


class Shape(NamedTuple):
    """How large a world is."""

    houses: dict[str, int]
    """Split -> how many houses of its own; val_seen lives in those of train."""
    walks: dict[str, int]
    """Split -> walks per house."""
    more: int
    """Walks per house of train, at most, that augment it."""
    height: int
    """Of the panoramas in pixels; they are twice as wide."""


SHAPES: dict[Size, Shape] = {
    "tiny": Shape(
        {"train": 2, "val_unseen": 1, "test": 1},
        {"train": 12, "val_seen": 4, "val_unseen": 12, "test": 4},
        20,
        256,
    ),
    "small": Shape(
        {"train": 24, "val_unseen": 6, "test": 2},
        {"train": 60, "val_seen": 6, "val_unseen": 40, "test": 20},
        300,
        512,
    ),
}
SPLITS = ("train", "val_seen", "val_unseen", "test")
ENCODER = "small"
ROOMS_OF_CODE = ("world", "tasks", "perception", "synth")
"""Whose code decides the bytes of a world."""
LONGEST_TOUR = 100


@dataclass(frozen=True)
class WorldConfig:
    """What is asked for: it determines every byte."""

    size: Size = "small"
    seed: int = 0
    scenes: int | None = None
    """How many houses to train on, instead of the size's own number; the other splits keep their share."""

    def __post_init__(self) -> None:
        if self.size not in SHAPES:
            raise ConfigError(f"no size '{self.size}'; there are {', '.join(SHAPES)}")
        if self.seed < 0:
            raise ConfigError(f"the seed is {self.seed}; give 0 or more")
        if self.scenes is not None and not 1 <= self.scenes <= 1000:
            raise ConfigError(f"{self.scenes} scenes were asked for; give 1 to 1000")

    @property
    def key(self) -> str:
        """A name for the content: the same order, made by the same code, has the same bytes."""
        text = f"{__version__} {self.size} {self.seed} {self.scenes} {_code()}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def houses(self) -> dict[str, list[str]]:
        """Split -> the names of its houses."""
        shape = SHAPES[self.size]
        wanted = shape.houses | ({"train": self.scenes} if self.scenes else {})
        numbers = iter(range(sum(wanted.values())))
        houses = {split: [f"home-{next(numbers):04d}" for _ in range(n)] for split, n in wanted.items()}
        return {**houses, "val_seen": houses["train"]}


@lru_cache
def _code() -> str:
    """A fingerprint of the code that makes worlds: a world of another code is another world."""
    package = Path(__file__).parents[1]
    files = sorted(each for room in ROOMS_OF_CODE for each in (package / room).glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def cache_folder() -> Path:
    """Where worlds are kept: `ESCEME_CACHE`, else the user's cache folder."""
    given = os.environ.get("ESCEME_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "esceme"


def embedded_world(
    order: WorldConfig, *, processes: int = 2, watch: Watch = lambda numbers, label: numbers
) -> Path:
    """The folder of a world in the cache, made first where it is not there yet."""
    home = cache_folder() / "worlds" / order.key
    if home.is_dir():
        return home
    try:
        with _becoming(home) as part:
            _make(part, order, processes, watch)
    except DataError:
        if not home.is_dir():  # otherwise another process was quicker, and made the same
            raise
    return home


def write_world(
    out: Path,
    order: WorldConfig,
    *,
    processes: int = 2,
    watch: Watch = lambda numbers, label: numbers,
    cache: bool = True,
) -> Path:
    """A world in a folder of your own, which must not exist yet or be empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out}: is there already; give a new or an empty folder")
    if out.exists() and (out.is_mount() or out.samefile(".")):
        raise DataError(f"{out}: you are in it, or a disk is mounted there; give a new folder below it")
    with _becoming(out) as part:
        if cache:
            shutil.copytree(embedded_world(order, processes=processes, watch=watch), part, dirs_exist_ok=True)
        else:
            _make(part, order, processes, watch)
    return out


def sights_of_world(order: WorldConfig, split: str) -> dict[str, Sights]:
    """What is seen in each house of a split, as it was when the world was made: for scripted readers only."""
    houses = [make_house(name, order.seed) for name in order.houses()[split]]
    height = SHAPES[order.size].height
    return {house.scene_id: sights_of(house, graph_of(house), height=height) for house in houses}


@contextmanager
def _becoming(home: Path) -> Iterator[Path]:
    """A folder that appears under its name, complete, when the block ends well; otherwise nothing changes.

    What is there already is replaced only if it is an empty folder.
    """
    home = home.resolve()
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=home.parent, prefix=f".{home.name}.", suffix=".part") as hidden:
            part = Path(hidden) / home.name
            part.mkdir()
            yield part
            part.rename(home)
    except OSError as error:
        raise DataError(f"{home}: cannot be written ({error.strerror or error})") from None


# -- making ----------------------------------------------------------------------------------------------


class _Photographed(NamedTuple):
    """A house and everything that was seen in it."""

    house: House
    captures: list[Capture]


def _make(root: Path, order: WorldConfig, processes: int, watch: Watch) -> None:
    shape, houses = SHAPES[order.size], order.houses()
    names = list(dict.fromkeys(name for each in houses.values() for name in each))
    seen: dict[str, Sights] = {}
    near: dict[str, list[dict[str, object]]] = {}
    rooms: dict[str, dict[str, tuple[int, str, str]]] = {}

    def features() -> Iterator[tuple[str, np.ndarray]]:
        for house, captures in _photograph(names, order, processes, watch):
            _write_house(root, house, captures)
            seen[house.scene_id] = Sights(house, graph_of(house), np.stack([each.share for each in captures]))
            rooms[house.scene_id] = _rooms(house)
            for place, taken in zip(house.places, captures, strict=True):
                key = f"{house.scene_id}_{place.viewpoint}"
                near[key] = taken.objects
                yield key, taken.features

    write_features(root / f"features/{ENCODER}.hdf5", features())
    write_text(root / "connectivity/scans.txt", "\n".join(names) + "\n")
    write_json(root / "rooms/viewpoint_rooms.json", {"label_name": _label_names(), "panos": rooms})
    with atomic_open(root / "objects/reverie_objects.json.gz") as file:
        file.write(gzip.compress(msgspec.json.encode(near), mtime=0))
    walks, more = _walks(order, houses, seen, shape)
    _write_tasks(root, order, walks, near)
    write_text(root / "tokenizer/vocab.txt", "\n".join(build_wordpiece(_texts(root))) + "\n")
    write_augmentation(root, more, WordPiece.read(root / "tokenizer/vocab.txt"))
    write_manifest(root)


def _photograph(
    names: Sequence[str], order: WorldConfig, processes: int, watch: Watch
) -> Iterator[_Photographed]:
    """Every house in order; several processes work side by side, which changes nothing about the bytes."""
    jobs = [(name, order.seed, SHAPES[order.size].height) for name in names]
    if processes <= 1:
        for index in watch(range(len(jobs)), "houses"):
            yield _photograph_house(jobs[index])
        return
    with _one_thread_each(), ProcessPoolExecutor(processes, get_context("spawn"), _follow_parent) as pool:
        done = pool.map(_photograph_house, jobs)
        try:
            for _ in watch(range(len(jobs)), "houses"):
                yield next(done)
        except BrokenProcessPool:
            raise DataError("a process that photographs houses was killed; is memory short?") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _follow_parent() -> None:
    """In a process started to help: end without a word when interrupted, and whenever the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    Thread(target=end, daemon=True).start()


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes started inside use one thread for linear algebra: there are as many of them as cores."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def _photograph_house(job: tuple[str, int, int]) -> _Photographed:
    name, seed, height = job
    house = make_house(name, seed)
    renderer, encoder = Renderer(house, height=height), make_encoder(ENCODER)
    return _Photographed(house, [capture(house, renderer, at, encoder) for at in range(len(house.places))])


def _write_house(root: Path, house: House, captures: Sequence[Capture]) -> None:
    adjacent = np.zeros((len(house.places), len(house.places)), dtype=bool)
    for a, b in house.edges:
        adjacent[a, b] = adjacent[b, a] = True
    records = []
    for index, (place, taken) in enumerate(zip(house.places, captures, strict=True)):
        x, y, z = place.position
        records.append(
            {
                "image_id": place.viewpoint,
                "pose": [1, 0, 0, x, 0, 1, 0, y, 0, 0, 1, z, 0, 0, 0, 1],
                "included": True,
                "visible": taken.visible.tolist(),
                "unobstructed": adjacent[index].tolist(),
                "height": EYE,
            }
        )
        with atomic_open(root / f"panoramas/{house.scene_id}/{place.viewpoint}.jpg") as file:
            file.write(taken.picture)
    write_json(root / f"connectivity/{house.scene_id}_connectivity.json", records)


def _rooms(house: House) -> dict[str, tuple[int, str, str]]:
    labels = [LABELS.get(room.kind, "z") for room in house.rooms]
    return {place.viewpoint: (place.room, labels[place.room], labels[place.room]) for place in house.places}


def _label_names() -> dict[str, str]:
    return {letter: kind for kind, letter in LABELS.items()} | {"z": "other room"}


def _walks(
    order: WorldConfig, houses: dict[str, list[str]], seen: dict[str, Sights], shape: Shape
) -> tuple[dict[str, list[Walk]], list[Walk]]:
    """Walks of every split, and more of train; val_seen has other walks of the houses of train."""
    walks: dict[str, list[Walk]] = {split: [] for split in SPLITS}
    augmenting: list[Walk] = []
    path_id = 0
    for split, names in houses.items():
        if split == "val_seen":
            continue
        for name in names:
            digest = hashlib.sha256(f"{name} {order.seed} walks".encode()).digest()
            generator = np.random.default_rng(int.from_bytes(digest[:8]))
            kept = shape.walks[split]
            more = shape.walks["val_seen"] if split == "train" else 0
            extra = shape.more if split == "train" else 0
            found = take_walks(seen[name], kept + more + extra, generator, first_id=path_id)
            taken, others = found[: kept + more], found[kept + more :]
            augmenting += others
            path_id += len(taken)
            cut = len(taken) - min(more, len(taken) // 4 * 2)
            walks[split] += taken[:cut]
            walks["val_seen"] += taken[cut:]
    return walks, augmenting


def _write_tasks(
    root: Path, order: WorldConfig, walks: Walks, near: dict[str, list[dict[str, object]]]
) -> None:
    generator = np.random.default_rng(order.seed)
    write_r2r(root, walks)
    write_rxr(root, walks, generator)
    write_reverie(root, walks, {key: [str(each["id"]) for each in listed] for key, listed in near.items()})
    write_cvdn(root, walks, generator)
    write_tour_file(root, SPLITS, longest=LONGEST_TOUR, seed=order.seed)
    everything = [walk for asked in walks.values() for walk in asked]
    houses = {walk.scene_id: walk.sights.house for walk in everything}
    write_json(
        root / COMPANION,
        {
            "version": __version__,
            "size": order.size,
            "seed": order.seed,
            "scenes": order.scenes,
            "houses": len(houses),
            "viewpoints": sum(len(house.places) for house in houses.values()),
            "instructions": sum(len(walk.texts) for walk in everything),
            "words_per_instruction": round(_words(everything), 2),
            "instructions_needing_memory": round(share_needing_memory(everything), 4),
        },
        indent=1,
    )


def _words(walks: Sequence[Walk]) -> float:
    """How long an R2R instruction is on average, by white space."""
    counts = [len(text.split()) for walk in walks for text in walk.texts]
    return sum(counts) / max(1, len(counts))


def _texts(root: Path) -> Iterator[str]:
    """Every instruction of every task."""
    folder = DataFolder(root)
    for name, task in TASKS.items():
        for file in folder.splits(name).values():
            yield from (episode.instruction for episode in task.read(file))
