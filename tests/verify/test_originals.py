"""Reference numbers of the original code beside the public datasets: all are compared, and all are equal."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from esceme.verify import VerificationReport, verify
from esceme.verify.recording import VARIANTS
from fixtures.corrupted_files import read_stored

pytestmark = [pytest.mark.real, pytest.mark.long]

OUTPUTS = {"act_logits", "log_softmax", "states", "critic", "hist_step", "history.global"}
OUTPUTS |= {"hist_embeds_out", "txt_embeds_out", "ob_embeds_out"}
DOUBLE_OUTPUTS = {"act_logits_f64", "critic_f64"}
TDSTP_OUTPUTS = {"global_pos", "global_pos.feat", "pos_logit", "pos_embeds"}


@pytest.fixture(scope="module")
def report(vectors_root: Path, data_root: Path) -> VerificationReport:
    return verify(vectors_root, data_root)


@pytest.fixture(scope="module")
def compared(report: VerificationReport) -> dict[str, dict[str, int]]:
    """File -> quantity -> number of compared values."""
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    for row in report.rows:
        counts[row.file][row.quantity] = row.compared
    return counts


def test_every_file_is_compared_and_equal(report: VerificationReport, vectors_root: Path) -> None:
    assert report.exit_code == 0 and not report.skipped and len(report.rows) >= 563
    names = {path.relative_to(vectors_root).as_posix() for path in vectors_root.rglob("*") if path.is_file()}
    assert {row.file for row in report.rows} | report.used == {n for n in names if not n.endswith(".md")}


@pytest.mark.parametrize(
    ("pattern", "limit"),
    [
        (r"[^/]*", 1e-6),  # simulator and metrics
        (r"hamt.*/case.*(?<!_f64)", 5e-6),
        (r"tdstp.*/case.*(?<!_f64)", 8e-6),
        (r".*/case.*_f64", 1e-12),
        (r".*/rollout.* passes.batches.steps.raw_logits", 1e-5),
        (r"hamt.*/train.*", 1e-5),
        (r"tdstp.*/train.*", 2e-5),
    ],
)
def test_differences_are_rounding_errors(report: VerificationReport, pattern: str, limit: float) -> None:
    rows = [row for row in report.rows if re.fullmatch(pattern, f"{row.file} {row.quantity}")]
    assert rows and max(row.max_abs_diff for row in rows) < limit


def test_simulator_and_metrics_are_compared_completely(compared: dict[str, dict[str, int]]) -> None:
    simulator = compared["sim_candidates.json.gz"]
    assert simulator["observations.candidates.viewpointId"] == 893
    assert simulator["observations.state_heading"] == 210
    assert simulator["shortest_pairs.distance"] == 140
    assert simulator["teacher_path_actions.teacher_none"] == 237
    assert simulator["view_angle_feature_base0"] == simulator["view_angle_feature_base17"] == 144
    r2r, r4r = (compared[f"metrics_{n}.json"] for n in ("r2r_val_unseen", "r4r_val_seen_synthetic"))
    assert r2r["rows.nDTW"] == r2r["rows.CLS"] == r4r["rows.nDTW"] == r4r["rows.CLS"] == 50
    assert r2r["rows.pred_path"] == 313
    assert r2r["aggregate.spl"] == r2r["n"] == r2r["extra.n_zero_length_predictions"] == 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_network_outputs_are_compared(compared: dict[str, dict[str, int]], variant: str) -> None:
    files = {name: set(counts) for name, counts in compared.items() if name.startswith(f"{variant}/case")}
    assert files
    for name, quantities in files.items():
        assert quantities >= OUTPUTS | (TDSTP_OUTPUTS if "tdstp" in variant else set())
        assert "_upstreamTDSTP" in name or quantities >= DOUBLE_OUTPUTS  # it stores no double precision
        assert ("language.txt_embeds.2" if "nolangca" in name else "language.txt_embeds") in quantities
        assert ("ob_node_feats" in quantities) == ("esceme" in variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rollouts_are_compared_completely(
    compared: dict[str, dict[str, int]], vectors_root: Path, variant: str
) -> None:
    names = [name for name in compared if name.startswith(f"{variant}/rollout_argmax")]
    assert names
    for name in names:
        counts = {quantity.removeprefix("passes."): count for quantity, count in compared[name].items()}
        assert counts["batches.items.gt_path"] == 144
        assert counts["batches.paths.viewpoint"] == counts["batches.paths.heading"] > 100
        assert counts["batches.steps.hist_lens"] >= 128
        if "esceme" in variant:
            flags, numbers, edges = (1580, 148, 90) if "tdstp" in variant else (1920, 208, 100)
            assert counts["batches.steps.node_nonzero_per_item"] == flags
            assert counts["memory_first4_of_feat"] == numbers
            assert counts["memory_edges"] >= edges
    if "tdstp" in variant:  # trajectories with more moves than decisions
        passes = read_stored(vectors_root / variant / "rollout_argmax.json.gz")["passes"]
        batches = [batch for recorded in passes for batch in recorded["batches"]]
        moves = [(len(path) - 1, len(batch["steps"])) for batch in batches for path in batch["paths"]]
        assert len(moves) == 24
        assert sum(moved > decided for moved, decided in moves) == (15 if "esceme" in variant else 2)


@pytest.mark.parametrize(
    ("variant", "parameters", "modes", "frozen", "frozen_in_a2c"),
    [
        ("hamt", 179, ["at once", "step by step"], 77, 73),
        ("hamt_esceme", 185, ["at once", "step by step"], 77, 73),
        ("tdstp", 191, ["step by step"], 40, 36),  # its history is recurrent
        ("tdstp_esceme", 197, ["step by step"], 40, 36),
    ],
)
def test_training_steps_are_compared_completely(
    compared: dict[str, dict[str, int]],
    variant: str,
    parameters: int,
    modes: list[str],
    frozen: int,
    frozen_in_a2c: int,
) -> None:
    is_hamt = variant.startswith("hamt")
    counts = compared[f"{variant}/train_il_a2c.json.gz"]
    expected = {"A2C.critic_calls (relative)": 9 * 4}
    for mode in modes:
        losses = ["loss"] if is_hamt else ["loss", "logs.IL_loss", "logs.GP_loss"]
        expected |= {f"IL.{name} ({mode}) (relative)": 4 if is_hamt else 1 for name in losses}
        expected[f"IL.actions ({mode})"] = 28
    gradients = {f"IL.grad_norms ({mode})": frozen for mode in modes} | {"A2C.grad_norms": frozen_in_a2c}
    for name, none in gradients.items():
        expected |= {f"{name}, parameters": parameters, f"{name}, none": none}
        expected[f"{name} (relative)"] = parameters - none
    expected |= {f"A2C.logs.{name} (relative)": 8 for name in ("entropy", "critic_loss", "policy_loss")}
    if not is_hamt:
        totals = ("loss", "logs.RL_loss", "logs.GP_loss", "total_grad_norm_before_clip")
        expected |= {f"A2C.{name} (relative)": 1 for name in totals}
    assert {name: counts.get(name) for name in expected} == expected
    assert ("IL.actions (at once)" in counts) == is_hamt
    if is_hamt:
        assert ("A2C.rewards.nDTW (relative)" in counts) == (variant == "hamt_esceme")
