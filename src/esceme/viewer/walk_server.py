"""HTTP server of the live page, on loopback. It answers only requests whose path begins with a secret."""

from __future__ import annotations

import secrets
import sys
import threading
import traceback
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from esceme.errors import EscemeError
from esceme.viewer.page import render_page
from esceme.viewer.page_pictures import QUALITIES, WIDTHS, shrink_panorama
from esceme.viewer.walk_session import BeginRequest, ScoreRequest, StepRequest, WalkSession

HOST = "127.0.0.1"
MAX_BODY = 64_000
"""Maximum size of a request in bytes."""
SECONDS = 20
"""A connection that sends nothing for this long is closed."""
MAX_CONNECTIONS = 64
"""Further connections are closed at once."""
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


class WalkServer(ThreadingHTTPServer):
    """Server of one session on a port of the loopback address; port 0 takes a free one."""

    daemon_threads = True

    def __init__(self, session: WalkSession, *, port: int = 0, bank: Path | None = None) -> None:
        """Serve `session`. The page can save its memory to the file `bank`, if there is one."""
        super().__init__((HOST, port), _Handler)
        self.session, self.bank = session, bank
        self.secret = secrets.token_urlsafe(24)
        """First part of every path. Other users of this machine and pages of other sites do not know it."""
        self.lock = threading.Lock()
        """Held while the session works: requests come in several threads."""
        self.scenes = list(session.graphs.values())
        self._connections = threading.BoundedSemaphore(MAX_CONNECTIONS)

    @property
    def address(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_port}/{self.secret}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own, unless there are too many."""
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connections that break off."""


class _RequestError(Exception):
    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: WalkServer
    timeout = SECONDS
    server_version, sys_version = "esceme", ""

    def do_GET(self) -> None:  # noqa: N802 (named by http.server)
        """Send the page or a panorama."""
        self._answer(self._get)

    def do_POST(self) -> None:  # noqa: N802
        """Do what the page asks for and send a JSON object."""
        self._answer(self._post)

    def _answer(self, respond: Any) -> None:
        try:
            kind, body = respond(self._route())
            self._send(HTTPStatus.OK, kind, body)
        except _RequestError as error:
            self._send_error(error.status, str(error))
        except (EscemeError, msgspec.ValidationError, msgspec.DecodeError, UnicodeError) as error:
            self._send_error(HTTPStatus.BAD_REQUEST, str(error))
        except (OSError, RecursionError) as error:
            self._send_error(HTTPStatus.BAD_REQUEST, f"request cannot be answered ({type(error).__name__})")
        except Exception as error:  # of an agent: the page shows it, and the server goes on
            traceback.print_exc(file=sys.stderr)
            self._send_error(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")

    def _route(self) -> list[str]:
        """Return the parts of the path after the secret.

        Requests without the secret are refused, and requests for other host names, by which pages of other
        sites could reach this server.
        """
        allowed = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        parts = self.path.partition("?")[0].split("/")
        is_known = secrets.compare_digest("".join(parts[1:2]).encode(), self.server.secret.encode())
        if not is_known or self.headers.get("Host") not in allowed:
            raise _RequestError(HTTPStatus.FORBIDDEN, "open the address that `esceme walk` printed")
        return parts[2:]

    def _get(self, parts: list[str]) -> tuple[str, bytes]:
        if parts == [""]:
            with self.server.lock:
                page = self.server.session.page_data(can_save=self.server.bank is not None)
                return "text/html; charset=utf-8", render_page(page).encode()
        if (
            len(parts) == 3
            and parts[0] == "panorama"
            and all(part.isascii() and part.isdigit() for part in parts[1:])
        ):
            return "image/jpeg", self._panorama(*(int(part[:9]) for part in parts[1:]))
        raise _RequestError(HTTPStatus.NOT_FOUND, "no such page")

    def _panorama(self, scene: int, viewpoint: int) -> bytes:
        if scene < len(self.server.scenes) and viewpoint < len(self.server.scenes[scene]):
            graph = self.server.scenes[scene]
            file = self.server.session.folder.panorama(graph.scene_id, graph.viewpoints[viewpoint])
            if file is not None:
                return shrink_panorama(file, WIDTHS["full"], QUALITIES["full"])
        raise _RequestError(HTTPStatus.NOT_FOUND, "no picture of this viewpoint")

    def _post(self, parts: list[str]) -> tuple[str, bytes]:
        body, session = self._body(), self.server.session
        with self.server.lock:
            reply: object
            if parts == ["api", "begin"]:
                reply = session.begin(msgspec.json.decode(body, type=BeginRequest))
            elif parts == ["api", "step"]:
                reply = session.step(msgspec.json.decode(body, type=StepRequest))
            elif parts == ["api", "score"]:
                reply = {"scores": session.score(msgspec.json.decode(body, type=ScoreRequest))}
            elif parts == ["api", "clear"]:
                reply = session.clear()
            elif parts == ["api", "save"] and self.server.bank is not None:
                session.save(self.server.bank)
                reply = {"path": str(self.server.bank)}
            else:
                raise _RequestError(HTTPStatus.NOT_FOUND, "no such action")
            return "application/json", msgspec.json.encode(reply)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or self.headers.get("Transfer-Encoding"):
            raise _RequestError(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
        if len(length) > 9 or int(length) > MAX_BODY:
            raise _RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {MAX_BODY} bytes")
        if self.headers.get_content_type() != "application/json":
            raise _RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected application/json")
        return self.rfile.read(int(length))

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _send_error(self, status: HTTPStatus, message: str) -> None:
        self.close_connection = True
        self._send(status, "application/json", msgspec.json.encode({"error": message}))

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log."""
