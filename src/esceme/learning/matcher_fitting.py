"""Train a `RouteMatcher`: a softmax over whole routes with the same start, in complete and partial maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from esceme.errors import DataError
from esceme.planning.matcher import FAR, PooledViews, RouteMatcher, StepInputs, route_index, step_inputs
from esceme.planning.routes import RouteSet
from esceme.planning.scoring import distinct_steps
from esceme.settings import Count, NonNegative, Size, check_settings
from esceme.world.atlas import Atlas

VISITED = (0.3, 1.0)
"""Least and greatest share of visited viewpoints of a random partial map."""
MOST_ROUTES = 400
"""Greatest number of routes from one start: half of them share the most places with described routes."""
WARM_UP = 50
"""Greatest number of iterations in which the learning rate rises."""
MAX_NORM = 5.0
"""Greatest norm of the gradient."""
READ_BATCH = 64
"""Number of panoramas that are pooled at a time."""


@dataclass(frozen=True, kw_only=True)
class MatcherConfig:
    """Settings of a route matcher."""

    epochs: Count = 8
    """Number of passes over the instructions; 0 trains a planner without a matcher."""
    hidden: Size = 128
    """Width of the hidden layers."""
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.2
    """Dropout of the network."""
    learning_rate: NonNegative = 2e-3
    """Learning rate of AdamW after warm-up."""
    weight_decay: NonNegative = 1e-2
    """Weight decay of AdamW."""
    batch_size: Size = 32
    """Number of instructions per iteration."""
    routes: Size = 40
    """Greatest number of routes that an instruction is compared with, drawn at random in each epoch."""
    partial: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Share of instructions whose routes are those of a random partial map; the others use complete maps."""
    max_instructions: Size = 15_000
    """Greatest number of instructions to learn from; they are drawn at random."""
    seed: Count = 0
    """Seed of initialisation, sampling and dropout."""

    def __post_init__(self) -> None:
        check_settings(self)


class StartRoutes(NamedTuple):
    """All R routes from one start in a complete map."""

    places: NDArray[np.int64]
    """(R, T + 1): places of each route, padded with -1."""
    steps: NDArray[np.int64]
    """(R, T): number of the step at each place."""
    ends: NDArray[np.int64]
    """(R,): number of the step at the end."""
    inputs: StepInputs
    """The distinct steps, (S,)."""
    targets: NDArray[np.int64]
    """(S,): place to which each step leads; -1 for the end of a route."""

    @classmethod
    def of(cls, routes: RouteSet, row_of: NDArray[np.int64]) -> StartRoutes:
        """Return the parts of routes that training needs; `row_of` are the pooled views of nodes."""
        steps, index, ends = distinct_steps(routes)
        targets = np.full(len(steps.nodes), -1)
        is_move = routes.places[:, 1:] >= 0
        targets[index[is_move]] = routes.places[:, 1:][is_move]
        return cls(routes.places, index, ends, step_inputs(routes.area.scene_map, steps, row_of), targets)


class MatchSample(NamedTuple):
    """An instruction, the number of its start, and the row of the described route."""

    words: NDArray[np.int64]
    start: int
    route: int


class MatcherBatch(NamedTuple):
    """Inputs of `RouteMatcher`, whether each row is a route (B, R), its kind of length, and the right row."""

    inputs: tuple[Tensor, Tensor, StepInputs, Tensor]
    is_route: Tensor
    num_moves: Tensor
    """(B, R): number of edges."""
    is_frontier: Tensor
    """(B, R): whether a route ends at the frontier."""
    right: Tensor
    """(B,): row of the described route."""


