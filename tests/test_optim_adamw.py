"""The sealed AdamW against optax.adamw, and what it does with damage."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from poise import optim
from poise.errors import BadInput


def tree(rng, scale=1.0):
    sizes = {"a": (37, 41), "b": (5,), "c": (3, 7, 11)}
    return {k: jnp.array(rng.normal(size=s).astype(np.float32) * scale) for k, s in sizes.items()}


def close(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=4e-6, atol=2e-7)


@pytest.mark.parametrize("rate", [3e-3, optax.linear_schedule(1e-2, 1e-3, 10)])
def test_ten_clean_steps_equal_optax(rate):
    rng = np.random.default_rng()
    params = tree(rng)
    ours, theirs = optim.adamw(rate, weight_decay=0.02), optax.adamw(rate, weight_decay=0.02)
    state, other, p = ours.init(params), theirs.init(params), params
    step = jax.jit(ours.update, donate_argnums=1)
    plain = jax.jit(theirs.update)
    for _ in range(10):
        g = tree(rng, 0.1)
        state, report = step(g, state)
        updates, other = plain(g, other, p)
        p = optax.apply_updates(p, updates)
        assert not any(int(v) for r in report for v in r)
    close(ours.params(state, params), p)
    assert int(state.steps) == 10


def test_damage_between_steps_leaves_no_trace():
    rng = np.random.default_rng()
    params, tx = tree(rng), optim.adamw(1e-2)
    step = jax.jit(tx.update)
    clean = tx.init(params)
    hurt = clean
    for _ in range(4):
        g = tree(rng)
        clean, _ = step(g, clean)
        words = np.array(hurt.sealed.m.words)
        words[rng.integers(words.size)] ^= np.uint32(1 << rng.integers(32))
        sealed = hurt.sealed._replace(m=hurt.sealed.m._replace(words=jnp.array(words)))
        hurt, report = step(g, hurt._replace(sealed=sealed))
        assert [int(v) for v in report.m] == [1, 0, 0, 1, 0]
        assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(hurt), strict=True))


def test_a_withheld_step_repairs_and_changes_nothing_else():
    params, tx = tree(np.random.default_rng()), optim.adamw(1e-2)
    state = tx.init(params)
    words = np.array(state.sealed.w.words)
    words[3] ^= np.uint32(1)
    hurt = state._replace(sealed=state.sealed._replace(w=state.sealed.w._replace(words=jnp.array(words))))
    after, report = tx.update(params, hurt, ok=False)
    assert int(report.w.repaired) == 1
    assert int(report.unrepairable) == 0
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True))


def test_masks_and_clip():
    rng = np.random.default_rng()
    params, g, tx = tree(rng), tree(rng), optim.adamw(1e-2, weight_decay=0.1)
    frozen = jax.tree.map(jnp.zeros_like, params)
    state, _ = tx.update(g, tx.init(params), lr_mask=frozen, clip=0.5)
    close(tx.params(state, params), params)
    halved, _ = tx.update(jax.tree.map(lambda x: x * 0.5, g), tx.init(params))
    clipped, _ = tx.update(g, tx.init(params), clip=0.5)
    close(tx.params(halved, params), tx.params(clipped, params))


def test_parameters_come_back_in_their_dtype():
    params = {"a": jnp.ones(700, jnp.bfloat16), "b": jnp.ones((3, 3), jnp.float32)}
    tx = optim.adamw(1e-2)
    back = tx.params(tx.init(params), params)
    assert jax.tree.map(lambda x: x.dtype, back) == jax.tree.map(lambda x: x.dtype, params)


@pytest.mark.parametrize("bad", [{"b1": 1.0}, {"b2": -0.1}, {"eps": 0.0}])
def test_impossible_numbers_are_refused(bad):
    with pytest.raises(BadInput):
        optim.adamw(1e-3, **bad)
    with pytest.raises(BadInput, match="floating"):
        optim.adamw(1e-3).init({"a": jnp.arange(3)})
