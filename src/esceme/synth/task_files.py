"""Task files of the generated world in the datasets' own formats: R2R, R4R, RxR, REVERIE, NDH, tours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from esceme.files import atomic_open, compress_gzip, write_json
from esceme.synth.annotated_paths import AnnotatedPath
from esceme.synth.hindi import clauses_to_hindi
from esceme.synth.instructions import Clause, clauses_to_text
from esceme.tasks.r2r import R2RRecord, read_r2r
from esceme.tasks.r4r import join_paths
from esceme.tasks.text import WordPiece
from esceme.tasks.tours import make_tours, write_tours
from esceme.world.geometry import direction

PathsBySplit = Mapping[str, Sequence[AnnotatedPath]]
"""Split -> its paths. All files omit the goals of the split `test`."""
Json = dict[str, Any]
T = TypeVar("T")


def write_r2r(world_folder: Path, paths_by_split: PathsBySplit) -> None:
    """Write the R2R files of all splits, and R4R files, in which pairs of R2R paths are joined."""
    graphs = {path.scene_id: path.visibility.graph for paths in paths_by_split.values() for path in paths}
    for split, paths in paths_by_split.items():
        is_test = split == "test"
        records = [
            R2RRecord(
                scan=path.scene_id,
                path_id=path.path_id,
                path=path.viewpoints[:1] if is_test else path.viewpoints,
                heading=path.heading,
                instructions=list(path.instructions),
                distance=None if is_test else round(path.length, 2),
            )
            for path in paths
        ]
        if not is_test:
            write_json(world_folder / f"R4R/R4R_{split}.json", list(join_paths(records, graphs)))
        write_json(world_folder / f"R2R/R2R_{split}.json", records)


def write_augmentation(world_folder: Path, paths: Sequence[AnnotatedPath], tokenizer: WordPiece) -> None:
    """Write extra training paths in PREVALENT's format: one record per instruction, with token ids."""
    records = [
        R2RRecord(
            scan=path.scene_id,
            path_id=f"more-{number}-{index}",
            path=path.viewpoints,
            heading=path.heading,
            instructions=[text],
            instr_encodings=[tokenizer.encode(text)],
        )
        for number, path in enumerate(paths)
        for index, text in enumerate(path.instructions)
    ]
    write_json(world_folder / "R2R/prevalent_aug_train_enc.json", records)


def write_tour_file(world_folder: Path, splits: Iterable[str], *, longest: int, seed: int) -> None:
    """Write tours of the R2R episodes of all splits except `test`. A tour has at most `longest` episodes."""
    episodes = {
        split: read_r2r(world_folder / f"R2R/R2R_{split}.json") for split in splits if split != "test"
    }
    tours = {split: make_tours(group, longest=longest, seed=seed) for split, group in episodes.items()}
    write_tours(world_folder / "tours/tours_iVLN.json", tours)


# -- RxR -------------------------------------------------------------------------------------------------


def write_rxr(world_folder: Path, paths_by_split: PathsBySplit, generator: np.random.Generator) -> None:
    """Write the RxR guide annotations of all splits: per path one English and one Hindi instruction."""
    ids = count(1)
    for split, paths in paths_by_split.items():
        name = "test_standard_public" if split == "test" else split
        lines = []
        for path in paths:
            clauses = _merge_cues(path)
            english = clauses_to_text(clauses, generator).strip()
            for language, text in (("en-US", english), ("hi-IN", clauses_to_hindi(clauses))):
                lines.append(msgspec.json.encode(_rxr_record(path, name, next(ids), language, text)) + b"\n")
        with atomic_open(world_folder / f"RxR/rxr_{name}_guide.jsonl.gz") as file:
            file.write(compress_gzip(b"".join(lines)))


def _merge_cues(path: AnnotatedPath) -> list[Clause]:
    """Return one clause per step of a path, with the cues of all its instructions.

    A `beyond` cue (an object visible only from the next viewpoint) is used only if no instruction has a
    visible cue.
    """

    def first(values: Iterable[T | None]) -> T | None:
        return next((value for value in values if value), None)

    merged = []
    for step in zip(*path.clauses, strict=True):
        has_visible_cue = any(clause.direction or clause.landmark or clause.nth_candidate for clause in step)
        merged.append(
            Clause(
                direction=first(clause.direction for clause in step),
                nth_candidate=first(clause.nth_candidate for clause in step),
                landmark=first(clause.landmark for clause in step),
                beyond=None if has_visible_cue else first(clause.beyond for clause in step),
                stop=step[0].stop,
                room=first(clause.room for clause in step) or "",
            )
        )
    return merged


def _rxr_record(path: AnnotatedPath, split: str, number: int, language: str, text: str) -> Json:
    timed = [
        {"word": word, "start_time": index / 2, "end_time": index / 2 + 0.4}
        for index, word in enumerate(text.split())
    ]
    path_id = {} if split.startswith("test") else {"path_id": path.path_id}
    return {
        "split": split,
        "instruction_id": number,
        "annotator_id": 1 + number % 3,
        "language": language,
        **path_id,
        "scan": path.scene_id,
        "path": path.viewpoints if path_id else path.viewpoints[:1],
        "heading": path.heading,
        "instruction": text,
        "timed_instruction": timed,
        "edit_distance": 0.0,
    }


# -- REVERIE ---------------------------------------------------------------------------------------------


