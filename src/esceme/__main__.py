"""`python -m esceme` is the `esceme` command."""

import sys

from esceme.cli import main

if __name__ == "__main__":
    sys.exit(main())
