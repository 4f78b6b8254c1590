"""HAMT's sizes and switches, and how words, pictures and steps become its tokens (spec B.1, B.3 to B.5)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from esceme.agents.base import TokenBatch
from esceme.agents.layers import EPSILON, Layer, LinearNorm, Tokens
from esceme.errors import ConfigError
from esceme.observation import Observation

ActionInput = Literal["ob", "ob_txt", "ob_hist", "ob_txt_hist"]
"""What an observation token is multiplied with before it is scored: nothing, the text's first token, the
history's, or the sum of both."""


@dataclass(frozen=True, kw_only=True)
class HamtConfig:
    """The sizes and switches of HAMT; by default those of the R2R network in the paper."""

    vocabulary: int = 30522
    positions: int = 512
    """Words of the longest instruction."""
    hidden: int = 768
    heads: int = 12
    feed_forward: int = 3072
    text_layers: int = 9
    cross_layers: int = 4
    history_layers: int = 0
    panorama_layers: int = 2
    encode_panorama: bool = True
    """Whether a history token also holds the mean of a small transformer over the 36 views."""
    feature_width: int = 768
    angle_width: int = 4
    max_steps: int = 50
    """Rows of the table of step numbers."""
    language_cross_attention: bool = True
    """Whether text attends to vision at every step (R2R); off, text is encoded once (`no_lang_ca`: R4R, CVDN,
    RxR)."""
    action_input: ActionInput = "ob_txt"
    """Ignored without language cross-attention, where an observation token is scored as it is."""
    freeze_text: bool = True
    read_once: bool = False
    """Whether a frozen text encoder reads each instruction once and for all, without dropout. The released
    training reads it anew each time, with dropout."""
    freeze_history: bool = True
    freeze_observation: bool = False
    dropout: float = 0.1
    attention_dropout: float | None = None
    """Of the weights of attention; None: as all other. Without any, fused attention serves in training."""
    head_dropout: float = 0.1
    critic_inner: int = 512
    critic_dropout: float = 0.5
    epsilon: float = EPSILON
    """Of text and cross-modal layers; XLM-R's configuration says 1e-5."""
    initial_std: float = 0.02
    initial_bias_std: float = 0.0
    """Of the maps from pictures and angles to tokens. The published network, which starts from trained ones,
    has none; drawn anew it needs some, or STOP, which shows nothing, is zeros blown up by a normalisation."""
    context_views: bool = True
    """Whether views that lead nowhere become tokens; without them a step costs a fifth."""
    stop_shows: Literal["nothing", "panorama"] = "nothing"
    """What STOP looks like: nothing, as published, or the largest of each feature all around."""
    grounding: int = 0
    """Width of the space in which words name what a token shows; 0: no grounding head, as published."""
    clause_ends: tuple[int, ...] = ()
    """Ids of words that end a clause, for the grounding head: it learns at what pace clauses are followed."""

    def __post_init__(self) -> None:
        counted = ("vocabulary", "positions", "hidden", "heads", "feed_forward", "feature_width")
        for name in (*counted, "max_steps", "cross_layers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, found {getattr(self, name)}")
        if self.hidden % self.heads:
            raise ConfigError(f"hidden {self.hidden} cannot be shared out evenly to {self.heads} heads")
        if self.read_once and not self.freeze_text:
            raise ConfigError("read_once: only a frozen text encoder (freeze_text) can read once and for all")
        if self.grounding < 0:
            raise ConfigError(f"grounding: expected a width, or 0 for none, found {self.grounding}")


