"""Routes of the memory service: remember, recall, follow arrivals, query, export, health and metrics.

Bodies with vectors are safetensors (`esceme.memory.store_wire`), all others JSON. `build_app` returns the
ASGI application with its checks (`esceme.service.guard`).
"""

from __future__ import annotations

import asyncio
import html
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from esceme import __version__
from esceme.errors import DataError, EscemeError
from esceme.files import PrintableText
from esceme.memory.store import PAGE, MemoryStore, Prefer
from esceme.memory.store_database import StoreUnavailable
from esceme.memory.store_query import PlaceQuery, find_places
from esceme.memory.store_record import MAX_SEQUENCE, StoredObservation, StoreSettings
from esceme.memory.store_wire import (
    CONTENT_TYPE,
    decode_json,
    decode_observations,
    decode_vector,
    encode_frames,
    encode_observations,
)
from esceme.service.group_writer import GroupWriter, Job
from esceme.service.guard import App, Guard, Limits, RequestCounts

MAX_SLOW = 2
"""Number of requests that may read the whole store at a time, each with a connection of its own."""
T = TypeVar("T")
Number = Annotated[int, msgspec.Meta(ge=0, lt=MAX_SEQUENCE)]


class OpenStore(Protocol):
    """A function that opens the store; settings create it if there is none."""

    def __call__(self, settings: StoreSettings | None = None, *, read_only: bool = False) -> MemoryStore:
        """Open the store."""


class SessionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Begin of a session."""

    robot: PrintableText
    session: PrintableText


class RecallRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Viewpoints of a scene."""

    scene: PrintableText
    viewpoints: list[PrintableText]
    prefer: Prefer = "first"


class RecalledRequest(msgspec.Struct, forbid_unknown_fields=True):
    """All that is recalled, of one scene if given; `until` leaves out later arrivals."""

    prefer: Prefer = "first"
    until: Number | None = None
    scene: PrintableText | None = None


class ArrivalsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Observations after an arrival number."""

    after: Number = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE)] = PAGE


class SequencesRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A robot."""

    robot: PrintableText


class Service:
    """A store with a thread that writes, a connection that reads, and further ones for slow requests."""

    def __init__(self, open_store: OpenStore, limits: Limits | None = None) -> None:
        """Prepare a service. `connect` opens the store, or the first robot creates it by `PUT /v1/store`."""
        self.limits, self.counts, self._open = limits or Limits(), RequestCounts(), open_store
        self.writer: GroupWriter | None = None
        self._reader: MemoryStore | None = None
        self.slow = asyncio.Semaphore(MAX_SLOW)

    def connect(self, settings: StoreSettings | None = None) -> None:
        """Open the store if it is not open; raise `MemoryMismatch` if it has other settings."""
        if self._reader is None:
            writer = self._open(settings)
            self._reader, self.writer = self.open_reader(), GroupWriter(_hide_name(writer))
        if settings is not None:
            self._reader.settings.check(settings, "the store", same_precision=False)

    def open_reader(self) -> MemoryStore:
        """Open another connection that reads."""
        return _hide_name(self._open(read_only=True))

    @property
    def reader(self) -> MemoryStore:
        """The connection that reads."""
        if self._reader is None:
            raise HTTPException(404, "the store is empty; create it with PUT /v1/store")
        return self._reader

    async def write(self, job: Job) -> int:
        """Return the result of a function that writes, when it is durable."""
        if self.writer is None:
            raise HTTPException(404, "the store is empty; create it with PUT /v1/store")
        return await asyncio.wrap_future(self.writer.submit(job))

    async def read(self, function: Callable[[MemoryStore], T]) -> T:
        """Return the result of a function that reads. Damaged rows are faults of the service."""
        try:
            return await run_in_threadpool(function, self.reader)
        except DataError as error:
            raise StoreUnavailable(str(error)) from None

    def close(self) -> None:
        """Write the queued observations and close all connections.

        The last one to be closed moves the write-ahead log of a file into the file.
        """
        if self._reader is not None:
            self._reader.close()
        if self.writer is not None:
            self.writer.close()


def _hide_name(store: MemoryStore) -> MemoryStore:
    """Replace the path or address in messages of a store, which clients receive."""
    store.name = store.database.name = "the store"
    return store


