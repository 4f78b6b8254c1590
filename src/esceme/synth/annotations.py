"""The tasks of the generated world in each dataset's own form: R2R, R4R, RxR, REVERIE, NDH, tours."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from esceme.files import atomic_open, write_json
from esceme.synth import hindi
from esceme.synth.language import Clause, say
from esceme.synth.walks import Walk
from esceme.tasks.r2r import R2RRecord, read_r2r
from esceme.tasks.r4r import join_paths
from esceme.tasks.text import WordPiece
from esceme.tasks.tours import make_tours, write_tours
from esceme.world.geometry import direction

Walks = Mapping[str, Sequence[Walk]]
"""Walks by split; the goals of `test` are withheld."""
Json = dict[str, Any]


def write_r2r(root: Path, walks: Walks) -> None:
    """R2R and, made from it by our own maker, R4R."""
    graphs = {walk.scene_id: walk.sights.graph for asked in walks.values() for walk in asked}
    for split, asked in walks.items():
        records = [
            R2RRecord(
                scan=walk.scene_id,
                path_id=walk.path_id,
                path=walk.viewpoints,
                heading=walk.heading,
                instructions=list(walk.texts),
                distance=round(walk.sights.graph.distance(walk.viewpoints[0], walk.viewpoints[-1]), 2),
            )
            for walk in asked
        ]
        if split == "test":
            for record in records:
                record.path, record.distance = record.path[:1], None
        else:
            write_json(root / f"R4R/R4R_{split}.json", list(join_paths(records, graphs)))
        write_json(root / f"R2R/R2R_{split}.json", records)


def write_augmentation(root: Path, walks: Sequence[Walk], tokenizer: WordPiece) -> None:
    """More walks of the houses of train in the form of PREVALENT's: a record an instruction, with its ids."""
    records = [
        R2RRecord(
            scan=walk.scene_id,
            path_id=f"more-{number}-{told}",
            path=walk.viewpoints,
            heading=walk.heading,
            instructions=[text],
            instr_encodings=[tokenizer.encode(text)],
        )
        for number, walk in enumerate(walks)
        for told, text in enumerate(walk.texts)
    ]
    write_json(root / "R2R/prevalent_aug_train_enc.json", records)


def write_tour_file(root: Path, splits: Iterable[str], *, longest: int, seed: int) -> None:
    """Tours over the episodes of R2R."""
    episodes = {split: read_r2r(root / f"R2R/R2R_{split}.json") for split in splits if split != "test"}
    made = {split: make_tours(each, longest=longest, seed=seed) for split, each in episodes.items()}
    write_tours(root / "tours/tours_iVLN.json", made)


# -- RxR -------------------------------------------------------------------------------------------------


def write_rxr(root: Path, walks: Walks, generator: np.random.Generator) -> None:
    """RxR guide annotations: every cue of every step is told, in English and in Hindi."""
    numbers = count(1)
    for split, asked in walks.items():
        name = "test_standard_public" if split == "test" else split
        lines = []
        for walk in asked:
            detail = _in_detail(walk)
            for language, text in (("en-US", say(detail, generator).strip()), ("hi-IN", hindi.say(detail))):
                lines.append(msgspec.json.encode(_rxr(walk, name, next(numbers), language, text)) + b"\n")
        with atomic_open(root / f"RxR/rxr_{name}_guide.jsonl.gz") as file:
            file.write(gzip.compress(b"".join(lines), mtime=0))


def _in_detail(walk: Walk) -> list[Clause]:
    """Every telling's cues for each step, put together."""
    merged = []
    for step in zip(*walk.told, strict=True):
        merged.append(
            Clause(
                direction=next((each.direction for each in step if each.direction), None),
                counted=next((each.counted for each in step if each.counted), None),
                landmark=next((each.landmark for each in step if each.landmark), None),
                beyond=next((each.beyond for each in step if each.beyond), None)
                if not any(each.direction or each.landmark or each.counted for each in step)
                else None,
                stop=step[0].stop,
                room=next((each.room for each in step if each.room), ""),
            )
        )
    return merged


def _rxr(walk: Walk, split: str, number: int, language: str, text: str) -> Json:
    timed = [
        {"word": word, "start_time": place / 2, "end_time": place / 2 + 0.4}
        for place, word in enumerate(text.split())
    ]
    known = {} if split.startswith("test") else {"path_id": walk.path_id}
    return {
        "split": split,
        "instruction_id": number,
        "annotator_id": 1 + number % 3,
        "language": language,
        **known,
        "scan": walk.scene_id,
        "path": walk.viewpoints if known else walk.viewpoints[:1],
        "heading": walk.heading,
        "instruction": text,
        "timed_instruction": timed,
        "edit_distance": 0.0,
    }


# -- REVERIE ---------------------------------------------------------------------------------------------


