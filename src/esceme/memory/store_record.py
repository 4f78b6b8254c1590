"""`StoredObservation`: a visit of a robot to a viewpoint, as a store keeps it, with digest and checksum."""

from __future__ import annotations

import hashlib
import math
import zlib
from functools import cached_property
from typing import Annotated, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from esceme.errors import DataError, MemoryMismatch
from esceme.files import PrintableText
from esceme.memory.scene import Pooling

StorePrecision = Literal["half", "single"]
DTYPES: dict[str, torch.dtype] = {"half": torch.float16, "single": torch.float32}
MAX_SEQUENCE = 2**62
Position = tuple[float, float, float]


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of all vectors of a store. Stores with different settings cannot be merged."""

    width: Annotated[int, msgspec.Meta(ge=1, le=65_536)]
    pooling: Pooling = "max"
    precision: StorePrecision = "single"
    """Precision of stored vectors: half (2 bytes per number) or single (4 bytes)."""
    source: PrintableText = ""
    """Name of the feature file, or of the camera and network."""
    encoder: PrintableText = ""
    """Digest of what makes the features: `features_digest`, or the SHA-256 of a network's weights."""

    def check(self, other: StoreSettings, store: object, *, same_precision: bool = True) -> None:
        """Raise `MemoryMismatch` if `other`, the settings that a user of the store expects, differ."""
        for name in ("width", "source", "encoder", "pooling", *(["precision"] if same_precision else [])):
            stored, found = getattr(self, name), getattr(other, name)
            if stored != found:
                raise MemoryMismatch(
                    f"{store}: holds features of {name} {stored!r}, expected {found!r}; use the features "
                    "that the store was built with, or a new store for the other features"
                )

    def encode(self, vector: Tensor) -> bytes:
        """Return a vector (D,) as little-endian bytes in the precision of the store."""
        return vector.detach().cpu().to(DTYPES[self.precision]).numpy().tobytes()

    def decode(self, vectors: bytes) -> Tensor:
        """Return the vectors (n, D) of joined bytes, as float32."""
        numbers = np.frombuffer(vectors, dtype="<f2" if self.precision == "half" else "<f4")
        return torch.from_numpy(numbers.astype(np.float32).reshape(-1, self.width))


class StoredObservation(msgspec.Struct, frozen=True, kw_only=True, dict=True, omit_defaults=True):
    """One visit to one viewpoint. `(robot, session, sequence)` is its key."""

    robot: PrintableText
    session: PrintableText
    sequence: int
    """Number of the observation in its session, from 0. Sequences, not clocks, order a session."""
    scene: PrintableText
    viewpoint: PrintableText
    vector: bytes
    """Pooled features (D,), in the precision of the store."""
    neighbours: tuple[PrintableText, ...] = ()
    """Adjacent viewpoints, visited or not."""
    time: float = 0.0
    """Seconds since 1970 by the robot's clock. It is displayed and queried, and orders nothing."""
    position: Position | None = None
    """Coordinates in metres."""
    covariance: tuple[float, ...] | None = None
    """Covariance of the position, 9 numbers by rows, in square metres."""
    features: bytes | None = None
    """Features of the single views (V, D), in the precision of the store."""
    thumbnail: bytes | None = None
    """A small picture, as a JPEG or PNG file."""
    stamp: int = 0
    """Logical time: at least 1, larger than all stamps in the store when the observation became durable; 0
    before that. Among observations of one place, that of the smallest stamp was durable first."""

    @property
    def key(self) -> tuple[str, str, int]:
        """`(robot, session, sequence)`."""
        return self.robot, self.session, self.sequence

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the key and of everything observed, without time and stamp."""
        content = (*self.key, self.scene, self.viewpoint, self.vector, self.neighbours)
        extras = (self.position, self.covariance, self.features, self.thumbnail)
        return hashlib.sha256(msgspec.msgpack.encode((*content, *extras))).hexdigest()

    @property
    def checksum(self) -> int:
        """CRC-32 of digest, time and stamp, by which damaged rows are found."""
        return zlib.crc32(f"{self.digest} {self.time!r} {self.stamp}".encode())

    @property
    def order(self) -> tuple[int, str, str, int, str]:
        """Sort key of the observations of a place: first durable first, then by key. No clock is involved."""
        return self.stamp, *self.key, self.digest

    def fault(self, settings: StoreSettings) -> str:
        """Return what is wrong with the values; empty if nothing is."""
        size = settings.width * DTYPES[settings.precision].itemsize
        numbers = (self.time, *(self.position or ()), *(self.covariance or ()))
        if not (self.robot and self.session and self.scene and self.viewpoint):
            return "expected names of robot, session, scene and viewpoint, found an empty one"
        if not 0 <= self.sequence < MAX_SEQUENCE:
            return f"expected a sequence of at least 0, found {self.sequence}"
        if len(self.vector) != size or (self.features is not None and len(self.features) % size):
            return f"expected {size} bytes per vector of width {settings.width}, found {len(self.vector)}"
        if self.covariance is not None and len(self.covariance) != 9:
            return f"expected 9 numbers of a covariance, found {len(self.covariance)}"
        vectors = (self.vector, self.features or b"")
        if not all(map(math.isfinite, numbers)) or not all(
            bool(settings.decode(part).isfinite().all()) for part in vectors
        ):
            return "expected finite numbers, found NaN, infinity or overflow in the store's precision"
        return ""

    def checked(self, settings: StoreSettings) -> StoredObservation:
        """Return this observation as it will be read from a store; raise `DataError` if a value is wrong."""
        position = self.position and tuple(number + 0.0 for number in self.position)  # SQLite has no -0.0
        plain = msgspec.structs.replace(self, time=self.time + 0.0, position=position)
        try:
            converted = msgspec.convert(msgspec.to_builtins(plain, builtin_types=(bytes,)), StoredObservation)
            fault = converted.fault(settings)
        except (msgspec.ValidationError, TypeError) as error:
            fault = str(error)
        if fault:
            raise DataError(f"observation {self.sequence} of '{self.robot}' at '{self.viewpoint}': {fault}")
        return converted
