"""March an evolution, refining space and time until the estimated error is below the tolerance.

Time: every run is repeated with half the step, and the difference, with the ratio of successive differences, says
what is
left (Richardson). Space: the energy in the last stretches of the spectrum, continued as a geometric series. A floor
for rounding stands under both.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._calculus import evaluate
from .._expr import Const
from .._precision import in_double
from .._problem import Problem
from .._solution import Solution
from .._status import Status
from ._etdrk4 import coefficients
from ._fourier import Fourier, periodic_frame
from ._modal import Modal, elliptic
from ._normal import Normal, normal_form
from ._snapshots import WINDOW, Snapshots

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


@dataclass(frozen=True, eq=False)
class Run:
    """States (instants, fields, …) of one run and the figures of its refinement."""

    states: np.ndarray
    steps: int
    in_time: float
    in_space: float
    tails: tuple[float, ...]
    rounding: float = 1e-14

    @property
    def estimate(self) -> float:
        return math.hypot(self.in_time, self.in_space) + self.rounding


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


def relative(states: np.ndarray, size: float) -> float:
    return float(np.sqrt(np.sum(np.abs(states) ** 2)) / max(size, 1e-300))


def octaves(line: np.ndarray) -> float:
    """The norm of what follows the energies `line`, from its last two quarters: Fourier spectra are irregular."""
    n = len(line)
    before, last = (math.sqrt(float(np.sum(line[i * n // 4 : (i + 1) * n // 4]))) for i in (2, 3))
    ratio = min(max(last / max(before, 1e-300), 1e-3), 0.9)
    return last * ratio / (1.0 - ratio) if last > 1e-14 * math.sqrt(float(np.sum(line))) else 0.0


def envelope(line: np.ndarray) -> float:
    """The same for Legendre spectra, which are smooth but for parity: the decay per mode at the end, continued."""
    n = len(line)
    pairs = np.sqrt(line[1:] + line[:-1])
    step = max(2 * round(n / 32), 2)
    last, before, earlier = (max(float(pairs[-1 - k * step]), 1e-300) for k in range(3))
    if last <= 1e-14 * math.sqrt(float(np.sum(line))):
        return 0.0
    decay, past = (last / before) ** (1.0 / step), (before / earlier) ** (1.0 / step)
    decay = min(decay * min(decay / past, 1.0), 1.0 - 1.0 / n)  # entire functions decay ever faster
    return last * decay / math.sqrt(1.0 - decay**2)


def tails(spectra: np.ndarray, kind: str) -> tuple[float, ...]:
    """Per space axis the estimated norm of what lies beyond the last mode, relative to the whole.

    `spectra` (instants, fields, n1, n2, …): for Fourier in the order of fftfreq (the last axis a half spectrum).
    """
    energy = np.sum(np.abs(spectra) ** 2, axis=(0, 1))
    whole = math.sqrt(float(np.sum(energy))) or 1.0
    found = []
    for axis in range(energy.ndim):
        line = np.sum(energy, axis=tuple(j for j in range(energy.ndim) if j != axis))
        if kind == "fourier" and axis < energy.ndim - 1:
            n = len(line)
            half = line[: n // 2 + 1].copy()
            half[1 : (n + 1) // 2] += line[: n // 2 : -1]
            line = half
        found.append((octaves if kind == "fourier" else envelope)(line) / whole)
    return tuple(found)


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
        run, substeps = _refine_time(problem, scheme, tol, substeps, options)
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
        best, space, between = _densify(problem, make, space, best)
    return _finish(problem, space, best, between, tol, history)


def _densify(problem: Problem, make: Any, scheme: Any, run: Run) -> tuple[Run, Any, float]:
    """More instants, the steps as they are, until interpolation between them is not what limits the accuracy."""
    nodes = scheme.nodes if isinstance(scheme, Fourier) else scheme.sizes
    between = _interpolation(run.states)
    while (
        math.isfinite(between)
        and between > 0.3 * max(run.estimate, 1e-14)
        and 2 * run.states.nbytes <= 256 * 2**20
        and scheme.snapshots < 1600
    ):
        scheme = make(problem, nodes, 2 * scheme.snapshots)
        substeps = max(1, round(run.steps / scheme.snapshots))
        states = _march(problem, scheme)(substeps)
        run = Run(states, substeps * scheme.snapshots, run.in_time, run.in_space, run.tails, run.rounding)
        between = _interpolation(states)
    return run, scheme, between


def _interpolation(states: np.ndarray) -> float:
    """The relative error of interpolating between instants, from doing so between every second and every fourth one.

    Where data are smooth the error falls by 2^WINDOW per halving; where they are not (a boundary layer at the start) it
    falls more slowly, and the measured ratio says how much. The start, whose interpolant is one-sided, is counted
    apart.
    """
    if len(states) < 4 * WINDOW + 1 or not np.all(np.isfinite(states)):
        return 0.0
    size = float(np.sqrt(np.sum(np.abs(states) ** 2))) or 1.0

    def inner(stride: int) -> float:
        near = stride * np.arange(-WINDOW + 1, WINDOW, 2)
        weights = np.array([np.prod([-b / (a - b) for b in near if b != a]) for a in near])
        reach = stride * (WINDOW - 1)
        guess = sum(w * states[reach + k : len(states) - reach + k] for w, k in zip(weights, near, strict=True))
        return relative(guess - states[reach : len(states) - reach], size)

    def edge(stride: int) -> float:
        near = 2 * stride * np.arange(WINDOW)
        weights = np.array([np.prod([(stride - b) / (a - b) for b in near if b != a]) for a in near])
        return relative(np.tensordot(weights, states[near], axes=1) - states[stride], size) * math.sqrt(stride)

    found = []
    for measure in (inner, edge):
        wide, narrow = measure(2), measure(1)
        found.append(narrow * float(np.clip(narrow / max(wide, 1e-300), 2.0**-WINDOW, 0.9)))
    return math.hypot(*found)


def _refine_time(
    problem: Problem, scheme: Fourier | Modal, tol: float, substeps: int, options: Options
) -> tuple[Run, int]:
    """Halve the step until the difference says that time is no longer the larger error."""
    count = math.prod(scheme.nodes) if isinstance(scheme, Fourier) else math.prod(scheme.sizes)
    fixed = options.points is not None
    if options.points is not None:
        substeps = max(1, round(options.points / count / scheme.snapshots / 2))
    states = _march(problem, scheme)
    if _exact(scheme):
        final = states(1)
        return Run(final, scheme.snapshots, 0.0, *_space(scheme, final), _rounding(problem, scheme)), 1
    coarse, last = states(substeps), math.nan
    share = _share(problem, scheme, coarse)
    if substeps > 1 and not fixed:  # a third run, so that the first ratio is measured, not assumed
        before = states(substeps // 2)
        last = relative(coarse - before, float(np.sqrt(np.sum(np.abs(coarse) ** 2)))) * share
        last = last if math.isfinite(last) else math.nan
    while True:
        fine = states(2 * substeps)
        size = float(np.sqrt(np.sum(np.abs(fine) ** 2)))
        gap = (
            relative(fine - coarse, size) * share
            if np.all(np.isfinite(fine)) and np.all(np.isfinite(coarse))
            else math.inf
        )
        ratio = min(max(gap / last, 1.0 / 64.0), 0.9) if math.isfinite(last) and last > 0.0 else 1.0 / 16.0
        in_time = gap * ratio / (1.0 - ratio)
        whole, each = _space(scheme, fine) if math.isfinite(gap) else (math.inf, (math.inf,) * len(scheme.nodes))
        whole *= share
        substeps *= 2
        enough = in_time <= max(0.5 * tol, 0.1 * whole if math.isfinite(whole) else 0.0)
        if fixed or enough or substeps * scheme.snapshots >= options.max_steps:
            run = Run(fine, substeps * scheme.snapshots, in_time, whole, each, _rounding(problem, scheme))
            return run, max(substeps // 2, 1)
        if not math.isfinite(gap) and substeps * scheme.snapshots > 20_000:
            return Run(fine, substeps * scheme.snapshots, math.inf, math.inf, each), max(substeps // 4, 1)
        coarse, last = fine, gap


def _march(problem: Problem, scheme: Fourier | Modal) -> Callable[[int], np.ndarray]:
    """A function from the number of steps between instants to the states."""
    assert problem.time is not None
    begin, length = problem.time[0], problem.time[1] - problem.time[0]
    linear = scheme.split[0] if isinstance(scheme, Fourier) else scheme.linear()
    start = jnp.asarray(scheme.start())
    data = {a: jnp.asarray(v) for a, v in scheme.grid.items()} if isinstance(scheme, Fourier) else None
    march = scheme.run

    def states(k: int) -> np.ndarray:
        h = length / scheme.snapshots / k
        factors = tuple(jnp.asarray(part) for part in coefficients(linear, h))
        return np.asarray(march(start, np.float64(begin), np.float64(h), np.int64(k), factors, data))

    return states


def _share(problem: Problem, scheme: Fourier | Modal, states: np.ndarray) -> float:
    """The size of what is marched relative to the solution, which has its lift besides; one without lifts."""
    normal = scheme.normal
    if isinstance(scheme, Fourier) or all(isinstance(lift, Const) and lift.value == 0.0 for lift in normal.lift):
        return 1.0
    assert problem.time is not None
    d, marched, whole = len(scheme.sizes), 0.0, 0.0
    if not np.all(np.isfinite(states)):
        return 1.0
    for k in np.linspace(0, len(states) - 1, 5).astype(int):
        t = problem.time[0] + (problem.time[1] - problem.time[0]) * k / (len(states) - 1)
        for i, lift in enumerate(normal.lift):
            w = scheme.to_nodes(i, (0,) * d)(scheme.values(i, states[k : k + 1])[0], np)
            marched += float(np.sum(w**2))
            whole += float(np.sum((w + np.asarray(evaluate(lift, {**scheme.grid, "t": np.asarray(t)}))) ** 2))
    return math.sqrt(marched / max(whole, 1e-300))


def _rounding(problem: Problem, scheme: Fourier | Modal) -> float:
    """What rounding leaves: eigenvalues of a matrix are good to eps times the largest one, and act for a time."""
    assert problem.time is not None
    if isinstance(scheme, Fourier):
        return 2e-14
    length, worst = problem.time[1] - problem.time[0], 0.0
    for values, _ in scheme.spectra:
        top, low = float(np.max(np.abs(values))), max(float(np.min(np.abs(values))), 1e-3)
        reach = length / (2.0 * math.sqrt(low)) if scheme.normal.order == 2 else min(length, 1.0 / low)
        worst = max(worst, 0.04 * 2.2e-16 * top * reach)
    return worst + 1e-14


def _exact(scheme: Fourier | Modal) -> bool:
    rest = scheme.split[1] if isinstance(scheme, Fourier) else [part.rest for part in scheme.parts]
    return all(isinstance(node, Const) and node.value == 0.0 for node in rest)


def _space(scheme: Fourier | Modal, states: np.ndarray) -> tuple[float, tuple[float, ...]]:
    if isinstance(scheme, Fourier):
        each = tails(states, "fourier")
    else:
        spectra = [scheme.legendre(i, scheme.values(i, states)) for i in range(len(scheme.parts))]
        each = tails(np.stack(spectra, axis=1), "legendre")
    return math.sqrt(sum(t * t for t in each)), each


def _finish(
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
        f"{how}, {'exact in time' if _exact(scheme) else 'ETDRK4'}",
        count * run.steps,
        count * len(names),
        (*problem.domain.low, problem.time[0]),
        (*problem.domain.high, problem.time[1]),
        {"history": history, "xla_temp_bytes": _temporary(scheme)},
    )


def _temporary(scheme: Fourier | Modal) -> int:
    """XLA's temporary memory of the march; the number of steps is an argument, so it does not depend on it."""
    linear = scheme.split[0] if isinstance(scheme, Fourier) else scheme.linear()
    start = jnp.asarray(scheme.start())
    data = {a: jnp.asarray(v) for a, v in scheme.grid.items()} if isinstance(scheme, Fourier) else None
    factors = tuple(jnp.asarray(part) for part in coefficients(linear, 1e-3))
    lowered = scheme.run.lower(start, np.float64(0.0), np.float64(1e-3), np.int64(1), factors, data)
    analysis = lowered.compile().memory_analysis()
    return int(analysis.temp_size_in_bytes) if analysis is not None else 0
