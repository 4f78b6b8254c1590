"""The `esceme` command: one function per sub-command, found by name and parsed by tyro."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from esceme import __version__
from esceme.errors import EscemeError

COMMANDS = {
    "demo": (
        "esceme.cli.demo:demo",
        "Train an agent without memory and one with it, and see what remembering gives.",
    ),
    "synth": ("esceme.cli.synth:synth", "Make the embedded world: generated houses in the public formats."),
    "data check": ("esceme.cli.data:check", "Say what a data folder holds and what is wrong with it."),
    "data r4r": ("esceme.cli.data:r4r", "Make R4R, the long-path dataset, from R2R."),
    "data tours": ("esceme.cli.data:tours", "Make IVLN-style tours: long series of episodes in one scene."),
    "features pack": (
        "esceme.cli.features:pack",
        "Turn an HDF5 feature file into a mapped half-precision one.",
    ),
    "features extract": (
        "esceme.cli.features:extract",
        "Turn panoramas into the features of their 36 views.",
    ),
    "features semantic": (
        "esceme.cli.features:semantic",
        "Make features of real scenes from annotated objects and rooms, without pictures.",
    ),
    "import": (
        "esceme.cli.checkpoints:import_",
        "Turn published weights into a run folder.",
    ),
    "export": ("esceme.cli.checkpoints:export", "Write a run's weights in the layout of the original code."),
    "recipes": ("esceme.cli.recipes:recipes", "List what can be trained, or say all about one recipe."),
    "train": ("esceme.cli.train:train", "Train a navigator by a recipe, or go on with an interrupted run."),
    "evaluate": (
        "esceme.cli.evaluate:evaluate",
        "Let a run walk a split under a memory protocol, and score it.",
    ),
    "compare": ("esceme.cli.compare:compare", "Compare results of the same episodes, with paired intervals."),
    "memory show": ("esceme.cli.memory:show", "Say what a file of memories holds."),
    "score": ("esceme.cli.score:score", "Score a prediction file with every measure of the field."),
    "submit": (
        "esceme.cli.submit:submit",
        "Check predictions and write the file that a leaderboard accepts.",
    ),
    "scene": ("esceme.cli.draw_scene:scene", "Draw a scene from above with paths, as SVG."),
    "verify": (
        "esceme.cli.verify:verify",
        "Compare this implementation with reference numbers of the original.",
    ),
}
"""Command -> where its function lives, and one line for the overview. Modules load only when called."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; messages meant for people go to standard error."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except EscemeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever was reading has seen enough
        _drop_output()
        return 1
    except OSError as error:  # of the machine, not of a file: a full disk behind standard output
        print(f"error: {error}", file=sys.stderr)
        _drop_output()
        return 2


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["--version"]:
        print(f"esceme {__version__}")
        return 0
    name = _find(words)
    return _overview(words) if name is None else _run(name, words[len(name.split()) :])


def _drop_output() -> None:
    """Let what is still to be written to standard output vanish, or Python tries again when it ends."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _find(words: Sequence[str]) -> str | None:
    for length in (2, 1):
        if (name := " ".join(words[:length])) in COMMANDS:
            return name
    return None


def _run(name: str, args: list[str]) -> int:
    import tyro

    module_name, _, function = COMMANDS[name][0].partition(":")
    module = import_module(module_name)
    command = getattr(module, function)
    options: dict[str, Any] = {"f": command, "config": (tyro.conf.FlagCreatePairsOff,)}
    if parser_options := getattr(module, "parser_options", None):  # of options that depend on the arguments
        options |= parser_options(args)
    description = inspect.cleandoc(command.__doc__).partition("\nArgs:")[0]
    result: int = tyro.cli(**options, prog=f"esceme {name}", description=description, args=args)
    return result


def _overview(words: Sequence[str]) -> int:
    asked = not words or words[0] in ("-h", "--help", "help")
    group = words[0] if words and any(name.startswith(f"{words[0]} ") for name in COMMANDS) else ""
    asked = asked or bool(group) and words[1:2] in (["-h"], ["--help"])
    stream = sys.stdout if asked else sys.stderr
    if not asked:
        wrong = " ".join(words[:2]) if group else words[0]
        print(f"error: no command '{wrong}'\n", file=stream)
    print(
        "usage: esceme COMMAND [options]      (esceme COMMAND --help shows options and examples)\n",
        file=stream,
    )
    for name, (_, line) in COMMANDS.items():
        if name.startswith(group):
            print(f"  {name:<19}{line}", file=stream)
    return 0 if asked else 2
