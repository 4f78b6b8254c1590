"""Who decides: every agent by its name."""

from esceme.agents.base import Agent, Decision, Privileged, State, Timeline, Words
from esceme.agents.hamt import HAMT
from esceme.agents.scripted import RandomAgent, ShortestPath, StopAtOnce
from esceme.agents.seq2seq import Seq2Seq, Seq2SeqConfig
from esceme.agents.tokens import HamtConfig

AGENTS = {
    "hamt": HAMT,
    "seq2seq": Seq2Seq,
    "random": RandomAgent,
    "shortest": ShortestPath,
    "stop": StopAtOnce,
}
"""Every agent by its name; each is built from its `Config`."""

__all__ = [
    "AGENTS",
    "HAMT",
    "Agent",
    "Decision",
    "HamtConfig",
    "Privileged",
    "RandomAgent",
    "Seq2Seq",
    "Seq2SeqConfig",
    "ShortestPath",
    "State",
    "StopAtOnce",
    "Timeline",
    "Words",
]
