"""`RouteMatcher`: a network that scores how well routes match an instruction, word by word.

Each step of a route has a key: what is seen ahead and around, the viewpoint to which it leads, turn and
length. Each word has a query and a weight. A word matches a route by the mean of exp(query * key) over the
steps, weighted by the relative positions of word and step. A route's score is the weighted sum of the
logarithms over the words. Training (`learning.matcher_fitting`) makes the described route score higher than
others with the same start.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import functional

from esceme.dropout import Dropout
from esceme.errors import DataError
from esceme.files import atomic_open
from esceme.memory.scene_map import SceneMap
from esceme.planning.speaker import StepArrays, step_geometry
from esceme.world.geometry import COLUMNS, VIEWS

STEP_POSITIONS, WORD_POSITIONS = 8, 12
"""Numbers of relative positions of steps and of words that alignments distinguish."""
SPREAD = 0.25
"""Spread of the initial alignment, as a share of the route."""
METRES = 5.0
"""Length in metres that counts as 1."""
MAX_RISE = 2.0
"""Steps that rise or fall by more metres count as this many."""
NUMBERS = 7
"""Numbers per step: sine and cosine of the turn, rise, length, end, target visited, target not visited."""
FAR = -1e9


class PooledViews(NamedTuple):
    """Features of N viewpoints, by direction and in all."""

    sectors: Tensor
    """(N, 12, D): greatest features in the views of each direction and of both next to it."""
    around: Tensor
    """(N, D): greatest features in all views."""

    @classmethod
    def of(cls, features: Tensor) -> PooledViews:
        """Pool the features of all views, (N, 36, D)."""
        columns = features.view(len(features), VIEWS // COLUMNS, COLUMNS, -1).amax(1)
        ahead = torch.stack([columns.roll(shift, 1) for shift in (-1, 0, 1)]).amax(0)
        return cls(ahead, columns.amax(1))


class StepInputs(NamedTuple):
    """S steps of routes, with any axes before; viewpoints are rows of `PooledViews`."""

    viewpoints: Tensor
    """(S,): viewpoint at which the step is taken."""
    sectors: Tensor
    """(S,): direction of the step, 0 to 11; at the end of a route, the direction that the agent faces."""
    targets: Tensor
    """(S,): viewpoint to which the step leads; -1 if it was not visited, and at the end of a route."""
    geometry: Tensor
    """(S, 5): the first five of `NUMBERS`."""


def step_inputs(scene_map: SceneMap, steps: StepArrays, row_of: NDArray[np.int64]) -> StepInputs:
    """Return the inputs of steps in a map; `row_of` are the rows in `PooledViews` of its nodes, or -1."""
    found = step_geometry(scene_map, steps)
    neighbours = scene_map.candidates(steps.nodes, np.maximum(steps.slots, 0)).neighbours
    targets = np.where(found.is_end, -1, neighbours)
    rise = found.rise.clip(-MAX_RISE, MAX_RISE)
    columns = [np.sin(found.turn), np.cos(found.turn), rise, found.length / METRES, found.is_end]
    return StepInputs(
        torch.from_numpy(row_of[steps.nodes]),
        torch.from_numpy(found.sector),
        torch.from_numpy(np.where(targets >= 0, row_of[targets], -1)),
        torch.from_numpy(np.stack(columns, 1).astype(np.float32)),
    )


class RouteMatcher(nn.Module):
    """Scores routes given an instruction of token ids; see the module."""

    def __init__(self, num_words: int, width: int, hidden: int = 128, dropout: float = 0.2) -> None:
        """Create a network of hidden size `hidden` for features of size `width`."""
        super().__init__()
        self.words = nn.Embedding(num_words, hidden)
        nn.init.normal_(self.words.weight, std=0.1)
        self.context = nn.ModuleList(nn.Conv1d(hidden, hidden, 3, padding=1) for _ in range(2))
        self.query, self.weight = nn.Linear(hidden, hidden), nn.Linear(hidden, 1)
        self.ahead, self.around, self.target = (nn.Linear(width, hidden) for _ in range(3))
        self.geometry, self.key = nn.Linear(NUMBERS, hidden), nn.Linear(hidden, hidden)
        self.unknown = nn.Parameter(torch.randn(2, hidden) * 0.1)
        """Keys of a step at an unknown viewpoint, and of the end at one."""
        steps = (torch.arange(STEP_POSITIONS) + 0.5) / STEP_POSITIONS
        words = (torch.arange(WORD_POSITIONS) + 0.5) / WORD_POSITIONS
        self.alignment = nn.Parameter(-(((steps[:, None] - words) / SPREAD) ** 2))
        self.register_buffer("usual_steps", torch.tensor(6))
        self.usual_steps: Tensor
        """Number of steps that routes to the frontier are assumed to have in all, the end included."""
        self.dropout = Dropout(dropout)

    def forward(
        self, words: Tensor, is_word: Tensor, views: PooledViews, steps: StepInputs, index: Tensor
    ) -> Tensor:
        """Return the scores of routes, (B, R), for instructions `words` (B, L), padded where not `is_word`.

        `index` (B, R, T) numbers the steps of each route among S distinct `steps` (B, S); S is a step at an
        unknown viewpoint, S + 1 the end at one, -1 padding.
        """
        queries, weights = self._encode_words(words, is_word)
        keys = torch.cat([self._encode_steps(views, steps), self.unknown.expand(len(words), -1, -1)], 1)
        matches = queries @ keys.transpose(1, 2) / math.sqrt(keys.shape[2])  # (B, L, S + 2)
        (batch, length), (_, num_routes, longest) = words.shape, index.shape
        rows = index.clamp(min=0).view(batch, 1, -1).expand(-1, length, -1)
        by_step = matches.gather(2, rows).view(batch, length, num_routes, longest)
        is_step = index >= 0
        step_bins = _position_bins(is_step.sum(2), longest, STEP_POSITIONS)  # (B, R, T)
        word_bins = _position_bins(is_word.sum(1), length, WORD_POSITIONS)  # (B, L)
        by_word = self.alignment.T[word_bins]  # (B, L, A)
        aligned = by_word.gather(2, step_bins.view(batch, 1, -1).expand(-1, length, -1)).view_as(by_step)
        aligned = torch.log_softmax(aligned.masked_fill(~is_step[:, None], FAR), 3)
        scores: Tensor = (torch.logsumexp(aligned + by_step, 3) * weights[:, :, None]).sum(1)
        return scores

    def _encode_words(self, words: Tensor, is_word: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries (B, L, H) and the weights (B, L) of words; the weight of padding is 0."""
        first, second = self.context
        embedded = self.dropout(self.words(words)) * is_word[:, :, None]
        hidden = self.dropout(functional.gelu(first(embedded.transpose(1, 2)))) * is_word[:, None]
        hidden = second(hidden).transpose(1, 2) + embedded
        return self.query(hidden), functional.softplus(self.weight(hidden)).squeeze(2) * is_word

    def _encode_steps(self, views: PooledViews, steps: StepInputs) -> Tensor:
        """Return the keys of steps, (B, S, H)."""
        is_known = steps.targets >= 0
        is_end = steps.geometry[..., 4] > 0
        numbers = torch.stack([is_known, ~is_known & ~is_end], -1).float()
        target = views.around[steps.targets.clamp(min=0)].float() * is_known[..., None]
        hidden = self.ahead(self.dropout(views.sectors[steps.viewpoints, steps.sectors].float()))
        hidden = hidden + self.around(self.dropout(views.around[steps.viewpoints].float()))
        hidden = hidden + self.target(self.dropout(target))
        hidden = hidden + self.geometry(torch.cat([steps.geometry, numbers], -1))
        keys: Tensor = self.key(self.dropout(functional.gelu(hidden)))
        return keys


