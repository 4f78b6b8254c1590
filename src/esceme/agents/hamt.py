"""HAMT, the History Aware Multimodal Transformer (Chen et al. 2021), the paper's first host (spec B).

Text, what happened so far, and what is seen now become tokens; a cross-modal encoder relates them; every
candidate and STOP gets a score.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from esceme.agents.base import Decision, PrivilegedInfo, StepIndex, TokenBatch, choice_mask, num_choices
from esceme.agents.crossmodal import CrossModal, CrossModalState
from esceme.agents.layers import Groups, OutputPositions, Tokens
from esceme.agents.tokens import HamtConfig
from esceme.observation import Observation


@dataclass(frozen=True)
class HamtState(CrossModalState):
    """What HAMT carries from step to step."""


class Considered(NamedTuple):
    """What the cross-modal encoder makes of a state and an observation."""

    logits: Tensor
    """(B, C)"""
    states: Tensor
    """(B, H): what the critic reads."""
    text: Tensor
    """(B, L, H), or only the first token (B, 1, H)"""
    history: Tensor
    """(B, S, H), or only the global token (B, 1, H)"""
    sight: Tensor
    """(B, N, H), or only the choices (B, C, H)"""


class HAMT(CrossModal[HamtState]):
    """The published network; `esceme.checkpoints` fills it with published weights."""

    Config = HamtConfig

    # -- the three methods -------------------------------------------------------------------------------

    def begin(self, words: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None) -> HamtState:
        """Read the instructions, once per episode."""
        return HamtState(**self._hear(words))

    def decide(self, state: HamtState, observation: Observation) -> Decision:
        """A score for every candidate and for STOP."""
        considered = self.consider(state, observation)
        return Decision(considered.logits, self.critic(considered.states).squeeze(1))

    def advance(self, state: HamtState, observation: Observation, chosen: Tensor) -> HamtState:
        """Add what was seen and done to the history."""
        around = self._around(state, observation) if self.config.encode_panorama else None
        token = self._recount(observation, chosen, state.lived - 1, around)
        longest = int(state.lived.max())
        history = torch.cat([state.history[:, :longest], torch.zeros_like(state.history[:, :1])], 1)
        rows = torch.arange(len(token), device=token.device)
        return replace(state, history=history.index_put((rows, state.lived), token), lived=state.lived + 1)

    def decide_all(
        self, state: HamtState, observation: Observation, chosen: Tensor, when: StepIndex
    ) -> Decision:
        """All decisions of walks that are known beforehand, (R, C), at once.

        `observation` and `chosen` have a row for each step of each walk; `state` is that of their beginning.
        """
        around = None
        if self.config.encode_panorama:
            around = self.history.encode_panorama(observation.panorama(), observation.panorama_angles())
        tokens = self._recount(observation, chosen, when.step, around)  # (R, H)
        lives = state.history.new_zeros(len(state.lived), int(when.step.max()) + 2, tokens.shape[1])
        lives[:, :1] = state.history[:, :1]
        lives = lives.index_put((when.episode, when.step + 1), tokens)  # (B, T + 1, H)
        groups: Groups | None = Groups(*when, (len(state.lived), int(when.step.max()) + 1))
        if self.config.language_cross_attention:  # which makes of an instruction another one at each step
            state, groups = state.only(when.episode), None
        then = replace(state, history=lives[when.episode, :-1], lived=when.step + 1, groups=groups)
        return self.decide(then, observation)

    # -- parts of them -----------------------------------------------------------------------------------

    def consider(self, state: HamtState, observation: Observation, *, everything: bool = False) -> Considered:
        """Relate text, history and sight; `everything` also computes what no head reads, padding included."""
        observation = self._look(observation)
        history, remembered = self._recall(state, everything=everything)
        seen, longest = self._describe(state, observation), history.shape[1]
        valid = torch.cat([remembered, observation.valid], 1)
        vision = Tokens.of(torch.cat([history, seen], 1), valid, everything=everything)
        choices = num_choices(observation)
        read = None if everything else _read(observation, longest, choices)
        text, vision = self._relate(state, vision, read, everything=everything)
        split = longest if everything else 1
        told, lived, sight = text.padded, vision.padded[:, :split], vision.padded[:, split:]
        return self._judge(observation, told, lived, sight, choices)

    def _judge(
        self, observation: Observation, text: Tensor, history: Tensor, sight: Tensor, choices: int
    ) -> Considered:
        """Scores of the choices and the state that the critic reads (spec B.7)."""
        told, lived = text[:, 0], history[:, 0]  # (B, H)
        states = told * lived if self.config.language_cross_attention else lived
        logits = self._score(sight[:, :choices] * self._factor(told, lived)[:, None])  # (B, C)
        return Considered(
            logits.masked_fill(~choice_mask(observation, choices), -torch.inf), states, text, history, sight
        )


def _read(observation: Observation, before: int, choices: int) -> OutputPositions:
    """What the heads read of vision: the global token and, after `before` history tokens, the choices."""
    wanted = choice_mask(observation, choices)
    columns = torch.arange(before, before + choices, device=wanted.device)
    return OutputPositions(
        torch.cat([columns.new_zeros(1), columns]), torch.cat([torch.ones_like(wanted[:, :1]), wanted], 1)
    )