def draw_routes(routes: RouteSet, described: Sequence[int], seed: int) -> tuple[RouteSet, NDArray[np.int64]]:
    """Return at most `MOST_ROUTES` routes, or a few more, and the rows of the `described` ones among them."""
    if len(routes) <= MOST_ROUTES:
        return routes, np.asarray(described)
    shared = (np.isin(routes.places, routes.places[described]) & (routes.places >= 0)).sum(1)
    alike = np.argsort(-shared, kind="stable")[: MOST_ROUTES // 2]
    others = np.random.default_rng([seed, 6]).permutation(len(routes))[: MOST_ROUTES // 2]
    rows = np.unique(np.concatenate([described, alike, others]))
    return routes.select(rows), np.searchsorted(rows, described)


def pool_views(atlas: Atlas, viewpoints: Sequence[int]) -> PooledViews:
    """Return the pooled features of viewpoints, given as atlas indices, in half precision."""
    parts = []
    for first in range(0, len(viewpoints), READ_BATCH):
        features = atlas.panorama_features(np.asarray(viewpoints[first : first + READ_BATCH]))
        parts.append([tensor.half() for tensor in PooledViews.of(torch.from_numpy(features).float())])
    return PooledViews(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def fit_matcher(
    views: PooledViews,
    starts: Sequence[StartRoutes],
    samples: Sequence[MatchSample],
    *,
    num_words: int,
    config: MatcherConfig,
    on_epoch: Callable[[int, float], None] = lambda epoch, loss: None,
) -> RouteMatcher:
    """Return a matcher that was trained to score the described route of every sample highest.

    `on_epoch` receives the mean cross-entropy of each epoch. Equal inputs give equal weights.
    """
    if not samples:
        raise DataError("a matcher needs instructions whose route is among the candidate routes")
    generator = np.random.default_rng([config.seed, 5])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        matcher = RouteMatcher(num_words, views.around.shape[1], config.hidden, config.dropout)
        moves = [int((starts[sample.start].places[sample.route] >= 0).sum()) for sample in samples]
        matcher.usual_steps.fill_(int(np.median(moves)))
        longest = max(start.places.shape[1] for start in starts)
        lengths = nn.Parameter(torch.zeros(2, longest))  # how usual a length is; the belief has its own
        parameters = [*matcher.parameters(), lengths]
        optimizer = torch.optim.AdamW(
            parameters, lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        size = min(config.batch_size, len(samples))
        per_epoch = len(samples) // size
        total = config.epochs * per_epoch
        warm_up = min(WARM_UP, total // 10 + 1)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1.0, (step + 1) / warm_up) * (1 - step / total)
        )
        for epoch in range(config.epochs):
            order, losses = generator.permutation(len(samples)), []
            for first in range(0, per_epoch * size, size):
                chosen = [samples[row] for row in order[first : first + size]]
                batch = make_batch(starts, chosen, config, generator, int(matcher.usual_steps))
                words, is_word, steps, index = batch.inputs
                logits = matcher(words, is_word, views, steps, index)
                logits = logits + lengths[batch.is_frontier.long(), batch.num_moves]
                loss = functional.cross_entropy(logits.masked_fill(~batch.is_route, FAR), batch.right)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                nn.utils.clip_grad_norm_(parameters, MAX_NORM)
                optimizer.step()
                schedule.step()
                losses.append(loss.item())
            on_epoch(epoch + 1, float(np.mean(losses)))
    return matcher.eval()


def make_batch(
    starts: Sequence[StartRoutes],
    samples: Sequence[MatchSample],
    config: MatcherConfig,
    generator: np.random.Generator,
    usual_steps: int,
) -> MatcherBatch:
    """Return samples with the routes that each is compared with, cut at the frontier of partial maps."""
    cuts = []
    for sample in samples:
        start = starts[sample.start]
        visited = np.ones(start.places.max() + 1, dtype=bool)
        if generator.random() < config.partial:
            visited = generator.random(len(visited)) < generator.uniform(*VISITED)
            visited[start.places[0, 0]] = True
        cuts.append(_cut_routes(start, sample.route, visited, config.routes, generator))
    num_steps = max(len(cut.inputs.viewpoints) for cut in cuts)
    index = [
        route_index(
            cut.steps, cut.ends, cut.num_moves, cut.is_visited, unknown=num_steps, usual_steps=usual_steps
        )
        for cut in cuts
    ]
    words = _pad([sample.words for sample in samples], -1)
    num_moves = _pad([cut.num_moves for cut in cuts], -1)
    return MatcherBatch(
        (
            words.clamp(min=0),
            words >= 0,
            StepInputs(*(_pad(tensors, 0) for tensors in zip(*(cut.inputs for cut in cuts), strict=True))),
            _pad(index, -1),
        ),
        num_moves >= 0,
        num_moves.clamp(min=0),
        _pad([~cut.is_visited for cut in cuts], False),
        torch.tensor([cut.right for cut in cuts]),
    )


class _CutRoutes(NamedTuple):
    """R routes in a partial map."""

    inputs: StepInputs
    """Their distinct steps."""
    steps: NDArray[np.int64]
    """(R, T): number of the step at each place."""
    ends: NDArray[np.int64]
    """(R,): number of the step at the end, if this was visited."""
    num_moves: NDArray[np.int64]
    is_visited: NDArray[np.bool_]
    right: int
    """Row of the described route."""


def _cut_routes(
    start: StartRoutes,
    route: int,
    visited: NDArray[np.bool_],
    most: int,
    generator: np.random.Generator,
) -> _CutRoutes:
    """Return at most `most` distinct routes, cut at their first unvisited place; one is that of `route`."""
    places = start.places
    is_open = (places >= 0) & ~visited[places]
    is_cut = np.asarray(is_open.any(1))
    cut = np.where(is_cut, is_open.argmax(1), (places >= 0).sum(1) - 1)  # position of the last place
    cut_places = np.where(np.arange(places.shape[1]) <= cut[:, None], places, -1)
    _, first, inverse = np.unique(cut_places, axis=0, return_index=True, return_inverse=True)
    right = int(inverse.reshape(-1)[route])
    numbers = np.arange(len(first))
    if len(numbers) > most:
        others = generator.choice(np.delete(numbers, right), most - 1, replace=False)
        numbers = np.sort(np.append(others, right))
    chosen = first[numbers]
    num_moves, is_visited = cut[chosen], ~is_cut[chosen]
    steps, ends = start.steps[chosen], start.ends[chosen]
    used = np.unique(
        np.concatenate([steps[np.arange(steps.shape[1]) < num_moves[:, None]], ends[is_visited]])
    )
    number = np.zeros(len(start.targets), np.int64)
    number[used] = np.arange(len(used))
    inputs = StepInputs(*(tensor[used] for tensor in start.inputs))
    is_known = torch.from_numpy(visited[start.targets[used]])
    inputs = inputs._replace(targets=inputs.targets.where(is_known, -1))
    return _CutRoutes(
        inputs, number[steps], number[ends], num_moves, is_visited, int(np.flatnonzero(numbers == right)[0])
    )


def _pad(arrays: Sequence[NDArray[np.generic] | Tensor], fill: float | bool) -> Tensor:
    """Return arrays of different sizes as one tensor, padded with `fill`."""
    tensors = [torch.as_tensor(array) for array in arrays]
    shape = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
    batch = torch.full((len(tensors), *shape), fill, dtype=tensors[0].dtype)
    for row, tensor in zip(batch, tensors, strict=True):
        row[tuple(slice(size) for size in tensor.shape)] = tensor
    return batch
