"""Room-across-Room (RxR): long instructions in three languages, as JSON lines."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from esceme.errors import ConfigError, DataError
from esceme.files import PrintableText, read_records
from esceme.tasks.episode import Angle, Episode, TokenId, require_unique_ids


class RxRRecord(msgspec.Struct, omit_defaults=True):
    """Record of a guide file: one instruction. Keys without a field here are ignored.

    Test records have no path id, and their path is only the start.
    """

    instruction_id: int
    language: PrintableText
    scan: PrintableText
    path: list[str]
    heading: Angle
    instruction: str
    path_id: int | None = None
    instr_encoding: list[TokenId] | None = None


def read_rxr(path: str | Path, *, languages: Collection[str] | None = None) -> list[Episode]:
    """Read one episode per record of a guide file (`.jsonl` or `.jsonl.gz`), published or pre-encoded.

    Episode ids are `<path_id>_<instruction_id>`, or the instruction id alone if there is no path id (test).
    `languages` selects episodes by language tag (`hi-IN`) or by the first part of the tag (`en` for en-IN and
    en-US). `DataError` is raised if no record has one of the languages.
    """
    path = Path(path)
    episodes = [_episode(record, path) for record in read_records(path, RxRRecord)]
    require_unique_ids(episodes, path)
    return episodes if languages is None else _select_languages(episodes, languages, path)


def _episode(record: RxRRecord, file: Path) -> Episode:
    if not record.path:
        raise DataError(
            f"{file}: instruction {record.instruction_id}: 'path' is empty; expected at least the start"
        )
    path_id = record.instruction_id if record.path_id is None else record.path_id
    return Episode(
        episode_id=f"{path_id}" if record.path_id is None else f"{path_id}_{record.instruction_id}",
        scene_id=record.scan,
        path_id=str(path_id),
        reference_path=tuple(record.path),
        heading=record.heading,
        instruction=record.instruction,
        tokens=None if record.instr_encoding is None else tuple(record.instr_encoding),
        language=record.language,
        goal_withheld=len(record.path) == 1,
    )


def _select_languages(episodes: Sequence[Episode], languages: Collection[str], file: Path) -> list[Episode]:
    """Return the episodes in the given languages, in file order."""
    requested = {languages} if isinstance(languages, str) else set(languages)
    if not requested:
        raise ConfigError("languages: expected at least one, found none; give None for all")
    present = {episode.language for episode in episodes}
    chosen: set[str] = set()
    for language in sorted(requested):
        found = {tag for tag in present if tag == language or tag.startswith(f"{language}-")}
        if not found:
            raise DataError(
                f"{file}: no instruction is in '{language}'; the file holds {', '.join(sorted(present))}"
            )
        chosen |= found
    return [episode for episode in episodes if episode.language in chosen]
