"""Names of tensors in our networks and in the networks of the original code (docs/spec.md B.8).

All other modules use our names only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from esceme.agents.duet import DUET
from esceme.agents.hamt import HAMT
from esceme.agents.tdstp import TDSTP
from esceme.errors import CheckpointError
from esceme.memory import CandidateEnhancing, NoMemory
from esceme.navigator import Navigator

# -- our module names -> the original's, in the original's order of registration ----------------------------

EMBEDDINGS = {
    "agent.text.words": "embeddings.word_embeddings",
    "agent.text.positions": "embeddings.position_embeddings",
    "agent.text.kinds": "embeddings.token_type_embeddings",
    "agent.text.norm": "embeddings.LayerNorm",
    "agent.sight.picture.linear": "img_embeddings.img_linear",
    "agent.sight.picture.norm": "img_embeddings.img_layer_norm",
    "agent.sight.angle.linear": "img_embeddings.ang_linear",
    "agent.sight.angle.norm": "img_embeddings.ang_layer_norm",
    "agent.sight.kinds": "img_embeddings.nav_type_embedding",
    "agent.sight.norm": "img_embeddings.layer_norm",
    "agent.history.start": "hist_embeddings.cls_token",
    "agent.history.picture.linear": "hist_embeddings.img_linear",
    "agent.history.picture.norm": "hist_embeddings.img_layer_norm",
    "agent.history.angle.linear": "hist_embeddings.ang_linear",
    "agent.history.angle.norm": "hist_embeddings.ang_layer_norm",
    "agent.history.steps": "hist_embeddings.position_embeddings",
    "agent.history.kind": "hist_embeddings.type_embedding",
    "agent.history.norm": "hist_embeddings.layer_norm",
    "agent.history.panorama_picture.linear": "hist_embeddings.pano_img_linear",
    "agent.history.panorama_picture.norm": "hist_embeddings.pano_img_layer_norm",
    "agent.history.panorama_angle.linear": "hist_embeddings.pano_ang_linear",
    "agent.history.panorama_angle.norm": "hist_embeddings.pano_ang_layer_norm",
}
LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.out": "attention.output.dense",
    "attention.norm": "attention.output.LayerNorm",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.out": "output.dense",
    "feed_forward.norm": "output.LayerNorm",
}
STREAM = {
    "attention.query": "self_att.self.query",
    "attention.key": "self_att.self.key",
    "attention.value": "self_att.self.value",
    "attention.out": "self_att.output.dense",
    "attention.norm": "self_att.output.LayerNorm",
    "feed_forward.inner": "inter.dense",
    "feed_forward.out": "output.dense",
    "feed_forward.norm": "output.LayerNorm",
}
CROSS_LAYER = {
    **{f"text.{ours}": f"lang_{theirs}" for ours, theirs in STREAM.items()},
    **{f"vision.{ours}": f"visn_{theirs}" for ours, theirs in STREAM.items()},
    "across.query": "visual_attention.att.query",
    "across.key": "visual_attention.att.key",
    "across.value": "visual_attention.att.value",
    "across.out": "visual_attention.output.dense",
    "across.norm": "visual_attention.output.LayerNorm",
}
PANORAMA_LAYERS = "hist_embeddings.pano_encoder.layer"
TEXT_LAYERS = "encoder.layer"
HISTORY_LAYERS = "encoder.h_layers"
CROSS_LAYERS = "encoder.x_layers"
STACKS = {
    "agent.history.panorama_layers": (PANORAMA_LAYERS, LAYER),
    "agent.text.layers": (TEXT_LAYERS, LAYER),
    "agent.history_layers": (HISTORY_LAYERS, LAYER),
    "agent.cross_layers": (CROSS_LAYERS, CROSS_LAYER),
}
FUSION = "ob_node_fusion."
CRITIC = "state2value."
HEADS = {
    "agent.action.0": "next_action.net.0",
    "agent.action.2": "next_action.net.2",
    "agent.action.4": "next_action.net.4",
    "reader.first": f"{FUSION}0",
    "reader.norm": f"{FUSION}2",
    "reader.second": f"{FUSION}3",
    "agent.position_encoder.0": "position_encoder.0",
    "agent.position_encoder.1": "position_encoder.1",
    "agent.history_mapper.0": "history_mapper.0",
    "agent.history_mapper.2": "history_mapper.2",
    "agent.goal_head.0": "target_predictor.0",
    "agent.goal_head.2": "target_predictor.2",
    "agent.critic.0": f"{CRITIC}0",
    "agent.critic.3": f"{CRITIC}3",
}

# -- DUET (docs/spec.md I.8) -------------------------------------------------------------------------------

DUET_EMBEDDINGS = {
    **{ours: theirs for ours, theirs in EMBEDDINGS.items() if ours.startswith("agent.text.")},
    "agent.panorama.picture.linear": "img_embeddings.img_linear",
    "agent.panorama.picture.norm": "img_embeddings.img_layer_norm",
    "agent.panorama.location.linear": "img_embeddings.loc_linear",
    "agent.panorama.location.norm": "img_embeddings.loc_layer_norm",
    "agent.panorama.kinds": "img_embeddings.nav_type_embedding",
    "agent.panorama.norm": "img_embeddings.layer_norm",
    "agent.panorama.final_norm": "img_embeddings.pano_encoder.norm",
    "agent.view_positions.linear": "local_encoder.vp_pos_embeddings.0",
    "agent.view_positions.norm": "local_encoder.vp_pos_embeddings.1",
    "agent.map_positions.linear": "global_encoder.gmap_pos_embeddings.0",
    "agent.map_positions.norm": "global_encoder.gmap_pos_embeddings.1",
    "agent.steps": "global_encoder.gmap_step_embeddings",
    "agent.distance_bias": "global_encoder.sprel_linear",
}
DUET_PANORAMA_LAYER = {
    "self_attn.in_proj_weight": "self_attn.in_proj_weight",
    "self_attn.in_proj_bias": "self_attn.in_proj_bias",
    **{part: part for part in ("self_attn.out_proj", "linear1", "linear2", "norm1", "norm2")},
}
DUET_TEXT_LAYERS = "lang_encoder.layer"
DUET_PANORAMA_LAYERS = "img_embeddings.pano_encoder.layers"
DUET_VIEW_LAYERS = "local_encoder.encoder.x_layers"
GRAPH_LAYER = {ours: theirs for ours, theirs in CROSS_LAYER.items() if not ours.startswith("text.")}
DUET_STACKS = {
    "agent.text.layers": (DUET_TEXT_LAYERS, LAYER),
    "agent.panorama.layers": (DUET_PANORAMA_LAYERS, DUET_PANORAMA_LAYER),
    "agent.view_layers": (DUET_VIEW_LAYERS, GRAPH_LAYER),
    "agent.map_layers": ("global_encoder.encoder.x_layers", GRAPH_LAYER),
}
DUET_GATE, DUET_BIAS = "sap_fuse_linear.", "global_encoder.sprel_linear."
DUET_HEADS = {
    f"agent.{ours}.{index}": f"{theirs}.net.{index}"
    for ours, theirs in (
        ("map_head", "global_sap_head"),
        ("view_head", "local_sap_head"),
        ("gate", DUET_GATE.rstrip(".")),
    )
    for index in (0, 2, 3)
} | {ours: theirs for ours, theirs in HEADS.items() if ours.startswith("reader.")}

# -- prefixes in files and tensors that determine sizes ----------------------------------------------------

PANORAMA = "hist_embeddings.pano_"
WRAPPER = re.compile(r"^(module\.)?(vln_bert\.|bert\.)?")
"""Matches the prefixes that data-parallel training, fine-tuning and pre-training add to tensor names."""
PRE_TRAINING = (
    *("mlm_head.", "regress_action.", "sprel_head.", "image_classifier.", "itm_head."),
    "vision_backbone.",
)
"""Prefixes of the names of tensors that only pre-training uses (docs/spec.md E.10)."""
TD_STP = ("position_encoder.", "history_mapper.", "target_predictor.")
"""Prefixes of the names of tensors that only TD-STP has. `WRAPPER` does not match them (docs/spec.md D.1)."""
HISTORY_MAPPER = "history_mapper."
DUET_PARTS = ("global_encoder.", "local_encoder.", "lang_encoder.")
"""Prefixes of the names of tensors that only DUET has."""
DUET_UNUSED = re.compile(
    r"(global|local)_encoder\.encoder\.(x_layers\.\d+\.)lang_.*|img_embeddings\.obj_.*|og_head\..*|state2value\..*"
)
"""Tensors of DUET's files that navigation does not read: language layers of pre-training, objects, critic."""
HAMT_PARTS = ("embeddings.", "img_embeddings.", "hist_embeddings.", "encoder.", "next_action.")

