from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from esceme.errors import ConfigError, DataError
from esceme.tasks.rxr import read_rxr
from fixtures.files import save_json


def record(instruction_id: int, **changes: Any) -> dict[str, Any]:
    """A published guide annotation with `changes`; None removes a field."""
    fields = {
        "split": "val_seen",
        "instruction_id": instruction_id,
        "annotator_id": 19,
        "language": "en-IN",
        "path_id": 11,
        "scan": "attic",
        "path": ["a", "b", "c"],
        "heading": 3.1,
        "instruction": "Okay, now you are in a room.",
        "timed_instruction": [{"word": "Okay,", "start_time": 0.4, "end_time": 1.0}, {"word": "now"}],
        "edit_distance": 0.1,
    }
    return {key: value for key, value in {**fields, **changes}.items() if value is not None}


@pytest.mark.parametrize("name", ["rxr_val_seen_guide.jsonl", "rxr_val_seen_guide.jsonl.gz"])
def test_every_line_is_an_episode(tmp_path: Path, name: str) -> None:
    hindi = record(27, language="hi-IN", instruction="ठीक है")
    first, second = read_rxr(save_json(tmp_path / name, [record(26), hindi]))
    assert (first.episode_id, second.episode_id) == ("11_26", "11_27")
    assert first.path_id == second.path_id == "11"
    assert (first.scene_id, first.reference_path, first.heading) == ("attic", ("a", "b", "c"), 3.1)
    assert (second.language, second.instruction) == ("hi-IN", "ठीक है")
    assert first.tokens is None and not first.goal_withheld


def test_stored_ids_are_not_truncated(tmp_path: Path) -> None:
    ids = list(range(400))
    file = save_json(tmp_path / "rxr_train_guide_enc_xlmr.jsonl", [record(26, instr_encoding=ids)])
    assert read_rxr(file)[0].tokens == tuple(ids)


def test_test_record_has_its_instruction_id_and_a_withheld_goal(tmp_path: Path) -> None:
    file = save_json(tmp_path / "rxr_test_guide.jsonl", [record(26, path_id=None, path=["a"])])
    (episode,) = read_rxr(file)
    assert (episode.episode_id, episode.path_id) == ("26", "26")
    assert episode.goal_withheld and episode.start == "a"


@pytest.fixture
def three_languages(tmp_path: Path) -> Path:
    tags = ["te-IN", "en-US", "hi-IN", "en-IN", "en-US"]
    return save_json(tmp_path / "rxr.jsonl", [record(k, language=tag) for k, tag in enumerate(tags)])


@pytest.mark.parametrize(
    ("languages", "selected"),
    [
        (None, [0, 1, 2, 3, 4]),
        (["en"], [1, 3, 4]),
        ("en", [1, 3, 4]),
        (["en-US"], [1, 4]),
        (["hi", "te-IN"], [0, 2]),
        (["en", "en-US"], [1, 3, 4]),
    ],
)
def test_languages_are_selected_by_tag_or_first_part(
    three_languages: Path, languages: list[str] | None, selected: list[int]
) -> None:
    episodes = read_rxr(three_languages, languages=languages)
    assert [episode.episode_id for episode in episodes] == [f"11_{k}" for k in selected]


@pytest.mark.parametrize("languages", [["fr"], ["en", "fr"], ["e"], ["en-GB"]])
def test_unknown_language_is_refused(three_languages: Path, languages: list[str]) -> None:
    with pytest.raises(DataError, match=f"'{languages[-1]}'; the file holds en-IN, en-US, hi-IN, te-IN"):
        read_rxr(three_languages, languages=languages)
    with pytest.raises(ConfigError, match="at least one"):
        read_rxr(three_languages, languages=[])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"language": None}, "line 2: .*language"),
        ({"path": []}, "instruction 27: 'path' is empty"),
        ({"path": None}, "line 2: .*path"),
        ({"instruction_id": 26}, "episode id '11_26' occurs twice"),
    ],
)
def test_invalid_record_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"rxr.jsonl: {message}"):
        read_rxr(save_json(tmp_path / "rxr.jsonl", [record(26), record(**{"instruction_id": 27, **changes})]))
