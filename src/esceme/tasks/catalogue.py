"""Definitions of the tasks: annotation files, published sizes, limits, success rules, submission formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from esceme.errors import ConfigError
from esceme.tasks.cvdn import read_cvdn
from esceme.tasks.episode import Episode
from esceme.tasks.r2r import read_r2r
from esceme.tasks.reverie import read_reverie
from esceme.tasks.rxr import read_rxr

SuccessRule = Literal["trusted", "end-panos"]
"""Rule by which stopping is a success.

- `trusted`: the agent is nearer than 3 m to the end of the reference path.
- `end-panos`: the agent is at one of the end panoramas of a dialog (CVDN).
"""

UNFROZEN = {"language_cross_attention": False, "freeze_text": False, "freeze_history": False}
"""Agent settings of the original code's scripts for R4R and CVDN."""


class SplitSize(NamedTuple):
    """Numbers of reference paths, instructions and scenes of a split."""

    paths: int
    instructions: int
    scenes: int

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> SplitSize:
        """Count the paths, instructions and scenes of `episodes`."""
        return cls(
            paths=len({episode.path_id for episode in episodes}),
            instructions=len(episodes),
            scenes=len({episode.scene_id for episode in episodes}),
        )


@dataclass(frozen=True, kw_only=True)
class Task:
    """Properties of a dataset: how its files are read, the limits of its episodes, scoring and submission."""

    name: str
    read: Callable[[Path], Sequence[Episode]]
    """Function that reads an annotation file."""
    files: tuple[str, ...]
    """Possible paths of a split's annotation file in the data folder, with a `{split}` field, best first."""
    source: str = "see docs/data.md"
    """Where the annotation files come from, as shown to the user if a file is missing."""
    split_sizes: Mapping[str, SplitSize | None]
    """Published split -> its size, or None if the size is unknown."""
    sizes_note: str = "as published"
    """What the data check reports about a split whose size equals the size in `split_sizes`."""
    earlier_instructions: Mapping[str, int] = field(default_factory=dict)
    """Split -> number of instructions in an earlier release, which is also accepted."""
    max_steps: int
    """Maximum number of decisions per episode, including STOP (docs/spec.md A.13)."""
    max_tokens: int
    keep: Literal["first", "last"] = "first"
    """Which end of a long instruction is kept by truncation (docs/spec.md A.9)."""
    agent_settings: Mapping[str, bool | float] = field(default_factory=dict)
    """Field of `HamtConfig` -> value in the original script for this task (docs/spec.md B.1, section G)."""
    success_rules: tuple[SuccessRule, ...] = ("trusted",)
    """Supported success rules. Evaluation uses the first rule."""
    scores_objects: bool = False
    """Whether success means that the target object is visible from the last viewpoint (REVERIE)."""
    primary_metrics: tuple[str, ...] = ("tl", "ne", "sr", "spl")
    """Metrics that papers report for this task."""
    leaderboard: str | None = None
    """Server that accepts submissions; None if there is no server."""
    id_key: str = "instr_id"
    """Key of the episode id in prediction files and submissions."""
    has_bert_tokens: bool = True
    """Whether stored token ids are those of BERT's WordPiece tokenizer."""
    has_integer_ids: bool = False
    """Whether submissions hold the episode id as an integer."""
    submits_paths: bool = False
    """Whether a submission is JSON lines of instruction ids and paths (RxR), not JSON with poses."""

    @property
    def success_rule(self) -> SuccessRule:
        """Success rule that evaluation uses."""
        return self.success_rules[0]

    @property
    def submission_suffix(self) -> str:
        """Suffix of the name of a submission file."""
        return ".jsonl" if self.submits_paths else ".json"

    def submission_id(self, episode: Episode) -> str:
        """Return the id of an episode in a submission. For RxR, this is the id of the instruction alone."""
        prefix = f"{episode.path_id}_" if self.submits_paths else ""
        return episode.episode_id.removeprefix(prefix)

    def prediction_ids(self, episode: Episode) -> tuple[str, ...]:
        """Return the ids that a prediction file may use for an episode."""
        return episode.episode_id, self.submission_id(episode)


def get_task(name: str) -> Task:
    """Return the task called `name`; raise `ConfigError` if there is no such task."""
    if name not in TASKS:
        raise ConfigError(f"task '{name}' is unknown; expected one of {', '.join(TASKS)}")
    return TASKS[name]


