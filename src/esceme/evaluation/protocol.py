"""How long a memory lives: every protocol under which an agent with scene memory is evaluated, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch

from esceme.errors import ConfigError, DataError, MemoryMismatch
from esceme.memory import MaskedMemory, Memory, MemoryBank, Pooling, Reader, load_bank
from esceme.tasks.episode import Episode
from esceme.tasks.tours import Tour
from esceme.trajectory import Trajectory
from esceme.world.atlas import Atlas

Protocol = Literal["none", "cold", "two-pass", "episodic", "tour", "warm", "masked", "oracle"]
"""How long a memory lives.

- `none`: there is none; for an agent that was trained without a reader.
- `cold`: empty at the beginning of the split, then kept: "ESceme".
- `two-pass`: the split is lived twice, only the second time counts: "ESceme*".
- `episodic`: every episode has a memory of its own: the re-initialisation row.
- `tour`: cleared at the beginning of every tour (IVLN). Other protocols may follow tours, too: these then
  decide about the order of episodes, and not about memory.
- `warm`: as `cold`, but beginning with a saved bank.
- `masked` (a control): as `cold`, but whatever is recalled is zero.
- `oracle` (a control): everything is remembered beforehand.
"""
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)


class TourPosition(NamedTuple):
    """Where an episode stands in its tour."""

    number: int
    """From 0."""
    following: Episode | None


class MemoryLifetime:
    """A memory, and what happens to it when an episode begins and ends."""

    def __init__(
        self,
        protocol: Protocol,
        atlas: Atlas,
        bank: MemoryBank | None,
        *,
        tours: Mapping[str, TourPosition] | None = None,
        oracle_phases: bool = False,
    ) -> None:
        """Let `bank` live by `protocol`; with `oracle_phases` it also sees the ways between episodes."""
        self.protocol = protocol
        self.bank = bank
        self._atlas, self._tours, self._oracle_phases = atlas, tours or {}, oracle_phases

    @property
    def memory(self) -> Memory | None:
        """What agents recall from and are remembered in."""
        return MaskedMemory(self.bank) if self.bank is not None and self.protocol == "masked" else self.bank

    def begin(self, walk: Trajectory) -> None:
        """An episode is about to begin."""
        episode = walk.episode
        first_of_tour = self.protocol == "tour" and self._tours[episode.episode_id].number == 0
        if self.bank is not None and (self.protocol == "episodic" or first_of_tour):
            self.bank.forget(episode.scene_id)

    def finish(self, walk: Trajectory) -> None:
        """An episode has ended: on a tour, an oracle leads to its goal and to the next start (spec H.2)."""
        if self.bank is None or not self._oracle_phases:
            return
        episode, following = walk.episode, self._tours[walk.episode.episode_id].following
        graph = self._atlas.graph(episode.scene_id)
        here = self._atlas.name(walk.viewpoint)[1]
        stations = [here, *([] if episode.goal_withheld else [episode.goal])]
        stations += [following.start] if following is not None else []
        for a, b in zip(stations, stations[1:], strict=False):
            led = graph.shortest_path(a, b)
            self.bank.remember_at(self._atlas.locate(episode.scene_id, led).tolist())

    def replay(self, walk: Trajectory) -> None:
        """Live an episode again as far as the memory is concerned."""
        self.begin(walk)
        if self.bank is not None:
            self.bank.remember_at(walk.decision_viewpoints)
        self.finish(walk)


def open_memory(
    protocol: Protocol,
    reader: Reader,
    atlas: Atlas,
    *,
    bank: Path | None = None,
    tours: Mapping[str, TourPosition] | None = None,
    oracle_phases: bool = False,
    device: torch.device | str | None = None,
) -> MemoryLifetime:
    """A memory at the beginning of an evaluation; call `check_protocol` first."""
    if not reader.uses_memory:
        return MemoryLifetime(protocol, atlas, None)
    pooling: Pooling = getattr(reader.config, "pooling", "max")
    memory = MemoryBank.of(atlas, pooling=pooling, device=device)
    if bank is not None:
        known = load_bank(bank, width=memory.width, source=memory.source)
        if known.pooling != pooling:
            raise MemoryMismatch(f"{bank}: of {known.pooling} pooling, and this agent reads {pooling}")
        memory.merge(known)
    if protocol == "oracle":
        memory.remember_all()
    return MemoryLifetime(protocol, atlas, memory, tours=tours, oracle_phases=oracle_phases)


def check_protocol(
    protocol: Protocol, reader: Reader, *, bank: object, tours: object, oracle_phases: bool, lanes: bool
) -> None:
    """Raise `ConfigError` for a protocol that an agent cannot live by, and for options without effect."""
    if protocol not in PROTOCOLS:
        raise ConfigError(f"memory '{protocol}': expected one of {', '.join(PROTOCOLS)}")
    if protocol == "none" and reader.uses_memory:
        raise ConfigError(
            "memory 'none' belongs to an agent trained without a reader, and this one has one; "
            "'masked' shows it nothing but zeros"
        )
    if protocol != "none" and not reader.uses_memory:
        raise ConfigError(f"this agent reads no memory, so '{protocol}' means nothing to it; use 'none'")
    if (protocol == "warm") != (bank is not None):
        raise ConfigError("memory 'warm' and a bank file (--bank) belong together: give both or neither")
    if protocol == "tour" and tours is None:
        raise ConfigError(
            "memory 'tour' is cleared at the beginning of every tour: say which there are with --tours FILE "
            "(`esceme data tours` makes one)"
        )
    if oracle_phases and tours is None:
        raise ConfigError("oracle phases lead from episode to episode of a tour: give --tours FILE as well")
    if oracle_phases and protocol in ("none", "episodic", "oracle"):
        raise ConfigError(f"oracle phases are only remembered, and '{protocol}' makes no use of that")
    if not lanes and (protocol == "episodic" or tours is not None):
        what = f"memory '{protocol}' lives" if tours is None else "tours are lived"
        raise ConfigError(
            f"{what} one episode after the other in a scene, 'interleaved' many at once; "
            "use the schedule 'lanes'"
        )


def tour_episodes(tours: Iterable[Tour], episodes: Iterable[Episode]) -> list[Episode]:
    """The episodes that are on tours, in their order."""
    by_id = {episode.episode_id: episode for episode in episodes}
    return [by_id[each] for tour in tours for each in tour.episode_ids]


def check_tour_routes(tours: Iterable[Tour], episodes: Iterable[Episode], atlas: Atlas, file: object) -> None:
    """Raise `DataError` where no oracle could lead from an episode of a tour to the next."""
    by_id = {episode.episode_id: episode for episode in episodes}
    for tour in tours:
        starts = atlas.locate(tour.scene_id, [by_id[each].start for each in tour.episode_ids])
        if (cut := np.isinf(atlas.distance(starts[:-1], starts[1:]))).any():
            before, after = tour.episode_ids[cut.argmax() :][:2]
            raise DataError(
                f"{file}: scene '{tour.scene_id}': no way leads from episode '{before}' to '{after}', which "
                "oracle phases would have to go"
            )


def tour_positions(tours: Sequence[Tour], episodes: Sequence[Episode]) -> dict[str, TourPosition]:
    """Where each episode stands in its tour."""
    by_id = {episode.episode_id: episode for episode in episodes}
    places = {}
    for tour in tours:
        following = [*(by_id[each] for each in tour.episode_ids[1:]), None]
        for number, (each, after) in enumerate(zip(tour.episode_ids, following, strict=True)):
            places[each] = TourPosition(number, after)
    return places
