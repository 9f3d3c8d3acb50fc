"""A plain JAX training step with optax, kept: eight lines around the step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import poise

optimizer = optax.adam(1e-2)
params = {"w": jnp.zeros(8), "b": jnp.zeros(())}


def train_step(state, batch):
    params, opt_state = state

    def loss_of(p):
        return jnp.mean((batch["x"] @ p["w"] + p["b"] - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), {"loss": loss}


def batch(index):
    x = np.random.default_rng(index).normal(size=(32, 8)).astype(np.float32)
    return {"x": x, "y": x.sum(1)}


state = (params, optimizer.init(params))
with poise.keep(train_step, state, batch, journal="bare.db") as keeper:
    for _ in range(100):
        metrics = keeper.step()  # survives NaN, bit flips and lost devices
    print(f"loss {float(metrics['loss']):.4f} after {keeper.settled} steps")
