"""What a kept run reaches, next to the same kernels without guards: `poise bench kept`."""

from __future__ import annotations

import jax

from ..devices import Pool
from ..physics.grid import Burgers2d
from ._engine import measure_overhead
from ._job import Job


def kept() -> list[dict]:
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
    return [
        {
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
    ]
