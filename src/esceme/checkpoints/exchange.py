"""Published weights become a navigator and back.

Sizes are read off the tensors. Two things cannot be: the number of heads, by default one for every 64
numbers as in BERT, and the switches of the original's scripts, which follow from the task.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mode
from typing import Any, Literal, TypedDict, Unpack, cast

import torch
from torch import Size, Tensor

from esceme.agents.hamt import HAMT
from esceme.agents.layers import Critic
from esceme.agents.tdstp import TDSTP, TdstpConfig
from esceme.agents.tokens import ActionInput, HamtConfig
from esceme.checkpoints import names as their
from esceme.checkpoints.names import names_of
from esceme.checkpoints.published import Tensors, read_weights, write_fine_tuned
from esceme.errors import CheckpointError, ConfigError
from esceme.memory import CandidateEnhancing, CandidateEnhancingConfig, NoMemory, Pooling, Reader
from esceme.navigator import Navigator
from esceme.runs import NavigatorConfig, navigator_config, save_run
from esceme.tasks import TASKS

ReaderName = Literal["none", "candidate-enhancing"]
AgentName = Literal["hamt", "tdstp"]
CONFIGS: dict[AgentName, type[HamtConfig]] = {"hamt": HamtConfig, "tdstp": TdstpConfig}
HEAD = 64
"""How many numbers a head of BERT looks at."""


class Switches(TypedDict, total=False):
    """What weights do not tell: the switches of the original's scripts, fields of the agents' settings."""

    language_cross_attention: bool
    freeze_text: bool
    freeze_history: bool
    action_input: ActionInput
    epsilon: float
    structured: bool
    """TD-STP's alone, as the next two."""
    history_positions: bool
    history_mask: Literal["real", "as-released"]


TRAINED_WHOLE = Switches(language_cross_attention=False, freeze_text=False, freeze_history=False)
SWITCHES: dict[str, Switches] = {
    "r4r": TRAINED_WHOLE,
    "cvdn": TRAINED_WHOLE,
    "rxr": Switches(language_cross_attention=False, epsilon=1e-5),
}
"""The switches of the original's scripts by task (spec B.1, G); other tasks are as R2R, the default."""


@dataclass(frozen=True)
class Report:
    """What became of the tensors of a file."""

    mapped: dict[str, str]
    """Names in the file -> ours."""
    ignored: tuple[str, ...]
    """Names in the file that only pre-training uses."""
    initialised: tuple[str, ...]
    """Ours that the file does not have: newly drawn."""


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
) -> tuple[Navigator, Report]:
    """Build a navigator from the original's tensors, and report how each tensor was used.

    `agent` and `reader` are by default those that the weights were made with; HAMT's pre-training also begins
    TD-STP. What they do not hold of a reader, a critic or TD-STP is drawn from `seed`. Raises
    `CheckpointError` that names all tensors that do not fit at once.
    """
    stored = {**network, **(critic or {})}
    named = their.recognise(stored, file=file)
    ignored = [known for known in named if known.startswith(their.PRE_TRAINING)]
    tensors = {known: stored[name] for known, name in named.items() if known not in ignored}
    config = _config(tensors, heads, _agent_of(tensors, agent, file), switches, file)
    navigator = _hollow(config, _reader_config(tensors, reader, pooling, config, file), seed)
    names, shapes = (
        names_of(navigator),
        {ours: tensor.shape for ours, tensor in navigator.state_dict().items()},
    )
    optional = [(their.FUSION,), (their.CRITIC,), their.TD_STP]
    drawn = tuple(part for parts in optional if not their.has(tensors, parts) for part in parts)
    expected = {theirs: ours for ours, theirs in names.items() if not theirs.startswith(drawn)}
    _require_fit({theirs: shapes[ours] for theirs, ours in expected.items()}, tensors, file)
    filled = {ours: tensors[theirs].detach().float().clone() for theirs, ours in expected.items()}
    navigator.load_state_dict(filled, strict=False, assign=True)
    return navigator, Report(
        mapped={named[theirs]: ours for theirs, ours in expected.items()},
        ignored=tuple(named[known] for known in ignored),
        initialised=tuple(ours for ours in names if ours not in filled),
    )


