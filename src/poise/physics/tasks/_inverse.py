"""Unknown coefficients from noisy data."""

from __future__ import annotations

import numpy as np

from .._operators import axes, cos, div, exp, grad, scale, sin, unknown
from .._primitives import Box
from .._problem import Problem, initial, measured, on
from .._solution import Solution
from ._task import Task

PI = np.pi
NOISE = 0.1


def pinv(seed: int = 0) -> Problem:
    """-div(a grad u) = f on the unit square: u measured on a 50 x 50 grid with noise 0.1, a known on the edge.

    PINNacle's source has (2x + 1), (2y + 1) where its stated u and a need (2x - 1), (2y - 1); this is the corrected
    one.
    """
    x, y = axes("x y")
    u, a = unknown("u", "x y"), unknown("a", "x y")
    true = 1 / (1 + x**2 + y**2 + (x - 1) ** 2 + (y - 1) ** 2)
    slope = (2 * x - 1) * cos(PI * x) * sin(PI * y) + (2 * y - 1) * sin(PI * x) * cos(PI * y)
    f = 2 * PI**2 * sin(PI * x) * sin(PI * y) * true + 2 * PI * slope * true**2
    line = np.linspace(0.0, 1.0, 50)
    points = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    values = np.sin(PI * points[:, 0]) * np.sin(PI * points[:, 1])
    values = values + NOISE * np.random.default_rng(seed).normal(size=len(values))
    conditions = [measured(u, points, values, NOISE), on("edge", a == true)]
    return Problem(Box(x=(0, 1), y=(0, 1), name="edge"), -div(scale(grad(u), a)) == f, conditions)


def hinv(seed: int = 0) -> Problem:
    """u_t - div(a grad u) = f on [-1, 1]^2: u measured at 2500 points with noise 0.1, a known on the edge."""
    x, y, t = axes("x y t")
    u, a = unknown("u", "x y t"), unknown("a", "x y")
    s = sin(PI * x) * sin(PI * y)
    gradient = cos(PI * x) ** 2 * sin(PI * y) ** 2 + sin(PI * x) ** 2 * cos(PI * y) ** 2
    f = exp(-t) * (-s + 2 * PI**2 * s * (2 + s) - PI**2 * gradient)
    rng = np.random.default_rng(seed)
    points = rng.uniform([-1.0, -1.0, 0.0], [1.0, 1.0, 1.0], (2500, 3))
    values = np.exp(-points[:, 2]) * np.sin(PI * points[:, 0]) * np.sin(PI * points[:, 1])
    values = values + NOISE * rng.normal(size=len(values))
    conditions = [
        measured(u, points, values, NOISE),
        on("edge", a == 2 + s, u == 0),
        initial(u == s),
    ]
    box = Box(x=(-1, 1), y=(-1, 1), name="edge")
    return Problem(box, u.dt - div(scale(grad(u), a)) == f, conditions, time=(0, 1))


def _fields(solution: Solution, points: np.ndarray) -> np.ndarray:
    return np.stack([solution.field("u", points), solution.field("a", points)], axis=1)


def _pinv(p: np.ndarray) -> np.ndarray:
    x, y = p.T
    a = 1 / (1 + x**2 + y**2 + (x - 1) ** 2 + (y - 1) ** 2)
    return np.stack([np.sin(PI * x) * np.sin(PI * y), a], axis=1)


def _hinv(p: np.ndarray) -> np.ndarray:
    x, y, t = p.T
    s = np.sin(PI * x) * np.sin(PI * y)
    return np.stack([np.exp(-t) * s, 2 + s], axis=1)


TASKS = (
    Task("pinv", "PInv: conductivity from 10 % noise", pinv, 3e-2, exact=_pinv, measure=_fields),
    Task(
        "hinv",
        "HInv: diffusivity from 10 % noise",
        hinv,
        5e-2,
        exact=_hinv,
        measure=_fields,
        options={"field_degree": 10, "coefficient_degree": 7, "fall": 1.5},
    ),
)
