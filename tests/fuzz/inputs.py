"""The kinds of files that the package reads: an undamaged example of each, and the call that reads it.

Calls run in a folder with the files of `write_inputs`, with relative paths, and return the meaning of what
they read: equal meanings have equal representations.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from esceme.checkpoints.exchange import import_weights
from esceme.cli import main
from esceme.cli.console import note
from esceme.evaluation import compare, evaluate, read_result
from esceme.evaluation.context import load_context
from esceme.evaluation.trace import read_trace
from esceme.learning import TrainingCallback, TrainingRun
from esceme.learning.run import load_state
from esceme.learning.training_log import TrainingLog, read_log
from esceme.learning.word_vectors import WordTable
from esceme.memory import load_bank
from esceme.memory.bank_file import read_header
from esceme.metrics import score
from esceme.perception.semantic_features import write_semantic_features
from esceme.perception.views import find_panoramas, read_panorama
from esceme.planning.planner_file import load_planner, save_planner
from esceme.runs import load_run
from esceme.tasks import TASKS
from esceme.tasks.catalogue import Task
from esceme.tasks.file_checks import describe_vocabulary, room_labels
from esceme.tasks.folder import DataFolder
from esceme.tasks.manifest import check_manifest, write_manifest
from esceme.tasks.reverie import read_objects
from esceme.tasks.split import make_instruction_encoder, read_split
from esceme.tasks.submission import check_predictions, match_predictions, read_predictions, write_submission
from esceme.tasks.text import Vocabulary, WordPiece
from esceme.tasks.tours import check_tours, read_all_tours, read_tours
from esceme.training import prepare, require_same_experiment, train
from esceme.world import Atlas, open_features, pack, read_scenes
from esceme.world.features import write_features
from fixtures.files import load_json, save_json
from fixtures.original_checkpoints import fine_tuned
from fixtures.toy_dataset import ToyDataset, small_experiment, write_toy_dataset, write_training_data
from fixtures.toy_planner import random_speaker, random_stored_planner
from fixtures.toy_world import write_toy_world
from reference.make import HERE, WORLD, unpack

TOY, DATASET = Path("toy"), ToyDataset(Path("dataset/data"), Path("dataset/run"))
TRAINING, TRAINED = Path("training/data"), Path("trained")
EVALUATION, OTHER = Path("evaluation"), Path("other")
CONNECTIVITY = TOY / "connectivity"
REFERENCE = Path("reference")
DUET_REFERENCE = Path("reference-duet")
DUET_FILES = (
    "vln_bert.safetensors",
    "meta.json",
    "case0_inputs.safetensors",
    "case0_r2r_outputs.safetensors",
    "rollout_argmax.json.gz",
    "train_il_dagger.json.gz",
)
REFERENCE_FILES = (
    *("rollout_argmax.json.gz", "train_il_a2c.json.gz", "meta.json"),
    *("vln_bert.safetensors", "critic.safetensors"),
)
PLANNED = Path("planned")
EXPERIMENT = small_experiment()
OUT = Path("out")
"""Folder for what a call writes; it is removed after every call."""


def write_inputs() -> None:
    """Write an undamaged file of every kind into the current folder."""
    torch.set_num_threads(1)
    write_toy_world(TOY)
    write_toy_dataset(DATASET.root.parent)
    write_training_data(TRAINING.parent)
    train(EXPERIMENT, TRAINING, TRAINED)
    Vocabulary.build(["turn left at the sofa", "go on"]).write(TRAINED / "vocab.txt")
    save_planner(PLANNED, random_stored_planner(), random_speaker())
    for memory, folder in (("cold", EVALUATION), ("masked", OTHER)):
        evaluate(DATASET.config(memory), folder, trace=folder == EVALUATION)
    tokenizer = WordPiece.read(TOY / "tokenizer/vocab.txt")
    records = load_json(TOY / "R2R/R2R_val_seen.json")
    for record in records:
        record["instr_encodings"] = [tokenizer.encode(text) for text in record["instructions"]]
    save_json(TOY / "R2R/prevalent_aug_train_enc.json", records)
    (TOY / "tokenizer.json").write_text(tokenizer._tokenizer.to_str())
    for task, split in (("r2r", "val_unseen"), ("rxr", "val_unseen")):
        loaded = _split(TASKS[task], DataFolder(TOY).require(task, split))
        records = [
            {TASKS[task].id_key: TASKS[task].submission_id(episode), "path": list(episode.reference_path)}
            for episode in loaded.episodes
        ]
        save_json(TOY / f"{task}_predictions{TASKS[task].submission_suffix}", records)
    store = open_features(TOY / "features/toy.hdf5", width=16)
    pack(store, "packed/toy.npy")
    write_features(TOY / "other.hdf5", [("a_b", store.panorama(store.keys[0]))])
    words = ["sofa", "lamp", "door", "kitchen"]
    Path("words_vocab.txt").write_text("\n".join(words) + "\n")
    np.save("words_glove.npy", np.random.default_rng(0).normal(size=(4, 8)).astype("f4"))
    colours = np.random.default_rng(0).integers(0, 255, (32, 64, 3), dtype=np.uint8)
    Path("panoramas/house").mkdir(parents=True)
    Image.fromarray(colours).save("panoramas/house/a.jpg")
    Path("checkpoints").mkdir()
    torch.save(fine_tuned(), "checkpoints/new.pt")
    torch.save(fine_tuned(), "checkpoints/legacy.pt", _use_new_zipfile_serialization=False)
    state = fine_tuned()["vln_bert"]["state_dict"]
    save_file(state, "checkpoints/plain.safetensors")
    unpack(Path("unpacked"))
    REFERENCE.mkdir()
    for file in REFERENCE_FILES:
        shutil.copy(Path("unpacked/hamt_esceme", file), REFERENCE)
    shutil.rmtree("unpacked")
    DUET_REFERENCE.mkdir()
    for file in DUET_FILES:
        shutil.copy(HERE / "duet" / file, DUET_REFERENCE)
    write_manifest(DATASET.root)


# -- calls -------------------------------------------------------------------------------------------------


def _split(task: Task, file: Path) -> Any:
    return read_split(task, file, CONNECTIVITY)


def _read_annotations(task: str) -> Callable[[Path], Any]:
    def read(file: Path) -> Any:
        loaded = _split(TASKS[task], file)
        encode = make_instruction_encoder(
            DataFolder(TOY), task, max_tokens=60, keep="first", vocabulary_size=_wordpiece().size
        )
        return loaded.episodes, [encode(episode) for episode in loaded.episodes]

    return read


def _read_planner(file: Path) -> Any:
    stored, (speaker, _) = load_planner(PLANNED)
    return stored, {name: array.tobytes() for name, array in speaker.digest_arrays.items()}


@functools.cache
def _wordpiece() -> WordPiece:
    return WordPiece.read(TOY / "tokenizer/vocab.txt")


def _read_graphs(file: Path) -> Any:
    graphs = read_scenes(file.parent)
    atlas = Atlas(graphs.values())
    return [
        (scene, graph.viewpoints, graph.edges().tolist(), graph.distances.tolist(), graph.candidates(name))
        for scene, graph in graphs.items()
        for name in graph.viewpoints[:1]
    ], len(atlas)


def _check_folder(root: Path, *options: str) -> Callable[[Path], Any]:
    return lambda file: main(["data", "check", str(root), *options])


def _command(*args: str) -> Callable[[Path], Any]:
    return lambda file: main([file.as_posix() if argument == "FILE" else argument for argument in args])


def _read_features(file: Path) -> Any:
    store = open_features(file.with_suffix(".npy") if file.suffix == ".json" else file)
    values = [store.panorama(key) for key in store.keys]
    return store.keys, store.width, _digest(*values)


def _read_words(file: Path) -> Any:
    table = WordTable.read(file.with_name("words"))
    return table.width, _digest(table.embed(["sofa", "kitchen lamp", "door"])), list(table.vectors or ())


def _read_bank(file: Path) -> Any:
    header, bank = read_header(file), load_bank(file)
    vectors = [bank[scene.scene_id].recall(scene.viewpoints) for scene in header.scenes]
    return header, _digest(*vectors)


def _read_run(file: Path) -> Any:
    run = load_run(file.parent)
    words = None if run.vocabulary is None else Vocabulary.read(run.vocabulary)
    return run.config, words, _digest(*run.navigator.state_dict().values())


def _evaluate_run(file: Path) -> Any:
    """Evaluate the first steps of a run, so that what was accepted has to work."""
    evaluate(DATASET.config("cold", max_steps=2), OUT)
    return load_run(file.parent).config, (OUT / "predictions.json").read_bytes()


def _resume_evaluation(file: Path) -> Any:
    """Continue the evaluation; its data does not change, so it is loaded once."""
    with patch("esceme.evaluation.evaluate.load_context", lambda config: _context()):
        evaluate(DATASET.config("cold"), EVALUATION)
    return [_digest((EVALUATION / name).read_bytes()) for name in ("result.json", "bank.safetensors")]


@functools.cache
def _context() -> Any:
    return load_context(DATASET.config("cold"))


def _compare(file: Path) -> Any:
    results = [read_result(file.parent), read_result(OTHER)]
    return compare(results, draws=20), results[0]


def _score(file: Path) -> Any:
    task = TASKS[file.name.partition("_")[0]]
    loaded = _split(task, DataFolder(TOY).require(task.name, "val_unseen"))
    pairs = match_predictions(loaded.episodes, read_predictions(file), task, file=file)
    check_predictions(pairs, loaded.graphs, file=file)
    means = score(pairs, Atlas(loaded.graphs.values()), file=file).means()
    write_submission(OUT / f"submission{task.submission_suffix}", task, pairs, loaded.graphs)
    return means, (OUT / f"submission{task.submission_suffix}").read_bytes()


def _read_experiment(file: Path) -> Any:
    require_same_experiment(EXPERIMENT, TRAINED)
    return "the same experiment"


def _resume_training(file: Path) -> Any:
    run: Any = _training_run()
    state = load_state(TRAINED, [run.fingerprint], use=run.restore, note=note)
    return "a state of this run" if state_digest(state) in _known_states() else state_digest(state)


@functools.cache
def _known_states() -> set[str]:
    return {
        state_digest(torch.load(path, weights_only=True)) for path in sorted((TRAINED / "state").glob("*.pt"))
    }


@functools.cache
def _training_run() -> TrainingRun:
    _known_states()
    return prepare(EXPERIMENT, TRAINING, OUT, callback=TrainingCallback())


def state_digest(value: Any) -> str:
    """A hash of the content of a state; equal contents may be stored as different bytes."""
    if isinstance(value, Mapping):
        return _digest(*(f"{key}{state_digest(value[key])}" for key in sorted(value, key=str)))
    if isinstance(value, list | tuple):
        return _digest(*map(state_digest, value))
    return _digest(value)


def _read_training_log(file: Path) -> Any:
    lines = read_log(file)
    with patch("esceme.learning.training_log._open_events", lambda *arguments: None):
        TrainingLog(file.parent, after=3).close()
    return lines


def _import(file: Path) -> Any:
    config, report = import_weights(file, OUT, heads=3)
    return config, report.mapped, _digest(*load_run(OUT).navigator.state_dict().values())


def _read_tours(file: Path) -> Any:
    tours = read_tours(file, "val_seen")
    check_tours(tours, _split(TASKS["r2r"], TOY / "R2R/R2R_val_seen.json").episodes, file)
    return tours, read_all_tours(file)


def _read_panoramas(file: Path) -> Any:
    return {key: _digest(read_panorama(path)) for key, path in find_panoramas(file.parents[1]).items()}


def _semantic(file: Path) -> Any:
    return write_semantic_features(TOY, OUT / "semantic.hdf5", words=WordTable.random(8))


def _read_manifest(file: Path) -> Any:
    if found := [*check_manifest(DATASET.root)]:
        note("\n".join(f"{damage.file}: {damage.text}" for damage in found))
        return 1
    return msgspec.json.decode((DATASET.root / "manifest.json").read_bytes())


def _digest(*values: Any) -> str:
    whole = hashlib.sha256()
    for value in values:
        if isinstance(value, torch.Tensor):
            value = value.detach().numpy()
        if isinstance(value, np.ndarray):
            whole.update(f"{value.shape} {value.dtype}".encode())
            value = value.tobytes()
        whole.update(value if isinstance(value, bytes) else repr(value).encode())
    return whole.hexdigest()


# -- kinds -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputKind:
    """A kind of file."""

    name: str
    files: tuple[str, ...]
    calls: tuple[Callable[[Path], Any], ...]
    """Functions that read the file as a user would; a returned exit code 1 or 2 is a refusal."""
    weight: int = 10
    """Relative number of cases; smaller for slow calls."""
    has_checksum: bool = False
    """Whether every change of the content can be noticed."""
    is_strict: bool = False
    """Whether every key of the JSON has to be there."""
    ranges: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """JSON key -> values that have to be refused."""
    changes: Path | None = None
    """A folder that the calls change."""


NOT_COUNTS = (-3, 0, -1, 2.5, "7", None)
NOT_FRACTIONS = (7, -1, -0.5, "x", None)
PATH_RANGES = {"heading": (1e30, None, "x"), "path": (None, "", "no such viewpoint", 3)}
NAVIGATOR_RANGES = {
    **dict.fromkeys(
        ("max_steps", "max_tokens", "hidden", "heads", "vocabulary", "feature_width"), NOT_COUNTS
    ),
    **dict.fromkeys(("cross_layers", "text_layers", "panorama_layers"), (*NOT_COUNTS[:1], 3000000, 2**40)),
    **dict.fromkeys(("dropout", "feature_dropout", "head_dropout", "critic_dropout"), NOT_FRACTIONS),
    **dict.fromkeys(("initial_std", "epsilon"), (-1, "x", None)),
    **dict.fromkeys(("positions", "feed_forward", "critic_inner", "vocabulary"), (2**40, -1)),
    "width": (*NOT_COUNTS[:3], 2**40),
}
KINDS = (
    InputKind(
        "connectivity",
        ("toy/connectivity/toy-villa_connectivity.json",),
        (_read_graphs,) * 9
        + (_command("scene", "toy-villa", "--connectivity", "toy/connectivity", "--out", "out/s.svg"),),
        ranges={"pose": (1e200, None, "x"), "unobstructed": (7, "x", None), "image_id": (None, 3)},
    ),
    *(
        InputKind(name, (file,), (_read_annotations(name),), ranges=PATH_RANGES | ranges)
        for name, file, ranges in (
            ("r2r", "toy/R2R/R2R_val_seen.json", {"scan": ("no such scene", None)}),
            ("r4r", "toy/R4R/R4R_val_seen.json", {"instructions": (None, 3)}),
            ("rxr", "toy/RxR/rxr_val_seen_guide.jsonl.gz", {"instruction": (None, 3)}),
            ("cvdn", "toy/CVDN/val_seen.json", {"end_panos": ("no such viewpoint",), "player_path": ("x",)}),
            ("reverie", "toy/REVERIE/v2_REVERIE_val_seen.json", {"instructions": (None, 3)}),
            (
                "prevalent",
                "toy/R2R/prevalent_aug_train_enc.json",
                {"instr_encodings": (-1, 10**6, 2**40, "x")},
            ),
        )
    ),
    InputKind(
        "data folder",
        (
            "toy/R2R/prevalent_aug_train_enc.json",
            "toy/RxR/rxr_val_seen_guide.jsonl.gz",
            "toy/connectivity/toy-cottage_connectivity.json",
            "toy/features/toy.hdf5",
            "toy/objects/reverie_objects.json.gz",
            "toy/rooms/viewpoint_rooms.json",
            "toy/tokenizer/vocab.txt",
        ),
        (_check_folder(TOY),),
        weight=2,
        ranges=PATH_RANGES | {"instr_encodings": (-1, 10**6)},
    ),
    InputKind("tours", ("toy/tours/tours_iVLN.json",), (_read_tours,)),
    InputKind("objects", ("toy/objects/reverie_objects.json.gz",), (read_objects,) * 12 + (_semantic,)),
    InputKind("rooms", ("toy/rooms/viewpoint_rooms.json",), (room_labels,)),
    InputKind("word pieces", ("toy/tokenizer/vocab.txt", "toy/tokenizer.json"), (describe_vocabulary,)),
    InputKind("vocabulary", ("trained/vocab.txt",), (Vocabulary.read,)),
    InputKind("word vectors", ("words_glove.npy", "words_vocab.txt"), (_read_words,)),
    InputKind("packed features", ("packed/toy.npy",), (_read_features,), has_checksum=True),
    InputKind(
        "packed index", ("packed/toy.json",), (_read_features,), ranges={"width": NOT_COUNTS, "keys": (3,)}
    ),
    InputKind("hdf5 features", ("toy/features/toy.hdf5",), (_read_features,), weight=6),
    InputKind(
        "bank",
        ("evaluation/bank.safetensors",),
        (_read_bank, _read_bank, _read_bank, _command("memory", "show", "FILE")),
        has_checksum=True,
        ranges={"width": NOT_COUNTS, "neighbours": (-1, 10**9, "x")},
    ),
    InputKind(
        "run",
        ("trained/navigator.json", "trained/weights.safetensors", "trained/vocab.txt"),
        (_read_run,),
        is_strict=True,
        ranges=NAVIGATOR_RANGES,
        weight=5,
    ),
    InputKind(
        "evaluated run",
        ("dataset/run/navigator.json", "dataset/run/weights.safetensors"),
        (_evaluate_run,),
        weight=2,
        is_strict=True,
        ranges=NAVIGATOR_RANGES,
    ),
    InputKind(
        "planner",
        ("planned/planner/planner.json", "planned/planner/speaker.safetensors"),
        (_read_planner,),
        is_strict=True,
        ranges={
            "max_moves": NOT_COUNTS,
            "routes": ("flight", None),
            "utility": ("fun", 3),
            "scorers": ("oracle", None),
            "early": (-1.0, "x"),
            "speaker": (None, "0" * 64),
        },
        weight=2,
    ),
    InputKind("experiment", ("trained/experiment.json",), (_read_experiment,)),
    InputKind("state", ("trained/state/00000006.pt",), (_resume_training,), weight=3),
    InputKind(
        "checkpoint",
        ("checkpoints/new.pt", "checkpoints/legacy.pt", "checkpoints/plain.safetensors"),
        (_import,),
        weight=4,
    ),
    InputKind(
        "journal",
        ("evaluation/journal.jsonl",),
        (_resume_evaluation,),
        weight=6,
        has_checksum=True,
        ranges={
            "poses": ("no such viewpoint", 36, -1),
            "decisions": (-1, 10**9),
            "pass": (7,),
            "visit": (-1,),
        },
        changes=EVALUATION,
    ),
    InputKind("trace", ("evaluation/trace.jsonl",), (read_trace,), weight=6, has_checksum=True),
    InputKind(
        "result",
        ("evaluation/result.json",),
        (_compare,),
        ranges={"sr": (7, -1, None), "spl": (1.5, -1, "x"), "visit": (-1, None), "decisions": (-1, None)},
    ),
    InputKind(
        "predictions",
        ("toy/r2r_predictions.json", "toy/rxr_predictions.jsonl"),
        (_score,),
        ranges=PATH_RANGES,
    ),
    InputKind(
        "training log",
        ("trained/log.jsonl",),
        (_read_training_log,),
        ranges={"iteration": (-1, "x", None, 0.5)},
        changes=TRAINED,
    ),
    InputKind("manifest", ("dataset/data/manifest.json",), (_read_manifest,)),
    InputKind(
        "listed file",
        ("dataset/data/connectivity/number-1_connectivity.json", "dataset/data/tokenizer/vocab.txt"),
        (_read_manifest,),
        weight=3,
        has_checksum=True,
    ),
    InputKind("panorama", ("panoramas/house/a.jpg",), (_read_panoramas,), weight=4),
    InputKind(
        "reference",
        tuple(f"{REFERENCE}/{file}" for file in REFERENCE_FILES),
        (_command("verify", str(REFERENCE), "--data", str(WORLD)),),
        weight=1,
    ),
    InputKind(
        "reference of DUET",
        tuple(f"{DUET_REFERENCE}/{file}" for file in DUET_FILES),
        (_command("verify", str(DUET_REFERENCE), "--data", str(WORLD)),),
        weight=1,
    ),
)
"""All kinds; the order and the weights determine which case is which."""
