"""`case…_outputs.safetensors`: our network gives the original's numbers, whatever its size and switches."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from esceme.agents.base import Words
from esceme.verify import Report, verify
from esceme.verify.references import References
from vectors import CONFIGS, small_navigator, write_folder

pytestmark = pytest.mark.long

QUANTITIES = {
    "act_logits",
    "log_softmax",
    "states",
    "critic",
    "hist_embeds_out",
    "hist_step",
    "history.global",
}
QUANTITIES |= {"txt_embeds_out", "ob_embeds_out", "act_logits_f64", "critic_f64"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders of a size of their own, without and with memory."""
    root = tmp_path_factory.mktemp("vectors")
    write_folder(root / "one", fusing=False)
    write_folder(root / "other", fusing=True)
    return root


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy of the folder with memory, to be spoiled: one case in one configuration."""
    return only(written / "other", tmp_path / "copy")


def only(source: Path, target: Path, outputs: str = "case0_plain_outputs.safetensors") -> Path:
    """A copy that holds one file of outputs and what it needs."""
    case = outputs.partition("_")[0]
    target.mkdir()
    names = [outputs, f"{case}_inputs.safetensors", "vln_bert.safetensors", "critic.safetensors", "meta.json"]
    for name in names:
        shutil.copyfile(source / name, target / name)
    return target


def change(path: Path, alter: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    alter(tensors)
    path.unlink()
    save_file(tensors, path)


def raise_by(key: str, much: float) -> Callable[[dict[str, Tensor]], object]:
    """Add to one finite number of a tensor."""

    def alter(tensors: dict[str, Tensor]) -> None:
        places = tensors[key].isfinite().nonzero()
        tensors[key][tuple(places[len(places) // 2])] += much

    return alter


def reasons(report: Report) -> dict[str, str]:
    return {skip.file: skip.reason for skip in report.skipped}


# -- the original's numbers ------------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.parametrize("kind", ["hamt", "hamt_esceme"])
def test_the_originals_numbers_are_ours(
    vectors_root: Path, real: References, tmp_path: Path, kind: str
) -> None:
    folder = shutil.copytree(
        vectors_root / kind,
        tmp_path / "x",
        ignore=shutil.ignore_patterns("*.gz"),
        copy_function=shutil.copyfile,
    )
    report = verify(folder, real.root)
    assert report.exit_code == 0 and not report.skipped, report
    cases = {path.name for path in folder.glob("case*_outputs.safetensors")}
    assert {row.file for row in report.rows} == cases
    for name in cases:
        quantities = {row.quantity for row in report.rows if row.file == name}
        assert quantities >= QUANTITIES
        assert quantities >= {"language.txt_embeds.2" if "nolangca" in name else "language.txt_embeds"}
        assert ("ob_node_feats" in quantities) == (kind == "hamt_esceme")
    single = [row for row in report.rows if not row.quantity.endswith("_f64")]
    assert max(row.max_abs_diff for row in single) < 5e-6
    double = [row for row in report.rows if row.quantity.endswith("_f64")]
    assert max(row.max_abs_diff for row in double) < 1e-12
    assert report.used == {path.name for path in folder.iterdir() if path.suffix != ".md"} - cases


@pytest.mark.real
@pytest.mark.parametrize("kind", ["hamt", "hamt_esceme"])
def test_one_logit_of_the_original_changed_by_a_thousandth_is_noticed(
    vectors_root: Path, real: References, tmp_path: Path, kind: str
) -> None:
    name = "case1_r2r_outputs.safetensors"
    folder = only(vectors_root / kind, tmp_path / "copy", name)
    assert verify(folder, real.root).exit_code == 0
    change(folder / name, raise_by("s2.act_logits", 1e-3))
    report = verify(folder, real.root)
    assert report.exit_code == 1
    assert [row.quantity for row in report.rows if not row.ok] == ["act_logits"]


@pytest.mark.real
def test_networks_that_this_version_has_not_got_are_left_out(vectors_root: Path, real: References) -> None:
    report = verify(vectors_root / "tdstp_esceme", real.root)
    assert not report.rows
    why = reasons(report)
    for name in ("case0_r2r_outputs.safetensors", "rollout_argmax.json.gz", "train_il_a2c.json.gz"):
        assert why[name] == "this version does not compare such files"
    assert why["vln_bert.safetensors"] == "nothing that was compared uses it"


# -- other sizes -----------------------------------------------------------------------------------------


def test_any_size_and_every_configuration_is_read_from_the_files(written: Path, toy: References) -> None:
    report = verify(written, toy.root)
    assert report.exit_code == 0 and not report.skipped, report
    files = {row.file for row in report.rows}
    assert files == {
        f"{kind}/case{n}_{name}_outputs.safetensors"
        for kind in ("one", "other")
        for n in "01"
        for name in CONFIGS
    }
    compared = {
        row.quantity: row.compared for row in report.rows if row.file.startswith("other/case1_once_read")
    }
    assert compared["states"] == 5 * 2 * 32 and compared["act_logits"] == 5 * 2 * 17
    assert compared["language.txt_embeds.3"] == 2 * 11 * 32


def test_stored_scores_are_those_of_a_single_agent(written: Path) -> None:
    """What the generated files hold is no invention of the comparer: a lone agent decides the same."""
    given = load_file(written / "one" / "case0_inputs.safetensors")
    stored = load_file(written / "one" / "case0_plain_outputs.safetensors")
    agent = small_navigator(fusing=False).agent
    alone = agent.begin(Words(given["txt_ids"][1:, :6], given["txt_masks"][1:, :6]), torch.zeros(1))
    assert torch.allclose(alone.words[0], stored["language.txt_embeds"][1, :6], atol=1e-5)
    assert torch.allclose(alone.history[0], stored["history.global"][1:], atol=1e-6)


def test_every_stored_number_counts(folder: Path, toy: References) -> None:
    path = folder / "case0_plain_outputs.safetensors"
    whole = load_file(path)
    assert verify(folder, toy.root).exit_code == 0
    for key in whole:
        if key.startswith(("s4.", "language", "history")):
            change(path, raise_by(key, 1e-3))
            faults = [row.quantity for row in verify(folder, toy.root).rows if not row.ok]
            assert faults == [key.removeprefix("s4.")]
            save_file(whole, path)


def test_what_the_masked_places_hold_counts(folder: Path, toy: References) -> None:
    def unmask(tensors: dict[str, Tensor]) -> None:
        tensors["s1.act_logits"][0, 12] = -3.0

    change(folder / "case0_plain_outputs.safetensors", unmask)
    (fault,) = [row for row in verify(folder, toy.root).rows if not row.ok]
    assert (fault.quantity, fault.max_abs_diff) == ("act_logits", float("inf"))


def test_what_views_remember_follows_from_the_candidates(folder: Path, toy: References) -> None:
    def forget(tensors: dict[str, Tensor]) -> None:
        tensors["s0.ob_node_feats"][0, 9] = 0.0  # a view that leads nowhere remembers itself

    change(folder / "case0_inputs.safetensors", forget)
    assert [row.quantity for row in verify(folder, toy.root).rows if not row.ok] == ["ob_node_feats"]


@pytest.mark.parametrize("heads", [1, 4])
def test_the_number_of_heads_is_read_from_the_settings(folder: Path, toy: References, heads: int) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    meta["small_bert_config"]["num_attention_heads"] = heads
    (folder / "meta.json").write_text(json.dumps(meta))
    assert verify(folder, toy.root).exit_code == 1


@pytest.mark.parametrize("switch", [{"no_lang_ca": True}, {"act_pred_token": "ob"}])
def test_the_switches_are_read_from_the_settings(
    folder: Path, toy: References, switch: dict[str, object]
) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    meta["configs"]["plain"]["args"] |= switch
    (folder / "meta.json").write_text(json.dumps(meta))
    assert verify(folder, toy.root).exit_code == 1


# -- parts of a folder -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("vln_bert.safetensors", "there is no vln_bert.safetensors beside it"),
        ("meta.json", "there is no meta.json beside it"),
        ("case0_inputs.safetensors", "there is no case0_inputs.safetensors beside it"),
        ("critic.safetensors", "critic: there is no critic.safetensors beside it"),
    ],
)
def test_what_is_missing_is_the_reason(folder: Path, toy: References, missing: str, reason: str) -> None:
    (folder / missing).unlink()
    report = verify(folder, toy.root)
    assert report.exit_code == 3
    assert reasons(report)["case0_plain_outputs.safetensors"] == reason
    assert bool(report.rows) == (missing == "critic.safetensors")


def test_history_layers_without_weights_are_the_reason(
    written: Path, toy: References, tmp_path: Path
) -> None:
    folder = only(written / "one", tmp_path / "copy", "case0_layered_outputs.safetensors")
    assert "2 history layers" in reasons(verify(folder, toy.root))["case0_layered_outputs.safetensors"]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("configs", {}, "says nothing of a configuration 'plain'"),
        (
            "configs",
            {"plain": {"args": {"act_pred_token": "sky"}}},
            "arguments that this version does not know",
        ),
        ("small_bert_config", {}, "does not say how many attention heads"),
        ("small_bert_config", {"num_attention_heads": 3}, "3 heads"),
    ],
)
def test_settings_that_do_not_help_are_the_reason(
    folder: Path, toy: References, key: str, value: object, reason: str
) -> None:
    meta = json.loads((folder / "meta.json").read_text()) | {key: value}
    (folder / "meta.json").write_text(json.dumps(meta))
    report = verify(folder, toy.root)
    assert report.exit_code == 3
    assert reason in reasons(report)["case0_plain_outputs.safetensors"]


def test_files_that_nothing_uses_are_named(folder: Path, toy: References) -> None:
    (folder / "case0_plain_outputs.safetensors").unlink()
    report = verify(folder, toy.root)
    assert set(reasons(report)) == {path.name for path in folder.iterdir()}
    assert set(reasons(report).values()) == {"nothing that was compared uses it"}


def test_unknown_and_missing_tensors_are_named_and_the_rest_compared(folder: Path, toy: References) -> None:
    def alter(tensors: dict[str, Tensor]) -> None:
        del tensors["s3.states"]
        tensors["s3.novel"] = torch.zeros(2)

    change(folder / "case0_plain_outputs.safetensors", alter)
    report = verify(folder, toy.root)
    assert report.exit_code == 3 and all(row.ok for row in report.rows)
    assert [skip.reason for skip in report.skipped] == [
        "unknown to this version, not compared: s3.novel",
        "the file holds no s3.states",
    ]


@pytest.mark.parametrize("name", ["case0_plain_outputs", "case0_inputs", "vln_bert", "critic"])
def test_a_truncated_file_is_the_reason(folder: Path, toy: References, name: str) -> None:
    path = folder / f"{name}.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    report = verify(folder, toy.root)
    assert report.exit_code == 3 and not report.rows
    assert "not a complete safetensors file" in reasons(report)["case0_plain_outputs.safetensors"]


@pytest.mark.parametrize("key", ["txt_ids", "s0.ob_ang_feats", "s2.hist_lens", "s4.hist_pano_ang_feats"])
@pytest.mark.parametrize("how", ["missing", "of another shape"])
def test_inputs_that_do_not_fit_are_the_reason(folder: Path, toy: References, key: str, how: str) -> None:
    def alter(tensors: dict[str, Tensor]) -> None:
        if how == "missing":
            del tensors[key]
        else:
            tensors[key] = torch.zeros(3, 2, 7)

    change(folder / "case0_inputs.safetensors", alter)
    report = verify(folder, toy.root)
    assert report.exit_code == 3 and not report.rows
    assert "does not fit the network" in reasons(report)["case0_plain_outputs.safetensors"]
