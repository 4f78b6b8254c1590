"""The `esceme` command: imports the function of a sub-command and parses its options with tyro."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType
from typing import Any

from esceme import __version__
from esceme.errors import EscemeError

COMMANDS = {
    "demo": ("demo_command:demo", "Train an agent without and one with memory, and compare them."),
    "synth": ("synth_command:synth", "Generate the embedded world: houses in the public file formats."),
    "data check": ("data_command:check", "Check the files of a data folder."),
    "data r4r": ("data_command:r4r", "Make R4R, the long-path dataset, from R2R."),
    "data tours": ("data_command:tours", "Make IVLN-style tours: long series of episodes in one scene."),
    "features pack": (
        "features_command:pack",
        "Convert an HDF5 feature file to a memory-mapped float16 one.",
    ),
    "features extract": ("features_command:extract", "Extract the features of the 36 views of panoramas."),
    "features semantic": (
        "features_command:semantic",
        "Make features of real scenes from annotated objects and rooms, without pictures.",
    ),
    "import": ("checkpoints_command:import_", "Convert published weights to a run folder."),
    "export": ("checkpoints_command:export", "Write a run's weights in the layout of the original code."),
    "recipes": ("recipes_command:recipes", "List the recipes that can be trained, or describe one."),
    "train": ("train_command:train", "Train a navigator by a recipe, or resume an interrupted run."),
    "train-planner": (
        "planner_command:train_planner",
        "Train the planner of a run, which `evaluate --planner routes` uses.",
    ),
    "speak": ("planner_command:speak", "List words for a route, or write instructions for random paths."),
    "evaluate": (
        "evaluate_command:evaluate",
        "Run a navigator on a split under a memory protocol, and score it.",
    ),
    "compare": ("compare_command:compare", "Compare results of the same episodes, with paired intervals."),
    "table": ("table_command:table", "Print a table of the paper, with your results as further rows."),
    "reproduce": (
        "reproduce_command:reproduce",
        "Train, evaluate and report what a table of the paper or a study needs.",
    ),
    "memory show": (
        "memory_command:show",
        "Show the contents of a memory store or bank file, or draw a store.",
    ),
    "memory merge": ("memory_command:merge", "Merge memory stores, or bank files, into one."),
    "memory export": ("store_command:export", "Write a memory store as GeoJSON, Parquet, bank or store."),
    "memory import": ("store_command:import_", "Add a bank, a Parquet table or a store to a store."),
    "memory forget": (
        "store_command:forget",
        "Remove observations from a store, or a scene from a bank file.",
    ),
    "memory check": ("store_command:check", "Verify the checksums of a memory store or bank file."),
    "serve": ("serve_command:serve", "Serve a memory store to many robots, over HTTP."),
    "score": ("score_command:score", "Score a prediction file: SR, SPL, nDTW and further metrics."),
    "submit": ("submit_command:submit", "Check predictions and write the file that a leaderboard accepts."),
    "mattersim run": (
        "mattersim_command:run",
        "Run a program that imports MatterSim, the module of the Matterport3D simulator.",
    ),
    "scene": ("scene_command:scene", "Draw a scene from above, with paths on it, as SVG."),
    "view": ("view_command:view", "Write one HTML page that shows what agents saw, did and remembered."),
    "walk": ("walk_command:walk", "Serve a live page: an agent follows your instructions, or you walk."),
    "figure memory": ("figure_command:memory", "Draw how the memory of a scene grew in an evaluation."),
    "figure episode": (
        "figure_command:episode",
        "Draw an episode: paths from above, panorama of every step.",
    ),
    "figure curves": ("figure_command:curves", "Draw a measure over the progress of evaluations."),
    "verify": (
        "verify_command:verify",
        "Compare this implementation with reference numbers of the original.",
    ),
}
"""Command -> (module and function in `esceme.cli`, description in the list of commands)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (default: `sys.argv`), print errors to stderr, and return the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        with _handle_signals():
            code = _dispatch(args)
        sys.stdout.flush()
        return code
    except EscemeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has closed the pipe
        _discard_output()
        return 1
    except OSError as error:  # standard output cannot be written: a full disk
        print(f"error: {error}", file=sys.stderr)
        _discard_output()
        return 2


@contextmanager
def _handle_signals() -> Iterator[None]:
    """Let SIGTERM raise `KeyboardInterrupt`, as Ctrl-C does, so that commands can save their work.

    C code may replace the interruption by another error; `KeyboardInterrupt` is then raised at the end.
    """
    if threading.current_thread() is not threading.main_thread():  # signal handlers belong to the main thread
        yield
        return
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: old for number, old in handlers.items() if old not in (None, signal.SIG_IGN)}
    try:
        for number in before:
            signal.signal(number, interrupt)
        yield
    except Exception as error:
        if received and not isinstance(error, EscemeError):
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _dispatch(args: list[str]) -> int:
    if args[:1] == ["--version"]:
        print(f"esceme {__version__}")
        return 0
    name = next((name for length in (2, 1) if (name := " ".join(args[:length])) in COMMANDS), None)
    return _print_overview(args) if name is None else _run_command(name, args[len(name.split()) :])


def _discard_output() -> None:
    """Discard buffered output; otherwise Python would try to write it again at exit, and fail again."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run_command(name: str, args: list[str]) -> int:
    import tyro

    module_name, _, function = COMMANDS[name][0].partition(":")
    module = import_module(f"{__name__}.{module_name}")
    command = getattr(module, function)
    options: dict[str, Any] = {"f": command, "args": args, "config": (tyro.conf.FlagCreatePairsOff,)}
    if parser_options := getattr(module, "parser_options", None):  # of options that depend on the arguments
        options |= parser_options(args)
    description = inspect.cleandoc(command.__doc__).partition("\nArgs:")[0]
    result: int = tyro.cli(**options, prog=f"esceme {name}", description=description)
    return result


def _print_overview(args: Sequence[str]) -> int:
    """Print a list of all commands, or of one group such as `data`, and return the exit code.

    The exit code is 0 if help was requested, and otherwise 2, because no known command was given.
    """
    group = args[0] if args and any(name.startswith(f"{args[0]} ") for name in COMMANDS) else ""
    is_help = not args or (args[1:2] if group else args[:1]) in (["-h"], ["--help"], ["help"])
    stream = sys.stdout if is_help else sys.stderr
    if not is_help:
        print(f"error: no command '{' '.join(args[:2]) if group else args[0]}'\n", file=stream)
    print(
        "usage: esceme COMMAND [options]      (esceme COMMAND --help shows options and examples)\n",
        file=stream,
    )
    for name, (_, line) in COMMANDS.items():
        if name.startswith(group):
            print(f"  {name:<19}{line}", file=stream)
    return 0 if is_help else 2
