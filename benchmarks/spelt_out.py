"""The network of the small recipes with memory, spelt out as research code has it.

Everything is padded, every token goes through every layer, and keys and values of the text are computed at
each step. The weights are those of a navigator, whose modules are used for nothing but linear maps,
normalisations and dropout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.lockstep import additive
from esceme.agents.grounding import NUM_CLAUSES, PACE_SCALE
from esceme.agents.hamt import HAMT
from esceme.agents.layers import Attention, Layer
from esceme.memory import CandidateEnhancing
from esceme.navigator import Navigator
from esceme.world.atlas import CANDIDATE


@dataclass
class Told:
    """What the items of a batch were told, and what they have lived since."""

    heard: Tensor
    """(B, L) bool: True but for padding."""
    named: Tensor
    """(B, L, G): what each word looks like."""
    clause: Tensor
    """(B, L): how many clauses ended before each word."""
    texts: list[Tensor]
    """What each cross layer reads, (B, L, H) each."""
    history: list[Tensor]
    """One token at the beginning, and one of each step since, (B, H) each."""


class Sights(NamedTuple):
    """What the items of a batch see: their candidates, STOP, padding."""

    pictures: Tensor
    """(B, C, D)"""
    recalled: Tensor
    """(B, C, D): what is remembered of the candidates, zeros elsewhere."""
    angles: Tensor
    """(B, C, 4)"""
    kind: Tensor
    """(B, C)"""
    valid: Tensor
    """(B, C) bool"""


class SpeltOut:
    """A navigator that reads, decides, and recounts what it did."""

    def __init__(self, navigator: Navigator) -> None:
        _require_small(navigator)
        self.agent, self.reader = navigator.agent, navigator.reader

    def read(self, instructions: Sequence[Sequence[int]]) -> Told:
        """Instructions padded to the longest, and encoded for each cross layer."""
        longest = max(len(words) for words in instructions)
        ids = torch.tensor([[*words, *[0] * (longest - len(words))] for words in instructions])
        heard = torch.tensor([[place < len(words) for place in range(longest)] for words in instructions])
        text, history = self.agent.text, self.agent.history
        embedded = text.words(ids) + text.positions.weight[:longest] + text.kinds.weight[0]
        encoded = text.dropout(text.norm(embedded))
        for block in text.layers:
            encoded = layer(block, encoded, additive(heard))
        halves = [block.text for block in self.agent.cross_layers][:-1]
        texts = [encoded, *(layer(half, encoded, additive(heard)) for half in halves)]
        ends = self.agent.config.clause_ends
        clause = torch.tensor([count_clauses(words, ends, longest) for words in instructions])
        begun = history.dropout(history.norm(history.start + history.kind.weight[0]))[0]
        named = self.agent.grounding.words(ids)
        return Told(heard, named, clause, texts, [begun.expand(len(ids), -1)])

    def decide(self, told: Told, sights: Sights) -> tuple[Tensor, Tensor]:
        """Logits (B, C), and what the critic reads, (B, H)."""
        shown = self.fuse(sights)
        said = self.ground(told, shown, sights)
        sight = self.agent.sight
        described = sight.picture(shown) + sight.angle(sights.angles) + said
        seen = sight.norm(described + self.agent.text.kinds.weight[1] + sight.kinds(sights.kind))
        history = torch.stack(told.history, 1)  # (B, S, H)
        vision = torch.cat([history, sight.dropout(seen)], 1)
        lived = torch.ones(history.shape[:2], dtype=torch.bool)
        text_mask, vision_mask = additive(told.heard), additive(torch.cat([lived, sights.valid], 1))
        for block, text in zip(self.agent.cross_layers, told.texts, strict=True):
            vision = attend(block.across, vision, text, text_mask)
            vision = layer(block.vision, vision, vision_mask)
        logits = self.agent.action(vision[:, history.shape[1] :]).squeeze(2)
        return logits.masked_fill(~sights.valid, -torch.inf), vision[:, 0]

    def recount(self, faced: Tensor, angles: Tensor, step: int) -> Tensor:
        """History tokens (B, H) of the faced views (B, D) and the chosen angles (B, 4)."""
        history = self.agent.history
        token = history.picture(faced) + history.angle(angles) + history.steps.weight[step]
        return history.dropout(history.norm(token + history.kind.weight[0]))

    def fuse(self, sights: Sights) -> Tensor:
        """Pictures and memories of all tokens fused; it counts for candidates, (B, C, D)."""
        reader, both = self.reader, torch.cat([sights.pictures, sights.recalled], -1)
        fused = reader.second(reader.norm(functional.relu(reader.first(both))))
        return sights.pictures + (sights.recalled + fused) * (sights.kind == CANDIDATE)[..., None]

    def ground(self, told: Told, shown: Tensor, sights: Sights) -> Tensor:
        """What the instructions say of each token just now, (B, C, H)."""
        head, words, latest = self.agent.grounding, told.texts[0], told.history[-1]
        matters = (head.key(words) @ head.query(latest)[:, :, None]).squeeze(2) / math.sqrt(latest.shape[1])
        matters = matters + PACE_SCALE * head.pace[len(told.history) - 1][told.clause]
        matters = matters.masked_fill(~told.heard, -torch.inf)  # (B, L)
        placed = head.picture(shown) + head.direction(sights.angles) + head.kinds(sights.kind)
        joint = placed @ told.named.transpose(1, 2) + matters[:, None]  # (B, C, L)
        fits = joint.logsumexp(2) - matters.logsumexp(1)[:, None]
        return head.out(joint.softmax(2) @ words) + fits[..., None] * head.match


def attend(block: Attention, asking: Tensor, known: Tensor, mask: Tensor) -> Tensor:
    """Attention of tokens (B, L, H) to others (B, L', H)."""

    def heads(x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], block.heads, -1).transpose(1, 2)

    queries, keys, values = heads(block.query(asking)), heads(block.key(known)), heads(block.value(known))
    scores = queries @ keys.transpose(2, 3) / math.sqrt(queries.shape[-1]) + mask
    weights = functional.dropout(scores.softmax(-1), block.weight_dropout, block.training)
    mixed = (weights @ values).transpose(1, 2).flatten(2)
    return block.norm(asking + block.dropout(block.out(mixed)))


