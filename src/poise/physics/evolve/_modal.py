"""Evolutions on a box in eigenmodes of their elliptic part: Legendre-Galerkin in space, exponentials in time.

The linear part of the right side is put in self-adjoint form, r d^m u/dt^m = div(A grad u) - c u (weight r),
discretised with Legendre polynomials that vanish where the solution does, and diagonalised once. With constant
coefficients each axis is diagonalised alone and transforms are small matrices per axis (Lynch, Rice & Thomas 1964);
otherwise the eigenproblem is dense. What is left of the right side is formed at Gauss points. A wave equation, second
order in time, becomes a' = -i w a with a = w u + i u'.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._calculus import atoms, evaluate, expand
from .._expr import Const, Deriv, Expr, Unknown
from ._elliptic import Elliptic, spatial
from ._etdrk4 import march
from ._fourier import terms
from ._line import Line, eigen
from ._normal import Normal


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
