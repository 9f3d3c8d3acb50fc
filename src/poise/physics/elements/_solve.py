"""Steady problems on spectral elements: Newton's method, the degree raised until the estimate is below `tol`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._calculus import coordinates, is_linear, linearise
from .._precision import in_double
from .._problem import Problem
from .._solution import Solution
from .._status import Status
from ._assemble import System
from ._condense import Skeleton, condensed
from ._domain import anatomy, materials, mesh_of
from ._mesh import Mesh
from ._nodal import Nodal
from ._space import Space
from ._statement import conditions, flux_jumps, roles, spatial


@dataclass(frozen=True)
class Options:
    """`cells` elements across the region's smallest extent; degrees from `start` in steps of `step` up to `limit`."""

    cells: int = 4
    start: int = 4
    step: int = 2
    limit: int = 14
    points: int | None = None


@functools.lru_cache(maxsize=16)
def mesh(problem: Problem, cells: int) -> Mesh:
    parts = anatomy(problem)
    assert parts is not None
    return mesh_of(problem, parts, cells)


@functools.lru_cache(maxsize=24)
def system_of(problem: Problem, cells: int, degree: int) -> System:
    return System(problem, Space(mesh(problem, cells), degree))


def applies(problem: Problem) -> bool:
    """Boxes and what they make of each other, or one box around discs or balls; equations of second order."""
    if problem.inverse or problem.weak or anatomy(problem) is None:
        return False
    if roles(problem) is None or conditions(problem) is None or flux_jumps(problem) is None:
        return False
    found = roles(problem)
    assert found is not None
    if problem.domain.dimension == 3 and (len(problem.unknowns) > 1 or problem.time):
        return False
    return problem.time is None or _autonomous(problem)


def _autonomous(problem: Problem) -> bool:
    """A linear heat equation whose coefficients, sources and boundary values do not depend on time."""
    if len(problem.unknowns) != 1 or not is_linear(problem.equations[0]):
        return False
    nodes = [*problem.equations, *(c.residual for c in problem.conditions)]
    times = {t for e in problem.equations for key in linearise(e) for t in _times(e, key)}
    return times == {0, 1} and not any("t" in coordinates(node) for node in nodes)


def _times(equation: Any, key: Any) -> list[int]:
    from .._calculus import atoms

    return [t for _, t in spatial(next(a for a in atoms(equation) if a.key == key))]


def special(problem: Problem) -> bool:
    """Whether elements are the method of choice: round holes, interfaces, sources that jump, several fields."""
    parts = anatomy(problem) if applies(problem) else None
    if parts is None:
        return False
    stepped = problem.time is not None and problem.domain.kind != "box"
    return bool(parts.holes or problem.interfaces or materials(problem) or len(problem.unknowns) > 1 or stepped)


def newton(system: System, theta: np.ndarray) -> tuple[np.ndarray, bool]:
    """Iterate from theta (E, N); a linear problem takes one step."""
    skeleton = Skeleton.of(system)
    linear = all(is_linear(node) for node in system.roles.equation.values())
    last = math.inf
    for _ in range(1 if linear else 20):
        a, b = system.weak(theta)
        new = condensed(skeleton, a, b[:, :, None])[:, :, 0]
        change = float(np.linalg.norm(new - theta) / max(np.linalg.norm(new), 1e-300))
        theta = new
        if linear or not np.all(np.isfinite(theta)):
            return theta, bool(np.all(np.isfinite(theta)))
        if change < 1e-11 or (change < 1e-7 and change > 0.3 * last):
            return theta, True
        last = change
    return theta, False


def distance(system: System, theta: np.ndarray, before: System | None, coarse: np.ndarray | None) -> float:
    """The L2 norm over all fields of theta minus the coarse solution on the same mesh."""
    weights = system.space.metric[1]
    total = 0.0
    for field in system.roles.fields:
        values = system.field_values(theta, field.name)
        if before is not None and coarse is not None:
            values = values - before.space.refine(before.field_values(coarse, field.name), system.space.degree)
        total += float(np.sum(weights * np.abs(values) ** 2))
    return math.sqrt(total)


