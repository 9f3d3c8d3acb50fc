"""What `poise bench` measures of the kernels: ours and a peer side by side, in one run, on fresh random inputs.

`ratio` = peer's time / our time; `of_ceiling` = effective throughput / copy bandwidth, where effective means the bytes
that one plain step would move (a stencil step: one read and one write of the field; AdamW: 28 bytes a parameter).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from . import _native, ref, ref_adamw, ref_stencil
from ._adamw import adamw
from ._seal import check, seal
from ._stencil import gate_scan, stencil


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


def _on_gpu() -> bool:
    return jax.default_backend() == "gpu"


def seconds(call: Callable[[], Any], repeats: int = 7, inner: int = 1) -> float:
    """Median time of one call, `inner` of them in flight together."""
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
    if _on_gpu():
        x = noise((1 << 29,))
        flip = jax.jit(lambda y: -y)
        return 2 * x.nbytes / seconds(lambda: flip(x), inner=5)
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


def _row(name: str, shape: Sequence[int], ours: float, peer: str, peer_s: float, moved: float, copy: float) -> Row:
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


def _agree(ours: Array, theirs: Array, what: str, tolerance: float) -> None:
    worst = float(jnp.abs(ours - theirs).max() / (jnp.abs(theirs).max() + 1e-30))
    if not worst <= tolerance:
        raise AssertionError(f"{what}: differs from its peer by {worst:.1e}, more than {tolerance:.0e}")


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
    _agree(once(u), peer(u), name, 1e-5 if dtype == jnp.float32 else 1e-12)
    mine = seconds(lambda: ours(u), inner=2) / (passes * steps)
    theirs = seconds(lambda: peer(u), 3) / steps
    moved = 2.0 * u.nbytes
    return _row(name, shape, mine, "XLA, one gated step per pass", theirs, moved, copy)


def _adamw_hyper() -> ref_adamw.Hyper:
    values = (1e-3, 0.9, 0.1, 0.999, 0.001, 1e-8, 0.01, 1 / (1 - 0.9**5), 1 / (1 - 0.999**5), 1.0)
    return ref_adamw.Hyper(*map(jnp.float32, values))


def _sealed_state(n: int) -> tuple[ref_adamw.State, Array]:
    def words(x: Array) -> Array:
        return lax.bitcast_convert_type(x, jnp.uint32)

    made = []
    for scale in (1.0, 0.1, None):
        x = noise((n,), scale=scale or 0.1)
        w = jax.jit(lambda x, square=scale is None: words(x * x if square else x))(x)
        made.append(ref_adamw.Sealed(w, jax.jit(seal)(w)))
    return ref_adamw.State(*made), noise((n,))


def _adamw(n: int, copy: float) -> Iterator[Row]:
    state, g = _sealed_state(n)
    hyper = _adamw_hyper()
    step = jax.jit(lambda s, g: adamw(s, g, hyper, jnp.bool_(True))[0:2], donate_argnums=0)
    if n <= 1 << 24:
        with _native_off():
            plain = jax.jit(lambda s, g: adamw(s, g, hyper, jnp.bool_(True))[0])(state, g)
        _agree(ref_adamw.floats(jax.jit(lambda s, g: adamw(s, g, hyper, jnp.bool_(True))[0])(state, g).w.words),
               ref_adamw.floats(plain.w.words), "adamw-sealed", 1e-5)  # fmt: skip
    held = [state]
    del state

    def ours() -> Any:
        held[0], report = step(held[0], g)
        return report

    mine = seconds(ours, inner=5)
    off = [int(x) for s in held[0] for x in jax.jit(check)(s.words, s.seal)]
    if any(off) or any(int(v) for r in ours() for v in r):
        raise AssertionError(f"adamw-sealed: false alarms {off}")
    held.clear()
    gc.collect()
    theirs = _optax_adamw(n)
    yield _row("adamw-sealed", (n,), mine, "optax.adamw under jit, unprotected", theirs, 28.0 * n, copy)
    if _on_gpu() and (torch_s := _torch_adamw(n)):
        yield _row("adamw-sealed", (n,), mine, "torch fused AdamW, unprotected", torch_s, 28.0 * n, copy)


def _optax_adamw(n: int) -> float:
    import optax

    g = noise((n,))
    tx = optax.adamw(1e-3, weight_decay=0.01)
    params = noise((n,))
    opt = jax.jit(tx.init)(params)

    def plain_step(p: Array, o: Any, g: Array) -> tuple[Array, Any]:
        updates, o = tx.update(g, o, p)
        return optax.apply_updates(p, updates), o  # pyright: ignore[reportReturnType]

    jitted = jax.jit(plain_step, donate_argnums=(0, 1))
    kept: list[Any] = [params, opt]
    del params, opt

    def peer() -> Any:
        kept[0], kept[1] = jitted(kept[0], kept[1], g)
        return kept[0]

    return seconds(peer, inner=5)


def _native_off() -> Any:
    return _native.use("jnp")


def _torch_adamw(n: int) -> float | None:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    p = torch.randn(n, device="cuda", requires_grad=True)
    p.grad = torch.randn(n, device="cuda")
    optimizer = torch.optim.AdamW([p], lr=1e-3, fused=True)
    times: list[float] = []
    for _ in range(8):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(5):
            optimizer.step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / 5)
    del p, optimizer
    torch.cuda.empty_cache()
    return float(np.median(times[2:]))


def _scan(n: int, copy: float) -> Iterator[Row]:
    x = noise((n,))
    ours = jax.jit(lambda x: gate_scan(x, RULE))
    clean, found = ours(x.at[n // 3].set(jnp.nan))
    if [int(v) for v in found] != [1, 0, 0, 0, n // 3] or not bool(jnp.isfinite(clean).all()):
        raise AssertionError("gate-scan: wrong counts")
    del clean
    mine = seconds(lambda: ours(x), inner=3)
    scaled, scanned = jax.jit(lambda x: x * 1.5), jax.jit(lambda x: ref_stencil.gate_scan(x, RULE))
    scale = seconds(lambda: scaled(x), inner=3)
    twin = seconds(lambda: scanned(x), 3)
    yield _row("gate-scan", (n,), mine, "plain scale pass x*c in XLA, no gate", scale, 2.0 * x.nbytes, copy)
    yield _row("gate-scan", (n,), mine, "the same in XLA (count and first index)", twin, 2.0 * x.nbytes, copy)


def _records_rows(n: int, copy: float) -> Iterator[Row]:
    from ._records import pack, unpack, update_records, update_twin

    rows = jax.jit(lambda x: lax.bitcast_convert_type(x, jnp.uint32))(noise((n, 8), scale=0.1))
    rows = jax.jit(lambda r: r.at[:, 5].set(0).at[:, 2].set(r[:, 2] & jnp.uint32(0x7FFFFFFF)))(rows)
    moved = 2.0 * rows.nbytes
    channels = jax.jit(unpack)(rows)
    if not bool((jax.jit(pack)(channels) == rows).all()) or not bool((channels == rows.T).all()):
        raise AssertionError("pack, unpack: differ from the transpose")
    for name, mine, arg in (("pack", pack, channels), ("unpack", unpack, rows)):
        ours_s = seconds(partial(jax.jit(mine), arg), inner=3)
        peer_s = seconds(partial(jax.jit(jnp.transpose), arg), 3)
        yield _row(name, (n, 8), ours_s, "transpose in XLA", peer_s, moved, copy)
    del channels
    g, hyper = noise((n,)), jnp.stack(_adamw_hyper())
    step = jax.jit(lambda r, g: update_records(r, g, hyper, "pim", RULE)[0], donate_argnums=0)
    twin = jax.jit(lambda r, g: update_twin(r, g, hyper, "pim", RULE)[0], donate_argnums=0)
    ours, theirs = (ref_adamw.floats(f(jnp.copy(rows), g)[:, 0]) for f in (step, twin))
    _agree(ours, theirs, "record-update", 1e-5)
    held = [rows]
    del rows, ours, theirs

    def run(f: Callable[[Array, Array], Array]) -> Array:
        held[0] = f(held[0], g)
        return held[0]

    ours_s = seconds(lambda: run(step), inner=3)
    peer_s = seconds(lambda: run(twin), 3)
    yield _row("record-update", (n, 8), ours_s, "the same in XLA on an (n, 8) view", peer_s, moved, copy)


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
    _agree(ref_adamw.floats(a[:, 1]), ref_adamw.floats(b[:, 1]), "record-gradient", 1e-6)
    moved = 2.0 * rows.nbytes
    held = [rows]
    del rows, a, b

    def run(f: Callable[[Array, Array], Any]) -> Array:
        held[0] = f(held[0], flux)[0]
        return held[0]

    ours_s = seconds(lambda: run(step), inner=3)
    peer_s = seconds(lambda: run(twin), 3)
    yield _row("record-gradient", (n, 8), ours_s, "the same in XLA on an (n, 8) view", peer_s, moved, copy)


def _burgers(n: int, copy: float) -> Iterator[Row]:
    from ._burgers import burgers_stage, burgers_twin

    q, base, forcing = noise((2, n, n)), noise((2, n, n)), noise((2,))
    ghosts = noise((2, 1, n)), noise((2, 1, n)), noise((2, n, 1)), noise((2, n, 1))
    h, nu, weights = 1 / n, 1e-3, (0.5, 0.5, 1e-5)
    numbers = np.array([0.5 / h, nu / h**2, *weights])
    ours = jax.jit(lambda q, b: burgers_stage(q, b, *ghosts, forcing, h=h, nu=nu, weights=weights))
    twin = jax.jit(lambda q, b: burgers_twin(q, b, *ghosts, forcing, numbers=numbers))
    _agree(ours(q, base), twin(q, base), "burgers-stage", 1e-5)
    mine, theirs = seconds(lambda: ours(q, base), inner=3), seconds(lambda: twin(q, base), 3)
    yield _row("burgers-stage", (2, n, n), mine, "the same in XLA", theirs, 3.0 * q.nbytes, copy)


def _seal(n: int, copy: float) -> Iterator[Row]:
    words = lax.bitcast_convert_type(noise((n,)), jnp.uint32)
    kept = jax.jit(seal)(words)
    for name, mine, theirs, args in (
        ("seal", seal, ref.seal, (words,)),
        ("seal-check", check, ref.check, (words, kept)),
    ):
        ours_s = seconds(partial(jax.jit(mine), *args), inner=3)
        peer_s = seconds(partial(jax.jit(theirs), *args), 3)
        yield _row(name, (n,), ours_s, "the same in XLA", peer_s, 1.06 * words.nbytes, copy)


def bench(names: Sequence[str] | None = None) -> list[Row]:
    """Rows whose name contains one of `names` (all, if none)."""
    gpu, copy = _on_gpu(), copy_bandwidth()
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
    jobs.append(("adamw-sealed", lambda: _adamw(1 << 28 if gpu else 1 << 24, copy)))
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
