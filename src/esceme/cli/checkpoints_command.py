"""`esceme import` and `esceme export`: published weights, in and out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import tyro
from rich.markup import escape
from rich.table import Table

from esceme.checkpoints import AgentName, ReaderName, Report, export_weights, import_weights
from esceme.cli.console import note, print_json, tables
from esceme.memory import Pooling
from esceme.runs import as_json, load_run


def import_(
    file: tyro.conf.Positional[Path],
    /,
    out: Path,
    task: Literal["r2r", "r4r", "rxr", "cvdn", "reverie"] = "r2r",
    agent: AgentName | None = None,
    reader: ReaderName | None = None,
    critic: Path | None = None,
    heads: int | None = None,
    no_lang_ca: Literal["by-task", "yes", "no"] = "by-task",
    structured: bool | None = None,
    pooling: Pooling = "max",
    seed: int = 0,
    json: bool = False,
) -> int:
    """Make a run folder of published weights, without any of the original code.

    Takes pre-training files of HAMT, fine-tuned files of HAMT, TD-STP and ESceme, and bare state dicts.
    Sizes are read off the tensors. Says what was mapped, what is of no use here, and what was newly drawn. A
    file is read as tensors alone: no code in it is run. Nothing is written unless everything fits.

    Examples:
        esceme import ckpts/best_val_unseen --out runs/esceme-r2r
        esceme import model_step_22000.pt --reader candidate-enhancing --out runs/start
        esceme import td-stp/best_val_unseen --structured True --out runs/td-stp

    Args:
        file: a file of weights: of torch, or .safetensors.
        out: the run folder to write.
        task: what it was trained for; sets the limits of steps and tokens, and --no-lang-ca.
        agent: whose weights they are, by default as the file has it; pre-training of HAMT also begins tdstp.
        reader: how memory is read; by default as the file has it. Its layers are drawn if it has none.
        critic: the critic's own file, where it is stored apart.
        heads: attention heads, which weights do not tell; by default one for every 64 numbers.
        no_lang_ca: whether text is encoded once, without looking at vision: by default for r4r, cvdn, rxr.
        structured: whether TD-STP's history tokens attend only to adjacent nodes: True for weights of its
            own repository; ESceme's release does not.
        pooling: how what is seen at a place becomes its memory.
        seed: for what is newly drawn.
        json: print one json object instead of a table.
    """
    config, report = import_weights(
        file,
        out,
        task=task,
        critic=critic,
        heads=heads,
        agent=agent,
        reader=reader,
        pooling=pooling,
        seed=seed,
        language_cross_attention=None if no_lang_ca == "by-task" else no_lang_ca == "no",
        structured=structured,
    )
    trained = not any(name.startswith("agent.position_encoder") for name in report.initialised)
    if config.agent_name == "tdstp" and trained and config.reader_name == "none" and structured is None:
        note("if these weights are of TD-STP's own repository, import them with --structured True")
    if json:
        print_json({"file": str(file), "out": str(out), "navigator": as_json(config), **asdict(report)})
        return 0
    tables().print(_table(report))
    print(f"{out}: {config.agent_name}, {config.reader_name}, for {config.task}, from {config.origin}")
    return 0


def export(run: tyro.conf.Positional[Path], /, out: Path, json: bool = False) -> int:
    """Write a run's weights as the original code reads them: a fine-tuned file.

    Examples:
        esceme export runs/esceme-r2r --out ckpts/best_val_unseen

    Args:
        run: a run folder whose agent is HAMT or TD-STP.
        out: the file to write.
        json: print one json object: the tensors' names here and there.
    """
    loaded = load_run(run)
    names = export_weights(loaded.navigator, out)
    if json:
        print_json({"run": str(run), "out": str(out), "weights": loaded.weights_hash, "names": names})
        return 0
    print(f"{out}: {len(names)} tensors in the original's layout")
    return 0


def _table(report: Report) -> Table:
    table = Table("", "tensors", "names", title="what became of the tensors", title_justify="left")
    table.columns[1].justify = "right"
    table.columns[2].overflow = "fold"
    for what, names in (
        ("mapped", _parts(report.mapped.values())),
        ("ignored, of pre-training only", _parts(report.ignored)),
        ("newly drawn", Counter(report.initialised)),
    ):
        listed = ", ".join(name if count == 1 else f"{name}.* ({count})" for name, count in names.items())
        table.add_row(what, str(names.total()), escape(listed))
    return table


def _parts(names: Iterable[str]) -> Counter[str]:
    """Number of names per part of the network."""
    return Counter(".".join(name.split(".")[:2]) for name in names)
