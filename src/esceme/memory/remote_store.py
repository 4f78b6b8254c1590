"""`RemoteStore`: client of `esceme serve`. While it does not answer, observations wait in a file, the outbox.

Every request may be sent twice: observations have keys, and the service skips those that it has. The outbox
is a `MemoryStore`; an observation leaves it when the service has acknowledged it. `remember` therefore
returns when observations are durable, in the service or in the outbox.
"""

from __future__ import annotations

import http.client
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from esceme.errors import ConfigError, DataError
from esceme.memory.store import PAGE, MemoryStore, Prefer
from esceme.memory.store_database import StoreUnavailable
from esceme.memory.store_record import StoredObservation, StoreSettings
from esceme.memory.store_wire import (
    CONTENT_TYPE,
    decode_json,
    decode_metadata,
    decode_observations,
    encode_observations,
)

TIMEOUT = 30.0
"""Seconds until a service that does not answer counts as unreachable."""
RETRY_SECONDS = 1.0
"""Time between two attempts to reach an unreachable service."""
MAX_BODY = 4_000_000
"""Approximate size in bytes of the largest request."""
BUSY = (408, 429, 502, 503, 504)
"""Statuses after which the same request may succeed later."""
_log = logging.getLogger(__name__)


class _Description(msgspec.Struct):
    settings: StoreSettings
    last_arrival: int
    num_forgettings: int


