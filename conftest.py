"""Tests, docs and doctests keep generated worlds beside the code, never in the user's cache.

Every process computes with one thread: several of them run side by side. And each of them can be interrupted,
even where the tests were started in the background, which makes shells tell processes to ignore that.
"""

import os
import signal
from pathlib import Path

os.environ["ESCEME_CACHE"] = str(Path(__file__).parent / ".cache")
os.environ.setdefault("OMP_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# They import mkdocs, which only `make docs` installs, and Playwright.
collect_ignore = ["docs/site_hooks.py", "docs/make_screenshots.py"]
