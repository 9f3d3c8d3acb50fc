"""Unknown coefficients from noisy data: Gauss-Newton on fields and coefficients together.

The equation is kept as a constraint (a weight far above the data's), the data count by their noise, and a Gaussian
prior
says that the unknowns are analytic: their Legendre coefficients fall like 4^-degree (coefficients) and 10 * 2^-degree
(fields) times their size. The posterior covariance restricted to each unknown is the error estimate
(`design/physics-inverse.md` has what else was tried).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from .._calculus import atoms, expand
from .._expr import Deriv, Unknown
from .._precision import in_double
from .._problem import Problem
from .._representations import Collocated
from .._solution import Solution
from .._status import Status
from ..features import tensor
from ._rows import Block, Trial, blocks
from ._solve import weight
from ._stream import LEVELS, Stream

CONSTRAINT = 300.0
"""Weight of the equation relative to one standard deviation of the data."""


FALL, FIELD_FALL, FIELD_SIZE = 4.0, 2.0, 10.0
"""The prior's standard deviations: size * FALL^-degree, and size * FIELD_SIZE * FIELD_FALL^-degree."""


@dataclass(frozen=True)
class Options:
    """Polynomial degrees of the coefficients and of the fields; `fall` is how fast the prior has coefficients decay."""

    coefficient_degree: int = 6
    field_degree: int = 9
    fall: float = FALL
    points: int | None = None


@dataclass(frozen=True, eq=False)
class Posterior:
    """The state of an iteration: coefficients, the root of their covariance (M, M)."""

    theta: np.ndarray
    root: np.ndarray
    misfit: float
    converged: bool


def coefficients_of(problem: Problem) -> tuple[Unknown, ...]:
    """The unknowns that are coefficients: those differentiated less than the fields they multiply."""
    rank = {}
    for field in problem.unknowns:
        orders = [_total(atom) for e in problem.equations for atom in atoms(e) if atom.field is field]
        rank[field.name] = max(orders, default=0)
    top = max(rank.values())
    return tuple(field for field in problem.unknowns if rank[field.name] < top)


def _total(atom: Deriv) -> int:
    from .._calculus import walk

    return max(
        (sum(p.order) for p in walk(expand(atom)) if isinstance(p, Deriv) and not isinstance(p.order, str)), default=0
    )


