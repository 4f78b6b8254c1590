"""Run folders of small networks whose weights were drawn, for tests that need an agent but no training."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from esceme.runs import NavigatorConfig, save_run
from esceme.tasks.folder import DataFolder
from esceme.tasks.text import WordPiece
from esceme.world import open_features

POSITIONS = 100
"""Words of the longest instruction that a drawn network takes."""


def drawn_setup(
    data_root: Path, reader: Literal["candidate-enhancing", "unaided"] = "candidate-enhancing"
) -> NavigatorConfig:
    """A small HAMT for the features and the vocabulary of a data folder."""
    data = DataFolder(data_root)
    (source,) = data.features
    width = open_features(source).width
    return NavigatorConfig(
        agent="hamt",
        agent_settings={
            "vocabulary": WordPiece.read(data.tokenizers[0]).size,
            "positions": POSITIONS,
            "hidden": 32,
            "heads": 4,
            "feed_forward": 64,
            "text_layers": 1,
            "cross_layers": 2,
            "panorama_layers": 1,
            "feature_width": width,
            "initial_std": 0.2,  # weights of 0.02 would hardly tell one view from another
        },
        reader=reader,
        reader_settings={"width": width, "initial_std": 0.1} if reader == "candidate-enhancing" else {},
        feature_source=source.name,
        origin="drawn",
    )


def drawn_run(
    folder: Path,
    data_root: Path,
    reader: Literal["candidate-enhancing", "unaided"] = "candidate-enhancing",
    seed: int = 0,
) -> Path:
    """A run folder with a small HAMT that fits a data folder: same seed, same weights."""
    setup = drawn_setup(data_root, reader)
    return save_run(folder, setup.build(seed=seed), setup)
