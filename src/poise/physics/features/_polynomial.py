"""Products of Legendre polynomials of few coordinates each.

One class serves the dense tensor basis of low dimension and the sparse basis of high dimension: a feature is a
product of at most r factors, each a polynomial of one coordinate. A Laplacian costs r products per feature, not d.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._expr import Order


@functools.cache
def _change(degree: int, derivatives: int) -> tuple[np.ndarray, ...]:
    """Matrices from Chebyshev polynomials to derivatives of orthonormal Legendre polynomials, one per order."""
    made = []
    scale = np.sqrt(np.arange(degree + 1) + 0.5)
    identity = np.eye(degree + 1)
    values = np.stack([_chebyshev_row(k, degree) for k in range(degree + 1)])
    for m in range(derivatives + 1):
        rows = values if m == 0 else np.polynomial.chebyshev.chebder(values, m, axis=1)
        full = np.zeros_like(identity)
        full[:, : rows.shape[1]] = rows
        made.append((full * scale[:, None]).T.copy())
    return tuple(made)


def _chebyshev_row(k: int, degree: int) -> np.ndarray:
    """P_k in Chebyshev polynomials, by interpolation at Chebyshev nodes, where both are well conditioned."""
    angles = (np.arange(degree + 1) + 0.5) * np.pi / (degree + 1)
    values = np.polynomial.legendre.legval(np.cos(angles), np.eye(degree + 1)[k])
    row = 2.0 / (degree + 1) * np.cos(np.outer(np.arange(degree + 1), angles)) @ values
    row[0] /= 2.0
    row[np.abs(row) < 1e-17] = 0.0
    row[k + 1 :] = 0.0
    return row


def legendre(x: Any, degree: int, derivatives: int, xp: Any = jnp) -> list[Any]:
    """Tables [P, P', …] of shape (n, degree + 1), orthonormal on [-1, 1], for x (n,).

    Chebyshev polynomials are cosines, T_k = cos(k arccos x), and derivatives of Legendre polynomials are fixed
    combinations of them: one matrix product instead of a recurrence, which would compile to a chain of `degree` steps.
    """
    cosines = xp.cos(xp.arccos(xp.clip(x, -1.0, 1.0))[:, None] * np.arange(degree + 1))
    return [cosines @ change for change in _change(degree, derivatives)]


@dataclass(frozen=True, eq=False)
class Polynomials:
    """Features prod_k P_{degree[j, k]}(coordinate[axis[j, k]]); axis -1 marks an unused factor."""

    axes: tuple[str, ...]
    low: np.ndarray
    high: np.ndarray
    axis: np.ndarray  # (count, r) integers
    degree: np.ndarray  # (count, r) integers
    level: np.ndarray  # (count,)

    @property
    def count(self) -> int:
        return len(self.level)

    def columns(self, env: Mapping[Any, Any], order: Order) -> Any:
        top = int(self.degree.max(initial=0))
        if order == "lap":
            return self._sum(env, 2, top, normal=False)
        if order == "dn":
            return self._sum(env, 1, top, normal=True)
        assert not isinstance(order, str)
        tables = self._tables(env, top, max(order))
        count, r = self.axis.shape
        result: Any = None
        for k in range(r):
            factor = jnp.zeros(())
            for m in set(order):
                mine = np.array([order[a] == m if a >= 0 else m == 0 for a in self.axis[:, k]])
                part = tables[m][:, self._index(k, top)]
                factor = part if mine.all() else jnp.where(mine, part, factor)
            result = factor if result is None else result * factor
        present = np.ones(count, bool)
        for a, m in enumerate(order):
            if m:
                present &= (self.axis == a).any(axis=1)
        return result if present.all() else jnp.where(present, result, 0.0)

    def _index(self, k: int, top: int) -> np.ndarray:
        unused = len(self.axes) * (top + 1)
        return np.where(self.axis[:, k] >= 0, self.axis[:, k] * (top + 1) + self.degree[:, k], unused)

    def _tables(self, env: Mapping[Any, Any], top: int, derivatives: int) -> list[Any]:
        """Per derivative, the values of all polynomials of all axes, then a column for unused factors."""
        x = jnp.stack([jnp.asarray(env[axis]) for axis in self.axes], axis=1)
        n, d = x.shape
        half = (self.high - self.low) / 2.0
        scaled = ((x - (self.high + self.low) / 2.0) / half).reshape(-1)
        made = []
        for m, table in enumerate(legendre(scaled, top, derivatives)):
            values = (table.reshape(n, d, top + 1) / (half**m)[:, None]).reshape(n, d * (top + 1))
            made.append(jnp.concatenate([values, jnp.full((n, 1), 1.0 if m == 0 else 0.0)], axis=1))
        return made

    def _sum(self, env: Mapping[Any, Any], times: int, top: int, *, normal: bool) -> Any:
        """sum over space axes of the second derivative, or of the normal's component times the first."""
        tables = self._tables(env, top, times)
        r = self.axis.shape[1]
        still = self.axes.index("t") if "t" in self.axes else -1
        plain = [tables[0][:, self._index(k, top)] for k in range(r)]
        total: Any = 0.0
        for k in range(r):
            part = tables[times][:, self._index(k, top)]
            part = jnp.where((self.axis[:, k] >= 0) & (self.axis[:, k] != still), part, 0.0)
            if normal:
                space = [env["n", axis] if axis != "t" else jnp.zeros_like(part[:, 0]) for axis in self.axes]
                part = part * jnp.stack(space, axis=1)[:, np.maximum(self.axis[:, k], 0)]
            for other in range(r):
                if other != k:
                    part = part * plain[other]
            total = total + part
        return total


def tensor(axes: Sequence[str], low: Any, high: Any, degrees: Sequence[int], *, total: bool = False) -> Polynomials:
    """All products of degree up to `degrees[i]` along axis i; `total` keeps the simplex sum(k_i/degree_i) <= 1."""
    grids = np.meshgrid(*(np.arange(n + 1) for n in degrees), indexing="ij")
    degree = np.stack([g.reshape(-1) for g in grids], axis=1)
    share = degree / np.maximum(np.array(degrees), 1)
    level = share.sum(axis=1) if total else share.max(axis=1)
    if total:
        degree, level = degree[level <= 1.0 + 1e-12], level[level <= 1.0 + 1e-12]
    axis = np.broadcast_to(np.arange(len(degrees)), degree.shape).copy()
    return Polynomials(tuple(axes), np.asarray(low, float), np.asarray(high, float), axis, degree, level)


def sparse(axes: Sequence[str], low: Any, high: Any, degrees: Sequence[int]) -> Polynomials:
    """The sparse basis of high dimension: products of m coordinates have total degree at most `degrees[m - 1]`.

    Superposition (ANOVA) truncation: with degrees (16, 8), every function of one coordinate to degree 16, every product
    of two to total degree 8, nothing of three or more.
    """
    d, r = len(axes), min(len(degrees), len(axes))
    rows: list[tuple[list[int], list[int], float]] = [([-1] * r, [0] * r, 0.0)]
    for m in range(1, r + 1):
        shapes = [
            powers
            for powers in itertools.product(range(1, degrees[m - 1] + 1), repeat=m)
            if sum(powers) <= degrees[m - 1]
        ]
        for chosen in itertools.combinations(range(d), m):
            for powers in shapes:
                rows.append(([*chosen, *[-1] * (r - m)], [*powers, *[0] * (r - m)], sum(powers) / degrees[m - 1]))
    axis, degree, level = (np.array(column) for column in zip(*rows, strict=True))
    return Polynomials(tuple(axes), np.asarray(low, float), np.asarray(high, float), axis, degree, level)
