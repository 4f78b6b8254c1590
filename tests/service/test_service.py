"""The memory service in a process: every route, limits, tokens, and what it answers to bad requests."""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from esceme.memory.store import MemoryStore
from esceme.memory.store_wire import CONTENT_TYPE, decode_observations, encode_observations
from fixtures.observations import SETTINGS, observation
from fixtures.services import AUTHORIZATION, TOKEN, RunningService, serving

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    path = tmp_path_factory.mktemp("service") / "site.db"
    with MemoryStore.open(path, SETTINGS) as store:
        store.remember([observation(n) for n in range(10)])
        store.remember([observation(0, 50.0, robot="r2", viewpoint="v3", time=9000.0)])
    with serving(path, "--max-body", "100000", "--max-batch", "20") as found:
        yield found


def post(service: RunningService, path: str, **values: object) -> dict[str, object]:
    status, body = service.request("POST", path, json.dumps(values))
    assert status == 200, body
    found: dict[str, object] = json.loads(body)
    return found


def test_remembering_is_idempotent_and_recalled_at_once(service: RunningService) -> None:
    batch = [observation(n, robot="r7", viewpoint=f"new{n}", thumbnail=b"jpeg") for n in range(3)]
    body = encode_observations(batch, SETTINGS)
    assert [service.request("POST", "/v1/remember", body) for _ in range(2)] == [
        (200, b'{"new":3}'),
        (200, b'{"new":0}'),
    ]
    asked = json.dumps({"scene": "house", "viewpoints": ["new1", "nowhere", "v3"]})
    status, answer = service.request("POST", "/v1/recall", asked)
    found = decode_observations(answer, SETTINGS)
    assert status == 200 and found[1] is None
    assert [item and item.digest for item in found] == [batch[1].digest, None, observation(3).digest]
    assert post(service, "/v1/sequences", robot="r7") == {"monday": 2}
    other = encode_observations([observation(0, 9.0, robot="r7")], SETTINGS)
    status, answer = service.request("POST", "/v1/remember", other)
    assert status == 422 and b"holds another observation" in answer


def test_the_file_of_a_stopped_service_is_the_whole_store(tmp_path: Path) -> None:
    """Nothing is left in the WAL, so a copy of the file is a backup."""
    with MemoryStore.open(tmp_path / "site.db", SETTINGS):
        pass
    with serving(tmp_path / "site.db") as service:
        service.request("POST", "/v1/remember", encode_observations([observation(0)], SETTINGS))
        service.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["site.db"]


def test_newest_observations_are_recalled_if_preferred(service: RunningService) -> None:
    asked = json.dumps({"scene": "house", "viewpoints": ["v3"], "prefer": "newest"})
    (found,) = decode_observations(service.request("POST", "/v1/recall", asked)[1], SETTINGS)
    assert found is not None and found.robot == "r2"


def test_places_are_found_by_position_time_and_vector(service: RunningService) -> None:
    def viewpoints(**query: object) -> list[str]:
        places = post(service, "/v1/query", scene="house", **query)["places"]
        return [place["viewpoint"] for place in places]  # type: ignore[attr-defined]

    assert viewpoints(near=[4.2, 0.5, 0.0], radius=1.0) == ["v4", "v5"]
    assert viewpoints(near=[4.2, 0.5, 0.0], limit=3) == ["v4", "v5", "v3"]
    assert viewpoints(after=8000.0, prefer="newest") == ["v3"]
    assert viewpoints(after=8000.0) == []
    vector = np.asarray([-1.0, -1.0, -1.0], "<f4")
    query = save({"vector": vector}, {"query": json.dumps({"scene": "house", "limit": 20})})
    headers = AUTHORIZATION | {"Content-Type": CONTENT_TYPE}
    status, body = service.request("POST", "/v1/query", query, headers)
    similarities = {item["viewpoint"]: item["similarity"] for item in json.loads(body)["places"]}
    assert status == 200 and similarities["v0"] == 0.0 and similarities["v5"] == pytest.approx(-1.0)


def test_export_is_a_store_with_the_same_observations(service: RunningService, tmp_path: Path) -> None:
    status, body = service.request("GET", "/v1/export")
    (tmp_path / "copy.db").write_bytes(body)
    with MemoryStore.open(tmp_path / "copy.db") as copy:
        number = json.loads(service.request("GET", "/v1/store")[1])["last_arrival"]
        assert status == 200 and len(copy) == number >= 11
        assert copy.settings == SETTINGS


