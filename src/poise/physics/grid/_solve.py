"""Huge or rough elliptic problems on a plane's grid by accelerated relaxation: memory of a few fields, no matrix."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from scipy.interpolate import RectBivariateSpline

from ...errors import BadInput
from .._calculus import atoms, differentiate, evaluate, expand, is_linear, linearise, source
from .._expr import Const, Expr, add, mul
from .._precision import in_double
from .._problem import Problem
from .._solution import Solution
from .._status import Status
from ._relax import Relaxation


@dataclass(frozen=True)
class Options:
    """`n` interior nodes per side (the grid doubles towards it), `devices` to share them, the largest iteration count
    per node and side."""

    n: int = 255
    devices: int = 1
    patience: int = 60
    points: int | None = None


@dataclass(frozen=True, eq=False)
class Gridded:
    """Values at all nodes, the boundary's included, of a rectangle: cubic splines between them."""

    low: tuple[float, float]
    high: tuple[float, float]
    values: np.ndarray
    name: str

    def value(self, name: str, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        if max(order) > 2:
            raise BadInput("A solution on a grid has derivatives up to the second order.")
        return self.spline.ev(points[:, 0], points[:, 1], dx=order[0], dy=order[1])

    @functools.cached_property
    def spline(self) -> RectBivariateSpline:
        lines = [np.linspace(lo, hi, size) for lo, hi, size in zip(self.low, self.high, self.values.shape, strict=True)]
        return RectBivariateSpline(lines[0], lines[1], self.values)

    def pack(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return {"kind": "gridded", "low": self.low, "high": self.high, "name": self.name}, {"values": self.values}


def unpack_gridded(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> Gridded:
    return Gridded(tuple(meta["low"]), tuple(meta["high"]), arrays["values"], meta["name"])


@functools.lru_cache(maxsize=32)
def form(problem: Problem) -> tuple[Expr, Expr, Expr, dict[str, Expr]]:
    """a, k, f of -div(a grad u) + k u = f and the boundary values; raises `BadInput` for any other problem."""
    shape = problem.domain
    plain = shape.kind == "box" and shape.dimension == 2 and not shape.periodic and problem.time is None
    if (
        not plain
        or len(problem.unknowns) != 1
        or problem.inverse
        or problem.weak
        or not is_linear(problem.equations[0])
    ):
        raise BadInput("Relaxation solves one linear steady equation, -div(a grad u) + k u = f, on a rectangle.")
    node = problem.equations[0]
    second: list[Expr] = [Const(0.0), Const(0.0)]
    first: list[Expr] = [Const(0.0), Const(0.0)]
    reaction: Expr = Const(0.0)
    for key, c in linearise(node).items():
        atom = next(a for a in atoms(node) if a.key == key)
        for part in _terms(expand(atom)):
            order = part.order
            if sum(order) == 2 and max(order) == 2:
                second[order.index(2)] = add(second[order.index(2)], c)
            elif sum(order) == 1:
                first[order.index(1)] = add(first[order.index(1)], c)
            elif not sum(order):
                reaction = add(reaction, c)
            else:
                raise BadInput("Relaxation solves equations without mixed second derivatives.")
    rng = np.random.default_rng(1)
    env = {a: rng.uniform(lo, hi, 32) for a, lo, hi in zip(shape.axes, shape.low, shape.high, strict=True)}
    at = lambda e: np.broadcast_to(np.asarray(evaluate(e, env), float), (32,))  # noqa: E731
    slopes = all(
        np.allclose(at(b), at(differentiate(s, axis)), rtol=1e-6, atol=1e-9)
        for b, s, axis in zip(first, second, shape.axes, strict=True)
    )
    if not slopes or not np.allclose(at(second[0]), at(second[1])):
        raise BadInput("Relaxation solves equations in divergence form with one coefficient, -div(a grad u) + k u = f.")
    sign = -1.0 if at(second[0])[0] > 0.0 else 1.0
    values: dict[str, Expr] = {}
    for condition in problem.conditions:
        keys = linearise(condition.residual)
        ((_, order), c) = next(iter(keys.items()))
        if len(keys) != 1 or isinstance(order, str) or sum(order):
            raise BadInput("Relaxation needs boundary values, u == g, on all four sides.")
        values[condition.where] = mul(Const(-1.0), source(condition.residual)) / c
    return (
        mul(Const(-sign), second[0]),
        mul(Const(sign), reaction),
        mul(Const(-sign), source(node)),
        values,
    )


def _terms(node: Any) -> list[Any]:
    from .._expr import Add

    return _terms(node.a) + _terms(node.b) if isinstance(node, Add) else [node]


def workload(problem: Problem, n: int = 255, start: np.ndarray | None = None, **options: Any) -> Relaxation:
    """The relaxation of a problem with n interior nodes per side, for `poise.Keeper` or for `solve`."""
    a, k, f, values = form(problem)
    shape = problem.domain
    axes, low, high = shape.axes, shape.low, shape.high
    lines = [np.linspace(lo, hi, n + 2) for lo, hi in zip(low, high, strict=True)]
    h = [line[1] - line[0] for line in lines]

    def at(node: Expr, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x, y = np.broadcast_arrays(x, y)
        flat = {axes[0]: x.reshape(-1), axes[1]: y.reshape(-1)}
        return np.broadcast_to(np.asarray(evaluate(node, flat), float), (x.size,)).reshape(x.shape)

    x, y = lines[0][1:-1], lines[1][1:-1]
    names = [patch.name for patch in shape.patches]
    ends = [(low[0], y), (high[0], y), (x, low[1]), (x, high[1])]
    frame = np.stack([at(values[name], *end) for name, end in zip(names, ends, strict=True)])
    coefficient: Any = a.value if isinstance(a, Const) else None
    if coefficient is None:
        coefficient = np.ones((2, n + 1, n + 1))
        coefficient[0, :, :n] = at(a, (lines[0][:-1] + h[0] / 2)[:, None], y[None, :])
        coefficient[1, :n, :] = at(a, x[:, None], (lines[1][:-1] + h[1] / 2)[None, :])
        coefficient[0, :, n], coefficient[1, n, :] = coefficient[0, :, n - 1], coefficient[1, n - 1, :]
    reaction = k.value if isinstance(k, Const) else at(k, x[:, None], y[None, :])
    lengths = (float(high[0] - low[0]), float(high[1] - low[1]))
    grid = at(f, x[:, None], y[None, :])
    return Relaxation(grid, frame, lengths, coefficient, reaction, start=start, problem=problem, **options)


@functools.lru_cache(maxsize=16)
def _step(key: Any, devices: int) -> Any:
    """The compiled step of a workload; the data are arguments."""
    work: Relaxation = key.work
    axes = work.axes(devices)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]).reshape(tuple(axes.values())), tuple(axes))
    return jax.jit(lambda state, batch: work.propose(mesh, state, batch))


@dataclass(frozen=True)
class _Key:
    """What a step's program depends on besides its arguments."""

    n: int
    lengths: tuple[float, float]
    bounds: tuple[float, float]
    plain: tuple[float, float] | None
    work: Relaxation

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash(self._parts)

    @property
    def _parts(self) -> tuple[Any, ...]:
        return (self.n, self.lengths, self.bounds, self.plain, self.work.sweeps)


def relax(work: Relaxation, tol: float, devices: int, patience: int) -> tuple[np.ndarray, int, float]:
    """Step until the residual has fallen to `tol` of the source: the interior values, iterations, residual."""
    plain = (float(work.a), float(work.reaction)) if work.plain else None  # type: ignore[arg-type]
    step = _step(_Key(work.n, work.lengths, work.bounds, plain, work), devices)
    state, batch = work.init(), work.batch(0)
    iterations, residual = 0, math.inf
    while iterations < patience * work.n:
        state, metrics = step(state, batch)
        iterations += work.sweeps
        residual = float(metrics["residual"])
        if residual <= tol or not math.isfinite(residual):
            break
    return np.asarray(state["u"]), iterations, residual


@in_double
def solve_relaxation(problem: Problem, tol: float, options: Options = Options()) -> Solution:
    """Grids from coarse to fine, each the start of the next; the estimate is Richardson's from the last two."""
    if options.devices > len(jax.devices()):
        raise BadInput(f"devices = {options.devices}, but there are {len(jax.devices())}.")
    n = min(options.n, max(15, round(math.sqrt(options.points))) if options.points else options.n)
    sizes = [n]
    while sizes[-1] > 31:
        sizes.append((sizes[-1] + 1) // 2 - 1)
    full: np.ndarray | None = None
    estimate, residual, iterations = math.inf, math.inf, []
    for size in reversed(sizes):
        devices = options.devices if size == n else 1
        start = None if full is None else _prolong(full, size)[1:-1, 1:-1]
        sweeps = max(8, size // 8)
        work = workload(problem, size, start, sweeps=sweeps)
        inner, count, residual = relax(work, 1e-3 * min(tol, 1.0), devices, options.patience)
        iterations.append((size, count))
        made = framed(inner, work.frame)
        if full is not None:
            coarse = _prolong(full, size)
            estimate = float(np.linalg.norm(made - coarse) / 3.0 / max(np.linalg.norm(made), 1e-300))
        full = made
        if estimate <= tol:
            break
    assert full is not None
    finite = math.isfinite(residual)
    status = Status.CONVERGED if estimate <= tol and residual <= tol else Status.TOLERANCE_MISSED
    if residual > tol:
        status = Status.STALLED
    detail = {"iterations": iterations, "residual": residual}
    return solution_of(problem, full, status if finite else Status.NOT_FINITE, estimate + residual, detail)


def solution_of(
    problem: Problem, full: np.ndarray, status: Status, estimate: float, detail: dict[str, Any]
) -> Solution:
    """The solution object of values at all nodes."""
    name = problem.unknowns[0].name
    shape = problem.domain
    low, high = (tuple(float(v) for v in end) for end in (shape.low, shape.high))
    return Solution(
        problem.axes,
        (name,),
        Gridded(low, high, full, name),  # type: ignore[arg-type]
        status,
        estimate,
        "accelerated relaxation on a grid",
        full.size,
        full.size,
        low,
        high,
        detail,
    )


def framed(inner: np.ndarray, frame: np.ndarray) -> np.ndarray:
    """All nodes: the interior and the boundary's values, corners by quadratic continuation of the sides."""
    made = np.pad(np.asarray(inner, np.float64), 1)
    made[0, 1:-1], made[-1, 1:-1], made[1:-1, 0], made[1:-1, -1] = frame
    for i in (0, -1):
        for j, near in ((0, (1, 2, 3)), (-1, (-2, -3, -4))):
            along_y, along_x = made[i, list(near)], made[[1, 2, 3] if i == 0 else [-2, -3, -4], j]
            made[i, j] = np.mean([3.0 * s[0] - 3.0 * s[1] + s[2] for s in (along_y, along_x)])
    return made


def _prolong(full: np.ndarray, size: int) -> np.ndarray:
    """Cubic interpolation to a grid of `size` interior nodes per side."""
    line = np.linspace(0.0, 1.0, len(full))
    fine = np.linspace(0.0, 1.0, size + 2)
    return RectBivariateSpline(line, line, full)(fine, fine)
