"""The data doctor: every damage to a sound folder is a finding, and a sound folder has no fault."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from esceme.errors import DataError
from esceme.files import read_records, write_json
from esceme.tasks import doctor
from esceme.tasks.doctor import Finding, examine
from esceme.tasks.r2r import R2RRecord
from esceme.tasks.r4r import join_paths
from esceme.world import open_features, pack, read_scenes
from fixtures.permissions import unprivileged

# Finding levels of missing files. Every scene needs its graph; rooms, tours and vocabulary are optional.
WHEN_REMOVED = {
    **{f"connectivity/toy-{name}_connectivity.json": "fault" for name in ("cottage", "house", "villa")},
    "connectivity/scans.txt": "note",
    **{f"R2R/R2R_{split}.json": "note" for split in ("train", "val_seen", "val_unseen", "test")},
    **{f"R4R/R4R_{split}.json": "note" for split in ("train", "val_seen", "val_unseen")},
    **{
        f"RxR/rxr_{split}_guide.jsonl.gz": "note"
        for split in ("train", "val_seen", "val_unseen", "test_standard_public")
    },
    **{f"CVDN/{split}.json": "note" for split in ("val_seen", "val_unseen")},
    **{f"REVERIE/v2_REVERIE_{split}.json": "note" for split in ("train", "val_seen", "val_unseen", "test")},
    "features/toy.hdf5": "note",
    "objects/reverie_objects.json.gz": "note",
    "rooms/viewpoint_rooms.json": "",
    "tours/tours_iVLN.json": "",
    "tokenizer/vocab.txt": "",
}
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda data: data[: len(data) // 2],
    "without its last bytes": lambda data: data[:-3],
    "empty": lambda data: b"",
    "an empty object": lambda data: b"{}",
}


def part_of(toy_root: Path, root: Path, *names: str) -> Path:
    """Some folders of the toy world, to be damaged: files are links, which `replace` and `save` break."""
    for name in set(names):
        shutil.copytree(toy_root / name, root / name, copy_function=os.link)
    return root


@pytest.fixture
def root(toy_root: Path, tmp_path: Path) -> Path:
    """All of the toy world."""
    return part_of(toy_root, tmp_path / "data", *(path.name for path in toy_root.iterdir()))


@pytest.fixture
def slim(toy_root: Path, tmp_path: Path) -> Path:
    """The toy world without its two largest parts, for tests of the others."""
    names = {path.name for path in toy_root.iterdir()} - {"R4R", "features"}
    return part_of(toy_root, tmp_path / "data", *names)


@pytest.fixture
def seen(toy_root: Path, tmp_path: Path) -> Path:
    """Graphs and features of the toy world."""
    return part_of(toy_root, tmp_path / "data", "connectivity", "features")


def replace(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def load(path: Path) -> Any:
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    if ".jsonl" in path.name:
        return [json.loads(line) for line in data.splitlines()]
    return json.loads(data)


def save(path: Path, value: Any) -> None:
    lines = ".jsonl" in path.name
    data = "\n".join(map(json.dumps, value)).encode() if lines else json.dumps(value).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def change(path: Path, edit: Callable[[Any], object]) -> None:
    value = load(path)
    edit(value)
    save(path, value)


@contextmanager
def features_of(root: Path) -> Iterator[h5py.File]:
    path = root / "features" / "toy.hdf5"
    replace(path, path.read_bytes())
    with h5py.File(path, "r+") as file:
        yield file


def faults(findings: list[Finding], file: str | None = None) -> list[str]:
    return [finding.text for finding in findings if finding.level == "fault" and file in (None, finding.file)]


def only_fault(findings: list[Finding], file: str) -> str:
    """The one fault there is, which must be of that file."""
    assert [finding.file for finding in findings if finding.level == "fault"] == [file]
    return faults(findings)[0]


# -- sound folders ---------------------------------------------------------------------------------------


def test_nothing_is_wrong_with_the_toy_world(toy_root: Path) -> None:
    findings = examine(toy_root, deep=True)
    assert faults(findings) == []
    sound = {finding.file for finding in findings if finding.level == "ok"}
    graphs = {name for name in WHEN_REMOVED if name.startswith("connectivity/")}
    assert sound == set(WHEN_REMOVED) - graphs | {"connectivity"}


def test_examining_changes_nothing(root: Path) -> None:
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in root.rglob("*")}
    examine(root, deep=True)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in root.rglob("*")} == before


def test_user_defined_task_is_examined(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = dataclasses.replace(
        doctor.TASKS["r2r"],
        name="own",
        source="see docs/data.md",
        files=("own/{split}.json",),
        split_sizes={"train": None},
    )
    monkeypatch.setitem(doctor.TASKS, "own", own)
    (root / "own").mkdir()
    (root / "own" / "train.json").write_text("[{}]")
    (found,) = [finding for finding in examine(root) if finding.file == "own/train.json"]
    assert found.level == "fault" and "docs/data.md" in str(found)


def test_graphs_alone_are_a_sound_folder(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "connectivity", tmp_path / "bare" / "connectivity")
    findings = examine(tmp_path / "bare")
    assert [finding.level for finding in findings] == ["ok", "note"]
    assert findings[1].file == "features"


def test_packed_features_are_sound_too(root: Path) -> None:
    pack(open_features(root / "features" / "toy.hdf5", width=32), root / "features" / "fast.npy")
    findings = examine(root, deep=True)
    assert faults(findings) == []
    assert Finding("ok", "features/fast.npy", "66 viewpoints, 32 numbers a view") in findings


@pytest.fixture
def hamt_root(toy_root: Path, tmp_path: Path) -> Path:
    """The toy world in the layout, and in the pre-encoded forms, of the HAMT family of code (spec A.1)."""
    root = tmp_path / "datasets"
    notes = root / "R2R" / "annotations"
    shutil.copytree(toy_root / "connectivity", root / "R2R" / "connectivity")
    shutil.copytree(toy_root / "features", root / "R2R" / "features")
    for task in ("R2R", "R4R"):
        for path in (toy_root / task).iterdir():
            records = load(path)
            for record in records:
                record["instr_encodings"] = [[101, 5, 102]] * len(record["instructions"])
            save(notes / f"{path.stem}_enc.json", records)
    first = load(toy_root / "R2R" / "R2R_train.json")[0]
    encoded = {"path_id": "aug_0", "instructions": ["go"], "instr_encodings": [[101, 5, 102]]}
    save(notes / "prevalent_aug_train_enc.json", [first | encoded])
    for path in (toy_root / "RxR").iterdir():
        records = [record | {"instr_encoding": [0, 9, 2]} for record in load(path)]
        save(
            root / "RxR" / "annotations" / path.name.replace("guide.jsonl.gz", "guide_enc_xlmr.jsonl"),
            records,
        )
    for path in (toy_root / "CVDN").iterdir():
        save(
            root / "CVDN" / "annotations" / "ndh" / f"{path.stem}_enc.json",
            [
                {
                    "instr_id": str(record["inst_idx"]),
                    "scan": record["scan"],
                    "instr_encoding": [101, 7, 102],
                    "start_pano": record["start_pano"]["pano"],
                    "start_heading": record["start_pano"]["heading"],
                    "end_panos": record["end_panos"],
                    "nav_steps": record["player_path"],
                    "nav_idx": 0,
                }
                for record in load(path)
            ],
        )
    shutil.copy(toy_root / "tours" / "tours_iVLN.json", notes)
    return root


def test_layout_of_the_hamt_family_is_recognised(hamt_root: Path, toy_root: Path) -> None:
    findings = examine(hamt_root, deep=True)
    assert faults(findings) == []
    found = {finding.file: finding.text for finding in findings if finding.level == "ok"}
    ours = {finding.file: finding.text for finding in examine(toy_root) if finding.level == "ok"}
    assert found["R2R/connectivity"] == ours["connectivity"]
    assert found["R2R/features/toy.hdf5"] == ours["features/toy.hdf5"]
    assert found["R2R/annotations/tours_iVLN.json"] == ours["tours/tours_iVLN.json"]
    for split in ("train", "val_seen", "val_unseen"):
        assert found[f"R2R/annotations/R2R_{split}_enc.json"] == ours[f"R2R/R2R_{split}.json"]
        assert found[f"R2R/annotations/R4R_{split}_enc.json"] == ours[f"R4R/R4R_{split}.json"]
        encoded = f"RxR/annotations/rxr_{split}_guide_enc_xlmr.jsonl"
        assert found[encoded] == ours[f"RxR/rxr_{split}_guide.jsonl.gz"]
    assert {"CVDN/annotations/ndh/val_seen_enc.json", "CVDN/annotations/ndh/val_unseen_enc.json"} <= set(
        found
    )
    assert found["R2R/annotations/prevalent_aug_train_enc.json"] == "1 paths, 1 instructions, 1 scenes"


def test_damage_in_the_layout_of_the_hamt_family_is_noticed(hamt_root: Path) -> None:
    file = "CVDN/annotations/ndh/val_seen_enc.json"
    change(hamt_root / file, lambda records: records[2].update(end_panos=["nowhere"]))
    fault = only_fault(examine(hamt_root), file)
    assert "viewpoint 'nowhere' is not in scene" in fault


# -- whole files -----------------------------------------------------------------------------------------


def test_every_file_of_the_toy_world_is_damaged_here(toy_root: Path) -> None:
    files = {path.relative_to(toy_root).as_posix() for path in toy_root.rglob("*") if path.is_file()}
    assert files == set(WHEN_REMOVED)


@pytest.fixture(scope="module")
def before(toy_root: Path) -> set[tuple[str, str]]:
    return {(finding.level, finding.file) for finding in examine(toy_root)}


@pytest.mark.parametrize("file", WHEN_REMOVED)
def test_missing_file_is_reported(root: Path, before: set[tuple[str, str]], file: str) -> None:
    (root / file).unlink()
    after = examine(root)
    assert not [finding for finding in after if finding.file == file and finding.level == "ok"]
    levels = {
        finding.level
        for finding in after
        if (finding.level, finding.file) not in before or file in finding.text
    }
    assert (levels & {"fault", "note"} or {""}) >= {WHEN_REMOVED[file]}
    if WHEN_REMOVED[file] != "fault":
        assert faults(after) == []


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", WHEN_REMOVED)
def test_damaged_file_is_a_fault_of_that_file(toy_root: Path, tmp_path: Path, file: str, damage: str) -> None:
    root = part_of(toy_root, tmp_path, "connectivity", "R2R", file.split("/")[0])
    replace(root / file, DAMAGES[damage]((root / file).read_bytes()))
    assert faults(examine(root), file)


@pytest.mark.parametrize("file", [name for name in WHEN_REMOVED if name.endswith(".gz")])
@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"[{}]"])
def test_empty_gzip_file_is_a_fault(toy_root: Path, tmp_path: Path, file: str, content: bytes) -> None:
    root = part_of(toy_root, tmp_path, "connectivity", file.split("/")[0])
    replace(root / file, gzip.compress(content))
    assert faults(examine(root), file)


@pytest.mark.parametrize(
    "file", [name for name in WHEN_REMOVED if name.split("/")[0] not in ("connectivity",)]
)
def test_damage_is_reported_for_the_damaged_file_only(root: Path, file: str) -> None:
    replace(root / file, b"damaged")
    only_fault(examine(root), file)


def test_folder_instead_of_a_file_counts_as_missing(slim: Path) -> None:
    (slim / "rooms" / "viewpoint_rooms.json").unlink()
    (slim / "rooms" / "viewpoint_rooms.json").symlink_to(slim / "rooms" / "viewpoint_rooms.json")
    assert faults(examine(slim)) == []  # a broken link is as good as no file
    (slim / "tokenizer" / "vocab.txt").unlink()
    (slim / "tokenizer" / "vocab.txt").mkdir()
    assert faults(examine(slim)) == []
    (slim / "R2R" / "R2R_train.json").unlink()
    (slim / "R2R" / "R2R_train.json").mkdir()
    notes = [finding.text for finding in examine(slim) if finding.level == "note"]
    assert any(text.startswith("r2r train: no file") for text in notes)


# -- graphs ----------------------------------------------------------------------------------------------

VILLA = "connectivity/toy-villa_connectivity.json"


def test_scene_in_two_parts_is_a_fault(slim: Path) -> None:
    def edit(records: list[dict[str, Any]]) -> None:
        half = len(records) // 2
        for row, record in enumerate(records):
            for column in range(len(records)):
                if (row < half) != (column < half):
                    record["unobstructed"][column] = False

    change(slim / VILLA, edit)
    assert "not every viewpoint can be reached from every other" in faults(examine(slim), VILLA)


def test_broken_graph_is_reported_once_and_its_episodes_are_not_checked(slim: Path) -> None:
    replace(slim / VILLA, b"[")
    findings = examine(slim)
    only_fault(findings, VILLA)
    train = next(finding for finding in findings if finding.file == "R2R/R2R_train.json")
    assert train.level == "note" and "scenes without a graph: paths not checked" in train.text
    assert not [finding for finding in findings if "belong to no viewpoint" in finding.text]


def test_faults_elsewhere_are_found_although_a_graph_is_broken(slim: Path) -> None:
    replace(slim / VILLA, b"[")
    scene = next(
        record["scan"] for record in load(slim / "R2R/R2R_train.json") if "villa" not in record["scan"]
    )

    def edit(records: list[dict[str, Any]]) -> None:
        next(record for record in records if record["scan"] == scene)["path"][1] = "nowhere"

    change(slim / "R2R/R2R_train.json", edit)
    assert "'nowhere' is not in scene" in faults(examine(slim), "R2R/R2R_train.json")[0]


def test_missing_graphs_are_reported_once(slim: Path) -> None:
    shutil.rmtree(slim / "connectivity")
    findings = examine(slim)
    assert "no connectivity folder" in only_fault(findings, "connectivity")
    assert any("paths not checked" in finding.text for finding in findings)


def test_listed_scene_without_a_file_is_a_fault(slim: Path) -> None:
    replace(slim / "connectivity/scans.txt", b"toy-cottage\ntoy-house\ntoy-villa\ntoy-castle\n")
    assert only_fault(examine(slim), "connectivity/toy-castle_connectivity.json").startswith(
        "named in scans.txt"
    )


@pytest.mark.parametrize(("listed", "more"), [("toy-cottage\ntoy-house", ""), ("", " and 2 more scenes")])
def test_scene_that_is_not_listed_is_a_fault(slim: Path, listed: str, more: str) -> None:
    replace(slim / "connectivity/scans.txt", listed.encode())
    fault = only_fault(examine(slim), "connectivity/scans.txt")
    assert fault.startswith("does not name scene 'toy-") and f"'{more}, which is here" in fault


def test_list_that_is_not_text_does_not_hide_the_graphs(slim: Path) -> None:
    replace(slim / "connectivity/scans.txt", b"\xff\xfe")
    findings = examine(slim)
    assert "not UTF-8" in only_fault(findings, "connectivity/scans.txt")
    assert Finding("ok", "connectivity", "3 scenes, 66 viewpoints, 135 edges") in findings


# -- annotations -----------------------------------------------------------------------------------------

TRAIN = {
    "r2r": "R2R/R2R_train.json",
    "rxr": "RxR/rxr_train_guide.jsonl.gz",
    "reverie": "REVERIE/v2_REVERIE_train.json",
}


@pytest.mark.parametrize("task", TRAIN)
@pytest.mark.parametrize("place", [0, 2, -1])
def test_unknown_viewpoint_of_a_path_is_a_fault(slim: Path, task: str, place: int) -> None:
    change(slim / TRAIN[task], lambda records: records[1]["path"].__setitem__(place, "nowhere"))
    fault = only_fault(examine(slim), TRAIN[task])
    assert "episode" in fault and "viewpoint 'nowhere' is not in scene" in fault


@pytest.mark.parametrize("task", TRAIN)
@pytest.mark.parametrize("reason", ["excluded", "isolated"])
def test_excluded_viewpoint_in_a_path_is_a_fault(slim: Path, task: str, reason: str) -> None:
    graphs = read_scenes(slim / "connectivity")
    aside = {
        scene: name
        for scene, graph in graphs.items()
        for name, why in graph.left_out.items()
        if why == reason
    }
    assert aside, "the toy world has no such viewpoint"

    def edit(records: list[dict[str, Any]]) -> None:
        record = next(record for record in records if record["scan"] in aside)
        record["path"][1] = aside[record["scan"]]

    change(slim / TRAIN[task], edit)
    fault = only_fault(examine(slim), TRAIN[task])
    assert ("is excluded from" if reason == "excluded" else "has no edge to any other") in fault


def test_faulty_path_of_r4r_is_a_fault(toy_root: Path, tmp_path: Path) -> None:
    root, file = part_of(toy_root, tmp_path, "connectivity", "R4R"), "R4R/R4R_train.json"
    change(root / file, lambda records: records[5]["path"].insert(3, "nowhere"))
    fault = only_fault(examine(root), file)
    assert "viewpoint 'nowhere' is not in scene" in fault and fault.endswith("and 8 more episodes")


def remove_edge(records: list[dict[str, Any]]) -> None:
    record = next(record for record in records if record["included"] and any(record["unobstructed"]))
    record["unobstructed"][record["unobstructed"].index(True)] = False


def lose_viewpoint(path: str) -> Callable[[list[dict[str, Any]]], None]:
    return lambda records: max(records, key=lambda record: len(record[path]))[path].__setitem__(1, "nowhere")


@pytest.mark.parametrize(
    ("file", "edit", "message"),
    [
        (VILLA, remove_edge, "adjacency is not symmetric"),
        (VILLA, lambda rs: rs[1].update(image_id=rs[0]["image_id"]), "occurs twice"),
        *((file, lambda rs: rs[0].update(scan="castle"), "'castle' is unknown") for file in TRAIN.values()),
        *((file, lambda rs: rs[0]["path"].pop(1), "no edge leads from") for file in TRAIN.values()),
        *((file, lambda rs: rs.append(rs[0]), "occurs twice") for file in TRAIN.values()),
        ("CVDN/val_seen.json", lose_viewpoint("player_path"), "'nowhere' is not in scene"),
        ("CVDN/val_seen.json", lose_viewpoint("planner_path"), "'nowhere' is not in scene"),
        ("CVDN/val_seen.json", lambda rs: rs[0]["end_panos"].append("nowhere"), "'nowhere' is not in scene"),
        ("CVDN/val_seen.json", lambda rs: rs[3].update(end_panos=[]), "has no goal, unlike others"),
        (
            "R2R/R2R_test.json",
            lambda rs: [record.update(instructions=[]) for record in rs],
            "no instructions; expected at least one",
        ),
        (
            "R2R/R2R_val_seen.json",
            lambda rs: rs[7].update(heading="north"),
            "record 7: field 'heading': expected float, got str",
        ),
    ],
)
def test_inconsistent_record_is_the_only_fault(
    slim: Path, file: str, edit: Callable[[Any], object], message: str
) -> None:
    change(slim / file, edit)
    assert message in only_fault(examine(slim), file)


def test_all_faulty_episodes_are_counted(slim: Path) -> None:
    def edit(records: list[dict[str, Any]]) -> None:
        for record in records[3:6]:
            record["path"][-1] = "nowhere"

    change(slim / "R2R/R2R_train.json", edit)
    first = load(slim / "R2R/R2R_train.json")[3]["path_id"]
    fault = only_fault(examine(slim), "R2R/R2R_train.json")
    assert fault.startswith(f"episode {first}_0: ") and fault.endswith("; and 8 more episodes")


@pytest.mark.parametrize(
    ("task", "values", "message"),
    [
        ("r2r", {"heading": 360.0}, "has a heading that is no angle in radians"),
        ("r2r", {"instructions": ["Go.", " \n", ""]}, "has an empty instruction; and 1 more episodes"),
        ("rxr", {"instruction": ""}, "has an empty instruction"),
        ("reverie", {"objId": None}, "has no goal, unlike others; and 1 more episodes"),
    ],
)
def test_episode_that_lacks_something_is_a_fault(
    slim: Path, task: str, values: dict[str, Any], message: str
) -> None:
    change(slim / TRAIN[task], lambda records: records[2].update(values))
    fault = only_fault(examine(slim), TRAIN[task])
    assert fault.startswith("episode ") and message in fault


def test_matterport_split_of_another_size_is_a_fault(slim: Path) -> None:
    """The toy houses under Matterport's kind of names: then the published sizes count."""
    renamed = {"toy-cottage": "AAAAAAAAAAA", "toy-house": "BBBBBBBBBBB", "toy-villa": "CCCCCCCCCCC"}
    for path in [*slim.glob("*/*.json"), slim / "connectivity/scans.txt"]:
        text = path.read_text()
        for old, new in renamed.items():
            text = text.replace(old, new)
            if path.name.startswith(old):
                path.unlink()
                path = path.with_name(path.name.replace(old, new))
        path.unlink(missing_ok=True)
        path.write_text(text)
    findings = examine(slim, tasks=["r2r"])
    graphs = next(finding for finding in findings if finding.file == "connectivity")
    assert graphs.level == "note" and "published: 90 scenes" in graphs.text
    fault = faults(findings, "R2R/R2R_val_seen.json")[0]
    assert fault.startswith("12 paths, 36 instructions, 2 scenes; expected: 340 paths, 1,021 instructions")


