"""Batched simulation of episodes, on which the single and the vector Gymnasium environment are based."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypedDict, get_args

import numpy as np
from gymnasium.error import InvalidAction, ResetNeeded
from numpy.typing import ArrayLike, NDArray

from esceme.errors import ConfigError, WorldError, prefix_errors
from esceme.tasks.episode import SUCCESS_WITHIN, Episode, locate_goals, require_unique_ids
from esceme.tasks.episode_queue import EpisodeOrder, EpisodeQueue
from esceme.tasks.text import PAD_ID, Tokenizer, truncate
from esceme.world.atlas import Atlas, Pose
from esceme.world.geometry import VIEW_ELEVATIONS, VIEW_HEADINGS

RewardName = Literal["progress", "success", "none"]
Arrays = dict[str, NDArray[Any]]
"""Name -> array (B, ...) with one entry per environment."""
Mask = NDArray[np.bool_]

STOP_REWARD = 2.0
"""Reward of a successful STOP. The reward of a failed STOP is the negative of this (docs/spec.md E.3)."""


class EnvOptions(TypedDict, total=False):
    """Keyword options of the Gymnasium environments."""

    max_steps: int
    """Maximum number of decisions per episode, including STOP (docs/spec.md A.13; default 15, as in R2R).

    An episode that has not stopped by then is truncated.
    """
    order: EpisodeOrder
    """Order in which episodes are started (default `file`)."""
    reward: RewardName
    """Name of the reward function.

    `progress` (default): a move earns the decrease of the distance to the nearest goal in metres; STOP earns
    2 on success and -2 otherwise. `success`: a successful STOP earns 1. `none`: always 0. Invalid actions,
    truncation, and episodes with a withheld goal earn 0.
    """
    tokenizer: Tokenizer | None
    """Tokenizer that adds `tokens`, the ids of the instruction, to observations; by default none.

    If an episode has stored ids and no text, the stored ids are used.
    """
    max_tokens: int
    """Number of token ids per instruction (default 60, as in R2R). Shorter instructions are padded with 0."""
    keep: Literal["first", "last"]
    """Which end of an instruction longer than `max_tokens` is kept (default `first`; docs/spec.md A.9)."""


class StepResult(NamedTuple):
    """Arrays (B,) with the rewards and end flags of all environments after a step."""

    reward: NDArray[np.float64]
    terminated: Mask
    truncated: Mask


class BatchSimulator:
    """Simulates B episodes in parallel. The index of an episode in the batch is called its slot.

    One call observes or moves the agents of all slots.
    """

    def __init__(
        self,
        atlas: Atlas,
        episodes: Sequence[Episode],
        num_slots: int,
        *,
        max_steps: int = 15,
        order: EpisodeOrder = "file",
        reward: RewardName = "progress",
        tokenizer: Tokenizer | None = None,
        max_tokens: int = 60,
        keep: Literal["first", "last"] = "first",
    ) -> None:
        """Prepare `num_slots` parallel episodes, taken from `episodes` in the given order.

        `EnvOptions` explains the options. Raises `ConfigError`, `DataError` or `WorldError` if an option or
        episode is invalid.
        """
        counts = {"num_envs": num_slots, "max_steps": max_steps, "max_tokens": max_tokens}
        for name, count in (counts | {"episodes": len(episodes)}).items():
            if count < 1:
                raise ConfigError(f"{name}: expected at least 1, found {count}")
        _require_choice("order", order, get_args(EpisodeOrder))
        _require_choice("reward", reward, get_args(RewardName))
        _require_choice("keep", keep, ("first", "last"))
        if atlas.features is None:
            raise ConfigError("the atlas has no features to observe; give Atlas(...) a feature store")
        self.atlas = atlas
        self.feature_width = atlas.features.width
        self.max_candidates = int(atlas.degrees.max())
        self.max_panorama = int(atlas.token_count.max())
        """Number of tokens of the longest panorama in the atlas."""
        self.max_steps, self.reward = max_steps, reward
        self.tokenizer, self.max_tokens, self.keep = tokenizer, max_tokens, keep
        self.episodes = require_unique_ids(episodes, "the environment's episodes")
        self.queue = EpisodeQueue(self.episodes, order, num_slots)
        self._compile_episodes()

        self.episode = np.full(num_slots, -1)
        self.pose = Pose(np.zeros(num_slots, dtype=np.int64), np.zeros(num_slots, dtype=np.int64))
        self.distance = np.full(num_slots, np.nan)
        self.steps = np.zeros(num_slots, dtype=np.int64)
        self.is_done = np.ones(num_slots, dtype=bool)
        self.is_invalid = np.zeros(num_slots, dtype=bool)
        """(B,): whether the latest action was invalid."""
        self.num_moves = np.zeros(num_slots, dtype=np.int64)
        self.poses = np.zeros((num_slots, max_steps + 1, 2), dtype=np.int64)  # viewpoint and view
        self.tokens = np.zeros((num_slots, max_tokens), dtype=np.int64)

    def _compile_episodes(self) -> None:
        """Convert the starts, goals and ids of all episodes to arrays (E, ...)."""
        starts = []
        for episode in self.episodes:
            with prefix_errors(file=f"episode {episode.episode_id}"):
                starts.append(self.atlas.locate(episode.scene_id, [episode.start])[0])
        self._start = self.atlas.begin(starts, [episode.heading for episode in self.episodes])
        self._goals = locate_goals(self.episodes, self.atlas)  # (E, G)
        self._is_withheld = np.array([episode.goal_withheld for episode in self.episodes])
        self._radius = np.array([0.0 if episode.goals else SUCCESS_WITHIN for episode in self.episodes])
        self._index = {episode.episode_id: index for index, episode in enumerate(self.episodes)}
        self._names = {
            key: np.array([getattr(episode, key) for episode in self.episodes], dtype=object)
            for key in ("episode_id", "scene_id", "instruction")
        }
        self._viewpoint_names = np.array([viewpoint for _, viewpoint in self.atlas.names], dtype=object)
        distances = self._distances_to_goal(np.arange(len(self.episodes)), self._start.viewpoint)
        for index in np.flatnonzero(np.isinf(distances))[:1]:
            raise WorldError(
                f"episode {self.episodes[index].episode_id}: there is no path from its start to a goal"
            )

    # -- simulation --------------------------------------------------------------------------------------

    def reset(self, slots: Mask, rng: np.random.Generator, episode_ids: Sequence[str] | None = None) -> None:
        """Start an episode in every slot where `slots` (B,) is True.

        `episode_ids` holds one id for every such slot; by default the queue selects the episodes.
        """
        if (self.episode[~slots] < 0).any():
            raise ResetNeeded("every slot must be reset once before some can be reset alone")
        rows = np.flatnonzero(slots)
        if episode_ids is None:
            index = np.array([self.queue.next(int(slot), rng) for slot in rows])
        else:
            index = self._find_episodes(episode_ids, len(rows))
        self.episode[slots] = index
        self.pose.viewpoint[slots] = self._start.viewpoint[index]
        self.pose.view[slots] = self._start.view[index]
        self.steps[slots] = self.num_moves[slots] = 0
        self.is_done[slots] = self.is_invalid[slots] = False
        self.poses[slots, 0] = np.stack(self.pose, axis=-1)[slots]
        self.distance = self._distances_to_goal(self.episode, self.pose.viewpoint)
        if self.tokenizer is not None:
            self.tokens[slots] = [
                self._encode_instruction(self.episodes[row], self.tokenizer) for row in index
            ]

    def _find_episodes(self, episode_ids: Sequence[str], num_slots: int) -> NDArray[np.int64]:
        if len(episode_ids) != num_slots:
            raise ConfigError(f"{len(episode_ids)} episodes were chosen for {num_slots} slots")
        for name in episode_ids:
            if name not in self._index:
                raise WorldError(f"episode '{name}' is none of the environment's {len(self._index)} episodes")
        return np.array([self._index[name] for name in episode_ids])

    def _encode_instruction(self, episode: Episode, tokenizer: Tokenizer) -> list[int]:
        """Return exactly `max_tokens` token ids of an instruction, truncated or padded."""
        stored = episode.tokens if episode.tokens and not episode.instruction else None
        ids = truncate(stored or tokenizer.encode(episode.instruction), self.max_tokens, keep=self.keep)
        return ids + [PAD_ID] * (self.max_tokens - len(ids))

    def require_reset(self, *, running: bool) -> None:
        """Raise `ResetNeeded` if a slot was never reset or, with `running`, if its episode has ended."""
        if (self.episode < 0).any():
            raise ResetNeeded("call reset() before the first step()")
        if running and self.is_done.any():
            done = np.flatnonzero(self.is_done).tolist()
            raise ResetNeeded(f"the episode has ended in slots {done}; call reset() before the next step()")

    def step(self, actions: ArrayLike, acting: Mask) -> StepResult:
        """Apply `actions` (B,) in the slots where `acting` (B,) is True; all other slots do not change."""
        action = self._check_actions(np.asarray(actions), acting)
        stop = self.atlas.degrees[self.pose.viewpoint]
        moves, stops = acting & (action < stop), acting & (action == stop)
        previous_distance = self.distance
        self.pose = self.atlas.step(self.pose, np.where(moves, action, -1))
        self.distance = self._distances_to_goal(self.episode, self.pose.viewpoint)
        self.is_invalid = acting & (action > stop)
        self.steps = self.steps + acting
        self.num_moves = self.num_moves + moves
        self.poses[moves, self.num_moves[moves]] = np.stack(self.pose, axis=-1)[moves]
        truncated = acting & ~stops & (self.steps >= self.max_steps)
        self.is_done = np.where(acting, stops | truncated, self.is_done)
        return StepResult(self._compute_rewards(previous_distance, moves, stops), stops, truncated)

    def _check_actions(self, action: NDArray[Any], acting: Mask) -> NDArray[np.int64]:
        if action.shape != acting.shape or not np.issubdtype(action.dtype, np.integer):
            raise InvalidAction(
                f"expected {len(acting)} integers, found {action.dtype} of shape {action.shape}"
            )
        largest = self.max_candidates
        if (outside := acting & ((action < 0) | (action > largest))).any():
            raise InvalidAction(f"action {action[outside][0]} is outside the action space 0 to {largest}")
        return action.astype(np.int64)

    def _compute_rewards(
        self, previous_distance: NDArray[np.float64], moves: Mask, stops: Mask
    ) -> NDArray[np.float64]:
        """Return the rewards (B,) of slots that moved or stopped; see `EnvOptions.reward`."""
        is_success = self._is_success()
        if self.reward == "progress":
            rewards = np.where(moves, previous_distance - self.distance, 0.0)
            rewards += np.where(stops, np.where(is_success, STOP_REWARD, -STOP_REWARD), 0.0)
            return np.where(self._is_withheld[self.episode], 0.0, rewards)
        return (stops & is_success & (self.reward == "success")).astype(np.float64)

    def _distances_to_goal(
        self, episode: NDArray[np.integer], viewpoint: NDArray[np.integer]
    ) -> NDArray[np.float64]:
        """Return shortest path lengths (B,) in metres to the nearest goal; NaN where the goal is withheld."""
        metres = self.atlas.distance(viewpoint[:, None], self._goals[episode]).min(axis=1)
        return np.where(self._is_withheld[episode], np.nan, metres)

    def _is_success(self) -> Mask:
        """Return a mask (B,): True where an episode that ends at the current viewpoint is successful."""
        return (self.distance < self._radius[self.episode]) | (self.distance == 0)

    # -- observations ------------------------------------------------------------------------------------

    def observe(self) -> Arrays:
        """Return the observations of all slots (parallel episodes), padded to the longest panorama."""
        panoramas = self.atlas.observe(self.pose)
        missing = self.max_panorama - panoramas.valid.shape[1]
        arrays: Arrays = {
            "features": panoramas.features,  # (B, N, D)
            "angles": panoramas.angles,  # (B, N, 4)
            "kind": panoramas.token_type,  # (B, N)
            "valid": panoramas.valid.astype(np.int8),  # (B, N)
        }
        padded = {
            key: np.pad(array, [(0, 0), (0, missing), *[(0, 0)] * (array.ndim - 2)])
            for key, array in arrays.items()
        }
        return padded if self.tokenizer is None else {**padded, "tokens": self.tokens.copy()}

    def infos(self, slots: Mask) -> dict[str, Any]:
        """Return the infos of slots where `slots` (B,) is True, as Gymnasium's vector environments do.

        For every key `x` with values (B,), the key `_x` holds a mask (B,) of the slots that have a value.
        """
        candidates = self.atlas.degrees[self.pose.viewpoint]
        values = {
            **{key: names[self.episode] for key, names in self._names.items()},
            "viewpoint": self._viewpoint_names[self.pose.viewpoint],
            "view": self.pose.view,
            "heading": VIEW_HEADINGS[self.pose.view],
            "elevation": VIEW_ELEVATIONS[self.pose.view],
            "distance_to_goal": self.distance,
            "step": self.steps,
            "invalid_action": self.is_invalid,
            "action_mask": (np.arange(self.max_candidates + 1) <= candidates[:, None]).astype(np.int8),
        }
        is_done = slots & self.is_done
        trajectories = np.full(len(slots), None, dtype=object)
        for slot in np.flatnonzero(is_done):
            trajectories[slot] = self._trajectory_of(int(slot))
        infos: dict[str, Any] = {}
        for key, array in values.items():
            _add_info(infos, key, array, slots)
        _add_info(infos, "trajectory", trajectories, is_done)
        _add_info(infos, "success", self._is_success(), is_done & ~self._is_withheld[self.episode])
        return infos

    def _trajectory_of(self, slot: int) -> list[list[str | float]]:
        """Return `[viewpoint, heading, elevation]` of all poses, as predictions do (docs/spec.md A.14)."""
        return [
            [self._viewpoint_names[viewpoint], float(VIEW_HEADINGS[view]), float(VIEW_ELEVATIONS[view])]
            for viewpoint, view in self.poses[slot, : self.num_moves[slot] + 1]
        ]

    def describe(self, slot: int) -> str:
        """Return a text about the viewpoint and the possible actions of one slot (parallel episode)."""
        self.require_reset(running=False)
        episode, view = self.episodes[self.episode[slot]], self.pose.view[slot]
        viewpoint = self._viewpoint_names[self.pose.viewpoint[slot]]
        metres = self.distance[slot]
        candidates = self.atlas.graph(episode.scene_id).candidates(viewpoint)
        lines = [
            f'episode {episode.episode_id}: "{episode.instruction}"',
            f"scene {episode.scene_id}, viewpoint {viewpoint}, facing {_format_heading(VIEW_HEADINGS[view])}",
            f"step {self.steps[slot]} of {self.max_steps}, "
            + ("goal withheld" if np.isnan(metres) else f"{metres:.1f} m to the goal"),
            *(
                f"  {index}: {option.viewpoint} at {_format_heading(option.heading)}, {option.distance:.1f} m"
                for index, option in enumerate(candidates)
            ),
            f"  {len(candidates)}: STOP",
        ]
        return "\n".join(lines)


def _require_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}: expected one of {', '.join(choices)}, found '{value}'")


def _add_info(infos: dict[str, Any], key: str, values: NDArray[Any], slots: Mask) -> None:
    """Add `values` (B,) under `key`, and the mask `slots` (B,) under `_key`; clear values outside the mask.

    Nothing is added if the mask is False everywhere.
    """
    if slots.any():
        infos[key], infos[f"_{key}"] = (
            np.full_like(values, None if values.dtype == object else 0),
            slots.copy(),
        )
        infos[key][slots] = values[slots]


def _format_heading(heading: float) -> str:
    """Return a heading (radians) as text in whole degrees, clockwise from the +y axis of the scene.

    >>> _format_heading(-np.pi / 2)
    '270°'
    """
    return f"{round(np.degrees(heading)) % 360}°"
