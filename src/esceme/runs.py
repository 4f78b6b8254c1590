"""A run folder: the weights of a navigator (safetensors) and its config (JSON).

RUN/
  navigator.json        what the navigator is, what it was trained for, and the sha256 of its weights
  weights.safetensors   all parameters of the agent and the reader
  vocab.txt             its vocabulary, if it was trained with one of its own
  digests.json          digests of files that were read before, with their sizes and time stamps
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_type_hints

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.init import normal_
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from esceme import __version__
from esceme.agents import AGENTS, AgentConfig, HamtConfig
from esceme.errors import CheckpointError, ConfigError, DataError, EscemeError
from esceme.files import StoredDigest, atomic_path, read_json, write_json
from esceme.memory import READERS, NoMemoryConfig, ReaderConfig
from esceme.navigator import Navigator
from esceme.settings import DropoutRate, Size, check_settings
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.split import InstructionEncoder, find_tokenizer, make_instruction_encoder
from esceme.tasks.text import Tokenizer, Vocabulary, truncate

FORMAT = "esceme-run-2"
NAVIGATOR_FILE = "navigator.json"
WEIGHTS_FILE = "weights.safetensors"
LAYER_DEPTH = 4
"""Number of parts of a weight's name that identify its layer, as in agent.text.layers.3."""
VOCABULARY_FILE = "vocab.txt"
DIGESTS_FILE = "digests.json"
DIGESTS_KEY = "weights_sha256"
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
    """Task of the episodes, such as `r2r` or `cvdn`."""
    max_steps: Size = 15
    """Maximum number of decisions per episode."""
    max_tokens: Size = 60
    """Maximum number of tokens per instruction. Longer instructions are truncated."""
    keep: Literal["first", "last"] = "first"
    """Which end of a longer instruction is kept."""
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

    def tokenizer(self, data: DataFolder | None = None) -> Tokenizer | None:
        """Return the tokenizer of the run's own vocabulary, or else the WordPiece tokenizer of `data`.

        Return None if neither has as many tokens as the network has embeddings.
        """
        size = self.config.agent.limits.vocabulary
        if self.vocabulary is not None:
            return Vocabulary.read(self.vocabulary)
        return None if data is None else find_tokenizer(data, None, size)

    def encode(self, text: str, data: DataFolder | None = None) -> list[int]:
        """Return the token ids of an instruction as this run reads it, truncated to its limit.

        Raise `ConfigError` if the run has no vocabulary of its own and `data` has none that fits.
        """
        if (tokenizer := self.tokenizer(data)) is None:
            where = "none was given" if data is None else f"{data.root} has none of its size"
            raise ConfigError(
                f"{self.folder}: the run has no vocabulary of its own, and {where}; pass "
                "DataFolder(...) with tokenizer/vocab.txt"
            )
        return truncate(tokenizer.encode(text), self.config.max_tokens, keep=self.config.keep)

    def instruction_encoder(
        self,
        data: DataFolder,
        *,
        task: str | None = None,
        max_tokens: int | None = None,
        keep: Literal["first", "last"] | None = None,
        episodes: Iterable[Episode] = (),
    ) -> InstructionEncoder:
        """Return the function from an episode to token ids that rollouts of this run need.

        See `make_instruction_encoder`. Settings that are None are those of the run.
        """
        return make_instruction_encoder(
            data,
            task or self.config.task,
            max_tokens=max_tokens or self.config.max_tokens,
            keep=keep or self.config.keep,
            vocabulary=None if self.vocabulary is None else Vocabulary.read(self.vocabulary),
            vocabulary_size=self.config.agent.limits.vocabulary,
            needs_text=not self.navigator.agent.is_scripted,
            episodes=episodes,
        )


