"""Training against the original's: losses, values, rewards and gradients with the stored choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from esceme.errors import DataError, WorldError
from esceme.files import read_json
from esceme.learning.rollouts import Decide, forward_all, forward_stepwise
from esceme.tasks.episode import Episode
from esceme.verify.beside import CRITIC, NOT_COMPARED, Beside, Switches, network_of
from esceme.verify.comparison import Comparison, Json, Report, Skipped, or_fault
from esceme.verify.lives import VARIANTS
from esceme.verify.references import References
from esceme.verify.rehearsal import School, training_of
from esceme.verify.replay import flags_of, known_episodes, limit_of, made_up_atlas, tell, unknown_in
from esceme.verify.transcript import Asked, Imitated, Lessons, Norms, Rewarded

FILES = r"(.*/)?train_il_a2c[^/]*\.json\.gz"
TOLERANCE = 1e-4
"""Relative to what is stored."""
LEAST, LEAST_NORM = 0.1, 0.01
"""Smaller numbers than these are compared as if they were as large: 1e-5 of a loss or value, and 1e-6 of the
norm of a gradient, are noise in single precision. Gradients of keys' biases are nothing else."""
WAYS: dict[str, Decide] = {"at once": forward_all, "step by step": forward_stepwise}


def compare_learning(name: str, path: Path, references: References, report: Report) -> None:
    """Compare `train_il_a2c….json.gz`."""
    raw = read_json(path, dict[str, Json])
    if raw.get("variant") not in VARIANTS:
        raise DataError(NOT_COMPARED)
    stored, beside, comparison = read_json(path, Lessons), Beside(name, path), Comparison(name)
    comparison.unknown |= set(unknown_in(raw, stored))
    try:
        _compare_items(name, stored, references, comparison, report)
        school = school_of(stored, beside, references)
        if stored.imitated is None or not stored.imitated.items:
            comparison.lack("IL")
        else:
            at_once = hasattr(school.navigator.agent, "decide_all")
            for way, decide in WAYS.items() if at_once else [("step by step", forward_stepwise)]:
                ours = school.imitate(stored.imitated.items, decide)
                _compare_imitated(stored.imitated, ours, way, comparison)
        if stored.rewarded is None or not stored.rewarded.items:
            comparison.lack("A2C")
        elif not beside.has(CRITIC):
            report.skipped.append(Skipped(name, f"A2C: there is no {CRITIC} beside it"))
        else:
            lived = school.reinforce(stored.rewarded.items, stored.rewarded.actions)
            _compare_rewarded(stored.rewarded, lived, comparison)
        report.used |= beside.used
    finally:
        comparison.add_to(report)


def school_of(stored: Lessons, beside: Beside, references: References) -> School:
    """The network beside a file, in the scenes and with the settings that the file names."""
    flags = flags_of(stored.flags)
    navigator, lessons = (
        tell(beside.navigator(Switches.of(flags)), stored.variant, flags),
        _lessons(stored).values(),
    )
    scenes = {item.scan for lesson in lessons for item in lesson.items}
    atlas = made_up_atlas(scenes, references, network_of(navigator).config.feature_width)
    longest = max((len(lesson.actions) for lesson in lessons), default=0)
    return School(navigator, atlas, training_of(flags), limit_of(flags, longest))


def _lessons(stored: Lessons) -> dict[str, Imitated | Rewarded]:
    found = {"IL": stored.imitated, "A2C": stored.rewarded}
    return {what: lesson for what, lesson in found.items() if lesson is not None}


# -- what was asked --------------------------------------------------------------------------------------


def _compare_items(
    name: str, stored: Lessons, references: References, comparison: Comparison, report: Report
) -> None:
    """Scene, heading and path of an item are those of its R2R episode."""
    lessons = _lessons(stored)
    known = known_episodes({item.instr_id for each in lessons.values() for item in each.items}, references)
    if not known:
        report.skipped.append(Skipped(name, "items: there is no R2R in the data folder"))
        return
    for what, lesson in lessons.items():
        for item in lesson.items:
            given = msgspec.to_builtins(item)
            for key in ("instr_id", "instr_encoding"):
                del given[key]
            comparison.add(f"{what}.items", given, or_fault(_item, item, known), 0.0)


