"""Structure of reference files with rollouts, and the navigator that repeats these rollouts."""

from __future__ import annotations

import math
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec
import numpy as np
from torch import Tensor

from esceme.agents import AGENTS
from esceme.agents.base import Decision, State
from esceme.checkpoints import Switches
from esceme.errors import DataError, WorldError
from esceme.files import read_json
from esceme.memory import Memory
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.tasks.episode import Episode
from esceme.verify.comparison import FileComparison, Json, value_or_error
from esceme.verify.fixtures import NOT_COMPARED, NetworkFiles, NetworkOptions, ReferenceData
from esceme.world.atlas import Atlas
from esceme.world.features import ArrayFeatures
from esceme.world.geometry import VIEWS

VARIANTS = ("hamt", "hamt_esceme", "tdstp", "tdstp_esceme")
"""Names of the networks whose rollouts can be compared."""
ENCODER = attrgetter("tokens")
"""Function that returns the token ids of an episode's instruction."""


class RecordedItem(msgspec.Struct, kw_only=True):
    """Record of one episode in a reference file: scene, reference path, heading and token ids."""

    scan: str
    reference_path: list[str] = msgspec.field(name="path")
    heading: float
    instr_encoding: list[int]


class RecordedRollout(msgspec.Struct, kw_only=True):
    """Batch of episodes that the original code ran together."""

    items: Sequence[RecordedItem]

    @property
    @abstractmethod
    def episode_ids(self) -> list[str]:
        """Episode ids, in the order of `items`."""

    def episodes(self, vocabulary: int) -> list[Episode]:
        """Return the records as episodes; raise `DataError` if a field is invalid.

        `vocabulary` is the number of token ids that the network knows.
        """
        return [
            _episode(episode_id, item, vocabulary)
            for episode_id, item in zip(self.episode_ids, self.items, strict=False)
        ]


class RecordedFile(msgspec.Struct, kw_only=True):
    """Content of a reference file with rollouts, the name of the network and the original command line."""

    variants: ClassVar[tuple[str, ...]] = VARIANTS
    """Values of `variant` in files of this structure."""
    variant: str = ""
    flags: str = ""
    """Command line of the original code."""

    @classmethod
    def read(cls, path: Path, comparison: FileComparison) -> tuple[Self, dict[str, Json]]:
        """Read a file and return it as a struct and as JSON; add unknown keys to `comparison`.

        Raises `DataError` if the network of the file is not one of `variants`.
        """
        raw = read_json(path, dict[str, Json])
        if raw.get("variant") not in cls.variants:
            raise DataError(NOT_COMPARED)
        stored = read_json(path, cls)
        comparison.unknown |= set(_unknown_keys(raw, stored))
        return stored, raw

    @property
    @abstractmethod
    def rollouts(self) -> list[tuple[str, RecordedRollout]]:
        """(name in the report, rollout) pairs of all rollouts in the file."""

    @property
    def options(self) -> dict[str, Json]:
        """Name -> value of every option on the original command line."""
        return parse_flags(self.flags)

    def max_steps(self, recorded: int) -> int:
        """Return the maximum number of decisions on the command line; `recorded` if it is not given."""
        with suppress(ValueError):
            recorded = int(str(self.options.get("max_action_len", recorded)))
        return max(recorded, 1)

    def navigator(self, files: NetworkFiles, *, replaced: Mapping[str, Tensor] | None = None) -> Navigator:
        """Build a navigator from the weights beside the file, with the settings on the original command line.

        `replaced` maps names of tensors to values that are used instead of those in the folder. Raises
        `DataError` if the weights belong to another agent than the one that the file names.
        """
        flags, options = self.options, NetworkOptions.from_arguments(self.options)
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
        if AGENTS[self.variant.split("_")[0]] is not type(navigator.agent):
            agent_name = type(navigator.agent).__name__
            raise DataError(f"recorded by '{self.variant}', but the weights beside it are of {agent_name}")
        return navigator

    def atlas(self, navigator: Navigator, references: ReferenceData) -> Atlas:
        """Build an atlas of the scenes of all rollouts, with the random features that the original code used.

        The features (36, D) of a viewpoint are Gaussian noise, seeded by scene and viewpoint id. Raises
        `WorldError` if the data folder lacks a scene.
        """
        scenes = {item.scan for _, rollout in self.rollouts for item in rollout.items}
        if missing := sorted(scenes - set(references.graphs)):
            raise WorldError(f"no scene {', '.join(missing)} in the data folder")
        graphs = [references.graphs[scene] for scene in sorted(scenes)]
        names = [f"{graph.scene_id}_{viewpoint}" for graph in graphs for viewpoint in graph.viewpoints]
        shape = VIEWS, navigator.agent.config.feature_width
        features = {
            name: np.random.RandomState(zlib.crc32(name.encode())).randn(*shape).astype(np.float32)
            for name in names
        }
        return Atlas(graphs, ArrayFeatures.from_mapping(features, source="random"))

    def compare_items(self, references: ReferenceData, comparison: FileComparison) -> None:
        """Compare scene, heading and reference path of every record with the R2R episode of the same id."""
        ids = {episode_id for _, rollout in self.rollouts for episode_id in rollout.episode_ids}
        known = references.episodes_with(ids)
        if not known:
            comparison.skipped.append("items: there is no R2R in the data folder")
            return
        for name, rollout in self.rollouts:
            for episode_id, item in zip(rollout.episode_ids, rollout.items, strict=False):
                stored = msgspec.to_builtins(item)
                del stored["instr_encoding"]
                stored.pop("instr_id", None)
                ours = value_or_error(_expected_item, episode_id, stored, known)
                comparison.add(f"{name}.items", stored, ours, 0.0)


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


def _unknown_keys(raw: Json, known: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of keys in `raw` for which the struct `known`, read from `raw`, has no field."""
    if isinstance(raw, list) and isinstance(known, list):
        for raw_value, known_value in zip(raw, known, strict=False):
            yield from _unknown_keys(raw_value, known_value, prefix)
    elif isinstance(raw, dict) and isinstance(known, msgspec.Struct):
        kind = type(known)
        fields = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
        for key, value in raw.items():
            if key in fields:
                yield from _unknown_keys(value, getattr(known, fields[key]), f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}"


def parse_flags(text: str) -> dict[str, Json]:
    """Return a dict from option to value, parsed from a command line; an option without a value is True.

    >>> parse_flags("--no_lang_ca --max_action_len 8")
    {'no_lang_ca': True, 'max_action_len': '8'}
    """
    words = [words.split() for words in f" {' '.join(text.split())}".split(" --")[1:]]
    return {word[0]: " ".join(word[1:]) or True for word in words if word}


def _expected_item(episode_id: str, keys: Iterable[str], known: Mapping[str, Episode]) -> Json:
    """Return the values that a stored record of an R2R episode should have for `keys`."""
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


class RecordingNavigator(Navigator):
    """Navigator that keeps memory, state and observation of its latest decision, and the next state."""

    memory: Memory | None = None
    state: State
    observation: Observation
    next_state: State

    def observe(self, observation: Observation, memory: Memory | None) -> Observation:
        """Keep the memory; return the observation with the recalled features that the memory reader adds."""
        self.memory = memory
        return super().observe(observation, memory)

    def decide(self, state: State, observation: Observation) -> Decision:
        """Return the decision; keep the state, the observation and the next state."""
        decision = super().decide(state, observation)
        self.state, self.observation, self.next_state = state, observation, decision.state or state
        return decision
