"""The embedded world: generated houses, photographed and told about, in exactly the public file formats."""

from esceme.synth.dataset import WorldConfig, embedded_world, write_world
from esceme.synth.house import graph_of, make_house
from esceme.synth.render import Panorama, render

__all__ = ["WorldConfig", "Panorama", "embedded_world", "graph_of", "make_house", "render", "write_world"]
