"""The record gradient against its twin and against float64, at lengths around every warp's and tile's edge."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from poise import kernels
from poise.errors import BadInput
from poise.kernels import ref_adamw
from poise.kernels._timing import Rule

RULE = Rule(markers=(-99.0, -999.0))
SIZES = [1, 2, 31, 32, 33, 255, 256, 257, 258, 511, 512, 514, 20_011, 20_012]
which = pytest.mark.parametrize("kind", ["native", "jnp"])


def cells(rng, n):
    rows = jnp.array(rng.integers(0, 2**32, (n, 8), np.uint32))
    return rows.at[:, 0].set(jnp.array(rng.normal(size=n).astype(np.float32).view(np.uint32)))


def expected(rows, x, west, east, factor):
    """In float64, cell by cell: `u`, and which are broken."""
    u, broken = np.zeros(x.shape), np.zeros(x.shape, bool)
    for i in range(x.shape[0]):
        full = np.concatenate(([west[i]], x[i], [east[i]])).astype(np.float64)
        bad = ~(np.abs(full) <= RULE.limit)
        for m in RULE.markers:
            bad |= np.abs(full - m) <= RULE.tolerance
        broken[i] = bad[:-2] | bad[1:-1] | bad[2:]
        with np.errstate(invalid="ignore"):
            u[i] = (full[2:] - full[:-2]) * factor
    return u.reshape(-1), broken.reshape(-1)


CASES = [("native", n) for n in SIZES] + [("jnp", n) for n in (1, 2, 33, 20_012)]


@pytest.mark.parametrize(("kind", "n"), CASES)
def test_gradient_of_lines_of_any_length(kind, n):
    given = n % 2 == 0
    rng = np.random.default_rng()
    columns = int(rng.choice([d for d in range(1, n + 1) if n % d == 0]))
    rows, lines, dx = cells(rng, n), n // columns, float(rng.uniform(1e-3, 10))
    flux = jnp.array(rng.normal(size=n).astype(np.float32))
    for k, v in enumerate((np.nan, -np.inf, 2e6, -99.0, -999.0)):
        at = int(rng.integers(n))
        if k < n // 3:
            flux = flux.at[at].set(v)
            rows = rows.at[at, 0].set(jnp.float32(v).view(jnp.uint32))
    x = np.asarray(flux if given else ref_adamw.floats(rows[:, 0])).reshape(lines, columns)
    halo = rng.normal(size=(2, lines)).astype(np.float32)
    for ends in (None, (jnp.array(halo[0]), jnp.array(halo[1]))):
        with kernels.use(kind):
            got, found = jax.jit(
                lambda r, f, e: kernels.record_gradient(r, dx, RULE, flux=f if given else None, columns=columns, ends=e)
            )(rows, flux, ends)
        west, east = (x[:, 0], x[:, -1]) if ends is None else halo
        u, broken = expected(rows, x, west, east, 0.5 / dx)
        mine = np.asarray(ref_adamw.floats(got[:, 1]))
        assert (mine[broken] == -99.0).all()
        np.testing.assert_allclose(mine[~broken], u[~broken], rtol=3e-7, atol=2e-7 / dx)
        assert np.array_equal(got[:, 4], np.where(broken, 2, np.asarray(rows[:, 4])))
        kept = [0, 2, 3, 5, 6, 7]
        assert np.array_equal(np.asarray(got)[:, kept], np.asarray(rows)[:, kept])
        assert int(found.rows) == broken.sum()
        assert int(found.first) == (int(np.argmax(broken)) if broken.any() else -1)


@which
def test_the_rounded_reciprocal_is_within_an_ulp_of_the_division(kind):
    rng = np.random.default_rng()
    n = 4096
    for _ in range(5):
        dx = float(rng.uniform(0.5, 2.0))
        flux = jnp.array(rng.uniform(-1, 1, n).astype(np.float32))
        rows = jnp.zeros((n, 8), jnp.uint32)
        with kernels.use(kind):
            u = ref_adamw.floats(kernels.record_gradient(rows, dx, RULE, flux=flux)[0][:, 1])
        f = np.asarray(flux)
        d = np.append(f[1:], f[-1]) - np.insert(f[:-1], 0, f[0])
        exact = (d.astype(np.float64) / (2 * dx)).astype(np.float32)
        assert (np.abs(np.asarray(u) - exact) <= np.spacing(np.abs(exact))).all()


@which
def test_raw_is_the_plain_difference(kind):
    rows = jnp.zeros((5, 8), jnp.uint32)
    with kernels.use(kind):
        got = kernels.record_gradient(rows, 0.1, RULE, flux=jnp.float32([1, 2, 4, 8, 16]), raw=True)[0]
    assert ref_adamw.floats(got[:, 1]).tolist() == [1, 3, 6, 12, 8]


def test_what_does_not_fit_is_refused():
    rows = jnp.zeros((6, 8), jnp.uint32)
    with pytest.raises(BadInput, match="lines of 4"):
        kernels.record_gradient(rows, 1.0, RULE, columns=4)
    with pytest.raises(BadInput, match="dx must be"):
        kernels.record_gradient(rows, float("nan"), RULE)
    with pytest.raises(BadInput, match="flux must be float32"):
        kernels.record_gradient(rows, 1.0, RULE, flux=jnp.zeros(5))
