"""The sealed AdamW beside its peers, for `poise bench adamw`."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from . import _native, ref_adamw
from ._adamw import adamw
from ._seal import check, seal
from ._timing import Row, agree, noise, on_gpu, row, seconds


def adamw_hyper() -> ref_adamw.Hyper:
    """Plain hyperparameters at the fifth step."""
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


def adamw_rows(n: int, copy: float) -> Iterator[Row]:
    """Sealed AdamW against unprotected ones: optax under jit, and on a GPU torch's fused one if torch is there."""
    state, g = _sealed_state(n)
    hyper = adamw_hyper()
    step = jax.jit(lambda s, g: adamw(s, g, hyper, jnp.bool_(True))[0:2], donate_argnums=0)
    if n <= 1 << 24:
        with _native.use("jnp"):
            plain = jax.jit(lambda s, g: adamw(s, g, hyper, jnp.bool_(True))[0])(state, g)
        agree(ref_adamw.floats(jax.jit(lambda s, g: adamw(s, g, hyper, jnp.bool_(True))[0])(state, g).w.words),
               ref_adamw.floats(plain.w.words), "adamw-sealed", 1e-5)  # fmt: skip
    held = [state]
    del state

    def ours() -> Any:
        held[0], report = step(held[0], g)
        return report

    mine = seconds(ours)
    off = [int(x) for s in held[0] for x in jax.jit(check)(s.words, s.seal)]
    if any(off) or any(int(v) for r in ours() for v in r):
        raise AssertionError(f"adamw-sealed: false alarms {off}")
    held.clear()
    gc.collect()
    theirs = _optax_adamw(n)
    yield row("adamw-sealed", (n,), mine, "optax.adamw under jit, unprotected", theirs, 28.0 * n, copy)
    if on_gpu() and (torch_s := _torch_adamw(n)):
        yield row("adamw-sealed", (n,), mine, "torch fused AdamW, unprotected", torch_s, 28.0 * n, copy)


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

    return seconds(peer)


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
