"""`esceme scene`: the written file, the output, and refused input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from esceme.cli import main
from esceme.files import write_json
from esceme.tasks.catalogue import TASKS
from esceme.tasks.episode import Episode
from esceme.world import read_scenes
from fixtures.files import svg_text

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture
def annotations(toy_root: Path) -> Path:
    return toy_root / "R2R" / "R2R_train.json"


@pytest.fixture
def episode(annotations: Path) -> Episode:
    return TASKS["r2r"].read(annotations)[0]


def write_prediction(path: Path, episode: Episode, *viewpoints: str) -> str:
    trajectory = [[viewpoint, 0.0, 0.0] for viewpoint in viewpoints]
    write_json(path, [{"instr_id": episode.episode_id, "trajectory": trajectory}])
    return str(path)


def draw_episode(toy_root: Path, episode: Episode, *more: str) -> int:
    connectivity = str(toy_root / "connectivity")
    options = ["--connectivity", connectivity, "--episode", episode.episode_id]
    return main(["scene", episode.scene_id, *options, *more])


def test_scene_is_drawn_into_the_current_folder(toy_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("toy-villa.svg").write_text("old")
    assert main(["scene", "toy-villa", "--connectivity", str(toy_root / "connectivity")]) == 0
    assert capsys.readouterr().out == "toy-villa.svg\n"
    assert "Floor 2" in svg_text(Path("toy-villa.svg"))
    assert [path.name for path in Path().iterdir()] == ["toy-villa.svg"]


def test_json_summarizes_the_scene(toy_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--connectivity", str(toy_root / "connectivity"), "--out", "a/b.svg", "--json"]
    assert main(["scene", "toy-villa", *options]) == 0
    graph = read_scenes(toy_root / "connectivity", ["toy-villa"])["toy-villa"]
    assert msgspec.json.decode(capsys.readouterr().out) == {
        "scene": "toy-villa",
        "viewpoints": len(graph),
        "edges": graph.num_edges,
        "floors": 2,
        "out": "a/b.svg",
    }
    assert Path("a/b.svg").exists()


def test_episode_is_drawn_with_instruction_reference_path_and_predictions(
    toy_root: Path, annotations: Path, episode: Episode, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("x").mkdir()
    files = [
        write_prediction(Path("ours.json"), episode, *episode.reference_path),
        write_prediction(Path("x/same.json"), episode, episode.start),
        write_prediction(Path("same.json"), episode, episode.start),
    ]
    assert draw_episode(toy_root, episode, "--annotations", str(annotations), "--predictions", *files) == 0
    out = Path(capsys.readouterr().out.strip())
    assert out.name == f"{episode.scene_id}_{episode.episode_id}.svg"
    instruction = " ".join(episode.instruction.split())[:30]
    for expected in (instruction, "reference path", "ours", "stops at the goal", "x/same"):
        assert expected in svg_text(out)


def test_predictions_can_be_drawn_without_annotations(toy_root: Path, episode: Episode) -> None:
    file = write_prediction(Path("ours.json"), episode, *episode.reference_path)
    assert draw_episode(toy_root, episode, "--predictions", file, "--out", "o.svg") == 0
    assert "reference path" not in svg_text(Path("o.svg"))


def test_episode_of_a_test_split_shows_only_its_start(toy_root: Path) -> None:
    annotations = toy_root / "R2R" / "R2R_test.json"
    episode = TASKS["r2r"].read(annotations)[0]
    assert draw_episode(toy_root, episode, "--annotations", str(annotations), "--out", "o.svg") == 0
    assert "the goal is withheld" in svg_text(Path("o.svg"))


def test_rxr_episode_is_found_by_its_instruction_id_as_well(toy_root: Path) -> None:
    annotations = next((toy_root / "RxR").glob("rxr_train_guide.jsonl*"))
    episode = TASKS["rxr"].read(annotations)[0]
    short = episode.episode_id.removeprefix(f"{episode.path_id}_")
    write_json(Path("p.json"), [{"instruction_id": int(short), "path": episode.reference_path}])
    options = ["--connectivity", str(toy_root / "connectivity"), "--task", "rxr", "--out", "o.svg"]
    options += ["--annotations", str(annotations), "--predictions", "p.json"]
    for name in (short, episode.episode_id):
        assert main(["scene", episode.scene_id, *options, "--episode", name]) == 0
        assert "stops at the goal" in svg_text(Path("o.svg"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["toy-vila"], "none of its 3 scenes is 'toy-vila'; did you mean toy-villa?"),
        (["TOY-V"], "did you mean toy-villa?"),
        (["zzz"], "it has toy-cottage, toy-house, toy-villa"),
        (
            ["SCENE", "--annotations", "ANNOTATIONS"],
            "which episode? give --episode ID; scene SCENE has EPISODE",
        ),
        (["SCENE", "--predictions", "PREDICTIONS"], "which episode? give --episode ID"),
        (["SCENE", "--episode", "EPISODE"], "--episode needs --annotations"),
        (["SCENE", "--annotations", "ANNOTATIONS", "--episode", "PATH"], "no episode 'PATH'"),
        (
            ["OTHER", "--annotations", "ANNOTATIONS", "--episode", "EPISODE"],
            "takes place in scene SCENE, not in",
        ),
        (
            ["SCENE", "--episode", "no", "--predictions", "PREDICTIONS"],
            "PREDICTIONS: no episode 'no' among 1",
        ),
        (
            ["OTHER", "--episode", "EPISODE", "--predictions", "PREDICTIONS"],
            "PREDICTIONS: episode EPISODE: viewpoint",
        ),
        (["SCENE", "--annotations", "none.json", "--episode", "EPISODE"], "none.json: no such file"),
    ],
)
def test_refused_input_is_explained_and_nothing_is_written(
    words: list[str],
    message: str,
    toy_root: Path,
    annotations: Path,
    episode: Episode,
    error_of: Callable[[Sequence[str]], str],
) -> None:
    names = {
        "PREDICTIONS": write_prediction(Path("p.json"), episode, *episode.reference_path),
        "ANNOTATIONS": str(annotations),
        "EPISODE": episode.episode_id,
        "SCENE": episode.scene_id,
        "OTHER": next(name for name in ("toy-villa", "toy-house") if name != episode.scene_id),
        "PATH": episode.path_id,
    }
    for name, value in names.items():
        message = message.replace(name, value)
    words = [names.get(word, word) for word in words]
    assert message in error_of(["scene", *words, "--connectivity", str(toy_root / "connectivity")])


@pytest.mark.real
def test_real_episode_with_real_predictions(data_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = "PREVALENT_R2R_seq2seq_teacher_val_unseen_iter36000"
    arguments = ["scene", "2azQ1b91cZZ", "--connectivity", str(data_root / "connectivity")]
    arguments += ["--annotations", str(data_root / "R2R" / "R2R_val_unseen.json"), "--episode", "2211_0"]
    arguments += ["--predictions", str(data_root / "predictions" / f"{agent}.json"), "--json"]
    assert main(arguments) == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    assert (found["viewpoints"], found["edges"], found["floors"]) == (215, 531, 2)
    text = svg_text(Path(found["out"]))
    assert "Go up all the stairs and stop on the rug at the top." in text
    assert f"{agent}8.2 m, 5 steps, stops at the goal" in text
