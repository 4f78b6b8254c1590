"""Transformer layers that agents share: BERT's layers, computed on valid tokens only.

A batch of sequences is kept as one packed tensor (T, H) with the valid tokens of all sequences. Only
attention pads the batch to (B, L, H). Linear layers, which take most of the time, never compute padding.
"""

from __future__ import annotations

from copy import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from esceme.dropout import Dropout

EPSILON = 1e-12
"""Epsilon of layer normalisation, as in BERT."""
MIN_BIASED = 64
"""Number of keys from which on `BiasedAttention` is faster than PyTorch's attention with a learned bias."""


class PackedLayout:
    """Converts between a padded batch (B, L, H) and a packed tensor (T, H) that contains only valid tokens.

    >>> layout = PackedLayout(torch.tensor([[True, True], [True, False]]))
    >>> rows = layout.pack(torch.arange(4.0).reshape(2, 2, 1))
    >>> rows.flatten().tolist(), layout.pad(rows).flatten().tolist()
    ([0.0, 1.0, 2.0], [0.0, 1.0, 2.0, 0.0])
    """

    def __init__(self, valid: Tensor, *, compute_all: bool = False) -> None:
        """Store which tokens `valid` (B, L) marks as valid; with `compute_all`, `pack` also keeps padding."""
        self.valid = valid
        self.shape = valid.shape
        index = valid.flatten().nonzero().squeeze(1)
        self.is_full = len(index) == valid.numel()
        self._index = None if self.is_full or compute_all else index
        self._grouped: PackedLayout | None = None

    @property
    def sequence(self) -> Tensor:
        """(T,) int64: index of the sequence to which each packed token belongs."""
        if self._index is not None:
            return self._index // self.shape[1]
        rows = torch.arange(self.shape[0], device=self.valid.device)
        return rows.repeat_interleave(self.shape[1])

    def grouped(self, groups: Groups | None) -> PackedLayout:
        """Return the layout of the same packed tensor whose sequences are the groups' joined sequences.

        Padding follows the last token of a group only, so that there is less of it. The result is kept for
        the next call, because all layers of a network use the same groups.
        """
        if groups is None:
            return self
        if self._grouped is None:
            self._grouped = self._join(groups)
        return self._grouped

    def _join(self, groups: Groups) -> PackedLayout:
        sequence = self.sequence
        count = torch.bincount(sequence, minlength=self.shape[0])  # tokens per sequence
        order = groups.group.argsort(stable=True)
        end = count[order].cumsum(0)
        total = torch.zeros(groups.size, dtype=torch.int64, device=count.device)
        total = total.index_add(0, groups.group, count)  # tokens per group
        longest = int(total.max())
        # Position of the first token of each sequence, in the packed tensor and in the joined batch.
        first = count.cumsum(0) - count
        target = torch.empty_like(count)
        target[order] = end - count[order]
        target += groups.group * longest - (total.cumsum(0) - total)[groups.group]
        index = target[sequence] + torch.arange(len(sequence), device=count.device) - first[sequence]
        joined = copy(self)
        joined.shape, joined._index = torch.Size([groups.size, longest]), index
        return joined

    def pack(self, padded: Tensor) -> Tensor:
        """Return the packed tensor of a padded batch: (B, L, H) -> (T, H)."""
        flat = padded.flatten(0, 1)
        return flat if self._index is None else flat.index_select(0, self._index)

    def pad(self, rows: Tensor) -> Tensor:
        """Return the padded batch of a packed tensor, with zeros as padding: (T, H) -> (B, L, H)."""
        if self._index is not None:
            flat = rows.new_zeros(self.shape.numel(), rows.shape[-1])
            rows = flat.index_copy_(0, self._index, rows)
        return rows.view(*self.shape, -1)

    @property
    def mask(self) -> Tensor | None:
        """(B, 1, 1, L) bool attention mask: True for valid keys; None if there is no padding.

        HAMT's code adds -10000 to the scores of padding, which also gives weight 0 in single precision.
        """
        return None if self.is_full else self.valid[:, None, None, :]


class OutputPositions(NamedTuple):
    """Token positions at which a layer computes outputs; other positions are skipped."""

    columns: Tensor
    """(R,) int64: positions in the sequences of a batch."""
    valid: Tensor
    """(B, R) bool: whether each of the B sequences needs the output at each of these positions."""