R2R = Task(
    name="r2r",
    read=read_r2r,
    files=("R2R/R2R_{split}.json", "R2R/annotations/R2R_{split}_enc.json"),
    source="R2R is on the Room-to-Room project page",
    split_sizes={
        "train": SplitSize(4675, 14039, 61),
        "val_train_seen": None,
        "val_seen": SplitSize(340, 1021, 56),
        "val_unseen": SplitSize(783, 2349, 11),
        "test": SplitSize(1391, 4173, 18),
    },
    max_steps=15,
    max_tokens=60,
    leaderboard="R2R leaderboard (EvalAI challenge 97); declare the use of memory across episodes honestly",
)

# Sizes are those of R4R made from the public R2R and graphs. The published 233,613 and 45,162 instructions of
# train and val_unseen belong to an earlier release. The limits are ESceme's (docs/spec.md C.10-9).
R4R = Task(
    name="r4r",
    read=read_r2r,
    files=("R4R/R4R_{split}.json", "R2R/annotations/R4R_{split}_enc.json"),
    source="make it from R2R: esceme data r4r",
    split_sizes={
        "train": SplitSize(25921, 233532, 59),
        "val_seen": SplitSize(115, 1035, 40),
        "val_unseen": SplitSize(5026, 45234, 11),
        "val_unseen_sampled": None,
    },
    sizes_note="as made from the public R2R",
    earlier_instructions={"train": 233_613, "val_unseen": 45_162},
    max_steps=15,
    max_tokens=80,
    agent_settings=UNFROZEN,
    primary_metrics=("sr", "spl", "cls", "ndtw", "sdtw"),
)

RXR = Task(
    name="rxr",
    read=read_rxr,
    files=(
        "RxR/rxr_{split}_guide.jsonl",
        "RxR/rxr_{split}_guide.jsonl.gz",
        "RxR/annotations/rxr_{split}_guide_enc_xlmr.jsonl",
    ),
    source="RxR's guide files are in the dataset's own public bucket",
    split_sizes={
        "train": None,
        "val_seen": None,
        "val_unseen": None,
        "test_standard_public": None,
        "test_challenge_public": None,
    },
    max_steps=20,
    max_tokens=250,
    agent_settings={"language_cross_attention": False, "epsilon": 1e-5},
    has_bert_tokens=False,  # the pre-encoded files have token ids of XLM-RoBERTa
    id_key="instruction_id",
    has_integer_ids=True,
    submits_paths=True,
    primary_metrics=("sr", "spl", "ndtw", "sdtw"),
    leaderboard="RxR leaderboard; submissions were reported to hang on the server's side",
)

# Episodes with the same path id belong to one dialog game and follow parts of one path.
CVDN = Task(
    name="cvdn",
    read=read_cvdn,
    files=("CVDN/{split}.json", "CVDN/annotations/ndh/{split}_enc.json"),
    source="NDH comes with the CVDN repository, whose script downloads train and test",
    split_sizes={
        "train": None,
        "val_seen": SplitSize(94, 382, 45),
        "val_unseen": SplitSize(260, 907, 10),
        "test": None,
    },
    max_steps=30,
    max_tokens=100,
    keep="last",
    agent_settings=UNFROZEN,
    id_key="inst_idx",
    has_integer_ids=True,
    success_rules=("end-panos", "trusted"),
    primary_metrics=("gp", "sr", "spl"),
    leaderboard="NDH leaderboard (EvalAI challenge 463), split test_cleaned",
)

# The original scripts have no REVERIE: the limits are R2R's steps and enough tokens for every instruction.
# Records (one per path and object): 4,071 / 501 / 1,292 / 2,244; test records have no path id.
REVERIE = Task(
    name="reverie",
    read=read_reverie,
    files=("REVERIE/v2_REVERIE_{split}.json",),
    source="REVERIE v2 comes with the REVERIE repository",
    split_sizes={
        "train": SplitSize(1574, 10290, 60),
        "val_seen": SplitSize(126, 1384, 46),
        "val_unseen": SplitSize(314, 3433, 10),
        "test": SplitSize(2244, 6144, 16),
    },
    sizes_note="as in the public v2 files",
    max_steps=15,
    max_tokens=80,
    scores_objects=True,
    leaderboard="REVERIE leaderboard (EvalAI challenge 606)",
)

PREVALENT = Task(
    name="prevalent",
    read=read_r2r,
    files=("R2R/prevalent_aug_{split}_enc.json", "R2R/annotations/prevalent_aug_{split}_enc.json"),
    source="it is part of the HAMT data bundle",
    split_sizes={"train": None},
    max_steps=R2R.max_steps,
    max_tokens=R2R.max_tokens,
)

TASKS: dict[str, Task] = {task.name: task for task in (R2R, R4R, RXR, CVDN, REVERIE, PREVALENT)}
"""Name of a task on the command line -> the task."""
