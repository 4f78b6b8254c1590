"""The commands of docs/robots.md that need a service, run as they stand there but on a free port."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from esceme.memory import MemoryStore

PAGE = Path(__file__).parents[2] / "docs" / "robots.md"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not (shutil.which("curl") and shutil.which("bash")), reason="needs bash and curl"),
]


def test_two_robots_share_a_building_by_a_service(tmp_path: Path) -> None:
    block = re.search(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    commands = block[1].strip().splitlines()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    script = "set -e\ntrap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n" + "\n".join(commands)
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {"PATH": paths, "ESCEME_OUTBOX": "outbox", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-c", script.replace("8765", port)],
        cwd=tmp_path,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with MemoryStore.open(tmp_path / "site.db") as store, MemoryStore.open(tmp_path / "backup.db") as backup:
        robots = {robot for place in store.places() for robot in place.robots}
        assert robots == {"r1", "r2"} and backup.digest == store.digest
    assert (tmp_path / "observations.parquet").stat().st_size > 0
