"""Rollouts as reference files record them, and functions to replay greedy and training rollouts."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from torch import Tensor

from esceme.agents.base import Decision, State
from esceme.agents.tdstp import TDSTP
from esceme.checkpoints import Switches
from esceme.errors import DataError, WorldError
from esceme.files import read_json
from esceme.memory import Memory
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.tasks.episode import Episode
from esceme.verify.comparison import FileComparison, Json, Skipped, VerificationReport, value_or_error
from esceme.verify.fixtures import NOT_COMPARED, NetworkFiles, NetworkOptions, ReferenceData, network_of
from esceme.world.atlas import Atlas
from esceme.world.features import ArrayFeatures
from esceme.world.geometry import VIEWS

VARIANTS = ("hamt", "hamt_esceme", "tdstp", "tdstp_esceme")


class RecordedItem(msgspec.Struct, kw_only=True):
    """An episode as a reference file states it."""

    scan: str
    reference_path: list[str] = msgspec.field(name="path")
    heading: float
    instr_encoding: list[int]


class RolloutItem(RecordedItem, kw_only=True):
    """An episode of a reference file of greedy rollouts."""

    start: str
    reference_path: list[str] = msgspec.field(name="gt_path")


class TrainingItem(RecordedItem, kw_only=True):
    """An episode of a reference file of training steps."""

    instr_id: str


class RecordedRollout(msgspec.Struct, kw_only=True):
    """A batch of episodes that were rolled out together."""

    items: Sequence[RecordedItem]

    @property
    def episode_ids(self) -> list[str]:
        """One id per item."""
        raise NotImplementedError

    def episodes(self, vocabulary: int) -> list[Episode]:
        """Convert the items to episodes; raises `DataError` for an item with an invalid field."""
        return [
            _episode(episode_id, item, vocabulary)
            for episode_id, item in zip(self.episode_ids, self.items, strict=False)
        ]


class RecordedFile(msgspec.Struct, kw_only=True):
    """The header of a file of rollouts."""

    variant: str = ""
    flags: str = ""
    """The original's command line."""

    @property
    def options(self) -> dict[str, Json]:
        """The flags by name."""
        return parse_flags(self.flags)


def _episode(episode_id: str, item: RecordedItem, vocabulary: int) -> Episode:
    if not item.instr_encoding or not all(0 <= token < vocabulary for token in item.instr_encoding):
        raise DataError(f"{episode_id}: expected ids from 0 to {vocabulary - 1}, and at least one")
    if not item.reference_path or not math.isfinite(item.heading):
        raise DataError(f"{episode_id}: has no path or no heading")
    return Episode(
        episode_id=episode_id,
        scene_id=item.scan,
        path_id=episode_id,
        reference_path=tuple(item.reference_path),
        heading=item.heading,
        instruction="",
        tokens=tuple(item.instr_encoding),
    )


def tokens_of(episode: Episode) -> tuple[int, ...]:
    """The token ids of an episode's instruction."""
    return episode.tokens or ()


# -- reading -----------------------------------------------------------------------------------------------


def read_rollout_file(path: Path) -> dict[str, Json]:
    """Read a recorded rollout file as JSON; raises `DataError` if its network is not one of `VARIANTS`."""
    raw = read_json(path, dict[str, Json])
    if raw.get("variant") not in VARIANTS:
        raise DataError(NOT_COMPARED)
    return raw