# -- which tasks -----------------------------------------------------------------------------------------


def test_missing_split_of_a_required_task_is_a_fault(slim: Path) -> None:
    assert faults(examine(slim, tasks=["r2r"])) == []
    (slim / "R2R/R2R_test.json").unlink()
    assert faults(examine(slim)) == []
    (fault,) = faults(examine(slim, tasks=["r2r"]), "r2r")
    assert fault.startswith(
        "r2r test: no file; looked for R2R/R2R_test.json or R2R/annotations/R2R_test_enc.json"
    )


def test_splits_that_only_hamt_has_are_never_required(root: Path) -> None:
    for task, split in (("r2r", "val_train_seen"), ("r4r", "val_unseen_sampled")):
        findings = examine(root, tasks=[task])
        assert faults(findings) == []
        note = next(finding for finding in findings if finding.file == task)
        assert note.level == "note" and note.text.startswith(f"{task} {split}: no file")
        assert "HAMT" in note.remedy


@pytest.mark.parametrize(("task", "missing"), [("rxr", 1), ("cvdn", 2), ("prevalent", 1), ("reverie", 0)])
def test_missing_splits_of_a_required_task_in_the_toy_world(slim: Path, task: str, missing: int) -> None:
    assert len(faults(examine(slim, tasks=[task]), task)) == missing


