"""A run folder: the weights of a navigator (safetensors) and its config (JSON).

RUN/
  navigator.json        what the navigator is and what it was trained for
  weights.safetensors   all parameters of the agent and the reader
  vocab.txt             its vocabulary, if it was trained with one of its own
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_type_hints

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from esceme import __version__
from esceme.agents import AGENTS, AgentConfig, HamtConfig
from esceme.errors import CheckpointError, ConfigError, DataError, EscemeError
from esceme.files import atomic_path, read_json, write_json
from esceme.memory import READERS, NoMemoryConfig, ReaderConfig
from esceme.navigator import Navigator
from esceme.settings import DropoutRate, Size, check_settings

FORMAT = "esceme-run-1"
NAVIGATOR_FILE = "navigator.json"
WEIGHTS_FILE = "weights.safetensors"
VOCABULARY_FILE = "vocab.txt"
PARTS: dict[str, Mapping[str, Any]] = {"agent": AGENTS, "reader": READERS}
"""Registered classes of each part of a navigator, by name. A class is identified by its `Config`."""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class NavigatorConfig:
    """Everything needed to build a navigator and to run it on the task for which it was trained."""

    agent: AgentConfig = HamtConfig()
    reader: ReaderConfig = NoMemoryConfig()
    feature_dropout: DropoutRate = 0.4
    """Dropout rate of observed image features, in training only."""
    task: str = "r2r"
    max_steps: Size = 15
    """Maximum number of decisions per episode."""
    max_tokens: Size = 60
    """Maximum number of tokens per instruction. Longer instructions are truncated."""
    keep: Literal["first", "last"] = "first"
    """Which end of a longer instruction remains after truncation."""
    feature_source: str = ""
    """Name of the feature file that the navigator was trained with; empty if unknown."""
    origin: str = ""
    """Description of where the weights come from."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def agent_name(self) -> str:
        """Name of the agent in `AGENTS`."""
        return part_name("agent", self.agent)

    @property
    def reader_name(self) -> str:
        """Name of the reader in `READERS`."""
        return part_name("reader", self.reader)

    def build(self, *, seed: int = 0) -> Navigator:
        """Return a navigator with random weights. The global random generator of torch does not change."""
        parts = []
        for offset, (part, classes) in enumerate(PARTS.items()):
            config = getattr(self, part)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed + offset)
                parts.append(classes[part_name(part, config)](config))
        return Navigator(*parts, feature_dropout=self.feature_dropout)


class Run(NamedTuple):
    """A loaded run folder."""

    folder: Path
    config: NavigatorConfig
    navigator: Navigator
    weights_hash: str
    """SHA-256 of the weights file."""

    @property
    def vocabulary(self) -> Path | None:
        """File of the run's own vocabulary; None if the run has none."""
        path = self.folder / VOCABULARY_FILE
        return path if path.is_file() else None


def navigator_config(navigator: Navigator, **trained_for: Any) -> NavigatorConfig:
    """Return the config of a navigator. `trained_for` are fields that it does not contain, such as `task`."""
    for part, classes in PARTS.items():
        if (kind := type(getattr(navigator, part))) not in classes.values():
            raise ConfigError(f"{kind.__name__} is not one of {', '.join(classes)}; add it to that dict")
    return NavigatorConfig(
        agent=navigator.agent.config,
        reader=navigator.reader.config,
        feature_dropout=navigator.feature_dropout,
        **trained_for,
    )


# -- files ------------------------------------------------------------------------------------------------


def save_run(folder: str | Path, navigator: Navigator, config: NavigatorConfig) -> Path:
    """Write a run folder and return it. `navigator.json` is written last: it marks a complete folder."""
    folder = Path(folder)
    if not _has_config(folder, config):  # never leave new weights beside the config of the old ones
        with suppress(OSError):  # writing will report the reason
            (folder / NAVIGATOR_FILE).unlink()
    with atomic_path(folder / WEIGHTS_FILE) as part:
        tensors = {name: tensor.contiguous() for name, tensor in navigator.state_dict().items()}
        try:
            save_file(tensors, part, metadata={"format": FORMAT})
        except SafetensorError as error:  # raised for a full disk
            raise DataError(f"{folder / WEIGHTS_FILE}: cannot be written ({error})") from None
    stored = {"format": FORMAT, "version": __version__, **as_json(config)}
    write_json(folder / NAVIGATOR_FILE, stored, indent=2)
    return folder


def load_run(folder: str | Path, *, device: torch.device | str = "cpu") -> Run:
    """Return the navigator of a run folder, in evaluation mode."""
    folder = Path(folder)
    config = read_navigator_config(folder)
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; a run folder has its weights there")
    try:
        tensors = load_file(path, device=str(device))
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: not a complete safetensors file ({error})") from None
    with torch.device("meta"):  # no random weights that would only be overwritten
        navigator = config.build()
    load_navigator_weights(navigator, tensors, file=path)
    if any(buffer.is_meta for buffer in navigator.buffers()):  # computed by the constructor, not saved
        navigator = config.build()
        load_navigator_weights(navigator, tensors, file=path)
    return Run(folder, config, navigator.to(device).eval(), digest)


