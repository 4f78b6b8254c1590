"""The option `--data` of the commands: a data folder, or the generated world."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from esceme.cli.console import progress
from esceme.tasks.folder import default_data

if TYPE_CHECKING:
    from esceme.synth.dataset import WorldConfig, WorldSize

EMBEDDED = "embedded"


def find_data(name: str | None, *, is_main: bool = True) -> Path:
    """Return the data folder: a path, or the folder of the generated world if `name` is `embedded`.

    `embedded:tiny` names a world of another size. If `name` is None, the folder is that of `default_data`.
    """
    config = world_config(name)
    if config is None:
        return Path(name) if name else default_data()
    from esceme.synth.dataset import embedded_world

    return embedded_world(config, progress=progress if is_main else lambda items, label: items)


def world_config(name: str | None) -> WorldConfig | None:
    """Return the config of the generated world that `name` stands for; None if `name` is a data folder."""
    world, _, size = (name or "").partition(":")
    if world != EMBEDDED:
        return None
    from esceme.synth.dataset import WorldConfig  # with packages that other data do not need

    return WorldConfig(cast("WorldSize", size or "small"))
