"""Figure 3 of the paper, step by step: the memory of a scene over two episodes.

The first path goes from V1 to V5. The second starts at W1 and meets the first at A, which is V3.
Viewpoints with small letters are observed but never visited.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from esceme.memory import CandidateEnhancing, CandidateEnhancingConfig, MemoryBank, Pooling
from fixtures.toy_atlas import RecordingMemory, build, make_episode, run_batch, small_navigator

POSITIONS: dict[str, dict[str, Any]] = {
    "Y": {
        "V1": (0, 0, 0),
        "V2": (3, 0, 0),
        "V3": (6, 0, 0),
        "V4": (9, 0, 0),
        "V5": (12, 0, 0),
        "W1": (6, 9, 0),
        "W2": (6, 6, 0),
        "W3": (6, 3, 0),
        "a": (0, 3, 0),
        "b": (0, -3, 0),
        "c": (-3, 0, 0),
        "d": (9, 3, 0),
        "e": (6, -3, 0),
    },
    "Z": {"V1": (0, 0, 0), "V2": (3, 0, 0)},
}
EDGES = {
    "Y": [
        *[("V1", "V2"), ("V2", "V3"), ("V3", "V4"), ("V4", "V5")],
        *[("W1", "W2"), ("W2", "W3"), ("W3", "V3")],
        *[("V1", "a"), ("V1", "b"), ("V1", "c"), ("V2", "a"), ("W3", "d"), ("V4", "d"), ("V3", "e")],
    ],
    "Z": [("V1", "V2")],
}
FIRST = make_episode("V1", "V2", "V3", "V4", "V5", scene="Y", name="1_0")
SECOND = make_episode("W1", "W2", "W3", "V3", scene="Y", name="2_0")

# Current viewpoint; neighbours recalled; viewpoint and edges added after the step.
FIRST_STEPS = [
    ("V1", set(), "V1", set()),
    ("V2", {"V1"}, "V2", {("V1", "V2")}),
    ("V3", {"V2"}, "V3", {("V2", "V3")}),
    ("V4", {"V3"}, "V4", {("V3", "V4")}),
    ("V5", {"V4"}, "V5", {("V4", "V5")}),
]
SECOND_STEPS = [
    ("W1", set(), "W1", set()),
    ("W2", {"W1"}, "W2", {("W1", "W2")}),
    ("W3", {"W2", "V3"}, "W3", {("W2", "W3"), ("V3", "W3")}),
    ("V3", {"V2", "V4", "W3"}, None, set()),  # A: remembered already, no update
]


@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_the_memory_grows_as_in_the_figure(pooling: Pooling) -> None:
    atlas = build(POSITIONS, EDGES)
    bank = MemoryBank.from_atlas(atlas, pooling=pooling)
    memory = RecordingMemory(bank, atlas)
    reader = CandidateEnhancing(CandidateEnhancingConfig(width=bank.width, pooling=pooling))
    navigator = small_navigator(reader)
    viewpoints, edges = set[str](), set[tuple[str, str]]()
    vectors: dict[str, torch.Tensor] = {}
    assert len(bank) == 0
    for episode, expected in ((FIRST, FIRST_STEPS), (SECOND, SECOND_STEPS)):
        steps = zip(expected, run_batch(navigator, atlas, [episode], memory), strict=True)
        for (name, recalled, added, new_edges), step in steps:
            assert atlas.name(int(step.observation.viewpoint[0]))[1] == name
            assert memory.found[-1] == [recalled]
            assert memory.requested[-1] == [
                {candidate.viewpoint for candidate in atlas.graph("Y").candidates(name)}
            ]
            viewpoints |= {added} if added else set()
            edges |= new_edges
            assert bank["Y"].viewpoints == viewpoints
            assert bank["Y"].edges == edges
            for known, vector in vectors.items():
                assert torch.equal(bank.recall("Y", [known])[0], vector)
            vectors = {known: bank.recall("Y", [known])[0] for known in viewpoints}
        if episode is FIRST:
            assert viewpoints == {"V1", "V2", "V3", "V4", "V5"}
            assert edges == {("V1", "V2"), ("V2", "V3"), ("V3", "V4"), ("V4", "V5")}
    assert bank.scenes == ("Y",)


def test_scenes_have_separate_memories() -> None:
    atlas = build(POSITIONS, EDGES)
    bank = MemoryBank.from_atlas(atlas)
    list(run_batch(small_navigator(), atlas, [FIRST], bank))
    memory = RecordingMemory(bank, atlas)
    other = make_episode("V1", "V2", scene="Z", name="3_0")
    steps = run_batch(small_navigator(), atlas, [other], memory)
    next(steps)
    assert memory.found == [[set()]]  # the remembered V2 is in the other scene
    next(steps)
    assert memory.found[-1] == [{"V1"}]
    assert {scene: len(bank[scene]) for scene in bank.scenes} == {"Y": 5, "Z": 2}
