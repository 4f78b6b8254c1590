"""What a step is worth: rewards of a batch of walks, told step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from esceme.metrics import PaddedPaths, dtw_step, ndtw
from esceme.tasks.episode import SUCCESS_WITHIN, locate_goals
from esceme.trajectory import Trajectory
from esceme.world.atlas import Atlas

STOP_REWARD = 2.0
"""What stopping in the right place gives, and in the wrong place costs."""
NEAR_MISS_WITHIN = 1.0
"""Leaving a place nearer to the goal than this many metres costs extra (spec E.3)."""
NEAR_MISS_COST = 2.0

Array = NDArray[np.float64]


class Reward(Protocol):
    """What the steps of some walks are worth."""

    def step(self, walks: Sequence[Trajectory]) -> Array:
        """The reward of each walk's latest decision, (B,).

        To be called once after every step, with those of the walks that made it, in any order; their poses
        already hold the move, and `stopped` says whether they stopped by it.
        """


class PathReward:
    """Coming nearer to the end of the reference path, and staying close to the path (spec E.3).

    A move gives 1 if it shortens the way to the goal and -1 if it lengthens it, and whatever nDTW changes by;
    leaving a place within 1 m of the goal costs up to 2 more. STOP gives 2 + 2 nDTW within 3 m of the goal,
    and -2 elsewhere. A move that changes nothing about the distance, at which the original gives up, counts
    as neither nearer nor farther: jumps make it possible.

    Of every walk, only the last row of its table of dynamic time warping is kept: a step takes as long as the
    reference path is, however long the walk.
    """

    def __init__(self, atlas: Atlas, walks: Sequence[Trajectory]) -> None:
        """Begin where the walks began, even if they have moved since."""
        references = PaddedPaths.of(
            atlas.locate_all((walk.episode.scene_id, walk.episode.reference_path) for walk in walks)
        )
        self._atlas, self._row_of = atlas, {walk: row for row, walk in enumerate(walks)}
        self._references, self._count = references.viewpoints, references.count  # (S, B), (B,)
        self._warped = np.full((len(self._references) + 1, len(walks)), np.inf)  # (S + 1, B)
        self._warped[0] = 0.0
        self._followed = np.ones(len(walks), dtype=np.int64)  # how many poses were looked at
        start = np.array([walk.poses[0][0] for walk in walks])
        self._follow(np.arange(len(walks)), start)
        self._metres = atlas.distance(start, references.end)  # (B,) to the goal

    def step(self, walks: Sequence[Trajectory]) -> Array:
        """The reward of each walk's latest decision, (B,)."""
        rows = np.array([self._row_of[walk] for walk in walks])
        metres_before, fidelity_before = self._metres[rows], self.ndtw(walks)
        self._catch_up(walks, rows)
        metres, fidelity = self._metres[rows], self.ndtw(walks)
        missed = (metres_before <= NEAR_MISS_WITHIN) & (metres > metres_before)
        moved = _nearer(metres_before, metres) + (fidelity - fidelity_before)
        moved -= np.where(missed, NEAR_MISS_COST * (NEAR_MISS_WITHIN - metres_before), 0.0)
        ended = np.where(metres < SUCCESS_WITHIN, STOP_REWARD * (1.0 + fidelity), -STOP_REWARD)
        return np.where(_stopped(walks), ended, moved)

    def ndtw(self, walks: Sequence[Trajectory]) -> Array:
        """How closely each walk followed its reference path up to its latest step, (B,)."""
        rows = np.array([self._row_of[walk] for walk in walks])
        return ndtw(self._warped[self._count[rows], rows], self._count[rows])

    def _catch_up(self, walks: Sequence[Trajectory], rows: NDArray[np.int64]) -> None:
        """Follow every pose since the last step: one of a move, several of a jump."""
        poses = np.array([len(walk.poses) for walk in walks])
        while (behind := np.flatnonzero(self._followed[rows] < poses)).size:
            late = rows[behind]
            places = np.array(
                [
                    walks[index].poses[pose][0]
                    for index, pose in zip(behind.tolist(), self._followed[late].tolist(), strict=True)
                ]
            )
            self._follow(late, places)
            self._followed[late] += 1
            self._metres[late] = self._atlas.distance(places, self._references[-1, late])

    def _follow(self, rows: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        """Add one viewpoint each to some walks: the next row of their dynamic time warping."""
        costs = self._atlas.distance(places, self._references[:, rows])  # (S, B)
        warped = self._warped[:, rows]
        dtw_step(warped, costs)
        self._warped[:, rows] = warped


class GoalReward:
    """Coming nearer to the nearest goal, and stopping at one: CVDN (spec E.4).

    A move gives 1, -1, or 0 where the distance stays the same; STOP gives 2 at a goal and -2 elsewhere.
    """

    def __init__(self, atlas: Atlas, walks: Sequence[Trajectory]) -> None:
        """Begin where the walks began, even if they have moved since."""
        self._atlas, self._row_of = atlas, {walk: row for row, walk in enumerate(walks)}
        self._goals = locate_goals([walk.episode for walk in walks], atlas)  # (B, G)
        start = np.array([walk.poses[0][0] for walk in walks])
        self._metres = atlas.distance(start[:, None], self._goals).min(axis=1)  # (B,) to the nearest goal

    def step(self, walks: Sequence[Trajectory]) -> Array:
        """The reward of each walk's latest decision, (B,)."""
        rows = np.array([self._row_of[walk] for walk in walks])
        before = self._metres[rows]
        places = np.array([walk.viewpoint for walk in walks])
        metres = self._atlas.distance(places[:, None], self._goals[rows]).min(axis=1)
        self._metres[rows] = metres
        ended = np.where(metres == 0.0, STOP_REWARD, -STOP_REWARD)
        return np.where(_stopped(walks), ended, _nearer(before, metres))


REWARDS: dict[str, Callable[[Atlas, Sequence[Trajectory]], Reward]] = {"path": PathReward, "goal": GoalReward}


def _stopped(walks: Sequence[Trajectory]) -> NDArray[np.bool_]:
    return np.array([walk.stopped for walk in walks])


def _nearer(before: Array, after: Array) -> Array:
    """1 where a distance shrank, -1 where it grew, 0 where it stayed."""
    return (after < before).astype(np.float64) - (after > before)
