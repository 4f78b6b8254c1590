"""Inputs of the comparisons: the public datasets, and the weights and settings beside a reference file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import cast

import msgspec
import safetensors
from safetensors.torch import load_file
from torch import Tensor

from esceme.agents.hamt import HAMT
from esceme.agents.tdstp import TDSTP
from esceme.checkpoints import Switches, navigator_from
from esceme.checkpoints.exchange import TDSTP_SWITCHES
from esceme.checkpoints.names import HISTORY_MAPPER, TD_STP, WRAPPER
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
"""Files that are not compared themselves: the numbers of other files are computed from them."""
NETWORK, CRITIC, META = "vln_bert.safetensors", "critic.safetensors", "meta.json"
HISTORY_LAYERS = "vln_bert_h_layers_extra.safetensors"
UPSTREAM = "_upstreamTDSTP"
"""Suffix of configurations that TD-STP's own repository computed: the settings of the configuration before
the suffix, with the structured mask that ESceme's release does not apply (docs/spec.md D.6)."""
HISTORY_LAYER = re.compile(r"(?:vln_bert\.)?encoder\.h_layers\.(\d+)\.")
NOT_COMPARED = "this version does not compare such files"
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class ReferenceData:
    """The public datasets that the reference files are about; each is read when it is first used."""

    root: Path

    @cached_property
    def graphs(self) -> dict[str, SceneGraph]:
        """Every scene of the data folder by id."""
        return read_scenes(DataFolder(self.root).connectivity)

    @cached_property
    def atlas(self) -> Atlas:
        """All scenes of the data folder as one atlas, without features."""
        return Atlas(self.graphs.values())

    @cached_property
    def episodes(self) -> Callable[[str], dict[str, Episode]]:
        """A function that takes a split and returns the R2R episodes of this split by id."""
        return cache(
            lambda split: {episode.episode_id: episode for episode in read_r2r(self._r2r_file(split))}
        )

    @cached_property
    def r4r_paths(self) -> Callable[[str], set[tuple[str, ...]]]:
        """A function that takes a split and returns its R4R paths, joined from R2R."""
        return cache(
            lambda split: {
                tuple(record.path)
                for record in join_paths(read_r2r_records(self._r2r_file(split), self.graphs), self.graphs)
            }
        )

    @cached_property
    def predictions(self) -> list[dict[str, Prediction]]:
        """Every valid prediction file of the data folder."""
        found = []
        for path in sorted((self.root / "predictions").glob("*.json")):
            with suppress(EscemeError):
                found.append(read_predictions(path))
        return found

    def episodes_with(self, episode_ids: set[str]) -> dict[str, Episode]:
        """Return R2R episodes by id, at least those of `episode_ids` that R2R has.

        Splits are read one after the other until all ids are found. Without R2R, the result is empty.
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
    """Settings of a network that its tensors do not determine."""

    switches: Switches
    history_layers: int
    map_history: bool
    pooling: Pooling

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Json], *, structured: bool = False) -> NetworkOptions:
        """Read the options from the original's arguments, with its defaults where they are not given.

        Other arguments of TD-STP change training (`hist_envdrop`) or inputs, not the network.
        """
        switches = {
            "language_cross_attention": not arguments.get("no_lang_ca", False),
            "action_input": arguments.get("act_pred_token", "ob_txt"),
            "freeze_text": arguments.get("fix_lang_embedding", False),
            "freeze_history": arguments.get("fix_hist_embedding", False),
            "history_positions": not arguments.get("no_pos_emb", False),
            "structured": structured,
            "history_mask": "as-released",
        }
        try:
            return cls(
                msgspec.convert(switches, Switches, strict=False),
                msgspec.convert(arguments.get("num_h_layers", 0), int, strict=False),
                not arguments.get("no_hist_mapping", False),
                msgspec.convert(arguments.get("pooling", "max"), Pooling),
            )
        except msgspec.ValidationError as error:
            raise DataError(f"arguments that this version does not know: {error}") from None

    def switches_for(self, network: Tensors) -> Switches:
        """Return the switches of the agent of these weights; HAMT has fewer switches than TD-STP."""
        if any(WRAPPER.sub("", name).startswith(TD_STP) for name in network):
            return self.switches
        switches = {name: value for name, value in self.switches.items() if name not in TDSTP_SWITCHES}
        return cast(Switches, switches)

    def select_tensors(self, network: Tensors) -> Tensors:
        """Return the tensors of the modules that the options switch on.

        The options can switch off history layers and the history mapper.
        """
        layer_of = {name: int(match[1]) for name in network if (match := HISTORY_LAYER.match(name))}
        excluded = () if self.map_history else (HISTORY_MAPPER,)
        return {
            name: tensor
            for name, tensor in network.items()
            if layer_of.get(name, -1) < self.history_layers and not WRAPPER.sub("", name).startswith(excluded)
        }


@dataclass
class NetworkFiles:
    """The weights, inputs and settings in the folder of a reference file."""

    path: Path
    """The reference file."""
    used: set[str] = field(default_factory=set)
    """Names of the files that were read."""
    _cache: dict[str, Tensors] = field(default_factory=dict)

    def has(self, file: str) -> bool:
        """Whether the reference file's folder holds `file`."""
        return self.path.with_name(file).is_file()

    def tensors(self, file: str) -> Tensors:
        """Return the tensors of a file in the same folder; the file is read once."""
        path = self._path_of_used(file)
        return self._cache.get(file) or self._cache.setdefault(file, read_tensors(path))

    def options(self, config: str) -> NetworkOptions:
        """Return the network options that `meta.json` states for a configuration."""
        base = config.removesuffix(UPSTREAM)
        arguments = self._meta_value("configs", base, "args")
        if not isinstance(arguments, dict):
            raise DataError(f"{META} says nothing of a configuration '{base}'")
        return NetworkOptions.from_arguments(arguments, structured=base != config)

    def navigator(
        self, options: NetworkOptions, *, replaced: Mapping[str, Tensor] | None = None
    ) -> Navigator:
        """Build the network of the folder in eval mode.

        `replaced` maps names of tensors to tensors that are used instead of the folder's.
        """
        network, replaced = self.tensors(NETWORK), replaced or {}
        if options.history_layers and self.has(HISTORY_LAYERS):
            network = {**network, **self.tensors(HISTORY_LAYERS)}
        if unknown := sorted(set(replaced) - set(network)):
            raise DataError(f"replaces {', '.join(unknown)}, which the network has not got")
        heads = self._meta_value("small_bert_config", "num_attention_heads")
        if not isinstance(heads, int) or heads < 1:
            raise DataError(f"{META} does not say how many attention heads there are")
        navigator, _ = navigator_from(
            options.select_tensors({**network, **replaced}),
            self.tensors(CRITIC) if self.has(CRITIC) else None,
            heads=heads,
            pooling=options.pooling,
            file=NETWORK,
            **options.switches_for(network),
        )
        if len(network_of(navigator).history_layers) != options.history_layers:
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
    """Read the tensors of a safetensors file; raises `DataError` for an invalid or incomplete file."""
    try:
        return load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(f"{path}: not a complete safetensors file ({error})") from None


def network_of(navigator: Navigator) -> HAMT | TDSTP:
    """Return the navigator's agent; raises `DataError` if it is neither HAMT nor TD-STP."""
    if not isinstance(navigator.agent, HAMT | TDSTP):
        raise DataError(NOT_COMPARED)
    return navigator.agent
