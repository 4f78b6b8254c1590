"""The check of a data folder reports every damage to a valid folder, and no fault in a valid one."""

from __future__ import annotations

import dataclasses
import gzip
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
from esceme.synth import WorldConfig, embedded_world
from esceme.tasks import folder_check
from esceme.tasks.folder_check import Finding, check_folder
from esceme.tasks.r2r import R2RRecord
from esceme.tasks.r4r import join_paths
from esceme.world import open_features, pack, read_scenes
from fixtures.files import load_json, save_json, unprivileged
from fixtures.hamt_layout import write_hamt_annotations

# Finding level of each file if it is missing. Rooms, tours and vocabulary are optional.
LEVEL_IF_MISSING = {
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
VILLA = "connectivity/toy-villa_connectivity.json"
CASTLE = "connectivity/toy-castle_connectivity.json"
SCANS = "connectivity/scans.txt"
FEATURES = "features/toy.hdf5"
TOURS = "tours/tours_iVLN.json"
OBJECTS = "objects/reverie_objects.json.gz"
ROOMS = "rooms/viewpoint_rooms.json"
VOCABULARY = "tokenizer/vocab.txt"
TRAIN = R2R, RXR, REVERIE = (
    "R2R/R2R_train.json",
    "RxR/rxr_train_guide.jsonl.gz",
    "REVERIE/v2_REVERIE_train.json",
)
CVDN = "CVDN/val_seen.json"
Edit = Callable[[Any], object]


def link_folders(toy_root: Path, root: Path, *names: str) -> Path:
    """Some folders of the toy world as hard links, which `replace` and `save_json` break."""
    for name in set(names):
        shutil.copytree(toy_root / name, root / name, copy_function=os.link)
    return root


@pytest.fixture
def root(toy_root: Path, tmp_path: Path) -> Path:
    """All of the toy world."""
    return link_folders(toy_root, tmp_path / "data", *(path.name for path in toy_root.iterdir()))


@pytest.fixture
def small_root(toy_root: Path, tmp_path: Path) -> Path:
    """The toy world without its two largest folders."""
    names = {path.name for path in toy_root.iterdir()} - {"R4R", "features"}
    return link_folders(toy_root, tmp_path / "data", *names)


@pytest.fixture
def feature_root(toy_root: Path, tmp_path: Path) -> Path:
    """Graphs and features of the toy world."""
    return link_folders(toy_root, tmp_path / "data", "connectivity", "features")


def replace(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def change(path: Path, edit: Edit) -> None:
    value = load_json(path)
    edit(value)
    save_json(path, value)


@contextmanager
def writable_features(root: Path) -> Iterator[h5py.File]:
    replace(root / FEATURES, (root / FEATURES).read_bytes())
    with h5py.File(root / FEATURES, "r+") as file:
        yield file


def faults(findings: list[Finding], file: str | None = None) -> list[str]:
    return [finding.text for finding in findings if finding.level == "fault" and file in (None, finding.file)]


def only_fault(findings: list[Finding], file: str) -> str:
    """The text of the only fault, which must be of `file`."""
    assert [finding.file for finding in findings if finding.level == "fault"] == [file]
    return faults(findings)[0]


# -- valid folders ---------------------------------------------------------------------------------------


def test_toy_world_has_no_fault_and_is_not_changed(root: Path) -> None:
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in root.rglob("*")}
    findings = check_folder(root, deep=True)
    assert faults(findings) == []
    valid = {finding.file for finding in findings if finding.level == "ok"}
    graphs = {name for name in LEVEL_IF_MISSING if name.startswith("connectivity/")}
    assert valid == set(LEVEL_IF_MISSING) - graphs | {"connectivity"}
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in root.rglob("*")} == before
    # Every file of the toy world is damaged below.
    assert {path.relative_to(root).as_posix() for path in before if path.is_file()} == set(LEVEL_IF_MISSING)