class TextEncoder(nn.Module):
    """BERT: words, positions and a kind, and some layers (spec B.3)."""

    def __init__(self, config: HamtConfig) -> None:
        """Build the tables and layers."""
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.hidden, padding_idx=0)
        self.positions = nn.Embedding(config.positions, config.hidden)
        self.kinds = nn.Embedding(2, config.hidden)
        """Row 0 marks text, row 1 marks what is seen."""
        self.norm = nn.LayerNorm(config.hidden, eps=config.epsilon)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(layer_of(config) for _ in range(config.text_layers))

    def forward(self, words: TokenBatch, *, everything: bool = False) -> Tensor:
        """(B, L) -> (B, L, H); padding is zero unless `everything` is computed."""
        longest = words.ids.shape[1]
        if longest > len(self.positions.weight):
            raise ConfigError(
                f"an instruction of {longest} ids is too long: "
                f"this network knows {len(self.positions.weight)} positions; cut it with max_tokens"
            )
        embedded = self.words(words.ids) + self.positions.weight[:longest] + self.kinds.weight[0]
        tokens = Tokens.of(self.dropout(self.norm(embedded)), words.valid, everything=everything)
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens.padded


class ObservationEncoder(nn.Module):
    """Pictures and angles of tokens, and what kind they are (spec B.5)."""

    def __init__(self, config: HamtConfig) -> None:
        """Build the maps."""
        super().__init__()
        self.picture = LinearNorm(config.feature_width, config.hidden)
        self.angle = LinearNorm(config.angle_width, config.hidden)
        self.kinds = nn.Embedding(3, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=EPSILON)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, observation: Observation, seen: Tensor, said: Tensor | None = None) -> Tensor:
        """(B, N, …) -> (B, N, H); `seen` (H,) marks tokens as seen rather than read.

        `said` (B, N, H) is what the instruction says of them, where the network has a grounding head.
        """
        described = self.picture(observation.features) + self.angle(observation.angles)
        described = described if said is None else described + said
        return self.dropout(self.norm(described + seen + self.kinds(observation.kind)))


class HistoryEncoder(nn.Module):
    """One token per step: what was faced, where the agent went, and the panorama around it (spec B.4)."""

    def __init__(self, config: HamtConfig) -> None:
        """Build the maps, the tables and the panorama's layers."""
        super().__init__()
        self.start = nn.Parameter(torch.zeros(1, 1, config.hidden))
        self.picture = LinearNorm(config.feature_width, config.hidden)
        self.angle = LinearNorm(config.angle_width, config.hidden)
        self.steps = nn.Embedding(config.max_steps, config.hidden)
        self.kind = nn.Embedding(1, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=EPSILON)
        self.dropout = nn.Dropout(config.dropout)
        if config.encode_panorama:
            self.panorama_picture = LinearNorm(config.feature_width, config.hidden)
            self.panorama_angle = LinearNorm(config.angle_width, config.hidden)
            around = (layer_of(replace(config, epsilon=EPSILON)) for _ in range(config.panorama_layers))
            self.panorama_layers = nn.ModuleList(around)

    def begin(self, batch: int) -> Tensor:
        """The global token, (B, 1, H): one draw of dropout for the whole batch, as in the original."""
        return self.dropout(self.norm(self.start + self.kind.weight[0])).expand(batch, -1, -1)

    def encode_panorama(self, features: Tensor, angles: Tensor) -> Tensor:
        """36 views (B, 36, D) and their angles (B, 36, 4) as one vector (B, H)."""
        views = self.dropout(self.panorama_picture(features) + self.panorama_angle(angles))
        tokens = Tokens.of(views, torch.ones_like(views[..., 0], dtype=torch.bool))
        for layer in self.panorama_layers:
            tokens = layer(tokens)
        return tokens.padded.mean(1)

    def forward(self, faced: Tensor, angle: Tensor, step: Tensor, around: Tensor | None) -> Tensor:
        """A token (B, H) from the faced view (B, D), the chosen angle (B, 4) and the encoded panorama."""
        if int(step.max()) >= len(self.steps.weight):
            raise ConfigError(
                f"step {int(step.max())} is beyond the {len(self.steps.weight)} steps this network knows; "
                "give a smaller max_steps"
            )
        token = self.picture(faced) + self.angle(angle) + self.steps(step) + self.kind.weight[0]
        return self.dropout(self.norm(token if around is None else token + around))


def layer_of(config: HamtConfig) -> Layer:
    """A layer of the sizes that a configuration says."""
    return Layer(
        config.hidden, config.heads, config.feed_forward, dropout=config.dropout, epsilon=config.epsilon
    )
