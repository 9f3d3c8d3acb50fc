"""Evolutions in the plane: heat, waves, Burgers, Gray-Scott."""

from __future__ import annotations

import numpy as np

from .._operators import axes, cos, exp, lap, sin, unknown
from .._primitives import Box
from .._problem import Problem, initial, on
from .._solution import Solution
from ._task import Task

PI = np.pi


def _square(name: str = "edge"):
    return Box(x=(0, 1), y=(0, 1), name=name)


def heat2d_ms() -> Problem:
    """u_t = u_xx/(500 pi)^2 + u_yy/pi^2 from sin(20 pi x) sin(pi y), u = 0 on the edge."""
    x, y, _ = axes("x y t")
    u = unknown("u", "x y t")
    equation = u.dt == u.dxx / (500 * PI) ** 2 + u.dyy / PI**2
    return Problem(_square(), equation, [initial(u == sin(20 * PI * x) * sin(PI * y)), on("edge", u == 0)], time=(0, 5))


def heat2d_ms_shifted() -> Problem:
    """u_t = div(a grad u) with a_x = (1 + x/2)/(100 pi)^2, a_y = (1 + 0.3 sin(2x + y))/pi^2; off-centre packet."""
    x, y, _ = axes("x y t")
    u = unknown("u", "x y t")
    a, b = (1 + 0.5 * x) / (100 * PI) ** 2, (1 + 0.3 * sin(2 * x + y)) / PI**2
    start = sin(8 * PI * (x - 0.1)) * exp(-60 * ((x - 0.4) ** 2 + (y - 0.55) ** 2))
    equation = u.dt == (a * u.dx).dx + (b * u.dy).dy
    return Problem(_square(), equation, [initial(u == start), on("edge", u == 0)], time=(0, 5))


def heat2d_vc() -> Problem:
    """u_t - a lap u = 200 sin(pi x) sin(5 pi y) sin(pi t) with a = 1 + sin(pi x) cos(pi y)/2, u = 0 at first and
    outside.

    PINNacle's coefficient field is not at hand; this smooth one takes its place.
    """
    x, y, t = axes("x y t")
    u = unknown("u", "x y t")
    a = 1 + 0.5 * sin(PI * x) * cos(PI * y)
    equation = u.dt - a * lap(u) == 200 * sin(PI * x) * sin(5 * PI * y) * sin(PI * t)
    return Problem(_square(), equation, [initial(u == 0), on("edge", u == 0)], time=(0, 5))


def heat2d_lt() -> Problem:
    """u_t = 0.001 lap u + 5 sin(u^2) (1 + 2 sin(pi t/4)) sin(4 pi x) sin(2 pi y) for a hundred time units."""
    x, y, t = axes("x y t")
    u = unknown("u", "x y t")
    source = 5 * sin(u**2) * (1 + 2 * sin(PI * t / 4)) * sin(4 * PI * x) * sin(2 * PI * y)
    start = initial(u == sin(4 * PI * x) * sin(3 * PI * y))
    return Problem(_square(), u.dt == 0.001 * lap(u) + source, [start, on("edge", u == 0)], time=(0, 100))


def burgers2d() -> Problem:
    """u_t + (u . grad) u = nu lap u, two components, nu = 0.01: an oblique travelling wave, its values on the edge."""
    x, y, t = axes("x y t")
    u, v = unknown("u", "x y t"), unknown("v", "x y t")
    nu = 0.01
    front = 1 / (1 + exp((-4 * x + 4 * y - t) / (32 * nu)))
    a, b = 0.75 - 0.25 * front, 0.75 + 0.25 * front
    equations = [u.dt + u * u.dx + v * u.dy == nu * lap(u), v.dt + u * v.dx + v * v.dy == nu * lap(v)]
    return Problem(_square(), equations, [initial(u == a, v == b), on("edge", u == a, v == b)], time=(0, 1))


