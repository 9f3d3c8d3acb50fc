"""Powers and logarithms of a complex coordinate: multipoles and logs for holes, singular functions for corners.

w = (z - centre) e^{-i turn} / scale with z = x + iy. Features are Re and Im of w^p or w^p log w; all are harmonic, and
every derivative is closed: d_x^a d_y^b Re f = Re(i^b f^(a+b)). The branch cut lies along w = negative reals, so `turn`
points from a corner into the region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._expr import Order
from ._base import compound


@dataclass(frozen=True, eq=False)
class Harmonics:
    """Features Re or Im (`imaginary`) of w^power, times log w where `logarithm`."""

    axes: tuple[str, ...]
    centres: np.ndarray  # (c,) complex
    scales: np.ndarray  # (c,)
    turns: np.ndarray  # (c,)
    which: np.ndarray  # (count,) the centre of each feature
    power: np.ndarray  # (count,)
    logarithm: np.ndarray  # (count,) bool
    imaginary: np.ndarray  # (count,) bool
    level: np.ndarray  # (count,)

    @property
    def count(self) -> int:
        return len(self.level)

    def columns(self, env: Mapping[Any, Any], order: Order) -> Any:
        if order == "lap":
            return jnp.zeros((jnp.shape(env["x"])[0], self.count))
        if isinstance(order, str):
            return compound(self, env, order)
        px, py = order[self.axes.index("x")], order[self.axes.index("y")]
        if sum(order) != px + py:
            return jnp.zeros((jnp.shape(env["x"])[0], self.count))
        frame = np.exp(-1j * self.turns) / self.scales
        w = (env["x"] + 1j * env["y"])[:, None] * frame - self.centres * frame
        logz = jnp.log(jnp.where(jnp.abs(w) < 1e-14, 1e-14, w))[:, self.which]
        k = px + py
        # d^k (w^p log w) = w^{p-k} (c log w + c'), with c the falling factorial and c' its derivative in p
        c, dc = np.ones_like(self.power), np.zeros_like(self.power)
        for j in range(k):
            c, dc = c * (self.power - j), dc * (self.power - j) + c
        factor = jnp.where(self.logarithm, c * logz + dc, c)
        chain = (frame[self.which]) ** k * 1j**py
        value = jnp.exp((self.power - k) * logz) * factor * chain
        return jnp.where(self.imaginary, value.imag, value.real)


def multipoles(centres: Sequence[Sequence[float]], radii: Sequence[float], count: int) -> Harmonics:
    """For holes: per hole log r, then Re and Im of (radius/(z - centre))^n for n = 1 … count."""
    n = np.arange(1, count + 1)
    holes, size = len(centres), 2 * count + 1
    return Harmonics(
        ("x", "y"),
        np.array([complex(*c) for c in centres]),
        np.array(radii, dtype=np.float64),
        np.zeros(holes),
        np.repeat(np.arange(holes), size),
        np.tile(np.concatenate([[0.0], -np.repeat(n, 2).astype(float)]), holes),
        np.tile(np.arange(size) == 0, holes),
        np.tile(np.concatenate([[False], np.tile([False, True], count)]), holes),
        np.tile(np.concatenate([[0.0], np.repeat(n, 2) / max(count, 1)]), holes),
    )


def charges(low: Any, high: Any, margin: float, per_side: int) -> Harmonics:
    """Logarithmic sources on a rectangle around the region, `margin` of its size away (method of fundamental
    solutions).

    They stand for whatever the solution's continuation does beyond the boundary, where polynomials converge slowly.
    """
    s = (np.arange(per_side) + 0.5) / per_side
    w, h = np.asarray(high) - np.asarray(low)
    x0, x1, y0, y1 = low[0] - margin * w, high[0] + margin * w, low[1] - margin * h, high[1] + margin * h
    x, y = x0 + (x1 - x0) * s, y0 + (y1 - y0) * s
    z = np.concatenate([x + 1j * y0, x1 + 1j * y, x[::-1] + 1j * y1, x0 + 1j * y[::-1]])
    middle = complex((low[0] + high[0]) / 2, (low[1] + high[1]) / 2)
    count = len(z)
    # the cut, along w = negative reals, points outward; the logarithm's real part has none, so this is only tidy
    turns = np.angle(middle - z)
    level = np.tile(np.where(np.arange(per_side) % 2 == 0, 0.5, 1.0), 4)
    yes, no = np.ones(count, bool), np.zeros(count, bool)
    return Harmonics(("x", "y"), z, np.full(count, max(w, h)), turns, np.arange(count), np.zeros(count), yes, no, level)


def powers(low: Any, high: Any, count: int) -> Harmonics:
    """Harmonic polynomials Re and Im of ((z - middle)/size)^n, n = 0 … count."""
    n = np.concatenate([[0], np.repeat(np.arange(1, count + 1), 2)]).astype(float)
    size = len(n)
    middle = complex((low[0] + high[0]) / 2, (low[1] + high[1]) / 2)
    radius = 0.5 * float(np.hypot(high[0] - low[0], high[1] - low[1]))
    imaginary = np.concatenate([[False], np.tile([False, True], count)])
    zero = np.zeros(size, int)
    centres, sizes = np.array([middle]), np.array([radius])
    no = np.zeros(size, bool)
    return Harmonics(("x", "y"), centres, sizes, np.zeros(1), zero, n, no, imaginary, n / max(count, 1))


def corner(at: Sequence[float], turn: float, angle: float, size: float, count: int) -> Harmonics:
    """For a corner of opening `angle` around the direction `turn`: the singular harmonic functions of its wedge.

    r^(k pi/angle) sin and cos of k pi theta/angle, k = 1 … count; where the exponent is whole (a right or straight
    angle) the power is smooth and its partner r^p log r takes its place (Grisvard 1985; Wasow 1957).
    """
    power = np.pi / angle * np.arange(1, count + 1)
    whole = np.abs(power - np.round(power)) < 1e-9
    level = np.repeat(np.arange(1, count + 1) / count, 2)
    return Harmonics(
        ("x", "y"),
        np.array([complex(*at)]),
        np.array([size]),
        np.array([turn]),
        np.zeros(2 * count, int),
        np.repeat(np.where(whole, np.round(power), power), 2),
        np.repeat(whole, 2),
        np.tile([False, True], count),
        level,
    )
