"""The shapes that have a formula: box, disc, ball, polygon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from poise.errors import BadInput

from ._shapes import Patch, Shape, everywhere, sphere_points


def Box(*, name: str | None = None, periodic: str = "", **ranges: tuple[float, float]) -> Shape:
    """A box: `Box(x=(0, 1), y=(-1, 1))`; its sides are called "x-", "x+", "y-", … or all `name`.

    `periodic` names the axes that close on themselves, such as `"x"` or `"x y"`; they have no sides.
    """
    if not ranges:
        raise BadInput("A box needs at least one axis, such as Box(x=(0, 1)).")
    for axis, pair in ranges.items():
        if len(pair) != 2 or not pair[0] < pair[1]:
            raise BadInput(f"The box's axis {axis} needs a pair (low, high) with low < high, not {pair}.")
    names = tuple(ranges)
    closed = tuple(periodic.split())
    if any(axis not in names for axis in closed):
        raise BadInput(f"periodic={periodic!r} names an axis that the box lacks; its axes are {' '.join(names)}.")
    low = np.array([float(ranges[axis][0]) for axis in names])
    high = np.array([float(ranges[axis][1]) for axis in names])

    def inside(points: Any) -> Any:
        return ((points >= low) & (points <= high)).all(axis=1)

    patches = []
    for i, axis in enumerate(names):
        if axis in closed:
            continue
        others = [j for j in range(len(names)) if j != i]
        area = float(np.prod((high - low)[others]))
        for side, sign in ((0, -1.0), (1, 1.0)):
            value = high[i] if side else low[i]

            def at(s: Any, i: int = i, value: float = value, sign: float = sign, others: list[int] = others) -> Any:
                count = s.shape[0]
                columns = [jnp.full(count, value)] * len(low)
                for k, j in enumerate(others):
                    columns[j] = low[j] + s[:, k] * (high - low)[j]
                direction = jnp.zeros((count, len(low))).at[:, i].set(sign)
                return jnp.stack(columns, axis=1), direction

            patches.append(Patch(name or f"{axis}{'+' if side else '-'}", area, at, everywhere))
    return Shape(
        names, tuple(low), tuple(high), inside, tuple(patches), float(np.prod(high - low)), "box", periodic=closed
    )


def cube(dimension: int, low: float = 0.0, high: float = 1.0, *, name: str = "faces") -> Shape:
    """A box over the axes x1 … xd, all of its faces called `name`."""
    ranges = {f"x{i + 1}": (low, high) for i in range(dimension)}
    return Box(name=name, periodic="", **ranges)


def Ball(
    centre: Sequence[float], radius: float, *, name: str = "sphere", axes: str | None = None, region: str = "ball"
) -> Shape:
    """A ball in any dimension; the axes are x, y, z up to three and x1 … xd beyond, unless given."""
    d = len(centre)
    if radius <= 0.0 or d < 1:
        raise BadInput(f"A ball needs a positive radius and a centre, not radius {radius} and centre {centre}.")
    names = tuple(axes.split()) if axes else (("x", "y", "z")[:d] if d <= 3 else tuple(f"x{i + 1}" for i in range(d)))
    if len(names) != d:
        raise BadInput(f"A ball with a centre of {d} coordinates needs {d} axes, not {axes!r}.")
    c = np.array(centre, dtype=np.float64)

    def inside(points: Any) -> Any:
        return ((points - c) ** 2).sum(axis=1) <= radius**2

    def at(s: Any) -> tuple[Any, Any]:
        if d == 2:
            angle = 2.0 * jnp.pi * s[:, 0]
            unit = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
        elif d == 3:
            height, angle = 2.0 * s[:, 0] - 1.0, 2.0 * jnp.pi * s[:, 1]
            ring = jnp.sqrt(1.0 - height**2)
            unit = jnp.stack([ring * jnp.cos(angle), ring * jnp.sin(angle), height], axis=1)
        else:
            unit = sphere_points(s[:, :d])
        return c + radius * unit, unit

    surface = 2.0 * math.pi ** (d / 2) / math.gamma(d / 2) * radius ** (d - 1) if d < 300 else 1.0
    patch = Patch(name, surface, at, everywhere)
    return Shape(
        names, tuple(c - radius), tuple(c + radius), inside, (patch,), surface * radius / d, region, (tuple(c), radius)
    )


def Disc(centre: Sequence[float], radius: float, *, name: str = "circle") -> Shape:
    """A disc over x, y."""
    if len(centre) != 2:
        raise BadInput(f"A disc needs a centre (x, y), not {tuple(centre)}.")
    return Ball(centre, radius, name=name)


def Polygon(*corners: tuple[float, float], name: str | None = None) -> Shape:
    """A simple polygon with its corners in anticlockwise order; sides are "side0", "side1", … or all `name`."""
    v = np.array(corners, dtype=np.float64)
    if v.ndim != 2 or v.shape[0] < 3 or v.shape[1] != 2:
        raise BadInput("A polygon needs three corners (x, y) or more.")
    w = np.roll(v, -1, axis=0)
    area = 0.5 * float(np.sum(v[:, 0] * w[:, 1] - w[:, 0] * v[:, 1]))
    if area <= 0.0:
        raise BadInput("A polygon's corners go anticlockwise, without crossing; these enclose no positive area.")

    def inside(points: Any) -> Any:
        x, y = points[:, :1], points[:, 1:2]
        dy = w[:, 1] - v[:, 1]
        cross = ((v[:, 1] > y) != (w[:, 1] > y)) & (
            x < v[:, 0] + (y - v[:, 1]) * (w[:, 0] - v[:, 0]) / np.where(dy == 0.0, 1.0, dy)
        )
        return cross.sum(axis=1) % 2 == 1

    patches = []
    for i in range(len(v)):
        a, b = v[i], w[i]
        length = float(np.hypot(*(b - a)))
        n = np.array([b[1] - a[1], a[0] - b[0]]) / length

        def at(s: Any, a: np.ndarray = a, b: np.ndarray = b, n: np.ndarray = n) -> tuple[Any, Any]:
            return a + s[:, :1] * (b - a), jnp.broadcast_to(jnp.asarray(n), (s.shape[0], 2))

        patches.append(Patch(name or f"side{i}", length, at, everywhere))
    data = tuple(map(tuple, v))
    return Shape(("x", "y"), tuple(v.min(0)), tuple(v.max(0)), inside, tuple(patches), area, "polygon", data)