class Tokens(NamedTuple):
    """A batch of token sequences as a packed tensor `rows` (T, H), with the layout to unpack it."""

    rows: Tensor
    layout: PackedLayout

    @classmethod
    def pack(cls, padded: Tensor, valid: Tensor, *, compute_all: bool = False) -> Tokens:
        """Return the packed tokens of a padded batch (B, L, H); `valid` (B, L) marks the tokens to keep."""
        layout = PackedLayout(valid, compute_all=compute_all)
        return cls(layout.pack(padded), layout)

    @property
    def padded(self) -> Tensor:
        """The tokens as a padded batch, (B, L, H)."""
        return self.layout.pad(self.rows)

    def at(self, positions: OutputPositions) -> Tokens:
        """Return the tokens at the given positions only."""
        layout, length = PackedLayout(positions.valid), self.layout.shape[1]
        sequence, column = positions.valid.nonzero(as_tuple=True)
        index = sequence * length + positions.columns[column]
        return Tokens(self.padded.flatten(0, 1).index_select(0, index), layout)


class Groups(NamedTuple):
    """Assignment of R query sequences to B groups, such as trajectories, that share keys and values."""

    group: Tensor
    """(R,) int64: group of each query sequence."""
    size: int
    """Number of groups, B."""


class KeyValue(NamedTuple):
    """Keys and values of attention, for B sequences of L tokens."""

    keys: Tensor
    """(B, heads, L, H / heads)"""
    values: Tensor
    """(B, heads, L, H / heads)"""
    mask: Tensor | None
    """(B, 1, 1, L) bool: True for keys that may be attended to; None if all keys may."""
    groups: Groups | None = None
    """Groups of query sequences that share these keys; None if every query sequence has keys of its own."""

    @classmethod
    def unstack(
        cls, stacked: Tensor, heads: int, mask: Tensor | None, groups: Groups | None = None
    ) -> KeyValue:
        """Return keys and values that `Attention.stack` computed, (B, 2, L, H)."""
        keys, values = stacked.view(*stacked.shape[:3], heads, -1).transpose(2, 3).unbind(1)
        return cls(keys, values, mask, groups)


