"""Reading published files: three kinds are recognised, others are refused, no pickled code runs."""

from __future__ import annotations

import pickle
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from esceme.checkpoints import read_weights
from esceme.errors import CheckpointError, ConfigError
from fixtures import original_checkpoints


class Trap:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.mark,)


def test_a_fine_tuned_file_holds_a_network_and_a_critic(tmp_path: Path) -> None:
    content = original_checkpoints.fine_tuned()
    weights = read_weights(original_checkpoints.save(content, tmp_path / "best_val_unseen"))
    assert weights.kind == "fine-tuned" and weights.critic is not None
    assert list(weights.network) == list(content["vln_bert"]["state_dict"])
    assert list(weights.critic) == list(content["critic"]["state_dict"])
    del content["critic"]
    assert read_weights(original_checkpoints.save(content, tmp_path / "alone")).critic is None


@pytest.mark.parametrize("wrapper", ["", "module."])
def test_a_pre_training_file_holds_a_network(tmp_path: Path, wrapper: str) -> None:
    state = original_checkpoints.pre_training(wrapper=wrapper)
    weights = read_weights(original_checkpoints.save(state, tmp_path / "model_step_22000.pt"))
    assert weights.kind == "pre-training" and weights.critic is None and list(weights.network) == list(state)


def test_a_critic_can_be_read_from_its_own_file(tmp_path: Path) -> None:
    content = original_checkpoints.fine_tuned()
    for part in content:
        save_file(content[part]["state_dict"], tmp_path / f"{part}.safetensors")
    network, critic = (tmp_path / f"{part}.safetensors" for part in content)
    weights = read_weights(network, critic=critic)
    assert weights.kind == "state dict" and weights.critic is not None
    assert torch.equal(
        weights.critic["state2value.0.weight"], content["critic"]["state_dict"]["state2value.0.weight"]
    )
    with pytest.raises(ConfigError, match="already holds a critic; leave out"):
        read_weights(original_checkpoints.save(content, tmp_path / "best"), critic=critic)


def test_advice_of_torch_to_run_code_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    with tarfile.open(
        path, "w"
    ) as archive:  # the format of 2016, for which torch suggests weights_only=False
        archive.add(__file__, "pickle")
    with pytest.raises(CheckpointError) as refused:
        read_weights(path)
    assert "weights_only" not in str(refused.value)
    assert "not a complete file of tensors" in str(refused.value)


def test_the_legacy_torch_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    torch.save(original_checkpoints.pre_training(), path, _use_new_zipfile_serialization=False)
    assert read_weights(path).kind == "pre-training"


@pytest.mark.parametrize("plain", [True, False])
def test_pickled_objects_are_never_executed(tmp_path: Path, plain: bool) -> None:
    mark, path = tmp_path / "executed", tmp_path / "model.pt"
    content = {"vln_bert": {"state_dict": original_checkpoints.pre_training()}, "args": Trap(mark)}
    if plain:
        path.write_bytes(pickle.dumps(content["args"]))
    else:
        torch.save(content, path)
    message = "expected only tensors in plain containers.*save its state dicts with torch.save"
    with pytest.raises(CheckpointError, match=f"(?s){message}"):
        read_weights(path)
    assert not mark.exists()


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_truncated_file_is_refused(tmp_path: Path, suffix: str) -> None:
    state, path = original_checkpoints.pre_training(), tmp_path / f"model{suffix}"
    if suffix == ".pt":
        torch.save(state, path)
    else:
        save_file(state, path)
    whole = path.read_bytes()
    for size in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(
            CheckpointError, match=f"model{suffix}: (not a complete file of tensors|expected only tensors)"
        ):
            read_weights(path)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A file of `torch.save`, a zip archive."""
    path = tmp_path / "model.pt"
    torch.save(original_checkpoints.pre_training(), path)
    return path


@pytest.mark.parametrize("member", ["constants.pkl", "code/__torch__.py", "code/__torch__/a.py.debug_pkl"])
def test_a_torchscript_program_is_refused_before_torch_reads_it(
    archive: Path, member: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr(f"model/{member}", b"")
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch has read the file"))
    with pytest.raises(CheckpointError, match=r"model.pt: a TorchScript program.*state_dict\(\)"):
        read_weights(archive)


def test_damaged_bytes_of_a_tensor_are_noticed(archive: Path) -> None:
    data = bytearray(archive.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 400] = bytes(400)
    archive.write_bytes(data)
    with pytest.raises(CheckpointError, match="wrong checksum of model/data"):
        read_weights(archive)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_refused(archive: Path) -> None:
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr("model/data/0", file.read("model/data/0")[::-1])
    with pytest.raises(CheckpointError, match=r"model.pt: not a complete file of tensors .two members"):
        read_weights(archive)


def test_compressed_members_are_refused(archive: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(archive) as stored, zipfile.ZipFile(tmp_path / "bomb.pt", "w") as bomb:
        for name in stored.namelist():
            bomb.writestr(name, stored.read(name), zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="bomb.pt: not a complete file of tensors .compressed members"):
        read_weights(tmp_path / "bomb.pt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.zeros(3)], "expected the file to hold tensors by name, found a list"),
        ({}, "found nothing"),
        ({"model": {"weight": torch.zeros(3)}, "step": 3}, "others: model, step"),
        ({1: torch.zeros(3)}, "others: 1"),
        ({"vln_bert": {"epoch": 3}}, "the state_dict of vln_bert to hold tensors by name, found nothing"),
        ({"vln_bert": {"state_dict": {"a": 3}}}, "others: a"),
        ({"vln_bert": {"state_dict": {"a": torch.zeros(3)}}, "critic": {}}, "the state_dict of critic"),
        *[
            (original_checkpoints.fine_tuned() | {"critic": critic}, "the state_dict of critic")
            for critic in ("abc", [1, 2], 3, {"state_dict": "abc"})
        ],
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_weights(original_checkpoints.save(content, tmp_path / "file"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.pt", tmp_path):
        with pytest.raises(CheckpointError, match=f"{path}: no such file"):
            read_weights(path)
