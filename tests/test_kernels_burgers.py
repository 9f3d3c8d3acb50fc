"""The fused Burgers stage against its twin, and Heun's method made of two of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from poise import kernels
from poise.kernels._burgers import _sealed_twin, burgers_twin

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


SEALED = {"h": 0.01, "nu": 1e-3, "weights": (0.5, 0.25, 1e-3), "bits": kernels.limit_bits(1.25)}


@jax.jit
def together(kept, *args):
    return kernels.burgers_stage_sealed(*args, kept, **SEALED)


@jax.jit
def apart(kept, *args):
    """The same by the calls that it takes the place of."""
    h, nu, weights, bits = SEALED.values()
    out = kernels.burgers_stage(*args, h=h, nu=nu, weights=weights)
    return out, *kernels.seal_counting(out, bits), kernels.check(args[1], kept)


@jax.jit
def twin(kept, *args):
    return _sealed_twin(*args, *kept, **SEALED)


def hurt(rng, base, kept):
    """A base and its seal with flipped bits in every kind of row: blocks of data, one of parity, a mark and a guard."""
    words = np.array(base).view(np.uint32)
    where = rng.choice(words.size, size=min(3, words.size), replace=False)
    words.reshape(-1)[where] ^= np.uint32(1) << rng.integers(32, size=where.size, dtype=np.uint32)
    parity, marks, guard = (np.array(x) for x in kept)
    parity[rng.integers(parity.size)] ^= 2
    marks[rng.integers(21), rng.integers(marks.shape[1]), rng.integers(2)] ^= 4
    guard[rng.integers(len(guard)), 0] ^= 8
    return jnp.array(words.view(np.float32)), kernels.Seal(*map(jnp.array, (parity, marks, guard)))


def same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.asarray(x).view(np.uint32), np.asarray(y).view(np.uint32))


@native
@pytest.mark.parametrize("shape", [(1, 1), (30, 41), (37, 35), (1, 2561), (2561, 1), (64, 65), (301, 130), (128, 512)])
def test_a_sealed_stage_equals_stage_seal_and_check(shape):
    rng = np.random.default_rng()
    args = case(rng, *shape, np.float32)
    kept = kernels.seal(args[1])
    clean, old = together(kept, *args), apart(kept, *args)
    same(clean, old)
    assert [int(x) for x in clean[3]] == [0, 0, 0]
    for _ in range(2):
        base, seal = hurt(rng, args[1], kept)
        given = [args[0], base, *args[2:]]
        got = together(seal, *given)
        same(got, apart(seal, *given))
        assert int(got[3].data) > 0
        assert int(got[3].parity) > 0
        assert int(got[3].guard) > 0
    assert int(clean[2]) > 0 or args[0].size < 100, "no value was loud: the count was not tried"


@native
def test_a_sealed_stage_equals_its_twin():
    rng = np.random.default_rng()
    args = case(rng, 64, 65, np.float32)
    base, kept = hurt(rng, args[1], kernels.seal(args[1]))
    args[1] = base
    with kernels.use("jnp"):
        out, *made, found = twin(kept, *args)
    got = together(kept, *args)
    np.testing.assert_allclose(got[0], out, rtol=2e-5, atol=2e-5)
    # Stages that differ by rounding have other seals; what is found in base is the same.
    assert [x.shape for x in got[1]] == [x.shape for x in made]
    assert [int(x) for x in got[3]] == [int(x) for x in found[1:]]


@native
def test_a_sealed_stage_counts_what_is_not_finite():
    q, base, *rest = case(np.random.default_rng(), 60, 70, np.float32)
    q = q.at[1, 30, 69].set(jnp.nan).at[0, 0, 0].set(jnp.inf)
    out, _, loud, seen = together(kernels.seal(base), q, base, *rest)
    assert int(loud) == int((~(jnp.abs(out) < 1.25)).sum()) > int((~jnp.isfinite(out)).sum()) > 4
    assert [int(x) for x in seen] == [0, 0, 0]
