"""Import and export of published weights: sizes, reports, errors, bit-for-bit round trips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from esceme.agents import AGENTS, HAMT, TDSTP, HamtConfig, Seq2Seq, Seq2SeqConfig, TdstpConfig
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
TD_STP = {
    f"agent.{part}.{end}"
    for part in (
        *("position_encoder.0", "position_encoder.1"),
        *("history_mapper.0", "history_mapper.2", "goal_head.0", "goal_head.2"),
    )
    for end in ("weight", "bias")
}


def network_of(sizes: Sizes = SMALL, **options: bool) -> State:
    return original_checkpoints.fine_tuned(sizes, **options)["vln_bert"]["state_dict"]


def critic_of(sizes: Sizes = SMALL) -> State:
    return original_checkpoints.fine_tuned(sizes)["critic"]["state_dict"]


def is_equal(left: State, right: State) -> bool:
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


# -- sizes of the paper ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "memory", "num_tensors"),
    [(HAMT, False, 387), (HAMT, True, 393), (TDSTP, False, 399), (TDSTP, True, 405)],
)
def test_paper_size_networks_have_the_published_names_shapes_and_counts(
    agent: type[Any], memory: bool, num_tensors: int
) -> None:
    with torch.device("meta"):
        navigator = Navigator(agent(), CandidateEnhancing() if memory else NoMemory())
    state = navigator.state_dict()
    expected = [
        *original_checkpoints.inner_shapes(PAPER),
        *(original_checkpoints.fusion_shapes(PAPER) if memory else ()),
        *(original_checkpoints.td_stp_shapes(PAPER) if agent is TDSTP else ()),
    ]
    assert len(expected) == num_tensors
    expected += original_checkpoints.critic_shapes(PAPER)
    assert [(theirs, tuple(state[ours].shape)) for ours, theirs in names_of(navigator).items()] == expected

    counts = dict.fromkeys(("own", "critic", "agent", "reader"), 0)
    for name, parameter in navigator.named_parameters():
        part = "own" if name in TD_STP else "critic" if name in CRITIC else name.split(".")[0]
        counts[part] += parameter.numel()
    assert counts == {
        "own": 1_481_473 if agent is TDSTP else 0,
        "critic": 394_241,
        "agent": 170_393_089,
        "reader": 1_772_544 if memory else 0,
    }


# -- import -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes",
    [
        SMALL,
        SMALL._replace(steps=50, feature=40),
        SMALL._replace(steps=100, history_layers=2, panorama_layers=3, hidden=36, inner=10),
        SMALL._replace(text_layers=11, cross_layers=1, critic=7, vocabulary=9, positions=514),
    ],
)
@pytest.mark.parametrize("td_stp", [False, True])
def test_sizes_are_inferred_from_the_tensors(sizes: Sizes, td_stp: bool) -> None:
    kind, switches = (
        (TdstpConfig, {"structured": True, "history_positions": False}) if td_stp else (HamtConfig, {})
    )
    network = network_of(sizes, td_stp=td_stp)
    navigator, report = navigator_from(network, critic_of(sizes), heads=3, **switches)
    assert navigator.agent.config == kind(
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
        **switches,
    )
    assert navigator.reader.config == CandidateEnhancingConfig(width=sizes.feature)
    assert report.ignored == report.initialised == ()


def test_imported_tensors_are_copies() -> None:
    network, critic = network_of(), critic_of()
    navigator, _ = navigator_from(network, critic, heads=3)
    for tensor in (*network.values(), *critic.values()):
        tensor.zero_()
    assert all(tensor.any() for tensor in navigator.state_dict().values())


@pytest.mark.parametrize("wrapper", ["", "module."])
@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("agent", ["hamt", "tdstp"])
def test_agent_and_reader_of_a_fine_tuned_file_are_recognised(
    wrapper: str, memory: bool, agent: Any, tmp_path: Path
) -> None:
    content = original_checkpoints.fine_tuned(memory=memory, td_stp=agent == "tdstp", wrapper=wrapper)
    weights = read_weights(original_checkpoints.save(content, tmp_path / "best_val_unseen"))
    assert weights.critic is not None
    stored = {**weights.network, **weights.critic}
    for expected in (None, agent):
        navigator, report = navigator_from(weights.network, weights.critic, heads=3, agent=expected)
        assert type(navigator.agent) is AGENTS[agent]
        assert isinstance(navigator.reader, CandidateEnhancing if memory else NoMemory)
        state = navigator.state_dict()
        assert report.ignored == report.initialised == ()
        assert set(report.mapped) == set(stored) and set(report.mapped.values()) == set(state)
        assert all(torch.equal(state[ours], stored[theirs]) for theirs, ours in report.mapped.items())


@pytest.mark.parametrize(
    ("options", "switch"),
    [({"panorama": False}, "encode_panorama"), ({"td_stp": True, "mapper": False}, "map_history")],
)
def test_absent_optional_parts_are_recognised(options: dict[str, bool], switch: str) -> None:
    network = network_of(**options)
    navigator, report = navigator_from(network, heads=3)
    assert not getattr(navigator.agent.config, switch)
    assert set(report.initialised) == CRITIC and set(report.mapped) == set(network)


@pytest.mark.parametrize("td_stp", [False, True])
def test_an_imported_network_decides(td_stp: bool) -> None:
    """The feature width differs from the hidden size, which the release does not support."""
    navigator, _ = navigator_from(network_of(td_stp=td_stp), critic_of(), heads=3)
    observation, memory = random_observation(width=SMALL.feature), MemoryBank(SMALL.feature)
    memory.bind(random_building())
    with torch.inference_mode():
        state = navigator.eval().begin(random_words(), observation.viewpoint)
        decision = navigator.decide(state, navigator.observe(observation, memory))
    assert torch.isfinite(decision.logits[:, 0]).all() and torch.isfinite(decision.value).all()


def test_number_of_heads_defaults_to_that_of_bert() -> None:
    sizes = SMALL._replace(hidden=128)
    assert navigator_from(network_of(sizes))[0].agent.config.heads == 2
    assert navigator_from(network_of(sizes), heads=4)[0].agent.config.heads == 4
    with pytest.raises(ConfigError, match="number of heads cannot be read off"):
        navigator_from(network_of())
    with pytest.raises(ConfigError, match="24 is not divisible by 5 heads"):
        navigator_from(network_of(), heads=5)


def test_a_missing_critic_is_initialised_from_the_seed_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    imports = [navigator_from(network_of(), heads=3, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(torch.rand(3), expected)  # the global generator is unchanged
    assert set(imports[0][1].initialised) == CRITIC
    values = [navigator.state_dict()["agent.critic.0.weight"] for navigator, _ in imports]
    assert torch.equal(values[0], values[1]) and not torch.equal(values[0], values[2])


def test_text_layers_are_frozen_by_default() -> None:
    frozen, _ = navigator_from(network_of(), heads=3)
    free, _ = navigator_from(network_of(), heads=3, freeze_text=False)
    assert not any(parameter.requires_grad for parameter in frozen.agent.text.layers.parameters())
    assert all(parameter.requires_grad for parameter in free.parameters())


# -- PITFALLS 12, spec J.3 --------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapper", ["", "module."])
@pytest.mark.parametrize("reader", [None, "candidate-enhancing"])
@pytest.mark.parametrize("agent", [None, "tdstp"])
def test_a_pre_training_file_initialises_only_the_parts_it_lacks(
    wrapper: str, reader: str | None, agent: Any
) -> None:
    stored = original_checkpoints.pre_training(wrapper=wrapper)
    navigator, report = navigator_from(stored, heads=3, reader=reader, agent=agent)
    assert type(navigator.agent) is AGENTS[agent or "hamt"]
    assert isinstance(navigator.reader, CandidateEnhancing if reader else NoMemory)
    own = TD_STP if agent else set()
    assert set(report.initialised) == own | CRITIC | (FUSION if reader else set())
    assert set(report.ignored) == {wrapper + name for name in original_checkpoints.HEADS_OF_PRE_TRAINING}
    assert set(report.mapped) | set(report.ignored) == set(stored)
    head = navigator.state_dict()["agent.action.4.weight"]
    assert torch.equal(head, stored[f"{wrapper}next_action.net.4.weight"])
    assert not any(buffer.is_meta for buffer in navigator.buffers())
    if reader:
        assert navigator.reader.norm.weight.eq(1).all() and navigator.reader.second.bias.eq(0).all()
        assert 0.01 < navigator.reader.first.weight.std() < 0.03


def test_fusion_weights_are_not_silently_ignored() -> None:
    with pytest.raises(ConfigError, match="include a reader"):
        navigator_from(network_of(), heads=3, reader="none")


# -- errors -----------------------------------------------------------------------------------------------


def test_all_tensors_that_do_not_fit_are_named() -> None:
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
        "best: the weights fit no network of HAMT, TD-STP, DUET or ESceme; "
        "2 missing: hist_embeddings.cls_token, ob_node_fusion.2.bias; "
        "1 unknown: encoder.pooler.weight; "
        "3 of the wrong shape: img_embeddings.img_linear.weight (24, 17), expected (24, 16), "
        "encoder.x_layers.1.lang_inter.dense.bias (24,), expected (40,), "
        "state2value.3.weight (2, 20), expected (1, 20); "
        "3 not finite: embeddings.word_embeddings.weight, "
        "embeddings.token_type_embeddings.weight, next_action.net.4.bias"
    )


def test_weights_in_eight_bits_become_single_precision() -> None:
    network, name = network_of(), "vln_bert.embeddings.word_embeddings.weight"
    network[name] = network[name].to(torch.float8_e4m3fn)
    navigator, _ = navigator_from(network, critic_of(), heads=3)
    assert torch.equal(navigator.agent.text.words.weight, network[name].float())


def test_only_the_missing_tensor_is_named() -> None:
    network = network_of()
    for missing in list(network)[::18]:
        rest = {name: tensor for name, tensor in network.items() if name != missing}
        with pytest.raises(CheckpointError) as refused:
            navigator_from(rest, heads=3)
        assert str(refused.value).endswith(f"; 1 missing: {missing.removeprefix('vln_bert.')}")


@pytest.mark.parametrize("part", ["position_encoder", "target_predictor"])
def test_a_missing_part_of_td_stp_is_not_initialised(part: str) -> None:
    network = {name: value for name, value in network_of(td_stp=True).items() if not name.startswith(part)}
    with pytest.raises(CheckpointError, match=rf"4 missing: {part}\.0\.weight"):
        navigator_from(network, heads=3)


@pytest.mark.parametrize(
    ("td_stp", "agent", "message"),
    [
        (True, "hamt", "best: these are weights of TD-STP, not of HAMT.*'tdstp'"),
        (False, "tdstp", "best: these are weights of HAMT, not of TD-STP.*'hamt'"),
    ],
)
def test_weights_of_another_agent_are_refused(td_stp: bool, agent: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        navigator_from(network_of(td_stp=td_stp), heads=3, agent=agent, file="best")


@pytest.mark.parametrize("switch", ["structured", "history_positions"])
def test_switches_of_td_stp_are_refused_for_hamt(switch: str) -> None:
    with pytest.raises(ConfigError, match=f"{switch}: only TD-STP has this setting"):
        navigator_from(network_of(), heads=3, **{switch: False})  # type: ignore[arg-type]


def test_a_missing_layer_is_named() -> None:
    network = {name: tensor for name, tensor in network_of().items() if ".encoder.layer.1." not in name}
    with pytest.raises(
        CheckpointError, match=r"16 missing: encoder\.layer\.1\..*16 unknown: encoder\.layer\.2"
    ):
        navigator_from(network, heads=3)


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (lambda state: state | {"bert.next_action.net.0.bias": torch.zeros(24)}, "are the same tensor"),
        (
            lambda state: {"weight": torch.zeros(3)},
            "holds no network of HAMT, TD-STP, DUET or ESceme.*'weight'",
        ),
        (lambda state: {name: torch.tensor(1.0) for name in state}, "of the wrong shape"),
        (lambda state: {name: tensor[:0] for name, tensor in state.items()}, "expected at least 1, found 0"),
    ],
)
def test_other_state_dicts_are_refused(corrupt: Callable[[State], State], message: str) -> None:
    with pytest.raises(EscemeError, match=message):
        navigator_from(corrupt(network_of()), heads=3)


# -- run folders, export ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "td_stp", "language", "freeze_text", "freeze_history", "epsilon", "keep"),
    [
        ("r2r", False, True, True, True, 1e-12, "first"),
        ("r4r", False, False, False, False, 1e-12, "first"),
        ("cvdn", False, False, False, False, 1e-12, "last"),
        ("rxr", False, False, True, True, 1e-5, "first"),
        ("r2r", True, True, True, False, 1e-12, "first"),
        ("r4r", True, False, False, False, 1e-12, "first"),
    ],
)
def test_the_task_sets_the_switches_of_the_released_scripts(
    tmp_path: Path,
    task: str,
    td_stp: bool,
    language: bool,
    freeze_text: bool,
    freeze_history: bool,
    epsilon: float,
    keep: str,
) -> None:
    file = original_checkpoints.save(original_checkpoints.fine_tuned(td_stp=td_stp), tmp_path / "best")
    config, _ = import_weights(file, tmp_path / "run", task=task, heads=3)
    agent = load_run(tmp_path / "run").navigator.agent.config
    assert agent.language_cross_attention is language
    assert (agent.freeze_text, agent.freeze_history, agent.epsilon) == (freeze_text, freeze_history, epsilon)
    assert not getattr(agent, "structured", False)  # as in the release
    assert (config.max_steps, config.max_tokens, config.keep) == (12, 30, keep)  # limited by the small tables
    assert config.origin == "best (fine-tuned)"


def test_the_task_sets_the_limits_if_the_tables_are_long_enough(tmp_path: Path) -> None:
    sizes = SMALL._replace(positions=512, steps=50)
    file = original_checkpoints.save(original_checkpoints.fine_tuned(sizes), tmp_path / "best")
    config, _ = import_weights(file, tmp_path / "run", task="cvdn", heads=3)
    assert (config.max_steps, config.max_tokens, config.keep) == (30, 100, "last")


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("options", [{}, {"td_stp": True}, {"td_stp": True, "mapper": False}])
def test_import_then_export_restores_the_state_dict(
    tmp_path: Path, memory: bool, options: dict[str, bool]
) -> None:
    content = original_checkpoints.fine_tuned(memory=memory, **options)
    import_weights(original_checkpoints.save(content, tmp_path / "best"), tmp_path / "run", heads=3)
    export_weights(load_run(tmp_path / "run").navigator, tmp_path / "again")
    written = torch.load(tmp_path / "again", weights_only=True)
    assert list(written) == list(content)
    for part in ("vln_bert", "critic"):
        assert list(written[part]) == ["epoch", "state_dict", "optimizer"]
        assert type(written[part]["epoch"]) is int
        assert is_equal(written[part]["state_dict"], content[part]["state_dict"])


def test_export_then_import_restores_the_run(tmp_path: Path) -> None:
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


def test_an_unknown_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no task 'chess'"):
        import_weights(tmp_path / "best", tmp_path / "run", task="chess", heads=3)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("agent", "reader"),
    [
        ({}, {"order": "memory-feature"}),
        ({}, {"context": "zero"}),
        ({}, {"stop": "zero"}),
        ({}, {"norm": False}),
        ({}, {"shortcut": "feature"}),
        ({"context_views": False}, {}),
        ({"stop_features": "panorama-max"}, {}),
    ],
)
def test_options_that_the_original_lacks_are_not_exported(
    tmp_path: Path, agent: dict[str, Any], reader: dict[str, Any]
) -> None:
    config = replace(navigator_from(network_of(), heads=3)[0].agent.config, **agent)
    fusion = CandidateEnhancing(CandidateEnhancingConfig(width=SMALL.feature, **reader))
    with pytest.raises(CheckpointError, match=next(iter({**agent, **reader}))):
        export_weights(Navigator(HAMT(config), fusion), tmp_path / "best")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("agent", "reader"),
    [
        ("HAMT", GraphEncoding(GraphEncodingConfig(width=SMALL.feature))),
        ("HAMT", CombinedReader(CombinedReaderConfig(width=SMALL.feature))),
        ("HAMT", NoVision()),
        ("Seq2Seq", NoMemory()),
    ],
)
def test_agents_and_readers_that_the_original_lacks_are_not_exported(
    tmp_path: Path, agent: str, reader: Reader
) -> None:
    network = (
        Seq2Seq(Seq2SeqConfig()) if agent == "Seq2Seq" else navigator_from(network_of(), heads=3)[0].agent
    )
    with pytest.raises(CheckpointError, match=f"found {agent} with {type(reader).__name__}"):
        export_weights(Navigator(network, reader), tmp_path / "best")
    assert not (tmp_path / "best").exists()


# -- reference weights ------------------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "num_tensors"), [("hamt", 175), ("hamt_esceme", 181), ("tdstp", 187), ("tdstp_esceme", 193)]
)
def test_reference_weights_are_imported_and_exported(
    vectors_root: Path, name: str, num_tensors: int, tmp_path: Path
) -> None:
    folder = vectors_root / name
    weights = read_weights(folder / "vln_bert.safetensors", critic=folder / "critic.safetensors")
    navigator, report = navigator_from(weights.network, weights.critic, heads=4)
    assert weights.kind == "state dict" and len(weights.network) == num_tensors
    assert len(report.mapped) == num_tensors + 4 and report.ignored == report.initialised == ()
    assert isinstance(navigator.reader, CandidateEnhancing if "esceme" in name else NoMemory)
    assert isinstance(navigator.agent, TDSTP if "tdstp" in name else HAMT)
    assert list(names_of(navigator).values()) == list(original_checkpoints.gradient_norms(folder, "IL"))
    export_weights(navigator, tmp_path / "best")
    state = torch.load(tmp_path / "best", weights_only=True)["vln_bert"]["state_dict"]
    assert set(state) == set(weights.network)
    assert all(torch.equal(state[key], tensor) for key, tensor in weights.network.items())


@pytest.mark.real
def test_reference_weights_with_a_history_layer_are_imported(vectors_root: Path) -> None:
    files = ("vln_bert.safetensors", "vln_bert_h_layers_extra.safetensors")
    parts = [read_weights(vectors_root / "hamt" / file).network for file in files]
    navigator, report = navigator_from({**parts[0], **parts[1]}, heads=4)
    assert navigator.agent.config.history_layers == 1 and set(report.initialised) == CRITIC


def test_import_does_not_write_through_a_link(tmp_path: Path) -> None:
    file = original_checkpoints.save(original_checkpoints.fine_tuned(), tmp_path / "best")
    (tmp_path / "precious").write_text("old")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/weights.safetensors").symlink_to(tmp_path / "precious")
    with pytest.raises(EscemeError, match="a link that leads out of"):
        import_weights(file, tmp_path / "run", heads=3)
    assert (tmp_path / "precious").read_text() == "old"
