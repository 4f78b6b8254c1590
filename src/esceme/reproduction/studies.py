"""Studies of this project, with several seeds and paired intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from esceme.evaluation import Protocol
from esceme.learning import MemoryDropout
from esceme.learning.memory_dropout import MemoryDropoutMode
from esceme.memory import MapReaderConfig, NoVisionConfig, ReaderConfig
from esceme.recipes import SMALL_READER, SMALL_TRAINING
from esceme.reproduction.small_agents import (
    AS_RELEASED,
    HOSTS,
    PAPER_READER,
    PLAIN_HAMT,
    RELEASED_READER,
    DataKind,
    TrainedAgent,
    small_agent,
)
from esceme.reproduction.targets import Row, Target, main_measure

HEADLINE_PROTOCOLS: tuple[Protocol, ...] = ("cold", "two-pass", "episodic", "masked", "oracle")
MECHANISM_PROTOCOLS: tuple[Protocol, ...] = ("cold", "two-pass", "episodic")


def _protocol_rows(name: str, agent: TrainedAgent, against: str, protocols: Sequence[Protocol]) -> list[Row]:
    return [
        Row(name=f"{name}, {protocol}", agent=agent, memory=protocol, against=against)
        for protocol in protocols
    ]


def _headline_rows(kind: DataKind) -> list[Row]:
    none = small_agent(kind)
    return [
        Row(name="none", agent=none),
        *_protocol_rows("memory", small_agent(kind, SMALL_READER), "none", HEADLINE_PROTOCOLS),
        Row(name="blind", agent=_blind(kind), against="none"),
    ]


def _blind(kind: DataKind) -> TrainedAgent:
    """Return an agent that sees no image features, in any phase of its training."""
    agent = small_agent(kind, NoVisionConfig())
    return agent if agent.start is None else replace(agent, start=agent.start.with_reader(NoVisionConfig()))


def _memory_dropout_rows(kind: DataKind) -> list[Row]:
    agent = small_agent(kind, SMALL_READER)
    rows = [Row(name="none", agent=small_agent(kind))]
    for mode in get_args(MemoryDropoutMode):
        variant = agent.with_training(memory_dropout=MemoryDropout(mode=mode))
        rows += _protocol_rows(mode, variant, "none", ("cold", "two-pass", "episodic"))
    return rows


A2C = {"method": "imitation+a2c"}
"""Eq. 5: imitation and A2C."""
CONTINUED = {"learning_rate": 5e-4}
PUBLISHED_READERS = {"Eq. 3 as released": RELEASED_READER, "Eq. 3 as written": PAPER_READER}


def _our_rows(kind: DataKind) -> list[Row]:
    """Return an agent without memory, and our reader."""
    ours = small_agent(kind, SMALL_READER)
    return [
        Row(name="none", agent=small_agent(kind)),
        *_protocol_rows("ours", ours, "none", (*MECHANISM_PROTOCOLS, "masked")),
    ]


def _change_rows(kind: DataKind) -> list[Row]:
    """Return our reader, and our reader without each of our changes."""
    ours, none, rows = small_agent(kind, SMALL_READER), small_agent(kind), _our_rows(kind)
    changes = {
        "ours without shortcut": (
            ours.with_reader(replace(SMALL_READER, shortcut="none")),
            "none",
        ),
        "ours without memory dropout": (ours.with_training(memory_dropout=AS_RELEASED), "none"),
    }
    for name, network in (
        ("grounding head", {"grounding": 0}),
        ("untouched context", {"context_views": True}),
    ):
        baseline = f"none without {name}"
        rows.append(Row(name=baseline, agent=none.with_agent(**network)))
        reader = replace(SMALL_READER, context="itself") if "context_views" in network else SMALL_READER
        changes[f"ours without {name}"] = (ours.with_agent(**network).with_reader(reader), baseline)
    for name, (agent, baseline) in changes.items():
        rows += _protocol_rows(name, agent, baseline, MECHANISM_PROTOCOLS)
    return rows


def _plain_hamt(kind: DataKind) -> TrainedAgent:
    """Return a small HAMT without our changes that starts from random weights."""
    return small_agent(kind).lineage[0].with_agent(**PLAIN_HAMT).with_training(memory_dropout=AS_RELEASED)


def _published_rows(agent: TrainedAgent) -> list[Row]:
    """Return Eq. 3, in both forms and with both losses, for a small HAMT without our changes."""
    rows = []
    for loss, training in {"imitation": {}, "imitation + A2C": A2C}.items():
        baseline, trained = f"HAMT, {loss}", agent.with_training(**training)
        rows.append(Row(name=baseline, agent=trained))
        for equation, reader in PUBLISHED_READERS.items():
            name = f"{equation}, {loss}"
            rows += _protocol_rows(name, trained.with_reader(reader), baseline, MECHANISM_PROTOCOLS)
    return rows


def _mechanism_rows(kind: DataKind) -> list[Row]:
    """Return our reader, and Eq. 3 with a HAMT that was trained before."""
    return [*_our_rows(kind), *_published_rows(_plain_hamt(kind).continued(**CONTINUED))]


def _scratch_rows(kind: DataKind) -> list[Row]:
    """Return Eq. 3 with a HAMT that starts from random weights."""
    return _published_rows(_plain_hamt(kind))


def _variant_rows(kind: DataKind) -> list[Row]:
    """Return variants of Eq. 3 from a trained HAMT: longer, with the agent frozen first, memory dropout."""
    trained = _plain_hamt(kind).continued(**CONTINUED)
    iterations = trained.experiment.training.iterations
    released, longer = trained.with_reader(RELEASED_READER), {"iterations": 2 * iterations}
    variants = {
        "Eq. 3 as released": (released, "HAMT"),
        "Eq. 3 as released, twice as long": (released.with_training(**longer), "HAMT, twice as long"),
        "Eq. 3 as released, agent frozen for the first half": (
            released.with_training(reader_warmup_iterations=iterations // 2),
            "HAMT",
        ),
        "Eq. 3 as released, memory dropout": (
            released.with_training(memory_dropout=SMALL_TRAINING.memory_dropout),
            "HAMT",
        ),
    }
    rows = [
        Row(name="HAMT", agent=trained),
        Row(name="HAMT, twice as long", agent=trained.with_training(**longer)),
    ]
    for name, (agent, baseline) in variants.items():
        rows += _protocol_rows(name, agent, baseline, MECHANISM_PROTOCOLS)
    return rows


def _mechanism_r2r_rows(kind: DataKind) -> list[Row]:
    """Return Eq. 3 as released from a trained agent, and our reader, on real R2R."""
    none = small_agent(kind)
    released = small_agent(kind, RELEASED_READER).with_training(memory_dropout=AS_RELEASED)
    plain = replace(none.with_agent(**PLAIN_HAMT), start=none.lineage[0].with_agent(**PLAIN_HAMT))
    published = plain.with_reader(RELEASED_READER).with_training(memory_dropout=AS_RELEASED)
    return [
        Row(name="none", agent=none),
        *_protocol_rows("ours", small_agent(kind, SMALL_READER), "none", MECHANISM_PROTOCOLS),
        *_protocol_rows("Eq. 3 as released in our agent", released, "none", MECHANISM_PROTOCOLS),
        Row(name="HAMT", agent=plain),
        *_protocol_rows("Eq. 3 as released", published, "HAMT", MECHANISM_PROTOCOLS),
    ]


def _map_rows(kind: DataKind) -> list[Row]:
    """Return HAMT, TD-STP and DUET without memory and with it, and DUET with the remembered map."""
    protocols: tuple[Protocol, ...] = ("cold", "two-pass")
    rows = []
    for host, name in HOSTS.items():
        none = f"{name}, none"
        rows.append(Row(name=none, agent=small_agent(kind, host=host)))
        enhanced = small_agent(kind, SMALL_READER, host=host)
        rows += _protocol_rows(f"{name}, candidate enhancing", enhanced, none, protocols)
    remembered = small_agent(kind, MapReaderConfig(), host="duet")
    return [*rows, *_protocol_rows("DUET, map", remembered, "DUET, none", protocols)]


PLANS = ("planner", "routes")
SAMPLES = {"r4r": 2000}
"""Task -> number of random episodes per split, if a split is very large."""
HELD_OUT_SCENES = {"embedded": 6, "semantic": 10}
"""Kind of data -> number of training scenes on which planners are fitted."""
PLANNING_TRAINING = ({"iterations": 450, "learning_rate": 1e-3}, {"iterations": 200, "learning_rate": 5e-4})
"""Training of agents on real scenes: without memory, then without memory or with it."""


INSTRUCTION_LENGTHS = {"r4r": 160}
"""Task -> maximum number of token ids on real scenes, so that whole instructions are read."""


def _planning_agent(kind: DataKind, task: str, reader: ReaderConfig | None = None) -> TrainedAgent:
    """Return a small agent that is trained without the scenes on which its planner is fitted."""
    agent = small_agent(kind, task=task)
    if kind == "semantic":
        first, then = PLANNING_TRAINING
        start = small_agent(kind).lineage[0].with_training(**first)  # on R2R, for all tasks
        experiment = agent.lineage[0].with_training(**then).experiment
        if task in INSTRUCTION_LENGTHS:
            navigator = replace(experiment.navigator, max_tokens=INSTRUCTION_LENGTHS[task])
            experiment = replace(experiment, navigator=navigator)
        agent = TrainedAgent(experiment, start)
    return (agent if reader is None else agent.with_reader(reader)).with_held_out(HELD_OUT_SCENES[kind])


def _planning_rows(kind: DataKind, task: str = "r2r") -> list[Row]:
    """Return a planner under all memory protocols, its controls, candidate enhancing, and no memory."""
    agent = _planning_agent(kind, task)
    measures = tuple(dict.fromkeys(("sr", "spl", "ndtw", main_measure(task))))

    def planner(name: str, memory: Protocol = "cold", *settings: tuple[str, Any], **fields: Any) -> Row:
        variants = fields.pop("variants", (settings,))
        return Row(
            name=f"planner, {name}",
            agent=agent,
            memory=memory,
            against="greedy",
            variants=tuple((PLANS, *variant) for variant in variants),
            **fields,
        )

    orders = tuple((("order", "shuffled"), ("seed", seed)) for seed in (1, 2))
    rows = [
        Row(name="greedy", agent=agent),
        Row(
            name="candidate enhancing, cold",
            agent=_planning_agent(kind, task, SMALL_READER),
            memory="cold",
            against="greedy",
        ),
        *(planner(protocol, protocol) for protocol in ("cold", "episodic", "oracle")),
        planner("blind, cold", "cold", ("belief", "blind")),
        planner("cold, another path's instruction", "cold", ("instructions", "other")),
        planner("cold, without matcher", "cold", ("belief", "no-matcher"), max_seeds=2),
    ]
    if task == "r2r":
        cold: dict[str, tuple[str, str]] = {
            "without length prior": ("belief", "no-lengths"),
            "matcher only": ("belief", "matcher"),
            "speaker only": ("belief", "speaker"),
            "agent only": ("belief", "follower"),
            "without agent": ("belief", "no-follower"),
            "one-step lookahead": ("choice", "lookahead"),
            "most probable route": ("choice", "argmax"),
        }
        rows += [
            *(planner(protocol, protocol, max_seeds=2) for protocol in ("two-pass", "masked")),
            planner("blind, oracle", "oracle", ("belief", "blind"), max_seeds=2),
            *(planner(f"cold, {name}", "cold", setting, max_seeds=2) for name, setting in cold.items()),
            planner("cold, shuffled orders", variants=orders, max_seeds=2),
        ]
    return [replace(row, measures=measures, sample=SAMPLES.get(task)) for row in rows]


def _study(
    name: str,
    title: str,
    rows: Callable[[DataKind], Sequence[Row]],
    about: str = "",
    *,
    kind: DataKind = "embedded",
    task: str = "R2R",
    subsets_of: str = "",
) -> Target:
    """Return a study on one kind of data, whatever kind its rows are requested for."""
    place = "embedded world" if kind == "embedded" else f"real {task} by objects and rooms"
    title = f"{title}, {place}"
    return Target(
        name=name, kind="study", title=title, rows=lambda _: rows(kind), about=about, subsets_of=subsets_of
    )


MAP_NOTE = (
    "All agents are trained by imitation of the annotated paths, with the same number of iterations and "
    "batch size. DUET's network has more layers than HAMT's; an iteration takes two to four times as long."
)
PLANNING_NOTE = (
    "Agents, speakers, matchers and codes are trained without the held-out training scenes on which beliefs "
    "and exploration weights are fitted. Localisation is exact. `masked` keeps the geometry of the map and "
    "hides its features; `blind` reads no instruction."
)
PLANNING = "Planning in memory"
MECHANISM = "The published mechanism and ours"
HEADLINE = "Memory of earlier episodes"
MAPS = "DUET beside HAMT and TD-STP, and the remembered map"
DROPOUT = "Memory dropout in training"
_planning = partial(_study, title=PLANNING, subsets_of="planner, cold")
_headline = partial(_study, title=HEADLINE, rows=_headline_rows, subsets_of="memory, cold")
STUDIES = (
    _planning("planning", rows=_planning_rows, about=PLANNING_NOTE),
    _planning("planning-r2r", rows=_planning_rows, about=PLANNING_NOTE, kind="semantic"),
    _planning(
        "planning-r4r",
        rows=partial(_planning_rows, task="r4r"),
        about=f"{PLANNING_NOTE} Agents start from an agent that was trained on R2R.",
        kind="semantic",
        task="R4R",
    ),
    _headline("headline"),
    _headline("headline-r2r", kind="semantic"),
    _study(
        "mechanism",
        MECHANISM,
        _mechanism_rows,
        "HAMT and Eq. 3 start from a HAMT that was trained by imitation; none and ours do not.",
    ),
    _study("mechanism-scratch", "The published mechanism from random weights", _scratch_rows),
    _study(
        "mechanism-variants",
        "What the published mechanism needs",
        _variant_rows,
        "All agents start from a HAMT that was trained by imitation, and are trained by imitation.",
    ),
    _study("changes", "Our reader without each of our changes", _change_rows),
    _study("mechanism-r2r", MECHANISM, _mechanism_r2r_rows, kind="semantic"),
    _study("maps", MAPS, _map_rows, MAP_NOTE),
    _study("maps-r2r", MAPS, _map_rows, MAP_NOTE, kind="semantic"),
    _study("memory-dropout", DROPOUT, _memory_dropout_rows),
    _study("memory-dropout-r2r", DROPOUT, _memory_dropout_rows, kind="semantic"),
)
