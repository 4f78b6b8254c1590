"""Stored rollouts, and living them again: the batches as they were, by the same greedy choice."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esceme.agents.base import BacktrackRoutes, Decision, State
from esceme.agents.crossmodal import CrossModalState
from esceme.agents.tdstp import TDSTP, TdstpState
from esceme.errors import ConfigError, DataError, WorldError
from esceme.memory import CandidateEnhancing, Memory
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.tasks.episode import Episode
from esceme.trajectory import Trajectory, next_poses
from esceme.verify.comparison import Json
from esceme.verify.references import References
from esceme.world.atlas import Atlas, Pose
from esceme.world.features import ArrayFeatures
from esceme.world.geometry import VIEWS

TIE = 1e-4
"""Scores nearer to each other than this may come in either order."""


class Item(msgspec.Struct):
    """An episode, as a file states it."""

    scan: str
    start: str
    heading: float
    gt_path: list[str]
    instr_encoding: list[int]


class Moment(msgspec.Struct):
    """One step of a batch: a row per episode, those that have ended included."""

    raw_logits: list[list[float | None]]
    nav_types: list[list[int]]
    hist_lens: list[int]
    node_nonzero_per_item: list[list[int]] | None = None


class Batch(msgspec.Struct):
    """Episodes that were lived together."""

    instr_ids: list[str]
    items: list[Item]
    paths: list[list[tuple[str, float, float]]]
    steps: list[Moment]


class Pass(msgspec.Struct):
    """Batches one after the other, and the memory after them."""

    batches: list[Batch]
    memory_first4_of_feat: dict[str, dict[str, list[float]]] | None = None
    memory_edges: dict[str, list[tuple[str, str]]] | None = None


class Lives(msgspec.Struct):
    """A file of rollouts; memory is kept from pass to pass."""

    passes: list[Pass]
    variant: str = ""
    flags: str = ""
    weights: str = ""


def unknown_in(raw: Json, known: Any, place: str = "") -> Iterator[str]:
    """Names of what a file holds beyond what is known of such files."""
    if isinstance(raw, list) and isinstance(known, list):
        for each, of in zip(raw, known, strict=False):
            yield from unknown_in(each, of, place)
    elif isinstance(raw, dict) and isinstance(known, msgspec.Struct):
        kind = type(known)
        fields = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
        for key, value in raw.items():
            if key in fields:
                yield from unknown_in(value, getattr(known, fields[key]), f"{place}{key}.")
            else:
                yield f"{place}{key}"


def flags_of(text: str) -> dict[str, Json]:
    """The original's command line as a mapping; what has no value is True.

    >>> flags_of("--no_lang_ca --max_action_len 8")
    {'no_lang_ca': True, 'max_action_len': '8'}
    """
    words = [words.split() for words in f" {' '.join(text.split())}".split(" --")[1:]]
    return {word[0]: " ".join(word[1:]) or True for word in words if word}


def tell(navigator: Navigator, variant: str, flags: Mapping[str, Json]) -> Navigator:
    """The navigator, told what only a walk or training needs to know of TD-STP's flags.

    Raises `DataError` where a file is of another agent than the weights beside it.
    """
    agent = navigator.agent
    if variant.startswith("tdstp") != isinstance(agent, TDSTP):
        raise DataError(f"of '{variant}', and the weights beside it are of {type(agent).__name__}")
    if not isinstance(agent, TDSTP):
        return navigator
    try:
        agent.config = replace(
            agent.config,
            reweigh=bool(flags.get("logit-reweighting", False)),
            go_back=not flags.get("no-gas", False),
            target_weight=float(str(flags.get("gp_loss_weight", 0.2))),
            candidate_positions="here" if flags.get("cand-use-ob-pos", False) else "there",
        )
    except (ValueError, ConfigError) as error:
        raise DataError(f"flags that this version does not know: {error}") from None
    return navigator


def limit_of(flags: Mapping[str, Json], longest: int) -> int:
    """How many decisions an episode may take: as the flags say, else as many as the `longest` took."""
    with suppress(ValueError):
        longest = int(str(flags.get("max_action_len", longest)))
    return max(longest, 1)


def known_episodes(ids: set[str], references: References) -> dict[str, Episode]:
    """The R2R episodes of as many splits as it takes to find these ids."""
    known: dict[str, Episode] = {}
    for split in ("val_unseen", "val_seen", "train"):
        if not ids <= set(known):
            with suppress(DataError):
                known |= references.episodes(split)
    return known


def episode_of(episode_id: str, item: Item, vocabulary: int) -> Episode:
    """The episode of an item; raises `DataError` where it cannot be lived."""
    if not item.instr_encoding or not all(0 <= each < vocabulary for each in item.instr_encoding):
        raise DataError(f"{episode_id}: expected ids from 0 to {vocabulary - 1}, and at least one")
    if not item.gt_path or not math.isfinite(item.heading):
        raise DataError(f"{episode_id}: has no path or no heading")
    return Episode(
        episode_id=episode_id,
        scene_id=item.scan,
        path_id=episode_id,
        reference_path=tuple(item.gt_path),
        heading=item.heading,
        instruction="",
        tokens=tuple(item.instr_encoding),
    )


def encoded(episode: Episode) -> tuple[int, ...]:
    """The ids of an episode's instruction."""
    return episode.tokens or ()


def made_up_features(scene: str, viewpoint: str, width: int) -> NDArray[np.float32]:
    """What a viewpoint looks like in the rollouts: noise that follows from its name, (36, D)."""
    seed = zlib.crc32(f"{scene}_{viewpoint}".encode())
    return np.random.RandomState(seed).randn(VIEWS, width).astype(np.float32)


