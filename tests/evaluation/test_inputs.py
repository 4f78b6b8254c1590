"""Inputs of an evaluation are found, and inputs that do not fit are refused before the first episode."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import h5py
import pytest

from esceme.errors import ConfigError, DataError
from esceme.evaluation import EvaluationConfig, evaluate
from esceme.evaluation.context import load_context
from esceme.files import read_json, write_json
from esceme.metrics import score
from esceme.tasks.catalogue import TASKS
from esceme.tasks.submission import match_predictions, read_predictions
from esceme.world.features import Hdf5Features
from fixtures.random_runs import random_run
from fixtures.toy_dataset import ToyDataset


def scripted_config(root: Path, name: str, **changes: object) -> EvaluationConfig:
    settings = {"run": name, "data": str(root), "split": "val_unseen", "memory": "none"} | changes
    return EvaluationConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["random", "shortest", "stop"])
def test_scripted_agents_do_not_depend_on_the_number_of_processes(
    dataset: ToyDataset, tmp_path: Path, name: str
) -> None:
    one = evaluate(scripted_config(dataset.root, name, seed=3), tmp_path / "one")
    two = evaluate(scripted_config(dataset.root, name, seed=3), tmp_path / "two", processes=2)
    assert one == two
    assert name != "random" or len({len(episode.trajectory) for episode in one.episodes}) > 1


def test_half_precision_records_its_batch_and_needs_one_process(dataset: ToyDataset, tmp_path: Path) -> None:
    assert "batch" not in dataset.context(batch=3).facts
    assert dataset.context(batch=3, precision="bf16").facts["batch"] == 3
    with pytest.raises(ConfigError, match="one process, fp32 or guarded"):
        evaluate(dataset.config(precision="bf16"), tmp_path / "two", processes=2)


def test_features_of_unchanged_files_are_hashed_once(
    toy_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esceme.files.UNSETTLED_SECONDS", -60)
    run, gather = random_run(tmp_path / "run", toy_root), Hdf5Features.gather
    config = EvaluationConfig(run=str(run), data=str(toy_root), split="val_seen", memory="cold", task="r2r")
    first = load_context(config).facts

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("features are read")

    monkeypatch.setattr(Hdf5Features, "gather", refuse)
    assert load_context(config).facts == first
    with pytest.raises(AssertionError, match="features are read"):
        load_context(replace(config, paranoid=True))
    monkeypatch.setattr(Hdf5Features, "gather", gather)
    data = copytree(toy_root, tmp_path / "data")
    with h5py.File(next((data / "features").iterdir()), "r+") as features:
        panorama = features["_".join(load_context(config).atlas.names[0])]
        panorama[0] = 1 - panorama[0]
    changed = load_context(replace(config, data=str(data))).facts
    assert changed["hashes"]["features"] != first["hashes"]["features"]


# -- dialogs ---------------------------------------------------------------------------------------------


def test_dialog_succeeds_only_at_its_end_panoramas(toy_root: Path, tmp_path: Path) -> None:
    """The released code counts a final viewpoint among the end panoramas, not one near the path's end."""
    config = scripted_config(toy_root, "random", task="cvdn", split="val_seen")
    rates = {}
    for seed in range(30):
        context = load_context(replace(config, seed=seed))
        folder = tmp_path / f"{seed}"
        result = evaluate(context.config, folder)
        found = read_predictions(folder / "predictions.json")
        pairs = match_predictions(context.episodes, found, TASKS["r2r"], file=folder)
        rates = {
            rule: score(pairs, context.atlas, success_rule=rule).means()["sr"]  # type: ignore[arg-type]
            for rule in ("end-panos", "trusted")
        }
        assert result.means["sr"] == rates["end-panos"]
        if rates["end-panos"] != rates["trusted"]:
            return
    pytest.fail(f"both rules agree for all seeds: {rates}")


def test_long_dialog_is_truncated_at_its_beginning(toy_root: Path, tmp_path: Path) -> None:
    run = random_run(tmp_path / "run", toy_root)
    ids = {}
    for task in ("cvdn", "r2r"):
        context = load_context(
            EvaluationConfig(
                run=str(run), data=str(toy_root), split="val_seen", memory="cold", task=task, max_tokens=4
            )
        )
        assert context.limits.keep == context.facts["keep"] == TASKS[task].keep
        episode = max(context.episodes, key=lambda episode: len(episode.instruction))
        ids[task] = context.encode(episode)
    assert len(ids["cvdn"]) == len(ids["r2r"]) == 4
    assert ids["r2r"][0] == 2 and ids["cvdn"][0] != 2 and ids["cvdn"][-1] == 3  # [CLS] and [SEP]


