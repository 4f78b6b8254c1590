"""Published weights become a navigator and back: sizes, reports, refusals, and bit-for-bit round trips."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from esceme.agents import HAMT, TDSTP, HamtConfig, Seq2Seq, Seq2SeqConfig
from esceme.checkpoints import (
    export_weights,
    import_weights,
    names_of,
    navigator_from,
    read_weights,
)
from esceme.errors import CheckpointError, ConfigError, EscemeError
from esceme.memory import (
    CandidateEnhancing,
    CandidateEnhancingConfig,
    CombinedReader,
    CombinedReaderConfig,
    GraphEncoding,
    GraphEncodingConfig,
    MemoryBank,
    NoMemory,
    NoVision,
    Reader,
)
from esceme.navigator import Navigator
from esceme.runs import load_run
from fixtures import original_checkpoints
from fixtures.original_checkpoints import PAPER, SMALL, Sizes
from fixtures.random_observations import random_building, random_observation, random_words

State = dict[str, Tensor]
FUSION = {f"reader.{part}.{end}" for part in ("first", "norm", "second") for end in ("weight", "bias")}
CRITIC = {f"agent.critic.{part}.{end}" for part in (0, 3) for end in ("weight", "bias")}


def network_of(sizes: Sizes = SMALL, *, memory: bool = True) -> State:
    return original_checkpoints.fine_tuned(sizes, memory=memory)["vln_bert"]["state_dict"]


def critic_of(sizes: Sizes = SMALL) -> State:
    return original_checkpoints.fine_tuned(sizes)["critic"]["state_dict"]


def same(left: State, right: State) -> bool:
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


# -- the paper's sizes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("memory", "tensors"), [(False, 387), (True, 393)])
def test_networks_of_the_papers_size_have_the_published_counts(memory: bool, tensors: int) -> None:
    with torch.device("meta"):
        navigator = Navigator(HAMT(), CandidateEnhancing() if memory else NoMemory())
    names = names_of(navigator)
    shapes = {names[ours]: tuple(tensor.shape) for ours, tensor in navigator.state_dict().items()}
    network = dict(original_checkpoints.inner_shapes(PAPER))
    fusion = dict(original_checkpoints.fusion_shapes(PAPER)) if memory else {}
    assert shapes == network | fusion | dict(original_checkpoints.critic_shapes(PAPER))
    assert len(network | fusion) == tensors

    def parameters(module: torch.nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    critic = parameters(navigator.agent.critic)
    assert critic == 394_241
    assert parameters(navigator.agent) - critic == 170_393_089
    assert parameters(navigator.reader) == (1_772_544 if memory else 0)


@pytest.mark.parametrize("memory", [False, True])
def test_names_come_in_the_order_in_which_the_original_registers_them(memory: bool) -> None:
    navigator, _ = navigator_from(network_of(memory=memory), critic_of(), heads=3)
    shapes = [*original_checkpoints.inner_shapes(), *(original_checkpoints.fusion_shapes() if memory else ())]
    expected = [name for name, _ in (*shapes, *original_checkpoints.critic_shapes())]
    assert list(names_of(navigator).values()) == expected


# -- in ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes",
    [
        SMALL,
        SMALL._replace(steps=50, feature=40),
        SMALL._replace(steps=100, history_layers=2, panorama_layers=3, hidden=36, inner=10),
        SMALL._replace(text_layers=11, cross_layers=1, critic=7, vocabulary=9, positions=514),
    ],
)
def test_sizes_are_read_off_the_tensors(sizes: Sizes) -> None:
    navigator, report = navigator_from(network_of(sizes), critic_of(sizes), heads=3)
    assert navigator.agent.config == HamtConfig(
        vocabulary=sizes.vocabulary,
        positions=sizes.positions,
        hidden=sizes.hidden,
        heads=3,
        feed_forward=sizes.inner,
        text_layers=sizes.text_layers,
        cross_layers=sizes.cross_layers,
        history_layers=sizes.history_layers,
        panorama_layers=sizes.panorama_layers,
        feature_width=sizes.feature,
        max_steps=sizes.steps,
        critic_inner=sizes.critic,
    )
    assert navigator.reader.config == CandidateEnhancingConfig(width=sizes.feature)
    assert report.ignored == report.initialised == ()


def test_every_tensor_arrives_unchanged_and_is_a_copy() -> None:
    network, critic = network_of(), critic_of()
    navigator, report = navigator_from(network, critic, heads=3)
    stored, state = {**network, **critic}, navigator.state_dict()
    assert set(report.mapped) == set(stored) and set(report.mapped.values()) == set(state)
    assert all(torch.equal(state[ours], stored[theirs]) for theirs, ours in report.mapped.items())
    for tensor in stored.values():
        tensor.zero_()
    assert all(tensor.any() for tensor in navigator.state_dict().values())


def test_a_network_without_a_panorama_encoder_is_recognised() -> None:
    content = original_checkpoints.fine_tuned(panorama=False)
    navigator, report = navigator_from(content["vln_bert"]["state_dict"], heads=3)
    assert not navigator.agent.config.encode_panorama and set(report.initialised) == CRITIC


def test_an_imported_network_decides() -> None:
    """Features of another width than the network's, which the release cannot do, included."""
    navigator, _ = navigator_from(network_of(), critic_of(), heads=3)
    sight, words = random_observation(width=SMALL.feature), random_words()
    memory = MemoryBank(SMALL.feature)
    memory.bind(random_building())
    with torch.inference_mode():
        state = navigator.eval().begin(words, sight.viewpoint)
        decision = navigator.decide(state, navigator.observe(sight, memory))
    assert torch.isfinite(decision.logits[:, 0]).all() and torch.isfinite(decision.value).all()


