"""Generation of the embedded world: a data folder in the public formats.

A world is generated once per size, seed and version, and then read from a cache. Its files do not depend on
the cache or on the number of processes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from esceme import __version__
from esceme.errors import ConfigError, DataError
from esceme.files import (
    atomic_open,
    compress_gzip,
    partial_file_prefix,
    remove_partial_files,
    write_json,
    write_text,
)
from esceme.perception.encoders import make_encoder
from esceme.source_digest import source_digest
from esceme.synth.annotated_paths import AnnotatedPath, fraction_needing_memory, sample_paths
from esceme.synth.capture import ViewpointCapture, capture_viewpoint
from esceme.synth.house import build_graph, generate_house
from esceme.synth.house_model import CAMERA_HEIGHT, House
from esceme.synth.render import Renderer
from esceme.synth.task_files import (
    PathsBySplit,
    write_augmentation,
    write_cvdn,
    write_r2r,
    write_reverie,
    write_rxr,
    write_tour_file,
)
from esceme.synth.visibility import Visibility
from esceme.tasks.catalogue import TASKS
from esceme.tasks.folder import DataFolder
from esceme.tasks.manifest import COMPANION, write_manifest
from esceme.tasks.text import WordPiece, build_wordpiece
from esceme.workers import Job, iterate_jobs
from esceme.world.features import write_features

WorldSize = Literal["tiny", "small"]
ProgressBar = Callable[[Iterable[int], str], Iterable[int]]
"""Takes an iterable and a label; returns the same items and displays progress as they are consumed."""

ROOM_LABELS = {
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
"""Kind of room -> one-letter room label of Matterport3D."""


class WorldPreset(NamedTuple):
    """Numbers of houses and paths, and the image size, for a world size such as `small`."""

    num_houses: dict[str, int]
    """Split -> number of houses. `val_seen` has no entry: it uses the houses of `train`."""
    num_paths: dict[str, int]
    """Split -> number of paths per house."""
    num_extra_paths: int
    """Maximum number of additional paths per training house, for data augmentation."""
    height: int
    """Height of the panoramas in pixels; their width is twice the height."""


WORLD_PRESETS: dict[WorldSize, WorldPreset] = {
    "tiny": WorldPreset(
        {"train": 2, "val_unseen": 1, "test": 1},
        {"train": 12, "val_seen": 4, "val_unseen": 12, "test": 4},
        num_extra_paths=20,
        height=256,
    ),
    "small": WorldPreset(
        {"train": 24, "val_unseen": 6, "test": 2},
        {"train": 60, "val_seen": 6, "val_unseen": 40, "test": 20},
        num_extra_paths=300,
        height=512,
    ),
}
SPLITS = ("train", "val_seen", "val_unseen", "test")
ENCODER = "small"
GENERATING_CODE = (("world", "tasks", "perception", "synth"), (".py", ".toml"))
"""Modules, and suffixes of their files, that determine the content of a world."""
LONGEST_TOUR = 100


@dataclass(frozen=True)
class WorldConfig:
    """Options of a generated world. Equal options give equal files."""

    size: WorldSize = "small"
    seed: int = 0
    scenes: int | None = None
    """Number of training houses; by default that of `size`. It has no effect on other splits."""

    def __post_init__(self) -> None:
        if self.size not in WORLD_PRESETS:
            raise ConfigError(f"no size '{self.size}'; there are {', '.join(WORLD_PRESETS)}")
        if self.seed < 0:
            raise ConfigError(f"the seed is {self.seed}; give 0 or more")
        if self.scenes is not None and not 1 <= self.scenes <= 1000:
            raise ConfigError(f"{self.scenes} scenes; expected 1 to 1000")

    @property
    def preset(self) -> WorldPreset:
        """Numbers of houses and paths, and the image size."""
        return WORLD_PRESETS[self.size]

    @property
    def folder(self) -> Path:
        """Folder of the world in the cache, which may not exist yet."""
        return cache_folder() / "worlds" / self.key

    @property
    def key(self) -> str:
        """Folder name in the cache: a digest of the options, the package version and the generating code."""
        text = f"{__version__} {self.size} {self.seed} {self.scenes} {source_digest(*GENERATING_CODE)}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def scene_ids(self) -> dict[str, list[str]]:
        """Return a dict from split to its scene ids."""
        num_houses = self.preset.num_houses | ({"train": self.scenes} if self.scenes else {})
        numbers = iter(range(sum(num_houses.values())))
        scenes = {split: [f"home-{next(numbers):04d}" for _ in range(n)] for split, n in num_houses.items()}
        return {**scenes, "val_seen": scenes["train"]}


def cache_folder() -> Path:
    """Return the folder named by `ESCEME_CACHE`; by default `esceme` in the user's cache folder."""
    folder = os.environ.get("ESCEME_CACHE")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "esceme"


