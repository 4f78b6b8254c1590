"""Training of an experiment: load the data, build the navigator, train it in a run folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import torch

from esceme import __version__
from esceme.config import Experiment, as_json, flatten, from_json
from esceme.errors import CheckpointError, ConfigError, DataError
from esceme.evaluation.protocol import check_tour_routes
from esceme.evaluation.result import load_objects
from esceme.files import read_json, write_json
from esceme.learning import ProcessGroup, Trainer, TrainingCallback, TrainingRun, ValidationConfig
from esceme.learning.distributed import local_device
from esceme.learning.run import BEST_FOLDER, STATES_FOLDER
from esceme.learning.training_log import EVENTS_FOLDER, LOG_FILE
from esceme.learning.word_vectors import init_grounding_head
from esceme.navigator import Navigator
from esceme.runs import (
    NAVIGATOR_FILE,
    VOCABULARY_FILE,
    WEIGHTS_FILE,
    NavigatorConfig,
    Run,
    load_run,
    save_run,
)
from esceme.source_digest import source_digest
from esceme.tasks.catalogue import get_task
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.split import Dataset, load_dataset, load_wordpiece, make_instruction_encoder
from esceme.tasks.text import Vocabulary
from esceme.tasks.tours import Tour, check_tours, read_tours
from esceme.world import Atlas

EXPERIMENT_FILE = "experiment.json"
"""File in a run folder with the experiment, the version of this package and the sizes of the data."""
OUTPUTS = (
    NAVIGATOR_FILE,
    WEIGHTS_FILE,
    VOCABULARY_FILE,
    LOG_FILE,
    EVENTS_FOLDER,
    STATES_FOLDER,
    BEST_FOLDER,
    "result.json",
)
"""Files of a run folder. Training does not start if one of them exists without `EXPERIMENT_FILE`."""
DESCRIPTIONS = {"about", "differences"}
"""Fields of an experiment that do not change its results."""
ITERATIONS = "training.iterations"
"""Field of an experiment that may be raised when a run is resumed."""
HELD_OUT = "held_out"
CLAUSE_ENDS = (",", ".", ";")
"""Words that end a clause of an instruction."""
MAX_TENSOR_NAMES = 3
"""Maximum number of tensors that a message names."""
T = TypeVar("T")


def train(
    experiment: Experiment,
    data: str | Path,
    out: str | Path,
    *,
    callback: TrainingCallback | None = None,
    device: torch.device | str = "cpu",
) -> Path:
    """Train a navigator, or resume an interrupted run of the same experiment; return the run folder.

    Under `torchrun`, every process trains on its part of each batch, on its own GPU if `device` is cuda.
    """
    folder, process_group = Path(out), ProcessGroup.from_environment(device)
    callback = callback if callback is not None and process_group.is_main else TrainingCallback()
    try:
        run = prepare(
            experiment,
            data,
            folder,
            callback=callback,
            device=local_device(device),
            process_group=process_group,
        )
        run.run()
    finally:
        process_group.destroy()
    return folder


def prepare(
    experiment: Experiment,
    data: str | Path,
    folder: Path,
    *,
    callback: TrainingCallback,
    device: torch.device | str = "cpu",
    process_group: ProcessGroup | None = None,
) -> TrainingRun:
    """Load the data and build the navigator of a training run, without writing any file.

    Raise `DataError` or `ConfigError` if data are missing or do not fit the experiment.
    """
    process_group = process_group or ProcessGroup()
    require_same_experiment(experiment, folder)
    process_group.shard([None] * experiment.training.batch)  # raises if the batch cannot be divided
    loaded = load_training_data(experiment, DataFolder(data))
    atlas, data_folder = loaded.dataset.atlas, loaded.dataset.folder
    navigator, config, vocabulary, message = build_navigator(experiment, loaded)
    if message and not any((folder / STATES_FOLDER).glob("*.pt")):  # a resumed run has weights of its own
        callback.on_note(message)
    navigator.to(device)
    shorter_runs = _shorter_runs(experiment, folder)
    if shorter_runs and experiment.training.lr_schedule == "linear":
        callback.on_note(
            f"{folder}: trained for {shorter_runs[-1]:,} iterations with a learning rate that fell to 0; the "
            f"further ones use the learning rate of a run of {experiment.training.iterations:,}"
        )

    def begin() -> None:
        # Another process may have started a run in this folder meanwhile.
        require_same_experiment(experiment, folder, loaded)
        stored = {
            "version": __version__,
            "code": source_digest(),
            "experiment": as_json(experiment),
            "data": loaded.sizes,
            **({"shorter_runs": shorter_runs} if shorter_runs else {}),
        }
        write_json(folder / EXPERIMENT_FILE, stored, indent=2)

    def save(run_folder: Path) -> None:
        if vocabulary is not None:
            vocabulary.write(run_folder / VOCABULARY_FILE)
        save_run(run_folder, navigator, config)

    encode = make_instruction_encoder(
        data_folder,
        config.task,
        max_tokens=config.max_tokens,
        keep=config.keep,
        vocabulary=vocabulary,
        vocabulary_size=config.agent.limits.vocabulary,
        episodes=chain(*loaded.train, *loaded.validation.values()),
    )
    trainer = Trainer(
        navigator,
        atlas,
        loaded.train,
        experiment.training,
        encode=encode,
        max_steps=config.max_steps,
        seed=experiment.seed,
        process_group=process_group,
    )
    return TrainingRun(
        trainer=trainer,
        folder=folder,
        navigator_config=config,
        validation=experiment.validation,
        validation_sets=loaded.validation,
        tours=loaded.tours,
        atlas=atlas,
        objects=load_objects(data_folder, get_task(config.task)) if loaded.validation else None,
        encode=encode,
        fingerprint=_fingerprint(experiment, loaded),
        resumable_fingerprints=[
            _fingerprint(
                replace(experiment, training=replace(experiment.training, iterations=iterations)), loaded
            )
            for iterations in shorter_runs
        ],
        write_experiment=begin,
        save_navigator=save,
        callback=callback,
    )


def require_same_experiment(experiment: Experiment, folder: Path, data: TrainingData | None = None) -> None:
    """Raise `ConfigError` if a run folder contains another experiment, or data of other sizes than `data`."""
    path = folder / EXPERIMENT_FILE
    if not path.is_file():
        if found := [name for name in OUTPUTS if (folder / name).exists()]:
            raise ConfigError(
                f"{folder}: holds something else than training ({found[0]} without {EXPERIMENT_FILE}); "
                "give another --out"
            )
        return
    if not any(_has_content(folder / name) for name in OUTPUTS if name != EVENTS_FOLDER):
        return  # a start that failed before it had a result
    stored = read_json(path, dict[str, Any])
    if not isinstance(stored.get("experiment"), dict):
        raise CheckpointError(f"{path}: holds no experiment; give another --out")
    try:
        known = as_json(from_json(stored["experiment"], Experiment))
    except ConfigError as error:
        raise CheckpointError(
            f"{path}: not an experiment of this version ({error}); give another --out"
        ) from None
    before, now = flatten(known), flatten(as_json(experiment))
    if data is not None and "data" in stored:
        before, now = {**before, **flatten(stored["data"], "data.")}, {**now, **flatten(data.sizes, "data.")}
    differing = {name for name in {*before, *now} if before.get(name, ...) != now.get(name, ...)}
    is_longer = before[ITERATIONS] <= now[ITERATIONS]
    if differing := differing - DESCRIPTIONS - ({ITERATIONS} if is_longer else set()):
        raise ConfigError(
            f"{folder}: holds a run of another experiment, which differs in {', '.join(sorted(differing))}; "
            "give another --out, or the same settings to resume it"
        )


def _shorter_runs(experiment: Experiment, folder: Path) -> list[int]:
    """Return the smaller numbers of iterations for which the run in `folder` was trained, ascending.

    A killed process may leave states of any of them.
    """
    path = folder / EXPERIMENT_FILE
    if not path.is_file():
        return []
    stored = read_json(path, dict[str, Any])
    numbers = [*stored.get("shorter_runs", ()), flatten(stored.get("experiment", {})).get(ITERATIONS, 0)]
    return sorted({number for number in numbers if 0 < number < experiment.training.iterations})


def _has_content(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.is_file() and path.stat().st_size > 0


def _fingerprint(experiment: Experiment, data: TrainingData) -> str:
    """Return a digest of everything that must be equal to resume a run."""
    experiment = from_json(as_json(experiment), Experiment)  # 0 and 0.0 become equal
    facts = flatten({**as_json(experiment), "data": data.sizes})
    facts = {name: value for name, value in facts.items() if name not in DESCRIPTIONS}
    return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()


# -- data ------------------------------------------------------------------------------------------------


class TrainingData(NamedTuple):
    """Loaded data of an experiment."""

    dataset: Dataset
    train: list[list[Episode]]
    """Episodes of the training split and, if there is one, of the augmentation task's training split."""
    validation: dict[str, list[Episode]]
    """Episodes of each validation split, by name of the split."""
    tours: dict[str, list[Tour]]
    """Tours of each validation split, by name of the split; empty unless validation follows tours."""

    @property
    def sizes(self) -> dict[str, Any]:
        """Sizes of the data, by name. A run can be resumed only with data of the same sizes."""
        tours = {split: [len(tour) for tour in tours] for split, tours in self.tours.items()}
        return {
            **({"tours": tours} if tours else {}),
            "scenes": len(self.dataset.atlas.scenes),
            "viewpoints": len(self.dataset.atlas),
            "train": [len(episodes) for episodes in self.train],
            "features": Path(self.dataset.features.source).name,
            "width": self.dataset.features.width,
        }


