"""Memory protocols of an evaluation: when the memory is filled, cleared and written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, Self, get_args

import numpy as np
import torch

from esceme.errors import ConfigError, DataError, MemoryMismatch
from esceme.memory import (
    Memory,
    MemoryBank,
    Reader,
    StoredMemory,
    ZeroRecallMemory,
    load_bank,
    store_settings,
)
from esceme.memory.codebook import Codebook
from esceme.memory.map_file import load_maps
from esceme.memory.scene_map import MapBank, MappingMemory
from esceme.memory.store import ObservationStore, Prefer
from esceme.memory.stored_memory import open_store
from esceme.tasks.episode import Episode
from esceme.tasks.tours import Tour
from esceme.trajectory import Trajectory
from esceme.world.atlas import Atlas

Protocol = Literal["none", "cold", "two-pass", "episodic", "tour", "warm", "masked", "oracle"]
"""Name of a memory protocol.

- `none`: no memory; for agents without a memory reader.
- `cold`: empty at the start of the split and never cleared ("ESceme" in the paper).
- `two-pass`: like `cold`, but the split is run twice and only the second run is scored ("ESceme*").
- `episodic`: cleared at the start of every episode (the re-initialisation row of the paper).
- `tour`: cleared at the start of every tour (IVLN). Under other protocols, tours only determine the order of
  episodes.
