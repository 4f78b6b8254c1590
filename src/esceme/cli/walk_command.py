"""The command `esceme walk`."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import tyro

from esceme.cli.console import TaskName, note, print_facts
from esceme.cli.data_option import EMBEDDED, find_data
from esceme.errors import ConfigError
from esceme.evaluation import EvaluationConfig
from esceme.evaluation.context import SCRIPTED
from esceme.evaluation.protocol import Protocol
from esceme.runs import load_run, read_navigator_config
from esceme.tasks.folder import default_data
from esceme.viewer.walk_server import WalkServer
from esceme.viewer.walk_session import WalkSession

DEMO_RUN = Path("demo/memory")
"""Run of `esceme demo`, the default agent where it exists."""


def walk(
    run: Annotated[str | None, tyro.conf.arg(metavar="[RUN]")] = None,
    /,
    data: str | None = None,
    split: str = "val_unseen",
    task: TaskName | None = None,
    features: Path | None = None,
    bank: Path | None = None,
    save: Path | None = Path("walk-bank.safetensors"),
    port: int = 0,
    open: bool = False,
    json: bool = False,
) -> int:
    """Serve a live page on this machine: an agent walks your instructions, or you walk yourself.

    Type an instruction and the agent follows it step by step, with its probabilities and its memory; or walk
    an episode yourself by clicking in the panoramas, and compare your scores with the agent's.
    The memory is kept between walks, and can be cleared and saved. The server listens on 127.0.0.1 only.

    Examples:
        esceme walk demo/memory --data embedded --open
        esceme walk runs/esceme-r2r --split val_unseen --bank bank.safetensors
        esceme walk --data embedded:tiny

    Args:
        run: a run folder or a scripted agent; by default that of `esceme demo`, or no agent if there is none.
        data: data folder, or `embedded`; by default ESCEME_DATA or ./datasets, else the embedded world.
        split: the split whose scenes and episodes are on the page.
        task: by default the task of the run.
        features: the feature file, where the data folder has several.
        bank: file of a memory with which the agent starts.
        save: file to which the page saves the memory.
        port: port of the server; 0 selects a free one.
        open: open the page in the browser.
        json: print the address of the page as one JSON object.
    """
    if not 0 <= port < 65536:
        raise ConfigError(f"--port {port}: expected 0 to 65535")
    if run is None and DEMO_RUN.is_dir():
        run = str(DEMO_RUN)
    folder = find_data(data or (None if default_data().is_dir() else EMBEDDED))
    agent = run or "stop"
    config = EvaluationConfig(
        run=agent,
        data=str(folder),
        split=split,
        memory=_protocol(agent, bank),
        task=task or ("r2r" if agent in SCRIPTED else read_navigator_config(Path(agent)).task),
        bank=None if bank is None else str(bank),
        features=None if features is None else str(features),
    )
    session = WalkSession(config, has_agent=run is not None)
    try:
        server = WalkServer(session, port=port, bank=save)
    except OSError as error:
        raise ConfigError(f"--port {port}: cannot be used ({error.strerror or error})") from None
    with server:
        text = f"open {server.address} (Ctrl-C ends the server)"
        print_facts({"address": server.address}, text, json=json)
        sys.stdout.flush()
        if run is None:
            note("no run folder was given: only you can walk, `esceme walk RUN` adds an agent")
        if open:
            webbrowser.open(server.address)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            note("stopped")
    return 0


def _protocol(agent: str, bank: Path | None) -> Protocol:
    """Return the memory protocol: memory is kept between walks if the agent has one."""
    if bank is not None:
        return "warm"
    if agent in SCRIPTED or not load_run(agent).navigator.reader.uses_memory:
        return "none"
    return "cold"
