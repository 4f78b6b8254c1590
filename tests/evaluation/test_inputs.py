"""What a config names is found, and what does not fit together is refused before anybody walks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esceme.errors import ConfigError, DataError
from esceme.evaluation import EvaluationConfig, evaluate
from esceme.evaluation.context import load_context
from esceme.files import read_json
from esceme.metrics import score
from esceme.tasks.catalogue import TASKS
from esceme.tasks.submission import match_predictions, read_predictions
from esceme.world import open_features
from esceme.world.features import write_features
from fixtures.random_runs import random_run
from fixtures.toy_dataset import ToyDataset

WALKED = "val_unseen"


def scripted(root: Path, name: str, **changes: object) -> EvaluationConfig:
    settings = {"run": name, "data": str(root), "split": WALKED, "memory": "none"} | changes
    return EvaluationConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["random", "shortest", "stop"])
def test_scripted_agents_walk_alike_in_any_number_of_processes(
    dataset: ToyDataset, tmp_path: Path, name: str
) -> None:
    one = evaluate(scripted(dataset.root, name, seed=3), tmp_path / "one")
    two = evaluate(scripted(dataset.root, name, seed=3), tmp_path / "two", processes=2)
    assert one == two
    assert name != "random" or len({len(each.trajectory) for each in one.episodes}) > 1


def test_half_precision_says_its_batch_and_wants_one_process(dataset: ToyDataset, tmp_path: Path) -> None:
    assert "batch" not in dataset.context(batch=3).facts
    assert dataset.context(batch=3, precision="bf16").facts["batch"] == 3
    with pytest.raises(ConfigError, match="one process or fp32"):
        evaluate(dataset.config(precision="bf16"), tmp_path / "two", processes=2)


# -- dialogs -------------------------------------------------------------------------------------------------


def test_a_dialog_succeeds_in_its_end_panoramas_alone(toy_root: Path, tmp_path: Path) -> None:
    """The release counts a final viewpoint among the end panoramas, not one near the trusted path's end."""
    config = scripted(toy_root, "random", task="cvdn", split="val_seen")
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
    pytest.fail(f"no walk tells the two rules apart: {rates}")


def test_of_a_long_dialog_the_end_is_kept(toy_root: Path, tmp_path: Path) -> None:
    run = random_run(tmp_path / "run", toy_root)
    kept = {}
    for task in ("cvdn", "r2r"):
        context = load_context(
            EvaluationConfig(
                run=str(run), data=str(toy_root), split="val_seen", memory="cold", task=task, max_tokens=4
            )
        )
        assert context.limits.keep == context.facts["keep"] == TASKS[task].keep
        episode = max(context.episodes, key=lambda each: len(each.instruction))
        kept[task] = context.encode(episode)
    assert len(kept["cvdn"]) == len(kept["r2r"]) == 4
    assert kept["r2r"][0] == 2 and kept["cvdn"][0] != 2 and kept["cvdn"][-1] == 3  # [CLS] and [SEP]


def test_another_task_brings_its_own_limits(dataset: ToyDataset) -> None:
    assert dataset.context().limits.max_tokens == dataset.context().run.config.max_tokens
    config = scripted(dataset.root, "stop", task="r2r")
    assert load_context(config).limits == (TASKS["r2r"].max_steps, TASKS["r2r"].max_tokens, "first")


# -- what does not fit ---------------------------------------------------------------------------------------


def test_a_vocabulary_of_another_size_is_refused(dataset: ToyDataset, tmp_path: Path) -> None:
    vocabulary = dataset.root / "tokenizer" / "vocab.txt"
    there = tmp_path / "data"
    there.mkdir()
    for each in dataset.root.iterdir():
        if each.name != "tokenizer":
            (there / each.name).symlink_to(each)
    (there / "tokenizer").mkdir()
    (there / "tokenizer" / "vocab.txt").write_text(vocabulary.read_text() + "another\n")
    with pytest.raises(DataError, match="no vocabulary of this network's"):
        evaluate(dataset.config(data=str(there)), tmp_path / "out")


@pytest.mark.parametrize(("more", "fits"), [(1000, True), (300, False), (-1, False)])
def test_features_of_another_width_are_refused_unless_scores_follow_them(
    dataset: ToyDataset, tmp_path: Path, more: int, fits: bool
) -> None:
    store = open_features(next((dataset.root / "features").iterdir()))
    wide = {
        key: np.pad(store.panorama(key), [(0, 0), (0, max(more, 0))])[:, : store.width + more]
        for key in store.keys
    }
    path = write_features(tmp_path / "wide.hdf5", wide.items())
    if fits:
        context = dataset.context(features=str(path))
        assert context.atlas.features is not None and context.atlas.features.width == store.width
        return
    with pytest.raises(DataError, match=f"features of width {store.width + more}, and this network reads"):
        dataset.context(features=str(path))


def test_an_instruction_without_ids_is_named(dataset: ToyDataset) -> None:
    context = dataset.context()
    empty = replace(context.episodes[0], tokens=())
    with pytest.raises(DataError, match=f"episode {empty.episode_id} of r2r: its instruction holds no ids"):
        context.encode(empty)


def test_a_journal_of_places_that_do_not_exist_is_blamed(dataset: ToyDataset, tmp_path: Path) -> None:
    config = dataset.config()
    evaluate(config, tmp_path)
    journal = tmp_path / "journal.jsonl"
    place = read_json(tmp_path / "predictions.json", list[dict[str, Any]])[0]["trajectory"][0][0]
    journal.write_text(journal.read_text().replace(f'"{place}"', '"nowhere"'))
    with pytest.raises(DataError, match="the journal of this evaluation: episode .*'nowhere'"):
        evaluate(config, tmp_path)


def test_tours_have_an_order_of_their_own(dataset: ToyDataset) -> None:
    with pytest.raises(ConfigError, match="order of their own"):
        dataset.config("tour", tours=dataset.tours, order="shuffled")
    assert dataset.context("tour", tours=dataset.tours).facts["order"] == "tours"
    assert dataset.context(schedule="interleaved").facts["order"] == "released"
    assert dataset.context(order="shuffled").facts["order"] == "shuffled"


def test_who_must_know_the_goals_is_not_sent_where_they_are_withheld(toy_root: Path) -> None:
    with pytest.raises(ConfigError, match="'shortest' needs the goals, and those of test are withheld"):
        load_context(scripted(toy_root, "shortest", split="test"))


def test_a_bank_is_not_overwritten_by_what_comes_of_it(dataset: ToyDataset, tmp_path: Path) -> None:
    evaluate(dataset.config(), tmp_path)
    bank = tmp_path / "bank.safetensors"
    before = bank.read_bytes()
    for evaluated in (evaluate, lambda config, out: evaluate(config, out, processes=2)):
        with pytest.raises(ConfigError, match="would be overwritten"):
            evaluated(dataset.config("warm", bank=str(bank)), tmp_path)
    assert bank.read_bytes() == before


def test_the_second_pass_goes_on_counting_visits(dataset: ToyDataset, tmp_path: Path) -> None:
    first = evaluate(dataset.config("cold"), tmp_path / "cold").episodes
    for schedule in ("lanes", "interleaved"):
        second = evaluate(dataset.config("two-pass", schedule=schedule), tmp_path / schedule).episodes
        for scene in {each.scene for each in first}:
            lived = sum(each.scene == scene for each in first)
            assert min(each.visit for each in second if each.scene == scene) > lived
