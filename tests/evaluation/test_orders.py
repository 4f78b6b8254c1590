"""Evaluation in several orders, of selected episodes, and in a custom order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esceme.errors import ConfigError, DataError
from esceme.evaluation import evaluate, evaluate_orders, read_orders, read_result
from esceme.evaluation.context import load_context
from esceme.files import write_json
from fixtures.toy_dataset import EPISODES, ToyDataset


def test_orders_are_shuffled_by_recorded_seeds_and_summarised(dataset: ToyDataset, tmp_path: Path) -> None:
    config = dataset.config(seed=3, max_steps=4)
    started: list[int] = []

    def on_progress(seed: int) -> Any:
        started.append(seed)
        return lambda finished, total: None

    results = evaluate_orders(config, tmp_path, num_orders=3, on_progress=on_progress)
    assert started == [3, 4, 5] == [result.facts["seed"] for result in results]
    orders = [[episode.id for episode in result.episodes] for result in results]
    assert len({tuple(order) for order in orders}) == 3 and len({frozenset(order) for order in orders}) == 1
    assert all(result.facts["order"] == "shuffled" for result in results)
    single = evaluate(replace(config, order="shuffled", seed=4), tmp_path / "single")
    assert single == results[1] and read_result(tmp_path / "seed4").episodes == single.episodes

    summary = read_orders(tmp_path)
    assert [(order.seed, order.folder, order.means) for order in summary.orders] == [
        (seed, f"seed{seed}", result.means) for seed, result in zip((3, 4, 5), results, strict=True)
    ]
    spl = [result.means["spl"] for result in results]
    assert summary.means["spl"] == pytest.approx(np.mean(spl))
    assert summary.stds["spl"] == pytest.approx(np.std(spl, ddof=1))


def test_more_orders_reuse_those_that_are_finished(dataset: ToyDataset, tmp_path: Path) -> None:
    config = dataset.config(max_steps=3, limit=4)
    (first,) = evaluate_orders(config, tmp_path, num_orders=1)
    assert read_orders(tmp_path).stds == {}
    journal = tmp_path / "seed0" / "journal.jsonl"
    before = journal.read_bytes()
    assert evaluate_orders(config, tmp_path, num_orders=2)[0] == first
    assert journal.read_bytes() == before
    assert len(read_orders(tmp_path).orders) == 2


def test_orders_of_the_released_schedule_differ_by_their_seed(dataset: ToyDataset, tmp_path: Path) -> None:
    config = dataset.config(schedule="interleaved", max_steps=3)
    results = evaluate_orders(config, tmp_path, num_orders=2)
    assert [result.facts["order"] for result in results] == ["released", "released"]
    visits = [{episode.id: episode.visit for episode in result.episodes} for result in results]
    assert visits[0] != visits[1]


@pytest.mark.parametrize("number", [0, -1])
def test_number_of_orders_must_be_positive(dataset: ToyDataset, tmp_path: Path, number: int) -> None:
    with pytest.raises(ConfigError, match="orders: expected at least 1"):
        evaluate_orders(dataset.config(), tmp_path, num_orders=number)


# -- selected episodes -----------------------------------------------------------------------------------


def ids(dataset: ToyDataset, **changes: object) -> list[str]:
    return [episode.episode_id for episode in load_context(dataset.config(**changes)).episodes]


def test_limit_selects_episodes_before_they_are_shuffled(dataset: ToyDataset) -> None:
    everything = ids(dataset)
    assert ids(dataset, limit=5) == everything[:5] and ids(dataset, limit=1000) == everything
    shuffled = [ids(dataset, limit=5, order="shuffled", seed=seed) for seed in range(3)]
    assert all(set(order) == set(everything[:5]) for order in shuffled)
    assert len({tuple(order) for order in shuffled}) > 1


@pytest.mark.parametrize("suffix", ["json", "txt"])
def test_list_of_episodes_sets_their_order(dataset: ToyDataset, tmp_path: Path, suffix: str) -> None:
    chosen, path = ids(dataset)[::-3], tmp_path / f"ids.{suffix}"
    if suffix == "json":
        write_json(path, chosen)
    else:
        path.write_text("\n".join(chosen) + "\n\n")
    assert ids(dataset, episode_file=str(path)) == chosen
    assert ids(dataset, episode_file=str(path), limit=2) == chosen[:2]
    result = evaluate(dataset.config(episode_file=str(path), max_steps=3), tmp_path / "out", processes=2)
    assert [episode.id for episode in result.episodes] == chosen
    assert result.facts["left_out"] == EPISODES - len(chosen) and result.means["n"] == len(chosen)


def test_selection_is_part_of_what_determines_a_result(dataset: ToyDataset, tmp_path: Path) -> None:
    """Without a selection, facts are as before there were selections: old journals continue."""
    assert not {"limit", "left_out", "episode_file"} & dataset.context().facts.keys()
    text, json, other = tmp_path / "a.txt", tmp_path / "b.json", tmp_path / "c.txt"
    chosen = ids(dataset)[:3]
    text.write_text("\n".join(chosen))
    write_json(json, chosen)
    other.write_text("\n".join(chosen[::-1]))
    prints = [dataset.context(episode_file=str(path)).fingerprint for path in (text, json, other)]
    assert prints[0] == prints[1] != prints[2]
    prints += [dataset.context().fingerprint, dataset.context(limit=3).fingerprint]
    assert len(set(prints)) == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1_0\n9999_0\n8888_1", "2 of 3 ids, such as '9999_0', are not among the 16 episodes of val_unseen"),
        ("1_0\n0_0\n1_0", "the id '1_0' occurs twice"),
        ("\n \n", "no ids; expected a JSON array, or text with one episode id per line"),
    ],
)
def test_invalid_lists_of_episodes_are_refused(
    dataset: ToyDataset, tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "ids.txt"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        dataset.context(episode_file=str(path))


@pytest.mark.parametrize("changes", [{"limit": 3}, {"episode_file": "ids.txt"}])
def test_tours_and_selections_exclude_each_other(dataset: ToyDataset, changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="tours name the episodes to run"):
        dataset.config("tour", tours=dataset.tours, **changes)
