"""Which device sits in which logical slot."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..errors import BadMesh


@dataclass(frozen=True)
class Placement:
    """Devices in logical order and the mesh that they make: slot i is the i-th device in C order of the mesh's axes.

    A swap replaces one device and keeps the order, so every collective keeps its order too and results keep their bits.
    Raises `BadMesh` if the axes do not multiply to the number of devices, or a device appears twice.
    """

    devices: tuple[jax.Device, ...]
    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        sizes = tuple(size for _, size in self.axes)
        if prod(sizes) != len(self.devices) or not self.devices:
            raise BadMesh(f"A mesh of {dict(self.axes)} needs {prod(sizes)} devices, not {len(self.devices)}.")
        if len(set(self.devices)) != len(self.devices):
            raise BadMesh("A device appears twice in the placement; each slot needs a device of its own.")

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh of this placement."""
        names = tuple(name for name, _ in self.axes)
        return Mesh(np.array(self.devices, dtype=object).reshape([size for _, size in self.axes]), names)

    @property
    def names(self) -> tuple[str, ...]:
        """The mesh's axis names, slowest first."""
        return tuple(name for name, _ in self.axes)

    @property
    def ids(self) -> tuple[int, ...]:
        """The device ids by slot."""
        return tuple(d.id for d in self.devices)

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        """The sharding that `spec` means here."""
        return NamedSharding(self.mesh, spec)

    def swapped(self, slot: int, device: jax.Device) -> Placement:
        """The same placement with `device` in `slot`."""
        if not 0 <= slot < len(self.devices):
            raise BadMesh(f"There is no slot {slot}; this placement has slots 0 to {len(self.devices) - 1}.")
        devices = list(self.devices)
        devices[slot] = device
        return Placement(tuple(devices), self.axes)
