"""Targets for the tables of the paper: the paper's own rows with small agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from esceme.agents import TdstpConfig
from esceme.evaluation import Protocol
from esceme.memory import ReaderConfig
from esceme.recipes import RECIPES, SMALL_READER
from esceme.report.paper import read_paper_tables
from esceme.reproduction.small_agents import AS_RELEASED, DataKind, TrainedAgent, small_agent
from esceme.reproduction.targets import Row, Target

NUM_ORDERS = 5
MEAN_POOLING = replace(SMALL_READER, pooling="mean")
GRAPH_ENCODING = RECIPES["r2r-small-ge"].navigator.reader
BOTH_READERS = RECIPES["r2r-small-both"].navigator.reader
SETTING = (
    "The agents are small (hidden size 128) and start from random weights; the paper's start from "
    "pre-training on Matterport3D pictures. They learn by imitation alone, with memory dropout `sampled`. "
    "The reader of ESceme has a shortcut and leaves context views and STOP untouched; the target `mechanism` "
    "compares it with Eq. 3 as published. Protocols: HAMT and TDSTP `none`, ESceme `cold`, ESceme* "
    "`two-pass`. The goals of the test split are withheld, so it is not scored."
)
NOT_TRAINED = "Other systems of the table were not trained here."


def _hamt(kind: DataKind, task: str = "r2r") -> Row:
    return Row(name="HAMT", paper="HAMT", agent=small_agent(kind, task=task))


def _esceme(
    kind: DataKind,
    name: str = "ESceme",
    *,
    memory: Protocol = "cold",
    reader: ReaderConfig = SMALL_READER,
    task: str = "r2r",
    against: str = "HAMT",
) -> Row:
    agent = small_agent(kind, reader, task=task)
    return Row(name=name, paper=name, agent=agent, memory=memory, against=against)


def _tdstp(row: Row) -> Row:
    """Return a row with TD-STP instead of HAMT."""

    def replaced(agent: TrainedAgent) -> TrainedAgent:
        navigator = agent.experiment.navigator
        network = TdstpConfig(**vars(navigator.agent))
        experiment = replace(agent.experiment, navigator=replace(navigator, agent=network))
        return TrainedAgent(experiment, None if agent.start is None else replaced(agent.start))

    names = {"HAMT": "TDSTP", "ESceme": "TDSTP + ESceme", "ESceme*": "TDSTP + ESceme*"}
    name, against = names[row.name], names.get(row.against, "")
    return replace(row, name=name, paper=name, against=against, agent=replaced(row.agent))


def _comparison_rows(task: str) -> Callable[[DataKind], list[Row]]:
    """Return the rows of a comparison with other systems."""

    def rows(kind: DataKind) -> list[Row]:
        own = [_hamt(kind, task), _esceme(kind, task=task)]
        return own if task in ("cvdn", "rxr") else [*own, _tdstp(own[0])]

    return rows


def _architecture_rows(kind: DataKind) -> list[Row]:
    hamt, esceme = _hamt(kind), _esceme(kind)
    two_pass = _esceme(kind, "ESceme*", memory="two-pass")
    names = {f"HAMT + {row.name}": row for row in (esceme, two_pass)}
    with_memory = [replace(row, name=name, paper=name) for name, row in names.items()]
    return [hamt, *with_memory, *map(_tdstp, (hamt, esceme, two_pass))]


def _pooling_rows(kind: DataKind) -> list[Row]:
    mean = _esceme(kind, "ESceme (mean pooling)", reader=MEAN_POOLING)
    return [_hamt(kind), mean, _esceme(kind, "ESceme (max pooling)")]


def _encoding_rows(kind: DataKind) -> list[Row]:
    return [
        _hamt(kind),
        _esceme(kind, "ESceme (graph encoding, mean pooling)", reader=GRAPH_ENCODING),
        _esceme(kind, "ESceme (candidate enhancing, mean pooling)", reader=MEAN_POOLING),
        _esceme(kind, "ESceme (candidate enhancing, max pooling)"),
        _esceme(kind, "ESceme (both, max pooling)", reader=BOTH_READERS),
    ]


def _order_rows(kind: DataKind) -> list[Row]:
    orders = tuple((("order", "shuffled"), ("seed", seed)) for seed in range(NUM_ORDERS))
    return [
        replace(
            _esceme(kind, f"ESceme ({task.upper()})", task=task, against=""), variants=orders, max_seeds=1
        )
        for task in ("r2r", "r4r", "cvdn")
    ]


def _two_pass_rows(*tasks: str) -> Callable[[DataKind], list[Row]]:
    """Return the rows of growing and nearly complete memory."""

    def rows(kind: DataKind) -> list[Row]:
        found = []
        for task in tasks:
            suffix = f" ({task.upper()})" if len(tasks) > 1 else ""
            cold = _esceme(kind, f"ESceme{suffix}", task=task, against="")
            two_pass = _esceme(kind, f"ESceme*{suffix}", memory="two-pass", task=task, against=cold.name)
            found += [replace(cold, paper="ESceme"), replace(two_pass, paper="ESceme*")]
        return found

    return rows


def _pre_exploration_rows(kind: DataKind) -> list[Row]:
    return [replace(_hamt(kind), paper=""), _esceme(kind, "ESceme*", memory="two-pass")]


def _reinitialised_rows(kind: DataKind) -> list[Row]:
    """Return memory as released in training, as in the paper, and our memory dropout."""
    cold = _esceme(kind, against="")
    cleared = _esceme(kind, "re-initialize", memory="episodic", against="ESceme")
    released = cold.agent.with_training(memory_dropout=AS_RELEASED)
    return [
        replace(cold, agent=released),
        replace(cleared, agent=released),
        replace(cold, name="ESceme, memory dropout", paper=""),
        replace(cleared, name="re-initialize, memory dropout", paper="", against="ESceme, memory dropout"),
    ]


def _tour_rows(kind: DataKind) -> list[Row]:
    rows = [
        _hamt(kind),
        _esceme(kind, memory="tour"),
        replace(
            _esceme(kind, "ESceme, with oracle phases", memory="tour"),
            paper="",
            variants=((("oracle_phases", True),),),
        ),
    ]
    return [replace(row, on_tours=True) for row in rows]


def _table(name: str, rows: Callable[[DataKind], Sequence[Row]], about: str = "") -> Target:
    """Return a table of the paper as a target, with the splits and measures that the table has for a task."""
    table = read_paper_tables()[name]

    def table_rows(kind: DataKind) -> list[Row]:
        found = []
        for row in rows(kind):
            pairs = [column.split(".") for column in table.columns[row.task] if "." in column]
            splits = dict.fromkeys(split for split, _ in pairs if split != "test")
            measures = dict.fromkeys(measure for _, measure in pairs)
            found.append(replace(row, splits=tuple(splits), measures=tuple(measures)))
        return found

    about = f"{SETTING} {about}".strip()
    return Target(name=name, kind="table", title=table.title, rows=table_rows, about=about)


PAPER_TABLES = (
    _table("tab:r2r", _comparison_rows("r2r"), NOT_TRAINED),
    _table("tab:r4r", _comparison_rows("r4r"), NOT_TRAINED),
    _table("tab:cvdn", _comparison_rows("cvdn"), NOT_TRAINED),
    _table("tab:r2r_abl", _pooling_rows),
    replace(_table("tab:r2r_arc", _architecture_rows), has_costs=True),
    _table(
        "tab:order",
        _order_rows,
        f"One trained agent per task; mean and standard deviation over {NUM_ORDERS} shuffled orders.",
    ),
    _table("tab:r2r_abl_supp", _encoding_rows, "The row with both readers is not in the paper."),
    _table("tab:r2r_sm", _two_pass_rows("r2r")),
    _table("tab:r4r_sm", _two_pass_rows("r4r", "cvdn"), "The paper prints both tasks in one row."),
    _table(
        "tab:pre-exp",
        _pre_exploration_rows,
        "The systems with pre-exploration were not trained here; HAMT is ours, for orientation.",
    ),
    _table(
        "tab:reinit",
        _reinitialised_rows,
        "The first two rows are trained with the memory as released, never cleared, as in the paper.",
    ),
    _table("tab:rxr", _comparison_rows("rxr")),
    _table("tab:ivln", _tour_rows, "Tours are those of the data folder; TourHAMT was not trained here."),
)
