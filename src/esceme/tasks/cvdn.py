"""Navigation from Dialog History (CVDN): follow the latest answer of a dialog towards its target object."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from esceme.errors import ConfigError, DataError
from esceme.files import PrintableText, read_records
from esceme.tasks.episode import Angle, DialogEpisode, TokenId, require_unique_ids

History = Literal["target", "last-answer", "all"]
"""Part of the dialog that the instruction contains, in addition to the target object."""
Supervision = Literal["trusted", "player", "planner"]
"""Which path is the reference path; see `read_cvdn`."""

MARKERS = {"navigator": "<NAV>", "oracle": "<ORA>", "target": "<TAR>"}
"""Kind of message -> marker before it in the instruction."""


class DialogTurn(msgspec.Struct):
    """One message of a dialog."""

    role: Literal["navigator", "oracle"]
    message: str


class StartPose(msgspec.Struct):
    """Viewpoint and heading (radians) of the human navigator at the latest question."""

    pano: str
    heading: Angle


class DialogRecord(msgspec.Struct, omit_defaults=True):
    """Instance of Navigation from Dialog History (NDH) as published.

    Instances of the test split lack the fields below `dialog_history`.
    """

    inst_idx: int
    scan: PrintableText
    target: str
    start_pano: StartPose
    dialog_history: list[DialogTurn]
    end_panos: list[str] = []
    player_path: list[str] = []
    planner_path: list[str] = []
    game_idx: int | None = None


class EncodedDialogRecord(msgspec.Struct, omit_defaults=True):
    """NDH instance with token ids, as released with HAMT (docs/spec.md A.12).

    Instances of the test split lack `end_panos`.
    """

    instr_id: PrintableText | int
    scan: PrintableText
    instr_encoding: list[TokenId]
    start_pano: str
    start_heading: Angle
    end_panos: list[str] = []
    nav_steps: list[str] = []
    nav_idx: Annotated[int, msgspec.Meta(ge=0)] = 0
    target: str = ""
    game_idx: int | None = None


class DialogFormat(msgspec.Struct):
    """Record of which only `instr_encoding` is read. Only pre-encoded instances have this key."""

    instr_encoding: object = None


def read_cvdn(
    path: str | Path, *, history: History = "all", supervision: Supervision = "trusted"
) -> list[DialogEpisode]:
    """Read one episode per instance of Navigation from Dialog History, published or pre-encoded.

    The goals of an episode are the end panoramas of its instance.

    The instruction of a published instance is `dialog_text(...)`. `supervision` selects the reference path:
    the path of the human navigator (`player`), the path shown to the human oracle (`planner`), or the result
    of `trusted_path` for these two paths (`trusted`).

    A pre-encoded instance has token ids but neither text nor a planner path. `ConfigError` is raised if
    `history` or `supervision` requires these. The reference path is the remaining path of the human navigator
    in the game, or only the start if the remaining path begins elsewhere.

    Instances without end panoramas (test split) have only a start. Instances of one game share a `path_id`.
    """
    path = Path(path)
    if read_records(path, DialogFormat)[0].instr_encoding is None:
        episodes = [
            _raw_episode(record, path, history, supervision) for record in read_records(path, DialogRecord)
        ]
    else:
        if history != "all" or supervision == "planner":
            raise ConfigError(
                f"{path}: a pre-encoded file offers neither history='{history}' nor a planner path; "
                "read the raw NDH file for those"
            )
        episodes = [_encoded_episode(record, path) for record in read_records(path, EncodedDialogRecord)]
    require_unique_ids(episodes, path)
    return episodes


def dialog_text(turns: list[DialogTurn], target: str, history: History = "all") -> str:
    """Return a dialog as one text: messages from old to new, then the target, each after its marker.

    How the text of the released token ids was built is not public. The order here is the order in the
    definition of the NDH task. Truncation at the beginning keeps the latest answer and the target
    (docs/spec.md A.12).

    >>> turns = [DialogTurn("navigator", "Left or right?"), DialogTurn("oracle", "Left.")]
    >>> dialog_text(turns, "lamp")
    '<NAV> Left or right? <ORA> Left. <TAR> lamp'
    >>> dialog_text(turns, "lamp", "last-answer"), dialog_text(turns, "lamp", "target")
    ('<ORA> Left. <TAR> lamp', '<TAR> lamp')
    """
    answers = [turn for turn in turns if turn.role == "oracle"]
    selected = {"all": turns, "last-answer": answers[-1:], "target": []}[history]
    messages = [f"{MARKERS[turn.role]} {turn.message}" for turn in selected]
    return " ".join([*messages, f"{MARKERS['target']} {target}"])


def trusted_path(player: list[str], planner: list[str]) -> list[str]:
    """Return `player` if, after its start, it visits the last viewpoint of `planner`; otherwise `planner`.

    >>> trusted_path(["a", "b", "c"], ["a", "b"]), trusted_path(["a", "c"], ["a", "b"])
    (['a', 'b', 'c'], ['a', 'b'])
    """
    return player if planner and planner[-1] in player[1:] else planner


def _raw_episode(
    record: DialogRecord, file: Path, history: History, supervision: Supervision
) -> DialogEpisode:
    """Return the episode of a published instance; see `read_cvdn`."""
    start = record.start_pano.pano
    reference = [start]
    if record.end_panos:
        reference = {
            "player": record.player_path,
            "planner": record.planner_path,
            "trusted": trusted_path(record.player_path, record.planner_path),
        }[supervision]
        if reference[:1] != [start]:
            begin = f"begins at '{reference[0]}'" if reference else "is empty"
            raise DataError(
                f"{file}: instance {record.inst_idx}: the {supervision} path {begin}, "
                f"expected it to begin at start_pano '{start}'"
            )
    return DialogEpisode(
        episode_id=str(record.inst_idx),
        scene_id=record.scan,
        path_id=str(record.inst_idx if record.game_idx is None else record.game_idx),
        reference_path=tuple(reference),
        heading=record.start_pano.heading,
        instruction=dialog_text(record.dialog_history, record.target, history),
        goals=tuple(record.end_panos),
        goal_withheld=not record.end_panos,
        target=record.target,
        player_path=tuple(record.player_path),
        planner_path=tuple(record.planner_path),
    )


def _encoded_episode(record: EncodedDialogRecord, file: Path) -> DialogEpisode:
    """Return the episode of a pre-encoded instance; see `read_cvdn`."""
    if not record.instr_encoding:
        raise DataError(f"{file}: instance {record.instr_id}: 'instr_encoding' is empty; expected token ids")
    player_path = tuple(record.nav_steps[record.nav_idx :])
    is_reference = bool(record.end_panos) and player_path[:1] == (record.start_pano,)
    return DialogEpisode(
        episode_id=str(record.instr_id),
        scene_id=record.scan,
        path_id=str(record.instr_id if record.game_idx is None else record.game_idx),
        reference_path=player_path if is_reference else (record.start_pano,),
        heading=record.start_heading,
        instruction="",
        tokens=tuple(record.instr_encoding),
        goals=tuple(record.end_panos),
        goal_withheld=not record.end_panos,
        target=record.target,
        player_path=player_path,
    )
