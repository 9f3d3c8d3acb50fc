"""Least-squares collocation with nested features: refine until the estimated error is below the tolerance."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from poise.errors import BadInput

from .._calculus import evaluate, is_linear, linearise
from .._expr import Const
from .._precision import in_double
from .._problem import Problem
from .._representations import Collocated
from .._solution import Solution
from .._status import Status
from ._plan import plan
from ._rows import Block, Trial, blocks
from ._stream import CUTS, Stream, Sums


@dataclass(frozen=True)
class Options:
    """`points` (None: `oversample` rows per feature), the largest number of features, the steps of refinement, and
    the `devices` that share the points."""

    points: int | None = None
    oversample: int = 12
    max_features: int = 1400
    degree: int = 16
    growth: float = 1.6
    steps: int = 6
    devices: int = 1


@dataclass(frozen=True, eq=False)
class Fit:
    """One size of features, solved."""

    stream: Stream
    theta: np.ndarray
    estimate: float
    residual: float
    converged: bool
    rows: int


def weight(problem: Problem, block: Block) -> float:
    """What a residual is worth as an error: 1 / sum |c| (pi/length)^order, the size of the operator on the longest
    wave.

    Data with a known noise are worth 1/sigma of it, relative to unit noise.
    """
    if block.sigma > 0.0:
        return 1.0 / block.sigma
    lengths = dict(zip(problem.domain.axes, np.subtract(problem.domain.high, problem.domain.low), strict=True))
    if problem.time:
        lengths["t"] = problem.time[1] - problem.time[0]
    space = [lengths[axis] for axis in problem.domain.axes]
    fields = {field.name: field for field in problem.unknowns}
    total = 0.0
    for (name, order), coefficient in linearise(block.residual).items():
        if order == "lap":
            wave = sum((math.pi / length) ** 2 for length in space) / len(space)
        elif order == "dn":
            wave = math.pi / max(space)
        else:
            wave = math.prod((math.pi / lengths[a]) ** k for a, k in zip(fields[name].axes, order, strict=True))
        total += (abs(coefficient.value) if isinstance(coefficient, Const) else _typical(block, coefficient)) * wave
    return 1.0 / total if total > 0.0 else 1.0


def _typical(block: Block, coefficient: Any) -> float:
    """The root mean square of a variable coefficient, unknowns in it counted as one."""
    env, _, _ = block.at(0, 0.5)
    values = {part: np.ones(block.rows) for part in _atoms(coefficient)}
    return float(
        np.sqrt(np.mean(np.square(evaluate(coefficient, {k: np.asarray(v) for k, v in env.items()} | values))))
    )


def _atoms(node: Any) -> list[Any]:
    from .._calculus import atoms

    return [atom.key for atom in atoms(node)]


def fit(problem: Problem, trial: Trial, options: Options, start: np.ndarray | None = None) -> Fit:
    """Solve with the given features; a nonlinear problem by Gauss-Newton from `start` or from zero."""
    return fit_stream(*prepared(problem, trial, options.devices), options, start)


def fit_stream(
    stream: Stream,
    weights: np.ndarray,
    options: Options,
    start: np.ndarray | None = None,
    data: dict[Any, np.ndarray] | None = None,
) -> Fit:
    """The same with a compiled stream, whose features may read `data`."""
    m = stream.trial.count
    wanted = options.points if options.points is not None else options.oversample * m
    turns = max(1, round(wanted / (stream.rows * stream.devices)))
    chunks = turns * stream.devices  # every device takes as many
    theta = np.zeros(m) if start is None else start
    linear = all(is_linear(block.residual) for block in stream.blocks)
    last, converged = math.inf, linear
    nested = np.zeros((m, len(CUTS)))
    for _ in range(1 if linear else 30):
        probe = stream.sweep(1, theta, weights, data=data)
        columns = np.sqrt(np.sum(probe.columns * weights[:, None] ** 2, axis=0))
        columns = 1.0 / np.where(columns > 0.0, columns, 1.0)
        sums = stream.sweep(chunks, theta, weights, columns, data=data)
        nested, _ = stream.solve(sums.triangle, columns)
        change = float(np.linalg.norm((nested[:, -1] - theta) / columns) / max(np.linalg.norm(theta / columns), 1e-30))
        theta = nested[:, -1]
        if not np.all(np.isfinite(theta)):
            break
        if not linear and (change < 1e-12 or (change < 1e-7 and change > 0.5 * last)):
            converged = True
            break
        last = change
    held = stream.sweep(max(1, min(chunks // 3, 24)), theta, weights, thetas=nested, data=data)
    estimate, left = estimated(held, weights)
    return Fit(stream, theta, estimate, left, converged, chunks * stream.rows)


@functools.lru_cache(maxsize=32)
def prepared(problem: Problem, trial: Trial, devices: int = 1) -> tuple[Stream, np.ndarray]:
    """The compiled stream of a problem with given features, kept so that solving again compiles nothing."""
    stream = Stream.build(trial, blocks(problem, max(2 * trial.count, 128)), devices=devices)
    return stream, np.array([weight(problem, block) for block in stream.blocks])


@functools.lru_cache(maxsize=64)
def trial_of(problem: Problem, degree: int) -> Trial:
    """The features of a problem at a polynomial degree; the same object each time, so that it can be a key."""
    return plan(problem, degree)


def estimated(held: Sums, weights: np.ndarray) -> tuple[float, float]:
    """The relative L2 error of the finest solution, from held-out residuals and from the gaps between nested solutions.

    Two extrapolations: the last gap times the fall of the residual from one level to the next, and the last gap times
    the fall of the gaps themselves, summed as a geometric series. Their geometric mean is right within a factor of a
    few where each alone may be off by ten (`design/physics-estimates.md`).
    """
    residuals = np.sqrt(np.sum(held.residuals * weights[:, None] ** 2, axis=0))
    size = max(float(np.sum(held.size)), 1e-300)
    gaps = np.sqrt(np.sum(held.gaps, axis=0) / size)
    fall = float(np.clip(residuals[2] / max(residuals[1], 1e-300), 1e-6, 0.9))
    ratio = float(np.clip(gaps[1] / max(gaps[0], 1e-300), 1e-6, 0.9))
    by_residual = gaps[1] * fall / (1.0 - fall)
    by_gap = gaps[1] * ratio / (1.0 - ratio)
    floor = 3e-15 * math.sqrt(held.columns.shape[1])
    return math.sqrt(by_residual * by_gap) + floor, float(residuals[2])


@in_double
def solve_collocation(problem: Problem, tol: float, options: Options = Options()) -> Solution:
    """Refine until the estimate is below `tol` or the features run out; the best fit is returned with its status."""
    if not 1 <= options.devices <= len(jax.devices()):
        raise BadInput(f"devices needs a number from 1 to {len(jax.devices())}, not {options.devices}.")
    best: Fit | None = None
    history: list[tuple[int, float, float]] = []
    for step in range(options.steps):
        trial = trial_of(problem, round(options.degree * options.growth**step))
        if trial.count > options.max_features and step > 0:
            break
        made = fit(problem, trial, options, None)
        history.append((trial.count, made.estimate, made.residual))
        if best is None or not math.isfinite(best.estimate) or made.estimate < best.estimate:
            best = made
        if made.estimate <= tol:
            break
    assert best is not None
    return finish(problem, best, tol, history)


def finish(problem: Problem, best: Fit, tol: float, history: list[tuple[int, float, float]]) -> Solution:
    """The solution object with its verdict."""
    if not np.all(np.isfinite(best.theta)):
        status = Status.NOT_FINITE
    elif not best.converged:
        status = Status.STALLED
    elif len(history) > 2 and history[-1][2] > 0.5 * history[0][2] > 1e-8:
        status = Status.ILL_POSED
    else:
        status = Status.CONVERGED if best.estimate <= tol else Status.TOLERANCE_MISSED
    names = tuple(field.name for field in problem.unknowns)
    low, high = (*problem.domain.low,), (*problem.domain.high,)
    if problem.time:
        low, high = (*low, problem.time[0]), (*high, problem.time[1])
    d = problem.domain.dimension
    return Solution(
        problem.axes,
        names,
        Collocated(best.stream.trial, best.theta, problem.axes),
        status,
        best.estimate,
        "least-squares collocation",
        best.rows,
        best.stream.trial.count,
        low,
        high,
        {"xla_temp_bytes": best.stream.temporary_bytes(), "history": history, "residual": best.residual},
        lambda points: np.asarray(problem.domain.inside(points[:, :d])),
    )
