"""Radau IIA with three stages: order five, stiff decay, for small dense systems y' = f(t, y).

Hairer & Wanner, Solving Ordinary Differential Equations II, section IV.5 and IV.8: the stages are found by simplified
Newton iterations; in the eigenvectors of the inverse coefficient matrix these fall into one real system and a
conjugate pair of complex ones, each as large as y.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import lu_factor, lu_solve

S = 6.0**0.5
NODES = np.array([(4.0 - S) / 10.0, (4.0 + S) / 10.0, 1.0])
_A = np.array(
    [
        [(88 - 7 * S) / 360, (296 - 169 * S) / 1800, (-2 + 3 * S) / 225],
        [(296 + 169 * S) / 1800, (88 + 7 * S) / 360, (-2 - 3 * S) / 225],
        [(16 - S) / 36, (16 + S) / 36, 1 / 9],
    ]
)
_values, _vectors = np.linalg.eig(np.linalg.inv(_A))
_order = np.argsort(np.abs(np.imag(_values)), kind="stable")
VALUES, VECTORS = _values[_order], _vectors[:, _order]
INVERSE = np.linalg.inv(VECTORS)
ITERATIONS = 15
ENOUGH = 1e-11
"""Newton stops where the change is this much of the state."""


def step(
    f: Callable[[np.ndarray, np.ndarray], np.ndarray], jacobian: np.ndarray, t: float, y: np.ndarray, dt: float
) -> np.ndarray | None:
    """The state a step later; None where the iteration does not converge.

    f(t, rows (m, n)) -> (m, n), one rate per row and instant `t` (m,); `jacobian` (n, n) is df/dy at the start.
    """
    unit = np.eye(len(y))
    real = lu_factor(float(np.real(VALUES[0])) / dt * unit - jacobian)
    pair = lu_factor(VALUES[1] / dt * unit - jacobian)
    times = t + NODES * dt
    stages = np.zeros((3, len(y)))
    size = max(float(np.linalg.norm(y)), 1e-30)
    for _ in range(ITERATIONS):
        left = INVERSE @ f(times, y + stages) - VALUES[:, None] / dt * (INVERSE @ stages)
        if not np.all(np.isfinite(left)):
            return None
        second = lu_solve(pair, left[1])
        change = np.real(VECTORS @ np.stack([lu_solve(real, np.real(left[0])) + 0j, second, second.conj()]))
        stages = stages + change
        if float(np.linalg.norm(change)) <= ENOUGH * size:
            return y + stages[2]
    return None