def layer(block: Layer, x: Tensor, mask: Tensor) -> Tensor:
    """A BERT layer, (B, L, H) -> (B, L, H)."""
    x, feed = attend(block.attention, x, x, mask), block.feed_forward
    return feed.norm(x + feed.dropout(feed.out(functional.gelu(feed.inner(x)))))


def count_clauses(ids: Sequence[int], ends: Sequence[int], longest: int) -> list[int]:
    """How many clauses ended before each word of an instruction, padded."""
    counted, count = [], 0
    for place in range(longest):
        counted.append(min(count, NUM_CLAUSES - 1))
        count += place < len(ids) and ids[place] in ends
    return counted


def _require_small(navigator: Navigator) -> None:
    """Raise unless a navigator has the switches of the small recipes with memory."""
    assert isinstance(navigator.agent, HAMT) and isinstance(navigator.reader, CandidateEnhancing)
    _require(
        navigator.agent.config,
        language_cross_attention=False,
        encode_panorama=False,
        history_layers=0,
        context_views=False,
        stop_shows="panorama",
        freeze_text=False,
        freeze_history=False,
        freeze_observation=False,
    )
    _require(
        navigator.reader.config,
        shortcut="both",
        context="untouched",
        stop="zero",
        order="feature-memory",
        pooling="max",
    )
    assert navigator.agent.config.grounding and not navigator.feature_dropout


def _require(config: Any, **wanted: Any) -> None:
    for name, value in wanted.items():
        assert getattr(config, name) == value, f"{name}: expected {value}, found {getattr(config, name)}"
