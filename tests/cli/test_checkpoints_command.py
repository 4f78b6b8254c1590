"""`esceme import` and `esceme export`: what they say and write, and that they write nothing otherwise."""

from __future__ import annotations

import json
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
IMPORT = ["import", "best", "--out", "run", "--heads", "3"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refusal(capsys: Capture, *command: str) -> str:
    """The message of a command that is refused; nothing but what was there is there afterwards."""
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and "Traceback" not in err
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    return err.removeprefix("error: ").rstrip("\n")


def test_a_published_file_becomes_a_run(capsys: Capture) -> None:
    original_checkpoints.save(original_checkpoints.fine_tuned(), Path("best"))
    assert main([*IMPORT, "--task", "cvdn", "--pooling", "mean"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "run: hamt, candidate-enhancing, for cvdn, from best (fine-tuned)" in out
    assert "agent.text.* " in out and "reader.first.* (2)" in out
    run = load_run("run")
    assert run.navigator.reader.config.pooling == "mean"
    assert not run.navigator.agent.config.language_cross_attention
    assert (run.config.task, run.config.keep) == ("cvdn", "last")


def test_json_names_every_tensor(capsys: Capture) -> None:
    stored = original_checkpoints.pre_training()
    original_checkpoints.save(stored, Path("best"))
    assert main([*IMPORT, "--reader", "candidate-enhancing", "--json"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert err == "" and out.count("\n") == 1
    assert (told["file"], told["out"], told["navigator"]["agent"]["name"]) == ("best", "run", "hamt")
    assert set(told["mapped"]) | set(told["ignored"]) == set(stored)
    assert told["mapped"]["next_action.net.0.bias"] == "agent.action.0.bias"
    assert set(told["ignored"]) == set(original_checkpoints.HEADS_OF_PRE_TRAINING)
    assert [name for name in told["initialised"] if name.startswith("reader.")] == [
        f"reader.{part}.{end}" for part in ("first", "norm", "second") for end in ("weight", "bias")
    ]
    assert len(told["initialised"]) == 10
    state = load_run("run").navigator.state_dict()
    assert set(told["mapped"].values()) | set(told["initialised"]) == set(state)


def test_the_table_lists_what_is_ignored_and_what_is_drawn(capsys: Capture) -> None:
    original_checkpoints.save(original_checkpoints.pre_training(), Path("best"))
    assert main(IMPORT) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "ignored" in out and "mlm_head.predictions.* (2)" in out and "bert.vision_backbone.* (2)" in out
    assert "newly drawn" in out and "agent.critic.0.weight, agent.critic.0.bias" in out


def test_a_critic_of_its_own_is_taken(capsys: Capture) -> None:
    content = original_checkpoints.fine_tuned()
    for part in content:
        save_file(content[part]["state_dict"], f"{part}.safetensors")
    command = ["import", "vln_bert.safetensors", "--critic", "critic.safetensors", "--out", "run"]
    assert main([*command, "--heads", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["initialised"] == []
    stored = content["critic"]["state_dict"]["state2value.3.weight"]
    assert torch.equal(load_run("run").navigator.state_dict()["agent.critic.3.weight"], stored)


@pytest.mark.parametrize(
    ("task", "told", "expected"),
    [("r4r", "by-task", False), ("r4r", "no", True), ("r2r", "by-task", True), ("r2r", "yes", False)],
)
def test_whether_text_looks_at_vision_can_be_told(task: str, told: str, expected: bool) -> None:
    original_checkpoints.save(original_checkpoints.fine_tuned(), Path("best"))
    assert main([*IMPORT, "--task", task, "--no-lang-ca", told]) == 0
    assert load_run("run").navigator.agent.config.language_cross_attention is expected


def test_the_seed_decides_what_is_drawn() -> None:
    original_checkpoints.save(original_checkpoints.pre_training(), Path("best"))
    hashes = []
    for seed in ("0", "0", "7"):
        assert main([*IMPORT, "--reader", "candidate-enhancing", "--seed", seed]) == 0
        hashes.append(load_run("run").weights_hash)
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("memory", [False, True])
def test_export_writes_the_file_that_was_imported(capsys: Capture, memory: bool) -> None:
    content = original_checkpoints.fine_tuned(memory=memory)
    original_checkpoints.save(content, Path("best"))
    assert main([*IMPORT, "--json"]) == 0
    mapped = json.loads(capsys.readouterr().out)["mapped"]
    assert main(["export", "run", "--out", "ckpts/best", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {theirs: ours for ours, theirs in told["names"].items()} == mapped
    assert told["weights"] == load_run("run").weights_hash
    written = torch.load("ckpts/best", weights_only=True)
    for part in ("vln_bert", "critic"):
        state, expected = written[part]["state_dict"], content[part]["state_dict"]
        assert list(state) == list(expected)
        assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert main(["export", "run", "--out", "ckpts/best"]) == 0
    assert capsys.readouterr().out == f"ckpts/best: {len(mapped)} tensors in the original's layout\n"


@pytest.mark.parametrize("memory", [False, True])
def test_a_file_of_td_stp_comes_and_goes(capsys: Capture, memory: bool) -> None:
    content = original_checkpoints.fine_tuned(memory=memory, td_stp=True)
    original_checkpoints.save(content, Path("best"))
    assert main([*IMPORT, "--structured", "True"]) == 0
    out = capsys.readouterr().out
    reader = "candidate-enhancing" if memory else "none"
    assert f"run: tdstp, {reader}, for r2r, from best (fine-tuned)" in out
    assert all(f"agent.{part}.*" in out for part in ("position_encoder", "history_mapper", "goal_head"))
    assert load_run("run").navigator.agent.config.structured
    assert main(["export", "run", "--out", "again"]) == 0
    written = torch.load("again", weights_only=True)
    for part in ("vln_bert", "critic"):
        state, expected = written[part]["state_dict"], content[part]["state_dict"]
        assert list(state) == list(expected)
        assert all(torch.equal(state[name], expected[name]) for name in expected)


@pytest.mark.parametrize(("said", "told"), [([], True), (["--structured", "False"], False)])
def test_weights_that_may_be_of_td_stps_own_repository_are_asked_about(
    capsys: Capture, said: list[str], told: bool
) -> None:
    original_checkpoints.save(original_checkpoints.fine_tuned(memory=False, td_stp=True), Path("best"))
    assert main([*IMPORT, *said]) == 0
    assert ("import them with --structured True" in capsys.readouterr().err) == told


def test_pre_training_of_hamt_begins_td_stp(capsys: Capture) -> None:
    original_checkpoints.save(original_checkpoints.pre_training(), Path("best"))
    assert main([*IMPORT, "--agent", "tdstp", "--reader", "candidate-enhancing", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    drawn = {name.split(".")[1] if name.startswith("agent.") else "reader" for name in told["initialised"]}
    assert told["navigator"]["agent"]["name"] == "tdstp" and drawn == {
        "positions",
        "map",
        "guess",
        "critic",
        "reader",
    }
    assert not load_run("run").navigator.agent.config.structured  # as in the release


# -- refusals ---------------------------------------------------------------------------------------------


def test_a_file_that_does_not_fit_leaves_nothing_behind(capsys: Capture) -> None:
    content = original_checkpoints.fine_tuned()
    del content["vln_bert"]["state_dict"]["vln_bert.hist_embeddings.cls_token"]
    content["critic"]["state_dict"]["state2value.0.bias"][1] = torch.nan
    original_checkpoints.save(content, Path("best"))
    for mode in ([], ["--json"]):
        told = refusal(capsys, *IMPORT, *mode)
        assert told.startswith("best: ") and "1 missing: hist_embeddings.cls_token" in told
        assert "1 not of finite numbers: state2value.0.bias" in told
    assert not Path("run").exists()


def test_other_files_are_refused(capsys: Capture) -> None:
    assert refusal(capsys, *IMPORT) == "best: no such file"
    Path("best").write_text("sofa")
    assert "best: not a" in refusal(capsys, *IMPORT)
    original_checkpoints.save(original_checkpoints.fine_tuned(), Path("best"))
    assert "give the number of heads" in refusal(capsys, *IMPORT[:-2])
    assert "include a reader" in refusal(capsys, *IMPORT, "--reader", "none")


def test_weights_of_another_agent_are_refused_by_name(capsys: Capture) -> None:
    original_checkpoints.save(original_checkpoints.fine_tuned(td_stp=True), Path("best"))
    told = refusal(capsys, *IMPORT, "--agent", "hamt")
    assert told == "best: these are weights of TD-STP, not of HAMT; import them as 'tdstp'"
    original_checkpoints.save(original_checkpoints.fine_tuned(), Path("best"))
    told = refusal(capsys, *IMPORT, "--agent", "tdstp")
    assert told == "best: these are weights of HAMT, not of TD-STP; import them as 'hamt'"
    told = refusal(capsys, *IMPORT, "--structured", "True")
    assert told == "best: structured is of TD-STP, and these are weights of HAMT"


def test_an_older_run_survives_a_refused_import(capsys: Capture) -> None:
    original_checkpoints.save(original_checkpoints.fine_tuned(), Path("best"))
    assert main(IMPORT) == 0
    capsys.readouterr()
    original_checkpoints.save({"weight": torch.zeros(3)}, Path("best"))
    assert "holds no network of HAMT, TD-STP or ESceme" in refusal(capsys, *IMPORT)
    load_run("run")


def test_only_runs_of_hamt_are_exported(capsys: Capture) -> None:
    assert "is not a folder" in refusal(capsys, "export", "run", "--out", "best")
    navigator = Navigator(Seq2Seq(Seq2SeqConfig()), NoMemory())
    save_run("run", navigator, navigator_config(navigator))
    assert "found Seq2Seq with NoMemory" in refusal(capsys, "export", "run", "--out", "best")