def test_heads_are_those_of_bert_unless_told() -> None:
    sizes = SMALL._replace(hidden=128)
    assert navigator_from(network_of(sizes))[0].agent.config.heads == 2
    assert navigator_from(network_of(sizes), heads=4)[0].agent.config.heads == 4
    with pytest.raises(ConfigError, match="number of heads cannot be read off"):
        navigator_from(network_of())
    with pytest.raises(ConfigError, match="24 is not divisible by 5 heads"):
        navigator_from(network_of(), heads=5)


def test_a_critic_that_is_not_there_is_drawn_from_the_seed() -> None:
    first, report = navigator_from(network_of(), heads=3)
    again, _ = navigator_from(network_of(), heads=3)
    other, _ = navigator_from(network_of(), heads=3, seed=1)
    assert set(report.initialised) == CRITIC
    values = [each.state_dict()["agent.critic.0.weight"] for each in (first, again, other)]
    assert torch.equal(values[0], values[1]) and not torch.equal(values[0], values[2])


def test_drawing_leaves_the_callers_random_numbers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    navigator_from(network_of(), heads=3)
    assert torch.equal(torch.rand(3), expected)


def test_what_the_scripts_freeze_is_frozen() -> None:
    frozen, _ = navigator_from(network_of(), heads=3)
    free, _ = navigator_from(network_of(), heads=3, freeze_text=False)
    assert not any(each.requires_grad for each in frozen.agent.text.layers.parameters())
    assert all(each.requires_grad for each in free.parameters())


# -- PITFALLS 12, spec J.3 --------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapper", ["", "module."])
def test_a_pre_training_file_leaves_exactly_the_fusion_and_the_critic_to_be_drawn(wrapper: str) -> None:
    stored = original_checkpoints.pre_training(wrapper=wrapper)
    navigator, report = navigator_from(stored, heads=3, reader="candidate-enhancing")
    assert set(report.initialised) == FUSION | CRITIC
    assert set(report.ignored) == {wrapper + name for name in original_checkpoints.HEADS_OF_PRE_TRAINING}
    assert set(report.mapped) | set(report.ignored) == set(stored)
    head = navigator.state_dict()["agent.action.4.weight"]
    assert torch.equal(head, stored[f"{wrapper}next_action.net.4.weight"])
    assert navigator.reader.norm.weight.eq(1).all() and navigator.reader.second.bias.eq(0).all()
    assert 0.01 < navigator.reader.first.weight.std() < 0.03


def test_a_pre_training_file_is_unaided_by_default() -> None:
    navigator, report = navigator_from(original_checkpoints.pre_training(), heads=3)
    assert isinstance(navigator.reader, NoMemory) and set(report.initialised) == CRITIC


