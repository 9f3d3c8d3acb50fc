"""Heat equations on spectral elements by the Laplace transform: no time steps, any time from the same few solves.

M u' + A u = b has the transform (z M + A) U(z) = M u0 + b / z. The inverse is an integral along a hyperbola around the
negative axis, by the trapezoidal rule (Weideman & Trefethen 2007, section 4): N nodes serve every time in a band
[t1 / SPAN, t1] with an error that falls geometrically in N. Bands going down by SPAN cover the start, whose boundary
layers they resolve as well as the mesh does.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._problem import Problem
from .._solution import Solution
from .._status import Status
from ..evolve._normal import initial_values
from ._assemble import System
from ._condense import Skeleton, condensed
from ._mesh import Mesh
from ._nodal import _Last, slopes, stored_mesh
from ._solve import Options, extrapolated, system_of
from ._space import Space

SPAN = 40.0
"""Latest over earliest time of a band."""
BANDS = 2
"""How many; before the earliest time, a 1600th of the whole, the solution is interpolated linearly from its start."""


@functools.cache
def hyperbola(count: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Nodes z and weights for a band that ends at time one, half of them (the rest are conjugates), and the rate."""

    def opening(a: float) -> float:
        return math.acosh(((math.pi - 2 * a) * SPAN + 4 * a - math.pi) / ((4 * a - math.pi) * math.sin(a)))

    rates = [(math.pi**2 - 2 * math.pi * a) / opening(a) for a in np.linspace(0.8, 1.55, 400)]
    a = float(np.linspace(0.8, 1.55, 400)[int(np.argmax(rates))])
    h = opening(a) / count
    mu = (4 * math.pi * a - math.pi**2) / opening(a) * count
    theta = (np.arange(count) + 0.5) * h
    z = mu * (1.0 + np.sin(1j * theta - a))
    weight = h / math.pi * mu * np.cos(1j * theta - a)
    return z, weight, max(rates)


