"""Vision-and-language navigation agents that remember the buildings they have been in."""

__version__ = "0.1.0"