def navigator_config(navigator: Navigator, **trained_for: Any) -> NavigatorConfig:
    """Return the config of a navigator, with `trained_for`: fields that a navigator lacks, such as `task`."""
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
    digests = _digests_beside(folder, config)
    if not digests:  # never leave new weights beside the config of the old ones
        with suppress(OSError):  # writing will report the reason
            (folder / NAVIGATOR_FILE).unlink()
    with atomic_path(folder / WEIGHTS_FILE) as part:
        tensors = {name: tensor.contiguous() for name, tensor in navigator.state_dict().items()}
        try:
            save_file(tensors, part, metadata={"format": FORMAT})
        except SafetensorError as error:  # raised for a full disk
            raise DataError(f"{folder / WEIGHTS_FILE}: cannot be written ({error})") from None
        digest = _file_digest(part)
        if digests:  # a killed process leaves either weights beside the digests of both
            _write_navigator_file(folder, config, [digest, *digests])
    _write_navigator_file(folder, config, [digest])
    return folder


def load_run(folder: str | Path, *, device: torch.device | str = "cpu", is_paranoid: bool = False) -> Run:
    """Return the navigator of a run folder, in evaluation mode.

    Weights that were checked before are not read again if their size and time stamps are the same, unless
    `is_paranoid`. Raise `CheckpointError` if the weights are damaged or do not fit the config.
    """
    folder = Path(folder)
    config, digests = _read_navigator_file(folder)
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; a run folder has its weights there")
    try:
        stored = StoredDigest(folder / DIGESTS_FILE, "weights", [path], is_trusted=not is_paranoid)
        digest = stored.value or _file_digest(path)
        if digest not in digests:  # the run may have been saved again meanwhile
            config, digests = _read_navigator_file(folder)
        if digest not in digests:
            raise CheckpointError(
                f"{path}: damaged or replaced, its sha256 is not the one in {NAVIGATOR_FILE}; restore both "
                "files, or import or train the run again"
            )
        tensors = _read_tensors(path, device)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: not a complete safetensors file ({error})") from None
    navigator = _build_on_meta(config, len(tensors), file=path)
    load_navigator_weights(navigator, tensors, file=path, are_finite=stored.value is not None)
    if any(buffer.is_meta for buffer in navigator.buffers()):  # computed by the constructor, not saved
        navigator = config.build()
        load_navigator_weights(navigator, tensors, file=path, are_finite=True)
    stored.save(digest)
    return Run(folder, config, navigator.to(device).eval(), digest)


def _read_tensors(path: Path, device: torch.device | str) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file. Those of a layer share a mapping of the file.

    Memory of a layer is therefore returned when the layer is replaced; a single mapping would be kept whole.
    """
    with safe_open(path, framework="pt") as file:
        names = sorted(file.keys())
    tensors: dict[str, Tensor] = {}
    for _, layer in groupby(names, key=lambda name: name.split(".")[:LAYER_DEPTH]):
        with safe_open(path, framework="pt", device=str(device)) as file:
            tensors.update((name, file.get_tensor(name)) for name in layer)
    return tensors


def read_navigator_config(folder: Path) -> NavigatorConfig:
    """Return the navigator config in a run folder."""
    config, _ = _read_navigator_file(folder)
    return config


def _read_navigator_file(folder: Path) -> tuple[NavigatorConfig, list[str]]:
    """Return the navigator config in a run folder, and the SHA-256 digests that the weights may have.

    There are two digests, of the old and of the new weights, while a run is saved again.
    """
    path = folder / NAVIGATOR_FILE
    if not path.is_file():
        what = "is not a folder" if not folder.is_dir() else f"has no {NAVIGATOR_FILE}"
        raise CheckpointError(f"{folder}: {what}; expected a run folder of `esceme import` or `esceme train`")
    stored = read_json(path, dict[str, Any])
    if stored.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: format {stored.get('format')!r}, expected '{FORMAT}'; load it with the version that "
            "wrote it, or import or train the run again"
        )
    try:
        digests = msgspec.convert(stored.pop(DIGESTS_KEY, None), list[str])
        settings = {name: value for name, value in stored.items() if name not in ("format", "version")}
        return from_json(settings, NavigatorConfig), digests
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path}: {DIGESTS_KEY}: {error}") from None


def _write_navigator_file(folder: Path, config: NavigatorConfig, digests: list[str]) -> None:
    stored = {"format": FORMAT, "version": __version__, DIGESTS_KEY: digests, **as_json(config)}
    write_json(folder / NAVIGATOR_FILE, stored, indent=2)


def _digests_beside(folder: Path, config: NavigatorConfig) -> list[str]:
    """Return a list of the SHA-256 digest of a run folder's weights if its config equals `config`.

    The list is empty if the config differs.
    """
    with suppress(EscemeError):
        stored, digests = _read_navigator_file(folder)
        return digests if stored == config else []
    return []


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _build_on_meta(config: NavigatorConfig, num_tensors: int, *, file: object) -> Navigator:
    """Build a navigator without weights, to which `num_tensors` tensors of `file` are to be assigned.

    Raise `CheckpointError` early if `config` describes far more or far larger layers than the file can hold.
    """
    num_parameters = 0

    def count_parameter(*parameter: object) -> None:
        nonlocal num_parameters
        num_parameters += 1
        if num_parameters > 2 * num_tensors + 100:
            raise CheckpointError(
                f"{file}: holds {num_tensors} tensors, and {NAVIGATOR_FILE} describes a network of more than "
                f"{num_parameters}; restore both files, or import or train the run again"
            )

    hook = register_module_parameter_registration_hook(count_parameter)
    try:
        with torch.device("meta"), _NoRandomWeights():
            return config.build()
    except (RuntimeError, OverflowError, TypeError, ValueError) as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # torch fails when it is interrupted here
            raise KeyboardInterrupt from None
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{file}: no network has the sizes in {NAVIGATOR_FILE} ({reason})") from None
    finally:
        hook.remove()


class _NoRandomWeights(TorchFunctionMode):
    """Context in which `normal_` changes nothing. On the meta device, it would import torch's compiler."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return kwargs["tensor"] if func is normal_ else func(*args, **kwargs)