def import_weights(
    file: str | Path,
    folder: str | Path,
    *,
    task: str = "r2r",
    critic: str | Path | None = None,
    heads: int | None = None,
    agent: AgentName | None = None,
    reader: ReaderName | None = None,
    pooling: Pooling = "max",
    seed: int = 0,
    language_cross_attention: bool | None = None,
    structured: bool | None = None,
) -> tuple[NavigatorConfig, Report]:
    """Make a run folder of a published file, for a task, which decides the switches and the limits.

    Nothing is written unless everything in the file fits.
    """
    if task not in TASKS:
        raise ConfigError(f"no task '{task}'; there are {', '.join(TASKS)}")
    weights, limits, switches = read_weights(file, critic=critic), TASKS[task], Switches()
    switches.update(SWITCHES.get(task, Switches()))
    if language_cross_attention is not None:
        switches["language_cross_attention"] = language_cross_attention
    if structured is not None:
        switches["structured"] = structured
    navigator, report = navigator_from(
        weights.network,
        weights.critic,
        heads=heads,
        agent=agent,
        reader=reader,
        pooling=pooling,
        seed=seed,
        file=file,
        **switches,
    )
    config = cast(HamtConfig, navigator.agent.config)
    run_config = navigator_config(
        navigator,
        task=task,
        max_steps=min(limits.max_steps, config.max_steps),
        max_tokens=min(limits.max_tokens, config.positions),
        keep=limits.keep,
        origin=f"{Path(file).name} ({weights.kind})",
    )
    save_run(folder, navigator, run_config)
    return run_config, report


def export_weights(navigator: Navigator, file: str | Path) -> dict[str, str]:
    """Write a fine-tuned file as the original does; gives our names -> those in the file.

    Raises `CheckpointError` for what the original does not have: other agents and readers, and a reader
    that follows the paper where the original does not.
    """
    names = {
        ours: theirs if theirs.startswith((their.CRITIC, *their.TD_STP)) else f"vln_bert.{theirs}"
        for ours, theirs in names_of(navigator).items()
    }
    _require_released(navigator)
    state = navigator.state_dict()
    tensors = {theirs: state[ours].detach().cpu() for ours, theirs in names.items()}
    critic = {name: tensor for name, tensor in tensors.items() if name.startswith(their.CRITIC)}
    network = {name: tensor for name, tensor in tensors.items() if name not in critic}
    write_fine_tuned(Path(file), network, critic)
    return names


# -- parts of them ----------------------------------------------------------------------------------------


def _agent_of(tensors: Tensors, requested: AgentName | None, file: object) -> AgentName:
    """Detect the agent of the weights; raise `CheckpointError` if another one was requested."""
    found: AgentName = "tdstp" if their.has(tensors, their.TD_STP) else "hamt"
    fine_tuned = their.has(tensors, (their.CRITIC, their.FUSION, *their.TD_STP))
    if requested in (None, found) or (requested == "tdstp" and not fine_tuned):
        return requested or found
    titles = {"hamt": "HAMT", "tdstp": "TD-STP"}
    raise CheckpointError(
        f"{file}: these are weights of {titles[found]}, not of {titles[requested]}; import them as '{found}'"
    )


