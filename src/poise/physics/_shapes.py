"""Regions of space: boxes, discs, balls, polygons, and what unions and differences make of them.

A shape knows its axes, whether a point is inside, and its boundary as patches. A patch has a name (the boundary's
name in
conditions), a measure (length, area, …) and a map from the unit cube to points and outward normals, so that points
can be
made anywhere, one chunk at a time, in proportion to measure. `a - b`, `a | b` and `a & b` combine shapes; the parts of
the boundary of one that the other hides are masked, and the normals of what is cut out point into the hole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

from poise.errors import BadInput

Sampler = Callable[[Any], tuple[Any, Any]]
"""Unit-cube coordinates (n, d-1 or more) to points (n, d) and outward unit normals (n, d)."""
Mask = Callable[[Any], Any]


@dataclass(frozen=True)
class Patch:
    """A piece of boundary; `keep` is False where another shape hides it."""

    name: str
    measure: float
    at: Sampler
    keep: Mask


def _everywhere(points: Any) -> Any:
    return (np if isinstance(points, np.ndarray) else jnp).ones(points.shape[0], bool)


@dataclass(frozen=True)
class Shape:
    """A region over named axes with an inside test, bounds and boundary patches.

    `periodic` lists axes that close on themselves; `kind` and `data` say what the shape is, for solvers that have a
    special basis for it (a box, a ball, the centres of holes, the corners of a polygon).
    """

    axes: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    inside: Mask
    patches: tuple[Patch, ...]
    measure: float
    kind: str
    data: tuple[Any, ...] = ()
    periodic: tuple[str, ...] = ()
    parts: tuple[Shape, ...] = ()

    def __sub__(self, other: Shape) -> Shape:
        return difference(self, other)

    def __or__(self, other: Shape) -> Shape:
        return union(self, other)

    def __and__(self, other: Shape) -> Shape:
        return intersection(self, other)

    def named(self, name: str) -> Shape:
        """The same shape with all of its boundary called `name`."""
        return replace(self, patches=tuple(replace(patch, name=name) for patch in self.patches))

    @property
    def boundaries(self) -> tuple[str, ...]:
        """The names of the boundary's pieces, each once."""
        return tuple(dict.fromkeys(patch.name for patch in self.patches))

    @property
    def dimension(self) -> int:
        return len(self.axes)


def _check_axes(shapes: Sequence[Shape]) -> None:
    if len({shape.axes for shape in shapes}) != 1:
        raise BadInput(f"Shapes to combine need the same axes, not {', '.join(' '.join(s.axes) for s in shapes)}.")


def _hide(patch: Patch, by: Mask, *, flip: bool = False) -> Patch:
    def at(s: Any) -> tuple[Any, Any]:
        points, normals = patch.at(s)
        return points, -normals if flip else normals

    return replace(patch, at=at, keep=lambda points: patch.keep(points) & by(points))


def difference(a: Shape, b: Shape) -> Shape:
    """What is in a and not in b."""
    _check_axes((a, b))
    if any(h <= lo or ll >= hh for lo, hh, ll, h in zip(a.low, a.high, b.low, b.high, strict=True)):
        raise BadInput("A difference cuts out a shape that lies wholly outside; check its centre and size.")
    outside: Mask = lambda points: ~b.inside(points)  # noqa: E731
    kept = [_hide(patch, outside) for patch in a.patches]
    cut = [_hide(patch, a.inside, flip=True) for patch in b.patches]
    return _combined("difference", a.low, a.high, lambda p: a.inside(p) & ~b.inside(p), (*kept, *cut), (a, b))


def union(*shapes: Shape, name: str | None = None) -> Shape:
    """What is in any of the shapes; `name` renames the whole boundary."""
    if not shapes:
        raise BadInput("union needs at least one shape.")
    _check_axes(shapes)
    patches = []
    for i, shape in enumerate(shapes):
        others = [other for j, other in enumerate(shapes) if j != i and _overlap(shape, other)]
        for patch in shape.patches:
            hidden = lambda p, o=tuple(others): ~_any(o, p)  # noqa: E731
            patches.append(_hide(patch, hidden) if others else patch)
    low = tuple(min(v) for v in zip(*(s.low for s in shapes), strict=True))
    high = tuple(max(v) for v in zip(*(s.high for s in shapes), strict=True))
    result = _combined("union", low, high, lambda p: _any(shapes, p), tuple(patches), shapes)
    return result.named(name) if name else result


def intersection(a: Shape, b: Shape) -> Shape:
    """What is in both shapes."""
    _check_axes((a, b))
    patches = (*(_hide(p, b.inside) for p in a.patches), *(_hide(p, a.inside) for p in b.patches))
    low = tuple(map(max, a.low, b.low))
    high = tuple(map(min, a.high, b.high))
    return _combined("intersection", low, high, lambda p: a.inside(p) & b.inside(p), patches, (a, b))


def _any(shapes: Sequence[Shape], points: Any) -> Any:
    found = shapes[0].inside(points)
    for shape in shapes[1:]:
        found = found | shape.inside(points)
    return found


def _overlap(a: Shape, b: Shape) -> bool:
    rows = zip(a.low, a.high, b.low, b.high, strict=True)
    return all(a0 <= b1 and b0 <= a1 for a0, a1, b0, b1 in rows)


def _combined(
    kind: str,
    low: Sequence[float],
    high: Sequence[float],
    inside: Mask,
    patches: Sequence[Patch],
    parts: Sequence[Shape],
) -> Shape:
    """A combined shape; measures are counted on a fixed low-discrepancy sample, because overlaps have no formula."""
    from ._points import kronecker

    axes = parts[0].axes
    box = math.prod(h - lo for lo, h in zip(low, high, strict=True))
    s = kronecker(np.arange(4096), len(axes))
    fraction = float(np.mean(np.asarray(inside(np.asarray(low) + s * (np.asarray(high) - np.asarray(low))))))
    if fraction == 0.0:
        raise BadInput(f"The {kind} is empty: no point is inside; check centres and sizes.")
    visible = []
    for patch in patches:
        points, _ = patch.at(jnp.asarray(kronecker(np.arange(1024), max(len(axes) - 1, 1))))
        share = float(np.mean(np.asarray(patch.keep(np.asarray(points)))))  # in numpy, where nothing is compiled
        if share > 0.0:
            visible.append(patch)
    return Shape(axes, tuple(low), tuple(high), inside, tuple(visible), box * fraction, kind, parts=tuple(parts))


def sphere_points(s: Any) -> Any:
    """Unit vectors (n, d) from unit-cube coordinates (n, d) by the normal distribution's symmetry."""
    gauss = ndtri(jnp.clip(s, 1e-12, 1.0 - 1e-12))
    gauss = gauss.at[:, 0].add(1e-12)  # the cube's centre has no direction
    return gauss / jnp.linalg.norm(gauss, axis=1, keepdims=True)


everywhere = _everywhere
