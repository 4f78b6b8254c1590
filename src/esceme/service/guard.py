"""Checks of every request before the service sees it: token, rate, size and time; and counts for Prometheus.

The token is compared in constant time before any of the body is read. Errors are one line of JSON without
paths and tracebacks.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import os
import secrets
import time
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from esceme.errors import ConfigError

TOKEN_VARIABLE = "ESCEME_TOKEN"
MIN_TOKEN = 16
"""Smallest number of characters of a token."""
MAX_BUCKETS = 4096
"""Number of clients whose rates are known at a time."""
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the histogram of seconds."""
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Limits(NamedTuple):
    """Limits of requests."""

    body: int = 16_000_000
    """Size in bytes."""
    batch: int = 1000
    """Number of observations or viewpoints."""
    rate: float = 500.0
    """Requests per second of one robot, on average; twice as many at once."""
    seconds: float = 30.0
    """Time in which a body has to arrive."""


def load_token(file: Path) -> tuple[str, bool]:
    """Return the token in the environment, or in a file that only its owner reads, and whether it is new."""
    token, is_new = os.environ.get(TOKEN_VARIABLE, ""), False
    if not token:
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            is_new = True
            with os.fdopen(descriptor, "w") as opened:
                opened.write(secrets.token_urlsafe(32))
        except FileExistsError:
            if file.stat().st_mode & 0o077:
                raise ConfigError(f"{file}: others can read the token; run chmod 600, or remove it") from None
        except OSError as error:
            raise ConfigError(f"{file}: cannot be written ({error.strerror}); set {TOKEN_VARIABLE}") from None
        token = file.read_text().strip()
    if len(token) < MIN_TOKEN or not token.isascii():
        raise ConfigError(f"expected a token of at least {MIN_TOKEN} ASCII characters")
    return token, is_new


class RequestCounts:
    """Counts and times of requests, in the text format of Prometheus."""

    def __init__(self) -> None:
        self.requests = Counter[tuple[str, int]]()
        self.seconds: dict[str, list[float]] = {}
        """Number of requests by bucket, then the sum of seconds, by route."""
        self.observations = 0
        """Number of observations that were new."""

    def add(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests[route, status] += 1
        counts = self.seconds.setdefault(route, [0.0] * (len(BOUNDS) + 2))
        counts[bisect_left(BOUNDS, seconds)] += 1
        counts[-1] += seconds

    def text(self, gauges: dict[str, float]) -> str:
        """Return all values; `gauges` are further ones by name."""
        lines = ["# TYPE esceme_requests_total counter"]
        for (route, status), number in sorted(self.requests.items()):
            lines.append(f'esceme_requests_total{{route="{route}",status="{status}"}} {number}')
        lines.append("# TYPE esceme_request_seconds histogram")
        for route, counts in sorted(self.seconds.items()):
            total = 0.0
            for bound, amount in zip([*map(str, BOUNDS), "+Inf"], counts, strict=False):
                total += amount
                lines.append(f'esceme_request_seconds_bucket{{route="{route}",le="{bound}"}} {total:.0f}')
            lines.append(f'esceme_request_seconds_sum{{route="{route}"}} {counts[-1]:.6f}')
            lines.append(f'esceme_request_seconds_count{{route="{route}"}} {total:.0f}')
        lines += [
            "# TYPE esceme_observations_total counter",
            f"esceme_observations_total {self.observations}",
        ]
        for name, value in gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name} {value}"]
        return "\n".join(lines) + "\n"


class _RefusedError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Guard:
    """An ASGI application that passes only permitted requests on."""

    def __init__(self, app: App, token: str, limits: Limits, counts: RequestCounts) -> None:
        self._app, self._token, self._limits, self._counts = app, token.encode(), limits, counts
        self._buckets: OrderedDict[tuple[str, bytes], tuple[float, float]] = OrderedDict()
        """Permitted requests and time of the last one, by client."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close"})
            return
        begin, status = time.perf_counter(), 0

        async def counted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            headers = dict(scope["headers"])
            self._check(scope, headers)
            body = await self._body(headers, receive)
            await self._app(scope, _once(body, receive), counted)
        except _RefusedError as refusal:
            await _refuse(counted, refusal)
        finally:
            route = getattr(scope.get("route"), "path", "other") if status != 401 else "other"
            self._counts.add(route, status, time.perf_counter() - begin)

    def _check(self, scope: Message, headers: dict[bytes, bytes]) -> None:
        """Raise `_RefusedError` if the token is wrong or requests come too often."""
        kind, _, value = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"basic":  # of browsers: any name, and the token as password
            try:
                value = base64.b64decode(value, validate=True).partition(b":")[2]
            except binascii.Error:
                value = b""
        elif kind.lower() != b"bearer":
            value = b""
        if not hmac.compare_digest(value.strip(), self._token):
            raise _RefusedError(401, "expected the token of the service (Authorization: Bearer TOKEN)")
        client = (scope.get("client") or ("", 0))[0], headers.get(b"esceme-robot", b"")[:64]
        now, rate = time.monotonic(), self._limits.rate
        permitted, last = self._buckets.pop(client, (2 * rate, now))
        permitted = min(2 * rate, permitted + (now - last) * rate)
        self._buckets[client] = (max(0.0, permitted - 1), now)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        if permitted < 1:
            raise _RefusedError(429, f"more than {rate:g} requests per second")

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """Return the body; raise `_RefusedError` if it is too large or too slow."""
        too_large = _RefusedError(413, f"expected at most {self._limits.body} bytes")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18 or int(length) > self._limits.body:
            raise too_large
        parts, size, more = list[bytes](), 0, True
        try:
            async with asyncio.timeout(self._limits.seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _RefusedError(400, "the connection was closed")
                    parts.append(message.get("body", b""))
                    size, more = size + len(parts[-1]), message.get("more_body", False)
                    if size > self._limits.body:
                        raise too_large
        except TimeoutError:
            raise _RefusedError(408, f"the body took more than {self._limits.seconds:g} seconds") from None
        return b"".join(parts)


def _once(body: bytes, receive: Receive) -> Receive:
    """Return a function that returns the body at first, and what follows afterwards."""
    parts = [body]

    async def next_message() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        return await receive()

    return next_message


async def _refuse(send: Send, refusal: _RefusedError) -> None:
    body = msgspec.json.encode({"error": str(refusal)})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers.append((b"connection", b"close"))  # the body was not read
    headers += {401: [(b"www-authenticate", b"Basic")], 429: [(b"retry-after", b"1")]}.get(refusal.status, [])
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
