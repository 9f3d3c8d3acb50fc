"""Which features suit a problem: read from its operator and geometry, growing step by step.

lap u = f           harmonic powers, multipoles in discs cut out, singular functions at corners; polynomials for f
-lap u + k^2 u = f  polynomials, screened multipoles, corners
anything else       polynomials (dense in up to three variables, sparse beyond), multipoles and corners in the plane
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from .._calculus import expand, linearise, source
from .._expr import Add, Const, Deriv, Expr, Unknown
from .._problem import Problem
from .._shapes import Shape
from ..features import Family, Radial, Screened, corner, multipoles, powers, sparse, tensor
from ._rows import Trial


@dataclass(frozen=True)
class Operator:
    """A constant-coefficient scalar operator a (lap u - kappa2 u) with its source, or None for what is not one."""

    kappa2: float
    source: Expr


def operator(problem: Problem) -> Operator | None:
    """Whether the problem is a single linear equation lap u - kappa2 u = f in the plane."""
    if len(problem.equations) != 1 or len(problem.unknowns) != 1 or problem.time or problem.domain.axes != ("x", "y"):
        return None
    total: dict[tuple[int, ...], float] = {}
    for key, coefficient in linearise(problem.equations[0]).items():
        if not isinstance(coefficient, Const):
            return None
        for part in _terms(expand(Deriv(problem.unknowns[0], key[1]))):
            order = part.order
            assert not isinstance(order, str)
            total[order] = total.get(order, 0.0) + coefficient.value
    a = total.pop((2, 0), 0.0)
    if a == 0.0 or total.pop((0, 2), None) != a:
        return None
    c = total.pop((0, 0), 0.0)
    return None if any(total.values()) else Operator(-c / a, source(problem.equations[0]))


def _terms(node: Expr) -> list[Deriv]:
    return _terms(node.a) + _terms(node.b) if isinstance(node, Add) else [node] if isinstance(node, Deriv) else []


def discs(shape: Shape, cut: bool = False) -> list[tuple[tuple[float, float], float]]:
    """The discs that a shape has cut out."""
    if shape.kind == "ball" and cut and shape.dimension == 2:
        return [shape.data]
    if shape.kind == "difference":
        return discs(shape.parts[0], cut) + discs(shape.parts[1], True)
    return [found for part in shape.parts for found in discs(part, cut)]


def corners(shape: Shape) -> list[tuple[tuple[float, float], float, float]]:
    """The outer outline's corners: place, inward direction, opening angle."""
    if shape.kind == "difference":
        return corners(shape.parts[0])
    if shape.kind == "box" and shape.dimension == 2 and not shape.periodic:
        (x0, y0), (x1, y1) = shape.low, shape.high
        outline = [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]
    elif shape.kind == "polygon":
        outline = list(shape.data)
    else:
        return []
    z = np.array([complex(*v) for v in outline])
    ahead, behind = np.roll(z, -1) - z, np.roll(z, 1) - z
    opening = np.mod(np.angle(behind / ahead), 2.0 * math.pi)
    turn = np.angle(ahead) + opening / 2.0
    return [((v.real, v.imag), float(t), float(o)) for v, t, o in zip(z, turn, opening, strict=True)]


def plan(problem: Problem, degree: int) -> Trial:
    """The features for every unknown at a polynomial degree."""
    return Trial({field.name: _families(problem, field, degree) for field in problem.unknowns})


def _families(problem: Problem, field: Unknown, p: int) -> tuple[Family, ...]:
    shape, axes = problem.domain, field.axes
    if not axes:
        one = tensor((), np.zeros(0), np.ones(0), ())
        return (one,)
    bounds = dict(zip(shape.axes, zip(shape.low, shape.high, strict=True), strict=True))
    if problem.time:
        bounds["t"] = problem.time
    low, high = (np.array([bounds[axis][i] for axis in axes]) for i in (0, 1))
    kind = operator(problem)
    holes = discs(shape)
    size = float(np.max(high - low))
    edges = (
        [corner(at, turn, angle, size, _corner_terms(angle, p)) for at, turn, angle in corners(shape)] if kind else []
    )
    if kind and kind.kappa2 == 0.0:
        centres = [c for c, _ in holes]
        radii = [r for _, r in holes]
        found: list[Family] = [powers(low, high, 2 * p)]
        if not (isinstance(kind.source, Const) and kind.source.value == 0.0):
            smooth = tensor(axes, low, high, (2, 2) if isinstance(kind.source, Const) else (p, p))
            found.insert(0, replace(smooth, level=smooth.level * 0.1) if isinstance(kind.source, Const) else smooth)
        if holes:
            found.append(multipoles(centres, radii, max(p // 3, 3)))
        return (*found, *([] if holes and len(found) == 2 else edges))
    if kind and kind.kappa2 > 0.0:
        kappa = math.sqrt(kind.kappa2)
        rings = [Screened(axes, c, r, kappa, max(p // 2, 3)) for c, r in holes]
        return (tensor(axes, low, high, (p, p)), *rings, *edges)
    if len(axes) <= 3:
        extra = (
            [multipoles([c for c, _ in holes], [r for _, r in holes], max(p // 3, 3))]
            if holes and axes == ("x", "y")
            else []
        )
        return (tensor(axes, low, high, (p,) * len(axes)), *extra, *edges)
    found = [sparse(axes, low, high, _sparse_degrees(len(axes), p, shape.kind == "ball"))]
    if shape.kind == "ball":
        centre, radius = shape.data
        time = problem.time if problem.time and "t" in axes else ()
        found.append(Radial(axes, np.array(centre), radius, p, tuple(time), p if time else 0))
    return tuple(found)


def _corner_terms(angle: float, p: int) -> int:
    """A re-entrant corner needs many singular terms, a right one a few logarithms."""
    return max(p // 2, 4) if angle > math.pi * 1.01 else max(p // 6, 2)


def _sparse_degrees(d: int, p: int, ball: bool) -> tuple[int, ...]:
    """Degrees of one-, two-, … coordinate products that keep a sparse basis below about fifteen hundred features.

    A ball has radial functions besides, and its products of coordinates only correct them.
    """
    if ball:
        return (2,) if d > 20 else (min(p, 4), 3)
    if d > 20:
        return (p,)
    if d > 7:
        return (p, min(p, 4), 3)
    return (p, *((round(2 * p / 3),) * (min(d, 5) - 1)))
