from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from PIL import Image

from esceme.errors import ConfigError, DataError, WorldError
from esceme.gym_registration import ENV_ID
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.gym import (
    NavigationEnv,
    NavigationVectorEnv,
    make_env,
    make_vector_env,
)
from esceme.tasks.r2r import read_r2r
from esceme.tasks.split import blank_features, load_split
from esceme.tasks.text import Vocabulary, WordPiece
from esceme.world import CANDIDATE, STOP, ArrayFeatures, Atlas, SceneGraph
from fixtures.toy_atlas import toy_episode

WIDTH = 4
START = np.pi / 6
"""Heading of the view nearest to 0.3, the heading of the toy episodes."""

# Three scenes: a horseshoe of 4 m sides, a straight corridor, and a hub with six neighbours, two of them in
# the same view, so that panoramas differ in length.
GRAPHS = [
    SceneGraph.build(
        "square",
        {"a": (0, 0, 0), "b": (0, 4, 0), "c": (4, 4, 0), "d": (4, 0, 0)},
        [("a", "b"), ("b", "c"), ("c", "d")],
    ),
    SceneGraph.build(
        "corridor",
        {"p": (0, 0, 0), "q": (0, 2.5, 0), "r": (0, 5, 0), "s": (0, 8, 0)},
        [("p", "q"), ("q", "r"), ("r", "s")],
    ),
    SceneGraph.build(
        "star",
        {
            **{"hub": (0, 0, 0), "n": (0, 3, 0), "far": (0, 6, 0), "e": (3, 0, 1)},
            **{"s": (0, -3, 0), "w": (-3, 0, 0), "up": (0.9, 1.1, 3)},
        },
        [("hub", arm) for arm in ("n", "far", "e", "s", "w", "up")],
    ),
]


ROUTES = {
    "around": ("square", "abcd"),
    "straight": ("corridor", "pqrs"),
    "arm": ("star", ("n", "hub", "up")),
    "back": ("square", "dcb"),
    "short": ("corridor", "sr"),
    "arms": ("star", ("w", "hub", "e")),
    "half": ("square", "ab"),
}
EPISODES = [
    toy_episode(name, scene, path, heading=0.3, instruction=f"Walk to {path[-1]}.")
    for name, (scene, path) in ROUTES.items()
]


@pytest.fixture(scope="module")
def atlas() -> Atlas:
    return with_features(GRAPHS)


@pytest.fixture
def env(atlas: Atlas) -> NavigationEnv:
    return NavigationEnv(atlas, EPISODES)


def with_features(graphs: Sequence[SceneGraph]) -> Atlas:
    rng = np.random.default_rng(7)
    keys = [f"{graph.scene_id}_{viewpoint}" for graph in graphs for viewpoint in graph.viewpoints]
    panoramas = {key: rng.normal(size=(36, WIDTH)).astype(np.float32) for key in keys}
    return Atlas(graphs, ArrayFeatures.from_mapping(panoramas, source="random"))


def action_to(env: NavigationEnv, info: dict[str, Any], viewpoint: str) -> int:
    """The action that moves from the viewpoint of `info` to an adjacent one; STOP for the same viewpoint."""
    candidates = env.atlas.graph(info["scene_id"]).candidates(info["viewpoint"])
    names = [candidate.viewpoint for candidate in candidates]
    return len(names) if viewpoint == info["viewpoint"] else names.index(viewpoint)


def follow(env: NavigationEnv, episode: Episode, path: Sequence[str]) -> tuple[list[float], Any]:
    """The rewards along `path` and of STOP at its end, and the result of the last step."""
    _, info = env.reset(options={"episode": episode.episode_id})
    rewards = []
    for viewpoint in [*path[1:], path[-1]]:
        last = env.step(action_to(env, info, viewpoint))
        rewards.append(float(last[1]))
        info = last[4]
    return rewards, last


def reset_ids(env: NavigationEnv, count: int, **arguments: Any) -> list[str]:
    """Episode ids of `count` resets, the first one with `arguments`."""
    first = env.reset(**arguments)[1]["episode_id"]
    return [first, *(env.reset()[1]["episode_id"] for _ in range(count - 1))]