def load_navigator_weights(
    navigator: Navigator, tensors: dict[str, torch.Tensor], *, file: object, are_finite: bool = False
) -> None:
    """Copy tensors, by parameter name, into a navigator. `file` is their source in error messages.

    Values are not read if they are known to be finite (`are_finite`).

    Raise `CheckpointError` if tensors are missing or unknown, or have a wrong shape or non-finite values. The
    message names all of these tensors, and the navigator does not change.
    """
    expected = navigator.state_dict()
    both = sorted(set(expected) & set(tensors))
    typed = [name for name in both if tensors[name].dtype == expected[name].dtype]
    faults = {
        "missing": sorted(set(expected) - set(tensors)),
        "unknown": sorted(set(tensors) - set(expected)),
        "with a wrong shape": [
            f"{name} (expected {tuple(expected[name].shape)}, found {tuple(tensors[name].shape)})"
            for name in both
            if tensors[name].shape != expected[name].shape
        ],
        "of a wrong type": [f"{name} ({tensors[name].dtype})" for name in both if name not in typed],
        "not finite": [name for name in typed if not are_finite and not _is_finite(tensors[name])],
    }
    found = [f"{len(names)} {what}: {', '.join(names)}" for what, names in faults.items() if names]
    if found:
        raise CheckpointError(
            f"{file}: the weights do not fit {NAVIGATOR_FILE}; {'; '.join(found)}; "
            "import or train the run again, or restore both files"
        )
    navigator.load_state_dict(tensors, assign=True)


def _is_finite(tensor: torch.Tensor) -> bool:
    """Return whether all values are finite. A finite sum shows it, in a twentieth of the time of isfinite."""
    return math.isfinite(float(tensor.sum())) or bool(tensor.isfinite().all())


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
    """Return the config of type `kind` in a JSON object that has every field.

    Messages name `path`, the position of this object in its file. Raise `ConfigError` if a name is unknown or
    missing, or a value has the wrong type or is out of range.
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
    if missing := [f"{path}{name}" for name in types if name not in stored]:
        raise ConfigError(f"missing: {', '.join(missing)}")
    try:
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(f"{path}{error}") from None


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
    """Return a JSON object as a dict. Raise `ConfigError`, which names `where`, for another value."""
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected an object, found {value!r}")
    return dict(value)
