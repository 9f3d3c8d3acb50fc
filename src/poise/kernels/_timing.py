"""How `poise bench` measures a kernel: the clock, fresh random inputs, the copy bandwidth, a line of its table.

`ratio` = peer's time / our time; `of_ceiling` = effective throughput / copy bandwidth, where effective means the bytes
that one plain step would move (a stencil step: one read and one write of the field; AdamW: 28 bytes a parameter).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


class Row(TypedDict):
    """One line of `poise bench`."""

    name: str
    shape: list[int]
    ours_s: float
    peer: str
    peer_s: float
    ratio: float
    of_ceiling: float
    device: str


class Rule(NamedTuple):
    """The gate of the benchmarks."""

    limit: float = 1e6
    markers: tuple[float, ...] = ()
    tolerance: float = 1e-3
    fill: float = 0.0


RULE = Rule()


def on_gpu() -> bool:
    """Whether the default backend is a GPU."""
    return jax.default_backend() == "gpu"


def seconds(call: Callable[[], Any], repeats: int = 7) -> float:
    """Median time of one call, ours or a peer's. On a GPU five are in flight together, so that the host's launching and
    waiting, some 0.2 ms, is spread over them."""
    inner = 5 if on_gpu() else 1
    jax.block_until_ready(call())
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        out = None
        for _ in range(inner):
            out = call()
        jax.block_until_ready(out)
        times.append((time.perf_counter() - start) / inner)
    return float(np.median(times))


def noise(shape: Sequence[int], dtype: Any = jnp.float32, scale: float = 1.0) -> Array:
    """Fresh normal values, never the same twice."""
    seed = int(np.random.default_rng().integers(2**31))
    make = jax.jit(lambda k: scale * jax.random.normal(k, tuple(shape), dtype))
    return jax.block_until_ready(make(jax.random.key(seed)))


def copy_bandwidth() -> float:
    """Bytes per second, read and written, of a plain copy with everything the device has."""
    if on_gpu():
        x = noise((1 << 29,))
        flip = jax.jit(lambda y: -y)
        return 2 * x.nbytes / seconds(lambda: flip(x))
    from concurrent.futures import ThreadPoolExecutor
    from os import sched_getaffinity

    a, width = np.random.default_rng().random(1 << 24, np.float32), len(sched_getaffinity(0))
    b = np.zeros_like(a)
    parts = np.array_split(np.arange(a.size), width)
    cuts = [(int(p[0]), int(p[-1]) + 1) for p in parts]
    with ThreadPoolExecutor(width) as pool:

        def both() -> None:
            list(pool.map(lambda c: np.copyto(b[c[0] : c[1]], a[c[0] : c[1]]), cuts))

        return 2 * a.nbytes / min(seconds(both, 3) for _ in range(3))


def row(name: str, shape: Sequence[int], ours: float, peer: str, peer_s: float, moved: float, copy: float) -> Row:
    """A line: `moved` are the bytes that one plain step would move, `copy` the copy bandwidth."""
    kind = jax.devices()[0].device_kind
    return Row(
        name=name,
        shape=list(shape),
        ours_s=ours,
        peer=peer,
        peer_s=peer_s,
        ratio=peer_s / ours,
        of_ceiling=moved / ours / copy,
        device=kind,
    )


def agree(ours: Array, theirs: Array, what: str, tolerance: float) -> None:
    """Raise `AssertionError` if two results differ by more than `tolerance` of the largest value."""
    worst = float(jnp.abs(ours - theirs).max() / (jnp.abs(theirs).max() + 1e-30))
    if not bool(jnp.isfinite(ours).all()):  # said apart: XLA's maximum on a CPU may lose a NaN
        raise AssertionError(f"{what}: not finite everywhere")
    if not worst <= tolerance:
        raise AssertionError(f"{what}: differs from its peer by {worst:.1e}, more than {tolerance:.0e}")
