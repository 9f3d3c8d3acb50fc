"""Exponential time differencing of fourth order: u' = L u + N(u, t) with L diagonal.

Cox & Matthews (2002) with Kassam & Trefethen's (2005) contour means, which avoid cancellation for small L h. The linear
part is exact, so stiffness costs nothing and a problem without N is solved exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Nonlinear = Callable[[Any, Any, Any], Any]
"""(state, t, data) -> N(state, t), shaped like the state."""


def coefficients(linear: np.ndarray, h: float) -> tuple[np.ndarray, ...]:
    """E, E2, Q, f1, f2, f3 for L (any shape, real or complex) and a step h."""
    z = linear * h
    ring = np.exp(1j * np.pi * (np.arange(32) + 0.5) / 16.0)
    lr = z[..., None] + ring
    e = np.exp(lr)
    q = np.mean((np.exp(lr / 2.0) - 1.0) / lr, axis=-1) * h
    f1 = np.mean((-4.0 - lr + e * (4.0 - 3.0 * lr + lr**2)) / lr**3, axis=-1) * h
    f2 = np.mean((2.0 + lr + e * (lr - 2.0)) / lr**3, axis=-1) * h
    f3 = np.mean((-4.0 - 3.0 * lr - lr**2 + e * (4.0 - lr)) / lr**3, axis=-1) * h
    made = (np.exp(z), np.exp(z / 2.0), q, f1, f2, f3)
    return made if np.iscomplexobj(linear) else tuple(np.real(part) for part in made)


def step(state: Any, t: Any, h: Any, factors: Any, nonlinear: Nonlinear, data: Any) -> Any:
    """One step."""
    e, e2, q, f1, f2, f3 = factors
    n0 = nonlinear(state, t, data)
    a = e2 * state + q * n0
    na = nonlinear(a, t + h / 2.0, data)
    b = e2 * state + q * na
    nb = nonlinear(b, t + h / 2.0, data)
    c = e2 * a + q * (2.0 * nb - n0)
    nc = nonlinear(c, t + h, data)
    return e * state + f1 * n0 + 2.0 * f2 * (na + nb) + f3 * nc


def march(nonlinear: Nonlinear | None, snapshots: int) -> Any:
    """A compiled run: (state, t0, h, substeps, factors, data) -> states at the start and after each of the snapshots.

    The number of substeps between snapshots is an argument, so halving the step compiles nothing.
    """

    def run(state: Any, t0: Any, h: Any, substeps: Any, factors: Any, data: Any) -> Any:
        def advance(state: Any, t: Any) -> Any:
            return factors[0] * state if nonlinear is None else step(state, t, h, factors, nonlinear, data)

        def one(state: Any, i: Any) -> tuple[Any, Any]:
            begin = t0 + i * substeps * h
            state = jax.lax.fori_loop(0, substeps, lambda k, s: advance(s, begin + k * h), state)
            return state, state

        _, states = jax.lax.scan(one, state, jnp.arange(snapshots))
        return jnp.concatenate([state[None], states])

    return jax.jit(run)
