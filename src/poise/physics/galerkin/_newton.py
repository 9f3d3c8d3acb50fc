"""Newton's method on a Galerkin system of one field over a box, with a homotopy in the nonlinear terms.

The Jacobian is exact: every pair of a derivative of the unknown and a derivative of the test function has a coefficient
from the symbolic linearisation, and its matrix is assembled by sum factorisation, one axis at a time, so that a pair
costs n^4 q instead of n^4 q^2. From a cold start the nonlinear terms are switched on gradually: E_s = E_linear + s
E_nonlinear.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._calculus import Key, atoms, evaluate, expand, linearise
from .._expr import Add, Const, Deriv, Expr, Mul, Normal, add, mul
from ._basis import Side, interpolate


@dataclass(frozen=True, eq=False)
class System:
    """A weak residual, linear in the test function, its basis and a lift in Legendre coefficients."""

    residual: Expr
    field: str
    test: str
    axes: tuple[str, ...]
    sides: tuple[Side, ...]
    lift: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(side.size for side in self.sides)

    @property
    def grid(self) -> dict[str, np.ndarray]:
        nodes = [side.gauss[0] for side in self.sides]
        return dict(zip(self.axes, np.meshgrid(*nodes, indexing="ij"), strict=True))

    def legendre(self, c: np.ndarray) -> np.ndarray:
        """Orthonormal Legendre coefficients of lift + basis."""
        return self.lift + interpolate(c, [side.recombine for side in self.sides])

    def project(self, full: np.ndarray) -> np.ndarray:
        """The coefficients whose field is nearest, in L2, to one given in Legendre coefficients of lower degree.

        What is carried from one degree to the next is the field, not the coefficients: the lift differs.
        """
        target = -self.lift
        target[tuple(slice(0, n) for n in full.shape)] += full
        for axis, side in enumerate(self.sides):
            inverse = np.linalg.pinv(side.recombine)
            target = np.moveaxis(np.tensordot(inverse, np.moveaxis(target, axis, 0), axes=1), 0, axis)
        return target

    def atoms(self, c: np.ndarray, keys: list[Key]) -> dict[Any, np.ndarray]:
        """Derivatives of the field at the Gauss nodes."""
        full = self.legendre(c)
        made = {}
        for key in keys:
            tables = [side.raw(side.gauss[0], k) for side, k in zip(self.sides, key[1], strict=True)]  # type: ignore[arg-type]
            made[key] = interpolate(full, tables)
        return made


def spelled(node: Expr) -> Expr:
    """The tree with compound derivatives written as sums."""
    match node:
        case Deriv():
            return expand(node) if isinstance(node.order, str) else node
        case Add():
            return add(spelled(node.a), spelled(node.b))
        case Mul():
            return mul(spelled(node.a), spelled(node.b))
    if hasattr(node, "a") and not isinstance(node, (Normal, Const)):
        from dataclasses import replace

        return replace(node, a=spelled(node.a))  # type: ignore[attr-defined, type-var]
    return node


@dataclass(frozen=True, eq=False)
class Linear:
    """The pieces of the residual: per test derivative the integrand, per pair the Jacobian's coefficient."""

    system: System
    integrands: dict[Key, Expr]
    pairs: dict[tuple[Key, Key], Expr]
    keys: list[Key]

    @staticmethod
    def of(system: System) -> Linear:
        node = spelled(system.residual)
        integrands = {key: c for key, c in linearise(node).items() if key[0] == system.test}
        pairs: dict[tuple[Key, Key], Expr] = {}
        keys: set[Key] = set()
        for test_key, integrand in integrands.items():
            for key, c in linearise(integrand).items():
                pairs[key, test_key] = c
                keys.add(key)
        return Linear(system, integrands, pairs, sorted(keys, key=str))

    @property
    def nonlinear(self) -> bool:
        return any(atoms(coefficient) for coefficient in self.pairs.values())

    def residual(self, c: np.ndarray, s: float) -> np.ndarray:
        """E_s against every test function: (n1, n2)."""
        env = {**self.system.grid, **self.system.atoms(c, self.keys)}
        shape = next(iter(self.system.grid.values())).shape
        total = np.zeros(self.system.shape)
        for key, integrand in self.integrands.items():
            value = np.broadcast_to(np.asarray(evaluate(integrand, env), float), shape)
            if s < 1.0:
                value = s * value + (1.0 - s) * self._linear_part(key, env, shape)
            tables = []
            for side, k in zip(self.system.sides, key[1], strict=True):  # type: ignore[arg-type]
                x, w = side.gauss
                tables.append(side.table(x, int(k)).T * w)
            total += interpolate(value, tables)
        return total

    def _linear_part(self, test_key: Key, env: dict[Any, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        zero = {**self.system.grid, **{key: np.zeros(shape) for key in self.keys}}
        value = np.broadcast_to(np.asarray(evaluate(self.integrands[test_key], zero), float), shape).copy()
        for (key, other), c in self.pairs.items():
            if other == test_key:
                value += np.asarray(evaluate(c, zero), float) * env[key]
        return value

    def jacobian(self, c: np.ndarray, s: float) -> np.ndarray:
        """(n, n), n = n1 n2, of the residual at c."""
        system = self.system
        grid = system.grid
        env = {**grid, **system.atoms(c, self.keys)}
        shape = next(iter(grid.values())).shape
        zero = {**grid, **{key: np.zeros(shape) for key in self.keys}}
        groups: dict[tuple[int, int], Any] = {}
        n = system.shape
        weights = [side.gauss[1] for side in system.sides]
        for (key, test_key), coefficient in self.pairs.items():
            value = np.asarray(evaluate(coefficient, env), float)
            if s < 1.0:
                value = s * value + (1.0 - s) * np.asarray(evaluate(coefficient, zero), float)
            value = np.broadcast_to(value, shape)
            if not np.any(value):
                continue
            first = (test_key[1][0], key[1][0])
            if len(n) == 1:
                part: Any = value[None, :]
            else:
                part = value @ _products(system.sides[1], weights[1], int(test_key[1][1]), int(key[1][1]))
            groups[first] = groups.get(first, 0.0) + part  # type: ignore[index]
        full: Any = 0.0
        for (a, b), part in groups.items():
            left = _products(system.sides[0], weights[0], int(a), int(b))
            full = full + (part @ left if len(n) == 1 else left.T @ part)
        if len(n) == 1:
            return full.reshape(n[0], n[0])
        return full.reshape(n[0], n[0], n[1], n[1]).transpose(0, 2, 1, 3).reshape(n[0] * n[1], n[0] * n[1])


def _products(side: Side, w: np.ndarray, a: int, b: int) -> np.ndarray:
    """(q, size * size): weights times products of a test derivative and a trial derivative."""
    x = side.gauss[0]
    left, right = side.table(x, a) * w[:, None], side.table(x, b)
    return (left[:, :, None] * right[:, None, :]).reshape(len(x), -1)


def newton(linear: Linear, c: np.ndarray, s: float, *, limit: int = 12) -> tuple[np.ndarray, int, bool]:
    """Iterate at a fixed homotopy parameter: coefficients, iterations, whether the update fell to rounding."""
    last = math.inf
    for iteration in range(1, limit + 1):
        r = linear.residual(c, s)
        if not np.all(np.isfinite(r)):
            return c, iteration, False
        update = np.linalg.solve(linear.jacobian(c, s), -r.reshape(-1)).reshape(c.shape)
        size = float(np.linalg.norm(update) / max(float(np.linalg.norm(c + update)), 1e-30))
        if not math.isfinite(size) or (size > 4.0 * last and iteration > 3):
            return c, iteration, False
        c = c + update
        if size < 1e-10 or (size < 1e-6 and size > 0.3 * last):
            return c, iteration, True
        last = size
    return c, limit, False


def cold_start(linear: Linear) -> tuple[np.ndarray, bool]:
    """From nothing: the linear problem, then the nonlinear terms in steps that grow while Newton converges quickly."""
    c, _, fine = newton(linear, np.zeros(linear.system.shape), 0.0)
    if not linear.nonlinear:
        return c, fine
    s, step = 0.0, 1.0
    previous: tuple[float, np.ndarray] | None = None
    while s < 1.0:
        aim = min(1.0, s + step)
        guess = c if previous is None else c + (c - previous[1]) * (aim - s) / (s - previous[0])
        made, iterations, good = newton(linear, guess, aim, limit=8)
        if good:
            previous, s, c = (s, c), aim, made
            step *= 3.0 if iterations <= 5 else 1.5
        else:
            step /= 4.0
            if step < 1e-4:
                return c, False
    return c, True