def test_user_defined_task_is_checked(small_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = dataclasses.replace(
        folder_check.TASKS["r2r"],
        name="own",
        source="see docs/data.md",
        files=("own/{split}.json",),
        split_sizes={"train": None},
    )
    monkeypatch.setitem(folder_check.TASKS, "own", task)
    save_json(small_root / "own/train.json", [{}])
    (finding,) = [finding for finding in check_folder(small_root) if finding.file == "own/train.json"]
    assert finding.level == "fault" and "docs/data.md" in str(finding)


def test_folder_with_graphs_only_is_valid(toy_root: Path, tmp_path: Path) -> None:
    findings = check_folder(link_folders(toy_root, tmp_path, "connectivity"))
    assert [finding.level for finding in findings] == ["ok", "note"]
    assert findings[1].file == "features"


def test_packed_features_are_checked(feature_root: Path) -> None:
    path = pack(open_features(feature_root / FEATURES, width=32), feature_root / "features/fast.npy")
    findings = check_folder(feature_root, deep=True)
    assert faults(findings) == []
    assert Finding("ok", "features/fast.npy", "66 viewpoints, 32 numbers a view") in findings

    values = np.lib.format.open_memmap(path, mode="r+")
    values[3, 7, 0] = np.nan
    values.flush()
    fault = only_fault(check_folder(feature_root, deep=True), "features/fast.npy")
    assert "does not have the checksum in the index" in fault

    path.with_suffix(".json").unlink()
    assert "fast.json: no such file" in only_fault(check_folder(feature_root), "features/fast.npy")


@pytest.fixture
def hamt_root(toy_root: Path, tmp_path: Path) -> Path:
    """The toy world in the layout of HAMT and its successors, with stored token ids (spec A.1)."""
    root = tmp_path / "datasets"
    link_folders(toy_root, root / "R2R", "connectivity", "features")
    write_hamt_annotations(toy_root, root, lambda task: [101, 5, 102])
    return root


def test_layout_of_hamt_is_recognised(hamt_root: Path, toy_root: Path) -> None:
    findings = check_folder(hamt_root, deep=True)
    assert faults(findings) == []
    found = {finding.file: finding.text for finding in findings if finding.level == "ok"}
    ours = {finding.file: finding.text for finding in check_folder(toy_root) if finding.level == "ok"}
    same = {
        "R2R/connectivity": "connectivity",
        "R2R/features/toy.hdf5": FEATURES,
        "R2R/annotations/tours_iVLN.json": TOURS,
        "R2R/annotations/prevalent_aug_train_enc.json": R2R,
    }
    for split in ("train", "val_seen", "val_unseen"):
        same[f"R2R/annotations/R2R_{split}_enc.json"] = f"R2R/R2R_{split}.json"
        same[f"R2R/annotations/R4R_{split}_enc.json"] = f"R4R/R4R_{split}.json"
        same[f"RxR/annotations/rxr_{split}_guide_enc_xlmr.jsonl"] = f"RxR/rxr_{split}_guide.jsonl.gz"
    assert {theirs: found[theirs] for theirs in same} == {theirs: ours[file] for theirs, file in same.items()}
    assert {f"CVDN/annotations/ndh/{split}_enc.json" for split in ("val_seen", "val_unseen")} <= set(found)

    file = "CVDN/annotations/ndh/val_seen_enc.json"
    change(hamt_root / file, lambda records: records[2].update(end_panos=["nowhere"]))
    assert "viewpoint 'nowhere' is not in scene" in only_fault(check_folder(hamt_root), file)


def test_token_ids_beyond_the_tokenizer_are_a_fault(hamt_root: Path, toy_root: Path) -> None:
    file = "R2R/annotations/R2R_val_seen_enc.json"
    change(hamt_root / file, lambda records: records[2]["instr_encodings"].__setitem__(1, [101, 10**6]))
    rxr = hamt_root / "RxR/annotations/rxr_train_guide_enc_xlmr.jsonl"
    change(rxr, lambda records: records[2].update(instr_encoding=[250_001]))  # XLM-RoBERTa has more ids
    assert faults(check_folder(hamt_root)) == []  # there is no tokenizer
    link_folders(toy_root, hamt_root, "tokenizer")
    fault = only_fault(check_folder(hamt_root), file)
    assert "has a token id beyond the" in fault and fault.startswith("episode ")


# -- whole files -----------------------------------------------------------------------------------------

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda data: data[: len(data) // 2],
    "without its last bytes": lambda data: data[:-3],
    "empty": lambda data: b"",
    "an empty object": lambda data: b"{}",
    "gzip of nothing": lambda data: gzip.compress(b""),
    "gzip of an empty object": lambda data: gzip.compress(b"{}"),
    "gzip of an empty list": lambda data: gzip.compress(b"[]"),
    "gzip of an empty record": lambda data: gzip.compress(b"[{}]"),
}


@pytest.fixture(scope="module")
def findings_before(toy_root: Path) -> set[tuple[str, str]]:
    return {(finding.level, finding.file) for finding in check_folder(toy_root)}


@pytest.mark.parametrize("file", LEVEL_IF_MISSING)
def test_missing_file_is_reported(root: Path, findings_before: set[tuple[str, str]], file: str) -> None:
    (root / file).unlink()
    findings = check_folder(root)
    assert not [finding for finding in findings if finding.file == file and finding.level == "ok"]
    levels = {
        finding.level
        for finding in findings
        if (finding.level, finding.file) not in findings_before or file in finding.text
    }
    assert (levels & {"fault", "note"} or {""}) >= {LEVEL_IF_MISSING[file]}
    if LEVEL_IF_MISSING[file] != "fault":
        assert faults(findings) == []


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        (file, damage)
        for file in LEVEL_IF_MISSING
        for damage in DAMAGES
        if file.endswith(".gz") or not damage.startswith("gzip")
    ],
)
def test_damaged_file_is_a_fault_of_that_file(toy_root: Path, tmp_path: Path, file: str, damage: str) -> None:
    root = link_folders(toy_root, tmp_path, "connectivity", "R2R", file.split("/")[0])
    replace(root / file, DAMAGES[damage]((root / file).read_bytes()))
    assert faults(check_folder(root), file)


