"""Sealed AdamW: compiled kernel against the jnp twin, clean and with random damage in all three arrays."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from poise import kernels
from poise.kernels import ref, ref_adamw
from poise.kernels.layout import Layout

native = pytest.mark.skipif(not kernels.available()["cpu"], reason=kernels.available()["why"])


def hyper(clip: float = 0.7) -> ref_adamw.Hyper:
    values = (1e-2, 0.9, 0.1, 0.999, 0.001, 1e-8, 0.05, 1 / (1 - 0.9**3), 1 / (1 - 0.999**3), clip)
    return ref_adamw.Hyper(*map(jnp.float32, values))


def fresh(rng, n: int):
    arrays = rng.normal(size=n), rng.normal(size=n) * 0.1, rng.random(n) * 0.01
    words = [jnp.array(a.astype(np.float32).view(np.uint32)) for a in arrays]
    return ref_adamw.State(*(ref_adamw.Sealed(w, ref.seal(w)) for w in words))


@cache
def step(twin: bool):
    def kernel(state, g, ok, masks):
        with kernels.use("jnp" if twin else "native"):
            return kernels.adamw(state, g, hyper(), ok, *masks, low=True)

    return jax.jit(kernel)


def run(state, g, ok=True, masks=(None, None), twin=False):
    return step(twin)(state, g, jnp.bool_(ok), masks)


def agree(got, want, clean_seal=True):
    for a, b in zip(got[0], want[0], strict=True):
        # One unit in the last place of the larger terms: the two round in different orders.
        np.testing.assert_allclose(
            ref_adamw.floats(a.words), ref_adamw.floats(b.words), rtol=3e-6, atol=1e-7, equal_nan=True
        )
        if clean_seal:
            assert all(np.array_equal(x, y) for x, y in zip(a.seal, ref.seal(a.words), strict=True))
    assert [[int(v) for v in r] for r in got[1]] == [[int(v) for v in r] for r in want[1]]


@native
@pytest.mark.parametrize("n", [1, 2561, 5119, 5121, 5120 * 40 + 255])
@pytest.mark.parametrize("with_masks", [False, True])
def test_a_clean_step_equals_the_twin(n, with_masks):
    rng = np.random.default_rng()
    state, g = fresh(rng, n), jnp.array(rng.normal(size=n).astype(np.float32))
    masks = tuple(jnp.array(rng.integers(0, 2, n).astype(np.float32)) for _ in range(2)) if with_masks else (None, None)
    got, want = run(state, g, masks=masks), run(state, g, masks=masks, twin=True)
    agree(got, want)
    assert np.array_equal(got[2], ref_adamw.floats(got[0].w.words).astype(jnp.bfloat16))
    withheld = run(state, g, ok=False, masks=masks)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(withheld[0]), jax.tree.leaves(state), strict=True))


def damaged(rng, state, lay: Layout):
    """A bit, a run of up to a bank, parity, a mark and its guard, or two banks of one group; in one or two arrays."""
    arrays = [[np.array(s.words), *(np.array(x) for x in s.seal)] for s in state]
    for a in rng.choice(3, rng.integers(1, 3), replace=False):
        words, parity, marks, guard = arrays[a]
        kind = rng.integers(5)
        if kind == 0:
            words[rng.integers(lay.n)] ^= np.uint32(1 << rng.integers(32))
        elif kind == 1:
            start = rng.integers(lay.n)
            words[start : start + rng.integers(1, lay.L + 1)] ^= rng.integers(1, 2**32, dtype=np.uint32)
        elif kind == 2:
            parity[rng.integers(lay.L)] ^= np.uint32(1)
        elif kind == 3:
            g = rng.integers(lay.G)
            marks[rng.integers(21), g, 0] ^= np.uint32(8)
            guard[g, 1] ^= np.uint32(4)
        else:
            g = rng.integers(lay.G)
            for r in rng.choice(20, 2, replace=False):
                if (r * lay.G + g) * lay.B < lay.n:
                    words[(r * lay.G + g) * lay.B] ^= rng.integers(1, 2**32, dtype=np.uint32)
    return ref_adamw.State(
        *(ref_adamw.Sealed(jnp.array(w), ref.Seal(*map(jnp.array, (p, m, u)))) for w, p, m, u in arrays)
    )


@native
@pytest.mark.parametrize("n", [300, 5121, 5120 * 7 + 9])
def test_damage_is_mended_first_or_its_group_left_alone(n):
    rng = np.random.default_rng()
    lay = Layout(n)
    state, g = fresh(rng, n), jnp.array(rng.normal(size=n).astype(np.float32))
    clean = run(state, g)
    for trial in range(25):
        hurt = damaged(rng, state, lay)
        ok = trial % 5 != 0
        got, want = run(hurt, g, ok=ok), run(hurt, g, ok=ok, twin=True)
        lost = sum(int(r.unrepairable) for r in got[1])
        agree(got, want, clean_seal=False)
        if lost == 0:
            after = clean[0] if ok else state
            assert all(np.array_equal(a.words, b.words) for a, b in zip(got[0], after, strict=True))
