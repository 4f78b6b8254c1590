"""The reference files of this folder: what every agent and reader computes is what they hold (README.md)."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from esceme.verify import VerificationReport, verify
from esceme.verify.recording import VARIANTS
from reference.make import HERE, OUTPUTS, WORLD, unpack

SIZE_LIMIT = 3_000_000
CONFIGS = {"r2r", "r4r_nolangca", "hlayer1"}


@pytest.fixture(scope="session")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("reference"))


@pytest.fixture(scope="session")
def reports(vectors: Path) -> dict[str, VerificationReport]:
    return {variant: verify(vectors / variant, WORLD) for variant in VARIANTS}


def read(variant: str, name: str) -> Any:
    return json.loads(gzip.decompress((HERE / variant / name).read_bytes()))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_stored_number_is_ours(reports: dict[str, VerificationReport], variant: str) -> None:
    report = reports[variant]
    assert not [row for row in report.rows if not row.ok]
    # Outputs that are not kept are the only thing that is skipped.
    for skip in report.skipped:
        assert skip.file.endswith("_outputs.safetensors")
        assert skip.reason.startswith("the file holds no ")
        missing = skip.reason.removeprefix("the file holds no ").split(", ")
        assert not [name for name in missing if re.fullmatch(OUTPUTS, name)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_network_outputs_of_the_original_are_compared_in_every_configuration(
    reports: dict[str, VerificationReport], variant: str
) -> None:
    quantities = {"act_logits", "states", "critic", "hist_step", "act_logits_f64", "critic_f64"}
    quantities |= {"pos_logit", "global_pos"} if "tdstp" in variant else set()
    quantities |= {"ob_node_feats"} if "esceme" in variant else set()
    for config in CONFIGS:
        name = f"case0_{config}_outputs.safetensors"
        rows = {row.quantity: row for row in reports[variant].rows if row.file == name}
        assert quantities <= set(rows)
        assert rows["act_logits_f64"].max_abs_diff < 1e-12
    upstream = [row for row in reports[variant].rows if "_upstreamTDSTP_" in row.file]
    assert bool(upstream) == (variant == "tdstp")


@pytest.mark.parametrize("variant", VARIANTS)
def test_rollouts_and_training_steps_are_compared(
    reports: dict[str, VerificationReport], variant: str
) -> None:
    rows = {(row.file, row.quantity): row.compared for row in reports[variant].rows}
    rollout, training = "rollout_argmax.json.gz", "train_il_a2c.json.gz"
    assert rows[rollout, "passes.batches.steps.hist_lens"] > 25
    assert rows[rollout, "passes.batches.paths.viewpoint"] > 40
    assert rows[training, "A2C.critic_calls (relative)"] >= 8 * 4
    assert rows[training, "A2C.rewards.nDTW (relative)"] >= 7 * 4
    assert rows[training, "IL.grad_norms (step by step) (relative)"] > 90
    assert ((rollout, "passes.memory_edges (scenes)") in rows) == ("esceme" in variant)
    assert ((training, "IL.logs.GP_loss (step by step) (relative)") in rows) == ("tdstp" in variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rollouts_hold_the_cases_that_matter(variant: str) -> None:
    batches = [
        batch for passed in read(variant, "rollout_argmax.json.gz")["passes"] for batch in passed["batches"]
    ]
    assert len(batches) == 4
    moves = [(len(path) - 1, len(batch["steps"])) for batch in batches for path in batch["paths"]]
    assert any(moved < decided for moved, decided in moves)  # some stop, others reach the limit
    assert any(moved >= decided for moved, decided in moves)
    if "tdstp" in variant:
        assert any(moved > decided for moved, decided in moves)  # it went back over several viewpoints
        actions = read(variant, "train_il_a2c.json.gz")["A2C"]["sampled_actions(-1=stop/ended)"]
        assert any(1 <= action <= step for step, row in enumerate(actions) for action in row)
    if "esceme" in variant:
        flags = [step["node_nonzero_per_item"] for batch in batches for step in batch["steps"]]
        assert any(1 in row for step in flags for row in step)


@pytest.mark.parametrize("variant", ["hamt_esceme", "tdstp_esceme"])
def test_a_changed_logit_is_noticed(vectors: Path, tmp_path: Path, variant: str) -> None:
    for name in ("vln_bert.safetensors", "meta.json"):
        (tmp_path / name).symlink_to(vectors / variant / name)
    stored = read(variant, "rollout_argmax.json.gz")
    logits = stored["passes"][1]["batches"][0]["steps"][1]["raw_logits"][0]
    logits[next(index for index, value in enumerate(logits) if value is not None)] += 1e-3
    (tmp_path / "rollout_argmax.json.gz").write_bytes(gzip.compress(json.dumps(stored).encode()))
    report = verify(tmp_path, WORLD)
    assert [row.quantity for row in report.rows if not row.ok] == ["passes.batches.steps.raw_logits"]


def test_the_folder_is_small_and_holds_nothing_of_matterport() -> None:
    files = [path for path in HERE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) < SIZE_LIMIT
    scans = {path["scan"] for path in json.loads((WORLD / "R2R/R2R_val_unseen.json").read_text())}
    for variant in VARIANTS:
        stored = read(variant, "train_il_a2c.json.gz")
        scans |= {item["scan"] for key in ("IL", "A2C") for item in stored[key]["items"]}
    assert scans == {"toy-house"}
