"""An experiment carried out: its data found, its navigator built, its course run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from esceme import __version__
from esceme.agents import AGENTS
from esceme.config import Experiment, Settings, as_json
from esceme.errors import CheckpointError, ConfigError, DataError
from esceme.evaluation.inputs import find_annotations, make_encoder, open_fitting
from esceme.evaluation.options import EvaluationConfig
from esceme.evaluation.protocol import check_tour_routes
from esceme.files import read_json, write_json
from esceme.learning import ProcessGroup, Trainer, TrainingCallback, TrainingRun, Validation
from esceme.learning.distributed import own_device
from esceme.learning.run import BEST
from esceme.learning.train_state import STATES
from esceme.learning.training_log import EVENTS, FILE
from esceme.learning.word_vectors import ground
from esceme.memory import READERS
from esceme.navigator import Navigator
from esceme.runs import (
    NAVIGATOR_FILE,
    VOCABULARY_FILE,
    WEIGHTS_FILE,
    NavigatorConfig,
    Run,
    from_json,
    load_run,
    part_type,
    save_run,
)
from esceme.tasks.catalogue import TASKS, get_task
from esceme.tasks.episode import Episode, check_paths, one_per_path, scenes_of
from esceme.tasks.folder import DataFolder
from esceme.tasks.split import InstructionEncoder
from esceme.tasks.text import Vocabulary, WordPiece
from esceme.tasks.tours import Tour, check_tours, read_tours
from esceme.world import Atlas, FeatureStore, read_scenes
from esceme.world.graph import SceneGraph

EXPERIMENT_FILE = "experiment.json"
"""The experiment of a run folder, the version that runs it and the sizes of its data."""
OURS = (NAVIGATOR_FILE, WEIGHTS_FILE, VOCABULARY_FILE, FILE, EVENTS, STATES, BEST)
"""What training writes beside it later: in a folder without it, something else has written these."""
HELD_OUT = "held_out"
CLAUSE_ENDS = (",", ".", ";")
"""Words of a vocabulary that end a clause."""
NAMED = 3
"""How many tensors are named where many are meant."""


class TrainingData(NamedTuple):
    """The data of an experiment, read."""

    atlas: Atlas
    store: FeatureStore
    lessons: list[list[Episode]]
    """The training split, and that of the augmentation where there is one."""
    sets: dict[str, list[Episode]]
    """The validation splits."""
    tours: dict[str, list[Tour]]
    """Those that they follow, where validation follows tours."""

    @property
    def facts(self) -> dict[str, Any]:
        """By which other data is told from this, when a run resumes."""
        toured = {split: [len(tour) for tour in tours] for split, tours in self.tours.items()}
        return {
            **({"tours": toured} if toured else {}),
            "scenes": len(self.atlas.scenes),
            "viewpoints": len(self.atlas),
            "train": [len(episodes) for episodes in self.lessons],
            "features": Path(self.store.source).name,
            "width": self.store.width,
        }


def train(
    experiment: Experiment,
    data: str | Path,
    out: str | Path,
    *,
    watch: TrainingCallback | None = None,
    device: torch.device | str = "cpu",
) -> Path:
    """Train a navigator, or go on where an interrupted run of the same experiment stopped; the run folder.

    Started by `torchrun`, it shares its batches with the other processes, each on a GPU of its own if on any.
    """
    folder, together = Path(out), ProcessGroup.join(device)
    watch = watch if watch is not None and together.leads else TrainingCallback()
    try:
        course = prepare(experiment, data, folder, watch=watch, device=own_device(device), together=together)
        course.run()
    finally:
        together.leave()
    return folder


def prepare(
    experiment: Experiment,
    data: str | Path,
    folder: Path,
    *,
    watch: TrainingCallback,
    device: torch.device | str = "cpu",
    together: ProcessGroup | None = None,
) -> TrainingRun:
    """A course ready to run; raises what is wrong with data or settings, and writes nothing."""
    together = together or ProcessGroup()
    require_same(experiment, folder)
    together.share([None] * experiment.training.batch)  # which complains where that cannot be
    found = DataFolder(data)
    room = read_data(experiment, found)
    begun = load_run(experiment.start) if experiment.start else None
    vocabulary = _vocabulary(experiment, room, begun)
    navigator, setup = build(experiment, found, room.store, vocabulary)
    if begun is not None:
        told = _begin_with(navigator, begun)
        if not any((folder / STATES).glob("*.pt")):  # or it goes on with weights of its own
            watch.note(told)
    navigator.to(device)

    def begin() -> None:
        require_same(experiment, folder, room)  # of two who began at once, the other may have been first
        stored = {"version": __version__, "experiment": as_json(experiment), "data": room.facts}
        write_json(folder / EXPERIMENT_FILE, stored, indent=2)

    def save(where: Path) -> None:
        if vocabulary is not None:
            vocabulary.write(where / VOCABULARY_FILE)
        save_run(where, navigator, setup)

    encode = _encoder(experiment, found, Run(folder, setup, navigator, ""), vocabulary)
    trainer = Trainer(
        navigator,
        room.atlas,
        room.lessons,
        experiment.training,
        encode=encode,
        max_steps=experiment.max_steps,
        seed=experiment.seed,
        together=together,
    )
    return TrainingRun(
        trainer=trainer,
        folder=folder,
        config=setup,
        validation=experiment.validation,
        sets=room.sets,
        tours=room.tours,
        atlas=room.atlas,
        encode=encode,
        begin=begin,
        save=save,
        watch=watch,
    )


def require_same(experiment: Experiment, folder: Path, room: TrainingData | None = None) -> None:
    """Raise `ConfigError` where a folder holds another experiment, or one with other data than `room`."""
    path = folder / EXPERIMENT_FILE
    if not path.is_file():
        if found := [name for name in (*OURS, "result.json") if (folder / name).exists()]:
            raise ConfigError(
                f"{folder}: holds something else than training ({found[0]} without {EXPERIMENT_FILE}); "
                "give another --out"
            )
        return
    known = read_json(path, dict[str, Any])
    if not isinstance(known.get("experiment"), dict):
        raise CheckpointError(f"{path}: holds no experiment; give another --out")
    mine: dict[str, Any] = {"experiment": as_json(experiment)}
    if room is not None and "data" in known:
        mine["data"] = room.facts
    theirs = {**known, "experiment": _filled(known["experiment"], as_json(Experiment()))}
    differing = _flat(mine) ^ _flat({name: theirs[name] for name in mine})
    if names := {name.removeprefix("experiment.") for name, _ in differing} - {"about", "differences"}:
        raise ConfigError(
            f"{folder}: holds a run of another experiment, which differs in {', '.join(sorted(names))}; "
            "give another --out, or the same settings to go on with it"
        )


# -- data ------------------------------------------------------------------------------------------------


def read_data(experiment: Experiment, data: DataFolder) -> TrainingData:
    """Read the episodes, graphs and features of an experiment; a `DataError` names what is missing."""
    task = get_task(experiment.task)
    tasks = [task.name, *filter(None, [experiment.training.augmentation])]
    files = [find_annotations(data, name, "train") for name in tasks]
    lessons = [list(TASKS[name].read(path)) for name, path in zip(tasks, files, strict=True)]
    read = list(zip(files, lessons, strict=True))
    sets: dict[str, list[Episode]] = {}
    if experiment.hold_out:
        lessons, sets[HELD_OUT] = _hold_out(lessons, experiment.hold_out)
        if not all(lessons):
            raise ConfigError(f"hold_out {experiment.hold_out}: leaves nothing to learn from of {tasks[-1]}")
    for split in experiment.validation.splits:
        if split != HELD_OUT:
            path = find_annotations(data, task.name, split)
            sets[split] = list(TASKS[task.name].read(path))
            read.append((path, sets[split]))
            if any(episode.goal_withheld for episode in sets[split]):
                raise ConfigError(
                    f"split '{split}': its goals are withheld, so nothing can be validated on it"
                )
        elif not experiment.hold_out:
            raise ConfigError(f"split '{HELD_OUT}' is made by --hold-out, which is 0")
    unused = [split for split in sets if split not in experiment.validation.splits]
    for split in unused:
        del sets[split]
    graphs: dict[str, SceneGraph] = {}
    for path, episodes in read:
        wanted = scenes_of(episodes, data.connectivity, path) - set(graphs)
        graphs |= read_scenes(data.connectivity, wanted)
        check_paths(one_per_path(episodes), graphs, path)
    store = open_fitting(_features(data, experiment.features), experiment.agent_settings.get("feature_width"))
    atlas = Atlas([graphs[scene] for scene in sorted(graphs)], store)
    return TrainingData(atlas, store, lessons, sets, _read_tours(experiment.validation, data, sets, atlas))


def _read_tours(
    validation: Validation, data: DataFolder, sets: Mapping[str, Sequence[Episode]], atlas: Atlas
) -> dict[str, list[Tour]]:
    """The tours of every validation split, where validation follows tours; held-out scenes are of train."""
    if not validation.follows_tours:
        return {}
    path = Path(validation.tours) if validation.tours else data.tours
    if path is None:
        raise DataError(
            f"{data.root}: validation follows tours, and there is no tours/tours_iVLN.json; make one with "
            "`esceme data tours`, or give --validation.tours FILE"
        )
    found = {}
    for split, episodes in sets.items():
        scenes = {episode.scene_id for episode in episodes}
        tours = read_tours(path, "train" if split == HELD_OUT else split)
        found[split] = [tour for tour in tours if split != HELD_OUT or tour.scene_id in scenes]
        check_tours(found[split], episodes, path)
        if validation.oracle_phases:
            check_tour_routes(found[split], episodes, atlas, path)
    return found


def _features(data: DataFolder, name: str) -> Path:
    """The feature file of this name or path, else the only one of the data."""
    if Path(name).is_file():
        return Path(name)
    try:
        return data.only_features(name, option="--features")
    except DataError as error:
        raise DataError(f"{error}{f'; looked for features/{name}' if name else ''}") from None


def _hold_out(lessons: Sequence[Sequence[Episode]], scenes: int) -> tuple[list[list[Episode]], list[Episode]]:
    """Lessons without some scenes of the first of them, and what that has of those; always the same ones.

    An augmentation, which tells of the same scenes, does not have them either.
    """
    known = sorted({episode.scene_id for episode in lessons[0]})
    if scenes >= len(known):
        raise ConfigError(f"hold_out {scenes}: expected fewer than the {len(known)} scenes of the split")
    aside = set(np.random.default_rng(0).permutation(known)[:scenes].tolist())
    kept = [[episode for episode in each if episode.scene_id not in aside] for each in lessons]
    return kept, [episode for episode in lessons[0] if episode.scene_id in aside]


# -- the navigator ---------------------------------------------------------------------------------------


def build(
    experiment: Experiment,
    data: DataFolder,
    store: FeatureStore,
    vocabulary: Vocabulary | None,
) -> tuple[Navigator, NavigatorConfig]:
    """A navigator that fits the data, drawn."""
    words = vocabulary.size if vocabulary is not None else _wordpieces(data)
    agent: Settings = {"feature_width": store.width, **({"vocabulary": words} if words else {})}
    if vocabulary is not None:
        ends = (row for row, word in enumerate(vocabulary.entries) if word in CLAUSE_ENDS)
        agent["clause_ends"] = tuple(ends)
    setup = NavigatorConfig(
        agent=from_json(
            _fitting(AGENTS[experiment.agent], experiment.agent_settings, agent),
            part_type("agent", experiment.agent),
        ),
        reader=from_json(
            _fitting(READERS[experiment.reader], experiment.reader_settings, {"width": store.width}),
            part_type("reader", experiment.reader),
        ),
        feature_dropout=experiment.feature_dropout,
        task=experiment.task,
        max_steps=experiment.max_steps,
        max_tokens=experiment.max_tokens,
        keep=experiment.keep,
        feature_source=Path(store.source).name,
        origin=experiment.about or "trained here",
    )
    navigator = setup.build(seed=experiment.seed)
    if experiment.word_vectors:
        ground(navigator, vocabulary, [data.root / each for each in experiment.word_vectors], data.rooms)
    return navigator, setup


def _fitting(maker: type[Any], given: Settings, by_data: Settings) -> Settings:
    """Settings as given, and those that follow from the data where they are not given and there are such."""
    known = {each.name for each in fields(maker.Config)}
    return {**{name: value for name, value in by_data.items() if name in known}, **given}


def _wordpieces(data: DataFolder) -> int | None:
    """The size of the data's WordPiece vocabulary, where it has one."""
    return next((WordPiece.read(path).size for path in data.tokenizers), None)


