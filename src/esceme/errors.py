"""Errors with messages for the user: what was expected, what was found, what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class EscemeError(Exception):
    r"""Base class of errors whose message is for the user. Other exceptions are bugs.

    A message is one line. Control characters and line ends, which a quoted file may hold, are escaped.

    >>> print(DataError("no scene '\x1b[2J\n'"))
    no scene '\x1b[2J\n'
    """

    def __str__(self) -> str:
        return escape_control_characters(super().__str__())


class DataError(EscemeError):
    """A file or a record in a file is missing or malformed, or contradicts another file."""


class WorldError(EscemeError):
    """A scene, viewpoint or move does not exist in the loaded world."""


class ConfigError(EscemeError):
    """A setting is out of range, or two settings contradict each other."""


class MemoryMismatch(EscemeError):  # noqa: N818
    """Features differ from the features in a memory, by width, source or pooling."""


class CheckpointError(EscemeError):
    """A weights file is malformed or does not fit the network."""


class TrainingError(EscemeError):
    """Training has produced non-finite values."""


class EvaluationError(EscemeError):
    """A navigator has produced non-finite scores."""


def escape_control_characters(text: str, *, keep: str = "") -> str:
    r"""Return `text` with non-printing characters, except those in `keep`, written as escape sequences.

    >>> print(escape_control_characters("\x1b[2J, \u202e and\n", keep="\n").strip())
    \x1b[2J, \u202e and
    """
    return "".join(
        character if character.isprintable() or character in keep else repr(character)[1:-1]
        for character in text
    )


@contextmanager
def prefix_errors(*, file: object, record: object = None) -> Iterator[None]:
    """Convert an `EscemeError` raised in the `with` block to a `DataError` that names file and record.

    >>> with prefix_errors(file="R2R_val.json", record="episode 12_0"):
    ...     raise WorldError("viewpoint 'ab' is not in scene 'house'")
    Traceback (most recent call last):
    esceme.errors.DataError: R2R_val.json: episode 12_0: viewpoint 'ab' is not in scene 'house'
    """
    try:
        yield
    except EscemeError as error:
        prefix = f"{file}: {record}" if record is not None else f"{file}"
        raise DataError(f"{prefix}: {error}") from error
