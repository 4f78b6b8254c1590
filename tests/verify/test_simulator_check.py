"""`sim_candidates.json.gz`: accepted unchanged, refused once any value is changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from esceme.verify import simulator_check
from esceme.verify.comparison import VerificationReport
from esceme.verify.fixtures import ReferenceData
from esceme.world import Atlas, SceneGraph
from esceme.world.geometry import panorama_angles
from fixtures.corrupted_files import additional_keys, junk_values, missing_keys, read_stored, slight_changes

NAME = "sim_candidates.json.gz"

# Changes that are not noticed, and why.
FREE = {
    "source: another",  # a remark on where the numbers come from
    "scans: swapped",  # a set of scenes: their order says nothing
    # Every record speaks for itself: their order says nothing, and a file may hold any number of them.
    *(
        f"{section}: {how}"
        for section in ("observations", "shortest_pairs", "teacher_path_actions")
        for how in ("swapped", "one fewer")
    ),
}


@pytest.fixture(scope="module")
def stored_file(toy: ReferenceData) -> dict[str, Any]:
    """A file of the published form about the toy world: our own numbers, to be corrupted."""
    atlas, scenes = toy.atlas, ["toy-cottage", "toy-villa"]
    seen = [
        {"scan": scene, "viewpoint": viewpoint, "viewIndex": view}
        for scene in scenes
        for viewpoint, view in zip(toy.graphs[scene].viewpoints[::5], (2, 27), strict=False)
    ]
    pairs = [
        {"scan": scene, "from": a, "to": b, "path": toy.graphs[scene].shortest_path(a, b)}
        for scene in scenes
        for a, b in [(toy.graphs[scene].viewpoints[0], toy.graphs[scene].viewpoints[-1])]
    ]
    by_path = {each.path_id: each for each in toy.episodes("val_unseen").values()}
    steps = [
        {"path_id": int(name), "t": t}
        for name, each in list(by_path.items())[:2]
        for t in range(len(each.reference_path) - 1)  # after that, one step later tells the same
    ]
    return {
        "source": "ourselves",
        "scans": scenes,
        "observations": [each | simulator_check._observation(each, atlas) for each in seen],
        "shortest_pairs": [each | simulator_check._shortest_pair(each, atlas) for each in pairs],
        "teacher_path_actions": [each | simulator_check._teacher_action(each, by_path) for each in steps],
        "graph_stats": {scene: simulator_check._graph_statistics(scene, atlas) for scene in scenes},
        "view_angle_feature_base17": panorama_angles(17).tolist(),
    }


Judge = Callable[[str, Any, ReferenceData], VerificationReport]


def test_our_own_numbers_are_accepted(stored_file: dict[str, Any], toy: ReferenceData, judged: Judge) -> None:
    report = judged(NAME, stored_file, toy)
    assert report.exit_code == 0, (report.rows, report.skipped)
    assert all(row.max_abs_diff < 1e-12 and row.compared for row in report.rows)


@pytest.mark.real
def test_numbers_equal_the_originals(vectors_root: Path, real: ReferenceData, judged: Judge) -> None:
    report = judged(NAME, read_stored(vectors_root / NAME), real)
    assert report.exit_code == 0
    compared = {row.quantity: row.compared for row in report.rows}
    assert compared["observations.candidates.viewpointId"] == 893
    assert compared["observations.state_heading"] == 210
    assert compared["shortest_pairs.distance"] == 140
    assert compared["teacher_path_actions.teacher_none"] == 237
    assert compared["view_angle_feature_base0"] == compared["view_angle_feature_base17"] == 144


def test_no_value_can_be_changed_unnoticed(
    stored_file: dict[str, Any], toy: ReferenceData, judged: Judge
) -> None:
    codes = [
        (what, judged(NAME, corrupted, toy).exit_code) for what, corrupted in slight_changes(stored_file)
    ]
    assert {what for what, code in codes if code != 1} == FREE
    assert len({what for what, _ in codes}) > 45


@pytest.mark.parametrize(
    ("corrupt", "free"),
    [(junk_values, {"source"}), (missing_keys, {"source", "view_angle_feature_base17"})],
)
def test_invalid_and_missing_values_are_reported_and_raise_nothing_else(
    stored_file: dict[str, Any],
    toy: ReferenceData,
    judged: Judge,
    corrupt: Callable[[Any], Any],
    free: set[str],
) -> None:
    codes = [(kind, judged(NAME, corrupted, toy).exit_code) for kind, corrupted in corrupt(stored_file)]
    assert {kind for kind, code in codes if code not in (1, 3)} == free  # a file may hold any views' angles


@pytest.mark.parametrize("section", ["observations", "shortest_pairs", "teacher_path_actions"])
@pytest.mark.parametrize("emptied", [True, False])
def test_a_missing_section_is_listed(
    stored_file: dict[str, Any], toy: ReferenceData, judged: Judge, section: str, emptied: bool
) -> None:
    rest = {key: value for key, value in stored_file.items() if key != section}
    report = judged(NAME, rest | ({section: []} if emptied else {}), toy)
    assert report.exit_code == 3
    assert [skip.reason for skip in report.skipped] == [f"the file holds no {section}"]


def test_an_unknown_key_is_named_and_the_rest_compared(
    stored_file: dict[str, Any], toy: ReferenceData, judged: Judge
) -> None:
    for kind, corrupted in additional_keys(stored_file):
        report = judged(NAME, corrupted, toy)
        if kind == "graph_stats.novel":  # a scene of that name, which `scans` does not know
            assert report.exit_code == 1
            continue
        assert report.exit_code == 3, kind
        named = kind.replace("[]", "").replace(".*", "")
        assert report.skipped[0].reason == f"unknown to this version, not compared: {named}"


@pytest.mark.parametrize("view", ["36", "-1", "x", "", "007"])
def test_angles_of_a_view_that_does_not_exist_are_an_unknown_key(
    stored_file: dict[str, Any], toy: ReferenceData, judged: Judge, view: str
) -> None:
    report = judged(NAME, stored_file | {f"view_angle_feature_base{view}": []}, toy)
    assert report.exit_code == 3
    assert f"view_angle_feature_base{view}" in report.skipped[0].reason


def test_a_scene_by_another_name_is_noticed(
    stored_file: dict[str, Any], toy: ReferenceData, judged: Judge
) -> None:
    renamed = {
        "toy-house" if key == "toy-villa" else key: value for key, value in stored_file["graph_stats"].items()
    }
    assert judged(NAME, stored_file | {"graph_stats": renamed}, toy).exit_code == 1
    scenes = ["toy-cottage", "toy-house"]
    assert judged(NAME, stored_file | {"graph_stats": renamed, "scans": scenes}, toy).exit_code == 1


def test_components_of_a_scene_are_counted() -> None:
    places = {name: (k, 0, 0) for k, name in enumerate("abcdef")}
    atlas = Atlas([SceneGraph.build("house", places, ["ab", "bc", "de", "ef"])])
    statistics = simulator_check._graph_statistics("house", atlas)
    assert statistics == {"nodes": 6, "edges": 4, "sum_all_pairs_distance": 16.0, "components": 2}


def test_any_shortest_path_is_accepted_and_no_longer_one(
    toy: ReferenceData, judged: Judge, stored_file: dict[str, Any]
) -> None:
    pair = stored_file["shortest_pairs"][0]
    graph = toy.graphs[pair["scan"]]
    there_and_back = [pair["path"][0], pair["path"][1], pair["path"][0], *pair["path"][1:]]
    assert graph.adjacent(there_and_back[1], there_and_back[2])
    for path in (there_and_back, pair["path"][:1], [], pair["path"][1:], pair["path"][::-1]):
        report = judged(NAME, stored_file | {"shortest_pairs": [pair | {"path": path}]}, toy)
        assert report.exit_code == 1


def test_without_r2r_only_the_teacher_is_skipped(
    stored_file: dict[str, Any], toy: ReferenceData, toy_root: Path, tmp_path: Path, judged: Judge
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "connectivity").symlink_to(toy_root / "connectivity")
    report = judged(NAME, stored_file, ReferenceData(tmp_path / "data"))
    assert report.exit_code == 3
    assert [skip.reason.split(":")[0] for skip in report.skipped] == ["teacher_path_actions"]
    assert "no R2R file of split val_unseen" in report.skipped[0].reason
    assert "observations.candidates.heading" in {row.quantity for row in report.rows}
