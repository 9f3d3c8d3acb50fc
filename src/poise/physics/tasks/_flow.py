"""Steady cavity flow: stream function in weak form, then the pressure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .._expr import Expr
from .._operators import axes, given, lap, test_function, unknown, weak
from .._primitives import Box
from .._problem import Problem, on
from .._solution import Solution
from .._solve import solve
from .._status import Status
from ._task import Task


@dataclass(frozen=True, eq=False)
class Flow:
    """Velocity from the stream function, u = psi_y, v = -psi_x, and the pressure with p(0, 0) = 0."""

    stream: Solution
    pressure: Solution | None
    status: Status
    error_estimate: float
    method: str
    points: int
    features: int
    detail: dict[str, Any] = field(default_factory=dict)

    def velocity(self, points: np.ndarray) -> np.ndarray:
        return np.stack([self.stream.field("psi", points, dy=1), -self.stream.field("psi", points, dx=1)], axis=1)

    def all(self, points: np.ndarray) -> np.ndarray:
        assert self.pressure is not None
        p = self.pressure(points) - self.pressure(np.zeros((1, 2)))
        return np.concatenate([self.velocity(points), p[:, None]], axis=1)

    def plot(self, path: str | Path | None = None, *_: Any) -> Any:
        return self.stream.plot(path)


def cavity(nu: float, lid: Expr) -> Problem:
    """nu lap^2 psi = psi_y lap psi_x - psi_x lap psi_y on the unit square; psi = 0, psi_n = 0 but lid(x) at the top.

    Weakly: integral of nu lap psi lap v + lap psi (psi_y v_x - psi_x v_y) vanishes.
    """
    psi = unknown("psi", "x y")
    v = test_function(psi)
    equation = weak(nu * lap(psi) * lap(v) + lap(psi) * (psi.dy * v.dx - psi.dx * v.dy))
    still = [on(side, psi == 0, psi.dn == 0) for side in ("x-", "x+", "y-")]
    return Problem(Box(x=(0, 1), y=(0, 1)), equation, [*still, on("y+", psi == 0, psi.dn == lid)])


def pressure(stream: Solution, nu: float, degree: int) -> Solution:
    """grad p = nu lap u - (u . grad) u in the weak sense: integral (grad p - f) . grad q = 0, natural boundary."""
    psi = lambda x, y, i, j: stream.field("psi", x, y, dx=i, dy=j)  # noqa: E731

    def fx(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        viscous = nu * (psi(x, y, 2, 1) + psi(x, y, 0, 3))
        return viscous - psi(x, y, 0, 1) * psi(x, y, 1, 1) + psi(x, y, 1, 0) * psi(x, y, 0, 2)

    def fy(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        viscous = -nu * (psi(x, y, 3, 0) + psi(x, y, 1, 2))
        return viscous + psi(x, y, 0, 1) * psi(x, y, 2, 0) - psi(x, y, 1, 0) * psi(x, y, 1, 1)

    p = unknown("p", "x y")
    q = test_function(p)
    # the constant is free: a tiny mass term keeps the system regular and the mean at zero
    equation = weak((p.dx - given(fx)) * q.dx + (p.dy - given(fy)) * q.dy + 1e-9 * p * q)
    return solve(Problem(Box(x=(0, 1), y=(0, 1)), equation, []), 1.0, start=degree, limit=degree, method="galerkin")


def solve_flow(problem: Problem, tol: float, *, nu: float, with_pressure: bool = True, **options: Any) -> Flow:
    """Stream function, then pressure; the pressure's error is estimated from that of the next coarser stream
    function."""
    stream = solve(problem, tol, measure=1, **options)
    estimate = stream.error_estimate
    p = None
    if with_pressure:
        p = pressure(stream, nu, round(stream.features**0.5))
        estimate = float(np.hypot(estimate, _pressure_error(problem, stream, p, nu, options)))
    return Flow(
        stream,
        p,
        stream.status,
        estimate,
        stream.method + (", pressure from the momentum equation" if with_pressure else ""),
        stream.points,
        stream.features,
        dict(stream.detail),
    )


def _pressure_error(problem: Problem, stream: Solution, p: Solution, nu: float, options: dict[str, Any]) -> float:
    """Relative to (u, v, p): the pressure's distance to that of the degree before, halved."""
    sizes = [size for size, _ in stream.detail["history"]]
    if len(sizes) < 2:
        return float("inf")
    coarse = solve(problem, 1e-12, measure=1, **{**options, "limit": sizes[-2]})
    other = pressure(coarse, nu, sizes[-2])
    x, w = np.polynomial.legendre.leggauss(40)
    points = np.stack(np.meshgrid((x + 1) / 2, (x + 1) / 2, indexing="ij"), axis=-1).reshape(-1, 2)
    weights = np.outer(w, w).reshape(-1) / 4
    corner = np.zeros((1, 2))
    fine = p(points) - p(corner)
    gap = fine - (other(points) - other(corner))
    u, v = stream.field("psi", points, dy=1), stream.field("psi", points, dx=1)
    return 0.5 * float(np.sqrt(weights @ gap**2 / (weights @ (u**2 + v**2 + fine**2))))