def test_health_metrics_and_pages(service: RunningService) -> None:
    assert json.loads(service.request("GET", "/health")[1])["status"] == "ok"
    service.request("POST", "/v1/recall", b"{")
    text = service.request("GET", "/metrics")[1].decode()
    assert 'esceme_requests_total{route="/v1/recall",status="422"}' in text
    assert 'esceme_request_seconds_bucket{route="/health",le="+Inf"}' in text
    password = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()
    status, page = service.request("GET", "/docs", headers={"Authorization": f"Basic {password}"})
    paths = json.loads(service.request("GET", "/openapi.json")[1])["paths"]
    assert status == 200 and all(path in page.decode() for path in paths)
    assert b"http" not in page.lower().replace(b"<!doctype html>", b"") and b"<script" not in page
    assert paths["/v1/recall"]["post"]["requestBody"]["content"]["application/json"]["schema"]["required"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer "},
        {"Authorization": TOKEN},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Basic !!"},
        {"Authorization": f"Digest {TOKEN}"},
        {"Authorization": "Bearer \xe9"},
    ],
)
def test_requests_without_the_token_reach_nothing(service: RunningService, headers: dict[str, str]) -> None:
    body = encode_observations([observation(0, robot="thief")], SETTINGS)
    routes = json.loads(service.request("GET", "/openapi.json")[1])["paths"]
    for path in [*routes, "/openapi.json", "/docs", "/nowhere"]:
        for method in ("GET", "POST", "PUT", "DELETE"):
            status, answer = service.request(method, path, body, headers)
            assert status == 401 and b"expected the token" in answer
    assert post(service, "/v1/sequences", robot="thief") == {}


def test_limits(service: RunningService) -> None:
    batch = encode_observations([observation(n, robot="many") for n in range(21)], SETTINGS)
    assert service.request("POST", "/v1/remember", batch)[0] == 413
    names = json.dumps({"scene": "house", "viewpoints": ["v"] * 21})
    assert service.request("POST", "/v1/recall", names)[0] == 413
    assert service.request("POST", "/v1/recall", bytes(100_001))[0] == 413
    chunked = AUTHORIZATION | {"Transfer-Encoding": "chunked"}
    endless = b"".join(b"2710\r\n" + bytes(10_000) + b"\r\n" for _ in range(11)) + b"0\r\n\r\n"
    assert service.request("POST", "/v1/recall", endless, chunked)[0] == 413
    assert post(service, "/v1/sequences", robot="many") == {}


def test_the_rate_of_a_robot_is_limited_and_others_are_not(tmp_path: Path) -> None:
    with MemoryStore.open(tmp_path / "site.db", SETTINGS):
        pass
    with serving(tmp_path / "site.db", "--rate", "2") as service:
        fast = AUTHORIZATION | {"ESceme-Robot": "fast"}
        statuses = [service.request("GET", "/health", headers=fast)[0] for _ in range(12)]
        assert statuses[:4] == [200] * 4 and statuses[-1] == 429
        assert service.request("GET", "/health", headers=AUTHORIZATION | {"ESceme-Robot": "slow"})[0] == 200


def test_the_first_robot_creates_the_store_and_others_have_to_agree(tmp_path: Path) -> None:
    settings = json.dumps({"width": 3, "source": "toy.hdf5", "encoder": "e" * 64})
    with serving(tmp_path / "new.db") as service:
        assert service.request("GET", "/v1/store")[0] == 404
        assert service.request("PUT", "/v1/store", settings.replace("3", "0"))[0] == 422
        assert service.request("PUT", "/v1/store", settings)[0] == 200
        status, answer = service.request("PUT", "/v1/store", settings.replace("toy", "other"))
        assert (
            status == 422 and b"holds features of source" in answer and str(tmp_path).encode() not in answer
        )
        assert (
            service.request("POST", "/v1/remember", encode_observations([observation(1)], SETTINGS))[0] == 200
        )
        assert service.stop() == "interrupted\n" and service.process.exitcode == 130
    with MemoryStore.open(tmp_path / "new.db") as store:
        assert len(store) == 1


def test_a_generated_token_is_printed_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    with MemoryStore.open(tmp_path / "site.db", SETTINGS):
        pass
    file = tmp_path / "site.db.token"
    before = os.environ.pop("ESCEME_TOKEN", None)
    try:
        from esceme.service.guard import load_token

        token, is_new = load_token(file)
        assert is_new and len(token) > 40 and stat.S_IMODE(file.stat().st_mode) == 0o600
        assert load_token(file) == (token, False)
        file.chmod(0o644)
        with pytest.raises(Exception, match="others can read the token"):
            load_token(file)
    finally:
        if before is not None:
            os.environ["ESCEME_TOKEN"] = before


def test_answers_hold_no_path_and_faults_of_the_store_are_503(tmp_path: Path) -> None:
    path = tmp_path / "site.db"
    with MemoryStore.open(path, SETTINGS) as store:
        store.remember([observation(1)])
        store.database.execute("UPDATE observation SET checksum = 1")
    with serving(path) as service:
        asked = json.dumps({"scene": "house", "viewpoints": ["v1"]})
        status, answer = service.request("POST", "/v1/recall", asked)
        assert status == 503 and b"site.db" not in answer and b"log" in answer
        assert "does not have its stored checksum" in service.stop()
