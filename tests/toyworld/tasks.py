"""The tasks of the toy world: walks through its houses, told in a few phrases, in each dataset's own form."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from esceme.files import write_json, writing
from esceme.tasks.r2r import Record
from esceme.tasks.r4r import join_paths
from esceme.world.geometry import direction, wrap
from esceme.world.graph import SceneGraph
from toyworld.house import ROOM_NAMES, House, Thing, plain

SPLITS = {
    "train": (("toy-cottage", 10), ("toy-villa", 22)),
    "val_seen": (("toy-cottage", 4), ("toy-villa", 8)),
    "val_unseen": (("toy-house", 14),),
    "test": (("toy-house", 6),),
}
"""Split -> its scenes, and how many walks are asked for in each."""
LANGUAGES = ("en-US", "hi-IN")
PHRASES = {
    "left": ("turn left", "बाएँ मुड़ें"),
    "right": ("turn right", "दाएँ मुड़ें"),
    "around": ("turn around", "पीछे मुड़ें"),
    "enter": ("enter the {room}", "{room} में जाएँ"),
    "cross": ("walk through the {room}", "{room} में आगे बढ़ें"),
    "up": ("go up the stairs", "सीढ़ियों से ऊपर जाएँ"),
    "down": ("go down the stairs", "सीढ़ियों से नीचे जाएँ"),
    "stop": ("stop near the {thing}", "वहाँ रुकें"),
    "and": (" and ", " और "),
    "end": (". ", "। "),
}
"""What instructions are made of, in each of the languages."""
HINDI_ROOMS = "स्नानघर शयनकक्ष भोजनकक्ष गलियारे पुस्तकालय धुलाईघर रसोई बैठक दफ़्तर बरामदे सीढ़ियों"
"""The words for `ROOM_NAMES`, in their order, inflected for what follows."""


class Walk(NamedTuple):
    """A shortest path of a house and the heading at its start."""

    house: House
    path_id: int
    path: list[str]
    heading: float

    @property
    def target(self) -> Thing | None:
        """The nearest object where the walk ends; None where none is in sight."""
        near = self.house.look(self.house.names.index(self.path[-1]))
        return min(near, key=lambda sighted: sighted.distance).thing if near else None


Walks = Mapping[str, Sequence[Walk]]
"""Walks by split."""


def take_walks(
    houses: Mapping[str, House], graphs: Mapping[str, SceneGraph], rng: np.random.Generator
) -> Walks:
    """Different shortest paths; every second one begins where the one before it ends."""
    waiting = {scene: _paths(graph, rng) for scene, graph in graphs.items()}
    numbers = count(1)
    walks: dict[str, list[Walk]] = {split: [] for split in SPLITS}
    for split, shares in SPLITS.items():
        for scene, share in shares:
            end = None
            for _ in range(share):
                follows = [path for path in waiting[scene] if path[0] == end]
                path = (follows or waiting[scene])[0]
                waiting[scene].remove(path)
                end = None if follows else path[-1]
                facing = _bearings(graphs[scene], path)[0] + rng.choice([0, 0.5, 1, 1.5]) * np.pi
                heading = round(float((facing + rng.uniform(-0.3, 0.3)) % (2 * np.pi)), 3)
                walks[split].append(Walk(houses[scene], next(numbers), path, heading))
    return walks


def _paths(graph: SceneGraph, rng: np.random.Generator) -> list[list[str]]:
    """Every shortest path of 3 to 6 edges, shuffled so that the lengths take turns while they last."""
    paths = [graph.shortest_path(a, b) for a in graph.viewpoints for b in graph.viewpoints]
    shuffled = [paths[index] for index in rng.permutation(len(paths))]
    of_length = [[path for path in shuffled if len(path) == length] for length in range(4, 8)]
    return [path for turn in zip_longest(*of_length) for path in turn if path is not None]


def _bearings(graph: SceneGraph, path: Sequence[str]) -> NDArray[np.float64]:
    places = graph.positions[[graph.index(viewpoint) for viewpoint in path]]
    return direction(np.diff(places, axis=0)).heading


def _steps(walk: Walk, graph: SceneGraph) -> Iterator[tuple[str, str, str]]:
    """What to do at each edge: (turn or '', way of moving, room that is reached)."""
    bearings = [walk.heading, *_bearings(graph, walk.path)]
    heights = graph.positions[[graph.index(viewpoint) for viewpoint in walk.path], 2]
    rooms = [walk.house.room_name(viewpoint) for viewpoint in walk.path]
    for edge, (before, after) in enumerate(zip(bearings, bearings[1:], strict=False)):
        angle = float(wrap(after - before))
        turn = "" if abs(angle) < 0.6 else "around" if abs(angle) > 2.6 else "right" if angle > 0 else "left"
        climb = heights[edge + 1] - heights[edge]
        move = "cross" if rooms[edge] == rooms[edge + 1] else "enter"
        yield turn, move if abs(climb) < 0.5 else "up" if climb > 0 else "down", rooms[edge + 1]


def _landmark(walk: Walk) -> str:
    """What stands where the walk ends, else the room."""
    if walk.target is None:
        return f"middle of the {walk.house.room_name(walk.path[-1])}"
    return plain(walk.target.name)


def _in_detail(walk: Walk, graph: SceneGraph, language: int = 0) -> str:
    """Every turn and room, one sentence each; straight on through the same room is said once."""
    words = {key: phrases[language] for key, phrases in PHRASES.items()}
    rooms = dict(
        zip(ROOM_NAMES.values(), [list(ROOM_NAMES.values()), HINDI_ROOMS.split()][language], strict=True)
    )
    sentences: list[str] = []
    for turn, move, room in _steps(walk, graph):
        parts = [words[turn]] if turn else []
        sentence = words["and"].join([*parts, words[move].format(room=rooms[room])])
        sentences += [] if sentences[-1:] == [sentence] else [sentence]
    sentences.append(words["stop"].format(thing=_landmark(walk)))
    return "".join(f"{sentence[0].upper()}{sentence[1:]}{words['end']}" for sentence in sentences)


def _instructions(walk: Walk, graph: SceneGraph) -> list[str]:
    """The same walk told in detail, by its rooms, and by its first turn and its end."""
    rooms = [walk.house.room_name(viewpoint) for viewpoint in walk.path]
    passed = [room for before, room in zip(rooms, rooms[1:], strict=False) if room != before]
    thing = _landmark(walk)
    route = f"Leave the {rooms[0]}" if passed else f"Stay in the {rooms[0]}"
    for room in passed[:-1]:
        route += f", go through the {room}" if room != "stairs" else ", take the stairs"
    first = {"": "go straight ahead", "around": "go back the way you came"}
    turn = next(_steps(walk, graph))[0]
    begin = first.get(turn, f"turn {turn}")
    return [
        _in_detail(walk, graph),
        f"{route}{f' and walk into the {passed[-1]}' if passed else ''}. Wait beside the {thing}. ",
        f"From the {rooms[0]}, {begin}. Continue to the {rooms[-1]} until you reach the {thing}. ",
    ]


# -- the files -------------------------------------------------------------------------------------------


def write_r2r(root: Path, walks: Walks, graphs: Mapping[str, SceneGraph]) -> None:
    """R2R and, made from it, R4R."""
    for split, asked in walks.items():
        records = [_r2r(walk, graphs[walk.house.scene_id]) for walk in asked]
        if split == "test":
            for record in records:
                record.path, record.distance = record.path[:1], None
        else:
            write_json(root / f"R4R/R4R_{split}.json", list(join_paths(records, graphs)))
        write_json(root / f"R2R/R2R_{split}.json", records)


def _r2r(walk: Walk, graph: SceneGraph) -> Record:
    return Record(
        scan=walk.house.scene_id,
        path_id=walk.path_id,
        path=walk.path,
        heading=walk.heading,
        instructions=_instructions(walk, graph),
        distance=round(graph.distance(walk.path[0], walk.path[-1]), 2),
    )


def write_rxr(root: Path, walks: Walks, graphs: Mapping[str, SceneGraph]) -> None:
    """RxR guide annotations in two languages."""
    numbers = count(1)
    for split, asked in walks.items():
        name = "test_standard_public" if split == "test" else split
        lines = []
        for walk in asked:
            for language, tag in enumerate(LANGUAGES):
                text = _in_detail(walk, graphs[walk.house.scene_id], language).strip()
                lines.append(msgspec.json.encode(_rxr(walk, name, next(numbers), tag, text)) + b"\n")
        with writing(root / f"RxR/rxr_{name}_guide.jsonl.gz") as file:
            file.write(gzip.compress(b"".join(lines), mtime=0))


def _rxr(walk: Walk, split: str, number: int, language: str, text: str) -> dict[str, object]:
    words = text.split()
    timed = [
        {"word": word, "start_time": place / 2, "end_time": place / 2 + 0.4}
        for place, word in enumerate(words)
    ]
    known = {} if split.startswith("test") else {"path_id": walk.path_id}
    return {
        "split": split,
        "instruction_id": number,
        "annotator_id": 1 + number % 3,
        "language": language,
        **known,
        "scan": walk.house.scene_id,
        "path": walk.path if known else walk.path[:1],
        "heading": walk.heading,
        "instruction": text,
        "timed_instruction": timed,
        "edit_distance": 0.0,
    }


def write_reverie(root: Path, walks: Walks) -> None:
    """REVERIE: an object to find where the walk ends."""
    for split, asked in walks.items():
        records: list[dict[str, object]] = []
        for walk in asked:
            thing = walk.target
            if thing is None:
                continue
            room, name = walk.house.room_name(walk.path[-1]), plain(thing.name)
            orders = [
                f"Go to the {room} and clean the {name}",
                f"Find the {name} in the {room} and wait there",
            ]
            common = {"instructions": orders, "heading": walk.heading, "scan": walk.house.scene_id}
            if split == "test":
                records.append({"id": f"{walk.path_id}", "path": walk.path[:1], **common})
            else:
                identity = {"id": f"{walk.path_id}_{thing.object_id}", "path": walk.path}
                records.append({**identity, "objId": thing.object_id, **common, "path_id": walk.path_id})
        write_json(root / f"REVERIE/v2_REVERIE_{split}.json", records)


def write_cvdn(root: Path, walks: Walks, graphs: Mapping[str, SceneGraph]) -> None:
    """Navigation from Dialog History: per walk a request, then a question half-way."""
    numbers = count(0)
    for split in ("val_seen", "val_unseen"):
        records: list[dict[str, Any]] = []
        for game, walk in enumerate(walks[split]):
            if walk.target is not None:
                graph, half = graphs[walk.house.scene_id], len(walk.path) // 2
                records.append(_ndh(walk, graph, game, next(numbers), begin=0, stop=half))
                stop = len(walk.path) - 1 - (game % 3 == 2)
                records.append(_ndh(walk, graph, game, next(numbers), begin=half, stop=stop))
        write_json(root / f"CVDN/{split}.json", records)


def _ndh(walk: Walk, graph: SceneGraph, game: int, number: int, *, begin: int, stop: int) -> dict[str, Any]:
    """One instance: the player stands at `begin` of the walk and, once answered, goes on to `stop`."""
    assert walk.target is not None
    here, player = walk.path[begin], walk.path[begin : stop + 1]
    ends = [name for name in walk.house.sees(walk.target) if name in graph]
    planner = graph.shortest_path(here, min(ends, key=lambda end: graph.distance(here, end)))[:6]
    room = walk.house.room_name(walk.path[-1])
    messages = {"navigator": "Where should I go from here?", "oracle": f"Go on to the {room}."}
    heading = (
        walk.heading if begin == 0 else round(float(_bearings(graph, walk.path)[begin - 1] % (2 * np.pi)), 6)
    )
    camera = {"heading": heading, "elevation": 17.5, "pano": here}
    return {
        **_rate(player, planner, graph),
        "oracle_game_quality": 5,
        "dialog_history": [
            {"nav_idx": begin, "role": role, "message": text} for role, text in messages.items() if begin
        ],
        "planner_path": planner,
        "end_panos": ends,
        "player_path": player,
        "oracle_avg_quality": 4.5,
        "navigator_avg_quality": 4.25,
        "nav_history": walk.path[: begin + 1] if begin else [],
        "navigator_game_quality": 4,
        "game_idx": game,
        "target": plain(walk.target.name),
        "inst_idx": number,
        "scan": walk.house.scene_id,
        "start_pano": camera,
        "nav_camera": [camera] if begin else [],
    }


def _rate(player: Sequence[str], planner: Sequence[str], graph: SceneGraph) -> dict[str, float]:
    """How well the player's path reaches the planner's end, stopping where it did or where it should have."""
    left = [graph.distance(viewpoint, planner[-1]) for viewpoint in player]
    walked = np.cumsum([0, *(graph.distance(a, b) for a, b in zip(player, player[1:], strict=False))])
    near = [place for place, rest in enumerate(left) if rest < 3]

    def spl(place: int) -> float:
        return left[0] / max(left[0], float(walked[place])) if left[0] else float(place == 0)

    return {
        "R2R_success": int(left[-1] < 3),
        "R2R_spl": spl(len(player) - 1) if left[-1] < 3 else 0.0,
        "R2R_oracle_success": int(bool(near)),
        "R2R_oracle_spl": spl(near[0]) if near else 0.0,
    }
