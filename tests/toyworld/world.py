"""A small data folder in the published formats: three toy houses, and every task asked in them.

It exists for tests and for a first look: the files have the layout, the keys and the oddities of the public
datasets (excluded and isolated viewpoints, test episodes without a goal, classifier scores after the
features), but the houses are plain boxes, nobody photographed them, and the instructions are made from a few
phrases. Scores measured here say nothing about real buildings.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

import h5py
import msgspec
import numpy as np
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from esceme.errors import ConfigError
from esceme.files import write_json, write_text, writing
from esceme.tasks.catalogue import TASKS
from esceme.tasks.folder import DataFolder
from esceme.tasks.r2r import read_r2r
from esceme.tasks.tours import make_tours, write_tours
from esceme.world.graph import read_scenes
from toyworld.house import ROOM_NAMES, House, Sighted, build_house, see
from toyworld.tasks import take_walks, write_cvdn, write_r2r, write_reverie, write_rxr

HOUSES = {"toy-cottage": ["kalb"], "toy-villa": ["kdlo", "baij"], "toy-house": ["kdbalo"]}
"""Scene -> the rooms of its storeys, as Matterport labels; no Matterport scene has a dash."""
LONGEST_TOUR = 24
"""Episodes; published tours have up to 100, which would leave one tour per scene here."""


def write_toy_world(root: Path, *, seed: int = 0) -> Path:
    """Write the toy world below `root`, laid out as the public datasets are: the same bytes for a seed."""
    if seed < 0:
        raise ConfigError(f"the seed is {seed}; give 0 or more")
    root = Path(root)
    rng = np.random.default_rng(seed)
    houses = {scene: build_house(scene, storeys, rng) for scene, storeys in HOUSES.items()}
    _write_houses(root, houses, rng)
    graphs = read_scenes(root / "connectivity")
    walks = take_walks(houses, graphs, rng)
    write_r2r(root, walks, graphs)
    write_rxr(root, walks, graphs)
    write_reverie(root, walks)
    write_cvdn(root, walks, graphs)
    toured = {split: read_r2r(root / f"R2R/R2R_{split}.json") for split in walks if split != "test"}
    write_tours(
        root / "tours/tours_iVLN.json",
        {split: make_tours(episodes, longest=LONGEST_TOUR, seed=seed) for split, episodes in toured.items()},
    )
    write_text(root / "tokenizer/vocab.txt", "\n".join(_vocabulary(_texts(root))) + "\n")
    return root


def _write_houses(root: Path, houses: dict[str, House], rng: np.random.Generator) -> None:
    rooms: dict[str, dict[str, tuple[int, str, str]]] = {}
    objects: dict[str, list[dict[str, object]]] = {}
    features = io.BytesIO()
    with h5py.File(features, "w") as file:
        for scene, house in houses.items():
            write_json(root / f"connectivity/{scene}_connectivity.json", list(_connectivity(house, rng)))
            labels = [house.rooms[room].label for room in house.room_of]
            rooms[scene] = {
                name: (int(room), label, label)
                for name, room, label in zip(house.names, house.room_of, labels, strict=True)
            }
            panoramas = see(house, rng)
            for index in np.flatnonzero(house.included):
                key = f"{scene}_{house.names[index]}"
                objects[key] = [_object(sighted) for sighted in house.look(int(index))]
                stored = file.create_dataset(
                    key, data=panoramas[index], compression="gzip", track_times=False
                )
                stored.attrs.update(
                    scanId=scene, viewpointId=house.names[index], image_w=640, image_h=480, vfov=60
                )
    write_text(root / "connectivity/scans.txt", "\n".join(houses) + "\n")
    write_json(root / "rooms/viewpoint_rooms.json", {"label_name": ROOM_NAMES, "panos": rooms})
    with writing(root / "objects/reverie_objects.json.gz") as out:
        out.write(gzip.compress(msgspec.json.encode(objects), mtime=0))
    with writing(root / "features/toy.hdf5") as out:
        out.write(features.getvalue())


def _connectivity(house: House, rng: np.random.Generator) -> Iterator[dict[str, object]]:
    for index, name in enumerate(house.names):
        x, y, z = house.positions[index].tolist()
        yaw = rng.uniform(0, 2 * np.pi)
        c, s = round(float(np.cos(yaw)), 6), round(float(np.sin(yaw)), 6)
        yield {
            "image_id": name,
            "pose": [c, 0, -s, x, s, 0, c, y, 0, -1, 0, z, 0, 0, 0, 1],
            "included": bool(house.included[index]),
            "visible": house.visible[index].tolist(),
            "unobstructed": house.unobstructed[index].tolist(),
            "height": round(z - house.rooms[house.room_of[index]].floor, 6),
        }


def _object(sighted: Sighted) -> dict[str, object]:
    return {
        "boxes": sighted.boxes.tolist(),
        "id": str(sighted.thing.object_id),
        "name": sighted.thing.name,
        "views": sighted.views.tolist(),
    }


def _texts(root: Path) -> Iterator[str]:
    """Every instruction of every task."""
    folder = DataFolder(root)
    for name, task in TASKS.items():
        for file in folder.splits(name).values():
            yield from (episode.instruction for episode in task.read(file))


def _vocabulary(texts: Iterable[str]) -> list[str]:
    """A WordPiece vocabulary: special tokens, every character alone and inside a word, every word."""
    normalizer, splitter = BertNormalizer(lowercase=True), BertPreTokenizer()
    words = {word for text in texts for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))}
    characters = sorted(
        {character for word in words for character in word} | set("abcdefghijklmnopqrstuvwxyz")
    )
    pieces = [*characters, *(f"##{character}" for character in characters)]
    longer = sorted(word for word in words if len(word) > 1)
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces, *longer]