def load_training_data(experiment: Experiment, data: DataFolder) -> TrainingData:
    """Return the splits, scene graphs, features and tours of an experiment."""
    tasks = [experiment.navigator.task, *filter(None, [experiment.training.augmentation])]
    validates_held_out = HELD_OUT in experiment.validation.splits
    if validates_held_out and not experiment.hold_out:
        raise ConfigError(f"split '{HELD_OUT}' is made by --hold-out, which is 0")
    splits = [split for split in experiment.validation.splits if split != HELD_OUT]
    dataset = load_dataset(
        data,
        [*((task, "train") for task in tasks), *((tasks[0], split) for split in splits)],
        features=experiment.features if Path(experiment.features).is_file() else None,
        name=experiment.features,
        width=experiment.feature_width,
    )
    episodes = [split.episodes for split in dataset.splits]
    train, validation = episodes[: len(tasks)], dict(zip(splits, episodes[len(tasks) :], strict=True))
    for split in splits:
        if any(episode.goal_withheld for episode in validation[split]):
            raise ConfigError(f"split '{split}': its goals are withheld, so it cannot be validated on")
    if experiment.hold_out:
        train, held_out = _hold_out_scenes(train, experiment.hold_out)
        if not all(train):
            raise ConfigError(
                f"hold_out {experiment.hold_out}: no episode of {tasks[-1]} is left to train on"
            )
        validation = {HELD_OUT: held_out, **validation} if validates_held_out else validation
    return TrainingData(
        dataset, train, validation, _load_tours(experiment.validation, data, validation, dataset.atlas)
    )