def _config(
    tensors: Tensors, heads: int | None, agent: AgentName, switches: Switches, file: object
) -> HamtConfig:
    """The sizes of a network from the shapes of its tensors."""
    found = {field: _size(tensors, sources) for field, sources in their.SIZES.items()}
    sizes: dict[str, Any] = {field: size for field, size in found.items() if size is not None}
    hidden = sizes.get("hidden", HamtConfig.hidden)
    if heads is None and hidden % HEAD:
        raise ConfigError(
            f"{file}: the number of heads cannot be read off the weights, "
            f"and {hidden} numbers are not shared out evenly to heads of {HEAD}; give the number of heads"
        )
    kind, own = CONFIGS[agent], dict[str, Any](switches)
    if kind is TdstpConfig:
        own["map_history"] = their.has(tensors, their.HISTORY_MAPPER) or not their.has(tensors, their.TD_STP)
    elif odd := sorted({"structured", "history_positions", "history_mask"} & set(own)):
        raise ConfigError(f"{file}: {', '.join(odd)} is of TD-STP, and these are weights of HAMT")
    try:
        return kind(
            **sizes,
            heads=hidden // HEAD if heads is None else heads,
            text_layers=their.count_layers(tensors, their.TEXT_LAYERS),
            cross_layers=max(1, their.count_layers(tensors, their.CROSS_LAYERS)),
            history_layers=their.count_layers(tensors, their.HISTORY_LAYERS),
            panorama_layers=their.count_layers(tensors, their.PANORAMA_LAYERS),
            encode_panorama=their.has(tensors, their.PANORAMA),
            **own,
        )
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def _reader_config(
    tensors: Tensors, reader: ReaderName | None, pooling: Pooling, config: HamtConfig, file: object
) -> CandidateEnhancingConfig | None:
    """Settings of the reader of these weights; None for `NoMemory`."""
    fuses = their.has(tensors, their.FUSION)
    if fuses and reader == "none":
        raise ConfigError(f"{file}: these weights include a reader and cannot be imported with reader 'none'")
    if not fuses and reader != "candidate-enhancing":
        return None
    width, between = config.feature_width, _size(tensors, their.FUSION_SIZE)
    return CandidateEnhancingConfig(
        width=width, hidden=None if between == width else between, pooling=pooling
    )


def _hollow(config: HamtConfig, reader_config: CandidateEnhancingConfig | None, seed: int) -> Navigator:
    """A navigator whose critic, reader and what TD-STP has of its own are drawn; the rest has no numbers."""
    with torch.device("meta"):
        agent: HAMT | TDSTP = TDSTP(config) if isinstance(config, TdstpConfig) else HAMT(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(agent, TDSTP):
            agent.build_own_modules()
        agent.critic = Critic(config.hidden, config.critic_inner, dropout=config.critic_dropout)
        reader: Reader = NoMemory() if reader_config is None else CandidateEnhancing(reader_config)
    return Navigator(agent, reader)


def _size(tensors: Tensors, sources: their.Telling) -> int | None:
    """Most frequent size among the tensors that `sources` names; None if there are none."""
    found = [
        tensor.shape[axis]
        for pattern, axis in sources
        for name, tensor in tensors.items()
        if tensor.ndim > axis and re.fullmatch(pattern, name)
    ]
    return mode(found) if found else None


def _require_fit(expected: Mapping[str, Size], tensors: Tensors, file: object) -> None:
    """Raise one `CheckpointError` that lists all tensors that differ from `expected`."""
    both = [name for name in expected if name in tensors]
    misshapen = [name for name in both if tensors[name].shape != expected[name]]
    faults = {
        "missing": [name for name in expected if name not in tensors],
        "unknown": [name for name in tensors if name not in expected],
        "of another shape": [
            f"{name} {tuple(tensors[name].shape)} instead of {tuple(expected[name])}" for name in misshapen
        ],
        "not of finite numbers": [
            name for name in both if name not in misshapen and not _is_finite(tensors[name])
        ],
    }
    found = [f"{len(names)} {fault}: {', '.join(names)}" for fault, names in faults.items() if names]
    if found:
        raise CheckpointError(
            f"{file}: the weights fit no network of HAMT, TD-STP or ESceme; {'; '.join(found)}"
        )


def _is_finite(tensor: Tensor) -> bool:
    plain = tensor.is_floating_point() and tensor.layout is torch.strided and not tensor.is_meta
    return plain and bool(tensor.isfinite().all())


def _require_released(navigator: Navigator) -> None:
    """Raise `CheckpointError` for settings that no weights express and the original does not have."""
    fixed: list[tuple[Any, Any, tuple[str, ...]]] = [
        (navigator.agent.config, HamtConfig(), ("context_views", "stop_shows")),
    ]
    if isinstance(navigator.reader, CandidateEnhancing):
        own = ("order", "context", "stop", "norm", "epsilon", "shortcut")
        fixed.append((navigator.reader.config, CandidateEnhancingConfig(), own))
    for config, released, names in fixed:
        odd = [name for name in names if getattr(config, name) != getattr(released, name)]
        if odd:
            settings = ", ".join(f"{name} {getattr(config, name)}" for name in odd)
            raise CheckpointError(f"the original has no setting for {settings}: it computes other values")
