"""The live server: walks of agents and people, memory, and requests that are not what it expects."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esceme.evaluation import EvaluationConfig, evaluate
from esceme.memory import load_bank
from esceme.viewer.walk_server import HOST, MAX_BODY, MAX_CONNECTIONS, WalkServer
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


@contextmanager
def serving(session: WalkSession, bank: Path | None = None) -> Iterator[WalkServer]:
    with WalkServer(session, bank=bank) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server(config: EvaluationConfig, tmp_path: Path) -> Iterator[WalkServer]:
    with serving(WalkSession(config), tmp_path / "bank.safetensors") as server:
        yield server


def request(
    server: WalkServer,
    method: str,
    path: str,
    body: bytes = b"",
    *,
    secret: str | None = None,
    **headers: str,
) -> tuple[int, bytes, dict[str, str]]:
    connection = HTTPConnection(HOST, server.server_port, timeout=20)
    connection.request(method, f"/{server.secret if secret is None else secret}{path}", body, headers)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content, dict(response.getheaders())


def post(server: WalkServer, action: str, value: object = None, **headers: str) -> tuple[int, dict[str, Any]]:
    body = json.dumps({} if value is None else value).encode()
    headers = {"Content-Type": "application/json", **headers}
    status, content, _ = request(server, "POST", f"/api/{action}", body, **headers)
    return status, json.loads(content)


def begin(server: WalkServer, number: int = 0) -> dict[str, Any]:
    """Begin a walk of an episode of the split; return the record of all walks."""
    episode = server.session.context.episodes[number]
    message = {"scene": 0, "start": 0, "view": 12, "instruction": "x", "episode": episode.episode_id}
    status, reply = post(server, "begin", message)
    assert status == 200, reply
    return reply


def walk(server: WalkServer, number: int = 0) -> dict[str, Any]:
    """Let the agent walk an episode; return its trajectory."""
    record = begin(server, number)
    while True:
        status, reply = post(server, "step", {"walk": record["walk"]})
        assert status == 200, reply
        if reply["finished"]:
            trajectory: dict[str, Any] = reply["trajectory"]
            return trajectory


def data_of(page: bytes) -> Any:
    match = re.search(rb'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    return json.loads(match[1])


def test_walks_equal_those_of_an_evaluation_with_its_memory(
    server: WalkServer, config: EvaluationConfig, tmp_path: Path
) -> None:
    expected = {episode.id: episode for episode in evaluate(config, tmp_path / "out").episodes}
    scene = server.session.context.episodes[0].scene_id
    numbers = [n for n, episode in enumerate(server.session.context.episodes) if episode.scene_id == scene]
    graph = server.session.graphs[scene]
    for number in numbers[:6]:
        episode = server.session.context.episodes[number]
        walked = walk(server, number)
        result = expected[episode.episode_id]
        assert [graph.viewpoints[v] for v in walked["poses"][::2]] == [pose[0] for pose in result.trajectory]
        assert walked["stopped"] == result.stopped
        assert walked["scores"][1] == pytest.approx(result.scores["spl"], abs=1e-4)


def test_empty_memory_changes_nothing_and_a_filled_one_does(server: WalkServer) -> None:
    probabilities, masked = walk(server)["steps"][0][:2]
    assert probabilities == masked
    assert any(step[0] != step[1] for step in walk(server)["steps"] if step is not None)
    status, record = post(server, "clear")
    assert status == 200 and record["trajectories"] == {} and record["histories"][0]["initial"] == []
    assert walk(server)["steps"][0][:2] == [probabilities, masked]


def test_typed_instruction_is_walked_without_scores(server: WalkServer) -> None:
    message = {"scene": 0, "start": 2, "view": 17, "instruction": "Go <b>left</b>!"}
    status, record = post(server, "begin", message)
    number = str(len(server.session.context.episodes))
    assert status == 200 and record["trajectories"][number]["poses"] == [2, 17]
    assert record["typed"][0]["id"] == "typed-1" and record["typed"][0]["view"] == 17
    status, reply = post(server, "step", {"walk": record["walk"]})
    assert status == 200 and reply["trajectory"]["scores"] == []


def test_reloaded_page_has_all_walks_and_the_present_memory(server: WalkServer) -> None:
    walked = walk(server)
    live = data_of(request(server, "GET", "/")[1])["live"]
    assert live["record"]["trajectories"]["0"] == walked
    scene = list(server.session.graphs).index(server.session.context.episodes[0].scene_id)
    history = live["record"]["histories"][scene]
    assert history["episodes"] == [0] and history["stored"][0] == walked["poses"][:-2:2] + (
        walked["poses"][-2:-1] if walked["stopped"] else []
    )
    assert {*history["stored"][0]} == {*server.session._remembered(server.scenes[scene])}


def test_a_walk_of_another_page_ends_the_first(server: WalkServer) -> None:
    first, second = begin(server, 0), begin(server, 1)
    status, reply = post(server, "step", {"walk": first["walk"]})
    assert status == 400 and "another page began a walk" in reply["error"]
    assert post(server, "step", {"walk": second["walk"]})[0] == 200


def test_an_error_of_the_agent_is_shown_and_the_server_goes_on(
    server: WalkServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such tensor")

    record = begin(server)
    with monkeypatch.context() as patch:
        patch.setattr(server.session._navigator, "decide", fail)
        status, reply = post(server, "step", {"walk": record["walk"]})
    assert status == 500 and reply["error"] == "RuntimeError: no such tensor"
    assert "Traceback" in capsys.readouterr().err
    assert walk(server)["poses"]


def test_idle_connections_do_not_use_up_threads(server: WalkServer) -> None:
    idle = [socket.create_connection((HOST, server.server_port)) for _ in range(MAX_CONNECTIONS + 10)]
    threads = threading.active_count()
    for connection in idle:
        connection.close()
    assert threads < MAX_CONNECTIONS + 20
    for _ in range(100):
        try:
            assert request(server, "GET", "/")[0] == 200
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the server does not answer any more")


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
        "",
    ):
        assert request(server, "GET", path)[0] == 404


def test_requests_without_the_secret_and_of_other_sites_are_refused(server: WalkServer) -> None:
    for secret in ("guess", "", "..", server.secret[:-1]):
        for path in ("/", "/api/clear", "/panorama/0/0"):
            assert request(server, "GET", path, secret=secret)[0] == 403
    headers = {"Content-Type": "application/json"}
    assert request(server, "POST", "/api/clear", b"{}", secret="guess", **headers)[0] == 403
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
    assert post(server, "step", {"walk": 0})[1]["error"].startswith("this walk has ended")
    assert post(server, "step")[0] == 400 and post(server, "dance")[0] == 404
    headers = {"Content-Type": "application/json"}
    assert request(server, "POST", "/api/begin", b"[" * 50_000, **headers)[0] == 400
    assert request(server, "POST", "/api/begin", b" " * (MAX_BODY + 1), **headers)[0] == 413
    length = f"000000000{MAX_BODY + 1}"
    assert request(server, "POST", "/api/begin", b"", **headers, **{"Content-Length": length})[0] == 413


def fuzz(server: WalkServer, count: int, *, seed: int = 0) -> None:
    """Send malformed requests over raw connections; the server must answer afterwards as before."""
    generator = np.random.default_rng(seed)
    body = json.dumps({"scene": 0, "start": 0, "view": 12, "instruction": "go"}).encode()
    valid = (
        b"POST /%s/api/begin HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s"
    ) % (server.secret.encode(), server.server_port, len(body), body)
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
    assert walk(server)["poses"]


def test_malformed_requests_do_not_stop_the_server(server: WalkServer) -> None:
    fuzz(server, NUM_FUZZED)


@pytest.mark.slow
def test_ten_thousand_malformed_requests_do_not_stop_the_server(server: WalkServer) -> None:
    fuzz(server, 10_000, seed=1)


def test_live_page_walks_in_the_browser(server: WalkServer, tmp_path: Path) -> None:
    with browser_pages(allowed=server.address) as open_page:
        page = open_page(server.address)
        page.click("text=Walk the episode")
        page.wait_for_text(".message", "The agent has")
        remembered = page.count(".map .memory.age-now")
        assert remembered > 0
        page.press("Home")
        assert page.count(".choices tbody tr") >= 2
        page.evaluate("app.set({turn: '90'})")
        page.fill(".live textarea", "Turn left and stop.")
        page.click("text=Walk this instruction")
        page.wait_for_text("#episode-title", "typed-1")
        page.wait_for_text(".message", "The agent has")
        assert page.evaluate("app.trajectory(0).poses[1]") == 15  # the panorama looked to the east
        assert page.count(".map .memory.age-recent") > 0
        sheet = page.download(".menu button:nth-of-type(3)", tmp_path / "sheet.svg", opener=".menu summary")
        pictures = [e for e in ET.fromstring(sheet.read_text()).iter() if e.tag.endswith("image")]
        assert len(pictures) == page.evaluate("app.trajectory(0).poses.length / 2")
        assert all(picture.attrib["href"].startswith("data:image/jpeg") for picture in pictures)
        page.goto(server.address)  # reloaded: the walks and the memory are still there
        assert page.evaluate("app.data.episodes.at(-1).id") == "typed-1"
        assert page.count(".map .memory.age-now") == 0 and page.press("End") is None
        assert page.count(".map .memory.age-now") == remembered
        page.evaluate("app.set({episode: app.data.episodes[2].id, agent: 0})")
        assert page.count(".map .memory.age-recent") >= remembered  # an episode that was not walked yet
        page.evaluate("app.set({episode: app.data.episodes[0].id})")
        page.click("text=Walk yourself")
        assert page.count(".map .goal") == 0 and page.text(".verdict") == ""  # hidden while she walks
        page.press("1")
        assert "step 1 of" in page.text(".episode .step-label")
        page.click(".panorama .candidate:not([hidden])")
        assert page.evaluate("document.activeElement.className") == "panorama"
        page.click(".game button")
        page.wait_for_text(".message", "You have stopped")
        assert "The agent:" in page.text(".message") and page.count(".scores tr") == 3
        assert page.count(".map .goal") == 1 and "you " in page.text(".verdict")
        page.click("text=Save")
        page.wait_for_text(".message", "Saved:")
        page.click("text=Clear")
        page.wait_for_text(".message", "The memory is empty")
        assert page.count(".map .memory[class*=age]") == 0


def test_two_pages_do_not_disturb_each_other(server: WalkServer) -> None:
    with browser_pages(allowed=server.address) as open_page:
        first, second = open_page(server.address), open_page(server.address)
        first.click("text=Walk the episode")
        second.evaluate("app.set({episode: app.data.episodes[1].id})")
        second.click("text=Walk the episode")
        second.wait_for_text(".message", "The agent has")
        first.page.locator(".message").filter(has_text="another page began a walk").wait_for()
        assert second.evaluate("Object.keys(app.data.results[0].trajectories).length") == 2


def test_live_page_without_agent_and_panoramas(toy_root: Path) -> None:
    config = EvaluationConfig(run="stop", data=str(toy_root), split="val_seen", memory="none", task="r2r")
    session = WalkSession(config, has_agent=False)
    with serving(session) as server, browser_pages(allowed=server.address) as open_page:
        page = open_page(server.address)
        assert page.text(".agent") == "you" and page.count("text=Walk the episode") == 0
        assert page.text(".no-picture") == "this page has no panoramas"
        page.click("text=Walk yourself")
        page.press("1")
        page.click(".game button")
        page.wait_for_text(".message", "You have stopped")
