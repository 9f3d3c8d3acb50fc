"""Evolutions on a box in eigenmodes of their elliptic part: Legendre-Galerkin in space, exponentials in time.

The linear part of the right side is put in self-adjoint form, r d^m u/dt^m = div(A grad u) - c u (weight r),
discretised
with Legendre polynomials that vanish where the solution does, and diagonalised once. With constant coefficients each
axis
is diagonalised alone and transforms are small matrices per axis (Lynch, Rice & Thomas 1964); otherwise the eigenproblem
is dense. What is left of the right side is formed at Gauss points. A wave equation, second order in time, becomes
a' = -i w a with a = w u + i u'.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._calculus import atoms, evaluate, expand, linearise
from .._expr import Const, Deriv, Expr, Unknown, add, mul
from ..features._polynomial import legendre
from ._etdrk4 import march
from ._fourier import terms
from ._normal import DIRICHLET, Normal, tidy


@dataclass(frozen=True, eq=False)
class Line:
    """Functions of one coordinate: Gauss nodes and weights, and the eigenmodes of -d2/dx2 with the boundary kind.

    `basis` (degree+1, m) holds the modes in orthonormal Legendre coefficients. The modes are orthonormal in L2, which
    keeps the matrices of variable coefficients well conditioned.
    """

    low: float
    high: float
    kind: str
    size: int

    @functools.cached_property
    def gauss(self) -> tuple[np.ndarray, np.ndarray]:
        x, w = np.polynomial.legendre.leggauss(int(1.5 * self.degree) + 4)
        half = (self.high - self.low) / 2.0
        return self.low + half * (x + 1.0), w * half

    @property
    def degree(self) -> int:
        return self.size + 1 if self.kind == DIRICHLET else self.size - 1

    @functools.cached_property
    def recombine(self) -> np.ndarray:
        m, degree = self.size, self.degree
        if self.kind != DIRICHLET:
            return np.eye(m)
        made = np.zeros((degree + 1, m))
        k = np.arange(m)
        # P_k - P_{k+2} vanishes at both ends (Shen 1994)
        made[k, k] = 1.0 / np.sqrt(k + 0.5)
        made[k + 2, k] = -1.0 / np.sqrt(k + 2.5)
        return made

    def table(self, x: np.ndarray, order: int) -> np.ndarray:
        """A derivative of the basis at points: (n, size)."""
        half = (self.high - self.low) / 2.0
        raw = legendre((x - self.low) / half - 1.0, self.degree, order, np)[order]
        return raw @ self.basis / half ** (order + 0.5)

    @property
    def basis(self) -> np.ndarray:
        return self.modes[1]

    @functools.cached_property
    def modes(self) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues of -d2/dx2, and its modes in Legendre coefficients."""
        x, w = self.gauss
        half = (self.high - self.low) / 2.0
        raw = legendre((x - self.low) / half - 1.0, self.degree, 1, np)
        value, slope = raw[0] @ self.recombine / half**0.5, raw[1] @ self.recombine / half**1.5
        values, vectors = eigen(slope.T @ (w[:, None] * slope), value.T @ (w[:, None] * value))
        return values, self.recombine @ vectors


