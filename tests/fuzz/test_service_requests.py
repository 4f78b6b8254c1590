"""Malformed requests to memory services: random JSON by Hypothesis, and real requests with changed bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from esceme.memory import MemoryStore
from fixtures.observations import SETTINGS, observation
from fixtures.services import RunningService, serving
from fuzz.service_requests import FIELDS, JSON_ROUTES, run_cases

pytestmark = pytest.mark.long
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda items: st.lists(items, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), items, max_size=5),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    path = tmp_path_factory.mktemp("requests") / "site.db"
    with MemoryStore.open(path, SETTINGS) as store:
        store.remember([observation(n) for n in range(5)])
    with serving(path, "--rate", "1000000") as found:
        yield found


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(route=st.sampled_from(JSON_ROUTES), fields=JSON, scene=st.booleans())
def test_random_json_is_answered_or_refused(
    service: RunningService, route: str, fields: object, scene: bool
) -> None:
    value = {**fields, "scene": "house"} if scene and isinstance(fields, dict) else fields
    status, answer = service.request("POST", f"/v1/{route}", json.dumps(value))
    assert status in (200, 413, 422) and b"Traceback" not in answer
    assert status == 200 or set(json.loads(answer)) == {"error"}


def test_malformed_requests_are_refused_in_one_line_and_leave_nothing() -> None:
    done = run_cases(600, seed=0)
    assert done.faults == []
    assert min(done.statuses[status] for status in (200, 401, 422)) > 50  # both decoders and handlers ran


@pytest.mark.slow
def test_many_malformed_requests() -> None:
    assert run_cases(5_000, seed=1).faults == []
