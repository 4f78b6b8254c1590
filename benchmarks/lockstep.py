"""A straightforward lock-step evaluation with scene memory, as in the released code: the baseline for HAMT.

A batch runs until its last episode has ended; observations are collated item by item and padded; every layer
computes every token; only the encoded text is cached between steps. `benchmarks.lockstep_tdstp` does the same
for TD-STP.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from esceme.agents.base import Agent
from esceme.agents.hamt import HAMT
from esceme.navigator import Navigator
from esceme.tasks.episode import Episode
from esceme.world import Atlas

MASKED = -10000.0
Panorama = tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]
"""Tokens of one observation: features, angles, kinds, neighbours."""


class LoggedDecision(NamedTuple):
    """One decision of one episode."""

    episode_id: str
    step: int
    logits: list[float]


class Item:
    """One episode of a batch."""

    def __init__(self, atlas: Atlas, episode: Episode, ids: Sequence[int]) -> None:
        self.episode, self.ids = episode, list(ids)
        self.pose = atlas.begin(atlas.locate(episode.scene_id, [episode.start]), [episode.heading])
        self.ended = False
        self.history: list[Tensor] = []


class LockStep:
    """Evaluate batch after batch with one memory, a dictionary of vectors."""

    Agent: type[Agent[Any]] = HAMT
    Item = Item

    def __init__(self, navigator: Navigator, atlas: Atlas) -> None:
        assert isinstance(navigator.agent, self.Agent)
        self.agent, self.reader, self.atlas = navigator.agent, navigator.reader, atlas
        self.heads = navigator.agent.config.heads
        self.memory: dict[int, Tensor] = {}

    def run(
        self,
        batch: Sequence[tuple[Episode, Sequence[int]]],
        expert: Callable[[Episode, int, int], int] | None,
        max_steps: int,
    ) -> list[LoggedDecision]:
        """Return the decisions of active items; `expert(episode, viewpoint, step)` or argmax acts."""
        items = [self.Item(self.atlas, episode, ids) for episode, ids in batch]
        longest = max(len(item.ids) for item in items)
        ids = torch.tensor([item.ids + [0] * (longest - len(item.ids)) for item in items])
        text_mask = torch.tensor([[i < len(item.ids) for i in range(longest)] for item in items])
        text = self.read(ids, text_mask)
        self.begin(items, text)
        found: list[LoggedDecision] = []
        for step in range(max_steps):
            panoramas = [self.observe(item) for item in items]
            logits = self.decide(items, panoramas, text, text_mask)
            choices = []
            for row, item in enumerate(items):
                if not item.ended:
                    scores = [logit for logit in logits[row].tolist() if logit > -math.inf]
                    found.append(LoggedDecision(item.episode.episode_id, step, scores))
                choice = int(logits[row].argmax())
                if expert is not None:
                    choice = expert(item.episode, int(item.pose.viewpoint[0]), step)
                choices.append(self.stop(item) if item.ended else choice)
                self.remember(item)
            tokens = self.history_tokens(items, panoramas, choices, step)
            for row, (item, choice) in enumerate(zip(items, choices, strict=True)):
                item.history.append(tokens[row])
                item.ended |= choice == self.stop(item)
                if not item.ended:
                    self.move(item, choice)
            if all(item.ended for item in items):
                break
        return found

    def begin(self, items: list[Item], text: Tensor) -> None:
        """Start every history with its global token; `text` is (B, L, H)."""
        history = self.agent.history
        token = history.norm(history.start + history.kind.weight[0])[0, 0]
        for item in items:
            item.history = [token]

    def stop(self, item: Item) -> int:
        """The STOP action of an item at its viewpoint."""
        return int(self.atlas.degrees[item.pose.viewpoint[0]])

    def move(self, item: Item, choice: int) -> None:
        """Move an item by its action."""
        item.pose = self.atlas.step(item.pose, [choice])

    def observe(self, item: Item) -> Panorama:
        """Collect the tokens of one panorama."""
        seen = self.atlas.observe(item.pose)
        features, angles, kinds, neighbours = [], [], [], []
        for token in range(seen.token_type.shape[1]):
            features.append(seen.features[0, token])
            angles.append(seen.angles[0, token])
            kinds.append(int(seen.token_type[0, token]))
            neighbours.append(int(seen.neighbour[0, token]))
        return np.stack(features), np.stack(angles), np.array(kinds), neighbours

    def remember(self, item: Item) -> None:
        """Store the maximum over the candidates' views."""
        here = int(item.pose.viewpoint[0])
        if here not in self.memory:
            panorama = self.atlas.panorama_features(item.pose.viewpoint)[0]
            views = self.atlas.views[here, : self.atlas.degrees[here]]
            self.memory[here] = torch.from_numpy(panorama[views].max(0))

    # -- the network ---------------------------------------------------------------------------------------

    def attend(self, block: torch.nn.Module, queries: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        """Multi-head attention with residual and normalization."""

        def heads(x: Tensor) -> Tensor:
            return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

        q, k, v = heads(block.query(queries)), heads(block.key(keys)), heads(block.value(keys))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores + mask
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return block.norm(queries + block.out(mixed))

    def feed(self, block: torch.nn.Module, x: Tensor) -> Tensor:
        """The feed-forward half of a layer."""
        return block.norm(x + block.out(functional.gelu(block.inner(x))))

    def layer(self, block: torch.nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        """A BERT layer."""
        return self.feed(block.feed_forward, self.attend(block.attention, x, x, mask))

    def read(self, ids: Tensor, valid: Tensor) -> Tensor:
        """The encoded text, (B, L, H)."""
        text = self.agent.text
        x = text.norm(text.words(ids) + text.positions.weight[: ids.shape[1]] + text.kinds.weight[0])
        for block in text.layers:
            x = self.layer(block, x, additive(valid))
        return x

    def decide(
        self, items: list[Item], panoramas: list[Panorama], text: Tensor, text_valid: Tensor
    ) -> Tensor:
        """Logits of all items, ended or not, (B, N)."""
        ob, kind, valid = self.describe(panoramas)
        history = torch.stack([torch.stack(item.history) for item in items])
        vision = torch.cat([history, ob], 1)
        vision_valid = torch.cat([torch.ones(history.shape[:2], dtype=torch.bool), valid], 1)
        text, vision = self.relate(text, vision, text_valid, vision_valid)
        scored = vision[:, history.shape[1] :] * text[:, :1]
        return self.agent.action(scored).squeeze(2).masked_fill(kind == 0, -torch.inf)

    def describe(self, panoramas: list[Panorama]) -> tuple[Tensor, Tensor, Tensor]:
        """Observation tokens fused with memory (B, N, H), their kinds and valid mask (B, N)."""
        longest = max(len(kinds) for _, _, kinds, _ in panoramas)
        features, angles, kinds, memory, valid = [], [], [], [], []
        for f, a, k, neighbours in panoramas:
            missing = longest - len(k)
            own = torch.from_numpy(f)
            m = torch.zeros_like(own)
            for token, neighbour in enumerate(neighbours):
                if k[token] == 0:
                    m[token] = own[token]
                elif neighbour in self.memory:
                    m[token] = self.memory[neighbour]
            features.append(functional.pad(own, (0, 0, 0, missing)))
            memory.append(functional.pad(m, (0, 0, 0, missing)))
            angles.append(functional.pad(torch.from_numpy(a), (0, 0, 0, missing)))
            kinds.append(functional.pad(torch.from_numpy(k), (0, missing)))
            valid.append(torch.tensor([True] * len(k) + [False] * missing))
        seen, kind = torch.stack(features), torch.stack(kinds)
        both = torch.cat([seen, torch.stack(memory)], -1)
        reader, sight = self.reader, self.agent.sight
        fused = reader.second(reader.norm(functional.relu(reader.first(both))))
        described = sight.picture(fused) + sight.angle(torch.stack(angles))
        tokens = sight.norm(described + self.agent.text.kinds.weight[1] + sight.kinds(kind))
        return tokens, kind, torch.stack(valid)

    def relate(
        self, text: Tensor, vision: Tensor, text_valid: Tensor, vision_valid: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Both streams after all cross layers."""
        tm, vm = additive(text_valid), additive(vision_valid)
        for block in self.agent.cross_layers:
            text_out = self.attend(block.across, text, vision, vm)
            vision_out = self.attend(block.across, vision, text, tm)
            text, vision = self.layer(block.text, text_out, tm), self.layer(block.vision, vision_out, vm)
        return text, vision

    def history_tokens(
        self, items: list[Item], panoramas: list[Panorama], choices: list[int], step: int
    ) -> Tensor:
        """History tokens of all items, (B, H)."""
        at = np.concatenate([item.pose.viewpoint for item in items])
        facing = np.concatenate([item.pose.view for item in items])
        views = torch.from_numpy(self.atlas.panorama_features(at))
        angles = torch.from_numpy(self.atlas.panorama_angles(facing))
        history = self.agent.history
        x = history.panorama_picture(views) + history.panorama_angle(angles)
        for block in history.panorama_layers:
            x = self.layer(block, x, None)
        chosen = torch.stack(
            [torch.from_numpy(a[c]) for (_, a, _, _), c in zip(panoramas, choices, strict=True)]
        )
        faced = views[torch.arange(len(items)), torch.from_numpy(facing)]
        token = history.picture(faced) + history.angle(chosen) + history.steps.weight[step]
        return history.norm(token + history.kind.weight[0] + x.mean(1))


def additive(valid: Tensor) -> Tensor:
    """0 where a key may be attended to, -10000 elsewhere, (B, 1, 1, L)."""
    return (~valid)[:, None, None, :] * MASKED
