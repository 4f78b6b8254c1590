"""The option `--data`: every command that has it accepts the generated world."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import pytest

from esceme.cli import COMMANDS
from esceme.cli.data_option import find_data


def test_sizes_of_the_generated_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "esceme.synth.dataset.embedded_world", lambda config, **_: Path("worlds") / config.size
    )
    assert find_data("embedded") == Path("worlds/small")
    assert find_data("embedded:tiny") == Path("worlds/tiny")
    assert find_data("embedded/house") == Path("embedded/house")
    monkeypatch.setenv("ESCEME_DATA", "mine")
    assert find_data(None) == Path("mine")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_with_data_accepts_the_generated_world(command: str) -> None:
    module_name, _, function = COMMANDS[command][0].partition(":")
    module = import_module(f"esceme.cli.{module_name}")
    parameters = inspect.signature(getattr(module, function)).parameters
    if "data" in parameters:
        assert parameters["data"].annotation.startswith("str"), f"{command}: --data is a path"
        assert module.find_data is find_data