class BiasedAttention(torch.autograd.Function):
    """Attention with a learned bias, sequence by sequence, without the padding of shorter sequences.

    PyTorch's fused attention has no gradient for a bias, and its other implementation computes all padding
    and keeps the scores of the whole batch in memory several times. With 200 tokens this takes a third of
    the time; with fewer than `MIN_BIASED` it takes longer.
    """

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor, extents: list[list[int]]
    ) -> Tensor:
        """Return attended values (B, heads, L', H / heads), zeros beyond the extents.

        `bias` (B, 1, L', L) is added to the scores. `extents` are the numbers of queries and keys in use.
        """
        attended, weights = torch.zeros_like(queries), list[Tensor]()
        for row, (m, n) in enumerate(extents):
            scores = torch.baddbmm(
                bias[row, :, :m, :n],
                queries[row, :, :m],
                keys[row, :, :n].transpose(1, 2),
                alpha=queries.shape[-1] ** -0.5,
            )
            weights.append(scores.softmax(2))
            attended[row, :, :m] = weights[row] @ values[row, :, :n]
        ctx.save_for_backward(queries, keys, values, *weights)
        ctx.extents, ctx.bias_shape = extents, bias.shape
        return attended

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of queries, keys, values and bias."""
        queries, keys, values, *weights = ctx.saved_tensors
        of_queries, of_keys, of_values = (torch.zeros_like(tensor) for tensor in (queries, keys, values))
        of_bias, scale = queries.new_zeros(ctx.bias_shape), queries.shape[-1] ** -0.5
        for row, (m, n) in enumerate(ctx.extents):
            of_values[row, :, :n] = weights[row].transpose(1, 2) @ gradient[row, :, :m]
            of_weights = gradient[row, :, :m] @ values[row, :, :n].transpose(1, 2)
            of_scores = weights[row] * (of_weights - (of_weights * weights[row]).sum(2, keepdim=True))
            of_bias[row, 0, :m, :n] = of_scores.sum(0)
            of_scores *= scale
            of_queries[row, :, :m] = of_scores @ keys[row, :, :n]
            of_keys[row, :, :n] = of_scores.transpose(1, 2) @ queries[row, :, :m]
        return of_queries, of_keys, of_values, of_bias, None


class Attention(nn.Module):
    """BERT's attention block: multi-head attention, projection, residual, layer normalisation."""

    def __init__(self, width: int, heads: int, *, dropout: float, epsilon: float = EPSILON) -> None:
        """Build the projections. `dropout` applies to the attention weights and to the output."""
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=epsilon)
        self.dropout = Dropout(dropout)
        self.weight_dropout = dropout

    def project(self, tokens: Tokens) -> KeyValue:
        """Return the keys and values of the tokens."""
        keys = self._split_heads(tokens.layout.pad(self.key(tokens.rows)))
        values = self._split_heads(tokens.layout.pad(self.value(tokens.rows)))
        return KeyValue(keys, values, tokens.layout.mask)

    def stack(self, tokens: Tokens) -> Tensor:
        """Return keys and values of the tokens in one tensor (B, 2, L, H), to be kept; zeros as padding."""
        return torch.stack([tokens.layout.pad(layer(tokens.rows)) for layer in (self.key, self.value)], 1)

    def forward(self, tokens: Tokens, context: KeyValue) -> Tokens:
        """Return `tokens` after they have attended to `context`."""
        layout = tokens.layout.grouped(context.groups)
        queries = self._split_heads(layout.pad(self.query(tokens.rows)))
        dropout, mask = self.weight_dropout if self.training else 0.0, context.mask
        if mask is not None and mask.requires_grad and not dropout and mask.shape[3] >= MIN_BIASED:
            extents = [_extent(layout.valid), _extent(mask.detach().isfinite().any(2)[:, 0])]
            pairs = torch.stack(extents, 1).tolist()
            attended = BiasedAttention.apply(  # type: ignore[no-untyped-call]
                queries, context.keys, context.values, mask, pairs
            )
        else:
            attended = functional.scaled_dot_product_attention(
                queries, context.keys, context.values, attn_mask=mask, dropout_p=dropout
            )  # (B, heads, L', H / heads)
        output = self.out(layout.pack(attended.transpose(1, 2).flatten(2)))
        return Tokens(self.norm(tokens.rows + self.dropout(output)), tokens.layout)

    def weights(self, tokens: Tokens, context: KeyValue) -> Tensor:
        """Return the attention weights of `forward` without dropout, averaged over heads, (B, L', L).

        `context` must have no groups.
        """
        queries = self._split_heads(tokens.layout.pad(self.query(tokens.rows)))
        scores = queries @ context.keys.transpose(2, 3) * queries.shape[-1] ** -0.5
        if context.mask is not None:
            scores = scores.masked_fill(~context.mask, -torch.inf)
        return scores.softmax(3).mean(1)

    def _split_heads(self, padded: Tensor) -> Tensor:
        return padded.view(*padded.shape[:2], self.heads, -1).transpose(1, 2)


class FeedForward(nn.Module):
    """BERT's feed-forward block: two linear layers with an exact GELU, residual, layer normalisation."""

    def __init__(self, width: int, inner: int, *, dropout: float, epsilon: float = EPSILON) -> None:
        super().__init__()
        self.inner = nn.Linear(width, inner)
        self.out = nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width, eps=epsilon)
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Tokens) -> Tokens:
        """Return the transformed tokens."""
        output = self.out(functional.gelu(self.inner(tokens.rows)))
        return Tokens(self.norm(tokens.rows + self.dropout(output)), tokens.layout)


class Layer(nn.Module):
    """Transformer layer as in BERT: self-attention, then a feed-forward block."""

    def __init__(
        self, width: int, heads: int, inner: int, *, dropout: float, epsilon: float = EPSILON
    ) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout=dropout, epsilon=epsilon)
        self.feed_forward = FeedForward(width, inner, dropout=dropout, epsilon=epsilon)

    def forward(
        self, tokens: Tokens, *, outputs: OutputPositions | None = None, mask: Tensor | None = None
    ) -> Tokens:
        """Return the output tokens at `outputs`, or at all positions if `outputs` is None.

        `mask` (B, L, L) replaces the padding mask. Axis 1 is the query, axis 2 the key. A bool mask is True
        where attention is allowed; a float mask is added to the attention scores.
        """
        queries = tokens if outputs is None else tokens.at(outputs)
        context = self.attention.project(tokens)
        if mask is not None:
            context = context._replace(mask=(mask if outputs is None else mask[:, outputs.columns])[:, None])
        return self.feed_forward(self.attention(queries, context))


