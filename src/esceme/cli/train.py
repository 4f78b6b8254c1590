"""`esceme train`."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import torch
import tyro
from rich.markup import escape
from rich.table import Table

from esceme.cli.bar import Bar, measures_of
from esceme.cli.console import label_of, note, print_json, progress, shown, tables
from esceme.cli.recipes import field_list
from esceme.config import Experiment, with_settings
from esceme.errors import ConfigError, DataError
from esceme.learning.run import BEST
from esceme.learning.train_state import STATES
from esceme.learning.training_log import FILE, read_log
from esceme.learning.validation import mark
from esceme.memory import READERS
from esceme.recipes import PAPER, find_recipe
from esceme.runs import NAVIGATOR_FILE
from esceme.synth.dataset import Size, WorldConfig, embedded_world
from esceme.tasks.folder import DataFolder, default_data
from esceme.training import require_same
from esceme.training import train as carry_out

EMBEDDED = "embedded"


def train(
    recipe: tyro.conf.Positional[str],
    /,
    out: Path,
    data: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    threads: int | None = None,
    json: bool = False,
    fields: Annotated[Mapping[str, str] | None, tyro.conf.Suppress] = None,
) -> int:
    """Train a navigator by a recipe, or go on where an interrupted run of the same experiment stopped.

    The recipes are listed by `esceme recipes`. Every field of one can be set by an option of its name, or of
    its last part where only one ends so: --training.batch 16, --batch 16. The fields and their values are
    listed by `esceme train RECIPE --help`.

    OUT becomes a run folder: the last weights, those that validated best in OUT/best, states to resume from,
    and the log. Started by torchrun, a batch is shared out to all processes, and only the first one talks.

    Examples:
        esceme train r2r-small-esceme --data embedded --out runs/small
        esceme train r2r-hamt-esceme --start runs/pretrained --data ../datasets --out runs/esceme --seed 1
        esceme train cvdn-small --data embedded:tiny --out runs/try --iterations 100 --every 50
        torchrun --nproc-per-node 4 -m esceme train rxr-hamt --data ../datasets --out runs/rxr

    Args:
        recipe: what to train.
        out: the run folder to write, or to go on with.
        data: the data folder, by default ESCEME_DATA, else ./datasets; or the word `embedded`, for the
            generated world of size small, or embedded:tiny.
        device: where to compute; by default on a GPU if there is one.
        threads: how many threads a process computes with, by default as torch has it.
        json: print one json object instead of a table: losses and scores, plain fractions.
    """
    experiment = with_settings(find_recipe(recipe), fields or {})
    require_same(experiment, out)
    if threads is not None:
        _compute_with(threads)
    leads, begun, start = os.environ.get("RANK", "0") == "0", _done(out), time.monotonic()
    if _is_finished(experiment, out):
        if leads:
            note(f"{out}: all {begun:,} iterations are done already, so nothing is trained")
    else:
        folder = _find_data(data, leads=leads)
        if leads and not begun:
            _warn(recipe, experiment, DataFolder(folder))
        try:
            with Bar(recipe, experiment.task) as watch:
                carry_out(experiment, folder, out, watch=watch, device=_find_device(device))
        except KeyboardInterrupt:
            if leads:
                note(f"interrupted; goes on after iteration {_done(out)} by the same command:")
                own = {"out": out, "data": data, "device": device, "threads": threads}
                note(_command(recipe, {**own, **(fields or {})}))
            return 130
    if leads:
        facts = {"recipe": recipe, "out": str(out), "begun_after": begun, "seconds": time.monotonic() - start}
        _report(experiment, facts, data, json=json)
    return 0


# -- what is asked for ------------------------------------------------------------------------------------


def prepare_train(words: Sequence[str]) -> tuple[Callable[..., int], list[str], str]:
    """The command with the fields that its words set, the other words, and what its help shall add.

    Without a recipe there are no fields: the words stay as they are, and are refused.
    """
    own, fields, lacking = _apart(words)
    if not own or own[0].startswith("-"):
        return train, list(words), ""
    if lacking:
        raise ConfigError(f"{lacking[0]}: expected a value after it")
    if {"-h", "--help"} & {*own}:
        listed = field_list(with_settings(find_recipe(own[0]), fields))
        more = f"\nFields of {own[0]} (the last part of a name is enough where only one ends so):\n{listed}\n"
        return train, ["--help"], more
    return partial(train, fields=fields), own, ""


def _apart(words: Sequence[str]) -> tuple[list[str], dict[str, str], list[str]]:
    """The recipe and the words of the command's own options, fields with their values, fields without."""
    parameters = signature(train).parameters
    takes_value = {f"--{name}": each.default is not False for name, each in parameters.items()}
    recipe, own, fields, lacking = list[str](), list[str](), dict[str, str](), list[str]()
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name in takes_value:
            own += [word, *islice(rest, takes_value[name] and not equals)]
        elif not word.startswith("--") or word == "--help":
            (own if recipe or word.startswith("-") else recipe).append(word)
        else:
            value = value if equals else next(rest, "--")
            if value.startswith("--"):
                lacking.append(name)
            fields[name.removeprefix("--")] = value
    return [*recipe, *own], fields, lacking


