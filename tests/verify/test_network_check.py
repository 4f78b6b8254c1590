"""`case…_outputs.safetensors`: network outputs are compared at any size and in any configuration."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from esceme.agents.base import Agent, TokenBatch
from esceme.memory import NoMemory
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.verify import VerificationReport, verify
from esceme.verify.fixtures import ReferenceData
from esceme.verify.network_check import network_outputs
from fixtures.random_observations import random_observation
from fixtures.reference_files import CONFIGS, TD_STP_CONFIGS, UPSTREAM, WIDTH, small_navigator, write_folder

pytestmark = pytest.mark.long

QUANTITIES = {"act_logits", "log_softmax", "states", "critic", "hist_step", "history.global"}
QUANTITIES |= {"hist_embeds_out", "txt_embeds_out", "ob_embeds_out"}
DOUBLE = {"act_logits_f64", "critic_f64"}
PLANNED = {"global_pos", "global_pos.feat", "pos_logit", "pos_embeds"}
"""Additional outputs of TD-STP."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of both networks, without and with memory, of another size than the original's."""
    root = tmp_path_factory.mktemp("vectors")
    write_folder(root / "one", fusing=False)
    write_folder(root / "other", fusing=True)
    write_folder(root / "planner", fusing=False, td_stp=True)
    write_folder(root / "other_planner", fusing=True, td_stp=True)
    return root


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy of the folder with memory, to be changed: one case in one configuration."""
    return only(written / "other", tmp_path / "copy")


@pytest.fixture
def planned(written: Path, tmp_path: Path) -> Path:
    """The same of TD-STP."""
    return only(written / "other_planner", tmp_path / "copy")


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


def reasons(report: VerificationReport) -> dict[str, str]:
    return {skip.file: skip.reason for skip in report.skipped}


# -- the original's numbers ------------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.parametrize("kind", ["hamt", "hamt_esceme", "tdstp", "tdstp_esceme"])
def test_outputs_equal_the_originals(
    vectors_root: Path, real: ReferenceData, tmp_path: Path, kind: str
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
        assert quantities >= QUANTITIES | (PLANNED if "tdstp" in kind else set())
        assert UPSTREAM in name or quantities >= DOUBLE  # there, nothing is stored in double precision
        assert quantities >= {"language.txt_embeds.2" if "nolangca" in name else "language.txt_embeds"}
        assert ("ob_node_feats" in quantities) == ("esceme" in kind)
    single = [row for row in report.rows if not row.quantity.endswith("_f64")]
    assert max(row.max_abs_diff for row in single) < (8e-6 if "tdstp" in kind else 5e-6)
    double = [row for row in report.rows if row.quantity.endswith("_f64")]
    assert max(row.max_abs_diff for row in double) < 1e-12
    assert report.used == {path.name for path in folder.iterdir() if path.suffix != ".md"} - cases


@pytest.mark.real
@pytest.mark.parametrize("kind", ["hamt", "hamt_esceme", "tdstp", "tdstp_esceme"])
def test_a_logit_of_the_original_changed_by_a_thousandth_is_noticed(
    vectors_root: Path, real: ReferenceData, tmp_path: Path, kind: str
) -> None:
    name = "case1_r2r_outputs.safetensors"
    folder = only(vectors_root / kind, tmp_path / "copy", name)
    assert verify(folder, real.root).exit_code == 0
    change(folder / name, raise_by("s2.act_logits", 1e-3))
    report = verify(folder, real.root)
    assert report.exit_code == 1
    assert [row.quantity for row in report.rows if not row.ok] == ["act_logits"]


@pytest.mark.real
@pytest.mark.parametrize("mask", ["structured", "ignored"])
def test_only_upstream_td_stp_applies_the_structured_mask(
    vectors_root: Path, real: ReferenceData, tmp_path: Path, mask: str
) -> None:
    """The outputs of TD-STP's own repository and of ESceme's copy differ."""
    names = ["case1_r2r_outputs.safetensors", f"case1_r2r{UPSTREAM}_outputs.safetensors"]
    taken, given = names if mask == "structured" else reversed(names)
    folder = only(vectors_root / "tdstp", tmp_path / "copy", taken)
    (folder / taken).rename(folder / given)
    wrong = {row.quantity for row in verify(folder, real.root).rows if not row.ok}
    assert wrong >= {"act_logits", "pos_logit", "states", "hist_embeds_out", "ob_embeds_out"}


# -- other sizes -----------------------------------------------------------------------------------------


def test_sizes_and_configurations_are_read_from_the_files(written: Path, toy: ReferenceData) -> None:
    report = verify(written, toy.root)
    assert report.exit_code == 0 and not report.skipped, report
    files = {row.file for row in report.rows}
    planners = {"planner": (*TD_STP_CONFIGS, f"plain{UPSTREAM}")}
    assert files == {
        f"{kind}/case{n}_{name}_outputs.safetensors"
        for kind in ("one", "other", "planner", "other_planner")
        for n in "01"
        for name in planners.get(kind.removeprefix("other_"), CONFIGS)
    }
    compared = {
        kind: {row.quantity: row.compared for row in report.rows if row.file.startswith(f"{kind}/case1_once")}
        for kind in ("other", "other_planner")
    }
    for each in compared.values():
        assert each["states"] == 5 * 2 * 32 and each["language.txt_embeds.3"] == 2 * 11 * 32
    assert compared["other"]["act_logits"] == 5 * 2 * 17
    assert compared["other_planner"]["act_logits"] == (5 * 17 + 1 + 2 + 3 + 4 + 5) * 2
    assert compared["other_planner"]["pos_logit"] == 5 * 2 * 9


def test_only_padding_is_skipped_under_the_structured_mask(written: Path, toy: ReferenceData) -> None:
    compared = {
        mask: {
            row.quantity: row.compared
            for row in verify(written / "planner", toy.root).rows
            if row.file == f"case0_plain{mask}_outputs.safetensors"
        }
        for mask in ("", UPSTREAM)
    }
    fewer = {name: count - compared[UPSTREAM][name] for name, count in compared[""].items()}
    assert {name: count for name, count in fewer.items() if count} == {
        "ob_embeds_out": 5 * 3 * 32,  # three tokens of one episode at each step
        "hist_embeds_out": (1 + 2) * 32,  # it ends after two moves, the other after four
    }


def test_a_td_stp_rollout_gives_the_same_outputs() -> None:
    """`network_outputs` uses no rollout; `decide` and `advance` compute the same."""
    agent = small_navigator(
        fusing=False, td_stp=True, grid=3, spacing=4.0, penalise_reversed_jumps=False
    ).agent
    seen = [random_observation((3, 5), width=WIDTH, seed=seed) for seed in range(4)]
    chosen = [torch.tensor([step % 3, step]) for step in range(4)]
    words = TokenBatch(torch.randint(1, 210, (2, 7)), torch.arange(7) < torch.tensor([[7], [4]]))
    with torch.inference_mode():
        ours = network_outputs(navigator_of(agent), given_by(words, seen, chosen, agent.grid_points))
        state = agent.begin(words, seen[0].viewpoint)
        for step, (sight, choice) in enumerate(zip(seen, chosen, strict=True)):
            decision = agent.decide(state, sight)
            logits = ours[f"s{step}.act_logits"].roll(-(step + 1), 1)  # history last, as in our decisions
            shut = decision.routes.viewpoints < 0
            assert not shut[:, 1:].any()  # no viewpoint is visited twice
            assert torch.allclose(decision.logits, logits, atol=1e-5)
            assert torch.allclose(decision.goal_logits, ours[f"s{step}.pos_logit"], atol=1e-5)
            assert torch.allclose(decision.value, ours[f"s{step}.critic"], atol=1e-5)
            state = agent.advance(decision.state, sight, choice)
            assert torch.allclose(state.history[:, -1], ours[f"s{step}.hist_step"], atol=1e-5)


def navigator_of(agent: Agent[Any]) -> Navigator:
    return Navigator(agent, NoMemory()).eval()


def given_by(
    words: TokenBatch, seen: list[Observation], chosen: list[Tensor], points: Tensor
) -> dict[str, Tensor]:
    """A rollout as a file of inputs, positions relative to the start."""
    rows = torch.arange(len(words.ids))
    positions = [sight.positions[rows, sight.num_candidates] for sight in seen]
    given = {"txt_ids": words.ids, "txt_masks": words.valid, "global_pos": points.expand(len(rows), -1, -1)}
    for step, (each, choice) in enumerate(zip(seen, chosen, strict=True)):
        inputs = {
            "ob_img_feats": each.features,
            "ob_ang_feats": each.angles,
            "ob_nav_types": each.token_type,
            "ob_masks": each.valid,
            "ob_position": each.positions - positions[0][:, None],
            "position": positions[step] - positions[0],
            "hist_lens": torch.full_like(rows, step + 1),
            "hist_img_feats": each.facing_features(),
            "hist_ang_feats": each.action_angles(choice),
            "hist_pano_img_feats": each.panorama_features(),
            "hist_pano_ang_feats": each.panorama_angles(),
        }
        given |= {f"s{step}.{key}": value for key, value in inputs.items()}
    return given


def test_stored_scores_are_those_of_a_single_agent(written: Path) -> None:
    """A single episode without padding gives the outputs of the file."""
    given = load_file(written / "one" / "case0_inputs.safetensors")
    stored = load_file(written / "one" / "case0_plain_outputs.safetensors")
    agent = small_navigator(fusing=False).agent
    alone = agent.begin(TokenBatch(given["txt_ids"][1:, :6], given["txt_masks"][1:, :6]), torch.zeros(1))
    assert torch.allclose(alone.text[0], stored["language.txt_embeds"][1, :6], atol=1e-5)
    assert torch.allclose(alone.history[0], stored["history.global"][1:], atol=1e-6)


@pytest.mark.parametrize("kind", ["folder", "planned"])
def test_every_stored_number_counts(request: pytest.FixtureRequest, toy: ReferenceData, kind: str) -> None:
    folder: Path = request.getfixturevalue(kind)
    path = folder / "case0_plain_outputs.safetensors"
    whole = load_file(path)
    assert verify(folder, toy.root).exit_code == 0
    for key in whole:
        if key.startswith(("s4.", "language", "history", "global")):
            change(path, raise_by(key, 1e-3))
            faults = [row.quantity for row in verify(folder, toy.root).rows if not row.ok]
            assert faults == [key.removeprefix("s4.")]
            save_file(whole, path)


def swap_grid_axes(tensors: dict[str, Tensor]) -> None:
    tensors["global_pos"] = tensors["global_pos"][..., [1, 0, 2]].contiguous()


def unmask_logit(tensors: dict[str, Tensor]) -> None:
    tensors["s1.act_logits"][0, 12] = -3.0


def clear_view_memory(tensors: dict[str, Tensor]) -> None:
    tensors["s0.ob_node_feats"][0, 9] = 0.0  # a view without a candidate: its memory is its own feature


@pytest.mark.parametrize(
    ("kind", "file", "alter", "quantity"),
    [
        ("planned", "inputs", swap_grid_axes, "global_pos"),
        ("folder", "plain_outputs", unmask_logit, "act_logits"),
        ("folder", "inputs", clear_view_memory, "ob_node_feats"),
    ],
)
def test_masked_logits_grid_order_and_view_memories_count(
    request: pytest.FixtureRequest,
    toy: ReferenceData,
    kind: str,
    file: str,
    alter: Callable[[dict[str, Tensor]], None],
    quantity: str,
) -> None:
    folder: Path = request.getfixturevalue(kind)
    change(folder / f"case0_{file}.safetensors", alter)
    assert quantity in {row.quantity for row in verify(folder, toy.root).rows if not row.ok}


@pytest.mark.parametrize(
    ("kind", "section", "setting"),
    [
        *(("folder", "small_bert_config", {"num_attention_heads": heads}) for heads in (1, 4)),
        ("folder", "args", {"no_lang_ca": True}),
        ("folder", "args", {"act_pred_token": "ob"}),
        ("planned", "args", {"no_hist_mapping": True}),
        ("planned", "args", {"no_pos_emb": True}),
    ],
)
def test_settings_are_read_from_the_meta_file(
    request: pytest.FixtureRequest, toy: ReferenceData, kind: str, section: str, setting: dict[str, object]
) -> None:
    folder: Path = request.getfixturevalue(kind)
    meta = json.loads((folder / "meta.json").read_text())
    settings = meta["configs"]["plain"]["args"] if section == "args" else meta[section]
    settings |= setting
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
def test_a_missing_file_is_the_reason(folder: Path, toy: ReferenceData, missing: str, reason: str) -> None:
    (folder / missing).unlink()
    report = verify(folder, toy.root)
    assert report.exit_code == 3
    assert reasons(report)["case0_plain_outputs.safetensors"] == reason
    assert bool(report.rows) == (missing == "critic.safetensors")


def test_missing_history_layers_are_the_reason(written: Path, toy: ReferenceData, tmp_path: Path) -> None:
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
def test_invalid_settings_are_the_reason(
    folder: Path, toy: ReferenceData, key: str, value: object, reason: str
) -> None:
    meta = json.loads((folder / "meta.json").read_text()) | {key: value}
    (folder / "meta.json").write_text(json.dumps(meta))
    report = verify(folder, toy.root)
    assert report.exit_code == 3
    assert reason in reasons(report)["case0_plain_outputs.safetensors"]


def test_unused_files_are_listed(folder: Path, toy: ReferenceData) -> None:
    (folder / "case0_plain_outputs.safetensors").unlink()
    report = verify(folder, toy.root)
    assert set(reasons(report)) == {path.name for path in folder.iterdir()}
    assert set(reasons(report).values()) == {"nothing that was compared uses it"}


def test_unknown_and_missing_tensors_are_named_and_the_rest_compared(
    folder: Path, toy: ReferenceData
) -> None:
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
def test_a_truncated_file_is_the_reason(folder: Path, toy: ReferenceData, name: str) -> None:
    path = folder / f"{name}.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    report = verify(folder, toy.root)
    assert report.exit_code == 3 and not report.rows
    assert "not a complete safetensors file" in reasons(report)["case0_plain_outputs.safetensors"]


@pytest.mark.parametrize(
    ("written_as", "key"),
    [
        *(("plain", key) for key in ("txt_ids", "s0.ob_ang_feats", "s2.hist_lens", "s4.hist_pano_ang_feats")),
        *(("planned", key) for key in ("global_pos", "s1.ob_position", "s3.position")),
        ("structured", "s2.graph_mask"),
    ],
)
@pytest.mark.parametrize("how", ["missing", "of another shape"])
def test_inputs_that_do_not_fit_are_the_reason(
    written: Path, tmp_path: Path, toy: ReferenceData, written_as: str, key: str, how: str
) -> None:
    name = f"case0_plain{UPSTREAM if written_as == 'structured' else ''}_outputs.safetensors"
    folder = only(written / ("other" if written_as == "plain" else "other_planner"), tmp_path / "copy", name)

    def alter(tensors: dict[str, Tensor]) -> None:
        if how == "missing":
            del tensors[key]
        else:
            tensors[key] = torch.zeros(3, 2, 7)

    change(folder / "case0_inputs.safetensors", alter)
    report = verify(folder, toy.root)
    assert report.exit_code == 3 and not report.rows
    assert "does not fit the network" in reasons(report)[name]