def test_other_tasks_are_not_looked_at(slim: Path) -> None:
    replace(slim / "RxR/rxr_train_guide.jsonl.gz", b"damaged")
    assert faults(examine(slim, tasks=["r2r"])) == []


# -- features --------------------------------------------------------------------------------------------

TOY = "features/toy.hdf5"


def keys_of(seen: Path) -> list[str]:
    """Keys that an agent can see, in the order of the store."""
    graphs = read_scenes(seen / "connectivity")
    walked = {f"{scene}_{name}" for scene, graph in graphs.items() for name in graph.viewpoints}
    return [key for key in open_features(seen / TOY).keys if key in walked]


def test_missing_key_is_a_fault(seen: Path) -> None:
    key = keys_of(seen)[5]
    with features_of(seen) as file:
        del file[key]
    assert only_fault(examine(seen), TOY).endswith(f"none for 1 viewpoints, such as '{key}'")


def test_keys_of_unknown_viewpoints_are_a_note(seen: Path) -> None:
    with features_of(seen) as file:
        file["castle_a"] = file["castle_b"] = file[keys_of(seen)[0]][()]
    findings = examine(seen)
    assert faults(findings) == []
    note = next(finding for finding in findings if finding.file == TOY and finding.level == "note")
    assert note.text == "2 keys belong to no viewpoint, such as 'castle_a'"