def _item(item: Asked, known: Mapping[str, Episode]) -> Json:
    if item.instr_id not in known:
        raise WorldError(f"R2R has no episode {item.instr_id}")
    episode = known[item.instr_id]
    return {"scan": episode.scene_id, "path": list(episode.reference_path), "heading": episode.heading}


# -- what was learned ------------------------------------------------------------------------------------


def _compare_imitated(stored: Imitated, ours: Imitated, way: str, comparison: Comparison) -> None:
    """Compare what imitation gave; the decisions were made in one of two ways."""
    comparison.add(f"IL.actions ({way})", stored.actions, ours.actions, 0.0)
    comparison.add(f"IL.paths ({way})", stored.paths, ours.paths, 0.0)
    _add(f"IL.loss ({way})", _listed(stored.loss), _listed(ours.loss), comparison)
    _add(f"IL.logs.IL_loss ({way})", stored.logs.loss, ours.logs.loss, comparison)
    if stored.logs.target or ours.logs.target:
        _add(f"IL.logs.GP_loss ({way})", stored.logs.target or [], ours.logs.target or [], comparison)
    _compare_norms(f"IL.grad_norms ({way})", stored.grad_norms, ours.grad_norms, comparison)


def _compare_rewarded(stored: Rewarded, ours: Rewarded, comparison: Comparison) -> None:
    """Compare what learning from rewards gave."""
    comparison.add("A2C.sampled_actions", stored.actions, ours.actions, 0.0)
    comparison.add("A2C.paths", stored.paths, ours.paths, 0.0)
    _add_rows("A2C.critic_calls", stored.values, ours.values, comparison)
    if stored.rewards:
        comparison.add("A2C.rewards (how many)", len(stored.rewards), len(ours.rewards), 0.0)
        for theirs, step in zip(stored.rewards, ours.rewards, strict=False):
            comparison.add("A2C.rewards (kinds)", len(theirs), len(step), 0.0)
            for kind, row, own in zip(("reward", "mask", "distance", "nDTW"), theirs, step, strict=False):
                _add(f"A2C.rewards.{kind}", row, own, comparison)
    _add("A2C.loss", _listed(stored.loss), _listed(ours.loss), comparison)
    for key in ("entropy", "critic_loss", "policy_loss", "total", "loss"):
        name = "RL_loss" if key == "loss" else key
        _add(f"A2C.logs.{name}", getattr(stored.logs, key), getattr(ours.logs, key), comparison)
    if stored.logs.target or ours.logs.target:
        _add("A2C.logs.GP_loss", stored.logs.target or [], ours.logs.target or [], comparison)
    _compare_norms("A2C.grad_norms", stored.grad_norms, ours.grad_norms, comparison)
    _add("A2C.total_grad_norm_before_clip", [stored.norm], [ours.norm], comparison)


def _listed(loss: list[float] | float) -> list[float]:
    return loss if isinstance(loss, list) else [loss]


def _compare_norms(quantity: str, stored: Norms, ours: Norms, comparison: Comparison) -> None:
    """Compare which parameters there are, which of them learn, and how much."""
    comparison.add(f"{quantity}, parameters", sorted(stored), sorted(ours), 0.0)
    for name, norm in ours.items():
        theirs = stored.get(name)
        if norm is None or theirs is None:
            comparison.add(f"{quantity}, none", theirs is None, norm is None, 0.0)
        else:
            comparison.add_relative(quantity, [theirs], [norm], TOLERANCE, least=LEAST_NORM)


def _add_rows(
    quantity: str, stored: Sequence[list[float]], ours: Sequence[list[float]], comparison: Comparison
) -> None:
    comparison.add(f"{quantity} (how many)", len(stored), len(ours), 0.0)
    for theirs, row in zip(stored, ours, strict=False):
        _add(quantity, theirs, row, comparison)


def _add(quantity: str, stored: Sequence[float], ours: Sequence[float], comparison: Comparison) -> None:
    comparison.add_relative(quantity, stored, ours, TOLERANCE, least=LEAST)
