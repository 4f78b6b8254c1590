"""Evaluation end to end: equal results for every batch size, number of processes, and after a kill."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from esceme import __version__
from esceme.errors import ConfigError, DataError, EscemeError, EvaluationError
from esceme.evaluation import EvaluationConfig, evaluate, read_result
from esceme.evaluation.context import EvaluationContext
from esceme.evaluation.evaluate import group_scenes, run_episodes
from esceme.evaluation.schedule import Lanes
from esceme.files import folder_lock, read_complete_lines, read_json, write_json
from esceme.rollout import roll_out
from esceme.trajectory import greedy
from fixtures.random_runs import random_run
from fixtures.toy_dataset import EPISODES, SPLIT, WEIGHT_SEED, ToyDataset

pytestmark = pytest.mark.long

Evaluate = Callable[..., Any]
PRODUCTS = ("result.json", "predictions.json", "bank.safetensors")
PROGRAM = """
import os, sys
import msgspec, torch
from esceme.evaluation import EvaluationConfig, evaluate
def on_progress(done, total):
    if done >= int(sys.argv[3]):
        os.kill(os.getpid(), 9)
if __name__ == "__main__":
    torch.set_num_threads(1)
    config = msgspec.json.decode(sys.argv[1], type=EvaluationConfig)
    evaluate(config, sys.argv[2], processes=int(sys.argv[4]), on_progress=on_progress)
"""
"""Evaluates and kills itself; spawned workers import it, so it has to be a file."""


def products(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in PRODUCTS}


def evaluate_and_kill(config: EvaluationConfig, folder: Path, *, after: int, processes: int = 1) -> None:
    """Evaluate in another process that is killed after a number of trajectories."""
    program = folder.with_suffix(".py")
    program.write_text(PROGRAM)
    arguments = [msgspec.json.encode(config).decode(), str(folder), str(after), str(processes)]
    assert subprocess.run([sys.executable, program, *arguments], check=False).returncode == -9
    assert not (folder / "result.json").exists()


class RecordingProgress:
    """A progress callback that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        self.calls.append((done, total))


# -- the same for every batch size -----------------------------------------------------------------------


@torch.inference_mode()
def logits_in_lanes(context: EvaluationContext, slots: int) -> dict[tuple[str, int], Tensor]:
    """The logits of every decision, by episode and step."""
    lifetime = context.lifetime()
    source = Lanes(context.atlas, context.episodes, lifetime, num_slots=slots)
    navigator, limit = context.run.navigator, context.limits.max_steps
    found = {}
    for step in roll_out(
        navigator, context.atlas, source, lifetime.memory, greedy, encode=context.encode, max_steps=limit
    ):
        for row, trajectory in enumerate(step.trajectories):
            logits = step.decision.logits[row]
            found[trajectory.episode.episode_id, trajectory.num_decisions] = logits[logits.isfinite()]
    return found


