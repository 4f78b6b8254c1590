"""Published weights files: pre-training, fine-tuned, or a bare state dict (docs/spec.md E.9, E.10)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from torch import Tensor

from esceme.checkpoints.names import PRE_TRAINING
from esceme.errors import CheckpointError, ConfigError
from esceme.torch_files import load_tensors, save_tensors

Tensors = Mapping[str, Tensor]


class PublishedWeights(NamedTuple):
    """Content of a weights file: dicts from tensor name to tensor, and the kind of file."""

    network: Tensors
    critic: Tensors | None
    kind: Literal["pre-training", "fine-tuned", "state dict"]


def read_weights(path: str | Path, *, critic: str | Path | None = None) -> PublishedWeights:
    """Read the tensors of the network and the critic from a published file; code in it is not executed.

    `critic` is the file of a critic that is stored separately. Raises `CheckpointError` if a file holds no
    weights.
    """
    path = Path(path)
    # Fine-tuned files hold the optimiser's state, twice the weights: mmap leaves it on the disk.
    weights = _split(load_tensors(path, mmap=True), path)
    if critic is None:
        return weights
    if weights.critic is not None:
        raise ConfigError(f"{path} already holds a critic; leave out {critic}")
    return weights._replace(critic=_tensors(load_tensors(Path(critic)), critic, "the critic"))


def write_fine_tuned(path: Path, network: Tensors, critic: Tensors) -> None:
    """Write a fine-tuned file atomically. The original code can resume training from it, at iteration 1."""
    content = {
        part: {"epoch": 1, "state_dict": dict(tensors), "optimizer": {}}
        for part, tensors in (("vln_bert", network), ("critic", critic))
    }
    save_tensors(content, path)


def _split(content: object, path: Path) -> PublishedWeights:
    """Return the network and critic tensors in the content of a weights file, and the kind of file."""
    if isinstance(content, dict) and isinstance(fine_tuned := content.get("vln_bert"), dict):
        network = _tensors(fine_tuned.get("state_dict"), path, "the state_dict of vln_bert")
        critic_content = content.get("critic")
        if critic_content is not None:
            state = critic_content.get("state_dict") if isinstance(critic_content, dict) else critic_content
            critic_content = _tensors(state, path, "the state_dict of critic") if state != {} else None
        return PublishedWeights(network, critic_content, "fine-tuned")
    network = _tensors(content, path, "the file")
    bare = [name.removeprefix("module.") for name in network]
    pre_trained = any(name.startswith(("bert.", *PRE_TRAINING)) for name in bare)
    return PublishedWeights(network, None, "pre-training" if pre_trained else "state dict")


def _tensors(content: object, path: object, what: str) -> dict[str, Tensor]:
    """Return `content`; raise `CheckpointError` if it is not a non-empty dict from name to tensor.

    `what` names the content in the message.
    """
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
