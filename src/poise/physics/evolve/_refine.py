"""Refine a march in time: halve the step, and keep more instants where interpolation between them is the limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._problem import Problem
from ._estimate import exact_in_time, relative, rounding, share, space_error
from ._etdrk4 import coefficients
from ._fourier import Fourier
from ._modal import Modal
from ._snapshots import WINDOW


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


def marcher(problem: Problem, scheme: Fourier | Modal) -> Callable[[int], np.ndarray]:
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


def refine_time(
    problem: Problem, scheme: Fourier | Modal, tol: float, substeps: int, points: int | None, max_steps: int
) -> tuple[Run, int]:
    """Halve the step until the difference says that time is no longer the larger error."""
    count = math.prod(scheme.nodes) if isinstance(scheme, Fourier) else math.prod(scheme.sizes)
    fixed = points is not None
    if points is not None:
        substeps = max(1, round(points / count / scheme.snapshots / 2))
    states = marcher(problem, scheme)
    if exact_in_time(scheme):
        final = states(1)
        return Run(final, scheme.snapshots, 0.0, *space_error(scheme, final), rounding(problem, scheme)), 1
    coarse, last = states(substeps), math.nan
    marched = share(problem, scheme, coarse)
    if substeps > 1 and not fixed:  # a third run, so that the first ratio is measured, not assumed
        before = states(substeps // 2)
        last = relative(coarse - before, float(np.sqrt(np.sum(np.abs(coarse) ** 2)))) * marched
        last = last if math.isfinite(last) else math.nan
    while True:
        fine = states(2 * substeps)
        size = float(np.sqrt(np.sum(np.abs(fine) ** 2)))
        gap = (
            relative(fine - coarse, size) * marched
            if np.all(np.isfinite(fine)) and np.all(np.isfinite(coarse))
            else math.inf
        )
        ratio = min(max(gap / last, 1.0 / 64.0), 0.9) if math.isfinite(last) and last > 0.0 else 1.0 / 16.0
        in_time = gap * ratio / (1.0 - ratio)
        whole, each = space_error(scheme, fine) if math.isfinite(gap) else (math.inf, (math.inf,) * len(scheme.nodes))
        whole *= marched
        substeps *= 2
        enough = in_time <= max(0.5 * tol, 0.1 * whole if math.isfinite(whole) else 0.0)
        if fixed or enough or substeps * scheme.snapshots >= max_steps:
            run = Run(fine, substeps * scheme.snapshots, in_time, whole, each, rounding(problem, scheme))
            return run, max(substeps // 2, 1)
        if not math.isfinite(gap) and substeps * scheme.snapshots > 20_000:
            return Run(fine, substeps * scheme.snapshots, math.inf, math.inf, each), max(substeps // 4, 1)
        coarse, last = fine, gap


def densify(problem: Problem, make: Any, scheme: Any, run: Run) -> tuple[Run, Any, float]:
    """More instants, the steps as they are, until interpolation between them is not what limits the accuracy."""
    nodes = scheme.nodes if isinstance(scheme, Fourier) else scheme.sizes
    between = interpolation(run.states)
    while (
        math.isfinite(between)
        and between > 0.3 * max(run.estimate, 1e-14)
        and 2 * run.states.nbytes <= 256 * 2**20
        and scheme.snapshots < 1600
    ):
        scheme = make(problem, nodes, 2 * scheme.snapshots)
        substeps = max(1, round(run.steps / scheme.snapshots))
        states = marcher(problem, scheme)(substeps)
        run = Run(states, substeps * scheme.snapshots, run.in_time, run.in_space, run.tails, run.rounding)
        between = interpolation(states)
    return run, scheme, between


def interpolation(states: np.ndarray) -> float:
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
