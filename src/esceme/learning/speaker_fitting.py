"""Expectation maximisation of a `Speaker` on reference paths and their instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, vstack

from esceme.errors import DataError
from esceme.memory.codebook import Codebook
from esceme.memory.scene_map import MapBank, SceneMap
from esceme.planning.speaker import (
    FIRST_CODE,
    Speaker,
    SpeakerTables,
    StepArrays,
    align,
    position_bins,
    step_concepts,
)
from esceme.settings import Size, check_settings
from esceme.world.atlas import Atlas
from esceme.world.geometry import nearest_view

NEW_COUNT = 0.1
"""Count that is added to every word of the background."""
CHUNK = 400
"""Number of paths whose emissions are in memory at a time."""
LONG = 7
"""Paths are long if they usually have more edges than this."""
USUAL_MOVES = (0.025, 0.975)
"""Quantiles of the number of edges of training paths that count as usual."""


@dataclass(frozen=True, kw_only=True)
class SpeakerConfig:
    """Settings of a speaker."""

    codes: Size = 400
    """Number of codes: clusters of view features."""
    code_viewpoints: Size = 900
    """Number of viewpoints whose views the codes are fitted to."""
    max_instructions: Size = 12_000
    """Greatest number of instructions to learn from; they are drawn at random."""
    iterations: Size = 6
    """Number of iterations of expectation maximisation."""
    prior: float = 5.0
    """Pseudo-count of the word probabilities: number of background words added to the counts of a concept."""
    background: float = 0.3
    """Initial probability that a word comes from the background."""
    step_positions: Size | None = None
    """Number of relative positions of steps in the alignment; by default 8, or 12 for long paths."""
    word_positions: Size | None = None
    """Number of relative positions of words in the alignment; by default 12, or 24 for long paths."""
    seed: int = 0
    """Seed of the sampled viewpoints and instructions."""

    def __post_init__(self) -> None:
        check_settings(self)


class Description(NamedTuple):
    """An instruction as token ids, and the number of the path that it describes."""

    path: int
    words: NDArray[np.int64]


def fit_codebook(atlas: Atlas, viewpoints: Sequence[int], config: SpeakerConfig) -> Codebook:
    """Return the codes of views at a random part of `viewpoints`, given as atlas indices."""
    order = np.random.default_rng(config.seed).permutation(np.asarray(sorted(set(viewpoints))))
    features = atlas.panorama_features(order[: config.code_viewpoints])  # (P, 36, D)
    rows = features.reshape(-1, features.shape[-1])
    chosen = np.random.default_rng([config.seed, 1]).permutation(len(rows))[: 50 * config.codes]
    return Codebook.fit(rows[chosen], config.codes, seed=config.seed)


def path_steps(scene_map: SceneMap, viewpoints: Sequence[str], heading: float) -> StepArrays:
    """Return the steps along visited viewpoints; the last step is the end. `heading` is that at the start."""
    nodes = [scene_map.node(viewpoints[0])]
    views, slots = [int(nearest_view(heading))], []
    for viewpoint in viewpoints[1:]:
        node = scene_map.node(viewpoint)
        if node == nodes[-1]:
            continue  # annotated paths may stay at a viewpoint
        candidates = scene_map.candidates(np.array(nodes[-1:]))
        found = np.flatnonzero(candidates.neighbours == node)
        if not len(found):
            raise DataError(f"no edge leads to viewpoint '{viewpoint}' of a path")
        slots.append(int(found[0]))
        views.append(int(candidates.views[found[0]]))
        nodes.append(node)
    return StepArrays(np.array(nodes), np.array(views), np.array([*slots, -1]))


def fit_speaker(
    maps: MapBank,
    paths: Sequence[tuple[str, StepArrays]],
    descriptions: Sequence[Description],
    *,
    num_words: int,
    config: SpeakerConfig,
    words: SpeakerTables | None = None,
    on_iteration: Callable[[int, float], None] = lambda iteration, perplexity: None,
) -> Speaker:
    """Return a speaker of `num_words` words that explains `descriptions` of `paths` (scene id, steps).

    `maps` hold all viewpoints of the paths with codes. With `words`, the probabilities of words given
    concepts, and of all words, are taken from there; only the alignment is learned. `on_iteration` receives
    the perplexity before each update.
    """
    if maps.codebook is None or not descriptions:
        raise DataError("a speaker needs maps with codes, and instructions to learn from")
    codebook = maps.codebook
    num_concepts = FIRST_CODE + len(codebook)
    concepts = [step_concepts(maps[scene], steps, num_concepts) for scene, steps in paths]
    counts = np.bincount(np.concatenate([item.words for item in descriptions]), minlength=num_words)
    background = (counts + NEW_COUNT) / (counts + NEW_COUNT).sum()
    lengths = np.array([len(paths[item.path][1].nodes) - 1 for item in descriptions])
    least, greatest = np.quantile(lengths, USUAL_MOVES, method="inverted_cdf").astype(int).tolist()
    tables = SpeakerTables(
        words=np.repeat(background[None], num_concepts, 0) if words is None else words.words,
        alignment=_initial_alignment(config, is_long=float(np.median(lengths)) > LONG),
        groups=np.array([0.35, 0.4, 0.25]) if words is None else words.groups,
        background=background if words is None else words.background,
        background_share=config.background if words is None else words.background_share,
        unknown=np.zeros((2, num_concepts)),
        num_moves=(least, greatest),
    )
    by_path: list[list[NDArray[np.int64]]] = [[] for _ in paths]
    for item in descriptions:
        by_path[item.path].append(item.words)
    for iteration in range(config.iterations):
        tables, perplexity = _update(tables, concepts, by_path, None if words is not None else config.prior)
        on_iteration(iteration + 1, perplexity)
    return Speaker(_with_unknown(tables, concepts), codebook)


def _initial_alignment(config: SpeakerConfig, *, is_long: bool) -> NDArray[np.float64]:
    """Return an alignment that prefers equal relative positions, (A, W)."""
    num_steps = config.step_positions or (12 if is_long else 8)
    num_words = config.word_positions or (24 if is_long else 12)
    steps, words = ((np.arange(size) + 0.5) / size for size in (num_steps, num_words))
    weights = np.exp(-(((steps[:, None] - words) / 0.25) ** 2))
    aligned: NDArray[np.float64] = weights / weights.sum(0)
    return aligned


def _update(
    tables: SpeakerTables,
    concepts: Sequence[Sequence[csr_array]],
    by_path: Sequence[Sequence[NDArray[np.int64]]],
    prior: float | None,
) -> tuple[SpeakerTables, float]:
    """Run one iteration of expectation maximisation; return the new tables and the old perplexity.

    Without a `prior`, the probabilities of words do not change.
    """
    share = tables.background_share
    translation = np.zeros_like(tables.words)
    alignment, groups = np.ones_like(tables.alignment), np.ones(len(tables.groups))
    log_likelihood, background_count, num_words = 0.0, 0.0, 0
    words_table = tables.words.astype(np.float32)
    for chunk in _chunks(len(concepts)):
        stacked = [vstack([concepts[path][group] for path in chunk]).tocsr() for group in range(3)]
        emissions = np.stack([matrix @ words_table for matrix in stacked])  # (3, S, V)
        entries: list[tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]] = []
        first = 0
        for path in chunk:
            num_steps = concepts[path][0].shape[0]
            for words in by_path[path]:
                aligned = align(tables.alignment, num_steps, len(words))
                joint = (1 - share) * tables.groups[:, None, None] * aligned
                joint = joint * emissions[:, first : first + num_steps][:, :, words]
                from_background = share * tables.background[words]
                total = joint.sum((0, 1)) + from_background
                posterior = joint / total
                per_step = posterior.sum(0)
                bins = np.ix_(
                    position_bins(alignment.shape[0], num_steps),
                    position_bins(alignment.shape[1], len(words)),
                )
                np.add.at(alignment, bins, per_step)
                groups += posterior.sum((1, 2))
                background_count += (from_background / total).sum()
                log_likelihood += np.log(total).sum()
                num_words += len(words)
                if prior is not None:
                    steps = np.repeat(np.arange(first, first + num_steps), len(words))
                    columns = np.tile(words, num_steps)
                    entries.append((((1 - share) * aligned / total).ravel(), steps, columns))
            first += num_steps
        if entries:
            values, steps, columns = (np.concatenate(part) for part in zip(*entries, strict=True))
            shape = (first, tables.words.shape[1])
            weights = coo_array((values, (steps, columns)), shape=shape).tocsr()
            for group, matrix in zip(tables.groups, stacked, strict=True):
                translation += group * (matrix.T @ weights).toarray()
    translated = tables.words
    if prior is not None:
        expected = tables.words * translation + prior * tables.background
        translated = expected / expected.sum(1, keepdims=True)
    updated = SpeakerTables(
        words=translated,
        alignment=alignment / alignment.sum(0),
        groups=groups / groups.sum(),
        background=tables.background,
        background_share=float(background_count / num_words),
        unknown=tables.unknown,
        num_moves=tables.num_moves,
    )
    return updated, float(np.exp(-log_likelihood / num_words))


def _with_unknown(tables: SpeakerTables, concepts: Sequence[Sequence[csr_array]]) -> SpeakerTables:
    """Return the tables with the mean concept weights of steps and of ends."""
    sums, counts = np.zeros_like(tables.unknown), np.zeros(2)
    for matrices in concepts:
        mean = sum(share * matrix for share, matrix in zip(tables.groups, matrices, strict=True))
        dense = mean.toarray()
        sums[0] += dense[:-1].sum(0)
        sums[1] += dense[-1]
        counts += [len(dense) - 1, 1]
    unknown = sums / np.maximum(counts, 1)[:, None]
    return SpeakerTables(**{**vars(tables), "unknown": unknown})


def _chunks(size: int) -> Iterator[range]:
    for start in range(0, size, CHUNK):
        yield range(start, min(start + CHUNK, size))
