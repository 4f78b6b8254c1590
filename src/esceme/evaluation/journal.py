"""Journal of an evaluation: one line per finished trajectory, from which an evaluation can resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Generic, Self, TypeVar

import msgspec

from esceme.errors import DataError, prefix_errors
from esceme.files import JSON_ERRORS, JsonLinesWriter, read_checked_lines, read_complete_lines
from esceme.tasks.episode import Episode
from esceme.trajectory import Trajectory
from esceme.world.atlas import Atlas
from esceme.world.geometry import VIEWS

Entry = TypeVar("Entry")


class OtherJournalError(DataError):
    """The file at the place of a journal belongs to another evaluation, or is not a journal."""


class JournalHeader(msgspec.Struct, frozen=True, omit_defaults=True):
    """First line of a journal."""

    evaluation: str
    """Fingerprint of the evaluation: a hash of everything that determines its result."""
    format: str = ""
    """Name of the format of the other lines; empty for trajectories."""


class JournalEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finished trajectory. Viewpoints are stored by name, because their indices depend on the atlas."""

    pass_: int = msgspec.field(name="pass")
    batch: int
    """Number of the batch in the schedule `interleaved`; 0 in the schedule `lanes`."""
    id: str
    visit: int
    decisions: int
    stopped: bool
    poses: list[tuple[str, int]]
    actions: list[int] = []
    """Number of each action, see `trajectory.action_numbers`; older journals have none."""
    recomputed: int = 0
    """Number of decisions that were computed again in full precision."""

    @classmethod
    def of(cls, trajectory: Trajectory, atlas: Atlas, *, pass_number: int, batch: int = 0) -> JournalEntry:
        """Return the journal entry of a trajectory. `pass_number` counts runs over the split from 1."""
        return cls(
            pass_=pass_number,
            batch=batch,
            id=trajectory.episode.episode_id,
            visit=trajectory.visit,
            decisions=trajectory.num_decisions,
            stopped=trajectory.stopped,
            poses=[(atlas.name(viewpoint)[1], view) for viewpoint, view in trajectory.poses],
            actions=trajectory.actions,
            recomputed=trajectory.num_recomputed,
        )

    def trajectory(self, atlas: Atlas, episode: Episode, *, max_steps: int) -> Trajectory:
        """Return the entry as a trajectory of `episode`.

        Raise `DataError` if it does not fit the episode or has more than `max_steps` decisions.
        """
        with prefix_errors(file="the journal of this evaluation", record=f"episode {self.id}"):
            viewpoints = atlas.locate(episode.scene_id, [name for name, _ in self.poses]).tolist()
            self._check(viewpoints, atlas, episode, max_steps)
        poses = list(zip(viewpoints, (view for _, view in self.poses), strict=True))
        return Trajectory(
            episode, poses, self.decisions, self.stopped, self.visit, self.actions, self.recomputed
        )

    def _check(self, viewpoints: Sequence[int], atlas: Atlas, episode: Episode, max_steps: int) -> None:
        start = atlas.locate(episode.scene_id, [episode.start]).tolist()
        follows_edges = all(
            after == here or after in atlas.neighbours[here] for here, after in pairwise(viewpoints)
        )
        valid = (
            viewpoints[:1] == start
            and follows_edges
            and all(0 <= view < VIEWS for _, view in self.poses)
            and 1 <= self.decisions <= max_steps
            and self.visit >= 1
        )
        if not valid:
            raise DataError(
                f"expected at most {max_steps} decisions from the episode's start along edges of its scene; "
                "remove the journal to run the episodes again"
            )


class Journal(Generic[Entry]):
    """Journal file of an evaluation, open for writing. The caller must hold the lock of its folder.

    Every line has a checksum of the line and the fingerprint, a hash that identifies the evaluation.
    """

    def __init__(
        self,
        path: Path,
        fingerprint: str,
        kind: type[Entry],
        *,
        format: str = "",
        note: Callable[[str], None] = lambda message: None,
    ) -> None:
        """Open the journal of this evaluation, or create it. `kind` is the type of its entries.

        A damaged line and all entries after it are dropped, and `note` receives a message. Raise
        `OtherJournalError` if the file belongs to another evaluation or is not a journal.
        """
        self._path, self._fingerprint, self._kind = path, fingerprint, kind
        self.entries, fault = read_journal(path, fingerprint, kind)
        """Entries that the file contained when it was opened."""
        if fault:
            note(f"{fault}; {len(self.entries)} undamaged trajectories are kept, the others are run again")
        header = JournalHeader(fingerprint, format)
        self._header = [] if self.entries else [header]  # written with the first entry
        num_lines = 1 + len(self.entries) if self.entries else 0
        self._writer = JsonLinesWriter(path, keep=num_lines, checksum_key=fingerprint)

    def write(self, entries: Sequence[Entry]) -> None:
        """Append entries and flush them, so that they are not lost if this process is killed."""
        self._writer.write(*self._header, *entries)
        self._header = []

    def read(self) -> list[Entry]:
        """Return all entries that the file contains now."""
        return read_journal(self._path, self._fingerprint, self._kind)[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._writer.close()


def read_journal(path: Path, fingerprint: str, kind: type[Entry]) -> tuple[list[Entry], str]:
    """Return the entries of a journal before the first damaged line, and a message about this line.

    `kind` is the type of the entries. The message is empty if no line is damaged. A missing file has no
    entries.
    """
    lines = read_complete_lines(path) if path.is_file() else []
    if not lines:
        return [], ""
    entries, fault = read_checked_lines(path, kind, fingerprint, skip_lines=1)
    try:
        found = msgspec.json.decode(lines[0], type=JournalHeader).evaluation
    except (*JSON_ERRORS, msgspec.ValidationError):
        found, fault = "", fault or f"{path}: line 1 is damaged"
    if found != fingerprint and not entries:
        what = "another evaluation, with other weights, data or settings" if found else "no journal"
        raise OtherJournalError(f"{path}: holds {what}; give another --out, or remove the folder")
    return entries, fault


def finished_in_lanes(
    entries: Sequence[JournalEntry],
    pass_number: int,
    atlas: Atlas,
    episodes: Mapping[str, Episode],
    *,
    max_steps: int,
) -> dict[str, Trajectory]:
    """Return the trajectories of one run over all episodes, by episode id; skip ids not in `episodes`."""
    return {
        entry.id: entry.trajectory(atlas, episodes[entry.id], max_steps=max_steps)
        for entry in entries
        if entry.pass_ == pass_number and entry.id in episodes
    }


def finished_batches(
    entries: Sequence[JournalEntry],
    pass_number: int,
    atlas: Atlas,
    batches: Sequence[Sequence[Episode]],
    *,
    max_steps: int,
) -> list[list[Trajectory]]:
    """Return the trajectories of all batches before the first unfinished batch, of one run over the split."""
    by_key = {(entry.batch, entry.id): entry for entry in entries if entry.pass_ == pass_number}
    finished = []
    for number, batch in enumerate(batches):
        if any((number, episode.episode_id) not in by_key for episode in batch):
            break
        finished.append(
            [
                by_key[number, episode.episode_id].trajectory(atlas, episode, max_steps=max_steps)
                for episode in batch
            ]
        )
    return finished
