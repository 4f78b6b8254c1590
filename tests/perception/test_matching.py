from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from esceme.errors import DataError
from esceme.perception.glimpses import Annotations
from esceme.perception.matching import match_next_hops
from esceme.tasks.folder import DataFolder
from esceme.tasks.r2r import read_r2r


def test_instructions_that_name_the_next_room_match_it_best(toy_root: Path) -> None:
    annotations = Annotations.read(DataFolder(toy_root))
    episodes = read_r2r(toy_root / "R2R/R2R_train.json")
    told = [
        replace(
            episode,
            reference_path=episode.reference_path[:2],
            instruction=annotations.labels[
                annotations.rooms[f"{episode.scene_id}_{episode.reference_path[1]}"]
            ],
        )
        for episode in episodes
    ]
    matched = match_next_hops(toy_root, told)
    silent = match_next_hops(toy_root, [replace(episode, instruction="walk") for episode in told])
    assert matched.room > 0.7 > silent.room
    assert set(silent[1:]) == {0.5}


def test_episodes_without_a_choice_are_refused(toy_root: Path) -> None:
    with pytest.raises(DataError, match="no choice"):
        match_next_hops(toy_root, read_r2r(toy_root / "R2R/R2R_test.json"))


@pytest.mark.real
def test_re_projected_words_tell_more_of_the_way_than_near_ones(data_root: Path) -> None:
    """Measured on val_unseen: view .501 -> .519, memory .507 -> .549, room .546, memory and room .584."""
    matched = match_next_hops(data_root, read_r2r(data_root / "R2R/R2R_val_unseen.json"))
    assert matched.pairs > 20_000
    assert abs(matched.view_near - 0.5) < 0.01
    assert matched.view > matched.view_near + 0.01
    assert matched.memory > matched.view + 0.02
    assert matched.memory_and_room > max(matched.memory, matched.room) + 0.02
