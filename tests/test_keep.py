"""`poise.keep` around plain training steps."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import poise
from poise.errors import BadInput, Stopped
from poise.events import Noticed, Swapped
from poise.faults import Injector, parse_script

OPT = optax.adam(1e-2)


def data(steps: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": (x := rng.normal(size=(16, 8)).astype(np.float32)), "y": x.sum(1)} for _ in range(steps)]


def bare() -> tuple[Any, Any]:
    params = {"w": jnp.zeros(8), "b": jnp.zeros(())}

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        params, opt_state, key, best, count = state
        key, sub = jax.random.split(key)

        def loss_of(p: Any) -> jax.Array:
            x = batch["x"] + 0.01 * jax.random.normal(sub, batch["x"].shape)
            return jnp.mean((x @ p["w"] + p["b"] - batch["y"]) ** 2)

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, opt_state = OPT.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return (params, opt_state, key, jnp.minimum(best, loss), count + 1), {"loss": loss}

    return step, (params, OPT.init(params), jax.random.key(3), np.inf, 0)


def equinox() -> tuple[Any, Any]:
    model = eqx.nn.MLP(8, 1, 16, 1, key=jax.random.key(0))

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        model, opt_state = state

        def loss_of(m: Any) -> jax.Array:
            return jnp.mean((jax.vmap(m)(batch["x"])[:, 0] - batch["y"]) ** 2)

        loss, grads = eqx.filter_value_and_grad(loss_of)(model)
        updates, opt_state = OPT.update(grads, opt_state, model)
        return (eqx.apply_updates(model, updates), opt_state), {"loss": loss}

    return step, (model, OPT.init(eqx.filter(model, eqx.is_array)))


def train(
    made: tuple[Any, Any], script: list[dict[str, Any]], active: int, spares: int
) -> tuple[list[float], str, Any, list]:
    step, state = made
    events: list[Any] = []
    pool = poise.Pool(jax.devices()[: active + spares], spares)
    batches = data(16)
    with poise.keep(step, state, batches[0], pool=pool, every=5, listen=[events.append]) as keeper:
        injector = Injector(keeper.loop, parse_script({"fault": script}))
        keeper.listeners.append(injector.hear)
        metrics = []
        for i, batch in enumerate(batches):
            injector.before(i)
            metrics.append(keeper.step(batch))
            injector.after(i)
        return [float(m["loss"]) for m in metrics], keeper.fingerprint(), keeper.state, events


# Every placement is compiled for: two devices show a loss and a drain as well as more do.
@pytest.mark.parametrize(("made", "active", "spares"), [(bare, 1, 0), (equinox, 1, 0), (bare, 2, 2), (equinox, 2, 1)])
def test_training_is_kept_bit_for_bit(made: Any, active: int, spares: int) -> None:
    script = [
        {"kind": "nan", "step": 2, "leaf": "x"},
        {"kind": "bitflip", "step": 4, "extent": "block"},
        {"kind": "bitflip", "step": 6, "where": "marks"},
        {"kind": "two_banks", "step": 8},
    ]
    if spares:
        script += [{"kind": "lost", "step": 10, "slot": 1}]
    if spares > 1:
        script += [{"kind": "drain", "step": 12, "slot": 0}]
    losses, mark, state, _ = train(made(), [], active, 0)  # a clean run needs no spares warmed
    struck, struck_mark, _, events = train(made(), script, active, spares)
    assert struck == losses
    assert struck_mark == mark
    assert losses[-1] < losses[0]
    assert jax.tree.structure(state) == jax.tree.structure(made()[1])
    noticed = [e for e in events if isinstance(e, Noticed)]
    assert len(noticed) == len(script)
    for swap in (e for e in events if isinstance(e, Swapped)):
        assert swap.compiles == 0
        assert swap.source == ("replica" if swap.cause == "lost" else "copy")


def test_a_replica_heals_what_no_parity_could(capsys: Any) -> None:
    _, _, _, events = train(bare(), [{"kind": "two_banks", "step": 5, "slot": 1}], 2, 0)
    (noticed,) = [e for e in events if isinstance(e, Noticed)]
    assert noticed.action.value == "repair"


def test_infinities_that_were_there_before_are_legitimate() -> None:
    losses, _, state, events = train(bare(), [], 1, 0)
    assert not [e for e in events if isinstance(e, Noticed)]
    assert float(state[3]) == min(losses)
    assert int(state[4]) == 16


def test_keeping_does_not_change_the_numbers() -> None:
    step, state = bare()
    losses, _, _, _ = train((step, state), [], 1, 0)
    plain, jitted = state, jax.jit(step)
    for batch, loss in zip(data(16), losses, strict=True):
        plain, metrics = jitted(plain, batch)
        assert float(metrics["loss"]) == pytest.approx(loss, rel=1e-5)


def test_a_diverging_model_stops_with_a_sentence() -> None:
    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        return state * 1e30, {}

    pool = poise.Pool(jax.devices()[:1])
    with (
        poise.keep(step, jnp.ones(4), jnp.zeros(1), pool=pool, droppable=False) as keeper,
        pytest.raises(Stopped, match="inf in state"),
    ):
        for _ in range(8):
            keeper.step(np.zeros(1, np.float32))


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (lambda s, b: s, "must return"),
        (lambda s, b: ({"x": s["w"]}, {}), "structure"),
        (lambda s, b: ({"w": s["w"][:2]}, {}), "keep shapes"),
        (lambda s, b: ({"w": s["w"].astype(jnp.float16)}, {}), "keep shapes"),
    ],
)
def test_steps_that_cannot_be_kept_are_refused(step: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        poise.keep(step, {"w": jnp.zeros(4)}, np.zeros(1, np.float32), pool=poise.Pool(jax.devices()[:1]))


def test_wrong_batches_and_unknown_options_are_refused() -> None:
    step, state = bare()
    pool = poise.Pool(jax.devices()[:1])
    with pytest.raises(BadInput, match="Unknown options"):
        poise.keep(step, state, data(1)[0], pool=pool, evry=3)
    with poise.keep(step, state, data(1)[0], pool=pool) as keeper:
        with pytest.raises(BadInput, match="'x' is"):
            keeper.step({"x": np.zeros((3, 8), np.float32), "y": np.zeros(16, np.float32)})
        with pytest.raises(BadInput, match="structure"):
            keeper.step({"x": np.zeros((16, 8), np.float32)})
        keeper.step(data(1)[0])
        with pytest.raises(BadInput, match="no source"):
            keeper.step()
