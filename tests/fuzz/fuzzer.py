"""Reads damaged files of every kind and counts what happens: `python -m fuzz.fuzzer --cases 1000 --seed 0`.

Case N of a seed is always the same: `--case N` runs it alone and prints its traceback. `PYTHONPATH` decides
which version of the package is tested. Classes of outcomes:

- refused: an error message of one line; same: read with the same meaning; other: read with another meaning.
- silent: read, although a checksum or a range shows that the content is wrong.
- message: a message of several lines, or with control characters; traceback; hang; crash: ended by a signal.
- memory: the peak grew by more than ten times the size of the file, beyond a constant.
"""

from __future__ import annotations

import argparse
import io
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
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

from fuzz.inputs import KINDS, OUT, InputKind, write_inputs
from fuzz.mutations import Mutation, gzip_bomb, mutate, picture_bomb

CLASSES = ("refused", "same", "other", "silent", "message", "traceback", "hang", "crash", "memory")
FAILURES = CLASSES[3:]
TIMEOUT = 120.0
"""Seconds per case, on a machine that may be busy."""
MEMORY_FLOOR, MEMORY_LIMIT = 64 << 20, 6 << 30
"""Bytes by which the peak may grow for any file; bytes of address space beyond which allocations fail."""
CONTROL = re.compile(r"[^\S\n ]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


class Outcome(NamedTuple):
    """The outcome of a case."""

    case: int
    kind: str
    mutation: str
    name: str
    """One of `CLASSES`."""
    detail: str = ""
    """The message, the exception with its place, or the meaning that should have been refused."""


# -- one case ----------------------------------------------------------------------------------------------


def draw_case(seed: int, case: int) -> tuple[InputKind, str, Callable[[Path], Any], Random]:
    """The kind, the file and the call of a case, and the generator of its mutation."""
    rng = Random(f"{seed} {case}")
    kind = rng.choices(KINDS, [kind.weight for kind in KINDS])[0]
    return kind, rng.choice(kind.files), rng.choice(kind.calls), rng


def run_case(seed: int, case: int, *, verbose: bool = False) -> Outcome:
    """Run a case in the current folder, which holds the inputs; restore what it changes."""
    kind, file, call, rng = draw_case(seed, case)
    expected = undamaged_meaning(file, call)
    path = Path(file)
    with _restored(path, kind):
        mutation = mutate(rng, file, path.read_bytes(), kind.ranges)
        if rng.random() < 0.02:
            mutation = _replace_file(rng, path)
        else:
            path.write_bytes(mutation.data)
        _reset_peak()
        before = _memory("VmRSS")
        code, output, meaning, error = run_call(call, path)
        growth = _memory("VmHWM") - before
        is_changed = code and path.is_file() and path.read_bytes() != mutation.data
    if verbose:
        print(f"{kind.name}: {file}: {mutation.name}\ncode {code}, {growth >> 20} MB more\n{output}")
        if error is not None:
            traceback.print_exception(error)
    outcome = Outcome(case, kind.name, f"{Path(file).name}: {mutation.name}", *_classify(code, output, error))
    if is_changed:
        return outcome._replace(name="silent", detail=f"the refused file was changed; {outcome.detail}")
    size = len(mutation.data)
    if outcome.name in ("refused", "accepted") and growth > 10 * size + MEMORY_FLOOR:
        return outcome._replace(name="memory", detail=f"{growth >> 20} MB for a file of {size >> 10} kB")
    if outcome.name != "accepted":
        return outcome
    if meaning == expected:
        return outcome._replace(name="same")
    is_wrong = mutation.must_refuse or kind.has_checksum or (kind.is_strict and "delete key" in mutation.name)
    return outcome._replace(name="silent" if is_wrong else "other", detail=meaning[:300])


def _replace_file(rng: Random, path: Path) -> Mutation:
    """Put something else than a file at a path."""
    path.unlink()
    match name := rng.choice(["missing", "folder", "dangling link", "circular link"]):
        case "folder":
            path.mkdir()
        case "dangling link":
            path.symlink_to("nowhere")
        case "circular link":
            path.symlink_to(path.name)
    return Mutation(name, b"")


def run_call(call: Callable[[Path], Any], path: Path) -> tuple[int, str, str, BaseException | None]:
    """Read a file as from the command line; return the exit code, what was printed, meaning and error."""
    from esceme import cli

    found: list[Any] = []

    def dispatch(args: Sequence[str]) -> int:
        try:
            found.append(call(path))
        except OSError as error:  # only errors of standard output may reach the command line
            raise AssertionError(f"uncaught {type(error).__name__}: {error}") from error
        return found[0] if isinstance(found[0], int) else 0

    output = io.StringIO()
    original = cli._dispatch
    try:
        patched = patch.object(cli, "_dispatch", lambda args: original(args) if args else dispatch(args))
        with redirect_stdout(output), redirect_stderr(output), patched:
            code = cli.main([])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1, output.getvalue(), "", None
    except Exception as error:
        return 1, output.getvalue(), "", error
    try:
        return code, output.getvalue(), repr(found[0]) if found else "", None
    except RecursionError:  # a deeply nested value that the package does not look into
        return code, output.getvalue(), "deeply nested", None


def _classify(code: int, output: str, error: BaseException | None) -> tuple[str, str]:
    if isinstance(error, MemoryError):
        return "memory", _describe(error)
    if error is not None:
        return "traceback", _describe(error)
    message = output.partition("error: ")[2] if code else ""
    if "error: [Errno" in output:
        return "traceback", f"uncaught OSError: {message.strip()}"
    if (control := CONTROL.search(output)) or message.strip().count("\n"):
        place = control.start() if control else 0
        return "message", repr((output[max(0, place - 80) : place + 40]) if control else message[:300])
    return ("refused", message.strip()[:300]) if code else ("accepted", "")


def _describe(error: BaseException) -> str:
    """The type and text of an error, and the last line of the package that it passed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/esceme/" in frame.filename]
    place = f"{frames[-1].filename.rpartition('/esceme/')[2]}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {place}: {str(error).splitlines()[0][:120] if str(error) else ''}"


@cache
def undamaged_meaning(file: str, call: Callable[[Path], Any]) -> str:
    """The meaning of an undamaged file; a call has to accept it."""
    kind = next(kind for kind in KINDS if file in kind.files and call in kind.calls)
    with _restored(Path(file), kind):
        code, output, meaning, error = run_call(call, Path(file))
    assert code == 0 and error is None, f"{file}: {output} {error!r}"
    return meaning


@contextmanager
def _restored(path: Path, kind: InputKind) -> Iterator[None]:
    """Restore the file, and the folder that the kind changes, at the end of the block; remove `OUT`."""
    data = path.read_bytes()
    if kind.changes is not None:
        shutil.copytree(kind.changes, "backup")
    try:
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        if kind.changes is not None:
            shutil.rmtree(kind.changes)
            os.rename("backup", kind.changes)
        shutil.rmtree(OUT, ignore_errors=True)


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _memory(name: str) -> int:
    return 1024 * int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]


# -- many cases in worker processes ------------------------------------------------------------------------


@contextmanager
def prepared_inputs() -> Iterator[Path]:
    """Write the inputs to a new folder, change into it, and read each of them once."""
    context, before = multiprocessing.get_context("fork"), Path.cwd()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        try:
            os.chdir(folder)
            writer = context.Process(
                target=write_inputs
            )  # its threads must not exist where workers are forked
            writer.start()
            writer.join()
            if writer.exitcode:
                raise RuntimeError("the inputs cannot be written")
            shutil.copytree(folder, f"{folder}/copy")
            for kind in KINDS:
                for file in kind.files:
                    for call in kind.calls:
                        undamaged_meaning(file, call)
            gzip_bomb(), picture_bomb()  # made once, before workers are forked
            yield Path(folder) / "copy"
        finally:
            undamaged_meaning.cache_clear()
            os.chdir(before)


def _work(inputs: Path, seed: int, cases: Connection) -> None:
    warnings.simplefilter("ignore")
    limit = _memory("VmSize") + MEMORY_LIMIT
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with tempfile.TemporaryDirectory(dir=inputs.parent) as folder:
        shutil.copytree(inputs, folder, dirs_exist_ok=True)
        os.chdir(folder)
        while (case := cases.recv()) is not None:
            cases.send(run_case(seed, case))


class _Worker:
    """A process that runs one case after the other; it is replaced when it hangs or crashes."""

    def __init__(self, inputs: Path, seed: int) -> None:
        self._inputs, self._seed, self.case = inputs, seed, -1
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, other = context.Pipe()
        self._process = context.Process(target=_work, args=(self._inputs, self._seed, other))
        self._process.start()
        other.close()

    def begin(self, case: int | None) -> None:
        self.case, self.deadline = -1 if case is None else case, time.monotonic() + TIMEOUT
        self.connection.send(case)

    def end(self) -> Outcome:
        """The outcome of the case, which has ended, crashed or taken too long."""
        try:
            if self.connection.poll():
                return self.connection.recv()
            name, detail = "hang", f"more than {TIMEOUT:.0f} seconds"
        except EOFError:
            self._process.join()
            name, detail = "crash", f"exit code {self._process.exitcode}"
        self._process.kill()
        self._process.join()
        self._start()
        kind, file, _, _ = draw_case(self._seed, self.case)
        return Outcome(self.case, kind.name, f"{Path(file).name}: ?", name, detail)

    def close(self) -> None:
        self.begin(None)
        self._process.join()


def run_cases(seed: int, cases: Sequence[int], *, processes: int = 2) -> list[Outcome]:
    """Run cases in worker processes; returns the outcomes in the order of the cases."""
    outcomes: list[Outcome] = []
    with prepared_inputs() as inputs:
        workers = [_Worker(inputs, seed) for _ in range(processes)]
        remaining = iter(cases)
        active = {worker: worker.begin(case) for worker, case in zip(workers, remaining, strict=False)}
        while active:
            wait([worker.connection for worker in active], timeout=1)
            for worker in list(active):
                if worker.connection.poll() or time.monotonic() > worker.deadline:
                    outcomes.append(worker.end())
                    case = next(remaining, None)
                    if case is None:
                        del active[worker]
                    else:
                        worker.begin(case)
        for worker in workers:
            worker.close()
    return sorted(outcomes)


# -- report ------------------------------------------------------------------------------------------------


def count_classes(outcomes: Sequence[Outcome]) -> str:
    """A table of the classes by kind."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        counts[outcome.kind][outcome.name] += 1
        counts["all"][outcome.name] += 1
    rows = [f"{'kind':<17}" + "".join(f"{name:>10}" for name in CLASSES)]
    for kind in (*(kind.name for kind in KINDS), "all"):
        rows.append(f"{kind:<17}" + "".join(f"{counts[kind][name] or '.':>10}" for name in CLASSES))
    return "\n".join(rows)


def list_failures(outcomes: Sequence[Outcome]) -> str:
    """Each different failure once, with the numbers of some of its cases."""
    groups: dict[tuple[str, ...], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.name in FAILURES:
            place = outcome.detail.partition(":")[0] + outcome.detail.partition(":")[2].partition(":")[0]
            same = place if outcome.name == "traceback" else outcome.mutation
            groups[outcome.kind, outcome.name, same].append(outcome)
    lines = []
    for (kind, name, _), group in sorted(
        groups.items(), key=lambda item: (item[0][0], item[0][1], -len(item[1]))
    ):
        cases = ", ".join(str(outcome.case) for outcome in group[:4])
        lines.append(
            f"{kind} | {name} | {len(group)}x, cases {cases} | {group[0].mutation} | {group[0].detail}"
        )
    return "\n".join(lines)


def main() -> int:
    """Run cases; the exit code is 1 if one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="run only this case, and print everything")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    options = parser.parse_args()
    if options.case is not None:
        with prepared_inputs() as inputs:
            os.chdir(inputs)
            print(run_case(options.seed, options.case, verbose=True))
        return 0
    if options.json:
        outcomes = run_cases(options.seed, range(options.cases), processes=options.processes)
        print(json.dumps([outcome._asdict() for outcome in outcomes]))
        return 0
    start = time.monotonic()
    outcomes = run_cases(options.seed, range(options.cases), processes=options.processes)
    seconds = time.monotonic() - start
    print(f"{list_failures(outcomes)}\n\n{count_classes(outcomes)}")
    failed = sum(outcome.name in FAILURES for outcome in outcomes)
    print(f"\n{len(outcomes)} cases of seed {options.seed} in {seconds:.0f} s, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
