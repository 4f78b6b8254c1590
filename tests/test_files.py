"""Reading names the file and the record of an error; writing is atomic."""

from __future__ import annotations

import gc
import gzip
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import msgspec
import pytest

from esceme.errors import DataError
from esceme.files import (
    LEASE_SECONDS,
    JsonLinesWriter,
    StoredDigest,
    atomic_open,
    file_lock,
    folder_lock,
    pause_garbage_collection,
    read_bytes,
    read_checked_lines,
    read_complete_lines,
    read_json,
    read_json_lines,
    read_records,
    read_text,
    write_json,
    write_text,
)
from fixtures.files import file_contents, unprivileged


class Record(msgspec.Struct):
    scan: str
    path: list[str]
    heading: float = 0.0


GOOD = b'{"scan": "house", "path": ["a", "b"]}'


def write_bytes(folder: Path, data: bytes, name: str = "records.json") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


# -- reading ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "read",
    [read_bytes, read_text, lambda path: read_json(path, list), lambda path: read_records(path, Record)],
)
def test_missing_file_is_named(tmp_path: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(DataError, match=r"nowhere\.json: no such file"):
        read(tmp_path / "nowhere.json")


def test_unreadable_paths_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read .Is a directory"):
        read_bytes(tmp_path)
    path = write_bytes(tmp_path, GOOD)
    with pytest.raises(DataError, match="cannot be read .Not a directory"):
        read_bytes(path / "inside")
    path.chmod(0o000)
    with unprivileged(), pytest.raises(DataError, match=r"records\.json: cannot be read .Permission denied"):
        read_bytes(path)


@pytest.mark.parametrize("data", [b"", b" \n\t\n"])
def test_empty_file_is_an_error(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(DataError, match="the file is empty"):
        read_json(write_bytes(tmp_path, data), list[Record])
    for name in ("records.jsonl", "records.jsonl.gz"):
        packed = gzip.compress(data) if name.endswith("gz") else data
        with pytest.raises(DataError, match="holds no records"):
            read_records(write_bytes(tmp_path, packed, name), Record)


def test_empty_array_is_an_error_for_records_but_not_for_json(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b"[]")
    assert read_json(path, list[Record]) == []
    with pytest.raises(DataError, match="holds no records"):
        read_records(path, Record)


def test_truncated_file_is_an_error_at_any_length(tmp_path: Path) -> None:
    data = b"[" + GOOD + b"]"
    for length in range(1, len(data)):
        with pytest.raises(DataError, match=r"records\.json: "):
            read_records(write_bytes(tmp_path, data[:length]), Record)
    data = gzip.compress(b"\n".join([GOOD] * 20))
    for length in range(1, len(data)):
        with pytest.raises(DataError, match=r"records\.jsonl\.gz: (damaged gzip|holds no records)"):
            read_records(write_bytes(tmp_path, data[:length], "records.jsonl.gz"), Record)


@pytest.mark.parametrize("position", [2, 8, 25])
def test_flipped_bit_in_gzip_never_changes_the_data(tmp_path: Path, position: int) -> None:
    data = bytearray(gzip.compress(GOOD))
    data[position] ^= 0x10
    try:
        assert read_bytes(write_bytes(tmp_path, bytes(data), "records.json.gz")) == GOOD
    except DataError as error:
        assert "damaged gzip" in str(error)


def test_file_that_is_not_gzip_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"records\.json\.gz: damaged gzip file"):
        read_json(write_bytes(tmp_path, GOOD, "records.json.gz"), Record)


def test_text_that_is_not_utf_8_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not UTF-8 text .byte 3"):
        read_text(write_bytes(tmp_path, b"abc\xff"))
    with pytest.raises(DataError, match="not valid json .'utf-8' codec"):
        read_json(write_bytes(tmp_path, b'{"scan": "h\xe9", "path": []}'), Record)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deeply_nested_json_is_an_error(tmp_path: Path, opening: bytes) -> None:
    with pytest.raises(DataError, match="not valid json"):
        read_json(write_bytes(tmp_path, opening * 100_000), object)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b'{"scan": 5, "path": []}', "record 1: field 'scan': expected str, got int"),
        (b'{"scan": "h", "path": ["a", null]}', r"record 1: field 'path\[1\]': expected str, got null"),
        (b'{"scan": "h", "path": [], "heading": "N"}', "record 1: field 'heading': expected float, got str"),
        (b'{"path": []}', "record 1: object missing required field scan"),
        (b"[]", "record 1: expected object, got array"),
        (b'{"scan": "h", "path": [], "heading": 1e999}', "record 1: field 'heading': number out of range"),
    ],
)
def test_wrong_type_names_record_and_field(tmp_path: Path, record: bytes, message: str) -> None:
    with pytest.raises(DataError, match=rf"records\.json: {message}"):
        read_records(write_bytes(tmp_path, b"[" + GOOD + b", " + record + b"]"), Record)