@dataclass(frozen=True, eq=False)
class Transformed:
    """`transform[name]` (BANDS, N, E, n) complex nodal values at the contours' nodes, `start[name]` (E, n)."""

    mesh: Mesh
    degree: int
    time: tuple[float, float]
    transform: dict[str, np.ndarray]
    start: dict[str, np.ndarray]

    @functools.cached_property
    def space(self) -> Space:
        return Space(self.mesh, self.degree)

    @functools.cached_property
    def last(self) -> _Last:
        return _Last()

    def weights(self, t: np.ndarray, band: int, derivative: int) -> np.ndarray:
        """(times, N): what each node of a band counts at the times since the start."""
        z, weight, _ = hyperbola(next(iter(self.transform.values())).shape[1])
        end = (self.time[1] - self.time[0]) / SPAN**band
        return weight * (z / end) ** derivative * np.exp(np.outer(t / end, z)) / end

    def value(self, name: str, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        t = points[:, -1] - self.time[0]
        whole = self.time[1] - self.time[0]
        places = self.last.find(self.space, points[:, :-1])
        band = np.clip(np.floor(-np.log(np.maximum(t, 1e-300) / whole) / math.log(SPAN) + 1e-9), 0, BANDS - 1)
        earliest = whole / SPAN**BANDS
        late = np.maximum(t, earliest)
        result = np.zeros(len(points))
        for b in range(BANDS):
            rows = np.flatnonzero(band == b)
            if not len(rows):
                continue
            weights = self.weights(late[rows], b, order[-1])
            part = replace(places, element=places.element[rows], tables=[table[rows] for table in places.tables])
            for k in range(weights.shape[1]):
                nodal = slopes(self.space, self.transform[name][b, k], order[:-1])
                result[rows] += np.real(weights[:, k] * part.value(nodal))
        early = np.flatnonzero(t < earliest)
        if len(early) and order[-1] == 0:
            part = replace(places, element=places.element[early], tables=[table[early] for table in places.tables])
            begun = part.value(slopes(self.space, self.start[name], order[:-1]))
            result[early] = begun + (result[early] - begun) * t[early] / earliest
        return result

    def pack(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        arrays = {f"mesh.{k}": getattr(self.mesh, k) for k in Mesh.__dataclass_fields__}
        arrays |= {f"transform.{k}": v for k, v in self.transform.items()}
        arrays |= {f"start.{k}": v for k, v in self.start.items()}
        return {"kind": "transformed", "degree": self.degree, "time": self.time}, arrays


def unpack_transformed(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> Transformed:
    pick = lambda head: {k[len(head) :]: v for k, v in arrays.items() if k.startswith(head)}  # noqa: E731
    mesh = stored_mesh(arrays)
    return Transformed(mesh, meta["degree"], tuple(meta["time"]), pick("transform."), pick("start."))


def transform(system: System, start: np.ndarray, count: int) -> np.ndarray:
    """The local unknowns at every contour node: (BANDS, N, E, n)."""
    problem = system.problem
    assert problem.time is not None
    zero = np.zeros_like(start)
    a, b = system.weak(zero)
    m, _ = system.weak(zero, lambda times: times == 1)
    skeleton = Skeleton.of(system)
    z, _, _ = hyperbola(count)
    begun = np.einsum("eij,ej->ei", m, start)
    made = np.zeros((BANDS, count, *start.shape), complex)
    for band in range(BANDS):
        end = (problem.time[1] - problem.time[0]) / SPAN**band
        for k, node in enumerate(z / end):
            held = replace(skeleton, values=skeleton.values / node)
            right = begun + b / node
            made[band, k] = condensed(held, node * m + a, right[:, :, None])[:, :, 0]
    return made


def solve_heat(problem: Problem, tol: float, options: Options) -> Solution:
    """Raise the degree until the estimate is below `tol`; the contour's own error stays a tenth of it."""
    assert problem.time is not None
    field = problem.unknowns[0]
    rate = hyperbola(8)[2]
    count = min(32, max(6, math.ceil(math.log(10.0 / tol) / rate)))
    whole = problem.time[1] - problem.time[0]
    # squares of even steps: the start's boundary layers count as much as they last
    clock = [(whole * ((k - 0.5) / 12.0) ** 2, (2.0 * k - 1.0) / 144.0) for k in range(1, 13)]
    gaps: list[float] = []
    history: list[tuple[int, float]] = []
    before: tuple[System, Transformed] | None = None
    degree = options.start
    while True:
        system = system_of(problem, options.cells, degree)
        start = system.at(initial_values(problem, field))
        made = transform(system, start, count)
        now = Transformed(system.space.mesh, degree, problem.time, {field.name: made}, {field.name: np.array(start)})
        size, gap = 0.0, 0.0
        weights = system.space.metric[1]
        for t, share in clock:
            fine = _at(now, field.name, t)
            size += share * float(np.sum(weights * fine**2))
            if before is not None:
                coarse = before[0].space.refine(_at(before[1], field.name, t), degree)
                gap += share * float(np.sum(weights * (fine - coarse) ** 2))
        if before is not None:
            gaps.append(math.sqrt(gap))
        estimate = extrapolated(gaps, math.sqrt(size)) + math.exp(-rate * count)
        history.append((degree, estimate))
        before = (system, now)
        if estimate <= tol or degree + options.step > options.limit:
            break
        degree += options.step
    finite = bool(np.all(np.isfinite(made)))
    status = Status.CONVERGED if estimate <= tol else Status.TOLERANCE_MISSED
    space = system.space
    return Solution(
        problem.axes,
        (field.name,),
        now,
        status if finite else Status.NOT_FINITE,
        estimate,
        "spectral elements, inverse Laplace transform",
        space.nodes.shape[0] * space.nodes.shape[1],
        space.count,
        (*problem.domain.low, problem.time[0]),
        (*problem.domain.high, problem.time[1]),
        {"history": history, "elements": len(space.mesh), "degree": degree, "solves": BANDS * count},
        lambda points: np.asarray(problem.domain.inside(points[:, : problem.domain.dimension])),
    )


def _at(solution: Transformed, name: str, t: float) -> np.ndarray:
    """Nodal values (E, n) at a time since the start."""
    whole = solution.time[1] - solution.time[0]
    band = min(BANDS - 1, max(0, math.floor(-math.log(t / whole) / math.log(SPAN) + 1e-9)))
    weights = solution.weights(np.array([t]), band, 0)[0]
    return np.real(np.tensordot(weights, solution.transform[name][band], axes=1))
