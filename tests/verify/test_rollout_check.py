"""`rollout_argmax….json.gz`: the same walks, scores and memories as the original's, step by step."""

from __future__ import annotations

import copy
import gzip
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from esceme.errors import EscemeError
from esceme.verify import Report, verify
from esceme.verify.comparison import Row
from esceme.verify.fixtures import ReferenceData
from esceme.verify.recording import random_atlas
from esceme.verify.rollout_check import check_rollouts
from fixtures.reference_files import (
    WIDTH,
    Remembered,
    best,
    live_batch,
    memory_of,
    small_navigator,
    write_folder,
    write_json_gz,
)

pytestmark = pytest.mark.long

NAME = "rollout_argmax.json.gz"
HEAD = "replaced_vln_bert.next_action.net.4.weight"
MAX_STEPS = 5
NEEDED = ("vln_bert.safetensors", "meta.json")


def make(
    toy: ReferenceData, *, fusing: bool, pooling: str = "max", head: float = 1.0, decide: Any = best
) -> Any:
    """Two batches, lived twice, in the toy house; `head` scales the last weights of the action head."""
    navigator = small_navigator(fusing=fusing)
    with torch.no_grad():
        navigator.agent.action[4].weight.mul_(head)
    atlas = random_atlas({"toy-house"}, toy, WIDTH)
    spoken = random.Random(3)
    episodes = [
        type(each)(**{name: getattr(each, name) for name in each.__slots__} | {"tokens": tokens})
        for each in list(toy.episodes("val_unseen").values())[:20:4]
        for tokens in [tuple(spoken.randrange(210) for _ in range(spoken.randrange(3, 12)))]
    ]
    memory, passes = Remembered(atlas, {}), []
    for _ in range(2):
        batches = [
            live_batch(navigator, memory, each, max_steps=MAX_STEPS, decide=decide, pooling=pooling)
            for each in (episodes[:3], episodes[3:])
        ]
        nothing = {"memory_first4_of_feat": None, "memory_edges": None}
        passes.append({"batches": batches, **(memory_of(memory) if fusing else nothing)})
    flags = f"--dataset r2r --pooling {pooling}\n --max_action_len {MAX_STEPS} --agent_name x"
    stored = {"variant": "hamt_esceme" if fusing else "hamt", "flags": flags, "weights": "", "passes": passes}
    if head != 1:
        stored[HEAD] = navigator.agent.action[4].weight.tolist()
    return copy.deepcopy(stored)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of the rollouts: a folder without and one with memory."""
    root = tmp_path_factory.mktemp("weights")
    for name in ("hamt", "hamt_esceme"):
        write_folder(root / "all" / name, fusing=name == "hamt_esceme")
        (root / name).mkdir()
        for needed in NEEDED:
            shutil.copyfile(root / "all" / name / needed, root / name / needed)
    return root


@pytest.fixture(scope="module")
def made(toy: ReferenceData) -> Any:
    return make(toy, fusing=True)


Judge = Callable[[Any], Report]


@pytest.fixture
def judge(weights: Path, toy: ReferenceData, tmp_path: Path) -> Judge:
    """The report on rollouts, beside the weights of their variant."""
    for name in ("hamt", "hamt_esceme"):
        shutil.copytree(weights / name, tmp_path / name)

    def judged(stored: Any) -> Report:
        variant = stored.get("variant") if stored.get("variant") in ("hamt", "hamt_esceme") else "hamt_esceme"
        write_json_gz(tmp_path / variant / NAME, stored)
        return verify(tmp_path / variant, toy.root)

    return judged


def faults(report: Report) -> set[str]:
    return {
        row.quantity.removeprefix("passes.").removeprefix("batches.") for row in report.rows if not row.ok
    }


def row_of(report: Report, quantity: str) -> Row:
    (row,) = [row for row in report.rows if row.quantity == quantity]
    return row


# -- the original's rollouts -----------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.parametrize("kind", ["hamt", "hamt_esceme", "tdstp", "tdstp_esceme"])
def test_the_originals_walks_are_ours(vectors_root: Path, real: ReferenceData, kind: str) -> None:
    report = verify(vectors_root / kind, real.root)
    assert all(row.ok for row in report.rows)
    assert not report.skipped
    rollouts = {path.name for path in (vectors_root / kind).glob("rollout_argmax*.json.gz")}
    assert rollouts <= {row.file for row in report.rows}
    for name in rollouts:
        compared = {row.quantity.removeprefix("passes."): row for row in report.rows if row.file == name}
        assert compared["batches.items.gt_path"].compared == 144
        assert (
            compared["batches.paths.viewpoint"].compared == compared["batches.paths.heading"].compared > 100
        )
        assert compared["batches.steps.raw_logits"].max_abs_diff < 1e-5
        assert compared["batches.steps.hist_lens"].compared >= 128
        if "esceme" in kind:
            flags, numbers, edges = (1580, 148, 90) if "tdstp" in kind else (1920, 208, 100)
            assert compared["batches.steps.node_nonzero_per_item"].compared == flags
            assert compared["memory_first4_of_feat"].compared == numbers
            assert compared["memory_edges"].compared >= edges


@pytest.mark.real
@pytest.mark.parametrize("kind", ["tdstp", "tdstp_esceme"])
def test_ways_back_are_among_what_is_compared(vectors_root: Path, kind: str) -> None:
    """So that the test above can fail: some walks have more moves than decisions."""
    stored = json.loads(gzip.decompress((vectors_root / kind / NAME).read_bytes()))
    moves = [
        (len(path) - 1, len(batch["steps"]))
        for each in stored["passes"]
        for batch in each["batches"]
        for path in batch["paths"]
    ]
    assert len(moves) == 24
    assert sum(moved > decided for moved, decided in moves) == (15 if kind == "tdstp_esceme" else 2)


def spoil_logit(stored: Any) -> None:
    logits = stored["passes"][1]["batches"][2]["steps"][3]["raw_logits"][2]
    logits[next(place for place, score in enumerate(logits) if score is not None)] += 1e-3


def spoil_path(stored: Any) -> None:
    path = stored["passes"][0]["batches"][1]["paths"][2]
    path[2][0] = path[0][0] if path[2][0] != path[0][0] else path[1][0]


def spoil_flag(stored: Any) -> None:
    flags = stored["passes"][1]["batches"][1]["steps"][0]["node_nonzero_per_item"][0]
    flags[0] = 1 - flags[0]


def spoil_memory(stored: Any) -> None:
    scene = next(iter(stored["passes"][0]["memory_first4_of_feat"].values()))
    next(iter(scene.values()))[3] += 1e-4


def spoil_edge(stored: Any) -> None:
    next(iter(stored["passes"][1]["memory_edges"].values())).pop()


def spoil_way_back(stored: Any) -> None:
    """Leave out a place that was passed through."""
    path = max(stored["passes"][0]["batches"][0]["paths"], key=len)
    del path[5]


def spoil_turn(stored: Any) -> None:
    """Look elsewhere at the end of the walk that has the most moves."""
    max(stored["passes"][0]["batches"][0]["paths"], key=len)[-1][1] += 0.5


@pytest.mark.real
@pytest.mark.parametrize(
    ("kind", "spoil", "quantity"),
    [
        ("hamt_esceme", spoil_logit, "steps.raw_logits"),
        ("hamt_esceme", spoil_path, "paths.viewpoint"),
        ("hamt_esceme", spoil_flag, "steps.node_nonzero_per_item"),
        ("hamt_esceme", spoil_memory, "memory_first4_of_feat"),
        ("hamt_esceme", spoil_edge, "memory_edges (how many)"),
        ("tdstp_esceme", spoil_logit, "steps.raw_logits"),
        ("tdstp_esceme", spoil_way_back, "paths (how many)"),
        ("tdstp_esceme", spoil_turn, "paths.heading"),
        ("tdstp_esceme", spoil_flag, "steps.node_nonzero_per_item"),
        ("tdstp_esceme", spoil_memory, "memory_first4_of_feat"),
        ("tdstp_esceme", spoil_edge, "memory_edges (how many)"),
    ],
)
def test_one_change_in_the_originals_rollout_is_noticed(
    vectors_root: Path,
    real: ReferenceData,
    tmp_path: Path,
    kind: str,
    spoil: Callable[[Any], None],
    quantity: str,
) -> None:
    source = vectors_root / kind
    for name in NEEDED:
        shutil.copyfile(source / name, tmp_path / name)
    stored = json.loads(gzip.decompress((source / NAME).read_bytes()))
    spoil(stored)
    write_json_gz(tmp_path / NAME, stored)
    report = verify(tmp_path, real.root)
    assert report.exit_code == 1
    assert quantity in faults(report)


@pytest.mark.real
@pytest.mark.parametrize(
    ("flag", "quantity"),
    [
        ("--logit-reweighting", "paths.viewpoint"),  # who jumps back and forth is not held back
        ("--no-gas", "paths (how many)"),
        ("--cand-use-ob-pos", "steps.raw_logits"),
    ],
)
def test_other_flags_of_td_stp_are_other_walks(
    vectors_root: Path, real: ReferenceData, tmp_path: Path, flag: str, quantity: str
) -> None:
    source = vectors_root / "tdstp_esceme"
    for name in NEEDED:
        shutil.copyfile(source / name, tmp_path / name)
    stored = json.loads(gzip.decompress((source / NAME).read_bytes()))
    given = flag in stored["flags"]
    stored["flags"] = stored["flags"].replace(flag, "") if given else f"{stored['flags']} {flag}"
    write_json_gz(tmp_path / NAME, stored)
    report = verify(tmp_path, real.root)
    assert report.exit_code == 1
    assert quantity in faults(report)


# -- rollouts of another size ----------------------------------------------------------------------------


@pytest.mark.parametrize("fusing", [False, True])
def test_rollouts_of_any_size_are_lived_again(toy: ReferenceData, judge: Judge, fusing: bool) -> None:
    stored = make(toy, fusing=fusing)
    lengths = {len(path) for each in stored["passes"] for batch in each["batches"] for path in batch["paths"]}
    assert len(lengths) > 1  # episodes end at different times
    report = judge(stored)
    assert report.exit_code == 0 and not report.skipped, report
    decided = sum(
        bool(row)
        for each in stored["passes"]
        for batch in each["batches"]
        for step in batch["steps"]
        for row in step["raw_logits"]
    )
    assert row_of(report, "passes.batches.steps.hist_lens").compared == decided
    assert sum(row.compared for row in report.rows if "ties" in row.quantity) < decided / 5


def test_pooling_and_a_replaced_head_are_read_from_the_file(toy: ReferenceData, judge: Judge) -> None:
    stored = make(toy, fusing=True, pooling="mean", head=-0.7)
    assert judge(stored).exit_code == 0
    assert judge(stored | {"flags": stored["flags"].replace("mean", "max")}).exit_code == 1
    del stored[HEAD]
    assert judge(stored).exit_code == 1


def test_without_flags_the_stored_steps_are_the_limit(made: Any, judge: Judge) -> None:
    assert judge(made | {"flags": ""}).exit_code == 0
    assert judge(made | {"flags": "--max_action_len 3"}).exit_code == 1


def test_ties_are_settled_as_stored_and_counted(toy: ReferenceData, judge: Judge) -> None:
    drawn = random.Random(0)

    def any_choice(logits: torch.Tensor) -> int:
        return drawn.randrange(len(logits))

    stored = make(toy, fusing=True, head=1e-7, decide=any_choice)
    report = judge(stored)
    assert report.exit_code == 0, report
    ties = row_of(report, "passes.batches.paths (ties, settled as stored)").compared
    assert ties == row_of(report, "passes.batches.steps.hist_lens").compared


def test_what_is_no_tie_is_chosen_by_its_score(toy: ReferenceData, judge: Judge) -> None:
    def worst(logits: torch.Tensor) -> int:
        return int(logits.argmin())

    report = judge(make(toy, fusing=False, decide=worst))
    assert {"paths.viewpoint", "paths (how many)"} & faults(report)
    assert not any("ties" in row.quantity for row in report.rows)


def test_rows_of_episodes_that_have_ended_are_ignored(made: Any, judge: Judge) -> None:
    stored = copy.deepcopy(made)
    ended = [
        (step, row)
        for each in stored["passes"]
        for batch in each["batches"]
        for step in batch["steps"]
        for row, logits in enumerate(step["raw_logits"])
        if not logits
    ]
    assert ended
    for step, row in ended:
        step["raw_logits"][row], step["hist_lens"][row] = [9.0, None], 77
        step["nav_types"][row], step["node_nonzero_per_item"][row] = [], [1] * 10
    assert judge(stored).exit_code == 0


def _change(stored: Any, *place: Any, to: Callable[[Any], Any]) -> Any:
    stored = copy.deepcopy(stored)
    inside = stored
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = to(inside[place[-1]])
    return stored


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
        ((*BATCH, "items", 0, "scan"), lambda x: "toy-villa", "items.scan"),
        ((*BATCH, "items", 0, "gt_path"), lambda x: [x[0]], "items.gt_path (how many)"),
        ((*BATCH, "items"), lambda x: x[:-1], "items (how many)"),
        ((*BATCH, "items", 0, "instr_encoding", 1), lambda x: (x + 1) % 210, "steps.raw_logits"),
        ((*BATCH, "instr_ids", 0), lambda x: "nobody_0", "items"),
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
    made: Any, judge: Judge, place: tuple[Any, ...], to: Callable[[Any], Any], quantity: str
) -> None:
    report = judge(_change(made, *place, to=to))
    assert report.exit_code == 1
    assert quantity in faults(report)


def test_which_end_of_an_edge_comes_first_does_not_matter(made: Any, judge: Judge) -> None:
    turned = _change(
        made, "passes", 0, "memory_edges", SCENE, to=lambda edges: [pair[::-1] for pair in edges]
    )
    assert judge(turned).exit_code == 0


def test_memory_is_kept_from_pass_to_pass(made: Any, judge: Judge) -> None:
    report = judge(made | {"passes": made["passes"][1:]})
    assert report.exit_code == 1 and "steps.node_nonzero_per_item" in faults(report)
    assert judge(made | {"passes": made["passes"][:1]}).exit_code == 0


# -- what cannot be compared -----------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["duet", None, 5])
def test_other_variants_are_left_out(made: Any, judge: Judge, variant: Any) -> None:
    report = judge(made | {"variant": variant})
    assert not report.rows and report.exit_code == 3
    assert {skip.file: skip.reason for skip in report.skipped}[
        NAME
    ] == "this version does not compare such files"


@pytest.mark.parametrize("missing", NEEDED)
def test_a_missing_file_is_the_reason(
    made: Any, weights: Path, toy: ReferenceData, tmp_path: Path, missing: str
) -> None:
    folder = shutil.copytree(weights / "hamt_esceme", tmp_path / "x")
    (folder / missing).unlink()
    write_json_gz(folder / NAME, made)
    report = verify(folder, toy.root)
    assert report.exit_code == 3
    assert f"there is no {missing} beside it" in {skip.reason for skip in report.skipped}


def test_an_unknown_key_is_named_and_the_rest_compared(made: Any, judge: Judge) -> None:
    stored = _change(made, *BATCH, "steps", 0, to=lambda step: step | {"mood": 1}) | {"weather": "fine"}
    report = judge(stored)
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
        ((*BATCH, "items", 0, "instr_encoding", 0), lambda x: 210, "expected ids from 0 to 209"),
        ((*BATCH, "items", 0, "instr_encoding"), lambda x: x * 20, "too long"),
        ((*BATCH, "items", 0, "scan"), lambda x: "atlantis", "no scene atlantis"),
        (("flags",), lambda x: "--pooling sum", "arguments that this version does not know"),
        (("flags",), lambda x: "--num_h_layers 2", "2 history layers"),
    ],
)
def test_what_cannot_be_lived_is_the_reason(
    made: Any, judge: Judge, place: tuple[Any, ...], to: Callable[[Any], Any], reason: str
) -> None:
    report = judge(_change(made, *place, to=to))
    assert report.exit_code in (1, 3)
    assert any(reason in skip.reason for skip in report.skipped), report.skipped


@pytest.mark.parametrize("value", [[[1.0]], "x", None, [[10**400]], {"a": 1}])
def test_a_head_that_does_not_fit_is_the_reason(made: Any, judge: Judge, value: Any) -> None:
    report = judge(made | {HEAD: value})
    assert report.exit_code == 3 and any(skip.file == NAME for skip in report.skipped)
    report = judge(made | {"replaced_vln_bert.novel": [1.0]})
    assert any("vln_bert.novel, which the network has not got" in skip.reason for skip in report.skipped)


def test_without_r2r_only_the_items_are_left_out(
    made: Any, weights: Path, toy: ReferenceData, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "connectivity").symlink_to(toy.root / "connectivity")
    folder = shutil.copytree(weights / "hamt_esceme", tmp_path / "x")
    write_json_gz(folder / NAME, made)
    report = verify(folder, tmp_path / "data")
    assert report.exit_code == 3 and all(row.ok for row in report.rows)
    assert [skip.reason for skip in report.skipped] == ["items: there is no R2R in the data folder"]


def test_whatever_is_in_its_place_is_judged_not_stumbled_over(
    made: Any, weights: Path, toy: ReferenceData, tmp_path: Path
) -> None:
    folder = shutil.copytree(weights / "hamt_esceme", tmp_path / "x")
    small = copy.deepcopy(made | {"passes": made["passes"][:1]})
    small["passes"][0]["batches"] = small["passes"][0]["batches"][1:]
    step = ("passes", 0, "batches", 0, "steps", 0)
    places = [
        ("passes", 0),
        ("passes", 0, "batches", 0),
        step,
        ("flags",),
        ("passes", 0, "memory_edges", SCENE),
    ]
    places += [(*step, key) for key in ("raw_logits", "nav_types", "hist_lens", "node_nonzero_per_item")]
    places += [("passes", 0, "batches", 0, key) for key in ("instr_ids", "items", "paths")]
    places += [("passes", 0, "batches", 0, "paths", 0), ("passes", 0, "batches", 0, "items", 0, "heading")]
    for place in places:
        for junk in (None, True, 77, -1e300, "x", [], [[None]], {"a": []}):
            write_json_gz(folder / NAME, _change(small, *place, to=lambda _, junk=junk: junk))
            report = Report()
            try:
                check_rollouts(NAME, folder / NAME, toy, report)
            except EscemeError:
                continue
            assert report.exit_code in (1, 3), (place, junk)
