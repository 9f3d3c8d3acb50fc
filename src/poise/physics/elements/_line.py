"""Polynomials of one coordinate by their values at Gauss-Lobatto nodes."""

from __future__ import annotations

import functools

import numpy as np


@functools.cache
def lobatto(p: int) -> tuple[np.ndarray, np.ndarray]:
    """The p + 1 Gauss-Lobatto nodes on [-1, 1] and their weights 2 / (p (p + 1) P_p(x)^2)."""
    top = np.zeros(p + 1)
    top[p] = 1.0
    inner = np.sort(np.real(np.polynomial.legendre.legroots(np.polynomial.legendre.legder(top)))) if p > 1 else []
    x = np.concatenate([[-1.0], inner, [1.0]])
    return x, 2.0 / (p * (p + 1) * np.polynomial.legendre.legval(x, top) ** 2)


@functools.cache
def _barycentric(p: int) -> np.ndarray:
    x, _ = lobatto(p)
    gaps = x[:, None] - x[None, :] + np.eye(p + 1)
    return 1.0 / np.prod(gaps, axis=1)


@functools.cache
def derivative(p: int) -> np.ndarray:
    """(p + 1, p + 1): nodal values to nodal values of the derivative (Berrut & Trefethen 2004, eq. 9.4)."""
    x, _ = lobatto(p)
    w = _barycentric(p)
    gaps = x[:, None] - x[None, :] + np.eye(p + 1)
    d = w[None, :] / w[:, None] / gaps
    np.fill_diagonal(d, 0.0)
    np.fill_diagonal(d, -d.sum(axis=1))
    return d


def interpolation(p: int, x: np.ndarray) -> np.ndarray:
    """(len(x), p + 1): nodal values to values at x (Berrut & Trefethen 2004, eq. 4.2)."""
    nodes, _ = lobatto(p)
    gaps = x[:, None] - nodes[None, :]
    hit = np.abs(gaps) < 1e-15
    parts = _barycentric(p) / np.where(hit, 1.0, gaps)
    made = parts / parts.sum(axis=1, keepdims=True)
    rows = hit.any(axis=1)
    made[rows] = hit[rows]
    return made
