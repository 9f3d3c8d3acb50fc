"""Records: pack, unpack and the gated update against their twins."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from poise import kernels
from poise.kernels import _records, ref_adamw
from poise.kernels._timing import Rule

native = pytest.mark.skipif(not kernels.available()["cpu"], reason=kernels.available()["why"])
SIZES = [0, 1, 31, 32, 33, 255, 256, 257, 20_011]


@native
@pytest.mark.parametrize("n", SIZES)
def test_unpack_undoes_pack(n):
    channels = jnp.array(np.random.default_rng().integers(0, 2**32, (8, n), np.uint32))
    rows = kernels.pack(channels)
    assert np.array_equal(rows, channels.T)
    assert np.array_equal(kernels.unpack(rows), channels)


@native
@pytest.mark.parametrize("n", [0, 1, 257, 20_011])
@pytest.mark.parametrize("cell", ["pim", "pinn"])
def test_update_equals_the_twin(n, cell):
    rng = np.random.default_rng()
    rows = rng.normal(size=(n, 8)).astype(np.float32)
    rows[:, 2] = np.abs(rows[:, 2])
    if n:
        rows[rng.integers(n), rng.integers(3)] = np.nan
    words = rows.view(np.uint32).copy()
    words[:, _records.STATUS[cell]] = rng.integers(0, 8, n) == 0
    g = rng.normal(size=n).astype(np.float32)
    g[rng.integers(0, max(n, 1), min(n, 2))] = np.inf
    hyper = jnp.float32([1e-2, 0.9, 0.1, 0.999, 0.001, 1e-8, 0.05, 2.0, 3.0, 0.7][: 10 if cell == "pim" else 2])
    got, bad = kernels.update_records(jnp.array(words), jnp.array(g), hyper, cell, Rule())
    full = jnp.zeros(10, jnp.float32).at[: hyper.shape[0]].set(hyper)
    want, expected = _records.update_twin(jnp.array(words), jnp.array(g), full, cell, Rule())
    assert [int(v) for v in bad] == [int(v) for v in expected]
    assert np.array_equal(got[:, 3:], want[:, 3:])
    a, b = (np.asarray(ref_adamw.floats(x[:, :3].reshape(-1))) for x in (got, want))
    np.testing.assert_allclose(a, b, rtol=3e-6, atol=1e-7)


@native
def test_rows_that_are_given_up_are_updated_in_place():
    rows = jnp.zeros((300, 8), jnp.uint32)
    step = jax.jit(
        lambda r, g: kernels.update_records(r, g, jnp.float32([0.9, 0.1]), "pinn", Rule())[0], donate_argnums=0
    )
    where = rows.unsafe_buffer_pointer()
    assert step(rows, jnp.ones(300)).unsafe_buffer_pointer() == where