def write_reverie(
    world_folder: Path, paths_by_split: PathsBySplit, nearby_object_ids: Mapping[str, Sequence[str]]
) -> None:
    """Write the REVERIE files of all splits. The target of a path is an object near its last viewpoint.

    `nearby_object_ids` maps `<scene>_<viewpoint>` to the ids of the objects near this viewpoint.
    """
    for split, paths in paths_by_split.items():
        records: list[Json] = []
        for path in paths:
            objects = nearby_object_ids[f"{path.scene_id}_{path.viewpoints[-1]}"]
            if objects:
                records.append(_reverie_record(path, objects[0], is_withheld=split == "test"))
        write_json(world_folder / f"REVERIE/v2_REVERIE_{split}.json", records)


def _reverie_record(path: AnnotatedPath, object_id: str, *, is_withheld: bool) -> Json:
    house = path.visibility.house
    target = next(item for item in house.furniture if item.object_id == object_id)
    room = house.rooms[target.room].kind
    name = f"{target.surface.colour} {target.name}"
    common = {
        "instructions": [f"Go to the {room} and clean the {name}", f"Find the {target.name} in the {room}"],
        "heading": path.heading,
        "scan": path.scene_id,
    }
    if is_withheld:
        return {"id": f"{path.path_id}", "path": path.viewpoints[:1], **common}
    identity = {"id": f"{path.path_id}_{object_id}", "path": path.viewpoints, "objId": int(object_id)}
    return {**identity, **common, "path_id": path.path_id}


# -- NDH -------------------------------------------------------------------------------------------------


def write_cvdn(world_folder: Path, paths_by_split: PathsBySplit, generator: np.random.Generator) -> None:
    """Write the NDH (CVDN) files of all splits, with two instances per path.

    The first instance begins at the start of the path. The second instance begins half-way, after a question
    and its answer.
    """
    numbers = count(0)
    for split, paths in paths_by_split.items():
        records: list[Json] = []
        for game, path in enumerate(paths):
            half = len(path.path) // 2
            for begin, stop in ((0, half), (half, len(path.path) - 1 - (game % 3 == 2))):
                records.append(_ndh_record(path, game, next(numbers), begin, stop, generator))
        if split == "test":
            hidden = ("end_panos", "player_path", "planner_path", "game_idx")
            records = [
                {k: v for k, v in record.items() if k not in hidden and not k.startswith("R2R_")}
                for record in records
            ]
        write_json(world_folder / f"CVDN/{split}.json", records)


def _ndh_record(
    path: AnnotatedPath, game: int, number: int, begin: int, stop: int, generator: np.random.Generator
) -> Json:
    """Return the record of one NDH instance, in which the player moves from step `begin` to step `stop`.

    `game` is the index of the path in its split, and `number` the number of the instance, unique over all
    files.
    """
    graph, names = path.visibility.graph, path.viewpoints
    start, player = names[begin], names[begin : stop + 1]
    ends = [
        graph.viewpoints[index]
        for index in range(len(graph))
        if graph.distances[index, path.path[-1]] < 2.0
        and path.target in path.visibility.seen_in_panorama(index)
    ]
    planner = graph.shortest_path(start, min(ends, key=lambda end: graph.distance(start, end)))[:6]
    answer = clauses_to_text(path.clauses[0][begin : stop + 1], generator).strip()
    dialog = [
        {"nav_idx": begin, "role": "navigator", "message": "Where should I go from here?"},
        {"nav_idx": begin, "role": "oracle", "message": answer},
    ]
    camera = {"heading": _heading_at(path, begin), "elevation": 17.5, "pano": start}
    return {
        **_player_scores(player, planner, path),
        "dialog_history": dialog if begin else [],
        "planner_path": planner,
        "player_path": player,
        "end_panos": ends,
        "nav_history": names[: begin + 1] if begin else [],
        "nav_camera": [camera] if begin else [],
        "start_pano": camera,
        "target": str(path.target),
        "game_idx": game,
        "inst_idx": number,
        "scan": path.scene_id,
        "oracle_game_quality": 5,
        "oracle_avg_quality": 4.5,
        "navigator_game_quality": 4,
        "navigator_avg_quality": 4.25,
    }


def _heading_at(path: AnnotatedPath, step: int) -> float:
    """Return the heading in radians of an agent that has taken `step` steps of the path."""
    if step == 0:
        return path.heading
    before, after = path.visibility.graph.positions[[path.path[step - 1], path.path[step]]]
    return round(float(direction(after - before).heading % (2 * np.pi)), 6)


def _player_scores(player: Sequence[str], planner: Sequence[str], path: AnnotatedPath) -> Json:
    """Return success and SPL of the player's path; the goal is the end of the planner's path.

    Oracle scores are those of a player that stops at the first viewpoint within 3 m of the goal.
    """
    graph = path.visibility.graph
    remaining = [graph.distance(name, planner[-1]) for name in player]
    travelled = np.cumsum([0.0, *(graph.distance(a, b) for a, b in zip(player, player[1:], strict=False))])
    successful = [step for step, distance in enumerate(remaining) if distance < 3]

    def spl(step: int) -> float:
        return remaining[0] / max(remaining[0], float(travelled[step])) if remaining[0] else float(step == 0)

    return {
        "R2R_success": int(remaining[-1] < 3),
        "R2R_spl": spl(len(player) - 1) if remaining[-1] < 3 else 0.0,
        "R2R_oracle_success": int(bool(successful)),
        "R2R_oracle_spl": spl(successful[0]) if successful else 0.0,
    }
