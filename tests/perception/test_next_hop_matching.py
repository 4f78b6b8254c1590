"""Matching of instructions with candidates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from esceme.errors import DataError
from esceme.perception.next_hop_matching import match_next_hops
from esceme.perception.visible_objects import DatasetAnnotations
from esceme.tasks.folder import DataFolder
from esceme.tasks.r2r import read_r2r


def test_instruction_that_names_the_next_room_matches_it_best(toy_root: Path) -> None:
    annotations = DatasetAnnotations.read(DataFolder(toy_root))
    episodes = [
        replace(episode, reference_path=episode.reference_path[:2])
        for episode in read_r2r(toy_root / "R2R/R2R_train.json")
    ]
    room_of = {
        episode.episode_id: annotations.rooms[f"{episode.scene_id}_{episode.reference_path[1]}"]
        for episode in episodes
    }
    named = [replace(e, instruction=annotations.labels[room_of[e.episode_id]]) for e in episodes]
    matched = match_next_hops(toy_root, named)
    unmatched = match_next_hops(toy_root, [replace(episode, instruction="walk") for episode in episodes])
    assert matched.room > 0.7 > unmatched.room
    assert set(unmatched[1:]) == {0.5}


def test_episodes_without_alternatives_are_refused(toy_root: Path) -> None:
    with pytest.raises(DataError, match="no choice"):
        match_next_hops(toy_root, read_r2r(toy_root / "R2R/R2R_test.json"))


@pytest.mark.real
def test_reprojected_words_predict_the_next_hop_better_than_annotated_ones(data_root: Path) -> None:
    """Measured on val_unseen: view .501 -> .519, memory .507 -> .549, room .546, memory and room .584."""
    matched = match_next_hops(data_root, read_r2r(data_root / "R2R/R2R_val_unseen.json"))
    assert matched.pairs > 20_000
    assert abs(matched.view_near - 0.5) < 0.01
    assert matched.view > matched.view_near + 0.01
    assert matched.memory > matched.view + 0.02
    assert matched.memory_and_room > max(matched.memory, matched.room) + 0.02
