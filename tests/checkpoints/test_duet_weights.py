"""Published weights of DUET: names and shapes, import, export, and files of another agent (spec I.8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from esceme.agents import DUET
from esceme.checkpoints import export_weights, import_weights, names_of, navigator_from
from esceme.errors import CheckpointError, ConfigError
from esceme.memory import CandidateEnhancing, CandidateEnhancingConfig, MapReader
from esceme.navigator import Navigator
from esceme.runs import load_run
from fixtures import original_checkpoints
from fixtures.toy_atlas import WIDTH, small_duet

HEADS = 4


def original_names(layers: int = 9, cross: int = 4, panorama: int = 2) -> list[str]:
    """Names of all tensors of DUET's R2R network, in the order of registration (spec I.8)."""
    sizes = original_checkpoints.SMALL

    def wb(*names: str) -> list[str]:
        return [f"{name}.{part}" for name in names for part in ("weight", "bias")]

    names = [f"embeddings.{table}_embeddings.weight" for table in ("word", "position", "token_type")]
    names += wb("embeddings.LayerNorm")
    for layer in range(layers):
        names += [name for name, _ in original_checkpoints.bert_layer(f"lang_encoder.layer.{layer}", sizes)]
    inside = "img_embeddings"
    names += wb(*(f"{inside}.{part}" for part in ("img_linear", "img_layer_norm", "loc_linear")))
    names += wb(f"{inside}.loc_layer_norm", f"{inside}.layer_norm")
    names += [f"{inside}.nav_type_embedding.weight", *wb(f"{inside}.pano_encoder.norm")]
    for layer in range(panorama):
        stem = f"{inside}.pano_encoder.layers.{layer}"
        names += [f"{stem}.self_attn.in_proj_weight", f"{stem}.self_attn.in_proj_bias"]
        names += wb(f"{stem}.self_attn.out_proj", *(f"{stem}.{part}" for part in ("linear1", "linear2")))
        names += wb(f"{stem}.norm1", f"{stem}.norm2")
    for branch, code in (("local_encoder", "vp_pos"), ("global_encoder", "gmap_pos")):
        names += wb(f"{branch}.{code}_embeddings.0", f"{branch}.{code}_embeddings.1")
        for layer in range(cross):
            stem = f"{branch}.encoder.x_layers.{layer}"
            parts = [name for name, _ in original_checkpoints.cross_layer(stem, sizes)]
            names += [name for name in parts if ".lang_" not in name]
    names += ["global_encoder.gmap_step_embeddings.weight", *wb("global_encoder.sprel_linear")]
    for head in ("global_sap_head", "local_sap_head", "sap_fuse_linear"):
        names += wb(f"{head}.net.0", f"{head}.net.2", f"{head}.net.3")
    return names


def state_of(navigator: Navigator, prefix: str = "vln_bert.") -> dict[str, Tensor]:
    state = navigator.state_dict()
    return {f"{prefix}{theirs}": state[ours] for ours, theirs in names_of(navigator).items()}


def test_names_are_those_of_the_published_network() -> None:
    with torch.device("meta"):
        navigator = Navigator(DUET(), CandidateEnhancing())
    names = names_of(navigator)
    plain = sorted(original_names())
    fusion = [f"ob_node_fusion.{layer}.{part}" for layer in (0, 2, 3) for part in ("weight", "bias")]
    assert len(plain) == 423 and sorted(names.values()) == sorted(plain + fusion)
    state = navigator.state_dict()
    assert sum(state[ours].numel() for ours in names) == 182_261_765
    shapes = {theirs: tuple(state[ours].shape) for ours, theirs in names.items()}
    assert shapes["img_embeddings.loc_linear.weight"] == (768, 7)
    assert shapes["local_encoder.vp_pos_embeddings.0.weight"] == (768, 14)
    assert shapes["global_encoder.gmap_step_embeddings.weight"] == (100, 768)
    assert shapes["img_embeddings.pano_encoder.layers.1.self_attn.in_proj_weight"] == (2304, 768)
    assert shapes["sap_fuse_linear.net.0.weight"] == (768, 1536)
    assert shapes["global_encoder.sprel_linear.weight"] == (1, 1)