def test_logits_do_not_depend_on_the_number_of_lanes(dataset: ToyDataset) -> None:
    context = dataset.context()
    one = logits_in_lanes(context, 1)
    for slots in (3, 8):
        other = logits_in_lanes(context, slots)
        assert set(other) == set(one)
        for key, logits in one.items():
            torch.testing.assert_close(other[key], logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("memory", ["cold", "two-pass"])
def test_files_do_not_depend_on_the_number_of_lanes(evaluated: Evaluate, memory: str) -> None:
    one = products(evaluated(memory, batch=1).folder)
    assert products(evaluated(memory, batch=3).folder) == one
    assert products(evaluated(memory, batch=8).folder) == one


def test_two_processes_continue_and_give_the_same_files(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path
) -> None:
    whole = evaluated("two-pass")
    cut = read_complete_lines(whole.folder / "journal.jsonl")[:6]
    (tmp_path / "journal.jsonl").write_bytes(b"".join(cut))
    progress = RecordingProgress()
    evaluate(dataset.config("two-pass", batch=2), tmp_path, processes=2, on_progress=progress)
    assert products(tmp_path) == products(whole.folder)
    assert progress.calls[0] == (5, 2 * EPISODES)
    assert progress.calls[-1] == (2 * EPISODES, 2 * EPISODES)
    assert len(read_complete_lines(tmp_path / "journal.jsonl")) == 1 + 2 * EPISODES  # nothing was run twice
    assert {path.name for path in tmp_path.iterdir()} == {*PRODUCTS, "journal.jsonl"}


def test_scenes_are_distributed_evenly_and_not_split(dataset: ToyDataset) -> None:
    episodes = dataset.context().episodes
    assert [len(group) for group in group_scenes(episodes, 9)] == [1] * 5
    groups = group_scenes(episodes, 2)
    assert sorted(scene for group in groups for scene in group) == sorted({e.scene_id for e in episodes})
    sizes = [sum(episode.scene_id in group for episode in episodes) for group in groups]
    assert max(sizes) - min(sizes) <= 4


def test_interleaved_batches_need_one_process(dataset: ToyDataset, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one process"):
        evaluate(dataset.config(schedule="interleaved"), tmp_path, processes=2)
    with pytest.raises(ConfigError, match="at least 1"):
        evaluate(dataset.config(), tmp_path, processes=0)


@pytest.mark.parametrize(
    "changes",
    [{"memory": "cold"}, {"memory": "two-pass", "schedule": "interleaved", "batch": 5}],
    ids=["lanes", "interleaved"],
)
def test_same_config_gives_the_same_bytes(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path, changes: dict[str, Any]
) -> None:
    evaluate(dataset.config(**changes), tmp_path)
    assert products(tmp_path) == products(evaluated(**changes).folder)


# -- resuming after a kill -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "after"),
    [
        ({"memory": "cold", "batch": 3}, 7),
        ({"memory": "two-pass", "batch": 2}, EPISODES + 5),
        ({"memory": "two-pass", "batch": 5, "schedule": "interleaved"}, EPISODES + 6),
    ],
    ids=["lanes", "two-pass", "interleaved"],
)
def test_killed_evaluation_continues_to_the_same_result(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path, changes: dict[str, Any], after: int
) -> None:
    uninterrupted, config = evaluated(**changes), dataset.config(**changes)
    evaluate_and_kill(config, tmp_path / "killed", after=after)
    before = (tmp_path / "killed" / "journal.jsonl").read_bytes()
    finished, progress = len(before.splitlines()) - 1, RecordingProgress()
    assert finished >= after
    result = evaluate(config, tmp_path / "killed", on_progress=progress)
    assert result == uninterrupted.result
    assert products(tmp_path / "killed") == products(uninterrupted.folder)
    after_all = (tmp_path / "killed" / "journal.jsonl").read_bytes()
    assert after_all.startswith(before)  # finished trajectories are not repeated
    assert len(after_all.splitlines()) == len(read_complete_lines(uninterrupted.folder / "journal.jsonl"))
    assert 0 < progress.calls[0][0] <= finished


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
def test_truncated_journal_continues_to_the_same_result(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """A kill may truncate a line, or a batch of lines."""
    whole = evaluated(**changes)
    data = (whole.folder / "journal.jsonl").read_bytes()
    for part in (0.3, 0.55, 0.8):
        folder = tmp_path / f"{part}"
        folder.mkdir()
        (folder / "journal.jsonl").write_bytes(data[: int(len(data) * part)])
        assert evaluate(dataset.config(**changes), folder) == whole.result


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"memory": "masked"}, "memory cold instead of masked"),
        ({"max_steps": 9}, "max_steps 15 instead of 9"),
        ({"order": "shuffled"}, "order file instead of shuffled"),
    ],
)
def test_folder_of_another_evaluation_is_refused(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path, changes: dict[str, Any], difference: str
) -> None:
    copytree(evaluated("cold").folder, tmp_path / "taken")
    before = products(tmp_path / "taken")
    for processes in (1, 2):
        with pytest.raises(DataError, match=rf"holds another evaluation.*\(it has {difference}\)"):
            evaluate(dataset.config(**changes), tmp_path / "taken", processes=processes)
    assert products(tmp_path / "taken") == before
    (tmp_path / "taken" / "result.json").unlink()
    with pytest.raises(DataError, match="remove the folder$"):
        evaluate(dataset.config(**changes), tmp_path / "taken")


# -- results ----------------------------------------------------------------------------------


def test_result_records_all_that_determines_it(dataset: ToyDataset, evaluated: Evaluate) -> None:
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
    assert all(len(digest) == 64 for digest in facts["hashes"].values())
    assert "batch" not in facts
    assert evaluated(schedule="interleaved", batch=5).result.facts["batch"] == 5