class PreNormLayer(nn.TransformerEncoderLayer):
    """PyTorch's pre-norm transformer layer with exact GELU. `infer` computes it on valid tokens only."""

    def __init__(self, width: int, heads: int, inner: int, *, dropout: float) -> None:
        super().__init__(
            width, heads, inner, dropout=dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.projection: nn.Module | None = None

    def infer(self, tokens: Tokens) -> Tokens:
        """Return the output tokens, as `forward` does without dropout."""
        (rows, layout), attention = tokens, self.self_attn
        values = self.norm1(rows)
        if self.projection is not None:
            projected = self.projection(values)
        else:
            projected = functional.linear(values, attention.in_proj_weight, attention.in_proj_bias)
        heads = layout.pad(projected).view(*layout.shape, 3, attention.num_heads, -1)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)  # (B, heads, L, H / heads)
        attended = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=layout.mask)
        rows = rows + attention.out_proj(layout.pack(attended.transpose(1, 2).flatten(2)))
        output = self.linear2(functional.gelu(self.linear1(self.norm2(rows))))
        return Tokens(rows + output, layout)

    def separate_projection(self) -> None:
        """Make the joint projection of queries, keys and values a linear layer. `forward` cannot run then."""
        attention = self.self_attn
        self.projection = nn.Linear(1, 1)
        self.projection.weight, self.projection.bias = attention.in_proj_weight, attention.in_proj_bias
        for name in ("in_proj_weight", "in_proj_bias"):
            attention.register_parameter(name, None)


class CrossLayer(nn.Module):
    """Cross-modal layer: text and vision attend to each other, then each to itself (docs/spec.md B.6).

    Text-to-vision and vision-to-text attention have the same weights. Each reads the inputs of this layer.
    """

    def __init__(
        self, width: int, heads: int, inner: int, *, dropout: float, epsilon: float = EPSILON
    ) -> None:
        super().__init__()
        self.across = Attention(width, heads, dropout=dropout, epsilon=epsilon)
        self.text = Layer(width, heads, inner, dropout=dropout, epsilon=epsilon)
        self.vision = Layer(width, heads, inner, dropout=dropout, epsilon=epsilon)

    def forward(
        self,
        text: Tokens,
        vision: Tokens,
        *,
        text_kv: KeyValue | None = None,
        text_outputs: OutputPositions | None = None,
        vision_outputs: OutputPositions | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tokens, Tokens]:
        """Return the updated text tokens and vision tokens.

        With `text_outputs` or `vision_outputs`, only the tokens at these positions are computed. `text_kv`
        are precomputed keys and values of the text. `mask` (B, M, M) is for self-attention of M vision
        tokens.
        """
        new_text = self.across(text, self.across.project(vision))
        new_vision = self.across(vision, self.across.project(text) if text_kv is None else text_kv)
        return self.text(new_text, outputs=text_outputs), self.vision(
            new_vision, outputs=vision_outputs, mask=mask
        )


class LinearNorm(nn.Module):
    """Linear layer followed by layer normalisation, for embedding image and angle features."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, hidden)
        self.norm = nn.LayerNorm(hidden, eps=EPSILON)

    def forward(self, values: Tensor) -> Tensor:
        """Return the embedded features, (..., width) -> (..., hidden)."""
        return self.norm(self.linear(values))


class ActionHead(nn.Sequential):
    """Head that computes one score per token, (..., hidden) -> (..., 1) (docs/spec.md B.7)."""

    def __init__(self, hidden: int, *, dropout: float) -> None:
        super().__init__(
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.LayerNorm(hidden, eps=EPSILON),
            Dropout(dropout),
            nn.Linear(hidden, 1),
        )


class Critic(nn.Sequential):
    """Head that predicts the expected return of a state, (B, hidden) -> (B, 1) (docs/spec.md B.7)."""

    def __init__(self, hidden: int, inner: int, *, dropout: float) -> None:
        super().__init__(nn.Linear(hidden, inner), nn.ReLU(), Dropout(dropout), nn.Linear(inner, 1))


def _extent(valid: Tensor) -> Tensor:
    """Return the position after the last valid token of each sequence, (B, L) -> (B,); at least 1."""
    positions = torch.arange(1, valid.shape[1] + 1, device=valid.device)
    return (valid * positions).amax(1).clamp(min=1)


def init_bert_weights(module: nn.Module, std: float) -> None:
    """Initialise a module as in BERT: normal weights with `std`, zeros for biases and padding embeddings."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=std)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        with torch.no_grad():
            module.weight[module.padding_idx].zero_()
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
