"""Whole rollouts against the original's: paths, scores, what was recalled, and what stays remembered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from esceme.errors import DataError, WorldError
from esceme.evaluation.protocol import open_memory
from esceme.evaluation.schedule import Interleaved
from esceme.files import read_json
from esceme.memory import MemoryBank
from esceme.navigator import Navigator
from esceme.rollout import RolloutStep, roll_out
from esceme.tasks.episode import Episode
from esceme.verify.beside import NOT_COMPARED, Beside, Switches, network_of
from esceme.verify.comparison import MALFORMED, Comparison, Json, Report, Skipped, or_fault
from esceme.verify.references import References
from esceme.verify.replay import (
    Lives,
    Pass,
    Replay,
    Witness,
    encoded,
    flags_of,
    known_episodes,
    limit_of,
    made_up_atlas,
    row_at,
    tell,
    unknown_in,
)
from esceme.world.atlas import CONTEXT, Atlas
from esceme.world.geometry import VIEW_ELEVATIONS, VIEW_HEADINGS

FILES = r"(.*/)?rollout_argmax[^/]*\.json\.gz"
VARIANTS = ("hamt", "hamt_esceme", "tdstp", "tdstp_esceme")
REPLACED = "replaced_"
"""What stands before the name of a tensor that a file has in place of the folder's."""
LOGITS, ANGLES, MEMORY = 1e-4, 1e-6, 1e-6
"""Tolerances."""
FLAGGED = 10
"""Of how many tokens a file says whether they remember something."""
FIRST = 4
"""How many numbers of each remembered vector a file holds."""


def compare_lives(name: str, path: Path, references: References, report: Report) -> None:
    """Compare `rollout_argmax….json.gz`."""
    raw = read_json(path, dict[str, Json])
    if raw.get("variant") not in VARIANTS:
        raise DataError(NOT_COMPARED)
    stored, beside, comparison = read_json(path, Lives), Beside(name, path), Comparison(name)
    replaced = {key.removeprefix(REPLACED): value for key, value in raw.items() if key.startswith(REPLACED)}
    comparison.unknown |= {key for key in unknown_in(raw, stored) if not key.startswith(REPLACED)}
    if not all(each.batches for each in stored.passes) or not stored.passes:
        comparison.lack("passes.batches")
    try:
        _compare_items(name, stored, references, comparison, report)
        flags = flags_of(stored.flags)
        navigator = tell(
            beside.navigator(Switches.of(flags), replaced=_as_tensors(replaced)), stored.variant, flags
        )
        longest = max((len(batch.steps) for each in stored.passes for batch in each.batches), default=0)
        _compare_passes(stored, navigator, references, limit_of(flags, longest), comparison)
        report.used |= beside.used
    finally:
        comparison.add_to(report)


def _as_tensors(values: Mapping[str, Json]) -> dict[str, Tensor]:
    try:
        return {key: torch.tensor(each, dtype=torch.float32) for key, each in values.items()}
    except (*MALFORMED, RuntimeError) as error:
        raise DataError(f"a replaced tensor is none: {error}") from None


# -- what was asked --------------------------------------------------------------------------------------


def _compare_items(
    name: str, stored: Lives, references: References, comparison: Comparison, report: Report
) -> None:
    """Scene, start, heading and path of an item are those of its R2R episode."""
    batches = [batch for each in stored.passes for batch in each.batches]
    for batch in batches:
        comparison.add("passes.batches.items (how many)", len(batch.items), len(batch.instr_ids), 0.0)
    known = known_episodes({each for batch in batches for each in batch.instr_ids}, references)
    if not known:
        report.skipped.append(Skipped(name, "items: there is no R2R in the data folder"))
        return
    for batch in batches:
        for episode_id, item in zip(batch.instr_ids, batch.items, strict=False):
            given = msgspec.to_builtins(item)
            del given["instr_encoding"]
            comparison.add("passes.batches.items", given, or_fault(_item, episode_id, known), 0.0)


def _item(episode_id: str, known: Mapping[str, Episode]) -> Json:
    if episode_id not in known:
        raise WorldError(f"R2R has no episode {episode_id}")
    episode = known[episode_id]
    path = list(episode.reference_path)
    return {"scan": episode.scene_id, "start": path[0], "heading": episode.heading, "gt_path": path}


# -- living it again -------------------------------------------------------------------------------------


@torch.inference_mode()
def _compare_passes(
    stored: Lives, navigator: Navigator, references: References, max_steps: int, comparison: Comparison
) -> None:
    """Live the stored batches one after the other, and compare every step and what remains."""
    sizes, reader = network_of(navigator).config, navigator.reader
    scenes = {item.scan for each in stored.passes for batch in each.batches for item in batch.items}
    if not scenes:
        return
    atlas = made_up_atlas(scenes, references, sizes.feature_width)
    witness, lifetime = Witness(navigator.agent, reader).eval(), open_memory("cold", reader, atlas)
    bank = lifetime.bank
    for each in stored.passes:
        replay = Replay(atlas, each.batches)
        source = Interleaved(atlas, replay.episodes(sizes.vocabulary), lifetime)
        steps = roll_out(witness, atlas, source, bank, replay.choose, encode=encoded, max_steps=max_steps)
        for step in steps:
            _compare_step(step, witness, replay, comparison)
            if len(step.finished) == len(step.walks):
                _compare_paths(replay, comparison)
        _compare_memory(each, bank, comparison)
        if replay.ties:
            settled = np.zeros(replay.ties)
            comparison.add_array("passes.batches.paths (ties, settled as stored)", settled, settled, 0.0)


