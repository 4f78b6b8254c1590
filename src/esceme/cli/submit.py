"""`esceme submit`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from esceme.cli.console import note, print_json
from esceme.errors import ConfigError, DataError
from esceme.tasks.catalogue import TASKS
from esceme.tasks.episode import scenes_of
from esceme.tasks.submission import check_predictions, match, read_predictions, write_submission
from esceme.world import read_scenes

SERVERS = {
    "r2r": "R2R leaderboard (EvalAI challenge 97); declare the use of memory across episodes honestly",
    "cvdn": "NDH leaderboard (EvalAI challenge 463), split test_cleaned",
    "rxr": "RxR leaderboard; submissions were reported to hang on the server's side",
    "reverie": "REVERIE leaderboard (EvalAI challenge 606)",
}


def submit(
    task: Literal["r2r", "cvdn", "rxr", "reverie"],
    predictions: Path,
    annotations: Path,
    connectivity: Path,
    out: Path,
    json: bool = False,
) -> int:
    """Check predictions and write the file that a leaderboard accepts.

    Every episode must be predicted exactly once, start at its start, and walk along edges. Several viewpoints
    walked in one step are flattened, turns on the spot kept, missing headings filled in. Nothing is written
    unless everything holds.

    Examples:
        esceme submit --task r2r --predictions p.json --annotations R2R_test.json --connectivity graphs ...
        esceme submit --task rxr --predictions p.jsonl --annotations rxr_test_guide.jsonl.gz ... --out o.jsonl

    Args:
        task: which leaderboard the file is for.
        predictions: trajectories, json or json lines, in any form the field writes.
        annotations: the split's annotation file: it says which episodes there are and where they start.
        connectivity: the folder of navigation graphs.
        out: the file to write.
        json: print what was written as one json object.
    """
    if out.suffix == ".gz":
        raise ConfigError(f"--out {out}: servers take the plain file; leave .gz off its name")
    episodes = TASKS[task].read(annotations)
    graphs = read_scenes(connectivity, scenes_of(episodes, connectivity, annotations))
    found = read_predictions(predictions)
    pairs = match(episodes, found, file=predictions, id_key=TASKS[task].id_key)
    check_predictions(pairs, graphs, file=predictions)
    with_object = sum(task == "reverie" and prediction.object_id is not None for _, prediction in pairs)
    if 0 < with_object < len(pairs):
        raise DataError(
            f"{predictions}: {with_object} of {len(pairs)} predictions have predObjId; give all or none"
        )
    write_submission(out, TASKS[task], pairs, graphs)
    if json:
        print_json({"out": str(out), "n": len(pairs), "with_object": with_object})
        return 0
    print(f"{out}: {len(pairs)} episodes, ready for the {SERVERS[task]}")
    if task == "reverie" and not with_object:
        note("note: no prediction names an object (predObjId), so the server can score navigation only")
    return 0