@pytest.mark.parametrize("wrapper", ["", "module."])
@pytest.mark.parametrize("memory", [False, True])
def test_a_fine_tuned_file_says_by_itself_whether_it_reads_memory(
    wrapper: str, memory: bool, tmp_path: Path
) -> None:
    content = original_checkpoints.fine_tuned(memory=memory, wrapper=wrapper)
    weights = read_weights(original_checkpoints.save(content, tmp_path / "best_val_unseen"))
    navigator, report = navigator_from(weights.network, weights.critic, heads=3)
    assert isinstance(navigator.reader, CandidateEnhancing if memory else NoMemory)
    assert report.ignored == report.initialised == ()
    expected, _ = navigator_from(network_of(memory=memory), critic_of(), heads=3)
    assert same(navigator.state_dict(), expected.state_dict())


def test_a_fusion_is_not_silently_left_out() -> None:
    with pytest.raises(ConfigError, match="include a reader"):
        navigator_from(network_of(), heads=3, reader="none")


# -- refusals ---------------------------------------------------------------------------------------------


def test_all_tensors_that_do_not_fit_are_named_at_once() -> None:
    network, critic = network_of(), critic_of()
    del network["vln_bert.hist_embeddings.cls_token"], network["vln_bert.ob_node_fusion.2.bias"]
    network["vln_bert.encoder.pooler.weight"] = torch.zeros(3)
    network["vln_bert.img_embeddings.img_linear.weight"] = torch.zeros(24, 17)
    network["vln_bert.encoder.x_layers.1.lang_inter.dense.bias"] = torch.zeros(24)
    network["vln_bert.next_action.net.4.bias"][0] = torch.nan
    network["vln_bert.embeddings.word_embeddings.weight"][3, 3] = torch.inf
    network["vln_bert.embeddings.token_type_embeddings.weight"] = torch.ones(2, 24, dtype=torch.int64)
    critic["state2value.3.weight"] = torch.zeros(2, 20)
    with pytest.raises(CheckpointError) as refused:
        navigator_from(network, critic, heads=3, file="best")
    assert str(refused.value) == (
        "best: the weights fit no network of HAMT, TD-STP or ESceme; "
        "2 missing: hist_embeddings.cls_token, ob_node_fusion.2.bias; "
        "1 unknown: encoder.pooler.weight; "
        "3 of another shape: img_embeddings.img_linear.weight (24, 17) instead of (24, 16), "
        "encoder.x_layers.1.lang_inter.dense.bias (24,) instead of (40,), "
        "state2value.3.weight (2, 20) instead of (1, 20); "
        "3 not of finite numbers: embeddings.word_embeddings.weight, "
        "embeddings.token_type_embeddings.weight, next_action.net.4.bias"
    )


def test_a_missing_tensor_is_the_only_one_named() -> None:
    network = network_of()
    for name in list(network)[::6]:
        rest = {each: tensor for each, tensor in network.items() if each != name}
        with pytest.raises(CheckpointError) as refused:
            navigator_from(rest, heads=3)
        assert str(refused.value).endswith(f"; 1 missing: {name.removeprefix('vln_bert.')}")


def test_a_missing_layer_is_named() -> None:
    network = {name: each for name, each in network_of().items() if ".encoder.layer.1." not in name}
    with pytest.raises(
        CheckpointError, match=r"16 missing: encoder\.layer\.1\..*16 unknown: encoder\.layer\.2"
    ):
        navigator_from(network, heads=3)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda state: state | {"bert.next_action.net.0.bias": torch.zeros(24)}, "are the same tensor"),
        (lambda state: {"weight": torch.zeros(3)}, "holds no network of HAMT, TD-STP or ESceme.*'weight'"),
        (lambda state: {name: torch.tensor(1.0) for name in state}, "of another shape"),
        (lambda state: {name: each[:0] for name, each in state.items()}, "expected at least 1, found 0"),
    ],
)
def test_other_tensors_are_refused(spoil: Callable[[State], State], message: str) -> None:
    with pytest.raises(EscemeError, match=message):
        navigator_from(spoil(network_of()), heads=3)