def test_result_does_not_depend_on_paths(dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path) -> None:
    evaluate(copy_dataset(dataset, tmp_path).config(), tmp_path / "out")
    assert products(tmp_path / "out") == products(evaluated("cold").folder)


def copy_dataset(dataset: ToyDataset, folder: Path) -> ToyDataset:
    return ToyDataset(copytree(dataset.root, folder / "data"), copytree(dataset.run, folder / "run"))


def change_weights(copy: ToyDataset) -> None:
    random_run(copy.run, copy.root, seed=1)


def change_reader(copy: ToyDataset) -> None:
    path = copy.run / "navigator.json"
    config = read_json(path, dict[str, Any])
    config["reader"]["order"] = "memory-feature"
    write_json(path, config)


def change_words(copy: ToyDataset) -> None:
    path = copy.root / "tokenizer" / "vocab.txt"
    words = path.read_text().splitlines()
    words[-1], words[-2] = words[-2], words[-1]
    path.write_text("\n".join(words) + "\n")


def change_annotations(copy: ToyDataset) -> None:
    path = copy.root / "R2R" / f"R2R_{SPLIT}.json"
    records = read_json(path, list[dict[str, Any]])
    records[0]["heading"] += 1
    write_json(path, records)


def change_graph(copy: ToyDataset) -> None:
    path = copy.root / "connectivity" / "number-0_connectivity.json"
    records = read_json(path, list[dict[str, Any]])
    for record in records:  # a small rotation changes headings only
        x, y = record["pose"][3], record["pose"][7]
        record["pose"][3], record["pose"][7] = x - 1e-4 * y, y + 1e-4 * x
    write_json(path, records)


def change_features(copy: ToyDataset) -> None:
    import h5py

    with h5py.File(copy.root / "features" / "street.hdf5", "r+") as file:
        key = next(iter(file))
        file[key][7, 3] += 1.0


@pytest.mark.parametrize(
    "change",
    [change_weights, change_reader, change_words, change_annotations, change_graph, change_features],
)
def test_fingerprint_depends_on_every_input(
    dataset: ToyDataset, tmp_path: Path, change: Callable[[ToyDataset], None]
) -> None:
    copy = copy_dataset(dataset, tmp_path)
    assert copy.context().fingerprint == dataset.context().fingerprint
    change(copy)
    assert copy.context().fingerprint != dataset.context().fingerprint


def test_result_has_scores_and_visits_per_episode(evaluated: Evaluate) -> None:
    result = evaluated("cold").result
    for name in ("sr", "spl", "ne", "tl"):
        mean = sum(episode.scores[name] for episode in result.episodes) / len(result.episodes)
        assert result.means[name] == pytest.approx(mean)
    by_scene: dict[str, list[int]] = {}
    for episode in result.episodes:
        by_scene.setdefault(episode.scene, []).append(episode.visit)
        assert len(episode.trajectory) == episode.decisions + (not episode.stopped)
    assert all(visits == list(range(1, len(visits) + 1)) for visits in by_scene.values())
    assert {episode.decisions for episode in result.episodes if not episode.stopped} == {15}


def test_visits_follow_a_shuffled_order(evaluated: Evaluate) -> None:
    ordered, shuffled = (evaluated("cold", order=order, seed=1).result for order in ("file", "shuffled"))
    ids = [[episode.id for episode in result.episodes] for result in (ordered, shuffled)]
    assert sorted(ids[0]) == sorted(ids[1]) and ids[0] != ids[1]
    visits: Counter[str] = Counter()
    for episode in shuffled.episodes:
        visits[episode.scene] += 1
        assert episode.visit == visits[episode.scene]


def test_first_result_of_a_repeated_episode_counts(dataset: ToyDataset, evaluated: Evaluate) -> None:
    """The last interleaved batch is filled up with repeated episodes."""
    whole = evaluated(schedule="interleaved", batch=5)
    lines = [msgspec.json.decode(line) for line in read_complete_lines(whole.folder / "journal.jsonl")[1:]]
    assert len(lines) == 20 and len({line["id"] for line in lines}) == EPISODES
    first: dict[str, dict[str, Any]] = {}
    for line in lines:
        first.setdefault(line["id"], line)
    for episode in whole.result.episodes:
        assert [name for name, *_ in episode.trajectory] == [name for name, _ in first[episode.id]["poses"]]
        assert episode.visit == first[episode.id]["visit"]