def made_up_atlas(scenes: set[str], references: References, width: int) -> Atlas:
    """The scenes with features of their own making."""
    if missing := sorted(scenes - set(references.graphs)):
        raise WorldError(f"no scene {', '.join(missing)} in the data folder")
    graphs = [references.graphs[scene] for scene in sorted(scenes)]
    features = {
        f"{graph.scene_id}_{viewpoint}": made_up_features(graph.scene_id, viewpoint, width)
        for graph in graphs
        for viewpoint in graph.viewpoints
    }
    return Atlas(graphs, ArrayFeatures.from_mapping(features, source="made up"))


class Witness(Navigator):
    """A navigator that tells what it recalled, how long its history was, and how it scored."""

    recalled: Tensor | None = None
    """(B, N): which tokens remembered something at the last step."""
    lived: Sequence[int] = ()
    """(B,): how many tokens the histories had."""
    scores: Tensor
    """(B, C): of candidates and STOP, before anything is done to them."""
    back: Tensor | None = None
    """(B, S): of TD-STP, those of history tokens, which a file has before all others."""

    def see(self, observation: Observation, memory: Memory | None) -> Observation:
        """What is seen, as ever."""
        if isinstance(self.reader, CandidateEnhancing):
            self.recalled = self.reader.recall(observation, memory).any(-1)
        return super().see(observation, memory)

    def decide(self, state: State, seen: Observation) -> Decision:
        """Scores, as ever."""
        self.lived = state.lived.tolist() if isinstance(state, CrossModalState) else ()
        decision = super().decide(state, seen)
        self.scores = decision.logits
        if isinstance(self.agent, TDSTP) and isinstance(state, TdstpState):
            assert isinstance(decision.state, TdstpState)
            planned = self.agent.plan(replace(state, origin=decision.state.origin), seen)
            self.scores, self.back = planned.logits, planned.back
        return decision


class Replay:
    """The stored batch that is being lived, and a greedy choice that settles ties as the original did."""

    def __init__(self, atlas: Atlas, batches: Sequence[Batch]) -> None:
        """Begin before the first batch; those without episodes are left out."""
        self.atlas, self.ties = atlas, 0
        batches = [batch for batch in batches if batch.instr_ids and batch.items]
        self._batches, self._coming = batches, iter(batches)
        self.batch: Batch = Batch([], [], [], [])
        self.walks: list[Trajectory] = []
        """Those of the batch, in its order, ended or not."""
        self._turned: dict[Trajectory, dict[int, int]] = {}

    def episodes(self, vocabulary: int) -> list[list[Episode]]:
        """The episodes of every batch."""
        return [
            [episode_of(*pair, vocabulary) for pair in zip(batch.instr_ids, batch.items, strict=False)]
            for batch in self._batches
        ]

    def choose(self, decision: Decision, observation: Observation, walks: Sequence[Trajectory]) -> Tensor:
        """The best choice, or the stored one where the stored scores hardly tell."""
        if walks[0].decisions == 0:
            self.batch, self.walks = next(self._coming), list(walks)
        chosen = decision.logits.argmax(1)
        for slot, walk in enumerate(walks):
            if (taken := self._tied(walk, slot, decision)) is not None:
                self.ties += 1
                chosen[slot] = taken
            self._note_turn(walk, slot, int(chosen[slot]), decision)
        return chosen

    def poses(self, walk: Trajectory) -> list[tuple[int, int]]:
        """A walk as a file tells it: who goes back arrives before turning to what it faced there."""
        turned = self._turned.get(walk, {})
        return [(place, turned.get(index, view)) for index, (place, view) in enumerate(walk.poses)]

    def _note_turn(self, walk: Trajectory, slot: int, choice: int, decision: Decision) -> None:
        """Keep what is faced on arrival, where a choice leads back."""
        if decision.routes is not None and choice >= decision.routes.first:
            arrival = len(walk.poses) + len(decision.routes.way(slot, choice)) - 1
            self._turned.setdefault(walk, {})[arrival] = walk.poses[-1][1]

    def _tied(self, walk: Trajectory, slot: int, decision: Decision) -> int | None:
        """What the original did, where it was one of several choices that were as good."""
        scores = decision.logits[slot]
        near = (scores > scores.max() - TIE).nonzero().flatten().tolist()
        agree = [choice for choice in near if self._was_taken(walk, slot, choice, decision)]
        return agree[0] if len(near) > 1 and agree else None

    def _was_taken(self, walk: Trajectory, slot: int, choice: int, decision: Decision) -> bool:
        """Whether a choice leads where the stored path goes on."""
        path = row_at(self.batch.paths, self.walks.index(walk))
        here = Pose(*(np.array([each]) for each in walk.poses[-1]))
        (way,) = next_poses(self.atlas, here, _alone(decision, slot), torch.tensor([choice]))
        stored = [pose[0] for pose in path[len(walk.poses) : len(walk.poses) + max(len(way), 1)]]
        return stored == [self.atlas.name(viewpoint)[1] for viewpoint, _ in way]


def _alone(decision: Decision, slot: int) -> Decision:
    """The decision of one agent of a batch."""
    routes = decision.routes
    if routes is not None:
        routes = BacktrackRoutes(routes.first, *(each[slot : slot + 1] for each in routes[1:]))
    return Decision(decision.logits[slot : slot + 1], routes=routes)


def row_at(rows: Sequence[Sequence[Any]] | None, row: int) -> Sequence[Any]:
    """A row of a table, empty where there is none."""
    return rows[row] if rows is not None and row < len(rows) else []
