"""Compare DUET's map, encoders and scores with those of the original code, for stored observations.

Observations are built from positions and views alone, so that angles, map and distances are our own. Scores
in double precision are computed from the stored features, which are in single precision (docs/spec.md I).
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from esceme.agents.base import TokenBatch
from esceme.agents.duet import DUET, DuetInputs, DuetState, location_features
from esceme.errors import ConfigError, DataError
from esceme.observation import Observation
from esceme.verify.comparison import MALFORMED, FileComparison
from esceme.verify.duet_map import MapOrder
from esceme.verify.fixtures import NetworkFiles, ReferenceData, Tensors, duet_of, read_tensors
from esceme.verify.network_check import (
    DOUBLE,
    DOUBLE_TOLERANCE,
    TOLERANCE,
    count_steps,
    match_case,
    step_inputs,
    to_double,
)
from esceme.world.atlas import CANDIDATE, CONTEXT, STOP
from esceme.world.geometry import VIEW_HEADINGS, VIEWS, angle_feature, direction, panorama_angles

FEATURE_TOLERANCE, DISTANCE_TOLERANCE = 1e-6, 1e-5
MAP_TOLERANCES = {
    "loc_fts": FEATURE_TOLERANCE,
    "gmap_pos_fts": FEATURE_TOLERANCE,
    "vp_pos_fts": FEATURE_TOLERANCE,
    "gmap_pair_dists": DISTANCE_TOLERANCE,
}
"""Tolerances of inputs that the original code derives from observations; others must be equal."""


def check_duet_network(path: Path, references: ReferenceData, comparison: FileComparison) -> None:
    """Compare the tensors in a file `case…_<configuration>_outputs.safetensors` with those of our DUET."""
    case, config = match_case(comparison.file)
    files, stored = NetworkFiles(path, comparison.used), read_tensors(path)
    agent = duet_of(files.navigator(files.options(config)))
    case_inputs = files.tensors(f"{case}_inputs.safetensors")
    try:
        ours, inputs = duet_outputs(agent, case_inputs)
        doubled, _ = duet_outputs(copy.deepcopy(agent).double(), to_double(case_inputs), feed=True)
    except (*MALFORMED, RuntimeError, ConfigError) as error:
        raise DataError(f"{case}_inputs.safetensors does not fit the network: {error!r}") from None
    for key, value in inputs.items():
        if key not in case_inputs:
            comparison.add_missing(f"{key} in {case}_inputs.safetensors")
            continue
        tolerance = MAP_TOLERANCES.get(key.partition(".")[2], 0.0)
        comparison.add_array(
            f"inputs.{key.partition('.')[2]}", case_inputs[key].numpy(), value.numpy(), tolerance
        )
    ours |= {f"{key}{DOUBLE}": value for key, value in doubled.items() if f"{key}{DOUBLE}" in stored}
    for key, value in ours.items():
        if key not in stored:
            comparison.add_missing(key)
            continue
        theirs, quantity = stored[key].double(), key.partition(".")[2]
        if theirs.shape == value.shape and (valid := _valid(quantity, key, case_inputs)) is not None:
            theirs, value = theirs[valid], value[valid]
        tolerance = DOUBLE_TOLERANCE if key.endswith(DOUBLE) else TOLERANCE
        comparison.add_array(quantity, theirs.numpy(), value.double().numpy(), tolerance)
    comparison.unknown |= set(stored) - set(ours)


def _valid(quantity: str, key: str, case_inputs: Tensors) -> Tensor | None:
    """Return the mask of real tokens of an output with one vector per token; None for other outputs."""
    step = key.partition(".")[0]
    masks = {"txt_embeds": "txt_masks", "gmap_embeds": f"{step}.gmap_masks", "vp_embeds": f"{step}.vp_masks"}
    if quantity == "pano_embeds":
        lengths = case_inputs[f"{step}.view_lens"]
        return torch.arange(case_inputs[f"{step}.nav_types"].shape[1]) < lengths[:, None]
    return case_inputs[masks[quantity]] if quantity in masks else None


class TokenLayout(NamedTuple):
    """Positions in our tensors of the tokens of stored tensors."""

    order: Tensor
    """(B, G) int64: index of our map token for each stored map token: 1 + node, or 0 for STOP and padding."""
    is_token: Tensor
    """(B, G) bool: False for padding of the stored map."""
    views: Tensor
    """(B, N) int64: index of our token for each stored panorama token. Stored panoramas have no STOP; the
    index of our STOP stands for padding."""
    is_view: Tensor
    """(B, N) bool: False for padding of the stored panorama."""


@torch.inference_mode()
def duet_outputs(agent: DUET, case_inputs: Tensors, *, feed: bool = False) -> tuple[Tensors, Tensors]:
    """Return outputs and map inputs in the layout of a reference file, by name.

    With `feed`, stored angles, positions and distances replace ours, so that only the network is compared.
    """
    words = TokenBatch(case_inputs["txt_ids"], case_inputs["txt_masks"])
    state = agent.begin(words, case_inputs["start"])
    outputs: Tensors = {"language.txt_embeds": agent.encode_text(words)}
    compared: Tensors = {}
    for step in range(count_steps(case_inputs)):
        inputs = step_inputs(case_inputs, step)
        observation = _observation(inputs)
        tokens = _fed_panorama(agent, observation, inputs) if feed else None
        encoded = agent.encode(state, observation, tokens=tokens)
        layout = layout_of(encoded.state, observation, inputs)
        if feed:
            encoded = _feed(encoded, layout, inputs)
        else:
            ours = map_inputs(encoded, observation, layout)
            compared |= {f"s{step}.{key}": value for key, value in ours.items()}
        values = _step_outputs(agent, encoded, layout)
        outputs |= {f"s{step}.{key}": value for key, value in values.items()}
        state = agent.advance(encoded.state, observation, observation.num_candidates)
    return outputs, compared


# -- observations ------------------------------------------------------------------------------------------


def _observation(inputs: Tensors) -> Observation:
    """Return the observation of a step: candidates, STOP, other views, padding (docs/spec.md B.5)."""
    rows = [_single(inputs, row) for row in range(len(inputs["viewpoint"]))]
    longest = max(len(row["token_type"]) for row in rows)

    def batch(name: str, fill: float) -> Tensor:
        padded = []
        for row in rows:
            missing = [(0, longest - len(row[name])), *[(0, 0)] * (row[name].ndim - 1)]
            padded.append(np.pad(row[name], missing, constant_values=fill))
        return torch.from_numpy(np.stack(padded))

    features = batch("features", 0.0).to(inputs["view_img_fts"])
    return Observation(
        features=features,
        raw_features=features,
        angles=batch("angles", 0.0).to(features),
        token_type=batch("token_type", CONTEXT),
        valid=batch("valid", False),
        neighbour=batch("neighbour", -1),
        view=batch("view", -1),
        viewpoint=inputs["viewpoint"],
        facing_view=inputs["view_index"],
        positions=batch("positions", 0.0).float(),
    )


def _single(inputs: Tensors, row: int) -> dict[str, np.ndarray]:
    """Return the tokens of one agent as arrays by field of `Observation`."""
    is_candidate = inputs["cand_ids"][row] >= 0
    views = inputs["cand_views"][row, is_candidate].numpy()
    others = np.setdiff1d(np.arange(VIEWS), views)
    count, facing = len(views), int(inputs["view_index"][row])
    here = inputs["position"][row].double().numpy()
    there = inputs["cand_positions"][row, is_candidate].double().numpy()
    toward = direction(there - here)
    features = inputs["view_img_fts"][row, : count + len(others)].numpy()
    angles = [
        angle_feature(toward.heading - VIEW_HEADINGS[facing], toward.elevation),
        np.zeros((1, 4), dtype=np.float32),
        panorama_angles(facing)[others],
    ]
    rest = np.full(1 + len(others), -1)
    return {
        "features": np.concatenate([features[:count], np.zeros_like(features[:1]), features[count:]]),
        "angles": np.concatenate(angles),
        "token_type": np.array([CANDIDATE] * count + [STOP] + [CONTEXT] * len(others)),
        "valid": np.ones(count + 1 + len(others), dtype=bool),
        "neighbour": np.concatenate([inputs["cand_ids"][row, is_candidate].numpy(), rest]),
        "view": np.concatenate([views, [-1], others]),
        "positions": np.concatenate([there, np.repeat(here[None], len(rest), 0)]),
    }


def layout_of(state: DuetState, observation: Observation, inputs: Tensors) -> TokenLayout:
    """Return the positions in our tensors of the tokens of stored tensors, by the ids in `inputs`."""
    ids = inputs["gmap_ids"]
    nodes = state.find(ids)
    is_token = (nodes >= 0) | (torch.arange(ids.shape[1]) == 0)
    num_views = inputs["nav_types"].shape[1]
    stop, columns = observation.num_candidates[:, None], torch.arange(num_views)
    is_view = columns < inputs["view_lens"][:, None]
    views = torch.where(is_view, columns + (columns >= stop), stop)
    return TokenLayout(nodes + 1, is_token, views, is_view)


# -- stored features instead of ours -------------------------------------------------------------------------


def _fed_panorama(agent: DUET, observation: Observation, inputs: Tensors) -> Tensor:
    """Return the panoramas that our network encodes from the stored location features, with STOP."""
    valid = torch.arange(inputs["nav_types"].shape[1]) < inputs["view_lens"][:, None]
    encoded: Tensor = agent.panorama(
        inputs["view_img_fts"],
        inputs["loc_fts"],
        inputs["nav_types"],
        valid,
        agent.text.kinds.weight[1],
    )
    tokens = encoded.new_zeros(*observation.token_type.shape, encoded.shape[2])
    row, column = valid.nonzero(as_tuple=True)
    shifted = column + (column >= observation.num_candidates[row])
    return tokens.index_put((row, shifted), encoded[row, column])


def _feed(encoded: DuetInputs, layout: TokenLayout, inputs: Tensors) -> DuetInputs:
    """Return the inputs of both branches with the stored position features and distances."""
    row, column = layout.is_token.nonzero(as_tuple=True)
    ours = layout.order[row, column]
    tokens = encoded.map_tokens
    position = tokens.position.index_put((row, ours), inputs["gmap_pos_fts"][row, column])
    pair = layout.is_token[:, :, None] & layout.is_token[:, None]
    row, first, second = pair.nonzero(as_tuple=True)
    place = (row, layout.order[row, first], layout.order[row, second])
    distance = tokens.distance.index_put(place, inputs["gmap_pair_dists"][row, first, second])
    views = encoded.view_tokens
    local = inputs["vp_pos_fts"]  # STOP first
    row, column = layout.is_view.nonzero(as_tuple=True)
    view_position = views.position.index_put((row, layout.views[row, column]), local[row, column + 1])
    rows = torch.arange(len(local))
    view_position = view_position.index_put((rows, views.stop), local[:, 0])
    return encoded._replace(
        map_tokens=tokens._replace(position=position, distance=distance),
        view_tokens=views._replace(position=view_position),
    )


# -- our values in the stored layout -------------------------------------------------------------------------


def _gather(values: Tensor, layout: TokenLayout, fill: float) -> Tensor:
    """Return values of map tokens, (B, 1 + K, …), in the stored order (B, G, …), with `fill` for padding."""
    rows = torch.arange(len(values))[:, None]
    is_token = layout.is_token.view(*layout.is_token.shape, *[1] * (values.ndim - 2))
    return values[rows, layout.order].masked_fill(~is_token, fill)


def map_inputs(encoded: DuetInputs, observation: Observation, layout: TokenLayout) -> Tensors:
    """Return the inputs that the original code derives from observations, computed by our code, by name."""
    state, tokens, rows = encoded.state, encoded.map_tokens, torch.arange(len(layout.order))[:, None]
    is_closed = (state.node > 0) & ~encoded.is_open
    ids = torch.full_like(layout.order, -1)
    for row in range(len(ids)):
        viewpoints = MapOrder.of(state, is_closed, row).viewpoints
        ids[row, 1 : len(viewpoints) + 1] = torch.tensor(viewpoints)
    closed = functional.pad(is_closed, (1, 0))
    distance = _gather(_gather(tokens.distance, layout, 0.0).transpose(1, 2), layout, 0.0)
    location = location_features(observation)[rows, layout.views] * layout.is_view[..., None]
    position = encoded.view_tokens.position
    local = torch.cat([position[rows, encoded.view_tokens.stop[:, None]], position[rows, layout.views]], 1)
    return {
        "gmap_ids": ids,
        "gmap_lens": tokens.valid.sum(1),
        "gmap_step_ids": _gather(tokens.step_id, layout, 0),
        "gmap_visited_masks": _gather(closed, layout, False),
        "gmap_masks": _gather(tokens.valid, layout, False),
        "gmap_pos_fts": _gather(tokens.position, layout, 0.0),
        "gmap_pair_dists": distance,
        "vp_pos_fts": local,
        "loc_fts": location,
    }


def _step_outputs(agent: DUET, encoded: DuetInputs, layout: TokenLayout) -> Tensors:
    rows, views = torch.arange(len(layout.order))[:, None], encoded.view_tokens
    output = agent.score(encoded, compute_all=True)
    # The scores come from a pass that computes only what the heads read, as in rollouts.
    short = agent.score(encoded)
    fused = agent.fuse(encoded, short)
    is_open = functional.pad(encoded.is_open, (1, 0), value=True)
    map_scores = short.map_scores.masked_fill(~is_open, -torch.inf)
    is_choice = torch.arange(views.valid.shape[1]) <= views.stop[:, None]
    view_scores = short.view_scores
    if view_scores.shape[1] < views.valid.shape[1]:
        missing = views.valid.shape[1] - view_scores.shape[1]
        view_scores = functional.pad(view_scores, (0, missing))
    view_scores = view_scores.masked_fill(~is_choice, -torch.inf)
    stop = views.stop[:, None]
    local = torch.cat([view_scores[rows, stop], view_scores[rows, layout.views]], 1)
    is_shown = functional.pad(layout.is_view, (1, 0), value=True)
    embedding = encoded.view_tokens.embedding[rows, layout.views] * layout.is_view[..., None]
    values = {
        "pano_embeds": embedding,
        "gmap_img_embeds": _gather(encoded.map_tokens.embedding, layout, 0.0),
        "gmap_embeds": _gather(output.map_tokens, layout, 0.0),
        "vp_embeds": torch.cat([output.view_tokens[rows, stop], output.view_tokens[rows, layout.views]], 1),
        "global_logits": _gather(map_scores, layout, -torch.inf),
        "local_logits": local.masked_fill(~is_shown, -torch.inf),
        "fused_logits": _gather(fused, layout, -torch.inf),
        "stop_prob": fused.softmax(1)[:, 0],
    }
    if agent.config.fusion == "dynamic":
        values["fuse_weights"] = short.gate
    if agent.config.graph_bias:
        distance = _gather(_gather(encoded.map_tokens.distance, layout, 0.0).transpose(1, 2), layout, 0.0)
        values["graph_sprels"] = agent.distance_bias(distance[..., None]).squeeze(3)
    return values
