"""Tests, docs and doctests keep generated worlds beside the code, never in the user's cache."""

import os
from pathlib import Path

os.environ["ESCEME_CACHE"] = str(Path(__file__).parent / ".cache")
