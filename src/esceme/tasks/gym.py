"""Any task as a gymnasium environment: one agent, or a batch of them in the same array code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from esceme.errors import ConfigError
from esceme.tasks.batch_simulator import Arrays, BatchSimulator, Options
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.split import load_features, load_split
from esceme.world.atlas import STOP, Atlas
from esceme.world.features import FeatureStore

ENV_ID = "esceme/Navigation-v0"
RENDER_MODES = ["ansi"]


class NavigationEnv(gymnasium.Env[Arrays, int | np.integer[Any]]):
    """One agent that follows the instructions of one episode after the other.

    An observation is a panorama as tokens (`esceme.world.Panoramas`), padded to the longest of the atlas:
    `features` (N, D), `angles` (N, 4), `kind` (N,), `valid` (N,) and, with a tokenizer, `tokens` (L,).
    An action is the index of a token. Below the number k of candidates it walks there; k is STOP and
    terminates the episode; above k it is wasted: nothing moves, the step counts, `info["invalid_action"]`.

    `info` names the episode (`episode_id`, `scene_id`, `instruction`) and the snapped camera pose
    (`viewpoint`, `view`, `heading`, `elevation`), counts (`step`), measures (`distance_to_goal` in metres
    along the graph, nan where the goal is withheld) and tells what can be done (`action_mask`, for
    `action_space.sample`).
    After the end it also has the `trajectory` as prediction files want it and, unless the goal is withheld,
    `success`: whether the walk ended at one of the episode's `goals` or, where it lists none, nearer than
    3 m to the end of its reference path; a walk that ran out of steps is judged by where it got to.

    `reset` begins the next episode in order; a seed starts the order over, and
    `reset(options={"episode": "12_0"})` begins a certain episode and leaves the order alone.

    >>> from esceme.world import ArrayFeatures, SceneGraph
    >>> graph = SceneGraph.build("toy", {"a": (0, 0, 0), "b": (0, 4, 0)}, [("a", "b")])
    >>> features = ArrayFeatures.from_mapping({f"toy_{name}": np.zeros((36, 8)) for name in "ab"}, source="0")
    >>> episode = Episode(
    ...     episode_id="1_0", scene_id="toy", path_id="1", reference_path=("a", "b"),
    ...     heading=0.0, instruction="Go north.",
    ... )
    >>> env = NavigationEnv(Atlas([graph], features), [episode])
    >>> observation, info = env.reset()
    >>> observation["features"].shape, info["action_mask"].tolist()
    ((37, 8), [1, 1])
    >>> observation, reward, terminated, truncated, info = env.step(0)
    >>> reward, terminated, info["viewpoint"]
    (4.0, False, 'b')
    >>> env.step(1)[1:3]
    (2.0, True)
    """

    metadata: dict[str, Any] = {"render_modes": RENDER_MODES, "render_fps": 1}

    def __init__(
        self,
        atlas: Atlas,
        episodes: Sequence[Episode],
        *,
        render_mode: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Walk `episodes` in `atlas`, which must have features; `Options` explains the other keywords."""
        self._simulator = BatchSimulator(atlas, episodes, 1, **options)
        self.atlas, self.episodes = atlas, self._simulator.episodes
        self._all = np.ones(1, dtype=bool)
        # gymnasium declares what a Dict samples as spaces, not as arrays.
        self.observation_space = _observation_space(self._simulator)  # type: ignore[assignment]
        self.action_space = _action_space(self._simulator)
        self.render_mode = _known(render_mode)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Begin the next episode, or the one that `options["episode"]` names."""
        chosen = _asked(options, "episode").get("episode")
        super().reset(seed=seed)
        if seed is not None:
            self._simulator.queue.restart()
        self._simulator.begin(self._all, self.np_random, None if chosen is None else [chosen])
        return self._seen()

    def step(self, action: int | np.integer[Any]) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        """Walk to a candidate, or stop."""
        self._simulator.require_begun(running=True)
        taken = self._simulator.take(np.array([action]), self._all)
        observation, info = self._seen()
        return observation, taken.reward.item(), taken.terminated.item(), taken.truncated.item(), info

    def render(self) -> str | None:
        """Where the agent stands and what it can do, as text; None without a render mode."""
        return self._simulator.describe(0) if self.render_mode else None

    def _seen(self) -> tuple[Arrays, dict[str, Any]]:
        """Observation and info of the only slot, scalars as plain python."""
        observation = {key: values[0] for key, values in self._simulator.observe().items()}
        infos = {key: values[0] for key, values in self._simulator.infos(self._all).items() if key[0] != "_"}
        return observation, {
            key: value.item() if isinstance(value, np.generic) else value for key, value in infos.items()
        }


class NavigationVectorEnv(VectorEnv[Arrays, ArrayLike, NDArray[Any]]):
    """Many agents side by side: every slot is a `NavigationEnv`, and a call moves them all.

    A slot that has ended begins its next episode at the following step, which ignores its action
    (`NEXT_STEP`, the default), or when `reset(options={"reset_mask": mask})` says so (`DISABLED`). Both show
    the last observation of an episode, which a memory has to write. With order `lanes`, no two slots share a
    scene.

    `options` of `reset` may also hold `episodes`, an id for each slot that is reset. A seed starts the order
    of episodes over, so it goes with a reset of all slots.
    """

    def __init__(
        self,
        atlas: Atlas,
        episodes: Sequence[Episode],
        num_envs: int,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Walk `episodes` in `num_envs` slots; `Options` explains the other keywords."""
        self._autoreset = AutoresetMode(autoreset_mode)
        if self._autoreset is AutoresetMode.SAME_STEP:
            raise ConfigError(
                "autoreset_mode SAME_STEP puts the first observation of the next episode in the place of the "
                "last one, which a memory has to write; use NEXT_STEP or DISABLED"
            )
        self._simulator = BatchSimulator(atlas, episodes, num_envs, **options)
        self.atlas, self.episodes = atlas, self._simulator.episodes
        self._all = np.ones(num_envs, dtype=bool)
        self.num_envs = num_envs
        self.metadata = {**NavigationEnv.metadata, "autoreset_mode": self._autoreset}
        self.render_mode = _known(render_mode)
        self.single_observation_space = _observation_space(self._simulator)
        self.single_action_space = _action_space(self._simulator)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Begin an episode in every slot, or in those that `options["reset_mask"]` (B,) marks.

        Observations are those of all slots, infos those of the slots that were reset.
        """
        options = _asked(options, "reset_mask", "episodes")
        slots = self._reset_mask(options.get("reset_mask"))
        if seed is not None and not slots.all():
            raise ConfigError("a seed starts the order of all slots over; give it without a reset_mask")
        super().reset(seed=seed)
        if seed is not None:
            self._simulator.queue.restart()
        self._simulator.begin(slots, self.np_random, options.get("episodes"))
        return self._simulator.observe(), self._simulator.infos(slots)

    def step(
        self, actions: ArrayLike
    ) -> tuple[Arrays, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Let every slot take its action (B,); with `NEXT_STEP`, those that had ended begin anew instead."""
        self._simulator.require_begun(running=self._autoreset is AutoresetMode.DISABLED)
        ended = self._simulator.ended
        taken = self._simulator.take(actions, ~ended)
        if ended.any():
            self._simulator.begin(ended, self.np_random)
        return self._simulator.observe(), *taken, self._simulator.infos(self._all)

    def render(self) -> tuple[str, ...] | None:
        """What `NavigationEnv.render` gives, for every slot."""
        return tuple(map(self._simulator.describe, range(self.num_envs))) if self.render_mode else None

    def _reset_mask(self, mask: ArrayLike | None) -> NDArray[np.bool_]:
        if mask is None:
            return self._all
        mask = np.asarray(mask)
        if mask.dtype != np.bool_ or mask.shape != (self.num_envs,) or not mask.any():
            raise ConfigError(
                f"reset_mask: expected {self.num_envs} booleans of which one is True, "
                f"found {mask.dtype} of shape {mask.shape}: {mask.tolist()}"
            )
        return mask


