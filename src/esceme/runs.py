"""A run folder: a navigator's weights (safetensors) and the resolved experiment (json) that made it.

RUN/
  experiment.json       what the navigator is and what it was made for
  weights.safetensors   every parameter of agent and reader
  vocab.txt             the words it knows, where it has a vocabulary of its own
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from esceme import __version__
from esceme.agents import AGENTS
from esceme.errors import CheckpointError, ConfigError, DataError, EscemeError
from esceme.files import read_json, replacing, write_json
from esceme.memory import READERS
from esceme.navigator import Navigator

FORMAT = "esceme-run-1"
EXPERIMENT = "experiment.json"
WEIGHTS = "weights.safetensors"
VOCABULARY = "vocab.txt"
Settings = dict[str, Any]
"""The fields of an agent's or a reader's config."""


@dataclass(frozen=True, kw_only=True)
class NavigatorConfig:
    """What a navigator is and what it was made for: all that is needed to build it and let it walk."""

    agent: str
    agent_settings: Settings
    reader: str = "unaided"
    reader_settings: Settings
    feature_dropout: float = 0.4
    task: str = "r2r"
    max_steps: int = 15
    max_tokens: int = 60
    keep: Literal["first", "last"] = "first"
    feature_source: str = ""
    """The name of the feature file it was trained on, where that is known."""
    origin: str = ""
    """Where the weights come from."""

    def build(self, *, seed: int = 0) -> Navigator:
        """A navigator of this kind with weights drawn anew; raises `ConfigError` for what does not exist."""
        agent = _made("agent", self.agent, AGENTS, self.agent_settings, seed)
        reader = _made("reader", self.reader, READERS, self.reader_settings, seed + 1)
        return Navigator(agent, reader, feature_dropout=self.feature_dropout)


class Run(NamedTuple):
    """A run folder, loaded."""

    folder: Path
    setup: NavigatorConfig
    navigator: Navigator
    weights_hash: str
    """sha256 of the weights file."""

    @property
    def vocabulary(self) -> Path | None:
        """Its own vocabulary, where it has one."""
        path = self.folder / VOCABULARY
        return path if path.is_file() else None


def navigator_config(navigator: Navigator, **made_for: Any) -> NavigatorConfig:
    """What a navigator is; `made_for` are the fields of `NavigatorConfig` that it does not know itself."""
    return NavigatorConfig(
        agent=_name_of(navigator.agent, AGENTS),
        agent_settings=_settings_of(navigator.agent),
        reader=_name_of(navigator.reader, READERS),
        reader_settings=_settings_of(navigator.reader),
        feature_dropout=navigator.feature_dropout,
        **made_for,
    )


def save_run(folder: str | Path, navigator: Navigator, setup: NavigatorConfig) -> Path:
    """Write a run folder; the experiment comes last, so that a folder with one is complete."""
    folder = Path(folder)
    if not _same_setup(folder, setup):  # or new weights could stand beside what describes the old ones
        with suppress(OSError):  # where that cannot be done, writing will say why
            (folder / EXPERIMENT).unlink()
    with replacing(folder / WEIGHTS) as part:
        tensors = {name: tensor.contiguous() for name, tensor in navigator.state_dict().items()}
        try:
            save_file(tensors, part, metadata={"format": FORMAT})
        except SafetensorError as error:  # by which it means a full disk
            raise DataError(f"{folder / WEIGHTS}: cannot be written ({error})") from None
    write_json(folder / EXPERIMENT, {"format": FORMAT, "version": __version__, **asdict(setup)}, indent=2)
    return folder


def load_run(folder: str | Path, *, device: torch.device | str = "cpu") -> Run:
    """A navigator from its run folder, ready to be evaluated."""
    folder = Path(folder)
    setup = read_navigator_config(folder)
    path = folder / WEIGHTS
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; a run folder has its weights there")
    try:
        tensors = load_file(path, device=str(device))
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: not a complete safetensors file ({error})") from None
    with torch.device("meta"):  # nothing is drawn, only to be overwritten
        navigator = setup.build()
    fill(navigator, tensors, file=path)
    if any(each.is_meta for each in navigator.buffers()):  # which were computed, and not saved
        navigator = setup.build()
        fill(navigator, tensors, file=path)
    return Run(folder, setup, navigator.to(device).eval(), digest)


def read_navigator_config(folder: Path) -> NavigatorConfig:
    """The experiment of a run folder."""
    path = folder / EXPERIMENT
    if not path.is_file():
        what = "is not a folder" if not folder.is_dir() else f"has no {EXPERIMENT}"
        raise CheckpointError(
            f"{folder}: {what}; expected a run folder as `esceme import` or training writes it"
        )
    stored = read_json(path, dict[str, Any])
    if stored.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: format '{stored.get('format')}', expected '{FORMAT}'; did a newer version write it?"
        )
    known, said = {field.name for field in fields(NavigatorConfig)}, set(stored) - {"format", "version"}
    if known != said:
        lacking, odd = sorted(known - said), sorted(said - known)
        raise CheckpointError(
            f"{path}: expected all settings of a run and no others; "
            f"missing: {', '.join(lacking) or 'none'}; unknown: {', '.join(odd) or 'none'}"
        )
    try:
        return msgspec.convert({key: stored[key] for key in known}, NavigatorConfig)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path}: {error}") from None


def fill(navigator: Navigator, tensors: dict[str, torch.Tensor], *, file: object) -> None:
    """Put tensors into a navigator; a `CheckpointError` names all that are missing, extra or misshapen."""
    wanted = navigator.state_dict()
    missing = sorted(set(wanted) - set(tensors))
    extra = sorted(set(tensors) - set(wanted))
    misshapen = [
        f"{name} {tuple(tensors[name].shape)} instead of {tuple(wanted[name].shape)}"
        for name in sorted(set(wanted) & set(tensors))
        if tensors[name].shape != wanted[name].shape
    ]
    broken = sorted(name for name, tensor in tensors.items() if not tensor.isfinite().all())
    faults = {"missing": missing, "unknown": extra, "of another shape": misshapen, "not finite": broken}
    found = [f"{len(names)} {what}: {', '.join(names)}" for what, names in faults.items() if names]
    if found:
        raise CheckpointError(f"{file}: the weights do not fit the experiment; {'; '.join(found)}")
    navigator.load_state_dict(tensors, assign=True)


def _same_setup(folder: Path, setup: NavigatorConfig) -> bool:
    try:
        return read_navigator_config(folder) == setup
    except EscemeError:
        return False


def _made(what: str, name: str, known: dict[str, Any], settings: Settings, seed: int) -> Any:
    if name not in known:
        raise ConfigError(f"no {what} '{name}'; there are {', '.join(known)}")
    maker = known[name]
    try:
        config = msgspec.convert(settings, maker.Config)
    except (msgspec.ValidationError, TypeError) as error:
        raise ConfigError(f"{what} '{name}': {error}") from None
    unknown = sorted(set(settings) - {field.name for field in fields(maker.Config)})
    if unknown:
        raise ConfigError(f"{what} '{name}' has no setting {', '.join(unknown)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return maker(config)


def _name_of(part: object, known: dict[str, Any]) -> str:
    name = next((name for name, maker in known.items() if type(part) is maker), None)
    if name is None:
        raise ConfigError(f"{type(part).__name__} is not one of {', '.join(known)}; add it to that dict")
    return name


def _settings_of(part: Any) -> Settings:
    """As json has them, so that what is read back is equal."""
    return msgspec.json.decode(msgspec.json.encode(asdict(part.config)))
