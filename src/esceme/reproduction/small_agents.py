"""Agents of the targets: small counterparts of the paper's agents, for the embedded world or real scenes."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from esceme.agents import HamtConfig
from esceme.config import Experiment
from esceme.learning import MemoryDropout, ValidationConfig
from esceme.memory import CandidateEnhancingConfig, ReaderConfig
from esceme.recipes import RECIPES, SMALL_AGENT, SMALL_READER

DataKind = Literal["embedded", "semantic"]
"""`embedded`: pictures of the embedded world. `semantic`: annotated objects and rooms of real scenes."""
Host = Literal["hamt", "tdstp", "duet"]
HOSTS: dict[Host, str] = {"hamt": "HAMT", "tdstp": "TD-STP", "duet": "DUET"}
"""Agents to which memory is added -> their titles."""
PRETRAINING = {"iterations": 1200, "learning_rate": 1e-3}
FINE_TUNING = {"iterations": 400, "learning_rate": 5e-4}
"""Training on real scenes: agents without and with memory continue from one agent without memory."""

RELEASED_READER = CandidateEnhancingConfig(hidden=SMALL_READER.hidden)
"""Eq. 3 as released: [feature; memory], LayerNorm, context views with themselves, STOP through the MLP."""
PAPER_READER = replace(RELEASED_READER, order="memory-feature", context="zero", stop="zero", norm=False)
"""Eq. 2 and 3 as the paper writes them."""
AS_RELEASED = MemoryDropout(mode="as-released")
"""Memory in training as released: never cleared, and soon complete."""
PLAIN_HAMT = {"grounding": 0, "context_views": True, "stop_features": HamtConfig().stop_features}
"""Settings of a small HAMT without our changes: no grounding head, all 36 views, no panorama at STOP."""


@dataclass(frozen=True)
class TrainedAgent:
    """An experiment without seed and, if training does not start from random weights, the agent before it."""

    experiment: Experiment
    start: TrainedAgent | None = None

    def with_training(self, **changes: Any) -> TrainedAgent:
        """Return this agent with other settings of training."""
        training = replace(self.experiment.training, **changes)
        return replace(self, experiment=replace(self.experiment, training=training))

    def with_reader(self, reader: ReaderConfig) -> TrainedAgent:
        """Return this agent with another reader."""
        navigator = replace(self.experiment.navigator, reader=reader)
        return replace(self, experiment=replace(self.experiment, navigator=navigator))

    def with_agent(self, **changes: Any) -> TrainedAgent:
        """Return this agent, and the agents before it, with other settings of the network."""
        navigator = self.experiment.navigator
        navigator = replace(navigator, agent=replace(navigator.agent, **changes))
        start = None if self.start is None else self.start.with_agent(**changes)
        experiment = replace(self.experiment, navigator=navigator)
        if not getattr(navigator.agent, "grounding", 0):
            experiment = replace(experiment, word_vectors=())  # there is no grounding head to initialise
        return TrainedAgent(experiment, start)

    def with_held_out(self, scenes: int) -> TrainedAgent:
        """Return this agent, and the agents before it, trained without `scenes` scenes of the train split."""
        start = None if self.start is None else self.start.with_held_out(scenes)
        return TrainedAgent(replace(self.experiment, hold_out=scenes), start)

    def continued(self, **training: Any) -> TrainedAgent:
        """Return an agent that starts from the weights of this agent, with changed settings of training."""
        return replace(self.with_training(**training), start=self)

    @property
    def lineage(self) -> tuple[TrainedAgent, ...]:
        """The agents before this one, the earliest first, and this agent."""
        return (*(() if self.start is None else self.start.lineage), self)


def small_agent(
    kind: DataKind, reader: ReaderConfig | None = None, *, task: str = "r2r", host: Host = "hamt"
) -> TrainedAgent:
    """Return a small agent of a host for a task, without memory or with a reader.

    On real scenes the agent continues the training of an agent without memory.
    """
    recipe = RECIPES[f"{task}-small" if host == "hamt" else f"{task}-{host}-small"]
    experiment = replace(recipe, validation=ValidationConfig(splits=()))
    agent = TrainedAgent(experiment if kind == "embedded" else _for_real_scenes(experiment))
    if kind == "semantic":
        agent = agent.with_training(**PRETRAINING)
        agent = agent.continued(**FINE_TUNING)
    return agent if reader is None else agent.with_reader(reader)


def _for_real_scenes(experiment: Experiment) -> Experiment:
    """Return a small experiment with the settings of `r2r-semantic-small`."""
    semantic = RECIPES["r2r-semantic-small"]
    network = {
        field.name: getattr(semantic.navigator.agent, field.name)
        for field in fields(semantic.navigator.agent)
        if getattr(semantic.navigator.agent, field.name) != getattr(SMALL_AGENT, field.name)
    }
    navigator = replace(experiment.navigator, agent=replace(experiment.navigator.agent, **network))
    if navigator.task == semantic.navigator.task:
        navigator = replace(navigator, max_tokens=semantic.navigator.max_tokens)
    training = replace(experiment.training, batch=semantic.training.batch, augmentation="")
    return replace(
        experiment,
        navigator=navigator,
        training=training,
        features=semantic.features,
        word_vectors=semantic.word_vectors,
    )
