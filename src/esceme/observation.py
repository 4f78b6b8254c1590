"""`Observation`: the token batch that memory readers and agents share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from esceme.errors import ConfigError
from esceme.world.atlas import CANDIDATE, CONTEXT, Atlas, Pose
from esceme.world.geometry import VIEWS, panorama_angles

TOKEN_FIELDS = ("raw_features", "angles", "token_type", "valid", "neighbour", "view", "positions")
"""Fields of `Observation` with one entry per token, besides `features`."""


@dataclass(frozen=True)
class Observation:
    """Panoramas of B agents as N tokens each (docs/spec.md B.5).

    The tokens of an agent are its candidates, STOP, the views without a candidate in view order, and padding.
    Agents read `features`: image features after training dropout and after the reader. `raw_features` are the
    stored image features; both are the same tensor if there was neither dropout nor a reader.
    """

    features: Tensor
    """(B, N, D); zeros for STOP and padding unless a reader changed them."""
    raw_features: Tensor
    """(B, N, D)"""
    angles: Tensor
    """(B, N, 4): angle features relative to the agent's heading."""
    token_type: Tensor
    """(B, N) int64: CANDIDATE, STOP or CONTEXT; padding is CONTEXT."""
    valid: Tensor
    """(B, N) bool: False for padding."""
    neighbour: Tensor
    """(B, N) int64: viewpoint index of a candidate, -1 for all other tokens."""
    view: Tensor
    """(B, N) int64: index of the token's view among the 36, -1 for STOP and padding."""
    viewpoint: Tensor
    """(B,) int64: viewpoint index of each agent."""
    facing_view: Tensor
    """(B,) int64: index of the view that each agent faces."""
    feature_dropout: float = 0.0
    """Dropout rate of `facing_features` and `panorama_features`; above 0 only in training."""
    positions: Tensor | None = None
    """(B, N, 3) metres: a candidate's viewpoint; the agent's own viewpoint for all other tokens."""
    previous_viewpoints: Tensor | None = None
    """(B, P) int64: viewpoints of earlier decisions in this episode, padded with -1."""
    full_observation: Observation | None = None
    """The observation with all views, if context views were removed from the tokens."""

    @classmethod
    def from_atlas(
        cls,
        atlas: Atlas,
        pose: Pose,
        *,
        previous_viewpoints: NDArray[np.int64] | None = None,
        device: torch.device | str | None = None,
    ) -> Observation:
        """Observe the panoramas at B poses."""
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
    def is_context(self) -> Tensor:
        """(B, N) bool: True for views without a candidate; False for padding."""
        return (self.token_type == CONTEXT) & self.valid

    @property
    def num_candidates(self) -> Tensor:
        """(B,) int64: number of candidates, which is also the column of STOP."""
        return self.is_candidate.sum(1)

    def agent_positions(self) -> Tensor:
        """Positions of the agents in metres, (B, 3); raises `ConfigError` if there are no positions."""
        if self.positions is None:
            raise ConfigError("this agent needs positions, and the observation has none")
        return self.positions[torch.arange(len(self), device=self.token_type.device), self.num_candidates]

    def with_features(self, features: Tensor) -> Observation:
        """Replace `features` by (B, N, D'); `raw_features` stay."""
        return replace(self, features=features)

    def append_token(self, features: Tensor) -> Observation:
        """Append one context token with features (B, D') after all others.

        The token cannot be chosen and shows none of the 36 views, so panoramas stay the same.
        `without_context_views` would remove it: call that first.
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
        """Select the observations of some agents by row index."""
        names = ("viewpoint", "facing_view", "previous_viewpoints", *TOKEN_FIELDS)
        selected = {name: value[rows] for name in names if (value := getattr(self, name)) is not None}
        is_raw = self.features is self.raw_features
        selected["features"] = selected["raw_features"] if is_raw else self.features[rows]
        full = None if self.full_observation is None else self.full_observation.select(rows)
        return replace(self, **selected, full_observation=full)

    def without_context_views(self) -> Observation:
        """Keep only candidates and STOP as tokens; panorama methods still use all views."""
        if self.full_observation is not None:
            return self
        length = int(self.num_candidates.max()) + 1
        names = [name for name in TOKEN_FIELDS if getattr(self, name) is not None]
        kept = {name: getattr(self, name)[:, :length] for name in names}
        is_raw = self.features is self.raw_features
        kept["features"] = kept["raw_features"] if is_raw else self.features[:, :length]
        kept["valid"] = kept["token_type"] != CONTEXT
        return replace(self, **kept, full_observation=self)

    def max_features(self) -> Tensor:
        """Maximum of each raw feature over all views, (B, D)."""
        return self._full.raw_features.amax(1)  # includes STOP's zeros, so padding's zeros change nothing

    @property
    def _full(self) -> Observation:
        return self if self.full_observation is None else self.full_observation

    @cached_property
    def _token_of_view(self) -> Tensor:
        """(B, 36): column of a token that shows each view; every view has at least one."""
        rows, tokens = (self.view >= 0).nonzero(as_tuple=True)
        columns = self.view.new_zeros(len(self), VIEWS)
        columns[rows, self.view[rows, tokens]] = tokens
        return columns

    def panorama_features(self) -> Tensor:
        """Raw features of the 36 views in view order, (B, 36, D); training draws dropout on every call."""
        rows, full = torch.arange(len(self), device=self.viewpoint.device)[:, None], self._full
        return self._dropout(full.raw_features[rows, full._token_of_view])

    def panorama_angles(self) -> Tensor:
        """Angle features of the 36 views relative to `facing_view`, (B, 36, 4)."""
        return torch.from_numpy(panorama_angles(self.facing_view.cpu().numpy())).to(self.angles)

    def facing_features(self) -> Tensor:
        """Raw features of the faced view, (B, D); training draws dropout on every call."""
        rows, full = torch.arange(len(self), device=self.viewpoint.device), self._full
        return self._dropout(full.raw_features[rows, full._token_of_view[rows, self.facing_view]])

    def action_angles(self, actions: Tensor) -> Tensor:
        """Angle features of the chosen tokens, (B,) -> (B, 4); zeros for STOP."""
        return self.angles[torch.arange(len(self), device=actions.device), actions]

    def _dropout(self, features: Tensor) -> Tensor:
        return functional.dropout(features, self.feature_dropout) if self.feature_dropout else features
