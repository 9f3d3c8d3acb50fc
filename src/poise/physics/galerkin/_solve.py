"""Steady problems of one field on a box by Legendre-Galerkin: which basis, which lift, which degree."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._calculus import atoms, evaluate, linearise, source
from .._expr import TEST, Const, Expr, Unknown, is_const, mul
from .._problem import Problem
from .._solution import Solution
from .._status import Status
from ._basis import Side, interpolate
from ._newton import Linear, System, cold_start, newton
from ._tensor import Tensor

Sides = dict[tuple[int, int], Expr]


@dataclass(frozen=True)
class Options:
    """Degrees start at `start` and grow by `growth`; `measure` weighs errors by a derivative: order 1 for
    velocities."""

    start: int = 12
    growth: float = 1.4
    limit: int = 64
    measure: int = 0
    points: int | None = None


@dataclass(frozen=True, eq=False)
class Shape:
    """How many derivatives vanish per axis, and the slopes to lift per (axis, end)."""

    vanish: tuple[int, ...]
    slopes: Sides


def boundary(problem: Problem) -> Shape | None:
    """The basis that the conditions call for: none (natural), value, or value and slope; values must be zero."""
    shape = problem.domain
    names = [patch.name for patch in shape.patches]
    value: set[str] = set()
    slope: dict[str, Expr] = {}
    for condition in problem.conditions:
        keys = linearise(condition.residual)
        if condition.where not in names or len(keys) != 1:
            return None
        ((_, order), coefficient) = next(iter(keys.items()))
        if not isinstance(coefficient, Const):
            return None
        right = mul(Const(-1.0 / coefficient.value), source(condition.residual))
        if not isinstance(order, str) and sum(order) == 0:
            if not is_const(right, 0.0):
                return None
            value.add(condition.where)
        elif order == "dn":
            slope[condition.where] = right
        else:
            return None
    vanish = []
    slopes: Sides = {}
    for i in range(shape.dimension):
        pair = names[2 * i : 2 * i + 2]
        fixed = [(name in value) + (name in slope) for name in pair]
        if fixed[0] != fixed[1] or any(name in slope and name not in value for name in pair):
            return None
        vanish.append(fixed[0])
        for end, name in enumerate(pair):
            if name in slope and not is_const(slope[name], 0.0):
                slopes[i, end] = slope[name]
    return Shape(tuple(vanish), slopes)


def applies(problem: Problem) -> bool:
    """A steady single-field problem on a one- or two-dimensional box with the conditions above."""
    shape = problem.domain
    if problem.time or problem.inverse or shape.kind != "box" or shape.periodic or shape.dimension > 2:
        return False
    if len(problem.unknowns) != 1 or len(problem.equations) != 1:
        return False
    found = boundary(problem)
    top = max(problem.order(problem.unknowns[0], axis) for axis in shape.axes)
    return found is not None and (problem.weak or set(found.vanish) == {math.ceil(top / 2)})


@functools.lru_cache(maxsize=32)
def system_of(problem: Problem, sizes: tuple[int, ...]) -> Linear:
    """The Galerkin system at given numbers of functions per axis."""
    shape, field = problem.domain, problem.unknowns[0]
    found = boundary(problem)
    assert found is not None
    bounds = zip(shape.low, shape.high, found.vanish, sizes, strict=True)
    sides = tuple(Side(float(lo), float(hi), v, n) for lo, hi, v, n in bounds)
    lift = np.zeros(tuple(side.degree + 1 for side in sides))
    for (axis, end), node in found.slopes.items():
        other = 1 - axis
        along = sides[other]
        x, w = along.gauss
        env = {shape.axes[other]: x, shape.axes[axis]: np.full_like(x, shape.high[axis] if end else shape.low[axis])}
        table = along.table(x, 0)
        sign = 1.0 if end else -1.0  # the outward normal points down at the low end
        target = sign * np.broadcast_to(np.asarray(evaluate(node, env), float), x.shape)
        mass = table.T @ (w[:, None] * table)
        g = along.recombine @ np.linalg.solve(mass, table.T @ (w * target))
        part = np.multiply.outer(sides[axis].slope(end), g)
        lift += part if axis == 0 else part.T
    residual = problem.equations[0]
    test = TEST + field.name
    if not any(atom.field.name == test for atom in atoms(residual)):
        residual = mul(residual, Unknown(test, field.axes))
    return Linear.of(System(residual, field.name, test, shape.axes, sides, lift))


def solve_galerkin(problem: Problem, tol: float, options: Options = Options()) -> Solution:
    """Raise the degree until the estimate is below `tol`; a nonlinear problem starts cold at the lowest degree."""
    d = problem.domain.dimension
    made: list[tuple[int, np.ndarray]] = []
    history: list[tuple[int, float]] = []
    size, converged, estimate = options.start, False, math.inf
    while True:
        linear = system_of(problem, (size,) * d)
        if not made:
            c, converged = cold_start(linear)
        else:
            before = system_of(problem, (made[-1][0],) * d).system
            c, _, converged = newton(linear, linear.system.project(before.legendre(made[-1][1])), 1.0)
            if not converged:
                c, converged = cold_start(linear)
        made.append((size, c))
        estimate = extrapolated(problem, made, options.measure)
        history.append((size, estimate))
        larger = math.ceil(size * options.growth)
        if estimate <= tol or larger > options.limit or not np.all(np.isfinite(c)):
            break
        size = larger
    status = Status.CONVERGED if converged and estimate <= tol else Status.TOLERANCE_MISSED
    if not converged:
        status = Status.STALLED if np.all(np.isfinite(c)) else Status.NOT_FINITE
    name = problem.unknowns[0].name
    shape = problem.domain
    bases = tuple(("legendre", float(lo), float(hi - lo)) for lo, hi in zip(shape.low, shape.high, strict=True))
    return Solution(
        shape.axes,
        (name,),
        Tensor(bases, {name: linear.system.legendre(c)}),
        status,
        estimate,
        "Legendre-Galerkin, " + ("Newton with a homotopy" if linear.nonlinear else "direct"),
        math.prod(len(side.gauss[0]) for side in linear.system.sides),
        size**d,
        shape.low,
        shape.high,
        {"history": history},
    )


def extrapolated(problem: Problem, made: list[tuple[int, np.ndarray]], measure: int) -> float:
    """The relative error of the last solution: its distance from the one before, times the fall of such distances.

    Distances are L2 norms of the field, or of its gradient where `measure` is one.
    """
    if len(made) < 2:
        return math.inf
    norms = [gradient_norm(problem, made[i], made[i - 1], measure) for i in range(max(1, len(made) - 2), len(made))]
    whole = gradient_norm(problem, made[-1], None, measure)
    ratio = min(max(norms[-1] / max(norms[-2], 1e-300), 1e-3), 0.9) if len(norms) > 1 else 0.5
    return norms[-1] * ratio / (1.0 - ratio) / max(whole, 1e-300) + 1e-14


def gradient_norm(problem: Problem, a: tuple[int, np.ndarray], b: tuple[int, np.ndarray] | None, measure: int) -> float:
    """The L2 norm of a - b or of its gradient, by the Gauss rule of a."""
    d = problem.domain.dimension
    fine = system_of(problem, (a[0],) * d).system
    full = fine.legendre(a[1])
    if b is not None:
        coarse = system_of(problem, (b[0],) * d).system.legendre(b[1])
        full = full.copy()
        full[tuple(slice(0, n) for n in coarse.shape)] -= coarse
    weights: Any = functools.reduce(np.multiply.outer, [side.gauss[1] for side in fine.sides])
    total = 0.0
    for axis in range(d) if measure else [-1]:
        tables = [side.raw(side.gauss[0], int(i == axis)) for i, side in enumerate(fine.sides)]
        total += float(np.sum(weights * interpolate(full, tables) ** 2))
    return math.sqrt(total)
