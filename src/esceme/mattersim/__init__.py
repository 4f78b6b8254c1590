"""`MatterSim`, the Python module of the Matterport3D simulator, without C++: graphs, poses and pictures.

>>> import esceme.mattersim
>>> esceme.mattersim.install()
>>> import MatterSim
>>> simulator = MatterSim.Simulator()
"""

from esceme.mattersim.installation import install
from esceme.mattersim.simulator import Simulator
from esceme.mattersim.states import Mat, SimState, ViewPoint

__all__ = ["Mat", "SimState", "Simulator", "ViewPoint", "install"]
