"""An evaluation as a whole: the same walks for every batch size and number of processes, and after a kill."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from shutil import copytree
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from esceme import __version__
from esceme.errors import ConfigError, DataError, EscemeError
from esceme.evaluation import EvaluationConfig, evaluate, read_result
from esceme.evaluation.context import EvaluationContext
from esceme.evaluation.evaluate import group_scenes, run_episodes
from esceme.evaluation.schedule import Lanes
from esceme.files import complete_lines, folder_lock, read_json, write_json
from esceme.rollout import roll_out
from esceme.trajectory import greedy
from fixtures.random_runs import random_run
from fixtures.toy_dataset import EPISODES, SPLIT, WEIGHT_SEED, ToyDataset

pytestmark = pytest.mark.long

Evaluate = Callable[..., Any]
PRODUCTS = ("result.json", "predictions.json", "bank.safetensors")
KILLED = """
import os, sys
import msgspec, torch
from esceme.evaluation import EvaluationConfig, evaluate
torch.set_num_threads(1)
def on_progress(done, total):
    if done >= int(sys.argv[3]):
        os.kill(os.getpid(), 9)
evaluate(msgspec.json.decode(sys.argv[1], type=EvaluationConfig), sys.argv[2], on_progress=on_progress)
"""


def products(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in PRODUCTS}


def kill(config: EvaluationConfig, folder: Path, *, after: int) -> int:
    """Evaluate in another process, kill it when `after` walks have ended, and say how many were kept."""
    arguments = [msgspec.json.encode(config).decode(), str(folder), str(after)]
    ended = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
    assert ended.returncode == -9
    assert not (folder / "result.json").exists()
    kept = len(complete_lines(folder / "journal.jsonl")) - 1
    assert kept >= after
    return kept


class Recorded:
    """A progress callback that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        self.calls.append((done, total))


# -- the same for every batch size -------------------------------------------------------------------------


@torch.inference_mode()
def logits_in_lanes(context: EvaluationContext, slots: int) -> dict[tuple[str, int], Tensor]:
    """The scores of every decision of every episode."""
    lifetime = context.lifetime()
    source = Lanes(context.atlas, context.episodes, lifetime, num_slots=slots)
    navigator, limit = context.run.navigator, context.limits.max_steps
    told = {}
    for step in roll_out(
        navigator, context.atlas, source, lifetime.memory, greedy, encode=context.encode, max_steps=limit
    ):
        for row, walk in enumerate(step.trajectories):
            logits = step.decision.logits[row]
            told[walk.episode.episode_id, walk.num_decisions] = logits[logits.isfinite()]
    return told


