"""Write the reference files of DUET: a network with drawn weights in the generated house (README.md).

`python tests/reference/make_duet.py`, with `src` and `tests` on PYTHONPATH, writes `duet/` again.
"""

from __future__ import annotations

import gzip
import json
import random
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from esceme.agents import DUET, DuetConfig
from esceme.agents.base import TokenBatch
from esceme.checkpoints.names import fine_tuned_names
from esceme.memory import NoMemory
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.trajectory import next_poses
from esceme.verify.duet_map import MapOrder
from esceme.verify.duet_network_check import duet_outputs, layout_of, map_inputs
from esceme.verify.duet_rollout_check import DuetBatch, DuetPass, DuetRolloutFile, replay_batch
from esceme.verify.duet_training_check import (
    DuetIteration,
    DuetLogs,
    DuetReferenceTrainer,
    DuetTrainingFile,
    DuetTrainingRollout,
    LabelledRollout,
    OtherOracle,
)
from esceme.verify.fixtures import NetworkFiles, ReferenceData
from esceme.verify.network_check import to_double
from esceme.verify.rollout_check import RolloutItem, rollout_navigator
from esceme.verify.training_check import TrainingItem
from esceme.world.atlas import Atlas, Pose
from reference.make import HERE, WORLD

FOLDER = HERE / "duet"
HEADS, STEPS = 2, 3
FLAGS = "--max_action_len 8 --ml_weight 0.2 --lr 1e-5 --graph_sprels --fusion dynamic"
CONFIG = DuetConfig(
    vocabulary=40,
    positions=24,
    hidden=16,
    heads=HEADS,
    feed_forward=24,
    text_layers=1,
    cross_layers=2,
    panorama_layers=2,
    feature_width=8,
    max_steps=12,
)
CONFIGS = {
    "r2r": {"fusion": "dynamic", "graph_sprels": True},
    "avg": {"fusion": "avg", "graph_sprels": True},
    "nosprels": {"fusion": "dynamic", "graph_sprels": False},
}
DRAWS = [[3, 2, 1, 4], [5, 0, 4, 3], [4, 0, 6, 7], [7, 0, 5, 9], [2, 0, 9, 5], [6, 0, 0, 8], [8, 0, 0, 6]]
"""Draws of the sampled rollouts, in the original numbering; a closed one counts as STOP."""


def write_weights() -> None:
    """Draw every tensor of the network, biases and normalisations too."""
    torch.manual_seed(0)
    navigator = Navigator(DUET(CONFIG), NoMemory())
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in sorted(navigator.named_parameters()):
            around = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            parameter.normal_(around, 0.3, generator=generator)
    names, state = fine_tuned_names(navigator), navigator.state_dict()
    save_file({names[ours]: state[ours].contiguous() for ours in names}, FOLDER / "vln_bert.safetensors")
    meta = {
        "small_bert_config": {"num_attention_heads": HEADS},
        "configs": {name: {"args": arguments} for name, arguments in CONFIGS.items()},
    }
    (FOLDER / "meta.json").write_text(json.dumps(meta))


@torch.inference_mode()
def write_case(atlas: Atlas, navigator: Navigator, tokens: list[list[int]], pose: Pose) -> None:
    """Write the inputs of a walk with forced choices, and the outputs of every configuration."""
    agent = navigator.agent
    assert isinstance(agent, DUET)
    lengths = torch.tensor([len(ids) for ids in tokens])
    words = TokenBatch(
        torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in tokens], batch_first=True),
        torch.arange(int(lengths.max())) < lengths[:, None],
    )
    given: dict[str, Tensor] = {
        "txt_ids": words.ids,
        "txt_masks": words.valid,
        "start": torch.from_numpy(pose.viewpoint).clone(),
    }
    state, generator = agent.begin(words, given["start"]), np.random.default_rng(3)
    for step in range(STEPS):
        observation = Observation.from_atlas(atlas, pose)
        inputs = _observed(observation)
        encoded = agent.encode(state, observation)  # type: ignore[arg-type]
        inputs["gmap_ids"] = _map_ids(encoded)
        inputs |= map_inputs(encoded, observation, layout_of(encoded.state, observation, inputs))
        given |= {f"s{step}.{name}": tensor.contiguous() for name, tensor in inputs.items()}
        decision = agent.decide(state, observation)  # type: ignore[arg-type]
        stop = observation.num_candidates
        actions = [
            int(generator.choice([a for a in row.isfinite().nonzero().flatten().tolist() if a != end]))
            for row, end in zip(decision.logits, stop.tolist(), strict=True)
        ]
        moves = next_poses(atlas, pose, decision, torch.tensor(actions))
        pose = Pose(*np.array([poses[-1] for poses in moves]).T)
        assert decision.state is not None
        state = agent.advance(decision.state, observation, torch.tensor(actions))  # type: ignore[arg-type]
    save_file(given, FOLDER / "case0_inputs.safetensors")
    files = NetworkFiles(FOLDER / "case0")
    for config in CONFIGS:
        own = files.navigator(files.options(config)).agent
        assert isinstance(own, DUET)
        outputs, _ = duet_outputs(own, given)
        doubled, _ = duet_outputs(own.double(), to_double(given), feed=True)
        suffixes = ("logits", "fuse_weights", "stop_prob")
        outputs |= {f"{name}_f64": value for name, value in doubled.items() if name.endswith(suffixes)}
        stored = {name: value.clone().contiguous() for name, value in outputs.items()}
        save_file(stored, FOLDER / f"case0_{config}_outputs.safetensors")


