"""Transformer parts that agents share: BERT's layers, computed on real tokens only.

A batch of sequences is kept as flat rows (T, H), one per real token; only attention sees it padded
(B, L, H). Linear maps, which are nearly all of the work, so never touch padding.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

EPSILON = 1e-12
"""Of every layer normalisation, as in BERT."""


class Ragged:
    """How the rows of sequences of different lengths lie in a padded batch.

    >>> layout = Ragged(torch.tensor([[True, True], [True, False]]))
    >>> rows = layout.pack(torch.arange(4.0).reshape(2, 2, 1))
    >>> rows.flatten().tolist(), layout.pad(rows).flatten().tolist()
    ([0.0, 1.0, 2.0], [0.0, 1.0, 2.0, 0.0])
    """

    def __init__(self, valid: Tensor, *, everything: bool = False) -> None:
        """Lay out the tokens that are `valid` (B, L); with `everything`, rows exist for padding, too."""
        self.valid = valid
        self.shape = valid.shape
        place = valid.flatten().nonzero().squeeze(1)
        self.full = len(place) == valid.numel()
        self._place = None if self.full or everything else place

    def pack(self, padded: Tensor) -> Tensor:
        """(B, L, H) -> (T, H)."""
        flat = padded.flatten(0, 1)
        return flat if self._place is None else flat[self._place]

    def pad(self, rows: Tensor) -> Tensor:
        """(T, H) -> (B, L, H), zeros where there is no row."""
        if self._place is not None:
            flat = rows.new_zeros(self.valid.numel(), rows.shape[-1])
            rows = flat.index_copy(0, self._place, rows)
        return rows.view(*self.shape, -1)

    @property
    def mask(self) -> Tensor | None:
        """What keys may be attended to, (B, 1, 1, L); None where all may.

        Leaving a key out is the same as adding -10000 to its score, as the original does: either way its
        weight is exactly 0 in single precision.
        """
        return None if self.full else self.valid[:, None, None, :]


class OutputPositions(NamedTuple):
    """Some places of every sequence: all that will be read of a last layer."""

    columns: Tensor
    """(R,)"""
    wanted: Tensor
    """(B, R) bool: which of them each sequence needs."""


class Tokens(NamedTuple):
    """Sequences of tokens: rows (T, H) and how they lie in a batch."""

    rows: Tensor
    layout: Ragged

    @classmethod
    def of(cls, padded: Tensor, valid: Tensor, *, everything: bool = False) -> Tokens:
        """The tokens of a padded batch (B, L, H)."""
        layout = Ragged(valid, everything=everything)
        return cls(layout.pack(padded), layout)

    @property
    def padded(self) -> Tensor:
        """(B, L, H)."""
        return self.layout.pad(self.rows)

    def at(self, places: OutputPositions) -> Tokens:
        """The tokens at some places of the sequences."""
        return Tokens.of(self.padded[:, places.columns], places.wanted)


class Groups(NamedTuple):
    """Sequences that look into the same things, though at different steps: R of them, in B groups.

    Whatever they share is kept once and looked into together, instead of once for each.
    """

    group: Tensor
    """(R,) int64"""
    step: Tensor
    """(R,) int64: no two of a group have the same."""
    size: tuple[int, int]
    """B groups of at most T steps."""

    def together(self, apart: Tensor) -> Tensor:
        """(R, L, …) -> (B, T * L, …), zeros where there is no such step."""
        whole = apart.new_zeros(*self.size, *apart.shape[1:])
        return whole.index_put((self.group, self.step), apart).flatten(1, 2)

    def apart(self, together: Tensor) -> Tensor:
        """(B, T * L, …) -> (R, L, …)."""
        return torch.unflatten(together, 1, (self.size[1], -1))[self.group, self.step]


class KeyValue(NamedTuple):
    """What attention looks into."""

    keys: Tensor
    """(B, heads, L, H / heads)"""
    values: Tensor
    mask: Tensor | None
    """True for what may be attended to, (B, 1, 1, L); None where all may."""
    groups: Groups | None = None
    """Which of those who ask look into the same; None: each into its own."""


class Attention(nn.Module):
    """Multi-head attention of tokens to others, projected, added to what asked, and normalised."""

    def __init__(self, width: int, heads: int, *, dropout: float, epsilon: float = EPSILON) -> None:
        """Attend with `heads` heads; dropout is on both the weights and the outcome."""
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=epsilon)
        self.dropout = nn.Dropout(dropout)
        self.weight_dropout = dropout

    def know(self, tokens: Tokens) -> KeyValue:
        """Keys and values of tokens."""
        padded = (tokens.layout.pad(project(tokens.rows)) for project in (self.key, self.value))
        keys, values = (self._split(each) for each in padded)
        return KeyValue(keys, values, tokens.layout.mask)

    def forward(self, asking: Tokens, known: KeyValue) -> Tokens:
        """What `asking` makes of what is known."""
        queries = asking.layout.pad(self.query(asking.rows))
        queries = self._split(queries if known.groups is None else known.groups.together(queries))
        dropout = self.weight_dropout if self.training else 0.0
        seen = functional.scaled_dot_product_attention(
            queries, known.keys, known.values, attn_mask=known.mask, dropout_p=dropout
        )  # (B, heads, L', H / heads)
        joined = seen.transpose(1, 2).flatten(2)
        joined = joined if known.groups is None else known.groups.apart(joined)
        found = self.out(asking.layout.pack(joined))
        return Tokens(self.norm(asking.rows + self.dropout(found)), asking.layout)

    def _split(self, padded: Tensor) -> Tensor:
        return padded.view(*padded.shape[:2], self.heads, -1).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear maps with an (exact) GELU between, added to the input and normalised."""

    def __init__(self, width: int, inner: int, *, dropout: float, epsilon: float = EPSILON) -> None:
        """Widen to `inner` and back."""
        super().__init__()
        self.inner = nn.Linear(width, inner)
        self.out = nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width, eps=epsilon)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tokens) -> Tokens:
        """Each token on its own."""
        found = self.out(functional.gelu(self.inner(tokens.rows)))
        return Tokens(self.norm(tokens.rows + self.dropout(found)), tokens.layout)


