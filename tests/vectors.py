"""Folders of reference vectors in the original's form but of another size, from networks of our own.

Rollouts are lived by a loop that shares nothing with `roll_out` and the memory bank: one agent after the
other, what is remembered in a plain dict.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from esceme.agents import HAMT, TDSTP, HamtConfig, TdstpConfig
from esceme.agents.base import TokenBatch
from esceme.checkpoints import names_of
from esceme.memory import CandidateEnhancing, CandidateEnhancingConfig, NoMemory
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.tasks.episode import Episode
from esceme.verify.network import network_outputs
from esceme.world import Atlas, Pose
from esceme.world.geometry import VIEW_ELEVATIONS, VIEW_HEADINGS

HEADS, WIDTH, STEPS, BATCH = 2, 24, 5, 2
CONFIGS = {
    "plain": {"num_h_layers": 0, "no_lang_ca": False, "act_pred_token": "ob_txt"},
    "once_read": {"num_h_layers": 0, "no_lang_ca": True, "act_pred_token": "ob_txt"},
    "layered": {"num_h_layers": 2, "no_lang_ca": False, "act_pred_token": "ob_txt_hist"},
}
"""Configurations by names of our own, as `meta.json` has them."""
TD_STP_CONFIGS = {
    **CONFIGS,
    "bare": {**CONFIGS["plain"], "no_hist_mapping": True, "no_pos_emb": True},
}
UPSTREAM = "_upstreamTDSTP"
"""What files are named by whose numbers come of the structured mask; `meta.json` does not know them."""


def small_navigator(
    *, fusing: bool, pooling: Any = "max", td_stp: bool = False, **switches: Any
) -> Navigator:
    """A network of odd sizes; all of its numbers are random, those of biases and normalisations too."""
    kind, own = (TDSTP, TdstpConfig) if td_stp else (HAMT, HamtConfig)
    config = own(
        vocabulary=210,
        positions=33,
        hidden=32,
        heads=HEADS,
        feed_forward=40,
        text_layers=1,
        cross_layers=3,
        panorama_layers=2,
        feature_width=WIDTH,
        max_steps=9,
        critic_inner=20,
        **switches,
    )
    reader = (
        CandidateEnhancing(CandidateEnhancingConfig(width=WIDTH, pooling=pooling)) if fusing else NoMemory()
    )
    navigator = Navigator(kind(config), reader).eval()
    generator = torch.Generator().manual_seed(11)  # with it, some stop early and some do not
    with torch.no_grad():
        for name, parameter in sorted(navigator.named_parameters()):
            normalises = name.endswith(("norm.weight", "action.2.weight", "positions.1.weight"))
            around = 1.0 if normalises else 0.0
            parameter.normal_(around, 0.1, generator=generator)
    return navigator


def with_switches(navigator: Navigator, arguments: dict[str, Any], *, structured: bool = False) -> Navigator:
    """The same weights in another configuration; those of history layers are drawn."""
    fusing, td_stp = isinstance(navigator.reader, CandidateEnhancing), isinstance(navigator.agent, TDSTP)
    own = {
        "map_history": not arguments.get("no_hist_mapping"),
        "history_positions": not arguments.get("no_pos_emb"),
        "history_mask": "as-released",
        "structured": structured,
    }
    other = small_navigator(
        fusing=fusing,
        td_stp=td_stp,
        language_cross_attention=not arguments["no_lang_ca"],
        action_input=arguments["act_pred_token"],
        history_layers=arguments["num_h_layers"],
        **(own if td_stp else {}),
    )
    other.load_state_dict(navigator.state_dict(), strict=False)
    return other


def original_names(navigator: Navigator) -> dict[str, Tensor]:
    """The tensors by the original's names."""
    tensors, names = navigator.state_dict(), names_of(navigator)
    apart = ("state2value", "position_encoder", "history_mapper", "target_predictor")
    wrapped = {ours: name if name.startswith(apart) else f"vln_bert.{name}" for ours, name in names.items()}
    return {wrapped[ours]: tensors[ours].contiguous() for ours in names}


