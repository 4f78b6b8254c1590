"""Seeded damage to the bytes of a file: random bytes, or changes inside its format."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import h5py
import numpy as np
from PIL import Image

Ranges = Mapping[str, Sequence[Any]]
"""JSON key -> values that the reader has to refuse."""
CONTROL = ["\x1b[31mred", "\x1b]0;title\x07", "\x00", "line\nbreak", "\r", "\u202egnp", "\ud800", "\x9b2J"]
JUNK: list[Any] = [
    *(None, True, False, 0, -1, -3, 0.5, 2**31, 2**53 + 1, 2**63, 2**64, 10**40, 1e308, -1e308, 1e-320),
    *(
        "",
        " ",
        "x",
        "0",
        "-1",
        "nan",
        "../../x",
        "a/b",
        [],
        [[]],
        {},
        {"a": 1},
        [None],
        [0] * 50,
        "\u00e9" * 9,
    ),
]
NOT_JSON = ["NaN", "-Infinity", "1e309", "-1e999", "1" * 5000, "01", "'x'", "truE", "\x00", "[" * 50_000]
DEEP = ["[" * 900 + "]" * 900, "[" * 60_000 + "]" * 60_000, '{"a":' * 3000 + "1" + "}" * 3000]
BOMB = 200 << 20
"""Number of bytes that a compressed file or an array expands to."""


class Mutation(NamedTuple):
    """The damaged bytes of a file."""

    name: str
    data: bytes
    must_refuse: bool = False
    """Whether the content is wrong in itself: NaN, a value out of range, not JSON, against a checksum."""


def mutate(rng: Random, file: str, data: bytes, ranges: Ranges | None = None) -> Mutation:
    """Damage the content of a file by random bytes or, more often, by the rules of its format."""
    if rng.random() < 0.3:
        has_checksum = file.endswith(".gz") or zipfile.is_zipfile(io.BytesIO(data))
        return _damage_bytes(rng, data)._replace(must_refuse=has_checksum)
    return _damage_format(rng, file, data, ranges or {})


def _damage_format(rng: Random, file: str, data: bytes, ranges: Ranges) -> Mutation:
    if file.endswith(".gz"):
        if rng.random() < 0.03:
            return Mutation("gzip bomb", data + gzip_bomb())
        inner = mutate(rng, file.removesuffix(".gz"), gzip.decompress(data), ranges)
        return inner._replace(data=gzip.compress(inner.data, 1, mtime=0))
    suffix = Path(file).suffix
    formats: dict[str, Callable[..., Mutation]] = {
        **{".json": _damage_json, ".jsonl": _damage_json_lines, ".txt": _damage_text, ".npy": _damage_npy},
        **{".hdf5": _damage_hdf5, ".safetensors": _damage_safetensors, ".jpg": _damage_image},
    }
    if suffix in (".json", ".jsonl", ".safetensors"):
        return formats[suffix](rng, data, ranges)
    if suffix in formats:
        return formats[suffix](rng, data)
    return _damage_zip(rng, data) if zipfile.is_zipfile(io.BytesIO(data)) else _damage_bytes(rng, data)


# -- bytes -------------------------------------------------------------------------------------------------


def _damage_bytes(rng: Random, data: bytes) -> Mutation:
    size = len(data)
    start = rng.randrange(size) if size else 0
    stop = min(size, start + rng.choice([1, 4, 64, 400, size]))
    part = data[start:stop]
    match rng.choice(
        ["truncate", "flip", "zero", "insert", "duplicate", "swap", "empty", "append", "random"]
    ):
        case "truncate":
            return Mutation("truncate", data[:start])
        case "flip":
            changed = bytearray(data)
            for _ in range(rng.choice([1, 1, 1, 8]) if size else 0):
                changed[rng.randrange(size)] ^= 1 << rng.randrange(8)
            return Mutation("flip bits", bytes(changed))
        case "zero":
            return Mutation("zero a run", data[:start] + bytes(len(part)) + data[stop:])
        case "insert":
            return Mutation("insert", data[:start] + rng.randbytes(rng.choice([1, 7, 100])) + data[start:])
        case "duplicate":
            return Mutation("duplicate a slice", data[:stop] + part + data[stop:])
        case "swap":
            other = rng.randrange(size + 1)
            first, second = sorted((start, other))
            return Mutation("swap slices", data[second:] + data[first:second] + data[:first])
        case "empty":
            return Mutation("empty", b"")
        case "append":
            return Mutation("append", data + rng.choice([b"\x00", b"\n", b"}", rng.randbytes(64), data[:99]]))
    return Mutation("random bytes", data[:start] + rng.randbytes(len(part)) + data[stop:])


@cache
def gzip_bomb() -> bytes:
    return gzip.compress(b" " * BOMB, 9, mtime=0)


# -- JSON and text -----------------------------------------------------------------------------------------


def _damage_json(rng: Random, data: bytes, ranges: Ranges) -> Mutation:
    document = {"": json.loads(data)}  # so that the value itself can be replaced
    ranged = [(node, key) for node, key in _nodes(document) if key in ranges]
    if ranged and rng.random() < 0.3:
        node, key = rng.choice(ranged)
        bad = rng.choice(ranges[key])
        name = f"{key} = {str(bad)[:20]}"
        while isinstance(node[key], list | dict) and node[key]:
            node = node[key]
            key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
        node[key] = bad
        return Mutation(name, json.dumps(document[""]).encode(), must_refuse=True)
    name, token = _damage_node(rng, *_random_node(rng, document))
    text = json.dumps(document[""])
    if token is not None:
        text = text.replace(f'"{MARK}"', token, 1)
    return Mutation(name, text.encode(), must_refuse=token in NOT_JSON)


MARK = "<placeholder>"


def _damage_node(rng: Random, node: Any, key: Any) -> tuple[str, str | None]:
    """Change one value in place; return what was done, and the text that replaces `MARK` in the file."""
    value = node[key]
    match rng.choice(["junk", "junk", "number", "token", "deep", "delete", "copy", "key", "swap", "text"]):
        case "token":
            node[key] = MARK
            token = rng.choice(NOT_JSON)
            return f"not json: {token[:12]!r}", token
        case "deep":
            node[key] = MARK
            return "deep nesting", rng.choice(DEEP)
        case "number" if isinstance(value, int | float) and not isinstance(value, bool):
            node[key] = rng.choice([-value, value + 1, value * 10**6, value + 0.5, -1, str(value), 2**63])
            return "number", None
        case "delete" if key != "":
            del node[key]
            return "delete key" if isinstance(node, dict) else "delete entry", None
        case "copy" if isinstance(node, list):
            node.insert(rng.randrange(len(node) + 1), value)
            return "duplicate entry", None
        case "copy" if key != "":
            node[key] = MARK
            other = json.dumps(rng.choice(JUNK))
            return "duplicate key", f"{json.dumps(value)}, {json.dumps(str(key))}: {other}"
        case "key" if isinstance(node, dict) and key != "":
            name = rng.choice(["unknown", f"{key}x", *CONTROL, "k" * 100_000])
            node[name] = value if rng.random() < 0.5 else node.pop(key)
            return "unknown or renamed key", None
        case "swap" if len(node) > 1:
            other = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
            node[key], node[other] = node[other], node[key]
            return "swap entries", None
        case "text":
            before = value if isinstance(value, str) else ""
            node[key] = rng.choice([*CONTROL, *(before + text for text in CONTROL), "long" * 25_000])
            return "control characters or a long text", None
    node[key] = rng.choice(JUNK)
    return "junk", None


def _nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a JSON value with each of its keys."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], list | dict):
            yield from _nodes(value[key])


def _random_node(rng: Random, value: Any) -> tuple[Any, Any]:
    while True:
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        inner = value[key]
        if not isinstance(inner, list | dict) or not inner or rng.random() < 0.15:
            return value, key
        value = inner


def _damage_json_lines(rng: Random, data: bytes, ranges: Ranges) -> Mutation:
    lines = data.splitlines(keepends=True)
    number = rng.randrange(len(lines))
    match rng.choice(["line", "line", "line", "delete", "copy", "swap", "blank"]):
        case "line":
            inner = _damage_json(rng, lines[number], ranges)
            lines[number] = inner.data + b"\n"
            return inner._replace(data=b"".join(lines))
        case "delete":
            del lines[number]
        case "copy":
            lines.insert(rng.randrange(len(lines)), lines[number])
        case "swap":
            other = rng.randrange(len(lines))
            lines[number], lines[other] = lines[other], lines[number]
        case "blank":
            lines.insert(number, rng.choice([b"\n", b"null\n", b"{}\n", b"[]\n", b"\xff\xfe\n"]))
    return Mutation("lines", b"".join(lines))


def _damage_text(rng: Random, data: bytes) -> Mutation:
    lines = data.split(b"\n")
    number = rng.randrange(len(lines))
    match rng.choice(["delete", "copy", "swap", "replace", "ends", "mark"]):
        case "delete":
            del lines[number]
        case "copy":
            lines.insert(rng.randrange(len(lines)), lines[number])
        case "swap":
            lines[number], lines[0] = lines[0], lines[number]
        case "replace":
            odd = [b"", b" ", b"\xff\xfe", b"a\x1b[31m", b"\x00", b"w" * 10**6, "\u202e".encode(), b"[PAD]"]
            lines[number] = rng.choice(odd)
        case "ends":
            return Mutation("line ends", data.replace(b"\n", rng.choice([b"\r\n", b"\r", b"\x85", b"\n\n"])))
        case "mark":
            return Mutation("byte order mark", rng.choice([b"\xef\xbb\xbf", b"\xff\xfe"]) + data)
    return Mutation("lines", b"\n".join(lines))


# -- arrays ------------------------------------------------------------------------------------------------


def _damage_npy(rng: Random, data: bytes) -> Mutation:
    array = np.load(io.BytesIO(data))
    kinds = ["value", "value", "type", "shape", "order", "header", "sizes"]
    match rng.choice(kinds):
        case "value":
            return Mutation("not finite", _npy(_with_bad_number(rng, array)), must_refuse=True)
        case "type":
            kind = rng.choice(["<f8", ">f2", "<i8", "<c16", "O", "S4", "?"])
            return Mutation(f"type {kind}", _npy(array.astype(kind), allow_pickle=True))
        case "shape":
            shapes = [array[:-1], array[..., :-1], array.T, array.ravel(), array[:0], array[..., :0]]
            return Mutation("shape", _npy(rng.choice([*shapes, np.float32(1.0), np.repeat(array, 2, 0)])))
        case "order":
            return Mutation("Fortran order", _npy(np.asfortranarray(array)))
        case "header":
            changed = bytearray(data)
            changed[rng.randrange(min(128, len(data)))] = rng.randrange(256)
            return Mutation("header byte", bytes(changed))
    shape = rng.choice([(2**40, *array.shape[1:]), (*array.shape[:-1], 2**40), (2**62, 2**62), (-1, 4)])
    header = io.BytesIO()
    description = {"descr": array.dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, description)
    return Mutation("huge shape", header.getvalue() + data[128:], must_refuse=True)


def _npy(array: Any, **options: bool) -> bytes:
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


def _with_bad_number(rng: Random, array: Any) -> Any:
    changed = array.copy()
    changed.reshape(-1)[rng.randrange(array.size)] = rng.choice([np.nan, np.inf, -np.inf])
    return changed


def _damage_hdf5(rng: Random, data: bytes) -> Mutation:
    out = io.BytesIO(data)
    with h5py.File(out, "r+") as file:
        keys = sorted(file)
        key = keys[0] if rng.random() < 0.3 else rng.choice(keys)
        array = file[key][()]
        name = rng.choice([*_HDF5_ENTRIES, "not finite", "renamed", "missing", "additional", "type", "shape"])
        if name == "additional":
            file[f"{key}x"] = array
            return Mutation(name, _closed(file, out))
        del file[key]
        if name == "renamed":
            file[rng.choice(["x", "a_b", "_", *(text for text in CONTROL[:2]), "k" * 1000])] = array
        elif name == "not finite":
            file[key] = _with_bad_number(rng, array)
        elif name == "type":
            file.create_dataset(
                key, data=array.astype(rng.choice(["f8", "i8", "S3", "?", "c8", ">f4", "f2"]))
            )
        elif name == "shape":
            file[key] = rng.choice(
                [array[:-1], array[:, :-1], array.T, array[None], array[0, 0], array[:, :0]]
            )
        elif name != "missing":
            _HDF5_ENTRIES[name](file, key)
        return Mutation(name, _closed(file, out), must_refuse=name in ("not finite", "external link"))


def _closed(file: h5py.File, out: io.BytesIO) -> bytes:
    file.close()
    return out.getvalue()


def _add_bomb(file: h5py.File, key: str) -> None:
    shape = (36, BOMB // 36 // 4)
    file.create_dataset(key, shape, "f4", chunks=(36, 65536), compression="gzip", fillvalue=0)
    file[key][:, :65536] = 0


_HDF5_ENTRIES: dict[str, Callable[[h5py.File, str], Any]] = {
    "group": lambda file, key: file.create_group(key),
    "external link": lambda file, key: file.__setitem__(key, h5py.ExternalLink("../other.hdf5", "/a_b")),
    "soft link": lambda file, key: file.__setitem__(key, h5py.SoftLink("/nowhere")),
    "circular link": lambda file, key: file.__setitem__(key, h5py.SoftLink(f"/{key}")),
    "bomb": _add_bomb,
    "huge shape": lambda file, key: file.create_dataset(key, (36, 2**40), "f4", chunks=(36, 1024)),
    "huge rows": lambda file, key: file.create_dataset(key, (2**40, 36), "f4", chunks=(1024, 36)),
    "external storage": lambda file, key: file.create_dataset(
        key, (36, 4), "f4", external=[("/etc/hostname", 0, 36 * 16)]
    ),
    "text": lambda file, key: file.create_dataset(key, data="text"),
    "named type": lambda file, key: file.__setitem__(key, np.dtype("f4")),
    "empty space": lambda file, key: file.create_dataset(key, data=h5py.Empty("f4")),
    "records": lambda file, key: file.create_dataset(key, data=np.zeros((36, 4), [("a", "f4")])),
}
"""Entries that are not the panorama of a viewpoint."""


def _damage_image(rng: Random, data: bytes) -> Mutation:
    if rng.random() < 0.03:
        return Mutation("picture bomb", picture_bomb())
    image = Image.open(io.BytesIO(data))
    sizes = [(1, 1), (image.width, image.width), (image.width - 1, image.height), (2, 1), (60, 30)]
    modes = ["L", "RGBA", "P", "1", "CMYK", "I;16", "F"]
    changed = image.resize(rng.choice(sizes)) if rng.random() < 0.5 else image
    mode = rng.choice(modes)
    out = io.BytesIO()
    changed.convert("L" if mode == "I;16" else mode).save(
        out, "TIFF" if mode in ("F", "CMYK", "I;16") else "PNG"
    )
    return Mutation(f"picture {mode}", out.getvalue())


@cache
def picture_bomb() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (12_000, 6_000)).save(out, "PNG")
    return out.getvalue()


# -- weights -----------------------------------------------------------------------------------------------


def _damage_safetensors(rng: Random, data: bytes, ranges: Ranges) -> Mutation:
    (length,) = struct.unpack("<Q", data[:8])
    header, payload = data[8 : 8 + length], data[8 + length :]
    match rng.choice(["header", "header", "metadata", "length", "value", "cut"]):
        case "metadata" if (stored := json.loads(header)).get("__metadata__", {}).get("memory"):
            inner = _damage_json(rng, stored["__metadata__"]["memory"].encode(), ranges)
            stored["__metadata__"]["memory"] = inner.data.decode()
            return inner._replace(data=_safetensors(json.dumps(stored).encode(), payload))
        case "length":
            size = rng.choice([0, length - 1, length + 8, 2**24, 2**40, 2**63 - 1, 2**64 - 1])
            return Mutation("header length", struct.pack("<Q", size) + header + payload)
        case "value" if payload:
            changed, place = bytearray(payload), rng.randrange(len(payload) // 4) * 4
            changed[place : place + 4] = struct.pack("<f", rng.choice([np.nan, np.inf, -np.inf]))
            return Mutation("not finite", _safetensors(header, bytes(changed)), must_refuse=True)
        case "cut":
            return Mutation("payload cut", _safetensors(header, payload[: rng.randrange(len(payload) + 1)]))
    inner = _damage_json(rng, header, {})
    return inner._replace(name=f"header: {inner.name}", data=_safetensors(inner.data, payload))


def _safetensors(header: bytes, payload: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + payload


def _damage_zip(rng: Random, data: bytes) -> Mutation:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    number = rng.randrange(len(members))
    name, content = members[number]
    match rng.choice(["zeros", "drop", "rename", "copy", "content", "value", "pickle", "script", "deflate"]):
        case "zeros":
            start = rng.randrange(len(data))
            zeros = bytes(len(data[start : start + 400]))
            return Mutation("400 zeros", data[:start] + zeros + data[start + 400 :], must_refuse=True)
        case "drop":
            del members[number]
        case "rename":
            members[number] = (rng.choice([f"{name}x", "../../x", "archive/data/99", "/etc/x"]), content)
        case "copy":
            members.append((name, content[::-1]))
        case "content":
            members[number] = (name, _damage_bytes(rng, content).data)
        case "value":
            floats = [index for index, (member, _) in enumerate(members) if "/data/" in member]
            number = rng.choice(floats or [number])
            name, content = members[number]
            members[number] = (name, struct.pack("<f", np.nan) * (len(content) // 4) or content)
            return Mutation("not finite", _zip(members), must_refuse=len(content) > 8)
        case "pickle":
            number = next(index for index, (member, _) in enumerate(members) if member.endswith("data.pkl"))
            members[number] = (members[number][0], _damage_bytes(rng, members[number][1]).data)
        case "script":
            folder = name.partition("/")[0]
            members += [
                (f"{folder}/constants.pkl", b"\x80\x02)."),
                (f"{folder}/code/__torch__.py", b"class M: pass"),
            ]
            return Mutation("TorchScript members", _zip(members), must_refuse=True)
        case "deflate":
            return Mutation("deflated", _zip(members, zipfile.ZIP_DEFLATED))
    return Mutation("zip members", _zip(members))


def _zip(members: Sequence[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return out.getvalue()
