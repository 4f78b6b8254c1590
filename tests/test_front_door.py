"""The public interface of the package, `import esceme`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import esceme


@pytest.mark.parametrize("name", esceme.__all__)
def test_public_name_can_be_imported(name: str) -> None:
    assert getattr(esceme, name) is not None
    assert esceme.__all__.count(name) == 1 and name in dir(esceme)


def test_every_importable_name_is_public() -> None:
    assert sorted(name for names in esceme._MODULES.values() for name in names) == sorted(esceme.__all__)


def test_data_and_metrics_do_not_import_torch() -> None:
    program = "import sys, esceme; esceme.Atlas, esceme.TASKS, esceme.score; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Simulator'"):
        esceme.Simulator  # noqa: B018
