"""What a kept run reaches, next to the same kernels without guards: `poise bench kept`."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import kernels
from ..devices import Pool
from ..physics.grid import Burgers2d
from ._engine import measure_overhead
from ._job import Job


def kept() -> list[dict]:
    """A kept field and kept training, each next to the same without guards."""
    return [*_fields(), *_training()]


def _fields() -> list[dict]:
    """Kept burgers2d against the unguarded run, per step, with XLA's stages and with the compiled ones where they are
    there; cell-steps per second follow from the shape.

    `of_ceiling` is null: a step of Heun's method moves more than one read and one write, so its share of the copy
    bandwidth says nothing.
    """
    gpu = jax.default_backend() != "cpu"
    n, steps = (8192, 120) if gpu else (1024, 120)
    devices = jax.devices() if gpu else jax.devices()[:4]
    count = 1 << (len(devices).bit_length() - 1)
    rows = []
    for kernel in ("xla", "native") if kernels.available()["cuda" if gpu else "cpu"] else ("xla",):
        workload = Burgers2d(n=n, kernel=kernel)
        cost = measure_overhead(Job("burgers2d"), workload, Pool(devices[:count], 0), steps)
        ours, peer = min(cost.kept_s) / steps, min(cost.unguarded_s) / steps
        rows.append(
            {
                "name": "kept-burgers2d" if kernel == "xla" else f"kept-burgers2d-{kernel}",
                "shape": [n, n],
                "ours_s": ours,
                "peer": f"the same step without guards, {'XLA' if kernel == 'xla' else 'compiled stages'}",
                "peer_s": peer,
                "ratio": peer / ours,
                "of_ceiling": None,
                "device": f"{count} x {devices[0].device_kind}",
                "cell_steps_per_s": n * n / ours,
            }
        )
    return rows


def _training() -> list[dict]:
    """Kept AdamW on one device, in a training step whose gradient costs next to nothing: poise's, where one pass mends,
    moves and seals, and optax's kept as it is. Both next to optax's without guards, donated."""
    import optax

    import poise

    gpu = jax.default_backend() != "cpu"
    n, steps, rounds = (1 << 28 if gpu else 1 << 22), (40 if gpu else 30), 4
    tx = optax.adamw(1e-3)
    w = jnp.asarray(np.random.default_rng().standard_normal(n, np.float32))

    def grads(params: Any, batch: Any) -> tuple[Any, Any]:
        return params - batch["target"][0], {}

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        params, moments = state
        updates, moments = tx.update(grads(params, batch)[0], moments, params)
        return (optax.apply_updates(params, updates), moments), {}

    def batch(index: int) -> Any:
        return {"target": np.full(1, 1.0 + index, np.float32)}

    pool = Pool(jax.devices()[:1], 0)
    options: dict[str, Any] = {"pool": pool, "every": 10**6}
    bare, plain = jax.jit(step, donate_argnums=0), (jnp.array(w), tx.init(w))
    took: dict[str, list[float]] = {}

    def timed(name: str, run: Any) -> None:
        run(3)
        took[name] = [run(steps) / steps for _ in range(rounds)]

    def run_bare(count: int) -> float:
        nonlocal plain
        t0 = time.perf_counter()
        for i in range(count):
            plain, _ = bare(plain, batch(i))
        jax.block_until_ready(plain)
        return time.perf_counter() - t0

    def run_kept(keeper: poise.Keeper) -> Any:
        def run(count: int) -> float:
            t0 = time.perf_counter()
            for _ in range(count):
                keeper.step()
            keeper.flush()
            return time.perf_counter() - t0

        return run

    timed("bare", run_bare)
    del plain
    for name, keep in (
        ("kept-adamw", lambda: poise.keep(grads, w, batch, optimizer=poise.optim.adamw(1e-3), **options)),
        ("kept-adamw-optax", lambda: poise.keep(step, (w, tx.init(w)), batch, **options)),
    ):
        with keep() as keeper:
            timed(name, run_kept(keeper))
    peer = min(took.pop("bare"))
    return [
        {
            "name": name,
            "shape": [n],
            "ours_s": min(seconds),
            "peer": "optax.adamw's step without guards, XLA",
            "peer_s": peer,
            "ratio": peer / min(seconds),
            "of_ceiling": None,
            "device": jax.devices()[0].device_kind,
            "parameters_per_s": n / min(seconds),
        }
        for name, seconds in took.items()
    ]
