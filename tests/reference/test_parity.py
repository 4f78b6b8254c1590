"""The reference files of this folder: what every agent and reader computes is what they hold (README.md)."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

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


# -- DUET ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def duet_report() -> VerificationReport:
    return verify(HERE / "duet", WORLD)


def test_every_stored_number_of_duet_is_ours(duet_report: VerificationReport) -> None:
    assert not [row for row in duet_report.rows if not row.ok] and not duet_report.skipped
    rows = {(row.file, row.quantity): row for row in duet_report.rows}
    for config in ("r2r", "avg", "nosprels"):
        assert rows[f"case0_{config}_outputs.safetensors", "fused_logits_f64"].max_abs_diff < 1e-12
    assert rows["rollout_argmax.json.gz", "passes.batches.steps.fused_logits"].compared > 100
    assert rows["train_il_dagger.json.gz", "DAGGER_ndtw.targets"].compared > 10
    assert rows["train_il_dagger.json.gz", "iteration.update_norms (relative)"].compared > 60


def test_rollouts_of_duet_jump_and_go_back() -> None:
    (batch,) = read("duet", "rollout_argmax.json.gz")["passes"][0]["batches"]
    assert any(len(segment) > 1 for path in batch["trajectories"] for segment in path)
    moves = [
        sum(step is not None and step["action"] is not None for step in line)
        for line in zip(*batch["steps"], strict=True)
    ]
    assert any(len(path) - 1 > count for path, count in zip(batch["trajectories"], moves, strict=True))
    draws = read("duet", "train_il_dagger.json.gz")["DAGGER"]
    assert any(label not in (0, -100) for line in draws["targets"] for label in line)


def change_json(folder: Path, name: str, change: Callable[[Any], None]) -> None:
    stored = read("duet", name)
    change(stored)
    (folder / name).unlink()
    (folder / name).write_bytes(gzip.compress(json.dumps(stored).encode()))


def change_target(stored: Any) -> None:
    stored["DAGGER"]["targets"][0][0] += 1


def change_stop_score(stored: Any) -> None:
    scores = stored["passes"][0]["batches"][0]["stop_scores"][0]
    scores[next(iter(scores))] += 1e-3


def change_segment(stored: Any) -> None:
    max(stored["passes"][0]["batches"][0]["trajectories"], key=len)[-1].append("x")


def shorten_features(stored: Any) -> None:
    del stored["passes"][0]["batches"][0]["steps"][1][0]["gmap_pos_fts"][0][1]


def change_update(stored: Any) -> None:
    norms = stored["iteration"]["update_norms"]
    norms["vln_bert.global_sap_head.net.0.weight"] *= 1.01


@pytest.mark.parametrize(
    ("name", "change", "quantity"),
    [
        ("train_il_dagger.json.gz", change_target, "DAGGER.targets"),
        ("train_il_dagger.json.gz", change_update, "iteration.update_norms (relative)"),
        ("rollout_argmax.json.gz", change_stop_score, "passes.batches.stop_scores"),
        ("rollout_argmax.json.gz", change_segment, "passes.batches.trajectories (how many)"),
        ("rollout_argmax.json.gz", shorten_features, "passes.batches.steps.gmap_pos_fts (shape)"),
    ],
)
def test_changed_numbers_of_duet_are_noticed(
    tmp_path: Path, name: str, change: Callable[[Any], None], quantity: str
) -> None:
    for file in ("vln_bert.safetensors", "meta.json", name):
        shutil.copyfile(HERE / "duet" / file, tmp_path / file)
    change_json(tmp_path, name, change)
    assert [row.quantity for row in verify(tmp_path, WORLD).rows if not row.ok] == [quantity]


@pytest.mark.parametrize("key", ["s1.gmap_pos_fts", "s1.gmap_step_ids", "s1.gmap_pair_dists"])
def test_changed_inputs_of_duet_are_noticed(tmp_path: Path, key: str) -> None:
    names = ("vln_bert.safetensors", "meta.json", "case0_inputs.safetensors", "case0_r2r_outputs.safetensors")
    for name in names:
        shutil.copyfile(HERE / "duet" / name, tmp_path / name)
    tensors = load_file(tmp_path / names[2])
    tensors[key][0, 1] += 1
    save_file(tensors, tmp_path / names[2])
    assert f"inputs.{key[3:]}" in [row.quantity for row in verify(tmp_path, WORLD).rows if not row.ok]


def test_files_of_duet_that_do_not_fit_are_reported(tmp_path: Path) -> None:
    """Weights of DUET beside rollouts of HAMT, and the other way round; damaged files."""
    shutil.copyfile(HERE / "duet/vln_bert.safetensors", tmp_path / "vln_bert.safetensors")
    shutil.copyfile(HERE / "duet/meta.json", tmp_path / "meta.json")
    shutil.copyfile(HERE / "hamt/rollout_argmax.json.gz", tmp_path / "rollout_argmax.json.gz")
    (tmp_path / "train_il_dagger.json.gz").write_bytes(b"no gzip")
    report = verify(tmp_path, WORLD)
    assert report.exit_code == 3 and not [row for row in report.rows if not row.ok]
    skipped = {skip.file for skip in report.skipped}
    assert {"rollout_argmax.json.gz", "train_il_dagger.json.gz"} <= skipped


def test_the_folder_is_small_and_holds_nothing_of_matterport() -> None:
    files = [path for path in HERE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) < SIZE_LIMIT
    scans = {path["scan"] for path in json.loads((WORLD / "R2R/R2R_val_unseen.json").read_text())}
    for variant in VARIANTS:
        stored = read(variant, "train_il_a2c.json.gz")
        scans |= {item["scan"] for key in ("IL", "A2C") for item in stored[key]["items"]}
    duet = read("duet", "train_il_dagger.json.gz")
    scans |= {item["scan"] for key in ("IL", "DAGGER") for item in duet[key]["items"]}
    assert scans == {"toy-house"}


def test_a_missing_input_of_duet_is_reported(tmp_path: Path) -> None:
    names = ("vln_bert.safetensors", "meta.json", "case0_inputs.safetensors", "case0_r2r_outputs.safetensors")
    for name in names:
        shutil.copyfile(HERE / "duet" / name, tmp_path / name)
    tensors = load_file(tmp_path / names[2])
    del tensors["s0.gmap_lens"]
    save_file(tensors, tmp_path / names[2])
    (skipped,) = verify(tmp_path, WORLD).skipped
    assert "s0.gmap_lens in case0_inputs.safetensors" in skipped.reason