def test_wrong_entry_of_an_object_is_named_by_its_key(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b'{"house": {"a": [1]}, "barn": {"a": [2], "b": [3, "x"]}}')
    with pytest.raises(DataError, match=r"entry 'barn': entry 'b': record 1: expected int, got str"):
        read_json(path, dict[str, dict[str, list[int]]])
    with pytest.raises(DataError, match="entry 'house': expected str, got object"):
        read_json(path, dict[str, str])


def test_wrong_entry_before_a_truncated_end_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"records\.json: .*expected str, got int"):
        read_json(write_bytes(tmp_path, b'{"house": 1, "barn": "b'), dict[str, str])


@pytest.mark.parametrize("zipped", [False, True])
def test_blank_json_lines_are_counted(tmp_path: Path, zipped: bool) -> None:
    data = b"\n" + GOOD + b"\r\n   \n\n" + GOOD + b'\n{"scan": 1, "path": []}\n'
    path = write_bytes(
        tmp_path, gzip.compress(data) if zipped else data, "w.jsonl.gz" if zipped else "w.jsonl"
    )
    with pytest.raises(DataError, match=r"w\.jsonl.*: line 6: field 'scan': expected str, got int"):
        read_records(path, Record)


def test_truncated_last_line_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 2: not valid json .*is the file complete"):
        read_records(write_bytes(tmp_path, GOOD + b"\n" + GOOD[:-4], "records.jsonl"), Record)


@pytest.mark.parametrize("is_zipped", [False, True])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("r.json", b"[" + GOOD + b"," + GOOD + b"]"),
        ("r.jsonl", GOOD + b"\n" + GOOD),
        ("r.jsonl", b"\n" + GOOD + b"\n\n" + GOOD + b"\n"),
    ],
)
def test_records_are_read_from_every_format(tmp_path: Path, name: str, data: bytes, is_zipped: bool) -> None:
    path = write_bytes(tmp_path, gzip.compress(data) if is_zipped else data, name + ".gz" * is_zipped)
    assert read_records(path, Record) == [Record("house", ["a", "b"])] * 2


# -- writing ---------------------------------------------------------------------------------------------


