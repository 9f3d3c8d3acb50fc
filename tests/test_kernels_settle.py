"""What is decided on the device: a next state handed on or the old one mended, compiled kernel against the twin."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from poise import kernels
from poise.keeper._form import Form, Kept
from poise.keeper._settle import settle, settles
from poise.keeper._workload import Traits

native = pytest.mark.skipif(not kernels.available()["cpu"], reason=kernels.available()["why"])


def same(a, b) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


def spoiled(n: int, dtype: type) -> jax.Array:
    rng = np.random.default_rng()
    if not np.issubdtype(dtype, np.floating):
        return jnp.asarray(rng.integers(0, 2**31, n).astype(dtype))
    x = rng.normal(size=n).astype(dtype)
    x[rng.choice(n, min(n, 6), replace=False)] = np.resize(np.array([np.nan, -np.inf, 2e6, -3e7], dtype), min(n, 6))
    return jnp.asarray(x)


@native
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
@pytest.mark.parametrize("n", [1, 5120 * 9 + 1])
def test_settle_equals_the_twin(n, dtype):
    with jax.enable_x64(True):
        old, new = spoiled(n, dtype), spoiled(n, dtype)
        kept, made = kernels.seal(old), kernels.seal(new)
        rot = np.array(old)
        rot.view(np.uint32)[n // 2] ^= np.uint32(1 << 9)
        for newly in (False, True):
            for stay in (False, True):
                # The second array is whole, the first is not.
                args = jnp.bool_(stay), [jnp.asarray(rot), old], [kept, kept], [new, new], [made, made]
                got = jax.jit(partial(kernels.settle_all, limit=1e6, newly=newly))(*args)
                with kernels.use("jnp"):
                    want = jax.jit(partial(kernels.settle_all, limit=1e6, newly=newly))(*args)
                assert same(got, want), (newly, stay)
                assert all(same(x, old if stay else new) for x in got.arrays)
                assert got.mended[:, 3].tolist() == ([1, 0] if stay else [0, 0])


@native
def test_found_is_what_is_bad_and_was_good():
    old = jnp.zeros(1000, jnp.float32).at[7].set(jnp.inf)
    new = old.at[jnp.array([7, 40, 41, 42])].set(jnp.array([jnp.nan, jnp.nan, -jnp.inf, 2e6], jnp.float32))
    seals = kernels.seal_all([old, new])
    for newly, want in ((False, [2, 1, 1, 7]), (True, [1, 1, 1, 40])):
        done = kernels.settle_all(jnp.bool_(True), [old], seals[:1], [new], seals[1:], limit=1e6, newly=newly)
        assert done.found.tolist() == [want]
    for which in ("native", "jnp"):
        with kernels.use(which):
            found = kernels.newly_bad_all(jnp.array([5, 0, 1]), [new, new, new], [old, old, new], 1e6)
            assert found.tolist() == [3, 0, 0]


@native
def test_more_arrays_than_one_launch_takes():
    rng = np.random.default_rng()
    xs = [jnp.asarray(rng.normal(size=n).astype(np.float32)) for n in (*rng.integers(1, 9000, 90), 0)]
    xs[3] = xs[3].at[0].set(2e6)
    seals = kernels.seal_all(xs)
    assert all(same(a, kernels.seal(x)) for a, x in zip(seals, xs, strict=True))
    counted, bad = kernels.seal_counting_all(xs, [kernels.limit_bits(1e6)] * len(xs))
    assert same(counted, seals)
    assert bad.tolist() == [int(i == 3) for i in range(len(xs))]
    assert [int(x) for x in kernels.check_all(xs, seals)] == [0, 0, 0]
    rotten = list(xs)
    for i in (0, 50, 89):
        rotten[i] = xs[i].at[-1].add(1.0)
    assert [int(x) for x in kernels.check_all(rotten, seals)] == [3, 0, 0]


@native
def test_a_state_of_large_and_small_leaves_names_the_first_bad_one():
    """The small leaves between two large ones share a unit; the place is that of the first leaf, whatever its unit."""
    rng = np.random.default_rng()
    state = {
        "a": rng.normal(size=20000).astype(np.float32),
        "b": rng.normal(size=5).astype(np.float32),
        "c": np.arange(7, dtype=np.int32),
        "d": rng.normal(size=(3, 4)).astype(np.float32),
        "e": rng.normal(size=(300, 100)).astype(np.float32),
    }
    mesh = jax.make_mesh((1,), ("d",), devices=jax.devices()[:1], axis_types=(jax.sharding.AxisType.Auto,))
    form = Form.of(state, jax.sharding.PartitionSpec(), {"d": 1}, "parity")
    assert settles(form, mesh)
    leaves = form.flatten(jax.tree.map(jnp.asarray, state))
    seals = tuple(kernels.seal(x) for x in form.plan.read(leaves))
    kept = Kept(leaves, seals, jnp.zeros(3, jnp.int32))
    after = {k: jnp.asarray(v) for k, v in state.items()}
    after["d"] = after["d"].at[1, 2].set(jnp.nan)
    after["e"] = after["e"].at[0, 3].set(jnp.inf)
    after["c"] = after["c"] + 1
    new = form.flatten(after)
    made = tuple(kernels.seal(x) for x in form.plan.read(new))
    for stay, want in ((True, leaves), (False, new)):
        got, sealed, rows, row = jax.jit(partial(settle, form, Traits(limit=None)))(kept, new, made, jnp.bool_(stay))
        assert same(got, want)
        assert same(sealed, seals if stay else made)
        assert not np.asarray(rows).any()
        assert row.tolist() == ([1, 1, 0, 0, 3, 6] if stay else [0, 0, 0, 0, -1, -1])
