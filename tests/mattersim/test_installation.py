"""`install`: which module `import MatterSim` imports, and with which folders."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from esceme.errors import ConfigError
from esceme.mattersim import Simulator, install


@pytest.fixture(autouse=True)
def _restore(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget `MatterSim` after every test."""
    meta_path, path = sys.meta_path[:], sys.path[:]
    sys.modules.pop("MatterSim", None)
    yield
    sys.meta_path[:], sys.path[:] = meta_path, path
    sys.modules.pop("MatterSim", None)


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    """Folder with another module of that name, like a compiled one."""
    folder = tmp_path / "build"
    folder.mkdir()
    (folder / "MatterSim.py").write_text("Simulator = 'compiled'\n")
    return folder


def test_module_is_importable_after_install() -> None:
    messages: list[str] = []
    install(report=messages.append)
    assert messages == []
    module = import_module("MatterSim")
    assert messages == ["MatterSim is esceme.mattersim"]
    assert issubclass(module.Simulator, Simulator)
    assert sorted(name for name in vars(module) if name[0] != "_") == [
        "Mat",
        "SimState",
        "Simulator",
        "ViewPoint",
    ]
    with pytest.raises(AttributeError):
        module.Simulator().other = 1


def test_compiled_module_wins_even_if_the_program_extends_the_path(compiled: Path) -> None:
    messages: list[str] = []
    install(report=messages.append)
    sys.path.append(str(compiled))
    assert import_module("MatterSim").Simulator == "compiled"
    assert str(compiled / "MatterSim.py") in messages[0] and "--replace" in messages[0]


def test_replace_wins_over_the_compiled_module(compiled: Path) -> None:
    sys.path.insert(0, str(compiled))
    assert import_module("MatterSim").Simulator == "compiled"
    install()
    assert import_module("MatterSim").Simulator == "compiled"
    install(replace=True)
    assert issubclass(import_module("MatterSim").Simulator, Simulator)


def test_folder_of_that_name_is_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "MatterSim").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    install()
    assert issubclass(import_module("MatterSim").Simulator, Simulator)


def test_folders_replace_those_that_programs_set(connectivity: Path, tmp_path: Path) -> None:
    install(connectivity=connectivity, panoramas=tmp_path)
    simulator = import_module("MatterSim").Simulator()
    simulator.setNavGraphPath("/nowhere")
    scan = (connectivity / "scans.txt").read_text().split()[0]
    simulator.newRandomEpisode([scan])
    assert simulator.getState()[0].scanId == scan
    install()
    assert import_module("MatterSim").Simulator.connectivity is None  # the last call counts
    assert Simulator.connectivity is None


@pytest.mark.parametrize("scalar", [True, False])
def test_scan_at_which_programs_read_angles_is_there(scalar: bool, connectivity: Path) -> None:
    scan, viewpoint = "ZMojNkEp431", "2f4d90acd4024c269fb0efe49a8ac540"
    install(connectivity=connectivity)
    simulator = import_module("MatterSim").Simulator()
    simulator.setDiscretizedViewingAngles(True)
    episode = (scan, viewpoint, 0, -0.6) if scalar else ([scan], [viewpoint], [0], [-0.6])
    with pytest.warns(UserWarning, match="one viewpoint without neighbours") as caught:
        simulator.newEpisode(*episode)
    assert caught[0].filename == __file__
    simulator.newEpisode(*episode)  # no second warning
    state = simulator.getState() if scalar else simulator.getState()[0]
    assert (state.viewIndex, len(state.navigableLocations)) == (0, 1)
    with pytest.raises(ValueError if scalar else IndexError):
        own = Simulator()
        own.setNavGraphPath(str(connectivity))
        own.newEpisode(*episode)


def test_missing_folders_are_refused(tmp_path: Path) -> None:
    before = sys.meta_path[:]
    with pytest.raises(ConfigError, match="connectivity: .*nowhere is not a folder"):
        install(connectivity=tmp_path / "nowhere")
    assert sys.meta_path == before
