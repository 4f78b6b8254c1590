"""The baseline implementation of training the small HAMT with scene memory.

Both rollouts go step by step until the last episode of the batch has ended; ended episodes remain in it.
Observations are assembled item by item and candidate by candidate, memory is a dictionary with one lookup
per candidate, and nDTW is computed from the beginning of the path at every step.
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

from benchmarks.baseline_network import BaselineNetwork, PaddedObservation
from benchmarks.scoring import dtw_distance
from esceme.agents.base import Decision
from esceme.learning import TrainingConfig
from esceme.learning.trainer import IMITATION, SAMPLING
from esceme.navigator import Navigator
from esceme.tasks.episode import SUCCESS_WITHIN, Episode
from esceme.tasks.split import InstructionEncoder
from esceme.trajectory import sampling
from esceme.world import Atlas
from esceme.world.atlas import CANDIDATE, STOP
from esceme.world.geometry import COLUMNS, nearest_view
from esceme.world.graph import Candidate

IGNORED = -100
Key = tuple[str, str]
"""Scene id and viewpoint id."""


class Item:
    """The state of one episode of a batch."""

    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.viewpoint, self.view = episode.start, int(nearest_view(episode.heading))
        self.path = [episode.start]
        self.num_decisions, self.ended = 0, False
        self.metres, self.fidelity = math.nan, math.nan
        """Metres to the goal, and nDTW so far."""

    @property
    def key(self) -> Key:
        """Scene and viewpoint of the agent."""
        return self.episode.scene_id, self.viewpoint


class ItemObservation(NamedTuple):
    """The observation of one item: a row per candidate, then STOP."""

    candidates: list[Candidate]
    pictures: np.ndarray
    angles: np.ndarray
    faced: np.ndarray


@dataclass
class SampledSteps:
    """Quantities of a sampled rollout that enter the loss, per step, (B,)."""

    log_chances: list[Tensor] = field(default_factory=list)
    entropies: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)
    """Inputs of the critic, (B, H) per step."""
    rewards: list[list[float]] = field(default_factory=list)
    masks: list[list[float]] = field(default_factory=list)


class BaselineTrainer:
    """Trains a navigator by imitation and A2C, with sampled memory dropout."""

    def __init__(
        self,
        navigator: Navigator,
        atlas: Atlas,
        training: TrainingConfig,
        *,
        encode: InstructionEncoder,
        max_steps: int,
        seed: int,
    ) -> None:
        """Copy the arrays of an atlas into dictionaries."""
        assert training.memory_dropout.mode == "sampled", "expected the mode of the small recipes"
        self.navigator, self.network, self.training = navigator, BaselineNetwork(navigator), training
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
        """Viewpoints dropped from memory in this rollout."""
        self.critic = navigator.agent.critic
        critic = {id(parameter) for parameter in self.critic.parameters()}
        self.learned = [parameter for parameter in navigator.parameters() if id(parameter) not in critic]
        settings = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
        parts = (self.learned, self.critic.parameters())
        self.optimisers = [torch.optim.AdamW(part, **settings) for part in parts]

    # -- one iteration -------------------------------------------------------------------------------------

    def iterate(
        self, iteration: int, imitated: Sequence[Episode], sampled: Sequence[Episode]
    ) -> dict[str, float]:
        """Train on one batch by imitation and on another one by A2C; return the parts of the loss."""
        self.navigator.train()
        for optimiser in self.optimisers:
            optimiser.zero_grad()
        imitation = self.imitate(imitated, iteration)
        reinforced, metrics = self.reinforce(sampled, iteration)
        (self.training.imitation_weight * imitation + reinforced).backward()
        norm = nn.utils.clip_grad_norm_(self.learned, self.training.max_grad_norm)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = self.training.learning_rate_at(iteration)
            optimiser.step()
        return {"imitation": float(imitation.detach()), "gradient_norm": float(norm), **metrics}

    def imitate(self, episodes: Sequence[Episode], iteration: int) -> Tensor:
        """The cross-entropy of the reference path, divided by the batch."""
        items, loss = self.begin(episodes, iteration, IMITATION), torch.zeros(())
        text = self.network.encode_text([self.encode(episode) for episode in episodes])
        for step in range(self.max_steps):
            seen = [self.observe(item) for item in items]
            logits, _ = self.network.decide(text, self.collate(items, seen))
            pairs = zip(items, seen, strict=True)
            targets = [IGNORED if item.ended else teach(item, observation) for item, observation in pairs]
            target = torch.tensor(targets)
            loss = loss + functional.cross_entropy(logits, target, ignore_index=IGNORED, reduction="sum")
            self.move(items, seen, targets)
            if all(item.ended for item in items) or step == self.max_steps - 1:
                break
            text.history.append(self.history_token(seen, targets, step))
        return loss / len(items)

    def reinforce(self, episodes: Sequence[Episode], iteration: int) -> tuple[Tensor, dict[str, float]]:
        """The A2C loss of sampled paths, divided by the number of steps, and its parts."""
        items, steps = self.begin(episodes, iteration, SAMPLING), SampledSteps()
        text, choose = (
            self.network.encode_text(list(map(self.encode, episodes))),
            sampling([self.seed, iteration]),
        )
        for item in items:
            item.metres, item.fidelity = self.progress(item)
        for step in range(self.max_steps):
            seen = [self.observe(item) for item in items]
            logits, states = self.network.decide(text, self.collate(items, seen))
            chosen = choose(Decision(logits), None, items)  # type: ignore[arg-type]
            chances = Categorical(logits=logits)
            steps.log_chances.append(chances.log_prob(chosen))
            steps.entropies.append(chances.entropy())
            steps.states.append(states)
            going = [not item.ended for item in items]
            self.move(items, seen, chosen.tolist())
            pairs = zip(items, going, strict=True)
            steps.rewards.append([self.reward(item) if moved else 0.0 for item, moved in pairs])
            steps.masks.append([float(moved) for moved in going])
            text.history.append(self.history_token(seen, chosen.tolist(), step))
            if all(item.ended for item in items):
                return self.a2c(steps, torch.zeros(len(items)))
        beyond = self.collate(items, [self.observe(item) for item in items])
        expected = self.critic(self.network.decide(text, beyond)[1]).squeeze(1).detach()
        return self.a2c(steps, expected * torch.tensor([float(not item.ended) for item in items]))

    def a2c(self, steps: SampledSteps, returns: Tensor) -> tuple[Tensor, dict[str, float]]:
        """The loss of a rollout; `returns` (B,) are the expected returns after its end."""
        parts = dict.fromkeys(("policy", "critic", "entropy"), torch.zeros(()))
        for step in reversed(range(len(steps.rewards))):
            mask = torch.tensor(steps.masks[step])
            returns = returns * self.training.discount + torch.tensor(steps.rewards[step])
            gain = returns - self.critic(steps.states[step]).squeeze(1)
            parts["policy"] = parts["policy"] - (steps.log_chances[step] * gain.detach() * mask).sum()
            parts["critic"] = parts["critic"] + 0.5 * (gain.square() * mask).sum()
            parts["entropy"] = parts["entropy"] + (steps.entropies[step] * mask).sum()
        num_steps = float(np.sum(steps.masks))
        parts = {name: value / num_steps for name, value in parts.items()}
        loss = parts["policy"] + parts["critic"] - self.training.entropy_weight * parts["entropy"]
        metrics = {name: float(value.detach()) for name, value in parts.items()}
        return loss, {**metrics, "reward": float(np.sum(steps.rewards)) / len(returns)}

    # -- rollouts ------------------------------------------------------------------------------------------

    def begin(self, episodes: Sequence[Episode], iteration: int, purpose: int) -> list[Item]:
        """Drop a part of the memory of the scenes, and place items at the starts of their episodes."""
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
        """Sample the share of a scene's memory that remains visible."""
        which, share = draw.random(2)
        dropout = self.training.memory_dropout
        if which < dropout.full_probability:
            return 1.0
        return 0.0 if which < dropout.full_probability + dropout.empty_probability else float(share)

    def observe(self, item: Item) -> ItemObservation:
        """Observe one item: its candidates, and STOP with the maximum over all views."""
        scene, viewpoint = item.key
        if item.key not in self.candidates:
            self.candidates[item.key] = self.graphs[scene].candidates(viewpoint)
        panorama, facing = self.features[item.key], (item.view % COLUMNS) * math.radians(30)
        pictures, angles = [], []
        for candidate in self.candidates[item.key]:
            heading, elevation = candidate.heading - facing, candidate.elevation
            pictures.append(panorama[candidate.view])
            angle = [math.sin(heading), math.cos(heading), math.sin(elevation), math.cos(elevation)]
            angles.append(np.array(angle, np.float32))
        pictures.append(np.maximum(panorama.max(0), 0.0))
        angles.append(np.zeros(4, np.float32))
        return ItemObservation(
            self.candidates[item.key], np.stack(pictures), np.stack(angles), panorama[item.view]
        )

    def collate(self, items: Sequence[Item], seen: Sequence[ItemObservation]) -> PaddedObservation:
        """Batch the observations and recalled memories, padded to the largest number of candidates."""
        longest = max(len(observation.angles) for observation in seen)
        pictures, recalled, angles, kinds, valid = [], [], [], [], []
        for item, observation in zip(items, seen, strict=True):
            known = torch.zeros(observation.pictures.shape)
            for index, candidate in enumerate(observation.candidates):
                key = (item.episode.scene_id, candidate.viewpoint)
                if key in self.memory and key not in self.hidden:
                    known[index] = self.memory[key]
            missing = longest - len(observation.angles)
            pictures.append(functional.pad(torch.from_numpy(observation.pictures), (0, 0, 0, missing)))
            recalled.append(functional.pad(known, (0, 0, 0, missing)))
            angles.append(functional.pad(torch.from_numpy(observation.angles), (0, 0, 0, missing)))
            kinds.append([CANDIDATE] * len(observation.candidates) + [STOP] + [0] * missing)
            valid.append([True] * len(observation.angles) + [False] * missing)
        tensors = (torch.stack(rows) for rows in (pictures, recalled, angles))
        return PaddedObservation(*tensors, torch.tensor(kinds), torch.tensor(valid))

    def move(self, items: Sequence[Item], seen: Sequence[ItemObservation], choices: Sequence[int]) -> None:
        """Write the current viewpoints to memory, then move the items that have not ended."""
        for item, observation in zip(items, seen, strict=True):
            self.hidden.discard(item.key)
            if item.key not in self.memory:
                self.memory[item.key] = torch.from_numpy(observation.pictures[:-1].max(0))
        for item, observation, choice in zip(items, seen, choices, strict=True):
            if item.ended:
                continue
            item.num_decisions += 1
            if choice == len(observation.candidates):
                item.ended = True
                continue
            candidate = observation.candidates[choice]
            item.viewpoint, item.view = candidate.viewpoint, candidate.view
            item.path.append(item.viewpoint)

    def history_token(self, seen: Sequence[ItemObservation], choices: Sequence[int], step: int) -> Tensor:
        """History tokens of all items, (B, H); those of ended items are ignored."""
        pairs = zip(seen, choices, strict=True)
        angles = [torch.from_numpy(observation.angles[max(choice, 0)]) for observation, choice in pairs]
        faced = [torch.from_numpy(observation.faced) for observation in seen]
        return self.network.history_token(torch.stack(faced), torch.stack(angles), step)

    def progress(self, item: Item) -> tuple[float, float]:
        """Metres to the goal, and nDTW so far."""
        distances, reference = self.distances[item.episode.scene_id], item.episode.reference_path
        return distances[item.viewpoint][reference[-1]], ndtw(distances, item.path, reference)

    def reward(self, item: Item) -> float:
        """Reward of the latest step of an item (spec E.3)."""
        metres_before, fidelity_before = item.metres, item.fidelity
        metres, fidelity = item.metres, item.fidelity = self.progress(item)
        if item.ended:
            return 2.0 + 2.0 * fidelity if metres < SUCCESS_WITHIN else -2.0
        worth = float(np.sign(metres_before - metres)) + fidelity - fidelity_before
        if metres_before <= 1.0 and metres > metres_before:
            worth -= 2.0 * (1.0 - metres_before)
        return worth


def teach(item: Item, observation: ItemObservation) -> int:
    """Index of the candidate on the reference path at this step; STOP at its end."""
    path = item.episode.reference_path
    if item.num_decisions >= len(path) - 1:
        return len(observation.candidates)
    for index, candidate in enumerate(observation.candidates):
        if candidate.viewpoint == path[item.num_decisions + 1]:
            return index
    raise AssertionError(f"{item.episode.episode_id}: no candidate is on the reference path")


def ndtw(distances: dict[str, dict[str, float]], path: Sequence[str], reference: Sequence[str]) -> float:
    """Normalised DTW of a path, computed from its beginning."""
    return math.exp(-dtw_distance(reference, path, distances) / (SUCCESS_WITHIN * len(reference)))
