"""What `poise.keep` costs: kept time over the same training step under `jax.jit`, for models of growing size.

python benchmarks/keep.py [--devices N]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import poise
from poise.cli._platform import cpu_devices

MODELS = {
    "tiny": {"width": 64, "layers": 2, "batch": 32},
    "small": {"width": 512, "layers": 4, "batch": 64},
    "realistic": {"width": 1024, "layers": 6, "batch": 1024},
}


def training(width: int, layers: int, batch: int) -> tuple[Any, Any, Any]:
    """An MLP with AdamW: the step, its first state, and a function from index to batch."""
    optimizer = optax.adamw(1e-3)
    keys = jax.random.split(jax.random.key(0), layers)
    params = [jax.random.normal(k, (width, width)) / np.sqrt(width) for k in keys]

    def step(state: Any, data: Any) -> tuple[Any, Any]:
        params, opt_state = state

        def loss_of(ps: Any) -> jax.Array:
            x = data["x"]
            for p in ps[:-1]:
                x = jax.nn.gelu(x @ p)
            return jnp.mean((x @ ps[-1] - data["x"]) ** 2)

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {"loss": loss}

    x = np.random.default_rng(0).normal(size=(batch, width)).astype(np.float32)
    return step, (params, optimizer.init(params)), lambda index: {"x": x}


def seconds(once: Any, steps: int) -> float:
    """Seconds per step of `once(steps)`."""
    t0 = time.perf_counter()
    once(steps)
    return (time.perf_counter() - t0) / steps


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1)
    args = parser.parse_args()
    cpu_devices(args.devices)
    print(f"{args.devices} x {jax.devices()[0].device_kind}, JAX {jax.__version__}\n")
    print("| model | parameters | batch | jitted step, ms | kept / jitted |\n|---|---|---|---|---|")
    for name, size in MODELS.items():
        step, state, batch = training(**size)
        jitted = jax.jit(step, donate_argnums=0)
        steps = max(6, int(2.0 / (6e-9 * size["width"] ** 2 * size["layers"] * size["batch"] * 0.02 + 2e-3)) // 8)
        pool = poise.Pool(jax.devices()[: args.devices], 0)
        with poise.keep(step, state, batch, pool=pool, every=50) as keeper:
            plain = jax.tree.map(lambda x: jnp.array(x, copy=True), state)

            def run_plain(n: int, jitted: Any = jitted, batch: Any = batch) -> None:
                nonlocal plain
                for i in range(n):
                    plain, metrics = jitted(plain, batch(i))
                    jax.block_until_ready(metrics)

            def run_kept(n: int, keeper: poise.Keeper = keeper) -> None:
                keeper.run(keeper.settled + n)

            run_plain(2)
            run_kept(2)
            kept, bare = [], []
            for _ in range(4):
                kept.append(seconds(run_kept, steps))
                bare.append(seconds(run_plain, steps))
        count = sum(x.size for x in jax.tree.leaves(state[0]))
        ratio = statistics.median(kept) / min(bare)
        print(f"| {name} | {count:,} | {size['batch']} | {1e3 * min(bare):.2f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
