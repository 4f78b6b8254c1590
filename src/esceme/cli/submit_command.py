"""The command `esceme submit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from esceme.cli.console import note, print_json
from esceme.errors import ConfigError, DataError
from esceme.tasks.catalogue import TASKS
from esceme.tasks.split import read_split
from esceme.tasks.submission import check_predictions, match_predictions, read_predictions, write_submission

if TYPE_CHECKING:
    SubmissionTask = str
else:
    SubmissionTask = Literal[tuple(name for name, task in TASKS.items() if task.leaderboard)]


def submit(
    task: SubmissionTask,
    predictions: Path,
    annotations: Path,
    connectivity: Path,
    out: Path,
    json: bool = False,
) -> int:
    """Check predictions and write a leaderboard submission.

    Every episode needs one prediction, which begins at the start of the episode and follows edges. If a step
    has several viewpoints, it becomes several entries. Missing headings are computed. Nothing is written if a
    check fails.

    Examples:
        esceme submit --task r2r --predictions p.json --annotations R2R_test.json --connectivity graphs ...
        esceme submit --task rxr --predictions p.jsonl --annotations rxr_test_guide.jsonl.gz ... --out o.jsonl

    Args:
        task: the task of the leaderboard.
        predictions: trajectories, as json or json lines, in any common format.
        annotations: the annotation file of the split.
        connectivity: the folder of navigation graphs.
        out: the output file.
        json: print the result as one json object.
    """
    if out.suffix == ".gz":
        raise ConfigError(f"--out {out}: servers take the plain file; leave .gz off its name")
    loaded = read_split(TASKS[task], annotations, connectivity)
    pairs = match_predictions(loaded.episodes, read_predictions(predictions), TASKS[task], file=predictions)
    check_predictions(pairs, loaded.graphs, file=predictions)
    with_object = sum(
        TASKS[task].scores_objects and prediction.object_id is not None for _, prediction in pairs
    )
    if 0 < with_object < len(pairs):
        raise DataError(
            f"{predictions}: {with_object} of {len(pairs)} predictions have predObjId; give all or none"
        )
    write_submission(out, TASKS[task], pairs, loaded.graphs)
    if json:
        print_json({"out": str(out), "n": len(pairs), "with_object": with_object})
        return 0
    print(f"{out}: {len(pairs)} episodes, ready for the {TASKS[task].leaderboard}")
    if TASKS[task].scores_objects and not with_object:
        note("note: no prediction names an object (predObjId), so the server can score navigation only")
    return 0