- `warm`: like `cold`, but the memory starts with a saved bank.
- `masked` (a control): like `cold`, but every recalled feature is zero.
- `oracle` (a control): all viewpoints are remembered before the start.
"""
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)


class TourPosition(NamedTuple):
    """Position of an episode in its tour."""

    number: int
    """Number of the episode in its tour, counted from 0."""
    following: Episode | None
    """Next episode of the tour; None for the last episode."""


class StoreSession(NamedTuple):
    """Session of an evaluation in a memory store."""

    location: str
    """Path or address of the store."""
    robot: str
    session: str
    prefer: Prefer = "first"

    def open(self, reader: Reader, atlas: Atlas) -> ObservationStore:
        """Open the store; raise `MemoryMismatch` if it holds other features or another pooling."""
        return open_store(self.location, store_settings(atlas, pooling=reader.pooling), robot=self.robot)


class MemoryLifetime:
    """A memory bank with the updates that a protocol requires at the start and end of episodes."""

    def __init__(
        self,
        protocol: Protocol,
        atlas: Atlas,
        bank: MemoryBank | None,
        *,
        maps: MapBank | None = None,
        tours: Mapping[str, TourPosition] | None = None,
        oracle_phases: bool = False,
    ) -> None:
        """Manage `bank`, and the `maps` of a planner, as `protocol` requires.

        `tours` maps episode ids to positions in tours. With `oracle_phases`, bank and maps also store the
        paths between the episodes of a tour.
        """
        self.protocol = protocol
        self.bank, self.maps = bank, maps
        self._atlas, self._tours, self._oracle_phases = atlas, tours or {}, oracle_phases

    @property
    def memory(self) -> Memory | None:
        """Memory that agents read and that stores their observations; None without a bank and maps."""
        memory: Memory | None = self.bank
        if memory is not None and self.protocol == "masked":
            memory = ZeroRecallMemory(memory)
        return memory if self.maps is None else MappingMemory(self.maps, memory)

    def begin(self, trajectory: Trajectory) -> None:
        """Clear the memory of the episode's scene if the protocol requires it; call before the episode."""
        episode = trajectory.episode
        first_of_tour = self.protocol == "tour" and self._tours[episode.episode_id].number == 0
        if self.protocol == "episodic" or first_of_tour:
            for store in self._stores:
                store.forget(episode.scene_id)
        if self.maps is not None:
            self.maps.begin_episode(episode.scene_id)

    def finish(self, trajectory: Trajectory) -> None:
        """Store the paths from an episode's end to its goal and to the tour's next start (docs/spec.md H.2).

        These paths are the oracle phases of IVLN. Without `oracle_phases`, nothing is stored.
        """
        if not self._stores or not self._oracle_phases:
            return
        episode = trajectory.episode
        following = self._tours[episode.episode_id].following
        graph = self._atlas.graph(episode.scene_id)
        stations = [self._atlas.name(trajectory.viewpoint)[1]]
        stations += [] if episode.goal_withheld else [episode.goal]
        stations += [] if following is None else [following.start]
        for start, end in pairwise(stations):
            path = graph.shortest_path(start, end)
            for store in self._stores:
                store.remember_at(self._atlas.locate(episode.scene_id, path).tolist())

    def replay(self, trajectory: Trajectory) -> None:
        """Update the memory as the given finished trajectory did when it was run."""
        self.begin(trajectory)
        for store in self._stores:
            store.remember_at(trajectory.decision_viewpoints)
        self.finish(trajectory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the store of the bank, if it has one."""
        if isinstance(self.bank, StoredMemory):
            self.bank.close()

    @property
    def _stores(self) -> list[MemoryBank | MapBank]:
        return [store for store in (self.bank, self.maps) if store is not None]


def open_memory(
    protocol: Protocol,
    reader: Reader,
    atlas: Atlas,
    *,
    bank: Path | None = None,
    tours: Mapping[str, TourPosition] | None = None,
    oracle_phases: bool = False,
    device: torch.device | str | None = None,
    codebook: Codebook | None = None,
    store: StoreSession | None = None,
) -> MemoryLifetime:
    """Return the memory of an evaluation in its initial state. Call `check_protocol` first.

    With the `codebook` of a planner, the memory also has maps. `bank` is then a file of maps.
    With `store`, everything remembered is stored there; only the protocol `warm` recalls what it held before.
    """
    maps = None
    if codebook is not None:
        maps = MapBank.from_atlas(atlas, codebook=codebook, hides_features=protocol == "masked")
        if bank is not None:
            maps.merge(load_maps(bank, codebook=codebook))
        if protocol == "oracle":
            maps.remember_all()
    if not reader.uses_memory:
        return MemoryLifetime(protocol, atlas, None, maps=maps, tours=tours, oracle_phases=oracle_phases)
    if store is not None:
        stored = StoredMemory(
            store.open(reader, atlas),
            robot=store.robot,
            session=store.session,
            prefer=store.prefer,
            starts_empty=protocol != "warm",
            device=device,
        )
        stored.bind(atlas)
        return MemoryLifetime(protocol, atlas, stored, tours=tours, oracle_phases=oracle_phases)
    memory = MemoryBank.from_atlas(atlas, pooling=reader.pooling, device=device)
    if bank is not None:
        saved = load_bank(bank, width=memory.width, source=memory.source)
        if saved.pooling != reader.pooling:
            raise MemoryMismatch(f"{bank}: {saved.pooling} pooling; this agent reads {reader.pooling}")
        memory.merge(saved)
    if protocol == "oracle":
        memory.remember_all()
    return MemoryLifetime(protocol, atlas, memory, maps=maps, tours=tours, oracle_phases=oracle_phases)


def check_protocol(
    protocol: Protocol,
    reader: Reader,
    plans: bool = False,
    *,
    bank: object,
    tours: object,
    oracle_phases: bool,
    lanes: bool,
    store: object = None,
) -> None:
    """Raise `ConfigError` if a protocol does not suit the agent, or if an option has no effect.

    `bank`, `tours` and `store` are None if they are not given. `lanes` is True for the schedule `lanes`.
    """
    if protocol not in PROTOCOLS:
        raise ConfigError(f"memory '{protocol}': expected one of {', '.join(PROTOCOLS)}")
    if protocol == "none" and reader.uses_memory:
        raise ConfigError(
            "memory 'none' is for agents trained without a reader, and this one has a reader; "
            "with 'masked' it recalls only zeros"
        )
    if protocol == "none" and plans:
        raise ConfigError("a planner plans in memory; give --memory cold, or another protocol than 'none'")
    if bank is not None and plans and reader.uses_memory:
        raise ConfigError(
            "memory 'warm' starts with one file, and an agent with both a reader and a planner needs two"
        )
    if protocol != "none" and not reader.uses_memory and not plans:
        raise ConfigError(f"this agent reads no memory, so '{protocol}' has no effect; use 'none'")
    if store is not None and (plans or bank is not None or protocol in ("none", "oracle")):
        raise ConfigError(
            "a store (--store) keeps what an agent with a reader observes; it excludes planners, --bank, and "
            "the protocols 'none' and 'oracle'"
        )
    if (protocol == "warm") != (bank is not None) and not (protocol == "warm" and store is not None):
        raise ConfigError(
            "memory 'warm' and a bank file (--bank) belong together: give both or neither; or give a "
            "store (--store)"
        )
    if protocol == "tour" and tours is None:
        raise ConfigError(
            "memory 'tour' is cleared at the start of every tour: give the tours with --tours FILE "
            "(`esceme data tours` makes one)"
        )
    if oracle_phases and tours is None:
        raise ConfigError("oracle phases connect the episodes of a tour: give --tours FILE as well")
    if oracle_phases and protocol in ("none", "episodic", "oracle"):
        raise ConfigError(f"oracle phases only fill the memory, which has no effect with '{protocol}'")
    if not lanes and (protocol == "episodic" or tours is not None):
        cause = f"memory '{protocol}' needs" if tours is None else "tours need"
        raise ConfigError(
            f"{cause} one episode at a time in a scene, and 'interleaved' runs several; "
            "use the schedule 'lanes'"
        )


def tour_episodes(tours: Iterable[Tour], episodes: Iterable[Episode]) -> list[Episode]:
    """Return the episodes that are in tours, in the order of the tours."""
    by_id = {episode.episode_id: episode for episode in episodes}
    return [by_id[episode_id] for tour in tours for episode_id in tour.episode_ids]


def check_tour_routes(tours: Iterable[Tour], episodes: Iterable[Episode], atlas: Atlas, file: object) -> None:
    """Raise `DataError` if no path connects two successive episodes of a tour."""
    by_id = {episode.episode_id: episode for episode in episodes}
    for tour in tours:
        starts = atlas.locate(tour.scene_id, [by_id[episode_id].start for episode_id in tour.episode_ids])
        if (is_cut := np.isinf(atlas.distance(starts[:-1], starts[1:]))).any():
            before, after = tour.episode_ids[is_cut.argmax() :][:2]
            raise DataError(
                f"{file}: scene '{tour.scene_id}': no path leads from episode '{before}' to '{after}', "
                "as oracle phases need it"
            )


def tour_positions(tours: Sequence[Tour], episodes: Sequence[Episode]) -> dict[str, TourPosition]:
    """Return the position in its tour of every episode that is in a tour, by episode id."""
    by_id = {episode.episode_id: episode for episode in episodes}
    positions = {}
    for tour in tours:
        following = [*(by_id[episode_id] for episode_id in tour.episode_ids[1:]), None]
        for number, (episode_id, after) in enumerate(zip(tour.episode_ids, following, strict=True)):
            positions[episode_id] = TourPosition(number, after)
    return positions
