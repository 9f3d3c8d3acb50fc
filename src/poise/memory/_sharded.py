"""Leases of several devices as one global array: each device's own buffer is its shard, and no byte moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import jax
import numpy as np
from jax import Array
from jax.sharding import NamedSharding

from ..errors import BadMesh
from ._lease import Lease


@dataclass(frozen=True, eq=False)
class ShardedLease:
    """One lease per device: `active[i]` for the mesh's i-th device in C order, and `spares` that wait.

    Raises `BadMesh` if they differ in shape, dtype or layout, or two are on one device.
    """

    active: tuple[Lease, ...]
    spares: tuple[Lease, ...] = ()

    def __init__(self, active: Sequence[Lease], spares: Sequence[Lease] = ()) -> None:
        object.__setattr__(self, "active", tuple(active))
        object.__setattr__(self, "spares", tuple(spares))
        if not self.active:
            raise BadMesh("A sharded lease needs at least one lease.")
        leases = (*self.active, *self.spares)
        devices = [lease.device for lease in leases]
        if len(set(devices)) != len(devices):
            raise BadMesh("Two leases are on one device; each device brings one buffer.")
        first = leases[0].array
        for number, lease in enumerate(leases):
            if lease.array.shape != first.shape or lease.array.dtype != first.dtype or lease.layout != leases[0].layout:
                raise BadMesh(
                    f"Lease {number} is {lease.array.dtype}{list(lease.array.shape)} where lease 0 is "
                    f"{first.dtype}{list(first.shape)}; all must be alike."
                )

    def array(self, sharding: NamedSharding) -> Array:
        """The active buffers as one global array, cut along its first axis, or replicated where the sharding says so.

        Raises `BadMesh` if a lease is not on the mesh's device of its place, or there are too many or too few.
        """
        if not isinstance(sharding, NamedSharding):
            raise BadMesh(f"A sharded lease needs a NamedSharding, not a {type(sharding).__name__}.")
        mesh: list[jax.Device] = list(np.asarray(sharding.mesh.devices).flat)
        if len(mesh) != len(self.active):
            raise BadMesh(f"The mesh has {len(mesh)} devices and there are {len(self.active)} active leases.")
        for place, (lease, device) in enumerate(zip(self.active, mesh, strict=True)):
            if lease.device != device:
                raise BadMesh(f"Place {place} of the mesh is {device}, and lease {place} is on {lease.device}.")
        spec = tuple(sharding.spec)
        if any(axes is not None for axes in spec[1:]):
            raise BadMesh(f"Buffers can be put together along their first axis only, not by {sharding.spec}.")
        axes = spec[0] if spec else None
        names = () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
        shape = self.active[0].array.shape
        parts = prod(sharding.mesh.shape[name] for name in names)
        whole = (shape[0] * parts, *shape[1:])
        return jax.make_array_from_single_device_arrays(whole, sharding, [lease.array for lease in self.active])

    def swapped(self, place: int, spare: int = 0) -> ShardedLease:
        """The same with a spare's lease in a place: after a swap of devices its buffer is that place's shard."""
        if not 0 <= place < len(self.active):
            raise BadMesh(f"There is no place {place}; accepted are 0 to {len(self.active) - 1}.")
        if not 0 <= spare < len(self.spares):
            raise BadMesh(f"There is no spare lease {spare}; there are {len(self.spares)}.")
        active, spares = list(self.active), list(self.spares)
        active[place] = spares.pop(spare)
        return ShardedLease(active, spares)

    @property
    def bytes_copied(self) -> int:
        """Bytes that the imports moved, spares included."""
        return sum(lease.bytes_copied for lease in (*self.active, *self.spares))
