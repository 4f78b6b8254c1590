"""The commands `esceme import` and `esceme export`, which convert published weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.markup import escape
from rich.table import Table

from esceme.checkpoints import AgentName, ReaderName, TensorReport, export_weights, import_weights
from esceme.cli.console import TaskName, note, print_facts, print_json, tables
from esceme.memory import Pooling
from esceme.runs import as_json, load_run


def import_(
    file: Annotated[Path, tyro.conf.arg(metavar="FILE")],
    /,
    out: Path,
    task: TaskName = "r2r",
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
    """Convert published weights to a run folder; the original code is not needed.

    Accepts pre-training files of HAMT and DUET, fine-tuned files of HAMT, TD-STP, DUET and ESceme, and plain
    state dicts.
    Layer sizes follow from the tensor shapes. The output lists mapped, ignored and randomly initialised
    tensors.
    Only tensors are loaded: code in the file is never executed. Nothing is written unless all tensors fit.

    Examples:
        esceme import ckpts/best_val_unseen --out runs/esceme-r2r
        esceme import model_step_22000.pt --reader candidate-enhancing --out runs/start
        esceme import td-stp/best_val_unseen --structured True --out runs/td-stp

    Args:
        file: weights, as a torch or .safetensors file.
        out: run folder to write.
        task: task of the weights; sets the maximum numbers of steps and tokens, and --no-lang-ca.
        agent: agent of the weights; default: recognised from the file. HAMT pre-training also fits tdstp.
        reader: memory reader; default: recognised from the file. Layers that the file lacks are initialised
            randomly.
        critic: file of the critic, if it is stored separately.
        heads: number of attention heads, which tensor shapes do not determine; default: hidden width / 64.
        no_lang_ca: whether text is encoded once, without attention to vision; by-task: r4r, cvdn and rxr.
        structured: whether TD-STP's history tokens attend to adjacent nodes only. Use True for weights of
            TD-STP's own repository; ESceme's release does not use this mask.
        pooling: pooling of the features of candidate views into the memory vector of a viewpoint.
        seed: seed of random initialisation.
        json: print one JSON object instead of a table.
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
    tables().print(_report_table(report))
    print(f"{out}: {config.agent_name}, {config.reader_name}, for {config.task}, from {config.origin}")
    return 0


def export(run: Annotated[Path, tyro.conf.arg(metavar="RUN")], /, out: Path, json: bool = False) -> int:
    """Write the weights of a run as a fine-tuned checkpoint that the original code loads.

    Examples:
        esceme export runs/esceme-r2r --out ckpts/best_val_unseen

    Args:
        run: run folder of a HAMT, TD-STP or DUET agent.
        out: file to write.
        json: print one JSON object with the tensor names in both layouts.
    """
    loaded = load_run(run)
    names = export_weights(loaded.navigator, out)
    facts = {"run": str(run), "out": str(out), "weights": loaded.weights_hash, "names": names}
    print_facts(facts, f"{out}: {len(names)} tensors in the original's layout", json=json)
    return 0


def _report_table(report: TensorReport) -> Table:
    table = Table("", "tensors", "names", title="imported tensors", title_justify="left")
    table.columns[1].justify = "right"
    table.columns[2].overflow = "fold"
    for group, names in (
        ("mapped", _count_by_part(report.mapped.values())),
        ("ignored (unused)", _count_by_part(report.ignored)),
        ("randomly initialised", Counter(report.initialised)),
    ):
        listed = ", ".join(name if count == 1 else f"{name}.* ({count})" for name, count in names.items())
        table.add_row(group, str(names.total()), escape(listed))
    return table


def _count_by_part(names: Iterable[str]) -> Counter[str]:
    """Return a dict from part of the network to its number of tensor names."""
    return Counter(".".join(name.split(".")[:2]) for name in names)