@pytest.mark.parametrize("place", [0, 30, -1])
@pytest.mark.parametrize("shape", [(36, 35), (36, 37), (35, 36), (36,), (36, 36, 1)])
def test_another_shape_in_one_key_is_a_fault(seen: Path, place: int, shape: tuple[int, ...]) -> None:
    key = keys_of(seen)[place]
    with features_of(seen) as file:
        del file[key]
        file[key] = np.zeros(shape)
    assert f"'{key}' has shape {shape}, most have (36, 36)" in faults(examine(seen), TOY)


def test_group_in_place_of_features_is_a_fault(seen: Path) -> None:
    key = keys_of(seen)[9]
    with features_of(seen) as file:
        del file[key]
        file.create_group(key)
    assert f"'{key}' has shape None, most have (36, 36)" in faults(examine(seen), TOY)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_feature_is_a_fault(seen: Path, value: float) -> None:
    key = keys_of(seen)[5]
    with features_of(seen) as file:
        file[key][17, 3] = value
    assert only_fault(examine(seen), TOY) == f"'{key}' holds NaN or infinity in view 17; extract it again"


def test_faulty_and_missing_keys_are_counted(seen: Path) -> None:
    keys = keys_of(seen)
    with features_of(seen) as file:
        for key in keys[5:8]:
            file[key][0, 0] = np.nan
        del file[keys[20]]
    found = faults(examine(seen), TOY)
    assert found[0].endswith("and 2 more such faults")
    assert keys[20] in found[1]