@pytest.mark.parametrize("file", [name for name in LEVEL_IF_MISSING if not name.startswith("connectivity/")])
def test_damage_is_reported_for_the_damaged_file_only(root: Path, file: str) -> None:
    replace(root / file, b"damaged")
    only_fault(check_folder(root), file)


def test_folder_or_broken_link_instead_of_a_file_counts_as_missing(small_root: Path) -> None:
    for file in (ROOMS, VOCABULARY, R2R):
        (small_root / file).unlink()
    (small_root / ROOMS).symlink_to(small_root / ROOMS)
    (small_root / VOCABULARY).mkdir()
    (small_root / R2R).mkdir()
    findings = check_folder(small_root)
    assert faults(findings) == []
    notes = [finding.text for finding in findings if finding.level == "note"]
    assert any(text.startswith("r2r train: no file") for text in notes)


# -- graphs ----------------------------------------------------------------------------------------------


def test_disconnected_scene_is_a_fault(small_root: Path) -> None:
    def edit(records: list[dict[str, Any]]) -> None:
        half = len(records) // 2
        for row, record in enumerate(records):
            for column in range(len(records)):
                if (row < half) != (column < half):
                    record["unobstructed"][column] = False

    change(small_root / VILLA, edit)
    assert "not every viewpoint can be reached from every other" in faults(check_folder(small_root), VILLA)


def test_broken_graph_is_reported_once_and_its_episodes_are_not_checked(small_root: Path) -> None:
    replace(small_root / VILLA, b"[")
    findings = check_folder(small_root)
    only_fault(findings, VILLA)
    train = next(finding for finding in findings if finding.file == R2R)
    assert train.level == "note" and "scenes without a graph: paths not checked" in train.text
    assert not [finding for finding in findings if "belong to no viewpoint" in finding.text]

    def edit(records: list[dict[str, Any]]) -> None:
        next(record for record in records if record["scan"] != "toy-villa")["path"][1] = "nowhere"

    change(small_root / R2R, edit)  # paths of the other scenes are still checked
    assert "'nowhere' is not in scene" in faults(check_folder(small_root), R2R)[0]


def test_missing_graphs_are_reported_once(small_root: Path) -> None:
    shutil.rmtree(small_root / "connectivity")
    findings = check_folder(small_root)
    assert "no connectivity folder" in only_fault(findings, "connectivity")
    assert any("paths not checked" in finding.text for finding in findings)


@pytest.mark.parametrize(
    ("content", "file", "message"),
    [
        (b"toy-cottage\ntoy-house\ntoy-villa\ntoy-castle", CASTLE, "named in scans.txt"),
        (b"toy-cottage\ntoy-house", SCANS, "does not name scene 'toy-villa', which is here"),
        (b"", SCANS, "does not name scene 'toy-cottage' and 2 more scenes, which is here"),
        (b"\xff\xfe", SCANS, "not UTF-8"),
    ],
)
def test_scene_list_that_differs_from_the_files_is_a_fault(
    small_root: Path, content: bytes, file: str, message: str
) -> None:
    replace(small_root / SCANS, content)
    findings = check_folder(small_root)
    assert message in only_fault(findings, file)
    assert Finding("ok", "connectivity", "3 scenes, 66 viewpoints, 135 edges") in findings