def wave2d_cg() -> Problem:
    """u_tt = c lap u, c = 1 + sin(2x) cos(y + 1/2)/2, du/dn = 0, from a Gaussian hill.

    PINNacle's speed field is not at hand; this smooth one takes its place.
    """
    x, y, _ = axes("x y t")
    u = unknown("u", "x y t")
    c = 1 + 0.5 * sin(2 * x) * cos(y + 0.5)
    start = exp(-((x + 0.5) ** 2 + y**2) / (2 * 0.3**2))
    conditions = [initial(u == start), initial(u.dt == 0), on("edge", u.dn == 0)]
    return Problem(Box(x=(-1, 1), y=(-1, 1), name="edge"), u.dtt == c * lap(u), conditions, time=(0, 5))


def gray_scott() -> Problem:
    """u_t = 1e-5 lap u + 0.04 (1 - u) - u v^2, v_t = 5e-6 lap v - 0.1 v + u v^2, periodic on [-1, 1]^2, t <= 200."""
    x, y, _ = axes("x y t")
    u, v = unknown("u", "x y t"), unknown("v", "x y t")
    equations = [
        u.dt == 1e-5 * lap(u) + 0.04 * (1 - u) - u * v**2,
        v.dt == 5e-6 * lap(v) - 0.1 * v + u * v**2,
    ]
    hole = exp(-80 * ((x + 0.05) ** 2 + (y + 0.02) ** 2))
    hill = exp(-80 * ((x - 0.05) ** 2 + (y - 0.02) ** 2))
    return Problem(
        Box(x=(-1, 1), y=(-1, 1), periodic="x y"), equations, [initial(u == 1 - hole, v == hill)], time=(0, 200)
    )


def _both(solution: Solution, points: np.ndarray) -> np.ndarray:
    return np.stack([solution.field("u", points), solution.field("v", points)], axis=1)


def _travelling(points: np.ndarray) -> np.ndarray:
    x, y, t = points.T
    front = 0.25 / (1 + np.exp((-4 * x + 4 * y - t) / 0.32))
    return np.stack([0.75 - front, 0.75 + front], axis=1)


def _instants(count: int, end: float, low: float, high: float):
    """Points whose times are kept instants, as in the published references."""

    def sample(rng: np.random.Generator, n: int) -> np.ndarray:
        t = rng.integers(0, count + 1, n) * (end / count)
        return np.concatenate([rng.uniform(low, high, (n, 2)), t[:, None]], axis=1)

    return sample


TASKS = (
    Task(
        "heat2d-ms",
        "Heat2d-MS: scales 500 to 1",
        heat2d_ms,
        1e-8,
        exact=lambda p: np.sin(20 * PI * p[:, 0]) * np.sin(PI * p[:, 1]) * np.exp(-1.0016 * p[:, 2]),
    ),
    Task(
        "heat2d-ms-shifted",
        "variable coefficient, off-centre packet",
        heat2d_ms_shifted,
        1e-6,
        finer={"nodes": 50, "max_nodes": 50},
        finer_tol=1e-9,
    ),
    Task("heat2d-vc", "Heat2d-VC: variable coefficient", heat2d_vc, 1e-5, finer={"nodes": 28}, finer_tol=2e-7),
    Task(
        "heat2d-lt",
        "Heat2d-LT: a hundred time units",
        heat2d_lt,
        1e-3,
        options={"snapshots": 500, "nodes": 192, "max_nodes": 192, "between": False},
        finer={"nodes": 256, "max_nodes": 256},
        finer_tol=1e-4,
        sample=_instants(500, 100.0, 0.0, 1.0),
        notes="compared at the kept instants",
    ),
    Task("burgers2d", "Burgers2d: travelling wave", burgers2d, 1e-6, exact=_travelling, measure=_both),
    Task("wave2d-cg", "Wave2d: variable speed", wave2d_cg, 2e-2, finer={"nodes": 44}, finer_tol=1e-4),
    Task(
        "gray-scott",
        "Gray-Scott, periodic",
        gray_scott,
        5e-3,
        options={"snapshots": 100, "nodes": 128, "max_nodes": 128},
        finer={"nodes": 256, "max_nodes": 256},
        finer_tol=1e-4,
        measure=_both,
    ),
)