# Ghia, Ghia & Shin (1982), table I: u on the vertical centre line of the lid-driven cavity
GHIA_Y = (
    0.0547,
    0.0625,
    0.0703,
    0.1016,
    0.1719,
    0.2813,
    0.4531,
    0.5,
    0.6172,
    0.7344,
    0.8516,
    0.9531,
    0.9609,
    0.9688,
    0.9766,
)
GHIA = {
    1000: (
        *(-0.18109, -0.20196, -0.22220, -0.29730, -0.38289, -0.27805, -0.10648, -0.06080),
        *(0.05702, 0.18719, 0.33304, 0.46604, 0.51117, 0.57492, 0.65928),
    ),
    3200: (
        *(-0.32407, -0.35344, -0.37827, -0.41933, -0.34323, -0.24427, -0.086636, -0.04272),
        *(0.07156, 0.19791, 0.34682, 0.46101, 0.46547, 0.48296, 0.53236),
    ),
}


# Botella & Peyret (1998), table 9: the same for Re 1000 by a spectral method, at GHIA_Y
BOTELLA = (
    *(-0.1812881, -0.2023300, -0.2228955, -0.3004561, -0.3885691, -0.2803696, -0.1081999, -0.0620561),
    *(0.0570178, 0.1886747, 0.3372212, 0.4723329, 0.5169277, 0.5808359, 0.6644227),
)
GHIA_IS_OFF = {
    1000: "On the centre line u differs by 2.5e-5 (relative L2) from the spectral values of Botella & Peyret (1998), "
    "and by 1.1e-2 from those of Ghia et al. (1982), which are themselves 1.0e-2 from Botella & Peyret's",
    3200: "On the centre line u differs by 4.2e-2 (relative L2) from the values of Ghia et al. (1982), and it is those "
    "that are off: second-order finite differences (stream function and vorticity, Newton) are 1.2e-1 from this "
    "solution on 129 x 129 nodes, which are as many as Ghia had, 3.0e-2 on 257 x 257, and 2.0e-3 extrapolated from "
    "both; Ghia's values are 4.1e-2 from that extrapolation too. The smallest u is -0.4329 here, -0.4327 extrapolated, "
    "-0.4193 in Ghia's table",
}


def published(flow: Flow, reynolds: int) -> dict[str, float]:
    """Relative L2 differences of u on the vertical centre line to published values."""
    y = np.array(GHIA_Y)
    u = flow.velocity(np.stack([np.full(len(y), 0.5), y], axis=1))[:, 0]
    tables = {"Ghia et al. 1982": GHIA[reynolds]} | ({"Botella & Peyret 1998": BOTELLA} if reynolds == 1000 else {})
    return {name: float(np.linalg.norm(u - table) / np.linalg.norm(table)) for name, table in tables.items()}


def _data(folder: Path) -> tuple[np.ndarray, np.ndarray, str]:
    rows = np.loadtxt(folder / "pinnacle/lid_driven_a4.dat", comments="%")
    return rows[:, :2], rows[:, 2:4], "pinnacle/lid_driven_a4.dat"


def _data_p(folder: Path) -> tuple[np.ndarray, np.ndarray, str]:
    rows = np.loadtxt(folder / "pinnacle/lid_driven_a4.dat", comments="%")
    return rows[:, :2], rows[:, 2:5], "pinnacle/lid_driven_a4.dat"


def _ns2d_c() -> Problem:
    x, _ = axes("x y")
    return cavity(0.01, 4 * x * (1 - x))


def _driven(reynolds: int, start: int) -> Task:
    x, _ = axes("x y")
    return Task(
        f"cavity-re{reynolds}",
        f"lid-driven cavity, Re {reynolds}",
        lambda: cavity(1 / reynolds, 1 + 0 * x),
        6e-3,
        solver=solve_flow,
        options={"nu": 1 / reynolds, "start": start, "growth": 1.35, "limit": 56, "with_pressure": False},
        finer={"start": 24, "limit": 60 if reynolds < 3000 else 68},
        finer_tol=1e-9,
        measure=lambda flow, points: flow.velocity(points),
        beside=lambda flow: published(flow, reynolds),
        notes="the lid's corners are singular; the reference is the own solution at 1.3 times the degree. "
        + GHIA_IS_OFF[reynolds],
    )


TASKS = (
    Task(
        "ns2d-c",
        "NS2d-C: cavity, Re 100, (u, v)",
        _ns2d_c,
        1e-4,
        data=_data,
        solver=solve_flow,
        options={"nu": 0.01, "with_pressure": False},
        measure=lambda flow, points: flow.velocity(points),
    ),
    Task(
        "ns2d-c-p",
        "NS2d-C with the pressure, (u, v, p)",
        _ns2d_c,
        1e-4,
        data=_data_p,
        solver=solve_flow,
        options={"nu": 0.01},
        measure=lambda flow, points: flow.all(points),
    ),
    _driven(1000, 16),
    _driven(3200, 20),
)