# -- records of one file ---------------------------------------------------------------------------------


def remove_edge(records: list[dict[str, Any]]) -> None:
    record = next(record for record in records if record["included"] and any(record["unobstructed"]))
    record["unobstructed"][record["unobstructed"].index(True)] = False


def rename_viewpoint(key: str, index: int = 1) -> Edit:
    """Rename a viewpoint of the longest of the paths `key`."""
    return lambda records: max((record[key] for record in records), key=len).__setitem__(index, "nowhere")


def first_tour(splits: Any) -> list[str]:
    return next(iter(splits["train"].values()))[0]


def swap_tours(splits: Any) -> None:
    first, second = splits["train"]
    splits["train"].update({first: splits["train"][second], second: splits["train"][first]})


@pytest.mark.parametrize(
    ("file", "edit", "message"),
    [
        (VILLA, remove_edge, "adjacency is not symmetric"),
        (VILLA, lambda rs: rs[1].update(image_id=rs[0]["image_id"]), "occurs twice"),
        *((file, rename_viewpoint("path", k), "'nowhere' is not") for file in TRAIN for k in (0, 2, -1)),
        *((file, lambda rs: rs[0].update(scan="castle"), "'castle' is unknown") for file in TRAIN),
        *((file, lambda rs: rs[0]["path"].pop(1), "no edge leads from") for file in TRAIN),
        *((file, lambda rs: rs.append(rs[0]), "occurs twice") for file in TRAIN),
        (R2R, lambda rs: [record["path"].append("nowhere") for record in rs[3:6]], "; and 8 more episodes"),
        (R2R, lambda rs: rs[2].update(heading=360.0), "has a heading that is no angle in radians"),
        (R2R, lambda rs: rs[7].update(heading="north"), "record 7: field 'heading': expected float, got str"),
        (R2R, lambda rs: rs[2].update(instructions=["Go.", " \n", ""]), "empty instruction; and 1 more"),
        (R2R, lambda rs: [r.update(instructions=[]) for r in rs], "no instructions; expected at least one"),
        ("R4R/R4R_train.json", lambda rs: rs[5]["path"].insert(3, "nowhere"), "and 8 more episodes"),
        (RXR, lambda rs: rs[2].update(instruction=""), "has an empty instruction"),
        (REVERIE, lambda rs: rs[2].update(objId=None), "has no goal, unlike others; and 1 more episodes"),
        (CVDN, rename_viewpoint("player_path"), "'nowhere' is not in scene"),
        (CVDN, rename_viewpoint("planner_path"), "'nowhere' is not in scene"),
        (CVDN, lambda rs: rs[0]["end_panos"].append("nowhere"), "'nowhere' is not in scene"),
        (CVDN, lambda rs: rs[3].update(end_panos=[]), "has no goal, unlike others"),
        (TOURS, lambda splits: first_tour(splits).append("999999_0"), "episode '999999_0' is unknown"),
        (TOURS, lambda splits: first_tour(splits).append(first_tour(splits)[0]), "is in two tours"),
        (TOURS, lambda splits: first_tour(splits).clear(), "is empty"),
        (TOURS, swap_tours, "is in scene"),
        *(
            (OBJECTS, lambda objects, key=key: objects.update({key: []}), f"'{key}' belongs to no viewpoint")
            for key in ("castle_a", "toy-villa_nowhere", "nothing", "")
        ),
        (OBJECTS, lambda objects: max(objects.values(), key=len)[0].pop("id"), "': record 0: object missing"),
        (ROOMS, lambda rooms: rooms["panos"].update(castle={"a": [0, "k", "k"]}), "'castle_a' belongs to no"),
        (ROOMS, lambda rooms: rooms["panos"]["toy-villa"].update(no=[0, "k", "k"]), "'toy-villa_no' belongs"),
        (ROOMS, lambda rooms: rooms["label_name"].pop("k"), "label 'k', which label_name does not explain"),
        (ROOMS, lambda rooms: rooms["panos"].clear(), "names no viewpoint"),
        (ROOMS, lambda rooms: next(iter(rooms["panos"]["toy-villa"].values())).clear(), "array"),
        (ROOMS, lambda rooms: rooms.pop("label_name"), "missing required field label_name"),
    ],
)
def test_inconsistent_record_is_the_only_fault(
    toy_root: Path, tmp_path: Path, file: str, edit: Edit, message: str
) -> None:
    root = link_folders(toy_root, tmp_path, "connectivity", "R2R", "tours", file.split("/")[0])
    change(root / file, edit)
    assert message in only_fault(check_folder(root), file)


