"""What an evaluation needs on the table: the navigator, the world, the episodes, and how words become ids."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path

import msgspec

from esceme import __version__
from esceme.errors import ConfigError
from esceme.evaluation.inputs import (
    Limits,
    find_annotations,
    find_features,
    hash_inputs,
    in_order,
    limits_of,
    make_encoder,
)
from esceme.evaluation.options import SCRIPTED, EvaluationConfig
from esceme.evaluation.protocol import (
    MemoryLifetime,
    TourPosition,
    check_protocol,
    check_tour_routes,
    open_memory,
    tour_positions,
)
from esceme.runs import NavigatorConfig, Run, load_run, part_type
from esceme.tasks.catalogue import TASKS, get_task
from esceme.tasks.episode import Episode, check_paths, one_per_path, scenes_of
from esceme.tasks.folder import DataFolder
from esceme.tasks.split import InstructionEncoder
from esceme.tasks.tours import Tour, check_tours, read_tours
from esceme.world import Atlas, read_scenes


@dataclass(frozen=True)
class EvaluationContext:
    """Everything loaded that a plan names."""

    plan: EvaluationConfig
    run: Run
    atlas: Atlas
    episodes: Sequence[Episode]
    """In the order they are lived."""
    annotations: Path
    tours: Sequence[Tour] | None
    encode: InstructionEncoder
    limits: Limits
    size: int
    """How many episodes the whole evaluation has."""
    left_out: int
    """How many episodes of the split are on no tour, where there are tours: they are not lived."""
    hashes: Mapping[str, str]
    """sha256 of the weights, of the data (annotations and graphs), of the features, and of files beside."""

    @cached_property
    def by_id(self) -> dict[str, Episode]:
        """The episodes by their ids."""
        return {episode.episode_id: episode for episode in self.episodes}

    @cached_property
    def places(self) -> dict[str, TourPosition]:
        """Where each episode stands in its tour."""
        if self.tours is None:
            return {}
        here = [tour for tour in self.tours if tour.episode_ids[0] in self.by_id]
        return tour_positions(here, self.episodes)

    @cached_property
    def visits(self) -> dict[str, int] | None:
        """The number of each episode in its tour; None where the scene is what is visited."""
        return {each: place.number + 1 for each, place in self.places.items()} or None

    def lifetime(self) -> MemoryLifetime:
        """A memory at its beginning."""
        return open_memory(
            self.plan.memory,
            self.run.navigator.reader,
            self.atlas,
            bank=None if self.plan.bank is None else Path(self.plan.bank),
            tours=self.places,
            oracle_phases=self.plan.oracle_phases,
        )

    @property
    def facts(self) -> dict[str, object]:
        """What determines the result: two evaluations with the same facts give the same scores."""
        plan, config = self.plan, self.run.config
        decided = {key: value for key, value in asdict(plan).items() if key not in PLACES}
        if plan.schedule == "lanes" and plan.precision == "fp32":
            decided.pop("batch")  # on which walks in lanes depend only by the coarse rounding of bf16
        return {
            **decided,
            **self.limits._asdict(),
            "task": plan.task or config.task,
            "order": "released" if plan.schedule == "interleaved" else "tours" if plan.tours else plan.order,
            "agent": config.agent_name,
            "reader": config.reader_name,
            "settings": {
                "agent": asdict(config.agent),
                "reader": asdict(config.reader),
            },
            "origin": config.origin,
            "episodes": self.size,
            **({} if self.tours is None else {"left_out": self.left_out}),
            "hashes": dict(self.hashes),
            "version": __version__,
        }

    @property
    def fingerprint(self) -> str:
        """A hash of the facts."""
        return hashlib.sha256(msgspec.json.encode(self.facts, order="sorted")).hexdigest()


PLACES = ("run", "data", "bank", "tours", "features")
"""Fields of a plan that say where something lies; what lies there is hashed instead."""


def load_context(
    plan: EvaluationConfig, *, scenes: Collection[str] | None = None, hashes: Mapping[str, str] | None = None
) -> EvaluationContext:
    """Load what a plan names, for some scenes or for all of them; `hashes` are of all, where known."""
    run = open_run(plan)
    lanes = plan.schedule == "lanes"
    check_protocol(
        plan.memory,
        run.navigator.reader,
        bank=plan.bank,
        tours=plan.tours,
        oracle_phases=plan.oracle_phases,
        lanes=lanes,
    )
    data, task = DataFolder(plan.data), plan.task or run.config.task
    annotations = find_annotations(data, task, plan.split)
    episodes = list(TASKS[task].read(annotations))
    graphs = read_scenes(data.connectivity, scenes_of(episodes, data.connectivity, annotations))
    check_paths(one_per_path(episodes), graphs, annotations)
    if run.navigator.agent.needs_goals and any(episode.goal_withheld for episode in episodes):
        raise ConfigError(f"'{plan.run}' is told the goals, and those of {plan.split} are withheld")
    store = find_features(plan, run, data, graphs)
    tours = None if plan.tours is None else read_tours(plan.tours, plan.split)
    if tours is not None:
        check_tours(tours, episodes, plan.tours)
    lived = in_order(episodes, plan, tours)
    atlas = Atlas(graphs.values(), store)  # the same integers, whichever episodes are lived here
    if tours is not None and plan.oracle_phases:
        check_tour_routes(tours, episodes, atlas, plan.tours)
    return EvaluationContext(
        plan=plan,
        run=run,
        atlas=atlas,
        episodes=[each for each in lived if scenes is None or each.scene_id in scenes],
        annotations=annotations,
        tours=tours,
        encode=make_encoder(plan, run, data, task),
        limits=limits_of(plan, run),
        size=len(lived),
        left_out=len(episodes) - len(lived),
        hashes=hashes or hash_inputs(plan, run, data, annotations, graphs, store),
    )


def open_run(plan: EvaluationConfig) -> Run:
    """The run folder of a plan, or a scripted agent in the guise of one."""
    if plan.run not in SCRIPTED:
        return load_run(plan.run)
    task = get_task(plan.task or "r2r")
    config_type = part_type("agent", plan.run)
    has_seed = "seed" in {field.name for field in fields(config_type)}
    config = NavigatorConfig(
        agent=config_type(seed=plan.seed) if has_seed else config_type(),
        task=task.name,
        max_steps=task.max_steps,
        max_tokens=task.max_tokens,
        keep=task.keep,
        origin="scripted",
    )
    return Run(Path(plan.run), config, config.build().eval(), hashlib.sha256(plan.run.encode()).hexdigest())
