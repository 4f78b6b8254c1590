"""Writing of tensor files; tests/checkpoints/test_published.py reads them."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from esceme.errors import DataError
from esceme.torch_files import load_tensors, save_tensors


def test_saved_tensors_are_loaded_again(tmp_path: Path) -> None:
    save_tensors({"a": [torch.arange(3)], "b": 1.5}, tmp_path / "new/file.pt")
    loaded = load_tensors(tmp_path / "new/file.pt")
    assert loaded["a"][0].tolist() == [0, 1, 2] and loaded["b"] == 1.5


@pytest.mark.parametrize("limit", [0, 300, 3000])
def test_full_disk_is_an_error_and_leaves_the_old_file(tmp_path: Path, limit: int) -> None:
    (tmp_path / "file.pt").write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        with pytest.raises(DataError, match=r"file\.pt: cannot be written \(File too large\)"):
            save_tensors({"a": torch.zeros(1000)}, tmp_path / "file.pt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["file.pt"]
    assert (tmp_path / "file.pt").read_text() == "old"


INTERRUPTED = """
import sys
from pathlib import Path
from unittest.mock import Mock, patch

import torch

from esceme.torch_files import save_tensors

interrupt = Mock(side_effect=KeyboardInterrupt)
with patch("torch.serialization._open_zipfile_writer_buffer.__exit__", interrupt):
    try:
        save_tensors({"a": torch.zeros(9)}, Path(sys.argv[1]))
    except KeyboardInterrupt:
        pass
"""


def test_interruption_while_an_archive_is_ended_does_not_abort_the_process(tmp_path: Path) -> None:
    """torch ends an open archive when it is freed; an error of the file then ends the process by a signal."""
    subprocess.run([sys.executable, "-c", INTERRUPTED, str(tmp_path / "file.pt")], check=True)
    assert list(tmp_path.iterdir()) == []
