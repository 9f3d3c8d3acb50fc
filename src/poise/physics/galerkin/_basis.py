"""Legendre combinations with boundary conditions built in, and tensor products of them.

With vanishing value (Dirichlet) or value and slope (clamped) at both ends the combinations are Shen's (1994, eqs. 2.7
and 3.2): short, and well conditioned for the Laplacian and the bilaplacian.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from ..features._polynomial import legendre


@dataclass(frozen=True, eq=False)
class Side:
    """`size` functions of one coordinate; `vanish` (0, 1, 2) derivatives from the value up vanish at both ends."""

    low: float
    high: float
    vanish: int
    size: int

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2.0

    @property
    def degree(self) -> int:
        return self.size - 1 + 2 * self.vanish

    @functools.cached_property
    def gauss(self) -> tuple[np.ndarray, np.ndarray]:
        """Nodes and weights exact for products of three basis functions."""
        x, w = np.polynomial.legendre.leggauss(int(1.5 * self.degree) + 6)
        return self.low + self.half * (x + 1.0), w * self.half

    @functools.cached_property
    def recombine(self) -> np.ndarray:
        """(degree + 1, size): orthonormal Legendre coefficients of the basis."""
        k = np.arange(self.size, dtype=float)
        i = np.arange(self.size)
        made = np.zeros((self.degree + 1, self.size))
        if self.vanish == 0:
            return np.eye(self.size)
        if self.vanish == 1:
            made[i, i], made[i + 2, i] = 1.0, -1.0
            scale = 1.0 / np.sqrt(4.0 * k + 6.0)
        else:
            made[i, i] = 1.0
            made[i + 2, i] = -2.0 * (2.0 * k + 5.0) / (2.0 * k + 7.0)
            made[i + 4, i] = (2.0 * k + 3.0) / (2.0 * k + 7.0)
            scale = 1.0 / np.sqrt(2.0 * (2.0 * k + 3.0) ** 2 * (2.0 * k + 5.0))
        return made * scale / np.sqrt(np.arange(self.degree + 1) + 0.5)[:, None]

    def table(self, x: np.ndarray, order: int) -> np.ndarray:
        """A derivative of every function at x (n,): (n, size)."""
        return self.raw(x, order) @ self.recombine

    def raw(self, x: np.ndarray, order: int) -> np.ndarray:
        """The same of the Legendre polynomials themselves."""
        return legendre((x - self.low) / self.half - 1.0, self.degree, order, np)[order] / self.half**order

    def slope(self, end: int) -> np.ndarray:
        """Legendre coefficients of the cubic with slope one at the low (0) or high (1) end, all else zero there."""
        length = 2.0 * self.half
        # s in [0, 1] from the other end: length * s^2 (s - 1)
        x = np.polynomial.Polynomial([0.5, 0.5])
        cubic = length * x**2 * (x - 1.0) if end else length * x * (x - 1.0) ** 2
        row = np.zeros(self.degree + 1)
        converted = np.polynomial.legendre.poly2leg(cubic.coef)
        row[: len(converted)] = converted
        return row / np.sqrt(np.arange(self.degree + 1) + 0.5)


def interpolate(values: np.ndarray, tables: list[np.ndarray]) -> np.ndarray:
    """sum_ij tables[0][q, i] values[i, j] tables[1][r, j] and its one-dimensional kin."""
    out = tables[0] @ values
    return out @ tables[1].T if len(tables) > 1 else out
