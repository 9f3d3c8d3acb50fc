"""Steady linear tasks: Poisson, screened Poisson, Helmholtz, an L-shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .._operators import axes, lap, sin, unknown
from .._primitives import Box, Disc, Polygon
from .._problem import Problem, on
from .._shapes import union
from ._task import Task

PI = np.pi


def poisson2d_c() -> Problem:
    """lap u = 0 on a square with four discs cut out; u = 1 on the square, 0 on the circles."""
    u = unknown("u", "x y")
    plate = Box(x=(-0.5, 0.5), y=(-0.5, 0.5), name="square")
    holes = union(*(Disc((a, b), 0.1) for a in (-0.3, 0.3) for b in (-0.3, 0.3)), name="circles")
    return Problem(plate - holes, lap(u) == 0, [on("square", u == 1), on("circles", u == 0)])


def poisson2d_cg() -> Problem:
    """-lap u + 64 u = 10 (17 + x^2 + y^2) sin(pi x) sin(4 pi y) on a square without four discs."""
    x, y = axes("x y")
    u = unknown("u", "x y")
    discs = [((0.5, 0.5), 0.2), ((0.4, -0.4), 0.4), ((-0.2, -0.7), 0.1), ((-0.6, 0.5), 0.3)]
    region = Box(x=(-1, 1), y=(-1, 1), name="square") - union(*(Disc(c, r) for c, r in discs), name="circles")
    f = 10 * (17 + x**2 + y**2) * sin(PI * x) * sin(4 * PI * y)
    return Problem(region, -lap(u) + 64 * u == f, [on("square", u == 0.2), on("circles", u == 1)])


def l_shape() -> Problem:
    """-lap u = 1 on [-1, 1]^2 without [0, 1]^2, u = 0: the corner's r^(2/3) defeats smooth bases."""
    u = unknown("u", "x y")
    region = Polygon((-1, -1), (1, -1), (1, 0), (0, 0), (0, 1), (-1, 1), name="wall")
    return Problem(region, -lap(u) == 1, [on("wall", u == 0)])


def helmholtz(periods: int) -> Problem:
    """-lap u - k^2 u = k^2 sin kx sin ky with k = 2 pi periods, on 1 by 0.9 (the unit square can be resonant)."""
    x, y = axes("x y")
    u = unknown("u", "x y")
    k = 2 * PI * periods
    wave = sin(k * x) * sin(k * y)
    return Problem(Box(x=(0, 1), y=(0, 0.9), name="edge"), -lap(u) - k**2 * u == k**2 * wave, [on("edge", u == wave)])


def _poisson2d_c_data(folder: Path) -> tuple[np.ndarray, np.ndarray, str]:
    stored = np.load(folder / "pinnacle/own_poisson2d_c.npz")
    return stored["X"], stored["u"], "pinnacle/own_poisson2d_c.npz"


def _poisson2d_cg_data(folder: Path) -> tuple[np.ndarray, np.ndarray, str]:
    rows = np.loadtxt(folder / "pinnacle/poisson_boltzmann2d.dat", comments="%")
    return rows[:, :2], rows[:, 2], "pinnacle/poisson_boltzmann2d.dat"


def _helmholtz(periods: int) -> Task:
    k = 2 * PI * periods
    return Task(
        f"helmholtz-{periods}",
        f"Helmholtz, {periods} period{'s' * (periods > 1)} per side",
        lambda: helmholtz(periods),
        1e-8,
        exact=lambda p: np.sin(k * p[:, 0]) * np.sin(k * p[:, 1]),
    )


TASKS = (
    Task("poisson2d-c", "Poisson2d-C: four holes", poisson2d_c, 1e-6, data=_poisson2d_c_data),
    Task("poisson2d-cg", "Poisson2d-CG: screened, four discs", poisson2d_cg, 1e-4, data=_poisson2d_cg_data),
    Task("l-shape", "L-shape with a re-entrant corner", l_shape, 1e-6, finer_tol=1e-11),
    *(_helmholtz(n) for n in (1, 5, 20)),
)
