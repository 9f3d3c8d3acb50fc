"""The fused Burgers stage against its twin, and Heun's method made of two of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from poise import kernels
from poise.kernels._burgers import burgers_twin

native = pytest.mark.skipif(not kernels.available()["cpu"], reason=kernels.available()["why"])


def case(rng, nx, ny, dtype):
    shapes = (2, nx, ny), (2, nx, ny), (2, 1, ny), (2, 1, ny), (2, nx, 1), (2, nx, 1), (2,)
    return [jnp.array(rng.normal(size=s).astype(dtype)) for s in shapes]


@native
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 2), (3, 17), (64, 65), (301, 130)])
def test_a_stage_equals_the_twin(shape, dtype):
    with jax.enable_x64(dtype is np.float64):
        args = case(np.random.default_rng(), *shape, dtype)
        weights, h, nu = (0.5, 0.25, 1e-3), 0.01, 1e-3
        got = kernels.burgers_stage(*args, h=h, nu=nu, weights=weights)
        want = burgers_twin(*args, numbers=np.array([0.5 / h, nu / h**2, *weights]))
        tolerance = 2e-5 if dtype is np.float32 else 1e-13
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@native
def test_two_stages_are_one_step_of_heun():
    rng = np.random.default_rng()
    q, _, *ghosts = case(rng, 40, 50, np.float32)
    dt, h, nu = 1e-4, 0.02, 1e-3
    mid = kernels.burgers_stage(q, q, *ghosts, h=h, nu=nu, weights=(0.0, 1.0, dt))
    new = kernels.burgers_stage(mid, q, *ghosts, h=h, nu=nu, weights=(0.5, 0.5, 0.5 * dt))

    def rate(x):
        return burgers_twin(x, x, *ghosts, numbers=np.array([0.5 / h, nu / h**2, 0.0, 0.0, 1.0]))

    k1 = rate(q)
    want = q + 0.5 * dt * (k1 + rate(q + dt * k1))
    np.testing.assert_allclose(new, want, rtol=1e-5, atol=1e-6)
