"""Import published weights as a navigator, and export a navigator in the published format.

Layer sizes are read from the shapes of the tensors. Shapes do not determine the number of attention heads;
the default is one head per 64 features, as in BERT. The task determines the settings that the scripts of the
original code would use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import mode
from typing import Any, Literal, TypedDict, Unpack, cast

import torch
from torch import Size, Tensor, nn

from esceme.agents.base import Agent
from esceme.agents.duet import DUET, DuetConfig
from esceme.agents.hamt import HAMT
from esceme.agents.tdstp import TDSTP, TdstpConfig
from esceme.agents.tokens import ActionInput, HamtConfig, TransformerConfig
from esceme.checkpoints import names as original
from esceme.checkpoints.names import names_of
from esceme.checkpoints.published import Tensors, read_weights, write_fine_tuned
from esceme.errors import CheckpointError, ConfigError
from esceme.files import folder_lock
from esceme.memory import CandidateEnhancing, CandidateEnhancingConfig, NoMemory, Pooling, Reader
from esceme.navigator import Navigator
from esceme.runs import NavigatorConfig, navigator_config, save_run
from esceme.tasks import TASKS

ReaderName = Literal["none", "candidate-enhancing"]
AgentName = Literal["hamt", "tdstp", "duet"]
CONFIGS: dict[AgentName, type[TransformerConfig]] = {
    "hamt": HamtConfig,
    "tdstp": TdstpConfig,
    "duet": DuetConfig,
}
TITLES: dict[AgentName, str] = {"hamt": "HAMT", "tdstp": "TD-STP", "duet": "DUET"}
DUET_TOKENS = 200
"""Maximum number of tokens of an instruction in DUET's scripts."""
HEAD_WIDTH = 64
"""Number of features per attention head in BERT."""


class Switches(TypedDict, total=False):
    """Agent settings that the original code reads from its command line and that weights do not determine."""

    language_cross_attention: bool
    freeze_text: bool
    freeze_history: bool
    action_input: ActionInput
    epsilon: float
    structured: bool
    """This setting and all settings below exist only in TD-STP."""
    history_positions: bool
    history_mask: Literal["real", "as-released"]
    candidate_position_source: Literal["candidate", "agent"]
    allow_backtracking: bool
    penalise_reversed_jumps: bool
    target_weight: float
    revisit: bool
    """Only in DUET."""


@dataclass(frozen=True)
class TensorReport:
    """What happened to each tensor when a file was imported: loaded, ignored or initialised."""

    mapped: dict[str, str]
    """Name of a loaded tensor in the file -> its name in our navigator."""
    ignored: tuple[str, ...]
    """Names in the file of tensors that only pre-training uses. They are not loaded."""
    initialised: tuple[str, ...]
    """Names in our navigator of tensors that the file lacks. They are initialised randomly."""


def navigator_from(
    network: Tensors,
    critic: Tensors | None = None,
    *,
    heads: int | None = None,
    agent: AgentName | None = None,
    reader: ReaderName | None = None,
    pooling: Pooling = "max",
    seed: int = 0,
    file: object = "the weights",
    **switches: Unpack[Switches],
) -> tuple[Navigator, TensorReport]:
    """Build a navigator from tensors of the original code, and report what happened to each tensor.

    `network` and `critic` map the original names to tensors. `agent` and `reader` are detected from these
    names by default; weights of HAMT's pre-training can also initialise TD-STP. If the reader, the critic or
    the modules of TD-STP are missing, they are initialised randomly with `seed`. `file` appears in error
    messages. Raises one `CheckpointError` that lists all tensors that do not fit.
    """
    stored = {**network, **(critic or {})}
    file_names = original.file_names_by_stripped_name(stored, file=file)
    is_duet = original.has_part(file_names, original.DUET_PARTS)
    ignored = {
        name
        for name in file_names
        if name.startswith(original.PRE_TRAINING) or (is_duet and original.DUET_UNUSED.fullmatch(name))
    }
    tensors = {name: stored[file_name] for name, file_name in file_names.items() if name not in ignored}
    config = _config(tensors, heads, _agent_of(tensors, agent, file), switches, file)
    navigator = _initialise_navigator(config, _reader_config(tensors, reader, pooling, config, file), seed)
    names, state = names_of(navigator), navigator.state_dict()
    optional = [(original.FUSION,), (original.CRITIC,), original.TD_STP]
    absent = tuple(
        prefix for prefixes in optional if not original.has_part(tensors, prefixes) for prefix in prefixes
    )
    expected = {theirs: ours for ours, theirs in names.items() if not theirs.startswith(absent)}
    _require_fit({theirs: state[ours].shape for theirs, ours in expected.items()}, tensors, file)
    loaded = {ours: tensors[theirs].detach().float().clone() for theirs, ours in expected.items()}
    navigator.load_state_dict(loaded, strict=False, assign=True)
    return navigator, TensorReport(
        mapped={file_names[theirs]: ours for theirs, ours in expected.items()},
        ignored=tuple(file_name for name, file_name in file_names.items() if name in ignored),
        initialised=tuple(ours for ours in names if ours not in loaded),
    )


