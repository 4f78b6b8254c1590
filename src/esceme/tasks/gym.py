"""Gymnasium environments for all tasks: a single environment and a vector environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from esceme.errors import ConfigError, DataError
from esceme.tasks.batch_simulator import Arrays, BatchSimulator, EnvOptions
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder, default_data
from esceme.tasks.split import load_dataset
from esceme.world.atlas import STOP, Atlas
from esceme.world.features import FeatureStore
from esceme.world.geometry import VIEW_HEADINGS

RENDER_MODES = ["ansi", "rgb_array"]
Panoramas = Callable[[str, str], Path | None]
"""Function from scene and viewpoint to the file of the equirectangular panorama, or None if there is none."""


class NavigationEnv(gymnasium.Env[Arrays, int | np.integer[Any]]):
    """Environment in which an agent follows the instructions of one episode after another.

    An observation is a panorama as tokens (`esceme.world.Panoramas`), padded to the longest panorama of the
    atlas: `features` (N, D), `angles` (N, 4), `kind` (N,), `valid` (N,) and, with a tokenizer, `tokens` (L,).
    An action is the index of a token. At a viewpoint with k candidates, actions below k move to a candidate,
    and action k is STOP, which terminates the episode. Actions above k are invalid: the agent does not move,
    the step counts, and `info["invalid_action"]` is True.

    `info` has the episode (`episode_id`, `scene_id`, `instruction`), the camera pose at the nearest view
    (`viewpoint`, `view`, `heading`, `elevation`), the `step`, the `distance_to_goal` along the graph in
    metres (NaN if the goal is withheld) and the `action_mask` for `action_space.sample`. At the end of an
    episode it also has the `trajectory` in the format of prediction files and, unless the goal is withheld,
    `success`. A truncated episode is judged by its last viewpoint as well. If the episode has `goals`,
    success means that the last viewpoint is one of them. Otherwise the last viewpoint must be nearer than 3 m
    to the end of the reference path.

    `render` returns a text about the state and the actions (`ansi`), or the panorama as an array (H, 2H, 3)
    with the agent's heading in the middle (`rgb_array`; requires `panoramas`).

    `reset` starts the next episode in order. A seed restarts the order. `reset(options={"episode": "12_0"})`
    starts a certain episode without changing the order.

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
        panoramas: Panoramas | None = None,
        **options: Unpack[EnvOptions],
    ) -> None:
        """Create an environment. `atlas` must have features; `EnvOptions` explains all other keywords.

        `panoramas` finds the images of the render mode `rgb_array`, such as `DataFolder.panorama`.
        """
        self._simulator = BatchSimulator(atlas, episodes, 1, **options)
        self.atlas, self.episodes = atlas, self._simulator.episodes
        self._all = np.ones(1, dtype=bool)
        # gymnasium declares the samples of a Dict as spaces, not as arrays.
        self.observation_space = _observation_space(self._simulator)  # type: ignore[assignment]
        self.action_space = _action_space(self._simulator)
        modes = _render_modes(panoramas, self.episodes)
        self.metadata = {**self.metadata, "render_modes": modes}
        self.render_mode = _check_render_mode(render_mode, modes)
        self._panoramas = panoramas

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Start the next episode, or the episode with the id `options["episode"]`."""
        episode_id = _check_options(options, "episode").get("episode")
        super().reset(seed=seed)
        if seed is not None:
            self._simulator.queue.restart()
        self._simulator.reset(self._all, self.np_random, None if episode_id is None else [episode_id])
        return self._observe()

    def step(self, action: int | np.integer[Any]) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        """Move to a candidate, or stop; the action is the index of a token."""
        self._simulator.require_reset(running=True)
        result = self._simulator.step(np.array([action]), self._all)
        observation, info = self._observe()
        return observation, result.reward.item(), result.terminated.item(), result.truncated.item(), info

    def render(self) -> Any:  # a text or an array, by the render mode
        """Return a text or an image of the state; None without a render mode."""
        return _render(self._simulator, 0, self.render_mode, self._panoramas)

    def _observe(self) -> tuple[Arrays, dict[str, Any]]:
        """Return observation and info of the single environment, without a batch axis."""
        observation = {key: values[0] for key, values in self._simulator.observe().items()}
        infos = {key: values[0] for key, values in self._simulator.infos(self._all).items() if key[0] != "_"}
        return observation, {
            key: value.item() if isinstance(value, np.generic) else value for key, value in infos.items()
        }


class NavigationVectorEnv(VectorEnv[Arrays, ArrayLike, NDArray[Any]]):
    """Several `NavigationEnv` that are simulated as one batch.

    In mode `NEXT_STEP` (default), an environment whose episode has ended starts the next episode at the
    following step, which ignores its action. In mode `DISABLED`, it does so at `reset(options={"reset_mask":
    mask})`. In both modes, the last observation of an episode is returned, because a memory has to store it.
    With order `lanes`, no two environments are in the same scene.

    `options` of `reset` may also have `episodes`, one id per environment that is reset. A seed restarts the
    order of episodes and therefore requires a reset of all environments.
    """

    def __init__(
        self,
        atlas: Atlas,
        episodes: Sequence[Episode],
        num_envs: int,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        panoramas: Panoramas | None = None,
        **options: Unpack[EnvOptions],
    ) -> None:
        """Create `num_envs` environments for `episodes`; see `NavigationEnv` for the other keywords."""
        self._autoreset = AutoresetMode(autoreset_mode)
        if self._autoreset is AutoresetMode.SAME_STEP:
            raise ConfigError(
                "autoreset_mode SAME_STEP replaces the last observation of an episode, which a memory has to "
                "write; use NEXT_STEP or DISABLED"
            )
        self._simulator = BatchSimulator(atlas, episodes, num_envs, **options)
        self.atlas, self.episodes = atlas, self._simulator.episodes
        self._all = np.ones(num_envs, dtype=bool)
        self.num_envs = num_envs
        modes = _render_modes(panoramas, self.episodes)
        self.metadata = {
            **NavigationEnv.metadata,
            "render_modes": modes,
            "autoreset_mode": self._autoreset,
        }
        self.render_mode = _check_render_mode(render_mode, modes)
        self._panoramas = panoramas
        self.single_observation_space = _observation_space(self._simulator)
        self.single_action_space = _action_space(self._simulator)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Start an episode in every environment, or where `options["reset_mask"]` (B,) is True.

        Returns the observations of all environments, and the infos of the environments that were reset.
        """
        options = _check_options(options, "reset_mask", "episodes")
        slots = self._reset_mask(options.get("reset_mask"))
        if seed is not None and not slots.all():
            raise ConfigError("a seed restarts the order of all slots; give it without a reset_mask")
        super().reset(seed=seed)
        if seed is not None:
            self._simulator.queue.restart()
        self._simulator.reset(slots, self.np_random, options.get("episodes"))
        return self._simulator.observe(), self._simulator.infos(slots)

    def step(
        self, actions: ArrayLike
    ) -> tuple[Arrays, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Apply actions (B,). With `NEXT_STEP`, ended environments start their next episode instead."""
        self._simulator.require_reset(running=self._autoreset is AutoresetMode.DISABLED)
        is_done = self._simulator.is_done
        result = self._simulator.step(actions, ~is_done)
        if is_done.any():
            self._simulator.reset(is_done, self.np_random)
        return self._simulator.observe(), *result, self._simulator.infos(self._all)

    def render(self) -> tuple[Any, ...] | None:
        """Return one text or image per environment; None without a render mode."""
        if self.render_mode is None:
            return None
        return tuple(
            _render(self._simulator, slot, self.render_mode, self._panoramas) for slot in range(self.num_envs)
        )

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
    folder: str | Path | None = None,
    *,
    task: str = "r2r",
    split: str = "val_unseen",
    features: str | Path | FeatureStore | None = None,
    render_mode: str | None = None,
    **options: Unpack[EnvOptions],
) -> NavigationEnv:
    """Return an environment with the episodes of a split. `options` override the limits of the task.

    `folder` is the data folder; by default that of the environment variable `ESCEME_DATA`, or `datasets`.
    `features` is a file or a store; by default it is the only feature file of the folder. Observation and
    action spaces depend on the scenes of the split. For equal spaces over several splits, construct
    `NavigationEnv` with one `Atlas` of all scenes.
    """
    data = DataFolder(folder or default_data())
    atlas, episodes, options = _load_episodes(data, task, split, features, options)
    return NavigationEnv(atlas, episodes, render_mode=render_mode, panoramas=data.panorama, **options)


def make_vector_env(
    folder: str | Path | None = None,
    num_envs: int = 1,
    *,
    task: str = "r2r",
    split: str = "val_unseen",
    features: str | Path | FeatureStore | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    render_mode: str | None = None,
    **options: Unpack[EnvOptions],
) -> NavigationVectorEnv:
    """Return `num_envs` parallel environments with the episodes of a split; see `make_env`."""
    data = DataFolder(folder or default_data())
    atlas, episodes, options = _load_episodes(data, task, split, features, options)
    return NavigationVectorEnv(
        atlas,
        episodes,
        num_envs,
        autoreset_mode=autoreset_mode,
        render_mode=render_mode,
        panoramas=data.panorama,
        **options,
    )


def _load_episodes(
    data: DataFolder, task: str, split: str, features: str | Path | FeatureStore | None, options: EnvOptions
) -> tuple[Atlas, list[Episode], EnvOptions]:
    """Return the atlas and the episodes of a split, and the limits of the task, overridden by `options`."""
    dataset = load_dataset(data, [(task, split)], features=features, option="`features`")
    limits = dataset.splits[0].task
    defaults: EnvOptions = {
        "max_steps": limits.max_steps,
        "max_tokens": limits.max_tokens,
        "keep": limits.keep,
    }
    return dataset.atlas, dataset.splits[0].episodes, {**defaults, **options}


# -- spaces and options ----------------------------------------------------------------------------------


def _action_space(simulator: BatchSimulator) -> spaces.Discrete[np.int64]:
    """Return a space with one action per candidate, and STOP."""
    return spaces.Discrete(simulator.max_candidates + 1)


def _observation_space(simulator: BatchSimulator) -> spaces.Dict[NDArray[Any]]:
    """Return a space of panoramas that are padded to the longest panorama of the atlas."""
    longest, largest = simulator.max_panorama, np.finfo(np.float32).max
    parts: dict[str, spaces.Space[NDArray[Any]]] = {
        "features": spaces.Box(-largest, largest, (longest, simulator.feature_width), np.float32),
        "angles": spaces.Box(-1.0, 1.0, (longest, 4), np.float32),
        "kind": spaces.Box(0, STOP, (longest,), np.uint8),
        "valid": spaces.MultiBinary(longest),
    }
    if simulator.tokenizer is not None:
        parts["tokens"] = spaces.Box(0, simulator.tokenizer.size - 1, (simulator.max_tokens,), np.int64)
    return spaces.Dict(parts)


def _check_options(options: dict[str, Any] | None, *known: str) -> dict[str, Any]:
    """Return the options of a reset; raise `ConfigError` if an option is not in `known`."""
    for name in options or {}:
        if name not in known:
            raise ConfigError(f"reset option '{name}' is unknown; expected {' or '.join(known)}")
    return options or {}


# -- rendering -------------------------------------------------------------------------------------------


def _render_modes(panoramas: Panoramas | None, episodes: Sequence[Episode]) -> list[str]:
    """Return the render modes; `rgb_array` is one of them if there is a panorama of the first start."""
    first = episodes[0]
    has_images = panoramas is not None and panoramas(first.scene_id, first.start) is not None
    return RENDER_MODES if has_images else ["ansi"]


def _check_render_mode(render_mode: str | None, modes: Sequence[str]) -> str | None:
    """Return the render mode. Raise `ConfigError` if it is not one of `modes`."""
    if render_mode == "rgb_array" and render_mode not in modes:
        raise ConfigError(
            "render_mode 'rgb_array': there are no panoramas; expected panoramas/SCENE/VIEWPOINT.jpg in the "
            "data folder, or use 'ansi'"
        )
    if render_mode not in (None, *modes):
        raise ConfigError(f"render_mode '{render_mode}': expected {' or '.join(RENDER_MODES)} or None")
    return render_mode


def _render(
    simulator: BatchSimulator, slot: int, render_mode: str | None, panoramas: Panoramas | None
) -> str | NDArray[np.uint8] | None:
    """Return a text about one environment, or its panorama (H, 2H, 3) centred at the agent's heading."""
    if render_mode != "rgb_array" or panoramas is None:
        return simulator.describe(slot) if render_mode else None
    simulator.require_reset(running=False)
    scene, viewpoint = simulator.atlas.name(int(simulator.pose.viewpoint[slot]))
    path = panoramas(scene, viewpoint)
    if path is None:
        raise DataError(f"scene '{scene}': no panorama of viewpoint '{viewpoint}'")
    from PIL import Image

    try:
        with Image.open(path) as image:
            panorama = np.asarray(image.convert("RGB"))
    except OSError as error:
        raise DataError(f"{path}: not a readable image ({error})") from None
    turn = float(VIEW_HEADINGS[simulator.pose.view[slot]]) / (2 * np.pi)
    return np.roll(panorama, -round(turn * panorama.shape[1]), axis=1)  # the centre had heading 0