def test_limits_are_those_of_the_run_or_of_another_task(dataset: ToyDataset) -> None:
    assert dataset.context().limits.max_tokens == dataset.context().run.config.max_tokens
    config = scripted_config(dataset.root, "stop", task="r2r")
    assert load_context(config).limits == (TASKS["r2r"].max_steps, TASKS["r2r"].max_tokens, "first")


# -- inputs that do not fit ------------------------------------------------------------------------------


def test_vocabulary_of_another_size_is_refused(dataset: ToyDataset, tmp_path: Path) -> None:
    data = copytree(dataset.root, tmp_path / "data")
    with (data / "tokenizer" / "vocab.txt").open("a") as vocabulary:
        vocabulary.write("another\n")
    with pytest.raises(DataError, match="no vocabulary of this network's"):
        evaluate(dataset.config(data=str(data)), tmp_path / "out")


@pytest.mark.parametrize("token", [-1, 10**6])
def test_unknown_token_id_is_refused_before_the_first_episode(
    dataset: ToyDataset, tmp_path: Path, token: int
) -> None:
    data = copytree(dataset.root, tmp_path / "data")
    file = data / "R2R" / "R2R_val_unseen.json"
    records = read_json(file, list[dict[str, Any]])
    for record in records:
        record["instr_encodings"] = [[2, 5, 3]] * len(record["instructions"])
    records[-1]["instr_encodings"] = [[2, 5, 3] * 40 + [token]] * len(records[-1]["instructions"])
    write_json(file, records)
    episode = f"episode {records[-1]['path_id']}_0: token id" if token > 0 else "record .*instr_encodings"
    with pytest.raises(DataError, match=episode):
        evaluate(dataset.config(data=str(data)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_changed_lines_of_a_journal_are_run_again(dataset: ToyDataset, tmp_path: Path) -> None:
    config = dataset.config()
    result = evaluate(config, tmp_path)
    journal = tmp_path / "journal.jsonl"
    viewpoint = read_json(tmp_path / "predictions.json", list[dict[str, Any]])[0]["trajectory"][0][0]
    journal.write_text(journal.read_text().replace(f'"{viewpoint}"', '"nowhere"'))
    assert evaluate(config, tmp_path) == result
    assert "nowhere" not in journal.read_text()


def test_tours_and_schedules_determine_the_order(dataset: ToyDataset) -> None:
    with pytest.raises(ConfigError, match="order of their own"):
        dataset.config("tour", tours=dataset.tours, order="shuffled")
    assert dataset.context("tour", tours=dataset.tours).facts["order"] == "tours"
    assert dataset.context(schedule="interleaved").facts["order"] == "released"
    assert dataset.context(order="shuffled").facts["order"] == "shuffled"


def test_robot_without_a_store_or_a_name_is_refused(dataset: ToyDataset) -> None:
    with pytest.raises(ConfigError, match="settings of a store; give --store as well"):
        dataset.config(robot="r1")
    with pytest.raises(ConfigError, match="robot: expected a name"):
        dataset.config(store="site.db", robot="")


def test_agent_that_needs_goals_is_refused_on_a_test_split(toy_root: Path) -> None:
    with pytest.raises(ConfigError, match="'shortest' needs the goals, and those of test are withheld"):
        load_context(scripted_config(toy_root, "shortest", split="test"))


def test_evaluation_does_not_overwrite_its_input_bank(dataset: ToyDataset, tmp_path: Path) -> None:
    evaluate(dataset.config(), tmp_path)
    bank = tmp_path / "bank.safetensors"
    before = bank.read_bytes()
    for processes in (1, 2):
        with pytest.raises(ConfigError, match="would be overwritten"):
            evaluate(dataset.config("warm", bank=str(bank)), tmp_path, processes=processes)
    assert bank.read_bytes() == before


def test_second_pass_continues_the_visit_numbers(dataset: ToyDataset, tmp_path: Path) -> None:
    first = evaluate(dataset.config("cold"), tmp_path / "cold").episodes
    for schedule in ("lanes", "interleaved"):
        second = evaluate(dataset.config("two-pass", schedule=schedule), tmp_path / schedule).episodes
        for scene, visits in Counter(episode.scene for episode in first).items():
            assert min(episode.visit for episode in second if episode.scene == scene) > visits