class RemoteStore:
    """A store behind a service, with the interface `ObservationStore`. Threads may share it."""

    def __init__(
        self,
        address: str,
        settings: StoreSettings | None = None,
        *,
        token: str | None = None,
        robot: str = "",
        outbox: Path | None = None,
    ) -> None:
        """Connect to `http://HOST:PORT`. `settings` create the store if the service has none yet.

        The token is by default in ESCEME_TOKEN, the outbox in the folder ESCEME_OUTBOX. If the service is
        away, the settings are those of the outbox, or `settings`.
        """
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise ConfigError(f"{address}: expected the address of a service, such as http://127.0.0.1:8765")
        token = token or os.environ.get("ESCEME_TOKEN", "")
        if not token:
            raise ConfigError(f"{address}: set ESCEME_TOKEN to the token that `esceme serve` printed")
        self.name, self._lock, self._away_until = address, threading.RLock(), 0.0
        self._headers = {"Authorization": f"Bearer {token}", "ESceme-Robot": robot.encode().hex()[:64]}
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=TIMEOUT)
        self._forgettings = 0
        path = outbox or outbox_folder() / f"{parts.hostname}-{parts.port or parts.scheme}.db"
        try:
            self.settings, self._outbox = self._open_outbox(path, settings)
        except BaseException:
            self._connection.close()
            raise

    def _open_outbox(self, path: Path, settings: StoreSettings | None) -> tuple[StoreSettings, MemoryStore]:
        """Return the settings of the service, and the outbox with the same ones."""
        try:
            method, body = ("GET", b"") if settings is None else ("PUT", msgspec.json.encode(settings))
            found = decode_json(self._request(method, "/v1/store", body), _Description)
            self._forgettings = found.num_forgettings
            return found.settings, MemoryStore.open(path, found.settings)
        except StoreUnavailable as error:
            if settings is None and not path.exists():
                raise
            _log.warning("%s; observations wait in %s", error, path)
            outbox = MemoryStore.open(path, settings)
            return outbox.settings, outbox

    # -- interface of stores -----------------------------------------------------------------------------

    @property
    def num_forgettings(self) -> int:
        """Number of operations that removed observations; the last known one without a connection."""
        if not self.is_away:
            try:
                found = decode_json(self._request("GET", "/v1/store"), _Description)
                self._forgettings = found.num_forgettings
            except StoreUnavailable:
                pass
        return self._forgettings

    @property
    def is_away(self) -> bool:
        """Whether the service did not answer a moment ago."""
        return time.monotonic() < self._away_until

    @property
    def num_waiting(self) -> int:
        """Number of observations in the outbox."""
        return len(self._outbox)

    def begin_session(self, robot: str, session: str) -> int:
        """Return the number of the last arrival before a session began; 0 if the service is unreachable."""
        body = msgspec.json.encode({"robot": robot, "session": session})
        try:
            return int(decode_json(self._request("POST", "/v1/session", body), dict[str, int])["arrivals"])
        except StoreUnavailable:
            return 0

    def remember(self, observations: Sequence[StoredObservation]) -> int:
        """Store observations durably, in the outbox without a connection; return how many were new."""
        checked = [observation.checked(self.settings) for observation in observations]
        with self._lock:
            if self.sync():
                try:
                    return sum(self._send(page) for page in _pages(checked))
                except StoreUnavailable:
                    pass
            return self._outbox.remember(checked)

    def recall(
        self, scene: str, viewpoints: Sequence[str], *, prefer: Prefer = "first"
    ) -> list[StoredObservation | None]:
        """Return what is recalled of viewpoints, by the service and of observations in the outbox."""
        waiting = self._outbox.recall(scene, viewpoints, prefer=prefer)
        request = {"scene": scene, "viewpoints": viewpoints, "prefer": prefer}
        try:
            body = self._request("POST", "/v1/recall", msgspec.json.encode(request))
        except StoreUnavailable:
            return waiting
        found = decode_observations(body, self.settings)
        pairs = zip(found, waiting, strict=True) if prefer == "first" else zip(waiting, found, strict=True)
        return [first or second for first, second in pairs]

    def recalled(
        self, *, prefer: Prefer = "first", until: int | None = None, scene: str | None = None
    ) -> Iterator[StoredObservation]:
        """Yield what is recalled, by scene and viewpoint; from the outbox if the service is unreachable."""
        request = {"prefer": prefer, "until": until, "scene": scene}
        waiting = {(item.scene, item.viewpoint): item for item in self._outbox.recalled(prefer=prefer)}
        found = dict[tuple[str, str], StoredObservation]()
        with self._lock:
            try:
                response = self._respond("POST", "/v1/recalled", msgspec.json.encode(request))
                while size := int.from_bytes(_read(response, 8), "little"):
                    for item in decode_observations(_read(response, size), self.settings):
                        assert item is not None
                        found[item.scene, item.viewpoint] = item
                response.read()
            except StoreUnavailable:
                found = {}
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                raise StoreUnavailable(f"{self.name}: ended in the middle of an answer ({error})") from None
        joined = waiting | found if prefer == "first" else found | waiting
        yield from (joined[place] for place in sorted(joined) if scene in (None, place[0]))

    def arrivals(self, after: int = 0, limit: int = PAGE) -> list[tuple[int, StoredObservation]]:
        """Return observations that arrived after number `after`; none while the service is unreachable."""
        try:
            request = msgspec.json.encode({"after": max(0, after), "limit": min(limit, PAGE)})
            body = self._request("POST", "/v1/arrivals", request)
        except StoreUnavailable:
            return []
        found = (item for item in decode_observations(body, self.settings) if item is not None)
        return list(zip(decode_metadata(body, "numbers", list[int]), found, strict=True))

    def close(self) -> None:
        """Send the observations of the outbox if the service answers, and close the connection."""
        self._away_until = 0.0
        try:
            if self.num_waiting and not self.sync():
                _log.warning("%s is away: %d observations wait in %s and are sent by the next client",
                             self.name, self.num_waiting, self._outbox.name)  # fmt: skip
        finally:
            self._outbox.close()
            self._connection.close()

    # -- sending -----------------------------------------------------------------------------------------

    def sync(self) -> bool:
        """Send the observations of the outbox; return whether the outbox is empty afterwards.

        Raise `DataError` if the service refuses an observation, for example because another robot of the same
        name stored its key. It stays in the outbox.
        """
        with self._lock:
            try:
                while page := self._outbox.arrivals():
                    if self.is_away:
                        return False
                    for part in _pages([item for _, item in page]):
                        self._send(part)
                    self._outbox.database.execute("DELETE FROM observation WHERE id <= ?", [(page[-1][0],)])
            except StoreUnavailable:
                return False
            except DataError as error:
                raise DataError(f"{error}; the observations are kept in {self._outbox.name}") from None
            return True

    def _send(self, observations: Sequence[StoredObservation]) -> int:
        body = encode_observations(observations, self.settings)
        return int(decode_json(self._request("POST", "/v1/remember", body), dict[str, int])["new"])

    def _request(self, method: str, path: str, body: bytes = b"") -> bytes:
        with self._lock:
            try:
                return self._respond(method, path, body).read()
            except (OSError, http.client.HTTPException) as error:
                raise self._away(str(error) or type(error).__name__) from None

    def _respond(self, method: str, path: str, body: bytes) -> http.client.HTTPResponse:
        """Return a response of status 200; raise `StoreUnavailable` or, if refused, `DataError`."""
        if self.is_away:
            raise StoreUnavailable(f"{self.name}: away")
        kind = CONTENT_TYPE if path == "/v1/remember" else "application/json"
        try:
            response = self._exchange(method, path, body, kind)
            text = "" if response.status == 200 else _error_text(response.read())
        except (OSError, http.client.HTTPException) as error:
            raise self._away(str(error) or type(error).__name__) from None
        if response.status in BUSY:
            raise self._away(text)
        if response.status == 401:
            raise ConfigError(f"{self.name}: {text}; is ESCEME_TOKEN the one that `esceme serve` printed?")
        if response.status != 200:
            raise DataError(f"{self.name}: {text}")
        return response

    def _exchange(self, method: str, path: str, body: bytes, kind: str) -> http.client.HTTPResponse:
        is_new = self._connection.sock is None
        try:
            self._connection.request(method, path, body, {**self._headers, "Content-Type": kind})
            return self._connection.getresponse()
        except (ConnectionError, http.client.HTTPException):
            self._connection.close()
            if is_new:
                raise
            return self._exchange(method, path, body, kind)  # the service closed an idle connection

    def _away(self, reason: str) -> StoreUnavailable:
        self._connection.close()
        self._away_until = time.monotonic() + RETRY_SECONDS
        return StoreUnavailable(f"{self.name}: does not answer ({reason})")


def outbox_folder() -> Path:
    """Return the folder ESCEME_OUTBOX; by default `esceme` in the user's folder of program states."""
    default = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "esceme"
    return Path(os.environ.get("ESCEME_OUTBOX") or default)


def _pages(observations: Sequence[StoredObservation]) -> Iterator[Sequence[StoredObservation]]:
    """Yield observations in requests of limited number and size."""
    page, size = list[StoredObservation](), 0
    for item in observations:
        length = sum(len(part or b"") for part in (item.vector, item.features, item.thumbnail))
        if page and (len(page) == PAGE or size + length > MAX_BODY):
            yield page
            page, size = [], 0
        page.append(item)
        size += length
    if page:
        yield page


def _read(response: http.client.HTTPResponse, size: int) -> bytes:
    data = response.read(size)
    if len(data) != size:
        raise http.client.IncompleteRead(data, size - len(data))
    return data


def _error_text(body: bytes) -> str:
    try:
        found: Any = msgspec.json.decode(body)
        return str(found["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return "no message"