class Layer(nn.Module):
    """A BERT layer: self-attention, then a feed-forward block."""

    def __init__(
        self, width: int, heads: int, inner: int, *, dropout: float, epsilon: float = EPSILON
    ) -> None:
        """Build both blocks."""
        super().__init__()
        self.attention = Attention(width, heads, dropout=dropout, epsilon=epsilon)
        self.feed_forward = FeedForward(width, inner, dropout=dropout, epsilon=epsilon)

    def forward(
        self, tokens: Tokens, *, read: OutputPositions | None = None, mask: Tensor | None = None
    ) -> Tokens:
        """New tokens at the places `read` of every sequence, by default at all.

        `mask` (B, L, L) says which may attend to which, where that is not just to all that are real.
        """
        asking = tokens if read is None else tokens.at(read)
        known = self.attention.know(tokens)
        if mask is not None:
            known = known._replace(mask=(mask if read is None else mask[:, read.columns])[:, None])
        return self.feed_forward(self.attention(asking, known))


class CrossLayer(nn.Module):
    """A cross-modal layer: text and vision attend to each other, then each to itself (spec B.6).

    Both directions of cross-attention share one set of weights and see the other stream as it came in.
    """

    def __init__(
        self, width: int, heads: int, inner: int, *, dropout: float, epsilon: float = EPSILON
    ) -> None:
        """Build the shared cross-attention and one layer per stream."""
        super().__init__()
        self.across = Attention(width, heads, dropout=dropout, epsilon=epsilon)
        self.text = Layer(width, heads, inner, dropout=dropout, epsilon=epsilon)
        self.vision = Layer(width, heads, inner, dropout=dropout, epsilon=epsilon)

    def forward(
        self,
        text: Tokens,
        vision: Tokens,
        *,
        spoken: KeyValue | None = None,
        read_text: OutputPositions | None = None,
        read_vision: OutputPositions | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tokens, Tokens]:
        """Both streams, updated; only the places `read_…` where those are all that will be read.

        `spoken` is what vision knows of the text, where it is known already; `mask` is vision's own.
        """
        told = self.across(text, self.across.know(vision))
        shown = self.across(vision, self.across.know(text) if spoken is None else spoken)
        return self.text(told, read=read_text), self.vision(shown, read=read_vision, mask=mask)


class LinearNorm(nn.Module):
    """A linear map and a normalisation: how pictures and angles become tokens."""

    def __init__(self, width: int, hidden: int) -> None:
        """Map `width` numbers to `hidden`."""
        super().__init__()
        self.linear = nn.Linear(width, hidden)
        self.norm = nn.LayerNorm(hidden, eps=EPSILON)

    def forward(self, values: Tensor) -> Tensor:
        """(..., width) -> (..., hidden)."""
        return self.norm(self.linear(values))


class ActionHead(nn.Sequential):
    """A score for each token."""

    def __init__(self, hidden: int, *, dropout: float) -> None:
        """Two linear maps with a ReLU and a normalisation between (spec B.7)."""
        super().__init__(
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.LayerNorm(hidden, eps=EPSILON),
            nn.Dropout(dropout),
            nn.Linear(hidden, 1),
        )


class Critic(nn.Sequential):
    """The return that is to be expected from a state."""

    def __init__(self, hidden: int, inner: int, *, dropout: float) -> None:
        """Two linear maps with a ReLU between (spec B.7)."""
        super().__init__(nn.Linear(hidden, inner), nn.ReLU(), nn.Dropout(dropout), nn.Linear(inner, 1))


def initialise(module: nn.Module, std: float) -> None:
    """Draw weights as BERT does: normal for maps and tables, zero for biases, one for normalisations."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=std)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        with torch.no_grad():
            module.weight[module.padding_idx].zero_()
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