def test_lanes_of_any_number_give_the_same_logits(dataset: ToyDataset) -> None:
    context = dataset.context()
    one = logits_in_lanes(context, 1)
    for slots in (3, 8):
        other = logits_in_lanes(context, slots)
        assert set(other) == set(one)
        for key, logits in one.items():
            torch.testing.assert_close(other[key], logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("memory", ["cold", "two-pass"])
def test_lanes_of_any_number_give_the_same_files(evaluated: Evaluate, memory: str) -> None:
    """Trajectories, scores, facts, memory: all bytes of all of them."""
    one = products(evaluated(memory, batch=1).folder)
    assert products(evaluated(memory, batch=3).folder) == one
    assert products(evaluated(memory, batch=8).folder) == one


def test_two_processes_give_the_same_files_and_may_take_over(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path
) -> None:
    whole = evaluated("two-pass")
    cut = complete_lines(whole.folder / "journal.jsonl")[:6]
    (tmp_path / "journal.jsonl").write_bytes(b"".join(cut))
    progress = Recorded()
    evaluate(dataset.config("two-pass", batch=2), tmp_path, processes=2, on_progress=progress)
    assert products(tmp_path) == products(whole.folder)
    assert progress.calls[0] == (5, 2 * EPISODES)
    assert progress.calls[-1] == (2 * EPISODES, 2 * EPISODES)
    assert len(complete_lines(tmp_path / "journal.jsonl")) == 1 + 2 * EPISODES  # nothing was run twice
    assert {path.name for path in tmp_path.iterdir()} == {
        *PRODUCTS,
        "journal.jsonl",
        ".lock",
    }


def test_scenes_are_shared_out_evenly_and_never_cut(dataset: ToyDataset) -> None:
    episodes = dataset.context().episodes
    assert [len(group) for group in group_scenes(episodes, 9)] == [1] * 5
    groups = group_scenes(episodes, 2)
    assert sorted(scene for group in groups for scene in group) == sorted({e.scene_id for e in episodes})
    sizes = [sum(episode.scene_id in group for episode in episodes) for group in groups]
    assert max(sizes) - min(sizes) <= 4


def test_interleaved_batches_are_for_one_process(dataset: ToyDataset, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one process"):
        evaluate(dataset.config(schedule="interleaved"), tmp_path, processes=2)
    with pytest.raises(ConfigError, match="at least 1"):
        evaluate(dataset.config(), tmp_path, processes=0)


@pytest.mark.parametrize(
    "changes",
    [{"memory": "cold"}, {"memory": "two-pass", "schedule": "interleaved", "batch": 5}],
    ids=["lanes", "interleaved"],
)
def test_the_same_plan_gives_the_same_bytes(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path, changes: dict[str, Any]
) -> None:
    evaluate(dataset.config(**changes), tmp_path)
    assert products(tmp_path) == products(evaluated(**changes).folder)


# -- going on after a kill ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "after"),
    [
        ({"memory": "cold", "batch": 3}, 7),
        ({"memory": "two-pass", "batch": 2}, EPISODES + 5),
        ({"memory": "two-pass", "batch": 5, "schedule": "interleaved"}, EPISODES + 6),
    ],
    ids=["lanes", "two-pass", "interleaved"],
)
def test_a_killed_evaluation_goes_on_and_ends_with_the_same_result(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path, changes: dict[str, Any], after: int
) -> None:
    uninterrupted, config = evaluated(**changes), dataset.config(**changes)
    kept = kill(config, tmp_path / "killed", after=after)
    before = (tmp_path / "killed" / "journal.jsonl").read_bytes()
    progress = Recorded()
    result = evaluate(config, tmp_path / "killed", on_progress=progress)
    assert result == uninterrupted.result
    assert products(tmp_path / "killed") == products(uninterrupted.folder)
    after_all = (tmp_path / "killed" / "journal.jsonl").read_bytes()
    assert after_all.startswith(before)  # what was lived is not lived again
    assert len(after_all.splitlines()) == len(complete_lines(uninterrupted.folder / "journal.jsonl"))
    assert 0 < progress.calls[0][0] <= kept


@pytest.mark.parametrize(
    "changes",
    [
        {"memory": "cold"},
        {"memory": "episodic"},
        {"memory": "masked"},
        {"memory": "cold", "schedule": "interleaved", "batch": 5},
    ],
    ids=["cold", "episodic", "masked", "interleaved"],
)
def test_a_journal_cut_off_anywhere_leads_to_the_same_result(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """A kill can hit the writing of a line, and so of a batch of lines."""
    whole = evaluated(**changes)
    data = (whole.folder / "journal.jsonl").read_bytes()
    for part in (0.3, 0.55, 0.8):
        folder = tmp_path / f"{part}"
        folder.mkdir()
        (folder / "journal.jsonl").write_bytes(data[: int(len(data) * part)])
        assert evaluate(dataset.config(**changes), folder) == whole.result


def test_a_finished_evaluation_is_not_lived_again(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path
) -> None:
    copytree(evaluated("cold").folder, tmp_path / "again")
    before, progress = products(tmp_path / "again"), Recorded()
    evaluate(dataset.config("cold"), tmp_path / "again", on_progress=progress)
    assert progress.calls == [(EPISODES, EPISODES)]
    assert products(tmp_path / "again") == before


@pytest.mark.parametrize("changes", [{"memory": "masked"}, {"max_steps": 9}, {"order": "shuffled"}])
def test_the_folder_of_another_evaluation_is_refused(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path, changes: dict[str, Any]
) -> None:
    copytree(evaluated("cold").folder, tmp_path / "taken")
    before = products(tmp_path / "taken")
    for go in (evaluate, lambda config, out: evaluate(config, out, processes=2)):
        with pytest.raises(DataError, match="holds another evaluation"):
            go(dataset.config(**changes), tmp_path / "taken")
    assert products(tmp_path / "taken") == before


# -- what a result says ------------------------------------------------------------------------------------


def test_a_result_records_all_that_determines_it(dataset: ToyDataset, evaluated: Evaluate) -> None:
    facts = read_result(evaluated("cold").folder).facts
    expected = {
        "memory": "cold",
        "schedule": "lanes",
        "order": "file",
        "seed": 0,
        "split": SPLIT,
        "task": "r2r",
        "agent": "hamt",
        "reader": "candidate-enhancing",
        "max_steps": 15,
        "max_tokens": 60,
        "precision": "fp32",
        "oracle_phases": False,
        "episodes": EPISODES,
        "origin": "drawn",
        "version": __version__,
    }
    assert {name: facts[name] for name in expected} == expected
    assert set(facts["hashes"]) == {"weights", "data", "features", "vocabulary"}
    assert all(len(each) == 64 for each in facts["hashes"].values())
    assert "batch" not in facts
    assert evaluated(schedule="interleaved", batch=5).result.facts["batch"] == 5


def test_a_result_does_not_depend_on_where_things_lie(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path
) -> None:
    copytree(dataset.root, tmp_path / "data")
    copytree(dataset.run, tmp_path / "run")
    evaluate(ToyDataset(tmp_path / "data", tmp_path / "run").config(), tmp_path / "out")
    assert products(tmp_path / "out") == products(evaluated("cold").folder)


def elsewhere(dataset: ToyDataset, folder: Path) -> ToyDataset:
    return ToyDataset(copytree(dataset.root, folder / "data"), copytree(dataset.run, folder / "run"))


def change_weights(there: ToyDataset) -> None:
    random_run(there.run, there.root, seed=1)


def change_reader(there: ToyDataset) -> None:
    path = there.run / "navigator.json"
    config = read_json(path, dict[str, Any])
    config["reader"]["order"] = "memory-feature"
    write_json(path, config)


def change_words(there: ToyDataset) -> None:
    path = there.root / "tokenizer" / "vocab.txt"
    words = path.read_text().splitlines()
    words[-1], words[-2] = words[-2], words[-1]
    path.write_text("\n".join(words) + "\n")


def change_annotations(there: ToyDataset) -> None:
    path = there.root / "R2R" / f"R2R_{SPLIT}.json"
    records = read_json(path, list[dict[str, Any]])
    records[0]["heading"] += 1
    write_json(path, records)


def change_graph(there: ToyDataset) -> None:
    path = there.root / "connectivity" / "number-0_connectivity.json"
    records = read_json(path, list[dict[str, Any]])
    for record in records:  # the house is turned a little: distances stay, headings do not
        x, y = record["pose"][3], record["pose"][7]
        record["pose"][3], record["pose"][7] = x - 1e-4 * y, y + 1e-4 * x
    write_json(path, records)


def change_features(there: ToyDataset) -> None:
    import h5py

    with h5py.File(there.root / "features" / "street.hdf5", "r+") as file:
        key = next(iter(file))
        file[key][7, 3] += 1.0


@pytest.mark.parametrize(
    "change",
    [change_weights, change_reader, change_words, change_annotations, change_graph, change_features],
)
def test_whatever_changes_walks_changes_the_fingerprint(
    dataset: ToyDataset, tmp_path: Path, change: Callable[[ToyDataset], None]
) -> None:
    there = elsewhere(dataset, tmp_path)
    assert there.context().fingerprint == dataset.context().fingerprint
    change(there)
    assert there.context().fingerprint != dataset.context().fingerprint


def test_scores_and_visits_are_told_per_episode(evaluated: Evaluate) -> None:
    result = evaluated("cold").result
    for name in ("sr", "spl", "ne", "tl"):
        mean = sum(each.scores[name] for each in result.episodes) / len(result.episodes)
        assert result.means[name] == pytest.approx(mean)
    by_scene: dict[str, list[int]] = {}
    for each in result.episodes:
        by_scene.setdefault(each.scene, []).append(each.visit)
        assert len(each.trajectory) == each.decisions + (not each.stopped)
    assert all(visits == list(range(1, len(visits) + 1)) for visits in by_scene.values())
    assert {each.decisions for each in result.episodes if not each.stopped} == {15}


def test_a_drawn_order_is_lived_as_drawn(evaluated: Evaluate) -> None:
    file, drawn = evaluated("cold").result, evaluated("cold", order="shuffled", seed=1).result
    assert {each.id for each in drawn.episodes} == {each.id for each in file.episodes}
    assert [each.id for each in drawn.episodes] != [each.id for each in file.episodes]
    seen: dict[str, int] = {}
    for each in drawn.episodes:
        seen[each.scene] = seen.get(each.scene, 0) + 1
        assert each.visit == seen[each.scene]


def test_the_first_result_of_an_episode_counts(dataset: ToyDataset, evaluated: Evaluate) -> None:
    """The last interleaved batch is filled up with episodes that have been lived already."""
    whole = evaluated(schedule="interleaved", batch=5)
    lines = [msgspec.json.decode(each) for each in complete_lines(whole.folder / "journal.jsonl")[1:]]
    assert len(lines) == 20 and len({line["id"] for line in lines}) == EPISODES
    first: dict[str, dict[str, Any]] = {}
    for line in lines:
        first.setdefault(line["id"], line)
    for each in whole.result.episodes:
        assert [name for name, *_ in each.trajectory] == [name for name, _ in first[each.id]["poses"]]
        assert each.visit == first[each.id]["visit"]


def test_a_split_without_goals_is_walked_and_not_scored(dataset: ToyDataset, tmp_path: Path) -> None:
    there = elsewhere(dataset, tmp_path)
    path = there.root / "R2R" / f"R2R_{SPLIT}.json"
    records = read_json(path, list[dict[str, Any]])
    write_json(there.root / "R2R" / "R2R_test.json", [each | {"path": each["path"][:1]} for each in records])
    result = evaluate(there.config(split="test"), tmp_path / "out")
    assert result.means == {} and all(each.scores == {} for each in result.episodes)
    assert len(read_json(tmp_path / "out" / "predictions.json", list[Any])) == EPISODES


def test_an_agent_without_a_reader_leaves_no_bank(dataset: ToyDataset, tmp_path: Path) -> None:
    run = random_run(tmp_path / "run", dataset.root, has_memory=False, seed=WEIGHT_SEED)
    folders = [tmp_path / f"{batch}" for batch in (1, 8)]
    for batch, folder in zip((1, 8), folders, strict=True):
        result = evaluate(dataset.config("none", run=str(run), batch=batch), folder)
        assert (result.facts["memory"], result.facts["reader"]) == ("none", "none")
        assert not (folder / "bank.safetensors").exists()
    assert (folders[0] / "result.json").read_bytes() == (folders[1] / "result.json").read_bytes()


def test_half_precision_is_told_and_remembers_in_full(evaluated: Evaluate) -> None:
    half = evaluated(precision="bf16")
    assert half.result.facts["precision"] == "bf16"
    full = evaluated().bank
    both = [
        (scene, name) for scene in full.scenes for name in full[scene].viewpoints if name in half.bank[scene]
    ]
    assert both and all(torch.equal(full.recall(s, [n]), half.bank.recall(s, [n])) for s, n in both)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "nowhere"}, "no split 'nowhere' of r2r; splits that are here: val_unseen"),
        ({"task": "chess"}, "task 'chess' is unknown"),
        ({"run": "random", "task": "chess", "memory": "none"}, "task 'chess' is unknown"),
        ({"batch": 0}, "batch: expected at least 1"),
        ({"max_steps": 0}, "max_steps: expected at least 1"),
        ({"seed": -1}, "seed: expected 0 or more"),
        ({"order": "backwards"}, "order 'backwards': expected file or shuffled"),
        ({"schedule": "interleaved", "order": "shuffled"}, "--order is for 'lanes'"),
        ({"schedule": "both"}, "schedule 'both'"),
    ],
)
def test_plans_that_cannot_be_carried_out_are_refused(
    dataset: ToyDataset, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        dataset.context(**changes)


def test_a_plan_survives_as_json(dataset: ToyDataset) -> None:
    config = dataset.config("two-pass", max_steps=3)
    assert msgspec.convert(asdict(config), EvaluationConfig) == config


# -- half precision ----------------------------------------------------------------------------------------


def test_every_step_of_a_half_precision_evaluation_is_in_half_precision(
    dataset: ToyDataset,
) -> None:
    context = dataset.context(precision="bf16")
    kinds: list[torch.dtype] = []
    linear = context.run.navigator.agent.cross_layers[0].across.out  # type: ignore[index, union-attr]
    linear.register_forward_hook(lambda module, given, result: kinds.append(result.dtype))
    run_episodes(context, context.lifetime(), [], lambda entries: None)
    assert len(kinds) > 3
    assert set(kinds) == {torch.bfloat16}
    assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_inference_mode_enabled()


def test_half_precision_is_a_fact_of_the_result(evaluated: Evaluate) -> None:
    half = evaluated(precision="bf16").result
    assert half.facts["precision"] == "bf16"
    assert len(half.episodes) == EPISODES


# -- limits and company ------------------------------------------------------------------------------------


def test_more_steps_than_the_network_has_rows_for_are_refused_at_the_start(dataset: ToyDataset) -> None:
    rows = dataset.context().run.navigator.agent.config.max_steps
    assert (
        dataset.context(max_steps=rows + 1).limits.max_steps == rows + 1
    )  # none is taken after the last one
    with pytest.raises(ConfigError, match=f"max_steps {rows + 2}: .* {rows} rows"):
        dataset.context(max_steps=rows + 2)


def test_two_evaluations_do_not_share_a_folder(dataset: ToyDataset, tmp_path: Path) -> None:
    with folder_lock(tmp_path, "evaluation"):
        with pytest.raises(DataError, match="another evaluation is running"):
            evaluate(dataset.config(), tmp_path)
        with pytest.raises(DataError, match="another evaluation is running"):
            evaluate(dataset.config(), tmp_path, processes=2)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


KILLED_AMONG_OTHERS = """
import os, sys
import msgspec
from esceme.evaluation import EvaluationConfig, evaluate
def on_progress(done, total):
    if done:
        os.kill(os.getpid(), 9)
if __name__ == "__main__":
    config = msgspec.json.decode(sys.argv[1], type=EvaluationConfig)
    evaluate(config, sys.argv[2], processes=2, on_progress=on_progress)
"""


def test_processes_end_with_whoever_started_them(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path
) -> None:
    program, folder = tmp_path / "program.py", tmp_path / "out"
    program.write_text(KILLED_AMONG_OTHERS)
    config = dataset.config("two-pass", batch=1)
    arguments = [msgspec.json.encode(config).decode(), str(folder)]
    assert subprocess.run([sys.executable, program, *arguments], check=False).returncode == -9
    result = None
    for _ in range(50):  # the others need a moment to notice
        try:
            result = evaluate(config, folder, processes=2)
            break
        except EscemeError:
            time.sleep(0.2)
    assert result == evaluated("two-pass").result
    assert not list(folder.glob(".bank-*"))
