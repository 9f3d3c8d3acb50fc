"""One fused Runge-Kutta stage of two-dimensional viscous Burgers: the compiled kernels and their jnp twin.

    out = c_base base + c_in q + c_rate rate(q)
    rate(q) = nu (q_xx + q_yy) - q_0 q_x - q_1 q_y + forcing

with central differences at distance h. Heun's method is two of them: `mid = stage(q, q, (0, 1, dt))`, then
`stage(mid, q, (1/2, 1/2, dt/2))`, with halos exchanged in between.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from ._call import call


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
