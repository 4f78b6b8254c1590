"""Our names of a navigator's tensors and the original's: the only place that knows the latter (spec B.8)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from esceme.agents.hamt import HAMT
from esceme.agents.tdstp import TDSTP
from esceme.errors import CheckpointError
from esceme.memory import CandidateEnhancing, NoMemory
from esceme.navigator import Navigator

# -- the table: our modules and theirs, in the order in which the original registers them -------------------

FIRST = {
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
LAST = {
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

# -- what else is found in files --------------------------------------------------------------------------

PANORAMA = "hist_embeddings.pano_"
WRAPPER = re.compile(r"^(module\.)?(vln_bert\.|bert\.)?")
"""What may stand before a name: left by parallel training, by fine-tuning, by pre-training."""
PRE_TRAINING = (
    *("mlm_head.", "regress_action.", "sprel_head.", "image_classifier.", "itm_head."),
    "vision_backbone.",
)
"""Parts that only pre-training uses (spec E.10)."""
TD_STP = ("position_encoder.", "history_mapper.", "target_predictor.")
"""Parts that TD-STP has besides HAMT's; they stand outside of what is wrapped (spec D.1)."""
HISTORY_MAPPER = "history_mapper."
HAMT_PARTS = ("embeddings.", "img_embeddings.", "hist_embeddings.", "encoder.", "next_action.")

Telling = tuple[tuple[str, int], ...]
"""Patterns of names, and the axis along which tensors of these names tell a size."""
SIZES: dict[str, Telling] = {
    "vocabulary": ((r"embeddings\.word_embeddings\.weight", 0),),
    "positions": ((r"embeddings\.position_embeddings\.weight", 0),),
    "hidden": ((r".*(LayerNorm|layer_norm)\.weight", 0),),
    "feed_forward": ((r".*(intermediate|_inter)\.dense\.bias", 0),),
    "feature_width": ((r".*\.(pano_)?img_linear\.weight", 1),),
    "angle_width": ((r".*\.(pano_)?ang_linear\.weight", 1),),
    "max_steps": ((r"hist_embeddings\.position_embeddings\.weight", 0),),
    "critic_inner": ((r"state2value\.0\..*", 0), (r"state2value\.3\.weight", 1)),
}
"""Fields of `HamtConfig` -> which tensors tell them."""
FUSION_SIZE: Telling = ((r"ob_node_fusion\.[02]\..*", 0), (r"ob_node_fusion\.3\.weight", 1))


def names_of(navigator: Navigator) -> dict[str, str]:
    """Our name of every tensor -> the original's, in the original's order.

    Raises `CheckpointError` for a navigator that the original does not have.
    """
    ours = navigator.state_dict()
    stacked = {
        f"{ours_stack}.{depth}.{part}": f"{theirs}.{depth}.{their_part}"
        for ours_stack, (theirs, layer) in STACKS.items()
        for depth in range(count_layers(ours, ours_stack))
        for part, their_part in layer.items()
    }
    names = {
        module + end: theirs + end
        for module, theirs in {**FIRST, **stacked, **LAST}.items()
        for end in ("", ".weight", ".bias")
        if module + end in ours
    }
    read = type(navigator.reader) in (NoMemory, CandidateEnhancing)
    if not isinstance(navigator.agent, HAMT | TDSTP) or not read or len(names) != len(ours):
        found = f"{type(navigator.agent).__name__} with {type(navigator.reader).__name__}"
        raise CheckpointError(f"the original has HAMT and TD-STP, both also with ESceme, found {found}")
    return names


def count_layers(names: Iterable[str], stack: str) -> int:
    """How many layers of a stack there are among these names.

    >>> count_layers(["encoder.layer.0.output.dense", "encoder.layer.1.output.dense"], "encoder.layer")
    2
    """
    return len({name[len(stack) + 1 :].partition(".")[0] for name in names if name.startswith(f"{stack}.")})


def has(names: Iterable[str], part: str | tuple[str, ...]) -> bool:
    """Whether any of these names belongs to a part, or to any of several."""
    return any(name.startswith(part) for name in names)


def recognise(names: Collection[str], *, file: object) -> dict[str, str]:
    """The original's own names -> those in a file, which may have a wrapper's name before them.

    Raises `CheckpointError` for files of other networks.
    """
    named: dict[str, str] = {}
    for name in names:
        known = WRAPPER.sub("", name)
        if known in named:
            raise CheckpointError(
                f"{file}: '{named[known]}' and '{name}' are the same tensor; expected it once"
            )
        named[known] = name
    if not any(known.startswith(HAMT_PARTS) for known in named):
        raise CheckpointError(
            f"{file}: holds no network of HAMT, TD-STP or ESceme; expected names like "
            f"'vln_bert.{FIRST['agent.text.words']}.weight', found '{next(iter(names), 'none')}'"
        )
    return named