@pytest.mark.parametrize("file", TRAIN)
@pytest.mark.parametrize(
    ("reason", "message"), [("excluded", "is excluded from"), ("isolated", "has no edge to any other")]
)
def test_excluded_viewpoint_in_a_path_is_a_fault(
    small_root: Path, file: str, reason: str, message: str
) -> None:
    unusable = {
        scene: name
        for scene, graph in read_scenes(small_root / "connectivity").items()
        for name, name_reason in graph.left_out.items()
        if name_reason == reason
    }
    assert unusable, "the toy world has no such viewpoint"

    def edit(records: list[dict[str, Any]]) -> None:
        record = next(record for record in records if record["scan"] in unusable)
        record["path"][1] = unusable[record["scan"]]

    change(small_root / file, edit)
    assert message in only_fault(check_folder(small_root), file)


def test_matterport_split_of_another_size_is_a_fault(small_root: Path) -> None:
    """Scenes named as in Matterport3D are compared with the published sizes."""
    renamed = {"toy-cottage": "AAAAAAAAAAA", "toy-house": "BBBBBBBBBBB", "toy-villa": "CCCCCCCCCCC"}
    for path in [*small_root.glob("*/*.json"), small_root / SCANS]:
        text, name = path.read_text(), path.name
        for old, new in renamed.items():
            text, name = text.replace(old, new), name.replace(old, new)
        path.unlink()
        path.with_name(name).write_text(text)
    findings = check_folder(small_root, tasks=["r2r"])
    graphs = next(finding for finding in findings if finding.file == "connectivity")
    assert graphs.level == "note" and "published: 90 scenes" in graphs.text
    fault = faults(findings, "R2R/R2R_val_seen.json")[0]
    assert fault.startswith("12 paths, 36 instructions, 2 scenes; expected: 340 paths, 1,021 instructions")


def test_tours_of_a_missing_split_are_not_checked(small_root: Path) -> None:
    change(small_root / TOURS, lambda splits: splits.update(prevalent={"toy-villa": [["1_0"]]}))
    findings = check_folder(small_root)
    assert faults(findings) == []
    text = next(finding.text for finding in findings if finding.file == TOURS)
    assert text.endswith("prevalent: 1 tours (no R2R to check them with)")


# -- selected tasks --------------------------------------------------------------------------------------


def test_missing_split_of_a_required_task_is_a_fault(small_root: Path) -> None:
    replace(small_root / RXR, b"damaged")  # a file of another task
    assert faults(check_folder(small_root, tasks=["r2r"])) == []
    (small_root / "R2R/R2R_test.json").unlink()
    (fault,) = faults(check_folder(small_root, tasks=["r2r"]), "r2r")
    files = "R2R/R2R_test.json or R2R/annotations/R2R_test_enc.json"
    assert fault.startswith(f"r2r test: no file; looked for {files}")


@pytest.mark.parametrize(("task", "split"), [("r2r", "val_train_seen"), ("r4r", "val_unseen_sampled")])
def test_splits_that_only_hamt_has_are_never_required(root: Path, task: str, split: str) -> None:
    findings = check_folder(root, tasks=[task])
    assert faults(findings) == []
    note = next(finding for finding in findings if finding.file == task)
    assert note.level == "note" and note.text.startswith(f"{task} {split}: no file")
    assert "HAMT" in note.remedy


@pytest.mark.parametrize(("task", "missing"), [("rxr", 1), ("cvdn", 2), ("prevalent", 1), ("reverie", 0)])
def test_missing_splits_of_required_tasks_are_counted(small_root: Path, task: str, missing: int) -> None:
    assert len(faults(check_folder(small_root, tasks=[task]), task)) == missing


# -- features --------------------------------------------------------------------------------------------


def feature_keys(root: Path) -> list[str]:
    """Keys of viewpoints that are in a graph, in the order of the store."""
    graphs = read_scenes(root / "connectivity")
    known = {f"{scene}_{name}" for scene, graph in graphs.items() for name in graph.viewpoints}
    return [key for key in open_features(root / FEATURES).keys if key in known]


