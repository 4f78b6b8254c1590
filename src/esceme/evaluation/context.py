"""Settings of an evaluation, and everything that is loaded for it: navigator, world, episodes, hashes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from esceme import __version__
from esceme.agents import AGENTS
from esceme.engine import EngineName, Precision, PrecisionSwitch, apply_engine
from esceme.errors import ConfigError, DataError
from esceme.evaluation.guarded import GuardedNavigator, read_guard
from esceme.evaluation.protocol import (
    MemoryLifetime,
    Protocol,
    StoreSession,
    TourPosition,
    check_protocol,
    check_tour_routes,
    open_memory,
    tour_episodes,
    tour_positions,
)
from esceme.evaluation.schedule import ScheduleName
from esceme.files import PrintableText, StoredDigest, read_bytes, read_json, read_text
from esceme.memory.scene_map import MappingMemory
from esceme.memory.store import Prefer
from esceme.navigator import Navigator
from esceme.planning.planner_file import RouteModels, StoredPlanner, build_planner, load_planner
from esceme.planning.planning_navigator import PlanningNavigator
from esceme.runs import DIGESTS_FILE, NavigatorConfig, Run, load_run, part_config_type
from esceme.settings import Seed, Size, check_settings
from esceme.source_digest import source_digest, source_files
from esceme.tasks.catalogue import Task, get_task
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.split import Dataset, InstructionEncoder, Split, load_dataset
from esceme.tasks.tours import Tour, check_tours, read_tours
from esceme.world import Atlas
from esceme.world.geometry import VIEWS

SCRIPTED = tuple(name for name, kind in AGENTS.items() if kind.is_scripted)
"""Names of scripted agents, which need no run folder."""
PlannerName = Literal["none", "routes"]
ChoiceName = Literal["bayes", "argmax", "lookahead"]
InstructionsName = Literal["own", "other"]
FILE_FIELDS = ("run", "data", "bank", "tours", "features", "episode_file", "store", "session")
"""Fields of `EvaluationConfig` that name files. Results depend on the content of a file, not on its name."""
STORE_FIELDS = ("robot", "prefer")
"""Fields of `EvaluationConfig` that have an effect only with a store."""
PLANNER_FIELDS = ("planner", "belief", "choice")
"""Fields of `EvaluationConfig` that have an effect only with a planner."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Settings of an evaluation."""

    run: str
    """Run folder with a trained agent, or the name of a scripted agent."""
    data: str
    """Path of the data folder."""
    split: str
    """Split to evaluate on, such as val_unseen."""
    memory: Protocol
    """Memory protocol, which determines when the memory is filled and cleared."""
    task: str | None = None
    """Task to evaluate on; by default the task of the run."""
    schedule: ScheduleName = "lanes"
    """Order of episodes: `lanes` runs one episode per scene at a time; `interleaved` runs batches from all
    scenes, as the released code does."""
    batch: Size = 8
    """Number of episodes that run in parallel."""
    seed: Seed = 0
    """Seed of a shuffled order and of the random agent."""
    order: Literal["file", "shuffled"] = "file"
    """Order of a scene's episodes in the schedule `lanes`: that of the file, or shuffled by the seed."""
    episode_file: str | None = None
    """File of the episode ids to run; see `read_episode_ids`. The order of the file replaces that of the
    annotations."""
    limit: Size | None = None
    """Maximum number of episodes: only the first episodes of the annotations (or of `episode_file`) are run.
    Episodes are selected before they are shuffled."""
    bank: str | None = None
    """File of a saved memory bank, with which the memory starts in the protocol `warm`."""
    allow_other_scenes: bool = False
    """Whether a bank is accepted that holds none of the scenes to run. The memory then starts empty."""
    store: str | None = None
    """Memory store in which everything remembered is stored as well. The protocol `warm` starts with what the
    store held when this evaluation began, all others start empty."""
    robot: str = "robot"
    """Name of the robot under which the store keeps observations."""
    prefer: Prefer = "first"
    """Which observation of a viewpoint a store recalls: the first durable one, or the newest."""
    session: str = ""
    """Name of the session in the store. `evaluate` sets it from the output folder and the facts."""
    tours: str | None = None
    """File of tours, which determine the order of the episodes."""
    oracle_phases: bool = False
    """Whether the memory also receives, between episodes of a tour, the path that an oracle would take to the
    goal and to the next start."""
    features: str | None = None
    """Feature file; by default the only feature file in the data folder."""
    max_steps: Size | None = None
    """Maximum number of decisions per episode; by default that of the run."""
    max_tokens: Size | None = None
    """Maximum number of tokens per instruction; by default that of the run."""
    precision: Precision = "fp32"
    """Precision of the network: single precision (`fp32`), 16 bits (`bf16`), 8 bits (`int8`), or 8 bits where
    this cannot change a decision (`guarded`)."""
    engine: EngineName = "eager"
    """How linear layers are computed; see `esceme.engine`."""
    planner: PlannerName = "none"
    """Whether the agent walks `routes` that the run's planner chooses in the map of the scene, or decides
    step by step (`none`)."""
    belief: str = "full"
    """Name of the planner's belief: `full`, or a control such as `blind`, which reads no instruction."""
    choice: ChoiceName = "bayes"
    """How the planner chooses a route: by expected score (`bayes`), the most probable one (`argmax`), or by
    expected score with one step of lookahead at the frontier (`lookahead`)."""
    instructions: InstructionsName = "own"
    """Instruction of each episode: its `own`, or as a control the one of another path in the same scene
    (`other`)."""
    paranoid: bool = False
    """Whether weights and features are read again to verify them, although size and time stamps of their
    files are those of an earlier evaluation."""

    @property
    def digests(self) -> Path | None:
        """File in the run folder that stores digests of unchanged files; None for scripted agents."""
        return None if self.run in SCRIPTED else Path(self.run) / DIGESTS_FILE

    @property
    def num_passes(self) -> int:
        """Number of times that the whole split is run. Only the last time is scored."""
        return 2 if self.memory == "two-pass" else 1

    @property
    def selects_episodes(self) -> bool:
        """Whether a list of episodes or a limit restricts the split."""
        return self.episode_file is not None or self.limit is not None

    @property
    def depends_on_batch(self) -> bool:
        """Whether trajectories depend on the other episodes of a batch, beyond the last bits of scores."""
        return self.schedule == "interleaved" or self.precision in ("bf16", "int8")

    def __post_init__(self) -> None:
        check_settings(self)
        if self.tours is not None and self.order != "file":
            raise ConfigError("tours have an order of their own; give either --tours or --order")
        if self.tours is not None and self.selects_episodes:
            raise ConfigError(
                "tours name the episodes to run; give either --tours, or --episodes and --limit"
            )
        if self.schedule == "interleaved" and self.order != "file":
            raise ConfigError(
                "the schedule 'interleaved' always shuffles by the seed; --order is for 'lanes'"
            )
        if not self.robot:
            raise ConfigError("robot: expected a name, found ''")
        if self.store is None and (self.robot, self.prefer) != ("robot", "first"):
            raise ConfigError("--robot and --prefer are settings of a store; give --store as well")
        if self.planner == "none" and (self.belief, self.choice) != ("full", "bayes"):
            raise ConfigError("--belief and --choice are settings of a planner; give --planner routes")
        if self.planner != "none" and (self.schedule, self.precision) != ("lanes", "fp32"):
            raise ConfigError("a planner needs the schedule 'lanes' and precision fp32")


