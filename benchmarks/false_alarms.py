"""Healthy sensors over many frames: how many does `Nudge` name falsely? And broken ones: how soon are all named?

    python benchmarks/false_alarms.py [--records N] [--frames N] [--seed N]

All in one compiled loop on the default device: a moving front (the travelling wave of viscous Burgers), normal noise.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from poise.cli._stream_job import StreamJob
from poise.physics.rules import Nudge, NudgeState

FAIL_AT = 20


def truth(t: jax.Array, x: jax.Array, y: jax.Array, nu: float) -> jax.Array:
    """The exact field, (2, rows, columns)."""
    s = 0.25 * jax.nn.sigmoid((4 * x - 4 * y + t) / (32 * nu))
    return jnp.stack((0.75 - s, 0.75 + s))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def run(job: StreamJob, rule: Nudge, frames: int, share: float, key: jax.Array) -> tuple[jax.Array, ...]:
    """For every sensor the frame that first named it (-1: none), whether it was broken, the error and restarts."""
    g = job.geometry
    y = (jnp.arange(g.rows, dtype=jnp.float32) * g.dy)[:, None]
    x = (jnp.arange(g.columns, dtype=jnp.float32) * g.dx)[None, :]
    shape = (2, g.rows, g.columns)
    gain, status = jnp.full(shape[1:], 0.1, jnp.float32), jnp.zeros(shape[1:], jnp.uint32)
    key, which, kind = jax.random.split(key, 3)
    broken = jax.random.uniform(which, shape) < share
    how = jax.random.randint(kind, shape, 0, 4)
    # The front crosses the domain once, whatever the number of frames.
    dt = min(g.dt, 3.0 / frames)

    def frame(k: jax.Array, carry: tuple) -> tuple:
        state, last, named, key, restarts, _ = carry
        key, noise, sign = jax.random.split(key, 3)
        field = truth(-1.5 + k * jnp.float32(dt), x, y, job.nu or 1.0)
        good = field + job.noise * jax.random.normal(noise, shape)
        spike = good + jnp.where(jax.random.bernoulli(sign, 0.5, shape), job.size, -job.size)
        bad = jnp.select([how == 0, how == 1, how == 2], [jnp.float32(-99), jnp.float32(jnp.nan), last], spike)
        said = jnp.where(broken & (k >= FAIL_AT), bad, good)
        after, lost = rule(state, said, gain, status)
        after = lax.cond(lost, lambda: rule.restart(state, said, gain, status), lambda: after)
        named = jnp.where((named < 0) & (after.watch.code != 0), k, named)
        error = jnp.linalg.norm((after.estimate - field).ravel()) / jnp.linalg.norm(field.ravel())
        return after, said, named, key, restarts + lost, error

    state: NudgeState = rule.init(g.rows, g.columns)
    carry = (state, jnp.zeros(shape), jnp.full(shape, -1, jnp.int32), key, jnp.int32(0), jnp.float32(0))
    _, _, named, _, restarts, error = lax.fori_loop(0, frames, frame, carry)
    return named, broken, error, restarts


def measure(records: int, frames: int, seed: int) -> dict[str, object]:
    """Healthy sensors over all frames; then a tenth broken over a few."""
    rows = next(r for r in range(math.isqrt(records), 0, -1) if records % r == 0)
    job = StreamJob(rows=rows, columns=records // rows).fitted()
    small = StreamJob(rows=rows, columns=records // rows, dt=min(job.dt or 1, 3.0 / frames)).fitted()
    t0 = time.perf_counter()
    named, _, error, restarts = jax.block_until_ready(
        run(small, small.make_rule(small.geometry), frames, 0.0, jax.random.key(seed))  # type: ignore[arg-type]
    )
    seconds = time.perf_counter() - t0
    rule = job.make_rule(job.geometry)
    struck, broken, struck_error, _ = run(job, rule, 200, 0.1, jax.random.key(seed + 1))  # type: ignore[arg-type]
    clean_error = run(job, rule, 200, 0.0, jax.random.key(seed + 1))[2]  # type: ignore[arg-type]
    return {
        "records": records, "frames": frames, "sensor_frames": 2 * records * frames,
        "falsely_named": int((named >= 0).sum()), "rel_l2": float(error), "restarts": int(restarts), "seconds": seconds,
        "broken": int(broken.sum()), "missed": int((broken & (struck < 0)).sum()),
        "named_within_frames": int(jnp.where(broken, struck - FAIL_AT + 1, 0).max()),
        "falsely_named_beside_broken": int((~broken & (struck >= 0)).sum()),
        "rel_l2_healthy": float(clean_error), "rel_l2_tenth_broken": float(struck_error),
        "device": jax.devices()[0].device_kind,
    }  # fmt: skip


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1024)
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(json.dumps(measure(args.records, args.frames, args.seed), indent=2))


if __name__ == "__main__":
    main()