def _vocabulary(experiment: Experiment, room: TrainingData, begun: Run | None) -> Vocabulary | None:
    """A vocabulary of its own, if wanted: that of the run it begins with, else a new one."""
    if experiment.text == "encoded":
        return None
    if begun is not None and begun.vocabulary is not None:
        return Vocabulary.read(begun.vocabulary)
    texts = [episode.instruction for episodes in room.lessons for episode in episodes]
    if not any(texts):
        raise DataError(
            f"the training split of {experiment.task} holds ids but no text to make a vocabulary from; "
            "give --text encoded"
        )
    return Vocabulary.build(texts, min_count=experiment.rarest)


def _begin_with(navigator: Navigator, begun: Run) -> str:
    """Take over the weights of a run, and say which they are.

    What it lacks stays as drawn, what does not fit is an error.
    """
    mine, theirs = navigator.state_dict(), begun.navigator.state_dict()
    taken = {name: tensor for name, tensor in theirs.items() if name in mine}
    astray = [name for name, tensor in taken.items() if tensor.shape != mine[name].shape]
    if astray or not taken:
        name = astray[0] if astray else next(iter(theirs), "nothing")
        shapes = f"{tuple(theirs[name].shape)} and {tuple(mine[name].shape)}" if astray else "not in this one"
        raise CheckpointError(
            f"{begun.folder}: does not fit the experiment that shall begin with it: {name} is {shapes}"
        )
    navigator.load_state_dict({**mine, **taken})
    drawn, ignored = ([name for name in some if name not in taken] for some in (mine, theirs))
    told = [f"{len(taken)} of its {len(theirs)} tensors are taken"]
    told += [f"{len(drawn)} are drawn: {_first(drawn)}"] if drawn else []
    told += [f"{len(ignored)} of its own are ignored: {_first(ignored)}"] if ignored else []
    return f"begins with {begun.folder}: {'; '.join(told)}"