def write_reverie(root: Path, walks: Walks, near: Mapping[str, Sequence[str]]) -> None:
    """REVERIE: something within three metres of where the walk ends; `near` lists it by place."""
    for split, asked in walks.items():
        records: list[Json] = []
        for walk in asked:
            objects = near[f"{walk.scene_id}_{walk.viewpoints[-1]}"]
            if objects:
                records.append(_reverie(walk, objects[0], withheld=split == "test"))
        write_json(root / f"REVERIE/v2_REVERIE_{split}.json", records)


def _reverie(walk: Walk, object_id: str, *, withheld: bool) -> Json:
    house = walk.sights.house
    thing = next(each for each in house.furniture if each.object_id == object_id)
    room = house.rooms[thing.room].kind
    name = f"{thing.surface.colour} {thing.name}"
    common = {
        "instructions": [f"Go to the {room} and clean the {name}", f"Find the {thing.name} in the {room}"],
        "heading": walk.heading,
        "scan": walk.scene_id,
    }
    if withheld:
        return {"id": f"{walk.path_id}", "path": walk.viewpoints[:1], **common}
    identity = {"id": f"{walk.path_id}_{object_id}", "path": walk.viewpoints, "objId": int(object_id)}
    return {**identity, **common, "path_id": walk.path_id}


# -- NDH -------------------------------------------------------------------------------------------------


def write_cvdn(root: Path, walks: Walks, generator: np.random.Generator) -> None:
    """Navigation from Dialog History: a walk from the start, and one from half-way after a question."""
    numbers = count(0)
    for split, asked in walks.items():
        records: list[Json] = []
        for game, walk in enumerate(asked):
            half = len(walk.path) // 2
            for begin, stop in ((0, half), (half, len(walk.path) - 1 - (game % 3 == 2))):
                records.append(_ndh(walk, game, next(numbers), begin, stop, generator))
        if split == "test":
            hidden = ("end_panos", "player_path", "planner_path", "game_idx")
            records = [
                {k: v for k, v in each.items() if k not in hidden and not k.startswith("R2R_")}
                for each in records
            ]
        write_json(root / f"CVDN/{split}.json", records)


def _ndh(walk: Walk, game: int, number: int, begin: int, stop: int, generator: np.random.Generator) -> Json:
    """One instance: the player stands at `begin` of the walk and, once answered, goes on to `stop`."""
    graph, names = walk.sights.graph, walk.viewpoints
    here, player = names[begin], names[begin : stop + 1]
    ends = [
        graph.viewpoints[place]
        for place in range(len(graph))
        if graph.distances[place, walk.path[-1]] < 2.0 and walk.target in walk.sights.around(place)
    ]
    planner = graph.shortest_path(here, min(ends, key=lambda end: graph.distance(here, end)))[:6]
    answer = say(walk.told[0][begin : stop + 1], generator).strip()
    dialog = [
        {"nav_idx": begin, "role": "navigator", "message": "Where should I go from here?"},
        {"nav_idx": begin, "role": "oracle", "message": answer},
    ]
    camera = {"heading": _facing(walk, begin), "elevation": 17.5, "pano": here}
    return {
        **_rates(player, planner, walk),
        "dialog_history": dialog if begin else [],
        "planner_path": planner,
        "player_path": player,
        "end_panos": ends,
        "nav_history": names[: begin + 1] if begin else [],
        "nav_camera": [camera] if begin else [],
        "start_pano": camera,
        "target": str(walk.target),
        "game_idx": game,
        "inst_idx": number,
        "scan": walk.scene_id,
        "oracle_game_quality": 5,
        "oracle_avg_quality": 4.5,
        "navigator_game_quality": 4,
        "navigator_avg_quality": 4.25,
    }


def _facing(walk: Walk, step: int) -> float:
    if step == 0:
        return walk.heading
    places = walk.sights.graph.positions[[walk.path[step - 1], walk.path[step]]]
    return round(float(direction(places[1] - places[0]).heading % (2 * np.pi)), 6)


def _rates(player: Sequence[str], planner: Sequence[str], walk: Walk) -> Json:
    """How well the player's path reaches the planner's end, stopping where it did or where it should have."""
    graph = walk.sights.graph
    left = [graph.distance(name, planner[-1]) for name in player]
    walked = np.cumsum([0.0, *(graph.distance(a, b) for a, b in zip(player, player[1:], strict=False))])
    near = [place for place, rest in enumerate(left) if rest < 3]

    def spl(place: int) -> float:
        return left[0] / max(left[0], float(walked[place])) if left[0] else float(place == 0)

    return {
        "R2R_success": int(left[-1] < 3),
        "R2R_spl": spl(len(player) - 1) if left[-1] < 3 else 0.0,
        "R2R_oracle_success": int(bool(near)),
        "R2R_oracle_spl": spl(near[0]) if near else 0.0,
    }