def build_app(service: Service, token: str) -> App:
    """Return the application of a service, behind its checks."""
    app = FastAPI(title="ESceme memory", version=__version__, docs_url=None, redoc_url=None)
    app.add_exception_handler(EscemeError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    _add_store_routes(app, service)
    _add_reading_routes(app, service)
    _add_operation_routes(app, service)
    return Guard(app, token, service.limits, service.counts)


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, StoreUnavailable):
        print(f"esceme serve: {error}", file=sys.stderr)
        text = "the store cannot be read or written now; its operator finds the reason in the log"
        return _json({"error": text}, 503, {"Retry-After": "1"})
    return _json({"error": str(error)[:500]}, 422)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": error.detail}, error.status_code)


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def _binary(body: bytes) -> Response:
    return Response(body, media_type=CONTENT_TYPE)


def _documented(kind: Any = None, *, binary: bool = False) -> dict[str, Any]:
    """Return the request body of a route for OpenAPI: the JSON of a type, or safetensors."""
    content = {}
    if kind is not None:
        (schema,), definitions = msgspec.json.schema_components([kind])
        content["application/json"] = {"schema": definitions.get(kind.__name__, schema)}
    if binary:
        content[CONTENT_TYPE] = {"schema": {"type": "string", "format": "binary"}}
    return {"requestBody": {"required": True, "content": content}}


def _add_store_routes(app: FastAPI, service: Service) -> None:
    @app.get("/v1/store")
    async def describe() -> Response:
        """Return the settings of the vectors, the number of the last arrival, and how often was forgotten."""
        return _json(await service.read(_description))

    @app.put("/v1/store", openapi_extra=_documented(StoreSettings))
    async def create(request: Request) -> Response:
        """Create the store with settings, or check that it has them; the precision may differ."""
        settings = decode_json(await request.body(), StoreSettings)
        await run_in_threadpool(service.connect, settings)
        return _json(await service.read(_description))

    @app.post("/v1/session", openapi_extra=_documented(SessionRequest))
    async def begin_session(request: Request) -> Response:
        """Begin a session; return the number of the last arrival before it."""
        found = decode_json(await request.body(), SessionRequest)
        return _json({"arrivals": await service.write(lambda s: s.begin_session(found.robot, found.session))})

    @app.post("/v1/remember", openapi_extra=_documented(binary=True))
    async def remember(request: Request) -> Response:
        """Store observations; they are durable when this answers. Keys that are stored are skipped."""
        observations = await run_in_threadpool(_decode, await request.body(), service)
        num_new = await service.write(lambda store: store.remember(observations))
        service.counts.observations += num_new
        return _json({"new": num_new})


def _description(store: MemoryStore) -> dict[str, object]:
    numbers = {"last_arrival": store.last_arrival, "num_forgettings": store.num_forgettings}
    return {"settings": store.settings, **numbers}


def _decode(body: bytes, service: Service) -> list[StoredObservation]:
    settings = service.reader.settings
    found = decode_observations(body, settings)
    _check_batch(len(found), service.limits)
    return [item.checked(settings) for item in found if item is not None]


def _check_batch(number: int, limits: Limits) -> None:
    if number > limits.batch:
        raise HTTPException(413, f"expected at most {limits.batch} at a time, found {number}")