def test_outside_the_sample_only_the_deep_look_finds_a_fault(
    seen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SAMPLE", 4)
    keys = keys_of(seen)
    with features_of(seen) as file:
        file[keys[1]][0, 0] = np.nan
    assert faults(examine(seen)) == []
    assert keys[1] in only_fault(examine(seen, deep=True), TOY)
    with features_of(seen) as file:
        file[keys[-1]][0, 0] = np.nan
    assert keys[-1] in only_fault(examine(seen), TOY)


def test_non_finite_packed_feature_is_a_fault(seen: Path) -> None:
    path = pack(open_features(seen / TOY), seen / "features" / "fast.npy")
    values = np.lib.format.open_memmap(path, mode="r+")
    values[3, 7, 0] = np.nan
    values.flush()
    fault = only_fault(examine(seen, deep=True), "features/fast.npy")
    assert fault.endswith("holds NaN or infinity in view 7; extract it again")


def test_packed_features_without_their_index_are_a_fault(seen: Path) -> None:
    pack(open_features(seen / TOY), seen / "features" / "fast.npy")
    (seen / "features" / "fast.json").unlink()
    assert "fast.json: no such file" in only_fault(examine(seen), "features/fast.npy")


# -- tours, objects, rooms, vocabulary -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda tour: tour.append("999999_0"), "episode '999999_0' is unknown"),
        (lambda tour: tour.append(tour[0]), "is in two tours"),
        (lambda tour: tour.clear(), "is empty"),
    ],
)
def test_faulty_tour_is_a_fault(slim: Path, edit: Callable[[list[str]], object], message: str) -> None:
    file = "tours/tours_iVLN.json"
    change(slim / file, lambda splits: edit(next(iter(splits["train"].values()))[0]))
    fault = only_fault(examine(slim), file)
    assert fault.startswith("scene 'toy-") and message in fault