def test_split_without_goals_is_run_and_not_scored(dataset: ToyDataset, tmp_path: Path) -> None:
    copy = copy_dataset(dataset, tmp_path)
    path = copy.root / "R2R" / f"R2R_{SPLIT}.json"
    records = read_json(path, list[dict[str, Any]])
    records = [record | {"path": record["path"][:1]} for record in records]
    write_json(copy.root / "R2R" / "R2R_test.json", records)
    result = evaluate(copy.config(split="test"), tmp_path / "out")
    assert result.means == {} and all(episode.scores == {} for episode in result.episodes)
    assert len(read_json(tmp_path / "out" / "predictions.json", list[Any])) == EPISODES


def test_agent_without_a_reader_writes_no_bank(dataset: ToyDataset, tmp_path: Path) -> None:
    run = random_run(tmp_path / "run", dataset.root, has_memory=False, seed=WEIGHT_SEED)
    folders = [tmp_path / f"{batch}" for batch in (1, 8)]
    for batch, folder in zip((1, 8), folders, strict=True):
        result = evaluate(dataset.config("none", run=str(run), batch=batch), folder)
        assert (result.facts["memory"], result.facts["reader"]) == ("none", "none")
        assert not (folder / "bank.safetensors").exists()
    assert (folders[0] / "result.json").read_bytes() == (folders[1] / "result.json").read_bytes()


def test_half_precision_is_recorded_and_memory_stays_fp32(evaluated: Evaluate) -> None:
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
        ({"seed": -1}, "seed: expected at least 0"),
        ({"order": "backwards"}, "order: expected one of file, shuffled"),
        ({"schedule": "interleaved", "order": "shuffled"}, "--order is for 'lanes'"),
        ({"schedule": "both"}, "schedule: expected one of lanes, interleaved"),
    ],
)
def test_invalid_configs_are_refused(dataset: ToyDataset, changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        dataset.context(**changes)


# -- half precision --------------------------------------------------------------------------------------


def test_every_step_of_a_bf16_evaluation_uses_bf16(dataset: ToyDataset) -> None:
    context = dataset.context(precision="bf16")
    dtypes: list[torch.dtype] = []
    linear = context.run.navigator.agent.cross_layers[0].across.out  # type: ignore[index, union-attr]
    linear.register_forward_hook(lambda module, inputs, result: dtypes.append(result.dtype))
    run_episodes(context, context.lifetime(), [], lambda entries: None)
    assert len(dtypes) > 3
    assert set(dtypes) == {torch.bfloat16}
    assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_inference_mode_enabled()


def test_evaluation_stops_at_non_finite_weights(dataset: ToyDataset) -> None:
    context = dataset.context()
    next(context.run.navigator.agent.parameters()).data.fill_(torch.nan)
    entries: list[Any] = []
    with pytest.raises(EvaluationError, match=r"episode \w+, decision 1: the scores .* are not finite"):
        run_episodes(context, context.lifetime(), [], entries.extend)
    assert entries == []


# -- limits and locks ----------------------------------------------------------------------------------


def test_more_steps_than_embeddings_are_refused(dataset: ToyDataset) -> None:
    rows = dataset.context().run.navigator.agent.config.max_steps  # the last step needs none
    assert dataset.context(max_steps=rows + 1).limits.max_steps == rows + 1
    with pytest.raises(ConfigError, match=f"max_steps {rows + 2}: .* embeddings for {rows} only"):
        dataset.context(max_steps=rows + 2)


def test_folder_of_a_running_evaluation_is_locked(dataset: ToyDataset, tmp_path: Path) -> None:
    with folder_lock(tmp_path, "evaluation"):
        for processes in (1, 2):
            with pytest.raises(DataError, match="another evaluation is running"):
                evaluate(dataset.config(), tmp_path, processes=processes)
    assert list(tmp_path.iterdir()) == []


def test_workers_end_with_a_killed_parent_and_the_evaluation_continues(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path
) -> None:
    folder, config, result = tmp_path / "out", dataset.config("two-pass", batch=1), None
    evaluate_and_kill(config, folder, after=1, processes=2)
    for _ in range(50):  # until the workers have released the lock
        try:
            result = evaluate(config, folder, processes=2)
            break
        except EscemeError:
            time.sleep(0.2)
    assert result == evaluated("two-pass").result
    assert not list(folder.glob(".bank-*"))
