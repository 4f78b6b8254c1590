"""What a batch of agents sees, as tokens: the one type that memory and agents share."""

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

TOKENS = ("plain", "angles", "kind", "valid", "neighbour", "view", "positions")
"""What an observation has for every token, besides features."""


@dataclass(frozen=True)
class Observation:
    """Panoramas as tokens: candidates, STOP, the remaining views in view order, padding (spec B.5).

    `features` is what an agent reads: pictures, with features dropped in training, or what a reader made of
    them. `plain` is what was seen, untouched: the same tensor where nothing was dropped or read.
    """

    features: Tensor
    """(B, N, D); zeros for STOP and padding as long as no reader touched them."""
    plain: Tensor
    """(B, N, D)"""
    angles: Tensor
    """(B, N, 4)"""
    kind: Tensor
    """(B, N) int64: CANDIDATE, STOP, or CONTEXT (which padding is, too)."""
    valid: Tensor
    """(B, N) bool: False for padding."""
    neighbour: Tensor
    """(B, N) int64: the viewpoint a candidate leads to, -1 for every other token."""
    view: Tensor
    """(B, N) int64: which of the 36 views a token shows, -1 for STOP and padding."""
    viewpoint: Tensor
    """(B,) int64: where the agents stand."""
    facing: Tensor
    """(B,) int64: the view they face."""
    dropout: float = 0.0
    """The share of features that is dropped from `faced` and `panorama`; above 0 only in training."""
    positions: Tensor | None = None
    """(B, N, 3): metres; where a candidate leads, and for every other token where the agents stand."""
    past: Tensor | None = None
    """(B, P) int64: the viewpoints at which the agents decided before in this episode, -1 for none."""
    whole: Observation | None = None
    """All that is seen, where only the choices are tokens."""

    @classmethod
    def of(
        cls,
        atlas: Atlas,
        pose: Pose,
        *,
        past: NDArray[np.int64] | None = None,
        device: torch.device | str | None = None,
    ) -> Observation:
        """What agents in these poses see, who have been at viewpoints `past` (B, P) before."""
        seen = atlas.observe(pose)
        lead = np.where(seen.neighbour >= 0, seen.neighbour, np.asarray(pose.viewpoint)[:, None])
        features = torch.from_numpy(seen.features).to(device)
        return cls(
            features=features,
            plain=features,
            angles=torch.from_numpy(seen.angles).to(device),
            kind=torch.from_numpy(seen.kind).to(device, torch.int64),
            valid=torch.from_numpy(seen.valid).to(device),
            neighbour=torch.from_numpy(seen.neighbour).to(device, torch.int64),
            view=torch.from_numpy(seen.view).to(device, torch.int64),
            viewpoint=torch.tensor(pose.viewpoint).to(device),
            facing=torch.tensor(pose.view).to(device),
            positions=torch.from_numpy(atlas.positions[lead].astype(np.float32)).to(device),
            past=None if past is None else torch.from_numpy(past).to(device),
        )

    def __len__(self) -> int:
        return len(self.viewpoint)

    @property
    def is_candidate(self) -> Tensor:
        """(B, N): which tokens lead somewhere."""
        return self.kind == CANDIDATE

    @property
    def is_context(self) -> Tensor:
        """(B, N): which tokens are views that lead nowhere, padding excluded."""
        return (self.kind == CONTEXT) & self.valid

    @property
    def candidate_count(self) -> Tensor:
        """(B,): how many candidates there are, which is also where STOP stands."""
        return self.is_candidate.sum(1)

    def standing(self) -> Tensor:
        """Where the agents stand, in metres (B, 3): where STOP leads."""
        if self.positions is None:
            raise ConfigError("one needs to know where places lie, and this observation has no positions")
        return self.positions[torch.arange(len(self), device=self.kind.device), self.candidate_count]

    def with_features(self, features: Tensor) -> Observation:
        """The same sight described by other features (B, N, D'); `plain` stays."""
        return replace(self, features=features)

    def with_token(self, features: Tensor) -> Observation:
        """The same sight and one more token after all others, described by features (B, D').

        It is like a view that leads nowhere: it can be looked at, and not chosen. No view of the panorama is
        shown by it, so that what is seen stays; where only the choices shall be tokens, add it after
        `choices`, which cuts it off.
        """
        more = {
            "features": features,
            "plain": torch.zeros_like(self.plain[:, 0]),
            "angles": torch.zeros_like(self.angles[:, 0]),
            "kind": torch.full_like(self.viewpoint, CONTEXT),
            "valid": torch.ones_like(self.valid[:, 0]),
            "neighbour": torch.full_like(self.viewpoint, -1),
            "view": torch.full_like(self.viewpoint, -1),
        }
        if self.positions is not None:
            more["positions"] = self.standing()
        longer: dict[str, Any] = {
            name: torch.cat([getattr(self, name), token[:, None]], 1) for name, token in more.items()
        }
        return replace(self, **longer)

    def only(self, rows: Tensor) -> Observation:
        """The observations of some agents."""
        names = ("viewpoint", "facing", "past", *TOKENS)
        chosen = {name: every[rows] for name in names if (every := getattr(self, name)) is not None}
        chosen["features"] = chosen["plain"] if self.features is self.plain else self.features[rows]
        return replace(self, **chosen, whole=None if self.whole is None else self.whole.only(rows))

    def choices(self) -> Observation:
        """Candidates and STOP as the only tokens; `faced`, `panorama` and `around` still know all views."""
        if self.whole is not None:
            return self
        longest = int(self.candidate_count.max()) + 1
        known = [name for name in TOKENS if getattr(self, name) is not None]
        cut = {name: getattr(self, name)[:, :longest] for name in known}
        features = cut["plain"] if self.features is self.plain else self.features[:, :longest]
        valid = cut["kind"] != CONTEXT
        return replace(self, **{**cut, "features": features, "valid": valid}, whole=self)

    def around(self) -> Tensor:
        """The largest of each feature over all that is seen: (B, D)."""
        return self._all.plain.amax(1)  # STOP's zeros are among them: padding's change nothing

    @property
    def _all(self) -> Observation:
        return self if self.whole is None else self.whole

    @cached_property
    def _token_of_view(self) -> Tensor:
        """(B, 36): a token that shows each view; every view is shown by at least one."""
        rows, tokens = (self.view >= 0).nonzero(as_tuple=True)
        shown = self.view.new_zeros(len(self), VIEWS)
        shown[rows, self.view[rows, tokens]] = tokens
        return shown

    def panorama(self) -> Tensor:
        """All 36 views in view order, as seen, features dropped anew in training: (B, 36, D)."""
        rows, seen = torch.arange(len(self), device=self.viewpoint.device)[:, None], self._all
        return self._dropped(seen.plain[rows, seen._token_of_view])

    def panorama_angles(self) -> Tensor:
        """Angle features of the 36 views for who faces `facing`: (B, 36, 4)."""
        return torch.from_numpy(panorama_angles(self.facing.cpu().numpy())).to(self.angles)

    def faced(self) -> Tensor:
        """The view the agents face, as seen, features dropped anew in training: (B, D)."""
        rows, seen = torch.arange(len(self), device=self.viewpoint.device), self._all
        return self._dropped(seen.plain[rows, seen._token_of_view[rows, self.facing]])

    def angle_of(self, chosen: Tensor) -> Tensor:
        """Angle features of the chosen tokens (B,) -> (B, 4); zeros for STOP."""
        return self.angles[torch.arange(len(self), device=chosen.device), chosen]

    def _dropped(self, features: Tensor) -> Tensor:
        return functional.dropout(features, self.dropout) if self.dropout else features
