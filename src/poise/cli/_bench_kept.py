"""What a kept run reaches, next to the same kernels without guards: `poise bench kept`.

All times are the fastest of a few stretches of steps, snapshots apart (`poise demo` has them in its ratio).
`of_ceiling` is null: these steps move more than one read and one write.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import poise

from .. import kernels
from ..devices import Pool
from ..physics.grid import Burgers2d
from ._engine import Unguarded

ROUNDS = 4
NEVER = 10**6
"""Steps between snapshots: none."""


def kept() -> list[dict]:
    """A kept field and kept training, each next to the same without guards."""
    return [*_fields(), *_training()]


@dataclass(frozen=True)
class Recorded(Burgers2d):
    """With boundary frames that are there: making them takes the host longer than a GPU's step."""

    @cached_property
    def frames(self) -> list[Any]:
        """The first frames, which come again and again."""
        return [super(Recorded, self).batch(index) for index in range(64)]

    def batch(self, index: int) -> Any:
        """One of the frames."""
        return self.frames[index % len(self.frames)]


def _stepped(keeper: poise.Keeper, steps: int) -> float:
    """Seconds of a step, settled."""

    def run(count: int) -> float:
        t0 = time.perf_counter()
        for _ in range(count):
            keeper.step()
        keeper.flush()
        return (time.perf_counter() - t0) / count

    with keeper:
        return _fastest(run, steps)


def _fastest(run: Callable[[int], float], steps: int) -> float:
    run(3)
    return min(run(steps) for _ in range(ROUNDS))


def _row(name: str, shape: list[int], ours: float, peer: str, theirs: float, device: str, **more: float) -> dict:
    return {"name": name, "shape": shape, "ours_s": ours, "peer": peer, "peer_s": theirs, "ratio": theirs / ours,
            "of_ceiling": None, "device": device, **more}  # fmt: skip


def _fields() -> list[dict]:
    """Kept burgers2d against the unguarded run, with XLA's stages and with the compiled ones where they are there."""
    gpu = jax.default_backend() != "cpu"
    n, steps = (8192, 60) if gpu else (1024, 60)
    devices = jax.devices() if gpu else jax.devices()[:4]
    count = 1 << (len(devices).bit_length() - 1)
    pool, start, rows = Pool(devices[:count], 0), Burgers2d(n=n).init()["uv"], []
    for kernel in ("xla", "native") if kernels.available()["cuda" if gpu else "cpu"] else ("xla",):
        workload = Recorded(n=n, kernel=kernel, initial=start)
        plain = Unguarded(workload, pool, poise.Options().depth)
        theirs = _fastest(lambda steps, plain=plain: plain.run(steps) / steps, steps)
        ours = _stepped(poise.Keeper(workload, pool, every=NEVER), steps)
        name = "kept-burgers2d" if kernel == "xla" else f"kept-burgers2d-{kernel}"
        peer = f"the same step without guards, {'XLA' if kernel == 'xla' else 'compiled stages'}"
        device = f"{count} x {devices[0].device_kind}"
        rows.append(_row(name, [n, n], ours, peer, theirs, device, cell_steps_per_s=n * n / ours))
    return rows


def _training() -> list[dict]:
    """Kept AdamW on one device, in a training step whose gradient costs next to nothing: poise's, where one pass mends,
    moves and seals, and optax's kept as it is. Both next to optax's without guards, donated."""
    import optax

    gpu = jax.default_backend() != "cpu"
    n, steps = (1 << 28 if gpu else 1 << 22), (40 if gpu else 30)
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

    def bare_seconds() -> float:
        bare, state = jax.jit(step, donate_argnums=0), (jnp.array(w), tx.init(w))

        def run(count: int) -> float:
            nonlocal state
            t0 = time.perf_counter()
            for i in range(count):
                state, _ = bare(state, batch(i))
            jax.block_until_ready(state)
            return (time.perf_counter() - t0) / count

        return _fastest(run, steps)

    theirs = bare_seconds()
    options: dict[str, Any] = {"pool": Pool(jax.devices()[:1], 0), "every": NEVER}
    rows = []
    for name, keep in (
        ("kept-adamw", lambda: poise.keep(grads, w, batch, optimizer=poise.optim.adamw(1e-3), **options)),
        ("kept-adamw-optax", lambda: poise.keep(step, (w, tx.init(w)), batch, **options)),
    ):
        ours = _stepped(keep(), steps)
        peer, device = "optax.adamw's step without guards, XLA", jax.devices()[0].device_kind
        rows.append(_row(name, [n], ours, peer, theirs, device, parameters_per_s=n / ours))
    return rows