def write_folder(folder: Path, *, fusing: bool, td_stp: bool = False) -> Navigator:
    """Weights, settings and two cases in every configuration; gives the network."""
    folder.mkdir(parents=True, exist_ok=True)
    navigator = small_navigator(fusing=fusing, td_stp=td_stp)
    tensors = original_names(navigator)
    critic = {name: tensors.pop(name) for name in list(tensors) if name.startswith("state2value")}
    save_file(tensors, folder / "vln_bert.safetensors")
    save_file(critic, folder / "critic.safetensors")
    layered = original_names(with_switches(navigator, CONFIGS["layered"]))
    extra = {name: tensor for name, tensor in layered.items() if ".h_layers." in name}
    save_file(extra, folder / "vln_bert_h_layers_extra.safetensors")
    known = TD_STP_CONFIGS if td_stp else CONFIGS
    configs = {name: {"args": arguments, "cases": {"case9": {}}} for name, arguments in known.items()}
    meta = {"small_bert_config": {"num_attention_heads": HEADS}, "configs": configs}
    (folder / "meta.json").write_text(json.dumps(meta))
    for case in ("case0", "case1"):
        given = _inputs(fusing, seed=int(case[-1]), td_stp=td_stp)
        save_file(given, folder / f"{case}_inputs.safetensors")
        for name, arguments in known.items():
            outputs = outputs_of(with_switches(navigator, arguments), given)
            save_file(outputs, folder / f"{case}_{name}_outputs.safetensors")
        if td_stp:
            outputs = outputs_of(with_switches(navigator, CONFIGS["plain"], structured=True), given)
            save_file(outputs, folder / f"{case}_plain{UPSTREAM}_outputs.safetensors")
    return navigator