# -- one environment -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["file", "shuffled", "lanes"])
@pytest.mark.parametrize("with_text", [False, True])
def test_gymnasium_environment_checker_passes(atlas: Atlas, order: Any, with_text: bool) -> None:
    tokenizer = Vocabulary.build(episode.instruction for episode in EPISODES) if with_text else None

    def make(render_mode: str | None = None) -> NavigationEnv:
        return NavigationEnv(atlas, EPISODES, order=order, tokenizer=tokenizer, render_mode=render_mode)

    env = make(render_mode="ansi")
    env.spec = EnvSpec("toy/Navigation-v0", entry_point=make)
    check_env(env)


def test_reference_path_is_rewarded_by_its_length_and_success(env: NavigationEnv) -> None:
    rewards, (_, _, terminated, truncated, info) = follow(env, EPISODES[0], "abcd")
    assert rewards == [4.0, 4.0, 4.0, 2.0]
    assert (terminated, truncated, info["success"]) == (True, False, True)
    assert info["distance_to_goal"] == 0.0
    assert info["trajectory"] == [
        ["a", pytest.approx(START), 0.0],
        ["b", 0.0, 0.0],
        ["c", pytest.approx(np.pi / 2), 0.0],
        ["d", pytest.approx(np.pi), 0.0],
    ]


HALF = EPISODES[6]
TWO_GOALS = toy_episode("1", "corridor", "pq", goals=("s", "r"))


@pytest.mark.parametrize(
    ("reward", "episode", "path", "rewards"),
    [
        ("progress", EPISODES[3], "dcbabcb", [4.0, 4.0, -4.0, 4.0, -4.0, 4.0, 2.0]),
        # Success is a distance of less than 3 m to the end of the reference path.
        ("progress", toy_episode("1", "corridor", "pqr"), "pq", [2.5, 2.0]),
        ("progress", toy_episode("1", "corridor", "qrs"), "qr", [2.5, -2.0]),
        ("progress", toy_episode("1", "corridor", "pqrs"), "p", [-2.0]),
        # Listed goals must be reached exactly; the nearest counts.
        ("progress", TWO_GOALS, "pq", [2.5, -2.0]),
        ("progress", TWO_GOALS, "pqr", [2.5, 2.5, 2.0]),
        ("progress", TWO_GOALS, "pqrs", [2.5, 2.5, 0.0, 2.0]),
        ("success", HALF, "ab", [0.0, 1.0]),
        ("success", HALF, "a", [0.0]),
        ("none", HALF, "ab", [0.0, 0.0]),
        ("none", HALF, "a", [0.0]),
    ],
)
def test_rewards_of_a_path(atlas: Atlas, reward: Any, episode: Episode, path: str, rewards: Any) -> None:
    other = toy_episode("other", "square", "ab", goals=("a", "b", "c", "d"))
    env = NavigationEnv(atlas, [episode, other], reward=reward)
    found, last = follow(env, episode, path)
    assert found == rewards
    if reward != "none":
        assert last[4]["success"] is (rewards[-1] > 0)


@pytest.mark.parametrize("reward", ["progress", "success", "none"])
def test_withheld_goal_has_no_reward_and_no_distance(atlas: Atlas, reward: Any) -> None:
    episode = toy_episode("test", "square", "a", goal_withheld=True)
    env = NavigationEnv(atlas, [episode], reward=reward)
    rewards, last = follow(env, episode, "ab")
    assert rewards == [0.0, 0.0]
    assert np.isnan(last[4]["distance_to_goal"])
    assert "success" not in last[4]
    assert [pose[0] for pose in last[4]["trajectory"]] == ["a", "b"]


def test_observation_is_the_panorama_padded_with_zeros(env: NavigationEnv) -> None:
    observation, info = env.reset(options={"episode": "arms"})
    atlas = env.atlas
    seen = atlas.observe(atlas.begin(atlas.locate("star", ["w"]), heading=[0.3]))
    count = int(seen.valid.sum())
    assert observation["features"].shape == (atlas.token_count.max(), WIDTH)
    assert count == 37 < len(observation["valid"])
    expected = {
        "features": seen.features,
        "angles": seen.angles,
        "kind": seen.token_type,
        "valid": seen.valid,
    }
    for key, tokens in expected.items():
        np.testing.assert_array_equal(observation[key][:count], tokens[0])
        assert not observation[key][count:].any()
    assert info["action_mask"].tolist() == [1, 1, 0, 0, 0, 0, 0]
    assert observation["kind"][:2].tolist() == [CANDIDATE, STOP]


