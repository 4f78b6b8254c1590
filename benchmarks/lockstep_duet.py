"""The lock-step loop of `benchmarks.lockstep` for DUET, and a plain statement of its rules (docs/spec.md I).

The map of an item is a set of dictionaries, relaxed pair by pair. Features of nodes are collected node by
node and padded. Every layer computes every token, and keys and values of the text, for all items of a batch
until the last of them has ended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.lockstep import Item, LockStep, Panorama, additive
from esceme.agents.duet import DUET
from esceme.tasks.episode import Episode
from esceme.world import Atlas, Pose
from esceme.world.atlas import STOP
from esceme.world.geometry import VIEW_ELEVATIONS, VIEW_HEADINGS


class Explorer(Item):
    """One episode of a batch and the map of what it has seen."""

    def __init__(self, atlas: Atlas, episode: Episode, ids: Sequence[int]) -> None:
        super().__init__(atlas, episode, ids)
        self.atlas = atlas
        self.start, self.width = self.here, 0
        self.nodes: list[int] = []
        """Viewpoints in the order in which they were first seen."""
        self.distance: dict[tuple[int, int], float] = {}
        self.middle: dict[tuple[int, int], int | None] = {}
        self.visited: dict[int, int] = {}
        """Visited viewpoint -> step of the latest visit, from 1."""
        self.sums: dict[int, Tensor] = {}
        self.counts: dict[int, int] = {}

    @property
    def here(self) -> int:
        """The current viewpoint."""
        return int(self.pose.viewpoint[0])

    @property
    def neighbours(self) -> list[int]:
        """The candidates of the current viewpoint."""
        return [int(n) for n in self.atlas.neighbours[self.here, : self.atlas.degrees[self.here]]]

    def look(self) -> None:
        """Add the current viewpoint and its candidates to the map."""
        here = self.here
        for seen in [here, *self.neighbours]:
            if seen not in self.nodes:
                self.nodes.append(seen)
            if seen != here:
                length = float(np.linalg.norm(self.position(here) - self.position(seen)))
                if length < self.distance.get((here, seen), math.inf):
                    self.distance[here, seen] = self.distance[seen, here] = length
                    self.middle[here, seen] = self.middle[seen, here] = None
        for x in self.nodes:
            for y in self.nodes:
                if x != y and x != here and y != here:
                    via = self.distance.get((x, here), math.inf) + self.distance.get((here, y), math.inf)
                    if via < self.distance.get((x, y), math.inf):
                        self.distance[x, y], self.middle[x, y] = via, here

    def way(self, start: int, end: int) -> list[int]:
        """The viewpoints after `start` on the shortest known way to `end`."""
        if start == end:
            return []
        middle = self.middle[start, end]
        return [end] if middle is None else self.way(start, middle) + self.way(middle, end)

    def position(self, viewpoint: int) -> np.ndarray:
        """The position of a viewpoint in single precision."""
        return self.atlas.positions[viewpoint].astype(np.float32).astype(np.float64)

    def describe(self, viewpoint: int) -> list[float]:
        """The seven position features of a viewpoint, seen from the current pose."""
        x, y, z = self.position(viewpoint) - self.position(self.here)
        view = int(self.pose.view[0])
        heading = np.float32(math.atan2(x, y) - VIEW_HEADINGS[view])
        elevation = np.float32(math.atan2(z, math.hypot(x, y)) - VIEW_ELEVATIONS[view])
        way = self.way(self.here, viewpoint)
        length = self.distance[self.here, viewpoint] if way else 0.0
        far = max(math.sqrt(x * x + y * y + z * z), 1e-8)
        angles = [np.sin(heading), np.cos(heading), np.sin(elevation), np.cos(elevation)]
        return [*angles, far / 30, length / 30, len(way) / 10]


class LockStepExplorer(LockStep):
    """Evaluate DUET with candidate enhancing as in its repository."""

    Agent, Item = DUET, Explorer

    def begin(self, items: list[Explorer], text: Tensor) -> None:
        """The map is the only history."""

    def move(self, item: Explorer, choice: int) -> None:
        """Move to a candidate, or along the map to another node, facing along the last edge."""
        goal = item.neighbours[choice] if choice < item.width else item.nodes[choice - item.width]
        before, *_ = [item.here, *item.way(item.here, goal)][-2:]
        slot = self.atlas.neighbours[before].tolist().index(goal)
        item.pose = Pose(np.array([goal]), np.array([self.atlas.views[before, slot]]))

    def history_tokens(
        self, items: list[Explorer], panoramas: list[Panorama], choices: list[int], step: int
    ) -> Tensor:
        """No token."""
        return torch.zeros(len(items), 0)

    def decide(
        self, items: list[Explorer], panoramas: list[Panorama], text: Tensor, text_valid: Tensor
    ) -> Tensor:
        """Logits of all items, ended or not: panorama tokens with STOP, then nodes of the map, (B, N + K)."""
        views, valid = self.panoramas(items, panoramas)
        for row, item in enumerate(items):
            if not item.ended:
                item.look()
                item.visited[item.here] = len(item.history) + 1
                self.embed(item, views[row], int(valid[row].sum()))
        tm, agent = additive(text_valid), self.agent
        nodes, bias = self.map_tokens(items)
        for block in agent.map_layers:
            nodes = self.attend(block.across, nodes, text, tm)
            nodes = self.layer(block.vision, nodes, bias)
        local = self.view_tokens(items, views)
        mask = additive(functional.pad(valid, (1, 0), value=True))
        for block in agent.view_layers:
            local = self.attend(block.across, local, text, tm)
            local = self.layer(block.vision, local, mask)
        gate = agent.gate(torch.cat([nodes[:, 0], local[:, 0]], 1)).sigmoid()
        coarse, fine = gate * agent.map_head(nodes).squeeze(2), (1 - gate) * agent.view_head(local).squeeze(2)
        width = max(len(kinds) for _, _, kinds, _ in panoramas)
        logits = torch.full((len(items), width + nodes.shape[1] - 1), -torch.inf)
        for row, item in enumerate(items):
            item.width = width
            near = item.neighbours
            logits[row, len(near)] = coarse[row, 0] + fine[row, 0]
            back = sum(float(fine[row, 1 + j]) for j, seen in enumerate(near) if seen in item.visited)
            for index, node in enumerate(item.nodes):
                if node in item.visited:
                    continue
                if node in near:
                    logits[row, near.index(node)] = coarse[row, 1 + index] + fine[row, 1 + near.index(node)]
                else:
                    logits[row, width + index] = coarse[row, 1 + index] + back
        return logits

    def panoramas(self, items: list[Explorer], panoramas: list[Panorama]) -> tuple[Tensor, Tensor]:
        """Encoded panoramas without STOP, fused with memory, (B, N, H), and their valid mask (B, N)."""
        reader, sight, rows = self.reader, self.agent.panorama, []
        longest = max(len(kinds) for _, _, kinds, _ in panoramas) - 1
        features, locations, kinds, valid = [], [], [], []
        for item, (pictures, angles, types, neighbours) in zip(items, panoramas, strict=True):
            keep = [token for token, kind in enumerate(types) if kind != STOP]
            rows = [torch.from_numpy(pictures[token]) for token in keep]
            memory = []
            for token, own in zip(keep, rows, strict=True):
                if types[token] == 0:
                    memory.append(own)
                else:
                    memory.append(self.memory.get(neighbours[token], torch.zeros_like(own)))
            both = torch.cat([torch.stack(rows), torch.stack(memory)], -1)
            fused = reader.second(reader.norm(functional.relu(reader.first(both))))
            tilt = VIEW_ELEVATIONS[int(item.pose.view[0])]
            located = []
            for token in keep:
                sine, cosine, up, level = angles[token]
                elevation = math.atan2(up, level) - tilt
                located.append([sine, cosine, math.sin(elevation), math.cos(elevation), 1, 1, 1])
            missing = longest - len(keep)
            features.append(functional.pad(fused, (0, 0, 0, missing)))
            locations.append(functional.pad(torch.tensor(located), (0, 0, 0, missing)))
            kinds.append(torch.tensor([int(types[token]) for token in keep] + [0] * missing))
            valid.append(torch.tensor([True] * len(keep) + [False] * missing))
        described = sight.picture(torch.stack(features)) + sight.location(torch.stack(locations).float())
        tokens = sight.norm(described + sight.kinds(torch.stack(kinds)) + self.agent.text.kinds.weight[1])
        is_valid = torch.stack(valid)
        for block in sight.layers:
            tokens = block(tokens, src_key_padding_mask=~is_valid)
        return sight.final_norm(tokens), is_valid

    def embed(self, item: Explorer, views: Tensor, count: int) -> None:
        """Update the embeddings of the current node and of unvisited candidates."""
        for index, seen in enumerate(item.neighbours):
            if seen not in item.visited:
                item.sums[seen] = item.sums.get(seen, torch.zeros_like(views[0])) + views[index]
                item.counts[seen] = item.counts.get(seen, 0) + 1
        item.sums[item.here], item.counts[item.here] = views[:count].mean(0), 1

    def map_tokens(self, items: list[Explorer]) -> tuple[Tensor, Tensor]:
        """STOP and nodes of all maps, (B, G, H), and the bias of their attention, (B, 1, G, G)."""
        agent, longest = self.agent, 1 + max(len(item.nodes) for item in items)
        hidden = agent.config.hidden
        embedded = torch.zeros(len(items), longest, hidden)
        steps = torch.zeros(len(items), longest, dtype=torch.int64)
        located = torch.zeros(len(items), longest, 7)
        apart = torch.zeros(len(items), longest, longest)
        valid = torch.zeros(len(items), longest, dtype=torch.bool)
        for row, item in enumerate(items):
            valid[row, : 1 + len(item.nodes)] = True
            located[row, 0] = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0])
            for index, node in enumerate(item.nodes, 1):
                embedded[row, index] = item.sums[node] / item.counts[node]
                steps[row, index] = item.visited.get(node, 0)
                located[row, index] = torch.tensor(item.describe(node))
                for other, end in enumerate(item.nodes, 1):
                    if other != index:
                        apart[row, index, other] = item.distance[node, end]
        tokens = embedded + agent.steps(steps) + agent.map_positions(located)
        bias = agent.distance_bias(apart[..., None]).squeeze(3)[:, None]
        return tokens, bias + additive(valid)

    def view_tokens(self, items: list[Explorer], views: Tensor) -> Tensor:
        """A zero token of STOP, then the panorama, with positions of start and candidates, (B, 1 + N, H)."""
        located = torch.zeros(len(items), 1 + views.shape[1], 14)
        for row, item in enumerate(items):
            located[row, :, :7] = torch.tensor(item.describe(item.start))
            for index, seen in enumerate(item.neighbours, 1):
                located[row, index, 7:] = torch.tensor(item.describe(seen))
        return functional.pad(views, (0, 0, 1, 0)) + self.agent.view_positions(located)
