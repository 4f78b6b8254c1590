"""The command `esceme train`."""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
import tyro
from rich.markup import escape
from rich.table import Table
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructTypeInfo

from esceme.agents import AGENTS
from esceme.cli.console import format_metric, metric_label, note, print_json, tables
from esceme.cli.data_option import find_data
from esceme.cli.training_progress import TrainingProgress, reported_metrics
from esceme.config import Experiment
from esceme.errors import ConfigError, DataError
from esceme.evaluation.context import SCRIPTED
from esceme.learning.run import BEST_FOLDER, STATES_FOLDER
from esceme.learning.training_log import LOG_FILE, read_log
from esceme.learning.validation import selection_score
from esceme.memory import READERS
from esceme.recipes import DUET_ROWS, PUBLISHED, find_recipe
from esceme.runs import NAVIGATOR_FILE, NavigatorConfig, part_config_type
from esceme.tasks.folder import DataFolder
from esceme.training import HELD_OUT, require_same_experiment
from esceme.training import train as run_training

if TYPE_CHECKING:
    AgentName = str
    ReaderName = str
else:
    AgentName = Literal[tuple(name for name in AGENTS if name not in SCRIPTED)]
    ReaderName = Literal[tuple(READERS)]
UNSEEN = "val_unseen"
HIDDEN = {"about", "differences", "feature_source", "origin", "vocabulary", "clause_ends", "width"}
"""Fields of an experiment that are not options: texts, and sizes that are taken from the data."""


def train(
    recipe: Annotated[str, tyro.conf.arg(metavar="RECIPE")],
    /,
    out: Path,
    experiment: Annotated[Experiment, tyro.conf.arg(name="")],
    data: str | None = None,
    agent: AgentName | None = None,
    reader: ReaderName | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    threads: int | None = None,
    json: tyro.conf.FlagCreatePairsOff[bool] = False,
) -> int:
    """Train a navigator by a recipe, or resume an interrupted run of the same experiment.

    `esceme recipes` lists the recipes. Every field of a recipe can be set by an option. If the last part of
    the option's name is unique, the parts before may be left out: --training.batch 16 or --batch 16.

    OUT becomes a run folder with the last weights, the weights of the best validation (OUT/best), checkpoints
    and the log. Under torchrun every process trains on its share of each batch; the first one prints.

    Examples:
        esceme train r2r-small-esceme --data embedded --out runs/small
        esceme train r2r-hamt-esceme --start runs/pretrained --data datasets --out runs/esceme --seed 1
        esceme train cvdn-small --data embedded:tiny --out runs/try --iterations 100 --every 50
        torchrun --nproc-per-node 4 -m esceme train rxr-hamt --data datasets --out runs/rxr

    Args:
        recipe: name of the experiment to train.
        out: the run folder to write or to resume.
        experiment: the recipe with the options applied.
        data: the data folder, by default ESCEME_DATA, else ./datasets; or `embedded`, the generated world
            of size small, or `embedded:tiny`.
        agent: another agent than the recipe's, with its default settings.
        reader: another memory reader than the recipe's, with its default settings.
        device: the device; by default a GPU if there is one.
        threads: threads per process, by default torch's own choice.
        json: print one JSON object instead of a table: losses and scores as fractions.
    """
    require_same_experiment(experiment, out)
    if threads is not None:
        _set_threads(threads)
    is_main, num_done, start = os.environ.get("RANK", "0") == "0", _num_done(out), time.monotonic()
    if _is_finished(experiment, out):
        if is_main:
            note(f"{out}: all {num_done:,} iterations are done already, so nothing is trained")
    else:
        folder = find_data(data, is_main=is_main)
        if is_main and not num_done:
            _print_warnings(recipe, experiment, DataFolder(folder))
        try:
            with TrainingProgress(recipe, experiment.navigator.task) as callback:
                run_training(experiment, folder, out, callback=callback, device=_find_device(device))
        except KeyboardInterrupt:
            if is_main:
                note(f"interrupted after iteration {_num_done(out)}; the same command resumes the run")
            return 130
    if is_main:
        facts = {"recipe": recipe, "out": str(out), "begun_after": num_done}
        _print_result(experiment, {**facts, "seconds": time.monotonic() - start}, data, json=json)
    return 0


