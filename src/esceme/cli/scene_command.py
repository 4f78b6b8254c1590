"""The command `esceme scene`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import tyro

from esceme.cli.console import TaskName, print_json
from esceme.errors import ConfigError, DataError, prefix_errors
from esceme.evaluation.trace import read_trace
from esceme.files import write_text
from esceme.report import PathOverlay, draw_scene, floor_indices
from esceme.report.paths import expand_path
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
    plans: Path | None = None,
    out: Path | None = None,
    labels: bool = False,
    whole: bool = False,
    json: bool = False,
) -> int:
    """Draw a scene from above as SVG, floor by floor, with paths.

    Paths differ in dash, marker and width as well as in colour, for print in greyscale. Paths that share an
    edge are drawn side by side. If an episode covers a small part of a large floor, that part is drawn large
    beside a thumbnail of the floor.

    Examples:
        esceme scene 2azQ1b91cZZ --connectivity connectivity
        esceme scene 2azQ1b91cZZ --connectivity connectivity --annotations R2R_val_unseen.json
            --episode 2211_0
        esceme scene 2azQ1b91cZZ --connectivity connectivity --annotations R2R_val_unseen.json
            --episode 2211_0 --predictions baseline.json ours.json --out figure.svg
        esceme scene 2azQ1b91cZZ --connectivity connectivity --episode 2211_0
            --plans runs/none/evaluations/r2r-val_unseen-cold-planner

    Args:
        scene: scene id, as in the names of the connectivity files.
        connectivity: folder of navigation graphs.
        annotations: annotation file with the episode's reference path and instruction.
        task: task of the annotation file.
        episode: id of the episode to draw, as in prediction files.
        predictions: prediction files; each adds one path, labelled with the name of the file.
        plans: folder of an evaluation with --planner routes --trace; adds the five best routes of the
            episode's first plan, with their probabilities.
        out: file to write; by default SCENE.svg or SCENE_EPISODE.svg in the current folder.
        labels: write a prefix of its id beside every viewpoint.
        whole: draw all floors in full, also if the paths cover only a part.
        json: print a summary as one json object.
    """
    graph = _read_scene(connectivity, scene)
    if episode is None and (annotations is not None or predictions or plans is not None):
        examples = "" if annotations is None else _list_example_episodes(annotations, task, scene)
        raise ConfigError(f"which episode? give --episode ID{examples}")
    if episode is not None and annotations is None and not predictions and plans is None:
        raise ConfigError("--episode needs --annotations (for the reference path), --predictions or --plans")
    overlays, caption = _read_overlays(graph, annotations, task, episode, predictions)
    if episode is not None and plans is not None:
        overlays += _planned_routes(plans, episode, graph)
    drawing = draw_scene(
        graph,
        overlays,
        title=scene if episode is None else f"{scene}, episode {episode}",
        caption=caption,
        labels=labels,
        whole=whole,
    )
    if out is None:
        suffix = "" if episode is None else "_" + re.sub(r"[^A-Za-z0-9.-]", "_", episode)
        out = Path(f"{scene}{suffix}.svg")
    write_text(out, drawing)
    if json:
        floors = int(floor_indices(graph).max()) + 1
        size = {"viewpoints": len(graph), "edges": graph.num_edges, "floors": floors}
        print_json({"scene": scene, **size, "out": str(out)})
    else:
        print(out)
    return 0


def _read_scene(connectivity: Path, scene: str) -> SceneGraph:
    scenes = scene_ids(connectivity)
    if scene in scenes:
        return read_scenes(connectivity, [scene])[scene]
    lower = {name.lower(): name for name in scenes}
    prefixed = [name for name in scenes if name.lower().startswith(scene.lower())] if scene else []
    similar = prefixed or [lower[name] for name in get_close_matches(scene.lower(), lower, n=5)]
    hint = f"did you mean {' or '.join(similar[:5])}?" if similar else f"it has {', '.join(scenes[:5])}, ..."
    raise DataError(f"{connectivity}: none of its {len(scenes)} scenes is '{scene}'; {hint}")


def _read_overlays(
    graph: SceneGraph,
    annotations: Path | None,
    task: TaskName,
    episode_id: str | None,
    predictions: Sequence[Path],
) -> tuple[list[PathOverlay], str | None]:
    """Return the reference path and the predicted paths of an episode, and its instruction.

    Raises an error that names the file if one of its paths is not in `graph`.
    """
    overlays, caption = [], None
    ids: tuple[str, ...] = (episode_id or "",)
    if annotations is not None and episode_id is not None:
        episode = _find_episode(annotations, task, graph.scene_id, episode_id)
        ids, caption = TASKS[task].prediction_ids(episode), episode.instruction
        label = "start (the goal is withheld)" if episode.goal_withheld else "reference path"
        overlays.append((annotations, PathOverlay(label, episode.reference_path, "reference")))
    for file, label in zip(predictions, _path_labels(predictions), strict=True):
        overlays.append((file, PathOverlay(label, _predicted_path(file, ids), "predicted")))
    for file, overlay in overlays:
        with prefix_errors(file=file, record=f"episode {episode_id}"):
            expand_path(graph, overlay)
    return [overlay for _, overlay in overlays], caption


def _planned_routes(folder: Path, episode_id: str, graph: SceneGraph) -> list[PathOverlay]:
    """Return the best routes of the first plan of an episode, as its trace describes them."""
    found = [episode for episode in read_trace(folder).episodes if episode.id == episode_id]
    if not found or found[0].scene != graph.scene_id:
        raise DataError(f"{folder}: no episode '{episode_id}' in scene {graph.scene_id}")
    routes = found[0].steps[0].details.get("routes", [])
    if not routes:
        raise DataError(f"{folder}: its trace has no plans; evaluate with --planner routes --trace")
    overlays = []
    for number, route in enumerate(routes, 1):
        end = "stop" if route["visited"] else "explore"
        label = f"route {number}: {end}, {route['probability']:.0%}"
        overlays.append(PathOverlay(label, tuple(route["path"]), "predicted"))
    for overlay in overlays:
        with prefix_errors(file=folder, record=f"episode {episode_id}"):
            expand_path(graph, overlay)
    return overlays


def _find_episode(annotations: Path, task: TaskName, scene: str, name: str) -> Episode:
    """Return the episode with an id; for RxR the instruction id alone is accepted, as in prediction files."""
    episodes = TASKS[task].read(annotations)
    found = next((episode for episode in episodes if name in TASKS[task].prediction_ids(episode)), None)
    if found is None:
        same_path = [episode.episode_id for episode in episodes if episode.path_id == name]
        same_scene = [episode.episode_id for episode in episodes if episode.scene_id == scene]
        similar = same_path or get_close_matches(name, same_scene, n=3) or same_scene[:3]
        hint = f", nor any in scene {scene}; is this the right split?"
        hint = f"; try {', '.join(similar)}" if similar else hint
        raise DataError(f"{annotations}: no episode '{name}' among {len(episodes)}{hint}")
    if found.scene_id != scene:
        message = f"takes place in scene {found.scene_id}, not in {scene}"
        raise DataError(f"{annotations}: episode {name} {message}")
    return found


def _predicted_path(file: Path, ids: Sequence[str]) -> tuple[str, ...]:
    predictions = read_predictions(file)
    if name := next((name for name in ids if name in predictions), None):
        return predictions[name].path
    raise DataError(f"{file}: no episode '{ids[0]}' among {len(predictions)}; is this the right split?")


def _path_labels(files: Sequence[Path]) -> list[str]:
    """Return the file names without suffix. If two names are equal, their folders are added in front."""
    stems = [path.name.split(".json")[0] for path in files]
    return [
        stem if stems.count(stem) == 1 else f"{path.resolve().parent.name}/{stem}"
        for path, stem in zip(files, stems, strict=True)
    ]


def _list_example_episodes(annotations: Path, task: TaskName, scene: str) -> str:
    episodes = [e.episode_id for e in TASKS[task].read(annotations) if e.scene_id == scene]
    more = ", ..." if len(episodes) > 5 else ""
    return f"; scene {scene} has {', '.join(episodes[:5])}{more}" if episodes else ""
