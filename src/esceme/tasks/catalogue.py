"""The tasks by name: where their files lie, how large they are, and the limits of the original scripts."""

from __future__ import annotations

from esceme.tasks.cvdn import read_cvdn
from esceme.tasks.r2r import read_r2r
from esceme.tasks.reverie import read_reverie
from esceme.tasks.rxr import read_rxr
from esceme.tasks.task import SplitSize, Task

R2R = Task(
    name="r2r",
    read=read_r2r,
    files=("R2R/R2R_{split}.json", "R2R/annotations/R2R_{split}_enc.json"),
    published={
        "train": SplitSize(4675, 14039, 61),
        "val_train_seen": None,
        "val_seen": SplitSize(340, 1021, 56),
        "val_unseen": SplitSize(783, 2349, 11),
        "test": SplitSize(1391, 4173, 18),
    },
    max_steps=15,
    max_tokens=60,
)

# Sizes as made from the public R2R and graphs; the published 233,613 and 45,162 instructions of train and
# val_unseen came from an earlier release. The limits are those in effect in ESceme's script (spec C.10-9).
R4R = Task(
    name="r4r",
    read=read_r2r,
    files=("R4R/R4R_{split}.json", "R2R/annotations/R4R_{split}_enc.json"),
    published={
        "train": SplitSize(25921, 233532, 59),
        "val_seen": SplitSize(115, 1035, 40),
        "val_unseen": SplitSize(5026, 45234, 11),
        "val_unseen_sampled": None,
    },
    sizes_are="as made from the public R2R",
    earlier={"train": 233_613, "val_unseen": 45_162},
    max_steps=15,
    max_tokens=80,
)

RXR = Task(
    name="rxr",
    read=read_rxr,
    files=(
        "RxR/rxr_{split}_guide.jsonl",
        "RxR/rxr_{split}_guide.jsonl.gz",
        "RxR/annotations/rxr_{split}_guide_enc_xlmr.jsonl",
    ),
    published={
        "train": None,
        "val_seen": None,
        "val_unseen": None,
        "test_standard_public": None,
        "test_challenge_public": None,
    },
    max_steps=20,
    max_tokens=250,
    id_key="instruction_id",
)

# A path is a game here: its instances are parts of one walk.
CVDN = Task(
    name="cvdn",
    read=read_cvdn,
    files=("CVDN/{split}.json", "CVDN/annotations/ndh/{split}_enc.json"),
    published={
        "train": None,
        "val_seen": SplitSize(94, 382, 45),
        "val_unseen": SplitSize(260, 907, 10),
        "test": None,
    },
    max_steps=30,
    max_tokens=100,
    keep="last",
    id_key="inst_idx",
)

# The original scripts have no REVERIE: the limits are R2R's steps and enough tokens for every instruction.
# Records (one per walk and object): 4,071 / 501 / 1,292 / 2,244; test records do not say which share a walk.
REVERIE = Task(
    name="reverie",
    read=read_reverie,
    files=("REVERIE/v2_REVERIE_{split}.json",),
    published={
        "train": SplitSize(1574, 10290, 60),
        "val_seen": SplitSize(126, 1384, 46),
        "val_unseen": SplitSize(314, 3433, 10),
        "test": SplitSize(2244, 6144, 16),
    },
    sizes_are="as in the public v2 files",
    max_steps=15,
    max_tokens=80,
)

PREVALENT = Task(
    name="prevalent",
    read=read_r2r,
    files=("R2R/prevalent_aug_{split}_enc.json", "R2R/annotations/prevalent_aug_{split}_enc.json"),
    published={"train": None},
    max_steps=R2R.max_steps,
    max_tokens=R2R.max_tokens,
)

TASKS: dict[str, Task] = {task.name: task for task in (R2R, R4R, RXR, CVDN, REVERIE, PREVALENT)}
"""Every task by its name on the command line."""