def eigen(stiffness: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """stiffness v = lambda mass v for symmetric matrices: eigenvalues and mass-orthonormal vectors."""
    root = np.linalg.cholesky(mass)
    inner = np.linalg.solve(root, np.linalg.solve(root, stiffness).T)
    values, vectors = np.linalg.eigh((inner + inner.T) / 2.0)
    return values, np.linalg.solve(root.T, vectors)


@dataclass(frozen=True, eq=False)
class Elliptic:
    """A self-adjoint linear part: r u_t = sum d_i(a_i d_i u) - c u, and the rest of r times the right side over r."""

    weight: Expr
    diffusion: tuple[Expr, ...]
    reaction: Expr
    rest: Expr


def elliptic(normal: Normal, i: int) -> Elliptic | None:
    """The self-adjoint part of one right side, or None where second derivatives are mixed, unequal or missing."""
    node, field = normal.rhs[i], normal.fields[i]
    axes = normal.problem.domain.axes
    second: list[Expr] = [Const(0.0) for _ in axes]
    first: list[Expr] = [Const(0.0) for _ in axes]
    reaction: Expr = Const(0.0)
    used: list[tuple[Deriv, Expr]] = []
    for key, coefficient in linearise(node).items():
        if key[0] != field.name or atoms(coefficient):
            continue
        atom = next(a for a in atoms(node) if a.key == key)
        orders = [spatial(part) for part in terms(expand(atom))]
        for order in orders:
            if sum(order) == 2 and max(order) == 2:
                second[order.index(2)] = add(second[order.index(2)], coefficient)
            elif sum(order) == 1:
                first[order.index(1)] = add(first[order.index(1)], coefficient)
            elif sum(order) == 0:
                reaction = add(reaction, coefficient)
            else:
                return None
        used.append((atom, coefficient))
    if not _same(normal, second[0], second[0]) or any(_same(normal, a, Const(0.0)) for a in second):
        return None
    weight: Expr = Const(1.0)
    divergence = all(_same(normal, b, _slope(a, axis)) for a, b, axis in zip(second, first, axes, strict=True))
    plain = all(_same(normal, b, Const(0.0)) for b in first)
    keep_first = not divergence
    if not divergence and plain and not all(isinstance(a, Const) for a in second):
        if any(not _same(normal, mul(a, Const(1.0)), second[0]) for a in second):
            return None
        weight, second = 1.0 / second[0], [Const(1.0) for _ in axes]
        keep_first = False
    elif not divergence and not all(isinstance(a, Const) for a in second):
        return None
    rest = node
    for atom, coefficient in used:
        orders = [spatial(part) for part in terms(expand(atom))]
        if keep_first and all(sum(order) == 1 for order in orders):
            continue
        rest = add(rest, mul(Const(-1.0), mul(coefficient, atom)))
    steady = isinstance(reaction, Const) or "t" not in _names(reaction)
    if not steady or any("t" in _names(a) for a in second):
        return None
    scaled = mul(weight, reaction) if not isinstance(weight, Const) else reaction
    return Elliptic(weight, tuple(second), mul(Const(-1.0), scaled), tidy(rest))


def spatial(atom: Deriv) -> tuple[int, ...]:
    """The derivative orders by space axis."""
    assert not isinstance(atom.order, str)
    return tuple(k for axis, k in zip(atom.field.axes, atom.order, strict=True) if axis != "t")


def _names(node: Expr) -> set[str]:
    from .._calculus import coordinates

    return coordinates(node)


def _slope(a: Expr, axis: str) -> Expr:
    from .._calculus import differentiate

    return differentiate(a, axis)


def _same(normal: Normal, a: Expr, b: Expr) -> bool:
    shape, rng = normal.problem.domain, np.random.default_rng(7)
    env: dict[Any, Any] = {
        n: rng.uniform(lo, hi, 16) for n, lo, hi in zip(shape.axes, shape.low, shape.high, strict=True)
    }
    if normal.problem.time:
        env["t"] = rng.uniform(*normal.problem.time, 16)
    return bool(np.allclose(evaluate(a, env), evaluate(b, env), rtol=1e-9, atol=1e-12))


@dataclass(frozen=True, eq=False)
class Modal:
    """A normal form in eigenmodes: `sizes` basis functions per axis, `snapshots` stretches of time."""

    normal: Normal
    parts: tuple[Elliptic, ...]
    sizes: tuple[int, ...]
    snapshots: int

    @functools.cached_property
    def lines(self) -> tuple[tuple[Line, ...], ...]:
        shape = self.normal.problem.domain
        rows = []
        for kinds in self.normal.kinds:
            bounds = zip(shape.low, shape.high, kinds, self.sizes, strict=True)
            rows.append(tuple(Line(float(lo), float(hi), kind, n) for lo, hi, kind, n in bounds))
        return tuple(rows)

    @property
    def separable(self) -> bool:
        return all(isinstance(e, Const) for p in self.parts for e in (p.weight, *p.diffusion, p.reaction))

    @functools.cached_property
    def nodes(self) -> tuple[np.ndarray, ...]:
        """Gauss nodes per axis, enough for the field with the highest degree."""
        return tuple(max((row[i].gauss[0] for row in self.lines), key=len) for i in range(len(self.sizes)))

    @functools.cached_property
    def weights(self) -> tuple[np.ndarray, ...]:
        return tuple(max((row[i].gauss[1] for row in self.lines), key=len) for i in range(len(self.sizes)))

    @functools.cached_property
    def grid(self) -> dict[str, np.ndarray]:
        return dict(zip(self.normal.problem.domain.axes, np.meshgrid(*self.nodes, indexing="ij"), strict=True))

    @functools.cached_property
    def spectra(self) -> list[tuple[np.ndarray, Any]]:
        """Per field the eigenvalues, and a dense matrix of modes where the coefficients vary."""
        return [self._spectrum(i) for i in range(len(self.parts))]

    def _spectrum(self, i: int) -> tuple[np.ndarray, Any]:
        part, row = self.parts[i], self.lines[i]
        if self.separable:
            values: Any = float(part.reaction.value)  # type: ignore[attr-defined]
            for axis, (line, a) in enumerate(zip(row, part.diffusion, strict=True)):
                one = line.modes[0] * a.value  # type: ignore[attr-defined]
                values = values + one.reshape([-1 if j == axis else 1 for j in range(len(row))])
            return np.asarray(values), None
        shape = tuple(len(x) for x in self.nodes)
        at = lambda node: np.broadcast_to(np.asarray(evaluate(node, self.grid), float), shape)  # noqa: E731
        d = len(row)
        mass = weak_matrix(self, i, at(part.weight), (0,) * d)
        stiffness = weak_matrix(self, i, at(part.reaction), (0,) * d)
        for axis, a in enumerate(part.diffusion):
            stiffness = stiffness + weak_matrix(self, i, at(a), tuple(int(j == axis) for j in range(d)))
        values, vectors = eigen(stiffness, mass)
        return values, vectors

    def table(self, i: int, axis: int, order: int) -> np.ndarray:
        return self.lines[i][axis].table(self.nodes[axis], order)

    def to_nodes(self, i: int, order: tuple[int, ...]) -> Any:
        """The transform from modal coefficients to a derivative at the nodes."""
        tables = [self.table(i, axis, k) for axis, k in enumerate(order)]
        modes = self.spectra[i][1]
        if self.separable:
            return Transform(tables)
        return Transform(tables, before=modes, shape=self.sizes)

    def from_nodes(self, i: int) -> Any:
        """The transform from values at the nodes to modal coefficients of the (weighted) projection."""
        tables = [self.table(i, axis, 0) for axis in range(len(self.sizes))]
        modes = self.spectra[i][1]
        if self.separable:
            return Transform([t.T * w for t, w in zip(tables, self.weights, strict=True)])
        r = np.broadcast_to(evaluate(self.parts[i].weight, self.grid), tuple(len(x) for x in self.nodes))
        return Transform([t.T * w for t, w in zip(tables, self.weights, strict=True)], scale=r, after=modes.T)

    def project(self, i: int, node: Expr) -> np.ndarray:
        """Modal coefficients of an expression of the coordinates."""
        values = np.broadcast_to(np.asarray(evaluate(node, self.grid), float), tuple(len(x) for x in self.nodes))
        return np.asarray(self.from_nodes(i)(values, np))

    def legendre(self, i: int, states: np.ndarray) -> np.ndarray:
        """Snapshots of modal coefficients (k, …) as orthonormal Legendre coefficients (k, n1, n2, …)."""
        modes = self.spectra[i][1]
        scale = [line.basis / np.sqrt((line.high - line.low) / 2.0) for line in self.lines[i]]
        if self.separable:
            return np.stack([apply(scale, c, np) for c in states])
        dense = states.reshape(len(states), -1) @ modes.T
        return np.stack([apply(scale, c.reshape(self.sizes), np) for c in dense])

    @functools.cached_property
    def run(self) -> Any:
        """The compiled march, its state a stack over fields of modal coefficients (complex for second order)."""
        rest = [part.rest for part in self.parts]
        if all(isinstance(node, Const) and node.value == 0.0 for node in rest):
            return march(None, self.snapshots)
        names = [field.name for field in self.normal.fields]
        keys = sorted({atom.key for node in rest for atom in atoms(node)}, key=str)
        shape = tuple(len(x) for x in self.nodes)
        grid = {axis: jnp.asarray(values) for axis, values in self.grid.items()}
        back = {key: [(c, self.to_nodes(names.index(key[0]), o)) for c, o in _plain(self.normal, key)] for key in keys}
        into = [self.from_nodes(i) for i in range(len(rest))]
        roots = [np.sqrt(np.maximum(values, 0.0)) for values, _ in self.spectra]
        second = self.normal.order == 2

        def nonlinear(state: Any, t: Any, _: Any) -> Any:
            env: dict[Any, Any] = {**grid, "t": t}
            for key in keys:
                i = names.index(key[0])
                c = state[i].real / roots[i] if second else state[i]
                env[key] = sum((s * m(c, jnp) for s, m in back[key]), jnp.zeros(shape))
            made = []
            for i, node in enumerate(rest):
                value = jnp.broadcast_to(evaluate(node, env, jnp), shape)
                made.append(into[i](value, jnp))
            return jnp.stack(made) * (1j if second else 1.0)

        return march(nonlinear, self.snapshots)

    def linear(self) -> np.ndarray:
        values = np.stack([values for values, _ in self.spectra])
        return -1j * np.sqrt(np.maximum(values, 0.0)) if self.normal.order == 2 else -values

    def start(self) -> np.ndarray:
        made = []
        for i, begun in enumerate(self.normal.start):
            value = self.project(i, begun[0])
            if self.normal.order == 2:
                value = np.sqrt(np.maximum(self.spectra[i][0], 0.0)) * value + 1j * self.project(i, begun[1])
            made.append(value)
        return np.stack(made)

    def values(self, i: int, states: np.ndarray) -> np.ndarray:
        """Modal coefficients of the field itself from snapshots of the state."""
        if self.normal.order == 1:
            return states[:, i]
        return np.real(states[:, i]) / np.sqrt(np.maximum(self.spectra[i][0], 1e-300))


def _plain(normal: Normal, key: Any) -> list[tuple[float, tuple[int, ...]]]:
    """A derivative of a field as a weighted list of plain space orders."""
    field: Unknown = next(f for f in normal.fields if f.name == key[0])
    return [(1.0, spatial(part)) for part in terms(expand(Deriv(field, key[1])))]


@dataclass(frozen=True, eq=False)
class Transform:
    """One matrix per axis, with a dense matrix before or after and a pointwise scale, as the dense modes need."""

    matrices: list[np.ndarray]
    before: np.ndarray | None = None
    after: np.ndarray | None = None
    scale: np.ndarray | None = None
    shape: tuple[int, ...] = ()

    def __call__(self, values: Any, xp: Any) -> Any:
        if self.before is not None:
            values = (self.before @ values).reshape(self.shape)
        if self.scale is not None:
            values = values * self.scale
        values = apply(self.matrices, values, xp)
        return values if self.after is None else self.after @ values.reshape(-1)


def apply(matrices: list[np.ndarray], values: Any, xp: Any) -> Any:
    """A tensor product of matrices applied to an array."""
    if len(matrices) == 1:
        return matrices[0] @ values
    if len(matrices) == 2:
        return matrices[0] @ values @ matrices[1].T
    return xp.einsum("ai,bj,ck,ijk->abc", *matrices, values, optimize=True)


def weak_matrix(modal: Modal, i: int, c: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """The matrix of integral c d^order(phi_j) d^order(phi_k) by sum factorisation: one axis at a time."""
    tables = [modal.table(i, axis, k) for axis, k in enumerate(order)]
    pairs = [
        np.einsum("qi,qk->qik", t, t * w[:, None]).reshape(len(w), -1)
        for t, w in zip(tables, modal.weights, strict=True)
    ]
    sizes = modal.sizes
    if len(sizes) == 1:
        return (c @ pairs[0]).reshape(sizes[0], sizes[0])
    if len(sizes) == 2:
        n1, n2 = sizes
        full = pairs[0].T @ (c @ pairs[1])
        return full.reshape(n1, n1, n2, n2).transpose(0, 2, 1, 3).reshape(n1 * n2, n1 * n2)
    n1, n2, n3 = sizes
    full = np.einsum("ai,bj,ck,abc->ijk", *pairs, c, optimize=True)
    return full.reshape(n1, n1, n2, n2, n3, n3).transpose(0, 2, 4, 1, 3, 5).reshape(n1 * n2 * n3, n1 * n2 * n3)
