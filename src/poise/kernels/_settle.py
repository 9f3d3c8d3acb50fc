"""What is decided on the device without a conditional: whether a next state is taken, whether bad values are new.

XLA's GPU backend makes the host wait for the predicate of every conditional and loop, once a step and more. These
kernels read it themselves and return at once in the common case.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Int32

from ._call import Spec, call
from ._seal import as_words, repair
from .layout import Layout
from .ref import Mended, Seal


class Settled(NamedTuple):
    """What a step leaves of one array: the array, its seal, what was mended of the old one, and what was bad in the
    next one, if that was not taken: numbers of NaN, Inf and overflows, and the first flat index or -1."""

    array: Array
    seal: Seal
    mended: Mended
    found: Int32[Array, " 4"]


def settle(
    stay: Bool[Array, ""], old: Array, kept: Seal, new: Array, made: Seal, *, limit: float | None, newly: bool
) -> Settled:
    """`new` and its seal as they are, or where `stay`, `old` and its seal mended by the rules of `ref.repair`.

    `old` and `new` have one shape and a dtype of 4 or 8 bytes. In place of `new`, which is not copied. In float32 and
    float64 a value is bad that is no number, infinite, or above `limit` in magnitude (None: finite is good); with
    `newly`, only if it was good in `old`.
    """
    lay = Layout(new.size * new.dtype.itemsize // 4)
    most = _most(new.dtype, limit)

    def twin(stay: Array, old: Array, *rest: Array) -> list[Array]:
        kept, new, made = Seal(*rest[:3]), rest[3], Seal(*rest[4:])

        def put_back(carry: Any) -> Any:
            words, seal, mended = repair(as_words(old), kept)
            flat = words.reshape(-1, 2) if new.dtype.itemsize == 8 else words
            array = lax.bitcast_convert_type(flat, new.dtype).reshape(new.shape)
            return jnp.bool_(False), array, seal, jnp.stack(mended), _found(carry[1], old, most, newly)

        nothing = jnp.array([-1, -1, -1, -1], jnp.int32)
        # A loop of no turns hands on what it began with; a conditional would copy it.
        start = (stay[0] != 0, new, made, jnp.zeros(5, jnp.int32), nothing)
        _, array, seal, mended, found = lax.while_loop(lambda carry: carry[0], put_back, start)
        return [array, *seal, mended, found]

    like: Spec = (new.shape, new.dtype)
    seals: list[Spec] = [((lay.L,), jnp.uint32), (lay.marks_shape, jnp.uint32), ((lay.G, 2), jnp.uint32)]
    results: list[Spec] = [like, *seals, ((5,), jnp.int32), ((4,), jnp.int32)]
    args = [stay.astype(jnp.int32).reshape(1), old, *kept, new, *made]
    array, parity, marks, guard, mended, found = call(
        "poise_settle", twin, args, results, aliases={5: 0, 6: 1, 7: 2, 8: 3}, limit=most, newly=newly
    )
    return Settled(
        array, Seal(parity, marks, guard), Mended(*(mended[i] for i in range(5))), found + jnp.array([1, 1, 1, 0])
    )


def newly_bad(bad: Int32[Array, ""], new: Array, old: Array, limit: float | None) -> Int32[Array, ""]:
    """How many float32 or float64 values are bad in `new` and good in `old`; 0 without a look where `bad` is 0."""
    most = _most(new.dtype, limit)

    def twin(bad: Array, new: Array, old: Array) -> list[Array]:
        def look(pair: tuple[Array, Array]) -> Array:
            return (_found(*pair, most, True)[:3] + 1).sum(dtype=jnp.int32)

        return [lax.cond(bad[0] > 0, look, lambda _: jnp.int32(0), (new, old)).reshape(1)]

    (count,) = call("poise_newly", twin, [bad.reshape(1), new, old], [((1,), jnp.int32)], limit=most)
    return count[0]


def _most(dtype: Any, limit: float | None) -> float:
    if not jnp.issubdtype(dtype, jnp.floating):
        return 0.0
    most = float(jnp.finfo(dtype).max)
    return most if limit is None else min(limit, most)


def _found(new: Array, old: Array, most: float, newly: bool) -> Int32[Array, " 4"]:
    """As the kernels write it: counts less one, and the first index."""
    if not jnp.issubdtype(new.dtype, jnp.floating):
        return jnp.array([-1, -1, -1, -1], jnp.int32)
    nan, inf = jnp.isnan(new), jnp.isinf(new)
    each = [nan, inf, (jnp.abs(new) > jnp.asarray(most, new.dtype)) & ~inf]
    if newly:
        each = [x & (jnp.abs(old) <= jnp.asarray(most, old.dtype)) for x in each]
    bad = (each[0] | each[1] | each[2]).reshape(-1)
    first = jnp.where(bad.any(), jnp.argmax(bad), -1)
    return jnp.stack([*(x.sum() - 1 for x in each), first]).astype(jnp.int32)


__all__ = ["Settled", "newly_bad", "settle"]
