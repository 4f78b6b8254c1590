"""`Speaker`: the probability of an instruction given a route, by word translation and alignment.

This is IBM translation model 2, with the route as the source and the instruction as the target.

Every step of a route emits concepts: a turn or a change of floor or the end, and codes of the views ahead and
around. A word comes from a concept of one step, or from a background distribution over all words. Which step
a word describes depends on the relative positions of the word and of the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from esceme.errors import DataError
from esceme.memory.codebook import Codebook
from esceme.memory.scene_map import SceneMap
from esceme.world.geometry import COLUMNS, VIEW_HEADINGS, VIEWS

TURNS = 8
"""Number of directions of turns; direction 0 is straight on, and numbers grow clockwise."""
UP, DOWN, END, FIRST_CODE = TURNS, TURNS + 1, TURNS + 2, TURNS + 3
"""Concepts: turns, up, down, the end of a route, then the codes of views."""
ACTION, AHEAD, AROUND = 0, 1, 2
"""Groups of concepts. A word comes from each group with a probability of its own."""
STAIRS = 0.35
"""A step that rises or falls by more than this many metres changes the floor."""
TURN_SHARE = 0.3
"""Share of the turn in the action of a step that changes the floor."""
MIN_ALIGNMENT = 1e-4
AXES = {"words": 2, "alignment": 2, "unknown": 2, "centroids": 2}
"""Array of a speaker file -> number of its axes, if that is not 1."""
MAX_MOVES = 1000
"""Greatest number of edges of training routes."""


class StepArrays(NamedTuple):
    """S steps of routes: arrays (S,). Angles are in radians."""

    nodes: NDArray[np.int64]
    """Visited node at which the step is taken."""
    views: NDArray[np.int64]
    """View that the agent faces when the step begins."""
    slots: NDArray[np.int64]
    """Number of the candidate that is taken; -1 for the end of a route."""


class StepGeometry(NamedTuple):
    """Directions and lengths of S steps: arrays (S,). The end of a route is a step of no length."""

    is_end: NDArray[np.bool_]
    turn: NDArray[np.float64]
    """Turn before the step, clockwise, in radians."""
    sector: NDArray[np.int64]
    """Direction of the step: column of views (0 to 11)."""
    length: NDArray[np.float64]
    rise: NDArray[np.float64]
    """Metres by which the step rises."""


def step_geometry(scene_map: SceneMap, steps: StepArrays) -> StepGeometry:
    """Return directions and lengths of steps."""
    is_end, candidates = steps.slots < 0, scene_map.candidates(steps.nodes, np.maximum(steps.slots, 0))
    faced = VIEW_HEADINGS[steps.views]
    heading = np.where(is_end, faced, candidates.headings)
    length = np.where(is_end, 0.0, candidates.lengths)
    sector = np.round(heading / (2 * np.pi / COLUMNS)).astype(np.int64) % COLUMNS
    return StepGeometry(is_end, heading - faced, sector, length, length * np.sin(candidates.elevations))


def step_concepts(scene_map: SceneMap, steps: StepArrays, num_concepts: int) -> list[csr_array]:
    """Return the concept weights of steps, one matrix (S, concepts) per group; rows sum to 1 or are empty."""
    size = len(steps.nodes)
    is_end, angle, sector, _, rise = step_geometry(scene_map, steps)
    # Actions: END, or a turn, or mostly a change of floor.
    turn = np.round((angle % (2 * np.pi)) / (2 * np.pi / TURNS)).astype(np.int64) % TURNS
    climbs = np.abs(rise) > STAIRS
    first = np.where(is_end, END, turn)
    second = np.where(rise > 0, UP, DOWN)
    shares = np.where(climbs, TURN_SHARE, 1.0)
    order = np.arange(size)
    both = (np.concatenate([order, order]), np.concatenate([first, second]))
    action = csr_array((np.concatenate([shares, 1 - shares]), both), shape=(size, num_concepts))
    # Codes of the views in the direction of the step, and of all other views.
    codes = scene_map.codes(steps.nodes).astype(np.int64) + FIRST_CODE  # (S, 36)
    offset = (np.arange(VIEWS) % COLUMNS - sector[:, None] + COLUMNS // 2) % COLUMNS - COLUMNS // 2
    ahead = np.abs(offset) <= 1
    matrices = [action]
    for mask in (ahead, ~ahead):
        weights = mask / mask.sum(1, keepdims=True)
        found, column = np.nonzero(mask)
        matrices.append(csr_array((weights[mask], (found, codes[found, column])), shape=(size, num_concepts)))
    return matrices


@dataclass(frozen=True)
class SpeakerTables:
    """Parameters of a speaker over V words and C concepts."""

    words: NDArray[np.floating]
    """(C, V): probability of each word given a concept."""
    alignment: NDArray[np.floating]
    """(A, W): relative probability of a step at relative position a of A, for a word at position w of W."""
    groups: NDArray[np.floating]
    """(3,): probability of the groups ACTION, AHEAD and AROUND."""
    background: NDArray[np.floating]
    """(V,): probability of each word in all instructions."""
    background_share: float
    """Probability that a word comes from the background."""
    unknown: NDArray[np.floating]
    """(2, C): mean concept weights of a step at an unknown viewpoint: not the last one, and the last one."""
    num_moves: tuple[int, int]
    """Usual least and greatest number of edges of training routes, for routes with an unknown end."""


class Speaker:
    """Scores how well routes explain instructions, given as token ids."""

    def __init__(self, tables: SpeakerTables, codebook: Codebook) -> None:
        """Use `tables`; raise `DataError` if they do not fit the codebook or each other."""
        num_concepts, num_words = tables.words.shape
        expected = (FIRST_CODE + len(codebook), (num_words,), (3,), (2, num_concepts))
        found = (num_concepts, tables.background.shape, tables.groups.shape, tables.unknown.shape)
        if expected != found:
            raise DataError(f"expected a speaker of sizes {expected}, found {found}; train the planner again")
        self.tables, self.codebook = tables, codebook
        self._alignments: dict[tuple[int, int], NDArray[np.float64]] = {}

    @property
    def num_words(self) -> int:
        """Number of token ids, V."""
        return self.tables.words.shape[1]

    @cached_property
    def digest_arrays(self) -> Mapping[str, NDArray[np.floating]]:
        """All arrays of the speaker, by name, for files and digests."""
        tables = self.tables
        return {
            "words": tables.words.astype(np.float32),
            "alignment": tables.alignment.astype(np.float64),
            "groups": tables.groups.astype(np.float64),
            "background": tables.background.astype(np.float64),
            "background_share": np.array([tables.background_share]),
            "unknown": tables.unknown.astype(np.float64),
            "num_moves": np.array(tables.num_moves, dtype=np.float64),
            "centroids": self.codebook.centroids,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.floating]]) -> Speaker:
        """Return the speaker of `digest_arrays`; raise `DataError` if an array is missing or not finite."""
        names = ("words", "alignment", "groups", "background", "background_share", "unknown", "num_moves")
        if missing := [name for name in (*names, "centroids") if name not in arrays]:
            raise DataError(f"the speaker has no {', '.join(missing)}; train the planner again")
        for name, array in arrays.items():
            is_wrong = array.ndim != AXES.get(name, 1) or array.size == 0 or not np.isfinite(array).all()
            if is_wrong or (name != "centroids" and array.min() < 0):
                raise DataError(
                    f"the speaker's {name}: expected {AXES.get(name, 1)} axes of finite "
                    f"numbers, none negative, found shape {array.shape}; train the planner again"
                )
        least, greatest = (int(number) for number in arrays["num_moves"][[0, -1]])
        if not 0 <= least <= greatest <= MAX_MOVES or not arrays["background"].all():
            raise DataError("the speaker's tables are not distributions; train the planner again")
        tables = SpeakerTables(
            **{name: arrays[name] for name in names[:4]},
            background_share=float(arrays["background_share"][0]),
            unknown=arrays["unknown"],
            num_moves=(least, greatest),
        )
        return cls(tables, Codebook(arrays["centroids"]))

    # -- scoring -----------------------------------------------------------------------------------------

    def emissions(
        self, scene_map: SceneMap, steps: StepArrays, words: NDArray[np.integer]
    ) -> NDArray[np.float64]:
        """Return the probability of each of L words given each of S steps, without background, (S, L)."""
        matrices = step_concepts(scene_map, steps, len(self.tables.words))
        weights = sum(share * matrix for share, matrix in zip(self.tables.groups, matrices, strict=True))
        found: NDArray[np.float64] = weights @ self.tables.words[:, words]
        return found

    def unknown_emissions(self, words: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the probability of each of L words given a step and an end at unknown viewpoints, (2, L)."""
        found: NDArray[np.float64] = self.tables.unknown @ self.tables.words[:, words]
        return found

    def alignment(self, num_steps: int, num_words: int) -> NDArray[np.float64]:
        """Return the probability that each word describes each step, (steps, words); columns sum to 1."""
        key = (num_steps, num_words)
        if key not in self._alignments:
            self._alignments[key] = align(self.tables.alignment, num_steps, num_words)
        return self._alignments[key]

    def word_scores(
        self, probabilities: NDArray[np.float64], words: NDArray[np.integer]
    ) -> NDArray[np.float64]:
        """Return log p(word) minus that of the background, (..., L), given `emissions` (..., L)."""
        share, background = self.tables.background_share, self.tables.background[words]
        scores: NDArray[np.float64] = np.log((1 - share) * probabilities / background + share)
        return scores


def align(table: NDArray[np.floating], num_steps: int, num_words: int) -> NDArray[np.float64]:
    """Return the probability of each step for each word, (steps, words), from a table of positions (A, W)."""
    step_bins, word_bins = position_bins(table.shape[0], num_steps), position_bins(table.shape[1], num_words)
    weights = table[step_bins][:, word_bins] + MIN_ALIGNMENT
    aligned: NDArray[np.float64] = weights / weights.sum(0)
    return aligned


def position_bins(num_bins: int, length: int) -> NDArray[np.int64]:
    """Return the bins of `length` relative positions, each from 0 to `num_bins` - 1.

    >>> position_bins(4, 2).tolist()
    [1, 3]
    """
    return ((np.arange(length) + 0.5) / length * num_bins).astype(np.int64)