class LoadedPlanner(NamedTuple):
    """The planner of a run folder."""

    stored: StoredPlanner
    models: RouteModels


class EvaluationLimits(NamedTuple):
    """Limits on trajectories and instructions: maximum numbers of decisions and of tokens."""

    max_steps: int
    max_tokens: int
    keep: Literal["first", "last"]
    """Whether the first or the last tokens of a long instruction are kept."""


@dataclass(frozen=True)
class EvaluationContext:
    """Everything that is loaded for an evaluation."""

    config: EvaluationConfig
    run: Run
    task: Task
    atlas: Atlas
    episodes: Sequence[Episode]
    """Episodes in the order in which they are run."""
    annotations: Path
    tours: Sequence[Tour] | None
    encode: InstructionEncoder
    limits: EvaluationLimits
    num_episodes: int
    """Number of episodes of the whole evaluation. `episodes` of a worker process are a part of them."""
    num_left_out: int
    """Number of episodes of the split that the tours, the list of episodes or the limit leave out."""
    hashes: Mapping[str, str]
    """SHA-256 of the weights, the data (annotations and graphs), the features and other files, by name."""
    planner: LoadedPlanner | None = None
    switch: PrecisionSwitch = field(default_factory=PrecisionSwitch)
    """Selects the precision of the navigator's decision layers, with precision `guarded`."""
    margin: float | None = None
    """With precision `guarded`: decisions whose two best scores are closer are computed again. None if the
    run has no calibration yet."""

    @cached_property
    def by_id(self) -> dict[str, Episode]:
        """Episodes by episode id."""
        return {episode.episode_id: episode for episode in self.episodes}

    @cached_property
    def tour_positions(self) -> dict[str, TourPosition]:
        """Position of each episode in its tour, by episode id; empty without tours."""
        tours = [tour for tour in self.tours or () if tour.episode_ids[0] in self.by_id]
        return tour_positions(tours, self.episodes)

    @cached_property
    def visits(self) -> dict[str, int] | None:
        """Number of each episode in its tour, counted from 1, by episode id; None without tours."""
        return {name: position.number + 1 for name, position in self.tour_positions.items()} or None

    def navigator(self, lifetime: MemoryLifetime, *, exact: bool = False) -> Navigator:
        """Return the navigator in evaluation mode. With a planner, it plans in `lifetime.maps`.

        With `exact`, precision `guarded` computes every decision in single precision.
        """
        navigator = self.run.navigator.eval()
        if self.config.precision == "guarded" and not exact:
            if self.margin is None:
                raise ConfigError(f"{self.run.folder}: not calibrated for --precision guarded")
            return GuardedNavigator(navigator, self.switch, self.margin).eval()
        if self.planner is None or lifetime.maps is None:
            return navigator
        memory = lifetime.memory
        planner = build_planner(
            *self.planner,
            navigator,
            memory.bank if isinstance(memory, MappingMemory) else None,
            belief=self.config.belief,
            choice=self.config.choice,
            is_cleared=self.config.memory == "episodic",
        )
        return PlanningNavigator(navigator, planner, lifetime.maps, self.atlas).eval()

    def lifetime(self) -> MemoryLifetime:
        """Return a new memory for this evaluation, in its initial state."""
        return open_memory(
            self.config.memory,
            self.run.navigator.reader,
            self.atlas,
            bank=None if self.config.bank is None else Path(self.config.bank),
            tours=self.tour_positions,
            oracle_phases=self.config.oracle_phases,
            codebook=None if self.planner is None else self.planner.models.speaker.codebook,
            store=self.store_session,
        )

    @property
    def store_session(self) -> StoreSession | None:
        """Session of this evaluation in a store; None without a store."""
        config = self.config
        if config.store is None:
            return None
        return StoreSession(config.store, config.robot, config.session or "evaluation", config.prefer)

    @property
    def facts(self) -> dict[str, object]:
        """Settings and hashes that determine the result. Evaluations with equal facts have equal scores."""
        config, navigator = self.config, self.run.config
        settings = {name: value for name, value in asdict(config).items() if name not in FILE_FIELDS}
        if not config.depends_on_batch:
            settings.pop("batch")
        settings.pop("allow_other_scenes")
        settings.pop("paranoid")
        if config.store is None:
            settings = {name: value for name, value in settings.items() if name not in STORE_FIELDS}
        if config.limit is None:
            settings.pop("limit")
        order = "tours" if config.tours else config.order
        if self.planner is None:
            settings = {name: value for name, value in settings.items() if name not in PLANNER_FIELDS}
        else:
            settings["planner"] = msgspec.to_builtins(self.planner.stored)
        return {
            **settings,
            **self.limits._asdict(),
            "task": self.task.name,
            "order": "released" if config.schedule == "interleaved" else order,
            "agent": navigator.agent_name,
            "reader": navigator.reader_name,
            "settings": {"agent": asdict(navigator.agent), "reader": asdict(navigator.reader)},
            "origin": navigator.origin,
            "episodes": self.num_episodes,
            **({} if self.margin is None else {"margin": self.margin}),
            **({"left_out": self.num_left_out} if config.tours or config.selects_episodes else {}),
            "hashes": dict(self.hashes),
            "version": __version__,
            "code": StoredDigest(config.digests, "code", source_files()).get(source_digest),
        }

    @property
    def fingerprint(self) -> str:
        """SHA-256 of `facts` without the digest of the code, which identifies this evaluation."""
        return hash_facts(self.facts)


