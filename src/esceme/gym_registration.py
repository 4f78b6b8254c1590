"""Registration of the environments in Gymnasium, without importing Gymnasium before the user does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

ENV_ID = "esceme/Navigation-v0"
ENV_MODULE = "esceme.tasks.gym"
GYMNASIUM = "gymnasium"


def register() -> None:
    """Register `make_env` for `gymnasium.make`, and `make_vector_env` for `gymnasium.make_vec`."""
    import gymnasium

    if ENV_ID not in gymnasium.registry:
        gymnasium.register(
            ENV_ID, entry_point=f"{ENV_MODULE}:make_env", vector_entry_point=f"{ENV_MODULE}:make_vector_env"
        )


def register_with_gymnasium() -> None:
    """Register the environments now if Gymnasium is imported already, otherwise when it is imported."""
    if GYMNASIUM in sys.modules:
        register()
    elif not any(isinstance(finder, _GymnasiumFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _GymnasiumFinder())


class _GymnasiumFinder(MetaPathFinder):
    """Finder that lets the first import of Gymnasium register the environments."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != GYMNASIUM:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                register()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
