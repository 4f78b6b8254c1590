"""Kills `esceme serve`, or the PostgreSQL server behind it, at random: `python -m fuzz.service_kills`.

Four robots send observations through `RemoteStore` and note every one that the service acknowledged. Again
and again the service, or the database server, gets SIGKILL and is started anew. After each kill all
acknowledged observations have to be in the store, and all that a robot recalled. At the end it has to hold
all, those of the outboxes too, with the digest of an undisturbed run, and the check has to find no fault.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import NamedTuple

from esceme.errors import DataError
from esceme.memory import MemoryStore, remote_store
from esceme.memory.remote_store import RemoteStore
from esceme.memory.store_recovery import check_rows
from esceme.memory.stored_memory import connect_store
from fixtures.observations import SETTINGS, observation
from fixtures.postgresql import postgresql_server
from fixtures.services import TOKEN, RunningService, wait_until

ROBOTS, MAX_DELAY = 4, 0.2
"""Number of robots, and maximum time in seconds from an acknowledgement after a kill to the next kill."""


class KillReport(NamedTuple):
    """What kills of a service have shown."""

    kills: int
    observations: int
    lookups: int
    """Number of times that an acknowledged observation was looked up after a kill."""
    faults: list[str]


class Robot(threading.Thread):
    """Sends observations until `stop` is set."""

    def __init__(self, number: int, address: str, folder: Path) -> None:
        super().__init__(daemon=True)
        self.robot, self.sequence, self.acknowledged = f"r{number}", 0, 0
        self.faults: list[str] = []
        self.recalled: set[tuple[str, int]] = set()
        """Robot and sequence of observations of another robot that the service recalled."""
        self.other = f"r{(number + 1) % ROBOTS}"
        self.stop = threading.Event()
        self.store = RemoteStore(address, SETTINGS, token=TOKEN, outbox=folder / f"{self.robot}.db")

    def run(self) -> None:
        """Remember and recall by turns."""
        while not self.stop.is_set():
            try:
                self.store.remember([observation(self.sequence, robot=self.robot, viewpoint=self._place())])
                self.sequence += 1
                self.acknowledged = self.sequence - self.store.num_waiting  # the outbox is sent in order
                names = [f"{self.robot}-0", f"{self.other}-{self.sequence % 40}"]
                was_away, until = self.store.is_away, self.store._away_until
                found, other = self.store.recall("house", names, prefer="newest")
                if other is not None:  # not of the outbox, which holds only what this robot observed
                    self.recalled.add((other.robot, other.sequence))
                has_answered = not was_away and until == self.store._away_until
                if found is None and has_answered and self.acknowledged:
                    self.faults.append(f"{self.robot} does not recall its first observation")
            except DataError as error:
                self.faults.append(f"{self.robot}: {error}")
                return

    def _place(self) -> str:
        return f"{self.robot}-{self.sequence % 40}"


def run_kills(number: int, seed: int, *, postgresql: bool) -> KillReport:
    """Kill the service of a store, by turns with its PostgreSQL server if there is one."""
    remote_store.RETRY_SECONDS = 0.05
    rng, faults, lookups = Random(seed), list[str](), 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="service-kills-")))
        server = stack.enter_context(postgresql_server()) if postgresql else None
        location = str(folder / "site.db") if server is None else server.create_database("site")
        connect_store(location, SETTINGS).close()
        service = RunningService(location)
        stack.callback(lambda: service.stop())
        robots = [Robot(number, service.address, folder) for number in range(ROBOTS)]
        for robot in robots:
            robot.start()
        for count in range(number):
            before = sum(robot.acknowledged for robot in robots)
            wait_until(lambda before=before: _is_active(robots, before), 120.0)
            time.sleep(rng.random() * MAX_DELAY)
            kills_server = server is not None and count % 2 == 1
            if kills_server:
                server.kill()
            else:
                service.stop(signal.SIGKILL)
            acknowledged = [robot.acknowledged for robot in robots]
            if kills_server:
                server.start()
            lookups += sum(acknowledged)
            faults += _lost(location, acknowledged, [key for robot in robots for key in [*robot.recalled]])
            if not kills_server:
                service = RunningService(location, port=service.port)
        for robot in robots:
            robot.stop.set()
        for robot in robots:
            robot.join()
            faults += robot.faults
            _finish(robot)
        service.stop()
        faults += _compare(location, folder, {robot.robot: robot.sequence for robot in robots})
        return KillReport(number, sum(robot.sequence for robot in robots), lookups, faults)


def _is_active(robots: list[Robot], before: int) -> bool:
    """Whether the service has acknowledged something since a moment, or a robot has ended by a fault."""
    return sum(robot.acknowledged for robot in robots) > before or not all(map(Robot.is_alive, robots))


def _finish(robot: Robot) -> None:
    """Send what waits in the outbox of a robot."""
    end = time.monotonic() + 60
    while not robot.store.sync() and time.monotonic() < end:
        time.sleep(0.05)
    robot.store.close()


def _lost(location: str, acknowledged: list[int], recalled: list[tuple[str, int]]) -> list[str]:
    """Return observations that are not stored although they were acknowledged, or recalled by a robot."""
    with connect_store(location) as store:
        rows = store.database.query("SELECT robot, sequence FROM observation")
    found = {(robot, sequence) for robot, sequence in rows}
    return [f"observation {key} was recalled and is not stored" for key in recalled if key not in found] + [
        f"observation {sequence} of r{robot} was acknowledged and is lost"
        for robot, count in enumerate(acknowledged)
        for sequence in range(count)
        if (f"r{robot}", sequence) not in found
    ]


def _compare(location: str, folder: Path, numbers: dict[str, int]) -> list[str]:
    """Return faults of the store at the end: its check, and the digest of an undisturbed run."""
    with MemoryStore.open(folder / "undisturbed.db", SETTINGS) as expected, connect_store(location) as store:
        for robot, number in numbers.items():
            expected.remember(
                [observation(n, robot=robot, viewpoint=f"{robot}-{n % 40}") for n in range(number)]
            )
        faults = list(check_rows(store).faults)
        if store.digest != expected.digest:
            faults.append(f"{len(store)} observations, expected {len(expected)} with another digest")
        return faults


def main() -> int:
    """Run the kills; the exit code is 1 if there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--postgresql", action="store_true", help="kill the database server, too")
    options = parser.parse_args()
    os.environ["ESCEME_TOKEN"] = TOKEN
    begin = time.monotonic()
    done = run_kills(options.kills, options.seed, postgresql=options.postgresql)
    kind = "esceme serve and PostgreSQL" if options.postgresql else "esceme serve"
    print(
        f"{done.kills} kills of {kind} in {time.monotonic() - begin:.0f} s: {done.observations:,} "
        f"observations, {done.lookups:,} acknowledged ones looked up, {len(done.faults)} faults"
    )
    print("\n".join(done.faults[:20]))
    return 1 if done.faults else 0


if __name__ == "__main__":
    sys.exit(main())
