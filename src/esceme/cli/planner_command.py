"""The commands `esceme train-planner` and `esceme speak`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import tyro

from esceme.cli.console import TaskName, note, print_facts, progress_bar
from esceme.cli.data_option import find_data
from esceme.errors import ConfigError
from esceme.files import write_json
from esceme.planner_training import DEFAULT, PlannerTrainingConfig
from esceme.planner_training import train_planner as run_training
from esceme.planning.planner_file import FOLDER
from esceme.route_descriptions import describe_route, generate_instructions


def train_planner(
    run: Annotated[Path, tyro.conf.arg(metavar="RUN")],
    /,
    data: str | None = None,
    features: Path | None = None,
    task: TaskName | None = None,
    split: str | None = None,
    config: Annotated[PlannerTrainingConfig, tyro.conf.arg(name="")] = DEFAULT,
    threads: int | None = None,
    json: bool = False,
) -> int:
    """Train the planner of a run, which `esceme evaluate --planner routes` uses.

    A speaker and a matcher are trained on the run's training scenes. The planner is fitted on the scenes that
    were held out when the run was trained (`esceme train --hold-out 10`). RUN/planner holds the result.
    With --task and --split, it is fitted on this split of another task, in scenes that the run may have seen.

    Examples:
        esceme train-planner runs/semantic --data datasets
        esceme evaluate runs/semantic --split val_unseen --memory cold --planner routes
        esceme train-planner runs/semantic-cvdn --task cvdn --split val_seen

    Args:
        run: a run folder of `esceme train` with held-out scenes.
        data: the data folder, by default ESCEME_DATA, else ./datasets; or `embedded`, the generated world.
        features: the feature file; by default that of the run's experiment.
        task: fit the planner on another task; give --split, too.
        split: a split of this task whose scenes are training scenes of the run.
        threads: threads of the process, by default torch's own choice.
        json: print the planner as one JSON object.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    planner = run_training(
        run,
        find_data(data),
        config,
        features=None if features is None else str(features),
        task=task,
        split=split,
        note=note,
    )
    folder = str(run / FOLDER)
    facts = {"planner": folder, "beliefs": planner.beliefs, "exploration": planner.exploration}
    print_facts(facts, f"planner: {folder}", f"exploration: {planner.exploration}", json=json)
    return 0


def speak(
    run: Annotated[Path, tyro.conf.arg(metavar="RUN")],
    /,
    scene: str = "",
    path: tuple[str, ...] = (),
    random_paths: int = 0,
    out: Path | None = None,
    data: str | None = None,
    features: Path | None = None,
    heading: float = 0.0,
    words: int = 8,
    seed: int = 0,
    json: bool = False,
) -> int:
    """Describe a route, or random routes, by the speaker of a run's planner.

    The speaker of `esceme train-planner` is a model of single words, not of sentences. For one route it lists
    words that are much more probable at a step than elsewhere. For random routes it draws as many words as an
    instruction has, in order, and writes them as a file of R2R's form; as R2R/prevalent_aug_train_enc.json of
    a data folder it augments training (`esceme train RECIPE --augmentation prevalent`).

    Examples:
        esceme speak runs/semantic --scene 8194nk5LbLH --path VIEWPOINT VIEWPOINT VIEWPOINT
        esceme speak runs/semantic --random-paths 10000 --out generated.json

    Args:
        run: a run folder with a planner and a vocabulary.
        scene: the scene id of the route.
        path: viewpoint ids along edges of the scene, from start to end.
        random_paths: number of random shortest paths in the scenes that the run was trained on.
        out: file of the random paths and their instructions.
        data: the data folder, by default ESCEME_DATA, else ./datasets; or `embedded`, the generated world.
        features: the feature file; by default that of the run.
        heading: heading at the start of the route in radians.
        words: number of words per step of the route.
        seed: seed of the random paths and words.
        json: print one JSON object instead of lines.
    """
    file = None if features is None else str(features)
    if random_paths:
        if out is None or scene or path or random_paths < 0:
            raise ConfigError(
                f"--random-paths {random_paths}: expected a positive number, with --out and without --path"
            )
        with progress_bar("paths") as on_progress:
            records = generate_instructions(
                run, find_data(data), random_paths, features=file, seed=seed, on_progress=on_progress
            )
        write_json(out, records)
        line = f"{out}: {len(records):,} paths with one instruction each"
        print_facts({"out": str(out), "paths": len(records)}, line, json=json)
        return 0
    if not scene or not path:
        raise ConfigError("give --scene and --path of a route, or --random-paths and --out")
    described = describe_route(
        run, find_data(data), scene, path, features=file, heading=heading, num_words=words
    )
    steps = [{"viewpoint": name, "words": found} for name, found in described]
    lines = [f"{name}  {' '.join(found)}" for name, found in described]
    print_facts({"scene": scene, "steps": steps}, *lines, json=json)
    return 0
