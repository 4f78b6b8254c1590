"""The obvious way to train the small HAMT with scene memory: as research code does it, straightforwardly.

Both rollouts go step by step until the last walk of the batch has ended, and who has ended is computed on.
Observations are put together item by item and candidate by candidate; memory is a dictionary that is asked
for each candidate; everything is padded and every token computed in every layer; keys and values of the text
are computed at every step, and so is nDTW, from the beginning of the walk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional

from benchmarks.lockstep import additive
from esceme.agents.base import Decision
from esceme.agents.hamt import CLAUSES, HAMT, PACE
from esceme.agents.layers import Attention, Layer
from esceme.learning import Training
from esceme.learning.trainer import IMITATING, SAMPLING
from esceme.memory import CandidateEnhancing
from esceme.navigator import Navigator
from esceme.tasks.episode import Episode
from esceme.walking import Encode, sampling
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

    def __init__(self, episode: Episode, ids: Sequence[int]) -> None:
        self.episode, self.ids = episode, list(ids)
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
class Batch:
    """Items in lock-step."""

    items: list[Item]
    heard: Tensor
    """(B, L) bool"""
    named: Tensor
    """(B, L, G): what each word looks like."""
    clause: Tensor
    """(B, L): how many clauses ended before each word."""
    texts: list[Tensor]
    """What each cross layer reads, (B, L, H) each."""
    history: list[Tensor]
    """(B, H) each"""

    @property
    def over(self) -> bool:
        """Whether all have ended."""
        return all(item.ended for item in self.items)


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
    """A navigator that learns by imitation and A2C; memory is complete by as much as is drawn."""

    def __init__(
        self,
        navigator: Navigator,
        atlas: Atlas,
        training: Training,
        *,
        encode: Encode,
        max_steps: int,
        seed: int,
    ) -> None:
        """Learn in the scenes of an atlas, of which dictionaries are made."""
        _require_small(navigator)
        self.navigator, self.training, self.encode = navigator, training, encode
        self.agent, self.reader = navigator.agent, navigator.reader
        self.max_steps, self.seed = max_steps, seed
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
        """What is remembered, but not shown in this rollout."""
        self.critic = list(self.agent.critic.parameters())
        mine = {id(each) for each in self.critic}
        self.network = [each for each in navigator.parameters() if id(each) not in mine]
        settings = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
        self.optimisers = [torch.optim.AdamW(each, **settings) for each in (self.network, self.critic)]

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
        norm = nn.utils.clip_grad_norm_(self.network, self.training.clip)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = self.training.rate_at(iteration)
            optimiser.step()
        return {"imitation": float(imitation.detach()), "gradient": float(norm), **said}

    def imitate(self, episodes: Sequence[Episode], iteration: int) -> Tensor:
        """The cross-entropy of the reference path, divided by the batch."""
        batch, loss = self.begin(episodes, iteration, IMITATING), torch.zeros(())
        for step in range(self.max_steps):
            sights = [self.observe(item) for item in batch.items]
            logits, _ = self.decide(batch, sights)
            pairs = list(zip(batch.items, sights, strict=True))
            wanted = [IGNORED if item.ended else teach(item, sight) for item, sight in pairs]
            target = torch.tensor(wanted)
            loss = loss + functional.cross_entropy(logits, target, ignore_index=IGNORED, reduction="sum")
            self.move(batch, sights, wanted)
            if batch.over or step == self.max_steps - 1:
                break
            batch.history.append(self.recount(sights, wanted, step))
        return loss / len(batch.items)

    def reinforce(self, episodes: Sequence[Episode], iteration: int) -> tuple[Tensor, dict[str, float]]:
        """A2C's loss of walks that are sampled, divided by their steps, and its parts."""
        batch, lived = self.begin(episodes, iteration, SAMPLING), Lived()
        choose = sampling([self.seed, iteration])
        for item in batch.items:
            item.metres, item.fidelity = self.standing(item)
        for step in range(self.max_steps):
            sights = [self.observe(item) for item in batch.items]
            logits, states = self.decide(batch, sights)
            chosen = choose(Decision(logits), None, batch.items)  # type: ignore[arg-type]
            chances = Categorical(logits=logits)
            lived.log_chances.append(chances.log_prob(chosen))
            lived.entropies.append(chances.entropy())
            lived.states.append(states)
            going = [not item.ended for item in batch.items]
            self.move(batch, sights, chosen.tolist())
            pairs = zip(batch.items, going, strict=True)
            lived.rewards.append([self.reward(item) if went else 0.0 for item, went in pairs])
            lived.masks.append([float(went) for went in going])
            batch.history.append(self.recount(sights, chosen.tolist(), step))
            if batch.over:
                break
        return self.a2c(lived, self.value_beyond(batch))

    def a2c(self, lived: Lived, returns: Tensor) -> tuple[Tensor, dict[str, float]]:
        """The loss by what was lived, backwards; `returns` (B,) is what is expected after the end."""
        parts = dict.fromkeys(("policy", "critic", "entropy"), torch.zeros(()))
        for step in reversed(range(len(lived.rewards))):
            mask = torch.tensor(lived.masks[step])
            returns = returns * self.training.discount + torch.tensor(lived.rewards[step])
            gain = returns - self.agent.critic(lived.states[step]).squeeze(1)
            parts["policy"] = parts["policy"] - (lived.log_chances[step] * gain.detach() * mask).sum()
            parts["critic"] = parts["critic"] + 0.5 * (gain.square() * mask).sum()
            parts["entropy"] = parts["entropy"] + (lived.entropies[step] * mask).sum()
        steps = float(np.sum(lived.masks))
        parts = {name: value / steps for name, value in parts.items()}
        loss = parts["policy"] + parts["critic"] - self.training.entropy_weight * parts["entropy"]
        said = {name: float(value.detach()) for name, value in parts.items()}
        return loss, {**said, "reward": float(np.sum(lived.rewards)) / len(returns)}

    def value_beyond(self, batch: Batch) -> Tensor:
        """What is expected where walks were cut off, (B,); zero for those that ended by themselves."""
        if batch.over:
            return torch.zeros(len(batch.items))
        _, states = self.decide(batch, [self.observe(item) for item in batch.items])
        value = self.agent.critic(states).squeeze(1).detach()
        return value * torch.tensor([0.0 if item.ended else 1.0 for item in batch.items])

    # -- walking -------------------------------------------------------------------------------------------

    def begin(self, episodes: Sequence[Episode], iteration: int, purpose: int) -> Batch:
        """Hide some of the memory, and read the instructions."""
        draw = np.random.default_rng([self.seed, iteration, purpose])
        self.hidden = set()
        for scene in sorted({episode.scene_id for episode in episodes}):
            points = draw.random(len(self.graphs[scene]))
            share = self.draw_share(draw)
            for viewpoint, point in zip(self.graphs[scene].viewpoints, points, strict=True):
                if point >= share:
                    self.hidden.add((scene, viewpoint))
        return self.read([Item(episode, self.encode(episode)) for episode in episodes])

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
        for candidate in self.candidates[item.key]:
            heading, elevation = candidate.heading - facing, candidate.elevation
            pictures.append(panorama[candidate.view])
            angles.append(
                np.array(
                    [math.sin(heading), math.cos(heading), math.sin(elevation), math.cos(elevation)],
                    np.float32,
                )
            )
        pictures.append(np.maximum(panorama.max(0), 0.0))
        angles.append(np.zeros(4, np.float32))
        return Sight(self.candidates[item.key], np.stack(pictures), np.stack(angles), panorama[item.view])

    def move(self, batch: Batch, sights: Sequence[Sight], choices: Sequence[int]) -> None:
        """Remember where the items stand, then let those go on that have not ended."""
        for item, sight in zip(batch.items, sights, strict=True):
            self.hidden.discard(item.key)
            if item.key not in self.memory:
                self.memory[item.key] = torch.from_numpy(sight.pictures[:-1].max(0))
        for item, sight, choice in zip(batch.items, sights, choices, strict=True):
            if item.ended:
                continue
            item.decisions += 1
            if choice == len(sight.candidates):
                item.ended = True
                continue
            item.viewpoint, item.view = sight.candidates[choice].viewpoint, sight.candidates[choice].view
            item.path.append(item.viewpoint)

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

    # -- the network ---------------------------------------------------------------------------------------

    def read(self, items: list[Item]) -> Batch:
        """Instructions padded to the longest, and encoded for each cross layer."""
        longest = max(len(item.ids) for item in items)
        ids = torch.tensor([item.ids + [0] * (longest - len(item.ids)) for item in items])
        heard = torch.tensor([[place < len(item.ids) for place in range(longest)] for item in items])
        encoded = self.encode_text(ids, heard)
        halves = [block.text for block in self.agent.cross_layers]
        texts = [encoded, *(layer(half, encoded, additive(heard)) for half in halves[:-1])]
        clauses = [count_clauses(item.ids, self.agent.config.clause_ends, longest) for item in items]
        start = self.agent.history
        begun = start.dropout(start.norm(start.start + start.kind.weight[0]))[0].expand(len(items), -1)
        named = self.agent.grounding.words(ids)
        return Batch(items, heard, named, torch.tensor(clauses), texts, [begun])

    def encode_text(self, ids: Tensor, heard: Tensor) -> Tensor:
        """The encoded text, (B, L) -> (B, L, H)."""
        text = self.agent.text
        embedded = text.words(ids) + text.positions.weight[: ids.shape[1]] + text.kinds.weight[0]
        encoded = text.dropout(text.norm(embedded))
        for block in text.layers:
            encoded = layer(block, encoded, additive(heard))
        return encoded

    def decide(self, batch: Batch, sights: Sequence[Sight]) -> tuple[Tensor, Tensor]:
        """Logits of all items, ended or not, (B, C), and what the critic reads of them, (B, H)."""
        longest = max(len(sight.angles) for sight in sights)
        pictures, recalled, angles, kinds, valid = [], [], [], [], []
        for item, sight in zip(batch.items, sights, strict=True):
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
        kind, directions = torch.tensor(kinds), torch.stack(angles)
        shown = self.fuse(torch.stack(pictures), torch.stack(recalled), kind == CANDIDATE)
        said = self.ground(batch, shown, directions, kind)
        sight_of = self.agent.sight
        described = sight_of.picture(shown) + sight_of.angle(directions) + said
        seen = sight_of.norm(described + self.agent.text.kinds.weight[1] + sight_of.kinds(kind))
        return self.relate(batch, sight_of.dropout(seen), torch.tensor(valid))

    def fuse(self, seen: Tensor, recalled: Tensor, is_candidate: Tensor) -> Tensor:
        """Pictures and memories of all tokens, (B, C, D) each; what is fused counts for candidates."""
        reader = self.reader
        fused = reader.second(reader.norm(functional.relu(reader.first(torch.cat([seen, recalled], -1)))))
        return seen + (recalled + fused) * is_candidate[..., None]

    def ground(self, batch: Batch, shown: Tensor, angles: Tensor, kind: Tensor) -> Tensor:
        """What the instruction says of each token just now, (B, C, H)."""
        head, words, latest = self.agent.grounding, batch.texts[0], batch.history[-1]
        matters = (head.key(words) @ head.query(latest)[:, :, None]).squeeze(2) / math.sqrt(latest.shape[1])
        matters = matters + PACE * head.pace[len(batch.history) - 1][batch.clause]
        matters = matters.masked_fill(~batch.heard, -torch.inf)  # (B, L)
        placed = head.picture(shown) + head.direction(angles) + head.kinds(kind)
        joint = placed @ batch.named.transpose(1, 2) + matters[:, None]  # (B, C, L)
        fits = joint.logsumexp(2) - matters.logsumexp(1)[:, None]
        return head.tell(joint.softmax(2) @ words) + fits[..., None] * head.fit

    def relate(self, batch: Batch, seen: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Every token through every cross layer: logits and states."""
        history = torch.stack(batch.history, 1)  # (B, S, H)
        vision = torch.cat([history, seen], 1)
        lived = torch.ones(history.shape[:2], dtype=torch.bool)
        text_mask, vision_mask = additive(batch.heard), additive(torch.cat([lived, valid], 1))
        for block, text in zip(self.agent.cross_layers, batch.texts, strict=True):
            told = attend(block.across, vision, text, text_mask)
            vision = layer(block.vision, told, vision_mask)
        logits = self.agent.action(vision[:, history.shape[1] :]).squeeze(2)
        return logits.masked_fill(~valid, -torch.inf), vision[:, 0]

    def recount(self, sights: Sequence[Sight], choices: Sequence[int], step: int) -> Tensor:
        """History tokens of all items, (B, H); those that have ended lived nothing that matters."""
        pairs = zip(sights, choices, strict=True)
        angles = torch.stack([torch.from_numpy(sight.angles[max(choice, 0)]) for sight, choice in pairs])
        faced = torch.stack([torch.from_numpy(sight.faced) for sight in sights])
        encoder = self.agent.history
        token = encoder.picture(faced) + encoder.angle(angles) + encoder.steps.weight[step]
        return encoder.dropout(encoder.norm(token + encoder.kind.weight[0]))


def attend(block: Attention, asking: Tensor, known: Tensor, mask: Tensor) -> Tensor:
    """Attention, spelt out: (B, L, H) asks (B, L', H)."""

    def heads(x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], block.heads, -1).transpose(1, 2)

    queries, keys, values = heads(block.query(asking)), heads(block.key(known)), heads(block.value(known))
    scores = queries @ keys.transpose(2, 3) / math.sqrt(queries.shape[-1]) + mask
    weights = functional.dropout(scores.softmax(-1), block.weight_dropout, block.training)
    mixed = (weights @ values).transpose(1, 2).flatten(2)
    return block.norm(asking + block.dropout(block.out(mixed)))


def layer(block: Layer, x: Tensor, mask: Tensor) -> Tensor:
    """A BERT layer, (B, L, H) -> (B, L, H)."""
    x, feed = attend(block.attention, x, x, mask), block.feed_forward
    return feed.norm(x + feed.dropout(feed.out(functional.gelu(feed.inner(x)))))


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


def count_clauses(ids: Sequence[int], ends: Sequence[int], longest: int) -> list[int]:
    """How many clauses ended before each word of an instruction, padded."""
    counted, count = [], 0
    for place in range(longest):
        counted.append(min(count, CLAUSES - 1))
        count += place < len(ids) and ids[place] in ends
    return counted


def _require_small(navigator: Navigator) -> None:
    """Raise unless a navigator has the switches of the small recipes with memory."""
    assert isinstance(navigator.agent, HAMT) and isinstance(navigator.reader, CandidateEnhancing)
    agent, reader = navigator.agent.config, navigator.reader.config
    _require(
        agent,
        language_cross_attention=False,
        encode_panorama=False,
        history_layers=0,
        context_views=False,
        stop_shows="panorama",
        pictures_as_words=False,
        freeze_text=False,
        freeze_history=False,
        freeze_observation=False,
    )
    _require(reader, shortcut="both", context="untouched", stop="zero", order="feature-memory", pooling="max")
    assert agent.grounding and navigator.feature_dropout == 0.0, "expected a grounding head, all features"


def _require(config: Any, **wanted: Any) -> None:
    for name, value in wanted.items():
        assert getattr(config, name) == value, f"{name}: expected {value}, found {getattr(config, name)}"
