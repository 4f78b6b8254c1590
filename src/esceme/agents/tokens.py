"""HAMT's settings and its encoders of text, observations and history (docs/spec.md B.1, B.3 to B.5)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from esceme.agents.base import BaseAgentConfig, InputLimits, TokenBatch
from esceme.agents.layers import EPSILON, Layer, LinearNorm, Tokens
from esceme.errors import ConfigError
from esceme.observation import Observation

ActionInput = Literal["ob", "ob_txt", "ob_hist", "ob_txt_hist"]
"""Factor of an observation token before scoring: none, the first text token, the first history token, or the
sum of both."""


@dataclass(frozen=True, kw_only=True)
class HamtConfig(BaseAgentConfig):
    """Settings of HAMT; defaults are those of the paper's R2R network."""

    vocabulary: int = 30522
    """Number of token ids, as in BERT's vocabulary."""
    positions: int = 512
    """Number of position embeddings: tokens of the longest instruction."""
    hidden: int = 768
    """Width H of all tokens."""
    heads: int = 12
    """Number of attention heads per layer; divides `hidden`."""
    feed_forward: int = 3072
    """Inner width of the feed-forward blocks."""
    text_layers: int = 9
    """Number of transformer layers over the instruction."""
    cross_layers: int = 4
    """Number of cross-modal layers over text and vision."""
    history_layers: int = 0
    """Number of transformer layers over the history, before the cross-modal layers."""
    panorama_layers: int = 2
    """Number of transformer layers over the 36 views of a panorama in the history."""
    encode_panorama: bool = True
    """Whether history tokens include the mean output of a small transformer over the 36 views."""
    feature_width: int = 768
    """Width D of the image features."""
    angle_width: int = 4
    """Width of the angle features: sine and cosine of heading and elevation."""
    max_steps: int = 50
    """Number of step embeddings: the longest trajectory in decisions."""
    language_cross_attention: bool = True
    """Whether text attends to vision at every step (R2R). If not, the text is encoded once per episode
    (`no_lang_ca`: R4R, CVDN, RxR)."""
    action_input: ActionInput = "ob_txt"
    """Product that is scored: the observation token alone (`ob`), or times the first text token (`txt`), the
    first history token (`hist`) or their sum. Used only with language cross-attention."""
    freeze_text: bool = True
    """Whether the text encoder is not trained."""
    read_once: bool = False
    """Whether each instruction is encoded once, without dropout, and cached; requires `freeze_text`. The
    released training encodes it in every batch, with dropout."""
    freeze_history: bool = True
    """Whether the encoder of history tokens is not trained."""
    freeze_observation: bool = False
    """Whether the encoder of observation tokens is not trained."""
    dropout: float = 0.1
    """Dropout of the encoders and of all transformer layers."""
    attention_dropout: float | None = None
    """Dropout of attention weights; None: `dropout`. With 0, training uses fused attention."""
    head_dropout: float = 0.1
    """Dropout of the action head."""
    critic_inner: int = 512
    """Inner width of the critic."""
    critic_dropout: float = 0.5
    """Dropout of the critic."""
    epsilon: float = EPSILON
    """LayerNorm epsilon of text and cross-modal layers; 1e-5 for XLM-R."""
    initial_std: float = 0.02
    """Standard deviation of the initial weights."""
    initial_bias_std: float = 0.0
    """Standard deviation of the initial biases of the image and angle projections. 0 in the published
    network, which starts from trained weights. From scratch, LayerNorm would amplify STOP's zeros."""
    context_views: bool = True
    """Whether views without a candidate become tokens; without them a step takes a fifth of the time."""
    stop_features: Literal["zeros", "panorama-max"] = "zeros"
    """Features of STOP: zeros, as published, or the maximum over the panorama."""
    grounding: int = 0
    """Width of the grounding head's space; 0: no grounding head, as published."""
    clause_ends: tuple[int, ...] = ()
    """Ids of tokens that end a clause, for the grounding head."""

    def __post_init__(self) -> None:
        counted = ("vocabulary", "positions", "hidden", "heads", "feed_forward", "feature_width")
        for name in (*counted, "max_steps", "cross_layers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, found {getattr(self, name)}")
        if self.hidden % self.heads:
            raise ConfigError(f"hidden {self.hidden} is not divisible by {self.heads} heads")
        if self.read_once and not self.freeze_text:
            raise ConfigError("read_once: only a frozen text encoder (freeze_text) can read once and for all")
        if self.grounding < 0:
            raise ConfigError(f"grounding: expected a width, or 0 for none, found {self.grounding}")

    @property
    def limits(self) -> InputLimits:
        """Sizes of the embedding tables and of the feature projection."""
        return InputLimits(self.vocabulary, self.feature_width, self.positions, self.max_steps)


