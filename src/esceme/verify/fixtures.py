"""Inputs of the comparisons: the public datasets, and the weights and settings beside a reference file.

A reference file holds numbers that the original code computed. The weights and settings with which the
original code computed these numbers are files in the same folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from pathlib import Path
from typing import cast

import msgspec
import safetensors
from safetensors.torch import load_file
from torch import Tensor

from esceme.agents.duet import DUET, DuetConfig
from esceme.agents.hamt import HAMT
from esceme.agents.tdstp import TDSTP, TdstpConfig
from esceme.agents.tokens import HamtConfig
from esceme.checkpoints import Switches, navigator_from
from esceme.checkpoints.names import (
    DUET_BIAS,
    DUET_GATE,
    DUET_PARTS,
    HISTORY_MAPPER,
    TD_STP,
    WRAPPER,
    has_part,
)
from esceme.errors import DataError, EscemeError
from esceme.files import read_json
from esceme.memory import Pooling
from esceme.navigator import Navigator
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.r2r import read_r2r
from esceme.tasks.r4r import join_paths, read_r2r_records
from esceme.tasks.submission import Prediction, read_predictions
from esceme.verify.comparison import Json
from esceme.world.atlas import Atlas
from esceme.world.graph import SceneGraph, read_scenes

FIXTURE_FILES = r"(.*/)?((vln_bert|vln_bert_h_layers_extra|critic|case[^_/]+_inputs)\.safetensors|meta\.json)"
"""Regular expression for the names of files that are not compared. Numbers in other files depend on them."""
NETWORK, CRITIC, META = "vln_bert.safetensors", "critic.safetensors", "meta.json"
HISTORY_LAYERS = "vln_bert_h_layers_extra.safetensors"
UPSTREAM = "_upstreamTDSTP"
"""Suffix of the names of configurations that the code of TD-STP's own repository computed.

Their settings are those of the configuration named before the suffix, plus the structured mask, which
ESceme's release does not apply (docs/spec.md D.6).
"""
HISTORY_LAYER = re.compile(r"(?:vln_bert\.)?encoder\.h_layers\.(\d+)\.")
NOT_COMPARED = "this version does not compare such files"
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class ReferenceData:
    """Public datasets from which the reference numbers were computed. Each is read at its first use."""

    root: Path

    @cached_property
    def graphs(self) -> dict[str, SceneGraph]:
        """Scene id -> navigation graph, for every scene of the data folder."""
        return read_scenes(DataFolder(self.root).connectivity)

    @cached_property
    def atlas(self) -> Atlas:
        """Atlas of all scenes of the data folder, without features."""
        return Atlas(self.graphs.values())

    @cached_property
    def episodes(self) -> Callable[[str], dict[str, Episode]]:
        """Function that takes a split and returns a dict from episode id to R2R episode."""
        return cache(
            lambda split: {episode.episode_id: episode for episode in read_r2r(self._r2r_file(split))}
        )

    @cached_property
    def r4r_paths(self) -> Callable[[str], set[tuple[str, ...]]]:
        """Function that takes a split and returns its R4R paths (viewpoint ids), which are made from R2R."""
        return cache(
            lambda split: {
                tuple(record.path)
                for record in join_paths(read_r2r_records(self._r2r_file(split), self.graphs), self.graphs)
            }
        )

    @cached_property
    def predictions(self) -> list[dict[str, Prediction]]:
        """One dict from episode id to prediction for every valid prediction file of the data folder."""
        found = []
        for path in sorted((self.root / "predictions").glob("*.json")):
            with suppress(EscemeError):
                found.append(read_predictions(path))
        return found

    def episodes_with(self, episode_ids: set[str]) -> dict[str, Episode]:
        """Return a dict from id to R2R episode that contains all of `episode_ids` that exist in R2R.

        Splits are read one after the other until all ids are found. The result is empty if the folder has no
        R2R.
        """
        known: dict[str, Episode] = {}
        for split in ("val_unseen", "val_seen", "train"):
            if not episode_ids <= set(known):
                with suppress(DataError):
                    known |= self.episodes(split)
        return known

    def _r2r_file(self, split: str) -> Path:
        path = DataFolder(self.root).annotations("r2r", split)
        if path is None:
            raise DataError(f"{self.root}: no R2R file of split {split}")
        return path


@dataclass(frozen=True)
class NetworkOptions:
    """Settings of a network that cannot be inferred from the shapes of its weights."""

    switches: Switches
    history_layers: int
    map_history: bool
    pooling: Pooling
    excluded: tuple[str, ...] = ()
    """Prefixes of the names of DUET's tensors that the settings turn off."""

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Json], *, structured: bool = False) -> NetworkOptions:
        """Read the settings from the arguments of the original code; its defaults replace missing arguments.

        `structured` turns on the structured mask of TD-STP. Arguments that change only training or inputs,
        such as `hist_envdrop`, are ignored.
        """
        switches = {
            "language_cross_attention": not arguments.get("no_lang_ca", False),
            "action_input": arguments.get("act_pred_token", "ob_txt"),
            "freeze_text": arguments.get("fix_lang_embedding", False),
            "freeze_history": arguments.get("fix_hist_embedding", False),
            "history_positions": not arguments.get("no_pos_emb", False),
            "structured": structured,
            "history_mask": "as-released",
            "revisit": arguments.get("act_visited_nodes", False),
        }
        is_off = {
            DUET_BIAS: not arguments.get("graph_sprels", True),
            DUET_GATE: arguments.get("fusion", "dynamic") != "dynamic",
        }
        try:
            return cls(
                msgspec.convert(switches, Switches, strict=False),
                msgspec.convert(arguments.get("num_h_layers", 0), int, strict=False),
                not arguments.get("no_hist_mapping", False),
                msgspec.convert(arguments.get("pooling", "max"), Pooling),
                tuple(prefix for prefix, off in is_off.items() if off),
            )
        except msgspec.ValidationError as error:
            raise DataError(f"arguments that this version does not know: {error}") from None

    def switches_for(self, network: Tensors) -> Switches:
        """Return the settings that the agent of the given weights has."""
        names = [WRAPPER.sub("", name) for name in network]
        kind = TdstpConfig if has_part(names, TD_STP) else HamtConfig
        known = fields(DuetConfig if has_part(names, DUET_PARTS) else kind)
        settings = {field.name for field in known}
        return cast(Switches, {name: value for name, value in self.switches.items() if name in settings})

    def select_tensors(self, network: Tensors) -> Tensors:
        """Return the tensors of `network` except those of modules that the settings turn off.

        The settings can turn off history layers and the history mapper, and DUET's gate and distances.
        """
        layer_of = {name: int(match[1]) for name in network if (match := HISTORY_LAYER.match(name))}
        excluded = self.excluded if self.map_history else (*self.excluded, HISTORY_MAPPER)
        return {
            name: tensor
            for name, tensor in network.items()
            if layer_of.get(name, -1) < self.history_layers and not WRAPPER.sub("", name).startswith(excluded)
        }