def extrapolated(gaps: list[float], size: float) -> float:
    """The relative error of the last solution from the fall of the distances between neighbouring degrees.

    A fall faster than 0.4, the pace of a corner's singularity, is only half believed (geometric mean): the singular
    part may be about to take over from the smooth one.
    """
    if not gaps:
        return math.inf
    ratio = min(max(gaps[-1] / max(gaps[-2], 1e-300), 1e-3), 0.9) if len(gaps) > 1 else 0.5
    ratio = max(ratio, math.sqrt(0.4 * ratio))
    return gaps[-1] * ratio / (1.0 - ratio) / max(size, 1e-300) + 1e-13


@in_double
def solve_elements(problem: Problem, tol: float, options: Options = Options()) -> Solution:
    """Raise the degree until the estimate is below `tol`; a problem in time goes by the Laplace transform."""
    from . import _heat, _solve3d

    if problem.time is not None:
        return _heat.solve_heat(problem, tol, options)
    if problem.domain.dimension == 3:
        return _solve3d.solve_space(problem, tol, options)

    def at(system: System, before: System | None, coarse: np.ndarray | None) -> tuple[np.ndarray, bool]:
        theta = np.zeros((len(system.space.mesh), system.local))
        if before is not None and coarse is not None:
            for field in system.roles.fields:
                values = before.field_values(coarse, field.name)
                theta[:, system.spans[field.name]] = before.space.refine(values, system.space.degree)
        return newton(system, theta)

    system, theta, estimate, good, history = raised(problem, tol, options, at)
    return finish(problem, system, theta, tol, estimate, good, {"history": history})


def raised(
    problem: Problem, tol: float, options: Options, at: Callable[..., tuple[np.ndarray, bool]]
) -> tuple[System, np.ndarray, float, bool, list[tuple[int, float]]]:
    """Raise the degree until the estimate is below `tol`, each solution the start of the next.

    at(system, the system before, its solution) -> (solution, whether it is one). Returns the last system, its solution,
    the estimate, whether it is a solution, and (degree, estimate) of all.
    """
    gaps: list[float] = []
    history: list[tuple[int, float]] = []
    before: System | None = None
    coarse: np.ndarray | None = None
    degree = options.start
    while True:
        system = system_of(problem, options.cells, degree)
        theta, good = at(system, before, coarse)
        if before is not None:
            gaps.append(distance(system, theta, before, coarse))
        estimate = extrapolated(gaps, distance(system, theta, None, None))
        history.append((degree, estimate))
        before, coarse = system, theta
        if estimate <= tol or degree + options.step > options.limit or not good:
            return system, theta, estimate, good, history
        degree += options.step


def finish(
    problem: Problem, system: System, theta: np.ndarray, tol: float, estimate: float, good: bool, detail: dict[str, Any]
) -> Solution:
    """The solution object of a steady problem."""
    finite = bool(np.all(np.isfinite(theta)))
    status = Status.CONVERGED if good and estimate <= tol else Status.TOLERANCE_MISSED
    if not good:
        status = Status.STALLED if finite else Status.NOT_FINITE
    names = tuple(field.name for field in problem.unknowns)
    space = system.space
    values = {name: system.field_values(theta, name) for name in names}
    linear = all(is_linear(node) for node in system.roles.equation.values())
    return Solution(
        problem.axes,
        names,
        Nodal(space.mesh, space.degree, values),
        status,
        estimate,
        f"spectral elements, {'direct' if linear else 'Newton'}",
        space.nodes.shape[0] * space.nodes.shape[1],
        space.count * len(system.roles.fields) + len(system.roles.pressures) * len(space.mesh) * system.modes.shape[1],
        problem.domain.low,
        problem.domain.high,
        {**detail, "elements": len(space.mesh), "degree": space.degree},
        lambda points: np.asarray(problem.domain.inside(points[:, : problem.domain.dimension])),
    )
