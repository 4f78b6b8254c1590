"""The network's numbers, case by case, against the original's: text, histories, sight, scores and values."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from esceme.agents.base import TokenBatch
from esceme.agents.hamt import HAMT, Considered
from esceme.agents.layers import CrossLayer, Tokens
from esceme.agents.tdstp import TDSTP, Planned, grid_points
from esceme.errors import ConfigError, DataError
from esceme.memory import CandidateEnhancing, MemorySubgraph
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.verify.beside import CRITIC, Beside, Tensors, network_of, read_tensors
from esceme.verify.comparison import MALFORMED, Comparison, Report, Skipped
from esceme.verify.references import References

FILES = r"(.*/)?(?P<case>case[^_/]+)_(?P<config>[^/]+)_outputs\.safetensors"
TOLERANCE = 1e-5
"""Of single precision: the original differs from itself in double precision by up to 4e-6."""
DOUBLE = "_f64"
"""What the names of quantities in double precision end in."""
DOUBLE_TOLERANCE = 1e-9
Network = HAMT | TDSTP
Lived = Any
"""The state of either: that of HAMT, or that of TD-STP."""


def compare_network(name: str, path: Path, references: References, report: Report) -> None:
    """Compare `case…_<configuration>_outputs.safetensors`."""
    found = re.fullmatch(FILES, name)
    case, config = (found["case"], found["config"]) if found else ("", "")
    beside, comparison, stored = Beside(name, path), Comparison(name), read_tensors(path)
    navigator = beside.navigator(beside.switches(config))
    given = beside.tensors(f"{case}_inputs.safetensors")
    try:
        ours = network_outputs(navigator, given)
        doubled = network_outputs(copy.deepcopy(navigator).double(), _in_double(given))
        _compare_recalled(navigator, given, comparison)
        _compare_grid(navigator, given, comparison)
        real = _real(navigator, given)
    except (*MALFORMED, RuntimeError, ConfigError) as error:
        raise DataError(f"{case}_inputs.safetensors does not fit the network: {error!r}") from None
    doubled = {f"{key}{DOUBLE}": value for key, value in doubled.items() if f"{key}{DOUBLE}" in stored}
    if not beside.has(CRITIC):
        stored, ours, doubled = (_without_critic(each) for each in (stored, ours, doubled))
        report.skipped.append(Skipped(name, f"critic: there is no {CRITIC} beside it"))
    _compare_tensors(stored, ours, real, TOLERANCE, comparison)
    _compare_tensors(stored, doubled, real, DOUBLE_TOLERANCE, comparison)
    comparison.unknown |= set(stored) - set(ours) - set(doubled)
    comparison.add_to(report)
    report.used |= beside.used


def _compare_tensors(
    stored: Tensors, ours: Tensors, real: Tensors, tolerance: float, comparison: Comparison
) -> None:
    """Compare each of our tensors with the stored one; those of all steps are one quantity."""
    for key, value in ours.items():
        quantity = re.sub(r"^s\d+\.", "", key)
        if key not in stored:
            comparison.lack(key)
            continue
        theirs = stored[key].double()
        if quantity == "hist_embeds_out" and theirs.ndim == value.ndim:  # (B, S, H)
            theirs = theirs[:, : value.shape[1]]  # what follows is padding in every row
        if key in real and theirs.shape == value.shape:
            theirs, value = theirs[real[key]], value[real[key]]
        comparison.add_array(quantity, theirs.numpy(), value.double().numpy(), tolerance)


def _real(navigator: Navigator, given: Tensors) -> Tensors:
    """Which tokens of a step are real, by the names of what comes of them, where only those are compared.

    Under the structured mask a token of padding may attend to nothing. The original adds -10000 to all that
    it could attend to, so that it attends to everything, with what rounding leaves of its scores; ours
    attends to itself. No real token reads either.
    """
    agent = network_of(navigator)
    if not isinstance(agent, TDSTP) or not agent.config.structured:
        return {}
    real: Tensors = {}
    for step in range(_steps(given)):
        inputs = _at(given, step)
        lived = torch.arange(int(inputs["hist_lens"].max())) < inputs["hist_lens"][:, None]
        real |= {f"s{step}.hist_embeds_out": lived, f"s{step}.ob_embeds_out": inputs["ob_masks"]}
    return real


def _in_double(tensors: Tensors) -> Tensors:
    return {key: each.double() if each.is_floating_point() else each for key, each in tensors.items()}


def _without_critic(tensors: Tensors) -> Tensors:
    return {key: each for key, each in tensors.items() if ".critic" not in key}


# -- our own numbers -------------------------------------------------------------------------------------


@torch.inference_mode()
def network_outputs(navigator: Navigator, given: Tensors) -> Tensors:
    """Everything that a file of outputs holds, under its names, from the tensors of a file of inputs.

    Scores, states and values are computed as a rollout does; only what nothing reads later is computed with
    padding, as the original does. Both ways are lived side by side, each with its own outcome of each step.
    """
    agent = network_of(navigator)
    words = TokenBatch(given["txt_ids"], given["txt_masks"])
    packed: Lived = agent.begin(words, words.ids[:, 0])
    encoded = agent.read(words, everything=True)
    texts = _texts(agent, encoded, words.valid)
    outputs = {"history.global": packed.history[:, 0], **texts}
    if isinstance(agent, TDSTP):
        packed = replace(packed, target=agent.positions(given["global_pos"]) * packed.words[:, :1])
        outputs["global_pos.feat"] = packed.target
    padded = replace(packed, words=encoded)
    for step in range(_steps(given)):
        inputs = _at(given, step)
        seen, token = _seen(navigator, inputs), _told(agent, inputs, step)
        packed, padded = _now(packed, agent, inputs), _now(padded, agent, inputs)
        short, whole = _thought(agent, packed, seen), _thought(agent, padded, seen, everything=True)
        judged = {**_judged(agent, short, whole, step + 1, seen.kind.shape[1]), "hist_step": token}
        if not agent.config.language_cross_attention:  # the text that the last layer reads
            judged["txt_embeds_out"] = texts[f"language.txt_embeds.{len(texts) - 2}"]
        outputs |= {f"s{step}.{key}": value for key, value in judged.items()}
        packed, padded = _carried(packed, short, whole, token), _carried(padded, whole, whole, token)
    return outputs


def _steps(given: Tensors) -> int:
    return len({found[0] for key in given if (found := re.match(r"s\d+\.", key))})


def _at(given: Tensors, step: int) -> Tensors:
    """The inputs of a step, by their short names."""
    return {key.removeprefix(f"s{step}."): given[key] for key in given if key.startswith(f"s{step}.")}


def _texts(agent: Network, encoded: Tensor, heard: Tensor) -> Tensors:
    """The text as read; without language cross-attention also what each cross layer makes of it."""
    if agent.config.language_cross_attention:
        return {"language.txt_embeds": encoded}
    last = agent.cross_layers[-1]
    assert isinstance(last, CrossLayer)
    made = last.text(Tokens.of(encoded, heard, everything=True)).padded
    texts = [*agent.text_of_layers(encoded, heard, everything=True), made]
    return {f"language.txt_embeds.{depth}": text for depth, text in enumerate(texts)}


def _now(state: Lived, agent: Network, inputs: Tensors) -> Lived:
    """The state at a step: how long histories are, and for TD-STP which of their places are neighbours."""
    state = replace(state, lived=inputs["hist_lens"])
    if isinstance(agent, TDSTP) and agent.config.structured and state.history.shape[1] > 1:
        linked = functional.pad(inputs["graph_mask"].long(), (1, 0, 1, 0))  # (B, S, S)
        state = replace(state, linked=linked)
    return state


def _thought(
    agent: Network, state: Lived, seen: Observation, *, everything: bool = False
) -> Considered | Planned:
    """What comes of a state and an observation; places in the inputs are seen from the start already."""
    if isinstance(agent, TDSTP):
        return agent.plan(state, seen, everything=everything)
    return agent.consider(state, seen, everything=everything)


def _carried(
    state: Lived, thought: Considered | Planned, whole: Considered | Planned, token: Tensor
) -> Lived:
    """The state after a step: one history token more; TD-STP goes on with what it thought (spec D.4).

    Padding holds what the original makes of it, since its history layers read that.
    """
    if isinstance(thought, Planned):
        longest = thought.history.shape[1]
        lived = (torch.arange(longest) < state.lived[:, None])[..., None]
        history = torch.where(lived, thought.history, whole.history)
        history = torch.cat([history, state.history[:, longest:]], 1)
        state = replace(state, history=history, target=thought.target)
    return replace(state, history=torch.cat([state.history, token[:, None]], 1))


def _judged(
    agent: Network, short: Considered | Planned, whole: Considered | Planned, lived: int, width: int
) -> Tensors:
    """What a step gives, from real tokens alone and with padding."""
    logits = _widened(short.logits, width)  # (B, N)
    planned: Tensors = {}
    if isinstance(short, Planned) and isinstance(whole, Planned):
        logits = torch.cat([_widened(short.back, lived), logits], 1)  # (B, S + N)
        planned = {"pos_logit": short.guess, "pos_embeds": whole.target}
    return {
        "act_logits": logits,
        "log_softmax": logits.log_softmax(1),
        "states": short.states,
        "critic": agent.critic(short.states).squeeze(1),
        "txt_embeds_out": whole.text,
        "hist_embeds_out": whole.history,
        "ob_embeds_out": whole.sight,
        **planned,
    }


def _widened(logits: Tensor, width: int) -> Tensor:
    return functional.pad(logits, (0, width - logits.shape[1]), value=-torch.inf)


def _told(agent: Network, inputs: Tensors, step: int) -> Tensor:
    """The history token of a step, (B, H)."""
    around = None
    if agent.config.encode_panorama:
        around = agent.history.encode_panorama(inputs["hist_pano_img_feats"], inputs["hist_pano_ang_feats"])
    faced = inputs["hist_img_feats"]
    when = torch.full((len(faced),), step)
    token: Tensor = agent.history(faced, inputs["hist_ang_feats"], when, around)
    if isinstance(agent, TDSTP) and agent.config.history_positions:
        token = token + agent.positions(inputs["position"])
    return token


# -- what is seen and recalled ---------------------------------------------------------------------------


class _Recalled(NamedTuple):
    """A memory that holds what the inputs say of every token."""

    features: Tensor

    def recall_at(self, viewpoints: Tensor) -> Tensor:
        """What is remembered of the candidates."""
        return self.features

    def surroundings(self, viewpoints: Tensor) -> MemorySubgraph:
        """Nothing: where the candidates lie is not told."""
        nowhere = viewpoints[:0]
        around = (self.features.new_zeros(0, self.features.shape[-1]), nowhere.expand(2, 0))
        return MemorySubgraph(nowhere, *around, torch.zeros(len(viewpoints), 0, dtype=torch.bool))

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
        positions=inputs.get("ob_position"),
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


def _compare_grid(navigator: Navigator, given: Tensors, comparison: Comparison) -> None:
    """The points of the target grid come in our order, around the start (spec D.3)."""
    if not isinstance(navigator.agent, TDSTP):
        return
    stored = given["global_pos"]  # (B, G, 3)
    spacing = float(stored[0, 1, 1] - stored[0, 0, 1])
    ours = grid_points(math.isqrt(stored.shape[1]), spacing).expand(len(stored), -1, -1)
    comparison.add_array("global_pos", stored.numpy(), ours.numpy(), TOLERANCE)
