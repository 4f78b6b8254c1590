"""The live server: walks of agents and people, memory, and requests that are not what it expects."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esceme.evaluation import EvaluationConfig, evaluate
from esceme.memory import load_bank
from esceme.viewer.walk_server import HOST, MAX_BODY, TOKEN, WalkServer
from esceme.viewer.walk_session import WalkSession
from fixtures.browser import browser_pages
from fixtures.panoramas import copy_with_panoramas
from fixtures.random_runs import random_run

pytestmark = pytest.mark.long
NUM_FUZZED = 400


@pytest.fixture(scope="module")
def world(toy_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_with_panoramas(toy_root, tmp_path_factory.mktemp("walk") / "world")


@pytest.fixture(scope="module")
def config(world: Path) -> EvaluationConfig:
    run = random_run(world.parent / "run", world)
    return EvaluationConfig(
        run=str(run), data=str(world), split="val_seen", memory="cold", task="r2r", max_steps=4
    )


@pytest.fixture
def server(config: EvaluationConfig, tmp_path: Path) -> Iterator[WalkServer]:
    with WalkServer(WalkSession(config), bank=tmp_path / "bank.safetensors") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def request(
    server: WalkServer, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    connection = HTTPConnection(HOST, server.server_port, timeout=20)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content, dict(response.getheaders())


def post(server: WalkServer, action: str, value: object = None, **headers: str) -> tuple[int, dict[str, Any]]:
    body = json.dumps({} if value is None else value).encode()
    defaults = {"Content-Type": "application/json", TOKEN: server.token}
    status, content, _ = request(server, "POST", f"/api/{action}", body, **{**defaults, **headers})
    return status, json.loads(content)


def begin(server: WalkServer, number: int = 0) -> dict[str, Any]:
    """Begin a walk of an episode of the split."""
    episode = server.session.context.episodes[number]
    message = {"scene": 0, "start": 0, "view": 12, "instruction": "x", "episode": episode.episode_id}
    status, reply = post(server, "begin", message)
    assert status == 200, reply
    return reply


def walk(server: WalkServer, number: int = 0) -> list[dict[str, Any]]:
    begin(server, number)
    replies = []
    while not replies or not replies[-1]["finished"]:
        status, reply = post(server, "step")
        assert status == 200, reply
        replies.append(reply)
    return replies


def test_walks_equal_those_of_an_evaluation_with_its_memory(
    server: WalkServer, config: EvaluationConfig, tmp_path: Path
) -> None:
    expected = {episode.id: episode for episode in evaluate(config, tmp_path / "out").episodes}
    scene = server.session.context.episodes[0].scene_id
    numbers = [n for n, episode in enumerate(server.session.context.episodes) if episode.scene_id == scene]
    graph = server.session.graphs[scene]
    for number in numbers[:6]:
        episode = server.session.context.episodes[number]
        replies = walk(server, number)
        path = [graph.index(episode.start)] + [v for reply in replies for v in reply["moves"][::2]]
        result = expected[episode.episode_id]
        assert [graph.viewpoints[v] for v in path] == [pose[0] for pose in result.trajectory]
        assert replies[-1]["stopped"] == result.stopped
        assert replies[-1]["scores"][1] == pytest.approx(result.scores["spl"], abs=1e-4)


def test_empty_memory_changes_nothing_and_a_filled_one_does(server: WalkServer) -> None:
    probabilities, masked = walk(server)[0]["step"][:2]
    assert probabilities == masked
    again = walk(server)
    assert any(reply["step"][0] != reply["step"][1] for reply in again)
    assert again[0]["stored"] is None  # the start is in memory already
    assert post(server, "clear") == (200, {})
    assert walk(server)[0]["step"][:2] == [probabilities, masked]


def test_typed_instruction_is_walked_without_scores(server: WalkServer) -> None:
    message = {"scene": 0, "start": 2, "view": 14, "instruction": "Go <b>left</b>!"}
    status, reply = post(server, "begin", message)
    assert status == 200 and reply["viewpoint"] == 2 and reply["view"] == 14
    status, reply = post(server, "step")
    assert status == 200 and reply["scores"] == []


def test_memory_is_saved(server: WalkServer) -> None:
    walk(server)
    status, reply = post(server, "save")
    assert status == 200
    assert len(load_bank(reply["path"])) == len(server.session.lifetime.bank or ()) > 0


def test_path_of_a_person_is_scored(server: WalkServer) -> None:
    episode = server.session.context.episodes[0]
    graph = server.session.graphs[episode.scene_id]
    path = [graph.index(name) for name in episode.reference_path]
    status, reply = post(server, "score", {"episode": episode.episode_id, "path": path})
    assert status == 200 and reply["scores"][:2] == [1.0, 1.0]
    far = next(
        v
        for v in range(len(graph))
        if v != path[0] and not graph.adjacent(episode.start, graph.viewpoints[v])
    )
    for wrong, message in (
        ([10**5], "expected viewpoints of"),
        ([path[0], far], "no edge leads from"),
        (path[1:], "from the episode's start"),
    ):
        status, reply = post(server, "score", {"episode": episode.episode_id, "path": wrong})
        assert status == 400 and message in reply["error"]


def test_page_and_panoramas_are_served_with_safe_headers(server: WalkServer) -> None:
    status, content, headers = request(server, "GET", "/")
    assert status == 200 and b"connect-src 'self'" in content and headers["X-Frame-Options"] == "DENY"
    status, content, headers = request(server, "GET", "/panorama/0/0")
    assert status == 200 and content[:2] == b"\xff\xd8" and headers["Content-Type"] == "image/jpeg"
    for path in (
        "/panorama/0/99999",
        "/panorama/../0",
        "/panorama/0/%2e%2e",
        "/etc/passwd",
        "/../x",
        "/api/step",
    ):
        assert request(server, "GET", path)[0] == 404


def test_requests_of_other_sites_are_refused(server: WalkServer) -> None:
    assert post(server, "clear", **{TOKEN: "guess"})[0] == 403
    assert post(server, "clear", **{"Content-Type": "text/plain"})[0] == 415
    assert post(server, "clear", Host="evil.example")[0] == 403
    assert request(server, "GET", "/", Host="evil.example:80")[0] == 403


def test_unsuitable_requests_have_one_line_errors(server: WalkServer) -> None:
    good = {"scene": 0, "start": 0, "view": 12, "instruction": "x"}
    for change, message in (
        ({"scene": 99}, "expected less than"),
        ({"start": 10**5}, "expected less than"),
        ({"view": 36}, "view"),
        ({"instruction": ""}, "instruction"),
        ({"instruction": "x" * 3000}, "instruction"),
        ({"episode": "nowhere"}, "no episode 'nowhere'"),
        ({"more": 1}, "more"),
        ({"scene": "0"}, "scene"),
    ):
        status, reply = post(server, "begin", {**good, **change})
        assert status == 400 and message in reply["error"] and "\n" not in reply["error"]
    assert post(server, "step")[1]["error"].startswith("no walk has begun")
    assert post(server, "dance")[0] == 404
    headers = {"Content-Type": "application/json", TOKEN: server.token}
    assert request(server, "POST", "/api/begin", b"[" * 50_000, **headers)[0] == 400
    assert request(server, "POST", "/api/begin", b" " * (MAX_BODY + 1), **headers)[0] == 413
    length = f"000000000{MAX_BODY + 1}"
    assert request(server, "POST", "/api/begin", b"", **headers, **{"Content-Length": length})[0] == 413


def fuzz(server: WalkServer, count: int, *, seed: int = 0) -> None:
    """Send malformed requests over raw connections; the server must answer afterwards as before."""
    generator = np.random.default_rng(seed)
    body = json.dumps({"scene": 0, "start": 0, "view": 12, "instruction": "go"}).encode()
    valid = (
        b"POST /api/begin HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
        b"%s: %s\r\nContent-Length: %d\r\n\r\n%s"
    ) % (server.server_port, TOKEN.encode(), server.token.encode(), len(body), body)
    for _ in range(count):
        data = bytearray(valid)
        for _ in range(int(generator.integers(1, 6))):
            position = int(generator.integers(len(data) + 1)) % max(1, len(data))
            kind = generator.integers(4)
            if kind == 0 and data:
                data[position] = int(generator.integers(256))
            elif kind == 1:
                del data[position : position + int(generator.integers(1, 30))]
            elif kind == 2:
                data[position:position] = generator.bytes(int(generator.integers(1, 40)))
            else:
                data = data[: max(1, position)]
        with socket.create_connection((HOST, server.server_port), timeout=20) as connection:
            connection.sendall(bytes(data))
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
        assert b"Traceback" not in answer
        if answer.startswith(b"HTTP/"):
            assert int(answer.split(b" ", 2)[1]) in {
                200,
                400,
                403,
                404,
                405,
                408,
                411,
                413,
                414,
                415,
                431,
                501,
                505,
            }
    assert request(server, "GET", "/")[0] == 200
    assert len(walk(server)) > 0


def test_malformed_requests_do_not_stop_the_server(server: WalkServer) -> None:
    fuzz(server, NUM_FUZZED)


@pytest.mark.slow
def test_ten_thousand_malformed_requests_do_not_stop_the_server(server: WalkServer) -> None:
    fuzz(server, 10_000, seed=1)


def test_live_page_walks_in_the_browser(server: WalkServer) -> None:
    with browser_pages(allowed=server.address) as open_page:
        page = open_page(server.address)
        page.click("text=Agent walks the list's episode")
        page.wait_for_text(".message", "the agent has")
        assert page.count(".map .memory.age-now") > 0
        page.press("Home")
        assert page.count(".choices tbody tr") >= 2
        page.fill(".live textarea", "Turn left and stop.")
        page.click("text=Agent walks this instruction")
        page.wait_for_text("#episode-title", "typed-1")
        page.wait_for_text(".message", "the agent has")
        assert page.count(".map .memory.age-recent") > 0
        page.evaluate("app.set({episode: app.data.episodes[0].id})")
        page.click("text=Walk yourself")
        page.click(".panorama .candidate:not([hidden])")
        assert "step 1 of" in page.text(".episode .step-label")
        page.click("text=Stop here")
        page.wait_for_text(".message", "you ")
        assert page.count(".scores tr") == 3
        page.click("text=Clear memory")
        page.wait_for_text(".message", "the memory is empty")
        page.click("text=Save memory")
        page.wait_for_text(".message", "saved:")
