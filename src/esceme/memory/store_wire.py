"""Observations as one safetensors body: the format that services and clients exchange.

The tensor `vectors` (n, D) holds the pooled vectors in the precision of the store; `features.i` (V, D) and
`thumbnail.i` (bytes) belong to observation i where it has them. All else is JSON in the metadata, under
`observations`: a list with null where nothing is recalled, whose vectors are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import safetensors
from safetensors.numpy import save

from esceme.errors import DataError
from esceme.files import JSON_ERRORS
from esceme.memory.store_record import StoredObservation, StoreSettings

CONTENT_TYPE = "application/x-safetensors"
_NUMPY = {"half": "<f2", "single": "<f4"}
_SAFETENSORS = {"half": "F16", "single": "F32"}
_BINARY = ("vector", "features", "thumbnail")
_FIELDS = [name for name in StoredObservation.__struct_fields__ if name not in _BINARY]


class _Header(msgspec.Struct):
    metadata: dict[str, str] = msgspec.field(name="__metadata__", default_factory=dict)


def encode_observations(
    observations: Sequence[StoredObservation | None], settings: StoreSettings, **metadata: object
) -> bytes:
    """Return the body with some observations; `metadata` is further JSON."""
    dtype = _NUMPY[settings.precision]
    found = [item for item in observations if item is not None]
    joined = np.frombuffer(b"".join(item.vector for item in found), dtype)
    tensors: dict[str, Any] = {"vectors": joined.reshape(len(found), settings.width)}
    for index, item in enumerate(observations):
        if item is not None and item.features is not None:
            tensors[f"features.{index}"] = np.frombuffer(item.features, dtype).reshape(-1, settings.width)
        if item is not None and item.thumbnail is not None:
            tensors[f"thumbnail.{index}"] = np.frombuffer(item.thumbnail, np.uint8)
    fields = [item and {name: getattr(item, name) for name in _FIELDS} for item in observations]
    texts = {"observations": fields, **metadata}
    return save(tensors, {name: msgspec.json.encode(value).decode() for name, value in texts.items()})


def decode_observations(body: bytes, settings: StoreSettings) -> list[StoredObservation | None]:
    """Return the observations of a body; raise `DataError` if it is malformed."""
    tensors, metadata = decode_tensors(body)
    fields = decode_json(metadata.get("observations", ""), list[dict[str, Any] | None])
    size = settings.width * np.dtype(_NUMPY[settings.precision]).itemsize
    number = sum(item is not None for item in fields)
    vectors = _data(tensors, "vectors", settings, [number, settings.width])
    rows: Iterator[bytes] = (vectors[start : start + size] for start in range(0, number * size, size))
    observations: list[StoredObservation | None] = []
    for index, item in enumerate(fields):
        if item is None:
            observations.append(None)
            continue
        binary = {"vector": next(rows), "features": None, "thumbnail": None}
        if f"features.{index}" in tensors:
            binary["features"] = _data(tensors, f"features.{index}", settings)
        if f"thumbnail.{index}" in tensors:
            binary["thumbnail"] = bytes(tensors[f"thumbnail.{index}"]["data"])
        try:
            observations.append(msgspec.convert(item | binary, StoredObservation))
        except (msgspec.ValidationError, OverflowError) as error:
            raise DataError(f"observation {index}: {error}") from None
    return observations


def decode_vector(body: bytes, settings: StoreSettings) -> tuple[bytes, str]:
    """Return the tensor `vector` (D,) of a body, in the precision of the store, and its metadata `query`."""
    tensors, metadata = decode_tensors(body)
    return _data(tensors, "vector", settings, [settings.width]), metadata.get("query", "{}")


def decode_metadata(body: bytes, name: str, kind: Any) -> Any:
    """Return one JSON value of the metadata."""
    return decode_json(decode_tensors(body)[1].get(name, ""), kind)


def decode_tensors(body: bytes) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return tensors (dtype, shape, data) and metadata of a safetensors body; or raise `DataError`."""
    try:
        tensors = dict(safetensors.deserialize(body))  # type: ignore[no-untyped-call]
        end = 8 + int.from_bytes(body[:8], "little")
        header = msgspec.json.decode(body[8:end], type=_Header)
    except (safetensors.SafetensorError, *JSON_ERRORS, ValueError) as error:
        raise DataError(f"expected a safetensors body: {error}") from None
    return tensors, header.metadata


def decode_json(text: str | bytes, kind: Any) -> Any:
    """Return the value of a JSON text; raise `DataError` if it is malformed."""
    try:
        return msgspec.json.decode(text, type=kind)
    except JSON_ERRORS as error:
        raise DataError(f"malformed JSON: {error}") from None


def _data(
    tensors: dict[str, dict[str, Any]], name: str, settings: StoreSettings, shape: list[int] | None = None
) -> bytes:
    """Return the bytes of a tensor after checking dtype and shape, by default (V, D)."""
    tensor = tensors.get(name)
    if tensor is None:
        raise DataError(f"expected a tensor '{name}', found {', '.join(sorted(tensors)[:3]) or 'none'}")
    found = list(tensor["shape"])
    fits = found == shape if shape is not None else len(found) == 2 and found[1] == settings.width
    if tensor["dtype"] != _SAFETENSORS[settings.precision] or not fits:
        expected = f"{_SAFETENSORS[settings.precision]} of shape {shape or f'[V, {settings.width}]'}"
        raise DataError(f"tensor '{name}': expected {expected}, found {tensor['dtype']} of {found}")
    return bytes(tensor["data"])


def encode_frames(pages: Iterable[bytes]) -> Iterator[bytes]:
    """Yield bodies behind their sizes (8 bytes, little-endian), as a stream. A size of 0 ends it."""
    for page in pages:
        yield len(page).to_bytes(8, "little") + page
    yield bytes(8)
