"""Graph map of an episode: viewpoints, and the shortest known ways between them (docs/spec.md I.4).

A node is a viewpoint. Visited nodes can be passed; a frontier node was only seen from a visited one. All
fields are batch-first tensors, so that maps of different episodes form one batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional

from esceme.agents.base import FACE_FORWARD, State
from esceme.world.geometry import COLUMNS, TURN

DISTANCE_SCALE, HOP_SCALE = 30.0, 10.0
"""Divisors of metres and of numbers of edges in position features."""
MIN_DISTANCE = 1e-8
"""Straight-line distance of a node from itself, in metres."""


class MapRoutes(NamedTuple):
    """Actions that lead to nodes of the map which are not candidates, along the shortest known way."""

    first_action: int
    viewpoints: Tensor
    """(B, K) int64: viewpoint of each node; -1 for nodes to which no action leads."""
    current: Tensor
    """(B,) int64: node at which each agent is."""
    node: Tensor
    """(B, K) int64: viewpoint of each node, plus one."""
    middle: Tensor
    """(B, K, K) int64: `GraphMap.middle`."""

    def shortest_path(self, row: int, action: int) -> list[tuple[int, int]]:
        """Return the (viewpoint, view) poses on the way of an `action`; the view is `FACE_FORWARD`."""
        nodes = way(self.middle[row], int(self.current[row]), action - self.first_action)
        return [(int(self.node[row, node]) - 1, FACE_FORWARD) for node in nodes]


@dataclass(frozen=True, kw_only=True)
class GraphMap(State):
    """Maps of B episodes with up to K nodes each, in the order in which nodes were first seen.

    Ways lead through visited or remembered nodes only.
    """

    node: Tensor
    """(B, K) int64: viewpoint of each node, plus one; 0 for padding."""
    position: Tensor
    """(B, K, 3) float32: position in metres."""
    step_id: Tensor
    """(B, K) int64: step of the latest visit in this episode, counted from 1; 0 for nodes not visited."""
    embedding: Tensor
    """(B, K, H): sum of the embeddings from `num_sightings` sightings."""
    num_sightings: Tensor
    """(B, K) int64"""
    is_observed: Tensor
    """(B, K) bool: whether the embedding is that of the node's own panorama. Later sightings do not change
    it."""
    distance: Tensor
    """(B, K, K) float64: length of the shortest known way in metres; inf if there is none."""
    middle: Tensor
    """(B, K, K) int64: a node on the shortest known way, plus one; 0 if the way is a single edge."""
    hops: Tensor
    """(B, K, K) int64: number of edges of the shortest known way."""
    stop_probability: Tensor
    """(B, K): probability of STOP at the latest decision at each visited node."""

    @staticmethod
    def empty_fields(batch: int, hidden: int, like: Tensor) -> dict[str, Any]:
        """Return the fields of maps without nodes, by name; `like` gives device and type of embeddings."""
        integers = torch.zeros(batch, 0, dtype=torch.int64, device=like.device)
        return {
            "node": integers,
            "position": torch.zeros(batch, 0, 3, device=like.device),
            "step_id": integers,
            "embedding": like.new_zeros(batch, 0, hidden),
            "num_sightings": integers,
            "is_observed": integers.bool(),
            "distance": torch.zeros(batch, 0, 0, dtype=torch.float64, device=like.device),
            "middle": integers[..., None].expand(-1, -1, 0),
            "hops": integers[..., None].expand(-1, -1, 0),
            "stop_probability": like.new_zeros(batch, 0),
        }

    @property
    def is_visited(self) -> Tensor:
        """(B, K) bool: whether a node was visited in this episode."""
        return self.step_id > 0

    @property
    def node_embedding(self) -> Tensor:
        """(B, K, H): mean over the sightings of each node."""
        return self.embedding / self.num_sightings.clamp(min=1)[..., None]

    def add_disjoint(self, other: Mapping[str, Tensor]) -> Self:
        """Return the maps of this batch joined with those of `other`, a dict from field name to tensor.

        In every row, one of the two maps is empty.
        """
        size = max(self.node.shape[1], other["node"].shape[1])
        tensors = {}
        for name, tensor in self._map_tensors().items():
            pair = _resize(tensor, size, name), _resize(other[name], size, name)
            tensors[name] = pair[0] | pair[1] if tensor.dtype == torch.bool else pair[0] + pair[1]
        return replace(self, **tensors)

    def find(self, viewpoints: Tensor) -> Tensor:
        """Return the nodes of viewpoints (B, M), which may be -1: (B, M) int64; -1 if there is none."""
        is_same = (self.node[:, :, None] == viewpoints[:, None] + 1) & (viewpoints >= 0)[:, None]
        return torch.where(is_same.any(1), is_same.int().argmax(1), -1)

    def insert(self, viewpoints: Tensor, positions: Tensor) -> Self:
        """Return the map with new viewpoints (B, M) appended as nodes, at positions (B, M, 3) in metres.

        Viewpoints in the map, and -1, are skipped. A viewpoint may occur once in a row.
        """
        count = (self.node > 0).sum(1, keepdim=True)
        is_new = (viewpoints >= 0) & ~(self.node[:, :, None] == viewpoints[:, None] + 1).any(1)
        column = count + is_new.cumsum(1) - 1
        size = int((count + is_new.sum(1, keepdim=True)).max())
        rows, _ = is_new.nonzero(as_tuple=True)
        where = (rows, column[is_new])
        grown = {name: _resize(tensor, size, name) for name, tensor in self._map_tensors().items()}
        grown["node"] = grown["node"].index_put(where, viewpoints[is_new] + 1)
        grown["position"] = grown["position"].index_put(where, positions[is_new].to(grown["position"]))
        was_known = torch.arange(size, device=count.device) < count  # (B, K)
        is_pair = was_known[:, :, None] & was_known[:, None]
        distance = grown["distance"].masked_fill(~is_pair, torch.inf)
        diagonal = torch.eye(size, dtype=torch.bool, device=count.device)
        grown["distance"] = distance.masked_fill(diagonal, 0.0)
        return replace(self, **grown)

    def connect(self, source: Tensor, targets: Tensor) -> Self:
        """Return the map with edges between the nodes `source` (B,) and `targets` (B, M); -1 for none.

        The length of an edge is the Euclidean distance. A known way of the same length is kept.
        """
        rows = torch.arange(len(source), device=source.device)[:, None]
        ends = self.position.double()
        length = (ends[rows, targets.clamp(min=0)] - ends[rows[:, 0], source][:, None]).norm(dim=2)
        better = (targets >= 0) & (length < self.distance[rows, source[:, None], targets.clamp(min=0)])
        row, slot = better.nonzero(as_tuple=True)
        pairs = ((row, source[row], targets[row, slot]), (row, targets[row, slot], source[row]))
        distance, middle, hops = self.distance, self.middle, self.hops
        for pair in pairs:
            distance = distance.index_put(pair, length[row, slot])
            middle = middle.index_put(pair, middle.new_zeros(()))
            hops = hops.index_put(pair, hops.new_ones(()))
        return replace(self, distance=distance, middle=middle, hops=hops)

    def begin_ways(self, source: Tensor, through: Tensor) -> Self:
        """Return the map with the ways from `source` (B,) that become shorter if they begin at `through`.

        `through` (B, M) are nodes with an edge to `source` that were visited or remembered before it; -1 for
        none.
        """
        rows = torch.arange(len(source), device=source.device)[:, None]
        nodes = through.clamp(min=0)
        via = self.distance[rows, source[:, None], nodes][..., None] + self.distance[rows, nodes]  # (B, M, K)
        length, slot = via.masked_fill((through < 0)[..., None], torch.inf).min(1)
        row, end = (length < self.distance[rows[:, 0], source]).nonzero(as_tuple=True)
        start, between = source[row], nodes[row, slot[row, end]]
        hops = self.hops[row, start, between] + self.hops[row, between, end]
        tensors = {"distance": length[row, end], "middle": between + 1, "hops": hops}
        changed = {}
        for name, values in tensors.items():
            tensor = getattr(self, name).index_put((row, start, end), values)
            changed[name] = tensor.index_put((row, end, start), values)
        return replace(self, **changed)

    def relax(self, through: Tensor) -> Self:
        """Return the map with all ways that become shorter if they lead through the nodes `through` (B,)."""
        rows = torch.arange(len(through), device=through.device)
        half, half_hops = self.distance[rows, :, through], self.hops[rows, :, through]  # (B, K)
        via = half[:, :, None] + half[:, None]
        is_end = torch.arange(via.shape[1], device=through.device) == through[:, None]  # (B, K)
        better = (via < self.distance) & ~(is_end[:, :, None] | is_end[:, None])
        return replace(
            self,
            distance=torch.where(better, via, self.distance),
            middle=torch.where(better, through[:, None, None] + 1, self.middle),
            hops=torch.where(better, half_hops[:, :, None] + half_hops[:, None], self.hops),
        )

    def position_features(self, current: Tensor, facing_view: Tensor) -> Tensor:
        """Return position features (B, K, 7) of all nodes, seen from the nodes `current` (B,).

        The features of a node are sine and cosine of its heading and elevation relative to `facing_view`
        (B,), its straight-line distance, and the length and number of edges of the way to it. Distance,
        length and number are scaled. An unknown way has length 0.
        """
        rows = torch.arange(len(current), device=current.device)
        ends = self.position.double()
        offset = ends - ends[rows, current][:, None]
        x, y, z = offset.unbind(2)
        heading = torch.atan2(x, y) - (facing_view % COLUMNS * TURN)[:, None]
        elevation = torch.atan2(z, torch.hypot(x, y)) - ((facing_view // COLUMNS - 1) * TURN)[:, None]
        angles = torch.stack([heading, elevation], 2).float()
        length = self.distance[rows, current]
        scales = [
            offset.norm(dim=2).clamp(min=MIN_DISTANCE) / DISTANCE_SCALE,
            length.masked_fill(length.isinf(), 0.0) / DISTANCE_SCALE,
            self.hops[rows, current] / HOP_SCALE,
        ]
        directions = torch.stack([angles.sin(), angles.cos()], 3).flatten(2)  # (B, K, 4)
        return torch.cat([directions, torch.stack(scales, 2).float()], 2)

    def way_to_best_stop(self, current: Tensor) -> list[list[int]]:
        """Return the viewpoints on the way from `current` (B,) to the node with the best STOP probability.

        The list is empty if the agent is already at this node.
        """
        best = self.stop_probability.masked_fill(~self.is_visited, -torch.inf).argmax(1).tolist()
        return [
            [int(self.node[row, node]) - 1 for node in way(self.middle[row], start, end)]
            if start != end
            else []
            for row, (start, end) in enumerate(zip(current.tolist(), best, strict=True))
        ]

    def _map_tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in GraphMap.__annotations__}


def way(middle: Tensor, start: int, end: int) -> list[int]:
    """Return the nodes after `start` on the shortest known way to `end`, given `GraphMap.middle` (K, K)."""
    between = int(middle[start, end]) - 1
    return [end] if between < 0 else way(middle, start, between) + way(middle, between, end)


def _resize(tensor: Tensor, size: int, name: str) -> Tensor:
    """Return a map tensor with `size` nodes: cut, or padded with zeros."""
    is_square = name in ("distance", "middle", "hops")
    more = size - tensor.shape[1]
    tail = [0, 0] * (tensor.ndim - 2 - is_square)
    return functional.pad(tensor, [*tail, *([0, more] * (1 + is_square))])
