"""Points by index: the i-th point of a low-discrepancy sequence, made where and when it is needed.

Kronecker sequences with the generalised golden ratio (Roberts 2018, R_d): s_i = frac(1/2 + i a). No table of points
exists, so memory does not depend on how many there are. Beyond eight dimensions the sequence loses its uniformity and a
counter-based hash takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._shapes import Patch, Shape


def _ratios(dimension: int) -> np.ndarray:
    root = 2.0
    for _ in range(60):
        root = (1.0 + root) ** (1.0 / (dimension + 1))
    return root ** -np.arange(1.0, dimension + 1)


def kronecker(index: Any, dimension: int, offset: float = 0.5, xp: Any = np) -> Any:
    """Points (n, dimension) of the unit cube for integer indices (n,)."""
    return xp.mod(offset + xp.asarray(index)[:, None] * _ratios(dimension)[None, :], 1.0)


def unit(index: Any, dimension: int, offset: float) -> Any:
    """Unit-cube points inside jit: Kronecker up to eight dimensions, hashed uniforms beyond."""
    if dimension <= 8:
        return kronecker(index, dimension, offset, jnp)
    base = jax.random.fold_in(jax.random.key(0), jnp.asarray(offset * 1e6).astype(jnp.int32))
    keys = jax.vmap(lambda i: jax.random.fold_in(base, i))(index)
    return jax.vmap(lambda k: jax.random.uniform(k, (dimension,), dtype=jnp.float64))(keys)


@dataclass(frozen=True)
class Cloud:
    """Where one equation or condition is to hold: the interior or some patches, perhaps times a stretch of time.

    `time` is None (no time), a pair (the whole stretch) or a single number (an initial or final instant).
    """

    shape: Shape
    patches: tuple[Patch, ...]
    time: tuple[float, float] | float | None

    @property
    def measure(self) -> float:
        space = sum(patch.measure for patch in self.patches) if self.patches else self.shape.measure
        return space * (self.time[1] - self.time[0]) if isinstance(self.time, tuple) else space

    def at(self, index: Any, offset: float) -> tuple[dict[Any, Any], Any]:
        """Coordinates and normals by name for the indices (n,), and which of the points count (n,)."""
        d = self.shape.dimension
        moving = isinstance(self.time, tuple)
        s = unit(index, d + moving, offset)
        if self.patches:
            points, normals, keep = _on_patches(self.patches, s, d)
        else:
            low, high = np.asarray(self.shape.low), np.asarray(self.shape.high)
            if self.shape.kind == "ball" and d > 3:
                points = _in_ball(self.shape, s[:, :d])
            else:
                points = low + s[:, :d] * (high - low)
            normals, keep = None, self.shape.inside(points)
        env: dict[Any, Any] = {axis: points[:, i] for i, axis in enumerate(self.shape.axes)}
        if normals is not None:
            env |= {("n", axis): normals[:, i] for i, axis in enumerate(self.shape.axes)}
        if isinstance(self.time, tuple):
            env["t"] = self.time[0] + s[:, d] * (self.time[1] - self.time[0])
        elif self.time is not None:
            env["t"] = jnp.full(points.shape[0], self.time)
        return env, keep


def _in_ball(shape: Shape, s: Any) -> Any:
    """Uniform in a ball of many dimensions, where rejection from the cube would keep nothing: a direction and a radius.

    The radius' uniform is another hash of the same coordinates, so that it does not depend on the direction.
    """
    from ._shapes import sphere_points

    centre, radius = shape.data
    d = shape.dimension
    u = jnp.mod(jnp.sum(s * (np.arange(d) + 1.0) * 977.0, axis=1), 1.0)
    return jnp.asarray(centre) + radius * sphere_points(s) * (u ** (1.0 / d))[:, None]


def _on_patches(patches: Sequence[Patch], s: Any, d: int) -> tuple[Any, Any, Any]:
    """Points spread over patches in proportion to measure: the first coordinate picks the patch and its rest is
    reused."""
    total = sum(patch.measure for patch in patches)
    share = np.array([patch.measure / total for patch in patches])
    start = np.concatenate([[0.0], np.cumsum(share)[:-1]])
    which = jnp.clip(jnp.searchsorted(jnp.asarray(start), s[:, 0], side="right") - 1, 0, len(patches) - 1)
    local = s.at[:, 0].set((s[:, 0] - jnp.asarray(start)[which]) / jnp.asarray(share)[which])
    if len(patches) > 32:  # the faces of a high-dimensional box: all alike but for one axis
        return _on_faces(patches, which, local, d)
    points = jnp.zeros((s.shape[0], d))
    normals = jnp.zeros((s.shape[0], d))
    keep = jnp.zeros(s.shape[0], bool)
    for i, patch in enumerate(patches):
        p, n = patch.at(local)
        mine = (which == i)[:, None]
        points = jnp.where(mine, p, points)
        normals = jnp.where(mine, n, normals)
        keep = jnp.where(mine[:, 0], patch.keep(p), keep)
    return points, normals, keep


def _on_faces(patches: Sequence[Patch], which: Any, local: Any, d: int) -> tuple[Any, Any, Any]:
    sample = [patch.at(jnp.asarray([[0.25] * d, [0.75] * d])) for patch in patches]
    normal = jnp.stack([n[0] for _, n in sample])
    low = jnp.min(jnp.stack([p[0] - 0.25 * jnp.abs(p[1] - p[0]) / 0.5 for p, _ in sample]), axis=0)
    high = jnp.max(jnp.stack([p[1] + 0.25 * jnp.abs(p[1] - p[0]) / 0.5 for p, _ in sample]), axis=0)
    n = normal[which]
    inner = low + local[:, :d] * (high - low)
    points = jnp.where(n > 0.5, high, jnp.where(n < -0.5, low, inner))
    return points, n, jnp.ones(which.shape[0], bool)
