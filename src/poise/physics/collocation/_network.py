"""A neural field without backpropagation: a hidden layer whose weights are drawn from data, the rest least squares.

Each tanh unit is set by a pair of points of the region, so that it turns between them (Bolager et al. 2023; for
differential equations Datar et al. 2024). The first pairs are drawn evenly, with the steepness chosen by the residual
on points that took no part in the fit; later pairs are drawn where the current solution is steep, and a round is kept
only if the held-out residual fell. The outer weights come from the same streamed factorisation as the structured
features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from .._points import Cloud
from .._precision import in_double
from .._problem import Problem
from .._solution import Solution
from ..features import Family, hidden, tensor
from ._rows import Trial
from ._solve import Fit, finish, fit
from ._solve import Options as Collocation


@dataclass(frozen=True)
class Options:
    """`width` hidden units, `rounds` of drawing anew, the `steepness` values to choose from, rows per unit."""

    width: int = 600
    rounds: int = 2
    steepness: tuple[float, ...] = (0.25, 0.5, 1.0)
    oversample: int = 6
    seed: int = 0
    points: int | None = None


def places(problem: Problem, count: int, offset: float) -> np.ndarray:
    """Points of the region (and time), (count, d)."""
    env, keep = Cloud(problem.domain, (), problem.time).at(jnp.arange(4 * count), offset)
    points = np.stack([np.asarray(env[axis]) for axis in problem.axes], axis=1)[np.asarray(keep)]
    return points[:count]


def layer(problem: Problem, first: np.ndarray, second: np.ndarray, steepness: float) -> Trial:
    """The trial functions of every field: the hidden layer and a constant."""
    families: dict[str, tuple[Family, ...]] = {}
    for field in problem.unknowns:
        columns = [problem.axes.index(axis) for axis in field.axes]
        one = tensor(field.axes, np.zeros(len(columns)), np.ones(len(columns)), (0,) * len(columns))
        families[field.name] = (one, hidden(field.axes, first[:, columns], second[:, columns], steepness))
    return Trial(families)


def even(problem: Problem, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of points from all over, none closer than a hundredth of the region."""
    cloud = places(problem, 8 * count, 0.3)
    a, b = cloud[rng.integers(0, len(cloud), 2 * count)], cloud[rng.integers(0, len(cloud), 2 * count)]
    far = np.linalg.norm((a - b) / np.ptp(cloud, axis=0), axis=1) > 0.01
    return a[far][:count], b[far][:count]


def steep(problem: Problem, best: Fit, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Pairs at distances from a hundredth of the region up, drawn in proportion to the change between them."""
    cloud = places(problem, 40 * count, 0.7)
    width = np.ptp(cloud, axis=0)
    towards = rng.normal(size=cloud.shape)
    towards /= np.linalg.norm(towards, axis=1, keepdims=True)
    reach = 10.0 ** rng.uniform(-2.0, -0.3, (len(cloud), 1))
    other = np.clip(cloud + reach * width * towards, cloud.min(axis=0), cloud.max(axis=0))
    name = problem.unknowns[0].name
    key = (name, (0,) * len(problem.unknowns[0].axes))
    value = lambda p: np.asarray(  # noqa: E731
        best.stream.trial.value(key, {a: jnp.asarray(p[:, i]) for i, a in enumerate(problem.axes)}, best.theta)
    )
    gap = np.linalg.norm((other - cloud) / width, axis=1)
    change = np.abs(value(other) - value(cloud)) / np.maximum(gap, 1e-3)
    change = np.where(gap > 0.003, change, 0.0)
    chosen = rng.choice(len(cloud), count, replace=False, p=change / change.sum())
    return cloud[chosen], other[chosen]


@in_double
def solve_network(problem: Problem, tol: float, options: Options = Options()) -> Solution:
    """Draw, fit, draw anew where the solution is steep; the round with the smallest held-out residual is returned."""
    rng = np.random.default_rng(options.seed)
    rules = Collocation(points=options.points, oversample=options.oversample)
    first, second = even(problem, options.width, rng)
    small = max(options.width // 3, 60)
    tried = [(fit(problem, layer(problem, first[:small], second[:small], s), rules), s) for s in options.steepness]
    choice = min(tried, key=lambda pair: pair[0].residual if math.isfinite(pair[0].residual) else math.inf)[1]
    best = fit(problem, layer(problem, first, second, choice), rules)
    history = [(best.stream.trial.count, best.estimate, best.residual)]
    for _ in range(options.rounds):
        if best.estimate <= tol or not np.all(np.isfinite(best.theta)):
            break
        half = options.width // 2
        a, b = steep(problem, best, options.width - half, rng)
        trial = layer(problem, np.concatenate([first[:half], a]), np.concatenate([second[:half], b]), choice)
        made = fit(problem, trial, rules)
        history.append((trial.count, made.estimate, made.residual))
        if made.residual < best.residual:
            best = made
    solution = finish(problem, best, tol, history[-1:])
    return Solution(
        **{name: getattr(solution, name) for name in solution.__dataclass_fields__ if name not in ("method", "detail")},
        method=f"a hidden layer of {options.width} sampled tanh units, least squares",
        detail={**solution.detail, "history": history, "steepness": choice},
    )