# -- options ----------------------------------------------------------------------------------------------


def parser_options(args: Sequence[str]) -> dict[str, Any]:
    """Return keyword arguments of `tyro.cli`. The recipe in `args` provides the defaults of all options."""
    if args and not args[0].startswith("-"):
        default = find_recipe(args[0])
    elif {"-h", "--help"} & {*args}:
        default = Experiment()
    else:
        raise ConfigError("expected a recipe first: esceme train RECIPE [OPTIONS]")

    def choose(agent: AgentName | None = None, reader: ReaderName | None = None) -> dict[str, str | None]:
        return {"agent": agent, "reader": reader}

    names, _ = tyro.cli(choose, args=args, return_unknown_args=True, add_help=False)
    parts = {
        part: part_config_type(part, name)()
        for part, name in names.items()
        if name is not None and name != getattr(default.navigator, f"{part}_name")
    }
    default = replace(default, navigator=replace(default.navigator, **parts))
    return {
        "f": partial(train, experiment=default),
        "config": (tyro.conf.AvoidSubcommands,),
        "registry": _option_rules(default),
    }


def _option_rules(defaults: Experiment) -> ConstructorRegistry:
    """Return tyro's rules for the command-line options of an experiment, given its default values.

    The fields in `HIDDEN` have no option. Options get a short name if the last part of their name is unique.
    """
    counts, registry, nested = Counter(_field_names(defaults)), ConstructorRegistry(), list[object]()

    @registry.struct_rule
    def rule(info: StructTypeInfo) -> StructConstructorSpec | None:
        if not is_dataclass(info.default) or info.default in nested:
            return None
        nested.append(info.default)
        spec = ConstructorRegistry.get_struct_spec(info)
        nested.pop()
        assert isinstance(spec, StructConstructorSpec)
        has_prefix = info.type not in (Experiment, NavigatorConfig)
        options = []
        for field in spec.fields:
            # An agent or reader that was added has a config that is in no type annotation.
            kind: Any = type(field.default) if is_dataclass(field.default) else field.type
            if field.name in HIDDEN or (field.name == "feature_width" and has_prefix):
                kind = Annotated[kind, tyro.conf.Suppress]
            elif field.name == "navigator":
                kind = Annotated[kind, tyro.conf.arg(name="")]
            elif counts[field.name] == 1 and has_prefix and not is_dataclass(field.default):
                name = "memory-dropout" if field.name == "mode" else field.name.replace("_", "-")
                kind = Annotated[kind, tyro.conf.arg(aliases=(f"--{name}",))]
            options.append(replace(field, type=kind))
        return replace(spec, fields=tuple(options))

    return registry


def _field_names(config: Any) -> Iterator[str]:
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from _field_names(value)
        else:
            yield field.name


def _set_threads(threads: int) -> None:
    if threads < 1:
        raise ConfigError(f"--threads {threads}: expected at least 1")
    torch.set_num_threads(threads)


def _find_device(name: str) -> str:
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise ConfigError("--device cuda: torch finds no GPU here; give --device cpu")
    return "cuda" if has_gpu and name == "auto" else "cpu" if name == "auto" else name


