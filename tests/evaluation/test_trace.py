"""Traces: what they hold, that they change no result, and that the batch size does not change them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from esceme.agents import Seq2SeqConfig, TdstpConfig
from esceme.errors import DataError, EvaluationError
from esceme.evaluation import EvaluationConfig, Trace, evaluate, read_result, read_trace
from esceme.evaluation.evaluate import JOURNAL
from esceme.evaluation.trace import TRACE
from esceme.files import read_complete_lines
from esceme.memory import CandidateEnhancingConfig, CombinedReaderConfig, load_bank
from esceme.runs import NavigatorConfig, save_run
from esceme.tasks.text import WordPiece
from esceme.trajectory import greedy, sampling
from fixtures.random_runs import SMALL_HAMT
from fixtures.toy_dataset import EPISODES, WIDTH, ToyDataset

Evaluate = Callable[..., Any]
STEPS = 4


@pytest.fixture(scope="module")
def traced(dataset: ToyDataset, tmp_path_factory: pytest.TempPathFactory) -> Evaluate:
    """Evaluate with a trace; return the folder."""
    cache: dict[str, Path] = {}

    def trace(memory: str = "cold", **changes: object) -> Path:
        config = dataset.config(memory, max_steps=STEPS, **changes)
        if (key := repr(config)) not in cache:
            cache[key] = tmp_path_factory.mktemp("traced")
            evaluate(config, cache[key], trace=True)
        return cache[key]

    return trace


def save_navigator(folder: Path, dataset: ToyDataset, agent: str, *, reader: object = None) -> str:
    """Save a small navigator with random weights."""
    size = WordPiece.read(dataset.root / "tokenizer" / "vocab.txt").size
    config: object
    if agent == "seq2seq":
        config = Seq2SeqConfig(vocabulary=size, word_width=8, hidden=16, feature_width=WIDTH)
    else:
        config = TdstpConfig(vocabulary=size, positions=60, feature_width=WIDTH, **SMALL_HAMT)
    settings = {"agent": config, "reader": reader or CandidateEnhancingConfig(width=WIDTH, initial_std=0.5)}
    navigator = NavigatorConfig(**settings, feature_source="street.hdf5")  # type: ignore[arg-type]
    return str(save_run(folder, navigator.build(seed=5), navigator))


# -- content ---------------------------------------------------------------------------------------------


def test_trace_describes_the_trajectories_of_the_result(traced: Evaluate, dataset: ToyDataset) -> None:
    folder = traced()
    result, trace = read_result(folder), read_trace(folder)
    assert len(trace.episodes) == EPISODES
    tokenizer, context = WordPiece.read(dataset.root / "tokenizer" / "vocab.txt"), dataset.context()
    atlas, by_id = context.atlas, context.by_id
    for episode, told in zip(result.episodes, trace.episodes, strict=True):
        assert (told.id, told.scene, told.visit) == (episode.id, episode.scene, episode.visit)
        assert len(told.steps) == episode.decisions
        assert told.tokens == tokenizer.tokens(tokenizer.encode(by_id[told.id].instruction))
        assert told.tokens[0] == "[CLS]" and told.tokens[-1] == "[SEP]"
        path = [viewpoint for viewpoint, _, _ in episode.trajectory]
        assert [step.viewpoint for step in told.steps] == (path if episode.stopped else path[:-1])
        for step, after in zip(told.steps, [*path[1:], None], strict=False):
            (here,) = atlas.locate(episode.scene, [step.viewpoint])
            neighbours = atlas.neighbours[here, : atlas.degrees[here]]
            assert step.candidates == [atlas.name(neighbour)[1] for neighbour in neighbours]
            assert len(step.probabilities) == len(step.candidates) + 1 and step.routes == []
            assert sum(step.probabilities) == pytest.approx(1, abs=1e-3)
            assert step.action == max(range(len(step.probabilities)), key=step.probabilities.__getitem__)
            chosen = [*step.candidates, None][step.action]
            assert chosen == (after if step is not told.steps[-1] or not episode.stopped else None)
            assert step.attention is not None and len(step.attention) == len(told.tokens)
            assert sum(step.attention) == pytest.approx(1, abs=1e-3) and min(step.attention) >= 0


def test_remembered_viewpoints_make_up_the_bank_and_are_recalled_later(traced: Evaluate) -> None:
    folder = traced()
    known: dict[str, set[str]] = {}
    for episode in read_trace(folder).episodes:
        memory = known.setdefault(episode.scene, set())
        for step in episode.steps:
            assert step.recalled == sorted(set(step.candidates) & memory)
            assert step.remembered == ([] if step.viewpoint in memory else [step.viewpoint])
            memory.update(step.remembered)
    bank = load_bank(folder / "bank.safetensors")
    assert known == {scene: set(bank[scene].viewpoints) for scene in bank.scenes}


def test_masked_probabilities_equal_the_others_exactly_where_nothing_is_recalled(traced: Evaluate) -> None:
    steps = [step for episode in read_trace(traced()).episodes for step in episode.steps]
    empty = [step for step in steps if not step.recalled]
    assert empty and all(step.masked == step.probabilities for step in empty)
    assert any(step.masked != step.probabilities for step in steps if step.recalled)
    assert all(step.masked is not None and len(step.masked) == len(step.probabilities) for step in steps)


@pytest.mark.parametrize("reader", ["candidate-enhancing", "both"])
def test_empty_memory_gives_bitwise_equal_scores(
    dataset: ToyDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    """At the first decision in a scene; the probabilities are not rounded here."""
    monkeypatch.setattr("esceme.evaluation.tracing.DIGITS", 17)
    config = CombinedReaderConfig(width=WIDTH, initial_std=0.5) if reader == "both" else None
    run = save_navigator(tmp_path / "run", dataset, "tdstp", reader=config)
    evaluate(dataset.config("episodic", run=run, max_steps=2), tmp_path / "out", trace=True)
    episodes = read_trace(tmp_path / "out").episodes
    first = [episode.steps[0] for episode in episodes]
    assert all(step.recalled == [] and step.masked == step.probabilities for step in first)
    later = [episode.steps[1] for episode in episodes if len(episode.steps) > 1]
    assert any(step.recalled and step.masked != step.probabilities for step in later)


def test_masked_control_recalls_nothing(traced: Evaluate) -> None:
    steps = [step for episode in read_trace(traced("masked")).episodes for step in episode.steps]
    assert all(step.recalled == [] and step.masked == step.probabilities for step in steps)
    assert any(step.remembered for step in steps)


def test_second_pass_is_traced_with_the_memory_of_the_first(traced: Evaluate) -> None:
    trace, once = read_trace(traced("two-pass")), read_trace(traced())
    first = trace.episodes[0]
    assert first.steps[0].recalled and not once.episodes[0].steps[0].recalled
    assert first.visit > once.episodes[0].visit


def test_returns_of_tdstp_are_traced(dataset: ToyDataset, tmp_path: Path) -> None:
    run = save_navigator(tmp_path / "run", dataset, "tdstp")
    result = evaluate(dataset.config(run=run), tmp_path / "out", trace=True)
    jumps = 0
    for episode, told in zip(result.episodes, read_trace(tmp_path / "out").episodes, strict=True):
        for step in told.steps:
            assert len(step.probabilities) == len(step.candidates) + 1 + len(step.routes)
            targets = [*step.candidates, "", *step.routes]
            jumps += step.action > len(step.candidates)
            assert step.action == len(step.candidates) or targets[step.action]
        decisions = [step.viewpoint for step in told.steps]
        path = iter(viewpoint for viewpoint, _, _ in episode.trajectory)
        assert all(viewpoint in path for viewpoint in decisions)  # in this order
    assert jumps


def test_agents_without_memory_or_attention_have_none(dataset: ToyDataset, tmp_path: Path) -> None:
    config = EvaluationConfig(run="random", data=str(dataset.root), split="val_unseen", memory="none")
    evaluate(config, tmp_path, trace=True)
    steps = [step for episode in read_trace(tmp_path).episodes for step in episode.steps]
    assert all(step.masked is None and step.attention is None for step in steps)
    assert not any(step.recalled or step.remembered for step in steps)


def test_recurrent_agent_has_attention(dataset: ToyDataset, tmp_path: Path) -> None:
    run = save_navigator(tmp_path / "run", dataset, "seq2seq")
    evaluate(dataset.config(run=run, max_steps=2, limit=3), tmp_path / "out", trace=True)
    for episode in read_trace(tmp_path / "out").episodes:
        assert all(len(step.attention or ()) == len(episode.tokens) for step in episode.steps)


# -- independence ----------------------------------------------------------------------------------------


def test_trace_changes_no_result_and_depends_on_no_batch_size(traced: Evaluate, evaluated: Evaluate) -> None:
    plain = evaluated(max_steps=STEPS).folder
    for changes in ({}, {"batch": 8}):
        folder = traced(**changes)
        assert (folder / TRACE).read_bytes() == (traced() / TRACE).read_bytes()
        for name in ("result.json", "predictions.json", "bank.safetensors"):
            assert (folder / name).read_bytes() == (plain / name).read_bytes()


@pytest.mark.long
def test_trace_does_not_depend_on_processes(dataset: ToyDataset, traced: Evaluate, tmp_path: Path) -> None:
    folder = Path(copytree(traced(), tmp_path / "copy"))
    (folder / TRACE).unlink()
    evaluate(dataset.config(max_steps=STEPS), folder, processes=2, trace=True)
    assert (folder / TRACE).read_bytes() == (traced() / TRACE).read_bytes()


def test_interleaved_batches_are_traced_with_their_shared_memory(dataset: ToyDataset, tmp_path: Path) -> None:
    """Agents of one batch may recall what another remembered one step before."""
    config = dataset.config(schedule="interleaved", batch=5, max_steps=STEPS)
    evaluate(config, tmp_path / "plain")
    evaluate(config, tmp_path / "traced", trace=True)
    for name in ("result.json", "journal.jsonl"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "traced" / name).read_bytes()
    trace = read_trace(tmp_path / "traced")
    bank = load_bank(tmp_path / "traced" / "bank.safetensors")
    remembered = [(e.scene, name) for e in trace.episodes for step in e.steps for name in step.remembered]
    assert len(set(remembered)) == len(remembered) <= len(bank)
    assert any(step.recalled for episode in trace.episodes for step in episode.steps)


# -- files -----------------------------------------------------------------------------------------------


def test_finished_evaluation_can_be_traced_later(
    dataset: ToyDataset, traced: Evaluate, tmp_path: Path
) -> None:
    config = dataset.config(max_steps=STEPS)
    evaluate(config, tmp_path)
    journal = (tmp_path / JOURNAL).read_bytes()
    evaluate(config, tmp_path, trace=True)
    assert (tmp_path / JOURNAL).read_bytes() == journal
    assert (tmp_path / TRACE).read_bytes() == (traced() / TRACE).read_bytes()


def test_interrupted_trace_continues(dataset: ToyDataset, traced: Evaluate, tmp_path: Path) -> None:
    whole = traced()
    folder = Path(copytree(whole, tmp_path / "copy"))
    lines = read_complete_lines(whole / TRACE)
    kept = [lines[0], *lines[4:9]]  # other episodes than the first were finished, in another order
    (folder / TRACE).write_bytes(b"".join(kept) + lines[1][:50])
    with pytest.raises(DataError, match="5 of 16 episodes; continue with the same command"):
        read_trace(folder)
    progress: list[tuple[int, int]] = []
    evaluate(
        dataset.config(max_steps=STEPS),
        folder,
        trace=True,
        on_trace_progress=lambda finished, total: progress.append((finished, total)),
    )
    assert (folder / TRACE).read_bytes() == (whole / TRACE).read_bytes()
    assert progress[0] == (5, EPISODES) and progress[-1] == (EPISODES, EPISODES)


def test_damaged_trace_is_refused_and_made_again(
    dataset: ToyDataset, traced: Evaluate, tmp_path: Path
) -> None:
    whole = traced()
    folder = Path(copytree(whole, tmp_path / "copy"))
    damaged = (whole / TRACE).read_bytes().replace(b'"action":1', b'"action":0', 1)
    (folder / TRACE).write_bytes(damaged)
    with pytest.raises(DataError, match=r"trace.jsonl: line \d+ is damaged; evaluate again with --trace"):
        read_trace(folder)
    notes: list[str] = []
    evaluate(dataset.config(max_steps=STEPS), folder, trace=True, note=notes.append)
    assert "is damaged" in notes[0]
    assert (folder / TRACE).read_bytes() == (whole / TRACE).read_bytes()


def test_trace_of_another_result_is_refused(traced: Evaluate, tmp_path: Path) -> None:
    folder = Path(copytree(traced(), tmp_path / "copy"))
    (folder / "result.json").write_bytes((traced("masked") / "result.json").read_bytes())
    with pytest.raises(DataError, match="not of the evaluation in result.json"):
        read_trace(folder)
    with pytest.raises(DataError, match="no such file; evaluate again with --trace"):
        read_trace(tmp_path)
    (folder / TRACE).write_bytes((folder / JOURNAL).read_bytes())
    with pytest.raises(DataError, match="format '', expected 'esceme-trace-1'"):
        read_trace(folder)


def test_journal_without_actions_is_traced_if_its_paths_are_reproduced(
    dataset: ToyDataset, traced: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Journals of older versions have no actions: the best actions have to lead along the same paths."""
    folder = Path(copytree(traced(), tmp_path / "copy"))
    (folder / TRACE).unlink()
    monkeypatch.setattr("esceme.evaluation.tracing.replaying", lambda recorded: greedy)
    evaluate(dataset.config(max_steps=STEPS), folder, trace=True)
    assert (folder / TRACE).read_bytes() == (traced() / TRACE).read_bytes()
    (folder / TRACE).unlink()
    monkeypatch.setattr("esceme.evaluation.tracing.replaying", lambda recorded: sampling(seed=0))
    with pytest.raises(EvaluationError, match="recorded without actions by an older version"):
        evaluate(dataset.config(max_steps=STEPS), folder, trace=True)


def test_reader_returns_typed_values(traced: Evaluate) -> None:
    trace = read_trace(traced() / TRACE)
    assert isinstance(trace, Trace) and trace == read_trace(traced())