def import_weights(
    file: str | Path,
    folder: str | Path,
    *,
    task: str = "r2r",
    critic: str | Path | None = None,
    **options: Any,
) -> tuple[NavigatorConfig, TensorReport]:
    """Convert a published weights file to a run folder; return the config and the report of the tensors.

    `task` determines the maximum numbers of steps and tokens and the agent's settings. `options` are keywords
    of `navigator_from`; None stands for the default. Nothing is written unless all tensors fit.
    """
    if task not in TASKS:
        raise ConfigError(f"no task '{task}'; expected one of {', '.join(TASKS)}")
    weights, limits = read_weights(file, critic=critic), TASKS[task]
    given = {name: value for name, value in options.items() if value is not None}
    names = original.file_names_by_stripped_name(weights.network, file=file)
    is_duet = original.has_part(names, original.DUET_PARTS)  # its scripts have one network for all tasks
    settings = given if is_duet else {**limits.agent_settings, **given}
    navigator, report = navigator_from(weights.network, weights.critic, file=file, **settings)
    config = cast(TransformerConfig, navigator.agent.config)
    run_config = navigator_config(
        navigator,
        task=task,
        max_steps=min(limits.max_steps, config.limits.max_steps or limits.max_steps),
        max_tokens=min(DUET_TOKENS if is_duet else limits.max_tokens, config.positions),
        keep=limits.keep,
        origin=f"{Path(file).name} ({weights.kind})",
    )
    with folder_lock(Path(folder), "import"):
        save_run(folder, navigator, run_config)
    return run_config, report


def export_weights(navigator: Navigator, file: str | Path) -> dict[str, str]:
    """Write weights as a fine-tuned file of the original code; return a dict from our to original names.

    Raises `CheckpointError` if the original code does not support the agent, the reader or a setting.
    """
    names = original.fine_tuned_names(navigator)
    _require_released(navigator)
    state = navigator.state_dict()
    tensors = {theirs: state[ours].detach().cpu() for ours, theirs in names.items()}
    critic = {name: tensor for name, tensor in tensors.items() if name.startswith(original.CRITIC)}
    network = {name: tensor for name, tensor in tensors.items() if name not in critic}
    write_fine_tuned(Path(file), network, critic)
    return names


# -- configs and checks ------------------------------------------------------------------------------------


def _agent_of(tensors: Tensors, requested: AgentName | None, file: object) -> AgentName:
    """Return the name of the weights' agent; raise `CheckpointError` if another agent is `requested`."""
    found: AgentName = "tdstp" if original.has_part(tensors, original.TD_STP) else "hamt"
    if original.has_part(tensors, original.DUET_PARTS):
        found = "duet"
    fine_tuned = original.has_part(tensors, (original.CRITIC, original.FUSION, *original.TD_STP))
    if requested in (None, found) or (requested == "tdstp" and found == "hamt" and not fine_tuned):
        return requested or found
    raise CheckpointError(
        f"{file}: these are weights of {TITLES[found]}, not of {TITLES[requested]}; import them as '{found}'"
    )


def _config(
    tensors: Tensors, heads: int | None, agent: AgentName, switches: Switches, file: object
) -> TransformerConfig:
    """Return the agent's config. Sizes come from the shapes of the tensors, settings from `switches`."""
    found = {field: _size(tensors, sources) for field, sources in original.SIZES.items()}
    sizes: dict[str, Any] = {field: size for field, size in found.items() if size is not None}
    hidden = sizes.get("hidden", HamtConfig.hidden)
    if heads is None and hidden % HEAD_WIDTH:
        raise ConfigError(
            f"{file}: the number of heads cannot be read off the weights, "
            f"and hidden size {hidden} is not divisible by {HEAD_WIDTH}; give the number of heads"
        )
    config_class = CONFIGS[agent]
    if foreign := sorted(set(switches) - {field.name for field in fields(config_class)}):
        owners = [
            TITLES[name] for name, kind in CONFIGS.items() if set(foreign) <= {f.name for f in fields(kind)}
        ]
        raise ConfigError(
            f"{file}: {', '.join(foreign)}: only {' and '.join(owners)} has this setting, found weights of "
            f"{TITLES[agent]}"
        )
    structure = _duet_structure(tensors) if agent == "duet" else _hamt_structure(tensors, agent)
    try:
        return config_class(
            **sizes,
            heads=hidden // HEAD_WIDTH if heads is None else heads,
            **structure,
            **cast(dict[str, Any], switches),  # checked above
        )
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def _hamt_structure(tensors: Tensors, agent: AgentName) -> dict[str, Any]:
    """Return the settings of HAMT or TD-STP that follow from the modules in the file, by field."""
    structure: dict[str, Any] = {
        "text_layers": original.count_layers(tensors, original.TEXT_LAYERS),
        "cross_layers": max(1, original.count_layers(tensors, original.CROSS_LAYERS)),
        "history_layers": original.count_layers(tensors, original.HISTORY_LAYERS),
        "panorama_layers": original.count_layers(tensors, original.PANORAMA_LAYERS),
        "encode_panorama": original.has_part(tensors, original.PANORAMA),
    }
    if agent == "tdstp":
        has_mapper = original.has_part(tensors, original.HISTORY_MAPPER)
        structure["map_history"] = has_mapper or not original.has_part(tensors, original.TD_STP)
    return structure


