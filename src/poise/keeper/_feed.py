"""How a batch reaches the devices.

Small ones go in one transfer: one for each leaf costs the host more than a GPU's whole step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec as P

from ..devices import Placement
from ..seal._words import count, from_words, is_key

SMALL = 1 << 18
"""Words that a device may get in one packet: above 1 MiB the copy on the host costs more than the transfers."""


class Feed:
    """Puts the step's order (two int32) and a batch on the devices of one placement.

    Batches of host arrays up to `SMALL` words a device travel as one array, a row for each device with its piece of
    every leaf, and are taken apart there, bit for bit. All else goes leaf by leaf, so that what is on the devices
    already stays.
    """

    def __init__(
        self, placement: Placement, shapes: Sequence[jax.ShapeDtypeStruct], specs: Sequence[P], treedef: Any
    ) -> None:
        self._shardings = [placement.sharding(spec) for spec in (P(), *specs)]
        self._treedef = treedef
        self._packet = placement.sharding(P(placement.names))
        self._pieces: list[list[Any]] = []
        self._starts, self._width = [0], 0
        self._unpack = None
        given = [jax.ShapeDtypeStruct((2,), np.int32), *shapes]
        if any(is_key(x.dtype) or jax.dtypes.canonicalize_dtype(x.dtype) != x.dtype for x in shapes):
            return
        both = list(zip(given, self._shardings, strict=True))
        local = [jax.ShapeDtypeStruct(sharding.shard_shape(x.shape), x.dtype) for x, sharding in both]
        self._starts = np.cumsum([0, *(count(x.shape, x.dtype) for x in local)]).tolist()
        self._width = self._starts.pop()
        if self._width > SMALL:
            return
        for x, sharding in both:
            where = sharding.devices_indices_map(x.shape)
            self._pieces.append([where[device] for device in placement.devices])

        def unpack(packet: Array) -> tuple[Array, ...]:
            parts = zip(local, self._starts, strict=True)
            return tuple(from_words(packet[0, a : a + count(x.shape, x.dtype)], x.shape, x.dtype) for x, a in parts)

        mapped = jax.shard_map(
            unpack, mesh=placement.mesh, in_specs=P(placement.names), out_specs=(P(), *specs), check_vma=False
        )
        whole = jax.ShapeDtypeStruct((len(placement.devices), self._width), np.uint32, sharding=self._packet)
        self._unpack = jax.jit(mapped, out_shardings=tuple(self._shardings)).lower(whole).compile()

    @property
    def packs(self) -> bool:
        """Whether host arrays travel in one packet."""
        return self._unpack is not None

    def __call__(self, order: np.ndarray, batch: Any) -> tuple[Array, Any]:
        """The order and the batch on the devices."""
        leaves = [order, *jax.tree.leaves(batch)]
        if self._unpack is None or not all(isinstance(x, np.ndarray | np.generic) for x in leaves):
            first, *rest = jax.device_put(leaves, self._shardings)
        else:
            first, *rest = self._unpack(jax.device_put(self._packed(leaves), self._packet))
        return first, self._treedef.unflatten(rest)

    def put(self, batch: Any) -> Any:
        """The batch alone, leaf by leaf; one call for all leaves."""
        return self._treedef.unflatten(jax.device_put(jax.tree.leaves(batch), self._shardings[1:]))

    def _packed(self, leaves: Sequence[Any]) -> np.ndarray:
        rows = np.zeros((len(self._pieces[0]), self._width), np.uint32)
        octets = rows.view(np.uint8)
        for x, pieces, start in zip(leaves, self._pieces, self._starts, strict=True):
            for row, piece in zip(octets, pieces, strict=True):
                own = np.ascontiguousarray(x[piece]).reshape(-1).view(np.uint8)
                row[4 * start : 4 * start + own.size] = own
        return rows
