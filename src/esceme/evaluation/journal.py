"""What an evaluation has lived through so far, line by line, so that one that was killed can go on."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from esceme.errors import DataError, prefix_errors
from esceme.files import read_bytes
from esceme.tasks.episode import Episode
from esceme.trajectory import Trajectory
from esceme.world.atlas import Atlas


class Line(msgspec.Struct, frozen=True):
    """One walk that has ended; viewpoints by name, since integers depend on which scenes are loaded."""

    pass_: int = msgspec.field(name="pass")
    batch: int
    """Which batch of an interleaved pass it belongs to; 0 in lanes."""
    id: str
    visit: int
    decisions: int
    stopped: bool
    poses: list[tuple[str, int]]

    @classmethod
    def of(cls, walk: Trajectory, atlas: Atlas, *, number: int, batch: int = 0) -> Line:
        """A walk as a line."""
        poses = [(atlas.name(viewpoint)[1], view) for viewpoint, view in walk.poses]
        return cls(
            number, batch, walk.episode.episode_id, walk.visit, walk.num_decisions, walk.stopped, poses
        )

    def walk(self, atlas: Atlas, episode: Episode) -> Trajectory:
        """The walk of a line."""
        with prefix_errors(file="the journal of this evaluation", record=f"episode {self.id}"):
            at = atlas.locate(episode.scene_id, [name for name, _ in self.poses]).tolist()
        poses = list(zip(at, (view for _, view in self.poses), strict=True))
        return Trajectory(episode, poses, self.decisions, self.stopped, self.visit)


class Head(msgspec.Struct, frozen=True):
    """The first line: which evaluation this is of."""

    evaluation: str
    """A hash of everything that determines its result."""


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """A folder to ourselves while the block lasts; raises `DataError` where another evaluation is in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error.strerror or error})") from None
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise DataError(f"{folder}: another evaluation is at work there; let it finish") from None
    finally:
        os.close(place)


class Journal:
    """A file that grows by a line per walk."""

    def __init__(self, path: Path, head: Head) -> None:
        """Go on with the journal of this evaluation, or begin it; a line that was cut off is removed."""
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise self._fault(error) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            whole = whole_lines(path)
            self._file.truncate(sum(len(line) for line in whole))
            if not whole:
                self._write(msgspec.json.encode(head) + b"\n")
        except BlockingIOError:
            self.close()
            raise DataError(f"{path}: another evaluation is writing it just now; let it finish") from None
        except OSError as error:
            self.close()
            raise self._fault(error) from None

    def add(self, lines: Sequence[Line]) -> None:
        """Write lines that belong together; they are on their way to the disk when this returns."""
        try:
            self._write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        except OSError as error:
            raise self._fault(error) from None

    def _write(self, data: bytes) -> None:
        while data:
            data = data[self._file.write(data) :]

    def _fault(self, error: OSError) -> DataError:
        return DataError(f"{self._path}: cannot be written ({error.strerror or error})")

    def close(self) -> None:
        """End writing."""
        self._file.close()


def whole_lines(path: Path) -> list[bytes]:
    """The complete lines of a journal; one that was cut off by a kill does not count."""
    if not path.is_file():
        return []
    lines = read_bytes(path).splitlines(keepends=True)
    return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]


def read_journals(folder: Path, head: Head) -> list[Line]:
    """All lines of the journals in a folder; raises `DataError` where one is of another evaluation."""
    found: dict[tuple[int, int, str], Line] = {}
    for path in sorted(folder.glob("journal*.jsonl")):
        try:
            first, *rest = whole_lines(path) or [msgspec.json.encode(head)]
            if msgspec.json.decode(first, type=Head) != head:
                raise DataError(
                    f"{folder}: holds another evaluation, begun with other weights, data or settings; "
                    "give another --out, or remove the folder"
                )
            for data in rest:
                line = msgspec.json.decode(data, type=Line)
                found.setdefault((line.pass_, line.batch, line.id), line)
        except msgspec.DecodeError as error:
            raise DataError(f"{path}: not a journal of an evaluation ({error}); remove it") from None
    return list(found.values())


def done_in_lanes(
    lines: Sequence[Line], number: int, atlas: Atlas, episodes: Mapping[str, Episode]
) -> dict[str, Trajectory]:
    """The walks of a pass that have ended, by episode."""
    of_pass = [line for line in lines if line.pass_ == number and line.id in episodes]
    return {line.id: line.walk(atlas, episodes[line.id]) for line in of_pass}


def done_batches(
    lines: Sequence[Line], number: int, atlas: Atlas, planned: Sequence[Sequence[Episode]]
) -> list[list[Trajectory]]:
    """The walks of the first batches of a pass that have ended as a whole."""
    found = {(line.batch, line.id): line for line in lines if line.pass_ == number}
    done = []
    for index, batch in enumerate(planned):
        if any((index, episode.episode_id) not in found for episode in batch):
            break
        done.append([found[index, episode.episode_id].walk(atlas, episode) for episode in batch])
    return done
