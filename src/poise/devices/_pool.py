"""Active devices and warm spares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from ..errors import BadMesh, Exhausted
from ._placement import Placement

DEFAULT_SPARES = 5
"""Spares where nobody says how many (as many of them as there are devices to spare)."""


@dataclass(frozen=True, init=False)
class Pool:
    """`devices` cut into active ones, in slot order, and spares, in the order in which they will be used.

    `spares` counts from the end of `devices`; left out, it is 5, or fewer where that would leave no active device. A
    pool does not change: `swap` returns the next one.
    """

    active: tuple[jax.Device, ...]
    spares: tuple[jax.Device, ...]
    gone: tuple[jax.Device, ...]

    def __init__(
        self,
        devices: Sequence[jax.Device],
        spares: int | None = None,
        *,
        gone: Sequence[jax.Device] = (),
    ) -> None:
        devices = tuple(devices)
        if not devices:
            raise BadMesh("A pool needs at least one device.")
        n = min(DEFAULT_SPARES, len(devices) - 1) if spares is None else spares
        if not 0 <= n < len(devices):
            raise BadMesh(f"{len(devices)} devices can have 0 to {len(devices) - 1} spares, not {n}.")
        object.__setattr__(self, "active", devices[: len(devices) - n])
        object.__setattr__(self, "spares", devices[len(devices) - n :])
        object.__setattr__(self, "gone", tuple(gone))

    def placement(self, axes: dict[str, int]) -> Placement:
        """The active devices as a mesh with these axes."""
        return Placement(self.active, tuple(axes.items()))

    def swap(self, slot: int) -> Pool:
        """The pool after the first spare has taken `slot`. Raises `Exhausted` if there is none."""
        if not 0 <= slot < len(self.active):
            raise BadMesh(f"There is no slot {slot}; the slots are 0 to {len(self.active) - 1}.")
        if not self.spares:
            raise Exhausted(f"Slot {slot} needs a spare device and none is left.")
        active = list(self.active)
        old, active[slot] = active[slot], self.spares[0]
        return Pool((*active, *self.spares[1:]), len(self.spares) - 1, gone=(*self.gone, old))

    def without(self, ids: Sequence[int]) -> Pool:
        """The pool without these spares."""
        left = [d for d in self.spares if d.id not in ids]
        out = [d for d in self.spares if d.id in ids]
        return Pool((*self.active, *left), len(left), gone=(*self.gone, *out))

    def successors(self, axes: dict[str, int]) -> list[Placement]:
        """Every placement that one loss can lead to: the first spare in each slot."""
        if not self.spares:
            return []
        here = self.placement(axes)
        return [here.swapped(slot, self.spares[0]) for slot in range(len(self.active))]
