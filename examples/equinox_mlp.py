"""An Equinox model, kept, with a bit flipped in its weights on the way: the losses do not notice."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import poise
from poise.events import Noticed
from poise.faults import Injector, parse_script

optimizer = optax.adamw(1e-2)


def train_step(state, batch):
    model, opt_state = state

    def loss_of(m):
        return jnp.mean((jax.vmap(m)(batch["x"])[:, 0] - batch["y"]) ** 2)

    loss, grads = eqx.filter_value_and_grad(loss_of)(model)
    updates, opt_state = optimizer.update(grads, opt_state, model)
    return (eqx.apply_updates(model, updates), opt_state), {"loss": loss}


def batch(index):
    x = np.random.default_rng(index).normal(size=(32, 8)).astype(np.float32)
    return {"x": x, "y": x.sum(1)}


def losses(faults):
    model = eqx.nn.MLP(8, 1, 32, 2, key=jax.random.key(0))
    state = (model, optimizer.init(eqx.filter(model, eqx.is_array)))
    with poise.keep(train_step, state, batch, pool=poise.Pool(jax.devices()[:1])) as keeper:
        injector = Injector(keeper.loop, parse_script({"fault": faults}))
        keeper.listeners += [injector.hear, lambda e: print(e.reason) if isinstance(e, Noticed) else None]
        found = []
        for i in range(40):
            injector.before(i)
            found.append(float(keeper.step()["loss"]))
        return found


clean = losses([])
struck = losses([{"kind": "bitflip", "step": 10, "extent": "block"}, {"kind": "nan", "step": 20, "leaf": "x"}])
assert struck == clean
print(f"loss {clean[0]:.3f} -> {clean[-1]:.3f}, the same with and without faults")