def _first(names: Sequence[str]) -> str:
    """The first of some names.

    >>> _first(["a", "b", "c", "d"])
    'a, b, c, ...'
    """
    return ", ".join([*names[:NAMED], *(["..."] if len(names) > NAMED else [])])


def _encoder(
    experiment: Experiment, data: DataFolder, run: Run, vocabulary: Vocabulary | None
) -> InstructionEncoder:
    """How an instruction becomes ids, each only once."""
    plan = EvaluationConfig(run=str(run.folder), data=str(data.root), split="train", memory="none")
    encode = make_encoder(plan, run, data, experiment.task, own=vocabulary)
    known: dict[tuple[str, str, tuple[int, ...] | None], Sequence[int]] = {}

    def remembered(episode: Episode) -> Sequence[int]:
        key = (episode.episode_id, episode.instruction, episode.tokens)  # splits may share names
        if key not in known:
            known[key] = encode(episode)
        return known[key]

    return remembered


def _filled(stored: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What was stored, with the defaults of fields that an earlier version did not have.

    >>> _filled({"validation": {"every": 5}}, {"seed": 0, "validation": {"every": 9, "tours": ""}})
    {'seed': 0, 'validation': {'every': 5, 'tours': ''}}
    """
    whole = {**defaults, **stored}
    for name, value in defaults.items():
        if isinstance(value, dict) and isinstance(whole[name], dict):
            whole[name] = _filled(whole[name], value)
    return whole


def _flat(stored: Mapping[str, Any], before: str = "") -> set[tuple[str, Any]]:
    """All values by their dotted names; lists, as which json keeps tuples, as tuples.

    >>> sorted(_flat({"training": {"batch": 8}, "splits": ["val_seen"]}))
    [('splits', ('val_seen',)), ('training.batch', 8)]
    """
    found: set[tuple[str, Any]] = set()
    for name, value in stored.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{before}{name}.")
        else:
            found.add((before + name, tuple(value) if isinstance(value, list) else value))
    return found
