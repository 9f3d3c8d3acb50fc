"""A workload of your own: the heat equation on a ring, cut over the devices.

Run it with `poise run my_workload:Ring` from this folder (PYTHONPATH=.), or as a script.
"""

from dataclasses import dataclass

import jax
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import poise


@dataclass(frozen=True)
class Ring:
    n: int = 4096
    steps: int = 200

    name = "ring"
    traits = poise.Traits(limit=1e3)

    def axes(self, n):
        return {"x": n}

    def init(self):
        return {"heat": np.random.default_rng(0).random(self.n, dtype=np.float32)}

    def state_specs(self):
        return {"heat": P("x")}

    proposal_specs = state_specs

    def batch_specs(self):
        return {"source": P()}

    def batch(self, index):
        return {"source": np.float32(np.sin(0.1 * index))}

    def propose(self, mesh, state, batch):
        def local(u, s):
            n = lax.axis_size("x")
            west = lax.ppermute(u[-1:], "x", [(i, (i + 1) % n) for i in range(n)])
            east = lax.ppermute(u[:1], "x", [(i, (i - 1) % n) for i in range(n)])
            padded = lax.concatenate((west, u, east), 0)
            return u + 0.25 * (padded[:-2] - 2 * u + padded[2:]) + 1e-3 * s

        step = jax.shard_map(local, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
        return {"heat": step(state["heat"], batch["source"])}, {}

    def commit(self, state, proposal):
        return proposal


if __name__ == "__main__":
    with poise.Keeper(Ring(), poise.Pool(jax.devices(), 0)) as keeper:
        keeper.run(200)
        print(f"mean heat {float(np.asarray(keeper.state['heat']).mean()):.4f}, fingerprint {keeper.fingerprint()}")
