"""Sends malformed requests to `esceme serve`: `python -m fuzz.service_requests --cases 20000`.

Half of the cases are real requests with changed bytes, lengths or lines, the others real routes with random
JSON and tensors. Every answer has to have a status below 500, without a traceback or path; the process has
to stay alive and not to grow; and without the token nothing is reached.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save

from esceme.memory import MemoryStore
from esceme.memory.store_wire import CONTENT_TYPE, encode_observations
from fixtures.observations import SETTINGS, observation
from fixtures.services import TOKEN, RunningService, serving

MAX_GROWTH = 30_000_000
"""Growth of the process in bytes, after the first tenth of the cases, that counts as a leak."""
JSON_ROUTES = ("session", "recall", "recalled", "arrivals", "sequences", "query")
TEXTS = (
    "house",
    "v1",
    "r1",
    "",
    "\0",
    "\ud800",
    "é" * 40,
    "../../etc",
    "first",
    "newest",
    "x" * 9000,
    "\u202e",
)
NUMBERS = (0, 1, -1, 2**31, 2**63, -(2**63), 2**64, 10**400, 0.5, 1e308, -1e-320, float("nan"), float("inf"))
FIELDS = (
    "scene",
    "viewpoints",
    "prefer",
    "near",
    "radius",
    "after",
    "before",
    "limit",
    "until",
    "robot",
    "session",
)


class RequestReport(NamedTuple):
    """What malformed requests have shown."""

    cases: int
    statuses: Counter[int]
    """Number of answers by status; 0 is a closed connection."""
    growth: int
    """Growth of the process in bytes."""
    faults: list[str]


def run_cases(number: int, seed: int) -> RequestReport:
    """Send requests to a service of a small store, one in four without the token."""
    statuses, faults, start = Counter[int](), list[str](), 0
    with tempfile.TemporaryDirectory(prefix="requests-") as folder:
        path = Path(folder) / "site.db"
        with MemoryStore.open(path, SETTINGS) as store:
            store.remember([observation(n) for n in range(20)])
        with serving(path, "--rate", "1000000", "--max-body", "200000") as service:
            for case in range(number):
                if case == number // 10:
                    start = _resident(service)
                has_token = case % 4 != 3
                request = make_request(Random(f"{seed} {case}"), TOKEN if has_token else None)
                status, answer = send(service.port, request)
                statuses[status] += 1
                if fault := _fault(status, answer, has_token, folder):
                    faults.append(f"case {case} of seed {seed}: {fault}: {request[:300]!r}")
            growth = _resident(service) - start
            health = service.request("GET", "/health")
            faults += [] if health[0] == 200 else [f"health {health}"]
            faults += [f"the process grew by {growth:,} bytes"] if growth > MAX_GROWTH else []
            log = service.stop()
            faults += [f"the log holds a traceback: {log[-2000:]}"] if "Traceback" in log else []
        with MemoryStore.open(path) as store:
            thieves = store.last_sequences("thief")
            faults += [f"stored without the token: {thieves}"] if thieves else []
            faults += [] if len(store) >= 20 else ["observations are lost"]
    return RequestReport(number, statuses, growth, faults)


def _fault(status: int, answer: bytes, has_token: bool, folder: str) -> str:
    if status >= 500:
        return f"status {status}"
    if (
        b"Traceback" in answer
        or b'File "' in answer
        or folder.encode() in answer
        or b"site.db" in answer[:500]
    ):
        return "an answer with a path or traceback" if b"SQLite format" not in answer else ""
    if not has_token and status not in (0, 400, 401):
        return f"status {status} without the token"
    return ""


def _resident(service: RunningService) -> int:
    text = Path(f"/proc/{service.process.pid}/status").read_text()
    return 1024 * int(re.search(r"VmRSS:\s+(\d+)", text)[1])  # type: ignore[index]


# -- requests ----------------------------------------------------------------------------------------------


def make_request(rng: Random, token: str | None) -> bytes:
    """Return the bytes of a malformed request."""
    method, route, kind, body = _real(rng, "r1" if token else "thief") if rng.random() < 0.6 else _random(rng)
    if token and rng.random() < 0.7:
        body = mutated(body, rng)
    headers = [f"Host: 127.0.0.1\r\nContent-Type: {kind}\r\nConnection: close\r\n"]
    headers += (
        [f"Authorization: Bearer {token}\r\n"] if token else rng.choices(["", "Authorization: Bearer x\r\n"])
    )
    head = f"{method} {route} HTTP/1.1\r\n{''.join(headers)}Content-Length: {len(body)}\r\n\r\n".encode()
    return mutated(head, rng) + body if token and rng.random() < 0.1 else head + body


def _real(rng: Random, robot: str) -> tuple[str, str, str, bytes]:
    """Return method, route, content type and body of a request that robots send."""
    batch = [
        observation(rng.randrange(2**40), robot=robot, thumbnail=rng.choice([None, b"jpeg"]))
        for _ in range(rng.randrange(1, 4))
    ]
    tensors = encode_observations(batch, SETTINGS)
    vector = save({"vector": np.ones(3, "<f4")}, {"query": '{"scene":"house"}'})
    recall = json.dumps({"scene": "house", "viewpoints": ["v1", "v2", "v99"]}).encode()
    near = json.dumps({"scene": "house", "near": [1, 2, 3], "radius": 4, "after": 2.5}).encode()
    return rng.choice(
        [
            ("POST", "/v1/remember", CONTENT_TYPE, tensors),
            ("POST", "/v1/remember", CONTENT_TYPE, tensors),
            ("POST", "/v1/query", CONTENT_TYPE, vector),
            ("POST", "/v1/query", "application/json", near),
            ("POST", "/v1/recall", "application/json", recall),
            ("POST", "/v1/recalled", "application/json", b'{"prefer":"newest"}'),
            ("POST", "/v1/arrivals", "application/json", b'{"after":3,"limit":5}'),
            ("PUT", "/v1/store", "application/json", b'{"width":3,"source":"toy.hdf5"}'),
            (rng.choice(["GET", "DELETE", "PUT"]), rng.choice(["/v1/store", "/health", "/docs"]), "x", b""),
        ]
    )


def _random(rng: Random) -> tuple[str, str, str, bytes]:
    """Return a route with random JSON, or with a safetensors body of random tensors and metadata."""
    if rng.random() < 0.6:
        fields = {rng.choice(FIELDS): _value(rng, 3) for _ in range(rng.randrange(6))}
        value = fields | {"scene": "house"} if rng.random() < 0.8 else _value(rng, 4)
        return "POST", f"/v1/{rng.choice(JSON_ROUTES)}", "application/json", json.dumps(value).encode()
    shape = [rng.randrange(4) for _ in range(rng.randrange(4))]
    dtype = rng.choice(["<f4", "<f2", "<i8", "|u1", "<f8"])
    names = ("vectors", "vector", "features.0", "thumbnail.0", "features.9", "other")
    tensors = {name: np.full(shape, rng.choice([0, 1, 7]), dtype) for name in rng.sample(names, 3)}
    if rng.random() < 0.7:
        tensors["vectors"] = np.full((1, 3), rng.choice([0.0, np.nan, np.inf]), "<f4")
    texts = {"robot": "r1", "session": "s", "sequence": 1, "scene": "house", "viewpoint": "v1"}
    rows = [texts | {rng.choice([*texts, "time", "position", "neighbours", "stamp"]): _value(rng, 2)}]
    metadata = {"observations": json.dumps(rows), "query": json.dumps(_value(rng, 3))}
    route = rng.choice(["remember", "remember", "query"])
    return "POST", f"/v1/{route}", CONTENT_TYPE, save(tensors, metadata)


def _value(rng: Random, depth: int) -> Any:
    kind = rng.randrange(6 if depth else 4)
    if kind < 4:
        return rng.choice([rng.choice(TEXTS), rng.choice(NUMBERS), None, rng.random() < 0.5])
    items = [_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return items if kind == 4 else {rng.choice(FIELDS): item for item in items}


def mutated(data: bytes, rng: Random) -> bytes:
    """Return data with some bytes changed, removed, repeated or replaced by numbers that are limits."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at, size = rng.randrange(len(changed) + 1), rng.choice([1, 2, 8])
        part = rng.choice(
            [b"", rng.randbytes(size), bytes(size), b"\xff" * size, bytes(changed[:size]), b'"', b"[" * 900]
        )
        changed[at : at + rng.choice([0, size, len(part)])] = part
    return bytes(changed)