def _duet_structure(tensors: Tensors) -> dict[str, Any]:
    """Return the settings of DUET that follow from the modules in the file, by field."""
    return {
        "text_layers": original.count_layers(tensors, original.DUET_TEXT_LAYERS),
        "cross_layers": max(1, original.count_layers(tensors, original.DUET_VIEW_LAYERS)),
        "panorama_layers": original.count_layers(tensors, original.DUET_PANORAMA_LAYERS),
        "fusion": "dynamic" if original.has_part(tensors, original.DUET_GATE) else "avg",
        "graph_bias": original.has_part(tensors, original.DUET_BIAS),
    }


def _reader_config(
    tensors: Tensors, reader: ReaderName | None, pooling: Pooling, config: TransformerConfig, file: object
) -> CandidateEnhancingConfig | None:
    """Return the config of the memory reader to which the weights belong; None without a reader.

    If the weights have no reader, `reader` can add a randomly initialised reader.
    """
    has_reader = original.has_part(tensors, original.FUSION)
    if has_reader and reader == "none":
        raise ConfigError(f"{file}: these weights include a reader and cannot be imported with reader 'none'")
    if not has_reader and reader != "candidate-enhancing":
        return None
    width, hidden = config.feature_width, _size(tensors, original.FUSION_SIZE)
    return CandidateEnhancingConfig(width=width, hidden=None if hidden == width else hidden, pooling=pooling)


def _initialise_navigator(
    config: TransformerConfig, reader_config: CandidateEnhancingConfig | None, seed: int
) -> Navigator:
    """Build a navigator with weights on the meta device, to be replaced by loaded weights.

    The critic, the reader and the modules of TD-STP that HAMT lacks are initialised with `seed` on the CPU.
    """
    with torch.device("meta"):
        kinds: dict[type, type[Agent[Any]]] = {kind.Config: kind for kind in (HAMT, TDSTP, DUET)}
        agent = kinds[type(config)](config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        modules = dict(agent.named_children())
        for name in ("position_encoder", "history_mapper", "goal_head", "critic"):
            if name in modules:
                for layer in modules[name].to_empty(device="cpu").modules():
                    if isinstance(layer, nn.Linear | nn.LayerNorm):
                        layer.reset_parameters()
        reader: Reader = NoMemory() if reader_config is None else CandidateEnhancing(reader_config)
    return Navigator(agent, reader)


def _size(tensors: Tensors, sources: original.SizeSource) -> int | None:
    """Return the most frequent size of the tensors that `sources` selects; None if there are none."""
    found = [
        tensor.shape[axis]
        for pattern, axis in sources
        for name, tensor in tensors.items()
        if tensor.ndim > axis and re.fullmatch(pattern, name)
    ]
    return mode(found) if found else None


def _require_fit(expected: Mapping[str, Size], tensors: Tensors, file: object) -> None:
    """Raise one `CheckpointError` that lists all missing, unknown, misshapen and non-finite tensors.

    `expected` maps the original name of every tensor to its shape.
    """
    both = [name for name in expected if name in tensors]
    misshapen = [name for name in both if tensors[name].shape != expected[name]]
    faults = {
        "missing": [name for name in expected if name not in tensors],
        "unknown": [name for name in tensors if name not in expected],
        "of the wrong shape": [
            f"{name} {tuple(tensors[name].shape)}, expected {tuple(expected[name])}" for name in misshapen
        ],
        "not finite": [name for name in both if name not in misshapen and not _is_finite(tensors[name])],
    }
    found = [f"{len(names)} {fault}: {', '.join(names)}" for fault, names in faults.items() if names]
    if found:
        raise CheckpointError(
            f"{file}: the weights fit no network of HAMT, TD-STP, DUET or ESceme; {'; '.join(found)}"
        )


def _is_finite(tensor: Tensor) -> bool:
    is_dense = tensor.is_floating_point() and tensor.layout is torch.strided and not tensor.is_meta
    return is_dense and bool(tensor.float().isfinite().all())


def _require_released(navigator: Navigator) -> None:
    """Raise `CheckpointError` for a setting that changes outputs and that the original code lacks."""
    own = ("context_views",) if isinstance(navigator.agent, DUET) else ("context_views", "stop_features")
    fixed: list[tuple[Any, Any, tuple[str, ...]]] = [(navigator.agent.config, HamtConfig(), own)]
    if isinstance(navigator.reader, CandidateEnhancing):
        fields = ("order", "context", "stop", "norm", "epsilon", "shortcut")
        fixed.append((navigator.reader.config, CandidateEnhancingConfig(), fields))
    for config, released, names in fixed:
        changed = [name for name in names if getattr(config, name) != getattr(released, name)]
        if changed:
            settings = ", ".join(f"{name} {getattr(config, name)}" for name in changed)
            raise CheckpointError(f"the original does not support {settings}; its outputs would differ")
