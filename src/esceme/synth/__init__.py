"""The embedded world: generated buildings and tasks in exactly the public file formats."""

from esceme.synth.toy import write_toy_world

__all__ = ["write_toy_world"]
