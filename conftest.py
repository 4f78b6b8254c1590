"""Tests, docs and doctests keep generated worlds beside the code, never in the user's cache.

Every process computes with one thread: several of them run side by side.
"""

import os
from pathlib import Path

os.environ["ESCEME_CACHE"] = str(Path(__file__).parent / ".cache")
os.environ.setdefault("OMP_NUM_THREADS", "1")
