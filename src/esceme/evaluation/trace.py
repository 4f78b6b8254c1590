"""Trace of an evaluation: every decision of every episode, as stored in `trace.jsonl` (docs/traces.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from esceme.errors import DataError
from esceme.evaluation.context import hash_facts
from esceme.evaluation.journal import JournalHeader
from esceme.evaluation.result import RESULT, read_result
from esceme.files import JsonLinesWriter, PrintableText, atomic_path, read_checked_lines, read_json_lines

FORMAT = "esceme-trace-1"
TRACE = "trace.jsonl"
Probabilities = list[float]
"""Probabilities of actions: of each candidate, of STOP, then of each entry of `TraceStep.routes`."""


class TraceStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One decision."""

    viewpoint: PrintableText
    """Viewpoint at which the agent decides."""
    view: int
    """View that the agent faces, from 0 to 35."""
    candidates: list[PrintableText]
    """Viewpoints of the candidates."""
    routes: list[PrintableText] = []
    """Viewpoints of the actions after STOP, such as returns to earlier viewpoints; an empty string
    for an action that does not exist."""
    probabilities: Probabilities
    """Probabilities with memory, from which the evaluation took the action."""
    masked: Probabilities | None = None
    """Probabilities if the memory recalled only zeros at this step; None for agents without a memory reader.
    The steps before are the same: the agent's history does not change."""
    action: int
    """Number of the action: an index into `probabilities`."""
    recalled: list[PrintableText] = []
    """Viewpoints whose remembered features the memory reader received, in alphabetical order."""
    remembered: list[PrintableText] = []
    """Viewpoints that the memory stored at this step for the first time."""
    attention: list[float] | None = None
    """Weight of each token of the instruction (`Agent.text_attention`); None if the agent has none."""
    details: dict[str, Any] = {}
    """Further JSON values of `Navigator.decision_details`."""


class EpisodeTrace(msgspec.Struct, frozen=True, kw_only=True):
    """All decisions of one episode."""

    id: PrintableText
    scene: PrintableText
    visit: int
    """Number of the episode in its scene (or tour), counted from 1."""
    tokens: list[str]
    """Tokens of the instruction, as the agent reads it; token ids as text if there is no vocabulary."""
    steps: list[TraceStep]


class Trace(NamedTuple):
    """Trace of a whole evaluation."""

    evaluation: str
    """Fingerprint of the evaluation; see `EvaluationContext.fingerprint`."""
    episodes: list[EpisodeTrace]
    """Episodes in the order of the result."""


def read_trace(path: str | Path) -> Trace:
    """Return the trace in an evaluation's folder, or in a file beside a `result.json`.

    Raise `DataError` if the trace is damaged or incomplete, or belongs to another result.
    """
    path = Path(path)
    path = path / TRACE if path.is_dir() else path
    if not path.is_file():
        raise DataError(f"{path}: no such file; evaluate again with --trace")
    (header,) = read_json_lines(path, JournalHeader, stop=1) or (JournalHeader(""),)
    if header.format != FORMAT:
        raise DataError(f"{path}: format '{header.format}', expected '{FORMAT}'; evaluate again with --trace")
    episodes, fault = read_checked_lines(path, EpisodeTrace, header.evaluation, skip_lines=1)
    if fault:
        raise DataError(f"{fault}; evaluate again with --trace")
    result = read_result(path.with_name(RESULT))
    if hash_facts(result.facts) != header.evaluation:
        raise DataError(f"{path}: not of the evaluation in {RESULT}; evaluate again with --trace")
    if [episode.id for episode in episodes] != [episode.id for episode in result.episodes]:
        raise DataError(
            f"{path}: {len(episodes)} of {len(result.episodes)} episodes; continue with the same command"
        )
    return Trace(header.evaluation, episodes)


def write_trace(path: Path, fingerprint: str, episodes: Sequence[EpisodeTrace]) -> None:
    """Replace a trace file atomically."""
    with atomic_path(path) as part, JsonLinesWriter(part, checksum_key=fingerprint) as writer:
        writer.write(JournalHeader(fingerprint, FORMAT), *episodes)
