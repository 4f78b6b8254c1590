"""`case…_outputs.safetensors`: every output of a network is compared, in every configuration."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from esceme.agents import TDSTP, TdstpConfig
from esceme.agents.base import TokenBatch
from esceme.memory import NoMemory
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.verify import VerificationReport, verify
from esceme.verify.fixtures import UPSTREAM, NetworkFiles
from esceme.verify.network_check import FILES, network_outputs
from fixtures.random_observations import random_observation, random_words, small_network
from reference.make import WORLD

pytestmark = pytest.mark.long

OUTPUTS, INPUTS = "case0_r2r_outputs.safetensors", "case0_inputs.safetensors"
NEEDED = ("vln_bert.safetensors", "critic.safetensors", "meta.json", INPUTS)
VARIANTS = ("hamt_esceme", "tdstp_esceme")
Change = Callable[[dict[str, Tensor]], object]


@pytest.fixture(scope="module")
def complete(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference folders, completed by the outputs that the repository does not keep."""
    root = tmp_path_factory.mktemp("vectors")
    for variant in (*VARIANTS, "tdstp"):
        shutil.copytree(reference / variant, root / variant, ignore=shutil.ignore_patterns("*.gz"))
        for path in (root / variant).glob("*_outputs.safetensors"):
            match, files = re.fullmatch(FILES, path.name), NetworkFiles(path)
            assert match is not None
            outputs = network_outputs(files.navigator(files.options(match["config"])), files.tensors(INPUTS))
            save_file({key: value.clone() for key, value in outputs.items()} | load_file(path), path)
    return root