def test_tours_of_another_scene_are_a_fault(slim: Path) -> None:
    def edit(splits: dict[str, dict[str, list[list[str]]]]) -> None:
        one, other = splits["train"]
        splits["train"][one], splits["train"][other] = splits["train"][other], splits["train"][one]

    change(slim / "tours/tours_iVLN.json", edit)
    assert "is in scene" in only_fault(examine(slim), "tours/tours_iVLN.json")


def test_tours_of_a_split_that_is_not_here_are_not_checked(slim: Path) -> None:
    change(slim / "tours/tours_iVLN.json", lambda splits: splits.update(prevalent={"toy-villa": [["1_0"]]}))
    findings = examine(slim)
    assert faults(findings) == []
    text = next(finding.text for finding in findings if finding.file == "tours/tours_iVLN.json")
    assert text.endswith("prevalent: 1 tours (no R2R to check them with)")


@pytest.mark.parametrize("key", ["castle_a", "toy-villa_nowhere", "nothing", ""])
def test_objects_of_an_unknown_viewpoint_are_a_fault(slim: Path, key: str) -> None:
    file = "objects/reverie_objects.json.gz"
    change(slim / file, lambda objects: objects.update({key: []}))
    assert only_fault(examine(slim), file).startswith(f"'{key}' belongs to no viewpoint")


