"""Functions of the distance from a ball's centre, times polynomials of time.

A ball has them as a rectangle has products of coordinates. With s = |x - c|^2 / R^2 (Legendre in s on [0, 1]):
d_i g = 2 (x_i - c_i) g'/R^2, lap g = (4 s g'' + 2 d g') / R^2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from poise.errors import BadInput

from .._expr import Order
from ._polynomial import legendre


@dataclass(frozen=True, eq=False)
class Radial:
    """Features P_j(2 s - 1) P_k(t), j = 0 … degree and k = 0 … time_degree (0 without time)."""

    axes: tuple[str, ...]
    centre: np.ndarray
    radius: float
    degree: int
    time: tuple[float, ...]
    time_degree: int

    @property
    def count(self) -> int:
        return (self.degree + 1) * (self.time_degree + 1)

    @property
    def level(self) -> np.ndarray:
        j, k = np.meshgrid(np.arange(self.degree + 1), np.arange(self.time_degree + 1), indexing="ij")
        share = np.maximum(j / max(self.degree, 1), k / max(self.time_degree, 1))
        return share.reshape(-1)

    @property
    def space(self) -> tuple[str, ...]:
        return tuple(axis for axis in self.axes if axis != "t")

    def columns(self, env: Mapping[Any, Any], order: Order) -> Any:
        x = jnp.stack([jnp.asarray(env[axis]) for axis in self.space], axis=1) - self.centre
        square = self.radius**2
        s = jnp.sum(x**2, axis=1) / square
        g, g1, g2 = (table * 2.0**m for m, table in enumerate(legendre(2.0 * s - 1.0, self.degree, 2)))
        times = order[self.axes.index("t")] if "t" in self.axes and not isinstance(order, str) else 0
        if order == "lap":
            part = (4.0 * s[:, None] * g2 + 2.0 * len(self.space) * g1) / square
        elif order == "dn":
            n = jnp.stack([env["n", axis] for axis in self.space], axis=1)
            part = 2.0 * jnp.sum(x * n, axis=1)[:, None] * g1 / square
        else:
            which = [i for i, axis in enumerate(self.space) for _ in range(int(order[self.axes.index(axis)]))]
            if len(which) > 2:
                raise BadInput("Radial features have space derivatives up to the second order.")
            part = g
            if len(which) == 1:
                part = 2.0 * x[:, which] * g1 / square
            elif len(which) == 2:
                a, b = which
                part = 4.0 * x[:, [a]] * x[:, [b]] * g2 / square**2 + (2.0 * g1 / square if a == b else 0.0)
        if not self.time:
            return part
        half = (self.time[1] - self.time[0]) / 2.0
        clock = legendre((env["t"] - self.time[0]) / half - 1.0, self.time_degree, times)[times] / half**times
        return (part[:, :, None] * clock[:, None, :]).reshape(len(s), -1)
