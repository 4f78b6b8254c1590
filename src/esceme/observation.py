"""`Observation`: a batch of panoramas as tokens, which memory readers and agents read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esceme.dropout import dropout
from esceme.errors import ConfigError
from esceme.world.atlas import CANDIDATE, CONTEXT, Atlas, Pose
from esceme.world.geometry import VIEWS, panorama_angles

TOKEN_FIELDS = ("raw_features", "angles", "token_type", "valid", "neighbour", "view", "positions")
"""Fields of `Observation` that have one entry per token, without `features`."""


class RememberedPanoramas(NamedTuple):
    """Panoramas at M remembered viewpoints, and which of them each of B agents remembers."""

    panoramas: Observation
    """Batch of M observations, one at each remembered viewpoint, all with the same faced view."""
    known: Tensor
    """(B, M) bool: True for viewpoints that the agent remembers."""


@dataclass(frozen=True)
class Observation:
    """Panoramas of B agents as N tokens each (docs/spec.md B.5).

    The tokens of an agent are, in this order: its candidates, STOP, the views without a candidate (context
    views), and padding. Agents read `features`, which training dropout and the memory reader may have
    changed. `raw_features` are the unchanged image features. Without changes, both are the same tensor.
    """

    features: Tensor
    """(B, N, D): image features; zeros for STOP and padding unless a reader changed them."""
    raw_features: Tensor
    """(B, N, D): image features as stored in the feature file; zeros for STOP and padding."""
    angles: Tensor
    """(B, N, 4): sine and cosine of the heading relative to `facing_view`, and of the absolute elevation."""
    token_type: Tensor
    """(B, N) int64: `CANDIDATE`, `STOP` or `CONTEXT` (a view without a candidate, or padding)."""
    valid: Tensor
    """(B, N) bool: True for tokens, False for padding."""
    neighbour: Tensor
    """(B, N) int64: viewpoint index of a candidate; -1 for all other tokens."""
    view: Tensor
    """(B, N) int64: view that the token shows, from 0 to 35; -1 for STOP and padding."""
    viewpoint: Tensor
    """(B,) int64: viewpoint index of each agent."""
    facing_view: Tensor
    """(B,) int64: view that each agent faces, from 0 to 35."""
    feature_dropout: float = 0.0
    """Dropout rate of `facing_features` and `panorama_features`; positive only in training."""
    positions: Tensor | None = None
    """(B, N, 3): position in metres of a candidate's viewpoint, or of the agent for all other tokens."""
    previous_viewpoints: Tensor | None = None
    """(B, P) int64: viewpoints of earlier poses in this episode, padded with -1."""
    full_observation: Observation | None = None
    """Observation with all views, if context views were removed from this observation; otherwise None."""
    remembered: RememberedPanoramas | None = None
    """Remembered panoramas of the scene, for agents that keep a map; set by a reader when episodes begin."""

    @classmethod
    def from_atlas(
        cls,
        atlas: Atlas,
        pose: Pose,
        *,
        previous_viewpoints: NDArray[np.int64] | None = None,
        device: torch.device | str | None = None,
    ) -> Observation:
        """Return the observation of the panoramas at B poses."""
        seen = atlas.observe(pose)
        token_viewpoint = np.where(seen.neighbour >= 0, seen.neighbour, np.asarray(pose.viewpoint)[:, None])
        features = torch.from_numpy(seen.features).to(device)
        return cls(
            features=features,
            raw_features=features,
            angles=torch.from_numpy(seen.angles).to(device),
            token_type=torch.from_numpy(seen.token_type).to(device, torch.int64),
            valid=torch.from_numpy(seen.valid).to(device),
            neighbour=torch.from_numpy(seen.neighbour).to(device, torch.int64),
            view=torch.from_numpy(seen.view).to(device, torch.int64),
            viewpoint=torch.tensor(pose.viewpoint).to(device),
            facing_view=torch.tensor(pose.view).to(device),
            positions=torch.from_numpy(atlas.positions[token_viewpoint].astype(np.float32)).to(device),
            previous_viewpoints=(
                None if previous_viewpoints is None else torch.from_numpy(previous_viewpoints).to(device)
            ),
        )

    def __len__(self) -> int:
        return len(self.viewpoint)

    @property
    def is_candidate(self) -> Tensor:
        """(B, N) bool: True for candidates."""
        return self.token_type == CANDIDATE

    @property
    def is_context_view(self) -> Tensor:
        """(B, N) bool: True for context views, which have no candidate; False for padding."""
        return (self.token_type == CONTEXT) & self.valid

    @property
    def num_candidates(self) -> Tensor:
        """(B,) int64: number of candidates, which is also the token index of STOP."""
        return self.is_candidate.sum(1)

    def agent_positions(self) -> Tensor:
        """Return the positions of the agents in metres, (B, 3). Raise `ConfigError` without `positions`."""
        if self.positions is None:
            raise ConfigError("this agent needs positions, and the observation has none")
        return self.positions[torch.arange(len(self), device=self.token_type.device), self.num_candidates]

    def with_features(self, features: Tensor) -> Observation:
        """Return the observation with other `features` (B, N, D'); `raw_features` do not change."""
        return replace(self, features=features)

    def append_token(self, features: Tensor) -> Observation:
        """Return the observation with one more token of type `CONTEXT`, with features (B, D'), at the end.

        The token cannot be chosen as an action. It shows none of the 36 views, so that panorama methods
        return the same. Call `without_context_views` before this method, because it would remove the token.
        """
        token = {
            "features": features,
            "raw_features": torch.zeros_like(self.raw_features[:, 0]),
            "angles": torch.zeros_like(self.angles[:, 0]),
            "token_type": torch.full_like(self.viewpoint, CONTEXT),
            "valid": torch.ones_like(self.valid[:, 0]),
            "neighbour": torch.full_like(self.viewpoint, -1),
            "view": torch.full_like(self.viewpoint, -1),
        }
        if self.positions is not None:
            token["positions"] = self.agent_positions()
        extended: dict[str, Any] = {
            name: torch.cat([getattr(self, name), value[:, None]], 1) for name, value in token.items()
        }
        return replace(self, **extended)

    def select(self, rows: Tensor) -> Observation:
        """Return the observations of the agents whose batch indices are in `rows` (int64)."""
        names = ("viewpoint", "facing_view", "previous_viewpoints", *TOKEN_FIELDS)
        selected = {
            name: value.index_select(0, rows) for name in names if (value := getattr(self, name)) is not None
        }
        is_raw = self.features is self.raw_features
        selected["features"] = selected["raw_features"] if is_raw else self.features.index_select(0, rows)
        full = None if self.full_observation is None else self.full_observation.select(rows)
        remembered = self.remembered
        if remembered is not None:
            remembered = remembered._replace(known=remembered.known[rows])
        return replace(self, **selected, full_observation=full, remembered=remembered)

    def without_context_views(self) -> Observation:
        """Return the observation with only candidates and STOP as tokens.

        Panorama methods of the result still use all views.
        """
        if self.full_observation is not None:
            return self
        length = int(self.num_candidates.max()) + 1
        names = [name for name in TOKEN_FIELDS if getattr(self, name) is not None]
        shorter = {name: getattr(self, name)[:, :length] for name in names}
        is_raw = self.features is self.raw_features
        shorter["features"] = shorter["raw_features"] if is_raw else self.features[:, :length]
        shorter["valid"] = shorter["token_type"] != CONTEXT
        return replace(self, **shorter, full_observation=self)

    def max_features(self) -> Tensor:
        """Return the maximum of each raw feature over all views, (B, D)."""
        return self._full.raw_features.amax(1)  # includes STOP's zeros, so padding's zeros change nothing

    @property
    def _full(self) -> Observation:
        return self if self.full_observation is None else self.full_observation

    @cached_property
    def _token_of_view(self) -> Tensor:
        """(B, 36): index of a token that shows each view. Every view is shown by at least one token."""
        rows, tokens = (self.view >= 0).nonzero(as_tuple=True)
        columns = self.view.new_zeros(len(self), VIEWS)
        columns[rows, self.view[rows, tokens]] = tokens
        return columns

    def panorama_features(self) -> Tensor:
        """Return the raw features of the 36 views, (B, 36, D). In training, each call applies new dropout."""
        rows, full = torch.arange(len(self), device=self.viewpoint.device)[:, None], self._full
        return self._dropout(full.raw_features[rows, full._token_of_view])

    def panorama_angles(self) -> Tensor:
        """Return the angle features of the 36 views relative to `facing_view`, (B, 36, 4)."""
        return torch.from_numpy(panorama_angles(self.facing_view.cpu().numpy())).to(self.angles)

    def facing_features(self) -> Tensor:
        """Return the raw features of the faced view, (B, D). In training, each call applies new dropout."""
        rows, full = torch.arange(len(self), device=self.viewpoint.device), self._full
        return self._dropout(full.raw_features[rows, full._token_of_view[rows, self.facing_view]])

    def action_angles(self, actions: Tensor) -> Tensor:
        """Return the angle features of the chosen tokens, (B,) -> (B, 4); zeros for STOP."""
        return self.angles[torch.arange(len(self), device=actions.device), actions]

    def _dropout(self, features: Tensor) -> Tensor:
        return dropout(features, self.feature_dropout)
