"""`StoredMemory`: a `MemoryBank` over a store. Recall is a gather from a cached matrix; writes go through."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esceme.errors import ConfigError, MemoryMismatch
from esceme.memory.bank import MemoryBank, Visit
from esceme.memory.postgresql_database import PostgresqlDatabase
from esceme.memory.remote_store import RemoteStore
from esceme.memory.scene import Pooling
from esceme.memory.store import PAGE, MemoryStore, ObservationStore, Prefer
from esceme.memory.store_record import Position, StoredObservation, StorePrecision, StoreSettings
from esceme.world.atlas import Atlas
from esceme.world.features import FeatureStore

DIGEST_PANORAMAS = 8
"""Number of panoramas in the digest of features."""


class StoredMemory(MemoryBank):
    """Memory of one session of a robot. All that it stores is durable before it is recalled.

    A session stores each viewpoint once, at its first visit there. Its observations in a scene form the
    session `NAME/SCENE` of the store, numbered from 0. Scenes are independent of each other, so that an
    evaluation stores the same keys in any number of processes. A resumed session continues the numbers and
    stores nothing twice.

    `forget` clears what this session recalls. It removes nothing from the store; see `MemoryStore.forget`.
    """

    def __init__(
        self,
        store: ObservationStore,
        *,
        robot: str = "robot",
        session: str | None = None,
        prefer: Prefer = "first",
        starts_empty: bool = False,
        clock: Callable[[], float] = time.time,
        device: torch.device | str | None = None,
    ) -> None:
        """Recall what the store held when the session began, or nothing if `starts_empty`.

        Without `session`, begin a new one. Call `refresh` to recall what others have stored since. With
        `prefer="newest"`, a visit replaces what is recalled.
        """
        settings = store.settings
        super().__init__(settings.width, pooling=settings.pooling, source=settings.source, device=device)
        self.store, self.robot, self.prefer = store, robot, prefer
        self.session = session or f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(4)}"
        self._clock, self._starts_empty = clock, starts_empty
        self._visited: dict[str, dict[str, int]] = {}
        """Sequence of each viewpoint that this session has stored, by scene."""
        self._is_stored = torch.zeros(1, dtype=torch.bool)
        self._num_forgettings = store.num_forgettings
        self._last_arrival = store.begin_session(robot, self.session)
        for found in self._own_observations():
            self._visited.setdefault(found.scene, {})[found.viewpoint] = found.sequence
        if not starts_empty:
            self._load(store.recalled(prefer=prefer, until=self._last_arrival))

    def _own_observations(self) -> Iterator[StoredObservation]:
        """Yield what this session has stored before, if it is resumed."""
        last = self._last_arrival
        while page := self.store.arrivals(last, PAGE):
            last = page[-1][0]
            for _, found in page:
                if (found.robot, found.session) == (self.robot, f"{self.session}/{found.scene}"):
                    yield found

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    # -- what is recalled --------------------------------------------------------------------------------

    def bind(self, atlas: Atlas) -> None:
        """Use the viewpoint indices of `atlas`; raise `MemoryMismatch` if its features differ."""
        encoder = "" if atlas.features is None else features_digest(atlas.features)
        if encoder not in ("", self.store.settings.encoder):
            raise MemoryMismatch(
                f"the store holds features of encoder {self.store.settings.encoder[:12]!r}, the atlas of "
                f"{encoder[:12]!r}; use the features that the store was built with, or a new store"
            )
        super().bind(atlas)
        self._is_stored = torch.zeros_like(self._row_of, dtype=torch.bool)
        for scene, viewpoints in self._visited.items():
            self._mark_stored(scene, viewpoints)

    def refresh(self) -> int:
        """Recall what arrived in the store since the last call; return the number of arrivals.

        What was forgotten in the store is no longer recalled.
        """
        if (forgettings := self.store.num_forgettings) != self._num_forgettings:
            self._num_forgettings = forgettings
            self.forget()
            if not self._starts_empty:
                self._load(self.store.recalled(prefer=self.prefer))
        arrivals = 0
        while page := self.store.arrivals(self._last_arrival, PAGE):
            self._last_arrival, arrivals = page[-1][0], arrivals + len(page)
            places = sorted({(found.scene, found.viewpoint) for _, found in page})
            for scene, group in groupby(places, key=lambda place: place[0]):
                recalled = self.store.recall(scene, [name for _, name in group], prefer=self.prefer)
                self._load(found for found in recalled if found is not None)
        return arrivals

    def _load(self, observations: Iterable[StoredObservation]) -> None:
        """Recall observations, sorted by scene, in place of what was recalled for their viewpoints."""
        for scene, group in groupby(observations, key=lambda observation: observation.scene):
            found = list(group)
            vectors = self.store.settings.decode(b"".join(item.vector for item in found))
            self._set(scene, [item.viewpoint for item in found], vectors, [item.neighbours for item in found])

    def _set(
        self, scene: str, viewpoints: Sequence[str], vectors: Tensor, neighbours: Sequence[tuple[str, ...]]
    ) -> None:
        """Set what is recalled for viewpoints of a scene to `vectors` (n, D)."""
        memory = self[scene]
        known = [index for index, name in enumerate(viewpoints) if name in memory]
        new = [index for index, name in enumerate(viewpoints) if name not in memory]
        if known:
            rows = [memory._rows[viewpoints[index]] for index in known]
            with torch.inference_mode(False), torch.no_grad():
                self._storage.matrix[rows] = vectors[known].to(self._storage.matrix)
            memory._neighbours.update((viewpoints[index], neighbours[index]) for index in known)
        memory._insert([viewpoints[i] for i in new], vectors[new], [neighbours[i] for i in new])

    # -- what is stored ----------------------------------------------------------------------------------

    def remember(
        self,
        scene_id: str,
        viewpoint: str,
        views: Tensor | NDArray[np.floating],
        neighbours: Sequence[str],
        *,
        position: Position | None = None,
        covariance: Sequence[float] | None = None,
        thumbnail: bytes | None = None,
        keep_views: bool = False,
    ) -> bool:
        """Store a visit durably, as `MemoryBank.remember` does; return whether the viewpoint was unknown.

        `keep_views` also stores the features of the single views.
        """
        views, is_unknown = torch.as_tensor(views), viewpoint not in self[scene_id]
        extras = {
            "position": position,
            "covariance": None if covariance is None else tuple(covariance),
            "thumbnail": thumbnail,
            "features": self.store.settings.encode(views) if keep_views else None,
        }
        self._remember([Visit(scene_id, viewpoint, views, neighbours)], extras)
        return is_unknown

    def remember_visits(self, visits: Sequence[Visit]) -> None:
        """Store visits in one transaction."""
        self._remember(visits, {})

    def merge(self, other: MemoryBank) -> None:
        """Raise `ConfigError`: stores are merged by `MemoryStore.merge`, and import bank files."""
        raise ConfigError("a stored memory merges no banks; import them into its store")

    def _remember(self, visits: Sequence[Visit], extras: Mapping[str, object]) -> None:
        settings, records, recalled = self.store.settings, list[StoredObservation](), list[Visit]()
        sequences = {
            visit.scene_id: 1 + max(self._visited.get(visit.scene_id, {}).values(), default=-1)
            for visit in visits
        }
        new: dict[tuple[str, str], int] = {}
        for visit in visits:
            scene, name, views, neighbours = visit
            is_first = name not in self._visited.get(scene, ()) and (scene, name) not in new
            if not is_first and name in self[scene]:
                continue
            vector = self[scene]._pooled(name, views)
            encoded = settings.encode(vector)
            if is_first:
                new[scene, name] = sequences[scene]
                sequences[scene] += 1
                record = StoredObservation(
                    robot=self.robot,
                    session=f"{self.session}/{scene}",
                    sequence=new[scene, name],
                    scene=scene,
                    viewpoint=name,
                    vector=encoded,
                    neighbours=tuple(neighbours),
                    time=self._clock(),
                    **({"position": self._position(scene, name)} | dict(extras)),  # type: ignore[arg-type]
                )
                records.append(record)
            if name not in self[scene] or (is_first and self.prefer == "newest"):
                recalled.append(visit._replace(views=settings.decode(encoded)))
        self.store.remember(records)
        for (scene, name), sequence in new.items():
            self._visited.setdefault(scene, {})[name] = sequence
            self._mark_stored(scene, [name])
        for scene, name, vectors, neighbours in recalled:
            self._set(scene, [name], vectors, [tuple(neighbours)])

    def _position(self, scene: str, viewpoint: str) -> Position | None:
        index = self._viewpoint_index.get((scene, viewpoint))
        if index is None or self._atlas is None:
            return None
        x, y, z = self._atlas.positions[index].tolist()
        return x, y, z

    def _is_new(self, viewpoints: Tensor) -> Tensor:
        return ~self._is_stored[viewpoints] | super()._is_new(viewpoints)

    def _mark_stored(self, scene: str, viewpoints: Iterable[str]) -> None:
        found = [self._viewpoint_index.get((scene, name)) for name in viewpoints]
        self._is_stored[[index for index in found if index is not None]] = True


def features_digest(features: FeatureStore) -> str:
    """Return the SHA-256 of the width and of some panoramas, which identifies encoder and images.

    Panoramas count in half precision: a feature file and its packed copy have the same digest.
    """
    digest = hashlib.sha256(f"{features.width}".encode())
    for key in sorted(features.keys)[:DIGEST_PANORAMAS]:
        with np.errstate(over="ignore"):
            digest.update(key.encode() + features.panorama(key).astype("<f2").tobytes())
    return digest.hexdigest()


def store_settings(
    atlas: Atlas, *, pooling: Pooling = "max", precision: StorePrecision = "single"
) -> StoreSettings:
    """Return the settings of a store for the features of an atlas."""
    if atlas.features is None:
        raise MemoryMismatch("this atlas has no features to remember; give it a feature file")
    return StoreSettings(
        width=atlas.features.width,
        pooling=pooling,
        precision=precision,
        source=Path(atlas.features.source).name,
        encoder=features_digest(atlas.features),
    )


def open_store(location: str, settings: StoreSettings | None = None, *, robot: str = "") -> ObservationStore:
    """Open the store at a location: the path of an SQLite file, http://HOST:PORT or postgresql://..."""
    if location.startswith(("http://", "https://")):
        return RemoteStore(location, settings, robot=robot)
    return connect_store(location, settings)


def connect_store(
    location: str, settings: StoreSettings | None = None, *, read_only: bool = False
) -> MemoryStore:
    """Open the store in a database: the path of an SQLite file, or postgresql://..."""
    if location.startswith(("postgresql://", "postgres://")):
        database = PostgresqlDatabase(location, read_only=read_only)
        return MemoryStore(database, settings, read_only=read_only)
    if location.startswith(("http://", "https://")):
        raise ConfigError(
            f"{location}: expected a file or postgresql://..., found a service; "
            "GET /v1/export returns a copy of its store"
        )
    if "://" in location:
        raise ConfigError(
            f"{location}: expected a path such as site.db, http://HOST:PORT or postgresql://HOST/DATABASE"
        )
    return MemoryStore.open(location, settings, read_only=read_only)
