"""Settings, base class and encoders of transformer agents (docs/spec.md B.1 to B.5)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from esceme.agents.base import Agent, BaseAgentConfig, InputLimits, State, TokenBatch
from esceme.agents.grounding import Grounding, number_clauses
from esceme.agents.layers import (
    EPSILON,
    Attention,
    Layer,
    LinearNorm,
    PackedLayout,
    Tokens,
    init_bert_weights,
)
from esceme.dropout import Dropout
from esceme.errors import ConfigError
from esceme.observation import Observation
from esceme.settings import Count, DropoutRate, NonNegative, Positive, Size, check_settings

ActionInput = Literal["ob", "ob_txt", "ob_hist", "ob_txt_hist"]
"""Vector that multiplies an observation token before the action head: none (`ob`), the first text token
(`ob_txt`), the first history token (`ob_hist`), or the sum of these two tokens (`ob_txt_hist`)."""


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(BaseAgentConfig):
    """Settings that all transformer agents share. The defaults are those of the papers' R2R networks."""

    vocabulary: Size = 30522
    """Number of different token ids; the default is that of BERT."""
    positions: Size = 512
    """Number of position embeddings, which is the maximum number of tokens of an instruction."""
    hidden: Size = 768
    """Hidden size H of all tokens."""
    heads: Size = 12
    """Number of attention heads per layer; must divide `hidden`."""
    feed_forward: Size = 3072
    """Inner width of the feed-forward blocks."""
    text_layers: Count = 9
    """Number of transformer layers over the instruction."""
    cross_layers: Size = 4
    """Number of layers in which vision tokens attend to text and to each other."""
    panorama_layers: Count = 2
    """Number of transformer layers over the views of a panorama."""
    feature_width: Size = 768
    """Width D of the image features."""
    angle_width: Size = 4
    """Width of the angle features: sine and cosine of heading and elevation."""
    max_steps: Size = 50
    """Number of step embeddings, which is the maximum number of decisions per episode."""
    freeze_text: bool = True
    """Whether to exclude the text encoder from training."""
    dropout: DropoutRate = 0.1
    """Dropout of the encoders and of all transformer layers."""
    attention_dropout: DropoutRate | None = None
    """Dropout of attention weights; None for `dropout`. With 0, training uses fused attention."""
    epsilon: Positive = EPSILON
    """LayerNorm epsilon of text and cross-modal layers. XLM-R weights require 1e-5."""
    initial_std: Positive = 0.02
    """Standard deviation of the initial weights."""
    initial_bias_std: NonNegative = 0.0
    """Standard deviation of the initial biases of image and angle projections. The published networks, which
    start from pretrained weights, have 0. In training from scratch, a positive value prevents LayerNorm from
    amplifying the zero features of STOP."""
    context_views: bool = True
    """Whether the agent reads views without a candidate. Without them a step takes a fifth of the time."""
    grounding: Count = 0
    """Width of the grounding head, which relates words to image features; 0 for no head, as published."""
    clause_ends: tuple[Count, ...] = ()
    """Ids of tokens that end a clause, such as punctuation; used by the grounding head only."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.hidden % self.heads:
            raise ConfigError(f"hidden {self.hidden} is not divisible by {self.heads} heads")

    @property
    def limits(self) -> InputLimits:
        """Sizes of the embedding tables and of the feature projection."""
        return InputLimits(self.vocabulary, self.feature_width, self.positions, self.max_steps)


@dataclass(frozen=True, kw_only=True)
class HamtConfig(TransformerConfig):
    """Settings of HAMT. The defaults are those of the paper's R2R network."""

    history_layers: Count = 0
    """Number of transformer layers over the history, before the cross-modal layers."""
    encode_panorama: bool = True
    """Whether history tokens include an encoding of all 36 views, computed by `panorama_layers`."""
    language_cross_attention: bool = True
    """Whether text attends to vision at every step (R2R). If not, the text is encoded once per episode
    (`no_lang_ca` in HAMT's code, for R4R, CVDN and RxR)."""
    action_input: ActionInput = "ob_txt"
    """Vector that the action head scores: the observation token alone (`ob`), or its product with the first
    text token (`ob_txt`), the first history token (`ob_hist`) or their sum (`ob_txt_hist`). Used only with
    language cross-attention."""
    read_once: bool = False
    """Whether to encode each instruction only once, without dropout, and cache the result. Requires
    `freeze_text`. The released code encodes instructions in every batch, with dropout."""
    freeze_history: bool = True
    """Whether to exclude the encoder of history tokens from training."""
    freeze_observation: bool = False
    """Whether to exclude the encoder of observation tokens from training."""
    head_dropout: DropoutRate = 0.1
    """Dropout of the head that scores actions."""
    critic_inner: Size = 512
    """Hidden size of the critic."""
    critic_dropout: DropoutRate = 0.5
    """Dropout of the critic."""
    stop_features: Literal["zeros", "panorama-max"] = "zeros"
    """Features of the STOP token: zeros as published, or the maximum over the panorama."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.read_once and not self.freeze_text:
            raise ConfigError("read_once: only a frozen text encoder (freeze_text) can read once and for all")


class TextEncoder(nn.Module):
    """BERT text encoder: word, position and token type embeddings, then layers (docs/spec.md B.3)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.hidden, padding_idx=0)
        self.positions = nn.Embedding(config.positions, config.hidden)
        self.kinds = nn.Embedding(2, config.hidden)
        """Token type embeddings: index 0 is text, index 1 is vision."""
        self.norm = nn.LayerNorm(config.hidden, eps=config.epsilon)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(config_layer(config) for _ in range(config.text_layers))

    def forward(self, instructions: TokenBatch, *, compute_all: bool = False) -> Tensor:
        """Return the encoded tokens, (B, L) -> (B, L, H). Padding is zero unless `compute_all`."""
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
    """Encoder of observation tokens from image features, angles and token types (docs/spec.md B.5)."""

    def __init__(self, config: HamtConfig) -> None:
        super().__init__()
        self.picture = LinearNorm(config.feature_width, config.hidden)
        self.angle = LinearNorm(config.angle_width, config.hidden)
        self.kinds = nn.Embedding(3, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=EPSILON)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        observation: Observation,
        vision_type: Tensor,
        grounded: Tokens | None = None,
        *,
        compute_all: bool = False,
    ) -> Tensor:
        """Return the embeddings of the N tokens of each observation, (B, N, H).

        `vision_type` (H,) is the token type embedding of vision. `grounded` is the grounding head's output.
        Padding is zero unless `compute_all`.
        """
        layout = PackedLayout(observation.valid, compute_all=compute_all)
        layout = layout if grounded is None else grounded.layout
        embedded = self.picture(layout.pack(observation.features))  # (T, H)
        embedded = embedded + self.angle(layout.pack(observation.angles))
        embedded = embedded if grounded is None else embedded + grounded.rows
        embedded = embedded + vision_type + self.kinds(layout.pack(observation.token_type))
        return layout.pad(self.dropout(self.norm(embedded)))