def _position_bins(lengths: Tensor, longest: int, num_bins: int) -> Tensor:
    """Return the bins of relative positions in sequences of `lengths` (...), (..., longest)."""
    bins = (torch.arange(longest) + 0.5) / lengths.clamp(min=1)[..., None] * num_bins
    return bins.long().clamp(max=num_bins - 1)


def route_index(
    steps: NDArray[np.int64],
    ends: NDArray[np.int64],
    num_moves: NDArray[np.int64],
    is_visited: NDArray[np.bool_],
    *,
    unknown: int,
    usual_steps: int,
) -> NDArray[np.int64]:
    """Return the numbers of the steps of R routes, (R, T'), for `RouteMatcher`.

    `steps` (R, T) and `ends` (R,) are numbers of steps. A route to the frontier continues with unknown steps
    (number `unknown`) and an unknown end (`unknown` + 1), until it has `usual_steps` steps or one more.
    """
    total = np.where(is_visited, num_moves + 1, np.maximum(num_moves + 1, usual_steps))
    position = np.arange(int(total.max()))
    known = np.pad(steps, ((0, 0), (0, max(0, len(position) - steps.shape[1]))))[:, : len(position)]
    index = np.where(position < num_moves[:, None], known, unknown)
    last = np.where(is_visited, ends, unknown + 1)
    index = np.where(position == total[:, None] - 1, last[:, None], index)
    return np.where(position < total[:, None], index, -1)


def write_matcher(path: Path, matcher: RouteMatcher, key: str) -> None:
    """Write the weights of a matcher; `key` identifies what they were trained with."""
    state = {name: tensor.contiguous() for name, tensor in matcher.state_dict().items()}
    with atomic_open(path) as file:
        file.write(save(state, metadata={"key": key}))


def matcher_key(path: Path) -> str:
    """Return the key with which a matcher was written; empty if there is no readable file."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return str((file.metadata() or {}).get("key", ""))
    except (OSError, safetensors.SafetensorError):
        return ""


def read_matcher(path: Path) -> RouteMatcher:
    """Return the matcher in a file; raise `DataError` if there is none or if it is damaged."""
    advice = "train the planner again (`esceme train-planner`)"
    if not path.is_file():
        raise DataError(f"{path}: no matcher here; {advice}")
    try:
        state = load_file(path)
        (num_words, hidden), (_, width) = state["words.weight"].shape, state["ahead.weight"].shape
        matcher = RouteMatcher(num_words, width, hidden)
        matcher.load_state_dict(state)
    except (OSError, safetensors.SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise DataError(f"{path}: not a complete matcher ({error}); {advice}") from None
    if not all(tensor.isfinite().all() for tensor in state.values()):
        raise DataError(f"{path}: a weight is not finite; {advice}")
    return matcher.eval()
