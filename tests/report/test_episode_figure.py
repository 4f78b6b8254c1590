"""Panoramas in figures of episodes; tests/cli/test_figure_command.py tests the figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from esceme.errors import DataError
from esceme.report.episode_figure import _turned_thumbnail


@pytest.mark.parametrize(("kind", "size"), [("EPS", (64, 32)), ("PNG", (12_000, 6_000)), ("PNG", (32, 32))])
def test_hostile_pictures_are_refused(tmp_path: Path, kind: str, size: tuple[int, int]) -> None:
    """PIL starts Ghostscript for EPS."""
    Image.new("RGB", size).save(tmp_path / "a.jpg", kind)
    with pytest.raises(DataError, match=r"a\.jpg: "):
        _turned_thumbnail(tmp_path / "a.jpg", 0.0)