def read_navigator_config(folder: Path) -> NavigatorConfig:
    """Return the navigator config in a run folder."""
    path = folder / NAVIGATOR_FILE
    if not path.is_file():
        what = "is not a folder" if not folder.is_dir() else f"has no {NAVIGATOR_FILE}"
        raise CheckpointError(f"{folder}: {what}; expected a run folder of `esceme import` or `esceme train`")
    stored = read_json(path, dict[str, Any])
    if stored.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: format '{stored.get('format')}', expected '{FORMAT}'; did a newer version write it?"
        )
    stored = {name: value for name, value in stored.items() if name not in ("format", "version")}
    if missing := [field.name for field in fields(NavigatorConfig) if field.name not in stored]:
        raise CheckpointError(f"{path}: missing: {', '.join(missing)}")
    try:
        return from_json(stored, NavigatorConfig)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from None


def load_navigator_weights(navigator: Navigator, tensors: dict[str, torch.Tensor], *, file: object) -> None:
    """Copy tensors, by parameter name, into a navigator. `file` is their source in error messages.

    Raise `CheckpointError` if tensors are missing or unknown, or have a wrong shape or non-finite values. The
    message names all of these tensors, and the navigator does not change.
    """
    expected = navigator.state_dict()
    faults = {
        "missing": sorted(set(expected) - set(tensors)),
        "unknown": sorted(set(tensors) - set(expected)),
        "with a wrong shape": [
            f"{name} (expected {tuple(expected[name].shape)}, found {tuple(tensors[name].shape)})"
            for name in sorted(set(expected) & set(tensors))
            if tensors[name].shape != expected[name].shape
        ],
        "not finite": sorted(name for name, tensor in tensors.items() if not tensor.isfinite().all()),
    }
    found = [f"{len(names)} {what}: {', '.join(names)}" for what, names in faults.items() if names]
    if found:
        raise CheckpointError(
            f"{file}: the weights do not fit {NAVIGATOR_FILE}; {'; '.join(found)}; "
            "import or train the run again, or restore both files"
        )
    navigator.load_state_dict(tensors, assign=True)


def _has_config(folder: Path, config: NavigatorConfig) -> bool:
    try:
        return read_navigator_config(folder) == config
    except EscemeError:
        return False


# -- configs as JSON --------------------------------------------------------------------------------------


def as_json(config: Any) -> dict[str, Any]:
    """Return a config dataclass as a JSON object. Agents and readers get `name` as their first key."""
    stored = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            name = {"name": part_name(field.name, value)} if field.name in PARTS else {}
            value = {**name, **as_json(value)}
        stored[field.name] = list(value) if isinstance(value, tuple) else value
    return stored


def from_json(stored: Mapping[str, Any], kind: type[T], path: str = "") -> T:
    """Return the config of type `kind` in a JSON object. Missing fields have their default values.

    `path` is for messages. Raise `ConfigError` if a name is unknown or a value has the wrong type.
    """
    types, values = get_type_hints(kind), {}
    for name, value in stored.items():
        where = f"{path}{name}"
        if name not in types:
            raise ConfigError(f"unknown field '{where}'; expected one of {', '.join(types)}")
        if name in PARTS or is_dataclass(types[name]):
            settings = _as_object(value, where)
            config_type = (
                part_config_type(name, str(settings.pop("name", ""))) if name in PARTS else types[name]
            )
            values[name] = from_json(settings, config_type, f"{where}.")
        else:
            try:
                values[name] = msgspec.convert(value, types[name])
            except msgspec.ValidationError as error:
                raise ConfigError(f"{where}: {error}") from None
    return kind(**values)


def flatten(stored: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested dicts as one dict, whose keys are the nested keys joined by dots.

    >>> flatten({"training": {"batch": 8}, "seed": 0})
    {'training.batch': 8, 'seed': 0}
    """
    flat: dict[str, Any] = {}
    for name, value in stored.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def part_config_type(part: str, name: str) -> type[Any]:
    """Return the config class of the agent or reader (`part`) that is registered as `name`."""
    if name not in PARTS[part]:
        raise ConfigError(f"no {part} '{name}'; expected one of {', '.join(PARTS[part])}")
    config_type: type[Any] = PARTS[part][name].Config
    return config_type


def part_name(part: str, config: object) -> str:
    """Return the name under which the agent or reader (`part`) with this config is registered."""
    names = [name for name, kind in PARTS[part].items() if kind.Config is type(config)]
    if len(names) != 1:
        found = " and ".join(names) or f"none of {', '.join(PARTS[part])}"
        raise ConfigError(f"{type(config).__name__} is the Config of {found}; expected exactly one {part}")
    return names[0]


def _as_object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected an object, found {value!r}")
    return dict(value)