@dataclass
class NetworkFiles:
    """Weights, inputs and settings in the folder of one reference file."""

    path: Path
    """Path of the reference file."""
    used: set[str] = field(default_factory=set)
    """Names of the files that were read so far."""
    _cache: dict[str, Tensors] = field(default_factory=dict)

    def has(self, file: str) -> bool:
        """Return whether the folder of the reference file holds a file called `file`."""
        return self.path.with_name(file).is_file()

    def tensors(self, file: str) -> Tensors:
        """Return a dict from name to tensor, read from `file` in the same folder. A file is read once."""
        path = self._path_of_used(file)
        return self._cache.get(file) or self._cache.setdefault(file, read_tensors(path))

    def options(self, config: str) -> NetworkOptions:
        """Return the settings that `meta.json` in the same folder states for a configuration."""
        base = config.removesuffix(UPSTREAM)
        arguments = self._meta_value("configs", base, "args")
        if not isinstance(arguments, dict):
            raise DataError(f"{META} has no configuration '{base}'")
        return NetworkOptions.from_arguments(arguments, structured=base != config)

    def navigator(
        self, options: NetworkOptions, *, replaced: Mapping[str, Tensor] | None = None
    ) -> Navigator:
        """Build a navigator with the weights in the folder of the reference file, in eval mode.

        `replaced` maps names of tensors to values that are used instead of those in the folder.
        """
        network, replaced = self.tensors(NETWORK), replaced or {}
        if options.history_layers and self.has(HISTORY_LAYERS):
            network = {**network, **self.tensors(HISTORY_LAYERS)}
        if unknown := sorted(set(replaced) - set(network)):
            raise DataError(f"replaces {', '.join(unknown)}, which the network has not got")
        heads = self._meta_value("small_bert_config", "num_attention_heads")
        if not isinstance(heads, int) or heads < 1:
            raise DataError(f"{META} has no number of attention heads")
        navigator, _ = navigator_from(
            options.select_tensors({**network, **replaced}),
            self.tensors(CRITIC) if self.has(CRITIC) else None,
            heads=heads,
            pooling=options.pooling,
            file=NETWORK,
            **options.switches_for(network),
        )
        agent = navigator.agent
        if isinstance(agent, HAMT | TDSTP) and len(agent.history_layers) != options.history_layers:
            raise DataError(f"{options.history_layers} history layers configured, but no weights of them")
        return navigator.eval()

    def _meta_value(self, *keys: str) -> Json:
        value: Json = read_json(self._path_of_used(META), dict[str, Json])
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def _path_of_used(self, file: str) -> Path:
        if not self.has(file):
            raise DataError(f"there is no {file} beside it")
        self.used.add(file)
        return self.path.with_name(file)


def read_tensors(path: Path) -> Tensors:
    """Read a dict from name to tensor from a safetensors file; raise `DataError` if the file is damaged."""
    try:
        return load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(f"{path}: not a complete safetensors file ({error})") from None


def is_duet(path: Path) -> bool:
    """Return whether the weights beside a reference file are those of DUET; False if they cannot be read."""
    try:
        with safetensors.safe_open(path.with_name(NETWORK), "pt") as weights:
            names = list(weights.keys())
    except (OSError, safetensors.SafetensorError):
        return False
    return has_part([WRAPPER.sub("", name) for name in names], DUET_PARTS)


def duet_of(navigator: Navigator) -> DUET:
    """Return the agent of a navigator; raise `DataError` if it is not DUET."""
    if not isinstance(navigator.agent, DUET):
        raise DataError(NOT_COMPARED)
    return navigator.agent


def network_of(navigator: Navigator) -> HAMT | TDSTP:
    """Return the agent of a navigator; raise `DataError` if it is neither HAMT nor TD-STP."""
    if not isinstance(navigator.agent, HAMT | TDSTP):
        raise DataError(NOT_COMPARED)
    return navigator.agent
