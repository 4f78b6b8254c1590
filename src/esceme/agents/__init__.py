"""Agents: networks and scripts that choose the next action, listed by name in `AGENTS`."""

from typing import Any

from esceme.agents.base import (
    Agent,
    BacktrackRoutes,
    BaseAgentConfig,
    Decision,
    InputLimits,
    PrivilegedInfo,
    Routes,
    State,
    StepIndex,
    TokenBatch,
)
from esceme.agents.duet import DUET, DuetConfig
from esceme.agents.hamt import HAMT
from esceme.agents.scripted import (
    RandomAgent,
    RandomConfig,
    ShortestPath,
    ShortestPathConfig,
    StopAtOnce,
    StopConfig,
)
from esceme.agents.seq2seq import Seq2Seq, Seq2SeqConfig
from esceme.agents.tdstp import TDSTP, TdstpConfig
from esceme.agents.tokens import HamtConfig

AGENTS: dict[str, type[Agent[Any]]] = {
    "hamt": HAMT,
    "tdstp": TDSTP,
    "duet": DUET,
    "seq2seq": Seq2Seq,
    "random": RandomAgent,
    "shortest": ShortestPath,
    "stop": StopAtOnce,
}
"""Agent classes by name. Each class is built from an instance of its `Config`."""

AgentConfig = (
    HamtConfig | TdstpConfig | DuetConfig | Seq2SeqConfig | RandomConfig | ShortestPathConfig | StopConfig
)
"""Settings of any agent in `AGENTS`."""

__all__ = [
    "AGENTS",
    "DUET",
    "HAMT",
    "TDSTP",
    "Agent",
    "AgentConfig",
    "BaseAgentConfig",
    "Decision",
    "DuetConfig",
    "HamtConfig",
    "InputLimits",
    "PrivilegedInfo",
    "RandomAgent",
    "BacktrackRoutes",
    "Routes",
    "Seq2Seq",
    "Seq2SeqConfig",
    "ShortestPath",
    "State",
    "StopAtOnce",
    "TdstpConfig",
    "StepIndex",
    "TokenBatch",
]