def hash_facts(facts: Mapping[str, object]) -> str:
    """Return the SHA-256 of the facts of an evaluation, which identifies the evaluation.

    The digest of the code is left out: an evaluation can be resumed by another version of the code. So is the
    engine `eager`, which older results do not name.
    """
    identifying = {
        name: value
        for name, value in facts.items()
        if name != "code" and (name, value) != ("engine", "eager")
    }
    return hashlib.sha256(msgspec.json.encode(identifying, order="sorted")).hexdigest()


def load_context(
    config: EvaluationConfig,
    *,
    scenes: Collection[str] | None = None,
    hashes: Mapping[str, str] | None = None,
    run: Run | None = None,
) -> EvaluationContext:
    """Load everything that `config` names. With `scenes`, keep only the episodes of these scenes.

    Pass the `hashes` of another context of the same config to save time; otherwise the files are hashed. A
    `run` of another context is used as it is, with its engine.
    Raise an error if data are missing or contradictory, or if settings do not suit the agent.
    """
    is_loaded = run is not None
    run = run or open_run(config)
    planner = open_planner(config, run)
    check_protocol(
        config.memory,
        run.navigator.reader,
        planner is not None,
        bank=config.bank,
        tours=config.tours,
        oracle_phases=config.oracle_phases,
        lanes=config.schedule == "lanes",
        store=config.store,
    )
    task, is_scripted = get_task(config.task or run.config.task), run.config.agent_name in SCRIPTED
    dataset = load_dataset(  # with all scenes, also in workers: viewpoints have the same integers everywhere
        DataFolder(config.data),
        [(task.name, config.split)],
        features=config.features,
        name=run.config.feature_source,
        width=run.config.agent.limits.feature_width,
        needs_features=not is_scripted,
    )
    split = dataset.splits[0]
    if config.instructions == "other":
        split = replace(split, episodes=exchange_instructions(split.episodes))
    if run.navigator.agent.needs_goals and any(episode.goal_withheld for episode in split.episodes):
        raise ConfigError(f"'{config.run}' needs the goals, and those of {config.split} are withheld")
    tours = None if config.tours is None else read_tours(config.tours, config.split)
    if tours is not None:
        check_tours(tours, split.episodes, config.tours)
        if config.oracle_phases:
            check_tour_routes(tours, split.episodes, dataset.atlas, config.tours)
    episodes = order_episodes(select_episodes(split.episodes, config), config, tours)
    limits = get_limits(config, run)
    switch = PrecisionSwitch()
    guard = None
    if not is_loaded:
        switch = apply_engine(run.navigator, config.engine, config.precision)
        guard = read_guard(run.folder, run.weights_hash) if config.precision == "guarded" else None
    selected = [episode for episode in episodes if scenes is None or episode.scene_id in scenes]
    return EvaluationContext(
        config=config,
        run=run,
        task=task,
        atlas=dataset.atlas,
        episodes=selected,
        annotations=split.annotations,
        tours=tours,
        encode=run.instruction_encoder(
            dataset.folder,
            task=task.name,
            max_tokens=limits.max_tokens,
            keep=limits.keep,
            episodes=selected,
        ),
        limits=limits,
        num_episodes=len(episodes),
        num_left_out=len(split.episodes) - len(episodes),
        hashes=hashes or hash_inputs(config, run, dataset),
        planner=planner,
        switch=switch,
        margin=None if guard is None else guard.margin,
    )