def embedded_world(
    config: WorldConfig, *, processes: int = 2, progress: ProgressBar = lambda items, label: items
) -> Path:
    """Return the folder of a world in the cache. If the folder does not exist, generate the world first."""
    folder = config.folder
    if folder.is_dir():
        return folder
    try:
        with _create_folder_atomically(folder) as part:
            _generate_world(part, config, processes, progress)
    except DataError:
        if not folder.is_dir():  # otherwise another process has created the same world meanwhile
            raise
    return folder


def write_world(
    out: Path,
    config: WorldConfig,
    *,
    processes: int = 2,
    progress: ProgressBar = lambda items, label: items,
    cache: bool = True,
) -> Path:
    """Write a world to the new or empty folder `out` and return this folder.

    With `cache`, the world is generated in the cache and copied. Raises `DataError` if `out` cannot be used.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out}: exists already; give a new or an empty folder")
    if out.exists() and (out.is_mount() or out.samefile(".")):
        raise DataError(f"{out}: is the current folder or a mount point; give a new folder below it")
    with _create_folder_atomically(out) as part:
        if cache:
            world = embedded_world(config, processes=processes, progress=progress)
            shutil.copytree(world, part, dirs_exist_ok=True)
        else:
            _generate_world(part, config, processes, progress)
    return out


@contextmanager
def _create_folder_atomically(path: Path) -> Iterator[Path]:
    """Yield a new temporary folder. Rename it to `path` on success; delete it on failure.

    An existing `path` is replaced only if it is an empty folder.
    """
    path = path.resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_partial_files(path.parent, path.name)
        prefix = partial_file_prefix(path.name)
        with TemporaryDirectory(dir=path.parent, prefix=prefix, suffix=".part") as hidden:
            part = Path(hidden) / path.name
            part.mkdir()
            yield part
            part.rename(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from None


# -- generation ------------------------------------------------------------------------------------------

CapturedHouse = tuple[House, list[ViewpointCapture]]
"""A house and the captures of all its viewpoints, in the order of `House.viewpoints`."""


def _generate_world(world_folder: Path, config: WorldConfig, processes: int, progress: ProgressBar) -> None:
    """Write all files of a world to the folder `world_folder`."""
    scene_ids = list(dict.fromkeys(scene for scenes in config.scene_ids().values() for scene in scenes))
    visibility: dict[str, Visibility] = {}
    nearby: dict[str, list[dict[str, object]]] = {}
    rooms: dict[str, dict[str, tuple[int, str, str]]] = {}

    def features() -> Iterator[tuple[str, np.ndarray]]:
        for house, captures in _capture_houses(scene_ids, config, processes, progress):
            scene = house.scene_id
            _write_house(world_folder, house, captures)
            coverage = np.stack([capture.coverage for capture in captures])
            visibility[scene] = Visibility(house, build_graph(house), coverage)
            labels = [ROOM_LABELS.get(room.kind, "z") for room in house.rooms]
            room_of = {viewpoint.viewpoint_id: viewpoint.room for viewpoint in house.viewpoints}
            rooms[scene] = {name: (room, labels[room], labels[room]) for name, room in room_of.items()}
            for viewpoint, capture in zip(house.viewpoints, captures, strict=True):
                key = f"{scene}_{viewpoint.viewpoint_id}"
                nearby[key] = capture.objects
                yield key, capture.features

    write_features(world_folder / f"features/{ENCODER}.hdf5", features())
    write_text(world_folder / "connectivity/scans.txt", "\n".join(scene_ids) + "\n")
    label_names = {label: kind for kind, label in ROOM_LABELS.items()} | {"z": "other room"}
    write_json(world_folder / "rooms/viewpoint_rooms.json", {"label_name": label_names, "panos": rooms})
    with atomic_open(world_folder / "objects/reverie_objects.json.gz") as file:
        file.write(compress_gzip(msgspec.json.encode(nearby)))
    paths, extra_paths = _sample_all_paths(config, visibility)
    _write_tasks(world_folder, config, paths, nearby)
    instructions = (
        episode.instruction
        for name, task in TASKS.items()
        for file in DataFolder(world_folder).splits(name).values()
        for episode in task.read(file)
    )
    write_text(world_folder / "tokenizer/vocab.txt", "\n".join(build_wordpiece(instructions)) + "\n")
    write_augmentation(world_folder, extra_paths, WordPiece.read(world_folder / "tokenizer/vocab.txt"))
    write_manifest(world_folder)


def _capture_houses(
    scene_ids: Sequence[str], config: WorldConfig, processes: int, progress: ProgressBar
) -> Iterator[CapturedHouse]:
    """Yield every house and its captures, in the order of `scene_ids`. Houses are rendered in parallel."""
    functions = [partial(_capture_house, scene, config.seed, config.preset.height) for scene in scene_ids]
    captured: Iterator[CapturedHouse]
    if processes > 1:
        jobs = [Job(scene, function) for scene, function in zip(scene_ids, functions, strict=True)]
        captured = iterate_jobs(jobs, processes=processes)
    else:
        captured = (function() for function in functions)
    for _ in progress(range(len(scene_ids)), "houses"):
        yield next(captured)


def _capture_house(scene_id: str, seed: int, height: int, _send: object = None) -> CapturedHouse:
    house = generate_house(scene_id, seed)
    renderer, encoder = Renderer(house, height=height), make_encoder(ENCODER)
    viewpoints = range(len(house.viewpoints))
    return house, [capture_viewpoint(house, renderer, index, encoder) for index in viewpoints]


def _write_house(world_folder: Path, house: House, captures: Sequence[ViewpointCapture]) -> None:
    """Write the panoramas and the connectivity file of one house."""
    adjacent = np.zeros((len(house.viewpoints), len(house.viewpoints)), dtype=bool)
    for a, b in house.edges:
        adjacent[a, b] = adjacent[b, a] = True
    records = []
    for index, (viewpoint, capture) in enumerate(zip(house.viewpoints, captures, strict=True)):
        x, y, z = viewpoint.position
        records.append(
            {
                "image_id": viewpoint.viewpoint_id,
                "pose": [1, 0, 0, x, 0, 1, 0, y, 0, 0, 1, z, 0, 0, 0, 1],
                "included": True,
                "visible": capture.visible.tolist(),
                "unobstructed": adjacent[index].tolist(),
                "height": CAMERA_HEIGHT,
            }
        )
        with atomic_open(world_folder / f"panoramas/{house.scene_id}/{viewpoint.viewpoint_id}.jpg") as file:
            file.write(capture.jpeg)
    write_json(world_folder / f"connectivity/{house.scene_id}_connectivity.json", records)


def _sample_all_paths(
    config: WorldConfig, visibility: Mapping[str, Visibility]
) -> tuple[dict[str, list[AnnotatedPath]], list[AnnotatedPath]]:
    """Return a dict from split to its paths, and a list of extra paths in the training houses.

    No path of `val_seen` and no extra path is a path of `train`. `visibility` is keyed by scene id.
    """
    preset = config.preset
    paths: dict[str, list[AnnotatedPath]] = {split: [] for split in SPLITS}
    extra_paths: list[AnnotatedPath] = []
    path_id = 0
    for split, scene_ids in config.scene_ids().items():
        if split == "val_seen":
            continue
        num_seen = preset.num_paths["val_seen"] if split == "train" else 0
        num_extra = preset.num_extra_paths if split == "train" else 0
        num_split = preset.num_paths[split] + num_seen
        for scene in scene_ids:
            seed_text = f"{scene} {config.seed} walks"  # another text would give other paths
            digest = hashlib.sha256(seed_text.encode()).digest()
            generator = np.random.default_rng(int.from_bytes(digest[:8]))
            sampled = sample_paths(visibility[scene], num_split + num_extra, generator, first_id=path_id)
            in_split = sampled[:num_split]
            extra_paths += sampled[num_split:]
            path_id += len(in_split)
            num_train = len(in_split) - min(num_seen, len(in_split) // 4 * 2)
            paths[split] += in_split[:num_train]
            paths["val_seen"] += in_split[num_train:]
    return paths, extra_paths


def _write_tasks(
    world_folder: Path,
    config: WorldConfig,
    paths_by_split: PathsBySplit,
    nearby: Mapping[str, Sequence[Mapping[str, object]]],
) -> None:
    """Write the files of all tasks, and a JSON summary of the world.

    `nearby` maps `<scene>_<viewpoint>` to the object records of that viewpoint.
    """
    generator = np.random.default_rng(config.seed)
    write_r2r(world_folder, paths_by_split)
    write_rxr(world_folder, paths_by_split, generator)
    object_ids = {key: [str(item["id"]) for item in objects] for key, objects in nearby.items()}
    write_reverie(world_folder, paths_by_split, object_ids)
    write_cvdn(world_folder, paths_by_split, generator)
    write_tour_file(world_folder, SPLITS, longest=LONGEST_TOUR, seed=config.seed)
    paths = [path for group in paths_by_split.values() for path in group]
    houses = {path.scene_id: path.visibility.house for path in paths}
    num_words = [len(text.split()) for path in paths for text in path.instructions]
    summary = {
        "version": __version__,
        "size": config.size,
        "seed": config.seed,
        "scenes": config.scenes,
        "houses": len(houses),
        "viewpoints": sum(len(house.viewpoints) for house in houses.values()),
        "instructions": len(num_words),
        "words_per_instruction": round(sum(num_words) / max(1, len(num_words)), 2),
        "instructions_needing_memory": round(fraction_needing_memory(paths), 4),
    }
    write_json(world_folder / COMPANION, summary, indent=1)
