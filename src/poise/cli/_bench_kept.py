"""What a kept run reaches, next to the same kernels without guards: `poise bench kept`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..devices import Pool
from ..keeper import TrainStep
from ..physics.grid import Burgers2d
from ._engine import measure_overhead
from ._job import Job


def kept() -> list[dict]:
    """A kept field and kept training, each next to the same without guards."""
    return [_field(), _training()]


def _field() -> dict:
    """Kept burgers2d against the unguarded run, per step; cell-steps per second follow from the shape.

    `of_ceiling` is null: a step of Heun's method moves more than one read and one write, so its share of the copy
    bandwidth says nothing.
    """
    gpu = jax.default_backend() != "cpu"
    n, steps = (8192, 120) if gpu else (1024, 120)
    devices = jax.devices() if gpu else jax.devices()[:4]
    count = 1 << (len(devices).bit_length() - 1)
    workload = Burgers2d(n=n)
    cost = measure_overhead(Job("burgers2d"), workload, Pool(devices[:count], 0), steps)
    ours, peer = min(cost.kept_s) / steps, min(cost.unguarded_s) / steps
    return {
        "name": "kept-burgers2d",
        "shape": [n, n],
        "ours_s": ours,
        "peer": "the same step without guards, XLA",
        "peer_s": peer,
        "ratio": peer / ours,
        "of_ceiling": None,
        "device": f"{count} x {devices[0].device_kind}",
        "cell_steps_per_s": n * n / ours,
    }


def _training() -> dict:
    """Kept AdamW on one device: optax's update in a plain training step, whose gradient costs next to nothing."""
    import optax

    n, steps = (1 << 26, 120) if jax.default_backend() != "cpu" else (1 << 20, 60)
    optimizer = optax.adamw(1e-3)
    w = jnp.asarray(np.random.default_rng().normal(size=n).astype(np.float32))

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        params, moments = state
        updates, moments = optimizer.update(params - batch["target"][0], moments, params)
        return (optax.apply_updates(params, updates), moments), {}

    def batch(index: int) -> Any:
        return {"target": np.full(1, 1.0 + index, np.float32)}

    workload = TrainStep(step, (w, optimizer.init(w)), batch, name="adamw")
    devices = jax.devices()[:1]
    cost = measure_overhead(Job("adamw"), workload, Pool(devices, 0), steps, rounds=3)
    ours, peer = min(cost.kept_s) / steps, min(cost.unguarded_s) / steps
    return {
        "name": "kept-adamw",
        "shape": [n],
        "ours_s": ours,
        "peer": "the same step without guards, XLA",
        "peer_s": peer,
        "ratio": peer / ours,
        "of_ceiling": None,
        "device": devices[0].device_kind,
        "parameters_per_s": n / ours,
    }
