"""Pack and unpack the reference files in this folder; README.md describes them.

`python tests/reference/make.py VECTORS`, with `src` and `tests` on PYTHONPATH, writes them again from a
folder of the original's vectors. `unpack` restores the layout that `esceme verify` reads.
"""

from __future__ import annotations

import gzip
import json
import lzma
import random
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from esceme.files import write_json
from esceme.verify.fixtures import NetworkFiles, ReferenceData
from esceme.verify.recording import VARIANTS
from esceme.verify.rollout_check import (
    GreedyRollout,
    RecordedPass,
    RolloutFile,
    RolloutItem,
    replay_passes,
    rollout_navigator,
)
from esceme.verify.training_check import (
    ImitationLogs,
    ImitationRollout,
    TrainingFile,
    TrainingItem,
    reference_trainer,
)

HERE = Path(__file__).parent
NETWORKS = HERE / "networks.xz"
WORLD = HERE / "world"
SCENE = "toy-house"
FIXTURES = ("vln_bert", "vln_bert_h_layers_extra", "critic", "case0_inputs")
OUTPUTS = r"(history\.global|.*\.(act_logits|states|critic|pos_logit|hist_step|act_logits_f64|critic_f64))"
"""Names of the output tensors that are kept; the others follow from the same computation."""
MAX_STEPS = 8
FLAGS = f"--pooling max --max_action_len {MAX_STEPS} --fix_lang_embedding"
VARIANT_FLAGS = {
    "hamt": f"{FLAGS} --fix_hist_embedding --ml_weight 0.2",
    "tdstp": f"{FLAGS} --logit-reweighting --gp_loss_weight 0.1 --rl_teacher_weight 0.4",
}
ACTIONS = [[0, 1, 0, 1], [1, 0, 2, -1], [0, 1, -1, -1], [1, 1, -1, -1], [2, -1, -1, -1], [0, -1, -1, -1]]
"""Stored actions of the A2C rollouts; an impossible one counts as STOP."""


def unpack(folder: Path) -> Path:
    """Write the files as `esceme verify` reads them, a sub-folder per network; gives the folder."""
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as packed:
        packed.write(lzma.decompress(NETWORKS.read_bytes()))
        packed.flush()
        tensors = load_file(packed.name)
        with safe_open(packed.name, "numpy") as opened:
            index = json.loads(opened.metadata()["index"])
    for name, keys in index.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensors[key] for name, key in keys.items()}, folder / name)
    for variant in VARIANTS:
        for path in (HERE / variant).iterdir():
            shutil.copyfile(path, folder / variant / path.name)
    return folder


# -- networks: numbers of the original ---------------------------------------------------------------------


def pack_networks(vectors: Path) -> None:
    """Keep weights, inputs and the chosen outputs of the original, each different tensor once."""
    unique: dict[bytes, str] = {}
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    index: dict[str, dict[str, str]] = {}
    for variant in VARIANTS:
        for path in sorted((vectors / variant).glob("*.safetensors")):
            if path.stem not in FIXTURES and not re.fullmatch(r"case0_.*_outputs", path.stem):
                continue
            keys = index.setdefault(f"{variant}/{path.name}", {})
            for name, tensor in _shrink(path, load_file(path)).items():
                content = f"{tensor.dtype}{tensor.shape}".encode() + tensor.tobytes()
                if content not in unique:
                    unique[content] = str(len(unique))
                    tensors[unique[content]] = tensor
                keys[name] = unique[content]
        meta = json.loads((vectors / variant / "meta.json").read_text())
        configs = {name: {"args": config["args"]} for name, config in meta["configs"].items()}
        settings = {"small_bert_config": meta["small_bert_config"], "configs": configs}
        write_json(HERE / variant / "meta.json", settings)
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as packed:
        save_file(tensors, packed.name, metadata={"index": json.dumps(index)})
        NETWORKS.write_bytes(lzma.compress(Path(packed.name).read_bytes(), preset=9 | lzma.PRESET_EXTREME))