@pytest.mark.parametrize("memory", [False, True])
def test_an_exported_file_is_imported_with_equal_weights(tmp_path: Path, memory: bool) -> None:
    reader = CandidateEnhancing(CandidateEnhancingConfig(width=WIDTH)) if memory else None
    navigator = small_duet(reader)
    export_weights(navigator, tmp_path / "best_val_unseen")
    config, report = import_weights(tmp_path / "best_val_unseen", tmp_path / "run", heads=HEADS)
    loaded = load_run(tmp_path / "run").navigator
    assert config.agent_name == "duet" and config.max_tokens == 20 and config.max_steps == 15
    assert not report.ignored and not report.initialised
    state = navigator.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in loaded.state_dict().items())
    export_weights(loaded, tmp_path / "again")
    first, second = (torch.load(tmp_path / name) for name in ("best_val_unseen", "again"))
    assert list(first["vln_bert"]["state_dict"]) == list(second["vln_bert"]["state_dict"])


def test_other_parts_of_published_files_are_ignored() -> None:
    """Pre-training, objects and critic; the wrapper of several GPUs."""
    navigator = small_duet()
    other = {
        "mlm_head.predictions.bias": torch.zeros(3),
        "bert.global_encoder.encoder.x_layers.0.lang_self_att.self.query.weight": torch.zeros(2, 2),
        "bert.local_encoder.encoder.x_layers.1.lang_inter.dense.bias": torch.zeros(2),
        "module.vln_bert.og_head.net.0.weight": torch.zeros(2, 2),
        "img_embeddings.obj_linear.weight": torch.zeros(2, 2),
    }
    stored = state_of(navigator, "module.vln_bert.") | other
    loaded, report = navigator_from(stored, {"state2value.0.bias": torch.zeros(3)}, heads=HEADS)
    assert set(report.ignored) == {*other, "state2value.0.bias"} and not report.initialised
    assert all(torch.equal(loaded.state_dict()[name], p) for name, p in navigator.state_dict().items())


def test_missing_gate_and_bias_are_settings() -> None:
    stored = state_of(small_duet(fusion="avg", graph_bias=False))
    loaded, _ = navigator_from(stored, heads=HEADS)
    assert loaded.agent.config.fusion == "avg" and not loaded.agent.config.graph_bias


def hamt_weights() -> dict[str, Tensor]:
    shapes = original_checkpoints.inner_shapes(original_checkpoints.SMALL)
    return {f"vln_bert.{name}": torch.zeros(shape) for name, shape in shapes}


@pytest.mark.parametrize(
    ("stored", "agent", "message"),
    [
        (lambda: state_of(small_duet()), "hamt", "weights of DUET, not of HAMT; import them as 'duet'"),
        (lambda: state_of(small_duet()), "tdstp", "weights of DUET, not of TD-STP"),
        (hamt_weights, "duet", "weights of HAMT, not of DUET; import them as 'hamt'"),
    ],
)
def test_a_file_of_another_agent_is_refused(stored: Any, agent: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        navigator_from(stored(), heads=HEADS, agent=agent)


def test_settings_of_other_agents_are_refused() -> None:
    with pytest.raises(ConfigError, match="action_input: only HAMT and TD-STP has this setting"):
        navigator_from(state_of(small_duet()), heads=HEADS, action_input="ob")
    with pytest.raises(ConfigError, match="revisit: only DUET has this setting, found weights of HAMT"):
        navigator_from(hamt_weights(), heads=3, revisit=True)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    stored = state_of(small_duet())
    stored.pop("vln_bert.global_encoder.gmap_step_embeddings.weight")
    stored["vln_bert.local_sap_head.net.0.bias"] = torch.full((32,), torch.nan)
    with pytest.raises(CheckpointError, match="missing: global_encoder.gmap_step_embeddings.*not finite"):
        navigator_from(stored, heads=HEADS)


def test_the_map_reader_and_a_grounding_head_are_not_published(tmp_path: Path) -> None:
    for navigator, found in (
        (small_duet(MapReader()), "DUET with MapReader"),
        (small_duet(grounding=8), "tensors that the original does not have, such as agent.grounding"),
    ):
        with pytest.raises(CheckpointError, match=f"expected HAMT, TD-STP or DUET, .* {found}"):
            export_weights(navigator, tmp_path / "weights")
    with pytest.raises(CheckpointError, match="context_views"):
        export_weights(small_duet(context_views=False), tmp_path / "weights")