def test_object_of_the_wrong_type_names_its_viewpoint(slim: Path) -> None:
    file = "objects/reverie_objects.json.gz"
    key = next(key for key, seen in load(slim / file).items() if seen)
    change(slim / file, lambda objects: objects[key][0].pop("id"))
    assert only_fault(examine(slim), file).startswith(f"entry '{key}': record 0: object missing")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda rooms: rooms["panos"].update(castle={"a": [0, "k", "k"]}),
            "'castle_a' belongs to no viewpoint",
        ),
        (
            lambda rooms: rooms["panos"]["toy-villa"].update(nowhere=[0, "k", "k"]),
            "'toy-villa_nowhere' belongs",
        ),
        (lambda rooms: rooms["label_name"].pop("k"), "label 'k', which label_name does not explain"),
        (lambda rooms: rooms["panos"].clear(), "names no viewpoint"),
        (lambda rooms: next(iter(rooms["panos"]["toy-villa"].values())).clear(), "array"),
        (lambda rooms: rooms.pop("label_name"), "missing required field label_name"),
    ],
)
def test_faulty_rooms_are_a_fault(slim: Path, edit: Callable[[Any], object], message: str) -> None:
    change(slim / "rooms/viewpoint_rooms.json", edit)
    assert message in only_fault(examine(slim), "rooms/viewpoint_rooms.json")


def test_vocabulary_without_its_special_pieces_is_a_fault(slim: Path) -> None:
    text = (slim / "tokenizer/vocab.txt").read_bytes()
    replace(slim / "tokenizer/vocab.txt", text.replace(b"[SEP]\n", b""))
    assert "none is [SEP]" in only_fault(examine(slim), "tokenizer/vocab.txt")


# -- folders ---------------------------------------------------------------------------------------------


def test_empty_folder_holds_nothing_that_we_know(tmp_path: Path) -> None:
    findings = examine(tmp_path)
    assert [finding.level for finding in findings] == ["fault", "fault"]
    assert "no connectivity folder" in findings[0].text
    assert findings[1].text == "holds nothing else that ESceme knows"


def test_strange_files_change_nothing(slim: Path) -> None:
    before = examine(slim)
    for name in ("README.md", "R2R/notes.txt", "features/notes.md", "connectivity/README.md", "x/y/z.json"):
        (slim / name).parent.mkdir(parents=True, exist_ok=True)
        (slim / name).write_bytes(b"\xff")
    assert examine(slim) == before