class HistoryEncoder(nn.Module):
    """Encoder of a step as a history token, from faced view, action angle, panorama (docs/spec.md B.4)."""

    def __init__(self, config: HamtConfig) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(1, 1, config.hidden))
        self.picture = LinearNorm(config.feature_width, config.hidden)
        self.angle = LinearNorm(config.angle_width, config.hidden)
        self.steps = nn.Embedding(config.max_steps, config.hidden)
        self.kind = nn.Embedding(1, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=EPSILON)
        self.dropout = Dropout(config.dropout)
        if config.encode_panorama:
            self.panorama_picture = LinearNorm(config.feature_width, config.hidden)
            self.panorama_angle = LinearNorm(config.angle_width, config.hidden)
            self.panorama_layers = nn.ModuleList(
                config_layer(replace(config, epsilon=EPSILON)) for _ in range(config.panorama_layers)
            )

    def begin(self, batch: int) -> Tensor:
        """Return the global token, which starts every history, (B, 1, H).

        As in HAMT's code, all agents of a batch share one dropout mask.
        """
        return self.dropout(self.norm(self.start + self.kind.weight[0])).expand(batch, -1, -1)

    def encode_panorama(self, features: Tensor, angles: Tensor) -> Tensor:
        """Return a vector (B, H) per panorama from features (B, 36, D) and angles (B, 36, 4) of its views."""
        views = self.dropout(self.panorama_picture(features) + self.panorama_angle(angles))
        tokens = Tokens.pack(views, torch.ones_like(views[..., 0], dtype=torch.bool))
        for layer in self.panorama_layers:
            tokens = layer(tokens)
        return tokens.padded.mean(1)

    def forward(self, facing: Tensor, angles: Tensor, step: Tensor, panorama: Tensor | None) -> Tensor:
        """Return the history tokens (B, H) of one step.

        `facing` (B, D) are the features of the faced view, `angles` (B, 4) those of the action's direction,
        `step` (B,) the step numbers and `panorama` (B, H) the encoded panoramas.
        """
        if int(step.max()) >= len(self.steps.weight):
            raise ConfigError(
                f"step {int(step.max())} is beyond the {len(self.steps.weight)} steps of this network; "
                "set a smaller max_steps"
            )
        token = self.picture(facing) + self.angle(angles) + self.steps(step) + self.kind.weight[0]
        return self.dropout(self.norm(token if panorama is None else token + panorama))


def config_layer(config: TransformerConfig) -> Layer:
    """Return a new transformer layer with the sizes given in `config`."""
    return Layer(
        config.hidden, config.heads, config.feed_forward, dropout=config.dropout, epsilon=config.epsilon
    )


S = TypeVar("S", bound=State)


class TransformerAgent(Agent[S]):
    """What all transformer agents share: the initial weights and the grounding head."""

    config: TransformerConfig

    def _initialise(self) -> None:
        """Add the grounding head if `config.grounding` is not 0, and initialise all weights."""
        config = self.config
        if config.grounding:
            sizes = (config.vocabulary, config.feature_width, config.angle_width, config.hidden)
            self.grounding = Grounding(*sizes, width=config.grounding, steps=config.max_steps)
        self.apply(lambda module: init_bert_weights(module, config.initial_std))
        for module in self.modules():
            if isinstance(module, Attention) and config.attention_dropout is not None:
                module.weight_dropout = config.attention_dropout
            if isinstance(module, LinearNorm) and config.initial_bias_std:
                nn.init.normal_(module.linear.bias, std=config.initial_bias_std)
        if config.grounding:
            self.grounding.initialise()

    @property
    def grounding_head(self) -> Grounding | None:
        """The grounding head, which relates words to image features; None if `config.grounding` is 0."""
        return self.grounding if self.config.grounding else None

    @property
    def uses_context_views(self) -> bool:
        """Whether the agent reads views without a candidate, as set in `config.context_views`."""
        return self.config.context_views

    def _word_fields(self, instructions: TokenBatch, encoded: Tensor) -> dict[str, Any]:
        """Return the fields of a state that the grounding head reads, given the encoded text (B, L, H)."""
        ids, valid = instructions
        grounding, none = self.grounding_head, encoded.new_zeros(*ids.shape, 0)
        return {
            "word_grounding": none if grounding is None else grounding.words(ids),
            "word_key": none if grounding is None else grounding.word_keys(encoded, valid),
            "clause": number_clauses(ids, self.config.clause_ends),
        }
