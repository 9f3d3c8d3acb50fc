"""Checked products: no alarm on clean ones, none missed that matters, forward and backward; wrong ones injected."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from poise import llama
from poise.cli._bench_steps import random_weights
from poise.llama._abft import Checked
from poise.llama._model import hidden, multiply
from poise.llama._rules import Blow, Item, Probe, Rule, items, no_probe, rules_for

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


def one(rule: Rule, x: Any, w: Any, item: Item, *, differentiable: bool) -> Any:
    product = Checked({"o": w}, item, rules={"o": rule}, differentiable=differentiable)
    (y,) = product(("o",), x)
    return product.done(y)


def run(rule: Rule, blow: Blow | None, dtype: Any) -> Any:
    rng = np.random.default_rng(5)
    x = jnp.asarray(rng.normal(size=(2, 12, 40)), dtype)
    w, dy = jnp.asarray(rng.normal(size=(64, 40)), dtype), jnp.asarray(rng.normal(size=(2, 12, 64)), jnp.float32)

    def loss(x: Any, w: Any, probe: Probe) -> Any:
        y, failed = one(rule, x, w, Item(None, jnp.int32(1), probe, blow), differentiable=True)
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


@pytest.mark.parametrize("differentiable", [True, False])
def test_an_audit_skips_what_it_does_not_look_at(differentiable: bool) -> None:
    a, w = jnp.ones((1, 4, 8)), jnp.ones((32, 8))
    blow = Blow(*(jnp.int32(v) for v in (0, 0, 0, 2, 3, 0)))
    for on in (True, False):
        probe = Probe(jnp.zeros(1), jnp.float32(0))
        item = Item(jnp.asarray(on), jnp.int32(0), probe, blow)
        found = jax.jit(lambda a, w, i: one(Rule(0), a, w, i, differentiable=differentiable)[1])(a, w, item)
        assert bool(found.any()) is on


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_forward_mode_passes(dtype: Any) -> None:
    a, w = jnp.ones((1, 4, 8), dtype), jnp.ones((32, 8), dtype)
    item = Item(None, jnp.int32(0), None, None)
    _, dy = jax.jvp(lambda x: one(Rule(0), x, w, item, differentiable=False)[0], (a,), (a,))
    assert float(dy[0, 0, 0]) == 8.0


@pytest.mark.parametrize("remat", ["dots", "full"])
def test_a_blow_in_any_product_of_the_model_is_noticed_once_per_run_of_it(remat: Any) -> None:
    """Through the model: what a layer's forward or backward check finds comes out, and is counted once more where the
    forward pass runs again."""
    config = llama.Config(vocab=64, width=32, hidden=64, layers=3, heads=4, kv_heads=2, head=8)
    params = random_weights(config, jnp.bfloat16, 0)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 64, (2, 24)), jnp.int32)
    make = partial(Checked, rules=rules_for(1, 1, remat == "full"), differentiable=True)

    @jax.jit
    def found(blow: Blow, step: Any) -> Any:
        def loss(params: Any, probe: Any) -> Any:
            each = items(3, 2, mode="audit", period=3, step=step, probe=probe, blow=blow)
            x, seen = hidden(params, tokens, config, product=make, each=each, remat=remat)
            return jnp.square(x.astype(jnp.float32)).mean(), seen

        (_, seen), (_, probe) = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, no_probe(3, 2))
        return seen.failed, probe

    for product, way in itertools.product(range(7), range(3)):
        # A sign. After a top bit other checks fail as well: squares of what follows from 1e38 overflow.
        blow = Blow(*(jnp.int32(v) for v in (1, product, way, 30, 5, 0x8000)))
        forward, probe = found(blow, jnp.int32(2))
        runs = 2 if remat == "full" and way == 0 else 1
        assert (forward > 0).sum() + (probe.rows > 0).sum() + (probe.weight > 0).sum() == runs
        assert (forward[1, 1] > 0) == (way == 0)
        assert (probe.weight[1] > 0) == (way == 2)
        assert probe.rows[1, 1] > 0 or way != 1
        # Of three layers each step looks at one.
        forward, probe = found(blow, jnp.int32(1))
        assert not forward.any()
        assert not probe.rows.any()
        assert not probe.weight.any()
