"""The journal of an evaluation: one line per finished trajectory. A killed evaluation continues from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from esceme.errors import DataError, prefix_errors
from esceme.files import JsonLinesWriter, read_json_lines
from esceme.tasks.episode import Episode
from esceme.trajectory import Trajectory
from esceme.world.atlas import Atlas

T = TypeVar("T")


class JournalHeader(msgspec.Struct, frozen=True):
    """The first line of a journal."""

    evaluation: str
    """Fingerprint of the evaluation, a hash of everything that determines its result."""


class JournalEntry(msgspec.Struct, frozen=True):
    """A finished trajectory; viewpoints by name, because integers depend on the loaded scenes."""

    pass_: int = msgspec.field(name="pass")
    batch: int
    """Number of the batch in an interleaved pass; 0 in lanes."""
    id: str
    visit: int
    decisions: int
    stopped: bool
    poses: list[tuple[str, int]]

    @classmethod
    def of(cls, trajectory: Trajectory, atlas: Atlas, *, pass_number: int, batch: int = 0) -> JournalEntry:
        """Convert a trajectory to an entry."""
        return cls(
            pass_=pass_number,
            batch=batch,
            id=trajectory.episode.episode_id,
            visit=trajectory.visit,
            decisions=trajectory.num_decisions,
            stopped=trajectory.stopped,
            poses=[(atlas.name(viewpoint)[1], view) for viewpoint, view in trajectory.poses],
        )

    def trajectory(self, atlas: Atlas, episode: Episode) -> Trajectory:
        """Convert the entry to a trajectory of `episode`."""
        with prefix_errors(file="the journal of this evaluation", record=f"episode {self.id}"):
            viewpoints = atlas.locate(episode.scene_id, [name for name, _ in self.poses]).tolist()
        poses = list(zip(viewpoints, (view for _, view in self.poses), strict=True))
        return Trajectory(episode, poses, self.decisions, self.stopped, self.visit)


class Journal:
    """The journal file of an evaluation, open for writing; hold the folder's lock meanwhile."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        """Continue the journal of this evaluation, or start it.

        Raises `DataError` where the file belongs to another evaluation or is not a journal.
        """
        self.entries = read_journal(path, fingerprint)
        """Entries written before."""
        is_new = not path.is_file() or not _read(path, JournalHeader, stop=1)
        self._writer = JsonLinesWriter(path)
        if is_new:
            self._writer.write(JournalHeader(fingerprint))

    def write(self, entries: Sequence[JournalEntry]) -> None:
        """Append entries; they have reached the operating system when this returns."""
        self._writer.write(*entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._writer.close()


def read_journal(path: Path, fingerprint: str) -> list[JournalEntry]:
    """Read the entries of a journal; none where it does not exist."""
    if not path.is_file():
        return []
    for header in _read(path, JournalHeader, stop=1):
        if header.evaluation != fingerprint:
            raise DataError(
                f"{path.parent}: holds another evaluation, with other weights, data or settings; "
                "give another --out, or remove the folder"
            )
    return _read(path, JournalEntry, start=1)


def _read(path: Path, kind: type[T], *, start: int = 0, stop: int | None = None) -> list[T]:
    try:
        return read_json_lines(path, kind, start=start, stop=stop)
    except DataError as error:
        raise DataError(f"{error}; it is not a journal of an evaluation: remove it") from None


def finished_in_lanes(
    entries: Sequence[JournalEntry], pass_number: int, atlas: Atlas, episodes: Mapping[str, Episode]
) -> dict[str, Trajectory]:
    """Finished trajectories of a pass in lanes, by episode id; entries of other episodes are ignored."""
    return {
        entry.id: entry.trajectory(atlas, episodes[entry.id])
        for entry in entries
        if entry.pass_ == pass_number and entry.id in episodes
    }


def finished_batches(
    entries: Sequence[JournalEntry], pass_number: int, atlas: Atlas, batches: Sequence[Sequence[Episode]]
) -> list[list[Trajectory]]:
    """Trajectories of the leading `batches` of an interleaved pass that are complete."""
    by_key = {(entry.batch, entry.id): entry for entry in entries if entry.pass_ == pass_number}
    finished = []
    for number, batch in enumerate(batches):
        if any((number, episode.episode_id) not in by_key for episode in batch):
            break
        finished.append([by_key[number, episode.episode_id].trajectory(atlas, episode) for episode in batch])
    return finished