def _load_tours(
    config: ValidationConfig, data: DataFolder, splits: Mapping[str, Sequence[Episode]], atlas: Atlas
) -> dict[str, list[Tour]]:
    """Return the tours of every validation split, by name; empty unless validation follows tours.

    The split of held-out scenes uses the tours of the training split in these scenes.
    """
    if not config.follows_tours:
        return {}
    path = Path(config.tours) if config.tours else data.tours
    if path is None:
        raise DataError(
            f"{data.root}: validation follows tours, and there is no tours/tours_iVLN.json; make one with "
            "`esceme data tours`, or give --validation.tours FILE"
        )
    loaded = {}
    for split, episodes in splits.items():
        scenes = {episode.scene_id for episode in episodes}
        tours = read_tours(path, "train" if split == HELD_OUT else split)
        loaded[split] = [tour for tour in tours if split != HELD_OUT or tour.scene_id in scenes]
        check_tours(loaded[split], episodes, path)
        if config.oracle_phases:
            check_tour_routes(loaded[split], episodes, atlas, path)
    return loaded


def _hold_out_scenes(
    train: Sequence[Sequence[Episode]], num_scenes: int
) -> tuple[list[list[Episode]], list[Episode]]:
    """Hold out `num_scenes` scenes of the first training split. The choice is always the same.

    Return the training splits without episodes of these scenes, and the first split's episodes in them.
    """
    scenes = sorted({episode.scene_id for episode in train[0]})
    if num_scenes >= len(scenes):
        raise ConfigError(f"hold_out {num_scenes}: expected fewer than the {len(scenes)} scenes of the split")
    held_out = set(np.random.default_rng(0).permutation(scenes)[:num_scenes].tolist())
    remaining = [[episode for episode in split if episode.scene_id not in held_out] for split in train]
    return remaining, [episode for episode in train[0] if episode.scene_id in held_out]


# -- the navigator ---------------------------------------------------------------------------------------


class BuiltNavigator(NamedTuple):
    """A navigator with its initial weights, and the files saved with it."""

    navigator: Navigator
    config: NavigatorConfig
    vocabulary: Vocabulary | None
    message: str
    """Message about which weights come from `experiment.start`; empty if that is empty."""


