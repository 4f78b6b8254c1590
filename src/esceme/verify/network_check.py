"""Compare network outputs with those of the original code: text, history and observation tokens, scores."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from esceme.agents.base import TokenBatch
from esceme.agents.hamt import HAMT, HamtOutput
from esceme.agents.layers import CrossLayer, Tokens
from esceme.agents.tdstp import TDSTP, TdstpOutput, grid_points
from esceme.errors import ConfigError, DataError
from esceme.memory import CandidateEnhancing, MemorySubgraph
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.verify.comparison import MALFORMED, FileComparison
from esceme.verify.fixtures import CRITIC, NetworkFiles, ReferenceData, Tensors, network_of, read_tensors

FILES = r"(.*/)?(?P<case>case[^_/]+)_(?P<config>[^/]+)_outputs\.safetensors"
TOLERANCE = 1e-5
"""Tolerance in single precision. The original code's own rounding error is up to 4e-6."""
DOUBLE = "_f64"
"""Suffix of the names of tensors that were computed in double precision."""
DOUBLE_TOLERANCE = 1e-9
Network = HAMT | TDSTP
NetworkState = Any
"""State of a network between two steps: `HamtState` or `TdstpState`."""


def check_network(path: Path, references: ReferenceData, comparison: FileComparison) -> None:
    """Compare the tensors in a file `case…_<configuration>_outputs.safetensors` with those of our code."""
    case, config = match_case(comparison.file)
    files, stored = NetworkFiles(path, comparison.used), read_tensors(path)
    navigator = files.navigator(files.options(config))
    inputs = files.tensors(f"{case}_inputs.safetensors")
    try:
        ours = network_outputs(navigator, inputs)
        doubled = network_outputs(copy.deepcopy(navigator).double(), to_double(inputs))
        pairs = [*_recalled(navigator, inputs), *_grid(navigator, inputs)]
        masks = _valid_tokens(navigator, inputs)
    except (*MALFORMED, RuntimeError, ConfigError) as error:
        raise DataError(f"{case}_inputs.safetensors does not fit the network: {error!r}") from None
    ours |= {f"{key}{DOUBLE}": value for key, value in doubled.items() if f"{key}{DOUBLE}" in stored}
    if not files.has(CRITIC):
        stored, ours = (
            {key: tensor for key, tensor in tensors.items() if ".critic" not in key}
            for tensors in (stored, ours)
        )
        comparison.skipped.append(f"critic: there is no {CRITIC} beside it")
    for quantity, expected, own, tolerance in pairs:
        comparison.add_array(quantity, expected.numpy(), own.numpy(), tolerance)
    _compare_tensors(stored, ours, masks, comparison)
    comparison.unknown |= set(stored) - set(ours)


def _compare_tensors(stored: Tensors, ours: Tensors, masks: Tensors, comparison: FileComparison) -> None:
    """Compare each tensor in `ours` with the stored tensor of the same name.

    Tensors of different steps, `s0.critic` and `s1.critic`, belong to one quantity of the report. `masks`
    maps some names to boolean tensors that select the elements to compare.
    """
    for key, value in ours.items():
        quantity = re.sub(r"^s\d+\.", "", key)
        if key not in stored:
            comparison.add_missing(key)
            continue
        theirs = stored[key].double()
        if quantity == "hist_embeds_out" and theirs.ndim == value.ndim:  # (B, S, H)
            theirs = theirs[:, : value.shape[1]]  # the rest is padding in every row
        if key in masks and theirs.shape == value.shape:
            theirs, value = theirs[masks[key]], value[masks[key]]
        tolerance = DOUBLE_TOLERANCE if key.endswith(DOUBLE) else TOLERANCE
        comparison.add_array(quantity, theirs.numpy(), value.double().numpy(), tolerance)


def _valid_tokens(navigator: Navigator, case_inputs: Tensors) -> Tensors:
    """Return a dict from output name to the mask of its valid tokens, the only tokens that are compared.

    The result is empty unless the agent is TD-STP with the structured mask. Under this mask a padding token
    may have no token to attend to. It then attends to itself in our code, but to all tokens in the original
    code, where rounding determines the weights. No valid token attends to padding.
    """
    agent = network_of(navigator)
    if not isinstance(agent, TDSTP) or not agent.config.structured:
        return {}
    masks: Tensors = {}
    for step in range(count_steps(case_inputs)):
        inputs = step_inputs(case_inputs, step)
        valid = torch.arange(int(inputs["hist_lens"].max())) < inputs["hist_lens"][:, None]
        masks |= {f"s{step}.hist_embeds_out": valid, f"s{step}.ob_embeds_out": inputs["ob_masks"]}
    return masks


def to_double(tensors: Tensors) -> Tensors:
    """Return the tensors with those of floating point in double precision."""
    return {
        name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()
    }


# -- our outputs -----------------------------------------------------------------------------------------


