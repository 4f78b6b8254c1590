"""`train_il_a2c….json.gz`: losses, values, rewards and gradients are compared at the stored actions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from esceme.verify import VerificationReport
from esceme.verify.fixtures import NetworkFiles, ReferenceData
from esceme.verify.training_check import TrainingFile, reference_trainer
from fixtures.corrupted_files import changed, faults, junk_values, read_stored, slight_changes
from reference.make import WORLD

pytestmark = pytest.mark.long

NAME = "train_il_a2c.json.gz"
ACTIONS = "sampled_actions(-1=stop/ended)"
REWARDS = "reward_mask_dist_ndtw_per_step"
VALUES = "critic_calls(first=last state,then t=T-1..0)"
LOGS = "logs(policy/critic in reverse time)"
NORM = "total_grad_norm_before_clip_vln_bert"
Check = Callable[[Any], VerificationReport]


@pytest.fixture(scope="module")
def stored(reference: Path) -> Any:
    """Training steps of HAMT with ESceme in a generated house, without the keys that hold nothing."""
    stored = read_stored(reference / "hamt_esceme" / NAME)
    for logs in (stored["IL"]["logs"], stored["A2C"][LOGS]):
        assert logs.pop("GP_loss") is None  # HAMT predicts no target, and its files do not mention it
    return stored


@pytest.fixture
def check(checker: Callable[..., Check]) -> Check:
    return checker("hamt_esceme", NAME)


TD_STP_CHANGES = [
    (("IL", "loss"), "IL.loss (step by step) (relative)"),
    (("IL", "logs", "IL_loss", 0), "IL.logs.IL_loss (step by step) (relative)"),
    (("IL", "logs", "GP_loss", 0), "IL.logs.GP_loss (step by step) (relative)"),
    (("IL", "grad_norms", "position_encoder.0.weight"), "IL.grad_norms (step by step) (relative)"),
    (("A2C", "loss"), "A2C.loss (relative)"),
    (("A2C", VALUES, 3, 0), "A2C.critic_calls (relative)"),
    (("A2C", LOGS, "RL_loss", 0), "A2C.logs.RL_loss (relative)"),
    (("A2C", LOGS, "GP_loss", 0), "A2C.logs.GP_loss (relative)"),
    (("A2C", "grad_norms", "history_mapper.2.weight"), "A2C.grad_norms (relative)"),
    (("A2C", NORM), "A2C.total_grad_norm_before_clip (relative)"),
]


@pytest.mark.parametrize(("place", "quantity"), TD_STP_CHANGES)
def test_one_change_in_td_stps_training_is_noticed(
    reference: Path, checker: Callable[..., Check], place: tuple[Any, ...], quantity: str
) -> None:
    stored = read_stored(reference / "tdstp_esceme" / NAME)
    report = checker("tdstp_esceme", NAME)(changed(stored, *place, to=lambda value: value * (1 + 5e-4)))
    assert report.exit_code == 1 and quantity in faults(report)


@pytest.mark.parametrize(
    ("flag", "quantity"),
    [
        ("--rl_teacher_weight", "A2C.logs.RL_loss (relative)"),
        ("--gp_loss_weight", "IL.logs.GP_loss (step by step) (relative)"),
        ("--no-path-restriction", "A2C.logs.RL_loss (relative)"),
        ("--logit-reweighting", "A2C.loss (relative)"),
    ],
)
def test_flags_of_td_stp_change_its_training(
    reference: Path, checker: Callable[..., Check], flag: str, quantity: str
) -> None:
    stored = read_stored(reference / "tdstp_esceme" / NAME)
    before, _, after = stored["flags"].partition(flag)
    flags = f"{before} --no_such_flag {after}" if flag in stored["flags"] else f"{before} {flag}"
    report = checker("tdstp_esceme", NAME)(stored | {"flags": flags})
    assert report.exit_code == 1 and quantity in faults(report)


# -- training in a generated house -----------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["hamt", "hamt_esceme"])
@pytest.mark.parametrize(
    "flags",
    [
        "--no_lang_ca --max_action_len 6 --gamma 0.5 --entropy_loss_weight 0.3 --ml_weight 1",
        "--fix_lang_embedding --normalize batch --pooling mean",
    ],
)
def test_training_flags_count(
    reference: Path, checker: Callable[..., Check], variant: str, flags: str
) -> None:
    recorded = msgspec.convert(read_stored(reference / variant / NAME) | {"flags": flags}, TrainingFile)
    assert recorded.imitation is not None and recorded.a2c is not None
    files, references = NetworkFiles(reference / variant / NAME), ReferenceData(WORLD)
    trainer = reference_trainer(recorded, files, references)
    recorded.imitation = trainer.imitate(recorded.imitation, stepwise=True)
    recorded.a2c = trainer.reinforce(recorded.a2c)
    stored, check = json.loads(msgspec.json.encode(recorded)), checker(variant, NAME)
    report = check(stored)
    assert report.exit_code == 0 and not report.skipped, report
    for flag in flags.split("--")[1:]:
        if flag.split()[0] not in ("ml_weight", "max_action_len") and (
            variant == "hamt_esceme" or "pooling" not in flag
        ):
            assert check(stored | {"flags": flags.replace(f"--{flag.strip()}", "")}).exit_code == 1, flag


def test_both_forward_modes_are_compared(stored: Any, check: Check) -> None:
    rows = {row.quantity: row for row in check(stored).rows}
    once, steps = (rows[f"IL.grad_norms ({mode}) (relative)"] for mode in ("at once", "step by step"))
    assert once.ok and steps.ok and once.max_abs_diff != steps.max_abs_diff


def test_rewards_need_not_be_stored(stored: Any, check: Check) -> None:
    report = check(changed(stored, "A2C", REWARDS, to=lambda rewards: []))
    assert report.exit_code == 0
    assert not any("rewards" in row.quantity for row in report.rows)


FREE = {"mode: another"}  # a remark on how the numbers were computed
# What makes a file one that is not compared: of another network, or with what cannot be a flag or a norm.
SKIPPED = {
    "variant: another",
    "flags: another",
    *(
        f"{section}.grad_norms.vln_bert.embeddings.word_embeddings.weight: negated"
        for section in ("IL", "A2C")
    ),
}


def test_no_value_can_be_changed_unnoticed(stored: Any, check: Check) -> None:
    codes: dict[str, int] = {}
    for what, corrupted in slight_changes(stored):
        some = ".grad_norms." not in what or "next_action.net.0.bias" in what or "word_embeddings" in what
        if some and what not in codes:
            codes[what] = check(corrupted).exit_code
    assert {what for what, code in codes.items() if code == 0} == FREE
    assert {what for what, code in codes.items() if code == 3} == SKIPPED
    assert len(codes) > 50


@pytest.mark.parametrize(
    ("place", "to", "quantity"),
    [
        (("A2C", ACTIONS, 0, 0), lambda action: 9, "A2C.sampled_actions"),  # no such choice
        (("A2C", ACTIONS, 3, 3), lambda action: 0, "A2C.sampled_actions"),  # of an ended episode
        (("A2C", ACTIONS), lambda actions: actions[:2], "A2C.sampled_actions (how many)"),
        (("A2C", VALUES, 0, 2), lambda value: value + 1e-3, "A2C.critic_calls (relative)"),  # has stopped
        (("A2C", LOGS, "entropy", 3), lambda value: value + 1e-2, "A2C.logs.entropy (relative)"),
        (
            ("IL", "grad_norms"),
            lambda norms: dict(list(norms.items())[1:]),
            "IL.grad_norms (at once), parameters",
        ),
        (
            ("IL", "grad_norms", "vln_bert.next_action.net.0.bias"),
            lambda norm: None,
            "IL.grad_norms (at once), none",
        ),
        (
            ("IL", "grad_norms", "vln_bert.embeddings.LayerNorm.bias"),
            lambda norm: 0.0,
            "IL.grad_norms (at once), none",
        ),
    ],
)
def test_impossible_values_are_noticed(
    stored: Any, check: Check, place: tuple[Any, ...], to: Callable[[Any], Any], quantity: str
) -> None:
    report = check(changed(stored, *place, to=to))
    assert report.exit_code == 1 and quantity in faults(report)


# -- parts of a folder -----------------------------------------------------------------------------------


def reason(report: VerificationReport) -> str:
    (skip,) = [skip for skip in report.skipped if skip.file == NAME]
    return skip.reason


@pytest.mark.parametrize("section", ["IL", "A2C"])
@pytest.mark.parametrize("emptied", [True, False])
def test_a_missing_rollout_is_named_and_the_other_compared(
    stored: Any, check: Check, section: str, emptied: bool
) -> None:
    rest = {key: value for key, value in stored.items() if key != section}
    if emptied:
        rest = changed(stored, section, "items", to=lambda items: [])
    report = check(rest)
    assert report.exit_code == 3 and not faults(report) and report.rows
    assert reason(report) == f"the file holds no {section}"


def test_without_a_critic_only_imitation_is_compared(stored: Any, check: Check, tmp_path: Path) -> None:
    (tmp_path / "critic.safetensors").unlink()
    report = check(stored)
    assert report.exit_code == 3 and not faults(report)
    assert reason(report) == "A2C: there is no critic.safetensors beside it"
    assert {row.quantity[:2] for row in report.rows if "items" not in row.quantity} == {"IL"}


def test_an_unknown_key_is_named_and_the_rest_compared(stored: Any, check: Check) -> None:
    stored = changed(stored, "A2C", to=lambda rollout: {**rollout, "novel": 1})
    report = check(changed(stored, "IL", "logs", to=lambda logs: {**logs, "other": []}))
    assert report.exit_code == 3 and not faults(report)
    assert reason(report) == "unknown to this version, not compared: A2C.novel, IL.logs.other"


@pytest.mark.parametrize(
    ("place", "to", "expected"),
    [
        (("flags",), lambda flags: "--gamma much", "flags that this version does not know"),
        (("flags",), lambda flags: "--normalize none", "flags that this version does not know"),
        (("flags",), lambda flags: "--gamma 7", "discount: expected at most 1, found 7.0"),
        (("IL", "items", 0, "scan"), lambda scan: "nowhere", "no scene nowhere"),
        (("IL", "items", 0, "path"), lambda path: [], "has no path"),
        (("IL", "items", 0, "instr_encoding"), lambda ids: [1000], "expected ids from 0 to 999"),
        (("IL", "loss"), lambda loss: "much", "loss"),
        (("A2C", VALUES), lambda values: [["x"]], VALUES),
    ],
)
def test_reason_why_training_cannot_be_repeated_is_given(
    stored: Any, check: Check, place: tuple[Any, ...], to: Callable[[Any], Any], expected: str
) -> None:
    report = check(changed(stored, *place, to=to))
    assert report.exit_code in (1, 3)
    assert expected in " ".join(skip.reason for skip in report.skipped)


def test_invalid_values_are_reported_and_raise_nothing_else(stored: Any, check: Check) -> None:
    some = [corrupted for corrupted in junk_values(stored) if ".grad_norms." not in corrupted[0]][::4]
    codes = [(kind, check(corrupted).exit_code) for kind, corrupted in some]
    assert len({kind for kind, _ in codes}) > 40
    # Text that may be any, and what need not be there.
    assert {kind for kind, code in codes if code == 0} <= {"flags", "mode", f"A2C.{REWARDS}"}
