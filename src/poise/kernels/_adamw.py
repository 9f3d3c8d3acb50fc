"""Sealed AdamW: verify, repair, update, re-seal in one pass, in place if the caller gives the state up."""

from __future__ import annotations

from typing import Literal, overload

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import BFloat16, Bool, Float32

from . import ref_adamw
from ._call import Spec, call
from ._seal import as_words
from .layout import Layout
from .ref import Mended, Seal
from .ref_adamw import Hyper, Sealed, State

Reports = tuple[Mended, Mended, Mended]


@overload
def adamw(
    state: State,
    grad: Float32[Array, "*n"],
    hyper: Hyper,
    ok: Bool[Array, ""],
    lr_mask: Float32[Array, "*n"] | None = ...,
    wd_mask: Float32[Array, "*n"] | None = ...,
    low: Literal[False] = ...,
) -> tuple[State, Reports, None]: ...
@overload
def adamw(
    state: State,
    grad: Float32[Array, "*n"],
    hyper: Hyper,
    ok: Bool[Array, ""],
    lr_mask: Float32[Array, "*n"] | None = ...,
    wd_mask: Float32[Array, "*n"] | None = ...,
    *,
    low: Literal[True],
) -> tuple[State, Reports, BFloat16[Array, " n"]]: ...
def adamw(
    state: State,
    grad: Float32[Array, "*n"],
    hyper: Hyper,
    ok: Bool[Array, ""],
    lr_mask: Float32[Array, "*n"] | None = None,
    wd_mask: Float32[Array, "*n"] | None = None,
    low: bool = False,
) -> tuple[State, Reports, BFloat16[Array, " n"] | None]:
    """One step over a shard of `n` float32 parameters with sealed moments; rules as `ref_adamw.update`.

    - `state`: words, or the float32 arrays themselves in any shape (XLA copies an array to bitcast it); they come back
      as they were given. `grad` and the masks: float32 with as many elements.
    - `ok` false withholds the update; damage is repaired all the same.
    - `lr_mask`, `wd_mask`: per-element factors of the learning rate and of the weight decay (both or neither).
    - `low`: also return the parameters rounded to bfloat16.
    - Returns the new state, what was mended in w, m and v (`unrepairable` > 0: those groups were left as they were).
    """
    lay = Layout(grad.size)
    masks = lr_mask is not None or wd_mask is not None
    given = [jnp.ones_like(grad) if x is None else x for x in (lr_mask, wd_mask)] if masks else []
    scalars = jnp.stack([jnp.asarray(x, jnp.float32) for x in hyper])
    flag = jnp.asarray(ok).astype(jnp.int32).reshape(1)

    def twin(*args: Array) -> list[Array]:
        old = State(*(Sealed(as_words(args[4 * s]), Seal(*args[4 * s + 1 : 4 * s + 4])) for s in range(3)))
        flat_grad, *flat_masks = (x.reshape(-1) for x in (args[12], *args[15:]))
        new, reports, half = ref_adamw.update(old, flat_grad, Hyper(*args[13]), args[14][0] != 0, *flat_masks)
        words = (
            lax.bitcast_convert_type(s.words, a.dtype).reshape(a.shape) for s, a in zip(new, args[0:12:4], strict=True)
        )
        flat = [x for w, s in zip(words, new, strict=True) for x in (w, *s.seal)]
        counts = jnp.stack([*(x for r in reports for x in r), jnp.int32(0)])
        return [*flat, counts, *([half] if low else [])]

    flat = [x for s in state for x in (s.words, *s.seal)]
    args = [*flat, grad, scalars, flag, *given]
    # What was mended, three times five numbers, and one that the CUDA kernel needs for itself.
    results: list[Spec] = [(x.shape, x.dtype) for x in flat] + [((16,), jnp.int32)]
    if low:
        results.append(((lay.n,), jnp.bfloat16))
    if lay.n == 0:
        out = twin(*args)
    else:
        aliases = {i: i for i in range(12)}
        out = call("poise_adamw", twin, args, results, aliases=aliases, masks=masks, low=low)
    new = State(*(Sealed(out[4 * s], Seal(*out[4 * s + 1 : 4 * s + 4])) for s in range(3)))
    first, second, third = (Mended(*(out[12][5 * s + i] for i in range(5))) for s in range(3))
    return new, (first, second, third), out[13] if low else None
