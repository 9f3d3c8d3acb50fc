"""Symmetric steady problems in space on spectral elements: conjugate gradients, no matrix is formed.

The operator is applied element by element as products along one axis at a time (Orszag 1980), (p + 1) multiplications
per node and axis; the diagonal is the preconditioner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from poise.errors import BadInput

from .._calculus import atoms, differentiate, linearise, source
from .._problem import Problem
from .._solution import Solution
from .._status import Status
from ._assemble import System
from ._line import derivative
from ._nodal import Nodal
from ._solve import Options, raised
from ._statement import spatial


@dataclass(frozen=True, eq=False)
class Operator:
    """Metric (6, E, n) of the diffusion, mass (E, n), right side (size,), fixed nodes and their values."""

    metric: np.ndarray
    mass: np.ndarray
    load: np.ndarray
    free: np.ndarray
    values: np.ndarray


PAIRS = ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))


def operator(system: System) -> Operator:
    """The weak form of -div(a grad u) + k u = f with its boundary terms; `BadInput` for what is not symmetric."""
    space, problem = system.space, system.problem
    node = problem.equations[0]
    inverse, weights = space.metric
    axes = problem.domain.axes
    second = [np.zeros_like(weights) for _ in axes]
    first = [np.zeros_like(weights) for _ in axes]
    mass = np.zeros_like(weights)
    for key, c in linearise(node).items():
        if atoms(c):
            raise BadInput("In space, spectral elements solve linear equations only.")
        value = system.at(c)
        for order, _ in spatial(next(a for a in atoms(node) if a.key == key)):
            if sum(order) == 2 and max(order) == 2:
                i = order.index(2)
                second[i] = second[i] + value
                first[i] = first[i] - system.at(differentiate(c, axes[i]))
            elif sum(order) == 1:
                first[order.index(1)] = first[order.index(1)] + value
            elif not sum(order):
                mass = mass + value
            else:
                raise BadInput("In space, spectral elements solve equations without mixed second derivatives.")
    if any(np.max(np.abs(part)) > 1e-9 * np.max(np.abs(second[0])) for part in first):
        raise BadInput("In space, spectral elements solve symmetric equations, -div(a grad u) + k u = f.")
    sign = -1.0 if np.mean(second[0]) > 0.0 else 1.0
    metric = np.stack(
        [
            sum(-sign * weights * second[i] * inverse[:, :, k, i] * inverse[:, :, m, i] for i in range(3))
            for k, m in PAIRS
        ]
    )
    mass = sign * weights * mass
    load = -sign * weights * system.at(source(node))
    _edges(system, mass, load, -sign)
    total = np.zeros(space.count)
    np.add.at(total, space.number, load)
    free, values = np.ones(space.count), np.zeros(space.count)
    for numbers, given in system.fixed().values():
        free[numbers], values[numbers] = 0.0, given
    return Operator(metric, mass, total, free, values)


def _edges(system: System, mass: np.ndarray, load: np.ndarray, sign: float) -> None:
    """Natural conditions u.dn = g - b u, whose boundary matrix is diagonal on these nodes."""
    from .._calculus import evaluate

    problem = system.problem
    c = system.diffusivity(problem.unknowns[0].name, problem.equations[0])
    for name, faces in system.faces.items():
        natural = system.conditions.natural.get((name, problem.unknowns[0].name))
        if natural is None:
            continue
        for face in faces:
            env = {k: v.reshape(-1) for k, v in system._on(face).items()}
            at = lambda e, env=env, face=face: np.broadcast_to(  # noqa: E731
                np.asarray(evaluate(e, env), float), face.weight.size
            ).reshape(face.weight.shape)
            where = (face.elements[:, None], face.local)
            k = sign * at(c) * face.weight
            mass[where] += k * at(natural.b)
            load[where] += k * at(natural.g)


def gradients(u: Any, d: Any) -> tuple[Any, Any, Any]:
    """Reference derivatives of (E, q, q, q)."""
    return (
        jnp.einsum("ai,eijk->eajk", d, u),
        jnp.einsum("bj,eijk->eibk", d, u),
        jnp.einsum("ck,eijk->eijc", d, u),
    )


def apply(u: Any, metric: Any, mass: Any, number: Any, d: Any, size: int) -> Any:
    """The operator on global values (size,)."""
    q = d.shape[0]
    local = u[number].reshape(-1, q, q, q)
    g = metric.reshape(6, -1, q, q, q)
    x, y, z = gradients(local, d)
    fx = g[0] * x + g[3] * y + g[4] * z
    fy = g[3] * x + g[1] * y + g[5] * z
    fz = g[4] * x + g[5] * y + g[2] * z
    out = jnp.einsum("ai,eajk->eijk", d, fx) + jnp.einsum("bj,eibk->eijk", d, fy) + jnp.einsum("ck,eijc->eijk", d, fz)
    out = out.reshape(mass.shape) + mass * u[number]
    return jnp.zeros(size).at[number].add(out)


def diagonal(op: Operator, number: np.ndarray, p: int, size: int) -> np.ndarray:
    """The operator's diagonal."""
    q, d = p + 1, derivative(p)
    g = op.metric.reshape(6, -1, q, q, q)
    square = d**2
    total = np.einsum("ai,eajk->eijk", square, g[0]) + np.einsum("bj,eibk->eijk", square, g[1])
    total = total + np.einsum("ck,eijc->eijk", square, g[2])
    own = np.diagonal(d)
    total = total + 2.0 * g[3] * own[:, None, None] * own[None, :, None]
    total = total + 2.0 * g[4] * own[:, None, None] * own[None, None, :]
    total = total + 2.0 * g[5] * own[None, :, None] * own[None, None, :]
    made = np.zeros(size)
    np.add.at(made, number, total.reshape(op.mass.shape) + op.mass)
    return made