@functools.lru_cache(maxsize=32)
def prepared(problem: Problem, degree: int, field_degree: int) -> tuple[Stream, np.ndarray, np.ndarray]:
    """The stream with one chunk that holds every datum once, its weights, and the start: fields zero, coefficients
    one."""
    small = {field.name for field in coefficients_of(problem)}
    shape = problem.domain
    bounds = dict(zip(shape.axes, zip(shape.low, shape.high, strict=True), strict=True))
    if problem.time:
        bounds["t"] = problem.time
    families, start = {}, []
    for field in problem.unknowns:
        p = degree if field.name in small else field_degree
        low, high = ([bounds[a][i] for a in field.axes] for i in (0, 1))
        degrees = [max(p // 2, 3) if a == "t" else p for a in field.axes]
        family = tensor(field.axes, low, high, degrees)
        families[field.name] = (family,)
        first = np.zeros(family.count)
        if field.name in small:
            first[int(np.argmin(family.degree.sum(axis=1)) if field.axes else 0)] = 2.0 ** (len(field.axes) / 2.0)
        start.append(first)
    trial = Trial(families)
    data = sum(len(c.points) for c in problem.conditions if c.points is not None)
    made = []
    for block in blocks(problem, 2 * max(data, 3 * trial.count)):
        rows = len(block.points) if block.points is not None else block.rows
        made.append(Block(**{**{k: getattr(block, k) for k in block.__dataclass_fields__}, "rows": rows}))
    stream = Stream.build(trial, tuple(made))
    weights = np.array([weight(problem, b) * (1.0 if b.points is not None else CONSTRAINT) for b in stream.blocks])
    noise = min((b.sigma for b in stream.blocks if b.sigma > 0.0), default=1.0)
    weights = np.where([b.points is not None for b in stream.blocks], weights, weights / noise)
    return stream, weights, np.concatenate(start)


def inverse_deviations(problem: Problem, trial: Trial, size: float, fall: float) -> np.ndarray:
    """Per feature one over the standard deviation of its prior; zero, no prior, for constants."""
    made = []
    small = {field.name for field in coefficients_of(problem)}
    for name, (family,) in trial.families.items():
        degree = family.degree.sum(axis=1) if family.axes else np.zeros(family.count)  # type: ignore[attr-defined]
        rise = fall**degree if name in small else FIELD_FALL**degree / FIELD_SIZE
        made.append(np.where(degree > 0, rise / size, 0.0))
    return np.concatenate(made)


def update(r: np.ndarray, prior: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The minimiser for a triangle [R | z] of `count` data and a prior (inverse deviations), and the root R^-1."""
    m = len(prior)
    rows = np.concatenate([r * math.sqrt(count), np.concatenate([np.diag(prior), np.zeros((m, 1))], axis=1)])
    full = np.asarray(np.linalg.qr(rows, mode="r"))
    return np.linalg.solve(full[:m, :m], full[:m, m]), np.linalg.inv(full[:m, :m])


def gauss_newton(problem: Problem, options: Options) -> tuple[Stream, Posterior]:
    """Iterate to the posterior's mode."""
    stream, weights, theta = prepared(problem, options.coefficient_degree, options.field_degree)
    m, last, converged = stream.trial.count, math.inf, False
    count = sum(len(b.points) for b in stream.blocks if b.points is not None)
    prior = inverse_deviations(problem, stream.trial, max(float(np.max(np.abs(theta))), 1.0), options.fall)[
        stream.order
    ]
    root = np.eye(m)
    back = np.argsort(stream.order)
    for _ in range(25):
        # columns as they are: the prior speaks of coefficients, and polynomials are well scaled
        triangle = stream.sweep(1, theta, weights, np.ones(m)).triangle
        new, inverse = update(triangle, prior, count)
        new = new[back]
        root = inverse[back]
        change = float(np.linalg.norm(new - theta) / np.linalg.norm(new))
        theta = new
        if not np.all(np.isfinite(theta)):
            break
        if change < 1e-5 or (change < 1e-3 and change > 0.7 * last):
            converged = True
            break
        last = change
    left = stream.sweep(1, theta, weights, thetas=np.tile(theta[:, None], (1, LEVELS))).residuals
    data = [(i, len(b.points)) for i, b in enumerate(stream.blocks) if b.points is not None]
    misfit = sum(left[i, -1] * weights[i] ** 2 * n for i, n in data)
    return stream, Posterior(theta, root, float(misfit), converged)


@in_double
def solve_inverse(problem: Problem, tol: float, options: Options = Options()) -> Solution:
    """Fit fields and coefficients, report the posterior's standard deviation relative to their size."""
    stream, best = gauss_newton(problem, options)
    estimates = {}
    for field in problem.unknowns:
        span = stream.trial.span(field.name)
        spread = float(np.sum(best.root[span] ** 2))
        estimates[field.name] = math.sqrt(spread / max(float(np.sum(best.theta[span] ** 2)), 1e-300))
    estimate = math.sqrt(sum(e * e for e in estimates.values()) / len(estimates))
    status = Status.CONVERGED if estimate <= tol else Status.TOLERANCE_MISSED
    if not best.converged:
        status = Status.STALLED if np.all(np.isfinite(best.theta)) else Status.NOT_FINITE
    low, high = problem.domain.low, problem.domain.high
    if problem.time:
        low, high = (*low, problem.time[0]), (*high, problem.time[1])
    return Solution(
        problem.axes,
        tuple(field.name for field in problem.unknowns),
        Collocated(stream.trial, best.theta, problem.axes),
        status,
        estimate,
        "Gauss-Newton on fields and coefficients, noise-weighted",
        stream.rows,
        stream.trial.count,
        low,
        high,
        {
            "estimates": estimates,
            "misfit": best.misfit,
            "xla_temp_bytes": stream.temporary_bytes(),
        },
    )