# -- run folders and back ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "language", "frozen", "epsilon", "limits"),
    [
        ("r2r", True, True, 1e-12, (12, 30, "first")),
        ("r4r", False, False, 1e-12, (12, 30, "first")),
        ("cvdn", False, False, 1e-12, (12, 30, "last")),
        ("rxr", False, True, 1e-5, (12, 30, "first")),
    ],
)
def test_the_task_decides_the_switches_of_the_scripts(
    tmp_path: Path,
    task: str,
    language: bool,
    frozen: bool,
    epsilon: float,
    limits: tuple[int, int, str],
) -> None:
    file = original_checkpoints.save(original_checkpoints.fine_tuned(), tmp_path / "best")
    config, _ = import_weights(file, tmp_path / "run", task=task, heads=3)
    agent = load_run(tmp_path / "run").navigator.agent.config
    assert agent.language_cross_attention is language
    assert agent.freeze_text is agent.freeze_history is frozen and agent.epsilon == epsilon
    assert (config.max_steps, config.max_tokens, config.keep) == limits  # the small tables are the limit here
    assert config.origin == "best (fine-tuned)"


def test_limits_are_the_tasks_where_the_tables_are_long_enough(tmp_path: Path) -> None:
    sizes = SMALL._replace(positions=512, steps=50)
    file = original_checkpoints.save(original_checkpoints.fine_tuned(sizes), tmp_path / "best")
    config, _ = import_weights(file, tmp_path / "run", task="cvdn", heads=3)
    assert (config.max_steps, config.max_tokens, config.keep) == (30, 100, "last")


def test_the_switch_can_be_told(tmp_path: Path) -> None:
    file = original_checkpoints.save(original_checkpoints.fine_tuned(), tmp_path / "best")
    config, _ = import_weights(file, tmp_path / "a", task="r4r", heads=3, language_cross_attention=True)
    assert config.agent.language_cross_attention and not config.agent.freeze_text
    config, _ = import_weights(file, tmp_path / "b", heads=3, language_cross_attention=False)
    assert not config.agent.language_cross_attention
    config, _ = import_weights(file, tmp_path / "c", task="r4r", heads=3)
    assert not config.agent.language_cross_attention


@pytest.mark.parametrize("memory", [False, True])
def test_import_and_export_give_the_original_state_dict(tmp_path: Path, memory: bool) -> None:
    content = original_checkpoints.fine_tuned(memory=memory)
    import_weights(original_checkpoints.save(content, tmp_path / "best"), tmp_path / "run", heads=3)
    export_weights(load_run(tmp_path / "run").navigator, tmp_path / "again")
    written = torch.load(tmp_path / "again", weights_only=True)
    assert list(written) == list(content)
    for part in ("vln_bert", "critic"):
        assert list(written[part]) == ["epoch", "state_dict", "optimizer"]
        assert type(written[part]["epoch"]) is int
        assert same(written[part]["state_dict"], content[part]["state_dict"])


def test_export_and_import_give_the_same_run(tmp_path: Path) -> None:
    file = original_checkpoints.save(original_checkpoints.fine_tuned(), tmp_path / "best")
    import_weights(file, tmp_path / "run", task="cvdn", heads=3, pooling="mean")
    run = load_run(tmp_path / "run")
    export_weights(run.navigator, tmp_path / "best_val")
    import_weights(tmp_path / "best_val", tmp_path / "again", task="cvdn", heads=3, pooling="mean")
    again = load_run(tmp_path / "again")
    assert run.weights_hash == again.weights_hash
    assert (run.config.agent, run.config.reader) == (again.config.agent, again.config.reader)
    export_weights(again.navigator, tmp_path / "best_again")
    assert (tmp_path / "best_val").read_bytes() == (tmp_path / "best_again").read_bytes()