def check_bank_scenes(bank: str, stored: Collection[str], episodes: Sequence[Episode]) -> None:
    """Raise `ConfigError` if a bank with the scenes `stored` holds none of the scenes of `episodes`."""
    scenes = {episode.scene_id for episode in episodes}
    if not scenes & set(stored):
        held = f"{len(stored)} other scenes, such as '{min(stored)}'" if stored else "no scenes"
        raise ConfigError(
            f"{bank}: holds {held}, and none of the {len(scenes)} scenes to run: the memory would start "
            "empty; give a bank of these scenes, or --allow-other-scenes"
        )


def open_planner(config: EvaluationConfig, run: Run) -> LoadedPlanner | None:
    """Return the planner of a run, or None if the evaluation uses none; check that it fits the run."""
    if config.planner == "none":
        return None
    if config.run in SCRIPTED:
        raise ConfigError(f"'{config.run}' is scripted; a planner needs a trained run")
    planner = LoadedPlanner(*load_planner(config.run))
    if planner.stored.digests.get("weights") != run.weights_hash:
        raise ConfigError(
            f"{config.run}: its planner was fitted to other weights; run `esceme train-planner` again"
        )
    return planner


def open_run(config: EvaluationConfig) -> Run:
    """Return the loaded run folder, or a run with a scripted agent."""
    if config.run not in SCRIPTED:
        return load_run(config.run, is_paranoid=config.paranoid)
    task = get_task(config.task or "r2r")
    agent_config = part_config_type("agent", config.run)
    has_seed = "seed" in {field.name for field in fields(agent_config)}
    navigator = NavigatorConfig(
        agent=agent_config(seed=config.seed) if has_seed else agent_config(),
        task=task.name,
        max_steps=task.max_steps,
        max_tokens=task.max_tokens,
        keep=task.keep,
        origin="scripted",
    )
    weights_hash = hashlib.sha256(config.run.encode()).hexdigest()
    return Run(Path(config.run), navigator, navigator.build().eval(), weights_hash)