def unknown_keys(raw: Json, known: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of the keys in `raw` that have no field in `known`, the struct read from it."""
    if isinstance(raw, list) and isinstance(known, list):
        for raw_value, known_value in zip(raw, known, strict=False):
            yield from unknown_keys(raw_value, known_value, prefix)
    elif isinstance(raw, dict) and isinstance(known, msgspec.Struct):
        kind = type(known)
        fields = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
        for key, value in raw.items():
            if key in fields:
                yield from unknown_keys(value, getattr(known, fields[key]), f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}"


def parse_flags(text: str) -> dict[str, Json]:
    """Parse the original's command line; a flag without a value is True.

    >>> parse_flags("--no_lang_ca --max_action_len 8")
    {'no_lang_ca': True, 'max_action_len': '8'}
    """
    words = [words.split() for words in f" {' '.join(text.split())}".split(" --")[1:]]
    return {word[0]: " ".join(word[1:]) or True for word in words if word}


def max_steps_of(flags: Mapping[str, Json], recorded: int) -> int:
    """Return the maximum number of decisions: of the flags, or by default `recorded`."""
    with suppress(ValueError):
        recorded = int(str(flags.get("max_action_len", recorded)))
    return max(recorded, 1)


def compare_items(
    rollouts: Iterable[tuple[str, RecordedRollout]],
    references: ReferenceData,
    comparison: FileComparison,
    report: VerificationReport,
) -> None:
    """Compare scene, heading and reference path of each item with its R2R episode.

    `rollouts` are pairs of a name in the report and a rollout.
    """
    rollouts = list(rollouts)
    known = references.episodes_with({key for _, rollout in rollouts for key in rollout.episode_ids})
    if not known:
        report.skipped.append(Skipped(comparison.file, "items: there is no R2R in the data folder"))
        return
    for name, rollout in rollouts:
        for episode_id, item in zip(rollout.episode_ids, rollout.items, strict=False):
            stored = msgspec.to_builtins(item)
            del stored["instr_encoding"]
            stored.pop("instr_id", None)
            comparison.add(
                f"{name}.items", stored, value_or_error(_expected_item, episode_id, stored, known), 0.0
            )


def _expected_item(episode_id: str, keys: Iterable[str], known: Mapping[str, Episode]) -> Json:
    if episode_id not in known:
        raise WorldError(f"R2R has no episode {episode_id}")
    episode, path = known[episode_id], list(known[episode_id].reference_path)
    values = {
        "scan": episode.scene_id,
        "start": path[0],
        "heading": episode.heading,
        "gt_path": path,
        "path": path,
    }
    return {key: value for key, value in values.items() if key in keys}


# -- replaying -----------------------------------------------------------------------------------------------


def recorded_navigator(
    recorded: RecordedFile, files: NetworkFiles, *, replaced: Mapping[str, Tensor] | None = None
) -> Navigator:
    """Build the network beside a recorded file, with the settings that the file's flags name.

    `replaced` maps names of tensors to tensors that are used instead of the folder's. Raises `DataError` if
    the weights are not of the agent that the file names.
    """
    flags, options = recorded.options, NetworkOptions.from_arguments(recorded.options)
    try:
        tdstp_switches = Switches(  # they affect rollouts and training only; HAMT has none of them
            penalise_reversed_jumps=bool(flags.get("logit-reweighting", False)),
            allow_backtracking=not flags.get("no-gas", False),
            target_weight=float(str(flags.get("gp_loss_weight", 0.2))),
            candidate_position_source="agent" if flags.get("cand-use-ob-pos", False) else "candidate",
        )
    except ValueError as error:
        raise DataError(f"flags that this version does not know: {error}") from None
    options = replace(options, switches=options.switches | tdstp_switches)
    navigator = files.navigator(options, replaced=replaced)
    if recorded.variant.startswith("tdstp") != isinstance(navigator.agent, TDSTP):
        agent_name = type(navigator.agent).__name__
        raise DataError(f"of '{recorded.variant}', and the weights beside it are of {agent_name}")
    return navigator


def atlas_of(rollouts: Iterable[RecordedRollout], navigator: Navigator, references: ReferenceData) -> Atlas:
    """Build an atlas of the rollouts' scenes, with noise (36, D) seeded by the viewpoint's name as features.

    The original used the same noise when it recorded the files.

    Raises `WorldError` for an unknown scene.
    """
    scenes = {item.scan for rollout in rollouts for item in rollout.items}
    if missing := sorted(scenes - set(references.graphs)):
        raise WorldError(f"no scene {', '.join(missing)} in the data folder")
    graphs = [references.graphs[scene] for scene in sorted(scenes)]
    names = [f"{graph.scene_id}_{viewpoint}" for graph in graphs for viewpoint in graph.viewpoints]
    shape = VIEWS, network_of(navigator).config.feature_width
    features = {
        name: np.random.RandomState(zlib.crc32(name.encode())).randn(*shape).astype(np.float32)
        for name in names
    }
    return Atlas(graphs, ArrayFeatures.from_mapping(features, source="random"))


class RecordingNavigator(Navigator):
    """A navigator that stores memory, state and observation of its latest decision, and the next state."""

    memory: Memory | None = None
    state: State
    seen: Observation
    next_state: State

    def observe(self, observation: Observation, memory: Memory | None) -> Observation:
        """Store the memory, then let the reader add what it holds."""
        self.memory = memory
        return super().observe(observation, memory)

    def decide(self, state: State, seen: Observation) -> Decision:
        """Score the actions, and store state, observation and next state."""
        decision = super().decide(state, seen)
        self.state, self.seen, self.next_state = state, seen, decision.state or state
        return decision


def row_or_empty(rows: Sequence[Sequence[Any]] | None, row: int) -> Sequence[Any]:
    """Return `rows[row]`, or an empty list if there is no such row."""
    return rows[row] if rows is not None and row < len(rows) else []
