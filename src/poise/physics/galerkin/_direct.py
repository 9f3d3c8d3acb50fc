"""Steady linear elliptic problems on boxes by the eigenmodes of their operator: a division per mode.

With constant coefficients each axis is diagonalised alone (Lynch, Rice & Thomas 1964), so twenty wavelengths per axis
cost a few matrix products; with coefficients that vary the eigenproblem is dense and small.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from .._calculus import atoms, is_linear
from .._problem import Problem
from .._solution import Solution
from .._status import Status
from ..evolve._elliptic import elliptic
from ..evolve._estimate import tails
from ..evolve._modal import Modal
from ..evolve._normal import Normal, boundary_form, replace_atoms
from ..evolve._snapshots import Snapshots
from ..evolve._solve import MAX_DENSE


@dataclass(frozen=True)
class Options:
    """Functions per axis at the start and at most (per axis, by number of axes)."""

    start: int = 24
    limit: int | None = None
    points: int | None = None


@functools.lru_cache(maxsize=32)
def normal_of(problem: Problem) -> Normal | None:
    """The equation as 0 = F with zero boundary values, or None where it is not one linear equation on a box."""
    shape = problem.domain
    if problem.time or problem.inverse or problem.weak or shape.kind != "box" or shape.periodic or shape.dimension > 3:
        return None
    if len(problem.unknowns) != 1 or len(problem.equations) != 1 or not is_linear(problem.equations[0]):
        return None
    field = problem.unknowns[0]
    found = boundary_form(problem, field)
    if found is None or any(problem.order(field, axis) != 2 for axis in shape.axes):
        return None
    rhs = replace_atoms(problem.equations[0], {field.name: found[1]})
    return Normal(problem, (field,), 0, (rhs,), ((),), (found[1],), (found[0],))


@functools.lru_cache(maxsize=32)
def modal_of(problem: Problem, sizes: tuple[int, ...]) -> Modal | None:
    normal = normal_of(problem)
    if normal is None:
        return None
    part = elliptic(normal, 0)
    if part is None:  # the same equation with the opposite sign may be the elliptic one
        return None
    return None if atoms(part.rest) else Modal(normal, (part,), sizes, 1)


def applies(problem: Problem) -> bool:
    return modal_of(problem, (8,) * problem.domain.dimension) is not None


def solve_direct(problem: Problem, tol: float, options: Options = Options()) -> Solution:
    """Add functions along the axes whose spectrum has not ended until the estimate is below `tol`."""
    d = problem.domain.dimension
    limit = options.limit or {1: 1024, 2: 256, 3: 64}[d]
    sizes = (options.start,) * d
    history: list[tuple[tuple[int, ...], float]] = []
    while True:
        modal = modal_of(problem, sizes)
        assert modal is not None
        right = modal.project(0, modal.parts[0].rest)
        values = modal.spectra[0][0]
        with np.errstate(divide="ignore"):
            c = right.reshape(values.shape) / values
        full = modal.legendre(0, c[None])
        each = tails(full[:, None], "legendre")
        nearest = float(np.max(np.abs(values)) / max(float(np.min(np.abs(values))), 1e-300))
        rounding = 3e-20 * nearest  # of the matrices, enlarged where a mode is nearly resonant
        estimate = math.hypot(*each, 0.0) + rounding + 1e-13
        history.append((sizes, estimate))
        worst = max(each)
        larger = tuple(
            min(limit, math.ceil(n * 1.5)) if t > 0.05 * worst else n for n, t in zip(sizes, each, strict=True)
        )
        big = not modal.separable and math.prod(larger) > MAX_DENSE
        if estimate <= tol or larger == sizes or big or not np.all(np.isfinite(c)):
            break
        sizes = larger
    finite = bool(np.all(np.isfinite(c)))
    status = Status.CONVERGED if estimate <= tol else Status.TOLERANCE_MISSED
    if not finite or rounding > max(tol, 1e-8):
        status = Status.ILL_POSED
    field, shape = problem.unknowns[0], problem.domain
    bases = tuple(("legendre", float(lo), float(hi - lo)) for lo, hi in zip(shape.low, shape.high, strict=True))
    return Solution(
        shape.axes,
        (field.name,),
        Snapshots(shape.axes, bases, np.zeros(1), {field.name: full}, {field.name: modal.normal.lift[0]}, steady=True),
        status,
        estimate,
        "eigenmodes of a Legendre-Galerkin basis, direct",
        math.prod(len(x) for x in modal.nodes),
        math.prod(sizes),
        shape.low,
        shape.high,
        {"history": history},
    )
