"""A plain implementation of the network of the small recipes with memory.

All inputs are padded, every token passes through every layer, and keys and values of the text are computed at
every step. The weights are those of a navigator; its modules only provide linear maps, normalisations and
dropout.
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
class TextAndHistory:
    """Encoded instructions of a batch, and the history of its steps."""

    text_mask: Tensor
    """(B, L) bool: False for padding."""
    word_vectors: Tensor
    """(B, L, G): word embeddings of the grounding head."""
    clause: Tensor
    """(B, L): number of clauses that end before each word."""
    texts: list[Tensor]
    """Text input of each cross layer, (B, L, H)."""
    history: list[Tensor]
    """The start token and one token per step, (B, H)."""


class PaddedObservation(NamedTuple):
    """Candidates, STOP and padding of a batch."""

    pictures: Tensor
    """(B, C, D)"""
    recalled: Tensor
    """(B, C, D): memory of the candidates, zeros elsewhere."""
    angles: Tensor
    """(B, C, 4)"""
    kind: Tensor
    """(B, C)"""
    valid: Tensor
    """(B, C) bool"""


class BaselineNetwork:
    """Encodes instructions, computes logits, and encodes history tokens."""

    def __init__(self, navigator: Navigator) -> None:
        _require_small(navigator)
        self.agent, self.reader = navigator.agent, navigator.reader

    def encode_text(self, instructions: Sequence[Sequence[int]]) -> TextAndHistory:
        """Pad instructions to the longest, and encode them for each cross layer."""
        longest = max(len(words) for words in instructions)
        ids = torch.tensor([[*words, *[0] * (longest - len(words))] for words in instructions])
        text_mask = torch.tensor([[index < len(words) for index in range(longest)] for words in instructions])
        text, history = self.agent.text, self.agent.history
        embedded = text.words(ids) + text.positions.weight[:longest] + text.kinds.weight[0]
        encoded = text.dropout(text.norm(embedded))
        for block in text.layers:
            encoded = layer(block, encoded, additive(text_mask))
        halves = [block.text for block in self.agent.cross_layers][:-1]
        texts = [encoded, *(layer(half, encoded, additive(text_mask)) for half in halves)]
        ends = self.agent.config.clause_ends
        clause = torch.tensor([count_clauses(words, ends, longest) for words in instructions])
        start = history.dropout(history.norm(history.start + history.kind.weight[0]))[0]
        word_vectors = self.agent.grounding.words(ids)
        return TextAndHistory(text_mask, word_vectors, clause, texts, [start.expand(len(ids), -1)])

    def decide(self, state: TextAndHistory, observation: PaddedObservation) -> tuple[Tensor, Tensor]:
        """Return logits (B, C) and the input of the critic, (B, H)."""
        features = self.fuse(observation)
        grounded = self.ground(state, features, observation)
        sight = self.agent.sight
        described = sight.picture(features) + sight.angle(observation.angles) + grounded
        tokens = sight.norm(described + self.agent.text.kinds.weight[1] + sight.kinds(observation.kind))
        history = torch.stack(state.history, 1)  # (B, S, H)
        vision = torch.cat([history, sight.dropout(tokens)], 1)
        history_mask = torch.ones(history.shape[:2], dtype=torch.bool)
        text_mask = additive(state.text_mask)
        vision_mask = additive(torch.cat([history_mask, observation.valid], 1))
        for block, text in zip(self.agent.cross_layers, state.texts, strict=True):
            vision = attend(block.across, vision, text, text_mask)
            vision = layer(block.vision, vision, vision_mask)
        logits = self.agent.action(vision[:, history.shape[1] :]).squeeze(2)
        return logits.masked_fill(~observation.valid, -torch.inf), vision[:, 0]

    def history_token(self, faced: Tensor, angles: Tensor, step: int) -> Tensor:
        """Encode the faced views (B, D) and the chosen angles (B, 4) of a step, (B, H)."""
        history = self.agent.history
        token = history.picture(faced) + history.angle(angles) + history.steps.weight[step]
        return history.dropout(history.norm(token + history.kind.weight[0]))

    def fuse(self, observation: PaddedObservation) -> Tensor:
        """Fuse features and memory of all tokens, and use the result for candidates, (B, C, D)."""
        reader, both = self.reader, torch.cat([observation.pictures, observation.recalled], -1)
        fused = reader.second(reader.norm(functional.relu(reader.first(both))))
        is_candidate = (observation.kind == CANDIDATE)[..., None]
        return observation.pictures + (observation.recalled + fused) * is_candidate

    def ground(self, state: TextAndHistory, features: Tensor, observation: PaddedObservation) -> Tensor:
        """Compute the output of the grounding head for each token, (B, C, H)."""
        head, words, latest = self.agent.grounding, state.texts[0], state.history[-1]
        relevance = (head.key(words) @ head.query(latest)[:, :, None]).squeeze(2) / math.sqrt(latest.shape[1])
        relevance = relevance + PACE_SCALE * head.pace[len(state.history) - 1][state.clause]
        relevance = relevance.masked_fill(~state.text_mask, -torch.inf)  # (B, L)
        placed = head.picture(features) + head.direction(observation.angles) + head.kinds(observation.kind)
        joint = placed @ state.word_vectors.transpose(1, 2) + relevance[:, None]  # (B, C, L)
        fit = joint.logsumexp(2) - relevance.logsumexp(1)[:, None]
        return head.out(joint.softmax(2) @ words) + fit[..., None] * head.match


def attend(block: Attention, x: Tensor, context: Tensor, mask: Tensor) -> Tensor:
    """Attention of tokens (B, L, H) to context tokens (B, L', H)."""

    def heads(tensor: Tensor) -> Tensor:
        return tensor.view(*tensor.shape[:2], block.heads, -1).transpose(1, 2)

    queries, keys, values = heads(block.query(x)), heads(block.key(context)), heads(block.value(context))
    scores = queries @ keys.transpose(2, 3) / math.sqrt(queries.shape[-1]) + mask
    weights = functional.dropout(scores.softmax(-1), block.weight_dropout, block.training)
    mixed = (weights @ values).transpose(1, 2).flatten(2)
    return block.norm(x + block.dropout(block.out(mixed)))


def layer(block: Layer, x: Tensor, mask: Tensor) -> Tensor:
    """A BERT layer, (B, L, H) -> (B, L, H)."""
    x, feed = attend(block.attention, x, x, mask), block.feed_forward
    return feed.norm(x + feed.dropout(feed.out(functional.gelu(feed.inner(x)))))


def count_clauses(ids: Sequence[int], ends: Sequence[int], longest: int) -> list[int]:
    """Return the number of clauses that end before each word, padded to `longest`."""
    counts, count = [], 0
    for index in range(longest):
        counts.append(min(count, NUM_CLAUSES - 1))
        count += index < len(ids) and ids[index] in ends
    return counts


def _require_small(navigator: Navigator) -> None:
    """Raise `AssertionError` unless a navigator has the switches of the small recipes with memory."""
    assert isinstance(navigator.agent, HAMT) and isinstance(navigator.reader, CandidateEnhancing)
    _require(
        navigator.agent.config,
        language_cross_attention=False,
        encode_panorama=False,
        history_layers=0,
        context_views=False,
        stop_features="panorama-max",
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


def _require(config: Any, **expected: Any) -> None:
    for name, value in expected.items():
        assert getattr(config, name) == value, f"{name}: expected {value}, found {getattr(config, name)}"
