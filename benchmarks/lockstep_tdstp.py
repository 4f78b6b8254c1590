"""The lock-step loop of `benchmarks.lockstep` for TD-STP.

Positions are collected token by token, target grids and visited viewpoints are scored for all items of a
batch until the last of them has ended, and backtracking paths are searched in a dictionary of edges.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.lockstep import Item, LockStep, Panorama
from esceme.agents.tdstp import TDSTP
from esceme.tasks.episode import Episode
from esceme.world import Atlas, Pose

REPEATED = 100.0


class Planner(Item):
    """One episode of a batch and the graph of its visited viewpoints."""

    def __init__(self, atlas: Atlas, episode: Episode, ids: Sequence[int]) -> None:
        super().__init__(atlas, episode, ids)
        self.origin = atlas.positions[self.here]
        self.target = torch.zeros(0)
        """(G, H): tokens of the target grid."""
        self.visited: list[tuple[int, int]] = []
        """Viewpoint and view of every history token but the global one."""
        self.edges: dict[int, list[int]] = {}
        self.jumps: Counter[tuple[int, int]] = Counter()
        """Number of jumps between two viewpoints."""
        self.width = 0
        """Number of observation tokens, which precede the visited viewpoints in the logits."""
        self.path = [self.here]

    @property
    def here(self) -> int:
        """The current viewpoint."""
        return int(self.pose.viewpoint[0])


class LockStepPlanner(LockStep):
    """Evaluate TD-STP as in the ESceme release, without a structured mask."""

    Agent, Item = TDSTP, Planner

    def begin(self, items: list[Planner], text: Tensor) -> None:
        """Also encode the target grid around every start."""
        super().begin(items, text)
        for item, tokens in zip(
            items, self.agent.position_encoder(self.agent.grid_points)[None] * text[:, :1], strict=True
        ):
            item.target = tokens

    def move(self, item: Planner, choice: int) -> None:
        """Move to a candidate, or back to a visited viewpoint."""
        if choice < item.width:
            super().move(item, choice)
            item.path.append(item.here)
            return
        target, view = item.visited[choice - item.width - 1]
        item.path += path_back(item.edges, item.here, target)
        item.jumps[item.here, target] += 1
        item.pose = Pose(np.array([target]), np.array([view]))

    def decide(
        self, items: list[Planner], panoramas: list[Panorama], text: Tensor, text_valid: Tensor
    ) -> Tensor:
        """Logits of all items, ended or not: observation tokens, then visited viewpoints, (B, N + S)."""
        agent = self.agent
        ob, kind, valid = self.describe(panoramas)
        ob = ob + agent.position_encoder(self.token_positions(items, panoramas, kind.shape[1]))
        history = torch.stack([torch.stack(item.history) for item in items])
        target = torch.stack([item.target for item in items])
        past, grid = (torch.ones(tokens.shape[:2], dtype=torch.bool) for tokens in (history, target))
        vision, vision_valid = torch.cat([history, ob, target], 1), torch.cat([past, valid, grid], 1)
        text, vision = self.relate(text, vision, text_valid, vision_valid)
        history, ob, target = torch.split(vision, [history.shape[1], ob.shape[1], target.shape[1]], 1)
        agent.goal_head(target * text[:, :1])
        seen = agent.action(ob * text[:, :1]).squeeze(2).masked_fill(kind == 0, -torch.inf)
        logits = torch.cat([seen, agent.action(agent.history_mapper(history) * text[:, :1]).squeeze(2)], 1)
        for row, item in enumerate(items):
            item.width, item.history, item.target = kind.shape[1], list(history[row]), target[row]
            self.restrict(item, logits[row], panoramas[row])
        return logits

    def restrict(self, item: Planner, logits: Tensor, panorama: Panorama) -> None:
        """Mask invalid actions and penalize repeated jumps."""
        logits[item.width] = -torch.inf
        for index, (viewpoint, _) in enumerate(item.visited, item.width + 1):
            if viewpoint == item.here:
                logits[index] = -torch.inf
            logits[index] -= REPEATED * item.jumps[viewpoint, item.here]
        for token, neighbour in enumerate(panorama[3]):
            if neighbour >= 0:
                logits[token] -= REPEATED * item.jumps[neighbour, item.here]

    def token_positions(self, items: list[Planner], panoramas: list[Panorama], longest: int) -> Tensor:
        """Positions of the tokens relative to the start, (B, N, 3)."""
        found = []
        for item, (_, _, _, neighbours) in zip(items, panoramas, strict=True):
            viewpoints = [item.here if neighbour < 0 else neighbour for neighbour in neighbours]
            positions = np.stack([self.atlas.positions[viewpoint] - item.origin for viewpoint in viewpoints])
            own = torch.from_numpy(positions.astype(np.float32))
            found.append(functional.pad(own, (0, 0, 0, longest - len(own))))
        return torch.stack(found)

    def history_tokens(
        self, items: list[Planner], panoramas: list[Panorama], choices: list[int], step: int
    ) -> Tensor:
        """History tokens with positions, (B, H); a jump has the angle features of STOP."""
        pairs = zip(items, choices, strict=True)
        turned = [choice if choice < item.width else self.stop(item) for item, choice in pairs]
        tokens = super().history_tokens(items, panoramas, turned, step)
        for item, (_, _, _, neighbours) in zip(items, panoramas, strict=True):
            item.visited.append((item.here, int(item.pose.view[0])))
            near = [neighbour for neighbour in neighbours if neighbour >= 0]
            known = {viewpoint for viewpoint, _ in item.visited}
            item.edges.setdefault(item.here, [])
            for neighbour in known.intersection(near):
                item.edges[item.here].append(neighbour)
                item.edges[neighbour].append(item.here)
        here = np.stack([self.atlas.positions[item.here] - item.origin for item in items])
        return tokens + self.agent.position_encoder(torch.from_numpy(here.astype(np.float32)))


def path_back(edges: dict[int, list[int]], start: int, target: int) -> list[int]:
    """A path with the fewest steps along visited edges, without its start."""
    paths, known = deque([[start]]), {start}
    while paths:
        path = paths.popleft()
        if path[-1] == target:
            return path[1:]
        for neighbour in edges[path[-1]]:
            if neighbour not in known:
                known.add(neighbour)
                paths.append([*path, neighbour])
    raise AssertionError("no path of visited edges leads back")
