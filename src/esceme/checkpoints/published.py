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


class PublishedWeights(NamedTuple):
    """Tensors of a file, by their names in the file."""

    network: Tensors
    critic: Tensors | None
    kind: Literal["pre-training", "fine-tuned", "state dict"]


def read_weights(path: str | Path, *, critic: str | Path | None = None) -> PublishedWeights:
    """Read the network and the critic of a published file without running code from it.

    `critic` is the file of a critic that is stored separately. Raises `CheckpointError` for other files.
    """
    path = Path(path)
    weights = _split(_load(path), path)
    if critic is None:
        return weights
    if weights.critic is not None:
        raise ConfigError(f"{path} already holds a critic; leave out {critic}")
    return weights._replace(critic=_tensors(_load(Path(critic)), critic, "the critic"))


def write_fine_tuned(path: Path, network: Tensors, critic: Tensors) -> None:
    """Write a fine-tuned file atomically; the original code resumes from it at its first iteration."""
    content = {
        part: {"epoch": 1, "state_dict": dict(tensors), "optimizer": {}}
        for part, tensors in (("vln_bert", network), ("critic", critic))
    }
    with atomic_open(path) as file:
        torch.save(content, file)


def _split(content: object, path: Path) -> PublishedWeights:
    if isinstance(content, dict) and isinstance(fine_tuned := content.get("vln_bert"), dict):
        network = _tensors(fine_tuned.get("state_dict"), path, "the state_dict of vln_bert")
        critic_content = content.get("critic")
        if critic_content is not None:
            state = critic_content.get("state_dict") if isinstance(critic_content, dict) else critic_content
            critic_content = _tensors(state, path, "the state_dict of critic")
        return PublishedWeights(network, critic_content, "fine-tuned")
    network = _tensors(content, path, "the file")
    bare = [name.removeprefix("module.") for name in network]
    pre_trained = any(name.startswith(("bert.", *PRE_TRAINING)) for name in bare)
    return PublishedWeights(network, None, "pre-training" if pre_trained else "state dict")


def _load(path: Path) -> object:
    """Load tensors in plain containers; raise `CheckpointError` for anything else."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings(action="ignore"):
            # Memory-mapped if the format allows it, so the optimiser state, twice the weights, is not read.
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path}: expected only tensors in plain containers; the file is truncated, or its pickle could "
            "run code, so it was not read. If you trust it, load it and save its state dicts with torch.save"
        ) from None
    except Exception as error:  # damaged bytes cause many exception types
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(
            f"{path}: not a complete file of weights ({reason}); download it again"
        ) from None


def _tensors(content: object, path: object, what: str) -> dict[str, Tensor]:
    """Return `content` if it is a non-empty dict of tensors; raise `CheckpointError` otherwise."""
    if not isinstance(content, dict) or not content:
        found = "nothing" if content is None or content == {} else f"a {type(content).__name__}"
        raise CheckpointError(f"{path}: expected {what} to hold tensors by name, found {found}")
    invalid = [f"{name}" for name, value in content.items() if not isinstance(value, Tensor)]
    invalid += [f"{name}" for name in content if not isinstance(name, str)]
    if invalid:
        raise CheckpointError(
            f"{path}: expected {what} to hold tensors by name; others: {', '.join(invalid)}"
        )
    return content
