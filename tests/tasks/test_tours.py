from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esceme.errors import ConfigError, DataError
from esceme.tasks.episode import Episode
from esceme.tasks.tours import Tour, check_tours, make_tours, read_all_tours, read_tours, write_tours
from fixtures.toy_atlas import toy_episode


def episodes_in(**sizes: int) -> list[Episode]:
    return [toy_episode(f"{scene}{k}_0", scene) for scene, size in sizes.items() for k in range(size)]


scenes = st.dictionaries(st.sampled_from(["attic", "barn", "cellar"]), st.integers(1, 30), min_size=1)


@given(sizes=scenes, longest=st.integers(1, 12), seed=st.integers(0, 2**32))
def test_tours_have_every_episode_once_and_similar_lengths(
    sizes: dict[str, int], longest: int, seed: int
) -> None:
    episodes = episodes_in(**sizes)
    tours = make_tours(episodes, longest=longest, seed=seed)
    check_tours(tours, episodes, "tours.json")
    assert sum(map(len, tours)) == len(episodes)
    for scene in sizes:
        lengths = [len(tour) for tour in tours if tour.scene_id == scene]
        assert max(lengths) <= longest and max(lengths) - min(lengths) <= 1
        assert len(lengths) == -(-sizes[scene] // longest)


@given(sizes=scenes, data=st.data())
def test_tours_do_not_depend_on_the_order_of_episodes(sizes: dict[str, int], data: st.DataObject) -> None:
    episodes = episodes_in(**sizes)
    shuffled = data.draw(st.permutations(episodes))
    assert make_tours(shuffled, longest=7, seed=3) == make_tours(episodes, longest=7, seed=3)


def test_tours_of_a_scene_are_independent_of_other_scenes() -> None:
    single = make_tours(episodes_in(barn=20), longest=6)
    several = make_tours(episodes_in(attic=9, barn=20, cellar=4), longest=6)
    assert [tour for tour in several if tour.scene_id == "barn"] == single


def test_seed_decides_the_order() -> None:
    episodes = episodes_in(attic=40)
    (first,), (second,) = make_tours(episodes, seed=0), make_tours(episodes, seed=1)
    assert first != second and set(first.episode_ids) == set(second.episode_ids)
    assert list(first.episode_ids) != sorted(first.episode_ids)


def test_invalid_options_and_repeated_episodes_are_refused() -> None:
    with pytest.raises(ConfigError):
        make_tours(episodes_in(attic=2), longest=0)
    with pytest.raises(ConfigError):
        make_tours(episodes_in(attic=2), seed=-1)
    with pytest.raises(DataError, match="'1_0' occurs twice"):
        make_tours([toy_episode("1_0", "attic"), toy_episode("1_0", "barn")])


def test_written_tours_are_read_back_per_split(tmp_path: Path) -> None:
    file = tmp_path / "tours.json"
    train = make_tours(episodes_in(attic=7, barn=3), longest=3)
    unseen = make_tours(episodes_in(cellar=2))
    write_tours(file, {"train": train, "val_unseen": unseen})
    assert read_tours(file, "train") == train and read_tours(file, "val_unseen") == unseen
    assert read_all_tours(file) == {"train": train, "val_unseen": unseen}
    published = json.loads(file.read_text())
    assert published["val_unseen"] == {"cellar": [list(unseen[0].episode_ids)]}
    assert [len(tour) for tour in published["train"]["attic"]] == [2, 2, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ('{"val_unseen": {', "not valid json"),
        (
            '{"train": {"a": [["1_0"]]}, "val_seen": {"a": [["2_0"]]}}',
            "no split .*file holds train, val_seen",
        ),
        ('{"val_unseen": {}}', "split 'val_unseen' holds no tours"),
        ('{"val_unseen": {"attic": ["1_0"]}}', "expected array, got str"),
        ('{"val_unseen": {"attic": [[1]]}}', "expected str, got int"),
        ('{"val_unseen": {"attic": [["1_0\\r"]]}}', "expected text without control characters"),
        ('{"val_unseen": {"att\\u001bic": [["1_0"]]}}', "a key: expected text without control characters"),
    ],
)
def test_malformed_tour_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "tours.json").write_text(text)
    with pytest.raises(DataError, match=f"tours.json: .*{message}"):
        read_tours(tmp_path / "tours.json", "val_unseen")


@pytest.mark.parametrize(
    ("tours", "message"),
    [
        ([("attic", "attic0_0"), ("attic",)], "scene 'attic', tour 1: is empty"),
        ([("attic", "attic0_0", "9_9")], "tour 0: episode '9_9' is unknown"),
        ([("attic", "attic0_0", "barn0_0")], "tour 0: episode 'barn0_0' is in scene 'barn'"),
        ([("attic", "attic0_0", "attic0_0")], "tour 0: episode 'attic0_0' is in two tours"),
        ([("attic", "attic0_0"), ("attic", "attic0_0")], "scene 'attic', tour 1: .*two tours"),
    ],
)
def test_tours_that_contradict_the_episodes_are_refused(tours: Any, message: str) -> None:
    listed = [Tour(scene, tuple(ids)) for scene, *ids in tours]
    check_tours(listed[:-1], episodes_in(attic=2, barn=2), "tours.json")
    with pytest.raises(DataError, match=f"tours.json: .*{message}"):
        check_tours(listed, episodes_in(attic=2, barn=2), "tours.json")
