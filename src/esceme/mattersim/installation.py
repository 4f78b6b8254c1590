"""Make `import MatterSim` work without the compiled module of the original simulator."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from esceme.errors import ConfigError
from esceme.mattersim.simulator import Simulator
from esceme.mattersim.states import Mat, SimState, ViewPoint

MODULE = "MatterSim"
Report = Callable[[str], None]


def install(
    *,
    connectivity: str | Path | None = None,
    panoramas: str | Path | None = None,
    replace: bool = False,
    report: Report | None = None,
) -> None:
    """Let `import MatterSim` import this implementation, unless the compiled module is on the path.

    `sys.path` is searched when a program imports `MatterSim`, so that programs may extend it before. With
    `replace`, this implementation is imported in any case. `connectivity` and `panoramas` are folders that
    replace the folders that programs set. `report` receives a message about which module is imported. Raises
    `ConfigError` if a folder does not exist.
    """
    folders = {"connectivity": connectivity, "panoramas": panoramas}
    for name, folder in folders.items():
        if folder is not None and not Path(folder).is_dir():
            raise ConfigError(f"{name}: {folder} is not a folder")
    settings = {name: str(Path(folder).resolve()) for name, folder in folders.items() if folder is not None}
    finder = MatterSimFinder(settings, replace=replace, report=report or (lambda message: None))
    sys.meta_path[:] = [other for other in sys.meta_path if not isinstance(other, MatterSimFinder)]
    sys.meta_path.insert(0, finder)
    imported = sys.modules.get(MODULE)
    if imported is not None and (replace or isinstance(imported.__loader__, MatterSimLoader)):
        del sys.modules[MODULE]


class MatterSimFinder(MetaPathFinder):
    """Finds the compiled module `MatterSim` or, if there is none, this implementation."""

    def __init__(self, settings: dict[str, str], *, replace: bool, report: Report) -> None:
        """Use `settings` as class attributes of `Simulator`; see `install`."""
        self._settings, self._replace, self._report = settings, replace, report

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where `MatterSim` is imported from; None for other names."""
        if fullname != MODULE:
            return None
        compiled = None if self._replace else PathFinder.find_spec(fullname, path, target)
        # A folder of that name without code, such as a checkout, is no module.
        if compiled is not None and compiled.origin is not None:
            self._report(f"MatterSim is {compiled.origin}; --replace imports esceme.mattersim instead")
            return compiled
        self._report("MatterSim is esceme.mattersim")
        return ModuleSpec(fullname, MatterSimLoader(self._settings), origin="esceme.mattersim")


class MatterSimLoader(Loader):
    """Loads this implementation as the module `MatterSim`."""

    def __init__(self, settings: dict[str, str]) -> None:
        """Use `settings` as class attributes of `Simulator`."""
        self._settings = settings

    def exec_module(self, module: ModuleType) -> None:
        """Define the names of the module."""
        simulator = type("Simulator", (Simulator,), {"__slots__": (), **self._settings})
        for name, value in {
            "Simulator": simulator,
            "SimState": SimState,
            "ViewPoint": ViewPoint,
            "Mat": Mat,
        }.items():
            setattr(module, name, value)
