"""What a gate saw: counts by cause and the first place. A monoid: `Health.clean()` is the unit, `+` joins."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Int32, UInt32

CAUSES = ("nan", "inf", "overflow", "marker")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Health:
    """Counts of bad values, and where the first one was.

    `counts` has one entry per cause in the order of `CAUSES` (it saturates nowhere: 2^32 bad values wrap). `leaf` and
    `index` are the leaf's number in flattening order and the flat C-order index in it, or -1; of two healths joined
    with `+`, the left one's place wins. Values whose index does not fit in 31 bits report the index modulo 2^31.
    """

    counts: UInt32[Array, " 4"]
    leaf: Int32[Array, ""]
    index: Int32[Array, ""]

    @staticmethod
    def clean() -> Health:
        """Nothing seen: the unit of `+`."""
        return Health(jnp.zeros(4, jnp.uint32), jnp.int32(-1), jnp.int32(-1))

    def __add__(self, other: object) -> Health:
        """Join what two gates saw, this one first. Associative."""
        if not isinstance(other, Health):
            return NotImplemented
        mine = self.leaf >= 0
        return Health(
            self.counts + other.counts,
            jnp.where(mine, self.leaf, other.leaf),
            jnp.where(mine, self.index, other.index),
        )

    @property
    def total(self) -> UInt32[Array, ""]:
        """Number of bad values of every cause."""
        return self.counts.sum(dtype=jnp.uint32)

    @property
    def ok(self) -> Array:
        """True where nothing bad was seen."""
        return self.total == 0

    def row(self) -> Int32[Array, " 6"]:
        """Counts, leaf and index as one row of integers, for a table over devices."""
        return jnp.concatenate((self.counts.astype(jnp.int32), self.leaf[None], self.index[None]))

    def per_device(self, axis: str | tuple[str, ...]) -> Int32[Array, "devices 6"]:
        """Inside `shard_map`: every device's `row`, on every device, in one small psum; so two bad devices are both
        named.

        `axis` names the mesh axes, slowest first; the order of rows is that of the mesh.
        """
        axes = (axis,) if isinstance(axis, str) else tuple(axis)
        me, n = jnp.int32(0), 1
        for a in axes:
            size = lax.axis_size(a)
            me = me * size + lax.axis_index(a)
            n *= size
        table = jnp.zeros((n, 6), jnp.int32).at[me].set(self.row())
        return lax.psum(table, axes)


def describe(row: jax.typing.ArrayLike, leaves: tuple[str, ...] = ()) -> str:
    """One row of `per_device` in words, such as `2 nan, 1 inf, first in 'u' at 17`."""
    values = [int(v) for v in jnp.asarray(row).tolist()]
    said = ", ".join(f"{n} {cause}" for n, cause in zip(values[:4], CAUSES, strict=True) if n)
    if not said:
        return "clean"
    leaf = values[4]
    name = repr(leaves[leaf]) if 0 <= leaf < len(leaves) else f"leaf {leaf}"
    return f"{said}, first in {name} at {values[5]}"