SizeSource = tuple[tuple[str, int], ...]
"""(regular expression, axis) pairs: the size is the length of `axis` in tensors whose names match."""
SIZES: dict[str, SizeSource] = {
    "vocabulary": ((r"embeddings\.word_embeddings\.weight", 0),),
    "positions": ((r"embeddings\.position_embeddings\.weight", 0),),
    "hidden": ((r".*(LayerNorm|layer_norm)\.weight", 0),),
    "feed_forward": ((r".*(intermediate|_inter)\.dense\.bias", 0),),
    "feature_width": ((r".*\.(pano_)?img_linear\.weight", 1),),
    "angle_width": ((r".*\.(pano_)?ang_linear\.weight", 1),),
    "max_steps": ((r"(hist_embeddings\.position|global_encoder\.gmap_step)_embeddings\.weight", 0),),
    "critic_inner": ((r"state2value\.0\..*", 0), (r"state2value\.3\.weight", 1)),
}
"""Field of `HamtConfig` -> where its value is found in the shapes of the tensors."""
FUSION_SIZE: SizeSource = ((r"ob_node_fusion\.[02]\..*", 0), (r"ob_node_fusion\.3\.weight", 1))


def names_of(navigator: Navigator) -> dict[str, str]:
    """Return a dict from our name to the original name of every tensor, in the order of the original code.

    Raises `CheckpointError` if the original code does not have the agent or the reader.
    """
    state = navigator.state_dict()
    is_duet = isinstance(navigator.agent, DUET)
    embeddings, stacks, heads = (
        (DUET_EMBEDDINGS, DUET_STACKS, DUET_HEADS) if is_duet else (EMBEDDINGS, STACKS, HEADS)
    )
    layers = {
        f"{stack}.{depth}.{part}": f"{original_stack}.{depth}.{original_part}"
        for stack, (original_stack, layer) in stacks.items()
        for depth in range(count_layers(state, stack))
        for part, original_part in layer.items()
    }
    names = {
        module + suffix: original + suffix
        for module, original in {**embeddings, **layers, **heads}.items()
        for suffix in ("", ".weight", ".bias")
        if module + suffix in state
    }
    is_released_reader = type(navigator.reader) in (NoMemory, CandidateEnhancing)
    is_released_agent = isinstance(navigator.agent, HAMT | TDSTP | DUET)
    if not is_released_agent or not is_released_reader or len(names) != len(state):
        found = f"{type(navigator.agent).__name__} with {type(navigator.reader).__name__}"
        if others := [name for name in state if name not in names]:
            found += f" and tensors that the original does not have, such as {others[0]}"
        raise CheckpointError(f"expected HAMT, TD-STP or DUET, with or without ESceme, found {found}")
    return names