def _compare_step(step: RolloutStep, witness: Witness, replay: Replay, comparison: Comparison) -> None:
    """Compare the rows of the living; the original's rows are as wide as the widest, ended or not."""
    when = step.walks[0].decisions - 1
    if when >= len(replay.batch.steps):
        return
    moment, kind = replay.batch.steps[when], step.seen.kind
    ended = [walk for walk in replay.walks if walk not in step.walks]
    width = max([kind.shape[1], *(int(replay.atlas.token_count[walk.viewpoint]) for walk in ended)])
    for slot, walk in enumerate(step.walks):
        row = replay.walks.index(walk)
        stored = [-math.inf if each is None else each for each in row_at(moment.raw_logits, row)]
        ours = _widened(witness.scores[slot], width, -math.inf)
        if witness.back is not None:
            ours = np.concatenate([witness.back[slot].numpy(), ours])
        comparison.add_array("passes.batches.steps.raw_logits", stored, ours, LOGITS)
        kinds = _widened(kind[slot], width, CONTEXT)
        comparison.add_array("passes.batches.steps.nav_types", row_at(moment.nav_types, row), kinds, 0.0)
        lived = moment.hist_lens[row : row + 1]
        comparison.add_array("passes.batches.steps.hist_lens", lived, witness.lived[slot : slot + 1], 0.0)
        if witness.recalled is not None:
            flags = row_at(moment.node_nonzero_per_item, row)
            recalled = witness.recalled[slot, :FLAGGED]
            comparison.add_array("passes.batches.steps.node_nonzero_per_item", flags, recalled, 0.0)


def _widened(row: Tensor, width: int, fill: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A row with something to fill it up, (width,)."""
    wide = np.full(width, fill)
    wide[: len(row)] = row.numpy()
    return wide


def _compare_paths(replay: Replay, comparison: Comparison) -> None:
    """Compare where a batch went, when all of it has ended, and how many steps that took."""
    batch, count = replay.batch, len(replay.walks)
    taken = max(walk.decisions for walk in replay.walks)
    comparison.add("passes.batches.steps (how many)", len(batch.steps), taken, 0.0)
    for moment in batch.steps:
        rows = [len(moment.raw_logits), len(moment.nav_types), len(moment.hist_lens)]
        comparison.add("passes.batches.steps (rows)", rows, [count] * 3, 0.0)
    stored = [[_pose(*pose) for pose in path] for path in batch.paths]
    ours = [[_pose_of(replay.atlas, *pose) for pose in replay.poses(walk)] for walk in replay.walks]
    comparison.add("passes.batches.paths", stored, ours, ANGLES)


def _pose(viewpoint: str, heading: float, elevation: float) -> Json:
    return {"viewpoint": viewpoint, "heading": heading, "elevation": elevation}


def _pose_of(atlas: Atlas, viewpoint: int, view: int) -> Json:
    return _pose(atlas.name(viewpoint)[1], float(VIEW_HEADINGS[view]), float(VIEW_ELEVATIONS[view]))


def _compare_memory(stored: Pass, bank: MemoryBank | None, comparison: Comparison) -> None:
    """Compare what is remembered after a pass, and which of it is joined."""
    if bank is None:
        comparison.add("passes.memory_first4_of_feat", stored.memory_first4_of_feat, None, 0.0)
        comparison.add("passes.memory_edges", stored.memory_edges, None, 0.0)
        return
    vectors, edges = stored.memory_first4_of_feat or {}, stored.memory_edges or {}
    for what, scenes in (("memory_first4_of_feat", vectors), ("memory_edges", edges)):
        comparison.add(f"passes.{what} (scenes)", sorted(scenes), list(bank.scenes), 0.0)
    for scene in bank.scenes:
        memory, known = bank[scene], vectors.get(scene, {})
        names = sorted(memory.viewpoints)
        comparison.add("passes.memory_first4_of_feat (viewpoints)", sorted(known), names, 0.0)
        for name, vector in zip(names, memory.recall(names).tolist(), strict=True):
            comparison.add_array("passes.memory_first4_of_feat", known.get(name, []), vector[:FIRST], MEMORY)
        pairs = sorted({(min(pair), max(pair)) for pair in edges.get(scene, [])})
        joined = [list(pair) for pair in sorted(memory.edges)]
        comparison.add("passes.memory_edges", [list(pair) for pair in pairs], joined, 0.0)