def test_written_files_can_be_read_and_folders_are_created(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deeper" / "record.json"
    write_json(path, Record("house", ["ä"], 0.1), indent=1)
    assert read_json(path, Record) == Record("house", ["ä"], 0.1)
    assert list(file_contents(path.parent)) == ["record.json"]
    write_text(path, "ä\n")
    assert read_text(path) == "ä\n"


@pytest.mark.parametrize("fault", [RuntimeError, KeyboardInterrupt, DataError, GeneratorExit])
def test_failure_in_the_block_leaves_only_the_old_file(tmp_path: Path, fault: type[BaseException]) -> None:
    path = write_bytes(tmp_path, b"old")
    with pytest.raises(fault), atomic_open(path) as file:
        file.write(b"new" * 100_000)
        raise fault("stop")
    assert file_contents(tmp_path) == {"records.json": b"old"}


@pytest.mark.parametrize("has_old_file", [False, True])
def test_errors_while_writing_leave_the_old_file(tmp_path: Path, has_old_file: bool) -> None:
    path = tmp_path / "records.json"
    if has_old_file:
        path.write_bytes(b"old")
    with (
        pytest.raises(DataError, match=r"records\.json: cannot be written .No space left"),
        atomic_open(path),
    ):
        raise OSError(28, "No space left on device")
    with pytest.raises(TypeError):
        write_json(path, {"value": object()})
    assert file_contents(tmp_path) == ({"records.json": b"old"} if has_old_file else {})


WRITER = """
import sys, time
from pathlib import Path
from esceme.files import atomic_open
with atomic_open(Path(sys.argv[1])) as file:
    file.write(b"new" * 1_000_000)
    file.flush()
    print("started", flush=True)
    time.sleep(600)
"""


def test_killed_process_leaves_the_old_file_intact(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b"old")
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"started\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    write_text(path, "newer")
    assert path.read_text() == "newer"


def test_old_file_is_replaced_but_not_changed(tmp_path: Path) -> None:
    """Open or memory-mapped copies of the old file stay valid."""
    path = write_bytes(tmp_path, b"old")
    (tmp_path / "linked").hardlink_to(path)
    write_text(path, "new")
    assert file_contents(tmp_path) == {"records.json": b"new", "linked": b"old"}


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600), (0o000, 0o666)])
def test_file_mode_follows_the_umask(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        write_text(tmp_path / "file", "text")
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_folders_and_pipes_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="folder: cannot be written .there is a folder of that name"):
        write_text(tmp_path / "folder", "text")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="there is a device, pipe or broken link of that name"):
        write_text(tmp_path / "pipe", "text")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(DataError, match="a: cannot be written"):
        write_text(tmp_path / "a", "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "folder", "pipe"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_writing_below_a_file_is_an_error(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b"old")
    with pytest.raises(DataError, match="inside: cannot be written"):
        write_text(path / "inside", "text")
    with pytest.raises(DataError, match="log.jsonl: cannot be written"):
        JsonLinesWriter(path / "log.jsonl")
    with pytest.raises(DataError, match="run: cannot be written"), folder_lock(path / "run", "x"):
        pass
    assert file_contents(tmp_path) == {"records.json": b"old"}


def test_read_only_folder_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        with unprivileged(), pytest.raises(DataError, match="cannot be written .Permission denied"):
            write_text(tmp_path / "file", "text")
    finally:
        tmp_path.chmod(0o755)


def test_target_of_a_link_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "file")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "file").read_text() == "text"


# -- digests of unchanged files --------------------------------------------------------------------------


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as old."""
    monkeypatch.setattr("esceme.files.UNSETTLED_SECONDS", -60)


@pytest.mark.usefixtures("settled")
def test_digest_is_stored_until_a_file_changes(tmp_path: Path) -> None:
    files, store = (
        [write_bytes(tmp_path, b"one", "a"), write_bytes(tmp_path, b"two", "b")],
        tmp_path / "store",
    )
    assert StoredDigest(store, "both", files).get(lambda: "first") == "first"
    assert StoredDigest(store, "both", files).get(lambda: "other") == "first"
    assert StoredDigest(store, "a", files[:1]).value is None
    assert StoredDigest(store, "both", files, is_trusted=False).value is None
    status = files[0].stat()
    write_bytes(tmp_path, b"new", "c").replace(files[0])
    os.utime(files[0], ns=(status.st_atime_ns, status.st_mtime_ns))  # as a copy with its old time stamp
    assert StoredDigest(store, "both", files).get(lambda: "second") == "second"
    assert StoredDigest(store, "both", files).value == "second"


def test_digest_of_a_file_that_has_just_changed_is_not_stored(tmp_path: Path) -> None:
    files, store = [write_bytes(tmp_path, b"one", "a")], tmp_path / "store"
    assert StoredDigest(store, "a", files).get(lambda: "first") == "first"
    assert not store.exists()


@pytest.mark.usefixtures("settled")
def test_digest_of_a_file_that_changes_while_it_is_read_is_not_stored(tmp_path: Path) -> None:
    files, store = [write_bytes(tmp_path, b"one", "a")], tmp_path / "store"

    def read_and_change() -> str:
        write_bytes(tmp_path, b"longer", "a")
        return "first"

    assert StoredDigest(store, "a", files).get(read_and_change) == "first"
    assert not store.exists()


@pytest.mark.usefixtures("settled")
def test_store_of_digests_that_cannot_be_used_is_ignored(tmp_path: Path) -> None:
    files, store = [write_bytes(tmp_path, b"one", "a")], write_bytes(tmp_path, b'{"a": 1', "store")
    assert StoredDigest(store, "a", files).value is None
    (tmp_path / "link").symlink_to(files[0])  # leads to a file that is not a store
    assert StoredDigest(tmp_path / "link", "a", files).get(lambda: "first") == "first"
    assert StoredDigest(files[0] / "below a file", "a", files).get(lambda: "first") == "first"
    assert files[0].read_bytes() == b"one"


# -- JSON lines and locks --------------------------------------------------------------------------------


def append(path: Path, *records: object, keep: int | None = None) -> None:
    with JsonLinesWriter(path, keep=keep) as writer:
        writer.write(*records)


def test_json_lines_are_appended_and_truncated(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.jsonl"
    append(path, 1, 2)
    append(path, 3)
    assert read_json_lines(path, int) == [1, 2, 3]
    assert read_json_lines(path, int, start=1, stop=2) == [2]
    append(path, 4, keep=1)
    assert read_json_lines(path, int) == [1, 4]


def test_truncated_json_lines_keep_their_complete_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    append(path, *(records := ["one", "two", "three"]))
    data = path.read_bytes()
    for end in range(len(data) + 1):
        path.write_bytes(data[:end])
        complete = records[: data[:end].count(b"\n")]
        assert read_json_lines(path, str) == complete
        append(path, "next")
        assert read_json_lines(path, str) == [*complete, "next"]


def test_json_line_of_another_type_is_named(tmp_path: Path) -> None:
    append(tmp_path / "log.jsonl", 1, "two")
    with pytest.raises(DataError, match="log.jsonl: line 2: expected int, got str"):
        read_json_lines(tmp_path / "log.jsonl", int)


def test_full_disk_keeps_complete_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with JsonLinesWriter(path) as writer:
        writer.write("first")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 12, before[1]))
        try:
            with pytest.raises(DataError, match="log.jsonl: cannot be written"):
                writer.write("second", "third")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not path.read_bytes().endswith(b"\n")
    append(path, "fourth")
    assert read_json_lines(path, str) == ["first", "second", "fourth"]


def ended_process() -> int:
    """The number of a process that does not exist any more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_folder_lock_is_exclusive_and_names_its_holder(tmp_path: Path) -> None:
    with folder_lock(tmp_path / "new", "training"):
        message = f"new: another training is running there .process {os.getpid()} on "
        with pytest.raises(DataError, match=message), folder_lock(tmp_path / "new", "training"):
            pass
    with folder_lock(tmp_path / "new", "training"):
        pass
    assert list((tmp_path / "new").iterdir()) == []


