"""What `poise bench` measures of the kernels: ours and a peer side by side, in one run, on fresh random inputs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from . import ref, ref_adamw, ref_stencil
from ._bench_adamw import adamw_hyper, adamw_rows
from ._seal import check, limit_bits, seal, seal_counting
from ._stencil import gate_scan, stencil
from ._timing import RULE, Row, Rule, agree, copy_bandwidth, noise, on_gpu, row, seconds
from .ref import Seal


def _stencil(name: str, shape: tuple[int, ...], dtype: Any, steps: int, passes: int, copy: float) -> Row:
    axes = len(shape)
    k = np.full((axes, 3), 0.05)
    k[:, 1] = (1 - 0.1 * axes) / axes
    coefficients = jnp.array(k, dtype)
    edges: tuple[ref_stencil.Edge, ...] = ("periodic",) * axes

    @jax.jit
    def ours(u: Array) -> Array:
        for _ in range(passes):
            u = stencil(u, coefficients, RULE, steps=steps, edges=edges)[0]
        return u

    @jax.jit
    def peer(u: Array) -> Array:
        def body(_: int, v: Array) -> Array:
            out = coefficients[:, 1].sum() * v
            for axis in range(axes):
                out = out + coefficients[axis, 0] * (jnp.roll(v, 1, axis) + jnp.roll(v, -1, axis))
            return jnp.where(jnp.abs(out) <= RULE.limit, out, jnp.asarray(RULE.fill, dtype))

        return lax.fori_loop(0, steps, body, u)

    u = noise(shape, dtype)
    once = jax.jit(lambda v: stencil(v, coefficients, RULE, steps=steps, edges=edges)[0])
    agree(once(u), peer(u), name, 1e-5 if dtype == jnp.float32 else 1e-12)
    mine = seconds(lambda: ours(u)) / (passes * steps)
    theirs = seconds(lambda: peer(u)) / steps
    moved = 2.0 * u.nbytes
    return row(name, shape, mine, "XLA, one gated step per pass", theirs, moved, copy)


def _scan(n: int, copy: float) -> Iterator[Row]:
    x = noise((n,))
    ours = jax.jit(lambda x: gate_scan(x, RULE))
    clean, found = ours(x.at[n // 3].set(jnp.nan))
    if [int(v) for v in found] != [1, 0, 0, 0, n // 3] or not bool(jnp.isfinite(clean).all()):
        raise AssertionError("gate-scan: wrong counts")
    del clean
    mine = seconds(lambda: ours(x))
    scaled, scanned = jax.jit(lambda x: x * 1.5), jax.jit(lambda x: ref_stencil.gate_scan(x, RULE))
    scale = seconds(lambda: scaled(x))
    twin = seconds(lambda: scanned(x))
    yield row("gate-scan", (n,), mine, "plain scale pass x*c in XLA, no gate", scale, 2.0 * x.nbytes, copy)
    yield row("gate-scan", (n,), mine, "the same in XLA (count and first index)", twin, 2.0 * x.nbytes, copy)


def _records_rows(n: int, copy: float) -> Iterator[Row]:
    from ._records import pack, unpack, update_records, update_twin

    rows = jax.jit(lambda x: lax.bitcast_convert_type(x, jnp.uint32))(noise((n, 8), scale=0.1))
    rows = jax.jit(lambda r: r.at[:, 5].set(0).at[:, 2].set(r[:, 2] & jnp.uint32(0x7FFFFFFF)))(rows)
    moved = 2.0 * rows.nbytes
    channels = jax.jit(unpack)(rows)
    if not bool((jax.jit(pack)(channels) == rows).all()) or not bool((channels == rows.T).all()):
        raise AssertionError("pack, unpack: differ from the transpose")
    for name, mine, arg in (("pack", pack, channels), ("unpack", unpack, rows)):
        ours_s = seconds(partial(jax.jit(mine), arg))
        peer_s = seconds(partial(jax.jit(jnp.transpose), arg))
        yield row(name, (n, 8), ours_s, "transpose in XLA", peer_s, moved, copy)
    del channels
    g, hyper = noise((n,)), jnp.stack(adamw_hyper())
    step = jax.jit(lambda r, g: update_records(r, g, hyper, "pim", RULE)[0], donate_argnums=0)
    twin = jax.jit(lambda r, g: update_twin(r, g, hyper, "pim", RULE)[0], donate_argnums=0)
    ours, theirs = (ref_adamw.floats(f(jnp.copy(rows), g)[:, 0]) for f in (step, twin))
    agree(ours, theirs, "record-update", 1e-5)
    held = [rows]
    del rows, ours, theirs

    def run(f: Callable[[Array, Array], Array]) -> Array:
        held[0] = f(held[0], g)
        return held[0]

    ours_s = seconds(lambda: run(step))
    peer_s = seconds(lambda: run(twin))
    yield row("record-update", (n, 8), ours_s, "the same in XLA on an (n, 8) view", peer_s, moved, copy)


def _gradient(n: int, copy: float) -> Iterator[Row]:
    from ._gradient import gradient_twin, record_gradient

    rule = Rule(markers=(-99.0, -999.0))
    rows = jax.jit(lambda x: lax.bitcast_convert_type(x, jnp.uint32))(noise((n, 8)))
    flux = noise((n,)).at[n // 3].set(jnp.nan)
    step = jax.jit(lambda r, f: record_gradient(r, 0.5, rule, flux=f), donate_argnums=0)
    twin = jax.jit(lambda r, f: gradient_twin(r, f, None, n, 1.0, rule), donate_argnums=0)
    (a, broken), (b, _) = step(jnp.copy(rows), flux), twin(jnp.copy(rows), flux)
    if [int(v) for v in broken] != [3, n // 3 - 1]:
        raise AssertionError("record-gradient: wrong counts")
    agree(ref_adamw.floats(a[:, 1]), ref_adamw.floats(b[:, 1]), "record-gradient", 1e-6)
    moved = 2.0 * rows.nbytes
    held = [rows]
    del rows, a, b

    def run(f: Callable[[Array, Array], Any]) -> Array:
        held[0] = f(held[0], flux)[0]
        return held[0]

    ours_s = seconds(lambda: run(step))
    peer_s = seconds(lambda: run(twin))
    yield row("record-gradient", (n, 8), ours_s, "the same in XLA on an (n, 8) view", peer_s, moved, copy)


def _burgers(n: int, copy: float) -> Iterator[Row]:
    from ._burgers import burgers_stage, burgers_stage_sealed, burgers_twin

    q, base, forcing = noise((2, n, n)), noise((2, n, n)), noise((2,))
    ghosts = noise((2, 1, n)), noise((2, 1, n)), noise((2, n, 1)), noise((2, n, 1))
    h, nu, weights = 1 / n, 1e-3, (0.5, 0.5, 1e-5)
    numbers = np.array([0.5 / h, nu / h**2, *weights])
    ours = jax.jit(lambda q, b: burgers_stage(q, b, *ghosts, forcing, h=h, nu=nu, weights=weights))
    twin = jax.jit(lambda q, b: burgers_twin(q, b, *ghosts, forcing, numbers=numbers))
    agree(ours(q, base), twin(q, base), "burgers-stage", 1e-5)
    mine, theirs = seconds(lambda: ours(q, base)), seconds(lambda: twin(q, base))
    yield row("burgers-stage", (2, n, n), mine, "the same in XLA", theirs, 3.0 * q.nbytes, copy)

    bits, kept = limit_bits(1e6), jax.jit(seal)(base)
    options: Any = {"h": h, "nu": nu, "weights": weights, "bits": bits}
    together = jax.jit(lambda q, b, s: burgers_stage_sealed(q, b, *ghosts, forcing, s, **options))

    @jax.jit
    def apart(q: Array, b: Array, s: Seal) -> Any:
        out = burgers_stage(q, b, *ghosts, forcing, h=h, nu=nu, weights=weights)
        return out, *seal_counting(out, bits), check(b, s)

    words = [[np.asarray(x).view(np.uint32) for x in jax.tree.leaves(f(q, base, kept))] for f in (together, apart)]
    if not all(map(np.array_equal, *words)):
        raise AssertionError("burgers-stage-sealed: not what stage, seal and check make")
    del words
    sealed = seconds(lambda: together(q, base, kept))
    three = seconds(lambda: apart(q, base, kept))
    moved = 3.12 * q.nbytes  # a seal is read and one is written
    yield row("burgers-stage-sealed", (2, n, n), sealed, "stage, then seal and check", three, moved, copy)
    yield row("burgers-stage-sealed", (2, n, n), sealed, "the stage alone, unprotected", mine, moved, copy)


def _seal(n: int, copy: float) -> Iterator[Row]:
    words = lax.bitcast_convert_type(noise((n,)), jnp.uint32)
    kept = jax.jit(seal)(words)
    for name, mine, theirs, args in (
        ("seal", seal, ref.seal, (words,)),
        ("seal-check", check, ref.check, (words, kept)),
    ):
        ours_s = seconds(partial(jax.jit(mine), *args))
        peer_s = seconds(partial(jax.jit(theirs), *args))
        yield row(name, (n,), ours_s, "the same in XLA", peer_s, 1.06 * words.nbytes, copy)


def bench(names: Sequence[str] | None = None) -> list[Row]:
    """Rows whose name contains one of `names` (all, if none)."""
    gpu, copy = on_gpu(), copy_bandwidth()
    f32, f64 = jnp.float32, jnp.float64
    jobs: list[tuple[str, Callable[[], Iterator[Row]]]] = []

    def add_stencil(name: str, shape: tuple[int, ...], dtype: Any, steps: int, passes: int) -> None:
        def job() -> Iterator[Row]:
            with jax.enable_x64(dtype == f64):
                yield _stencil(name, shape, dtype, steps, passes, copy)

        jobs.append((name, job))

    if gpu:
        add_stencil("stencil2d", (8192, 8192), f32, 8, 10)
        add_stencil("stencil2d-f64", (8192, 8192), f64, 6, 10)
        add_stencil("stencil2d-small", (2048, 2048), f32, 8, 20)
        add_stencil("stencil3d", (512, 512, 512), f32, 4, 10)
    else:
        add_stencil("stencil2d", (4096, 4096), f32, 20, 2)
        add_stencil("stencil2d-f64", (2048, 2048), f64, 16, 2)
        add_stencil("stencil3d", (256, 256, 256), f32, 4, 2)
    jobs.append(("adamw-sealed", lambda: adamw_rows(1 << 28 if gpu else 1 << 24, copy)))
    jobs.append(("gate-scan", lambda: _scan(1 << 29 if gpu else 1 << 24, copy)))
    jobs.append(("record-update, pack, unpack", lambda: _records_rows(1 << 26 if gpu else 1 << 20, copy)))
    jobs.append(("record-gradient", lambda: _gradient(1 << 26 if gpu else 1 << 20, copy)))
    jobs.append(("burgers-stage", lambda: _burgers(8192 if gpu else 2048, copy)))
    jobs.append(("seal", lambda: _seal(1 << 29 if gpu else 1 << 24, copy)))
    rows: list[Row] = []
    for name, job in jobs:
        if not names or any(want in name for want in names):
            rows.extend(job())
            gc.collect()
    return rows