def _add_reading_routes(app: FastAPI, service: Service) -> None:
    @app.post("/v1/recall", openapi_extra=_documented(RecallRequest))
    async def recall(request: Request) -> Response:
        """Return what is recalled of viewpoints, as safetensors; null where nothing is remembered."""
        found = decode_json(await request.body(), RecallRequest)
        _check_batch(len(found.viewpoints), service.limits)

        def encoded(store: MemoryStore) -> bytes:
            recalled = store.recall(found.scene, found.viewpoints, prefer=found.prefer)
            return encode_observations(recalled, store.settings)

        return _binary(await service.read(encoded))

    @app.post("/v1/recalled", openapi_extra=_documented(RecalledRequest))
    async def recalled(request: Request) -> Response:
        """Return everything that is recalled, as a stream of safetensors pages behind their sizes."""
        found = decode_json(await request.body(), RecalledRequest)
        service.reader  # noqa: B018 - raises if there is no store
        await service.slow.acquire()

        def pages() -> Iterator[bytes]:
            with service.open_reader() as store:
                rows = store.recalled(prefer=found.prefer, until=found.until, scene=found.scene)
                while page := list(islice(rows, PAGE)):
                    yield encode_observations(page, store.settings)

        return _SlowStream(encode_frames(pages()), service.slow)

    @app.post("/v1/arrivals", openapi_extra=_documented(ArrivalsRequest))
    async def arrivals(request: Request) -> Response:
        """Return observations in the order of arrival, with their `numbers`, as safetensors."""
        found = decode_json(await request.body(), ArrivalsRequest)

        def encoded(store: MemoryStore) -> bytes:
            page = store.arrivals(found.after, found.limit)
            numbers = [number for number, _ in page]
            return encode_observations([item for _, item in page], store.settings, numbers=numbers)

        return _binary(await service.read(encoded))

    @app.post("/v1/sequences", openapi_extra=_documented(SequencesRequest))
    async def sequences(request: Request) -> Response:
        """Return the last stored sequence of each session of a robot, which then sends what is missing."""
        found = decode_json(await request.body(), SequencesRequest)
        return _json(await service.read(lambda store: store.last_sequences(found.robot)))

    @app.post("/v1/query", openapi_extra=_documented(PlaceQuery, binary=True))
    async def query(request: Request) -> Response:
        """Return places of a scene: near a position, after a time, similar to a vector.

        For `similar`, the body is safetensors with the tensor `vector` and the JSON as metadata `query`.
        """
        body: str | bytes = await request.body()
        vector = None
        if request.headers.get("content-type") == CONTENT_TYPE:
            vector, body = decode_vector(body, service.reader.settings)  # type: ignore[arg-type]
        found = decode_json(body, PlaceQuery)
        found.check()

        def places() -> object:
            with service.open_reader() as store:
                return [place._asdict() for place in find_places(store, found, vector)]

        async with service.slow:
            return _json({"places": await service.read(lambda _: places())})


class _SlowStream(StreamingResponse):
    """A stream that releases a semaphore when it ends."""

    def __init__(self, frames: Iterator[bytes], semaphore: asyncio.Semaphore) -> None:
        super().__init__(frames, media_type="application/octet-stream")
        self._semaphore = semaphore

    async def __call__(self, *arguments: Any) -> None:
        try:
            await super().__call__(*arguments)
        finally:
            self._semaphore.release()


def _add_operation_routes(app: FastAPI, service: Service) -> None:
    @app.get("/v1/export")
    async def export() -> Response:
        """Return a copy of the store as an SQLite file, which `esceme memory` reads."""
        settings = service.reader.settings
        folder = Path(tempfile.mkdtemp(prefix="esceme-export-"))

        def copy() -> None:
            with service.open_reader() as store, MemoryStore.open(folder / "site.db", settings) as target:
                target.merge(store)

        try:
            async with service.slow:
                await service.read(lambda _: copy())
        except BaseException:
            shutil.rmtree(folder)
            raise
        return FileResponse(
            folder / "site.db", filename="site.db", background=BackgroundTask(shutil.rmtree, folder)
        )

    @app.get("/health")
    async def health() -> Response:
        """Return 200 if the store can be read and the thread that writes it runs."""
        last = await service.read(lambda store: store.last_arrival)
        if service.writer is None or not service.writer.is_running:
            raise StoreUnavailable("the thread that writes has ended")
        return _json({"status": "ok", "last_arrival": last})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return counts and times of requests in the text format of Prometheus."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        gauges = {
            "esceme_requests_waiting": float(service.writer.num_waiting if service.writer else 0),
            "process_cpu_seconds": usage.ru_utime + usage.ru_stime,
            "process_peak_resident_bytes": usage.ru_maxrss * 1024.0,
        }
        return Response(service.counts.text(gauges), media_type="text/plain; version=0.0.4")

    @app.get("/docs")
    async def docs() -> Response:
        """Return the description of all routes as a page without scripts."""
        return Response(_page(app.openapi()), media_type="text/html")


def _page(description: dict[str, Any]) -> str:
    """Return an OpenAPI description as HTML."""
    parts = [f"<!doctype html><meta charset=utf-8><title>{description['info']['title']}</title>"]
    parts.append(f"<h1>{description['info']['title']}</h1><p>Machine-readable: /openapi.json")
    for path, methods in description["paths"].items():
        for method, route in methods.items():
            parts.append(f"<h2>{method.upper()} {path}</h2><p>{html.escape(route.get('description', ''))}")
            for kind, content in route.get("requestBody", {}).get("content", {}).items():
                text = msgspec.json.format(msgspec.json.encode(content["schema"]), indent=2).decode()
                parts.append(f"<p>Body: {kind}<pre>{html.escape(text)}</pre>")
    return "\n".join(parts)