@torch.inference_mode()
def network_outputs(navigator: Navigator, case_inputs: Tensors) -> Tensors:
    """Return a dict from name to output tensor; `case_inputs` is the content of a file of inputs.

    Scores, states and critic values are computed without padding, as in our rollouts. All other outputs are
    computed with padding, as in the original code. Each of the two computations has its own state.
    """
    agent = network_of(navigator)
    words = TokenBatch(case_inputs["txt_ids"], case_inputs["txt_masks"])
    packed: NetworkState = agent.begin(words, words.ids[:, 0])
    encoded = agent.encode_text(words, compute_all=True)
    texts = _text_outputs(agent, encoded, words.valid)
    outputs = {"history.global": packed.history[:, 0], **texts}
    if isinstance(agent, TDSTP):
        packed = replace(
            packed, target=agent.position_encoder(case_inputs["global_pos"]) * packed.text[:, :1]
        )
        outputs["global_pos.feat"] = packed.target
    padded = replace(packed, text=encoded)
    for step in range(count_steps(case_inputs)):
        inputs = step_inputs(case_inputs, step)
        seen, token = _read_observation(navigator, inputs), _history_token(agent, inputs, step)
        packed, padded = _set_step(packed, agent, inputs), _set_step(padded, agent, inputs)
        short, whole = agent.encode(packed, seen), agent.encode(padded, seen, compute_all=True)
        values = {
            **_step_outputs(agent, short, whole, step + 1, seen.token_type.shape[1]),
            "hist_step": token,
        }
        if not agent.config.language_cross_attention:  # the text that the last layer reads
            values["txt_embeds_out"] = texts[f"language.txt_embeds.{len(texts) - 2}"]
        outputs |= {f"s{step}.{key}": value for key, value in values.items()}
        packed, padded = _next_state(packed, short, whole, token), _next_state(padded, whole, whole, token)
    return outputs


def match_case(file: str) -> tuple[str, str]:
    """Return the case and the configuration that the name of a file of outputs states."""
    match = re.fullmatch(FILES, file)
    assert match is not None
    return match["case"], match["config"]


def count_steps(case_inputs: Tensors) -> int:
    """Return the number of steps of the tensors of a file of inputs."""
    return len({match[0] for key in case_inputs if (match := re.match(r"s\d+\.", key))})


def step_inputs(case_inputs: Tensors, step: int) -> Tensors:
    """Return the inputs of one step: a dict whose keys lack the prefix `s<step>.`."""
    return {
        key.removeprefix(f"s{step}."): case_inputs[key] for key in case_inputs if key.startswith(f"s{step}.")
    }


def _text_outputs(agent: Network, encoded: Tensor, valid: Tensor) -> Tensors:
    """Return a dict from name to encoded text.

    With language cross-attention, the dict has one entry. Otherwise it has one entry for the input of the
    cross-modal layers and one for the text output of every layer.
    """
    if agent.config.language_cross_attention:
        return {"language.txt_embeds": encoded}
    last = agent.cross_layers[-1]
    assert isinstance(last, CrossLayer)
    last_text = last.text(Tokens.pack(encoded, valid, compute_all=True)).padded
    texts = [*agent.text_per_layer(encoded, valid, compute_all=True), last_text]
    return {f"language.txt_embeds.{depth}": text for depth, text in enumerate(texts)}


def _set_step(state: NetworkState, agent: Network, inputs: Tensors) -> NetworkState:
    """Return `state` with the history lengths of a step and, for TD-STP, edges between visited viewpoints."""
    state = replace(state, history_length=inputs["hist_lens"])
    if isinstance(agent, TDSTP) and agent.config.structured and state.history.shape[1] > 1:
        linked = functional.pad(inputs["graph_mask"].long(), (1, 0, 1, 0))  # (B, S, S)
        state = replace(state, edge_rank=linked)
    return state


def _next_state(
    state: NetworkState, short: HamtOutput | TdstpOutput, whole: HamtOutput | TdstpOutput, token: Tensor
) -> NetworkState:
    """Return the state after a step, with one more history token.

    `short` and `whole` are the outputs computed without and with padding. In TD-STP, the outputs of a step
    are the history of the next step (docs/spec.md D.4). Padding keeps the values of `whole`, because the
    history layers of the original code read padding.
    """
    if isinstance(short, TdstpOutput):
        longest = short.history.shape[1]
        valid = (torch.arange(longest) < state.history_length[:, None])[..., None]
        history = torch.where(valid, short.history, whole.history)
        history = torch.cat([history, state.history[:, longest:]], 1)
        state = replace(state, history=history, target=short.target)
    return replace(state, history=torch.cat([state.history, token[:, None]], 1))