NOT_FINITE = np.zeros((2, 36, 36))
NOT_FINITE[:, 17, 3] = np.nan, np.inf


@pytest.mark.parametrize("index", [0, 30, -1])
@pytest.mark.parametrize(
    ("panorama", "message"),
    [
        (None, "none for 1 viewpoints, such as '{key}'"),
        *(
            (np.zeros(shape), f"'{{key}}' has shape {shape}, most have (36, 36)")
            for shape in ((36, 35), (36, 37), (35, 36), (36,), (36, 36, 1))
        ),
        *(
            (panorama, "'{key}' holds NaN or infinity in view 17; extract it again")
            for panorama in NOT_FINITE
        ),
    ],
)
def test_faulty_features_of_a_viewpoint_are_reported(
    feature_root: Path, index: int, panorama: Any, message: str
) -> None:
    key = feature_keys(feature_root)[index]
    with writable_features(feature_root) as file:
        del file[key]
        if panorama is not None:
            file[key] = panorama
    findings = check_folder(feature_root)
    assert {finding.file for finding in findings if finding.level == "fault"} == {FEATURES}
    assert faults(findings)[0].endswith(message.format(key=key))


def test_faulty_and_missing_keys_are_counted(feature_root: Path) -> None:
    keys = feature_keys(feature_root)
    with writable_features(feature_root) as file:
        for key in keys[5:8]:
            file[key][0, 0] = np.nan
        del file[keys[20]]
    first, second = faults(check_folder(feature_root), FEATURES)
    assert first.endswith("and 2 more such faults") and keys[20] in second


def test_keys_of_unknown_viewpoints_are_a_note(feature_root: Path) -> None:
    with writable_features(feature_root) as file:
        file["castle_a"] = file["castle_b"] = np.zeros((36, 36))
    findings = check_folder(feature_root)
    assert faults(findings) == []
    note = next(finding for finding in findings if finding.file == FEATURES and finding.level == "note")
    assert note.text == "2 keys belong to no viewpoint, such as 'castle_a'"


def test_deep_check_includes_features_outside_the_sample(
    feature_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_check, "SAMPLE", 4)
    keys = feature_keys(feature_root)
    with writable_features(feature_root) as file:
        file[keys[1]][0, 0] = np.nan
    assert faults(check_folder(feature_root)) == []
    assert keys[1] in only_fault(check_folder(feature_root, deep=True), FEATURES)
    with writable_features(feature_root) as file:
        file[keys[-1]][0, 0] = np.nan
    assert keys[-1] in only_fault(check_folder(feature_root), FEATURES)


# -- folders ---------------------------------------------------------------------------------------------


def test_empty_folder_has_no_known_files(tmp_path: Path) -> None:
    findings = check_folder(tmp_path)
    assert [finding.level for finding in findings] == ["fault", "fault"]
    assert "no connectivity folder" in findings[0].text
    assert findings[1].text == "holds nothing else that ESceme knows"


def test_unknown_files_are_ignored(small_root: Path) -> None:
    before = check_folder(small_root)
    for name in ("README.md", "R2R/notes.txt", "features/notes.md", "connectivity/README.md", "x/y/z.json"):
        (small_root / name).parent.mkdir(parents=True, exist_ok=True)
        (small_root / name).write_bytes(b"\xff")
    assert check_folder(small_root) == before


@pytest.mark.parametrize("name", ["nowhere", "file", "file/inside"])
def test_missing_data_folder_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(DataError, match=f"{name}: cannot be read as a data folder"):
        check_folder(tmp_path / name)


@pytest.fixture
def public_root(toy_root: Path) -> Iterator[Path]:
    """The toy world in a folder that every user can read, unlike the temporary folder of pytest."""
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        data = Path(shutil.copytree(toy_root, Path(parent) / "data", ignore=shutil.ignore_patterns("R4R")))
        data.chmod(0o755)
        yield data


def check_with_mode(root: Path, folder: str, mode: int) -> list[Finding]:
    """Check `root` as an unprivileged user while `folder` has permissions `mode`."""
    check_folder(root)  # imports modules that the unprivileged user may not be able to read
    (root / folder).chmod(mode)
    try:
        with unprivileged():
            return check_folder(root)
    finally:
        (root / folder).chmod(0o755)


