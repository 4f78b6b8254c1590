"""TD-STP's weights, in and out: what they are told by, what is drawn, and bit-for-bit round trips."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from esceme.agents import HAMT, TDSTP, TdstpConfig
from esceme.checkpoints import export_weights, import_weights, names_of, navigator_from, read_weights
from esceme.errors import CheckpointError, ConfigError
from esceme.memory import CandidateEnhancing, NoMemory
from esceme.navigator import Navigator
from esceme.runs import load_run
from fixtures import original_checkpoints
from fixtures.original_checkpoints import PAPER, SMALL
from fixtures.random_observations import random_observation, random_words

State = dict[str, Tensor]
OWN = {
    f"agent.{part}.{end}"
    for part in (
        *("position_encoder.0", "position_encoder.1"),
        *("history_mapper.0", "history_mapper.2", "goal_head.0", "goal_head.2"),
    )
    for end in ("weight", "bias")
}
CRITIC = {f"agent.critic.{part}.{end}" for part in (0, 3) for end in ("weight", "bias")}


def network_of(*, memory: bool = True, mapper: bool = True) -> State:
    return original_checkpoints.fine_tuned(memory=memory, td_stp=True, mapper=mapper)["vln_bert"][
        "state_dict"
    ]


def same(left: State, right: State) -> bool:
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(("memory", "tensors"), [(False, 399), (True, 405)])
def test_networks_of_the_papers_size_have_the_published_names_and_shapes(memory: bool, tensors: int) -> None:
    with torch.device("meta"):
        navigator = Navigator(TDSTP(), CandidateEnhancing() if memory else NoMemory())
    names = names_of(navigator)
    state = navigator.state_dict()
    expected = [
        *original_checkpoints.inner_shapes(PAPER),
        *(original_checkpoints.fusion_shapes(PAPER) if memory else ()),
    ]
    expected += original_checkpoints.td_stp_shapes(PAPER)
    assert len(expected) == tensors
    expected += original_checkpoints.critic_shapes(PAPER)
    assert [(theirs, tuple(state[ours].shape)) for ours, theirs in names.items()] == expected


# -- in ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapper", ["", "module."])
@pytest.mark.parametrize("memory", [False, True])
def test_a_fine_tuned_file_says_by_itself_whose_it_is(wrapper: str, memory: bool, tmp_path: Path) -> None:
    content = original_checkpoints.fine_tuned(memory=memory, td_stp=True, wrapper=wrapper)
    weights = read_weights(original_checkpoints.save(content, tmp_path / "best"))
    for agent in (None, "tdstp"):
        navigator, report = navigator_from(weights.network, weights.critic, heads=3, agent=agent)
        assert isinstance(navigator.agent, TDSTP)
        assert isinstance(navigator.reader, CandidateEnhancing if memory else NoMemory)
        assert report.ignored == report.initialised == ()
        assert set(report.mapped) == {*weights.network, *weights.critic}  # type: ignore[misc]
        state, stored = navigator.state_dict(), {**weights.network, **weights.critic}  # type: ignore[dict-item]
        assert all(torch.equal(state[ours], stored[theirs]) for theirs, ours in report.mapped.items())


def test_sizes_are_read_off_the_tensors_and_switches_are_told() -> None:
    navigator, report = navigator_from(network_of(), heads=3, structured=True, history_positions=False)
    assert set(report.initialised) == CRITIC
    assert navigator.agent.config == TdstpConfig(
        vocabulary=SMALL.vocabulary,
        positions=SMALL.positions,
        hidden=SMALL.hidden,
        heads=3,
        feed_forward=SMALL.inner,
        text_layers=SMALL.text_layers,
        cross_layers=SMALL.cross_layers,
        panorama_layers=SMALL.panorama_layers,
        feature_width=SMALL.feature,
        max_steps=SMALL.steps,
        structured=True,
        history_positions=False,
    )
    assert not navigator_from(network_of(), heads=3)[0].agent.config.structured


def test_a_network_that_does_not_map_its_history_is_recognised() -> None:
    network = network_of(mapper=False)
    navigator, report = navigator_from(network, heads=3)
    assert not navigator.agent.config.map_history and set(report.initialised) == CRITIC
    assert set(report.mapped) == set(network)


def test_an_imported_network_decides() -> None:
    navigator, _ = navigator_from(network_of(memory=False), heads=3)
    sight = random_observation(width=SMALL.feature)
    with torch.inference_mode():
        state = navigator.eval().begin(random_words(), sight.viewpoint)
        decision = navigator.decide(state, navigator.observe(sight, None))
    assert torch.isfinite(decision.logits[:, 0]).all() and torch.isfinite(decision.value).all()


@pytest.mark.parametrize("reader", [None, "candidate-enhancing"])
def test_pre_training_of_hamt_begins_td_stp(reader: str | None) -> None:
    stored = original_checkpoints.pre_training()
    drawn = [
        navigator_from(stored, heads=3, agent="tdstp", reader=reader, seed=seed)  # type: ignore[arg-type]
        for seed in (0, 0, 1)
    ]
    for navigator, report in drawn:
        assert isinstance(navigator.agent, TDSTP) and navigator.agent.config.map_history
        own = {name for name in report.initialised if not name.startswith("reader.")}
        assert own == OWN | CRITIC
        assert set(report.mapped) | set(report.ignored) == set(stored)
    guesses = [navigator.state_dict()["agent.goal_head.0.weight"] for navigator, _ in drawn]
    assert torch.equal(guesses[0], guesses[1]) and not torch.equal(guesses[0], guesses[2])
    assert not any(each.is_meta for each in drawn[0][0].agent.buffers())
    alone, _ = navigator_from(stored, heads=3)
    assert isinstance(alone.agent, HAMT)  # unless it is asked for


# -- refusals ----------------------------------------------------------------------------------------------


def test_weights_of_another_agent_are_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="best: these are weights of TD-STP, not of HAMT.*'tdstp'"):
        navigator_from(network_of(), heads=3, agent="hamt", file="best")
    hamt = original_checkpoints.fine_tuned()["vln_bert"]["state_dict"]
    with pytest.raises(CheckpointError, match="best: these are weights of HAMT, not of TD-STP.*'hamt'"):
        navigator_from(hamt, heads=3, agent="tdstp", file="best")


@pytest.mark.parametrize("switch", ["structured", "history_positions"])
def test_switches_of_td_stp_are_none_of_hamt(switch: str) -> None:
    hamt = original_checkpoints.fine_tuned()["vln_bert"]["state_dict"]
    with pytest.raises(ConfigError, match=f"{switch} is of TD-STP, and these are weights of HAMT"):
        navigator_from(hamt, heads=3, **{switch: False})  # type: ignore[arg-type]


@pytest.mark.parametrize("part", ["position_encoder", "target_predictor"])
def test_a_part_that_is_missing_is_not_drawn(part: str) -> None:
    whole = network_of()
    network = {name: tensor for name, tensor in whole.items() if not name.startswith(part)}
    with pytest.raises(CheckpointError, match=rf"4 missing: {part}\.0\.weight"):
        navigator_from(network, heads=3)


def test_what_does_not_fit_is_named() -> None:
    network = network_of()
    network["history_mapper.2.weight"] = torch.zeros(3, 3)
    network["target_predictor.0.bias"][2] = torch.nan
    with pytest.raises(CheckpointError) as refused:
        navigator_from(network, heads=3, file="best")
    assert "1 of another shape: history_mapper.2.weight (3, 3) instead of (24, 24)" in str(refused.value)
    assert "1 not of finite numbers: target_predictor.0.bias" in str(refused.value)


# -- run folders and back ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mapper", [False, True])
@pytest.mark.parametrize("memory", [False, True])
def test_import_and_export_give_the_original_state_dict(tmp_path: Path, memory: bool, mapper: bool) -> None:
    content = original_checkpoints.fine_tuned(memory=memory, td_stp=True, mapper=mapper)
    file = original_checkpoints.save(content, tmp_path / "best")
    config, _ = import_weights(file, tmp_path / "run", heads=3, structured=True)
    assert config.agent_name == "tdstp" and config.agent.structured
    export_weights(load_run(tmp_path / "run").navigator, tmp_path / "again")
    written = torch.load(tmp_path / "again", weights_only=True)
    for part in ("vln_bert", "critic"):
        assert same(written[part]["state_dict"], content[part]["state_dict"])
    apart = [name for name in written["vln_bert"]["state_dict"] if not name.startswith("vln_bert.")]
    assert {name.partition(".")[0] for name in apart} == {
        *("position_encoder", "target_predictor"),
        *(["history_mapper"] if mapper else []),
    }


@pytest.mark.parametrize(("task", "language"), [("r2r", True), ("r4r", False)])
def test_the_task_decides_what_the_scripts_do(tmp_path: Path, task: str, language: bool) -> None:
    file = original_checkpoints.save(original_checkpoints.fine_tuned(td_stp=True), tmp_path / "best")
    import_weights(file, tmp_path / "run", task=task, heads=3)
    config = load_run(tmp_path / "run").navigator.agent.config
    assert config.language_cross_attention is language and config.freeze_text is language
    assert not config.freeze_history and not config.structured  # as in the release


@pytest.mark.real
@pytest.mark.parametrize("name", ["tdstp", "tdstp_esceme"])
def test_the_reference_weights_come_back_as_they_were(vectors_root: Path, name: str, tmp_path: Path) -> None:
    folder = vectors_root / name
    weights = read_weights(folder / "vln_bert.safetensors", critic=folder / "critic.safetensors")
    navigator, _ = navigator_from(weights.network, weights.critic, heads=4)
    export_weights(navigator, tmp_path / "best")
    written = torch.load(tmp_path / "best", weights_only=True)
    state = written["vln_bert"]["state_dict"]
    assert set(state) == set(weights.network)
    assert all(torch.equal(state[key], each) for key, each in weights.network.items())
