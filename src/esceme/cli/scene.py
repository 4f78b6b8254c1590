"""`esceme scene`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import tyro

from esceme.cli.console import TaskName, print_json
from esceme.errors import ConfigError, DataError, prefix_errors
from esceme.files import write_text
from esceme.report import PathOverlay, draw_scene, floors_of
from esceme.report.lanes import walk
from esceme.tasks.catalogue import TASKS
from esceme.tasks.episode import Episode
from esceme.tasks.submission import read_predictions
from esceme.world.graph import SceneGraph, read_scenes, scene_ids


def scene(
    scene: Annotated[str, tyro.conf.arg(metavar="SCENE")],
    /,
    connectivity: Path,
    annotations: Path | None = None,
    task: TaskName = "r2r",
    episode: str | None = None,
    predictions: tuple[Path, ...] = (),
    out: Path | None = None,
    labels: bool = False,
    whole: bool = False,
    json: bool = False,
) -> int:
    """Draw a scene from above, floor by floor, with paths on it, as SVG.

    The figure is made for print: routes differ by dash, marker and width as well as by colour, and those that
    share a way run side by side. Where an episode needs only a part of a large floor, that part is drawn
    large and the floor small beside it.

    Examples:
        esceme scene 2azQ1b91cZZ --connectivity connectivity
        esceme scene 2azQ1b91cZZ --connectivity connectivity --annotations R2R_val_unseen.json
            --episode 2211_0
        esceme scene 2azQ1b91cZZ --connectivity connectivity --annotations R2R_val_unseen.json
            --episode 2211_0 --predictions baseline.json ours.json --out figure.svg

    Args:
        scene: which scene: the beginning of a file's name in the connectivity folder.
        connectivity: the folder of navigation graphs.
        annotations: a split's annotation file, for the episode's reference path and instruction.
        task: which task the annotations are of.
        episode: which episode to draw, by the id that prediction files use.
        predictions: where agents went; each file gives one route, named after the file.
        out: the file to write; by default SCENE.svg or SCENE_EPISODE.svg in the current folder.
        labels: write the beginning of every viewpoint's id beside it.
        whole: draw all floors in full, also where the routes need only a part.
        json: print what was written as one json object.
    """
    graph = _read_scene(connectivity, scene)
    if episode is None and (annotations is not None or predictions):
        raise ConfigError(f"which episode? give --episode ID{_some_episodes(annotations, task, scene)}")
    if episode is not None and annotations is None and not predictions:
        raise ConfigError("--episode needs --annotations (for the reference path), --predictions, or both")
    asked = None if annotations is None or episode is None else _find(annotations, task, scene, episode)
    routes = list(_routes(graph, asked, annotations, episode or "", predictions, task))
    drawing = draw_scene(
        graph,
        routes,
        title=scene if episode is None else f"{scene}, episode {episode}",
        caption=asked.instruction if asked else None,
        labels=labels,
        whole=whole,
    )
    out = _default_name(scene, episode) if out is None else out
    write_text(out, drawing)
    if json:
        floors = int(floors_of(graph).max()) + 1
        size = {"viewpoints": len(graph), "edges": graph.num_edges, "floors": floors}
        print_json({"scene": scene, **size, "out": str(out)})
    else:
        print(out)
    return 0


def _read_scene(connectivity: Path, scene: str) -> SceneGraph:
    present = scene_ids(connectivity)
    if scene in present:
        return read_scenes(connectivity, [scene])[scene]
    lower = {name.lower(): name for name in present}
    begin = [name for name in present if name.lower().startswith(scene.lower())] if scene else []
    close = begin or [lower[name] for name in get_close_matches(scene.lower(), lower, n=5)]
    hint = f"did you mean {' or '.join(close[:5])}?" if close else f"it has {', '.join(present[:5])}, ..."
    raise DataError(f"{connectivity}: none of its {len(present)} scenes is '{scene}'; {hint}")


def _find(annotations: Path, task: TaskName, scene: str, name: str) -> Episode:
    """The episode of that id; RxR's may be the instruction's alone, as in its prediction files."""
    episodes = TASKS[task].read(annotations)
    found = next((each for each in episodes if name in TASKS[task].prediction_ids(each)), None)
    if found is None:
        same_path = [each.episode_id for each in episodes if each.path_id == name]
        here = [each.episode_id for each in episodes if each.scene_id == scene]
        close = same_path or get_close_matches(name, here, n=3) or here[:3]
        hint = (
            f"; try {', '.join(close)}" if close else f", nor any in scene {scene}; is this the right split?"
        )
        raise DataError(f"{annotations}: no episode '{name}' among {len(episodes)}{hint}")
    if found.scene_id != scene:
        raise DataError(
            f"{annotations}: episode {name} takes place in scene {found.scene_id}, not in {scene}"
        )
    return found


def _routes(
    graph: SceneGraph,
    asked: Episode | None,
    annotations: Path | None,
    episode: str,
    predictions: Sequence[Path],
    task: TaskName,
) -> Iterator[PathOverlay]:
    """The reference path and where each prediction file says the agent went, all of them in the scene."""
    if asked is not None:
        label = "start (the goal is withheld)" if asked.goal_withheld else "reference path"
        yield _checked(graph, PathOverlay(label, asked.reference_path, "reference"), annotations, episode)
    names = (episode,) if asked is None else TASKS[task].prediction_ids(asked)
    for path, label in zip(predictions, _labels(predictions), strict=True):
        found = read_predictions(path)
        prediction = next((found[name] for name in names if name in found), None)
        if prediction is None:
            raise DataError(f"{path}: no episode '{episode}' among {len(found)}; is this the right split?")
        yield _checked(graph, PathOverlay(label, prediction.path, "predicted"), path, episode)


def _checked(graph: SceneGraph, route: PathOverlay, file: Path | None, episode: str) -> PathOverlay:
    with prefix_errors(file=file, record=f"episode {episode}"):
        walk(graph, route)
    return route


def _labels(predictions: Sequence[Path]) -> list[str]:
    """Names of the files without suffix; where two are the same, with their folders."""
    stems = [path.name.split(".json")[0] for path in predictions]
    return [
        stem if stems.count(stem) == 1 else f"{path.resolve().parent.name}/{stem}"
        for path, stem in zip(predictions, stems, strict=True)
    ]


def _some_episodes(annotations: Path | None, task: TaskName, scene: str) -> str:
    if annotations is None:
        return ""
    here = [each.episode_id for each in TASKS[task].read(annotations) if each.scene_id == scene]
    return f"; scene {scene} has {', '.join(here[:5])}{', ...' if len(here) > 5 else ''}" if here else ""


def _default_name(scene: str, episode: str | None) -> Path:
    return Path(
        f"{scene}.svg" if episode is None else f"{scene}_{re.sub(r'[^A-Za-z0-9.-]', '_', episode)}.svg"
    )
