"""Kills writers of one memory store at random moments: `python -m fuzz.store_kills --kills 1000`.

Four processes store observations, and note every acknowledged one. Again and again one of them, or all at
once, gets SIGKILL and is started anew. At every kill, all acknowledged observations have to be in the store.
At the end, the store has to pass its check and to have the digest of an undisturbed run.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import NamedTuple

from esceme.memory.store import MemoryStore
from esceme.memory.store_record import StoredObservation
from esceme.memory.store_recovery import check_store
from fixtures.observations import SETTINGS, observation
from fuzz.kills import Running, start, wait_for

WRITERS, OBSERVATIONS, ROUND_KILLS = 4, 250, 60
"""Number of writers, of observations that each stores, and maximum number of kills of one store."""
MAX_DELAY = 0.08
"""Maximum time in seconds between two kills."""
ALL_PROBABILITY = 0.25
"""Probability that all writers are killed at once, so that no process has the store open."""


class Round(NamedTuple):
    """Kills of the writers of one store."""

    kills: int
    acknowledged: int
    """Number of acknowledged observations at all kills, counted at each kill."""
    faults: list[str]


def robot_observation(robot: int, sequence: int) -> StoredObservation:
    """Return an observation of a robot; some need overflow pages, some are of the same place."""
    place = sequence % 50 if sequence % 3 else 1000 * robot + sequence
    thumbnail = bytes(Random(sequence).randrange(6000)) if sequence % 5 == 0 else None
    return observation(sequence, float(robot), robot=f"r{robot}", viewpoint=f"v{place}", thumbnail=thumbnail)


def write(path: Path, robot: int, log: Path) -> int:
    """Store observations after the last acknowledged one; append a byte to `log` for each acknowledgement."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    first = os.fstat(handle).st_size
    with MemoryStore.open(path, SETTINGS) as store:
        for sequence in range(max(0, first - 1), OBSERVATIONS):  # one again, as after a lost acknowledgement
            store.remember([robot_observation(robot, sequence)])
            if sequence >= first:
                os.write(handle, b".")
    return 0


def run_round(folder: Path, rng: Random, max_kills: int) -> Round:
    """Kill the writers of a new store until they have finished or `max_kills` is reached."""
    path, logs = folder / "site.db", [folder / f"{robot}.log" for robot in range(WRITERS)]

    def begin(robot: int) -> Running:
        return start(lambda: write(path, robot, logs[robot]), folder)

    running = {robot: begin(robot) for robot in range(WRITERS)}
    kills, total, faults = 0, 0, list[str]()
    while kills < max_kills and not faults:
        time.sleep(rng.random() * MAX_DELAY)
        victims = list(running) if rng.random() < ALL_PROBABILITY else [rng.choice(list(running))]
        for robot in victims:
            os.kill(running[robot].pid, signal.SIGKILL)
        ended = {robot: wait_for(running.pop(robot)) for robot in victims}
        kills += sum(done.code == -signal.SIGKILL for done in ended.values())
        faults += [str(done) for done in ended.values() if done.code not in (0, -signal.SIGKILL)]
        counts = [log.stat().st_size if log.exists() else 0 for log in logs]
        total += sum(counts)
        faults += lost_observations(path, counts)
        if all(count == OBSERVATIONS for count in counts):
            break
        running |= {robot: begin(robot) for robot in victims}
    for done in map(wait_for, running.values()):
        faults += [str(done)] if done.code not in (0, -signal.SIGKILL) else []
    for robot in range(WRITERS):
        write(path, robot, logs[robot])
    faults += lost_observations(path, [OBSERVATIONS] * WRITERS) + check_store(path).faults
    with MemoryStore.open(path) as store:
        if store.digest != undisturbed_digest(folder):
            faults.append("the digest differs from that of an undisturbed run")
    return Round(kills, total, faults)


def lost_observations(path: Path, counts: list[int]) -> list[str]:
    """Return acknowledged observations that are missing; `counts` are their numbers by robot."""
    if not any(counts):
        return []
    with MemoryStore.open(path) as store:
        rows = store.database.query("SELECT robot, sequence, digest FROM observation")
    found = {(robot, sequence): digest for robot, sequence, digest in rows}
    return [
        f"observation {sequence} of r{robot} was acknowledged and is lost"
        for robot, count in enumerate(counts)
        for sequence in range(count)
        if found.get((f"r{robot}", sequence)) != DIGESTS[robot, sequence]
    ]


def undisturbed_digest(folder: Path) -> str:
    """Return the digest of a store that the writers fill one after the other."""
    with MemoryStore.open(folder / "undisturbed.db", SETTINGS) as store:
        for robot in range(WRITERS):
            store.remember([robot_observation(robot, sequence) for sequence in range(OBSERVATIONS)])
        return store.digest


DIGESTS = {
    (robot, sequence): robot_observation(robot, sequence).checked(SETTINGS).digest
    for robot in range(WRITERS)
    for sequence in range(OBSERVATIONS)
}


def main() -> int:
    """Run rounds until the number of kills is reached; the exit code is 1 if there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    begin, kills, checked, faults, rounds = time.monotonic(), 0, 0, list[str](), 0
    while kills < options.kills:
        with tempfile.TemporaryDirectory(prefix="store-kills-") as folder:
            limit = min(ROUND_KILLS, options.kills - kills)
            done = run_round(Path(folder), Random(f"{options.seed} {rounds}"), limit)
        rounds, kills, checked, faults = rounds + 1, kills + done[0], checked + done[1], faults + done[2]
    seconds = time.monotonic() - begin
    print(
        f"{kills} kills of {WRITERS} writers in {rounds} stores in {seconds:.0f} s: {checked:,} acknowledged "
        f"observations looked up, {len(faults)} faults"
    )
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
