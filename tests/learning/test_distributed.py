"""Several processes learn what one would: gradients, memory, validation; and none waits for the dead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import copytree
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from esceme.config import as_json
from esceme.errors import ConfigError
from esceme.learning import ProcessGroup
from esceme.learning.distributed import own_device
from esceme.learning.training_log import read_log
from esceme.training import train
from fixtures.process_utils import (
    Learned,
    course_to_its_end,
    in_company,
    iterate,
    judge,
    learn_as_told,
    learn_until_one_dies,
    meet,
)
from fixtures.toy_training import CERTAIN, lesson_plan, products, states, write_school

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def school(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_school(tmp_path_factory.mktemp("school"))


# -- the joint batch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "method", "way", "reader"),
    [
        ("hamt", "imitation", "as-released", "candidate-enhancing"),
        ("hamt", "imitation", "drawn", "candidate-enhancing"),
        ("hamt", "dagger", "forgetting", "candidate-enhancing"),
        ("hamt", "dagger", "drawn", "candidate-enhancing"),
        ("hamt", "imitation+a2c", "reset", "candidate-enhancing"),
        ("hamt", "imitation+a2c", "drawn", "candidate-enhancing"),
        ("hamt", "imitation", "drawn", "graph-encoding"),
        ("hamt", "imitation+a2c", "as-released", "both"),
        ("hamt", "imitation+a2c", "as-released", "unaided"),
        ("tdstp", "dagger", "forgetting", "both"),
        ("tdstp", "imitation+a2c", "drawn", "candidate-enhancing"),
    ],
)
def test_gradients_are_those_of_one_process_on_the_joint_batch(
    school: Path, who: str, method: str, way: str, reader: str
) -> None:
    experiment = lesson_plan(
        who=who,
        comment_weight=0.4 if who == "tdstp" else 0.0,
        method=method,
        way=way,
        reader=reader,
        agent=CERTAIN,
        feature_dropout=0.0,
        clip=1e9,
        learning_rate=1e-12,  # the same weights in every iteration, but another memory
    )
    alone = iterate(experiment, school, 4)
    first, second = in_company(iterate, 2, experiment, school, 4)
    for mine, one, other in zip(alone, first, second, strict=True):
        assert_same_gradients(one, other, tolerance=0.0)
        assert_same_gradients(one, mine, tolerance=1e-5)
        assert mine.remembered == one.remembered == other.remembered
        assert one.said == other.said == pytest.approx(mine.said, rel=1e-4, abs=1e-6)


def assert_same_gradients(one: Learned, other: Learned, *, tolerance: float) -> None:
    assert one.gradients.keys() == other.gradients.keys()
    for name, gradient in one.gradients.items():
        expected = other.gradients[name]
        assert (gradient is None) == (expected is None), name
        if gradient is not None:
            within = tolerance * max(1.0, float(np.abs(expected).max()))
            np.testing.assert_allclose(gradient, expected, rtol=0, atol=within, err_msg=name)


def test_everybody_knows_at_once_where_everybody_has_been(school: Path) -> None:
    (first, sums), (second, same_sums) = in_company(meet, 2, school)
    assert first == [[True, True, False, False, False, False], [True, True, False, True, False, False]]
    assert second == [
        [True, True, False, False, False, False],
        [True, True, False, True, False, False],
        [True, True, False, True, False, False],
    ]
    assert sums == same_sums == [2.0, 10.0]


# -- whole runs --------------------------------------------------------------------------------------------


def same_weights(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_weights_stay_the_same_in_all_processes(school: Path, tmp_path: Path) -> None:
    experiment = lesson_plan(way="drawn")
    first, second = in_company(course_to_its_end, 2, experiment, school, tmp_path)
    assert same_weights(first, second)
    whole = products(tmp_path)
    assert whole["log.jsonl"].count(b"\n") == 3  # by the first process alone
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1


def test_when_one_process_dies_the_other_ends_with_an_error_and_the_run_resumes(
    school: Path, tmp_path: Path
) -> None:
    experiment = lesson_plan(way="drawn")
    in_company(learn_as_told, 2, experiment, school, tmp_path / "whole")
    left, dead = in_company(learn_until_one_dies, 2, experiment, school, tmp_path / "killed", 5)
    assert dead is None
    assert left.startswith("TrainingError: process 0 of 2 has lost the others")
    assert left.endswith("start all again to go on from the last checkpoint")
    assert max(state["iteration"] for state in states(tmp_path / "killed").values()) == 4
    alone = train(experiment, school, copytree(tmp_path / "killed", tmp_path / "alone"))
    assert len(read_log(alone / "log.jsonl")) == 3
    assert in_company(learn_as_told, 2, experiment, school, tmp_path / "killed") == [None, None]
    assert products(tmp_path / "killed") == products(tmp_path / "whole")


def test_an_error_of_the_first_process_ends_the_other(school: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the folder should be")
    first, second = in_company(learn_as_told, 2, lesson_plan(), school, tmp_path / "run")
    assert first.startswith("DataError") and "cannot be written" in first
    assert second.startswith("TrainingError: process 1 of 2 has lost the others")


def test_a_batch_that_cannot_be_shared_evenly_is_refused(school: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batch 5 cannot be shared out evenly to 2 processes"):
        ProcessGroup(0, 2).share(range(5))
    assert [ProcessGroup(rank, 2).share("abcd") for rank in range(2)] == [["a", "b"], ["c", "d"]]
    told = in_company(learn_as_told, 2, lesson_plan(batch=3), school, tmp_path / "run")
    assert all("give --batch a multiple of 2" in each for each in told)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("memory", ["cold", "two-pass", "episodic", "leaking"])
def test_validation_shared_out_by_scene_gives_the_scores_of_one_process(school: Path, memory: str) -> None:
    experiment = lesson_plan()
    scores, remembered = judge(experiment, school, memory)
    for told, known in in_company(judge, 2, experiment, school, memory):
        assert told == scores
        assert known == remembered
    assert bool(remembered) == (memory == "leaking")


TRAINING = """
import sys
from pathlib import Path
from esceme.config import from_json
from esceme.files import read_json
from esceme.training import train

