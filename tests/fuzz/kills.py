"""Stops commands at random moments, or fills their disk, and runs them again: `python -m fuzz.kills`.

Commands are forked from this process, which has imported everything. A stopped command has to leave earlier
outputs whole, and the next run has to end with the files of an undisturbed run: no more, no fewer, with the
same bytes. Signals come after a random time, or at a random change of the file system, where faults hide.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch

from esceme.cli import main as run_command
from esceme.errors import EscemeError
from esceme.evaluation import evaluate
from esceme.memory import MemoryBank, MemoryStore, load_bank, save_bank
from esceme.recipes import RECIPES
from esceme.synth.dataset import WORLD_PRESETS
from esceme.world import open_features, pack
from esceme.world.features import ArrayFeatures
from fuzz.inputs import DATASET, EXPERIMENT, TOY, state_digest, write_inputs

SIGNALS = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "INT": signal.SIGINT}
TIMEOUT, HANGS = 600.0, -999
"""Seconds until a command counts as hanging, and the code that it then gets."""
VOLATILE = re.compile(r"(^|/)(\.lock|tensorboard(/.*)?|journal\.jsonl|site\.db-(wal|shm))$")
"""Files that depend on times or on the order of processes."""
FILE_CHANGES = {"os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir", "os.chmod", "os.link"}
"""Audit events of changes of the file system, beside those of `open` for writing."""
COMMANDS = ("train", "evaluate", "synth", "features", "data", "checkpoints")
PRELOADED = ("torch._dynamo", "torch.utils.tensorboard", *(f"esceme.cli.{name}_command" for name in COMMANDS))
"""Modules that commands import late."""
Files = dict[str, bytes]
Check = Callable[[Files, Files, Files, str], str]
"""Finds what is wrong with the files before, after the signal and at the end, and the output of the next run;
empty if nothing is."""


@dataclass(frozen=True)
class Scenario:
    """A command that writes to the current folder; its inputs are in `../inputs`."""

    name: str
    run: Callable[[], int]
    prepare: Callable[[], Any] = lambda: None
    """Writes earlier outputs, which the command replaces."""
    weight: int = 4
    check: Check = lambda earlier, stopped, final, output: ""


# -- scenarios ---------------------------------------------------------------------------------------------


def _command(*args: str) -> Callable[[], int]:
    return lambda: run_command(args)


def _no_mixture(*names: str) -> Check:
    """Check that files that belong together are of one run; some may be missing."""

    def check(earlier: Files, stopped: Files, final: Files, output: str) -> str:
        found = {name: stopped[name] for name in names if name in stopped}
        is_whole = any(found.items() <= files.items() for files in (earlier, final))
        return "" if is_whole else f"neither the earlier nor the new {', '.join(names)}"

    return check


def _check_r4r(earlier: Files, stopped: Files, final: Files, output: str) -> str:
    """Check that the splits are of one run, or that their manifest shows which are not."""
    names = [f"out/R4R_{split}.json" for split in ("train", "val_seen", "val_unseen")]
    fault = _no_mixture(*names)(earlier, stopped, final, output)
    manifest = json.loads(stopped.get("out/r4r_manifest.json", b"{}")).get("files", {})
    hashes = {name: hashlib.sha256(stopped.get(f"out/{name}", b"")).hexdigest() for name in manifest}
    return fault if hashes == manifest else ""


def _check_pack(earlier: Files, stopped: Files, final: Files, output: str) -> str:
    """Check that packed features are the earlier or the new ones, or cannot be opened."""
    fault = _no_mixture("out/f.npy", "out/f.json")(earlier, stopped, final, output)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("f.npy", "f.json"):
            if (data := stopped.get(f"out/{name}")) is not None:
                (Path(folder) / name).write_bytes(data)
        try:
            store = open_features(Path(folder) / "f.npy")
            for key in store.keys:
                store.panorama(key)
        except EscemeError:
            return ""
    return fault


def _check_journal(earlier: Files, stopped: Files, final: Files, output: str) -> str:
    journal = stopped.get("out/journal.jsonl", b"")
    complete = journal[: journal.rfind(b"\n") + 1]
    return "" if final["out/journal.jsonl"].startswith(complete) else "lines of the journal are lost"


def _check_states(earlier: Files, stopped: Files, final: Files, output: str) -> str:
    """Check that training continues from the last state."""
    states = [int(Path(name).stem) for name in stopped if re.fullmatch(r"out/state/\d+\.pt", name)]
    begun = [json.loads(line)["begun_after"] for line in output.splitlines() if line.startswith("{")]
    return "" if not states or not begun or begun[0] >= max(states) else f"{max(states)} iterations are lost"


def _save_banks() -> int:
    """Add one scene after the other to a bank file, from where an earlier run has ended."""
    source, out = Path("../inputs/evaluation/bank.safetensors"), Path("out/bank.safetensors")
    whole = load_bank(source)
    bank = MemoryBank(whole.width, pooling=whole.pooling, source=whole.source)
    if out.exists():
        bank = load_bank(out)
    for scene in whole.scenes:
        addition = load_bank(source)
        for other in {*whole.scenes} - {scene}:
            addition.forget(other)
        bank.merge(addition)
        save_bank(bank, out)
    return 0


def _check_bank(earlier: Files, stopped: Files, final: Files, output: str) -> str:
    if (data := stopped.get("out/bank.safetensors")) is None:
        return ""
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        Path(file.name).write_bytes(data)
        try:
            load_bank(file.name)
        except EscemeError as error:
            return str(error)
    return ""


def _run_as_command(function: Callable[[], int]) -> Callable[[], int]:
    """Run a function with the error and signal handling of commands."""

    def run() -> int:
        with patch("esceme.cli._dispatch", lambda args: function()):
            return run_command(["function"])

    return run


def _copy(source: str, target: str) -> Callable[[], Any]:
    def copy() -> None:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if Path(source).is_dir() else shutil.copy)(source, target)

    return copy


_EVALUATE = (
    *("evaluate", "../inputs/dataset/run", "--split", "val_unseen", "--memory", "cold", "--out", "out"),
    *("--data", "../inputs/dataset/data", "--bootstrap", "0"),
)
_SYNTH = ("synth", "--size", "tiny", "--scenes", "1", "--processes", "1", "--no-cache", "--out", "out")
_R4R = ("data", "r4r", "--r2r", "../inputs/toy/R2R", "--connectivity", "../inputs/toy/connectivity")
_SEMANTIC = ("features", "semantic", "--data", "../inputs/toy", "--glove", "none")
_EARLIER_FEATURES = _copy("../inputs/toy/features/toy.hdf5", "out/f.hdf5")
_PACK = ("features", "pack", "../inputs/toy/features/toy.hdf5", "--out", "out/f.npy")
_TRAIN = ("train", "fuzzed", "--data", "../inputs/training/data", "--out", "out", "--json")
SCENARIOS = (
    Scenario("train", _command(*_TRAIN), weight=6, check=_check_states),
    Scenario("evaluate", _command(*_EVALUATE), weight=6, check=_check_journal),
    Scenario("evaluate 2", _command(*_EVALUATE, "--processes", "2"), weight=2, check=_check_journal),
    Scenario("evaluate in store", _command(*_EVALUATE, "--store", "site.db"), check=_check_journal),
    Scenario("synth", _command(*_SYNTH), weight=2),
    Scenario("pack", _command(*_PACK), _copy("../inputs/earlier", "out"), check=_check_pack),
    Scenario(
        "extract",
        _command("features", "extract", "../inputs/panoramas", "--out", "out/f.hdf5"),
        _EARLIER_FEATURES,
        check=_no_mixture("out/f.hdf5"),
    ),
    Scenario(
        "semantic",
        _command(*_SEMANTIC, "--out", "out/f.hdf5"),
        _EARLIER_FEATURES,
        check=_no_mixture("out/f.hdf5"),
    ),
    Scenario(
        "r4r",
        _command(*_R4R, "--out", "out"),
        _copy("../inputs/R4R", "out"),
        check=_check_r4r,
    ),
    Scenario("bank", _run_as_command(_save_banks), check=_check_bank),
    Scenario(
        "import", _command("import", "../inputs/checkpoints/new.pt", "--heads", "3", "--out", "out"), weight=2
    ),
    Scenario("export", _command("export", "../inputs/trained", "--out", "out/best.pt"), weight=2),
)


def _write_all_inputs(folder: Path) -> None:
    """Write the inputs, and earlier outputs that differ from the new ones."""
    os.chdir(folder)
    write_inputs()
    store = open_features(TOY / "features/toy.hdf5")
    reversed_views = np.stack([store.panorama(key)[::-1] for key in store.keys])
    pack(ArrayFeatures(store.keys, reversed_views, source="earlier.hdf5"), "earlier/f.npy")
    Path("R4R").mkdir()
    for split in ("train", "val_seen", "val_unseen"):
        shutil.copy(TOY / "R2R/R2R_val_seen.json", f"R4R/R4R_{split}.json")


# -- a command in a process --------------------------------------------------------------------------------


class Running(NamedTuple):
    """A started command."""

    pid: int
    """Id of the process and of its group."""
    output: int
    """The pipe of its output, large enough never to block."""


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    """Exit code; negative for a signal."""
    output: str

    def __str__(self) -> str:
        return f"exit code {self.code}: {' / '.join(self.output.strip().splitlines()[-4:])[-600:]}"


def start(run: Callable[[], int], folder: Path, before: Callable[[], Any] = lambda: None) -> Running:
    """Start a command in a folder, in a process group of its own; the process calls `before` first."""
    ready, begun = os.pipe()
    output, printed = os.pipe()
    fcntl.fcntl(printed, fcntl.F_SETPIPE_SZ, 1 << 20)
    if pid := os.fork():
        os.close(begun)
        os.close(printed)
        os.read(ready, 1)
        os.close(ready)
        return Running(pid, output)
    try:
        os.setsid()
        os.chdir(folder)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        vars(sys.modules["__main__"]).update(__spec__=None, __file__=None)  # or spawned workers import it
        before()
        os.write(begun, b".")
        os.close(begun)
        code = run()
        sys.stdout.flush()
        os._exit(code)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def wait_for(running: Running) -> Ended:
    """Wait until a command and all processes that it started have ended."""
    deadline, done, status = time.monotonic() + TIMEOUT, 0, 0
    while not done and time.monotonic() < deadline:
        done, status = os.waitpid(running.pid, os.WNOHANG)
        time.sleep(0.002)
    while _group_exists(running.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    if hangs := _group_exists(running.pid):
        os.killpg(running.pid, signal.SIGKILL)
        if not done:
            os.waitpid(running.pid, 0)
    with os.fdopen(running.output, errors="replace") as output:
        return Ended(HANGS if hangs else os.waitstatus_to_exitcode(status), output.read())


def _group_exists(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.killpg(pid, 0)
        return True
    return False


def before_file_changes(function: Callable[[], Any]) -> Callable[[], None]:
    """A function that makes a process call `function` before every change of the file system."""

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        opens = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if opens or event in FILE_CHANGES:
            function()

    return lambda: sys.addaudithook(audit)


def signal_at(number: int, signal_number: int) -> Callable[[], None]:
    """A function that makes a process signal itself before its n-th change of the file system."""
    remaining = count(number, -1)
    return before_file_changes(lambda: next(remaining) == 0 and os.kill(os.getpid(), signal_number))


# -- cases -------------------------------------------------------------------------------------------------


class Reference(NamedTuple):
    """An undisturbed run."""

    earlier: Files
    final: Files
    seconds: float
    num_changes: int
    """Number of changes of the file system."""


class Case(NamedTuple):
    """A disturbed run, and what is wrong with it; empty if nothing is."""

    name: str
    scenario: str
    how: str
    fault: str


def measure(scenario: Scenario, root: Path) -> Reference:
    """Run a command undisturbed."""
    with case_folder(root, scenario) as folder:
        earlier, begin = read_files(folder), time.monotonic()
        counted = os.open(f"{folder}.changes", os.O_WRONLY | os.O_CREAT)
        ended = wait_for(start(scenario.run, folder, before_file_changes(lambda: os.write(counted, b"."))))
        assert ended.code == 0, f"{scenario.name}: {ended}"
        return Reference(earlier, read_files(folder), time.monotonic() - begin, os.stat(counted).st_size)


def run_kill(number: int, seed: int, references: dict[str, Reference], root: Path) -> Case:
    """Stop a command, run it again, and look for faults."""
    rng = Random(f"{seed} {number}")
    scenarios = [scenario for scenario in SCENARIOS if scenario.name in references]
    scenario = rng.choices(scenarios, [scenario.weight for scenario in scenarios])[0]
    reference, name = references[scenario.name], rng.choice(list(SIGNALS))
    with case_folder(root, scenario) as folder:
        if rng.random() < 0.5:
            change = rng.randrange(reference.num_changes)
            how = f"{name} at change {change}"
            running = start(scenario.run, folder, signal_at(change, SIGNALS[name]))
        else:
            delay = rng.random() * reference.seconds
            how = f"{name} after {delay:.2f} s"
            running = start(scenario.run, folder)
            time.sleep(delay)
            send = os.killpg if name == "INT" else os.kill  # Ctrl-C reaches the whole group
            send(running.pid, SIGNALS[name])
        ended = wait_for(running)
        expected = (0, -signal.SIGKILL) if name == "KILL" else (0, 130, 143)
        # Half-started workers of a killed process print tracebacks, and so do interrupted finalisers.
        is_clean = name == "KILL" or "Traceback" not in ended.output.partition("Exception ignored in")[0]
        fault = "" if ended.code in expected and is_clean else str(ended)
        return Case(f"kill {number}", scenario.name, how, fault or run_again(scenario, reference, folder))


def run_full_disk(number: int, seed: int, references: dict[str, Reference], root: Path) -> Case:
    """Run a command that cannot write beyond a random size, then again without limit."""
    rng, name = Random(f"{seed} {number}"), [*references][number % len(references)]
    scenario, reference = next(item for item in SCENARIOS if item.name == name), references[name]
    new = [data for name, data in reference.final.items() if data != reference.earlier.get(name)]
    limit = rng.randrange(max(map(len, new)))

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    with case_folder(root, scenario) as folder:
        ended = wait_for(start(scenario.run, folder, fill))
        errors = [line for line in ended.output.splitlines() if line.startswith("error: ")]
        is_clean = ended.code == 0 or (
            ended.code == 2 and len(errors) == 1 and "Traceback" not in ended.output
        )
        left = [name for name in read_files(folder) if ".part" in name]
        fault = "" if is_clean and not left else f"left {left}; {ended}"
        how = f"files of at most {limit} bytes"
        return Case(
            f"full disk {number}", scenario.name, how, fault or run_again(scenario, reference, folder)
        )


def run_again(scenario: Scenario, reference: Reference, folder: Path) -> str:
    """Run a stopped command again; return what is wrong, empty if nothing is."""
    stopped = read_files(folder)
    if _plain(stopped) == _plain(reference.final):
        return ""
    ended = wait_for(start(scenario.run, folder))
    final = read_files(folder)
    if ended.code:
        return f"the next run failed with {ended}"
    found, expected = _plain(final), _plain(reference.final)
    if differing := [name for name in sorted({*found, *expected}) if found.get(name) != expected.get(name)]:
        names = (f"{name} ({'left over' if name not in expected else 'differs'})" for name in differing[:3])
        return f"after the next run: {', '.join(names)}"
    return scenario.check(reference.earlier, stopped, final, ended.output)


def _plain(files: Files) -> Files:
    return {name: data for name, data in files.items() if not VOLATILE.search(name)}


def read_files(folder: Path) -> Files:
    """The contents of all files below a folder; empty folders have an entry too."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() or not any(path.iterdir()))
    return {path.relative_to(folder).as_posix(): _read(path) for path in paths}