# -- from files ------------------------------------------------------------------------------------------


def make_env(
    folder: str | Path,
    *,
    task: str = "r2r",
    split: str = "val_unseen",
    features: str | Path | FeatureStore | None = None,
    render_mode: str | None = None,
    **options: Unpack[Options],
) -> NavigationEnv:
    """An environment over a split of a data folder, with the task's own limits unless `options` differ.

    `features` is a file, a store, or by default the only feature file of the folder. The atlas holds the
    scenes of the split and the spaces are padded to those; for the same spaces over several splits, give
    `NavigationEnv` one `Atlas` of all scenes.
    """
    atlas, episodes, options = _load(folder, task, split, features, options)
    return NavigationEnv(atlas, episodes, render_mode=render_mode, **options)


def make_vector_env(
    folder: str | Path,
    num_envs: int,
    *,
    task: str = "r2r",
    split: str = "val_unseen",
    features: str | Path | FeatureStore | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    render_mode: str | None = None,
    **options: Unpack[Options],
) -> NavigationVectorEnv:
    """What `make_env` gives, for `num_envs` agents."""
    atlas, episodes, options = _load(folder, task, split, features, options)
    return NavigationVectorEnv(
        atlas, episodes, num_envs, autoreset_mode=autoreset_mode, render_mode=render_mode, **options
    )


