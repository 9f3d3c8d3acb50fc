"""From a region to a mesh: grids of boxes, or rings around round holes and round inclusions in one box."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from .._calculus import walk
from .._expr import Given
from .._problem import Problem
from .._shapes import Shape
from . import _rings
from ._mesh import Mesh, boxes

GRADES = 0.18
"""Elements shrink by this factor towards a re-entrant corner (Schwab 1998: 0.17 is best for singular powers)."""


@dataclass(frozen=True)
class Anatomy:
    """What a region is made of: boxes and outlines (added or cut), round holes, round inclusions, extra grid lines."""

    solid: tuple[Shape, ...]
    cut: tuple[Shape, ...]
    holes: tuple[_rings.Round, ...]
    filled: tuple[_rings.Round, ...]
    lines: dict[str, tuple[float, ...]]


def materials(problem: Problem) -> list[Given]:
    """The coefficients that jump, each across the boundary of a shape or across grid lines."""
    nodes = [*problem.equations, *(c.residual for c in problem.conditions)]
    found: dict[int, Given] = {}
    for node in nodes:
        for part in walk(node):
            if isinstance(part, Given) and part.jumps is not None:
                found.setdefault(id(part.jumps), part)
    return list(found.values())


def anatomy(problem: Problem) -> Anatomy | None:
    """The region's parts, or None where it is not of this kind."""
    solid: list[Shape] = []
    cut: list[Shape] = []
    holes: list[_rings.Round] = []

    def visit(shape: Shape, sign: bool) -> bool:
        if shape.kind == "ball":
            if sign:
                return False
            holes.append(shape.data)  # type: ignore[arg-type]
            return True
        if shape.kind == "box" and not shape.periodic:
            (solid if sign else cut).append(shape)
            return True
        if shape.kind == "polygon":
            (solid if sign else cut).append(shape)
            return _rectilinear(shape)
        if shape.kind == "difference":
            return visit(shape.parts[0], sign) and visit(shape.parts[1], not sign)
        return shape.kind == "union" and all(visit(part, sign) for part in shape.parts)

    if problem.domain.dimension not in (2, 3) or not visit(problem.domain, True):
        return None
    filled: list[_rings.Round] = []
    lines: dict[str, list[float]] = {}
    for material in materials(problem):
        if isinstance(material.jumps, Shape):
            for leaf in _leaves(material.jumps):
                if leaf.kind == "ball":
                    filled.append(leaf.data)  # type: ignore[arg-type]
                elif leaf.kind == "box":
                    if not holes or problem.domain.dimension == 2:
                        cut.append(leaf)  # around balls elements cannot follow it: the quadrature meets the jump
                else:
                    return None
        else:
            for axis, values in material.jumps.items():
                lines.setdefault(axis, []).extend(values)
    if (holes or filled) and (len(solid) != 1 or solid[0].kind != "box" or cut or lines):
        return None
    if filled and problem.domain.dimension != 2:
        return None
    rounds = [*holes, *filled]
    for i, (a, ra) in enumerate(rounds):
        inside = all(
            lo + ra < x < hi - ra for x, lo, hi in zip(a, problem.domain.low, problem.domain.high, strict=True)
        )
        apart = all(np.linalg.norm(np.subtract(a, b)) > ra + rb for b, rb in rounds[:i])
        if not (inside and apart):
            return None
    return Anatomy(tuple(solid), tuple(cut), tuple(holes), tuple(filled), {k: tuple(v) for k, v in lines.items()})


def _leaves(shape: Shape) -> list[Shape]:
    return [leaf for part in shape.parts for leaf in _leaves(part)] if shape.parts else [shape]


def _rectilinear(shape: Shape) -> bool:
    v = np.array(shape.data)
    return bool(np.all(np.min(np.abs(np.roll(v, -1, axis=0) - v), axis=1) < 1e-12))


def mesh_of(problem: Problem, parts: Anatomy, cells: int) -> Mesh:
    """Elements of about the region's smallest extent over `cells`."""
    shape = problem.domain
    low, high = np.array(shape.low), np.array(shape.high)
    size = float(np.min(high - low)) / cells
    rounds = [*parts.holes, *parts.filled]
    if rounds and shape.dimension == 2:
        outline = np.array([[low[0], low[1]], [high[0], low[1]], [high[0], high[1]], [low[0], high[1]]])
        return _rings.plane(outline, rounds, [False] * len(parts.holes) + [True] * len(parts.filled), size)
    if rounds:
        return _rings.space(low, high, rounds, max(1, cells // 4))
    lines = []
    for i, axis in enumerate(shape.axes):
        fixed = {float(low[i]), float(high[i]), *parts.lines.get(axis, ())}
        for part in (*parts.solid, *parts.cut):
            values = [v[i] for v in part.data] if part.kind == "polygon" else [part.low[i], part.high[i]]
            fixed.update(float(v) for v in values if low[i] <= v <= high[i])
        corners = sorted(v for v in fixed if _reentrant(problem, parts, i, v))
        lines.append(_graded(sorted(fixed), corners, size))
    centres = [(line[1:] + line[:-1]) / 2.0 for line in lines]
    grid = np.stack(np.meshgrid(*centres, indexing="ij"), axis=-1)
    keep = np.asarray(shape.inside(grid.reshape(-1, shape.dimension))).reshape(grid.shape[:-1])
    return boxes(lines, keep)


def _reentrant(problem: Problem, parts: Anatomy, axis: int, value: float) -> bool:
    """Whether a line carries a corner that needs grading: an inner line of a region that is not one box."""
    low, high = problem.domain.low[axis], problem.domain.high[axis]
    return low < value < high and value not in parts.lines.get(problem.domain.axes[axis], ())


def _graded(fixed: list[float], corners: list[float], size: float) -> np.ndarray:
    """The fixed lines, the stretches between them cut into pieces of at most `size`, geometric towards corners."""
    made = set(fixed)
    for a, b in itertools.pairwise(fixed):
        count = max(1, int(np.ceil((b - a) / size - 1e-9)))
        inner = np.linspace(a, b, count + 1)
        made.update(inner[1:-1].tolist())
        h = (b - a) / count
        for end, other in ((a, 1.0), (b, -1.0)):
            if end in corners:
                made.update(end + other * h * GRADES**k for k in (1, 2))
    return np.array(sorted(made))
