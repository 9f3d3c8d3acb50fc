"""Fields on regular grids, stepped explicitly or relaxed over a mesh of devices."""

from ._burgers2d import Burgers2d as Burgers2d
from ._relax import Relaxation as Relaxation
from ._relax import damping as damping
