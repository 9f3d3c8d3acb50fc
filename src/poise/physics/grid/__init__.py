"""Fields on regular grids, stepped explicitly over a mesh of devices."""

from ._burgers2d import Burgers2d as Burgers2d