@pytest.mark.parametrize("mode", [0o000, 0o444])
def test_unreadable_data_folder_is_an_error(public_root: Path, mode: int) -> None:
    with pytest.raises(DataError, match="data folder .Permission denied"):
        check_with_mode(public_root, ".", mode)


@pytest.mark.parametrize(
    ("folder", "mode"),
    [
        ("connectivity", 0o000),
        *(
            (folder, mode)
            for folder in ("R2R", "CVDN", "features", "objects", "rooms", "tours", "tokenizer")
            for mode in (0o000, 0o444)
        ),
    ],
)
def test_unreadable_folder_is_one_fault(public_root: Path, folder: str, mode: int) -> None:
    assert "Permission denied" in only_fault(check_with_mode(public_root, folder, mode), folder)


# -- manifest -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded world, whose folder has a manifest."""
    root = tmp_path_factory.mktemp("world") / "tiny"
    return Path(shutil.copytree(embedded_world(WorldConfig("tiny")), root))


def faulty_files(root: Path) -> list[str]:
    return [finding.file for finding in check_folder(root) if finding.level == "fault"]


def test_embedded_world_has_no_fault(world: Path) -> None:
    assert faulty_files(world) == []


@pytest.mark.slow
def test_manifest_reveals_every_missing_or_damaged_file(world: Path) -> None:
    """One picture represents all pictures."""
    files = [path for path in sorted(world.rglob("*")) if path.is_file()]
    pictures = [path for path in files if path.suffix == ".jpg"]
    for path in [path for path in files if path not in pictures] + pictures[-1:]:
        name, data = path.relative_to(world).as_posix(), path.read_bytes()
        path.unlink()
        assert name in faulty_files(world), f"{name} was removed"
        path.write_bytes(data[: len(data) // 2] + b"?" + data[len(data) // 2 + 1 :])
        found = faulty_files(world)  # a changed line of the manifest is a fault of the file it names
        assert name in found or (name == "manifest.json" and found), f"one byte of {name} was changed"
        path.write_bytes(data)
    assert faulty_files(world) == []


# -- real data -------------------------------------------------------------------------------------------


@pytest.mark.real
def test_public_data_has_no_fault(data_root: Path) -> None:
    findings = check_folder(data_root)
    assert faults(findings) == []
    suffixes = ("as published", "as in the public v2 files")
    published = {finding.file for finding in findings if finding.text.endswith(suffixes)}
    assert published == {
        "connectivity",
        *(f"R2R/R2R_{split}.json" for split in ("train", "val_seen", "val_unseen", "test")),
        *(f"REVERIE/v2_REVERIE_{split}.json" for split in ("train", "val_seen", "val_unseen", "test")),
        *("CVDN/val_seen.json", "CVDN/val_unseen.json"),
        *("tokenizer/vocab.txt", "tokenizer/tokenizer.json"),
    }
    assert {finding for finding in findings if finding.level == "ok" and finding.file not in published} == {
        Finding("ok", OBJECTS, "38,293 objects seen from 10,567 viewpoints"),
        Finding("ok", ROOMS, "29 labels over 10,800 viewpoints"),
    }


@pytest.mark.real
def test_public_vocabulary_cut_in_half_is_a_fault(data_root: Path, small_root: Path) -> None:
    text = (data_root / VOCABULARY).read_bytes()
    replace(small_root / VOCABULARY, text[: len(text) // 2])
    assert "the last one cut off; BERT has 30,522" in only_fault(check_folder(small_root), VOCABULARY)


@pytest.mark.real
def test_only_the_sizes_of_two_releases_of_r4r_are_accepted(data_root: Path, tmp_path: Path) -> None:
    (tmp_path / "connectivity").symlink_to(data_root / "connectivity")
    records = read_records(data_root / "R2R/R2R_val_unseen.json", R2RRecord)
    joined = list(join_paths(records, read_scenes(data_root / "connectivity")))
    for num_shortened, level, ending in (
        (0, "ok", "as made from the public R2R"),
        (72, "ok", "in an earlier release"),
        (73, "fault", "11 scenes"),
    ):
        for record in joined[:num_shortened]:
            record.instructions = record.instructions[:8]
        write_json(tmp_path / "R4R/R4R_val_unseen.json", joined)
        (finding,) = (
            finding for finding in check_folder(tmp_path) if finding.file == "R4R/R4R_val_unseen.json"
        )
        assert finding.text.endswith(ending) and finding.level == level