def fine_tuned_names(navigator: Navigator) -> dict[str, str]:
    """Return a dict from our name of every tensor to its name in a fine-tuned file of the original code."""
    return {
        ours: name if name.startswith((CRITIC, *TD_STP)) else f"vln_bert.{name}"
        for ours, name in names_of(navigator).items()
    }


def count_layers(names: Iterable[str], stack: str) -> int:
    """Return the number of layers of a layer stack, given tensor names and the name of the stack.

    >>> count_layers(["encoder.layer.0.output.dense", "encoder.layer.1.output.dense"], "encoder.layer")
    2
    """
    return len({name[len(stack) + 1 :].partition(".")[0] for name in names if name.startswith(f"{stack}.")})


def has_part(names: Iterable[str], prefix: str | tuple[str, ...]) -> bool:
    """Return whether any of the names starts with the prefix, or with one of several prefixes."""
    return any(name.startswith(prefix) for name in names)


def file_names_by_stripped_name(names: Collection[str], *, file: object) -> dict[str, str]:
    """Return a dict from names without `WRAPPER` prefixes to the names in the file.

    Raises `CheckpointError` if the names are not those of HAMT, TD-STP, DUET or ESceme.
    """
    file_names: dict[str, str] = {}
    for name in names:
        stripped = WRAPPER.sub("", name)
        if stripped in file_names:
            raise CheckpointError(
                f"{file}: '{file_names[stripped]}' and '{name}' are the same tensor; expected it once"
            )
        file_names[stripped] = name
    if not any(stripped.startswith(HAMT_PARTS) for stripped in file_names):
        raise CheckpointError(
            f"{file}: holds no network of HAMT, TD-STP, DUET or ESceme; expected names like "
            f"'vln_bert.{EMBEDDINGS['agent.text.words']}.weight', found '{next(iter(names), 'none')}'"
        )
    return file_names
