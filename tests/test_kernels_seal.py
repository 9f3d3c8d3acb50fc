"""Seal, check and repair: compiled kernels against the jnp twin, on fresh random words of every awkward size."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from poise import kernels
from poise.kernels import ref
from poise.kernels.layout import Layout

SIZES = [0, 1, 2, 19, 20, 21, 300, 2560, 2561, 5119, 5120, 5121, 5120 * 8 + 3, 5120 * 67 - 1, 256 * 20 * 33]

native = pytest.mark.skipif(not kernels.available()["cpu"], reason=kernels.available()["why"])


def fresh(n: int) -> jax.Array:
    return jnp.array(np.random.default_rng().integers(0, 2**32, n, np.uint32))


def same(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@native
@pytest.mark.parametrize("n", SIZES)
def test_seal_and_check_equal_the_twin(n):
    words = fresh(n)
    kept = kernels.seal(words)
    assert same(kept, ref.seal(words))
    assert same(kernels.check(words, kept), (0, 0, 0))
    for part in range(4):
        hit = [np.array(words), *(np.array(x) for x in kept)]
        if hit[part].size == 0:
            continue
        hit[part].reshape(-1)[np.random.default_rng().integers(hit[part].size)] ^= np.uint32(1 << 17)
        damaged = [jnp.array(x) for x in hit]
        want = ref.check(damaged[0], ref.Seal(*damaged[1:]))
        assert same(kernels.check(damaged[0], ref.Seal(*damaged[1:])), want)


@native
@pytest.mark.parametrize("n", [1, 300, 5121, 5120 * 9 + 1])
def test_counting_counts_what_the_gate_calls_bad(n):
    x = np.random.default_rng().normal(size=n).astype(np.float32)
    where = np.random.default_rng().choice(n, min(n, 5), replace=False)
    x[where] = np.resize(np.float32([np.nan, np.inf, -np.inf, 1e6, -3e7]), where.size)
    words = jnp.array(x.view(np.uint32))
    kept, bad = kernels.seal_counting(words, kernels.limit_bits(1e6))
    assert int(bad) == where.size
    assert same(kept, ref.seal(words))
    with kernels.use("jnp"):
        assert same(kernels.seal_counting(words, kernels.limit_bits(1e6)), (kept, bad))


def damage(rng, lay: Layout, words, kept):
    """Some damage of one of the kinds that matter; changes the arrays in place."""
    arrays = [words, kept[0], kept[1].reshape(-1), kept[2].reshape(-1)]
    kind = rng.integers(7)
    if kind == 0:  # a few bits anywhere
        for _ in range(rng.integers(1, 5)):
            a = arrays[rng.integers(4)]
            a[rng.integers(a.size)] ^= np.uint32(1 << rng.integers(32))
    elif kind == 1:  # a contiguous run of up to a bank
        start = rng.integers(lay.n)
        words[start : start + rng.integers(1, lay.L + 1)] ^= rng.integers(1, 2**32, dtype=np.uint32)
    elif kind == 2:  # equal flips in two banks of one group
        j = rng.integers(lay.L)
        for r in rng.choice(20, 2, replace=False):
            if r * lay.L + j < lay.n:
                words[r * lay.L + j] ^= np.uint32(0x80000000)
    elif kind == 3:  # mark and its guard
        g = rng.integers(lay.G)
        kept[1][rng.integers(21), g, rng.integers(2)] ^= np.uint32(5)
        kept[2][g, 0] ^= np.uint32(9)
    elif kind == 4:  # a data block and a mark of another in the same group
        g = rng.integers(lay.G)
        words[min(g * lay.B, lay.n - 1)] ^= np.uint32(77)
        kept[1][rng.integers(1, 21), g, 0] ^= np.uint32(3)
    elif kind == 5:  # parity
        kept[0][rng.integers(lay.L)] ^= np.uint32(1)
    elif lay.n > 1:  # two words swapped
        i, j = rng.choice(lay.n, 2, replace=False)
        words[[i, j]] = words[[j, i]]


@native
@pytest.mark.parametrize("n", [1, 21, 300, 5119, 5121, 5120 * 3 + 7, 5120 * 17])
def test_repair_equals_the_twin_on_random_damage(n):
    rng = np.random.default_rng()
    lay = Layout(n)
    words = fresh(n)
    kept = ref.seal(words)
    twin, native_repair = jax.jit(ref.repair), jax.jit(kernels.repair)
    for _ in range(30):
        w, s = np.array(words), [np.array(x) for x in kept]
        damage(rng, lay, w, s)
        args = (jnp.array(w), ref.Seal(*map(jnp.array, s)))
        want = twin(*args)
        got = native_repair(*args)
        assert same(got, want)
        assert np.array_equal(args[0], w), "the caller's words were changed behind its back"


@native
def test_inside_jit_shard_map_and_vmap():
    mesh = jax.make_mesh((len(jax.devices()),), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    words = fresh(5121 * len(jax.devices()))
    spec = jax.sharding.PartitionSpec("d")

    def both(w):
        kept = kernels.seal(w)
        return jnp.stack(kernels.check(w, kept))[None], kernels.repair(w, kept)[0]

    off, data = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=spec, out_specs=(spec, spec)))(words)
    assert not off.any()
    assert np.array_equal(data, words)
    many = jnp.stack([words, words + jnp.uint32(1)])
    assert same(jax.vmap(kernels.seal)(many), jax.vmap(ref.seal)(many))


def test_available_says_why():
    state = kernels.available()
    assert set(state) == {"cpu", "cuda", "why"}
    assert state["why"] or (state["cpu"] and state["cuda"])
    with kernels.use("jnp"):
        words = fresh(100)
        assert same(kernels.seal(words), ref.seal(words))
