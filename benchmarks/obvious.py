"""The obvious way to train the small HAMT with scene memory: as research code does it, straightforwardly.

Both rollouts go step by step until the last walk of the batch has ended, and who has ended is computed on.
Observations are put together item by item and candidate by candidate, memory is a dictionary that is asked
for each candidate, and nDTW is computed at every step from the beginning of the walk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional

from benchmarks.spelt_out import Sights, SpeltOut
from esceme.agents.base import Decision
from esceme.learning import Training
from esceme.learning.trainer import IMITATING, SAMPLING
from esceme.navigator import Navigator
from esceme.tasks.episode import Episode
from esceme.tasks.split import InstructionEncoder
from esceme.trajectory import sampling
from esceme.world import Atlas
from esceme.world.atlas import CANDIDATE, STOP
from esceme.world.geometry import COLUMNS, snap
from esceme.world.graph import Candidate

IGNORED = -100
NEAR = 3.0
"""Metres within which a goal is reached."""
Key = tuple[str, str]
"""A scene and a viewpoint of it."""


class Item:
    """One episode of a batch, lived so far."""

    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.viewpoint, self.view = episode.start, int(snap(episode.heading))
        self.path = [episode.start]
        self.decisions, self.ended = 0, False
        self.metres, self.fidelity = math.nan, math.nan
        """How far it is from its goal, and its nDTW so far."""

    @property
    def key(self) -> Key:
        """Where it stands."""
        return self.episode.scene_id, self.viewpoint


class Sight(NamedTuple):
    """What one item sees: a row for each candidate, then STOP."""

    candidates: list[Candidate]
    pictures: np.ndarray
    angles: np.ndarray
    faced: np.ndarray


@dataclass
class Lived:
    """What the loss of a sampled rollout is made of, step by step, (B,) each."""

    log_chances: list[Tensor] = field(default_factory=list)
    entropies: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)
    """(B, H) each: what the critic reads."""
    rewards: list[list[float]] = field(default_factory=list)
    masks: list[list[float]] = field(default_factory=list)


class Obvious:
    """A navigator that learns by imitation and A2C; of its memory it sees as much as is drawn."""

    def __init__(
        self,
        navigator: Navigator,
        atlas: Atlas,
        training: Training,
        *,
        encode: InstructionEncoder,
        max_steps: int,
        seed: int,
    ) -> None:
        """Learn in the scenes of an atlas, of which dictionaries are made."""
        assert training.completeness.way == "drawn", "expected the way of the small recipes"
        self.navigator, self.network, self.training = navigator, SpeltOut(navigator), training
        self.encode, self.max_steps, self.seed = encode, max_steps, seed
        self.graphs = atlas.graphs
        panoramas = atlas.panorama_features(np.arange(len(atlas)))
        self.features: dict[Key, np.ndarray] = dict(zip(atlas.names, panoramas, strict=True))
        self.distances = {
            scene: {
                here: dict(zip(graph.viewpoints, row, strict=True))
                for here, row in zip(graph.viewpoints, graph.distances.tolist(), strict=True)
            }
            for scene, graph in atlas.graphs.items()
        }
        self.candidates: dict[Key, list[Candidate]] = {}
        self.memory: dict[Key, Tensor] = {}
        self.hidden: set[Key] = set()
        """What is not shown in this rollout, remembered or not."""
        self.critic = navigator.agent.critic
        mine = {id(each) for each in self.critic.parameters()}
        self.learned = [each for each in navigator.parameters() if id(each) not in mine]
        settings = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
        parts = (self.learned, self.critic.parameters())
        self.optimisers = [torch.optim.AdamW(each, **settings) for each in parts]

    # -- one iteration -------------------------------------------------------------------------------------

    def iterate(
        self, iteration: int, imitated: Sequence[Episode], sampled: Sequence[Episode]
    ) -> dict[str, float]:
        """Learn from one batch by imitation and from another one by A2C; the parts of the loss."""
        self.navigator.train()
        for optimiser in self.optimisers:
            optimiser.zero_grad()
        imitation = self.imitate(imitated, iteration)
        reinforced, said = self.reinforce(sampled, iteration)
        (self.training.imitation_weight * imitation + reinforced).backward()
        norm = nn.utils.clip_grad_norm_(self.learned, self.training.clip)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = self.training.rate_at(iteration)
            optimiser.step()
        return {"imitation": float(imitation.detach()), "gradient": float(norm), **said}

    def imitate(self, episodes: Sequence[Episode], iteration: int) -> Tensor:
        """The cross-entropy of the reference path, divided by the batch."""
        items, loss = self.begin(episodes, iteration, IMITATING), torch.zeros(())
        told = self.network.read([self.encode(episode) for episode in episodes])
        for step in range(self.max_steps):
            seen = [self.observe(item) for item in items]
            logits, _ = self.network.decide(told, self.collate(items, seen))
            pairs = zip(items, seen, strict=True)
            wanted = [IGNORED if item.ended else teach(item, sight) for item, sight in pairs]
            target = torch.tensor(wanted)
            loss = loss + functional.cross_entropy(logits, target, ignore_index=IGNORED, reduction="sum")
            self.move(items, seen, wanted)
            if all(item.ended for item in items) or step == self.max_steps - 1:
                break
            told.history.append(self.recount(seen, wanted, step))
        return loss / len(items)

    def reinforce(self, episodes: Sequence[Episode], iteration: int) -> tuple[Tensor, dict[str, float]]:
        """A2C's loss of walks that are sampled, divided by their steps, and its parts."""
        items, lived = self.begin(episodes, iteration, SAMPLING), Lived()
        told, choose = self.network.read(list(map(self.encode, episodes))), sampling([self.seed, iteration])
        for item in items:
            item.metres, item.fidelity = self.standing(item)
        for step in range(self.max_steps):
            seen = [self.observe(item) for item in items]
            logits, states = self.network.decide(told, self.collate(items, seen))
            chosen = choose(Decision(logits), None, items)  # type: ignore[arg-type]
            chances = Categorical(logits=logits)
            lived.log_chances.append(chances.log_prob(chosen))
            lived.entropies.append(chances.entropy())
            lived.states.append(states)
            going = [not item.ended for item in items]
            self.move(items, seen, chosen.tolist())
            pairs = zip(items, going, strict=True)
            lived.rewards.append([self.reward(item) if went else 0.0 for item, went in pairs])
            lived.masks.append([float(went) for went in going])
            told.history.append(self.recount(seen, chosen.tolist(), step))
            if all(item.ended for item in items):
                return self.a2c(lived, torch.zeros(len(items)))
        beyond = self.collate(items, [self.observe(item) for item in items])
        expected = self.critic(self.network.decide(told, beyond)[1]).squeeze(1).detach()
        return self.a2c(lived, expected * torch.tensor([float(not item.ended) for item in items]))

    def a2c(self, lived: Lived, returns: Tensor) -> tuple[Tensor, dict[str, float]]:
        """The loss by what was lived, backwards; `returns` (B,) is what is expected after the end."""
        parts = dict.fromkeys(("policy", "critic", "entropy"), torch.zeros(()))
        for step in reversed(range(len(lived.rewards))):
            mask = torch.tensor(lived.masks[step])
            returns = returns * self.training.discount + torch.tensor(lived.rewards[step])
            gain = returns - self.critic(lived.states[step]).squeeze(1)
            parts["policy"] = parts["policy"] - (lived.log_chances[step] * gain.detach() * mask).sum()
            parts["critic"] = parts["critic"] + 0.5 * (gain.square() * mask).sum()
            parts["entropy"] = parts["entropy"] + (lived.entropies[step] * mask).sum()
        steps = float(np.sum(lived.masks))
        parts = {name: value / steps for name, value in parts.items()}
        loss = parts["policy"] + parts["critic"] - self.training.entropy_weight * parts["entropy"]
        said = {name: float(value.detach()) for name, value in parts.items()}
        return loss, {**said, "reward": float(np.sum(lived.rewards)) / len(returns)}

    # -- walking -------------------------------------------------------------------------------------------

    def begin(self, episodes: Sequence[Episode], iteration: int, purpose: int) -> list[Item]:
        """Hide some of the memory of the scenes, and stand where the episodes start."""
        draw = np.random.default_rng([self.seed, iteration, purpose])
        self.hidden = set()
        for scene in sorted({episode.scene_id for episode in episodes}):
            points = draw.random(len(self.graphs[scene]))
            share = self.draw_share(draw)
            for viewpoint, point in zip(self.graphs[scene].viewpoints, points, strict=True):
                if point >= share:
                    self.hidden.add((scene, viewpoint))
        return [Item(episode) for episode in episodes]

    def draw_share(self, draw: np.random.Generator) -> float:
        """How much of a scene's memory is shown."""
        which, share = draw.random(2)
        completeness = self.training.completeness
        if which < completeness.full:
            return 1.0
        return 0.0 if which < completeness.full + completeness.empty else float(share)

    def observe(self, item: Item) -> Sight:
        """The candidates of one item, one after the other, and STOP, which shows the largest of all views."""
        scene, viewpoint = item.key
        if item.key not in self.candidates:
            self.candidates[item.key] = self.graphs[scene].candidates(viewpoint)
        panorama, facing = self.features[item.key], (item.view % COLUMNS) * math.radians(30)
        pictures, angles = [], []
        for each in self.candidates[item.key]:
            heading, elevation = each.heading - facing, each.elevation
            pictures.append(panorama[each.view])
            angle = [math.sin(heading), math.cos(heading), math.sin(elevation), math.cos(elevation)]
            angles.append(np.array(angle, np.float32))
        pictures.append(np.maximum(panorama.max(0), 0.0))
        angles.append(np.zeros(4, np.float32))
        return Sight(self.candidates[item.key], np.stack(pictures), np.stack(angles), panorama[item.view])

    def collate(self, items: Sequence[Item], seen: Sequence[Sight]) -> Sights:
        """What all items see and remember, padded to the one that has most candidates."""
        longest = max(len(sight.angles) for sight in seen)
        pictures, recalled, angles, kinds, valid = [], [], [], [], []
        for item, sight in zip(items, seen, strict=True):
            known = torch.zeros(sight.pictures.shape)
            for place, candidate in enumerate(sight.candidates):
                key = (item.episode.scene_id, candidate.viewpoint)
                if key in self.memory and key not in self.hidden:
                    known[place] = self.memory[key]
            missing = longest - len(sight.angles)
            pictures.append(functional.pad(torch.from_numpy(sight.pictures), (0, 0, 0, missing)))
            recalled.append(functional.pad(known, (0, 0, 0, missing)))
            angles.append(functional.pad(torch.from_numpy(sight.angles), (0, 0, 0, missing)))
            kinds.append([CANDIDATE] * len(sight.candidates) + [STOP] + [0] * missing)
            valid.append([True] * len(sight.angles) + [False] * missing)
        tensors = (torch.stack(each) for each in (pictures, recalled, angles))
        return Sights(*tensors, torch.tensor(kinds), torch.tensor(valid))

    def move(self, items: Sequence[Item], seen: Sequence[Sight], choices: Sequence[int]) -> None:
        """Remember where the items stand, then let those go on that have not ended."""
        for item, sight in zip(items, seen, strict=True):
            self.hidden.discard(item.key)
            if item.key not in self.memory:
                self.memory[item.key] = torch.from_numpy(sight.pictures[:-1].max(0))
        for item, sight, choice in zip(items, seen, choices, strict=True):
            if item.ended:
                continue
            item.decisions += 1
            if choice == len(sight.candidates):
                item.ended = True
                continue
            item.viewpoint, item.view = sight.candidates[choice].viewpoint, sight.candidates[choice].view
            item.path.append(item.viewpoint)

    def recount(self, seen: Sequence[Sight], choices: Sequence[int], step: int) -> Tensor:
        """History tokens of all items, (B, H); what those that have ended live does not matter."""
        pairs = zip(seen, choices, strict=True)
        angles = [torch.from_numpy(sight.angles[max(choice, 0)]) for sight, choice in pairs]
        faced = [torch.from_numpy(sight.faced) for sight in seen]
        return self.network.recount(torch.stack(faced), torch.stack(angles), step)

    def standing(self, item: Item) -> tuple[float, float]:
        """How far an item is from its goal, and its nDTW so far."""
        distances, reference = self.distances[item.episode.scene_id], item.episode.reference_path
        return distances[item.viewpoint][reference[-1]], ndtw(distances, item.path, reference)

    def reward(self, item: Item) -> float:
        """What an item's latest step was worth, by how it stood before and stands now (spec E.3)."""
        metres_before, fidelity_before = item.metres, item.fidelity
        metres, fidelity = item.metres, item.fidelity = self.standing(item)
        if item.ended:
            return 2.0 + 2.0 * fidelity if metres < NEAR else -2.0
        worth = float(np.sign(metres_before - metres)) + fidelity - fidelity_before
        if metres_before <= 1.0 and metres > metres_before:
            worth -= 2.0 * (1.0 - metres_before)
        return worth


def teach(item: Item, sight: Sight) -> int:
    """Which candidate the reference path goes to by time; STOP at its end."""
    path = item.episode.reference_path
    if item.decisions >= len(path) - 1:
        return len(sight.candidates)
    for place, candidate in enumerate(sight.candidates):
        if candidate.viewpoint == path[item.decisions + 1]:
            return place
    raise AssertionError(f"{item.episode.episode_id}: the reference path leads nowhere")


def ndtw(distances: dict[str, dict[str, float]], path: Sequence[str], reference: Sequence[str]) -> float:
    """How closely a walk follows its reference: the whole table of dynamic time warping."""
    table = np.full((len(path) + 1, len(reference) + 1), np.inf)
    table[0, 0] = 0.0
    for i in range(1, len(path) + 1):
        for j in range(1, len(reference) + 1):
            best = min(table[i - 1, j], table[i, j - 1], table[i - 1, j - 1])
            table[i, j] = distances[path[i - 1]][reference[j - 1]] + best
    return math.exp(-table[len(path), len(reference)] / (NEAR * len(reference)))
