"""The commands `esceme train-planner` and `esceme speak`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import tyro

from esceme.cli.console import note, print_json, print_line
from esceme.cli.data_option import find_data
from esceme.planner_training import DEFAULT, PlannerTrainingConfig, describe_route
from esceme.planner_training import train_planner as run_training
from esceme.planning.planner_file import FOLDER


def train_planner(
    run: tyro.conf.Positional[Path],
    /,
    data: str | None = None,
    features: Path | None = None,
    config: Annotated[PlannerTrainingConfig, tyro.conf.arg(name="")] = DEFAULT,
    threads: int | None = None,
    json: bool = False,
) -> int:
    """Train the planner of a run, which `esceme evaluate --planner routes` uses.

    A speaker and a matcher are trained on the run's training scenes. The planner is fitted on the scenes that
    were held out when the run was trained (`esceme train --hold-out 10`). RUN/planner holds the result.

    Examples:
        esceme train-planner runs/semantic --data datasets
        esceme evaluate runs/semantic --split val_unseen --memory cold --planner routes

    Args:
        run: a run folder of `esceme train` with held-out scenes.
        data: the data folder, by default ESCEME_DATA, else ./datasets; or `embedded`, the generated world.
        features: the feature file; by default that of the run's experiment.
        threads: threads of the process, by default torch's own choice.
        json: print the planner as one JSON object.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    planner = run_training(
        run, find_data(data), config, features=None if features is None else str(features), note=note
    )
    if json:
        print_json(
            {"planner": str(run / FOLDER), "beliefs": planner.beliefs, "exploration": planner.exploration}
        )
    else:
        print_line(f"planner: {run / FOLDER}")
        print_line(f"exploration: {planner.exploration}")
    return 0


def speak(
    run: tyro.conf.Positional[Path],
    /,
    scene: str,
    path: list[str],
    data: str | None = None,
    features: Path | None = None,
    heading: float = 0.0,
    words: int = 8,
    json: bool = False,
) -> int:
    """Describe a route by the words that the speaker of a run's planner expects at each of its steps.

    The speaker of `esceme train-planner` is a model of single words, not of sentences: it lists words that
    are much more probable at a step than elsewhere.

    Examples:
        esceme speak runs/semantic --scene 8194nk5LbLH --path VIEWPOINT VIEWPOINT VIEWPOINT

    Args:
        run: a run folder with a planner and a vocabulary.
        scene: the scene id.
        path: viewpoint ids along edges of the scene, from start to end.
        data: the data folder, by default ESCEME_DATA, else ./datasets; or `embedded`, the generated world.
        features: the feature file; by default that of the run.
        heading: heading at the start in radians.
        words: number of words per step.
        json: print one JSON object instead of lines.
    """
    described = describe_route(
        run,
        find_data(data),
        scene,
        path,
        features=None if features is None else str(features),
        heading=heading,
        num_words=words,
    )
    if json:
        print_json(
            {"scene": scene, "steps": [{"viewpoint": name, "words": found} for name, found in described]}
        )
    else:
        for name, found in described:
            print_line(f"{name}  {' '.join(found)}")
    return 0