def _observed(observation: Observation) -> dict[str, Tensor]:
    """What a file of inputs stores of an observation; tokens do not contain STOP."""
    count = int(observation.num_candidates.max())
    is_stop = torch.arange(observation.token_type.shape[1]) == observation.num_candidates[:, None]
    order = is_stop.long().argsort(dim=1, stable=True)[:, :-1]  # STOP last, then cut
    rows = torch.arange(len(observation))[:, None]
    assert observation.positions is not None
    is_candidate = observation.is_candidate[:, :count]
    return {
        "viewpoint": observation.viewpoint,
        "position": observation.agent_positions(),
        "view_index": observation.facing_view,
        "cand_ids": observation.neighbour[:, :count],
        "cand_views": observation.view[:, :count],
        "cand_positions": observation.positions[:, :count] * is_candidate[..., None],
        "view_img_fts": observation.features[rows, order],
        "nav_types": observation.is_candidate.long()[rows, order],
        "view_lens": observation.valid.sum(1) - 1,
        "vp_masks": functional.pad(observation.valid[rows, order], (1, 0), value=True),
    }


def _map_ids(encoded: Any) -> Tensor:
    is_closed = (encoded.state.node > 0) & ~encoded.is_open
    orders = [[-1, *MapOrder.of(encoded.state, is_closed, row).viewpoints] for row in range(len(is_closed))]
    longest = max(len(order) for order in orders)
    return torch.tensor([order + [-1] * (longest - len(order)) for order in orders])


def main() -> None:
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    write_weights()
    references = ReferenceData(WORLD)
    episodes = list(references.episodes("val_unseen").values())[::3][:6]
    drawn = random.Random(4)
    common: list[dict[str, Any]] = [
        {
            "scan": episode.scene_id,
            "reference_path": list(episode.reference_path),
            "heading": episode.heading,
            "instr_encoding": [drawn.randrange(CONFIG.vocabulary) for _ in range(drawn.randint(5, 20))],
        }
        for episode in episodes
    ]
    ids = [episode.episode_id for episode in episodes]
    items = [RolloutItem(start=fields["reference_path"][0], **fields) for fields in common]
    empty = DuetBatch(instr_ids=ids, items=items, trajectories=[], stop_scores=[], steps=[])
    rollouts = DuetRolloutFile(variant="duet", flags=FLAGS, passes=[DuetPass([empty])])
    files = NetworkFiles(FOLDER / "rollouts")
    navigator = rollout_navigator(rollouts, files, {})
    atlas = rollouts.atlas(navigator, references)
    rollouts.passes = [DuetPass([replay_batch(empty, navigator, atlas, 8)[0]])]
    _write("rollout_argmax.json.gz", rollouts)
    taught = [TrainingItem(instr_id=key, **fields) for key, fields in zip(ids[:4], common, strict=False)]
    blank = DuetTrainingRollout(
        items=taught,
        actions=[],
        targets=[],
        sampled=[[*row] for row in DRAWS] + [[0] * 4],
        loss=0.0,
        step_losses=[],
        logs=DuetLogs([]),
        grad_norms={},
        trajectories=[],
        grad_norm=0.0,
    )
    shell = DuetTrainingFile(variant="duet", flags=FLAGS, imitation=blank, dagger=blank)
    trainer = DuetReferenceTrainer(shell, files, references)
    other = trainer.sample(blank, "ndtw")
    plain = LabelledRollout(items=taught, actions=[], targets=[], sampled=blank.sampled)
    training = DuetTrainingFile(
        variant="duet",
        flags=FLAGS,
        imitation=trainer.imitate(blank),
        dagger=trainer.sample(blank, "shortest"),
        dagger_ndtw=OtherOracle(
            targets=other.targets, loss=other.loss, step_losses=other.step_losses, grad_norms=other.grad_norms
        ),
        iteration=None,
    )
    iteration = trainer.iterate(
        DuetIteration(rollouts=[plain, plain], loss=0.0, logs=DuetLogs([]), grad_norm=0.0)
    )
    for rollout in iteration.rollouts:
        rollout.sampled = blank.sampled
    training.iteration = iteration
    _write("train_il_dagger.json.gz", training)
    starts = atlas.locate_all((episode.scene_id, [episode.start]) for episode in episodes[:2])
    pose = atlas.begin(np.array(starts)[:, 0], [episode.heading for episode in episodes[:2]])
    write_case(
        atlas, rollout_navigator(rollouts, files, {}), [item.instr_encoding for item in items[:2]], pose
    )


def _write(name: str, value: msgspec.Struct) -> None:
    (FOLDER / name).write_bytes(gzip.compress(msgspec.json.encode(value), mtime=0))


if __name__ == "__main__":
    main()
