"""The embedded world: generated houses with panoramas, features and task files in public formats."""

from esceme.synth.dataset import WorldConfig, embedded_world, write_world
from esceme.synth.house import build_graph, generate_house
from esceme.synth.render import Panorama, render

__all__ = [
    "Panorama",
    "WorldConfig",
    "build_graph",
    "embedded_world",
    "generate_house",
    "render",
    "write_world",
]