@jax.jit
def conjugate_gradients(metric: Any, mass: Any, number: Any, d: Any, load: Any, free: Any, values: Any, pre: Any,
                        start: Any, tol: Any) -> tuple[Any, Any]:  # fmt: skip
    """The solution with fixed values held, and the iterations; the residual falls by `tol`."""
    size = load.shape[0]
    act = lambda v: free * apply(v * free, metric, mass, number, d, size)  # noqa: E731
    x = free * (start - values)
    b = free * (load - apply(values, metric, mass, number, d, size))
    r = b - act(x)
    z = pre * r
    goal = tol**2 * jnp.vdot(b, pre * b)

    def more(carry: Any) -> Any:
        return (carry[4] > goal) & (carry[5] < 4000)

    def step(carry: Any) -> Any:
        x, r, p, _, rz, i = carry
        ap = act(p)
        alpha = rz / jnp.vdot(p, ap)
        x, r = x + alpha * p, r - alpha * ap
        z = pre * r
        new = jnp.vdot(r, z)
        return x, r, z + (new / rz) * p, z, new, i + 1

    x, *_, count = jax.lax.while_loop(more, step, (x, r, z, z, jnp.vdot(r, z), 0))
    return x + values, count


def solve_space(problem: Problem, tol: float, options: Options) -> Solution:
    """Raise the degree until the estimate is below `tol`, each solution the start of the next."""
    iterations = 0

    def at(system: System, before: System | None, coarse: np.ndarray | None) -> tuple[np.ndarray, bool]:
        nonlocal iterations
        space = system.space
        op = operator(system)
        start = np.zeros(space.count)
        if before is not None and coarse is not None:
            start[space.number] = before.space.refine(coarse, space.degree)
        pre = op.free / np.where(op.free > 0.0, diagonal(op, space.number, space.degree, space.count), 1.0)
        made, count = conjugate_gradients(
            op.metric,
            op.mass,
            space.number,
            derivative(space.degree),
            op.load,
            op.free,
            op.values,
            pre,
            start,
            1e-3 * tol,
        )
        iterations += int(count)
        return np.asarray(made)[space.number], True

    system, theta, estimate, _, history = raised(problem, tol, options, at)
    space, degree = system.space, system.space.degree
    finite = bool(np.all(np.isfinite(theta)))
    status = Status.CONVERGED if estimate <= tol else Status.TOLERANCE_MISSED
    name = problem.unknowns[0].name
    return Solution(
        problem.axes,
        (name,),
        Nodal(space.mesh, degree, {name: theta}),
        status if finite else Status.NOT_FINITE,
        estimate,
        "spectral elements, conjugate gradients",
        theta.size,
        space.count,
        problem.domain.low,
        problem.domain.high,
        {"history": history, "elements": len(space.mesh), "degree": degree, "iterations": iterations},
        lambda points: np.asarray(problem.domain.inside(points)),
    )  # fmt: skip
