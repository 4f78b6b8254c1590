"""An experiment: what is trained, on what, and how; composed of the small configs of the parts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from esceme.agents import AGENTS
from esceme.errors import ConfigError
from esceme.evaluation.options import SCRIPTED
from esceme.learning import Training, Validation
from esceme.memory import READERS

PARTS: dict[str, dict[str, Any]] = {"agent": AGENTS, "reader": READERS}
"""What an experiment chooses by name, and what there is to choose from; each has settings of its own."""
Settings = dict[str, Any]
"""The fields of an agent's or a reader's config."""
SPOKEN = {int: "a whole number", float: "a number", bool: "true or false"}
"""Types as a person calls them."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One row of a table: everything that determines trained weights, but for the data itself."""

    about: str = ""
    """What it is, in a line."""
    differences: tuple[str, ...] = ()
    """Where the paper and the released script do not agree, and which is followed here."""
    task: str = "r2r"
    max_steps: int = 15
    max_tokens: int = 60
    keep: Literal["first", "last"] = "first"
    text: Literal["encoded", "words"] = "encoded"
    """Ids as stored or by the data's WordPiece vocabulary; or a vocabulary of its own, made from the words of
    the training split."""
    rarest: int = 3
    """How often a word must occur to enter a vocabulary of its own."""
    word_vectors: tuple[str, ...] = ()
    """Where a grounding head's words come from: prefixes of PREFIX_vocab.txt and PREFIX_glove.npy below the
    data folder; none: drawn."""
    features: str = ""
    """A name or a path of a feature file; by default the only one of the data folder."""
    agent: str = "hamt"
    agent_settings: Settings = field(default_factory=dict)
    reader: str = "unaided"
    reader_settings: Settings = field(default_factory=dict)
    feature_dropout: float = 0.4
    start: str = ""
    """A run folder whose weights it begins with; what that lacks is drawn."""
    hold_out: int = 0
    """So many scenes of the training split are set aside as the split `held_out`, to choose settings by."""
    training: Training = field(default_factory=Training)
    validation: Validation = field(default_factory=Validation)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_steps", "max_tokens", "rarest"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, found {getattr(self, name)}")
        for name in ("hold_out", "seed"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: expected 0 or more, found {getattr(self, name)}")
        if self.seed >= 2**63:
            raise ConfigError(f"seed: expected a number below 2 ** 63, found {self.seed}")
        _require_share("feature_dropout", self.feature_dropout)
        agent, _ = (_config_of(self, part) for part in PARTS)
        if self.agent in SCRIPTED:
            raise ConfigError(f"agent '{self.agent}' follows a script: there is nothing it could learn")
        for name, table, wanted in (
            ("max_steps", "max_steps", self.max_steps),
            ("max_tokens", "positions", self.max_tokens),
        ):
            if (rows := getattr(agent, table, None)) is not None and wanted > rows:
                raise ConfigError(
                    f"{name} {getattr(self, name)}: the agent has no more than {rows} rows for them; "
                    f"give --agent.{table.replace('_', '-')} {wanted}"
                )


def with_settings(experiment: Experiment, said: Mapping[str, str]) -> Experiment:
    """An experiment with some fields set to what a person wrote, all at once.

    A field is called by its full name, `training.batch`, or by its last part where there is only one such.
    Settings of an agent or a reader fall away where another one takes its place.

    >>> made = with_settings(Experiment(), {"training.batch": "4", "hidden": "96", "splits": "val_unseen"})
    >>> made.training.batch, made.agent_settings, made.validation.splits
    (4, {'hidden': 96}, ('val_unseen',))
    """
    for part in PARTS:
        if (name := said.get(part, getattr(experiment, part))) != getattr(experiment, part):
            experiment = replace(experiment, **{part: name, f"{part}_settings": {}})
    known, changes = dict(settable(experiment)), dict[tuple[str, ...], Any]()
    for name, text in said.items():
        path, kind = _find(name, known)
        place = (f"{path[0]}_settings", path[1]) if _is_setting(path) else path
        changes[place] = _read(f"--{'.'.join(path)}", kind, text)
    return _changed(experiment, changes)


def settable(experiment: Experiment) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The path and the type of every field that can be set."""
    yield from _fields_of(Experiment, ())
    for part, known in PARTS.items():
        yield from _fields_of(known[getattr(experiment, part)].Config, (part,))


def value_of(experiment: Experiment, path: tuple[str, ...]) -> Any:
    """What a field is set to; for a setting of an agent or a reader that is not set, its default."""
    value: Any = _config_of(experiment, path[0]) if _is_setting(path) else getattr(experiment, path[0])
    for name in path[1:]:
        value = getattr(value, name)
    return value


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the closest ones, or all of a few."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; there are {', '.join(names)}" if len(names) <= 12 else ""


def as_json(experiment: Experiment) -> dict[str, Any]:
    """An experiment as it is written to a run folder."""
    return msgspec.json.decode(msgspec.json.encode(experiment))


def from_json(stored: Mapping[str, Any]) -> Experiment:
    """An experiment as it was written; raises `ConfigError` where it is of another version."""
    try:
        return msgspec.convert(stored, Experiment)
    except msgspec.ValidationError as error:
        raise ConfigError(f"not an experiment of this version: {error}") from None


def _is_setting(path: tuple[str, ...]) -> bool:
    """Whether a field belongs to the config of the agent or the reader."""
    return len(path) == 2 and path[0] in PARTS


def _config_of(experiment: Experiment, part: str) -> Any:
    """The config of the agent or the reader; raises `ConfigError` for settings that it cannot have."""
    name, settings = getattr(experiment, part), getattr(experiment, f"{part}_settings")
    if name not in PARTS[part]:
        raise ConfigError(f"no {part} '{name}'{did_you_mean(name, PARTS[part])}")
    maker = PARTS[part][name].Config
    known = [each.name for each in fields(maker)]
    for setting in settings:
        if setting not in known:
            raise ConfigError(f"{part} '{name}' has no setting '{setting}'{did_you_mean(setting, known)}")
    try:
        config = msgspec.convert(settings, maker)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{part} '{name}': {error}") from None
    for setting in known:
        if setting.endswith("dropout") and (value := getattr(config, setting)) is not None:
            _require_share(setting, value)
    return config


def _require_share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ConfigError(f"{name}: expected a share from 0 to below 1, found {value}")


def _fields_of(config: type, before: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    hints = get_type_hints(config)
    for each in fields(config):
        kind = hints[each.name]
        if is_dataclass(kind):
            yield from _fields_of(kind, (*before, each.name))  # type: ignore[arg-type]
        elif kind != Settings and each.name not in ("about", "differences"):
            yield (*before, each.name), kind


def _find(name: str, known: Mapping[tuple[str, ...], Any]) -> tuple[tuple[str, ...], Any]:
    """The path and type of the field that a person means."""
    wanted = tuple(name.replace("-", "_").split("."))
    if wanted in known:
        return wanted, known[wanted]
    fitting = [path for path in known if path[-len(wanted) :] == wanted]
    if len(fitting) == 1:
        return fitting[0], known[fitting[0]]
    if fitting:
        full = " or ".join(f"--{'.'.join(path)}" for path in fitting)
        raise ConfigError(f"--{name}: there are several such fields; say {full}")
    names = {".".join(path) for path in known} | {path[-1] for path in known}
    raise ConfigError(f"no field '{name}'{did_you_mean('.'.join(wanted), sorted(names))}")


def _read(option: str, kind: Any, text: str) -> Any:
    """What a person wrote for a field, as a value of its type."""
    if text == "none" and NoneType in get_args(kind):
        return None
    if get_origin(kind) is Literal and text not in get_args(kind):
        raise ConfigError(f"{option} {text}: expected one of {', '.join(get_args(kind))}")
    written = [part for part in text.split(",") if part] if get_origin(kind) is tuple else text
    try:
        return msgspec.convert(written, kind, strict=False)
    except msgspec.ValidationError:
        expected = SPOKEN.get(kind) or str(kind).replace(" | ", " or ")
        raise ConfigError(f"{option} {text}: expected {expected}") from None


def _changed(config: Any, changes: Mapping[tuple[str, ...], Any]) -> Any:
    """A config, or settings, with some fields set at once, however deep inside they are."""
    values = {}
    for first in dict.fromkeys(path[0] for path in changes):
        within = {path[1:]: value for path, value in changes.items() if path[0] == first}
        values[first] = within[()] if () in within else _changed(getattr(config, first), within)
    return {**config, **values} if isinstance(config, dict) else replace(config, **values)
