"""Files as the original code writes them, with random numbers, for tests of their import.

Names, shapes and order are written down here from spec B.8, C.5, E.9 and E.10 alone.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

Shape = tuple[int, ...]
State = dict[str, Tensor]


class Sizes(NamedTuple):
    """By default a network that runs in no time; no two sizes are alike."""

    hidden: int = 24
    heads: int = 3
    feature: int = 16
    inner: int = 40
    vocabulary: int = 50
    positions: int = 30
    steps: int = 12
    text_layers: int = 3
    cross_layers: int = 2
    panorama_layers: int = 1
    history_layers: int = 0
    critic: int = 20


SMALL = Sizes()
PAPER = Sizes(768, 12, 768, 3072, 30522, 512, 50, 9, 4, 2, 0, 512)


def linear(name: str, out: int, into: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (out, into)
    yield f"{name}.bias", (out,)


def norm(name: str, width: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def attention(inside: str, after: str, width: int) -> Iterator[tuple[str, Shape]]:
    for what in ("query", "key", "value"):
        yield from linear(f"{inside}.{what}", width, width)
    yield from linear(f"{after}.dense", width, width)
    yield from norm(f"{after}.LayerNorm", width)


def bert_layer(name: str, s: Sizes) -> Iterator[tuple[str, Shape]]:
    yield from attention(f"{name}.attention.self", f"{name}.attention.output", s.hidden)
    yield from linear(f"{name}.intermediate.dense", s.inner, s.hidden)
    yield from linear(f"{name}.output.dense", s.hidden, s.inner)
    yield from norm(f"{name}.output.LayerNorm", s.hidden)


def cross_layer(name: str, s: Sizes) -> Iterator[tuple[str, Shape]]:
    for stream in ("lang", "visn"):
        yield from attention(f"{name}.{stream}_self_att.self", f"{name}.{stream}_self_att.output", s.hidden)
        yield from linear(f"{name}.{stream}_inter.dense", s.inner, s.hidden)
        yield from linear(f"{name}.{stream}_output.dense", s.hidden, s.inner)
        yield from norm(f"{name}.{stream}_output.LayerNorm", s.hidden)
    yield from attention(f"{name}.visual_attention.att", f"{name}.visual_attention.output", s.hidden)


def described(name: str, s: Sizes) -> Iterator[tuple[str, Shape]]:
    yield from linear(f"{name}img_linear", s.hidden, s.feature)
    yield from norm(f"{name}img_layer_norm", s.hidden)
    yield from linear(f"{name}ang_linear", s.hidden, 4)
    yield from norm(f"{name}ang_layer_norm", s.hidden)


def inner_shapes(s: Sizes = SMALL, *, panorama: bool = True) -> Iterator[tuple[str, Shape]]:
    """The tensors of HAMT's inner model, in order of registration."""
    yield "embeddings.word_embeddings.weight", (s.vocabulary, s.hidden)
    yield "embeddings.position_embeddings.weight", (s.positions, s.hidden)
    yield "embeddings.token_type_embeddings.weight", (2, s.hidden)
    yield from norm("embeddings.LayerNorm", s.hidden)
    yield from described("img_embeddings.", s)
    yield "img_embeddings.nav_type_embedding.weight", (3, s.hidden)
    yield from norm("img_embeddings.layer_norm", s.hidden)
    yield "hist_embeddings.cls_token", (1, 1, s.hidden)
    yield from described("hist_embeddings.", s)
    yield "hist_embeddings.position_embeddings.weight", (s.steps, s.hidden)
    yield "hist_embeddings.type_embedding.weight", (1, s.hidden)
    yield from norm("hist_embeddings.layer_norm", s.hidden)
    if panorama:
        yield from described("hist_embeddings.pano_", s)
        for depth in range(s.panorama_layers):
            yield from bert_layer(f"hist_embeddings.pano_encoder.layer.{depth}", s)
    for depth in range(s.text_layers):
        yield from bert_layer(f"encoder.layer.{depth}", s)
    for depth in range(s.history_layers):
        yield from bert_layer(f"encoder.h_layers.{depth}", s)
    for depth in range(s.cross_layers):
        yield from cross_layer(f"encoder.x_layers.{depth}", s)
    yield from linear("next_action.net.0", s.hidden, s.hidden)
    yield from norm("next_action.net.2", s.hidden)
    yield from linear("next_action.net.4", 1, s.hidden)


