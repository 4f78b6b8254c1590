"""Run folders: saving, loading and refusals."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from esceme import __version__
from esceme.agents import (
    AGENTS,
    HAMT,
    AgentConfig,
    HamtConfig,
    Seq2Seq,
    Seq2SeqConfig,
    StopAtOnce,
    TdstpConfig,
)
from esceme.errors import CheckpointError, ConfigError, DataError, EscemeError
from esceme.memory import (
    READERS,
    CandidateEnhancing,
    CandidateEnhancingConfig,
    MemoryBank,
    NoMemory,
    ReaderConfig,
)
from esceme.navigator import Navigator
from esceme.runs import (
    FORMAT,
    NAVIGATOR_FILE,
    VOCABULARY_FILE,
    WEIGHTS_FILE,
    NavigatorConfig,
    _file_digest,
    _write_navigator_file,
    as_json,
    from_json,
    load_navigator_weights,
    load_run,
    navigator_config,
    save_run,
)
from esceme.tasks.folder import DataFolder
from esceme.tasks.split import load_split
from esceme.tasks.text import Vocabulary
from fixtures.random_observations import (
    SMALL_NETWORK,
    WIDTH,
    random_building,
    random_observation,
    random_words,
)
from fixtures.random_runs import random_run

CONFIG = HamtConfig(**SMALL_NETWORK, critic_inner=4, epsilon=1e-5)
READER = CandidateEnhancingConfig(width=WIDTH, pooling="mean", stop="zero")


def make_navigator(seed: int = 0) -> Navigator:
    torch.manual_seed(seed)
    return Navigator(HAMT(CONFIG), CandidateEnhancing(READER), feature_dropout=0.25)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    navigator = make_navigator()
    config = navigator_config(
        navigator, task="cvdn", max_steps=5, max_tokens=12, keep="last", origin="a test"
    )
    return save_run(tmp_path / "run", navigator, config)


def change(run: Path, **fields: Any) -> None:
    """Change values in navigator.json; None removes the field."""
    stored = {**json.loads((run / NAVIGATOR_FILE).read_text()), **fields}
    stored = {name: value for name, value in stored.items() if value is not None}
    (run / NAVIGATOR_FILE).write_text(json.dumps(stored))


def change_part(run: Path, part: str, **settings: Any) -> None:
    """Change settings of the agent or the reader in navigator.json."""
    change(run, **{part: {**json.loads((run / NAVIGATOR_FILE).read_text())[part], **settings}})


def replace_weights(run: Path, tensors: dict[str, Tensor]) -> None:
    """Write other weights, and their digest to navigator.json."""
    save_file(tensors, run / WEIGHTS_FILE)
    change(run, weights_sha256=[hashlib.sha256((run / WEIGHTS_FILE).read_bytes()).hexdigest()])


def assert_equal_weights(one: Navigator, other: Navigator) -> None:
    tensors, expected = one.state_dict(), other.state_dict()
    assert list(tensors) == list(expected)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors.items())


def test_loaded_run_equals_the_saved_one(run: Path) -> None:
    loaded = load_run(run)
    assert loaded.folder == run and loaded.vocabulary is None
    assert loaded.navigator.agent.config == CONFIG and loaded.navigator.reader.config == READER
    assert loaded.navigator.feature_dropout == 0.25 and not loaded.navigator.training
    assert_equal_weights(loaded.navigator, make_navigator())
    assert loaded.config.task == "cvdn" and loaded.config.keep == "last" and loaded.config.origin == "a test"
    assert loaded.weights_hash == hashlib.sha256((run / WEIGHTS_FILE).read_bytes()).hexdigest()


def test_saving_a_loaded_run_gives_the_same_files(run: Path, tmp_path: Path) -> None:
    loaded = load_run(run)
    again = save_run(tmp_path / "again", loaded.navigator, loaded.config)
    for name in (NAVIGATOR_FILE, WEIGHTS_FILE):
        assert (again / name).read_bytes() == (run / name).read_bytes()
    assert sorted(path.name for path in again.iterdir()) == [NAVIGATOR_FILE, WEIGHTS_FILE]


def test_navigator_json_holds_all_settings_and_the_version(run: Path) -> None:
    stored = json.loads((run / NAVIGATOR_FILE).read_text())
    assert stored["format"] == FORMAT and stored["version"] == __version__
    assert stored["agent"] == {"name": "hamt", **json.loads(json.dumps(vars(CONFIG)))}
    assert stored["reader"] == {"name": "candidate-enhancing", **vars(READER)}


@pytest.mark.parametrize("agent", [Seq2Seq(Seq2SeqConfig()), StopAtOnce()])
def test_other_agents_have_run_folders(tmp_path: Path, agent: Any) -> None:
    navigator = Navigator(agent, NoMemory())
    save_run(tmp_path, navigator, navigator_config(navigator))
    loaded = load_run(tmp_path).navigator
    assert type(loaded.agent) is type(agent) and type(loaded.reader) is NoMemory
    assert_equal_weights(loaded, navigator)


def logits_of_two_steps(navigator: Navigator) -> list[Tensor]:
    observation, memory = random_observation(), MemoryBank(WIDTH)
    memory.bind(random_building())
    memory.remember_observation(random_observation(seed=1))
    state, logits = navigator.begin(random_words(), observation.viewpoint), []
    for _ in range(2):
        observed = navigator.observe(observation, memory)
        decision = navigator.decide(state, observed)
        state = navigator.advance(decision.state or state, observed, torch.zeros_like(observation.viewpoint))
        logits.append(decision.logits)
    return logits


@pytest.mark.parametrize("reader", [name for name, kind in READERS.items() if not kind.needs_map])
@pytest.mark.parametrize("agent", [CONFIG, TdstpConfig(**vars(CONFIG))], ids=["hamt", "tdstp"])
def test_loaded_navigator_decides_like_the_saved_one(tmp_path: Path, agent: AgentConfig, reader: str) -> None:
    width = {"width": WIDTH} if READERS[reader].uses_memory else {}
    config = NavigatorConfig(agent=agent, reader=READERS[reader].Config(**width))
    navigator = config.build(seed=0).eval()
    save_run(tmp_path, navigator, config)
    with torch.inference_mode():
        before, after = logits_of_two_steps(navigator), logits_of_two_steps(load_run(tmp_path).navigator)
    assert before[0][before[0].isfinite()].abs().amax() > 1e-2
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)


@dataclass(frozen=True)
class CountingConfig:
    """No settings."""


class Counting(StopAtOnce):
    """Computes a table that is not saved."""

    Config = CountingConfig

    def __init__(self, config: Any = None) -> None:
        super().__init__(config or CountingConfig())
        self.register_buffer("table", torch.arange(4), persistent=False)


def test_buffers_that_are_not_saved_are_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(AGENTS, "counting", Counting)
    navigator = Navigator(Counting(), NoMemory())
    save_run(tmp_path, navigator, navigator_config(navigator))
    assert load_run(tmp_path).navigator.agent.table.tolist() == [0, 1, 2, 3]


def test_vocabulary_of_the_folder_is_found(run: Path) -> None:
    (run / VOCABULARY_FILE).write_text("[PAD]\nsofa\n")
    assert load_run(run).vocabulary == run / VOCABULARY_FILE


def test_same_seed_builds_the_same_navigator(run: Path) -> None:
    config = load_run(run).config
    first, again, other = (config.build(seed=seed) for seed in (3, 3, 4))
    assert_equal_weights(first, again)
    assert not torch.equal(first.agent.text.words.weight, other.agent.text.words.weight)
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    config.build(seed=3)
    assert torch.equal(torch.rand(2), expected), "building draws from its own seed"


# -- refusals ---------------------------------------------------------------------------------------------


def test_all_unfitting_tensors_are_named_at_once(run: Path) -> None:
    tensors = load_file(run / WEIGHTS_FILE)
    del tensors["agent.history.start"], tensors["reader.norm.bias"]
    tensors["agent.extra"] = torch.zeros(1)
    tensors["agent.text.words.weight"] = torch.zeros(51, 24)
    tensors["agent.critic.3.bias"] = torch.zeros(2)
    tensors["agent.history.kind.weight"] = tensors["agent.history.kind.weight"].to(torch.float8_e4m3fn)
    replace_weights(run, tensors)
    with pytest.raises(CheckpointError) as refused:
        load_run(run)
    message = str(refused.value)
    assert message.startswith(f"{run / WEIGHTS_FILE}: ")
    for part in (
        "2 missing: agent.history.start, reader.norm.bias",
        "1 unknown: agent.extra",
        "2 with a wrong shape: agent.critic.3.bias (expected (1,), found (2,)), "
        "agent.text.words.weight (expected (50, 24), found (51, 24))",
        "1 of a wrong type: agent.history.kind.weight (torch.float8_e4m3fn)",
    ):
        assert part in message


def test_refused_tensors_leave_the_navigator_unchanged() -> None:
    navigator, other = make_navigator(), make_navigator(1)
    tensors = other.state_dict()
    del tensors["agent.history.start"]
    with pytest.raises(CheckpointError, match="given: .*1 missing: agent.history.start"):
        load_navigator_weights(navigator, tensors, file="given")
    assert_equal_weights(navigator, make_navigator())


def test_folder_without_a_file_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere: is not a folder; expected a run folder"):
        load_run(tmp_path / "nowhere")
    (run / WEIGHTS_FILE).unlink()
    with pytest.raises(EscemeError, match=r"weights\.safetensors: no such file"):
        load_run(run)
    (run / NAVIGATOR_FILE).unlink()
    with pytest.raises(CheckpointError, match=r"run: has no navigator\.json; expected a run folder"):
        load_run(run)


def test_damaged_weights_are_refused(run: Path) -> None:
    data = (run / WEIGHTS_FILE).read_bytes()
    changed = data[:-10] + bytes([data[-10] ^ 1]) + data[-9:]
    for damaged in (b"", data[:200], data[:-1], changed, data + b" "):
        (run / WEIGHTS_FILE).write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"weights\.safetensors: damaged or replaced, "):
            load_run(run)
    change(run, weights_sha256=[hashlib.sha256(b"text").hexdigest()])
    (run / WEIGHTS_FILE).write_bytes(b"text")
    with pytest.raises(CheckpointError, match=r"weights\.safetensors: not a complete safetensors file"):
        load_run(run)


def test_weights_that_were_checked_are_read_again_if_changed_or_paranoid(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esceme.files.UNSETTLED_SECONDS", -60)
    digests = []
    monkeypatch.setattr("esceme.runs._file_digest", lambda path: digests.append(path) or _file_digest(path))
    expected = load_run(run).weights_hash
    for is_paranoid, num_read in ((False, 1), (True, 2)):
        assert load_run(run, is_paranoid=is_paranoid).weights_hash == expected
        assert len(digests) == num_read
    tensors = {name: tensor.clone() for name, tensor in load_run(run).navigator.state_dict().items()}
    next(iter(tensors.values())).view(-1)[0] = torch.nan
    (run / WEIGHTS_FILE).unlink()
    replace_weights(run, tensors)
    for _ in range(2):  # weights that were refused are not stored as checked
        with pytest.raises(CheckpointError, match="not finite"):
            load_run(run)


def test_truncated_navigator_json_is_refused(run: Path) -> None:
    text = (run / NAVIGATOR_FILE).read_text()
    (run / NAVIGATOR_FILE).write_text(text[: len(text) // 2])
    with pytest.raises(DataError, match=r"navigator\.json: not valid json"):
        load_run(run)


@pytest.mark.parametrize("kill_at", [1, 2])
def test_run_loads_after_a_kill_while_it_was_saved_again(
    run: Path, monkeypatch: pytest.MonkeyPatch, kill_at: int
) -> None:
    config, calls = load_run(run).config, []

    def write_and_kill(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            _write_navigator_file(*arguments)
        if len(calls) == kill_at:
            raise KeyboardInterrupt

    monkeypatch.setattr("esceme.runs._write_navigator_file", write_and_kill)
    with pytest.raises(KeyboardInterrupt):
        save_run(run, make_navigator(1), config)
    monkeypatch.undo()
    assert_equal_weights(load_run(run).navigator, make_navigator(kill_at - 1))
    save_run(run, make_navigator(1), config)
    assert len(json.loads((run / NAVIGATOR_FILE).read_text())["weights_sha256"]) == 1


@pytest.mark.parametrize("part", ["agent", "reader"])
def test_every_setting_of_navigator_json_is_required(run: Path, part: str) -> None:
    complete = (run / NAVIGATOR_FILE).read_text()
    for name in json.loads(complete)[part]:
        if name != "name":
            stored = json.loads(complete)
            del stored[part][name]
            (run / NAVIGATOR_FILE).write_text(json.dumps(stored))
            with pytest.raises(CheckpointError, match=f"navigator.json: missing: {part}.{name}$"):
                load_run(run)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cross_layers": 3_000_000}, "navigator.json describes a network of more than "),
        ({"text_layers": 2**40}, "navigator.json describes a network of more than "),
        ({"hidden": 3 * 2**40}, "no network has the sizes in navigator.json"),
        ({"vocabulary": 2**62}, "no network has the sizes in navigator.json"),
        ({"feed_forward": 2**64}, "no network has the sizes in navigator.json"),
        ({"positions": 2**40}, r"agent.text.positions.weight .expected .1099511627776, 24., found"),
    ],
)
def test_sizes_beyond_the_weights_are_refused_at_once(
    run: Path, settings: dict[str, int], message: str
) -> None:
    change_part(run, "agent", **settings)
    with pytest.raises(CheckpointError, match=message):
        load_run(run)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": "esceme-run-1"}, "format 'esceme-run-1', expected 'esceme-run-2'; load it with"),
        ({"format": None}, "format None, expected 'esceme-run-2'"),
        ({"weights_sha256": None}, "weights_sha256: Expected `array`, got `null`"),
        ({"max_steps": -3}, "max_steps: expected at least 1, found -3"),
        ({"task": None, "keep": None}, "missing: task, keep"),
        ({"keep": "middle"}, "keep"),
        ({"max_steps": "many"}, "max_steps"),
        ({"agent": None}, "agent"),
        ({"agent": "hamt"}, "agent: expected an object, found 'hamt'"),
        ({"agent": {"name": "bert"}}, "no agent 'bert'; expected one of hamt, "),
        ({"agent": {"heads": 2}}, "no agent ''; expected one of hamt, "),
        ({"reader": {"name": "graph"}}, "no reader 'graph'; expected one of "),
        ({"max_stepz": 3}, "unknown field 'max_stepz'; expected one of agent, reader, "),
        ({"feature_dropout": 1.0}, "feature_dropout"),
    ],
)
def test_malformed_navigator_json_is_refused(run: Path, fields: dict[str, Any], message: str) -> None:
    change(run, **fields)
    with pytest.raises(EscemeError, match=message):
        load_run(run)


@pytest.mark.parametrize(
    ("part", "settings", "message"),
    [
        ("agent", {"heads": "two"}, "agent.heads: Expected `int`, got `str`"),
        ("agent", {"heads": 5}, "agent.hidden 24 is not divisible by 5 heads"),
        ("agent", {"dropout": 7}, "agent.dropout: expected a number below 1, found 7.0"),
        ("agent", {"initial_std": -1}, "agent.initial_std: expected a number above 0, found -1.0"),
        ("agent", {"unknown": 1}, "unknown field 'agent.unknown'; expected one of vocabulary, "),
        ("reader", {"pooling": "min"}, "reader.pooling: Invalid enum value 'min'"),
        ("reader", {"norm": 1}, "reader.norm: Expected `bool`, got `int`"),
    ],
)
def test_malformed_settings_of_a_part_are_named(
    run: Path, part: str, settings: dict[str, Any], message: str
) -> None:
    change_part(run, part, **settings)
    with pytest.raises(CheckpointError, match=message):
        load_run(run)


def test_non_finite_weights_are_named(run: Path) -> None:
    tensors = load_file(run / WEIGHTS_FILE)
    name = sorted(tensors)[3]
    tensors[name].flatten()[0] = torch.nan
    replace_weights(run, tensors)
    with pytest.raises(CheckpointError, match=f"1 not finite: {name}"):
        load_run(run)


def test_unregistered_agent_has_no_config() -> None:
    class Unregistered(HAMT):
        """Not in AGENTS."""

    with pytest.raises(ConfigError, match="Unregistered is not one of hamt, "):
        navigator_config(Navigator(Unregistered(CONFIG), NoMemory()))


@pytest.mark.parametrize(
    "config", [NavigatorConfig(), NavigatorConfig(agent=CONFIG, reader=READER, task="cvdn")]
)
def test_config_survives_json(config: NavigatorConfig) -> None:
    stored = as_json(config)
    assert from_json(json.loads(json.dumps(stored)), NavigatorConfig) == config


def test_unions_have_the_config_of_every_registered_class() -> None:
    assert set(get_args(AgentConfig)) == {agent.Config for agent in AGENTS.values()}
    assert set(get_args(ReaderConfig)) == {reader.Config for reader in READERS.values()}


def test_config_must_belong_to_exactly_one_registered_class(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="CandidateEnhancingConfig is the Config of none of hamt, "):
        NavigatorConfig(agent=READER).build()  # type: ignore[arg-type]
    monkeypatch.setitem(AGENTS, "again", HAMT)
    with pytest.raises(ConfigError, match="HamtConfig is the Config of hamt and again; expected exactly one"):
        as_json(NavigatorConfig())


def test_file_at_the_path_of_the_folder_is_unchanged(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("text")
    navigator = make_navigator()
    with pytest.raises(DataError, match="cannot be written"):
        save_run(tmp_path / "run", navigator, navigator_config(navigator))
    assert (tmp_path / "run").read_text() == "text"


# -- text ------------------------------------------------------------------------------------------------


def test_run_encodes_text_with_its_own_vocabulary(tmp_path: Path) -> None:
    vocabulary = Vocabulary.build(["turn left at the lamp"])
    config = NavigatorConfig(
        agent=Seq2SeqConfig(vocabulary=vocabulary.size, hidden=4, word_width=4), max_tokens=4
    )
    run = load_run(save_run(tmp_path, config.build(), config))
    with pytest.raises(ConfigError, match="no vocabulary of its own, and none was given"):
        run.encode("turn left")
    vocabulary.write(tmp_path / VOCABULARY_FILE)
    assert run.tokenizer() == vocabulary
    assert run.encode("Turn left at the lamp") == vocabulary.encode("turn left at")[:4]


def test_run_without_vocabulary_encodes_text_with_that_of_the_data(toy_root: Path, tmp_path: Path) -> None:
    run, data = load_run(random_run(tmp_path / "run", toy_root)), DataFolder(toy_root)
    (episode, *_) = load_split(data, "r2r", "val_seen").episodes
    assert run.encode(episode.instruction, data) == list(run.instruction_encoder(data)(episode))
    config = NavigatorConfig(agent=Seq2SeqConfig(vocabulary=3, hidden=4, word_width=4))
    other = load_run(save_run(tmp_path / "other", config.build(), config))
    with pytest.raises(ConfigError, match="has none of its size"):
        other.encode("turn left", data)
