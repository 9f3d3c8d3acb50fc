"""Marks and parity for any pytree: flip a bit, find it, mend it."""

import jax
import jax.numpy as jnp

import poise

state = {"w": jax.random.normal(jax.random.key(0), (300, 700)), "key": jax.random.key(1), "step": 7}
sealed = poise.seal(state)
print(f"spare: {100 * sealed.spare_bytes / state['w'].nbytes:.1f} % of the state")

rotten = sealed.data | {"w": sealed.data["w"].at[123, 456].multiply(-1.0)}
damaged = poise.Sealed(rotten, sealed.seals, sealed.groups, sealed.spare)
print("verify:", poise.verify(damaged))

mended, report = poise.repair(damaged)
print("repair:", report)
assert jnp.array_equal(mended.data["w"], state["w"])
assert poise.verify(mended).ok
