"""`rollout_argmax….json.gz`: paths, scores and memories are compared step by step."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from esceme.verify import VerificationReport, check_file
from esceme.verify.fixtures import ReferenceData
from fixtures.corrupted_files import changed, faults, read_stored, write_stored
from reference.make import WORLD

pytestmark = pytest.mark.long

NAME = "rollout_argmax.json.gz"
HEAD = "replaced_vln_bert.next_action.net.4.weight"
NEEDED = ("vln_bert.safetensors", "meta.json")
Check = Callable[[Any], VerificationReport]


@pytest.fixture(scope="module")
def stored(reference: Path) -> Any:
    """Rollouts of HAMT with ESceme in a generated house."""
    return read_stored(reference / "hamt_esceme" / NAME)


@pytest.fixture
def check(checker: Callable[..., Check]) -> Check:
    return checker("hamt_esceme", NAME)


def drop_passed_viewpoint(stored: Any) -> None:
    del max(stored["passes"][0]["batches"][0]["paths"], key=len)[5]


def turn_at_the_end(stored: Any) -> None:
    max(stored["passes"][0]["batches"][0]["paths"], key=len)[-1][1] += 0.5


def toggle(flag: str) -> Callable[[Any], None]:
    def change(stored: Any) -> None:
        flags = stored["flags"]
        stored["flags"] = flags.replace(flag, "") if flag in flags else f"{flags} {flag}"

    return change


@pytest.mark.parametrize(
    ("change", "quantity"),
    [
        (drop_passed_viewpoint, "paths (how many)"),
        (turn_at_the_end, "paths.heading"),
        (toggle("--logit-reweighting"), "paths.viewpoint"),
        (toggle("--no-gas"), "paths (how many)"),
        (toggle("--cand-use-ob-pos"), "steps.raw_logits"),
    ],
)
def test_changed_paths_and_flags_of_td_stp_are_noticed(
    reference: Path, checker: Callable[..., Check], change: Callable[[Any], None], quantity: str
) -> None:
    stored = read_stored(reference / "tdstp_esceme" / NAME)
    change(stored)
    report = checker("tdstp_esceme", NAME)(stored)
    assert report.exit_code == 1
    assert quantity in faults(report)


# -- rollouts in a generated house -----------------------------------------------------------------------


def test_the_options_of_the_file_count(stored: Any, check: Check) -> None:
    """Pooling, the step limit and a replaced tensor are read from the file."""
    assert check(stored | {"flags": ""}).exit_code == 0  # max pooling; the stored steps are the limit
    assert "memory_first4_of_feat" in faults(check(stored | {"flags": "--pooling mean"}))
    assert "steps (how many)" in faults(check(stored | {"flags": "--max_action_len 3"}))
    assert "steps.raw_logits" in faults(check(stored | {HEAD: [[0.1] * 64]}))


def test_ties_are_settled_as_stored_and_counted(stored: Any, check: Check) -> None:
    report = check(stored | {HEAD: [[0.0] * 64]})  # every action has the same score
    assert faults(report) == {"steps.raw_logits"}
    compared = {row.quantity.removeprefix("passes.batches."): row.compared for row in report.rows}
    assert compared["paths (ties, settled as stored)"] == compared["steps.hist_lens"] > 50


def test_rows_of_ended_episodes_are_ignored(stored: Any, check: Check) -> None:
    stored = copy.deepcopy(stored)
    ended = [
        (step, row)
        for recorded in stored["passes"]
        for batch in recorded["batches"]
        for step in batch["steps"]
        for row, logits in enumerate(step["raw_logits"])
        if not logits
    ]
    assert ended
    for step, row in ended:
        step["raw_logits"][row], step["hist_lens"][row] = [9.0, None], 77
        step["nav_types"][row], step["node_nonzero_per_item"][row] = [], [1] * 10
    assert check(stored).exit_code == 0


BATCH = ("passes", 1, "batches", 0)
SCENE = "toy-house"


@pytest.mark.parametrize(
    ("place", "to", "quantity"),
    [
        ((*BATCH, "steps", 0, "raw_logits", 0, 0), lambda x: x + 1e-3, "steps.raw_logits"),
        ((*BATCH, "steps", 0, "raw_logits", 0, -1), lambda x: -1.0, "steps.raw_logits"),
        ((*BATCH, "steps", 0, "raw_logits", 0), lambda x: x[:-1], "steps.raw_logits (shape)"),
        ((*BATCH, "steps", 0, "raw_logits"), lambda x: x[:-1], "steps (rows)"),
        ((*BATCH, "steps", 0, "nav_types", 1, 0), lambda x: 2, "steps.nav_types"),
        ((*BATCH, "steps", 0, "hist_lens", 1), lambda x: x + 1, "steps.hist_lens"),
        ((*BATCH, "steps", 0, "node_nonzero_per_item", 1, 9), lambda x: 1 - x, "steps.node_nonzero_per_item"),
        ((*BATCH, "steps"), lambda x: x[:-1], "steps (how many)"),
        ((*BATCH, "steps"), lambda x: [*x, x[-1]], "steps (how many)"),
        ((*BATCH, "paths", 0, 0, 1), lambda x: x + 1e-3, "paths.heading"),
        ((*BATCH, "paths", 0, 0, 2), lambda x: x + 1e-3, "paths.elevation"),
        ((*BATCH, "paths", 0), lambda x: [*x, x[-1]], "paths (how many)"),
        ((*BATCH, "paths"), lambda x: x[:-1], "paths (how many)"),
        ((*BATCH, "items", 0, "heading"), lambda x: x + 1e-6, "items.heading"),
        ((*BATCH, "items", 0, "start"), lambda x: "elsewhere", "items.start"),
        ((*BATCH, "items", 0, "gt_path"), lambda x: [x[0]], "items.gt_path (how many)"),
        ((*BATCH, "items"), lambda x: x[:-1], "items (how many)"),
        ((*BATCH, "items", 0, "instr_encoding", 1), lambda x: 0, "steps.raw_logits"),
        ((*BATCH, "instr_ids", 0), lambda x: "unknown_0", "items"),
        (("passes", 0, "memory_edges", SCENE, 0), lambda x: [x[0], x[0]], "memory_edges"),
        (("passes", 0, "memory_edges"), lambda x: {}, "memory_edges (scenes) (how many)"),
        (
            ("passes", 1, "memory_first4_of_feat", SCENE),
            lambda x: x | {"v": [0.0] * 4},
            "memory_first4_of_feat (viewpoints) (how many)",
        ),
        (("passes", 1, "memory_first4_of_feat"), lambda x: None, "memory_first4_of_feat (scenes) (how many)"),
    ],
)
def test_every_stored_value_counts(
    stored: Any, check: Check, place: tuple[Any, ...], to: Callable[[Any], Any], quantity: str
) -> None:
    report = check(changed(stored, *place, to=to))
    assert report.exit_code == 1
    assert quantity in faults(report)


def test_the_direction_of_an_edge_does_not_matter(stored: Any, check: Check) -> None:
    keys = ("passes", 0, "memory_edges", SCENE)
    turned = changed(stored, *keys, to=lambda edges: [pair[::-1] for pair in edges])
    assert check(turned).exit_code == 0


def test_memory_is_kept_from_pass_to_pass(stored: Any, check: Check) -> None:
    report = check(stored | {"passes": stored["passes"][1:]})
    assert report.exit_code == 1 and "steps.node_nonzero_per_item" in faults(report)
    assert check(stored | {"passes": stored["passes"][:1]}).exit_code == 0


# -- files that cannot be compared -----------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["duet", None, 5])
def test_other_variants_are_skipped(stored: Any, check: Check, variant: Any) -> None:
    report = check(stored | {"variant": variant})
    assert not report.rows and report.exit_code == 3
    reasons = {skip.file: skip.reason for skip in report.skipped}
    assert reasons[NAME] == "this version does not compare such files"


def test_weights_of_another_agent_are_the_reason(stored: Any, check: Check) -> None:
    reasons = [skip.reason for skip in check(stored | {"variant": "tdstp"}).skipped]
    assert any("recorded by 'tdstp', but the weights beside it are of HAMT" in reason for reason in reasons)


@pytest.mark.parametrize("missing", NEEDED)
def test_a_missing_file_is_the_reason(stored: Any, check: Check, tmp_path: Path, missing: str) -> None:
    (tmp_path / missing).unlink()
    report = check(stored)
    assert report.exit_code == 3
    assert f"there is no {missing} beside it" in {skip.reason for skip in report.skipped}


def test_an_unknown_key_is_named_and_the_rest_compared(stored: Any, check: Check) -> None:
    added = changed(stored, *BATCH, "steps", 0, to=lambda step: step | {"mood": 1}) | {"weather": "fine"}
    report = check(added)
    assert report.exit_code == 3 and all(row.ok for row in report.rows)
    assert [skip.reason for skip in report.skipped] == [
        "unknown to this version, not compared: passes.batches.steps.mood, weather"
    ]


@pytest.mark.parametrize(
    ("place", "to", "reason"),
    [
        (("passes",), lambda x: [], "the file holds no passes.batches"),
        (("passes", 1, "batches"), lambda x: [], "the file holds no passes.batches"),
        (("passes",), lambda x: 5, "expected array, got int"),
        ((*BATCH, "items", 0, "instr_encoding", 0), lambda x: 1000, "expected ids from 0 to 999"),
        ((*BATCH, "items", 0, "instr_encoding"), lambda x: x * 40, "too long"),
        ((*BATCH, "items", 0, "scan"), lambda x: "atlantis", "no scene atlantis"),
        (("flags",), lambda x: "--pooling sum", "arguments that this version does not know"),
        (("flags",), lambda x: "--num_h_layers 2", "2 history layers"),
        ((HEAD,), lambda x: [[1.0]], NAME),
        ((HEAD,), lambda x: "x", "a replaced tensor is invalid"),
        ((HEAD,), lambda x: [[10**400]], "a replaced tensor is invalid"),
        (("replaced_vln_bert.novel",), lambda x: [1.0], "vln_bert.novel, which the network has not got"),
    ],
)
def test_reason_why_rollouts_cannot_be_replayed_is_given(
    stored: Any, check: Check, place: tuple[Any, ...], to: Callable[[Any], Any], reason: str
) -> None:
    stored = stored | {place[0]: None} if len(place) == 1 and place[0] not in stored else stored
    report = check(changed(stored, *place, to=to))
    assert report.exit_code in (1, 3)
    assert any(reason in f"{skip.file}: {skip.reason}" for skip in report.skipped), report.skipped


def test_without_r2r_only_the_items_are_skipped(
    stored: Any, reference: Path, checker: Callable[..., Check], tmp_path: Path
) -> None:
    data = tmp_path.parent / "data_without_r2r"
    shutil.copytree(WORLD / "connectivity", data / "connectivity", dirs_exist_ok=True)
    report = checker("hamt_esceme", NAME, data)(stored)
    assert report.exit_code == 3 and all(row.ok for row in report.rows)
    assert [skip.reason for skip in report.skipped] == ["items: there is no R2R in the data folder"]


def test_invalid_values_are_reported_and_raise_nothing_else(
    stored: Any, reference: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(reference / "hamt_esceme", tmp_path / "x")
    small = copy.deepcopy(stored | {"passes": stored["passes"][:1], "flags": "--max_action_len 2"})
    small["passes"][0]["batches"] = small["passes"][0]["batches"][1:]
    batch = ("passes", 0, "batches", 0)
    places = [("passes", 0), batch, (*batch, "steps", 0), ("flags",), ("passes", 0, "memory_edges", SCENE)]
    columns = ("raw_logits", "nav_types", "hist_lens", "node_nonzero_per_item")
    places += [(*batch, "steps", 0, key) for key in columns]
    places += [(*batch, key) for key in ("instr_ids", "items", "paths")]
    places += [(*batch, "paths", 0), (*batch, "items", 0, "heading")]
    for place in places:
        for junk in (None, True, 77, -1e300, "x", [], [[None]], {"a": []}):
            write_stored(folder / NAME, changed(small, *place, to=lambda _, junk=junk: junk))
            report = VerificationReport()
            check_file(NAME, folder / NAME, ReferenceData(WORLD), report)
            assert report.exit_code in (1, 3), (place, junk)
