"""What lies beside a reference file and is needed to compute its numbers: weights, inputs, settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import msgspec
import safetensors
from safetensors.torch import load_file
from torch import Tensor

from esceme.agents.hamt import HAMT
from esceme.agents.tdstp import TDSTP
from esceme.agents.tokens import ActionInput
from esceme.checkpoints import Switches as AgentSwitches
from esceme.checkpoints import navigator_from
from esceme.checkpoints.names import HISTORY_MAPPER, TD_STP, WRAPPER
from esceme.errors import DataError
from esceme.files import read_json
from esceme.memory import Pooling
from esceme.navigator import Navigator
from esceme.verify.comparison import Json

FILES = r"(.*/)?((vln_bert|vln_bert_h_layers_extra|critic|case[^_/]+_inputs)\.safetensors|meta\.json)"
"""Files that are not compared themselves: others are computed from them."""
NETWORK, CRITIC, META = "vln_bert.safetensors", "critic.safetensors", "meta.json"
HISTORY_LAYERS = "vln_bert_h_layers_extra.safetensors"
UPSTREAM = "_upstreamTDSTP"
"""What the names of configurations end in that TD-STP's own repository computed: with the settings of the
configuration before it, and with the structured mask, which ESceme's release does not use (spec D.6)."""
HISTORY_LAYER = re.compile(r"(?:vln_bert\.)?encoder\.h_layers\.(\d+)\.")
NOT_COMPARED = "this version does not compare such files"
Tensors = dict[str, Tensor]


class Switches(msgspec.Struct, frozen=True, kw_only=True):
    """What a network does that its tensors do not tell."""

    language_cross_attention: bool = True
    action_input: ActionInput = "ob_txt"
    history_layers: int = 0
    pooling: Pooling = "max"
    freeze_text: bool = False
    freeze_history: bool = False
    map_history: bool = True
    history_positions: bool = True
    structured: bool = False

    @classmethod
    def of(cls, arguments: Mapping[str, Json], *, structured: bool = False) -> Switches:
        """The switches among the original's arguments; its defaults where they are not given.

        What else TD-STP can be told changes training (`hist_envdrop`) or inputs, not the network.
        """
        given = {
            "language_cross_attention": not arguments.get("no_lang_ca", False),
            "action_input": arguments.get("act_pred_token", "ob_txt"),
            "history_layers": arguments.get("num_h_layers", 0),
            "pooling": arguments.get("pooling", "max"),
            "freeze_text": arguments.get("fix_lang_embedding", False),
            "freeze_history": arguments.get("fix_hist_embedding", False),
            "map_history": not arguments.get("no_hist_mapping", False),
            "history_positions": not arguments.get("no_pos_emb", False),
            "structured": structured,
        }
        try:
            return msgspec.convert(given, cls, strict=False)
        except msgspec.ValidationError as error:
            raise DataError(f"arguments that this version does not know: {error}") from None

    def told_of(self, network: Tensors) -> AgentSwitches:
        """What the agent of these weights is told; HAMT has fewer switches than TD-STP."""
        told = AgentSwitches(
            language_cross_attention=self.language_cross_attention,
            action_input=self.action_input,
            freeze_text=self.freeze_text,
            freeze_history=self.freeze_history,
        )
        if any(WRAPPER.sub("", key).startswith(TD_STP) for key in network):
            told["structured"], told["history_positions"] = self.structured, self.history_positions
            told["history_mask"] = "as-released"
        return told


@dataclass
class Beside:
    """The files beside a reference file, and which of them were of use."""

    name: str
    """The reference file's name inside the folder of vectors."""
    path: Path
    used: set[str] = field(default_factory=set)
    _read: dict[str, Tensors] = field(default_factory=dict)

    def has(self, file: str) -> bool:
        """Whether such a file lies beside it."""
        return self.path.with_name(file).is_file()

    def tensors(self, file: str) -> Tensors:
        """The tensors of a file beside it, read once."""
        path = self._use(file)
        return self._read.get(file) or self._read.setdefault(file, read_tensors(path))

    def switches(self, config: str) -> Switches:
        """The switches of a configuration."""
        base = config.removesuffix(UPSTREAM)
        found = self._meta("configs", base, "args")
        if not isinstance(found, dict):
            raise DataError(f"{META} says nothing of a configuration '{base}'")
        return Switches.of(found, structured=base != config)

    def navigator(self, switches: Switches, *, replaced: Mapping[str, Tensor] | None = None) -> Navigator:
        """The folder's network, some tensors of it `replaced`; all sizes are those of the tensors."""
        network, replaced = self.tensors(NETWORK), replaced or {}
        if switches.history_layers and self.has(HISTORY_LAYERS):
            network = {**network, **self.tensors(HISTORY_LAYERS)}
        if unknown := sorted(set(replaced) - set(network)):
            raise DataError(f"replaces {', '.join(unknown)}, which the network has not got")
        heads = self._meta("small_bert_config", "num_attention_heads")
        if not isinstance(heads, int) or heads < 1:
            raise DataError(f"{META} does not say how many attention heads there are")
        critic = self.tensors(CRITIC) if self.has(CRITIC) else None
        navigator, _ = navigator_from(
            _without_others({**network, **replaced}, switches),
            critic,
            heads=heads,
            pooling=switches.pooling,
            file=NETWORK,
            **switches.told_of(network),
        )
        if len(network_of(navigator).history_layers) != switches.history_layers:
            raise DataError(f"{switches.history_layers} history layers asked for, and no weights of them")
        return navigator.eval()

    def _meta(self, *keys: str) -> Json:
        found: Json = read_json(self._use(META), dict[str, Json])
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    def _use(self, file: str) -> Path:
        if not self.has(file):
            raise DataError(f"there is no {file} beside it")
        self.used.add(PurePosixPath(self.name).with_name(file).as_posix())
        return self.path.with_name(file)


def read_tensors(path: Path) -> Tensors:
    """The tensors of a safetensors file; raises `DataError` where it is not one, or not complete."""
    try:
        return load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(f"{path}: not a complete safetensors file ({error})") from None


def network_of(navigator: Navigator) -> HAMT | TDSTP:
    """The agent, as what it is."""
    if not isinstance(navigator.agent, HAMT | TDSTP):
        raise DataError(NOT_COMPARED)
    return navigator.agent


def _without_others(network: Tensors, switches: Switches) -> Tensors:
    """The tensors without those of history layers and of a history mapper that are not switched on."""
    layer_of = {key: int(found[1]) for key in network if (found := HISTORY_LAYER.match(key))}
    left_out = () if switches.map_history else (HISTORY_MAPPER,)
    return {
        key: tensor
        for key, tensor in network.items()
        if layer_of.get(key, -1) < switches.history_layers and not WRAPPER.sub("", key).startswith(left_out)
    }
