"""A batch of agents, each on an episode: what the gymnasium environments share, single and vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypedDict, get_args

import numpy as np
from gymnasium.error import InvalidAction, ResetNeeded
from numpy.typing import ArrayLike, NDArray

from esceme.errors import ConfigError, WorldError, prefix_errors
from esceme.tasks.episode import SUCCESS_WITHIN, Episode, locate_goals, require_unique
from esceme.tasks.episode_queue import EpisodeQueue, Order
from esceme.tasks.text import Tokenizer, truncate
from esceme.world.atlas import Atlas, Pose
from esceme.world.geometry import VIEW_ELEVATIONS, VIEW_HEADINGS

Reward = Literal["progress", "success", "none"]
Arrays = dict[str, NDArray[Any]]
"""Arrays by name, each with an entry per slot (B, ...)."""

STOP_REWARD = 2.0
"""What stopping well earns and stopping badly costs (spec E.3)."""


class Options(TypedDict, total=False):
    """What an environment can be told by keyword."""

    max_steps: int
    """Decisions per episode, STOP included (default 15, as R2R: spec A.13); the last one truncates it."""
    order: Order
    """Which episode comes next (default `file`); `esceme.tasks.episode_queue` describes all three."""
    reward: Reward
    """What is rewarded.

    `progress` (default): a move earns the metres by which the nearest goal comes nearer, STOP earns 2 on
    success and -2 otherwise; `success`: a successful STOP earns 1; `none`: always 0. Wasted steps and running
    out of steps earn nothing, nor does an episode whose goal is withheld.
    """
    tokenizer: Tokenizer | None
    """Adds `tokens` to the observation: the ids of the instruction (the stored ids where it has no text)."""
    max_tokens: int
    """How many ids there is room for (default 60, as R2R); a shorter instruction is filled up with 0."""
    keep: Literal["first", "last"]
    """Which end of a longer instruction survives (default `first`; spec A.9)."""


class Taken(NamedTuple):
    """What a step led to, each (B,)."""

    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


class BatchSimulator:
    """B agents in an atlas, one per slot; observing and moving all of them is array code."""

    def __init__(
        self,
        atlas: Atlas,
        episodes: Sequence[Episode],
        slots: int,
        *,
        max_steps: int = 15,
        order: Order = "file",
        reward: Reward = "progress",
        tokenizer: Tokenizer | None = None,
        max_tokens: int = 60,
        keep: Literal["first", "last"] = "first",
    ) -> None:
        """Let `slots` agents walk `episodes`; raises `ConfigError` or `DataError` where they cannot."""
        counts = {"num_envs": slots, "max_steps": max_steps, "max_tokens": max_tokens}
        _require_positive(**counts, episodes=len(episodes))
        _require_known("order", order, get_args(Order))
        _require_known("reward", reward, get_args(Reward))
        _require_known("keep", keep, ("first", "last"))
        if atlas.features is None:
            raise ConfigError("the atlas has no features to observe; give Atlas(...) a feature store")
        self.atlas = atlas
        self.width = atlas.features.width
        self.max_steps, self.reward = max_steps, reward
        self.tokenizer, self.max_tokens, self.keep = tokenizer, max_tokens, keep
        self.episodes = require_unique(episodes, "the environment's episodes")
        self.queue = EpisodeQueue(self.episodes, order, slots)
        self._compile_episodes()

        self.episode = np.full(slots, -1)
        self.pose = Pose(np.zeros(slots, dtype=np.int64), np.zeros(slots, dtype=np.int64))
        self.distance = np.full(slots, np.nan)
        self.steps = np.zeros(slots, dtype=np.int64)
        self.ended = np.ones(slots, dtype=bool)
        self.wasted = np.zeros(slots, dtype=bool)
        self.moves = np.zeros(slots, dtype=np.int64)
        self.trail = np.zeros((slots, max_steps + 1, 2), dtype=np.int64)  # viewpoint and view of each pose
        self.tokens = np.zeros((slots, max_tokens), dtype=np.int64)

    def _compile_episodes(self) -> None:
        """Lay out starts, goals and names with a row per episode (E)."""
        starts = []
        for episode in self.episodes:
            with prefix_errors(file=f"episode {episode.episode_id}"):
                starts.append(self.atlas.locate(episode.scene_id, [episode.start])[0])
        self._start = self.atlas.begin(starts, [episode.heading for episode in self.episodes])
        self._goals = locate_goals(self.episodes, self.atlas)  # (E, G)
        self._withheld = np.array([episode.goal_withheld for episode in self.episodes])
        self._success_within = np.array([0.0 if each.goals else SUCCESS_WITHIN for each in self.episodes])
        self._index = {episode.episode_id: index for index, episode in enumerate(self.episodes)}
        self._names = {
            key: np.array([getattr(episode, key) for episode in self.episodes], dtype=object)
            for key in ("episode_id", "scene_id", "instruction")
        }
        self._viewpoint_names = np.array([viewpoint for _, viewpoint in self.atlas.names], dtype=object)

        ways = self._distances(np.arange(len(self.episodes)), self._start.viewpoint)
        for index in np.flatnonzero(np.isinf(ways)):
            raise WorldError(
                f"episode {self.episodes[index].episode_id}: no way leads from its start to a goal"
            )

    # -- living ------------------------------------------------------------------------------------------

    def begin(
        self, slots: NDArray[np.bool_], rng: np.random.Generator, chosen: Sequence[str] | None = None
    ) -> None:
        """Start an episode in each of `slots` (B,): the `chosen` ones, or the next ones in order."""
        if (self.episode[~slots] < 0).any():
            raise ResetNeeded("every slot must be reset once before some can be reset alone")
        places = np.flatnonzero(slots)
        if chosen is None:
            index = np.array([self.queue.next(int(slot), rng) for slot in places])
        else:
            index = self._find(chosen, len(places))
        self.episode[slots] = index
        self.pose = Pose(
            _replaced(self.pose.viewpoint, slots, self._start.viewpoint[index]),
            _replaced(self.pose.view, slots, self._start.view[index]),
        )
        self.steps = _replaced(self.steps, slots, 0)
        self.moves = _replaced(self.moves, slots, 0)
        self.ended = _replaced(self.ended, slots, False)
        self.wasted = _replaced(self.wasted, slots, False)
        self.trail[slots, 0] = np.stack(self.pose, axis=-1)[slots]
        self.distance = self._distances(self.episode, self.pose.viewpoint)
        if self.tokenizer is not None:
            self.tokens[slots] = [self._encode(self.episodes[each], self.tokenizer) for each in index]

    def _find(self, chosen: Sequence[str], count: int) -> NDArray[np.int64]:
        if len(chosen) != count:
            raise ConfigError(f"{len(chosen)} episodes were chosen for {count} slots")
        for name in chosen:
            if name not in self._index:
                raise WorldError(f"episode '{name}' is none of the environment's {len(self._index)} episodes")
        return np.array([self._index[name] for name in chosen])

    def _encode(self, episode: Episode, tokenizer: Tokenizer) -> list[int]:
        """The instruction as exactly `max_tokens` ids."""
        stored = episode.tokens if episode.tokens and not episode.instruction else None
        ids = truncate(stored or tokenizer.encode(episode.instruction), self.max_tokens, keep=self.keep)
        return ids + [tokenizer.pad_id] * (self.max_tokens - len(ids))

    def require_begun(self, *, running: bool) -> None:
        """Raise `ResetNeeded` unless every slot was reset and, where asked, none has ended since."""
        if (self.episode < 0).any():
            raise ResetNeeded("call reset() before the first step()")
        if running and self.ended.any():
            which = np.flatnonzero(self.ended).tolist()
            raise ResetNeeded(f"the episode has ended in slots {which}; call reset() before the next step()")

    def take(self, actions: ArrayLike, acting: NDArray[np.bool_]) -> Taken:
        """Let the `acting` slots (B,) take their actions (B,); the others stay as they are."""
        action = self._checked(np.asarray(actions), acting)
        stop = self.atlas.degrees[self.pose.viewpoint]
        moves, stops = acting & (action < stop), acting & (action == stop)
        before = self.distance
        self.pose = self.atlas.step(self.pose, np.where(moves, action, -1))
        self.distance = self._distances(self.episode, self.pose.viewpoint)
        self.wasted = acting & (action > stop)
        self.steps = self.steps + acting
        self.moves = self.moves + moves
        self.trail[moves, self.moves[moves]] = np.stack(self.pose, axis=-1)[moves]
        truncated = acting & ~stops & (self.steps >= self.max_steps)
        self.ended = np.where(acting, stops | truncated, self.ended)
        return Taken(self._rewards(before, moves, stops), stops, truncated)

    def _checked(self, action: NDArray[Any], acting: NDArray[np.bool_]) -> NDArray[np.int64]:
        if action.shape != acting.shape or not np.issubdtype(action.dtype, np.integer):
            raise InvalidAction(
                f"expected {len(acting)} integers, found {action.dtype} of shape {action.shape}"
            )
        most = self.most_candidates
        if (outside := acting & ((action < 0) | (action > most))).any():
            raise InvalidAction(f"action {action[outside][0]} is outside the action space 0 to {most}")
        return action.astype(np.int64)

    def _rewards(
        self, before: NDArray[np.float64], moves: NDArray[np.bool_], stops: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        reached = self._reached()
        if self.reward == "progress":
            gained = np.where(moves, before - self.distance, 0.0)
            gained += np.where(stops, np.where(reached, STOP_REWARD, -STOP_REWARD), 0.0)
            return np.where(self._withheld[self.episode], 0.0, gained)
        return (stops & reached & (self.reward == "success")).astype(np.float64)

    def _distances(self, episode: NDArray[np.integer], viewpoint: NDArray[np.integer]) -> NDArray[np.float64]:
        """Metres to the nearest goal; nan where it is withheld."""
        metres = self.atlas.distance(viewpoint[:, None], self._goals[episode]).min(axis=1)
        return np.where(self._withheld[episode], np.nan, metres)

    def _reached(self) -> NDArray[np.bool_]:
        """Whether ending here is success (B,): at a listed goal, else near the end of the reference path."""
        return (self.distance < self._success_within[self.episode]) | (self.distance == 0)

    # -- telling -----------------------------------------------------------------------------------------

    @property
    def most_candidates(self) -> int:
        """The candidates of the atlas's busiest viewpoint (K)."""
        return int(self.atlas.degrees.max())

    @property
    def most_tokens(self) -> int:
        """The length of the atlas's longest panorama (N)."""
        return int(self.atlas.token_count.max())

    def observe(self) -> Arrays:
        """What every slot sees, padded to the atlas's longest panorama."""
        seen = self.atlas.observe(self.pose)
        missing = self.most_tokens - seen.valid.shape[1]
        rows: Arrays = {
            "features": seen.features,  # (B, N, D)
            "angles": seen.angles,  # (B, N, 4)
            "kind": seen.kind,  # (B, N)
            "valid": seen.valid.astype(np.int8),  # (B, N)
        }
        padded = {
            key: np.pad(row, [(0, 0), (0, missing), *[(0, 0)] * (row.ndim - 2)]) for key, row in rows.items()
        }
        return padded if self.tokenizer is None else {**padded, "tokens": self.tokens.copy()}

    def infos(self, slots: NDArray[np.bool_]) -> dict[str, Any]:
        """What gymnasium calls infos, for `slots` (B,): each fact `x` beside `_x`, the slots that have it."""
        candidates = self.atlas.degrees[self.pose.viewpoint]
        facts = {
            **{key: names[self.episode] for key, names in self._names.items()},
            "viewpoint": self._viewpoint_names[self.pose.viewpoint],
            "view": self.pose.view,
            "heading": VIEW_HEADINGS[self.pose.view],
            "elevation": VIEW_ELEVATIONS[self.pose.view],
            "distance_to_goal": self.distance,
            "step": self.steps,
            "invalid_action": self.wasted,
            "action_mask": (np.arange(self.most_candidates + 1) <= candidates[:, None]).astype(np.int8),
        }
        ended = slots & self.ended
        trajectories = np.full(len(slots), None, dtype=object)
        for slot in np.flatnonzero(ended):
            trajectories[slot] = self.trajectory(int(slot))
        infos: dict[str, Any] = {}
        for key, values in facts.items():
            _add(infos, key, values, slots)
        _add(infos, "trajectory", trajectories, ended)
        _add(infos, "success", self._reached(), ended & ~self._withheld[self.episode])
        return infos

    def trajectory(self, slot: int) -> list[list[str | float]]:
        """`[viewpoint, heading, elevation]` of every pose so far, as prediction files have them (A.14)."""
        poses = self.trail[slot, : self.moves[slot] + 1]
        return [
            [self._viewpoint_names[viewpoint], float(VIEW_HEADINGS[view]), float(VIEW_ELEVATIONS[view])]
            for viewpoint, view in poses
        ]

    def describe(self, slot: int) -> str:
        """Where a slot's agent stands and what it can do, in a few lines of text."""
        self.require_begun(running=False)
        episode, view = self.episodes[self.episode[slot]], self.pose.view[slot]
        viewpoint = self._viewpoint_names[self.pose.viewpoint[slot]]
        metres = self.distance[slot]
        candidates = self.atlas.graph(episode.scene_id).candidates(viewpoint)
        lines = [
            f'episode {episode.episode_id}: "{episode.instruction}"',
            f"scene {episode.scene_id}, viewpoint {viewpoint}, facing {_compass(VIEW_HEADINGS[view])}",
            f"step {self.steps[slot]} of {self.max_steps}, "
            + ("goal withheld" if np.isnan(metres) else f"{metres:.1f} m to the goal"),
            *(
                f"  {index}: {each.viewpoint} at {_compass(each.heading)}, {each.distance:.1f} m"
                for index, each in enumerate(candidates)
            ),
            f"  {len(candidates)}: STOP",
        ]
        return "\n".join(lines)


def _require_positive(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ConfigError(f"{name}: expected at least 1, found {count}")


def _require_known(name: str, choice: str, choices: Sequence[str]) -> None:
    if choice not in choices:
        raise ConfigError(f"{name}: expected one of {', '.join(choices)}, found '{choice}'")


def _replaced(values: NDArray[Any], slots: NDArray[np.bool_], new: ArrayLike) -> NDArray[Any]:
    """A copy of `values` (B, ...) with those of `slots` replaced."""
    values = values.copy()
    values[slots] = new
    return values


def _add(infos: dict[str, Any], key: str, values: NDArray[Any], slots: NDArray[np.bool_]) -> None:
    """Put a fact under gymnasium's two keys; blank outside `slots`, absent where no slot has it."""
    if slots.any():
        blank = np.full_like(values, None if values.dtype == object else 0)
        infos[key], infos[f"_{key}"] = _replaced(blank, slots, values[slots]), slots.copy()


def _compass(heading: float) -> str:
    """A heading in whole degrees, clockwise from the scene's +y axis.

    >>> _compass(-np.pi / 2)
    '270°'
    """
    return f"{round(np.degrees(heading)) % 360}°"
