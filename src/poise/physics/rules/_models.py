"""Model steps for `Nudge`: fields of shape `(components, rows, columns)` to the time of the next frame.

Central differences with clamped ends (the outermost value stands for what lies beyond), Heun's method in time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32

from ...errors import BadInput

Fields = Float32[Array, "components rows columns"]
Model = Callable[[Fields], Fields]


def neighbours(x: Array) -> tuple[Array, Array, Array, Array]:
    """West, east, south and north of every cell along the last two axes, the ends repeated."""
    # One padded copy and four slices of it: XLA reads them in one loop, where a concatenation per side is a copy each.
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(1, 1), (1, 1)], mode="edge")
    rows, columns = x.shape[-2:]

    def at(i: int, j: int) -> Array:
        return lax.slice_in_dim(lax.slice_in_dim(padded, i, i + rows, axis=-2), j, j + columns, axis=-1)

    return at(1, 0), at(1, 2), at(0, 1), at(2, 1)


def _rate(x: Fields, a: Array | float, b: Array | float, nu: float, dx: float, dy: float) -> Fields:
    """-a x_x - b x_y + nu (x_xx + x_yy)."""
    west, east, south, north = neighbours(x)
    diffusion = (east - 2 * x + west) * (nu / dx**2) + (north - 2 * x + south) * (nu / dy**2)
    return diffusion - a * (east - west) * (0.5 / dx) - b * (north - south) * (0.5 / dy)


def _heun(rate: Callable[[Fields], Fields], x: Fields, dt: float, steps: int) -> Fields:
    for _ in range(steps):
        k = rate(x)
        x = x + (0.5 * dt) * (k + rate(x + dt * k))
    return x


def burgers(*, nu: float, dx: float, dy: float, dt: float, speed: float = 1.0) -> Model:
    """Viscous Burgers for two velocities: u_t + u u_x + v u_y = nu lap u, and the same for v. `speed`: the largest that
    is expected, for the number of inner steps that keeps Heun's method stable."""
    steps = _steps(nu, dx, dy, dt, speed)

    def model(x: Fields) -> Fields:
        if x.shape[0] != 2:
            raise BadInput(f"Burgers' model steps two velocities, not {x.shape[0]} components.")
        return _heun(lambda y: _rate(y, y[0], y[1], nu, dx, dy), x, dt / steps, steps)

    return model


def advection_diffusion(*, velocity: tuple[float, float], nu: float, dx: float, dy: float, dt: float) -> Model:
    """c_t + a c_x + b c_y = nu lap c for each component on its own, `velocity` = (a, b)."""
    a, b = velocity
    steps = _steps(nu, dx, dy, dt, max(abs(a), abs(b)))
    rate = partial(_rate, a=a, b=b, nu=nu, dx=dx, dy=dy)
    return lambda x: _heun(rate, x, dt / steps, steps)


def persistence(x: Fields) -> Fields:
    """The model of which nothing is known: the field stays."""
    return x


def _steps(nu: float, dx: float, dy: float, dt: float, speed: float) -> int:
    """Inner steps: 0.4 of the limits of diffusion and advection."""
    if not (nu >= 0 and dx > 0 and dy > 0 and dt >= 0 and all(map(math.isfinite, (nu, dx, dy, dt, speed)))):
        raise BadInput("A model needs finite numbers: nu and dt not negative, dx and dy above 0.")
    limit = max(2 * nu * (1 / dx**2 + 1 / dy**2), speed * (1 / dx + 1 / dy), 1e-30)
    steps = max(1, math.ceil(dt * limit / 0.8))
    if steps > 100:
        raise BadInput(
            f"{steps} inner steps between two frames; accepted are 100: the grid is too fine for dt = {dt:g}."
        )
    return steps
