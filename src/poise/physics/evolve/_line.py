"""Functions of one coordinate and their eigenmodes, by Legendre-Galerkin."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from ..features._polynomial import legendre
from ._normal import DIRICHLET


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
