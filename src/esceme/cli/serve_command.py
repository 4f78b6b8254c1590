"""The command `esceme serve`."""

from __future__ import annotations

import socket
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import tyro

from esceme.cli.console import note, print_json, print_line
from esceme.errors import ConfigError
from esceme.memory.stored_memory import connect_store

MAX_CONNECTIONS = 1000


def serve(
    store: Annotated[str, tyro.conf.arg(metavar="STORE")],
    /,
    host: str = "127.0.0.1",
    port: int = 8765,
    token_file: Path | None = None,
    max_body: int = 16_000_000,
    max_batch: int = 1000,
    rate: float = 500.0,
    json: bool = False,
) -> int:
    """Serve a memory store to robots, over HTTP.

    Robots use the address as a store: `esceme evaluate ... --store http://127.0.0.1:8765`, with the token in
    ESCEME_TOKEN. Observations are durable when a request is answered. A store that does not exist is created
    for the features of the first robot. GET /docs describes all requests, with the token as password; GET
    /metrics is for Prometheus. Other machines need a proxy with TLS (docs/robots.md).

    Examples:
        esceme serve site.db
        ESCEME_TOKEN=... esceme serve postgresql:///building --port 9000

    Args:
        store: the store: a path, or postgresql://USER@HOST/DATABASE, which several services may share.
        host: address to listen on; by default only this machine can connect.
        port: port to listen on; 0 selects a free one.
        token_file: file of the token where ESCEME_TOKEN is not set; by default STORE.token. It is created
            with a new token, which is printed once.
        max_body: largest request in bytes.
        max_batch: largest number of observations or viewpoints of a request.
        rate: maximum number of requests per second from one robot.
        json: print the address and the token file as one JSON object.
    """
    if not 0 <= port < 65536:
        raise ConfigError(f"--port {port}: expected a port of 0 to 65535")
    for name, limit in (("max-body", max_body), ("max-batch", max_batch), ("rate", rate)):
        if limit <= 0:
            raise ConfigError(f"--{name} {limit}: expected a limit above 0")
    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise ConfigError(f"'{missing[0]}' is not installed; run pip install 'esceme[serve]'")
    import uvicorn

    from esceme.service.app import Service, build_app
    from esceme.service.guard import Limits, load_token

    is_file = "://" not in store
    service = Service(partial(connect_store, store), Limits(body=max_body, batch=max_batch, rate=rate))
    if not is_file or Path(store).exists():
        service.connect()
    token_path = token_file or Path(f"{store}.token" if is_file else "esceme-serve.token")
    token, is_new = load_token(token_path)
    try:
        listening = socket.create_server((host, port), backlog=512)
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: {error.strerror or error}") from None
    address = f"http://{host}:{listening.getsockname()[1]}"
    if json:
        print_json({"address": address, "token_file": str(token_path) if token_path.exists() else None})
    else:
        print_line(f"serving {store} at {address}")
        if is_new:
            note(f"token (kept in {token_path}, printed only now): {token}")
    config = uvicorn.Config(
        build_app(service, token),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=5,
    )
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        listening.close()
        service.close()
    return 0
