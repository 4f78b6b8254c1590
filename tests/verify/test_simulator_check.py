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
from fixtures.corrupted_files import additional_keys, junk_values, missing_keys, slight_changes

NAME = "sim_candidates.json.gz"

# Changes that are not noticed, and why.
FREE = {
    "source: another",  # a remark on where the numbers come from
    "scans: swapped",  # a set of scenes
    # Records are independent: a file may hold any number of them in any order.
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
    episodes = {episode.path_id: episode for episode in toy.episodes("val_unseen").values()}
    steps = [
        {"path_id": int(name), "t": t}
        for name, episode in list(episodes.items())[:2]
        for t in range(len(episode.reference_path) - 1)  # later steps have the same action
    ]
    return {
        "source": "ourselves",
        "scans": scenes,
        "observations": [record | simulator_check._observation(record, atlas) for record in seen],
        "shortest_pairs": [record | simulator_check._shortest_pair(record, atlas) for record in pairs],
        "teacher_path_actions": [
            record | simulator_check._teacher_action(record, episodes) for record in steps
        ],
        "graph_stats": {scene: simulator_check._graph_statistics(scene, atlas) for scene in scenes},
        "view_angle_feature_base17": panorama_angles(17).tolist(),
    }


ReportOn = Callable[..., VerificationReport]


def test_our_own_numbers_are_accepted(stored_file: dict[str, Any], report_on: ReportOn) -> None:
    report = report_on(NAME, stored_file)
    assert report.exit_code == 0, (report.rows, report.skipped)
    assert all(row.max_abs_diff < 1e-12 and row.compared for row in report.rows)


def test_no_value_can_be_changed_unnoticed(stored_file: dict[str, Any], report_on: ReportOn) -> None:
    codes = [(what, report_on(NAME, corrupted).exit_code) for what, corrupted in slight_changes(stored_file)]
    assert {what for what, code in codes if code != 1} == FREE
    assert len({what for what, _ in codes}) > 45


@pytest.mark.parametrize(
    ("corrupt", "free"),
    [(junk_values, {"source"}), (missing_keys, {"source", "view_angle_feature_base17"})],
)
def test_invalid_and_missing_values_are_reported_and_raise_nothing_else(
    stored_file: dict[str, Any],
    report_on: ReportOn,
    corrupt: Callable[[Any], Any],
    free: set[str],
) -> None:
    codes = [(kind, report_on(NAME, corrupted).exit_code) for kind, corrupted in corrupt(stored_file)]
    assert {kind for kind, code in codes if code not in (1, 3)} == free  # a file may hold any views' angles


def test_an_unknown_key_is_named_and_the_rest_compared(
    stored_file: dict[str, Any], report_on: ReportOn
) -> None:
    for kind, corrupted in additional_keys(stored_file):
        report = report_on(NAME, corrupted)
        if kind == "graph_stats.novel":  # a scene of that name, which is not in `scans`
            assert report.exit_code == 1
            continue
        assert report.exit_code == 3, kind
        named = kind.replace("[]", "").replace(".*", "")
        assert report.skipped[0].reason == f"unknown to this version, not compared: {named}"


@pytest.mark.parametrize("view", ["36", "-1", "x", "", "007"])
def test_angles_of_a_view_that_does_not_exist_are_an_unknown_key(
    stored_file: dict[str, Any], report_on: ReportOn, view: str
) -> None:
    report = report_on(NAME, stored_file | {f"view_angle_feature_base{view}": []})
    assert report.exit_code == 3
    assert f"view_angle_feature_base{view}" in report.skipped[0].reason


def test_a_scene_by_another_name_is_noticed(stored_file: dict[str, Any], report_on: ReportOn) -> None:
    renamed = {
        "toy-house" if key == "toy-villa" else key: value for key, value in stored_file["graph_stats"].items()
    }
    assert report_on(NAME, stored_file | {"graph_stats": renamed}).exit_code == 1
    scenes = ["toy-cottage", "toy-house"]
    assert report_on(NAME, stored_file | {"graph_stats": renamed, "scans": scenes}).exit_code == 1


def test_components_of_a_scene_are_counted() -> None:
    places = {name: (k, 0, 0) for k, name in enumerate("abcdef")}
    atlas = Atlas([SceneGraph.build("house", places, ["ab", "bc", "de", "ef"])])
    statistics = simulator_check._graph_statistics("house", atlas)
    assert statistics == {"nodes": 6, "edges": 4, "sum_all_pairs_distance": 16.0, "components": 2}


def test_longer_path_is_a_difference(report_on: ReportOn, stored_file: dict[str, Any]) -> None:
    pair = stored_file["shortest_pairs"][0]
    there_and_back = [pair["path"][0], pair["path"][1], *pair["path"]]
    for path in (there_and_back, pair["path"][:1], [], pair["path"][1:], pair["path"][::-1]):
        report = report_on(NAME, stored_file | {"shortest_pairs": [pair | {"path": path}]})
        assert report.exit_code == 1


def test_without_r2r_only_the_teacher_is_skipped(
    stored_file: dict[str, Any], toy_root: Path, tmp_path: Path, report_on: ReportOn
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "connectivity").symlink_to(toy_root / "connectivity")
    report = report_on(NAME, stored_file, ReferenceData(tmp_path / "data"))
    assert report.exit_code == 3
    assert [skip.reason.split(":")[0] for skip in report.skipped] == ["teacher_path_actions"]
    assert "no R2R file of split val_unseen" in report.skipped[0].reason
    assert "observations.candidates.heading" in {row.quantity for row in report.rows}