def fusion_shapes(s: Sizes = SMALL) -> Iterator[tuple[str, Shape]]:
    yield from linear("ob_node_fusion.0", s.feature, 2 * s.feature)
    yield from norm("ob_node_fusion.2", s.feature)
    yield from linear("ob_node_fusion.3", s.feature, s.feature)


def td_stp_shapes(s: Sizes = SMALL, *, mapper: bool = True) -> Iterator[tuple[str, Shape]]:
    """What TD-STP has besides, outside of what is wrapped (spec D.1)."""
    yield from linear("position_encoder.0", s.hidden, 3)
    yield from norm("position_encoder.1", s.hidden)
    if mapper:
        yield from linear("history_mapper.0", s.hidden, s.hidden)
        yield from linear("history_mapper.2", s.hidden, s.hidden)
    yield from linear("target_predictor.0", s.hidden // 2, s.hidden)
    yield from linear("target_predictor.2", 1, s.hidden // 2)


def critic_shapes(s: Sizes = SMALL) -> Iterator[tuple[str, Shape]]:
    yield from linear("state2value.0", s.critic, s.hidden)
    yield from linear("state2value.3", 1, s.critic)


def drawn(shapes: Iterator[tuple[str, Shape]], *, name: Callable[[str], str] = str, seed: int = 0) -> State:
    """Random tensors of these shapes."""
    generator = torch.Generator().manual_seed(seed)
    return {name(each): 0.3 * torch.randn(shape, generator=generator) for each, shape in shapes}


def fine_tuned(
    s: Sizes = SMALL,
    *,
    memory: bool = True,
    td_stp: bool = False,
    mapper: bool = True,
    wrapper: str = "",
    **kinds: bool,
) -> dict[str, Any]:
    """A fine-tuned file of ESceme, or without `memory` of HAMT or TD-STP, with an optimiser's state."""
    network = drawn(inner_shapes(s, **kinds))
    if memory:
        network |= drawn(fusion_shapes(s), seed=1)
    network = {f"{wrapper}vln_bert.{name}": tensor for name, tensor in network.items()}
    if td_stp:
        network |= drawn(td_stp_shapes(s, mapper=mapper), name=lambda name: wrapper + name, seed=4)
    critic = drawn(critic_shapes(s), name=lambda name: wrapper + name, seed=2)
    optimizer = {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.ones(2)}}, "param_groups": [{}]}
    return {
        "vln_bert": {"epoch": 2001, "state_dict": network, "optimizer": optimizer},
        "critic": {"epoch": 2001, "state_dict": critic, "optimizer": optimizer},
    }


HEADS_OF_PRE_TRAINING = {
    "mlm_head.predictions.bias": (50,),
    "mlm_head.predictions.decoder.weight": (50, 24),
    "regress_action.net.0.weight": (24, 24),
    "sprel_head.net.0.weight": (24, 24),
    "image_classifier.net.0.weight": (24, 24),
    "itm_head.net.0.weight": (24, 24),
    "bert.vision_backbone.cls_token": (1, 1, 24),
    "bert.vision_backbone.blocks.0.attn.qkv.weight": (72, 24),
}


def pre_training(s: Sizes = SMALL, *, wrapper: str = "") -> State:
    """A flat pre-training file: `bert.` before all but the action head, and heads that are of no use here."""

    def named(name: str) -> str:
        return wrapper + (name if name.startswith("next_action.") else f"bert.{name}")

    state = drawn(inner_shapes(s), name=named)
    return state | drawn(iter(HEADS_OF_PRE_TRAINING.items()), name=lambda name: wrapper + name, seed=3)


def save(content: object, path: Path) -> Path:
    """A file of torch."""
    torch.save(content, path)
    return path


def stored_norms(root: Path) -> dict[str, float | None]:
    """The gradients' norms of the sampled rollout in a folder of reference vectors; None: does not learn."""
    training = json.loads(gzip.decompress((root / "train_il_a2c.json.gz").read_bytes()))
    norms: dict[str, float | None] = training["A2C"]["grad_norms"]
    return {name.removeprefix("vln_bert.").removeprefix("critic."): norm for name, norm in norms.items()}
