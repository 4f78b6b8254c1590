from __future__ import annotations

import pytest

import esceme


@pytest.mark.parametrize("name", esceme.__all__)
def test_every_name_of_the_front_door_leads_somewhere(name: str) -> None:
    assert getattr(esceme, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Simulator'"):
        esceme.Simulator  # noqa: B018
