"""The obvious way to evaluate TD-STP with scene memory: HAMT's lock-step loop, and what TD-STP has besides.

Positions are put together token by token, grids of targets and places of walks are scored for all items of a
batch until the last of them has ended, and ways back are searched in a dictionary of places.
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
    """One episode of a batch, and the graph of what it has walked."""

    def __init__(self, atlas: Atlas, episode: Episode, ids: Sequence[int]) -> None:
        super().__init__(atlas, episode, ids)
        self.origin = atlas.positions[self.here]
        self.target = torch.zeros(0)
        """(G, H): the tokens of its grid."""
        self.places: list[tuple[int, int]] = []
        """Viewpoint and faced view of each history token but the global one."""
        self.edges: dict[int, list[int]] = {}
        self.jumps: Counter[tuple[int, int]] = Counter()
        """How often it jumped from one viewpoint to another."""
        self.width = 0
        """How many tokens of sight come before the places of its walk."""
        self.path = [self.here]

    @property
    def here(self) -> int:
        """The viewpoint where it stands."""
        return int(self.pose.viewpoint[0])


class LockStepPlanner(LockStep):
    """Evaluates TD-STP as the ESceme release has it, without a structured mask."""

    Agent, Item = TDSTP, Planner

    def begin(self, items: list[Planner], text: Tensor) -> None:
        """Also draw a grid around where each item starts."""
        super().begin(items, text)
        for item, tokens in zip(
            items, self.agent.position_encoder(self.agent.grid_points)[None] * text[:, :1], strict=True
        ):
            item.target = tokens

    def move(self, item: Planner, choice: int) -> None:
        """Go to a candidate, or back to a place, viewpoint by viewpoint."""
        if choice < item.width:
            super().move(item, choice)
            item.path.append(item.here)
            return
        there, view = item.places[choice - item.width - 1]
        item.path += way_back(item.edges, item.here, there)
        item.jumps[item.here, there] += 1
        item.pose = Pose(np.array([there]), np.array([view]))

    def decide(
        self, items: list[Planner], panoramas: list[Panorama], text: Tensor, text_valid: Tensor
    ) -> Tensor:
        """Logits of all items, ended or not: of what is seen, then of what was walked, (B, N + S)."""
        agent = self.agent
        ob, kind, valid = self.describe(panoramas)
        ob = ob + agent.position_encoder(self.lie(items, panoramas, kind.shape[1]))
        history = torch.stack([torch.stack(item.history) for item in items])
        target = torch.stack([item.target for item in items])
        lived, drawn = (torch.ones(each.shape[:2], dtype=torch.bool) for each in (history, target))
        vision, vision_valid = torch.cat([history, ob, target], 1), torch.cat([lived, valid, drawn], 1)
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
        """Shut out what is no choice, and make jumping back and forth unlikely."""
        logits[item.width] = -torch.inf
        for place, (viewpoint, _) in enumerate(item.places, item.width + 1):
            if viewpoint == item.here:
                logits[place] = -torch.inf
            logits[place] -= REPEATED * item.jumps[viewpoint, item.here]
        for token, neighbour in enumerate(panorama[3]):
            if neighbour >= 0:
                logits[token] -= REPEATED * item.jumps[neighbour, item.here]

    def lie(self, items: list[Planner], panoramas: list[Panorama], longest: int) -> Tensor:
        """Where tokens lie, seen from where their walks began, (B, N, 3)."""
        found = []
        for item, (_, _, _, neighbours) in zip(items, panoramas, strict=True):
            leads = [item.here if neighbour < 0 else neighbour for neighbour in neighbours]
            places = np.stack([self.atlas.positions[each] - item.origin for each in leads])
            own = torch.from_numpy(places.astype(np.float32))
            found.append(functional.pad(own, (0, 0, 0, longest - len(own))))
        return torch.stack(found)

    def recount(
        self, items: list[Planner], panoramas: list[Panorama], choices: list[int], step: int
    ) -> Tensor:
        """History tokens that know where they were, (B, H); a jump has as little direction as STOP."""
        pairs = zip(items, choices, strict=True)
        turned = [choice if choice < item.width else self.stop(item) for item, choice in pairs]
        tokens = super().recount(items, panoramas, turned, step)
        for item, (_, _, _, neighbours) in zip(items, panoramas, strict=True):
            item.places.append((item.here, int(item.pose.view[0])))
            near = [each for each in neighbours if each >= 0]
            known = {viewpoint for viewpoint, _ in item.places}
            item.edges.setdefault(item.here, [])
            for neighbour in known.intersection(near):
                item.edges[item.here].append(neighbour)
                item.edges[neighbour].append(item.here)
        here = np.stack([self.atlas.positions[item.here] - item.origin for item in items])
        return tokens + self.agent.position_encoder(torch.from_numpy(here.astype(np.float32)))


def way_back(edges: dict[int, list[int]], here: int, there: int) -> list[int]:
    """The viewpoints to walk by with the fewest steps."""
    ways = deque([[here]])
    known = {here}
    while ways:
        way = ways.popleft()
        if way[-1] == there:
            return way[1:]
        for neighbour in edges[way[-1]]:
            if neighbour not in known:
                known.add(neighbour)
                ways.append([*way, neighbour])
    raise AssertionError("no way leads back along what was walked")
