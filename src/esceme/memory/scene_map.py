"""`SceneMap`: everything that was observed at the visited viewpoints of a building, to plan routes in it.

`SceneMemory` keeps one pooled vector per viewpoint. A map keeps what a rehearsal of a walk needs: positions,
candidates with their angles and lengths, and the features or codes of all 36 views. Of a viewpoint that was
seen as a candidate but never visited (a frontier viewpoint), a map knows only its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esceme.errors import MemoryMismatch
from esceme.memory.bank import Memory, MemorySubgraph
from esceme.memory.codebook import MAX_CODES, Codebook
from esceme.observation import Observation
from esceme.world.atlas import CANDIDATE, CONTEXT, STOP, Atlas
from esceme.world.geometry import VIEW_ELEVATIONS, VIEW_HEADINGS, VIEWS, angle_feature

READ_BATCH = 64
"""Number of panoramas that are read from the feature file at a time."""


class VisitedViewpoint(NamedTuple):
    """What is observed at a viewpoint with K candidates. Angles are in radians, lengths in metres."""

    position: NDArray[np.floating]
    """(3,): position in metres."""
    neighbours: tuple[str, ...]
    """Names of the candidates' viewpoints."""
    views: NDArray[np.integer]
    """(K,): view (0 to 35) that shows each candidate."""
    headings: NDArray[np.floating]
    """(K,): absolute heading of each candidate."""
    elevations: NDArray[np.floating]
    """(K,): elevation of each candidate."""
    lengths: NDArray[np.floating]
    """(K,): distance of each candidate."""
    features: NDArray[np.float16] | None
    """(36, D): features of the views; None if the map keeps only codes."""
    codes: NDArray[np.int16] | None = None
    """(36,): codes of the views by a codebook; None without a codebook."""


class Candidates(NamedTuple):
    """E candidates of visited viewpoints, as a map keeps them; arrays (E,). See `VisitedViewpoint`."""

    neighbours: NDArray[np.integer]
    """Node to which each leads."""
    views: NDArray[np.int64]
    headings: NDArray[np.float32]
    elevations: NDArray[np.float32]
    lengths: NDArray[np.float32]


VIEW_BITS, ANGLE_BITS, LENGTH_BITS = 6, 17, 24
"""Bits of a candidate's view, of its heading, of its elevation (as many), and of its length: 64 in all."""
HEADING_STEP, ELEVATION_STEP, LENGTH_STEP = 2 * np.pi / 2**ANGLE_BITS, np.pi / 2**ANGLE_BITS, 2.0**-18
"""Precision of the angles in radians and of the length in metres that a map keeps of a candidate."""
MAX_LENGTH = 2**LENGTH_BITS * LENGTH_STEP - LENGTH_STEP
"""Greatest length of a candidate in metres, almost 64."""

PADDING = {"view": -1, "kind": CONTEXT, "neighbour": -1, "angles": 0.0, "offset": 0.0, "valid": False}
"""Values of padding in the token arrays of a batch of panoramas."""