def _command(recipe: str, options: Mapping[str, object]) -> str:
    """The command with options that were given."""
    given = {name: str(value) for name, value in options.items() if value not in (None, "auto")}
    words = [word for name, text in given.items() for word in (f"--{name}", text)]
    return shlex.join(["esceme", "train", recipe, *words])


def _compute_with(threads: int) -> None:
    if threads < 1:
        raise ConfigError(f"--threads {threads}: expected at least 1")
    torch.set_num_threads(threads)


def _find_device(name: str) -> str:
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise ConfigError("--device cuda: torch finds no GPU here; give --device cpu")
    return "cuda" if there and name == "auto" else "cpu" if name == "auto" else name


def _find_data(named: str | None, *, leads: bool) -> Path:
    """A data folder by its path, or the generated world."""
    world, _, size = (named or "").partition(":")
    if world != EMBEDDED:
        return Path(named) if named else default_data()
    order = WorldConfig(cast(Size, size or "small"))
    return embedded_world(order, watch=progress if leads else lambda numbers, label: numbers)


def _warn(recipe: str, experiment: Experiment, data: DataFolder) -> None:
    """Say what a person may not expect of a new run.

    Raises `DataError` for features that are not there: another file is taken only for a recipe's own.
    """
    if recipe in PAPER and not experiment.start:
        note(
            "this run begins with drawn weights; the paper's begin with HAMT's pre-training: "
            "--start RUN, made by `esceme import FILE --out RUN`"
        )
    wanted, found = experiment.features, [each.name for each in data.features]
    if wanted and not Path(wanted).is_file() and wanted not in found and len(found) == 1:
        if wanted != find_recipe(recipe).features:
            raise DataError(f"--features {wanted}: no such file, and {data.root} has {found[0]} only")
        note(f"{data.root} has no {wanted}: {found[0]} is taken for it")


# -- how far it is ----------------------------------------------------------------------------------------


def _done(out: Path) -> int:
    """How many iterations the latest state of a run has behind it."""
    return max((int(each.stem) for each in (out / STATES).glob("*.pt") if each.stem.isdigit()), default=0)


def _is_finished(experiment: Experiment, out: Path) -> bool:
    """Whether a run has come to its end; its experiment is written last."""
    return _done(out) == experiment.training.iterations and (out / NAVIGATOR_FILE).is_file()


# -- what came out ----------------------------------------------------------------------------------------


def _report(experiment: Experiment, facts: dict[str, Any], named: str | None, *, json: bool) -> None:
    """Say what a run has come to, as its log has it, and how to evaluate it with the data `named`."""
    out = Path(facts["out"])
    log = [
        (entry.pop("kind"), {"iteration": entry.pop("iteration"), "values": entry})
        for entry in read_log(out / FILE)
    ]
    losses = [entry for kind, entry in log if kind == "train"]
    validations = [entry for kind, entry in log if kind == "validation"]
    best = max(validations, key=partial(_mark, experiment), default=None)
    told = {"last": validations[-1] if validations else None, "best": best}
    if json:
        print_json({**facts, "losses": losses[-1] if losses else None, **told})
        return
    if best is not None:
        tables().print(_table(told, experiment.task, f"{facts['recipe']}, trained in {out}"))
    memory = experiment.validation.memory if READERS[experiment.reader].uses_memory else "none"
    data = _find_data(named, leads=True)
    words = [str(out if best is None else out / BEST), "--split", "val_unseen", "--memory", memory]
    words += ["--data", str(data)]
    if experiment.validation.follows_tours:
        tours = experiment.validation.tours or DataFolder(data).tours or "tours_iVLN.json"
        words += ["--tours", str(tours)]
    print(f"{out}: {experiment.training.iterations:,} iterations; to score it on all of a split:")
    print(f"  {shlex.join(['esceme', 'evaluate', *words])}")


def _mark(experiment: Experiment, entry: Mapping[str, Any]) -> tuple[float, int]:
    """By what the best validation is chosen; of equals the latest."""
    validation = experiment.validation
    return mark(entry["values"][validation.best_split], validation), entry["iteration"]


def _table(told: Mapping[str, Any], task: str, title: str) -> Table:
    measures = measures_of(task, next(iter(told["best"]["values"].values())))
    table = Table("weights", "split", *(label_of(name) for name in measures), title=escape(title))
    for column in table.columns[2:]:
        column.justify = "right"
    for which, entry in told.items():
        for split, means in entry["values"].items():
            scores = (shown(name, means[name]) for name in measures)
            table.add_row(f"{which}, iteration {entry['iteration']}", split, *scores)
    return table
