"""`esceme import` and `esceme export`: output, written files, errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from esceme.agents import Seq2Seq, Seq2SeqConfig
from esceme.cli import main
from esceme.memory import NoMemory
from esceme.navigator import Navigator
from esceme.runs import load_run, navigator_config, save_run
from fixtures import original_checkpoints

Capture = pytest.CaptureFixture[str]
ErrorOf = Callable[[Sequence[str]], str]
IMPORT = ["import", "best", "--out", "run", "--heads", "3"]


@pytest.fixture(autouse=True)
def _empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_import_writes_a_run(capsys: Capture) -> None:
    original_checkpoints.save(original_checkpoints.fine_tuned(), Path("best"))
    assert main([*IMPORT, "--task", "cvdn", "--pooling", "mean"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "run: hamt, candidate-enhancing, for cvdn, from best (fine-tuned)" in out
    assert "agent.text.* " in out and "reader.first.* (2)" in out
    run = load_run("run")
    assert run.navigator.reader.config.pooling == "mean"
    assert not run.navigator.agent.config.language_cross_attention
    assert (run.config.task, run.config.keep) == ("cvdn", "last")


@pytest.mark.parametrize(
    ("agent", "own"),
    [("hamt", set()), ("tdstp", {"position_encoder", "history_mapper", "goal_head"})],
)
def test_json_names_every_tensor(capsys: Capture, agent: str, own: set[str]) -> None:
    stored = original_checkpoints.pre_training()
    original_checkpoints.save(stored, Path("best"))
    assert main([*IMPORT, "--agent", agent, "--reader", "candidate-enhancing", "--json"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert err == "" and out.count("\n") == 1
    assert (report["file"], report["out"], report["navigator"]["agent"]["name"]) == ("best", "run", agent)
    assert set(report["mapped"]) | set(report["ignored"]) == set(stored)
    assert report["mapped"]["next_action.net.0.bias"] == "agent.action.0.bias"
    assert set(report["ignored"]) == set(original_checkpoints.HEADS_OF_PRE_TRAINING)
    parts = [name.removeprefix("agent.").split(".")[0] for name in report["initialised"]]
    assert set(parts) == own | {"critic", "reader"} and parts.count("reader") == 6
    state = load_run("run").navigator.state_dict()
    assert set(report["mapped"].values()) | set(report["initialised"]) == set(state)


def test_the_table_lists_ignored_and_initialised_tensors(capsys: Capture) -> None:
    original_checkpoints.save(original_checkpoints.pre_training(), Path("best"))
    assert main(IMPORT) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "ignored" in out and "mlm_head.predictions.* (2)" in out and "bert.vision_backbone.* (2)" in out
    assert "randomly initialised" in out and "agent.critic.0.weight, agent.critic.0.bias" in out


def test_the_critic_can_come_from_its_own_file(capsys: Capture) -> None:
    content = original_checkpoints.fine_tuned()
    for part in content:
        save_file(content[part]["state_dict"], f"{part}.safetensors")
    command = ["import", "vln_bert.safetensors", "--critic", "critic.safetensors", "--out", "run"]
    assert main([*command, "--heads", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["initialised"] == []
    stored = content["critic"]["state_dict"]["state2value.3.weight"]
    assert torch.equal(load_run("run").navigator.state_dict()["agent.critic.3.weight"], stored)


@pytest.mark.parametrize(
    ("task", "value", "expected"),
    [("r4r", "by-task", False), ("r4r", "no", True), ("r2r", "by-task", True), ("r2r", "yes", False)],
)
def test_no_lang_ca_option(task: str, value: str, expected: bool) -> None:
    original_checkpoints.save(original_checkpoints.fine_tuned(), Path("best"))
    assert main([*IMPORT, "--task", task, "--no-lang-ca", value]) == 0
    assert load_run("run").navigator.agent.config.language_cross_attention is expected


def test_the_seed_determines_initialised_weights() -> None:
    original_checkpoints.save(original_checkpoints.pre_training(), Path("best"))
    hashes = []
    for seed in ("0", "0", "7"):
        assert main([*IMPORT, "--reader", "candidate-enhancing", "--seed", seed]) == 0
        hashes.append(load_run("run").weights_hash)
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("agent", ["hamt", "tdstp"])
def test_export_restores_the_imported_file(capsys: Capture, agent: str, memory: bool) -> None:
    content = original_checkpoints.fine_tuned(memory=memory, td_stp=agent == "tdstp")
    original_checkpoints.save(content, Path("best"))
    switches = ["--structured", "True"] if agent == "tdstp" else []
    assert main([*IMPORT, *switches]) == 0
    out = capsys.readouterr().out
    reader = "candidate-enhancing" if memory else "none"
    assert f"run: {agent}, {reader}, for r2r, from best (fine-tuned)" in out
    for part in ("position_encoder", "history_mapper", "goal_head"):
        assert (f"agent.{part}.*" in out) == (agent == "tdstp")
    assert getattr(load_run("run").navigator.agent.config, "structured", False) == (agent == "tdstp")
    assert main(["export", "run", "--out", "ckpts/best", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["weights"] == load_run("run").weights_hash
    written, names = torch.load("ckpts/best", weights_only=True), set()
    for part in ("vln_bert", "critic"):
        state, expected = written[part]["state_dict"], content[part]["state_dict"]
        assert list(state) == list(expected)
        assert all(torch.equal(state[name], expected[name]) for name in expected)
        names |= set(state)
    assert set(report["names"].values()) == names
    assert main(["export", "run", "--out", "ckpts/best"]) == 0
    assert capsys.readouterr().out == f"ckpts/best: {len(names)} tensors in the original's layout\n"


@pytest.mark.parametrize(("options", "warns"), [([], True), (["--structured", "False"], False)])
def test_td_stp_weights_without_memory_need_the_structured_option(
    capsys: Capture, options: list[str], warns: bool
) -> None:
    original_checkpoints.save(original_checkpoints.fine_tuned(memory=False, td_stp=True), Path("best"))
    assert main([*IMPORT, *options]) == 0
    assert ("import them with --structured True" in capsys.readouterr().err) == warns


# -- errors -----------------------------------------------------------------------------------------------


def test_a_refused_file_leaves_no_run(error_of: ErrorOf) -> None:
    content = original_checkpoints.fine_tuned()
    del content["vln_bert"]["state_dict"]["vln_bert.hist_embeddings.cls_token"]
    content["critic"]["state_dict"]["state2value.0.bias"][1] = torch.nan
    original_checkpoints.save(content, Path("best"))
    for mode in ([], ["--json"]):
        message = error_of([*IMPORT, *mode])
        assert message.startswith("best: ") and "1 missing: hist_embeddings.cls_token" in message
        assert "1 not finite: state2value.0.bias" in message
    assert not Path("run").exists()


def test_other_files_are_refused(error_of: ErrorOf) -> None:
    assert error_of(IMPORT) == "best: no such file"
    Path("best").write_text("sofa")
    assert "best: not a" in error_of(IMPORT)
    original_checkpoints.save(original_checkpoints.fine_tuned(), Path("best"))
    assert "give the number of heads" in error_of([*IMPORT[:-2]])
    assert "include a reader" in error_of([*IMPORT, "--reader", "none"])


def test_an_older_run_survives_a_refused_import(capsys: Capture, error_of: ErrorOf) -> None:
    original_checkpoints.save(original_checkpoints.fine_tuned(), Path("best"))
    assert main(IMPORT) == 0
    capsys.readouterr()
    original_checkpoints.save({"weight": torch.zeros(3)}, Path("best"))
    assert "holds no network of HAMT, TD-STP, DUET or ESceme" in error_of(IMPORT)
    load_run("run")


def test_runs_of_other_agents_are_not_exported(error_of: ErrorOf) -> None:
    assert "is not a folder" in error_of(["export", "run", "--out", "best"])
    navigator = Navigator(Seq2Seq(Seq2SeqConfig()), NoMemory())
    save_run("run", navigator, navigator_config(navigator))
    assert "found Seq2Seq with NoMemory" in error_of(["export", "run", "--out", "best"])