def test_nothing_is_written_for_a_file_that_does_not_fit(tmp_path: Path) -> None:
    content = original_checkpoints.fine_tuned()
    del content["vln_bert"]["state_dict"]["vln_bert.hist_embeddings.cls_token"]
    with pytest.raises(CheckpointError, match="best: .* 1 missing: hist_embeddings.cls_token"):
        import_weights(original_checkpoints.save(content, tmp_path / "best"), tmp_path / "run", heads=3)
    with pytest.raises(ConfigError, match="no task 'chess'"):
        import_weights(tmp_path / "best", tmp_path / "run", task="chess", heads=3)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "option", [{"order": "memory-feature"}, {"context": "zero"}, {"stop": "zero"}, {"norm": False}]
)
def test_what_the_original_cannot_compute_is_not_exported(tmp_path: Path, option: dict[str, object]) -> None:
    navigator, _ = navigator_from(network_of(), heads=3)
    paper = CandidateEnhancingConfig(width=SMALL.feature, **option)
    with pytest.raises(CheckpointError, match=next(iter(option))):
        export_weights(Navigator(navigator.agent, CandidateEnhancing(paper)), tmp_path / "best")
    assert not (tmp_path / "best").exists()


@pytest.mark.parametrize(
    "reader",
    [
        GraphEncoding(GraphEncodingConfig(width=SMALL.feature)),
        CombinedReader(CombinedReaderConfig(width=SMALL.feature)),
        NoVision(),
    ],
)
def test_readers_that_the_original_does_not_have_are_not_exported(tmp_path: Path, reader: Reader) -> None:
    navigator, _ = navigator_from(network_of(), heads=3)
    with pytest.raises(CheckpointError, match=f"found HAMT with {type(reader).__name__}"):
        export_weights(Navigator(navigator.agent, reader), tmp_path / "best")
    assert not (tmp_path / "best").exists()


def test_other_agents_are_not_exported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="found Seq2Seq with NoMemory"):
        export_weights(Navigator(Seq2Seq(Seq2SeqConfig()), NoMemory()), tmp_path / "best")


# -- the original's own numbers ---------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "tensors"), [("hamt", 175), ("hamt_esceme", 181), ("tdstp", 187), ("tdstp_esceme", 193)]
)
def test_the_reference_weights_are_imported(vectors_root: Path, name: str, tensors: int) -> None:
    folder = vectors_root / name
    weights = read_weights(folder / "vln_bert.safetensors", critic=folder / "critic.safetensors")
    navigator, report = navigator_from(weights.network, weights.critic, heads=4)
    assert weights.kind == "state dict" and len(weights.network) == tensors
    assert len(report.mapped) == tensors + 4 and report.ignored == report.initialised == ()
    assert isinstance(navigator.reader, CandidateEnhancing if "esceme" in name else NoMemory)
    assert isinstance(navigator.agent, TDSTP if "tdstp" in name else HAMT)
    training = json.loads(gzip.decompress((folder / "train_il_a2c.json.gz").read_bytes()))
    registered = [
        each.removeprefix("vln_bert.").removeprefix("critic.") for each in training["IL"]["grad_norms"]
    ]
    assert list(names_of(navigator).values()) == registered


@pytest.mark.real
def test_the_reference_weights_with_a_history_layer_are_imported(vectors_root: Path) -> None:
    files = ("vln_bert.safetensors", "vln_bert_h_layers_extra.safetensors")
    parts = [read_weights(vectors_root / "hamt" / file).network for file in files]
    navigator, report = navigator_from({**parts[0], **parts[1]}, heads=4)
    assert navigator.agent.config.history_layers == 1 and set(report.initialised) == CRITIC


@pytest.mark.parametrize(
    ("agent", "reader"),
    [({"context_views": False}, {}), ({"stop_shows": "panorama"}, {}), ({}, {"shortcut": "feature"})],
)
def test_what_weights_do_not_tell_is_not_exported(
    tmp_path: Path, agent: dict[str, Any], reader: dict[str, Any]
) -> None:
    sizes = {"vocabulary": 9, "positions": 8, "hidden": 8, "heads": 2, "feed_forward": 8, "text_layers": 1}
    config = HamtConfig(**sizes, cross_layers=1, panorama_layers=1, feature_width=8, max_steps=3, **agent)
    navigator = Navigator(HAMT(config), CandidateEnhancing(CandidateEnhancingConfig(width=8, **reader)))
    with pytest.raises(CheckpointError, match=next(iter({**agent, **reader}))):
        export_weights(navigator, tmp_path / "file.pt")
    assert not list(tmp_path.iterdir())
