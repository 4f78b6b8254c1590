"""Toy houses: who sees whom, where objects appear, what features hold."""

from __future__ import annotations

import numpy as np
import pytest

from esceme.world.geometry import VIEW_ELEVATIONS, VIEW_HEADINGS, direction, wrap
from toyworld.house import REACH, House, build_house, see


@pytest.fixture(scope="module")
def villa() -> House:
    return build_house("villa", ["kdlo", "baij"], np.random.default_rng(5))


def test_steps_are_between_viewpoints_that_see_each_other_and_are_near(villa: House) -> None:
    gaps = np.linalg.norm(villa.positions[:, None] - villa.positions[None], axis=-1)
    near = villa.included[:, None] & villa.included[None] & villa.unobstructed
    assert (villa.unobstructed == villa.unobstructed.T).all()
    assert (villa.visible == villa.visible.T).all()
    assert not villa.unobstructed.diagonal().any()
    assert (villa.visible[villa.unobstructed]).all()
    assert gaps[near].max() <= REACH


def test_only_doors_and_stairs_join_rooms(villa: House) -> None:
    labels = [villa.rooms[room].label for room in villa.room_of]
    floors = np.array([villa.rooms[room].floor for room in villa.room_of])
    for a, b in np.argwhere(villa.unobstructed & (villa.room_of[:, None] != villa.room_of[None])):
        assert floors[a] == floors[b] or "s" in (labels[a], labels[b])


def test_one_viewpoint_is_excluded_and_one_has_no_edge(villa: House) -> None:
    assert (~villa.included).sum() == 1
    alone = ~villa.unobstructed.any(axis=1)
    assert alone.sum() == 1 and villa.included[alone].all()


def test_an_object_is_in_the_middle_of_the_box_of_the_view_that_faces_it(villa: House) -> None:
    checked = 0
    for index in range(len(villa.names)):
        for sighted in villa.look(index):
            towards = direction(sighted.thing.position - villa.positions[index])
            assert villa.room_of[index] == sighted.thing.room and sighted.distance <= 3.0
            for view, (x, y, w, h) in zip(sighted.views, sighted.boxes, strict=True):
                aside = float(np.degrees(wrap(towards.heading - VIEW_HEADINGS[view])))
                above = float(np.degrees(towards.elevation - VIEW_ELEVATIONS[view]))
                assert abs(aside) < 40 and abs(above) < 30
                assert x >= 0 and y >= 0 and x + w <= 640 and y + h <= 480 and min(w, h) >= 3
                if x > 0 and x + w < 640 and abs(aside) > 10:
                    assert (x + w / 2 > 320) == (aside > 0)
                if y > 0 and y + h < 480 and abs(above) > 10:
                    assert (y + h / 2 < 240) == (above > 0)
                checked += 1
    assert checked > 50


def test_viewpoints_that_see_a_thing_list_it(villa: House) -> None:
    for thing in villa.things:
        expected = [
            name
            for index, name in enumerate(villa.names)
            if thing.object_id in [sighted.thing.object_id for sighted in villa.look(index)]
        ]
        assert villa.sees(thing) == expected


def test_features_differ_between_views_and_repeat_with_the_seed(villa: House) -> None:
    features = see(villa, np.random.default_rng(1))
    assert features.shape == (len(villa.names), 36, 36)
    assert (features == see(villa, np.random.default_rng(1))).all()
    again = see(villa, np.random.default_rng(2))
    assert np.abs(features - again).mean() < 0.1 < features.std(axis=1).mean()