def test_info_has_the_snapped_pose(env: NavigationEnv) -> None:
    _, info = env.reset(options={"episode": "arm"})
    assert (info["scene_id"], info["viewpoint"], info["view"], info["step"]) == ("star", "n", 13, 0)
    assert (info["heading"], info["elevation"]) == (pytest.approx(START), 0.0)
    assert info["instruction"] == "Walk to up."
    info = env.step(0)[4]
    assert (info["viewpoint"], info["step"]) == ("hub", 1)
    info = env.step(action_to(env, info, "up"))[4]
    # 'up' lies at heading 39° and elevation 65°: the second column of the upper row.
    assert (info["view"], info["heading"]) == (25, pytest.approx(np.pi / 6))
    assert info["elevation"] == pytest.approx(np.pi / 6)


def test_action_mask_marks_the_valid_actions(atlas: Atlas) -> None:
    env = NavigationEnv(atlas, EPISODES, max_steps=10**4)
    env.action_space.seed(3)
    _, info = env.reset(seed=3)
    for _ in range(300):
        action = env.action_space.sample()
        is_valid = bool(info["action_mask"][action])
        before = info["viewpoint"]
        observation, reward, terminated, _, info = env.step(action)
        assert observation in env.observation_space
        assert info["invalid_action"] is not is_valid
        assert terminated or (info["viewpoint"] != before) is is_valid
        if not is_valid:
            assert (reward, terminated) == (0.0, False)
        if terminated:
            _, info = env.reset()


def test_invalid_action_counts_as_a_step_without_a_move(atlas: Atlas) -> None:
    env = NavigationEnv(atlas, EPISODES, max_steps=3)
    before, _ = env.reset(options={"episode": "around"})
    after, reward, terminated, truncated, info = env.step(6)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert (info["invalid_action"], info["step"], info["viewpoint"]) == (True, 1, "a")
    assert data_equivalence(before, after, exact=True)
    assert env.step(0)[4]["invalid_action"] is False
    _, _, terminated, truncated, info = env.step(6)
    assert (terminated, truncated, info["invalid_action"]) == (False, True, True)
    assert [pose[0] for pose in info["trajectory"]] == ["a", "b"]


@pytest.mark.parametrize("action", [-1, 7, 0.5, None])
def test_actions_outside_the_space_are_refused(env: NavigationEnv, action: Any) -> None:
    env.reset()
    with pytest.raises(InvalidAction):
        env.step(action)


def test_last_decision_truncates_unless_it_is_stop(atlas: Atlas) -> None:
    env = NavigationEnv(atlas, EPISODES, max_steps=2)
    _, (_, _, terminated, truncated, info) = follow(env, HALF, "ab")
    assert (terminated, truncated, info["success"]) == (True, False, True)

    env.reset(options={"episode": "around"})
    _, _, terminated, truncated, info = env.step(0)
    assert (terminated, truncated) == (False, False)
    _, reward, terminated, truncated, info = env.step(action_to(env, info, "a"))
    assert (reward, terminated, truncated, info["success"]) == (-4.0, False, True, False)
    assert [pose[0] for pose in info["trajectory"]] == ["a", "b", "a"]

    env = NavigationEnv(atlas, EPISODES, max_steps=1)
    env.reset(options={"episode": "half"})
    _, reward, terminated, truncated, info = env.step(0)
    assert (reward, terminated, truncated, info["success"]) == (4.0, False, True, True)


def test_step_before_a_reset_or_after_the_end_is_refused(env: NavigationEnv) -> None:
    with pytest.raises(ResetNeeded):
        env.step(0)
    env.reset()
    env.step(1)
    with pytest.raises(ResetNeeded):
        env.step(0)
    env.reset()
    env.step(0)


def test_chosen_episode_does_not_change_the_order(env: NavigationEnv) -> None:
    assert reset_ids(env, 2) == ["around", "straight"]
    assert reset_ids(env, 2, options={"episode": "short"}) == ["short", "arm"]
    with pytest.raises(WorldError, match="'nowhere' is none of the environment's 7"):
        env.reset(options={"episode": "nowhere"})
    with pytest.raises(ConfigError, match="'episodes' is unknown; expected episode"):
        env.reset(options={"episodes": ["short"]})
    assert reset_ids(env, 1) == ["back"]


