from __future__ import annotations

import subprocess
import sys

import pytest

import esceme


@pytest.mark.parametrize("name", esceme.__all__)
def test_every_name_of_the_front_door_leads_somewhere(name: str) -> None:
    assert getattr(esceme, name) is not None


def test_the_front_door_is_small_and_offers_nothing_twice() -> None:
    assert 20 <= len(esceme.__all__) <= 35
    assert len(set(esceme.__all__)) == len(esceme.__all__)


def test_every_home_is_shown_at_the_front_door() -> None:
    """What can be reached is what is listed, in either direction."""
    reachable = {name for names in esceme._HOMES.values() for name in names}
    assert reachable == set(esceme.__all__)


def test_opening_the_front_door_loads_no_network() -> None:
    program = "import sys, esceme; esceme.Atlas, esceme.TASKS, esceme.score; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Simulator'"):
        esceme.Simulator  # noqa: B018