@pytest.fixture(params=VARIANTS)
def folder(complete: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with one file of outputs and the files that it needs."""
    return copy_needed(complete / request.param, tmp_path / "copy")


only_hamt = pytest.mark.parametrize("folder", ["hamt_esceme"], indirect=True)
only_tdstp = pytest.mark.parametrize("folder", ["tdstp_esceme"], indirect=True)


def copy_needed(source: Path, target: Path, outputs: str = OUTPUTS) -> Path:
    target.mkdir()
    for name in (outputs, *NEEDED):
        shutil.copyfile(source / name, target / name)
    return target


def change(path: Path, alter: Change) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    alter(tensors)
    save_file(tensors, path)


def change_meta(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    edit(meta)
    (folder / "meta.json").write_text(json.dumps(meta))


def increase(tensor: Tensor) -> None:
    """Add a thousandth to one finite number."""
    places = tensor.isfinite().nonzero()
    tensor[tuple(places[len(places) // 2])] += 1e-3


def faults(report: VerificationReport) -> list[str]:
    return [row.quantity for row in report.rows if not row.ok]


def reasons(report: VerificationReport) -> dict[str, str]:
    return {skip.file: skip.reason for skip in report.skipped}


# -- values ----------------------------------------------------------------------------------------------


def test_every_stored_number_counts(folder: Path) -> None:
    report = verify(folder, WORLD)
    assert report.exit_code == 0 and report.used == set(NEEDED)
    keys = [key for key in load_file(folder / OUTPUTS) if not re.match(r"s[012]\.", key)]
    change(folder / OUTPUTS, lambda tensors: [increase(tensors[key]) for key in keys])
    assert sorted(faults(verify(folder, WORLD))) == sorted(key.removeprefix("s3.") for key in keys)


def swap_grid_axes(tensors: dict[str, Tensor]) -> None:
    tensors["global_pos"] = tensors["global_pos"][..., [1, 0, 2]].contiguous()


def unmask_logit(tensors: dict[str, Tensor]) -> None:
    tensors["s1.act_logits"][0, 12] = -3.0


def clear_view_memory(tensors: dict[str, Tensor]) -> None:
    tensors["s0.ob_node_feats"][0, 9] = 0.0  # a view without a candidate: its memory is its own feature


@pytest.mark.parametrize(
    ("folder", "file", "alter", "quantity"),
    [
        ("tdstp_esceme", INPUTS, swap_grid_axes, "global_pos"),
        ("hamt_esceme", OUTPUTS, unmask_logit, "act_logits"),
        ("hamt_esceme", INPUTS, clear_view_memory, "ob_node_feats"),
    ],
    indirect=["folder"],
)
def test_masked_logits_grid_order_and_view_memories_count(
    folder: Path, file: str, alter: Change, quantity: str
) -> None:
    change(folder / file, alter)
    assert quantity in faults(verify(folder, WORLD))


@pytest.mark.parametrize(
    ("folder", "section", "setting"),
    [
        ("hamt_esceme", "small_bert_config", {"num_attention_heads": 1}),
        ("hamt_esceme", "args", {"no_lang_ca": True}),
        ("hamt_esceme", "args", {"act_pred_token": "ob"}),
        ("tdstp_esceme", "args", {"no_hist_mapping": True}),
        ("tdstp_esceme", "args", {"no_pos_emb": True}),
    ],
    indirect=["folder"],
)
def test_settings_are_read_from_the_meta_file(folder: Path, section: str, setting: dict[str, object]) -> None:
    change_meta(
        folder,
        lambda meta: (meta["configs"]["r2r"]["args"] if section == "args" else meta[section]).update(setting),
    )
    assert verify(folder, WORLD).exit_code == 1


@pytest.mark.parametrize("suffix", ["", UPSTREAM])
def test_only_upstream_td_stp_applies_the_structured_mask(
    complete: Path, tmp_path: Path, suffix: str
) -> None:
    def unlink(tensors: dict[str, Tensor]) -> None:
        tensors["s3.graph_mask"] = torch.eye(3).repeat(3, 1, 1)

    folder = copy_needed(complete / "tdstp", tmp_path / "copy", f"case0_r2r{suffix}_outputs.safetensors")
    change(folder / INPUTS, unlink)
    assert set(faults(verify(folder, WORLD))) >= ({"act_logits", "pos_logit", "states"} if suffix else set())
    assert verify(folder, WORLD).exit_code == bool(suffix)


def test_only_padding_is_not_compared_under_the_structured_mask(complete: Path) -> None:
    compared = {
        mask: {
            row.quantity: row.compared
            for row in verify(complete / "tdstp", WORLD).rows
            if row.file == f"case0_r2r{mask}_outputs.safetensors"
        }
        for mask in ("", UPSTREAM)
    }
    given = load_file(complete / "tdstp" / INPUTS)
    lengths = [given[f"s{step}.hist_lens"] for step in range(4)]
    padding = {
        "ob_embeds_out": sum(int((~given[f"s{step}.ob_masks"]).sum()) for step in range(4)),
        "hist_embeds_out": sum(int((length.max() - length).sum()) for length in lengths),
    }
    fewer = {name: compared[""][name] - count for name, count in compared[UPSTREAM].items()}
    assert {name: count for name, count in fewer.items() if count} == {
        name: 64 * count for name, count in padding.items()
    }


@pytest.mark.usefixtures("no_gradients")
def test_td_stp_rollout_gives_the_same_outputs() -> None:
    """`network_outputs` uses no rollout; `decide` and `advance` compute the same."""
    agent = small_network(TDSTP, TdstpConfig, grid=3, spacing=4.0, penalise_reversed_jumps=False)
    seen = [random_observation((3, 5), seed=seed) for seed in range(4)]
    chosen = [torch.tensor([step % 3, step]) for step in range(4)]
    words = random_words((7, 4))
    ours = network_outputs(
        Navigator(agent, NoMemory()).eval(), inputs_of(words, seen, chosen, agent.grid_points)
    )
    state = agent.begin(words, seen[0].viewpoint)
    for step, (observation, choice) in enumerate(zip(seen, chosen, strict=True)):
        decision = agent.decide(state, observation)
        logits = ours[f"s{step}.act_logits"].roll(-(step + 1), 1)  # history last, as in our decisions
        assert not (decision.routes.viewpoints < 0)[:, 1:].any()  # no viewpoint is visited twice
        assert torch.allclose(decision.logits, logits, atol=1e-5)
        assert torch.allclose(decision.goal_logits, ours[f"s{step}.pos_logit"], atol=1e-5)
        assert torch.allclose(decision.value, ours[f"s{step}.critic"], atol=1e-5)
        state = agent.advance(decision.state, observation, choice)
        assert torch.allclose(state.history[:, -1], ours[f"s{step}.hist_step"], atol=1e-5)


def inputs_of(
    words: TokenBatch, seen: list[Observation], chosen: list[Tensor], points: Tensor
) -> dict[str, Tensor]:
    """A rollout as a file of inputs, with positions relative to the start."""
    rows = torch.arange(len(words.ids))
    positions = [observation.positions[rows, observation.num_candidates] for observation in seen]
    given = {"txt_ids": words.ids, "txt_masks": words.valid, "global_pos": points.expand(len(rows), -1, -1)}
    for step, (observation, choice) in enumerate(zip(seen, chosen, strict=True)):
        inputs = {
            "ob_img_feats": observation.features,
            "ob_ang_feats": observation.angles,
            "ob_nav_types": observation.token_type,
            "ob_masks": observation.valid,
            "ob_position": observation.positions - positions[0][:, None],
            "position": positions[step] - positions[0],
            "hist_lens": torch.full_like(rows, step + 1),
            "hist_img_feats": observation.facing_features(),
            "hist_ang_feats": observation.action_angles(choice),
            "hist_pano_img_feats": observation.panorama_features(),
            "hist_pano_ang_feats": observation.panorama_angles(),
        }
        given |= {f"s{step}.{key}": value for key, value in inputs.items()}
    return given


# -- files that cannot be compared -----------------------------------------------------------------------


@only_hamt
@pytest.mark.parametrize("missing", NEEDED)
def test_missing_file_is_the_reason(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    report = verify(folder, WORLD)
    is_critic = missing == "critic.safetensors"
    assert report.exit_code == 3 and bool(report.rows) == is_critic
    assert reasons(report)[OUTPUTS] == f"{'critic: ' if is_critic else ''}there is no {missing} beside it"


def test_missing_history_layers_are_the_reason(complete: Path, tmp_path: Path) -> None:
    name = "case0_hlayer1_outputs.safetensors"
    folder = copy_needed(complete / "hamt_esceme", tmp_path / "copy", name)
    assert "1 history layers" in reasons(verify(folder, WORLD))[name]


@only_hamt
@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("configs", {}, "has no configuration 'r2r'"),
        (
            "configs",
            {"r2r": {"args": {"act_pred_token": "sky"}}},
            "arguments that this version does not know",
        ),
        ("small_bert_config", {}, "has no number of attention heads"),
        ("small_bert_config", {"num_attention_heads": 3}, "3 heads"),
    ],
)
def test_invalid_settings_are_the_reason(folder: Path, key: str, value: object, reason: str) -> None:
    change_meta(folder, lambda meta: meta.update({key: value}))
    report = verify(folder, WORLD)
    assert report.exit_code == 3
    assert reason in reasons(report)[OUTPUTS]


@only_hamt
def test_unused_files_are_listed(folder: Path) -> None:
    (folder / OUTPUTS).unlink()
    assert reasons(verify(folder, WORLD)) == dict.fromkeys(NEEDED, "nothing that was compared uses it")


@only_hamt
def test_unknown_and_missing_tensors_are_named_and_the_rest_compared(folder: Path) -> None:
    def alter(tensors: dict[str, Tensor]) -> None:
        del tensors["s3.states"]
        tensors["s3.novel"] = torch.zeros(2)

    change(folder / OUTPUTS, alter)
    report = verify(folder, WORLD)
    assert report.exit_code == 3 and all(row.ok for row in report.rows)
    assert [skip.reason for skip in report.skipped] == [
        "unknown to this version, not compared: s3.novel",
        "the file holds no s3.states",
    ]


@only_hamt
@pytest.mark.parametrize("name", [OUTPUTS, INPUTS, "vln_bert.safetensors", "critic.safetensors"])
def test_truncated_file_is_the_reason(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[:-100])
    report = verify(folder, WORLD)
    assert report.exit_code == 3 and not report.rows
    assert "not a complete safetensors file" in reasons(report)[OUTPUTS]


@only_tdstp
@pytest.mark.parametrize("key", ["txt_ids", "s0.ob_ang_feats", "s2.hist_lens", "global_pos", "s3.position"])
@pytest.mark.parametrize("replacement", [None, torch.zeros(3, 2, 7)])
def test_inputs_that_do_not_fit_are_the_reason(folder: Path, key: str, replacement: Tensor | None) -> None:
    def alter(tensors: dict[str, Tensor]) -> None:
        del tensors[key]
        tensors |= {} if replacement is None else {key: replacement}

    change(folder / INPUTS, alter)
    report = verify(folder, WORLD)
    assert report.exit_code == 3 and not report.rows
    assert "does not fit the network" in reasons(report)[OUTPUTS]