def test_seed_restarts_the_order(atlas: Atlas, env: NavigationEnv) -> None:
    names = [*ROUTES]
    assert reset_ids(env, 9) == names + names[:2]
    assert reset_ids(env, 3, seed=1) == names[:3]

    shuffled, twin = (NavigationEnv(atlas, EPISODES, order="shuffled") for _ in range(2))
    first = reset_ids(shuffled, 14, seed=5)
    assert first == reset_ids(twin, 14, seed=5) == reset_ids(shuffled, 14, seed=5)
    assert sorted(first[:7]) == sorted(first[7:]) == sorted(names)
    assert reset_ids(shuffled, 14, seed=6) != first


def test_copied_environment_is_independent(env: NavigationEnv) -> None:
    env.reset()
    env.step(0)
    twin = copy.deepcopy(env)
    assert data_equivalence(env.step(1), twin.step(1), exact=True)
    env.step(2)
    assert twin.step(0)[2] is False


@pytest.mark.parametrize(("keep", "truncated"), [("first", [2, 4, 5]), ("last", [5, 6, 3])])
def test_tokens_are_truncated_or_padded(atlas: Atlas, keep: Any, truncated: list[int]) -> None:
    vocabulary = Vocabulary(("<PAD>", "<UNK>", "<BOS>", "<EOS>", "go", "on", "now"))
    episodes = [
        toy_episode("long", "square", "ab", instruction="go on now"),
        toy_episode("short", "square", "ab", instruction=""),
        toy_episode("encoded", "square", "ab", instruction="", tokens=(6,)),
        toy_episode("both", "square", "ab", instruction="", tokens=(2, 4, 5, 6, 3)),
    ]
    env = NavigationEnv(atlas, episodes, tokenizer=vocabulary, max_tokens=3, keep=keep)
    tokens = [env.reset()[0]["tokens"].tolist() for _ in episodes]
    assert tokens == [truncated, [2, 3, 0], [6, 0, 0], truncated]
    assert env.observation_space["tokens"].high.max() == 6
    assert "tokens" not in NavigationEnv(atlas, episodes).reset()[0]


def test_rendering_shows_state_and_actions(atlas: Atlas) -> None:
    withheld = toy_episode("test", "square", "a", goal_withheld=True)
    env = NavigationEnv(atlas, [*EPISODES, withheld], render_mode="ansi")
    with pytest.raises(ResetNeeded):
        env.render()
    env.reset(options={"episode": "around"})
    env.step(0)
    assert env.render() == (
        'episode around: "Walk to d."\n'
        "scene square, viewpoint b, facing 0°\n"
        "step 1 of 15, 8.0 m to the goal\n"
        "  0: c at 90°, 4.0 m\n"
        "  1: a at 180°, 4.0 m\n"
        "  2: STOP"
    )
    env.reset(options={"episode": "test"})
    assert "goal withheld" in str(env.render())
    assert NavigationEnv(atlas, EPISODES).render() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_steps": 0}, "max_steps: expected at least 1"),
        ({"max_tokens": 0}, "max_tokens: expected at least 1"),
        ({"order": "random"}, "order: expected one of file, shuffled, lanes"),
        ({"reward": "sparse"}, "reward: expected one of progress, success, none"),
        ({"keep": "middle"}, "keep: expected one of first, last"),
        ({"render_mode": "human"}, "render_mode 'human'"),
    ],
)
def test_options_out_of_range_are_refused(atlas: Atlas, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NavigationEnv(atlas, EPISODES, **options)


PARTS = SceneGraph.build(
    "parts", {"a": (0, 0, 0), "b": (0, 2, 0), "c": (9, 0, 0), "d": (9, 2, 0)}, [("a", "b"), ("c", "d")]
)


@pytest.mark.parametrize(
    ("graphs", "episodes", "error", "message"),
    [
        (GRAPHS, [], ConfigError, "episodes: expected at least 1"),
        (GRAPHS, EPISODES * 2, DataError, "'around' occurs twice"),
        (GRAPHS, [toy_episode("9", "cellar", "ab")], DataError, "episode 9: scene 'cellar' is not loaded"),
        (GRAPHS, [toy_episode("9", "square", "ab", goals=("z",))], DataError, "episode 9: .*'z'"),
        ([PARTS], [toy_episode("9", "parts", "ad")], WorldError, "episode 9: there is no path"),
    ],
)
def test_invalid_episodes_are_refused(graphs: Any, episodes: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        NavigationEnv(with_features(graphs), episodes)


def test_atlas_without_features_is_refused() -> None:
    with pytest.raises(ConfigError, match="no features"):
        NavigationEnv(Atlas(GRAPHS), EPISODES)


# -- vector environment ----------------------------------------------------------------------------------


def sample_actions(rng: np.random.Generator, masks: np.ndarray) -> np.ndarray:
    """Draw valid actions, and the last action, which is often invalid, in a tenth of the cases."""
    valid = np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])
    return np.where(rng.random(len(masks)) < 0.1, masks.shape[1] - 1, valid)


