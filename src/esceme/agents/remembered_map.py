"""The map with which an episode begins if its agent remembers panoramas of the scene (docs/memory.md).

Nodes are the remembered viewpoints and their neighbours. Remembered viewpoints can be passed from the start
and are open as goals until they are visited in this episode.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.csgraph import dijkstra
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from esceme.observation import Observation, RememberedPanoramas

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
NONE = -9999
"""Predecessor of a node that no way reaches, as in scipy."""


class ShortestWays(NamedTuple):
    """Shortest ways between K nodes that pass through observed nodes only."""

    distance: Floats
    """(K, K): metres; inf if there is no way."""
    middle: Integers
    """(K, K): a node on the way, plus one; 0 for a single edge."""
    hops: Integers
    """(K, K): number of edges."""


def remembered_maps(remembered: RememberedPanoramas, tokens: Tensor) -> dict[str, Tensor]:
    """Return the fields of `GraphMap` for B agents, by name; the map of an agent without memory is empty.

    `tokens` (M, N, H) are the encoded panoramas. A remembered node has the mean of its tokens as embedding, a
    neighbour the mean of the tokens that show it. Agents that remember the same have the same map.
    """
    panoramas, known = remembered
    sets, map_of = torch.unique(known, dim=0, return_inverse=True)
    maps = [_single_map(panoramas, tokens, row.nonzero().flatten()) for row in sets]
    fields: dict[str, Tensor] = {}
    for name in maps[0]:
        size = max(len(fields_of["node"]) for fields_of in maps)
        values = [fields_of[name] for fields_of in maps]
        if name in ("distance", "middle", "hops"):
            values = [functional.pad(value, (0, size - value.shape[1])) for value in values]
        fields[name] = pad_sequence(values, batch_first=True)[map_of]
    return fields


def _single_map(panoramas: Observation, tokens: Tensor, rows: Tensor) -> dict[str, Tensor]:
    """Return the fields of one map, (K, …), from the panoramas with indices `rows`."""
    own, device = panoramas.select(rows), tokens.device
    num_candidates = int(own.num_candidates.max()) if len(rows) else 0
    neighbours = own.neighbour[:, :num_candidates].cpu().numpy()  # (m, C)
    viewpoints = own.viewpoint.cpu().numpy()
    source, slot = np.nonzero(neighbours >= 0)
    nodes = np.concatenate([viewpoints, neighbours[source, slot]])
    nodes = nodes[np.sort(np.unique(nodes, return_index=True)[1])]  # in order of first occurrence
    index = {viewpoint: node for node, viewpoint in enumerate(nodes.tolist())}
    target = np.array([index[viewpoint] for viewpoint in neighbours[source, slot].tolist()], dtype=np.int64)
    positions, embedding, count = _node_values(own, tokens[rows], source, slot, target, len(nodes))
    ways = shortest_ways(positions.double().cpu().numpy(), source, target, len(viewpoints))
    return {
        "node": torch.from_numpy(nodes + 1).to(device),
        "position": positions,
        "step_id": torch.zeros(len(nodes), dtype=torch.int64, device=device),
        "embedding": embedding,
        "num_sightings": count,
        "is_observed": torch.arange(len(nodes), device=device) < len(viewpoints),
        "distance": torch.from_numpy(ways.distance).to(device),
        "middle": torch.from_numpy(ways.middle).to(device),
        "hops": torch.from_numpy(ways.hops).to(device),
        "stop_probability": tokens.new_zeros(len(nodes)),
    }


def _node_values(
    own: Observation, tokens: Tensor, source: Integers, slot: Integers, target: Integers, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return position (K, 3), embedding (K, H) and number of sightings (K,) of the nodes of one map.

    Edge i shows the node `target[i]` as candidate `slot[i]` of panorama `source[i]`.
    """
    positions = torch.zeros(size, 3, device=tokens.device)
    embedding = tokens.new_zeros(size, tokens.shape[-1])
    count = torch.zeros(size, dtype=torch.int64, device=tokens.device)
    if not len(own):
        return positions, embedding, count
    assert own.positions is not None
    edges = [torch.from_numpy(array).to(tokens.device) for array in (source, slot, target)]
    positions[edges[2]] = own.positions[edges[0], edges[1]].float()
    positions[: len(own)] = own.agent_positions().float()
    is_frontier = edges[2] >= len(own)
    panorama, candidate, node = (edge[is_frontier] for edge in edges)
    embedding.index_add_(0, node, tokens[panorama, candidate])
    count.index_add_(0, node, torch.ones_like(node))
    num_views = (own.view >= 0).sum(1, keepdim=True)
    embedding[: len(own)] = tokens.sum(1) / num_views
    count[: len(own)] = 1
    return positions, embedding, count


def shortest_ways(positions: Floats, source: Integers, target: Integers, num_observed: int) -> ShortestWays:
    """Return the shortest ways between nodes at `positions` (K, 3), given edges (E,) from `source`.

    The first `num_observed` nodes may be passed; a way may begin or end at any node.
    """
    size = len(positions)
    lengths = np.full((size, size), np.inf)
    lengths[source, target] = np.linalg.norm(positions[source] - positions[target], axis=1)
    lengths = np.minimum(lengths, lengths.T)
    distance, previous = np.full((size, size), np.inf), np.full((size, size), NONE, dtype=np.int64)
    if num_observed:
        passable = lengths.copy()
        passable[num_observed:] = np.inf  # no way leaves a node that was only seen
        graph = np.where(np.isfinite(passable), passable, 0.0)
        distance[:num_observed], previous[:num_observed] = dijkstra(
            graph, indices=np.arange(num_observed), return_predecessors=True
        )
    for node in range(num_observed, size):
        first = np.flatnonzero(np.isfinite(lengths[node, :num_observed]))
        if not first.size:
            continue
        through = lengths[node, first, None] + distance[first]  # (n, K)
        best = through.argmin(0)
        distance[node] = through[best, np.arange(size)]
        reached = previous[first[best], np.arange(size)]
        reached[first] = np.where(first[best[first]] == first, node, reached[first])
        previous[node] = np.where(np.isfinite(distance[node]), reached, NONE)
    np.fill_diagonal(distance, 0.0)
    np.fill_diagonal(previous, NONE)
    origin = np.arange(size)[:, None]
    is_edge = previous == origin
    middle = np.where((previous >= 0) & ~is_edge, previous + 1, 0)
    hops = _count_hops(previous, is_edge)
    return ShortestWays(_mirror(distance), _mirror(middle), _mirror(hops))


def _mirror(table: NDArray[Any]) -> NDArray[Any]:
    """Return a table (K, K) whose lower half equals its upper half, so that both are rounded alike."""
    return np.triu(table) + np.triu(table, 1).T


def _count_hops(previous: Integers, is_edge: NDArray[np.bool_]) -> Integers:
    """Return the number of edges (K, K) of ways, given the node before the last of each way."""
    hops, origin = is_edge.astype(np.int64), np.arange(len(previous))[:, None]
    pending = (previous >= 0) & ~is_edge
    while pending.any():
        before = hops[origin, np.maximum(previous, 0)]
        is_ready = pending & (before > 0)
        if not is_ready.any():
            break
        hops = np.where(is_ready, before + 1, hops)
        pending &= ~is_ready
    return hops
