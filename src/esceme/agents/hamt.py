"""HAMT, the History Aware Multimodal Transformer (Chen et al. 2021; docs/spec.md B).

Instruction, history and observation become tokens. A cross-modal encoder lets text and vision tokens attend
to each other. An action head scores every candidate and STOP.
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
    """State of B agents between two steps, for HAMT."""


class HamtOutput(NamedTuple):
    """Outputs of the cross-modal encoder and the action head for B agents; H is the hidden size."""

    logits: Tensor
    """(B, C): scores of candidates and STOP."""
    critic_input: Tensor
    """(B, H): vector from which the critic predicts the expected return."""
    text: Tensor
    """(B, L, H): text tokens, or (B, 1, H): only the first text token."""
    history: Tensor
    """(B, S, H): history tokens, or (B, 1, H): only the global token, which precedes the steps."""
    observation: Tensor
    """(B, N, H): observation tokens, or (B, C, H): only candidates and STOP."""


class HAMT(CrossModal[HamtState]):
    """The HAMT network. `esceme.checkpoints` loads the published weights into it."""

    Config = HamtConfig
    supports_decide_all = True
    supports_decide_tree = True

    def begin(
        self, instructions: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None
    ) -> HamtState:
        """Return the initial state, which contains the encoded instructions."""
        return HamtState(**self._initial_fields(instructions)[0])

    def decide(self, state: HamtState, observation: Observation) -> Decision:
        """Return the scores of every candidate and STOP."""
        output = self.encode(state, observation)
        return Decision(output.logits, self.critic(output.critic_input).squeeze(1))

    def advance(self, state: HamtState, observation: Observation, actions: Tensor) -> HamtState:
        """Return the state with this step's token appended to the history."""
        panorama = self._encode_panorama(state, observation) if self.config.encode_panorama else None
        length = state.history_length
        token = self._history_token(observation, actions, length - 1, panorama)
        padded = torch.cat([state.history[:, : int(length.max())], torch.zeros_like(state.history[:, :1])], 1)
        rows = torch.arange(len(token), device=token.device)
        return replace(state, history=padded.index_put((rows, length), token), history_length=length + 1)

    def decide_all(
        self, state: HamtState, observation: Observation, actions: Tensor, index: StepIndex
    ) -> Decision:
        """Return the decisions of all R steps of known trajectories in one pass, with logits (R, C)."""
        num_episodes, num_steps = len(state.history_length), int(index.step.max()) + 1
        # History tokens of all steps, then the prefix of each step.
        panorama = None
        if self.config.encode_panorama:
            panorama = self.history.encode_panorama(
                observation.panorama_features(), observation.panorama_angles()
            )
        tokens = self._history_token(observation, actions, index.step, panorama)  # (R, H)
        history = state.history.new_zeros(num_episodes, num_steps + 1, tokens.shape[1])
        history[:, :1] = state.history[:, :1]
        history = history.index_put((index.episode, index.step + 1), tokens)  # (B, T + 1, H)
        # Steps of an episode share its text, unless vision changes the text at every step.
        groups: Groups | None = Groups(index.episode, num_episodes)
        if self.config.language_cross_attention:
            state, groups = state.select(index.episode), None
        history, length = history[index.episode, :-1], index.step + 1
        return self.decide(replace(state, history=history, history_length=length, groups=groups), observation)

    def decide_tree(
        self, state: HamtState, observation: Observation, parents: Tensor, actions: Tensor
    ) -> Decision:
        """Return the decisions at R nodes of a tree of trajectories in one pass, with logits (R, C)."""
        if len(parents) == 1:
            return self.decide(state, observation)
        before, taken = parents[1:], actions[1:]
        steps = [0]
        for parent in before.tolist():
            steps.append(steps[parent] + 1)
        step = torch.tensor(steps, device=parents.device)
        panorama = None
        if self.config.encode_panorama:
            panorama = self.history.encode_panorama(
                observation.panorama_features(), observation.panorama_angles()
            )[before]
        angles, faced = observation.angles[before, taken], observation.facing_features()[before]
        tokens = self.history(faced, angles, step[before], panorama)  # (R - 1, H)
        # The history of a node is that of its parent and one more token.
        history = state.history[:, :1].expand(len(parents), max(steps) + 1, -1).contiguous()
        for depth in range(1, max(steps) + 1):
            rows = (step == depth).nonzero().squeeze(1)
            history[rows, 1:depth] = history[parents[rows], 1:depth]
            history[rows, depth] = tokens[rows - 1]
        # All nodes share one text, unless vision changes the text.
        zeros = torch.zeros_like(parents)
        groups: Groups | None = Groups(zeros, 1)
        if self.config.language_cross_attention:
            state, groups = state.select(zeros), None
        return self.decide(
            replace(state, history=history, history_length=step + 1, groups=groups), observation
        )

    def encode(self, state: HamtState, observation: Observation, *, compute_all: bool = False) -> HamtOutput:
        """Run the network and return its outputs.

        With `compute_all`, outputs are also computed for padding and for tokens that neither action head nor
        critic use.
        """
        # Vision tokens: history and observation.
        observation = self._prepare_observation(observation)
        history, history_mask = self._encode_history(state, compute_all=compute_all)
        tokens = self._encode_observation(state, observation, compute_all=compute_all)
        length = history.shape[1]
        valid = torch.cat([history_mask, observation.valid], 1)
        vision = Tokens.pack(torch.cat([history, tokens], 1), valid, compute_all=compute_all)
        # Cross-modal encoder; the heads read the global token, candidates and STOP.
        mask = choice_mask(observation, num_choices(observation))  # (B, C)
        outputs = None if compute_all else _head_positions(length, mask)
        text, vision = self._cross_encode(state, vision, outputs, compute_all=compute_all)
        split = length if compute_all else 1
        history, tokens = vision.padded[:, :split], vision.padded[:, split:]
        # Action head (docs/spec.md B.7).
        first_text, global_token = text.padded[:, 0], history[:, 0]  # (B, H)
        factor = self._action_factor(first_text, global_token)[:, None]
        logits = self._score(tokens[:, : mask.shape[1]] * factor)  # (B, C)
        uses_text = self.config.language_cross_attention
        return HamtOutput(
            logits=logits.masked_fill(~mask, -torch.inf),
            critic_input=first_text * global_token if uses_text else global_token,
            text=text.padded,
            history=history,
            observation=tokens,
        )


def _head_positions(length: int, mask: Tensor) -> OutputPositions:
    """Return the positions of the vision tokens that action head and critic use.

    These are the first history token, the candidates and STOP. `length` is the number of history tokens.
    `mask` (B, C) is True for candidates and STOP.
    """
    columns = torch.arange(length, length + mask.shape[1], device=mask.device)
    return OutputPositions(
        torch.cat([columns.new_zeros(1), columns]), torch.cat([torch.ones_like(mask[:, :1]), mask], 1)
    )
