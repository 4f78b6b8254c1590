"""Files of published weights: pre-training files, fine-tuned files and bare state dicts (spec E.9, E.10)."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from esceme.checkpoints.names import PRE_TRAINING
from esceme.errors import CheckpointError, ConfigError
from esceme.files import atomic_open

Tensors = Mapping[str, Tensor]


class Weights(NamedTuple):
    """What a file of weights holds, by the names in the file."""

    network: Tensors
    critic: Tensors | None
    kind: Literal["pre-training", "fine-tuned", "state dict"]


def read_weights(path: str | Path, *, critic: str | Path | None = None) -> Weights:
    """The network and the critic of a published file, of whichever kind; no code in it is ever run.

    `critic` is the file of a critic that is stored apart. Raises `CheckpointError` for anything else.
    """
    path = Path(path)
    weights = _sorted_out(_load(path), path)
    if critic is None:
        return weights
    if weights.critic is not None:
        raise ConfigError(f"{path} holds a critic of its own; leave out {critic}")
    return weights._replace(critic=_tensors(_load(Path(critic)), critic, "the critic"))


def write_fine_tuned(path: Path, network: Tensors, critic: Tensors) -> None:
    """Write a fine-tuned file, whole or not at all; the original goes on from it at its first iteration."""
    content = {
        part: {"epoch": 1, "state_dict": dict(tensors), "optimizer": {}}
        for part, tensors in (("vln_bert", network), ("critic", critic))
    }
    with atomic_open(path) as file:
        torch.save(content, file)


def _sorted_out(content: object, path: Path) -> Weights:
    if isinstance(content, dict) and isinstance(fine_tuned := content.get("vln_bert"), dict):
        network = _tensors(fine_tuned.get("state_dict"), path, "the state_dict of vln_bert")
        judge = content.get("critic")
        if judge is not None:
            state = judge.get("state_dict") if isinstance(judge, dict) else judge
            judge = _tensors(state, path, "the state_dict of critic")
        return Weights(network, judge, "fine-tuned")
    network = _tensors(content, path, "the file")
    bare = [name.removeprefix("module.") for name in network]
    pre_trained = any(name.startswith(("bert.", *PRE_TRAINING)) for name in bare)
    return Weights(network, None, "pre-training" if pre_trained else "state dict")


def _load(path: Path) -> object:
    """What a file holds, read as tensors in plain containers alone."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings(action="ignore"):
            # Mapped where the format allows it: an optimiser's state, twice the weights, is then never read.
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path}: not a whole file of plain tensors, so it was not opened: pickles can run programs. "
            "Where you trust it, open it with what made it and save only its state dicts by torch.save"
        ) from None
    except Exception as error:  # whatever damaged bytes make the two readers stumble over
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{path}: not a complete file of weights ({reason}); fetch it again") from None


def _tensors(content: object, path: object, what: str) -> dict[str, Tensor]:
    """Tensors by name; raises `CheckpointError` for anything else."""
    if not isinstance(content, dict) or not content:
        found = "nothing" if content is None or content == {} else f"a {type(content).__name__}"
        raise CheckpointError(f"{path}: expected {what} to hold tensors by name, found {found}")
    odd = [f"{name}" for name, value in content.items() if not isinstance(value, Tensor)]
    odd += [f"{name}" for name in content if not isinstance(name, str)]
    if odd:
        raise CheckpointError(f"{path}: expected {what} to hold tensors by name; others: {', '.join(odd)}")
    return content
