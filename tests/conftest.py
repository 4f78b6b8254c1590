"""What tests share: the generated toy world, and the public datasets where they are at hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from esceme.tasks.folder import default_data
from esceme.world import SceneGraph

# Property tests draw the same examples every time and take the time they need.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")

REPOSITORY = Path(__file__).parents[1]
SHARED_DATA = REPOSITORY.parent / "shared" / "data"
if SHARED_DATA.is_dir():
    os.environ.setdefault("ESCEME_DATA", str(SHARED_DATA))


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of public datasets; tests that ask for it carry the `real` mark."""
    root = default_data()
    if not (root / "connectivity").is_dir():
        pytest.skip("the public datasets are not here; set ESCEME_DATA to run the tests on real data")
    return root


@pytest.fixture(scope="session")
def vectors_root(data_root: Path) -> Path:
    """Reference numbers of the original implementation, beside the datasets."""
    root = data_root.parent / "vectors"
    if not root.is_dir():
        pytest.skip("the reference vectors are not beside the datasets")
    return root


@pytest.fixture(scope="session")
def real_graphs(data_root: Path) -> dict[str, SceneGraph]:
    """The 90 Matterport scenes."""
    from esceme.world import read_scenes

    return read_scenes(data_root / "connectivity")


@pytest.fixture(scope="session")
def toy_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small generated data folder in the published formats; read-only, copy before damaging."""
    from fixtures.toy_world import write_toy_world

    return write_toy_world(tmp_path_factory.mktemp("toy"), seed=0)


@pytest.fixture(scope="session")
def training_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data folder with the splits `train` and `val_unseen`, and tours; read-only."""
    from fixtures.toy_dataset import write_training_data

    return write_training_data(tmp_path_factory.mktemp("training-data"))


@pytest.fixture
def no_gradients() -> Iterator[None]:
    """Run the test without recording gradients."""
    import torch

    with torch.no_grad():
        yield