@pytest.mark.parametrize("name", ["nowhere", "file", "file/inside"])
def test_missing_data_folder_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(DataError, match=f"{name}: cannot be read as a data folder"):
        examine(tmp_path / name)


@pytest.fixture
def open_root(toy_root: Path) -> Iterator[Path]:
    """The toy world where everybody can reach it, which is not so below pytest's own folder."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        data = Path(shutil.copytree(toy_root, Path(place) / "data", ignore=shutil.ignore_patterns("R4R")))
        data.chmod(0o755)
        yield data


@pytest.mark.parametrize("rights", [0o000, 0o444])
def test_unreadable_folder_is_an_error(open_root: Path, rights: int) -> None:
    open_root.chmod(rights)
    try:
        with unprivileged(), pytest.raises(DataError, match="data folder .Permission denied"):
            examine(open_root)
    finally:
        open_root.chmod(0o755)


@pytest.mark.parametrize("rights", [0o000, 0o444])
@pytest.mark.parametrize("place", ["R2R", "CVDN", "features", "objects", "rooms", "tours", "tokenizer"])
def test_unreadable_folder_inside_is_a_fault(open_root: Path, place: str, rights: int) -> None:
    examine(open_root)  # what is loaded when first needed may lie where not everybody can read
    (open_root / place).chmod(rights)
    try:
        with unprivileged():
            findings = examine(open_root)
    finally:
        (open_root / place).chmod(0o755)
    assert only_fault(findings, place) == "cannot be read (Permission denied)"


def test_unreadable_connectivity_folder_is_one_fault(open_root: Path) -> None:
    examine(open_root)
    (open_root / "connectivity").chmod(0o000)
    try:
        with unprivileged():
            findings = examine(open_root)
    finally:
        (open_root / "connectivity").chmod(0o755)
    assert "Permission denied" in only_fault(findings, "connectivity")


# -- real data -------------------------------------------------------------------------------------------


@pytest.mark.real
def test_nothing_is_wrong_with_the_public_data(data_root: Path) -> None:
    findings = examine(data_root)
    assert faults(findings) == []
    right = ("as published", "as in the public v2 files")
    published = {finding.file for finding in findings if finding.text.endswith(right)}
    assert published == {
        "connectivity",
        *(f"R2R/R2R_{split}.json" for split in ("train", "val_seen", "val_unseen", "test")),
        *(f"REVERIE/v2_REVERIE_{split}.json" for split in ("train", "val_seen", "val_unseen", "test")),
        *("CVDN/val_seen.json", "CVDN/val_unseen.json"),
        *("tokenizer/vocab.txt", "tokenizer/tokenizer.json"),
    }
    rest = {
        finding.file: finding.text
        for finding in findings
        if finding.level == "ok" and finding.file not in published
    }
    assert rest == {
        "objects/reverie_objects.json.gz": "38,293 objects seen from 10,567 viewpoints",
        "rooms/viewpoint_rooms.json": "29 labels over 10,800 viewpoints",
    }


@pytest.mark.real
def test_public_vocabulary_cut_in_half_is_a_fault(data_root: Path, root: Path) -> None:
    text = (data_root / "tokenizer" / "vocab.txt").read_bytes()
    replace(root / "tokenizer/vocab.txt", text[: len(text) // 2])
    assert "the last one cut off; BERT has 30,522" in only_fault(examine(root), "tokenizer/vocab.txt")


@pytest.mark.real
def test_both_releases_of_r4r_are_right_and_others_are_not(data_root: Path, tmp_path: Path) -> None:
    (tmp_path / "connectivity").symlink_to(data_root / "connectivity")
    (tmp_path / "R4R").mkdir()
    walks = read_records(data_root / "R2R/R2R_val_unseen.json", R2RRecord)
    joined = list(join_paths(walks, read_scenes(data_root / "connectivity")))
    for dropped, ending in (
        (0, "as made from the public R2R"),
        (72, "in an earlier release"),
        (73, "11 scenes"),
    ):
        for record in joined[:dropped]:
            record.instructions = record.instructions[:8]
        write_json(tmp_path / "R4R/R4R_val_unseen.json", joined)
        (finding,) = (finding for finding in examine(tmp_path) if finding.file == "R4R/R4R_val_unseen.json")
        assert finding.text.endswith(ending)
        assert finding.level == ("fault" if dropped == 73 else "ok")