def send(port: int, request: bytes) -> tuple[int, bytes]:
    """Send bytes; return status and answer, 0 if the connection is closed or the service waits for more."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.settimeout(60 if _is_complete(request) else 0.3)
        try:
            connection.sendall(request)
            answer = b"".join(_received(connection))
        except (TimeoutError, ConnectionError):
            return 0, b""
    status = answer[9:12]
    return (int(status) if status.isdigit() else 0), answer


def _received(connection: socket.socket) -> Iterator[bytes]:
    while part := connection.recv(1 << 16):
        yield part


def _is_complete(request: bytes) -> bool:
    head, _, body = request.partition(b"\r\n\r\n")
    length = re.findall(rb"\r\nContent-Length: (\d+)(?=\r\n|$)", head)
    return (
        length == [str(len(body)).encode()]
        and b"\r\nConnection: close\r\n" in head
        and b" HTTP/1.1\r\n" in head
    )


def main() -> int:
    """Run the cases; the exit code is 1 if there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    begin, done = time.monotonic(), run_cases(options.cases, options.seed)
    print(
        f"{done.cases} requests of seed {options.seed} in {time.monotonic() - begin:.0f} s, statuses "
        f"{dict(sorted(done.statuses.items()))}, memory "
        f"+{done.growth / 1e6:.1f} MB, {len(done.faults)} faults"
    )
    print("\n".join(done.faults[:20]))
    return 1 if done.faults else 0


if __name__ == "__main__":
    sys.exit(main())
