"""The network's numbers, case by case, against the original's: text, histories, sight, scores and values."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from esceme.agents.base import Words
from esceme.agents.hamt import HAMT, HamtState
from esceme.agents.layers import CrossLayer, Tokens
from esceme.errors import DataError
from esceme.memory import CandidateEnhancing
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.verify.beside import CRITIC, Beside, Switches, Tensors, hamt_of, read_tensors
from esceme.verify.comparison import MALFORMED, Comparison, Report, Skipped
from esceme.verify.references import References

FILES = r"(.*/)?(?P<case>case[^_/]+)_(?P<config>[^/]+)_outputs\.safetensors"
TOLERANCE = 1e-5
"""Of single precision: the original differs from itself in double precision by up to 4e-6."""
DOUBLE = "_f64"
"""What the names of quantities in double precision end in."""
DOUBLE_TOLERANCE = 1e-9


def compare_network(name: str, path: Path, references: References, report: Report) -> None:
    """Compare `case…_<configuration>_outputs.safetensors`."""
    found = re.fullmatch(FILES, name)
    case, config = (found["case"], found["config"]) if found else ("", "")
    beside, comparison, stored = Beside(name, path), Comparison(name), read_tensors(path)
    beside.network()
    navigator = beside.navigator(Switches.of(beside.arguments(config)))
    given = beside.tensors(f"{case}_inputs.safetensors")
    try:
        ours = network_outputs(navigator, given)
        doubled = network_outputs(copy.deepcopy(navigator).double(), _in_double(given))
        _compare_recalled(navigator, given, comparison)
    except (*MALFORMED, RuntimeError) as error:
        raise DataError(f"{case}_inputs.safetensors does not fit the network: {error!r}") from None
    doubled = {f"{key}{DOUBLE}": value for key, value in doubled.items() if f"{key}{DOUBLE}" in stored}
    if not beside.has(CRITIC):
        stored, ours, doubled = (_without_critic(each) for each in (stored, ours, doubled))
        report.skipped.append(Skipped(name, f"critic: there is no {CRITIC} beside it"))
    _compare_tensors(stored, ours, TOLERANCE, comparison)
    _compare_tensors(stored, doubled, DOUBLE_TOLERANCE, comparison)
    comparison.unknown |= set(stored) - set(ours) - set(doubled)
    comparison.add_to(report)
    report.used |= beside.used


def _compare_tensors(stored: Tensors, ours: Tensors, tolerance: float, comparison: Comparison) -> None:
    """Compare each of our tensors with the stored one; those of all steps are one quantity."""
    for key, value in ours.items():
        quantity = re.sub(r"^s\d+\.", "", key)
        if key not in stored:
            comparison.lack(key)
            continue
        theirs = stored[key].double().numpy()
        if quantity == "hist_embeds_out" and theirs.ndim == value.ndim:  # (B, S, H)
            theirs = theirs[:, : value.shape[1]]  # what follows is padding in every row
        comparison.add_array(quantity, theirs, value.double().numpy(), tolerance)


def _in_double(tensors: Tensors) -> Tensors:
    return {key: each.double() if each.is_floating_point() else each for key, each in tensors.items()}


def _without_critic(tensors: Tensors) -> Tensors:
    return {key: each for key, each in tensors.items() if ".critic" not in key}


# -- our own numbers -------------------------------------------------------------------------------------


@torch.inference_mode()
def network_outputs(navigator: Navigator, given: Tensors) -> Tensors:
    """Everything that a file of outputs holds, under its names, from the tensors of a file of inputs.

    Scores, states and values are computed as a rollout does; only what nothing reads later is computed with
    padding, as the original does.
    """
    agent = hamt_of(navigator)
    words = Words(given["txt_ids"], given["txt_masks"])
    state = agent.begin(words, words.ids[:, 0])
    encoded = agent.read(words, everything=True)
    texts = _texts(agent, encoded, words.valid)
    outputs = {"history.global": state.history[:, 0], **texts}
    tokens = [state.history[:, 0]]
    for step in range(_steps(given)):
        inputs = _at(given, step)
        lived = replace(state, history=torch.stack(tokens, 1), lived=inputs["hist_lens"])
        judged = _judged(agent, lived, encoded, _seen(navigator, inputs))
        if not agent.config.language_cross_attention:  # the text that the last layer reads
            judged["txt_embeds_out"] = texts[f"language.txt_embeds.{len(texts) - 2}"]
        tokens.append(_told(agent, inputs, step))
        judged["hist_step"] = tokens[-1]
        outputs |= {f"s{step}.{key}": value for key, value in judged.items()}
    return outputs


def _steps(given: Tensors) -> int:
    return len({found[0] for key in given if (found := re.match(r"s\d+\.", key))})


def _at(given: Tensors, step: int) -> Tensors:
    """The inputs of a step, by their short names."""
    return {key.removeprefix(f"s{step}."): given[key] for key in given if key.startswith(f"s{step}.")}


def _texts(agent: HAMT, encoded: Tensor, heard: Tensor) -> Tensors:
    """The text as read; without language cross-attention also what each cross layer makes of it."""
    if agent.config.language_cross_attention:
        return {"language.txt_embeds": encoded}
    last = agent.cross_layers[-1]
    assert isinstance(last, CrossLayer)
    made = last.text(Tokens.of(encoded, heard, everything=True)).padded
    texts = [*agent.text_of_layers(encoded, heard, everything=True), made]
    return {f"language.txt_embeds.{depth}": text for depth, text in enumerate(texts)}


def _judged(agent: HAMT, state: HamtState, encoded: Tensor, seen: Observation) -> Tensors:
    """What comes of a state and an observation."""
    short = agent.consider(state, seen)
    whole = agent.consider(replace(state, words=encoded), seen, everything=True)
    logits = short.logits.new_full(seen.kind.shape, -torch.inf)  # (B, N)
    logits[:, : short.logits.shape[1]] = short.logits
    return {
        "act_logits": logits,
        "log_softmax": logits.log_softmax(1),
        "states": short.states,
        "critic": agent.critic(short.states).squeeze(1),
        "txt_embeds_out": whole.text,
        "hist_embeds_out": whole.history,
        "ob_embeds_out": whole.sight,
    }


def _told(agent: HAMT, inputs: Tensors, step: int) -> Tensor:
    """The history token of a step, (B, H)."""
    around = None
    if agent.config.encode_panorama:
        around = agent.history.encode_panorama(inputs["hist_pano_img_feats"], inputs["hist_pano_ang_feats"])
    faced = inputs["hist_img_feats"]
    when = torch.full((len(faced),), step)
    token: Tensor = agent.history(faced, inputs["hist_ang_feats"], when, around)
    return token


# -- what is seen and recalled ---------------------------------------------------------------------------


class _Recalled(NamedTuple):
    """A memory that holds what the inputs say of every token."""

    features: Tensor

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        """What is remembered of the candidates."""
        return self.features

    def remember_seen(self, observation: Observation) -> None:
        """Nothing new."""


def _seen(navigator: Navigator, inputs: Tensors) -> Observation:
    """The observation as the agent sees it."""
    return replace(navigator.see(*_observed(inputs)), valid=inputs["ob_masks"])


def _observed(inputs: Tensors) -> tuple[Observation, _Recalled]:
    """What is there, and what is remembered of it; padding counts as real, since the original reads it."""
    features, kind = inputs["ob_img_feats"], inputs["ob_nav_types"]
    nowhere = torch.full_like(kind, -1)
    observation = Observation(
        features=features,
        plain=features,
        angles=inputs["ob_ang_feats"],
        kind=kind,
        valid=torch.ones_like(inputs["ob_masks"]),
        neighbour=nowhere,
        view=nowhere,
        viewpoint=nowhere[:, 0],
        facing=nowhere[:, 0],
    )
    remembered = inputs.get("ob_node_feats", torch.zeros_like(features))
    return observation, _Recalled(remembered * observation.is_candidate[..., None])


def _compare_recalled(navigator: Navigator, given: Tensors, comparison: Comparison) -> None:
    """Given the candidates' memories, what every token remembers is what the inputs say (spec C.4)."""
    reader = navigator.reader
    if not isinstance(reader, CandidateEnhancing):
        return
    for step in range(_steps(given)):
        inputs = _at(given, step)
        ours = reader.recall(*_observed(inputs))
        comparison.add_array("ob_node_feats", inputs["ob_node_feats"].numpy(), ours.numpy(), 0.0)
