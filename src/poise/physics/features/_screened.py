"""Multipoles of the screened Laplacian: K_n(kappa r) e^{i n theta} around a hole, for -lap u + kappa^2 u = f.

They decay like exp(-kappa r), so each hole needs few. Derivatives are closed, since
(d_x + i d_y) K_n e^{in theta} = -kappa K_{n+1} e^{i(n+1) theta} and (d_x - i d_y) lowers n likewise (DLMF 10.29.2).
K_n comes from its integral (DLMF 10.32.9) by the trapezoidal rule, which converges geometrically: one matrix product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._expr import Order
from ._base import compound


def bessel_k(x: Any, top: int, xp: Any = jnp) -> Any:
    """K_n(x), n = 0 … top, for x > 0 (n,): shape (n, top + 1)."""
    h = 0.2
    nodes = np.arange(43) * h
    orders = np.arange(top + 1)
    weight = np.where(nodes == 0.0, 0.5, 1.0)[:, None] * h * np.cosh(nodes[:, None] * orders)
    return xp.exp(-x[:, None] * np.cosh(nodes)) @ weight


@dataclass(frozen=True, eq=False)
class Screened:
    """Features Re and Im of K_n(kappa r) e^{in theta} / K_n(kappa radius), n = 0 … orders."""

    axes: tuple[str, ...]
    centre: tuple[float, float]
    radius: float
    kappa: float
    orders: int

    @property
    def count(self) -> int:
        return 2 * self.orders + 1

    @property
    def level(self) -> np.ndarray:
        return np.concatenate([[0.0], np.repeat(np.arange(1, self.orders + 1), 2) / max(self.orders, 1)])

    def columns(self, env: Mapping[Any, Any], order: Order) -> Any:
        if order == "lap":
            return self.kappa**2 * self.columns(env, (0,) * len(self.axes))
        if isinstance(order, str):
            return compound(self, env, order)
        a, b = order[self.axes.index("x")], order[self.axes.index("y")]
        dx, dy = env["x"] - self.centre[0], env["y"] - self.centre[1]
        r = jnp.maximum(jnp.hypot(dx, dy), 0.3 * self.radius)
        turn = (dx + 1j * dy) / jnp.maximum(jnp.hypot(dx, dy), 1e-300)
        top = self.orders + a + b
        k = bessel_k(self.kappa * r, top + 1)
        angle = jnp.angle(turn)[:, None]
        orders = np.arange(self.orders + 1)

        def modes(n: np.ndarray) -> Any:
            return k[:, np.abs(n)] * jnp.exp(1j * angle * n)

        # d_x = (D+ + D-)/2, d_y = (D+ - D-)/(2i): expand the product into shifts of n
        shifts: dict[int, complex] = {0: 1.0}
        for raising, lowering in [(0.5, 0.5)] * a + [(-0.5j, 0.5j)] * b:
            step: dict[int, complex] = {}
            for n, c in shifts.items():
                step[n + 1] = step.get(n + 1, 0.0) - self.kappa * raising * c
                step[n - 1] = step.get(n - 1, 0.0) - self.kappa * lowering * c
            shifts = step
        at_edge = bessel_k(np.array([self.kappa * self.radius]), self.orders + 1, np)[0]
        # the mode and its conjugate, each differentiated, make the real and the imaginary part
        up = sum(c * modes(orders + s) for s, c in shifts.items()) / at_edge[: self.orders + 1]
        down = sum(c * modes(-orders + s) for s, c in shifts.items()) / at_edge[: self.orders + 1]
        pair = jnp.stack([jnp.real((up + down) / 2.0), jnp.real((up - down) / 2.0j)], axis=2)
        return pair.reshape(len(r), -1)[:, np.delete(np.arange(2 * self.orders + 2), 1)]