def register() -> None:
    """Let `gymnasium.make(ENV_ID, folder=..., ...)` and `gymnasium.make_vec(...)` find these two."""
    if ENV_ID not in gymnasium.registry:
        gymnasium.register(
            ENV_ID, entry_point=f"{__name__}:make_env", vector_entry_point=f"{__name__}:make_vector_env"
        )


def _load(
    folder: str | Path, task: str, split: str, features: str | Path | FeatureStore | None, options: Options
) -> tuple[Atlas, list[Episode], Options]:
    """The atlas and episodes of a split, and the task's limits updated by `options`."""
    data = DataFolder(folder)
    loaded = load_split(data, task, split)
    if not isinstance(features, FeatureStore):
        features = load_features(data, features, option="`features`")
    limits = loaded.task
    defaults: Options = {"max_steps": limits.max_steps, "max_tokens": limits.max_tokens, "keep": limits.keep}
    return Atlas(loaded.graphs.values(), features), loaded.episodes, {**defaults, **options}


# -- spaces and options ----------------------------------------------------------------------------------


def _action_space(simulator: BatchSimulator) -> spaces.Discrete[np.int64]:
    """An action per candidate of the busiest viewpoint, and STOP."""
    return spaces.Discrete(simulator.most_candidates + 1)


def _observation_space(simulator: BatchSimulator) -> spaces.Dict[NDArray[Any]]:
    """Panoramas as long as the atlas's longest; features may be any finite numbers."""
    longest, largest = simulator.most_tokens, np.finfo(np.float32).max
    parts: dict[str, spaces.Space[NDArray[Any]]] = {
        "features": spaces.Box(-largest, largest, (longest, simulator.width), np.float32),
        "angles": spaces.Box(-1.0, 1.0, (longest, 4), np.float32),
        "kind": spaces.Box(0, STOP, (longest,), np.uint8),
        "valid": spaces.MultiBinary(longest),
    }
    if simulator.tokenizer is not None:
        parts["tokens"] = spaces.Box(0, simulator.tokenizer.size - 1, (simulator.max_tokens,), np.int64)
    return spaces.Dict(parts)


def _asked(options: dict[str, Any] | None, *known: str) -> dict[str, Any]:
    """The options of a reset; a misspelt one is an error, not a reset of something else."""
    for name in options or {}:
        if name not in known:
            raise ConfigError(f"reset option '{name}' is unknown; expected {' or '.join(known)}")
    return options or {}


def _known(render_mode: str | None) -> str | None:
    if render_mode not in (None, *RENDER_MODES):
        raise ConfigError(f"render_mode '{render_mode}': expected {' or '.join(RENDER_MODES)} or None")
    return render_mode