class SceneMap:
    """Map of one building. Known viewpoints are nodes, numbered from 0 in the order in which they were seen.

    >>> def record(*neighbours):
    ...     angles = np.zeros(len(neighbours))
    ...     return VisitedViewpoint(np.zeros(3), neighbours, angles.astype(int), angles, angles, angles + 2,
    ...                            np.zeros((36, 1), np.float16))
    >>> building = SceneMap()
    >>> building.remember("hall", record("stairs", "door"))
    True
    >>> building.viewpoints, building.frontier
    (('hall',), ('stairs', 'door'))
    """

    def __init__(
        self, index_of: Callable[[str], int] = lambda name: -1, *, num_codes: int = MAX_CODES
    ) -> None:
        """Create an empty map. `index_of` returns the atlas index of a viewpoint, or -1.

        `num_codes` is the size of the codebook, if the map keeps codes.
        """
        self.episodes = 0
        """Number of episodes that have begun in this building since the map was cleared."""
        self._index_of, self._num_codes = index_of, num_codes
        self._node_of: dict[str, int] = {}
        self._names: list[str] = []
        self._tokens: dict[int, _Tokens] = {}
        self.row_of: NDArray[np.signedinteger] = np.full(16, -1, np.int16)
        """(nodes,): row of a visited node in the tables; -1 for a frontier viewpoint. May have spare rows."""
        # Tables of visited viewpoints, and of their candidates one after another. All may have spare rows.
        self._size = 0
        self._positions = np.zeros((0, 3), np.float32)
        self._codes = np.zeros((0, -(-VIEWS * self._code_bits // 8)), np.uint8)
        self._features: list[NDArray[np.float16]] = []
        self._first: NDArray[np.signedinteger] = np.zeros(1, np.int16)
        """Number of the first candidate of each row; the entry after the last row is their number."""
        self._neighbours: NDArray[np.signedinteger] = np.zeros(0, np.int16)
        self._packed = np.zeros(0, np.uint64)

    @property
    def _code_bits(self) -> int:
        return max(1, (self._num_codes - 1).bit_length())

    # -- remembering -------------------------------------------------------------------------------------

    def remember(self, viewpoint: str, record: VisitedViewpoint) -> bool:
        """Store what is observed at a viewpoint and return True; return False if it was visited before."""
        if viewpoint in self:
            return False
        _check_record(viewpoint, record, self._num_codes)
        if self._size and (record.features is None, record.codes is None) != self._lacks:
            raise MemoryMismatch(
                f"viewpoint '{viewpoint}': all viewpoints of a map have features or codes alike"
            )
        self._insert(viewpoint, record)
        return True

    @property
    def _lacks(self) -> tuple[bool, bool]:
        """Whether the visited viewpoints have no features, and no codes."""
        return not self._features, not len(self._codes)

    def _insert(self, viewpoint: str, record: VisitedViewpoint) -> None:
        node, row = self._add(viewpoint), self._size
        nodes = np.array([self._add(name) for name in record.neighbours], np.int64)
        first = int(self._first[row])
        self.row_of = _written(self.row_of, node, np.array([row]))
        self._first = _written(self._first, row + 1, np.array([first + len(nodes)]))
        self._neighbours = _written(self._neighbours, first, nodes)
        self._packed = _written(self._packed, first, _pack_candidates(record))
        self._positions = _written(self._positions, row, record.position[None])
        if record.codes is not None:
            bits = record.codes[:, None] >> np.arange(self._code_bits) & 1
            self._codes = _written(self._codes, row, np.packbits(bits.astype(np.uint8))[None])
        if record.features is not None:
            self._features.append(record.features)
        self._size += 1

    def _add(self, name: str) -> int:
        """Return the node of a viewpoint, which becomes a frontier viewpoint if it is new."""
        node = self._node_of.setdefault(name, len(self._names))
        if node == len(self._names):
            self._names.append(name)
            self.row_of = _written(self.row_of, node, np.array([-1]))
        return node

    def forget(self) -> None:
        """Clear the map."""
        self.__init__(self._index_of, num_codes=self._num_codes)  # type: ignore[misc]

    def merge(self, other: SceneMap) -> None:
        """Add the visited viewpoints of `other`. A viewpoint with two records keeps the one of larger bytes.

        Merging is commutative, associative and idempotent, up to the numbering of nodes.
        """
        records = {name: self.record(name) for name in self.viewpoints}
        for name in other.viewpoints:
            record = other.record(name)
            if name not in records or _record_bytes(record) > _record_bytes(records[name]):
                records[name] = record
        episodes = max(self.episodes, other.episodes)
        self.forget()
        for name in sorted(records):
            self.remember(name, records[name])
        self.episodes = episodes

    def subset(self, viewpoints: Iterable[str]) -> SceneMap:
        """Return a map of only these visited viewpoints."""
        part = SceneMap(self._index_of, num_codes=self._num_codes)
        for viewpoint in viewpoints:
            part._insert(viewpoint, self.record(viewpoint))
        return part

    # -- nodes -------------------------------------------------------------------------------------------

    @property
    def viewpoints(self) -> tuple[str, ...]:
        """Names of the visited viewpoints, in the order in which they were seen."""
        return tuple(name for name, row in zip(self._names, self.row_of, strict=False) if row >= 0)

    @property
    def frontier(self) -> tuple[str, ...]:
        """Names of the viewpoints that were seen as candidates and never visited."""
        return tuple(name for name, row in zip(self._names, self.row_of, strict=False) if row < 0)

    def __contains__(self, viewpoint: object) -> bool:
        node = self._node_of.get(viewpoint, -1)  # type: ignore[call-overload]
        return node >= 0 and bool(self.row_of[node] >= 0)

    def __len__(self) -> int:
        """Return the number of visited viewpoints."""
        return self._size

    def node(self, viewpoint: str) -> int:
        """Return the node of a viewpoint; raise `MemoryMismatch` if the map does not know it."""
        if (node := self.find(viewpoint)) < 0:
            raise MemoryMismatch(f"viewpoint '{viewpoint}' is not in the map; remember it first")
        return node

    def find(self, viewpoint: str) -> int:
        """Return the node of a viewpoint, or -1 if the map does not know it."""
        return self._node_of.get(viewpoint, -1)

    def name(self, node: int) -> str:
        """Return the viewpoint name of a node."""
        return self._names[node]

    def record(self, viewpoint: str) -> VisitedViewpoint:
        """Return what is stored of a visited viewpoint."""
        node = np.array([self.node(viewpoint)])
        (row,), candidates = self.row_of[node].tolist(), self.candidates(node)
        return VisitedViewpoint(
            self._positions[row],
            tuple(self._names[other] for other in candidates.neighbours.tolist()),
            *candidates[1:],
            features=self._features[row] if self._features else None,
            codes=self.codes(node)[0] if len(self._codes) else None,
        )

    def num_candidates(self, nodes: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the number of candidates of visited nodes, (B,) -> (B,)."""
        rows = self.row_of[nodes].astype(np.int64)
        return self._first[rows + 1].astype(np.int64) - self._first[rows]

    def candidates(self, nodes: NDArray[np.integer], slots: NDArray[np.integer] | None = None) -> Candidates:
        """Return candidate `slots` (B,) of visited nodes (B,), or all candidates of these nodes in order."""
        first = self._first[self.row_of[nodes]].astype(np.int64)
        if slots is None:
            counts = self.num_candidates(nodes)
            first, slots = np.repeat(first, counts), slots_of(counts)
        index = first + slots
        fields = [self._packed[index] >> shift for shift in (0, LENGTH_BITS, LENGTH_BITS + ANGLE_BITS)]
        angles = (fields[number] & (2**ANGLE_BITS - 1) for number in (1, 2))
        heading, elevation = (angle.astype(np.int64) for angle in angles)
        return Candidates(
            self._neighbours[index],
            (self._packed[index] >> (64 - VIEW_BITS)).astype(np.int64),
            (heading * HEADING_STEP).astype(np.float32),
            (elevation * ELEVATION_STEP - np.pi / 2).astype(np.float32),
            ((fields[0] & (2**LENGTH_BITS - 1)) * LENGTH_STEP).astype(np.float32),
        )

    def is_visited(self, nodes: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return whether nodes were visited; False for -1."""
        return (self.row_of[nodes] >= 0) & (nodes >= 0)

    def indices(self, nodes: Sequence[int]) -> list[int]:
        """Return the atlas indices of nodes; -1 for viewpoints that the atlas does not have."""
        return [self._index_of(self._names[node]) for node in nodes]

    def codes(self, nodes: NDArray[np.integer]) -> NDArray[np.int16]:
        """Return the codes of all views at visited nodes, (B,) -> (B, 36)."""
        if self._size and not len(self._codes):
            raise MemoryMismatch("this map has no codes; build it with the codebook of the speaker")
        packed, width = self._codes[self.row_of[nodes]], self._code_bits
        bits = np.unpackbits(packed, axis=1, count=VIEWS * width).reshape(-1, VIEWS, width)
        return (bits.astype(np.int16) << np.arange(width, dtype=np.int16)).sum(2, dtype=np.int16)

    def panoramas(self, nodes: NDArray[np.integer]) -> Tensor:
        """Return the features of all views at visited nodes, (B,) -> (B, 36, D)."""
        views = np.broadcast_to(np.arange(VIEWS), (len(nodes), VIEWS))
        return self._gather(self.row_of[nodes], views)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is known of visited and frontier viewpoints, without names."""
        num_candidates = int(self._first[self._size])
        tables = (
            self.row_of[: len(self._names)],
            self._first[: self._size],
            self._neighbours[:num_candidates],
            self._packed[:num_candidates],
            self._positions[: self._size],
            self._codes[: self._size],
        )
        return sum(table.nbytes for table in (*tables, *self._features))

    # -- observing ---------------------------------------------------------------------------------------

    def observe(
        self,
        nodes: NDArray[np.integer],
        views: NDArray[np.integer],
        previous: NDArray[np.int64],
        *,
        device: torch.device | str | None = None,
    ) -> Observation:
        """Return what agents at visited `nodes` (B,) that face `views` (B,) observe, as remembered.

        `previous` (B, P) are the nodes that the agents visited before, padded with -1. Viewpoints in the
        observation are atlas indices.
        """
        rows = self.row_of[nodes]
        panoramas = [self._tokens_of(node) for node in nodes.tolist()]
        longest = max(len(tokens.view) for tokens in panoramas)
        batch = {
            name: _pad_batch([getattr(tokens, name) for tokens in panoramas], longest, fill)
            for name, fill in PADDING.items()
        }
        headings, elevations = batch["angles"][..., 0], batch["angles"][..., 1]
        angles = angle_feature(headings - VIEW_HEADINGS[views][:, None], elevations)
        angles[batch["view"] < 0] = 0.0
        positions = self._positions[rows][:, None] + batch["offset"]
        features = self._gather(rows, batch["view"]).to(device)
        return Observation(
            features=features,
            raw_features=features,
            angles=torch.from_numpy(angles).to(device),
            token_type=torch.from_numpy(batch["kind"]).to(device),
            valid=torch.from_numpy(batch["valid"]).to(device),
            neighbour=torch.from_numpy(self._to_indices(batch["neighbour"])).to(device),
            view=torch.from_numpy(batch["view"]).to(device),
            viewpoint=torch.from_numpy(self._to_indices(nodes)).to(device),
            facing_view=torch.from_numpy(np.asarray(views, dtype=np.int64)).to(device),
            positions=torch.from_numpy(positions.astype(np.float32)).to(device),
            previous_viewpoints=torch.from_numpy(self._to_indices(previous)).to(device),
        )

    def _to_indices(self, nodes: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the atlas indices of nodes; -1 for -1."""
        distinct, inverse = np.unique(nodes, return_inverse=True)
        found = [self._index_of(self._names[node]) if node >= 0 else -1 for node in distinct.tolist()]
        return np.array(found, dtype=np.int64)[inverse].reshape(nodes.shape)

    def _tokens_of(self, node: int) -> _Tokens:
        if node not in self._tokens:
            self._tokens[node] = _Tokens.of(self.candidates(np.array([node])))
        return self._tokens[node]

    def _gather(self, rows: NDArray[np.integer], views: NDArray[np.integer]) -> Tensor:
        """Return the features of tokens, (B, N) -> (B, N, D); zeros for view -1."""
        if not self._features:
            raise MemoryMismatch("this map keeps codes and no features, which a follower and a matcher need")
        shown = views.clip(0)
        features = np.stack([self._features[row][tokens] for row, tokens in zip(rows, shown, strict=True)])
        features[views < 0] = 0.0
        return torch.from_numpy(features).float()  # numpy converts half precision element by element


def slots_of(counts: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the concatenation of 0, ..., count - 1 for each of `counts`.

    >>> slots_of(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _written(table: NDArray[Any], start: int, rows: NDArray[Any]) -> NDArray[Any]:
    """Return a table with these rows at `start`; it grows, and its integers become larger, as needed."""
    kind = table.dtype
    if kind.kind == "i" and rows.size:
        kind = np.promote_types(kind, np.min_scalar_type(-int(rows.max())))
    end, size = start + len(rows), len(table)
    if end > size or kind != table.dtype:
        grown = np.zeros((max(end, 2 * size if end > size else size), *table.shape[1:]), kind)
        grown[: len(table)] = table
        table = grown
    table[start:end] = rows
    return table


def _pack_candidates(record: VisitedViewpoint) -> NDArray[np.uint64]:
    """Return view, angles and length of the candidates of a record, (K,)."""
    heading = np.round(record.headings.astype(np.float64) / HEADING_STEP).astype(np.int64) % 2**ANGLE_BITS
    elevation = np.round((record.elevations.astype(np.float64) + np.pi / 2) / ELEVATION_STEP).astype(np.int64)
    length = np.round(record.lengths.astype(np.float64) / LENGTH_STEP).astype(np.uint64)
    fields = (record.views, elevation.clip(0, 2**ANGLE_BITS - 1), heading)
    packed = np.zeros(len(length), np.uint64)
    for field in fields:
        packed = (packed << np.uint64(ANGLE_BITS)) | field.astype(np.uint64)
    return (packed << np.uint64(LENGTH_BITS)) | length


class _Tokens(NamedTuple):
    """Tokens of one panorama: candidates, STOP, then the other views; arrays with N entries."""

    view: NDArray[np.int64]
    kind: NDArray[np.int64]
    neighbour: NDArray[np.int64]
    angles: NDArray[np.float64]
    """(N, 2): absolute heading and elevation in radians."""
    offset: NDArray[np.float64]
    """(N, 3): offset in metres of a candidate from the viewpoint; 0 for all other tokens."""
    valid: NDArray[np.bool_]

    @classmethod
    def of(cls, record: Candidates) -> _Tokens:
        """Return the tokens of a viewpoint with these candidates."""
        degree = len(record.views)
        is_rest = np.ones(VIEWS, dtype=bool)
        is_rest[record.views] = False
        rest = np.flatnonzero(is_rest)
        size = degree + 1 + len(rest)
        view, kind, neighbour = np.full(size, -1), np.full(size, CONTEXT), np.full(size, -1)
        view[:degree], view[degree + 1 :], neighbour[:degree] = record.views, rest, record.neighbours
        kind[:degree], kind[degree] = CANDIDATE, STOP
        angles, offset = np.zeros((size, 2)), np.zeros((size, 3))
        angles[:degree] = np.stack([record.headings, record.elevations], 1)
        angles[degree + 1 :] = np.stack([VIEW_HEADINGS[rest], VIEW_ELEVATIONS[rest]], 1)
        ground = np.cos(record.elevations) * record.lengths
        offset[:degree, 0] = np.sin(record.headings) * ground
        offset[:degree, 1] = np.cos(record.headings) * ground
        offset[:degree, 2] = np.sin(record.elevations) * record.lengths
        return cls(view, kind, neighbour, angles, offset, np.ones(size, dtype=bool))


def _pad_batch(arrays: Sequence[NDArray[Any]], length: int, fill: float) -> NDArray[Any]:
    """Return arrays (N, ...) of different lengths N as one array (B, length, ...)."""
    batch = np.full((len(arrays), length, *arrays[0].shape[1:]), fill, dtype=arrays[0].dtype)
    for row, array in zip(batch, arrays, strict=True):
        row[: len(array)] = array
    return batch


def _check_record(viewpoint: str, record: VisitedViewpoint, num_codes: int) -> None:
    """Raise `MemoryMismatch` if the arrays of a record have different lengths or impossible values."""
    degree = len(record.neighbours)
    columns = (record.views, record.headings, record.elevations, record.lengths)
    if any(column.shape != (degree,) for column in columns) or record.position.shape != (3,):
        shapes = ", ".join(str(column.shape) for column in (*columns, record.position))
        raise MemoryMismatch(
            f"viewpoint '{viewpoint}': expected {degree} angles and lengths and 3 coordinates, found {shapes}"
        )
    panorama = [array for array in (record.features, record.codes) if array is not None]
    if not panorama or any(array.shape[:1] != (VIEWS,) for array in panorama):
        raise MemoryMismatch(f"viewpoint '{viewpoint}': expected features or codes of {VIEWS} views")
    if not all(np.isfinite(array).all() for array in (*columns, record.position, *panorama)):
        raise MemoryMismatch(
            f"viewpoint '{viewpoint}': expected finite numbers, found NaN, infinity or overflow in half "
            "precision; extract its features again"
        )
    limits = [(record.views, 0, VIEWS - 1), (record.lengths, 0, MAX_LENGTH)]
    limits += [(np.abs(record.elevations), 0, np.pi / 2 + ELEVATION_STEP)]
    limits += [] if record.codes is None else [(record.codes, 0, num_codes - 1)]
    for values, least, greatest in limits:
        if len(values) and not least <= values.min() <= values.max() <= greatest:
            raise MemoryMismatch(
                f"viewpoint '{viewpoint}': expected numbers from {least:.5g} to {greatest:.5g}, found "
                f"{values.min():.5g} to {values.max():.5g}"
            )


def _record_bytes(record: VisitedViewpoint) -> bytes:
    arrays = (*record[2:6], record.position, record.features, record.codes)
    return b"".join(array.tobytes() for array in arrays if array is not None) + repr(record[1]).encode()


class MapBank:
    """The maps of all buildings, by scene id. It is filled and cleared like a `MemoryBank`."""

    def __init__(
        self,
        width: int,
        *,
        source: str = "",
        codebook: Codebook | None = None,
        keeps_features: bool = True,
        hides_features: bool = False,
    ) -> None:
        """Create an empty bank for features of size `width`. `source` names the features' origin.

        With a `codebook`, maps also keep codes. With `hides_features`, all features are stored as zeros, as
        the protocol `masked` requires.
        """
        if codebook is not None and codebook.width != width:
            raise MemoryMismatch(
                f"the codebook is for features of width {codebook.width}, the map has width {width}; "
                "use the features that the planner was trained with"
            )
        self.width, self.source, self.codebook = width, source, codebook
        self.keeps_features, self.hides_features = keeps_features, hides_features
        self._maps: dict[str, SceneMap] = {}
        self._atlas: Atlas | None = None

    @classmethod
    def from_atlas(cls, atlas: Atlas, **options: Any) -> MapBank:
        """Return an empty bank for the features of `atlas`, bound to its viewpoint indices."""
        if atlas.features is None:
            raise MemoryMismatch("this atlas has no features to remember; give it a feature file")
        bank = cls(atlas.features.width, source=Path(atlas.features.source).name, **options)
        bank.bind(atlas)
        return bank

    def bind(self, atlas: Atlas) -> None:
        """Use the viewpoint indices of `atlas` from now on; raise `MemoryMismatch` if its features differ."""
        if atlas.features is not None:
            found = (atlas.features.width, Path(atlas.features.source).name)
            if found != (self.width, self.source):
                raise MemoryMismatch(
                    f"the map holds features of width {self.width} from '{self.source}', the atlas has "
                    f"width {found[0]} from '{found[1]}'; build the map from the features it is used with"
                )
        self._atlas = atlas
        for scene_id, scene_map in self._maps.items():
            scene_map._index_of = self._indices_of(scene_id)

    def __getitem__(self, scene_id: str) -> SceneMap:
        if scene_id not in self._maps:
            self._maps[scene_id] = SceneMap(
                self._indices_of(scene_id),
                num_codes=MAX_CODES if self.codebook is None else len(self.codebook),
            )
        return self._maps[scene_id]

    @property
    def scenes(self) -> tuple[str, ...]:
        """Ids of the scenes with at least one visited viewpoint, in alphabetical order."""
        return tuple(sorted(scene_id for scene_id, scene_map in self._maps.items() if len(scene_map)))

    def __len__(self) -> int:
        """Return the number of visited viewpoints of all scenes."""
        return sum(len(scene_map) for scene_map in self._maps.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all maps, without names."""
        return sum(scene_map.nbytes for scene_map in self._maps.values())

    def remember_observation(self, observation: Observation) -> None:
        """Store the viewpoints at which the observed agents are."""
        self.remember_at(observation.viewpoint.tolist())

    def remember_at(self, viewpoints: Sequence[int]) -> None:
        """Store visited viewpoints, given as atlas indices; nothing is read of any other viewpoint."""
        atlas = self._bound_atlas()
        names = [atlas.names[index] for index in viewpoints]
        new = [
            index for index, (scene, name) in zip(viewpoints, names, strict=True) if name not in self[scene]
        ]
        for start in range(0, len(new), READ_BATCH):
            self._read(new[start : start + READ_BATCH])

    def remember_all(self) -> None:
        """Store every viewpoint of the atlas, as the protocol `oracle` requires."""
        self.remember_at(range(len(self._bound_atlas())))

    def begin_episode(self, scene_id: str) -> None:
        """Count an episode that begins in a scene."""
        self[scene_id].episodes += 1

    def forget(self, scene_id: str) -> None:
        """Clear the map of one scene."""
        self[scene_id].forget()

    def merge(self, other: MapBank) -> None:
        """Add the maps of `other`; raise `MemoryMismatch` if it holds other features."""
        own, others = (
            f"width {bank.width} from '{bank.source}'{' with codes' if bank.codebook else ''}"
            for bank in (self, other)
        )
        if own != others or self.keeps_features != other.keeps_features:
            raise MemoryMismatch(f"maps of {own} cannot merge maps of {others}; build both alike")
        for scene_id in other.scenes:
            self[scene_id].merge(other[scene_id])

    def _read(self, indices: Sequence[int]) -> None:
        atlas = self._bound_atlas()
        panoramas = atlas.panorama_features(np.asarray(indices, dtype=np.int64))  # (B, 36, D)
        if self.hides_features:
            panoramas = np.zeros_like(panoramas)
        codes = None if self.codebook is None else self.codebook.encode(panoramas)
        with np.errstate(over="ignore"):  # the record is checked for infinity
            stored = panoramas.astype(np.float16) if self.keeps_features else None
        for position, index in enumerate(indices):
            (scene_id, name), degree = atlas.names[index], int(atlas.degrees[index])
            graph, row = atlas.graph(scene_id), atlas.graph(scene_id).index(name)
            neighbours = atlas.neighbours[index, :degree].tolist()
            record = VisitedViewpoint(
                position=atlas.positions[index].astype(np.float32),
                neighbours=tuple(atlas.names[other][1] for other in neighbours),
                views=graph.views[row, :degree],
                headings=graph.headings[row, :degree].astype(np.float32),
                elevations=graph.elevations[row, :degree].astype(np.float32),
                lengths=graph.lengths[row, :degree].astype(np.float32),
                features=None if stored is None else stored[position],
                codes=None if codes is None else codes[position],
            )
            self[scene_id].remember(name, record)

    def _indices_of(self, scene_id: str) -> Callable[[str], int]:
        if self._atlas is None or scene_id not in self._atlas.graphs:
            return lambda name: -1
        index = self._atlas._index_of[scene_id]
        return lambda name: index.get(name, -1)

    def _bound_atlas(self) -> Atlas:
        if self._atlas is None:
            raise MemoryMismatch("these maps are not bound to an atlas; call bind(atlas) first")
        return self._atlas


class MappingMemory:
    """A memory that also fills maps: recall reads `bank`, if there is one; `maps` store all observations."""

    def __init__(self, maps: MapBank, bank: Memory | None) -> None:
        self.maps, self.bank = maps, bank

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        """Return the remembered features of viewpoints, (...) -> (..., D)."""
        return self._required_bank().recall_at(viewpoints)

    def scene_subgraph(self, viewpoints: Tensor) -> MemorySubgraph:
        """Return the remembered graph of the scenes that contain `viewpoints` (B,)."""
        return self._required_bank().scene_subgraph(viewpoints)

    def observe(self, viewpoints: Tensor) -> Observation:
        """Return the panoramas at remembered viewpoints (M,)."""
        return self._required_bank().observe(viewpoints)

    def remember_observation(self, observation: Observation) -> None:
        """Store the viewpoints at which the observed agents are, in the maps and in the bank."""
        self.maps.remember_observation(observation)
        if self.bank is not None:
            self.bank.remember_observation(observation)

    def _required_bank(self) -> Memory:
        if self.bank is None:
            raise MemoryMismatch("this memory has maps only; the agent was trained without a reader")
        return self.bank
