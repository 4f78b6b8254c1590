"""Acting with everybody's rights, which tests of unreadable files need when the superuser runs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_rights() -> Iterator[None]:
    """Everybody's rights only, even for the superuser, who may read anything."""
    superuser = os.geteuid() == 0
    if superuser:
        os.seteuid(65534)
    try:
        yield
    finally:
        if superuser:
            os.seteuid(0)