def _step_outputs(
    agent: Network,
    short: HamtOutput | TdstpOutput,
    whole: HamtOutput | TdstpOutput,
    num_history: int,
    width: int,
) -> Tensors:
    """Return a dict from name to output of one step.

    `short` and `whole` are the outputs computed without and with padding. The scores are padded to
    `num_history` history tokens and `width` observation tokens.
    """
    logits = _pad_logits(short.logits, width)  # (B, N)
    planned: Tensors = {}
    if isinstance(short, TdstpOutput) and isinstance(whole, TdstpOutput):
        logits = torch.cat([_pad_logits(short.node_logits, num_history), logits], 1)  # (B, S + N)
        planned = {"pos_logit": short.goal_logits, "pos_embeds": whole.target}
    return {
        "act_logits": logits,
        "log_softmax": logits.log_softmax(1),
        "states": short.critic_input,
        "critic": agent.critic(short.critic_input).squeeze(1),
        "txt_embeds_out": whole.text,
        "hist_embeds_out": whole.history,
        "ob_embeds_out": whole.observation,
        **planned,
    }


def _pad_logits(logits: Tensor, width: int) -> Tensor:
    return functional.pad(logits, (0, width - logits.shape[1]), value=-torch.inf)


def _history_token(agent: Network, inputs: Tensors, step: int) -> Tensor:
    """Return the history token (B, H) that describes the step, computed from the stored inputs."""
    panorama = None
    if agent.config.encode_panorama:
        panorama = agent.history.encode_panorama(inputs["hist_pano_img_feats"], inputs["hist_pano_ang_feats"])
    features = inputs["hist_img_feats"]
    steps = torch.full((len(features),), step)
    token: Tensor = agent.history(features, inputs["hist_ang_feats"], steps, panorama)
    if isinstance(agent, TDSTP) and agent.config.history_positions:
        token = token + agent.position_encoder(inputs["position"])
    return token


# -- observations and memory ------------------------------------------------------------------------------


class _StoredMemory(NamedTuple):
    """Memory that recalls stored features (B, N, D), one vector per token of the observation."""

    features: Tensor

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        return self.features

    def scene_subgraph(self, viewpoints: Tensor) -> MemorySubgraph:
        """Return an empty graph, because the inputs do not identify the viewpoints of the candidates."""
        none = viewpoints[:0]
        empty = (self.features.new_zeros(0, self.features.shape[-1]), none.expand(2, 0))
        return MemorySubgraph(none, *empty, torch.zeros(len(viewpoints), 0, dtype=torch.bool))

    def observe(self, viewpoints: Tensor) -> Observation:
        """Raise `NotImplementedError`: the inputs hold no panoramas of other viewpoints."""
        raise NotImplementedError

    def remember_observation(self, observation: Observation) -> None:
        """Do nothing."""


def _read_observation(navigator: Navigator, inputs: Tensors) -> Observation:
    """Return the observation of a step with the recalled features that the memory reader adds."""
    return replace(navigator.observe(*_observation(inputs)), valid=inputs["ob_masks"])


def _observation(inputs: Tensors) -> tuple[Observation, _StoredMemory]:
    """Return the observation of a step before the memory reader, and a memory with the stored features.

    Padding is marked as valid, because the fusion layers of the original code read padding.
    """
    features, kind = inputs["ob_img_feats"], inputs["ob_nav_types"]
    unknown = torch.full_like(kind, -1)
    observation = Observation(
        features=features,
        raw_features=features,
        angles=inputs["ob_ang_feats"],
        token_type=kind,
        valid=torch.ones_like(inputs["ob_masks"]),
        neighbour=unknown,
        view=unknown,
        viewpoint=unknown[:, 0],
        facing_view=unknown[:, 0],
        positions=inputs.get("ob_position"),
    )
    remembered = inputs.get("ob_node_feats", torch.zeros_like(features))
    return observation, _StoredMemory(remembered * observation.is_candidate[..., None])


def _recalled(navigator: Navigator, case_inputs: Tensors) -> Iterator[tuple[str, Tensor, Tensor, float]]:
    """Yield (name, stored, ours, tolerance) for the memory vectors of all tokens, once per step.

    Our vectors are computed from the stored vectors of the candidates (docs/spec.md C.4).
    """
    if isinstance(navigator.reader, CandidateEnhancing):
        for step in range(count_steps(case_inputs)):
            inputs = step_inputs(case_inputs, step)
            ours = navigator.reader.recall(*_observation(inputs))
            yield "ob_node_feats", inputs["ob_node_feats"], ours, 0.0


def _grid(navigator: Navigator, case_inputs: Tensors) -> Iterator[tuple[str, Tensor, Tensor, float]]:
    """Yield (name, stored, ours, tolerance) for the points of TD-STP's target grid (docs/spec.md D.3)."""
    if isinstance(navigator.agent, TDSTP):
        stored = case_inputs["global_pos"]  # (B, G, 3)
        spacing = float(stored[0, 1, 1] - stored[0, 0, 1])
        ours = grid_points(math.isqrt(stored.shape[1]), spacing).expand(len(stored), -1, -1)
        yield "global_pos", stored, ours, TOLERANCE