class TextEncoder(nn.Module):
    """BERT: word, position and token type embeddings, and its layers (docs/spec.md B.3)."""

    def __init__(self, config: HamtConfig) -> None:
        """Build the embeddings and layers."""
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.hidden, padding_idx=0)
        self.positions = nn.Embedding(config.positions, config.hidden)
        self.kinds = nn.Embedding(2, config.hidden)
        """Row 0: text, row 1: vision."""
        self.norm = nn.LayerNorm(config.hidden, eps=config.epsilon)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(config_layer(config) for _ in range(config.text_layers))

    def forward(self, instructions: TokenBatch, *, compute_all: bool = False) -> Tensor:
        """Encode token ids (B, L) as vectors (B, L, H); padding is zero unless `compute_all`."""
        longest = instructions.ids.shape[1]
        if longest > len(self.positions.weight):
            raise ConfigError(
                f"an instruction of {longest} ids is too long: this network has "
                f"{len(self.positions.weight)} positions; truncate it with max_tokens"
            )
        embedded = self.words(instructions.ids) + self.positions.weight[:longest] + self.kinds.weight[0]
        tokens = Tokens.pack(self.dropout(self.norm(embedded)), instructions.valid, compute_all=compute_all)
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens.padded


class ObservationEncoder(nn.Module):
    """Embed image features, angle features and token types of an observation (docs/spec.md B.5)."""

    def __init__(self, config: HamtConfig) -> None:
        """Build the projections."""
        super().__init__()
        self.picture = LinearNorm(config.feature_width, config.hidden)
        self.angle = LinearNorm(config.angle_width, config.hidden)
        self.kinds = nn.Embedding(3, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=EPSILON)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, observation: Observation, vision_type: Tensor, grounded: Tensor | None = None
    ) -> Tensor:
        """Embed the N tokens of each observation, (B, N, H).

        `vision_type` (H,) is the token type embedding of vision, `grounded` (B, N, H) the grounding head's
        output.
        """
        embedded = self.picture(observation.features) + self.angle(observation.angles)
        embedded = embedded if grounded is None else embedded + grounded
        return self.dropout(self.norm(embedded + vision_type + self.kinds(observation.token_type)))


class HistoryEncoder(nn.Module):
    """Embed one step as a token: faced view, angle of the action, panorama (docs/spec.md B.4)."""

    def __init__(self, config: HamtConfig) -> None:
        """Build the projections, embeddings and panorama layers."""
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
            self.panorama_layers = nn.ModuleList(
                config_layer(replace(config, epsilon=EPSILON)) for _ in range(config.panorama_layers)
            )

    def begin(self, batch: int) -> Tensor:
        """Global token, (B, 1, H), with one dropout mask for the whole batch, as in the original."""
        return self.dropout(self.norm(self.start + self.kind.weight[0])).expand(batch, -1, -1)

    def encode_panorama(self, features: Tensor, angles: Tensor) -> Tensor:
        """Encode 36 views (B, 36, D) and their angles (B, 36, 4) as one vector (B, H)."""
        views = self.dropout(self.panorama_picture(features) + self.panorama_angle(angles))
        tokens = Tokens.pack(views, torch.ones_like(views[..., 0], dtype=torch.bool))
        for layer in self.panorama_layers:
            tokens = layer(tokens)
        return tokens.padded.mean(1)

    def forward(self, facing: Tensor, angles: Tensor, step: Tensor, panorama: Tensor | None) -> Tensor:
        """Token (B, H) of faced view (B, D), action angles (B, 4), step (B,) and panorama (B, H)."""
        if int(step.max()) >= len(self.steps.weight):
            raise ConfigError(
                f"step {int(step.max())} is beyond the {len(self.steps.weight)} steps of this network; "
                "set a smaller max_steps"
            )
        token = self.picture(facing) + self.angle(angles) + self.steps(step) + self.kind.weight[0]
        return self.dropout(self.norm(token if panorama is None else token + panorama))


def config_layer(config: HamtConfig) -> Layer:
    """Build a BERT layer with the sizes of `config`."""
    return Layer(
        config.hidden, config.heads, config.feed_forward, dropout=config.dropout, epsilon=config.epsilon
    )