def _shrink(path: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Zero the embedding rows that no input selects; drop outputs that `OUTPUTS` does not name."""
    if path.stem.endswith("_outputs"):
        return {name: tensor for name, tensor in tensors.items() if re.fullmatch(OUTPUTS, name)}
    if path.stem != "vln_bert":
        return tensors
    used = token_ids(path.parent)
    words = tensors["vln_bert.embeddings.word_embeddings.weight"]
    words[[token for token in range(len(words)) if token not in used]] = 0
    tensors["vln_bert.embeddings.position_embeddings.weight"][24:] = 0
    tensors["vln_bert.hist_embeddings.position_embeddings.weight"][MAX_STEPS + 2 :] = 0
    return tensors


def token_ids(folder: Path) -> set[int]:
    """The token ids of case 0, padding included."""
    return {0, *load_file(folder / "case0_inputs.safetensors")["txt_ids"].ravel().tolist()}


# -- rollouts and training steps: numbers of this implementation -------------------------------------------


def record(variant: str, folder: Path, references: ReferenceData) -> None:
    """Record greedy rollouts and training steps in the generated scene, with the packed weights."""
    folder = folder / variant
    episodes = list(references.episodes("val_unseen").values())[::3][:6]
    drawn, vocabulary = random.Random(2), sorted(token_ids(folder) - {0})
    common: list[dict[str, Any]] = [
        {
            "scan": episode.scene_id,
            "reference_path": list(episode.reference_path),
            "heading": episode.heading,
            "instr_encoding": drawn.choices(vocabulary, k=drawn.randint(5, 20)),
        }
        for episode in episodes
    ]
    ids, flags = [episode.episode_id for episode in episodes], VARIANT_FLAGS[variant.split("_")[0]]
    items = [RolloutItem(start=fields["reference_path"][0], **fields) for fields in common]
    batches = [
        GreedyRollout(instr_ids=ids[rows], items=items[rows], paths=[], steps=[])
        for rows in (slice(0, 4), slice(4, 6))
    ]
    rollouts = RolloutFile(
        variant=variant, flags=flags, passes=[RecordedPass(batches), RecordedPass(batches)]
    )
    files = NetworkFiles(folder / "rollouts")
    navigator = rollout_navigator(rollouts, files, {})
    rollouts.passes = [ours for _, ours, _ in replay_passes(rollouts, navigator, references)]
    _write(HERE / variant / "rollout_argmax.json.gz", rollouts)
    training_items = [
        TrainingItem(instr_id=key, **fields) for key, fields in zip(ids[:4], common, strict=False)
    ]
    empty = ImitationRollout(
        items=training_items, actions=[], loss=[], logs=ImitationLogs([]), grad_norms={}, paths=[]
    )
    trainer = reference_trainer(
        TrainingFile(variant=variant, flags=flags, imitation=empty), files, references
    )
    actions = ACTIONS
    if variant.startswith("tdstp"):  # history tokens are numbered before candidates; step 3 goes back
        actions = [[-1 if a < 0 else a + t + 1 for a in row] for t, row in enumerate(ACTIONS)]
        actions[2][0] = actions[3][1] = 1
    training = TrainingFile(
        variant=variant,
        flags=flags,
        imitation=trainer.imitate(empty, stepwise=True),
        a2c=trainer.reinforce(msgspec.structs.replace(empty, actions=actions)),
    )
    _write(HERE / variant / "train_il_a2c.json.gz", training)


def _write(path: Path, value: msgspec.Struct) -> None:
    path.write_bytes(gzip.compress(msgspec.json.encode(value), mtime=0))


def main(vectors: Path) -> None:
    """Write all reference files again."""
    from fixtures.toy_world import write_toy_world

    with tempfile.TemporaryDirectory() as temporary:
        toy = write_toy_world(Path(temporary) / "toy", seed=0)
        connectivity = f"connectivity/{SCENE}_connectivity.json"
        write_json(WORLD / connectivity, json.loads((toy / connectivity).read_text()))
        paths = json.loads((toy / "R2R/R2R_val_unseen.json").read_text())
        paths = [path | {"instructions": ["generated"] * 3} for path in paths if path["scan"] == SCENE]
        write_json(WORLD / "R2R/R2R_val_unseen.json", paths)
        pack_networks(vectors)
        folder = unpack(Path(temporary) / "vectors")
        for variant in VARIANTS:
            record(variant, folder, ReferenceData(WORLD))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
