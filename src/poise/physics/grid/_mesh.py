"""Domains cut into rectangles over a two-dimensional mesh."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from ...errors import BadMesh


def two_axes(devices: int, n: int) -> dict[str, int]:
    """The most nearly square mesh `{x, y}` of `devices` devices whose sides both divide `n`.

    Raises `BadMesh` if there is none, with the numbers of devices near it that would do.
    """
    fits = [
        (x, devices // x) for x in range(1, devices + 1) if devices % x == 0 and n % x == 0 and n % (devices // x) == 0
    ]
    if not fits:
        good = [d for d in range(1, 2 * devices) if any(d % x == 0 and n % x == 0 and n % (d // x) == 0
                                                        for x in range(1, d + 1))]  # fmt: skip
        raise BadMesh(f"{devices} devices cannot share a grid of {n} x {n} nodes equally; {good} devices can.")
    x, y = min(fits, key=lambda xy: abs(xy[0] - xy[1]))
    return {"x": x, "y": y}


def halo(field: Array, dim: int, axis: str, low: Array, high: Array) -> tuple[Array, Array]:
    """The slabs of one cell before and behind this device's piece along `dim`, of thickness 1 in `dim`.

    They come from the neighbours along the mesh axis `axis`; at the domain's ends they are `low` and `high`, which have
    the piece's shape without `dim`.
    """
    n = lax.axis_size(axis)
    me = lax.axis_index(axis)
    first = lax.slice_in_dim(field, 0, 1, axis=dim)
    last = lax.slice_in_dim(field, field.shape[dim] - 1, field.shape[dim], axis=dim)
    from_low = lax.ppermute(last, axis, [(i, i + 1) for i in range(n - 1)])
    from_high = lax.ppermute(first, axis, [(i + 1, i) for i in range(n - 1)])
    before = jnp.where(me == 0, jnp.expand_dims(low, dim), from_low)
    behind = jnp.where(me == n - 1, jnp.expand_dims(high, dim), from_high)
    return before, behind