def _read(path: Path) -> bytes:
    if path.suffix == ".db":  # equal stores have different times
        with suppress(EscemeError), MemoryStore.open(path, read_only=True) as store:
            return store.digest.encode()
    if path.suffix == ".pt":  # equal states may have different bytes
        with suppress(Exception):
            return state_digest(torch.load(path, weights_only=True)).encode()
    return path.read_bytes() if path.is_file() else b""


_NUMBERS = count()


@contextmanager
def case_folder(root: Path, scenario: Scenario) -> Iterator[Path]:
    """Make a new folder beside the inputs the current one, with the earlier outputs of a scenario."""
    folder, before = root / f"case-{os.getpid()}-{next(_NUMBERS)}", Path.cwd()
    folder.mkdir()
    os.chdir(folder)
    try:
        scenario.prepare()
        yield folder
    finally:
        os.chdir(before)
        shutil.rmtree(folder)


# -- all cases ---------------------------------------------------------------------------------------------


def run_all(
    kills: Sequence[int],
    full_disks: Sequence[int],
    seed: int,
    scenarios: Sequence[str],
    *,
    processes: int = 2,
) -> Iterator[Case]:
    """Run the cases in some processes; yields them as they end."""
    context = multiprocessing.get_context("fork")
    for module in PRELOADED:
        import_module(module)
    RECIPES["fuzzed"] = EXPERIMENT
    WORLD_PRESETS["tiny"] = WORLD_PRESETS["tiny"]._replace(height=64)
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        root = Path(name)
        (root / "inputs").mkdir()
        writer = context.Process(target=_write_all_inputs, args=(root / "inputs",))
        writer.start()
        writer.join()
        os.chdir(root / "inputs")
        evaluate(DATASET.config(), root / "warmed-up")  # in this process: commands that it forks start faster
        references = {item.name: measure(item, root) for item in SCENARIOS if item.name in scenarios}
        jobs, cases = context.Queue(), context.Queue()
        for function, numbers in ((run_kill, kills), (run_full_disk, full_disks)):
            for number in numbers:
                jobs.put((function, number))
        workers = [
            context.Process(target=_work, args=(jobs, cases, seed, references, root))
            for _ in range(processes)
        ]
        for worker in workers:
            jobs.put(None)  # the end, once per worker
            worker.start()
        yield from (cases.get() for _ in range(len(kills) + len(full_disks)))
        for worker in workers:
            worker.join()


def _work(jobs: Any, cases: Any, seed: int, references: dict[str, Reference], root: Path) -> None:
    while (job := jobs.get()) is not None:
        function, number = job
        cases.put(function(number, seed, references, root))


def main() -> int:
    """Run the cases; the exit code is 1 if one has a fault."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--full-disks", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="stop only these commands")
    options = parser.parse_args()
    begin, totals, faults = time.monotonic(), Counter[str](), Counter[str]()
    kills, full_disks = (range(options.first, options.first + n) for n in (options.kills, options.full_disks))
    cases = run_all(kills, full_disks, options.seed, options.only, processes=options.processes)
    for case in cases:
        totals[case.scenario] += 1
        faults[case.scenario] += bool(case.fault)
        if case.fault:
            print(f"{case.name} | {case.scenario} | {case.how} | {case.fault}", flush=True)
    for name, total in totals.items():
        print(f"{name:<18}{total:>5} runs{faults[name]:>5} faults")
    seconds = time.monotonic() - begin
    print(f"{totals.total()} runs of seed {options.seed} in {seconds:.0f} s, {faults.total()} faults")
    return 1 if faults.total() else 0


if __name__ == "__main__":
    sys.exit(main())