def test_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from esceme.files import folder_lock
with folder_lock(Path({str(tmp_path)!r}), "training"):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], check=False)
    assert killed.returncode == -signal.SIGKILL and (tmp_path / ".lock").exists()
    with folder_lock(tmp_path, "training"):
        pass


def test_only_partial_files_of_ended_processes_are_removed(tmp_path: Path) -> None:
    ended, running = ended_process(), os.getpid()
    (tmp_path / "state").mkdir()
    for process in (ended, running):
        (tmp_path / f".world.{socket.gethostname()}.{process}.x.part").mkdir()
        (tmp_path / f"state/.b.pt.{socket.gethostname()}.{process}.x.part").write_text("")
    with folder_lock(tmp_path, "training"):
        pass
    left = {path.name for path in tmp_path.rglob("*.part")}
    assert left == {f".{name}.{socket.gethostname()}.{running}.x.part" for name in ("world", "b.pt")}


def test_writing_a_file_removes_its_partial_files(tmp_path: Path) -> None:
    left = tmp_path / f".a[1].json.{socket.gethostname()}.{ended_process()}.x.part"
    left.write_text("")
    write_json(tmp_path / "a[1].json", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["a[1].json"]


def test_lock_without_holder_does_not_block(tmp_path: Path) -> None:
    """A process that is stopped while it takes the lock leaves an empty file."""
    for path in (tmp_path / ".lock", tmp_path / ".bank.lock"):
        path.write_text("")
    with folder_lock(tmp_path, "training"), file_lock(tmp_path / "bank"):
        pass


def test_damaged_lock_does_not_block(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_bytes(bytes(100))
    with folder_lock(tmp_path, "training"):
        pass


def test_lock_of_another_lease_is_an_error(tmp_path: Path) -> None:
    for name in (".lock", ".bank.lock"):
        other = filelock.SoftFileLease(tmp_path / name, lease_duration=LEASE_SECONDS + 1)
        lock = folder_lock(tmp_path, "training") if name == ".lock" else file_lock(tmp_path / "bank")
        with other, pytest.raises(DataError, match="cannot be written .* holds a lease of"), lock:
            pass


@pytest.mark.parametrize("link", ["result.json", "best", "best/weights", "a/b/c"])
def test_links_that_lead_out_of_a_locked_folder_are_refused(tmp_path: Path, link: str) -> None:
    (tmp_path / "precious").write_text("mine")
    path = tmp_path / "run" / link
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "precious")
    message = f"run/{link}: a link that leads out of"
    with pytest.raises(DataError, match=message), folder_lock(tmp_path / "run", "training"):
        pass
    path.unlink()
    path.symlink_to(tmp_path / "run" / "elsewhere")
    with folder_lock(tmp_path / "run", "training"):
        pass
    path.unlink()
    path.symlink_to(path)  # writing there is an error of its own
    with folder_lock(tmp_path / "run", "training"), pytest.raises(DataError, match="cannot be written"):
        JsonLinesWriter(path)


def test_gzip_bombs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(bytes(1 << 28)))
    with pytest.raises(DataError, match="bomb.json.gz: expands to more than .* decompress it"):
        read_bytes(path)