def build_navigator(experiment: Experiment, data: TrainingData) -> BuiltNavigator:
    """Return the navigator of an experiment on the CPU, with the weights from which training starts."""
    folder = data.dataset.folder
    start = load_run(experiment.start) if experiment.start else None
    vocabulary = _own_vocabulary(experiment, data.train, start)
    config = fit_navigator(experiment, data.dataset, vocabulary)
    navigator = config.build(seed=experiment.seed)
    if experiment.word_vectors:
        prefixes = [folder.root / prefix for prefix in experiment.word_vectors]
        init_grounding_head(navigator, vocabulary, prefixes, folder.rooms)
    message = "" if start is None else _load_matching_weights(navigator, start)
    return BuiltNavigator(navigator, config, vocabulary, message)


def _own_vocabulary(
    experiment: Experiment, train: Sequence[Sequence[Episode]], start: Run | None
) -> Vocabulary | None:
    """Return the vocabulary of the run, or None if the experiment uses token ids of the data folder.

    The vocabulary is that of the run from which training starts. Without such a run it is built from `train`.
    """
    if experiment.text == "encoded":
        return None
    if start is not None and start.vocabulary is not None:
        return Vocabulary.read(start.vocabulary)
    texts = [episode.instruction for episodes in train for episode in episodes]
    if not any(texts):
        raise DataError(
            f"the training split of {experiment.navigator.task} has ids but no text to build a vocabulary "
            "from; give --text encoded"
        )
    return Vocabulary.build(texts, min_count=experiment.min_word_count)


def fit_navigator(experiment: Experiment, dataset: Dataset, vocabulary: Vocabulary | None) -> NavigatorConfig:
    """Return the navigator config of an experiment, with the data's feature width and vocabulary size."""
    features = dataset.features
    sizes: dict[str, Any] = {"feature_width": features.width, "vocabulary": experiment.vocabulary_size}
    if vocabulary is not None:
        sizes["clause_ends"] = tuple(
            index for index, word in enumerate(vocabulary.entries) if word in CLAUSE_ENDS
        )
    if sizes["vocabulary"] is None and (tokenizer := vocabulary or load_wordpiece(dataset.folder)):
        sizes["vocabulary"] = tokenizer.size
    return replace(
        experiment.navigator,
        agent=_replace_existing_fields(experiment.navigator.agent, sizes),
        reader=_replace_existing_fields(experiment.navigator.reader, {"width": features.width}),
        feature_source=Path(features.source).name,
        origin=experiment.about or "trained here",
    )


def _replace_existing_fields(config: T, values: Mapping[str, Any]) -> T:
    """Return a copy of `config` with new values, without those that are None or not fields of `config`."""
    names = {field.name for field in fields(config)}  # type: ignore[arg-type]
    known = {name: value for name, value in values.items() if name in names and value is not None}
    return replace(config, **known)  # type: ignore[type-var]


def _load_matching_weights(navigator: Navigator, start: Run) -> str:
    """Load the tensors of a run that the navigator also has; return a message with their number.

    Other parameters stay random. Raise `CheckpointError` if a shape differs or no tensor matches.
    """
    agents = [type(run.agent).__name__ for run in (start.navigator, navigator)]
    own, theirs = navigator.state_dict(), start.navigator.state_dict()
    loaded = {name: tensor for name, tensor in theirs.items() if name in own}
    misshapen = [name for name, tensor in loaded.items() if tensor.shape != own[name].shape]
    if misshapen or not loaded:
        name = misshapen[0] if misshapen else next(iter(theirs), "nothing")
        shapes = (
            f"{tuple(theirs[name].shape)} and {tuple(own[name].shape)}" if misshapen else "not in this one"
        )
        raise CheckpointError(
            f"{start.folder}: {agents[0]} does not fit the experiment that starts from it, which trains "
            f"{agents[1]}: {name} is {shapes}"
        )
    navigator.load_state_dict({**own, **loaded})
    random, ignored = ([name for name in names if name not in loaded] for names in (own, theirs))
    counts = [f"{len(loaded)} of its {len(theirs)} tensors are loaded"]
    counts += [f"{len(random)} are random: {_format_names(random)}"] if random else []
    counts += [f"{len(ignored)} of its own are ignored: {_format_names(ignored)}"] if ignored else []
    return f"starts from {start.folder}: {'; '.join(counts)}"


def _format_names(names: Sequence[str]) -> str:
    """Return the first `MAX_TENSOR_NAMES` names, joined by commas.

    >>> _format_names(["a", "b", "c", "d"])
    'a, b, c, ...'
    """
    return ", ".join([*names[:MAX_TENSOR_NAMES], *(["..."] if len(names) > MAX_TENSOR_NAMES else [])])
