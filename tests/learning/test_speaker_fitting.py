"""Fitting a speaker: expectation maximisation finds which words describe which steps."""

from __future__ import annotations

import numpy as np
import pytest

from esceme.errors import DataError
from esceme.learning.speaker_fitting import Description, SpeakerConfig, fit_codebook, fit_speaker, path_steps
from esceme.memory.scene_map import MapBank
from esceme.planning.speaker import DOWN, END, UP, Speaker, SpeakerTables
from fixtures.toy_atlas import build_toy_atlas

CONFIG = SpeakerConfig(codes=6, iterations=5, prior=0.1)
UPSTAIRS, DOWNSTAIRS, STOP, FILLER, WORDS = 3, 4, 5, 6, 8
PATHS = [
    ("hall", "landing", "attic"),
    ("attic", "landing", "hall"),
    ("garden", "door", "hall", "landing"),
    ("landing", "hall", "kitchen"),
    ("kitchen", "hall", "door"),
    ("door", "hall", "pantry"),
]


def fitted(iterations: int = 5, words: SpeakerTables | None = None) -> tuple[Speaker, list[float]]:
    """Fit a speaker to instructions that name stairs and the end."""
    atlas = build_toy_atlas()
    codebook = fit_codebook(atlas, range(len(atlas)), CONFIG)
    maps = MapBank.from_atlas(atlas, codebook=codebook, keeps_features=False)
    maps.remember_all()
    paths, descriptions = [], []
    for number, names in enumerate(PATHS):
        steps = path_steps(maps["cottage"], names, 0.0)
        paths.append(("cottage", steps))
        spoken = []
        for here, there in zip(names, names[1:], strict=False):
            stairs = {("hall", "landing"): UPSTAIRS, ("landing", "hall"): DOWNSTAIRS}
            spoken += [stairs.get((here, there), FILLER), FILLER]
        descriptions.append(Description(number, np.array([*spoken, STOP])))
    perplexities: list[float] = []
    config = SpeakerConfig(codes=6, iterations=iterations, prior=0.1)
    speaker = fit_speaker(
        maps,
        paths,
        descriptions,
        num_words=WORDS,
        config=config,
        words=words,
        on_iteration=lambda iteration, perplexity: perplexities.append(perplexity),
    )
    return speaker, perplexities


def test_perplexity_falls_in_every_iteration() -> None:
    _, perplexities = fitted()
    assert all(after < before for before, after in zip(perplexities, perplexities[1:], strict=False))


def test_words_are_attributed_to_their_concepts() -> None:
    words = fitted()[0].tables.words
    lift = words / words.mean(0)
    assert lift[UP].argmax() == UPSTAIRS
    assert lift[DOWN].argmax() == DOWNSTAIRS
    assert lift[END].argmax() == STOP


def test_tables_are_distributions_and_equal_inputs_give_equal_tables() -> None:
    one, other = fitted()[0], fitted()[0]
    for name, array in one.digest_arrays.items():
        assert np.array_equal(array, other.digest_arrays[name]), name
    np.testing.assert_allclose(one.tables.words.sum(1), 1)
    np.testing.assert_allclose(one.tables.alignment.sum(0), 1)
    assert one.tables.groups.sum() == pytest.approx(1)
    assert one.tables.num_moves == (2, 3)


def test_speaker_survives_its_arrays_and_refuses_damaged_ones() -> None:
    speaker = fitted(1)[0]
    arrays = dict(speaker.digest_arrays)
    again = Speaker.from_arrays(arrays)
    assert all(np.array_equal(arrays[name], array) for name, array in again.digest_arrays.items())
    with pytest.raises(DataError, match="has no words"):
        Speaker.from_arrays({name: array for name, array in arrays.items() if name != "words"})
    for wrong in (np.full(3, np.nan), np.full(3, -1.0), np.ones((3, 1)), np.ones(0)):
        with pytest.raises(DataError, match="the speaker's groups: expected 1 axes of finite numbers"):
            Speaker.from_arrays({**arrays, "groups": wrong})
    with pytest.raises(DataError, match="not distributions"):
        Speaker.from_arrays({**arrays, "num_moves": np.array([5.0, 2.0])})
    with pytest.raises(DataError, match="expected a speaker of sizes"):
        Speaker.from_arrays({**arrays, "centroids": arrays["centroids"][:2]})


def test_alignment_can_be_learned_with_words_of_another_speaker() -> None:
    words = fitted()[0].tables
    speaker, perplexities = fitted(3, words=words)
    np.testing.assert_array_equal(speaker.tables.words, words.words)
    assert perplexities[0] < fitted(1)[1][0]  # the words are known from the start
    assert not np.array_equal(speaker.tables.alignment, words.alignment)


def test_path_without_edge_is_refused() -> None:
    atlas = build_toy_atlas()
    maps = MapBank.from_atlas(atlas)
    maps.remember_all()
    with pytest.raises(DataError, match="no edge leads to viewpoint 'attic'"):
        path_steps(maps["cottage"], ("hall", "attic"), 0.0)
    assert len(path_steps(maps["cottage"], ("hall", "hall", "door"), 0.0).nodes) == 2