def get_limits(config: EvaluationConfig, run: Run) -> EvaluationLimits:
    """Return the limits of an evaluation.

    A limit that is None in `config` is taken from the run, or from the task if this is not the task that the
    run was trained for. Raise `ConfigError` if the network has too few embeddings for a limit.
    """
    default = run.config if config.task in (None, run.config.task) else get_task(config.task or "")
    limits = EvaluationLimits(
        config.max_steps or default.max_steps, config.max_tokens or default.max_tokens, default.keep
    )
    for name, size, needed in (
        ("max_steps", run.config.agent.limits.max_steps, limits.max_steps - 1),  # none after the last step
        ("max_tokens", run.config.agent.limits.max_tokens, limits.max_tokens),
    ):
        if size is not None and needed > size:
            raise ConfigError(
                f"{name} {getattr(limits, name)}: this network has embeddings for {size} only; give fewer"
            )
    return limits


def select_episodes(episodes: Sequence[Episode], config: EvaluationConfig) -> Sequence[Episode]:
    """Return the first `config.limit` episodes, in the order of `config.episode_file` or of `episodes`."""
    if config.episode_file is not None:
        by_id = {episode.episode_id: episode for episode in episodes}
        ids = read_episode_ids(Path(config.episode_file))
        if unknown := [name for name in ids if name not in by_id]:
            raise DataError(
                f"{config.episode_file}: {len(unknown)} of {len(ids)} ids, such as '{unknown[0]}', are not "
                f"among the {len(episodes)} episodes of {config.split}; is this the right split?"
            )
        episodes = [by_id[name] for name in ids]
    return episodes[: config.limit]


def read_episode_ids(path: Path) -> list[str]:
    """Return the episode ids in a file: a JSON array (`.json`), or text with one id per line.

    Raise `DataError` if the file has no ids or has an id twice.
    """
    if path.suffix == ".json":
        ids = [str(name) for name in read_json(path, list[PrintableText | int])]
    else:
        ids = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    if not ids:
        raise DataError(f"{path}: no ids; expected a JSON array, or text with one episode id per line")
    if repeated := [name for name, count in Counter(ids).items() if count > 1]:
        raise DataError(f"{path}: the id '{repeated[0]}' occurs twice; an episode is run once")
    return ids


