"""Evolutions in one space dimension: waves, transport, shocks, fronts, chaos."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .._operators import axes, cos, exp, sin, unknown
from .._primitives import Box
from .._problem import Problem, initial, on
from ._task import Task

PI = np.pi


def wave1d(pulse: bool) -> Problem:
    """u_tt = 4 u_xx on [0, 1], held at the ends; two standing waves, or a Gaussian pulse."""
    x, _ = axes("x t")
    u = unknown("u", "x t")
    start = exp(-(((x - 0.4) / 0.08) ** 2)) if pulse else sin(PI * x) + 0.5 * sin(4 * PI * x)
    conditions = [initial(u == start), initial(u.dt == 0), on("ends", u == 0)]
    return Problem(Box(x=(0, 1), name="ends"), u.dtt == 4 * u.dxx, conditions, time=(0, 1))


def beam() -> Problem:
    """Euler-Bernoulli: u_tt + u_xxxx = 0, simply supported."""
    x, _ = axes("x t")
    u = unknown("u", "x t")
    conditions = [initial(u == sin(PI * x)), initial(u.dt == 0), on("ends", u == 0, u.dxx == 0)]
    return Problem(Box(x=(0, 1), name="ends"), u.dtt + u.dxxxx == 0, conditions, time=(0, 1))


def burgers1d() -> Problem:
    """u_t + u u_x = (0.01/pi) u_xx on [-1, 1], u = -sin(pi x) at the start, 0 at the ends."""
    x, _ = axes("x t")
    u = unknown("u", "x t")
    conditions = [initial(u == -sin(PI * x)), on("ends", u == 0)]
    return Problem(Box(x=(-1, 1), name="ends"), u.dt + u * u.dx == 0.01 / PI * u.dxx, conditions, time=(0, 1))


def allen_cahn(periodic: bool) -> Problem:
    """u_t = D u_xx + 5 (u - u^3) from x^2 cos(pi x): periodic with D = 1e-4, or u(+-1) = -1 with D = 1e-3."""
    x, _ = axes("x t")
    u = unknown("u", "x t")
    start = initial(u == x**2 * cos(PI * x))
    if periodic:
        return Problem(Box(x=(-1, 1), periodic="x"), u.dt == 1e-4 * u.dxx + 5 * u - 5 * u**3, [start], time=(0, 1))
    return Problem(
        Box(x=(-1, 1), name="ends"), u.dt == 1e-3 * u.dxx + 5 * u - 5 * u**3, [start, on("ends", u == -1)], time=(0, 1)
    )


def kuramoto_sivashinsky() -> Problem:
    """u_t + (100/16) u u_x + (100/16^2) u_xx + (100/16^4) u_xxxx = 0, periodic on [0, 2 pi]."""
    x, _ = axes("x t")
    u = unknown("u", "x t")
    equation = u.dt + 100 / 16 * u * u.dx + 100 / 16**2 * u.dxx + 100 / 16**4 * u.dxxxx == 0
    return Problem(Box(x=(0, 2 * PI), periodic="x"), equation, [initial(u == cos(x) * (1 + sin(x)))], time=(0, 1))


def advection() -> Problem:
    """u_t + 40 u_x = 0, periodic on [0, 2 pi], from sin x."""
    x, _ = axes("x t")
    u = unknown("u", "x t")
    return Problem(Box(x=(0, 2 * PI), periodic="x"), u.dt + 40 * u.dx == 0, [initial(u == sin(x))], time=(0, 1))


def _pulse(points: np.ndarray) -> np.ndarray:
    """d'Alembert with mirror images at the ends."""

    def odd(z: np.ndarray) -> np.ndarray:
        z = np.mod(z, 2.0)
        sign = np.where(z > 1.0, -1.0, 1.0)
        return sign * np.exp(-(((np.where(z > 1.0, 2.0 - z, z) - 0.4) / 0.08) ** 2))

    x, t = points.T
    return 0.5 * (odd(x - 2.0 * t) + odd(x + 2.0 * t))


def _wave(points: np.ndarray) -> np.ndarray:
    x, t = points.T
    return np.sin(PI * x) * np.cos(2 * PI * t) + 0.5 * np.sin(4 * PI * x) * np.cos(8 * PI * t)


def _stored(path: str):
    """A reader of a file with x, t and u[t, x]."""

    def read(folder: Path) -> tuple[np.ndarray, np.ndarray, str]:
        stored = np.load(folder / path)
        t, x = np.meshgrid(stored["t"].ravel(), stored["x"].ravel(), indexing="ij")
        return np.stack([x.ravel(), t.ravel()], axis=1), stored["u"].ravel(), path

    return read


TASKS = (
    Task("wave1d-c", "Wave1d-C: standing waves", lambda: wave1d(False), 1e-10, exact=_wave),
    Task("wave1d-pulse", "a Gaussian pulse between fixed ends", lambda: wave1d(True), 1e-7, exact=_pulse),
    Task(
        "beam",
        "Euler-Bernoulli beam, simply supported",
        beam,
        1e-8,
        exact=lambda p: np.sin(PI * p[:, 0]) * np.cos(PI**2 * p[:, 1]),
    ),
    Task("burgers1d", "Burgers1d: a viscous shock", burgers1d, 3e-8, data=_stored("pinnacle/own_burgers1d_exact.npz")),
    Task(
        "allen-cahn-periodic",
        "Allen-Cahn, periodic",
        lambda: allen_cahn(True),
        1e-5,
        data=_stored("jaxpi/own_allen_cahn_periodic.npz"),
    ),
    Task(
        "allen-cahn",
        "Allen-Cahn, fixed ends",
        lambda: allen_cahn(False),
        1e-5,
        finer={"nodes": 560, "max_nodes": 560},
        finer_tol=3e-8,
    ),
    Task(
        "ks",
        "Kuramoto-Sivashinsky, chaotic",
        kuramoto_sivashinsky,
        1e-7,
        data=_stored("jaxpi/own_ks_chaotic.npz"),
        options={"nodes": 256, "between": False},
        notes="compared at the kept instants, a hundredth apart",
    ),
    Task("advection", "advection, beta = 40", advection, 1e-9, exact=lambda p: np.sin(p[:, 0] - 40 * p[:, 1])),
)
