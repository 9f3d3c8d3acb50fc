"""March an evolution, refining space and time until the estimated error is below the tolerance.

Time: every run is repeated with half the step, and the difference, with the ratio of successive differences, says what
is left (Richardson). Space: the energy in the last stretches of the spectrum, continued as a geometric series. A floor
for rounding stands under both.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._precision import in_double
from .._problem import Problem
from .._solution import Solution
from .._status import Status
from ._elliptic import elliptic
from ._estimate import exact_in_time
from ._etdrk4 import coefficients
from ._fourier import Fourier, periodic_frame
from ._modal import Modal
from ._normal import Normal, normal_form
from ._refine import Run, densify, refine_time
from ._snapshots import Snapshots

MAX_DENSE = 2000
"""The largest dense eigenproblem, for coefficients that vary; it costs two seconds."""


@dataclass(frozen=True)
class Options:
    """`snapshots` equally spaced instants are kept; `points` (space nodes times steps) fixes the step if given.

    `between=False` promises the tolerance at the kept instants only, not for interpolation between them.
    """

    snapshots: int = 100
    points: int | None = None
    nodes: int | None = None
    max_nodes: int | None = None
    max_steps: int = 200_000
    between: bool = True
    max_dense: int = MAX_DENSE


@functools.lru_cache(maxsize=32)
def prepared(problem: Problem) -> Normal | None:
    return normal_form(problem)


@functools.lru_cache(maxsize=32)
def fourier_of(problem: Problem, nodes: tuple[int, ...], snapshots: int) -> Fourier | None:
    normal = prepared(problem)
    frame = periodic_frame(normal) if normal else None
    return Fourier(normal, *frame, nodes, snapshots) if normal and frame else None


@functools.lru_cache(maxsize=32)
def modal_of(problem: Problem, sizes: tuple[int, ...], snapshots: int) -> Modal | None:
    normal = prepared(problem)
    if normal is None or problem.domain.periodic:
        return None
    parts = [elliptic(normal, i) for i in range(len(normal.fields))]
    if any(part is None for part in parts) or (normal.order == 2 and len(parts) > 1):
        return None
    return Modal(normal, tuple(part for part in parts if part is not None), sizes, snapshots)


def applies(problem: Problem) -> str | None:
    """Which of the marching methods suits a problem: "fourier", "modal" or none."""
    d = problem.domain.dimension
    if fourier_of(problem, (16,) * d, 1) is not None:
        return "fourier"
    return "modal" if d <= 3 and modal_of(problem, (8,) * d, 1) is not None else None


@in_double
def solve_march(problem: Problem, tol: float, options: Options = Options()) -> Solution:
    """March in Fourier or in eigenmodes, whichever `applies` says; refine until the estimate is below `tol`."""
    kind = applies(problem)
    d = problem.domain.dimension
    start = options.nodes or ({1: 128, 2: 32, 3: 16}[d] if kind == "fourier" else {1: 48, 2: 20, 3: 10}[d])
    limit = options.max_nodes or ({1: 8192, 2: 256, 3: 64}[d] if kind == "fourier" else {1: 400, 2: 96, 3: 24}[d])
    nodes = (start,) * d
    substeps, best, space = 2, None, None
    history: list[tuple[tuple[int, ...], int, float, float]] = []
    while True:
        make = fourier_of if kind == "fourier" else modal_of
        scheme = make(problem, nodes, options.snapshots)
        assert scheme is not None
        run, substeps = refine_time(problem, scheme, tol, substeps, options.points, options.max_steps)
        history.append((nodes, run.steps, run.in_time, run.in_space))
        if best is None or not math.isfinite(best.estimate) or run.estimate <= best.estimate:
            best, space = run, scheme
        if run.estimate <= tol or not any(n < limit for n in nodes) or run.in_space <= 0.3 * run.in_time:
            break
        grow = 2.0 if kind == "fourier" or d == 1 else 1.5
        worst = max(run.tails) if all(map(math.isfinite, run.tails)) else math.inf
        nodes = tuple(
            min(limit, 2 * round(n * grow / 2)) if not math.isfinite(worst) or t > 0.05 * worst else n
            for n, t in zip(nodes, run.tails, strict=True)
        )
        dense = isinstance(scheme, Modal) and not scheme.separable
        if nodes == history[-1][0] or (dense and math.prod(nodes) > options.max_dense):
            break
    assert space is not None
    assert best is not None
    between = 0.0
    if options.between:
        best, space, between = densify(problem, make, space, best)
    return finish(problem, space, best, between, tol, history)


def finish(
    problem: Problem, scheme: Fourier | Modal, run: Run, between: float, tol: float, history: list[Any]
) -> Solution:
    normal = scheme.normal
    assert problem.time is not None
    times = np.linspace(*problem.time, scheme.snapshots + 1)
    names = tuple(field.name for field in normal.fields)
    states: dict[str, np.ndarray] = {}
    bases: tuple[tuple[str, float, float], ...] = ()
    for i, name in enumerate(names):
        if isinstance(scheme, Fourier):
            full = np.fft.irfftn(run.states[:, i], scheme.nodes, tuple(range(1, len(scheme.nodes) + 1)))
            states[name] = np.fft.fftn(full, axes=tuple(range(1, full.ndim)))
            bases = tuple(("fourier", lo, p) for lo, p in zip(scheme.low, scheme.period, strict=True))
        else:
            states[name] = scheme.legendre(i, scheme.values(i, run.states))
            shape = problem.domain
            bases = tuple(("legendre", lo, hi - lo) for lo, hi in zip(shape.low, shape.high, strict=True))
    lifts = dict(zip(names, normal.lift, strict=True))
    estimate = math.hypot(run.estimate, between)
    if not np.all(np.isfinite(run.states)):
        status = Status.NOT_FINITE
    else:
        status = Status.CONVERGED if estimate <= tol else Status.TOLERANCE_MISSED
    count = math.prod(scheme.nodes) if isinstance(scheme, Fourier) else math.prod(scheme.sizes)
    how = "Fourier modes" if isinstance(scheme, Fourier) else "eigenmodes of a Legendre-Galerkin basis"
    if isinstance(scheme, Fourier) and not all(axis in problem.domain.periodic for axis in problem.domain.axes):
        how = "Fourier modes by reflection"
    return Solution(
        problem.axes,
        names,
        Snapshots(problem.axes, bases, times, states, lifts),
        status,
        estimate,
        f"{how}, {'exact in time' if exact_in_time(scheme) else 'ETDRK4'}",
        count * run.steps,
        count * len(names),
        (*problem.domain.low, problem.time[0]),
        (*problem.domain.high, problem.time[1]),
        {"history": history, "xla_temp_bytes": temporary_bytes(scheme)},
    )


def temporary_bytes(scheme: Fourier | Modal) -> int:
    """XLA's temporary memory of the march; the number of steps is an argument, so it does not depend on it."""
    linear = scheme.split[0] if isinstance(scheme, Fourier) else scheme.linear()
    start = jnp.asarray(scheme.start())
    data = {a: jnp.asarray(v) for a, v in scheme.grid.items()} if isinstance(scheme, Fourier) else None
    factors = tuple(jnp.asarray(part) for part in coefficients(linear, 1e-3))
    lowered = scheme.run.lower(start, np.float64(0.0), np.float64(1e-3), np.int64(1), factors, data)
    analysis = lowered.compile().memory_analysis()
    return int(analysis.temp_size_in_bytes) if analysis is not None else 0