def order_episodes(
    episodes: Sequence[Episode], config: EvaluationConfig, tours: Sequence[Tour] | None
) -> list[Episode]:
    """Return the episodes in the order of the tours, of the file, or of a permutation drawn by the seed."""
    if tours is not None:
        return tour_episodes(tours, episodes)
    if config.order == "file":
        return list(episodes)
    return [episodes[row] for row in np.random.default_rng(config.seed).permutation(len(episodes))]


def exchange_instructions(episodes: Sequence[Episode]) -> list[Episode]:
    """Return the episodes, each with the instruction of another path in its scene; a control.

    Path i of the n paths of a scene gets the instructions of path i + n // 2, counted modulo n. Raise
    `ConfigError` if a scene has only one path.
    """
    by_path: dict[str, dict[str, list[Episode]]] = {}
    for episode in episodes:
        by_path.setdefault(episode.scene_id, {}).setdefault(episode.path_id, []).append(episode)
    exchanged = {}
    for scene, paths in by_path.items():
        names = list(paths)
        if len(names) == 1:
            raise ConfigError(f"scene '{scene}' has only one path, so no other instruction")
        for number, name in enumerate(names):
            others = paths[names[(number + max(1, len(names) // 2)) % len(names)]]
            for position, episode in enumerate(paths[name]):
                other = others[position % len(others)]
                exchanged[episode.episode_id] = replace(
                    episode, instruction=other.instruction, tokens=other.tokens, language=other.language
                )
    return [exchanged[episode.episode_id] for episode in episodes]


# -- hashes ----------------------------------------------------------------------------------------------


def hash_data(split: Split) -> str:
    """Return the SHA-256 of the annotations and the graphs of a split."""
    digest = hashlib.sha256(read_bytes(split.annotations))
    for scene, graph in split.graphs.items():
        digest.update("\n".join((scene, *graph.viewpoints)).encode())
        digest.update(graph.neighbours.tobytes() + graph.views.tobytes() + graph.positions.tobytes())
    return digest.hexdigest()


def hash_features(config: EvaluationConfig, dataset: Dataset) -> str:
    """Return the SHA-256 of the features of a dataset's scenes, in the order of the atlas.

    The run folder stores it, so that features of unchanged files are not read before they are used.
    """
    features = dataset.features
    rows = features.locate([f"{scene}_{viewpoint}" for scene, viewpoint in dataset.atlas.names])

    def compute() -> str:
        digest = hashlib.sha256()
        for row in rows[:, None]:
            digest.update(features.gather(row, np.arange(VIEWS)[None]).tobytes())
        return digest.hexdigest()

    identity = [*(str(file.resolve()) for file in features.files), features.width, rows.tolist()]
    name = f"features {hashlib.sha256(repr(identity).encode()).hexdigest()[:16]}"
    store = config.digests if features.files else None
    return StoredDigest(store, name, features.files, is_trusted=not config.paranoid).get(compute)


def hash_inputs(config: EvaluationConfig, run: Run, dataset: Dataset) -> dict[str, str]:
    """Return the SHA-256 of each input of an evaluation, by name; `dataset` must have one split."""
    data, split = dataset.folder, dataset.splits[0]
    features = hash_features(config, dataset)
    hashes = {"weights": run.weights_hash, "data": hash_data(split), "features": features}
    files = {
        "vocabulary": run.vocabulary or next(iter(data.tokenizers), None),
        "bank": config.bank,
        "tours": config.tours,
        "objects": data.objects if split.task.scores_objects else None,
    }
    for name, path in files.items():
        if path is not None:
            hashes[name] = hashlib.sha256(read_bytes(Path(path))).hexdigest()
    if config.episode_file is not None:
        ids = "\n".join(read_episode_ids(Path(config.episode_file)))
        hashes["episode_ids"] = hashlib.sha256(ids.encode()).hexdigest()
    return hashes