def _print_warnings(recipe: str, experiment: Experiment, data: DataFolder) -> None:
    """Print warnings about a new run: random initial weights, or another feature file than the recipe's.

    Raises `DataError` if the user has chosen a feature file that does not exist.
    """
    if recipe in PUBLISHED and not experiment.start:
        owner = "DUET" if recipe in DUET_ROWS else "HAMT"
        note(
            f"this run starts from random weights; the paper's start from {owner}'s pre-training: "
            "--start RUN, made by `esceme import FILE --out RUN`"
        )
    name, names = experiment.features, [path.name for path in data.features]
    if name and not Path(name).is_file() and name not in names and len(names) == 1:
        if name != find_recipe(recipe).features:
            raise DataError(f"--features {name}: no such file, and {data.root} has {names[0]} only")
        note(f"{data.root} has no {name}: {names[0]} is used instead")


# -- results ----------------------------------------------------------------------------------------------


def _num_done(out: Path) -> int:
    """Return the number of iterations after which the latest training state of a run was saved."""
    names = (path.stem for path in (out / STATES_FOLDER).glob("*.pt"))
    return max((int(name) for name in names if name.isdigit()), default=0)


def _is_finished(experiment: Experiment, out: Path) -> bool:
    """Return whether a run is complete. The config of the navigator is the last file that training writes."""
    return _num_done(out) == experiment.training.iterations and (out / NAVIGATOR_FILE).is_file()


def _print_result(experiment: Experiment, facts: dict[str, Any], data: str | None, *, json: bool) -> None:
    """Print the last losses and scores in the log, and the command line that evaluates the run."""
    out, validation = Path(facts["out"]), experiment.validation
    log = [
        (entry.pop("kind"), {"iteration": entry.pop("iteration"), "values": entry})
        for entry in read_log(out / LOG_FILE)
    ]
    losses = [entry for kind, entry in log if kind == "train"]
    validations = [entry for kind, entry in log if kind == "validation"]

    def by_score(entry: Mapping[str, Any]) -> tuple[float, int]:
        return selection_score(entry["values"][validation.best_split], validation), entry["iteration"]

    best = max(validations, key=by_score, default=None)
    scores = {"last": validations[-1] if validations else None, "best": best}
    if json:
        print_json({**facts, "losses": losses[-1] if losses else None, **scores})
        return
    task = experiment.navigator.task
    if best is not None:
        tables().print(_table(scores, task, f"{facts['recipe']}, trained in {out}"))
    print(f"{out}: {experiment.training.iterations:,} iterations; to score it on a whole split:")
    folder = out if best is None else out / BEST_FOLDER
    print(f"  {_evaluate_command(experiment, folder, DataFolder(find_data(data)))}")


def _evaluate_command(experiment: Experiment, run: Path, data: DataFolder) -> str:
    """Return the command line that evaluates a run as its validation did, on a whole split."""
    validation, task = experiment.validation, experiment.navigator.task
    memory = "cold" if validation.memory == "leaking" else str(validation.memory)
    if not READERS[experiment.navigator.reader_name].uses_memory:
        memory = "none"
    splits = [UNSEEN, *(split for split in validation.splits if split != HELD_OUT)]
    split = next((split for split in splits if data.annotations(task, split) is not None), UNSEEN)
    words = [str(run), "--split", split, "--memory", memory, "--data", str(data.root)]
    if Path(experiment.features).is_file():
        words += ["--features", experiment.features]
    if validation.follows_tours:
        words += ["--tours", str(validation.tours or data.tours or "tours_iVLN.json")]
        words += ["--oracle-phases"] if validation.oracle_phases and memory != "none" else []
    return shlex.join(["esceme", "evaluate", *words])


def _table(scores: Mapping[str, Any], task: str, title: str) -> Table:
    metrics = reported_metrics(task, next(iter(scores["best"]["values"].values())))
    table = Table("weights", "split", *(metric_label(name) for name in metrics), title=escape(title))
    for column in table.columns[2:]:
        column.justify = "right"
    for weights, entry in scores.items():
        for split, means in entry["values"].items():
            values = (format_metric(name, means[name]) for name in metrics)
            table.add_row(f"{weights}, iteration {entry['iteration']}", split, *values)
    return table
