"""Compare this implementation with a folder of reference numbers from the original one.

For every recognised file, our own values are laid out in the file's own structure, and the two are compared
leaf by leaf: numbers within a tolerance, everything else for equality. What cannot be compared is said.
"""

from esceme.verify.comparison import Report, Row, Skipped
from esceme.verify.folder import verify

__all__ = ["Report", "Row", "Skipped", "verify"]