def outputs_of(navigator: Navigator, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """What a file of outputs holds."""
    outputs = network_outputs(navigator, given)
    doubled = {
        name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in given.items()
    }
    exact = network_outputs(navigator.double(), doubled)
    outputs |= {f"{key}_f64": exact[key] for key in exact if key.endswith((".act_logits", ".critic"))}
    return {name: tensor.clone() for name, tensor in outputs.items()}


def _inputs(fusing: bool, *, seed: int, td_stp: bool = False) -> dict[str, Tensor]:
    """Random inputs: candidates, STOP, other views, padding; histories of different lengths."""
    torch.manual_seed(seed)
    words = torch.arange(11) < torch.tensor([[11], [6]])
    given = {"txt_ids": torch.randint(1, 210, (BATCH, 11)) * words, "txt_masks": words}
    for step in range(STEPS):
        valid = torch.arange(17) < torch.tensor([[17], [14]])
        kind = torch.zeros(BATCH, 17, dtype=torch.int64)
        for row, count in enumerate((3, 5 - step)):
            kind[row, :count], kind[row, count] = 1, 2
        real = (valid & (kind != 2))[..., None]
        features = torch.randn(BATCH, 17, WIDTH) * real
        inputs = {
            "ob_img_feats": features,
            "ob_ang_feats": torch.randn(BATCH, 17, 4) * real,
            "ob_nav_types": kind,
            "ob_masks": valid,
            "hist_lens": torch.tensor([step + 1, min(step + 1, 3)]),
            "hist_img_feats": torch.randn(BATCH, WIDTH),
            "hist_ang_feats": torch.randn(BATCH, 4),
            "hist_pano_img_feats": torch.randn(BATCH, 36, WIDTH),
            "hist_pano_ang_feats": torch.randn(BATCH, 36, 4),
        }
        if fusing:
            visited = (kind == 1) & (torch.rand(BATCH, 17) < 0.5)
            remembered = torch.randn(BATCH, 17, WIDTH) * visited[..., None]
            inputs["ob_node_feats"] = torch.where((kind == 0)[..., None], features, remembered)
        if td_stp:
            inputs |= _positions(step, torch.Generator().manual_seed(seed * STEPS + step))
        given |= {f"s{step}.{key}": value for key, value in inputs.items()}
    if td_stp:
        points = [(x, y, 0) for x in (-4.0, 0.0, 4.0) for y in (-4.0, 0.0, 4.0)]
        given["global_pos"] = torch.tensor(points).repeat(BATCH, 1, 1)
    return given


def _positions(step: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Where tokens and agents are at a step, and which of the places before are next to each other."""
    positions = {
        "ob_position": torch.randn(BATCH, 17, 3, generator=generator) * 4,
        "position": torch.randn(BATCH, 3, generator=generator) * 4,
    }
    if not step:
        return positions
    beside = torch.rand(BATCH, step, step, generator=generator) < 0.4
    linked = beside | beside.mT | torch.eye(step, dtype=torch.bool)
    return {**positions, "graph_mask": linked.float()}


# -- rollouts --------------------------------------------------------------------------------------------


class Remembered(NamedTuple):
    """A memory by the letter of the paper: one vector for every place that was visited."""

    atlas: Atlas
    vectors: dict[int, Tensor]

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        nothing = torch.zeros(WIDTH)
        found = [self.vectors.get(place, nothing) for place in viewpoints.flatten().tolist()]
        return torch.stack(found).view(*viewpoints.shape, WIDTH)

    def remember_seen(self, observation: Observation) -> None:
        raise AssertionError("the loop remembers by itself")


Decide = Callable[[Tensor], int]
"""A choice, given the scores of the choices there are."""


def best(logits: Tensor) -> int:
    return int(logits.argmax())


@torch.inference_mode()
def live_batch(
    navigator: Navigator,
    memory: Remembered,
    episodes: Sequence[Episode],
    *,
    max_steps: int,
    decide: Decide = best,
    pooling: str = "max",
) -> dict[str, Any]:
    """A batch as the original stores it; ended episodes have rows that say nothing."""
    atlas = memory.atlas
    states, poses, ended, steps = [], [], [False] * len(episodes), []
    for each in episodes:
        ids = torch.tensor([each.tokens])
        begun = atlas.begin(atlas.locate(each.scene_id, [each.start]), [each.heading])
        states.append(navigator.begin(TokenBatch(ids, ids >= 0), torch.tensor(begun.viewpoint)))
        poses.append([(int(begun.viewpoint[0]), int(begun.view[0]))])
    while len(steps) < max_steps and not all(ended):
        looks = [Observation.of(atlas, Pose(*np.array([path[-1]]).T)) for path in poses]
        width = max(look.kind.shape[1] for look in looks)
        rows: dict[str, list[Any]] = {"raw_logits": [], "nav_types": [], "hist_lens": []}
        if isinstance(navigator.reader, CandidateEnhancing):
            rows["node_nonzero_per_item"] = []
        chosen = []
        for row, look in enumerate(looks):
            seen = navigator.see(look, memory)
            logits = navigator.decide(states[row], seen).logits[0]
            chosen.append(decide(logits))
            padding = width - len(logits)
            rows["raw_logits"].append([*logits.tolist(), *[None] * padding] if not ended[row] else [])
            rows["nav_types"].append([*look.kind[0].tolist(), *[0] * (width - look.kind.shape[1])])
            rows["hist_lens"].append(len(steps) + 1)
            if isinstance(navigator.reader, CandidateEnhancing):
                recalled = navigator.reader.recall(look, memory)[0, :10].abs().sum(-1) > 0
                rows["node_nonzero_per_item"].append([int(flag) for flag in recalled])
        steps.append(rows)
        for row, look in enumerate(looks):
            if ended[row]:
                continue
            views = look.plain[0, look.is_candidate[0]]
            vector = views.amax(0) if pooling == "max" else views.mean(0)
            memory.vectors.setdefault(int(look.viewpoint), vector)
            if chosen[row] == int(look.candidate_count):
                ended[row] = True
                continue
            states[row] = navigator.advance(states[row], look, torch.tensor([chosen[row]]))
            poses[row].append((int(look.neighbour[0, chosen[row]]), int(look.view[0, chosen[row]])))
    return {
        "instr_ids": [each.episode_id for each in episodes],
        "items": [_item(each) for each in episodes],
        "paths": [[_pose(atlas, *pose) for pose in path] for path in poses],
        "steps": steps,
    }


def _item(episode: Episode) -> dict[str, Any]:
    return {
        "scan": episode.scene_id,
        "start": episode.start,
        "heading": episode.heading,
        "gt_path": list(episode.reference_path),
        "instr_encoding": list(episode.tokens or ()),
    }


def _pose(atlas: Atlas, viewpoint: int, view: int) -> list[Any]:
    return [atlas.name(viewpoint)[1], float(VIEW_HEADINGS[view]), float(VIEW_ELEVATIONS[view])]


def memory_of(memory: Remembered) -> dict[str, Any]:
    """What is remembered, as the original stores it."""
    atlas, vectors, edges = memory.atlas, {}, {}
    for place, vector in memory.vectors.items():
        scene, name = atlas.name(place)
        vectors.setdefault(scene, {})[name] = vector[:4].tolist()
        others = [
            each for each in atlas.neighbours[place].tolist() if each in memory.vectors and each > place
        ]
        edges.setdefault(scene, []).extend([atlas.name(each)[1], name] for each in others)
    return {"memory_first4_of_feat": vectors, "memory_edges": edges}


def write_json_gz(path: Path, value: Any) -> None:
    path.write_bytes(gzip.compress(json.dumps(value).encode(), 1))