def test_spaces_are_batches_of_single_spaces(atlas: Atlas, env: NavigationEnv) -> None:
    envs = NavigationVectorEnv(atlas, EPISODES, 3)
    assert envs.single_observation_space == env.observation_space
    assert envs.single_action_space == env.action_space
    observations, infos = envs.reset(seed=0)
    assert observations in envs.observation_space
    assert envs.action_space.shape == (3,)
    assert infos["action_mask"].shape == (3, env.action_space.n)
    observations, rewards, terminations, truncations, _ = envs.step(envs.action_space.sample())
    assert observations in envs.observation_space
    assert (rewards.dtype, terminations.dtype, truncations.dtype) == (np.float64, np.bool_, np.bool_)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("order", ["lanes", "shuffled"])
def test_autoreset_equals_that_of_gymnasium(atlas: Atlas, mode: AutoresetMode, order: Any) -> None:
    """Observations and infos equal those of gymnasium's vector of single environments."""
    scenes = [[episode for episode in EPISODES if episode.scene_id == graph.scene_id] for graph in GRAPHS]
    episodes = EPISODES if order == "lanes" else EPISODES[:1]
    slots = scenes if order == "lanes" else [episodes] * 3
    own = NavigationVectorEnv(atlas, episodes, 3, autoreset_mode=mode, order=order, max_steps=5)
    makers = [lambda slot=slot: NavigationEnv(atlas, slot, max_steps=5) for slot in slots]
    theirs = SyncVectorEnv(makers, autoreset_mode=mode)
    rng = np.random.default_rng(1)
    ours, expected = own.reset(seed=0), theirs.reset(seed=0)
    assert data_equivalence(ours, expected, exact=True)
    masks, num_ended = ours[1]["action_mask"], 0
    for _ in range(60):
        actions = sample_actions(rng, masks)
        ours, expected = own.step(actions), theirs.step(actions)
        assert data_equivalence(ours, expected, exact=True)
        masks, ended = ours[4]["action_mask"], ours[2] | ours[3]
        num_ended += ended.sum()
        if mode is AutoresetMode.DISABLED and ended.any():
            again = own.reset(options={"reset_mask": ended})
            assert data_equivalence(again, theirs.reset(options={"reset_mask": ended.copy()}), exact=True)
            masks = np.where(ended[:, None], again[1]["action_mask"], masks)
    assert num_ended > 20


def test_step_after_the_end_starts_the_next_episode(atlas: Atlas) -> None:
    envs = NavigationVectorEnv(atlas, EPISODES, 2)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    envs.reset()  # 'around' and 'straight', both with one candidate at the start
    _, rewards, terminations, _, infos = envs.step([1, 0])
    assert rewards.tolist() == [-2.0, 2.5]
    assert terminations.tolist() == [True, False]
    assert infos["_trajectory"].tolist() == [True, False]
    assert infos["trajectory"].tolist() == [[["a", pytest.approx(START), 0.0]], None]
    assert infos["viewpoint"].tolist() == ["a", "q"]
    _, rewards, terminations, _, infos = envs.step([99, 0])
    assert (rewards[0], terminations[0], infos["step"].tolist()) == (0.0, False, [0, 2])
    assert infos["episode_id"].tolist() == ["arm", "straight"]
    assert "trajectory" not in infos