if __name__ == "__main__":
    train(from_json(read_json(Path(sys.argv[1]), dict)), sys.argv[2], sys.argv[3])
"""


def test_torchrun_starts_what_is_one_run(school: Path, tmp_path: Path) -> None:
    experiment = lesson_plan(iterations=2)
    (tmp_path / "program.py").write_text(TRAINING)
    (tmp_path / "experiment.json").write_bytes(msgspec.json.encode(as_json(experiment)))
    program = [tmp_path / "program.py", tmp_path / "experiment.json", school, tmp_path / "run"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*torchrun, *map(str, program)], check=True, capture_output=True)
    in_company(learn_as_told, 2, experiment, school, tmp_path / "same")
    assert products(tmp_path / "run") == products(tmp_path / "same")


# -- who and where -----------------------------------------------------------------------------------------


def test_alone_there_is_one_process_that_leads_and_nothing_to_exchange() -> None:
    together = ProcessGroup.join()
    assert together == ProcessGroup() and together.leads and not ProcessGroup(1, 2).leads
    assert together.sums([1.5, 2.0]) == [1.5, 2.0]
    assert together.gather("mine") == ["mine"] and together.agree(3) == 3
    weight = torch.nn.Parameter(torch.zeros(2))
    together.add_gradients([weight])
    assert weight.grad is None


def test_each_process_of_a_machine_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_device("cuda") == torch.device("cuda") and own_device("cpu") == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert own_device("cuda") == torch.device("cuda", 3)
    assert own_device("cuda:1") == torch.device("cuda", 1)  # if that is what someone wants
    assert own_device("cpu") == torch.device("cpu")


def test_processes_that_do_not_find_each_other_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ConfigError, match=r"the 2 processes did not find each other .*with torchrun"):
        ProcessGroup.join()
