"""`poise.keep(..., optimizer=poise.optim.adamw(...))`: the commit that mends, moves and seals in one pass."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import poise
from poise import kernels, optim
from poise.errors import BadInput
from poise.events import Mended, Noticed
from poise.faults import ScriptedFault
from poise.faults._strike import strike_memory
from poise.keeper._fused import triples
from poise.keeper._judge import count_rarely

N = 96
STEPS = 12


def params() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "deep": {"w": rng.normal(size=(3, N, N)).astype(np.float32)},
        "head": rng.normal(size=(N, 2 * N)).astype(np.float32),
        "scale": np.ones(N, np.float32),
    }


def batches(index: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(index).normal(size=(8, N)).astype(np.float32)}


def loss_of(p: Any, batch: Any) -> jax.Array:
    x = batch["x"]
    for w in p["deep"]["w"]:
        x = jnp.tanh(x @ (w / N**0.5)) * p["scale"]
    return jnp.square(x @ p["head"] - batch["x"].sum(-1, keepdims=True)).mean()


def grad_step(p: Any, batch: Any) -> tuple[Any, Any]:
    with jax.default_matmul_precision("highest"):
        loss, grads = jax.value_and_grad(loss_of)(p, batch)
    return grads, {"loss": loss}


def kept(script: Any = None, devices: int = 1, **options: Any) -> tuple[Any, list[Any], poise.Keeper]:
    """The state after `STEPS` steps and what was said; `script` strikes between the halves of one step."""
    events: list[Any] = []
    tx = optim.adamw(optax.cosine_decay_schedule(1e-2, 100), weight_decay=0.02, max_norm=1.0, mask=lambda p: {
        "deep": True, "head": True, "scale": False})  # fmt: skip
    options = {"every": 5, "fused": script is None, **options}
    pool = poise.Pool(jax.devices()[:devices], 0)
    with poise.keep(grad_step, params(), batches, optimizer=tx, pool=pool, listen=[events.append], **options) as keeper:
        done: list[Any] = []

        def between(index: int) -> None:
            if script is not None and index == script.step and not done:
                done.append(strike_memory(keeper.loop, script, np.random.default_rng(5)))

        keeper.loop.between = between
        for _ in range(STEPS):
            keeper.step()
        state = jax.device_get(keeper.state)
        assert script is None or done
    return state, events, keeper


@pytest.fixture(scope="module")
def clean() -> Any:
    return kept()


def same(a: Any, b: Any) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_it_is_optax_to_rounding(clean: Any) -> None:
    mask = {"deep": {"w": True}, "head": True, "scale": False}
    tx = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(optax.cosine_decay_schedule(1e-2, 100), weight_decay=0.02, mask=mask),
    )
    p = jax.tree.map(jnp.asarray, params())
    other = tx.init(p)
    for i in range(STEPS):
        grads, _ = grad_step(p, batches(i))
        updates, other = tx.update(grads, other, p)
        p = optax.apply_updates(p, updates)
    for x, y in zip(jax.tree.leaves(clean[0]["params"]), jax.tree.leaves(p), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5)
    assert int(clean[0]["count"]) == STEPS
    assert not [e for e in clean[1] if isinstance(e, Noticed)]


@pytest.mark.skipif(not kernels.platforms(), reason="there are no compiled kernels")
def test_large_parameters_go_through_the_compiled_pass(clean: Any) -> None:
    loop = clean[2].loop
    chosen = triples(loop.form, loop.workload.traits, loop.stage.placement.mesh)
    assert [loop.form.names[t.leaves[0]] for t in chosen] == ["params.deep.w", "params.head"]
    assert [loop.form.names[i].split(".", 1)[0] for i in chosen[0].leaves] == ["params", "m", "v"]


def test_the_general_way_gives_the_same_to_rounding(clean: Any) -> None:
    with kernels.use("jnp"):
        state, _, keeper = kept()
        assert triples(keeper.loop.form, keeper.loop.workload.traits, keeper.loop.stage.placement.mesh) == ()
    for x, y in zip(jax.tree.leaves(clean[0]), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("leaf", ["params.deep.w", "m.deep.w", "v.head", "params.scale", "count"])
@pytest.mark.parametrize("extent", ["bit", "bank"])
def test_what_goes_bad_before_the_commit_is_mended_in_it(clean: Any, leaf: str, extent: str) -> None:
    state, events, _ = kept(ScriptedFault("bitflip", 7, 0, leaf=leaf, extent=extent))
    assert same(state, clean[0])
    (noticed,) = [e for e in events if isinstance(e, Noticed)]
    assert (noticed.fault.step, noticed.fault.kind) == (7, "memory")
    assert "inside the step" in noticed.reason


@pytest.mark.parametrize("leaf", ["m.deep.w", "params.head"])
def test_damage_beyond_parity_rolls_back(clean: Any, leaf: str) -> None:
    state, events, _ = kept(ScriptedFault("two_banks", 7, 0, leaf=leaf))
    assert same(state, clean[0])
    assert any(e.action.value == "rollback" for e in events if isinstance(e, Noticed))
    assert [e for e in events if isinstance(e, Mended)][-1].compiles == 0


def test_several_devices_carry_parity_each(clean: Any) -> None:
    state, _, _ = kept(devices=2)
    hurt, events, _ = kept(ScriptedFault("bitflip", 6, 1, leaf="v.deep.w", extent="block"), devices=2)
    assert same(state, hurt)
    assert [e.fault.slots for e in events if isinstance(e, Noticed)] == [(1,)]


def test_a_batch_that_is_bad_moves_nothing() -> None:
    tx = optim.adamw(1e-2)
    pool = poise.Pool(jax.devices()[:1], 0)
    with poise.keep(grad_step, params(), batches(0), optimizer=tx, pool=pool) as keeper:
        keeper.step(batches(0))
        before = jax.device_get(keeper.state)
        keeper.step({"x": np.full((8, N), np.nan, np.float32)})
        assert same(before, jax.device_get(keeper.state))
        keeper.step(batches(1))
        assert int(keeper.state["count"]) == 2


def test_narrow_parameters_have_a_wide_master_copy() -> None:
    narrow = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), params())
    seen = []

    def step(p: Any, batch: Any) -> Any:
        seen.append({x.dtype for x in jax.tree.leaves(p)})
        return grad_step(p, batch)

    with poise.keep(
        step, narrow, batches, optimizer=optim.adamw(1e-4), pool=poise.Pool(jax.devices()[:1], 0)
    ) as keeper:
        for _ in range(3):
            keeper.step()
        state = keeper.state
        assert {x.dtype for x in jax.tree.leaves(state["params"])} == {jnp.dtype(jnp.float32)}
        moved = jax.tree.leaves(jax.tree.map(lambda a, b: jnp.abs(a - b).max(), state["params"], narrow))
        assert all(0 < float(x) < 1e-2 for x in moved)
    assert seen == [{jnp.dtype(jnp.bfloat16)}]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda tx: poise.keep(lambda p, b: p, params(), batches, optimizer=tx), "grads, metrics"),
        (lambda tx: poise.keep(lambda p, b: ({}, {}), params(), batches, optimizer=tx), "another structure"),
        (lambda tx: poise.keep(grad_step, {"w": np.arange(3)}, batches, optimizer=tx), "float32 or bfloat16"),
        (lambda tx: poise.keep(grad_step, params(), batches, optimizer=tx, limit=1.0), "gradients"),
        (lambda _: optim.adamw(1e-3, max_norm=0.0), "max_norm"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(call: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        call(optim.adamw(1e-3))


@pytest.mark.parametrize("n", [10, 1 << 14, 1 << 20])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_gradient_is_counted_at_any_size_and_place(n: int, bad: float) -> None:
    count = jax.jit(count_rarely)
    assert int(count(jnp.full(n, 1e38))) == 0
    for at in (0, n // 3, n - 1):
        assert int(count(jnp.ones(n).at[at].set(bad))) == 1