@pytest.mark.parametrize("damage", ["edit", "other key", "no checksum", "no json"])
def test_checked_lines_end_before_a_damaged_one(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "journal.jsonl"
    with JsonLinesWriter(path, checksum_key="a") as writer:
        writer.write({"n": 1}, {"n": 2})
    if damage == "other key":
        with JsonLinesWriter(path, checksum_key="b") as writer:
            writer.write({"n": 3})
    lines = read_complete_lines(path)
    damaged = {
        "edit": lines[1].replace(b"2", b"3", 1),
        "no checksum": b'{"n":2}\n',
        "no json": b"\x00" * 20 + b"\n",
    }
    if damage in damaged:
        path.write_bytes(lines[0] + damaged[damage] + lines[1])
    records, fault = read_checked_lines(path, dict[str, Any], "a")
    number = 3 if damage == "other key" else 2
    assert [record["n"] for record in records] == [1, 2][: number - 1]
    assert fault == f"{path}: line {number} is damaged"


def test_checked_line_of_another_type_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with JsonLinesWriter(path, checksum_key="a") as writer:
        writer.write(Record("house", ["a"]), {"scan": 3, "path": []})
    records, fault = read_checked_lines(path, Record, "a")
    assert records == [Record("house", ["a"])] and "line 2: field 'scan': expected str, got int" in fault


def test_folder_that_cannot_be_synchronised_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def fail_for_folders(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(22, "Invalid argument")
        sync(handle)

    monkeypatch.setattr(os, "fsync", fail_for_folders)
    write_text(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"


@pytest.mark.parametrize("is_background", [False, True])
def test_process_that_loses_its_lock_is_interrupted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_background: bool,
) -> None:
    monkeypatch.setattr("esceme.files.LEASE_SECONDS", 0.3)
    handlers = {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.default_int_handler}
    before = {number: signal.getsignal(number) for number in handlers}
    try:
        for number, handler in handlers.items() if is_background else ():
            signal.signal(number, handler)
        with pytest.raises(KeyboardInterrupt), folder_lock(tmp_path, "training"):
            (tmp_path / ".lock").unlink()
            time.sleep(30)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert "the lock was lost (marker-missing)" in capsys.readouterr().err


def test_reading_many_lines_starts_no_garbage_collection(tmp_path: Path) -> None:
    path, phases = tmp_path / "lines.jsonl", list[str]()

    def observe(phase: str, _: dict[str, int]) -> None:
        phases.append(phase)

    with JsonLinesWriter(path, checksum_key="key") as writer:
        writer.write(*({"names": [[number]]} for number in range(5_000)))
    gc.callbacks.append(observe)
    try:
        gc.collect()
        records, _ = read_checked_lines(path, dict, "key")
        assert len(records) == 5_000 and phases.count("start") <= 2  # one before, at most one after
    finally:
        gc.callbacks.remove(observe)


def test_garbage_collection_resumes_after_an_error() -> None:
    with pytest.raises(ValueError, match="inside"), pause_garbage_collection():
        assert not gc.isenabled()
        raise ValueError("inside")
    assert gc.isenabled()
