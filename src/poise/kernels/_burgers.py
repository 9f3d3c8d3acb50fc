"""One fused Runge-Kutta stage of two-dimensional viscous Burgers: the compiled kernels and their jnp twins.

    out = c_base base + c_in q + c_rate rate(q)
    rate(q) = nu (q_xx + q_yy) - q_0 q_x - q_1 q_y + forcing

with central differences at distance h. Heun's method is two of them: `mid = stage(q, q, (0, 1, dt))`, then
`stage(mid, q, (1/2, 1/2, dt/2))`, with halos exchanged in between. The sealed stage also makes the seal of `out` and
checks that of `base` in the same pass (`design/kernels-sealed-stage.md`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int32

from ._call import Spec, call
from ._seal import check, seal_counting
from .layout import BLOCK, Layout
from .ref import Check, Seal


def burgers_twin(
    q: Float[Array, "2 nx ny"],
    base: Float[Array, "2 nx ny"],
    west: Float[Array, "2 1 ny"],
    east: Float[Array, "2 1 ny"],
    south: Float[Array, "2 nx 1"],
    north: Float[Array, "2 nx 1"],
    forcing: Float[Array, " 2"],
    numbers: np.ndarray,
) -> Float[Array, "2 nx ny"]:
    """What the kernel computes, in jnp; `numbers` are 1 / (2 h), nu / h^2, c_base, c_in, c_rate."""
    a, d, c_base, c_in, c_rate = (float(x) for x in numbers)
    w = jnp.concatenate((west, q[:, :-1]), 1)
    e = jnp.concatenate((q[:, 1:], east), 1)
    s = jnp.concatenate((south, q[:, :, :-1]), 2)
    n = jnp.concatenate((q[:, :, 1:], north), 2)
    advection = q[:1] * ((e - w) * a) + q[1:] * ((n - s) * a)
    rate = (w + e + s + n - 4.0 * q) * d - advection + forcing[:, None, None]
    return c_base * base + (c_in * q + c_rate * rate)


def burgers_stage(
    q: Float[Array, "2 nx ny"],
    base: Float[Array, "2 nx ny"],
    west: Float[Array, "2 1 ny"],
    east: Float[Array, "2 1 ny"],
    south: Float[Array, "2 nx 1"],
    north: Float[Array, "2 nx 1"],
    forcing: Float[Array, " 2"],
    *,
    h: float,
    nu: float,
    weights: tuple[float, float, float],
) -> Float[Array, "2 nx ny"]:
    """One stage on a shard, each field read once; `weights` = (c_base, c_in, c_rate), ghosts as `halo` returns them."""
    numbers = np.array([0.5 / h, nu / h**2, *weights], np.float64)
    args = [q, base, west, east, south, north, forcing]
    if q.size == 0:
        return q
    return call(
        "poise_burgers_stage",
        lambda *a: [burgers_twin(*a, numbers=numbers)],
        args,
        [(q.shape, q.dtype)],
        numbers=numbers,
    )[0]


def _sealed_twin(*args: Array, bits: int, **options: Any) -> list[Array]:
    """The stage, then one read for the new seal and one for the old."""
    base, (parity, marks, guard) = args[1], args[7:]
    out = burgers_stage(*args[:7], **options)
    made, loud = seal_counting(out, bits)
    seen = check(base, Seal(parity, marks, guard))
    return [out, *made, jnp.stack((loud, *seen))]


def burgers_stage_sealed(
    q: Float[Array, "2 nx ny"],
    base: Float[Array, "2 nx ny"],
    west: Float[Array, "2 1 ny"],
    east: Float[Array, "2 1 ny"],
    south: Float[Array, "2 nx 1"],
    north: Float[Array, "2 nx 1"],
    forcing: Float[Array, " 2"],
    kept: Seal,
    *,
    h: float,
    nu: float,
    weights: tuple[float, float, float],
    bits: int,
) -> tuple[Float[Array, "2 nx ny"], Seal, Int32[Array, ""], Check]:
    """`burgers_stage` in float32, sealed: `out`, its seal, how many of its values have magnitude bits of at least
    `bits` (as `seal_counting`), and what `check` says of `base` and its seal `kept`, in the same pass.

    A block of `base` is compared with its marks after the stage has read it.
    """
    assert q.dtype == jnp.float32, q.dtype
    lay = Layout(q.size)
    args = [q, base, west, east, south, north, forcing, *kept]
    twin = partial(_sealed_twin, h=h, nu=nu, weights=weights, bits=bits)
    # Small fields are nobody's bottleneck, and cells are counted in 32 bits.
    if lay.B < BLOCK or q.size >= 2**33:
        out, *made, found = twin(*args)
    else:
        seals: list[Spec] = [((lay.L,), jnp.uint32), (lay.marks_shape, jnp.uint32), ((lay.G, 2), jnp.uint32)]
        results: list[Spec] = [(q.shape, q.dtype), *seals, ((4,), jnp.int32)]
        numbers = np.array([0.5 / h, nu / h**2, *weights], np.float64)
        attributes = {"numbers": numbers, "limit_bits": np.uint32(bits)}
        out, *made, found = call("poise_burgers_stage_sealed", twin, args, results, **attributes)
    return out, Seal(*made), found[0], Check(found[1], found[2], found[3])
