"""An experiment: what is trained, on what, and how; composed of the small configs of the parts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, get_origin, get_type_hints

import msgspec

from esceme.agents import AGENTS
from esceme.errors import ConfigError
from esceme.learning import Training, Validation
from esceme.memory import READERS
from esceme.runs import Settings


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
        for what, name, known in (("agent", self.agent, AGENTS), ("reader", self.reader, READERS)):
            if name not in known:
                raise ConfigError(f"no {what} '{name}'{did_you_mean(name, known)}")
        if not 0 <= self.feature_dropout < 1:
            raise ConfigError(f"feature_dropout: expected a share below 1, found {self.feature_dropout}")


def with_settings(experiment: Experiment, said: Mapping[str, str]) -> Experiment:
    """An experiment with some fields set to what a person wrote.

    A field is called by its full name, `training.batch`, or by its last part where there is only one such.

    >>> made = with_settings(Experiment(), {"training.batch": "4", "hidden": "64", "splits": "val_unseen"})
    >>> made.training.batch, made.agent_settings, made.validation.splits
    (4, {'hidden': 64}, ('val_unseen',))
    """
    for name, text in said.items():
        path, kind = _find(name, dict(settable(experiment)))
        written: object = text
        if get_origin(kind) is tuple:
            written = [part for part in text.split(",") if part]
        try:
            value = msgspec.convert(written, kind, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"--{'.'.join(path)} {text}: {error}") from None
        experiment = _set(experiment, path, value)
    return experiment


def settable(experiment: Experiment) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The path and the type of every field that can be set."""
    yield from _fields_of(Experiment, ())
    for part, maker in _makers(experiment).items():
        yield from _fields_of(maker.Config, (part,))


def value_of(experiment: Experiment, path: tuple[str, ...]) -> Any:
    """What a field is set to; for a setting of an agent or a reader that is not set, its default."""
    if len(path) == 2 and path[0] in ("agent", "reader"):
        given: Settings = getattr(experiment, f"{path[0]}_settings")
        return given.get(path[1], getattr(_makers(experiment)[path[0]].Config(), path[1]))
    value: Any = experiment
    for name in path:
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
    return msgspec.to_builtins(asdict(experiment))


def from_json(stored: Mapping[str, Any]) -> Experiment:
    """An experiment as it was written; raises `ConfigError` where it is of another version."""
    try:
        return msgspec.convert(stored, Experiment)
    except msgspec.ValidationError as error:
        raise ConfigError(f"not an experiment of this version: {error}") from None


def _makers(experiment: Experiment) -> dict[str, Any]:
    return {"agent": AGENTS[experiment.agent], "reader": READERS[experiment.reader]}


def _fields_of(config: type, before: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    hints = get_type_hints(config)
    for each in fields(config):
        kind = hints[each.name]
        if is_dataclass(kind):
            yield from _fields_of(kind, (*before, each.name))  # type: ignore[arg-type]
        elif kind is not Settings and each.name not in ("about", "differences"):
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


def _set(experiment: Experiment, path: tuple[str, ...], value: Any) -> Any:
    if len(path) == 2 and path[0] in ("agent", "reader"):
        name = f"{path[0]}_settings"
        return _with(experiment, (name,), {**getattr(experiment, name), path[1]: value})
    return _with(experiment, path, value)


def _with(config: Any, path: tuple[str, ...], value: Any) -> Any:
    """A frozen config with a field deep inside set."""
    first, *rest = path
    inner = value if not rest else _with(getattr(config, first), tuple(rest), value)
    return replace(config, **{first: inner})
