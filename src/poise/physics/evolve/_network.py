"""A neural field that marches: a drawn tanh layer in space, its outer weights moved in time, no backpropagation.

The hidden weights are drawn where the solution is steep (Bolager et al. 2023) and drawn anew as it changes; the outer
weights obey the equation projected onto the layer, an ordinary differential equation that an implicit method solves
(after Datar et al. 2024, Solving partial differential equations with sampled neural networks). Boundary conditions
hold exactly: the outer weights live in the null space of the few rows that state them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .._precision import in_double
from .._problem import Problem
from .._solution import Solution
from .._status import Status
from ._layer import Drawn, units
from ._normal import Normal, normal_form, values_at
from ._projected import Projected
from ._radau import step

START, LIMIT = 160, 640
"""The first width that is tried when none is given, and the largest."""
HALVINGS = 5
FINER = 1.5
"""How much shorter the second march's steps are, and how a refinement grows."""


def form(problem: Problem) -> Normal | None:
    """The normal form of what can be marched: first order in time, over one space axis."""
    if problem.time is None or problem.domain.dimension != 1:
        return None
    normal = normal_form(problem)
    return normal if normal is not None and normal.order == 1 else None


class Unsolved(Exception):
    """A step's Newton iteration does not converge, however short the step."""


def advance(equation: Projected, t: float, y: np.ndarray, dt: float, halvings: int = HALVINGS) -> np.ndarray:
    """One step, in two halves where Newton's iteration does not converge."""
    made = step(equation.rates, equation.jacobian(t, y), t, y, dt)
    if made is not None:
        return made
    if not halvings:
        raise Unsolved
    half = advance(equation, t, y, dt / 2.0, halvings - 1)
    return advance(equation, t + dt / 2.0, half, dt / 2.0, halvings - 1)


def march(normal: Normal, width: int, draws: int, steps: int, seed: int) -> Drawn:
    """The field over all of time: `draws` layers, `steps` steps with each."""
    problem, rng = normal.problem, np.random.default_rng(seed)
    assert problem.time is not None
    low, high = problem.domain.low[0], problem.domain.high[0]
    value = beginning(normal)
    edges = np.linspace(*problem.time, draws + 1)
    times, layer, tables, outer, rates = [], [], [], [], []
    for k in range(draws):
        equation = Projected.make(normal, value, width, rng)
        y = equation.coordinates(value(equation.x))
        instants = np.linspace(edges[k], edges[k + 1], steps + 1)
        for i, t in enumerate(instants):
            if i:
                y = advance(equation, instants[i - 1], y, t - instants[i - 1])
            times.append(t)
            layer.append(k)
            outer.append(equation.outer(y))
            rates.append(equation.outer(equation.rates(np.array([t]), y[None])[0]))
        tables.append(equation.table)
        value = lambda x, table=equation.table, last=outer[-1]: last @ units(table, low, high, x, 0).T  # noqa: E731
    names = tuple(field.name for field in normal.fields)
    lifts = dict(zip(names, normal.lift, strict=True))
    arrays = (np.array(times), np.array(layer), np.stack(tables), np.stack(outer), np.stack(rates))
    return Drawn(problem.axes, names, (low, high), *arrays, lifts)


def distance(problem: Problem, first: Drawn, second: Drawn) -> float:
    """The relative L2 distance of two fields over space and time."""
    assert problem.time is not None
    rng = np.random.default_rng(1)
    columns = [rng.uniform(problem.domain.low[0], problem.domain.high[0], 4000), rng.uniform(*problem.time, 4000)]
    points = np.stack(columns, axis=1)
    a, b = (np.stack([f.value(name, points, (0, 0)) for name in f.names]) for f in (first, second))
    return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-300))


@in_double
def march_network(problem: Problem, tol: float, width: int | None, draws: int, steps: int, seed: int) -> Solution:
    """March two layers, drawn apart, the second with shorter steps; wider and shorter until their distance is small.

    Their errors are independent, so the distance over the root of two is about the error of either. Where Newton's
    iteration fails the solution is the last one that did not, or the initial state kept, and `STALLED` says so.
    """
    normal = form(problem)
    assert normal is not None
    assert problem.time is not None
    size, each = width or START, steps
    best: Drawn | None = None
    estimate, status, history = math.inf, Status.STALLED, []
    while True:
        try:
            coarse = march(normal, size, draws, each, seed)
            best = march(normal, size, draws, math.ceil(FINER * each), seed + 1)
        except Unsolved:
            status = Status.STALLED
            break
        estimate = distance(problem, coarse, best) / math.sqrt(2.0)
        history.append((size, draws * each, estimate))
        status = Status.CONVERGED if estimate <= tol else Status.TOLERANCE_MISSED
        if not math.isfinite(estimate):
            status = Status.NOT_FINITE
        if estimate <= tol or width is not None or round(FINER * size) > LIMIT:
            break
        size, each = round(FINER * size), math.ceil(FINER * each)
    if best is None:
        best = kept_still(normal, size, seed)
    detail: dict[str, Any] = {"history": history, "xla_temp_bytes": 0, "draws": draws}
    return Solution(
        problem.axes,
        best.names,
        best,
        status,
        estimate,
        f"a hidden layer of {best.tables.shape[1]} tanh units, drawn {draws} times along the march, Radau IIA",
        best.tables.shape[1] * 4 * (len(best.times) - draws),
        best.tables.shape[1] * len(best.names),
        (*problem.domain.low, problem.time[0]),
        (*problem.domain.high, problem.time[1]),
        detail,
    )


def beginning(normal: Normal) -> Callable[[np.ndarray], np.ndarray]:
    """The initial state: x (n,) -> (fields, n)."""
    axis = normal.problem.domain.axes[0]
    return lambda x: np.stack([values_at(start[0], {axis: x}, x.shape) for start in normal.start])


def kept_still(normal: Normal, width: int, seed: int) -> Drawn:
    """The initial state at all times."""
    problem, value = normal.problem, beginning(normal)
    assert problem.time is not None
    equation = Projected.make(normal, value, width, np.random.default_rng(seed))
    outer = np.stack([equation.outer(equation.coordinates(value(equation.x)))] * 2)
    names = tuple(field.name for field in normal.fields)
    arrays = (np.array(problem.time), np.zeros(2, int), equation.table[None], outer, np.zeros_like(outer))
    lifts = dict(zip(names, normal.lift, strict=True))
    return Drawn(problem.axes, names, (problem.domain.low[0], problem.domain.high[0]), *arrays, lifts)
