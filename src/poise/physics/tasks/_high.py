"""High dimension: Poisson in a cube, heat in a ball."""

from __future__ import annotations

import numpy as np

from .._expr import Const, Expr
from .._operators import axes, exp, lap, sin, unknown
from .._primitives import Ball, cube
from .._problem import Problem, initial, on
from ._task import Task

PI = np.pi


def _names(d: int) -> str:
    return " ".join(f"x{i + 1}" for i in range(d))


def pnd(d: int, coupled: bool = False) -> Problem:
    """lap u = f on the unit cube with u = sum sin(pi x_i/2), plus prod sin(pi x_i/2) where coupled, on its faces."""
    u = unknown("u", _names(d))
    total: Expr = Const(0.0)
    product: Expr = Const(1.0)
    for x in axes(_names(d)):
        total = total + sin(PI / 2 * x)
        product = product * sin(PI / 2 * x)
    exact, f = total, -(PI**2 / 4) * total
    if coupled:
        exact, f = exact + product, f - d * (PI**2 / 4) * product
    return Problem(cube(d), lap(u) == f, [on("faces", u == exact)])


def hnd(d: int) -> Problem:
    """u_t = lap u/d - (r^2/d) exp(r^2/2 + t) in the unit ball, du/dn = exp(r^2/2 + t)."""
    u = unknown("u", _names(d) + " t")
    square: Expr = Const(0.0)
    for x in axes(_names(d)):
        square = square + x**2
    (t,) = axes("t")
    exact = exp(square / 2 + t)
    equation = u.d("t") == lap(u) / d - square / d * exact
    conditions = [initial(u == exact), on("sphere", u.dn == exact)]
    return Problem(Ball((0.0,) * d, 1.0, axes=_names(d)), equation, conditions, time=(0, 1))


def _in_ball(d: int):
    def sample(rng: np.random.Generator, n: int) -> np.ndarray:
        x = rng.normal(size=(n, d))
        x *= rng.uniform(size=(n, 1)) ** (1 / d) / np.linalg.norm(x, axis=1, keepdims=True)
        return np.concatenate([x, rng.uniform(size=(n, 1))], axis=1)

    return sample


def _pnd(d: int, coupled: bool = False) -> Task:
    def exact(p: np.ndarray) -> np.ndarray:
        waves = np.sin(PI / 2 * p)
        return waves.sum(axis=1) + (waves.prod(axis=1) if coupled else 0.0)

    name = "pnd-coupled" if coupled else "pnd" if d == 5 else f"pnd-{d}"
    title = f"PNd, d = {d}" + (", with a product of all coordinates" if coupled else "")
    options = {
        "degree": 8 if d == 100 else 12 if coupled else 10,
        "max_features": 1600,
        "oversample": 6 if coupled else 12,
    }
    return Task(name, title, lambda: pnd(d, coupled), 1e-4 if coupled else 1e-7, exact=exact, options=options)


def _hnd(d: int) -> Task:
    return Task(
        "hnd" if d == 5 else f"hnd-{d}",
        f"HNd, d = {d}",
        lambda: hnd(d),
        1e-6,
        exact=lambda p: np.exp(np.sum(p[:, :-1] ** 2, axis=1) / 2 + p[:, -1]),
        options={"degree": 8},
        sample=_in_ball(d),
        notes="the answer is radial, and a ball's features include radial ones",
    )


TASKS = (_pnd(5), _pnd(10), _pnd(100), _pnd(5, True), _hnd(5), _hnd(10), _hnd(100))
