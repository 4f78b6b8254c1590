"""Short runs of the harness that kills memory services and their database server."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fixtures.postgresql import REASON, has_postgresql
from fuzz.test_fuzzer import environment

pytestmark = pytest.mark.long


def run_kills(*options: str) -> str:
    command = [sys.executable, "-m", "fuzz.service_kills", *options]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_killed_service_loses_no_acknowledged_observation() -> None:
    assert ", 0 faults" in run_kills("--kills", "6")


@pytest.mark.skipif(not has_postgresql(), reason=REASON)
def test_a_killed_database_server_loses_no_acknowledged_observation() -> None:
    assert ", 0 faults" in run_kills("--kills", "6", "--postgresql")
