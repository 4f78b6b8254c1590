from __future__ import annotations

import json
from pathlib import Path

import pytest

from esceme.cli.features_command import semantic
from esceme.errors import ConfigError, DataError


def test_the_json_report_stands_alone_on_standard_output(
    toy_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "semantic.hdf5"
    assert semantic(data=toy_root, out=out, glove="none", json=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["bytes"] == out.stat().st_size
    assert report["reprojected"]["empty_views"] < report["near"]["empty_views"]
    assert report["next_hop_auc"]["split"] == "val_unseen"
    assert report["unknown_words"] == {}


def test_a_split_without_paths_is_not_matched(
    toy_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert semantic(data=toy_root, out=tmp_path / "semantic.hdf5", split="test") == 0
    written = capsys.readouterr()
    assert "names per viewpoint" in written.out
    assert "AUC" not in written.out
    assert "not matched" in written.err


def test_a_wrong_ending_or_vectors_that_are_not_there_write_nothing(toy_root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.hdf5"):
        semantic(data=toy_root, out=tmp_path / "semantic.txt")
    with pytest.raises(DataError, match="nothing_vocab"):
        semantic(data=toy_root, out=tmp_path / "semantic.hdf5", glove=str(tmp_path / "nothing"))
    assert list(tmp_path.iterdir()) == []