def test_without_autoreset_an_ended_slot_must_be_reset(atlas: Atlas) -> None:
    envs = NavigationVectorEnv(atlas, EPISODES, 2, autoreset_mode="Disabled")
    assert envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    envs.reset()
    envs.step(np.array([1, 0], dtype=np.uint64))
    with pytest.raises(ResetNeeded, match=r"slots \[0\]"):
        envs.step([0, 0])
    observations, infos = envs.reset(options={"reset_mask": np.array([True, False]), "episodes": ["half"]})
    assert len(observations["features"]) == 2
    assert infos["episode_id"].tolist() == ["half", None]
    assert infos["_episode_id"].tolist() == [True, False]
    assert envs.step([0, 0])[4]["step"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 0}, "num_envs: expected at least 1"),
        ({"num_envs": 2, "autoreset_mode": AutoresetMode.SAME_STEP}, "SAME_STEP.*memory"),
    ],
)
def test_invalid_vector_environments_are_refused(atlas: Atlas, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NavigationVectorEnv(atlas, EPISODES, **options)


@pytest.mark.parametrize(
    ("seed", "options", "message"),
    [
        *(
            (None, {"reset_mask": np.array(mask)}, "reset_mask: expected 2 booleans")
            for mask in ([True], [1, 0], [[True, False]], [False, False])
        ),
        (1, {"reset_mask": np.array([True, False])}, "without a reset_mask"),
        (None, {"episodes": ["half"]}, "1 episodes were chosen for 2 slots"),
    ],
)
def test_invalid_resets_are_refused(atlas: Atlas, seed: int | None, options: Any, message: str) -> None:
    envs = NavigationVectorEnv(atlas, EPISODES, 2)
    with pytest.raises(ResetNeeded):
        envs.step([0, 0])
    with pytest.raises(ResetNeeded):
        envs.reset(options={"reset_mask": np.array([True, False])})
    envs.reset()
    with pytest.raises(ConfigError, match=message):
        envs.reset(seed=seed, options=options)
    with pytest.raises(InvalidAction, match="expected 2 integers"):
        envs.step([0])


def test_fewer_episodes_than_slots_are_repeated(atlas: Atlas) -> None:
    _, infos = NavigationVectorEnv(atlas, EPISODES[:2], 5).reset()
    assert infos["episode_id"].tolist() == ["around", "straight", "around", "straight", "around"]


@pytest.mark.parametrize("order", ["file", "shuffled", "lanes"])
def test_same_seed_gives_the_same_batches(atlas: Atlas, order: Any) -> None:
    envs = [NavigationVectorEnv(atlas, EPISODES, 3, order=order, max_steps=4) for _ in range(2)]
    envs[0].reset(seed=1)  # earlier steps have no influence
    envs[0].step([1, 0, 0])
    envs[0].step([1, 0, 0])
    results = [env.reset(seed=9) for env in envs]
    for _ in range(20):
        assert data_equivalence(results[0], results[1], exact=True)
        actions = envs[0].action_space.sample()
        results = [env.step(actions) for env in envs]


def test_returned_arrays_are_never_overwritten(atlas: Atlas) -> None:
    vocabulary = Vocabulary.build(episode.instruction for episode in EPISODES)
    envs = NavigationVectorEnv(atlas, EPISODES, 3, tokenizer=vocabulary, max_steps=3)
    rng = np.random.default_rng(3)
    results: list[Any] = [envs.reset()]
    copies = copy.deepcopy(results)
    for _ in range(12):
        results.append(envs.step(sample_actions(rng, results[-1][-1]["action_mask"])))
        copies.append(copy.deepcopy(results[-1]))
    assert data_equivalence(results, copies, exact=True)


def test_rendering_a_batch_gives_a_text_per_slot(atlas: Atlas) -> None:
    envs = NavigationVectorEnv(atlas, EPISODES, 2, render_mode="ansi")
    envs.reset()
    texts = envs.render()
    assert texts is not None
    assert ["around" in texts[0], "straight" in texts[1]] == [True, True]
    assert NavigationVectorEnv(atlas, EPISODES, 2).render() is None


# -- from files ------------------------------------------------------------------------------------------


def test_data_folder_makes_an_environment(toy_root: Path) -> None:
    tokenizer = WordPiece.read(toy_root / "tokenizer" / "vocab.txt")
    env = make_env(toy_root, task="cvdn", split="val_unseen", tokenizer=tokenizer)
    observation, info = env.reset(seed=0)
    assert observation in env.observation_space
    assert len(observation["tokens"]) == 100
    assert np.isfinite(info["distance_to_goal"])
    short = make_env(toy_root, task="cvdn", split="val_unseen", max_steps=1)
    short.reset()
    assert short.step(0)[3] is True


def test_environment_uses_the_given_feature_store(toy_root: Path) -> None:
    store = blank_features(load_split(DataFolder(toy_root), "r2r", "val_seen").graphs)
    observation, _ = make_env(toy_root, split="val_seen", features=store).reset()
    assert observation["features"].shape[1] == store.width == 1
    assert not observation["features"].any()


def test_gymnasium_make_finds_the_registered_environments(
    toy_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = gymnasium.make(ENV_ID, folder=toy_root, task="r2r", split="val_seen", render_mode="ansi")
    check_env(env.unwrapped)
    monkeypatch.setenv("ESCEME_DATA", str(toy_root))
    envs = gymnasium.make_vec(ENV_ID, num_envs=2, split="val_seen", order="lanes")
    assert isinstance(envs, NavigationVectorEnv)
    assert envs.reset(seed=0)[0] in envs.observation_space


@pytest.mark.parametrize("first", ["esceme", "gymnasium"])
def test_environments_are_registered_by_importing_esceme(first: str, tmp_path: Path) -> None:
    """In either order of imports, and without loading Gymnasium or torch before they are needed."""
    second = "gymnasium" if first == "esceme" else "esceme"
    program = f"""
import sys, {first}
assert {first!r} == "gymnasium" or not {{"gymnasium", "numpy", "torch"}} & sys.modules.keys()
import {second}, gymnasium
assert {ENV_ID!r} in gymnasium.registry and "esceme.tasks.gym" not in sys.modules
try:
    gymnasium.make({ENV_ID!r}, folder={str(tmp_path)!r})
except Exception as error:
    print(type(error).__name__, error)
assert "torch" not in sys.modules
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("DataError") and "no split 'val_unseen' of r2r" in result.stdout


def test_panorama_is_rendered_with_the_heading_in_the_middle(toy_root: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for folder in toy_root.iterdir():
        (data / folder.name).symlink_to(folder)
    with pytest.raises(ConfigError, match="render_mode 'rgb_array': there are no panoramas"):
        make_env(data, split="val_seen", render_mode="rgb_array")
    columns = np.arange(48, dtype=np.uint8)
    panorama = np.broadcast_to(columns[None, :, None], (24, 48, 3))
    for scene, graph in load_split(DataFolder(toy_root), "r2r", "val_seen").graphs.items():
        (data / "panoramas" / scene).mkdir(parents=True)
        for viewpoint in graph.viewpoints:
            Image.fromarray(panorama).save(data / "panoramas" / scene / f"{viewpoint}.png")
    env = gymnasium.make(ENV_ID, folder=data, split="val_seen", render_mode="rgb_array")
    check_env(env.unwrapped)
    _, info = env.reset(seed=0)
    image: Any = env.render()
    assert image.shape == (24, 48, 3) and image.dtype == np.uint8
    assert image[0, 24, 0] == (24 + round(info["heading"] / (2 * np.pi) * 48)) % 48
    envs = make_vector_env(data, 2, split="val_seen", render_mode="rgb_array")
    envs.reset(seed=0)
    frames = envs.render()
    assert frames is not None and [frame.shape for frame in frames] == [(24, 48, 3)] * 2


def test_missing_task_split_and_features_are_reported(toy_root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="task 'r3r' is unknown"):
        make_env(toy_root, task="r3r")
    with pytest.raises(DataError, match=r"no split 'val' of r2r; splits that are here: train, "):
        make_env(toy_root, split="val")
    (tmp_path / "R2R").mkdir()
    (tmp_path / "R2R" / "R2R_train.json").write_bytes((toy_root / "R2R" / "R2R_train.json").read_bytes())
    (tmp_path / "connectivity").symlink_to(toy_root / "connectivity")
    with pytest.raises(DataError, match="expected one feature file, found none"):
        make_vector_env(tmp_path, 2, split="train")


# -- real scenes -----------------------------------------------------------------------------------------


@pytest.mark.real
def test_real_reference_paths_succeed(data_root: Path, real_graphs: dict[str, SceneGraph]) -> None:
    episodes = read_r2r(data_root / "R2R" / "R2R_val_unseen.json")[::120][:20]
    atlas = with_features(
        [real_graphs[scene] for scene in sorted({episode.scene_id for episode in episodes})]
    )
    env = NavigationEnv(atlas, episodes)
    assert len(episodes) == 20
    for episode in episodes:
        rewards, last = follow(env, episode, episode.reference_path)
        length = atlas.graph(episode.scene_id).distance(episode.start, episode.goal)
        assert sum(rewards) == pytest.approx(length + 2.0)
        assert last[4]["success"] is True
        assert [pose[0] for pose in last[4]["trajectory"]] == list(episode.reference_path)
