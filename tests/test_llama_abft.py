"""Checked products: no alarm on clean ones, none missed that matters, forward and backward; wrong ones injected."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from poise import llama
from poise.llama._abft import Blow, Item, Probe, Rule, checked, forward
from poise.llama._model import multiply

SIZES = [(40, 64, 192), (17, 300, 1024), (64, 33, 511), (3, 1, 7)]
check = jax.jit(llama.wrong_rows)
product = jax.jit(lambda a, b: multiply(a, b))


def operands(rng: Any, size: tuple[int, int, int], dtype: Any) -> tuple[Any, Any]:
    """Activations with heavy tails and rows of very different size, as language models have them."""
    m, k, n = size
    a = rng.standard_t(3, (m, k)) * np.exp(2 * rng.normal(size=(m, 1)))
    return jnp.asarray(a, dtype), jnp.asarray(0.03 * rng.normal(size=(n, k)), dtype)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("size", SIZES)
def test_rounding_is_no_fault_and_what_exceeds_it_is(size: tuple[int, int, int], dtype: Any) -> None:
    rng = np.random.default_rng()
    for _ in range(25):
        a, b = operands(rng, size, dtype)
        y = product(a, b)
        assert not check(a, b, y).any()
        # An error of the size of a typical element of its row, anywhere.
        row, column = rng.integers(y.shape[0]), rng.integers(y.shape[1])
        typical = float(jnp.sqrt(jnp.square(y[row].astype(jnp.float32)).mean()))
        bad = y.at[row, column].add(jnp.asarray(1.1 * typical + 1e-30, dtype))
        seen = np.asarray(check(a, b, bad))
        assert seen[row]
        assert seen.sum() == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_fails(value: float) -> None:
    a, b = operands(np.random.default_rng(), SIZES[0], jnp.bfloat16)
    assert np.flatnonzero(check(a, b, product(a, b).at[5, 9].set(value))).tolist() == [5]


def test_flipped_bits_are_noticed_by_what_they_change() -> None:
    """Of single flips in bfloat16 results, all that change the element by more than its row's typical value."""
    rng = np.random.default_rng()
    a, b = operands(rng, (64, 300, 1024), jnp.bfloat16)
    y = product(a, b)
    typical = np.sqrt(np.square(np.asarray(y, np.float64)).mean(1))
    words = np.asarray(jax.lax.bitcast_convert_type(y, jnp.uint16)).copy()
    for bit in range(16):
        struck = words.copy()
        columns = rng.integers(1024, size=64)
        struck[np.arange(64), columns] ^= np.uint16(1 << bit)
        z = jax.lax.bitcast_convert_type(jnp.asarray(struck), jnp.bfloat16)
        change = np.asarray(jnp.abs(z.astype(jnp.float32) - y.astype(jnp.float32)).max(1))
        large = ~(change <= typical)
        assert np.asarray(check(a, b, z))[large].all()


def run(rule: Rule, blow: Blow | None, dtype: Any) -> Any:
    rng = np.random.default_rng(5)
    x = jnp.asarray(rng.normal(size=(2, 12, 40)), dtype)
    w, dy = jnp.asarray(rng.normal(size=(64, 40)), dtype), jnp.asarray(rng.normal(size=(2, 12, 64)), jnp.float32)

    def loss(x: Any, w: Any, probe: Probe) -> Any:
        (y,), failed = checked((rule,), x, [w], Item(None, jnp.int32(1), probe, blow))
        return (y.astype(jnp.float32) * dy).sum(), failed

    zero = Probe(jnp.zeros(2), jnp.float32(0))
    (_, failed), grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(x, w, zero)
    return failed, grads, (x, w, dy)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_gradients_are_those_of_the_plain_product(dtype: Any) -> None:
    failed, (dx, dw, probe), (x, w, dy) = run(Rule(0), None, dtype)
    want = jax.grad(lambda x, w: (multiply(x, w).astype(jnp.float32) * dy).sum(), argnums=(0, 1))(x, w)
    tolerance = 1e-5 if dtype == jnp.float32 else 2e-2
    for got, plain in zip((dx, dw), want, strict=True):
        assert got.dtype == dtype
        off = np.linalg.norm(np.asarray(got, np.float32) - np.asarray(plain, np.float32))
        assert off <= tolerance * np.linalg.norm(np.asarray(plain, np.float32))
    assert not failed.any()
    assert not probe.rows.any()
    assert not probe.weight


@pytest.mark.parametrize("way", [0, 1, 2])
@pytest.mark.parametrize("bits", [0x4000, 0])
def test_a_blow_is_noticed_where_it_falls(way: int, bits: int) -> None:
    blow = Blow(*(jnp.int32(v) for v in (1, 3, way, 14, 7, bits)))
    failed, (_, _, probe), _ = run(Rule(3), blow, jnp.bfloat16)
    assert failed.tolist() == [0.0, float(way == 0)]
    assert probe.rows.tolist() == [0.0, float(way == 1)]
    assert float(probe.weight) == float(way == 2)
    quiet, (_, _, other), _ = run(Rule(2), blow, jnp.bfloat16)
    assert not quiet.any()
    assert not other.rows.any()


def test_an_audit_skips_what_it_does_not_look_at_and_forward_mode_passes() -> None:
    a, w = jnp.ones((1, 4, 8)), jnp.ones((32, 8))
    blow = Blow(*(jnp.int32(v) for v in (0, 0, 0, 2, 3, 0)))
    for on in (True, False):
        item = Item(jnp.asarray(on), jnp.int32(0), None, blow)
        assert bool(jax.jit(partial(forward, (Rule(0),)))(a, [w], item)[1].any()) is on
    item = Item(None, jnp.int32(0), None, None)
    _, dy = jax.jvp(lambda x: forward((Rule(0),), x, [w], item)[0][0], (a,), (a,))
    assert float(dy[0, 0, 0]) == 8.0
