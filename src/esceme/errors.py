"""The errors ESceme raises on purpose: each says what was expected, what came, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class EscemeError(Exception):
    """The root of every error that is a message to the user, not a bug."""


class DataError(EscemeError):
    """A file, or a record in it, is missing, malformed or contradicts another file."""


class WorldError(EscemeError):
    """A scene, viewpoint or move was asked for that does not exist in the loaded world."""


class ConfigError(EscemeError):
    """Two settings contradict each other, or one is out of range."""


class MemoryMismatch(EscemeError):  # noqa: N818
    """A memory was asked to work with features of another width, source or pooling than its own."""


class CheckpointError(EscemeError):
    """A file of weights is not what it should be, or does not fit the network it is loaded into."""


class TrainingError(EscemeError):
    """Training cannot go on: what it computes is no longer a number."""


@contextmanager
def prefix_errors(*, file: object, record: object = None) -> Iterator[None]:
    """Turn an error raised inside into a `DataError` that names the file and the record.

    >>> with prefix_errors(file="R2R_val.json", record="episode 12_0"):
    ...     raise WorldError("viewpoint 'ab' is not in scene 'house'")
    Traceback (most recent call last):
    esceme.errors.DataError: R2R_val.json: episode 12_0: viewpoint 'ab' is not in scene 'house'
    """
    try:
        yield
    except EscemeError as error:
        place = f"{file}: {record}" if record is not None else f"{file}"
        raise DataError(f"{place}: {error}") from error
